"""Which stored records name which contents. Independent of the engine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from holdfast.core.records import Record, content_name
from holdfast.store.plan import Plan, Where

Place = tuple[Where | str, int]
"""Of a record: its partition and offset, or its Sequence and number while it is held."""


class References:
    """The records of a store that name a content, by their place. It describes what is durable."""

    def __init__(self) -> None:
        self._names: dict[Where | str, dict[int, bytes]] = {}
        self._count: Counter[bytes] = Counter()

    def __bool__(self) -> bool:
        return bool(self._names)

    def is_named(self, name: bytes) -> bool:
        """Whether a record names a content."""
        return name in self._count

    def within(self, where: Where | str) -> dict[int, bytes]:
        """Return the names that the records of a partition, or the held messages of a Sequence, have."""
        return self._names.get(where, {})

    def below(self, where: Where, before: int, first: int) -> list[int]:
        """Return the offsets of the records that a partition loses as its first offset moves.

        The time depends on the shorter of both: a queue with many references is trimmed in many small steps.
        """
        here = self.within(where)
        # The shorter of the two ways: a trim may be one record of thousands that name a content, or the reverse.
        if first - before < len(here):
            return [offset for offset in range(before, first) if offset in here]
        return [offset for offset in here if offset < first]

    def add(self, place: Place, name: bytes) -> None:
        where, number = place
        self._names.setdefault(where, {})[number] = name
        self._count[name] += 1

    def remove(self, place: Place) -> bytes:
        """Remove a record, and return the name that it has."""
        where, number = place
        names = self._names[where]
        name = names.pop(number)
        if not names:
            del self._names[where]
        self._count[name] -= 1
        if not self._count[name]:
            del self._count[name]
        return name


class ReferenceChanges:
    """What a batch changes in the references.

    Attributes:
        added: The records that the batch writes and that stay, and their contents.
        removed: The records that it deletes.
    """

    __slots__ = ("added", "removed")

    def __init__(self, references: References, plan: Plan) -> None:
        self.added: dict[Place, bytes] = {}
        self.removed: list[Place] = []
        for place, record in _written(plan):
            if name := content_name(record.attachments):
                self.added[place] = name
        if references:
            for move in plan.moves:
                # A released record takes its reference with it, without being read.
                if move.record is None and (name := references.within(move.sequence).get(move.number, b"")):
                    self.added[move.where, move.offset] = name
            self._remove(references, plan)
        for place in [place for place in self.added if _is_gone(plan, place)]:
            del self.added[place]

    def __bool__(self) -> bool:
        return bool(self.added or self.removed)

    def _remove(self, references: References, plan: Plan) -> None:
        for where, (before, first) in plan.trims.items():
            self.removed += [(where, offset) for offset in references.below(where, before, first)]
        for where in plan.deletes:
            self.removed += [(where, offset) for offset in references.within(where)]
        for sequence, numbers in plan.held.items():
            here = references.within(sequence)
            self.removed += [(sequence, number) for number in numbers if number in here]

    def take_over(self, references: References) -> list[bytes]:
        """Make them durable, and return the contents that no record names any more."""
        # Removed first: a record may be replaced at the same place by one that names the same content.
        before = [references.remove(place) for place in self.removed]
        for place, name in self.added.items():
            references.add(place, name)
        return [name for name in before if not references.is_named(name)]


def _written(plan: Plan) -> Iterator[tuple[Place, Record]]:
    for queue, partition, offset, record in plan.batch.appends:
        if record.attachments:
            yield ((queue, partition), offset), record
    for move in plan.moves:
        if move.record is not None:
            yield (move.where, move.offset), move.record
    for sequence, numbers in plan.held.items():
        for number, held in numbers.items():
            if held is not None:
                yield (sequence, number), held


def _is_gone(plan: Plan, place: Place) -> bool:
    """Whether the batch itself deletes the record at a place."""
    where, offset = place
    if isinstance(where, str):
        return False
    bounds = plan.bounds_of(where)
    return bounds is None or offset < bounds[0]
