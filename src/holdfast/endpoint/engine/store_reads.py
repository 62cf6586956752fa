"""Reads that the core requests, so that a slow disk or database blocks no event loop.

A store that never waits is read in the loop: a thread would cost ten times as much as the read. Any other store is read
in separate threads, several at a time; the requests of one partition are read and answered in order.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from holdfast.core.events import ReadWanted
from holdfast.core.records import Record
from holdfast.exceptions import StoreError, StoreFailed
from holdfast.store import Store

Records = list[tuple[int, Record]]

MOST_AT_A_TIME = 4
"""Partitions that are read at a time."""


class StoreReads:
    """The reads of one store, for a shell on one asyncio loop."""

    def __init__(
        self,
        store: Store,
        loop: asyncio.AbstractEventLoop,
        on_read: Callable[[ReadWanted, Records], None],
        on_failed: Callable[[BaseException], None],
    ) -> None:
        self._store = store
        self._loop = loop
        self._on_read = on_read
        self._on_failed = on_failed
        self._threads = None if store.reads_at_once else ThreadPoolExecutor(MOST_AT_A_TIME, "holdfast-read")
        self._lines: dict[tuple[str, int], deque[tuple[int, ReadWanted]]] = {}
        """Partitions being read -> the next requested range of each, with its number."""
        self._numbers = 0
        """Reads that were asked for, which are numbered in this order."""
        self._unanswered: dict[int, None] = {}
        """Their numbers, in order, until they are answered."""
        self._under_way: set[asyncio.Future[Records]] = set()
        self._is_closed = False

    @property
    def is_busy(self) -> bool:
        """Whether something is being read."""
        return bool(self._lines)

    def read(self, wanted: ReadWanted) -> None:
        """Read it; the callback follows, perhaps within this call."""
        if self._is_closed:
            return
        if self._threads is None:
            try:
                found = self._store.read(wanted.queue, wanted.partition, wanted.start, wanted.end)
            except Exception as error:
                self._on_failed(error)
                return
            self._on_read(wanted, found)
            return
        number, self._numbers = self._numbers, self._numbers + 1
        self._unanswered[number] = None
        line = self._lines.get((wanted.queue, wanted.partition))
        if line is None:
            self._lines[wanted.queue, wanted.partition] = deque()
            self._begin(self._threads, number, wanted)
        else:
            line.append((number, wanted))

    async def records(self, queue: str, partition: int, start: int, end: int) -> Records:
        """Read for the shell itself, unordered with the core's requests; return the store's answer.

        Raises:
            StoreError: The store cannot be read, which ``on_failed`` also receives; or reading has ended.
        """
        if self._is_closed:
            raise _closed()
        try:
            if self._threads is None:
                return self._store.read(queue, partition, start, end)
            reading = self._loop.run_in_executor(self._threads, self._store.read, queue, partition, start, end)
            await asyncio.wait([reading])
            if not reading.cancelled():
                return reading.result()
        except StoreError as error:
            self._on_failed(error)
            raise
        raise _closed()

    async def caught_up(self) -> None:
        """Wait until every request so far is answered, or has failed."""
        newest = self._numbers
        while self._under_way and next(iter(self._unanswered), newest) < newest:
            await asyncio.wait(set(self._under_way))

    def _begin(self, threads: ThreadPoolExecutor, number: int, wanted: ReadWanted) -> None:
        reading = self._loop.run_in_executor(
            threads, self._store.read, wanted.queue, wanted.partition, wanted.start, wanted.end
        )
        self._under_way.add(reading)
        reading.add_done_callback(partial(self._done, number, wanted))

    def _done(self, number: int, wanted: ReadWanted, reading: asyncio.Future[Records]) -> None:
        self._under_way.discard(reading)
        del self._unanswered[number]
        # Retrieve the error even after a close, or asyncio logs it. Concurrent reads fail together: report one error.
        error = None if reading.cancelled() else reading.exception()
        if self._is_closed or reading.cancelled():
            return
        where = (wanted.queue, wanted.partition)
        if error is not None:
            self._is_closed = True  # the store is of no use any more
            self._lines.clear()
            self._on_failed(error)
            return
        line = self._lines[where]
        if line:
            assert self._threads is not None
            # One at a time, so that a partition's requests are answered in their order.
            self._begin(self._threads, *line.popleft())
        else:
            del self._lines[where]
        self._on_read(wanted, reading.result())

    async def close(self) -> None:
        """Answer nothing more, and wait for reads that have begun: the store may be closed after it."""
        self._is_closed = True
        self._lines.clear()
        if self._threads is not None:
            await asyncio.to_thread(self._threads.shutdown, wait=True, cancel_futures=True)


def _closed() -> StoreFailed:
    return StoreFailed("the endpoint was closed", remedy="Start it again: the records are stored.")
