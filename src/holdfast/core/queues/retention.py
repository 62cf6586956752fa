"""Retention: how long a queue keeps its records, by their age and size, regardless of readers.

A reader's cursor can protect records longer, up to a limit. This module handles no cursors and deletes nothing: it
determines which records the retention releases.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from itertools import pairwise

from holdfast.core.records import Record, State, content_size
from holdfast.exceptions import ConfigurationError
from holdfast.settings import (
    UNITS_OF_SIZE,
    UNITS_OF_TIME,
    Bytes,
    Seconds,
    brief_value,
    bytes_of,
    check_settings,
    seconds_of,
)

DAY = 86_400.0

MEASURE_BYTES = 4 << 20
"""Bytes read in one step while a partition is measured."""
MARKS = 256
"""Number of size marks of a partition: the queue deletes records by size in steps of about a 256th of the limit."""
RECORD_BYTES = 200
"""Approximate bytes of a record in addition to its body and its headers."""


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """How long a queue keeps its records.

    Args:
        age: Seconds after its delivery at which the retention releases a record. Only time in which the queue was
            served counts, so that after an outage readers find the same records as before it. None: no limit.
        size: Bytes; while the queue contains more, the retention releases its oldest records. None: no limit.
        reader_age: Seconds for which a reader's cursor protects records that it has not passed, if that is longer than
            ``age``. The limit prevents a reader that never returns from filling the disk. None: no limit.
        reader_size: Bytes; the same limit by size. None: no limit.
        max_readers: Maximum number of readers' cursors; the queue rejects further ones.

    Raises:
        ConfigurationError: a number is not valid.
    """

    age: Seconds | None = 7 * DAY
    size: Bytes | None = None
    reader_age: Seconds | None = 30 * DAY
    reader_size: Bytes | None = None
    max_readers: int = 1000

    def __post_init__(self) -> None:
        check_settings(self)

    @classmethod
    def parse(cls, text: str) -> RetentionPolicy:
        """Parse a retention such as ``"7d"``, ``"12h 10GB"``, ``"none"`` or ``"7d readers 30d 50GB"``.

        Values that the text does not name keep their defaults; ``none`` means no limit. Words after ``readers`` set the
        limits of readers' cursors. Units of time are ms, s, m, h, d, w, those of size kB, MB, GB, TB.

        Raises:
            ConfigurationError: the text contains any other word.
        """
        if not isinstance(text, str):
            raise _unfit(text)
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


def _unfit(text: object) -> ConfigurationError:
    return ConfigurationError(
        f"{brief_value(text)} is not a retention",
        remedy='Examples: "7d", "12h", "7d 10GB", "none", or "7d readers 30d 50GB".',
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
    """Search one partition for the first record from ``start`` on that was delivered at ``than`` or later.

    The search examines few records, because records are in the order of their delivery. It reads no record itself:
    :attr:`probe` gives the offset to examine, and :meth:`take` accepts the delivery time of that record.

    Args:
        start, end: The range of offsets.
        than: Seconds.
    """

    __slots__ = ("_high", "_step", "at", "found", "start", "than")

    def __init__(self, start: int, end: int, than: float) -> None:
        self.start = self.found = start
        self.than = than
        self.at: float | None = None
        """Delivery time of the record found; None without one, or if a record is unreadable."""
        self._high = end
        self._step = 1
        """Length of the next step; 0 once a step went too far."""

    @property
    def probe(self) -> int | None:
        """The offset of the record to examine; None: the search has ended, and :attr:`found` is its result."""
        if self.found >= self._high:
            return None
        if self._step:  # double the step until one goes too far
            return min(self.found + self._step, self._high) - 1
        return (self.found + self._high) // 2

    def take(self, at: float | None) -> None:
        """Accept the delivery time of the record at :attr:`probe`; None if the record is unreadable."""
        probe = self.probe
        assert probe is not None
        if at is None:  # the retention does not release unreadable records
            self.found = self._high = self.start
            self.at = None
        elif at >= self.than:
            self._high, self.at, self._step = probe, at, 0
        else:
            self.found = probe + 1
            self._step *= 2


class Sizes:
    """Sizes of the records of one partition, known at some offsets, the marks.

    Args:
        first: The first existing record.
        spacing: Bytes between two marks.
        state: The state that :meth:`to_state` returned. Any other value is ignored, and all records are measured again.
    """

    def __init__(self, first: int, spacing: int, state: object = None) -> None:
        self._spacing = max(1, spacing)
        self.marks: list[tuple[int, int, float]] = _marks_of(state) or [(first, 0, 0.0)]
        """Offset, bytes of the records below it, and delivery time of the last of them; ascending."""
        self.measured, self.total, _ = self.marks[-1]

    def add(self, offset: int, record: Record) -> bool:
        """Count the next uncounted record, and return whether that added a mark."""
        self.measured = offset + 1
        self.total += record.size + content_size(record.attachments) + RECORD_BYTES
        if self.total - self.marks[-1][1] < self._spacing:
            return False
        self.marks.append((self.measured, self.total, record.delivered_at))
        if len(self.marks) > 4 * MARKS:  # readers protect far more than the limit
            self._spacing *= 2
            del self.marks[1:-1:2]
        return True

    def cut(self, first: int) -> None:
        """Remove the marks of deleted records, those below ``first``."""
        below = bisect_right(self.marks, first, key=lambda mark: mark[0])
        del self.marks[: max(0, below - 1)]
        if self.measured < first:  # uncounted records are deleted too
            self.measured = first
            self.marks = [(first, self.total, 0.0)]

    @property
    def held(self) -> int:
        """Bytes of the existing records, at most one step too many."""
        return self.total - self.marks[0][1]

    def to_state(self) -> State:
        return {"marks": [list(mark) for mark in self.marks]}


def _marks_of(state: object) -> list[tuple[int, int, float]]:
    # Read from the store, so anything may be in it.
    marks = state.get("marks") if isinstance(state, dict) else None
    if not isinstance(marks, list) or not all(isinstance(mark, list) and len(mark) == 3 for mark in marks):
        return []
    found = [(offset, total, at) for offset, total, at in marks]
    if not all(type(o) is int and type(t) is int and type(at) is float and o >= 0 and t >= 0 for o, t, at in found):
        return []
    rising = all(a[0] < b[0] and a[1] < b[1] for a, b in pairwise(found))
    return found if rising else []


def floors_by_size(parts: list[Sizes], limit: int, starts: list[int]) -> list[int]:
    """Return, for each partition, the offset below which records may be deleted to respect a size limit.

    The records that remain take ``limit`` bytes or slightly more. The oldest are deleted first, in any partition.

    Within a partition, a record never counts as older than those before it, regardless of its timestamp. Otherwise,
    after a clock was set back, the last records would be deleted first, together with every record before them.

    Args:
        limit: Bytes.
        starts: For each partition, the offset below which records are released anyway. Those records do not count: a
            cursor may protect them for long, and meanwhile another partition's records may have become the oldest.
    """
    floors, held, pieces = [], 0, []
    for index, (part, start) in enumerate(zip(parts, starts, strict=True)):
        # A step that begins below the start does not count: it is better to keep a step too many than too few.
        marks = part.marks[bisect_left(part.marks, start, key=lambda mark: mark[0]) :]
        floors.append(part.marks[0][0])
        if not marks:
            continue
        held += part.total - marks[0][1]
        latest = marks[0][2]
        for (_, below, _), (offset, total, at) in pairwise(marks):
            latest = max(latest, at)
            pieces.append((latest, index, offset, total - below))
    # The oldest first, whatever partition it is in.
    for _, index, offset, size in sorted(pieces):
        if held - size < limit:
            break
        held -= size
        floors[index] = offset
    return floors
