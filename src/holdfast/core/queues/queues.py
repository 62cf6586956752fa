"""Queues: registry of the queues of one side. Creates outboxes, and restores queues that were not configured."""

from __future__ import annotations

from functools import partial

from holdfast.core.commit import GroupCommit
from holdfast.core.events import Effect
from holdfast.core.queues.description import OUTBOX
from holdfast.core.queues.queue import Queue
from holdfast.core.queues.queue_records import ReadRecords
from holdfast.core.records import Batch, Snapshot


class Queues:
    """Every queue of one side, by name."""

    def __init__(self, commit: GroupCommit, effects: list[Effect], read: ReadRecords) -> None:
        self._commit = commit
        self._effects = effects
        self._read = read
        self._queues: dict[str, Queue] = {}
        self._deleted: dict[str, Queue] = {}
        """Queues that the open batch deletes."""

    def add(self, queue: Queue) -> Queue:
        """Register a queue, and connect it to the commit, the effects and the store."""
        queue.join(self._commit, self._effects, self._read)
        self._queues[queue.name] = queue
        return queue

    def get(self, name: str) -> Queue | None:
        return self._queues.get(name)

    def outbox(self, name: str) -> Queue:
        """Return the queue with that name, which contains only outgoing messages; created if it does not exist."""
        deleted = self._deleted.pop(name, None)
        if deleted is not None:
            # A batch deletes after it appends. So the queue continues behind its old records.
            for partition, one in enumerate(deleted.partitions):
                deleted.records.delete_below(partition, one.end)
            self._queues[name] = deleted
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
        """Delete the queue with the open batch, unless :meth:`outbox` needs it again before that is committed."""
        self._queues.pop(queue.name, None)
        self._deleted[queue.name] = queue
        self._commit.at_last(f"delete/{queue.name}", partial(self._delete, queue))

    def _delete(self, queue: Queue, batch: Batch) -> None:
        if self._deleted.pop(queue.name, None) is not None:
            queue.records.delete(batch)
