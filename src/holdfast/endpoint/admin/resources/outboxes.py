"""Admin routes for messages that wait to be sent: list them, show one, discard it, retry."""

from __future__ import annotations

import asyncio
from typing import Any

from holdfast.core.steering import NotSteered
from holdfast.endpoint.admin.inspected import Inspected
from holdfast.endpoint.admin.numbering import numbering_of
from holdfast.endpoint.admin.routes import Asked, Joined, Refused, route
from holdfast.endpoint.admin.shapes.answers import GivenUp, Retried, Waiting, WaitingList
from holdfast.endpoint.admin.shapes.requests import Key, MessagePage
from holdfast.endpoint.admin.shapes.values import MOST_LISTED
from holdfast.endpoint.engine.engine import SOURCES_QUEUE
from holdfast.endpoint.sending.outboxes import Outboxes, no_key
from holdfast.exceptions import ConfigurationError, StoreError
from holdfast.store import Transactional


class OutboxRoutes:
    """Answers for one destination: what it sends are replies and acknowledgements to addressable peers, and what
    forwarders send.

    Args:
        app: The destination, started; or a stopped store.
    """

    def __init__(self, app: Inspected) -> None:
        self._app = app

    @property
    def _outboxes(self) -> Outboxes:
        protocol = self._app.engine.protocol
        return Outboxes(protocol.outbound, self._app.store.read, lambda: protocol.replies)

    @route("GET", "outbox", WaitingList, MessagePage, is_large=True)
    async def _list(self, asked: Asked) -> object:
        """List unacknowledged messages."""
        outboxes = self._outboxes
        shown = await asyncio.to_thread(outboxes.listed, min(asked.query.limit, MOST_LISTED))
        enqueued = await asyncio.to_thread(_count_enqueued, self._app) if _is_sources(self._app) else None
        return {"messages": [self._marked(one) for one in shown], "count": outboxes.count, "enqueued": enqueued}

    def _marked(self, shown: dict[str, Any]) -> dict[str, Any]:
        mark = numbering_of(self._app).mark
        return shown | {"message": mark(shown["message"]), "key": mark(shown["key"])}

    @route("GET", "outbox/{message}", Waiting, errors=(404, 409), joined=Joined.MESSAGE, is_large=True)
    async def _show(self, asked: Asked, message: str) -> object:
        """Show an unacknowledged message in full."""
        try:
            own = numbering_of(self._app).own_name(message)
            return self._marked(await asyncio.to_thread(self._outboxes.shown, own))
        except ConfigurationError as error:
            raise _refused(error) from None

    @route("POST", "outbox/{message}/discard", GivenUp, errors=(404, 409), joined=Joined.MESSAGE)
    async def _discard(self, asked: Asked, message: str) -> object:
        """Discard an unacknowledged message."""
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
            raise _refused(error) from None
        await engine.durable()
        return {"discarded": 1, "in_doubt": in_doubt, "count": outboxes.count}

    @route("POST", "outbox/retry", Retried, Key, errors=(404, 409))
    async def _retry(self, asked: Asked) -> object:
        """Retry stopped messages."""
        outboxes, numbers, key = self._outboxes, numbering_of(self._app), asked.query.key
        try:
            if key is not None and numbers.owner_of_name(key) != numbers.worker:
                raise no_key(key)
            own = numbers.own_name(key) if key is not None else None
            count = outboxes.retry(own, self._app.engine.clock())
        except ConfigurationError as error:
            raise _refused(error) from None
        await self._app.engine.durable()
        return {"retried": count, "count": outboxes.count}


def _is_sources(app: Inspected) -> bool:
    """Whether the store is a source's. No source has an admin interface, so a process inspects its store."""
    return not app.engine.is_running and SOURCES_QUEUE in app.queues


def _count_enqueued(app: Inspected) -> int | None:
    """Return how many messages of transactions wait; None if the database does not answer at once."""
    store = app.store
    if not isinstance(store, Transactional):
        return 0
    try:
        return store.count_enqueued() if store.trouble is None else None
    except StoreError:
        return None


def _refused(error: ConfigurationError) -> Exception:
    return error if isinstance(error, NotSteered) else Refused(404, error.message, error.remedy)
