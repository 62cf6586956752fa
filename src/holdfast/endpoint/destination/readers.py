"""Readers: who waits, outside this process, for a queue to grow (a Spark query). What they may do is the queue's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection

from holdfast.core.queues.description import fingerprint_of
from holdfast.core.queues.queue import Queue
from holdfast.endpoint.engine.engine import Engine


class Readers:
    """External readers of one queue."""

    def __init__(self, engine: Engine, queue: Queue):
        self._engine = engine
        self._queue = queue
        self._waiting: set[asyncio.Event] = set()

    def delivered(self) -> None:
        """Wake the readers that wait for a durable record."""
        for grown in self._waiting:
            grown.set()

    async def advance(self, name: str, offsets: dict[int, int]) -> dict[int, int]:
        """Move the cursor forward, never back, and return its position once durable. A missing cursor is created.

        Raises:
            ConfigurationError: it may not be called so, or there are too many.
        """
        stands = self._queue.advance(name, offsets, self._engine.clock())
        await self._engine.durable()
        return stands

    async def fingerprint(self, partition: int, position: int) -> str:
        """See :meth:`Queue.fingerprint`; "" where nothing is known.

        Raises:
            StoreError: the record cannot be read.
        """
        known = self._queue.description.fingerprint(partition, position)
        if known is not None:
            return known
        found = await self._engine.records(self._queue.name, partition, position - 1, position)
        # If it is gone meanwhile, what is saved of the last one that went may be its.
        return fingerprint_of(found[0][1]) if found else self._queue.description.fingerprint(partition, position) or ""

    async def drop(self, name: str) -> bool:
        """Forget the cursor, durably; whether it was there."""
        was_there = self._queue.drop_cursor(name, self._engine.clock())
        await self._engine.durable()
        return was_there

    @staticmethod
    async def wait(several: Collection[Readers], is_enough: Callable[[], bool], seconds: float) -> None:
        """Wait until there is enough in some queues, or the time is up; looks again after each delivery."""
        deadline = asyncio.get_running_loop().time() + seconds
        grown = asyncio.Event()
        for one in several:
            one._waiting.add(grown)
        try:
            while not is_enough():
                grown.clear()
                try:
                    async with asyncio.timeout_at(deadline):
                        await grown.wait()
                except TimeoutError:
                    return
        finally:
            for one in several:
                one._waiting.discard(grown)
