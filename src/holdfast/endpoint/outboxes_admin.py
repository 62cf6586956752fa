"""The admin listener's part for what waits to be sent: to list it, show one message, give it up, go on."""

from __future__ import annotations

import asyncio

from holdfast.endpoint.admin_routes import Asked, Function, Refused
from holdfast.endpoint.destination import Destination, json_answer
from holdfast.endpoint.outboxes import Outboxes
from holdfast.exceptions import ConfigurationError

MOST_LISTED = 1000
"""Messages in one answer."""


class OutboxRoutes:
    """Answers for one destination: what it sends are replies and acknowledgements to addressable peers.

    Args:
        app: The destination, started.
    """

    def __init__(self, app: Destination) -> None:
        self._app = app
        self.routes: list[tuple[str, str, Function]] = [
            ("GET", "outbox", self._list),
            ("GET", "outbox/{message}", self._show),
            ("POST", "outbox/{message}/discard", self._discard),
            ("POST", "outbox/retry", self._retry),
        ]

    @property
    def _outboxes(self) -> Outboxes:
        return Outboxes(self._app.engine.protocol.outbound, self._app.store.read)

    async def _list(self, asked: Asked) -> None:
        try:
            limit = int(asked.query.get("limit", "100"))
            if limit < 1:
                raise ValueError("too low")
        except ValueError as error:
            raise Refused(400, f"limit cannot be read: {error}", "limit=100") from None
        outboxes = self._outboxes
        shown = await asyncio.to_thread(outboxes.listed, min(limit, MOST_LISTED))
        json_answer(asked.exchange, 200, {"messages": shown, "count": outboxes.count})

    async def _show(self, asked: Asked, message: str) -> None:
        try:
            json_answer(asked.exchange, 200, await asyncio.to_thread(self._outboxes.shown, message))
        except ConfigurationError as error:
            raise Refused(404, error.message, "GET /outbox lists those that do.") from None

    async def _discard(self, asked: Asked, message: str) -> None:
        outboxes = self._outboxes
        try:
            in_doubt = outboxes.others_in_doubt(message)
            outboxes.discard(message, self._app.engine.clock())
        except ConfigurationError as error:
            raise Refused(404, error.message, "GET /outbox lists those that do.") from None
        await self._app.engine.durable()
        json_answer(asked.exchange, 200, {"discarded": 1, "in_doubt": in_doubt, "count": outboxes.count})

    async def _retry(self, asked: Asked) -> None:
        outboxes = self._outboxes
        try:
            count = outboxes.retry(asked.query.get("key"), self._app.engine.clock())
        except ConfigurationError as error:
            raise Refused(404, error.message, "GET /outbox has the keys.") from None
        await self._app.engine.durable()
        json_answer(asked.exchange, 200, {"retried": count, "count": outboxes.count})
