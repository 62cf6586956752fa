"""The effects of a batch on a store, checked completely before any change. Independent of engine and protocol.

The rules of a batch are defined only here. A store makes a :class:`Plan` of the batch and writes its effects. Once they
are durable, the store applies the plan's changes to its partitions, held numbers, cursors and homes.

A plan asks the store only about the batch's own keys, so a store need not have everything in memory.
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
"""``(first, end)``: the offsets first <= o < end are stored."""
Home = tuple[str, Where]
"""A Sequence and the partition that it belongs to."""
CursorKey = tuple[str, int, str]
"""Queue, partition and name."""

BATCH_REMEDY = "Start again: acknowledged messages are stored. If it happens again, please report it."
_MOST = (1 << 64) - 1


@dataclass(slots=True)
class Move:
    """A held record that moves into a queue.

    Args:
        sequence, number: Its key while it is held.
        where, offset: Its new place.
        now: Its ``released_at``.
        record: The record if the batch itself holds it; None if it is in the store.
    """

    sequence: str
    number: int
    where: Where
    offset: int
    now: float
    record: Record | None


class Known(Protocol):
    """What a plan asks of a store, for the keys of the batch."""

    def bounds_of(self, where: Where) -> Bounds | None:
        """Return the bounds of a partition, None if it does not exist."""
        ...

    def held_of(self, sequence: str) -> Collection[int]:
        """Return the numbers of a Sequence's held messages."""
        ...

    def cursors_of(self, where: Where) -> Collection[str]:
        """Return the names of a partition's cursors."""
        ...

    def home_of(self, sequence: str) -> Where | None:
        """Return the partition that a Sequence belongs to, None if it is unknown."""
        ...


class Plan:
    """The effects of one batch on a store. The store writes the batch's queues, appends and Sequences as given.

    Args:
        known: The content of the store. It must not change before the plan is carried out.

    Attributes:
        bounds: Changed partition -> its bounds afterwards, None if it is deleted.
        begins: Partitions that receive their first record from this batch.
        moves: The records that it releases.
        held: Sequence -> number -> the record to hold, None for a record that is no longer held.
        cursors: Cursor -> the state to save, None to delete it.
        trims: Partition -> the first offset before and after.
        deletes: Partition -> its end until then.
        homes: Changed Sequence -> its partition afterwards, None for a Sequence that is deleted.
        leaves: Sequences that are no longer assigned to a partition, and that partition.

    Raises:
        StoreFailed: It breaks a rule: a gap in a partition's offsets, an offset twice, a release of a record that is
            not held. Nothing of it must be written.
    """

    __slots__ = (
        "_ahead", "_known", "batch", "begins", "bounds", "cursors", "deletes", "held", "homes", "leaves", "moves",
        "trims",
    )  # fmt: skip

    def __init__(self, known: Known, batch: Batch) -> None:
        self.batch = batch
        self.bounds: dict[Where, Bounds | None] = {}
        self.begins: list[Where] = []
        self.moves: list[Move] = []
        self.held: dict[str, dict[int, Record | None]] = {}
        self.cursors: Mapping[CursorKey, State | None] = batch.cursors
        self.trims: dict[Where, tuple[int, int]] = {}
        self.deletes: dict[Where, int] = {}
        self.homes: dict[str, Where | None] = {}
        self.leaves: list[Home] = []
        self._ahead: dict[Where, set[int]] = {}
        self._known = known
        if batch.appends:
            self._append(batch)
        # Appends, runs and releases before the gaps are closed: together they fill a partition without a gap.
        if batch.runs:
            self._run(batch)
        if batch.holds:
            self._hold(batch)
        if batch.releases:
            self._release(batch)
        if self._ahead:
            self._close_gaps()
        if batch.drops:
            self._throw_away(batch.drops)
        if batch.homes:
            self.homes.update(batch.homes)
        for sequence, state in batch.sequences.items():
            if state is None:
                # A forgotten Sequence leaves nothing: no held message, no home.
                self._throw_away([(sequence, number) for number in self._held_of(sequence)])
                self.homes[sequence] = None
        if self.homes:
            self._leave()
        if batch.trims:
            self._trim(batch)
        if batch.deletes:
            self._delete(batch)

    def bounds_of(self, where: Where) -> Bounds | None:
        """Return the bounds of a partition, including the effects planned so far."""
        return self.bounds[where] if where in self.bounds else self._known.bounds_of(where)

    def _append(self, batch: Batch) -> None:
        where = last_queue, last_partition = batch.appends[0][:2]
        first, end = self.bounds_of(where) or self._begin(where)
        for queue, partition, offset, _ in batch.appends:
            # Identity suffices for the common case of one queue: another object only costs a second look-up.
            if partition != last_partition or queue is not last_queue:
                self.bounds[where] = (first, end)
                last_queue, last_partition = where = (queue, partition)
                first, end = self.bounds_of(where) or self._begin(where)
            if offset == end:
                end += 1
            else:
                self._put_ahead(where, offset, end)
        self.bounds[where] = (first, end)

    def _run(self, batch: Batch) -> None:
        for run in batch.runs:
            where = (run.queue, run.partition)
            first, end = self.bounds_of(where) or self._begin(where)
            if run.offset == end:
                end += len(run.places)
            else:
                for offset in range(run.offset, run.offset + len(run.places)):
                    self._put_ahead(where, offset, end)
            self.bounds[where] = (first, end)

    def _begin(self, where: Where) -> Bounds:
        if not 0 <= where[1] <= _MOST:
            raise StoreFailed(f"{where} is not a valid partition.", remedy=BATCH_REMEDY)
        self.begins.append(where)
        return 0, 0

    def _hold(self, batch: Batch) -> None:
        for sequence, number, record in batch.holds:
            if not 0 <= number <= _MOST:
                raise StoreFailed(f"Message {number} of {sequence} cannot be held.", remedy=BATCH_REMEDY)
            self.held.setdefault(sequence, {})[number] = record

    def _release(self, batch: Batch) -> None:
        released: dict[tuple[str, int], tuple[Record | None, set[str]]] = {}
        for sequence, number, queue, partition, offset, now in batch.releases:
            if self._is_held(sequence, number):
                record = self.held.setdefault(sequence, {}).get(number)
                self.held[sequence][number] = None
                released[sequence, number] = (record, {queue})
            # A message routed to several queues is released once for each.
            elif (sequence, number) in released and queue not in released[sequence, number][1]:
                record, into = released[sequence, number]
                into.add(queue)
            else:
                raise StoreFailed(
                    f"Message {number} of {sequence} cannot be released: it is not held.", remedy=BATCH_REMEDY
                )
            where = (queue, partition)
            self.moves.append(Move(sequence, number, where, offset, now, record))
            first, end = self.bounds_of(where) or self._begin(where)
            if offset == end:
                end += 1
            else:
                self._put_ahead(where, offset, end)
            self.bounds[where] = (first, end)

    def _put_ahead(self, where: Where, offset: int, end: int) -> None:
        """Plan an append. Appends, runs and releases of a batch fill a partition together, so offsets may arrive in any
        order."""
        waiting = self._ahead.setdefault(where, set())
        if offset < end or offset in waiting:
            raise StoreFailed(f"Offset {offset} of {where} already exists; its end is {end}.", remedy=BATCH_REMEDY)
        waiting.add(offset)

    def _close_gaps(self) -> None:
        for where, offsets in self._ahead.items():
            first, end = self.bounds_of(where) or (0, 0)
            while end in offsets:
                offsets.remove(end)
                end += 1
            if offsets:
                raise StoreFailed(
                    f"Offsets {sorted(offsets)[:10]} of {where} do not start at its end, {end}.", remedy=BATCH_REMEDY
                )
            self.bounds[where] = (first, end)
        self._ahead.clear()

    def _is_held(self, sequence: str, number: int) -> bool:
        # The batch's own changes take precedence over the stored content.
        numbers = self.held.get(sequence)
        if numbers is not None and number in numbers:
            return numbers[number] is not None
        return number in self._known.held_of(sequence)

    def _held_of(self, sequence: str) -> list[int]:
        ours = self.held.get(sequence) or {}
        stored = [number for number in self._known.held_of(sequence) if number not in ours]
        return stored + [number for number, record in ours.items() if record is not None]

    def _throw_away(self, gone: list[tuple[str, int]]) -> None:
        for sequence, number in gone:
            if self._is_held(sequence, number):
                self.held.setdefault(sequence, {})[number] = None

    def _leave(self) -> None:
        for sequence in self.homes:
            home = self._known.home_of(sequence)
            if home is not None:
                self.leaves.append((sequence, home))

    def _trim(self, batch: Batch) -> None:
        for where, offset in batch.trims.items():
            found = self.bounds_of(where)
            # Never beyond the end, which includes the records of this batch.
            if found is not None and (first := min(offset, found[1])) > found[0]:
                self.bounds[where] = (first, found[1])
                self.trims[where] = (found[0], first)

    def _delete(self, batch: Batch) -> None:
        gone = set(batch.deletes)
        # A new mapping: the batch belongs to the caller.
        self.cursors = cursors = {key: None if key[:2] in gone else saved for key, saved in batch.cursors.items()}
        for where in gone:
            found = self.bounds_of(where)
            if found is not None:
                self.deletes[where] = found[1]
                self.bounds[where] = None
                # Deleted whole; a trim would write the partition again.
                self.trims.pop(where, None)
            for name in self._known.cursors_of(where):
                cursors[*where, name] = None
