"""Keeping: how far the retention lets go of each partition of one queue, and when to look again. Sans-IO.

It deletes nothing: what it finds stands in the partitions, and the queue decides. Its work in one step is bounded,
however many partitions there are, and however many records are in them.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from holdfast.core.records import Snapshot, State
from holdfast.core.retention import MARKS, MEASURE_BYTES, RetentionPolicy, Sizes, first_younger, floors_by_size

if TYPE_CHECKING:
    from holdfast.core.queues import Partition, Queue

STEPS = 100
"""Records go by age in steps of a hundredth of it: that much older they may get."""
LONGEST_STEP = 3600.0
"""Seconds after which a queue that holds something is looked at again, and that it is served is saved."""
MOST_PAUSES = 100
"""Times in which a queue was not served, of which it knows."""
PARTITIONS_AT_ONCE = 16
"""Partitions looked at in one step; bounds its work."""
MEASURE_EVERY = 1.0
"""Seconds between two steps that count the bytes of what came, where size counts."""
MEASURE_PAUSE = 0.02
"""Seconds between two steps while there is much to count, as when size begins to count."""
SIZES = "own/sizes"
"""The name under which the marks along a partition are saved."""


class Keeping:
    """The retention of one queue at work.

    Args:
        queue: The queue.
        policy: Its retention.
    """

    def __init__(self, queue: Queue, policy: RetentionPolicy) -> None:
        self.policy = policy
        self._queue = queue
        self._alive = 0.0
        self._pauses: list[tuple[float, float]] = []
        self._due: float | None = None
        self._measure_due: float | None = None

    # --- time -----------------------------------------------------------------------------------------------------

    def deadline(self) -> float | None:
        """When :meth:`pump` has something to do next."""
        if self._measure_due is None or self._due is None:
            return self._due if self._measure_due is None else self._measure_due
        return min(self._due, self._measure_due)

    def pump(self, now: float) -> None:
        """See what has become too old or too much, and let the queue delete it; the rest at the next call."""
        if self._measure_due is not None and self._measure_due <= now:
            self._measure(now)
        if self._due is None or self._due > now:
            return
        left = PARTITIONS_AT_ONCE
        for partition, one in enumerate(self._queue.partitions):
            if left and one.due is not None and one.due <= now:
                left -= 1
                self._expire(partition, now)
                self._queue.trim(partition)
        self._due = min((one.due for one in self._queue.partitions if one.due is not None), default=None)
        if now - self._alive >= LONGEST_STEP:
            self._alive = now
            self._queue.describe_again()

    @property
    def _step(self) -> float:
        ages = [age for age in (self.policy.age, self.policy.reader_age) if age is not None]
        return min(LONGEST_STEP, min(ages, default=LONGEST_STEP) / STEPS)

    def _look_at(self, one: Partition, when: float) -> None:
        one.due = when
        self._due = when if self._due is None else min(self._due, when)

    def look_again(self, now: float) -> None:
        """Who reads has changed: look at every partition."""
        for one in self._queue.partitions:
            self._look_at(one, now)
        self._measure_due = now if self._queue.partitions[0].sizes is not None else None

    def stored(self, one: Partition, now: float) -> None:
        """A record came into that partition."""
        if one.due is None and self.policy.age is not None:
            self._look_at(one, now + min(self.policy.age, LONGEST_STEP))
        if one.sizes is not None and self._measure_due is None:
            self._measure_due = now + MEASURE_EVERY

    def moved(self, one: Partition, now: float) -> None:
        """A cursor of that partition moved: soon what it let go of may be deleted."""
        soon = now + self._step
        if one.first < one.expired and (one.due is None or one.due > soon):
            self._look_at(one, soon)

    @staticmethod
    def trimmed(one: Partition) -> None:
        """Records of that partition are deleted."""
        one.expired, one.lapsed = max(one.expired, one.first), max(one.lapsed, one.first)
        if one.sizes is not None:
            one.sizes.cut(one.first)

    # --- age and size ---------------------------------------------------------------------------------------------

    def _expire(self, partition: int, now: float) -> None:
        """See how far the retention lets go by age, and when to look again."""
        one = self._queue.partitions[partition]
        policy = self.policy
        look = partial(self._queue.look, partition)
        dues: list[float] = []
        again = now + self._step
        if policy.age is not None:
            start = max(one.expired, one.first)
            one.expired, at = first_younger(look, start, one.durable_end, self._before(now, policy.age))
            if one.expired < one.durable_end:
                dues.append(again if at is None else at + policy.age)
        if policy.reader_age is not None and self._queue.has_limited_cursors(partition):
            start = max(one.lapsed, one.first)
            one.lapsed, at = first_younger(look, start, one.durable_end, self._before(now, policy.reader_age))
            if one.lapsed < one.durable_end:
                dues.append(again if at is None else at + policy.reader_age)
        one.due = min(max(again, min(dues)), now + LONGEST_STEP) if dues else None

    def _before(self, now: float, age: float) -> float:
        """What was delivered before is older than ``age``, counting only time in which the queue was served: neither
        a long outage nor a clock that is wrong at the start makes old what nobody could read meanwhile."""
        before = now - age
        for start, end in reversed(self._pauses):
            if end <= before:
                break
            before -= end - start
        return before

    def _measure(self, now: float) -> None:
        """Count the bytes of what came, and see how far the retention lets go by size."""
        queue = self._queue
        left = MEASURE_BYTES
        for partition, one in enumerate(queue.partitions):
            assert one.sizes is not None
            is_marked = False
            while left > 0 and one.sizes.measured < one.durable_end:
                found = queue.read(partition, one.sizes.measured, one.durable_end)
                if not found:
                    break
                total = one.sizes.total
                for offset, record in found:
                    is_marked |= one.sizes.add(offset, record)
                left -= one.sizes.total - total
            if is_marked:
                queue.save_own(partition, SIZES, one.sizes.to_state())
        self._measure_due = now + MEASURE_PAUSE if left <= 0 else None
        sizes = [one.sizes for one in queue.partitions if one.sizes is not None]
        for limit, name in ((self.policy.size, "expired"), (self.policy.reader_size, "lapsed")):
            if limit is not None:
                for one, floor in zip(queue.partitions, floors_by_size(sizes, limit), strict=True):
                    setattr(one, name, max(getattr(one, name), floor))
        for partition in range(len(queue.partitions)):
            queue.trim(partition)

    # --- saved state ----------------------------------------------------------------------------------------------

    def to_state(self) -> State:
        """What the queue's description says of it."""
        return {"alive": self._alive, "pauses": [list(pause) for pause in self._pauses]}

    def recover(self, snapshot: Snapshot, now: float) -> None:
        """Take over what the store held."""
        self._recover_sizes(snapshot)
        state = snapshot.queues.get(self._queue.name, {})
        pauses, alive = state.get("pauses"), state.get("alive")
        if isinstance(pauses, list) and all(_is_pause(pause) for pause in pauses):
            self._pauses = [(pause[0], pause[1]) for pause in pauses]
        partitions = enumerate(self._queue.partitions)
        newest = [self._queue.look(number, one.end - 1) for number, one in partitions if one.end > one.first]
        times = [record.delivered_at for record in newest if record is not None]
        if type(alive) is float and alive > 0:
            times.append(alive)
        since = max(times, default=now)
        if now - since > 2 * LONGEST_STEP:
            self._pauses = [*self._pauses, (since, now)][-MOST_PAUSES:]
        self._alive = now

    def _recover_sizes(self, snapshot: Snapshot) -> None:
        limits = [limit for limit in (self.policy.size, self.policy.reader_size) if limit is not None]
        if not limits:
            return
        for partition, one in enumerate(self._queue.partitions):
            state = snapshot.cursors.get((self._queue.name, partition, SIZES))
            one.sizes = Sizes(one.first, min(limits) // MARKS, state)
            if not one.first <= one.sizes.measured <= one.end:
                one.sizes = Sizes(one.first, min(limits) // MARKS)
            one.sizes.cut(one.first)


def _is_pause(pause: object) -> bool:
    is_pair = isinstance(pause, list) and len(pause) == 2 and all(type(one) is float for one in pause)
    return is_pair and pause[0] <= pause[1]  # type: ignore[index]
