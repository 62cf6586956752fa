"""Keeping: how far the retention releases each partition of one queue, and when to check again. Sans-IO.

It stores its results in the partitions; :class:`~holdfast.core.queues.deletion.Deletion` decides what to delete. It
requests the records it needs (:class:`~holdfast.core.events.ReadWanted`) from a limited number of partitions at a time,
regardless of the number of partitions and of their records.
"""

from __future__ import annotations

from functools import partial

from holdfast.core.queues.cursors import Cursors
from holdfast.core.queues.deletion import Deletion
from holdfast.core.queues.description import QueueDescription
from holdfast.core.queues.partitions import Partition
from holdfast.core.queues.queue_records import QueueRecords
from holdfast.core.queues.retention import MARKS, MEASURE_BYTES, RetentionPolicy, Search, Sizes, floors_by_size
from holdfast.core.records import Record, Snapshot

STEPS = 100
"""The queue deletes records by age in steps of a hundredth of the age limit, so they may exceed it by that much."""
LONGEST_STEP = 3600.0
"""Seconds after which a queue with records is checked again, and saves the time until which it was served."""
MOST_PAUSES = 100
"""Number of remembered periods in which a queue was not served."""
PARTITIONS_AT_ONCE = 16
"""Number of partitions searched at a time; limits the requested reads."""
MEASURE_EVERY = 1.0
"""Seconds between two steps that count the bytes of new records, if the retention limits the size."""
MEASURE_PAUSE = 0.02
"""Seconds between two steps while many records are uncounted, for example after a size limit was introduced."""
SIZES = "own/sizes"
"""Name of the saved marks of a partition."""

_Searches = tuple[Search | None, Search | None]
"""The searches for expired records, and for records too old to be protected by readers' cursors."""


class RetentionEnforcement:
    """Enforcement of the retention of one queue.

    Args:
        description: Its description, which saves when the queue was served.
        deletion: Deletes what the retention releases, and has the policy.
    """

    def __init__(
        self, records: QueueRecords, cursors: Cursors, description: QueueDescription, deletion: Deletion
    ) -> None:
        assert deletion.retention is not None, records.name
        self.policy: RetentionPolicy = deletion.retention
        self._records = records
        self._cursors = cursors
        self._description = description
        self._deletion = deletion
        self._alive = 0.0
        self._pauses: list[tuple[float, float]] = []
        self._due: float | None = None
        """Earliest due time of the partitions without a running search."""
        self._searched = 0
        """Number of partitions with a running search."""
        self._measure_due: float | None = None
        self._is_measuring = False

    # --- time -----------------------------------------------------------------------------------------------------

    def deadline(self) -> float | None:
        """Return when :meth:`pump` must be called next."""
        due = self._due if self._searched < PARTITIONS_AT_ONCE else None
        measure_due = None if self._is_measuring else self._measure_due
        if measure_due is None or due is None:
            return due if measure_due is None else measure_due
        return min(due, measure_due)

    def pump(self, now: float) -> None:
        """Find records beyond the retention's age or size, and let the queue delete them; the rest at the next call."""
        if self._measure_due is not None and self._measure_due <= now and not self._is_measuring:
            self._measure(now)
        if self._due is None or self._due > now:
            return
        left = PARTITIONS_AT_ONCE - self._searched
        for partition, one in enumerate(self._records.partitions):
            if left and one.due is not None and one.due <= now and not one.is_searched:
                left -= 1
                self._expire(partition, now)
        dues = (one.due for one in self._records.partitions if one.due is not None and not one.is_searched)
        self._due = min(dues, default=None)
        # Saved now and then: after a crash at most an hour counts as unserved.
        if now - self._alive >= LONGEST_STEP:
            self._alive = now
            self._tell_served()
            self._description.save()

    @property
    def _step(self) -> float:
        ages = [age for age in (self.policy.age, self.policy.reader_age) if age is not None]
        return min(LONGEST_STEP, min(ages, default=LONGEST_STEP) / STEPS)

    def _look_at(self, one: Partition, when: float) -> None:
        one.due = when
        if not one.is_searched:
            self._due = when if self._due is None else min(self._due, when)

    def use(self, policy: RetentionPolicy) -> None:
        """Replace the policy. If bytes were not counted before, count them from the first record on."""
        self.policy = policy
        if self._counts_bytes:
            self._begin_sizes()

    @property
    def _counts_bytes(self) -> bool:
        return self.policy.size is not None or self.policy.reader_size is not None

    def look_again(self, now: float) -> None:
        """Check every partition, after the cursors or the retention have changed."""
        for one in self._records.partitions:
            self._look_at(one, now)
        self._measure_due = now if self._records.partitions[0].sizes is not None else None

    def stored(self, one: Partition, now: float) -> None:
        """Schedule a check of a partition that received a record."""
        if one.due is None and self.policy.age is not None:
            self._look_at(one, now + min(self.policy.age, LONGEST_STEP))
        if one.sizes is not None and self._measure_due is None:
            self._measure_due = now + MEASURE_EVERY

    def moved(self, one: Partition, now: float) -> None:
        """Schedule a check of a partition after a cursor moved: the records that it passed may be deleted soon."""
        soon = now + self._step
        # Not at once: a reader that moves with each record would cost a search with each.
        if one.first < one.expired and (one.due is None or one.due > soon):
            self._look_at(one, soon)

    # --- age and size ---------------------------------------------------------------------------------------------

    def _expire(self, partition: int, now: float) -> None:
        """Determine how far the retention releases records by age, and when to check again."""
        one = self._records.partitions[partition]
        policy = self.policy
        by_age = by_reader_age = None
        if policy.age is not None:
            by_age = Search(max(one.expired, one.first), one.durable_end, self._before(now, policy.age))
        if policy.reader_age is not None and self._deletion.has_limited_cursors(partition):
            by_reader_age = Search(max(one.lapsed, one.first), one.durable_end, self._before(now, policy.reader_age))
        one.is_searched, one.due = True, None
        self._searched += 1
        self._search(partition, (by_age, by_reader_age), now)

    def _search(self, partition: int, searches: _Searches, now: float) -> None:
        for search in searches:
            if search is not None and (probe := search.probe) is not None:
                self._records.want(partition, probe, probe + 1, partial(self._looked, partition, searches, search))
                return
        self._searched_through(partition, searches, now)

    def _looked(
        self, partition: int, searches: _Searches, search: Search, found: list[tuple[int, Record]], now: float
    ) -> None:
        # A gap in the store, or a record that is gone meanwhile: the search ends without a release.
        search.take(found[0][1].delivered_at if found and found[0][0] == search.probe else None)
        self._search(partition, searches, now)

    def _searched_through(self, partition: int, searches: _Searches, now: float) -> None:
        """Apply the search results; records and readers may have changed in the meantime."""
        one = self._records.partitions[partition]
        by_age, by_reader_age = searches
        one.is_searched = False
        self._searched -= 1
        again = now + self._step
        dues: list[float] = []
        if by_age is not None and self.policy.age is not None:
            one.expired = max(one.expired, by_age.found)
            if one.expired < one.durable_end:
                dues.append(again if by_age.at is None else by_age.at + self.policy.age)
        if by_reader_age is not None and self.policy.reader_age is not None:
            one.lapsed = max(one.lapsed, by_reader_age.found)
            if one.lapsed < one.durable_end:
                dues.append(again if by_reader_age.at is None else by_reader_age.at + self.policy.reader_age)
        # Not before the next step, or every record would cost a search.
        due = min(max(again, min(dues)), now + LONGEST_STEP) if dues else None
        if one.due is None or (due is not None and due < one.due):  # an earlier check may be scheduled
            one.due = due
        if one.due is not None:
            self._look_at(one, one.due)
        self._deletion.trim(partition)

    def _before(self, now: float, age: float) -> float:
        """Return the delivery time before which records are older than ``age``.

        Only time in which the queue was served counts: neither a long outage nor a wrong clock at the start expires
        records that no reader could read meanwhile.
        """
        before = now - age
        # From the newest one back: each pause within the age lengthens the age by its own length.
        for start, end in reversed(self._pauses):
            if end <= before:
                break
            before -= end - start
        return before

    def _measure(self, now: float) -> None:
        """Count the bytes of new records, and determine how far the retention releases records by size."""
        self._measure_due = None
        if not self._counts_bytes:
            return  # a previous policy counted bytes
        self._is_measuring = True
        self._count(0, MEASURE_BYTES, now)

    def _count(self, partition: int, left: int, now: float) -> None:
        """Request up to ``left`` bytes of uncounted records, from that partition on."""
        for number, one in enumerate(self._records.partitions[partition:], partition):
            assert one.sizes is not None
            if left > 0 and one.sizes.measured < one.durable_end:
                self._records.want(number, one.sizes.measured, one.durable_end, partial(self._counted, number, left))
                return
        self._measured(left, now)

    def _counted(self, partition: int, left: int, found: list[tuple[int, Record]], now: float) -> None:
        sizes = self._records.partitions[partition].sizes
        assert sizes is not None
        total = sizes.total
        new = [(offset, record) for offset, record in found if offset >= sizes.measured]  # skip deleted records
        is_marked = False
        for offset, record in new:
            is_marked |= sizes.add(offset, record)
        if is_marked:
            self._records.save_own(partition, SIZES, sizes.to_state())
        self._count(partition if new else partition + 1, left - (sizes.total - total), now)

    def _measured(self, left: int, now: float) -> None:
        self._is_measuring = False
        if left <= 0:
            self._measure_due = now + MEASURE_PAUSE
        sizes = [one.sizes for one in self._records.partitions if one.sizes is not None]
        if self.policy.size is not None:
            starts = [max(one.first, one.expired) for one in self._records.partitions]
            for one, floor in zip(
                self._records.partitions, floors_by_size(sizes, self.policy.size, starts), strict=True
            ):
                one.expired = max(one.expired, floor)
        if self.policy.reader_size is not None:
            # Records that other limits release anyway do not count towards the readers' limit.
            starts = [self._deletion.keep_from(partition) for partition in range(len(self._records.partitions))]
            floors = floors_by_size(sizes, self.policy.reader_size, starts)
            for one, floor in zip(self._records.partitions, floors, strict=True):
                one.lapsed = max(one.lapsed, floor)
        for partition in range(len(self._records.partitions)):
            self._deletion.trim(partition)

    # --- saved state ----------------------------------------------------------------------------------------------

    def _tell_served(self) -> None:
        self._description.served = {"alive": self._alive, "pauses": [list(pause) for pause in self._pauses]}

    def recover(self, snapshot: Snapshot, now: float) -> None:
        """Restore the state from the store."""
        self._recover_sizes(snapshot)
        state = snapshot.queues.get(self._records.name, {})
        pauses, alive = state.get("pauses"), state.get("alive")
        if isinstance(pauses, list) and all(_is_pause(pause) for pause in pauses):
            self._pauses = [(pause[0], pause[1]) for pause in pauses]
        partitions = enumerate(self._records.partitions)
        # The newest record and the last sign of life say until when the queue was served, whichever is later.
        newest = [self._records.look(number, one.end - 1) for number, one in partitions if one.end > one.first]
        times = [record.delivered_at for record in newest if record is not None]
        if type(alive) is float and alive > 0:
            times.append(alive)
        since = max(times, default=now)
        # A short stop is not worth remembering: it changes the age by less than a step.
        is_pause = now - since > 2 * LONGEST_STEP
        if is_pause:
            self._pauses = [*self._pauses, (since, now)][-MOST_PAUSES:]
        self._alive = now
        self._tell_served()
        if is_pause:  # at once: the next start takes a new record for a sign of life, and would not see the pause
            self._description.save()

    def _recover_sizes(self, snapshot: Snapshot) -> None:
        if not self._counts_bytes:
            return
        for partition, one in enumerate(self._records.partitions):
            state = snapshot.cursors.get((self._records.name, partition, SIZES))
            one.sizes = Sizes(one.first, self._spacing, state)
            if not one.first <= one.sizes.measured <= one.end:
                one.sizes = Sizes(one.first, self._spacing)
            one.sizes.cut(one.first)

    @property
    def _spacing(self) -> int:
        return min(limit for limit in (self.policy.size, self.policy.reader_size) if limit is not None) // MARKS

    def _begin_sizes(self) -> None:
        for one in self._records.partitions:
            if one.sizes is None:
                one.sizes = Sizes(one.first, self._spacing)


def _is_pause(pause: object) -> bool:
    is_pair = isinstance(pause, list) and len(pause) == 2 and all(type(one) is float for one in pause)
    return is_pair and pause[0] <= pause[1]  # type: ignore[index]
