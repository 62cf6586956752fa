"""Readers: named cursors over a queue that live outside the process (a Spark query's), and what may be trimmed.

A record leaves the store when every cursor has passed it. A queue that nobody reads keeps everything.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from holdfast.core.records import Snapshot
from holdfast.endpoint.dispatcher import CURSOR
from holdfast.endpoint.engine import Engine

TRIM_EVERY = 256
"""Records passed by every cursor before they are deleted together."""


class Readers:
    """The external cursors of one queue.

    Args:
        engine: The running engine.
        queue: The queue's name.
        floor: The first offset of a partition that the handlers are not done with; None without handlers.
    """

    def __init__(self, engine: Engine, queue: str, floor: Callable[[int], int] | None):
        self._engine = engine
        self._queue = queue
        self._floor = floor
        self.cursors: dict[str, dict[int, int]] = {}
        self.first: list[int] = []
        self.ends: list[int] = []
        self._grown = asyncio.Event()

    def start(self, snapshot: Snapshot, partitions: int) -> None:
        """Take over what the store held."""
        for partition in range(partitions):
            first, end = snapshot.bounds.get((self._queue, partition), (0, 0))
            self.first.append(first)
            self.ends.append(end)
        for (queue, partition, name), state in snapshot.cursors.items():
            if queue == self._queue and name != CURSOR:
                self.cursors.setdefault(name, {})[partition] = state["offset"]

    def delivered(self, partition: int, offset: int) -> None:
        """A record is durable in the queue."""
        self.ends[partition] = offset + 1
        if not self._grown.is_set():
            self._grown.set()
        if self._floor is not None and not offset % TRIM_EVERY:
            self.trim(partition)

    async def wait_beyond(self, after: dict[int, int], seconds: float) -> None:
        """Wait until a partition reaches beyond ``after`` (0 where it is not named), or the time is up."""
        deadline = asyncio.get_running_loop().time() + seconds
        while not any(end > after.get(partition, -1) for partition, end in enumerate(self.ends)):
            self._grown.clear()
            try:
                async with asyncio.timeout_at(deadline):
                    await self._grown.wait()
            except TimeoutError:
                return

    def advance(self, name: str, offsets: dict[int, int]) -> dict[int, int]:
        """Move the cursor forward, never back; make it if it is not there. Durable with the open batch."""
        cursor = self.cursors.setdefault(name, {})
        for partition in range(len(self.ends)):
            offset = max(offsets.get(partition, 0), cursor.get(partition, self.first[partition]))
            offset = min(offset, self.ends[partition])
            cursor[partition] = offset
            self._engine.protocol.commit.batch.cursors[self._queue, partition, name] = {"offset": offset}
            self.trim(partition)
        self._engine.touch()
        return cursor

    def drop(self, name: str) -> bool:
        """Forget the cursor; whether it was there."""
        cursor = self.cursors.pop(name, None)
        for partition in cursor or ():
            self._engine.protocol.commit.batch.cursors[self._queue, partition, name] = None
            self.trim(partition)
        self._engine.touch()
        return cursor is not None

    def trim(self, partition: int) -> None:
        """Delete what every cursor has passed."""
        floors = [cursor.get(partition, 0) for cursor in self.cursors.values()]
        if self._floor is not None:
            floors.append(self._floor(partition))
        if not floors:
            return
        floor = min(floors)
        if floor - self.first[partition] >= TRIM_EVERY or floor == self.ends[partition] > self.first[partition]:
            self.first[partition] = floor
            self._engine.protocol.commit.batch.trims[self._queue, partition] = floor
