"""A store's index of its content: bounds, held numbers, names of cursors. Independent of the engine.

It describes the durable content, which readers may see: a commit changes it only after it has finished.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from holdfast.store.plan import Bounds, Plan, Where
from holdfast.store.references import Place, References

Key = TypeVar("Key")
"""The engine's key of a partition's records."""

UNKNOWN_RECORD_BYTES = 64 << 10  # assumed for a record before any was written: rather sweep too early than too late


@dataclass(slots=True)
class Partition(Generic[Key]):
    """The bounds of a partition, the offset below which its bytes are deleted, the key of its records, and its written
    bytes and records since the store was opened.

    It changes while others read. A reader that used the old first offset misses records, and looks again.
    """

    records: Key
    first: int = 0
    end: int = 0
    swept: int = 0
    written_bytes: int = 0
    written_records: int = 0


class Content(Generic[Key]):
    """The durable content.

    Args:
        key_of: Returns the key of a new partition's records.

    Attributes:
        partitions: The existing partitions.
        unswept: Those of them that have bytes left below their first offset.
        held: Sequence -> numbers of its held messages.
        cursors: Partition -> names of its cursors. Like ``held``, it lists entries to delete with their owner; a search
            in the engine would step over all deleted keys.
        homes: Sequence -> the partition that it belongs to.
        references: The records that name a content.
        serial: The number of the last batch.
        garbage: Approximate number of trimmed bytes that are not deleted yet.
        written_bytes, written_records: Since the start.
    """

    def __init__(self, key_of: Callable[[Where], Key]) -> None:
        self._key_of = key_of
        self.partitions: dict[Where, Partition[Key]] = {}
        self.unswept: dict[Where, Partition[Key]] = {}
        self.held: dict[str, set[int]] = {}
        self.cursors: dict[Where, set[str]] = {}
        self.homes: dict[str, Where] = {}
        self.references = References()
        self.serial = 0
        self.garbage = 0.0
        self.written_bytes = 0
        self.written_records = 0

    def bounds_of(self, where: Where) -> Bounds | None:
        one = self.partitions.get(where)
        return None if one is None else (one.first, one.end)

    def held_of(self, sequence: str) -> Collection[int]:
        return self.held.get(sequence, ())

    def cursors_of(self, where: Where) -> Collection[str]:
        return self.cursors.get(where, ())

    def home_of(self, sequence: str) -> Where | None:
        return self.homes.get(sequence)

    def refer(self, place: Place, name: bytes) -> None:
        """Add a stored reference; a repair may have cut off its record."""
        where, number = place
        if isinstance(where, str):
            is_there = number in self.held.get(where, ())
        else:
            bounds = self.bounds_of(where)
            is_there = bounds is not None and bounds[0] <= number < bounds[1]
        if is_there:
            self.references.add(place, name)

    @property
    def mean_bytes(self) -> float:
        """Approximate bytes of a record."""
        return self.written_bytes / self.written_records if self.written_records else UNKNOWN_RECORD_BYTES

    def mean_of(self, where: Where) -> float:
        """Return the same for one partition; its records may be a thousand times as large as those of another."""
        one = self.partitions.get(where)
        return one.written_bytes / one.written_records if one is not None and one.written_records else self.mean_bytes

    def put(self, where: Where, one: Partition[Key]) -> None:
        """Add or replace a partition."""
        self.partitions[where] = one
        if one.swept < one.first:
            self.unswept[where] = one

    def take_over(self, plan: Plan, swept: Mapping[Where, int]) -> None:
        """Record the effects of a durable plan.

        Args:
            swept: Partition -> the offset below which its bytes are now deleted, for partitions where it has changed.
        """
        partitions = self.partitions
        for where, bounds in plan.bounds.items():
            one = partitions.get(where)
            if bounds is None:
                if one is not None:
                    del partitions[where]
                    self.unswept.pop(where, None)
            elif one is None:
                self.put(where, Partition(self._key_of(where), *bounds, swept.get(where, 0)))
            else:
                one.first, one.end = bounds
                if one.first > one.swept:
                    self.unswept[where] = one
        if swept:
            self._take_over_swept(swept)
        if plan.held:
            for sequence, numbers in plan.held.items():
                self._take_over_held(sequence, numbers)
        for sequence, home in plan.homes.items():
            if home is None:
                self.homes.pop(sequence, None)
            else:
                self.homes[sequence] = home
        for (queue, partition, name), saved in plan.cursors.items():
            names = self.cursors.get((queue, partition), ())
            # Most cursors only move, which leaves their names as they are.
            if (name in names) is not (is_there := saved is not None):
                self._take_over_cursor((queue, partition), name, is_there=is_there)

    def _take_over_swept(self, swept: Mapping[Where, int]) -> None:
        for where, offset in swept.items():
            one = self.partitions[where]
            one.swept = offset
            if offset >= one.first:
                self.unswept.pop(where, None)

    def _take_over_held(self, sequence: str, numbers: Mapping[int, object | None]) -> None:
        held = self.held.setdefault(sequence, set())
        for number, record in numbers.items():
            if record is None:
                held.discard(number)
            else:
                held.add(number)
        if not held:
            del self.held[sequence]

    def _take_over_cursor(self, where: Where, name: str, *, is_there: bool) -> None:
        names = self.cursors.setdefault(where, set())
        if is_there:
            names.add(name)
        else:
            names.discard(name)
            if not names:
                del self.cursors[where]
