"""Queues: registry of the queues of one side. Creates outboxes, and restores queues that were not configured."""

from __future__ import annotations

from holdfast.core.commit import GroupCommit
from holdfast.core.events import Effect
from holdfast.core.queues.description import OUTBOX
from holdfast.core.queues.queue import Queue
from holdfast.core.queues.queue_records import ReadRecords
from holdfast.core.records import Snapshot


class Queues:
    """Every queue of one side, by name.

    Args:
        commit: Receives the changes of the queues.
        effects: Receives their effects.
    """

    def __init__(self, commit: GroupCommit, effects: list[Effect], read: ReadRecords) -> None:
        self._commit = commit
        self._effects = effects
        self._read = read
        self._queues: dict[str, Queue] = {}

    def add(self, queue: Queue) -> Queue:
        """Register a queue, and connect it to the commit, the effects and the store."""
        queue.join(self._commit, self._effects, self._read)
        self._queues[queue.name] = queue
        return queue

    def get(self, name: str) -> Queue | None:
        """Return the queue with that name, None without one."""
        return self._queues.get(name)

    def outbox(self, name: str) -> Queue:
        """Return the queue with that name, which contains only outgoing messages; created if it does not exist."""
        return self._queues.get(name) or self.add(Queue(name, drops_passed=True, kind=OUTBOX))

    def recover(self, name: str, part: Snapshot, now: float) -> Queue:
        """Return the queue with that name. Restore it from its stored description if it is not registered."""
        queue = self._queues.get(name)
        if queue is None:
            described = part.queues.get(name, {})
            kind, stored = described.get("kind", OUTBOX), described.get("partitions")
            # Records may be in more partitions than an unreadable description says: none is left out.
            count = max(1, stored if type(stored) is int else 1, *(partition + 1 for _, partition in part.bounds))
            queue = self.add(Queue(name, count, drops_passed=kind == OUTBOX, kind=kind))
            queue.recover(part, now)
        return queue

    def delete(self, queue: Queue) -> None:
        self._queues.pop(queue.name, None)
        queue.records.delete()
