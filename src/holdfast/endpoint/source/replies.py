"""Replies: those that are here, until the program says that it has them. A program that dies with one gets it again.

Knows where each is in the source's own queue, and has it read there; bodies are not kept in memory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Self

from holdfast.core.queues.queue import Queue
from holdfast.core.records import Record
from holdfast.endpoint.engine import Engine
from holdfast.endpoint.envelopes.message import Message


class Reply(Message):
    """A reply. It is given again to whoever asks for it, also in a later process, until :meth:`done` is called, or
    until its ``with`` or ``async with`` block, or that of its source, is left without an error."""

    _tell: Callable[[], None] | None = None

    def done(self) -> None:
        """Say that the program has it: it is deleted. A crash just behind this may undo it. Safe to call twice, and
        from any thread."""
        if self._tell is not None:
            self._tell()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.done()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, trace)


class Replies:
    """What is here of one source.

    Args:
        most: Replies that were given and are not done; the oldest beyond that are taken for done.
        queue: Where they are.
        engine: The running engine.
        tell: Calls in the event loop, from any thread.
        came: Called with each that comes: its offset, and what it is.
    """

    def __init__(
        self,
        most: int,
        queue: Queue,
        engine: Engine,
        tell: Callable[[Callable[[], None]], None],
        came: Callable[[int, Record], None],
    ) -> None:
        self._most = most
        self._queue = queue
        self._tell = tell
        self._engine = engine
        self._came = came
        self._offsets: dict[str, int] = {}
        """MessageID of the request -> where its reply is, the lowest offset first."""
        self._given: dict[str, None] = {}
        self._unread: deque[int] = deque()
        """Where replies are that must be read first to know whose they are, the lowest offset first."""

    def put(self, request: str, offset: int) -> None:
        """The reply to that request is there, durably."""
        self._offsets.pop(request, None)  # the newest counts, in the order of the offsets
        self._offsets[request] = offset
        self._given.pop(request, None)

    async def take_up(self, first: int, end: int) -> None:
        """See whose the replies of a former process are, which lie there. Others may come meanwhile.

        Raises:
            StoreError: the store cannot be read.
        """
        found: dict[str, int] = {}
        while first < end:
            for offset, record in await self._engine.records(self._queue.name, 0, first, end):
                first = offset + 1
                if record.relates_to is not None:
                    found.pop(record.relates_to, None)  # as in put
                    found[record.relates_to] = offset
        self._offsets = {request: at for request, at in found.items() if request not in self._offsets} | self._offsets

    def delivered(self, offset: int, record: Record | None) -> None:
        """A reply came, durably. If it is not in memory it is read first, and those behind it wait for it: they are
        told in the order of their offsets."""
        if record is not None and not self._unread:
            self._came(offset, record)
        else:
            self._unread.append(offset)
            self._queue.want(0, offset, offset + 1, self._read)

    def _read(self, found: list[tuple[int, Record]], now: float) -> None:
        self._unread.popleft()
        self._came(*found[0])

    def has(self, request: str) -> bool:
        """Whether the reply to that request is here."""
        return request in self._offsets

    async def kept(self, request: str) -> Reply | None:
        """The reply to that request, read from the store; None if it is not there.

        Raises:
            StoreError: the store cannot be read.
        """
        while (offset := self._offsets.get(request)) is not None:
            found = await self._engine.records(self._queue.name, 0, offset, offset + 1)
            if self._offsets.get(request) == offset:  # it is neither done with meanwhile, nor followed by another
                return self.give(request, found[0][1])
        return None

    def give(self, request: str, record: Record) -> Reply:
        """The reply to that request, which is there.

        Args:
            request: The request's MessageID.
            record: What is there.
        """
        offset = self._offsets[request]
        reply = Reply.from_record(record)
        reply._tell = lambda: self._tell(lambda: self._done(request, offset))
        self._given[request] = None
        if len(self._given) > self._most:
            oldest = next(iter(self._given))
            self._done(oldest, self._offsets[oldest])
        return reply

    def done_with_given(self) -> None:
        """The program ends as it should: it has what it was given."""
        for request in list(self._given):
            self._done(request, self._offsets[request])

    def _done(self, request: str, offset: int) -> None:
        if self._offsets.get(request) != offset:
            return
        del self._offsets[request]
        self._given.pop(request, None)
        end = self._queue.ends[0]
        needed = min(next(iter(self._offsets.values()), end), self._unread[0] if self._unread else end)
        self._queue.delete_below(0, needed)
        self._engine.touch()
