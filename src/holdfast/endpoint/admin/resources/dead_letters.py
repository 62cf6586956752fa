"""The admin listener's part for dead letters: to list them, show one, have it tried again, give it up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from holdfast.endpoint.admin.inspected import Inspected
from holdfast.endpoint.admin.numbering import numbering_of
from holdfast.endpoint.admin.routes import Asked, Joined, Refused, route
from holdfast.endpoint.admin.shapes.answers import Discarded, LetterList, LetterShown, Retried
from holdfast.endpoint.admin.shapes.requests import LetterPage
from holdfast.endpoint.admin.shapes.values import MOST_LISTED
from holdfast.endpoint.handling.dead_letters import describe_letter, describe_letters

if TYPE_CHECKING:
    from holdfast.endpoint.destination.running_destination import RunningDestination

EVERY = "all"


class LetterRoutes:
    """Answers for one destination.

    Args:
        app: The destination, started; or a stopped store.
        retry: Requests another delivery of one dead letter, or of every one, and returns of how many.
    """

    def __init__(self, app: Inspected, retry: Callable[[int | None], int]) -> None:
        self._app = app
        self._retried = retry
        self._letters = app.dead_letters

    @route("GET", "dead-letters", LetterList, LetterPage, joined=Joined.PAGES, is_large=True)
    async def _list(self, asked: Asked) -> object:
        """List dead letters."""
        letters = self._letters
        numbers = numbering_of(self._app)
        ranges = list(letters.ranges(max(0, numbers.own_letter(asked.query.start))))
        limit = min(asked.query.limit, MOST_LISTED)
        shown, following = await asyncio.to_thread(
            describe_letters, self._app.store.read, ranges, limit, letters.is_asked, whole=asked.query.whole
        )
        following = None if following is None else numbers.letter(following)
        return {"dead_letters": [self._numbered(one) for one in shown], "count": letters.count, "next": following}

    def _numbered(self, shown: dict[str, Any]) -> dict[str, Any]:
        numbers = numbering_of(self._app)
        return numbers.describe_row(shown | {"letter": numbers.letter(shown["letter"])})

    @route("GET", "dead-letters/{letter}", LetterShown, errors=(404,), joined=Joined.LETTER, is_large=True)
    async def _show(self, asked: Asked, letter: str) -> object:
        """Show a dead letter in full."""
        number = self._number(letter)
        found = await asyncio.to_thread(self._app.store.read, self._letters.name, 0, number, number + 1)
        if not found:
            raise self._missing(letter)
        return self._numbered(describe_letter(*found[0], is_asked=self._letters.is_asked(number), whole=True))

    @route("POST", "dead-letters/{letter}/retry", Retried, errors=(404, 409), joined=Joined.LETTER)
    async def _retry(self, asked: Asked, letter: str) -> object:
        """Retry a dead letter, or all: hand them to their handler or put them back into their queue."""
        count = self._retried(None if letter == EVERY else self._number(letter))
        await self._app.engine.durable()
        return {"retried": count, "count": self._letters.count}

    @route("POST", "dead-letters/{letter}/discard", Discarded, errors=(404,), joined=Joined.LETTER)
    async def _discard(self, asked: Asked, letter: str) -> object:
        """Discard a dead letter, or all."""
        count = self._letters.discard(None if letter == EVERY else self._number(letter))
        await self._app.engine.durable()
        return {"discarded": count, "count": self._letters.count}

    def _number(self, letter: str) -> int:
        is_number = letter.isascii() and letter.isdecimal()
        own = numbering_of(self._app).own_letter(int(letter[:20])) if is_number else -1
        if not self._letters.is_there(own):
            raise self._missing(letter)
        return own

    def _missing(self, letter: str) -> Refused:
        return Refused(
            404, f"the dead letter {letter[:40]} does not exist", "List the dead letters with holdfast dead-letters."
        )


def retry_letters(app: RunningDestination, letter: int | None) -> int:
    """Hand a dead letter of a running destination, or every one, to its handler or put it back into its queue.

    Returns:
        The number of dead letters.

    Raises:
        Refused: 409 if nothing could process them.
    """
    if app.dispatcher is not None:
        return app.dispatcher.handling.retry(letter)
    if any(outbox.forwarding for outbox in app.engine.protocol.outbound.outboxes.values()):
        return app.giving_up.requeue(letter)
    raise Refused(409, "this destination has no handlers", "Start it with the handler for these messages.")
