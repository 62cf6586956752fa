"""Replies: those that are here, until the program says that it has them. A program that dies with one gets it again.

Knows where each is in the source's own queue, and reads it there; bodies are not kept in memory.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Self

from holdfast.core.queues import Queue
from holdfast.core.records import Record
from holdfast.endpoint.message import Message


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
        read: Reads the record at an offset of that.
        tell: Calls in the event loop, from any thread.
        changed: Called when there is something to commit.
    """

    def __init__(
        self,
        most: int,
        queue: Queue,
        read: Callable[[int], Record],
        tell: Callable[[Callable[[], None]], None],
        changed: Callable[[], None],
    ) -> None:
        self._most = most
        self._queue = queue
        self._read = read
        self._tell = tell
        self._changed = changed
        self._offsets: dict[str, int] = {}
        """MessageID of the request -> where its reply is, the lowest offset first."""
        self._given: dict[str, None] = {}

    def put(self, request: str, offset: int) -> None:
        """The reply to that request is there, durably."""
        self._offsets.pop(request, None)  # the newest counts, in the order of the offsets
        self._offsets[request] = offset
        self._given.pop(request, None)

    def give(self, request: str, record: Record | None = None) -> Reply | None:
        """The reply to that request; None if it is not there.

        Args:
            request: The request's MessageID.
            record: What it is, if that is known.
        """
        offset = self._offsets.get(request)
        if offset is None:
            return None
        reply = Reply.from_record(record if record is not None else self._read(offset))
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
        self._queue.delete_below(0, next(iter(self._offsets.values()), self._queue.ends[0]))
        self._changed()
