"""A store that loses at a crash what was not yet durable. The content itself is the shipped memory store's."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from holdfast.core.records import Batch, Record, Snapshot
from holdfast.store.memory import MemoryStore


class SimStore:
    """A :class:`~holdfast.store.memory.MemoryStore` with a disk in front of it.

    A batch that was :meth:`taken <take>` becomes durable later, in order, by :meth:`make_durable`. A :meth:`crash`
    keeps some of the batches on their way, from the oldest on, and loses the others: a sync may have reached the disk
    before anybody was told.

    Args:
        observe: Called with every batch right after it became durable.
    """

    def __init__(self, observe: Callable[[Batch], None]) -> None:
        self.durable = MemoryStore()
        self.pending: deque[Batch] = deque()
        self._observe = observe

    def take(self, batch: Batch) -> None:
        """A batch is on its way to the disk."""
        self.pending.append(batch)

    def make_durable(self) -> None:
        """The oldest batch on its way is durable now."""
        batch = self.pending.popleft()
        self.durable.commit(batch)
        self._observe(batch)

    def crash(self, survivors: int) -> None:
        """The endpoint dies: the oldest ``survivors`` of the batches on their way are durable, the others lost."""
        for _ in range(survivors):
            self.make_durable()
        self.pending.clear()

    def load(self) -> Snapshot:
        """What a restarted endpoint finds."""
        return self.durable.load()

    def read(self, queue: str, partition: int, start: int, end: int) -> list[tuple[int, Record]]:
        """Durable records."""
        return self.durable.read(queue, partition, start, end)
