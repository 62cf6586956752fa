"""Replies that a source stores until the program confirms them. A program that crashes before that gets them again.

This module holds the offset of each reply in the source's queue and reads it from there; it keeps no bodies in memory.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Self

from holdfast.core.queues.queue import Queue
from holdfast.core.ranges import AcknowledgementRanges, ranges_of
from holdfast.core.records import Record, Snapshot, State
from holdfast.endpoint.engine.engine import Engine
from holdfast.endpoint.envelopes.message import Message
from holdfast.endpoint.source.pending_sends import fail
from holdfast.exceptions import PeerFault

BLOCK = 256
"""The confirmations of so many successive replies are saved together, so one costs no more to save than these."""
CONFIRMED = "confirmed/"
"""Begins the name under which the confirmations of a block are saved."""


class Reply(Message):
    """A reply, which the source stores until the program confirms it: a :class:`Message`, with all of its attributes.

    Until then, :meth:`Source.reply` returns it again, also in a later process. To confirm it, call :meth:`done`, or
    leave the ``with`` or ``async with`` block of the reply or of its source without an error.
    """

    _tell: Callable[[], None] | None = None

    def done(self) -> None:
        """Confirm the reply, so that the source deletes it. Safe to call twice, and from any thread.

        A crash directly after the call may undo the deletion.
        """
        if self._tell is not None:
            self._tell()

    def raise_for_fault(self) -> None:
        """Raise the fault if the body is one. The program confirms it with :meth:`PeerFault.done`."""
        try:
            super().raise_for_fault()
        except PeerFault as fault:
            fault.message_id, fault._tell = self.relates_to or "", self._tell
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.done()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.__exit__(kind)


class Replies:
    """The stored replies of one source.

    Args:
        most: The limit of returned but unconfirmed replies; beyond it, the oldest count as confirmed.
        queue: The queue that stores the replies.
        engine: The running engine.
        tell: Runs a function in the event loop, from any thread.
        came: Called with the offset and the record of each reply that arrives.
        found: Called with the record of each reply that an earlier process stored.
    """

    def __init__(
        self,
        most: int,
        queue: Queue,
        engine: Engine,
        tell: Callable[[Callable[[], None]], None],
        came: Callable[[int, Record], None],
        found: Callable[[Record], None] = lambda _: None,
    ) -> None:
        self._found = found
        self._most = most
        self._queue = queue
        self._tell = tell
        self._engine = engine
        self._came = came
        self._offsets: dict[str, int] = {}
        """MessageID of the request -> offset of its reply, the lowest offset first."""
        self._given: dict[str, None] = {}
        self._confirmed: dict[int, AcknowledgementRanges] = {}
        """Confirmed replies behind one that is not, each offset plus one, by the :data:`BLOCK` of their offsets."""
        self._unread: deque[int] = deque()
        """Offsets of replies that must be read to find their requests, the lowest offset first."""
        self._waiting: list[asyncio.Future[None]] = []
        """Callers that wait until the requests of all stored replies are known."""

    def put(self, request: str, offset: int) -> None:
        """Note the offset of the durable reply to a request."""
        replaced = self._offsets.pop(request, None)  # the newest counts, in the order of the offsets
        self._offsets[request] = offset
        if replaced is not None:
            self._confirm(replaced)
        self._given.pop(request, None)

    async def take_up(self, snapshot: Snapshot) -> None:
        """Find the requests of the replies that an earlier process stored. New replies may arrive at the same time.

        Raises:
            StoreError: the store cannot be read.
        """
        first, end = snapshot.bounds.get((self._queue.name, 0), (0, 0))
        for (queue, _, name), state in snapshot.cursors.items():
            if queue == self._queue.name and name.startswith(CONFIRMED):
                self._take_up_confirmed(name, state, end)
        found: dict[str, int] = {}
        while first < end:
            for offset, record in await self._engine.records(self._queue.name, 0, first, end):
                first = offset + 1
                if record.relates_to is not None and not self._is_confirmed(offset):
                    found.pop(record.relates_to, None)  # as in put
                    found[record.relates_to] = offset
                    self._found(record)
        self._offsets = {request: at for request, at in found.items() if request not in self._offsets} | self._offsets

    def delivered(self, offset: int, record: Record | None) -> None:
        """Report a reply that is now durable, in the order of the offsets.

        If its record is not in memory, it is read first, and later replies wait for it.
        """
        if record is not None and not self._unread:
            self._came(offset, record)
        else:
            self._unread.append(offset)
            self._queue.records.want(0, offset, offset + 1, self._read)

    def _read(self, found: list[tuple[int, Record]], now: float) -> None:
        self._unread.popleft()
        self._came(*found[0])
        if not self._unread:
            for one in self._waiting:
                if not one.done():
                    one.set_result(None)
            self._waiting.clear()

    @property
    def is_reading(self) -> bool:
        """Whether the requests of some stored replies are not known yet."""
        return bool(self._unread)

    async def read(self) -> None:
        """Wait until the requests of all stored replies are known."""
        if self._unread:
            one: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(one)
            await one

    def fail_all(self, error: BaseException) -> None:
        """Fail every caller that waits for a read, because the store failed or was closed."""
        fail(self._waiting, error)
        self._waiting.clear()

    @property
    def requests(self) -> list[str]:
        """MessageIDs of the requests whose replies are stored, the oldest reply first."""
        return [*self._offsets]

    def has(self, request: str) -> bool:
        return request in self._offsets

    async def kept(self, request: str) -> Reply | None:
        """Return the stored reply to that request; None without one.

        Raises:
            StoreError: The store cannot be read.
        """
        while (offset := self._offsets.get(request)) is not None:
            found = await self._engine.records(self._queue.name, 0, offset, offset + 1)
            if self._offsets.get(request) == offset:  # neither confirmed nor replaced during the read
                return self.give(request, found[0][1])
        return None

    def give(self, request: str, record: Record) -> Reply:
        """Return the stored reply to a request as an object that the program can confirm."""
        offset = self._offsets[request]
        reply = Reply.from_record(record)
        reply._tell = lambda: self._tell(lambda: self._done(request, offset))
        self._given[request] = None
        # A program that never confirms would fill the store.
        if len(self._given) > self._most:
            oldest = next(iter(self._given))
            self._done(oldest, self._offsets[oldest])
        return reply

    def done_with_given(self) -> None:
        """Confirm every reply that the program has received."""
        for request in list(self._given):
            self._done(request, self._offsets[request])

    def _done(self, request: str, offset: int) -> None:
        if self._offsets.get(request) != offset:
            return
        del self._offsets[request]
        self._given.pop(request, None)
        end = self._queue.records.ends[0]
        # Up to the first reply that the program has not confirmed, and none that is still to be read.
        needed = min(next(iter(self._offsets.values()), end), self._unread[0] if self._unread else end)
        records = self._queue.records
        records.delete_below(0, needed)
        for block in [one for one, confirmed in self._confirmed.items() if confirmed.highest <= needed]:
            del self._confirmed[block]
            records.save_cursor(0, f"{CONFIRMED}{block}", None)
        if offset >= needed:
            self._confirm(offset)
        self._engine.touch()

    # --- confirmed replies behind one that is not -------------------------------------------------------------------

    def _confirm(self, offset: int) -> None:
        """Save that a reply is confirmed although an earlier one is not, which keeps both in the store."""
        confirmed = self._confirmed.setdefault(offset // BLOCK, AcknowledgementRanges())
        confirmed.add(offset + 1)
        name = f"{CONFIRMED}{offset // BLOCK}"
        self._queue.records.save_own(0, name, {"confirmed": confirmed.to_state()})

    def _is_confirmed(self, offset: int) -> bool:
        return offset + 1 in self._confirmed.get(offset // BLOCK, ())

    def _take_up_confirmed(self, name: str, state: State, end: int) -> None:
        block, confirmed = name.removeprefix(CONFIRMED), ranges_of(state.get("confirmed"), end)
        if confirmed is not None and block.isdecimal():
            self._confirmed[int(block)] = confirmed
        else:
            self._queue.records.tell_aside("which replies are confirmed", "they count as unconfirmed", state)
