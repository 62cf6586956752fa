"""Admin routes for messages that wait to be sent: list them, show one, discard it, retry."""

from __future__ import annotations

import asyncio
from typing import Any

from holdfast.endpoint.admin.inspected import Inspected
from holdfast.endpoint.admin.numbering import numbering_of
from holdfast.endpoint.admin.routes import Asked, Joined, Refused, Route
from holdfast.endpoint.admin.shapes.answers import GivenUp, Retried, Waiting, WaitingList
from holdfast.endpoint.admin.shapes.requests import Key, MessagePage
from holdfast.endpoint.admin.shapes.values import MOST_LISTED
from holdfast.endpoint.sending.outboxes import Outboxes
from holdfast.exceptions import ConfigurationError


class OutboxRoutes:
    """Answers for one destination: what it sends are replies and acknowledgements to addressable peers, and what
    forwarders send.

    Args:
        app: The destination, started; or a stopped store.
    """

    def __init__(self, app: Inspected) -> None:
        self._app = app
        one = "outbox/{message}"
        self.routes = [
            Route(
                "GET",
                "outbox",
                self._list,
                "List unacknowledged messages",
                WaitingList,
                MessagePage,
                is_large=True,
            ),
            Route(
                "GET",
                one,
                self._show,
                "Show an unacknowledged message in full",
                Waiting,
                errors=(404,),
                joined=Joined.MESSAGE,
                is_large=True,
            ),
            Route(
                "POST",
                one + "/discard",
                self._discard,
                "Discard an unacknowledged message",
                GivenUp,
                errors=(404,),
                joined=Joined.MESSAGE,
            ),
            Route("POST", "outbox/retry", self._retry, "Retry stopped messages", Retried, Key, errors=(404,)),
        ]

    @property
    def _outboxes(self) -> Outboxes:
        protocol = self._app.engine.protocol
        return Outboxes(protocol.outbound, self._app.store.read, lambda: protocol.replies)

    async def _list(self, asked: Asked) -> object:
        outboxes = self._outboxes
        shown = await asyncio.to_thread(outboxes.listed, min(asked.query.limit, MOST_LISTED))
        return {"messages": [self._marked(one) for one in shown], "count": outboxes.count}

    def _marked(self, shown: dict[str, Any]) -> dict[str, Any]:
        mark = numbering_of(self._app).mark
        return shown | {"message": mark(shown["message"]), "key": mark(shown["key"])}

    async def _show(self, asked: Asked, message: str) -> object:
        try:
            own = numbering_of(self._app).own_name(message)
            return self._marked(await asyncio.to_thread(self._outboxes.shown, own))
        except ConfigurationError as error:
            raise Refused(404, error.message, "List the waiting messages with holdfast outbox.") from None

    async def _discard(self, asked: Asked, message: str) -> object:
        outboxes = self._outboxes
        engine = self._app.engine
        message = numbering_of(self._app).own_name(message)
        try:
            outbox, offset = outboxes.find(message)
            # Read before the discard: the requester's fault needs the request.
            found = await engine.records(outbox.records.queue.name, outbox.records.partition, offset, offset + 1)
            in_doubt = outboxes.others_in_doubt(message)
            outboxes.discard(message, found, engine.clock())
        except ConfigurationError as error:
            raise Refused(404, error.message, "List the waiting messages with holdfast outbox.") from None
        await engine.durable()
        return {"discarded": 1, "in_doubt": in_doubt, "count": outboxes.count}

    async def _retry(self, asked: Asked) -> object:
        outboxes, numbers, key = self._outboxes, numbering_of(self._app), asked.query.key
        try:
            if key is not None and numbers.owner_of_name(key) != numbers.worker:
                raise ConfigurationError(f"no message has the key {key!r}")
            own = numbers.own_name(key) if key is not None else None
            count = outboxes.retry(own, self._app.engine.clock())
        except ConfigurationError as error:
            raise Refused(404, error.message, "List the keys with holdfast outbox.") from None
        await self._app.engine.durable()
        return {"retried": count, "count": outboxes.count}
