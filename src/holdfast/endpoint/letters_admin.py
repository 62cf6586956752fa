"""The admin listener's part for dead letters: to list them, show one, have it tried again, give it up."""

from __future__ import annotations

import asyncio

from holdfast.endpoint.admin_routes import Asked, Function, Refused
from holdfast.endpoint.destination import Destination, json_answer
from holdfast.endpoint.letters import describe_letter, describe_letters

MOST_LISTED = 1000
"""Letters in one answer; a list goes on from its ``next``."""

EVERY = "all"


class LetterRoutes:
    """Answers for one destination.

    Args:
        app: The destination, started.
    """

    def __init__(self, app: Destination) -> None:
        self._app = app
        self._letters = app.dead_letters
        self.routes: list[tuple[str, str, Function]] = [
            ("GET", "dead-letters", self._list),
            ("GET", "dead-letters/{letter}", self._show),
            ("POST", "dead-letters/{letter}/retry", self._retry),
            ("POST", "dead-letters/{letter}/discard", self._discard),
        ]

    async def _list(self, asked: Asked) -> None:
        try:
            start, limit = int(asked.query.get("from", "0")), int(asked.query.get("limit", "100"))
            if start < 0 or limit < 1:
                raise ValueError("too low")
        except ValueError as error:
            raise Refused(400, f"from and limit cannot be read: {error}", "from=0&limit=100") from None
        letters = self._letters
        ranges = list(letters.ranges(start))
        shown, following = await asyncio.to_thread(
            describe_letters, self._app.store.read, ranges, min(limit, MOST_LISTED), letters.is_asked
        )
        json_answer(asked.exchange, 200, {"dead_letters": shown, "count": letters.count, "next": following})

    async def _show(self, asked: Asked, letter: str) -> None:
        number = self._number(letter)
        found = await asyncio.to_thread(self._app.store.read, self._letters.name, 0, number, number + 1)
        if not found:
            raise self._missing(letter)
        shown = describe_letter(*found[0], is_asked=self._letters.is_asked(number), whole=True)
        json_answer(asked.exchange, 200, shown)

    async def _retry(self, asked: Asked, letter: str) -> None:
        dispatcher = self._app.dispatcher
        if dispatcher is None:
            raise Refused(409, "this destination has no handlers", "Serve it with the handler that is to get them.")
        number = None if letter == EVERY else self._number(letter)
        count = dispatcher.handling.retry(number)
        await self._app.engine.durable()
        json_answer(asked.exchange, 200, {"retried": count, "count": self._letters.count})

    async def _discard(self, asked: Asked, letter: str) -> None:
        count = self._letters.discard(None if letter == EVERY else self._number(letter))
        await self._app.engine.durable()
        json_answer(asked.exchange, 200, {"discarded": count, "count": self._letters.count})

    def _number(self, letter: str) -> int:
        if not letter.isascii() or not letter.isdecimal() or not self._letters.is_there(int(letter[:20])):
            raise self._missing(letter)
        return int(letter[:20])

    def _missing(self, letter: str) -> Refused:
        return Refused(404, f"there is no dead letter {letter[:40]}", "GET /dead-letters lists them.")
