"""Queues: every queue of one side, by name."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.core.commit import GroupCommit
from holdfast.core.events import Effect
from holdfast.core.queues.description import OUTBOX
from holdfast.core.queues.queue import Queue
from holdfast.core.queues.queue_records import ReadRecords
from holdfast.core.records import Snapshot


class Queues:
    """Every queue of one side, by name.

    Args:
        commit: Where their changes go.
        effects: Where their effects go.
        read: What reads the store.
    """

    def __init__(self, commit: GroupCommit, effects: list[Effect], read: ReadRecords) -> None:
        self._commit = commit
        self._effects = effects
        self._read = read
        self._queues: dict[str, Queue] = {}

    def __iter__(self) -> Iterator[Queue]:
        return iter(tuple(self._queues.values()))

    def add(self, queue: Queue) -> Queue:
        """Let it be one of them."""
        queue.join(self._commit, self._effects, self._read)
        self._queues[queue.name] = queue
        return queue

    def get(self, name: str) -> Queue | None:
        """The queue with that name."""
        return self._queues.get(name)

    def outbox(self, name: str) -> Queue:
        """Return the queue with that name, which contains only outgoing messages; created if it does not exist."""
        return self._queues.get(name) or self.add(Queue(name, drops_passed=True, kind=OUTBOX))

    def recover(self, name: str, part: Snapshot, now: float) -> Queue:
        """Return the queue with that name; as the store describes it, if it was not added.

        Args:
            name: Its name.
            part: Its part of the store.
            now: Seconds.
        """
        queue = self._queues.get(name)
        if queue is None:
            described = part.queues.get(name, {})
            kind, stored = described.get("kind", OUTBOX), described.get("partitions")
            count = max(1, stored if type(stored) is int else 1, *(partition + 1 for _, partition in part.bounds))
            queue = self.add(Queue(name, count, drops_passed=kind == OUTBOX, kind=kind))
            queue.recover(part, now)
        return queue

    def delete(self, queue: Queue) -> None:
        """Delete a queue with all its records."""
        self._queues.pop(queue.name, None)
        queue.records.delete()
