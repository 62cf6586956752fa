"""Retention: how long a queue keeps its records, by their age and by the bytes they take, whoever reads them.

A reader's cursor only protects more, up to a limit. Nothing here knows cursors, or deletes: it says what is let go of.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from itertools import pairwise

from holdfast.core.records import Record, State
from holdfast.exceptions import ConfigurationError
from holdfast.settings import UNITS_OF_SIZE, UNITS_OF_TIME, bytes_of, check_settings, seconds_of

DAY = 86_400.0

MEASURE_BYTES = 4 << 20
"""Read in one step while a partition's size is measured."""
MARKS = 256
"""Of one partition, by which its size is known: records go by size in steps of about a 256th of the limit."""
RECORD_BYTES = 200
"""What a record takes beside its body and its headers, about."""


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """How long a queue keeps its records.

    Args:
        age: Seconds; a record delivered longer ago is let go of. Only time counts in which the queue was served: after
            an outage readers find what they would have found before. None: however old.
        size: Bytes; while the queue holds more, its oldest records are let go of. None: however many.
        reader_age: Seconds; a reader's cursor keeps what it has not passed this long, if that is longer than ``age``.
            A reader that never comes back must not fill the disk. None: however long.
        reader_size: Bytes; the same by size. None: however many.
        max_readers: Cursors of readers; the next one is refused.

    Raises:
        ConfigurationError: for a number that cannot be.
    """

    age: float | None = 7 * DAY
    size: int | None = None
    reader_age: float | None = 30 * DAY
    reader_size: int | None = None
    max_readers: int = 1000

    def __post_init__(self) -> None:
        check_settings(self)

    @classmethod
    def parse(cls, text: str) -> RetentionPolicy:
        """From words such as ``"7d"``, ``"12h 10GB"``, ``"none"`` or ``"7d readers 30d 50GB"``.

        What is not named stays as it is by default; ``none`` stands for no limit at all. Words behind ``readers`` are
        about what a reader's cursor protects. Units of time are ms, s, m, h, d, w, those of size kB, MB, GB, TB.

        Raises:
            ConfigurationError: for any other word.
        """
        values: dict[str, float | int | None] = {}
        prefix = ""
        words = text.replace(",", " ").split()
        for word in words:
            if word.lower() == "readers" and not prefix:
                prefix = "reader_"
            elif word.lower() == "none":
                values[f"{prefix}age"] = values[f"{prefix}size"] = None
            else:
                kind, value = _quantity(word, text)
                values[f"{prefix}{kind}"] = value
        if not values or words[-1].lower() == "readers":
            raise _unfit(text)
        return cls(**values)  # type: ignore[arg-type]

    def __str__(self) -> str:
        readers = f" readers {_words(self.reader_age, self.reader_size)}"
        return _words(self.age, self.size) + readers


def _quantity(word: str, text: str) -> tuple[str, float | int]:
    age, size = seconds_of(word), bytes_of(word)
    if age:
        return "age", age
    if size:
        return "size", size
    raise _unfit(text)


def _unfit(text: str) -> ConfigurationError:
    return ConfigurationError(
        f"{text!r} is no retention", remedy='Such as "7d", "12h", "7d 10GB", "none", or "7d readers 30d 50GB".'
    )


def _words(age: float | None, size: int | None) -> str:
    words = []
    if age is not None:
        unit = next((unit for unit in ("d", "h", "m") if not age % UNITS_OF_TIME[unit]), "s")
        words.append(f"{age / UNITS_OF_TIME[unit]:g}{unit}")
    if size is not None:
        unit = next((unit for unit in ("TB", "GB", "MB", "kB") if not size % UNITS_OF_SIZE[unit.lower()]), "B")
        words.append(f"{size // UNITS_OF_SIZE[unit.lower()]}{unit}")
    if age is None:
        words.insert(0, "none")
    return " ".join(words)


class Search:
    """Of one partition the first offset from ``start`` on whose record was delivered at ``than`` or later.

    Looks at few records, however many there are: records lie in the order of their delivery. It looks at none itself:
    :attr:`probe` says which it wants to know of, and :meth:`take` takes when that was delivered.

    Args:
        start, end: Where it looks.
        than: Seconds.
    """

    __slots__ = ("_high", "_step", "at", "found", "start", "than")

    def __init__(self, start: int, end: int, than: float) -> None:
        self.start = self.found = start
        self.than = than
        self.at: float | None = None
        """When the record found was delivered; None if there is none, or if one cannot be read."""
        self._high = end
        self._step = 1
        """How far to go next; 0 once one went too far."""

    @property
    def probe(self) -> int | None:
        """The offset whose record it wants to know of; None: it is over, and :attr:`found` says where."""
        if self.found >= self._high:
            return None
        if self._step:  # ever longer steps, until one goes too far
            return min(self.found + self._step, self._high) - 1
        return (self.found + self._high) // 2

    def take(self, at: float | None) -> None:
        """The record at :attr:`probe` was delivered then; None if it cannot be read."""
        probe = self.probe
        assert probe is not None
        if at is None:  # what cannot be read is not let go of
            self.found = self._high = self.start
            self.at = None
        elif at >= self.than:
            self._high, self.at, self._step = probe, at, 0
        else:
            self.found = probe + 1
            self._step *= 2


class Sizes:
    """How many bytes the records of one partition take, known at some offsets: marks.

    Args:
        first: The first record there is.
        spacing: Bytes between two marks.
        state: What :meth:`to_state` gave; anything else is left aside, and all is measured anew.
    """

    def __init__(self, first: int, spacing: int, state: object = None) -> None:
        self._spacing = max(1, spacing)
        self.marks: list[tuple[int, int, float]] = _marks_of(state) or [(first, 0, 0.0)]
        """Offset, bytes of the records below it, and when the last of those was delivered; ascending."""
        self.measured, self.total, _ = self.marks[-1]

    def add(self, offset: int, record: Record) -> bool:
        """Count the record, the next one that is not counted; whether that made a mark."""
        self.measured = offset + 1
        self.total += len(record.body) + len(record.headers) + RECORD_BYTES
        if self.total - self.marks[-1][1] < self._spacing:
            return False
        self.marks.append((self.measured, self.total, record.delivered_at))
        if len(self.marks) > 4 * MARKS:  # readers hold back far more than the limit
            self._spacing *= 2
            del self.marks[1:-1:2]
        return True

    def cut(self, first: int) -> None:
        """Records below ``first`` are gone."""
        below = bisect_right(self.marks, first, key=lambda mark: mark[0])
        del self.marks[: max(0, below - 1)]
        if self.measured < first:  # what was never counted is gone too
            self.measured = first
            self.marks = [(first, self.total, 0.0)]

    @property
    def held(self) -> int:
        """Bytes of what is there, at most one step too many."""
        return self.total - self.marks[0][1]

    def to_state(self) -> State:
        """What to save."""
        return {"marks": [list(mark) for mark in self.marks]}


def _marks_of(state: object) -> list[tuple[int, int, float]]:
    marks = state.get("marks") if isinstance(state, dict) else None
    if not isinstance(marks, list) or not all(isinstance(mark, list) and len(mark) == 3 for mark in marks):
        return []
    found = [(offset, total, at) for offset, total, at in marks]
    if not all(type(o) is int and type(t) is int and type(at) is float and o >= 0 and t >= 0 for o, t, at in found):
        return []
    rising = all(a[0] < b[0] and a[1] < b[1] for a, b in pairwise(found))
    return found if rising else []


def floors_by_size(parts: list[Sizes], limit: int, starts: list[int]) -> list[int]:
    """For each partition the offset below which records may go, so that all together take ``limit`` bytes or just
    more: the oldest go first, whichever partition they are in.

    Within a partition a record is never older than those before it, whatever its clock said: a clock that was set back
    must not let the last records go first, and with them all that lie before.

    Args:
        parts: What is known of each partition.
        limit: Bytes.
        starts: For each partition the offset below which records go in any case. They count for nothing: a cursor may
            hold them back for long, and meanwhile another partition's records may have become the oldest.
    """
    floors, held, pieces = [], 0, []
    for index, (part, start) in enumerate(zip(parts, starts, strict=True)):
        # A step that began below the start is not counted at all: rather keep a step too many than too few.
        marks = part.marks[bisect_left(part.marks, start, key=lambda mark: mark[0]) :]
        floors.append(part.marks[0][0])
        if not marks:
            continue
        held += part.total - marks[0][1]
        latest = marks[0][2]
        for (_, below, _), (offset, total, at) in pairwise(marks):
            latest = max(latest, at)
            pieces.append((latest, index, offset, total - below))
    for _, index, offset, size in sorted(pieces):
        if held - size < limit:
            break
        held -= size
        floors[index] = offset
    return floors
