"""Deletion: which records of one queue may be deleted, and their deletion.

The queue deletes a record once the retention has released it and every cursor has passed it. A reader's cursor protects
records only up to a limit; the cursors of handlers and outbound Sequences protect them without one. A queue that has
never had a reader, such as an outbox, may instead delete each record once its handlers and Sequences have passed it.
"""

from __future__ import annotations

from functools import partial

from holdfast.core.events import Incident
from holdfast.core.queues.cursors import HANDLER, Cursor, Cursors
from holdfast.core.queues.description import QueueDescription
from holdfast.core.queues.queue_records import QueueRecords
from holdfast.core.queues.retention import RetentionPolicy
from holdfast.core.records import Record

TRIM_EVERY = 256
"""Number of handled records that are deleted together."""


class Deletion:
    """Deletion of the records of one queue.

    Args:
        description: Its description, which keeps the fingerprints of deleted records.
        retention: How long the queue keeps records; None: without a limit.
        drops_passed: Whether the queue deletes records as soon as its handlers and Sequences have passed them. With a
            retention, that holds only until the queue gets its first reader.
    """

    def __init__(
        self,
        records: QueueRecords,
        cursors: Cursors,
        description: QueueDescription,
        retention: RetentionPolicy | None,
        *,
        drops_passed: bool,
    ) -> None:
        self._records = records
        self._cursors = cursors
        self._description = description
        self.retention = retention
        self.drops_passed = drops_passed
        self.is_handled = False
        """Whether the queue has handlers: it keeps their unfinished records, regardless of the retention."""
        self.drops_now = False
        """Whether the cursors decide when records are deleted, rather than the retention."""

    def decide(self) -> None:
        """Determine whether passed records may be deleted immediately. Call this after cursors come or go."""
        is_kept = not self.drops_passed or (self._description.was_read and self.retention is not None)
        are_here = self.is_handled or (self._cursors.are_followed and HANDLER not in self._cursors)
        self.drops_now = are_here and not is_kept

    @property
    def keeps(self) -> str:
        """Return the retention in words."""
        if self.drops_now:
            return "until it is handled" if self.is_handled else "until it is acknowledged"
        return "for ever" if self.retention is None else str(self.retention)

    def keep_from(self, partition: int) -> int:
        """Return the first offset to keep. No other function decides which records may be deleted."""
        one = self._records.partitions[partition]
        if self.is_handled and HANDLER not in self._cursors:
            return one.first  # the handlers have not begun: nothing is finished
        # A record that is not durable is deleted by no one: a crash would leave a hole.
        floor = one.durable_end
        if not self.drops_now:
            floor = min(floor, one.expired)
        # Handlers and outbound Sequences protect without a limit: their records are promised to someone.
        for name in one.outbound:
            floor = min(floor, self._cursors[name].offsets[partition])
        limited = floor
        for cursor in self._cursors.everywhere.values():
            if self._is_limited(cursor):
                limited = min(limited, cursor.offsets[partition])
            else:
                floor = min(floor, cursor.offsets[partition])
        # Readers protect down to where the limit has lapsed, and nothing protects above the floor.
        return min(floor, max(limited, one.lapsed))

    def _is_limited(self, cursor: Cursor) -> bool:
        # Handlers that are absent in this run may return in a later one: their cursor counts as a reader's.
        return cursor.is_readers or (cursor.name == HANDLER and not self.is_handled)

    def has_limited_cursors(self, partition: int) -> bool:
        """Whether the partition has cursors that protect records only up to a limit."""
        return any(partition in cursor.offsets and self._is_limited(cursor) for cursor in self._cursors.values())

    def purge(self, partition: int, offset: int) -> None:
        """Release the records below ``offset``, regardless of the retention and of readers' cursors.

        The queue deletes those that handlers and Sequences have passed, and the rest once they pass them. The request
        is not saved: a restart forgets it.
        """
        one = self._records.partitions[partition]
        offset = min(offset, one.durable_end)
        # Kept, because handlers and Sequences may still protect some: those go when they are passed.
        one.purged = max(one.purged, offset)
        one.expired, one.lapsed = max(one.expired, offset), max(one.lapsed, offset)
        self.trim(partition)

    def trim(self, partition: int) -> None:
        """Delete the records that need not be kept.

        A queue with an epoch, one that readers may use, keeps the fingerprint of the last deleted record. If that
        record is not in memory, the queue reads it before the deletion.
        """
        one = self._records.partitions[partition]
        floor = self.keep_from(partition)
        # One deletion at a time: it may be reading the last record.
        if floor <= one.first or one.is_cut:
            return
        # In memory already: the outbox that passed it has just had it.
        if self._description.epoch and one.passed is not None and one.passed[0] == floor - 1:
            self._cut_behind(partition, floor, one.passed[1])
        elif self._description.epoch:
            one.is_cut = True
            cut = partial(self._last_read, partition, floor)
            self._records.want(partition, floor - 1, floor, cut)
        else:
            self._cut(partition, floor)

    def _last_read(self, partition: int, floor: int, found: list[tuple[int, Record]], now: float) -> None:
        one = self._records.partitions[partition]
        one.is_cut = False
        if one.first < floor <= self.keep_from(partition):  # a cursor added meanwhile may need it
            self._cut_behind(partition, floor, found[0][1] if found and found[0][0] == floor - 1 else None)
        self.trim(partition)

    def _cut_behind(self, partition: int, floor: int, last: Record | None) -> None:
        self._cut(partition, floor)
        self._records.partitions[partition].passed = None
        self._description.deleted(partition, last)

    def _cut(self, partition: int, floor: int) -> None:
        if self.retention is not None and not self.drops_now:
            self._tell(partition, floor)
        self._records.delete_below(partition, floor)
        self._records.partitions[partition].trimmed()

    def _tell(self, partition: int, floor: int) -> None:
        """Report deleted records that no cursor has passed, and each cursor that missed some: no loss is silent."""
        first = self._records.partitions[partition].first
        here = [cursor for cursor in self._cursors.values() if partition in cursor.offsets]
        read = max((cursor.offsets[partition] for cursor in here), default=first)
        where = {"queue": self._records.name, "partition": partition}
        if floor > read:
            detail = {**where, "records": floor - max(read, first), "retention": self.keeps}
            self._records.tell(Incident("queue.unread_records_deleted", level="warning", detail=detail))
        for cursor in here:
            missed = floor - max(cursor.offsets[partition], first)
            if missed > 0:
                detail = {**where, "cursor": cursor.name, "records": missed, "retention": self.keeps}
                self._records.tell(Incident("reader.left_behind", level="warning", detail=detail))
