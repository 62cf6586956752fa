"""A store that loses non-durable batches in a crash. The shipped memory store holds the content."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from holdfast.core.records import Batch, Record, Snapshot
from holdfast.store.memory import MemoryStore


class SimStore:
    """A :class:`~holdfast.store.memory.MemoryStore` with a disk in front of it.

    A batch given to :meth:`take` becomes durable later, in order, by :meth:`make_durable`. A :meth:`crash` keeps some
    of the pending batches, from the oldest on, and loses the others: a sync may have reached the disk before the
    endpoint knew.

    Args:
        observe: Called with every batch as soon as it is durable.
    """

    def __init__(self, observe: Callable[[Batch], None]) -> None:
        self.durable = MemoryStore()
        self.pending: deque[Batch] = deque()
        self._observe = observe

    def take(self, batch: Batch) -> None:
        """Queue a batch for the disk."""
        self.pending.append(batch)

    def make_durable(self) -> None:
        """Make the oldest pending batch durable."""
        batch = self.pending.popleft()
        self.durable.commit(batch)
        self._observe(batch)

    def crash(self, survivors: int) -> None:
        """Crash the endpoint: the oldest ``survivors`` of the pending batches become durable, the others are lost."""
        for _ in range(survivors):
            self.make_durable()
        self.pending.clear()

    def load(self) -> Snapshot:
        """Return the content that a restarted endpoint finds."""
        return self.durable.load()

    def read(self, queue: str, partition: int, start: int, end: int) -> list[tuple[int, Record]]:
        return self.durable.read(queue, partition, start, end)
