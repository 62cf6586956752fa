"""What a group of batches does to a store, checked whole before anything is changed. Knows no engine, protocol rule.

The rules of a batch are here and nowhere else. A store makes one :class:`Plan` for each group, gives it the batches in
their order, and gets a :class:`Step` for each: what is to be written for it. When all of them are planned it writes,
and once that is durable it takes over what the plan says of its partitions, held numbers and cursors.

A plan asks the store only for what the batches name, so a store need not have everything in memory.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from holdfast.core.records import Batch, Record, State
from holdfast.exceptions import StoreFailed

Where = tuple[str, int]
"""Queue and partition."""
Bounds = tuple[int, int]
"""``(first, end)``: offsets first <= o < end are there."""
Home = tuple[str, Where]
"""A Sequence and the partition that it lives with."""
CursorKey = tuple[str, int, str]
"""Queue, partition and name."""

BATCH_REMEDY = "Start again: what was acknowledged is there. If it happens again, please report it."
_MOST = (1 << 64) - 1


@dataclass(slots=True)
class Move:
    """A held record that goes into a queue.

    Args:
        sequence, number: What it was held as.
        where, offset: Where it goes.
        now: Its ``released_at``.
        record: The record if it came with this group; None if it is in the store.
    """

    sequence: str
    number: int
    where: Where
    offset: int
    now: float
    record: Record | None


@dataclass(slots=True)
class Step:
    """What one batch does. Its queues, appends and Sequences are to be written as it says.

    Args:
        batch: The batch.
        cursors: Cursors to save; None: to forget.
        begins: Partitions that it is the first to put something into.
        holds: What it holds, and holds still at its end.
        moves: What it releases.
        unheld: ``(sequence, number)`` of what was held, before it or by it, and is no more.
        trims: Partition -> the first offset before and after.
        deletes: Partition -> its bounds until then.
        leaves: Sequences that live no more with a partition, and which.
        settles: Sequences that from then on live with one.

    What most batches have none of is None then: a message should not pay for it.
    """

    batch: Batch
    cursors: Mapping[CursorKey, State | None]
    begins: list[Where] | None = None
    holds: list[tuple[str, int, Record]] | None = None
    moves: list[Move] | None = None
    unheld: list[tuple[str, int]] | None = None
    trims: dict[Where, tuple[int, int]] | None = None
    deletes: dict[Where, Bounds] | None = None
    leaves: list[Home] | None = None
    settles: list[Home] | None = None


class Known(Protocol):
    """What a plan asks of a store, for what the batches name."""

    def bounds_of(self, where: Where) -> Bounds | None:
        """Where a partition begins and ends, None if there is none."""
        ...

    def held_of(self, sequence: str) -> Collection[int]:
        """The numbers of what is held for a Sequence."""
        ...

    def cursors_of(self, where: Where) -> Collection[str]:
        """The names of a partition's cursors."""
        ...

    def home_of(self, sequence: str) -> Where | None:
        """The partition that a Sequence lives with, None if it is not known."""
        ...


class Plan:
    """What some batches, one after the other, do to a store.

    Args:
        known: What the store has. It must not change before the plan is carried out.

    Attributes:
        bounds: Partition -> its bounds after all batches, None for one that is deleted; of those that change.
        held: Sequence -> number -> the record of this group that is held, None for one that is no more; as far as it
            changes.
        cursors: Cursor -> whether it is there; of those that were saved or forgotten.
        homes: Sequence -> the partition that it lives with, None for one that is forgotten; of those that change.
    """

    __slots__ = ("_ahead", "_known", "bounds", "cursors", "held", "homes")

    def __init__(self, known: Known) -> None:
        self.bounds: dict[Where, Bounds | None] = {}
        self.held: dict[str, dict[int, Record | None]] = {}
        self.cursors: dict[CursorKey, bool] = {}
        self.homes: dict[str, Where | None] = {}
        self._ahead: dict[Where, set[int]] = {}
        self._known = known

    def add(self, batch: Batch) -> Step:
        """What the next batch does.

        Raises:
            StoreFailed: It breaks a rule: a gap in a partition's offsets, an offset twice, a release of what is not
                held. Nothing of the group must be written; the plan is of no more use.
        """
        step = Step(batch, batch.cursors)
        if batch.appends:
            self._append(batch, step)
        if batch.holds:
            self._hold(batch)
        if batch.releases:
            self._release(batch, step)
        if self._ahead:
            self._close_gaps()
        if batch.drops:
            self._throw_away(batch.drops, step)
        for sequence, home in batch.homes.items():
            self._leave(sequence, step)
            self.homes[sequence] = home
        for sequence, state in batch.sequences.items():
            if state is None:
                self._throw_away([(sequence, number) for number in self._held_of(sequence)], step)
                self._leave(sequence, step)
        if batch.homes:
            step.settles = [one for one in batch.homes.items() if self.homes[one[0]] is not None]
        if batch.holds:
            held = self.held
            step.holds = [one for one in batch.holds if held[one[0]][one[1]] is one[2]]
        if batch.trims:
            self._trim(batch, step)
        if batch.deletes:
            self._delete(batch, step)
        for key, saved in step.cursors.items():
            self.cursors[key] = saved is not None
        return step

    def bounds_of(self, where: Where) -> Bounds | None:
        """What there is of a partition by now."""
        return self.bounds[where] if where in self.bounds else self._known.bounds_of(where)

    def _append(self, batch: Batch, step: Step) -> None:
        where = last_queue, last_partition = batch.appends[0][:2]
        first, end = self.bounds_of(where) or self._begin(where, step)
        for queue, partition, offset, _ in batch.appends:
            if partition != last_partition or queue is not last_queue:
                self.bounds[where] = (first, end)
                last_queue, last_partition = where = (queue, partition)
                first, end = self.bounds_of(where) or self._begin(where, step)
            if offset == end:
                end += 1
            else:
                self._put_ahead(where, offset, end)
        self.bounds[where] = (first, end)

    def _begin(self, where: Where, step: Step) -> Bounds:
        if not 0 <= where[1] <= _MOST:
            raise StoreFailed(f"{where} cannot be a partition.", remedy=BATCH_REMEDY)
        if step.begins is None:
            step.begins = []
        step.begins.append(where)
        return 0, 0

    def _hold(self, batch: Batch) -> None:
        for sequence, number, record in batch.holds:
            if not 0 <= number <= _MOST:
                raise StoreFailed(f"Message {number} of {sequence} cannot be held.", remedy=BATCH_REMEDY)
            numbers = self.held.get(sequence)
            if numbers is None:
                numbers = self.held[sequence] = {}
            numbers[number] = record

    def _release(self, batch: Batch, step: Step) -> None:
        moves: list[Move] = []
        unheld: list[tuple[str, int]] = []
        for sequence, number, queue, partition, offset, now in batch.releases:
            if not self._is_held(sequence, number):
                raise StoreFailed(
                    f"Message {number} of {sequence} is to be released but is not held.", remedy=BATCH_REMEDY
                )
            numbers = self.held.setdefault(sequence, {})
            where = (queue, partition)
            moves.append(Move(sequence, number, where, offset, now, numbers.get(number)))
            unheld.append((sequence, number))
            numbers[number] = None
            first, end = self.bounds_of(where) or self._begin(where, step)
            if offset == end:
                end += 1
            else:
                self._put_ahead(where, offset, end)
            self.bounds[where] = (first, end)
        step.moves, step.unheld = moves, unheld

    def _put_ahead(self, where: Where, offset: int, end: int) -> None:
        """Appends and releases of one batch fill a partition together, so an offset may come before a lower one."""
        waiting = self._ahead.setdefault(where, set())
        if offset < end or offset in waiting:
            raise StoreFailed(f"Offset {offset} of {where} is taken; its end is {end}.", remedy=BATCH_REMEDY)
        waiting.add(offset)

    def _close_gaps(self) -> None:
        for where, offsets in self._ahead.items():
            first, end = self.bounds_of(where) or (0, 0)
            while end in offsets:
                offsets.remove(end)
                end += 1
            if offsets:
                raise StoreFailed(
                    f"Offsets {sorted(offsets)[:10]} of {where} do not follow its end, {end}.", remedy=BATCH_REMEDY
                )
            self.bounds[where] = (first, end)
        self._ahead.clear()

    def _is_held(self, sequence: str, number: int) -> bool:
        numbers = self.held.get(sequence)
        if numbers is not None and number in numbers:
            return numbers[number] is not None
        return number in (self._known.held_of(sequence))

    def _held_of(self, sequence: str) -> list[int]:
        ours = self.held.get(sequence) or {}
        stored = [number for number in self._known.held_of(sequence) if number not in ours]
        return stored + [number for number, record in ours.items() if record is not None]

    def _leave(self, sequence: str, step: Step) -> None:
        home = self.homes[sequence] if sequence in self.homes else self._known.home_of(sequence)
        if home is not None:
            self.homes[sequence] = None
            if step.leaves is None:
                step.leaves = []
            step.leaves.append((sequence, home))

    def _throw_away(self, gone: list[tuple[str, int]], step: Step) -> None:
        unheld = step.unheld or []
        for sequence, number in gone:
            if self._is_held(sequence, number):
                self.held.setdefault(sequence, {})[number] = None
                unheld.append((sequence, number))
        step.unheld = unheld

    def _trim(self, batch: Batch, step: Step) -> None:
        trims = {}
        for where, offset in batch.trims.items():
            found = self.bounds_of(where)
            if found is not None and (first := min(offset, found[1])) > found[0]:
                self.bounds[where] = (first, found[1])
                trims[where] = (found[0], first)
        step.trims = trims

    def _delete(self, batch: Batch, step: Step) -> None:
        step.deletes = deletes = {}
        gone = set(batch.deletes)
        step.cursors = cursors = {key: saved for key, saved in batch.cursors.items() if key[:2] not in gone}
        for where in gone:
            found = self.bounds_of(where)
            if found is not None:
                deletes[where] = found
                self.bounds[where] = None
            for name in self._known.cursors_of(where):
                cursors[*where, name] = None
        # Also those that an earlier batch of the group saved, or this one replaced.
        for key in [*self.cursors, *batch.cursors]:
            if key[:2] in gone:
                cursors[key] = None
