"""Gaps in the numbers of a Sequence: when each opens and closes."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from operator import attrgetter

from holdfast.core.ranges import AcknowledgementRanges
from holdfast.pipeline.audit.events import Found, Gap

_FIRST = attrgetter("first")


@dataclass(slots=True)
class _Open:
    """An open gap: its start and size when it opened, the time, and the numbers still missing."""

    first: int
    count: int
    since: int
    missing: int


class Gaps:
    """Process the numbers of one Sequence in order of arrival. Memory grows with the open gaps.

    Args:
        role, sequence: Of the Sequence.
        found: Receives each gap that closes; the caller removes them.

    Attributes:
        there: All numbers that arrived.
    """

    def __init__(self, role: str, sequence: str, found: list[Found]) -> None:
        self.there = AcknowledgementRanges()
        self._found = found
        self._role, self._sequence = role, sequence
        self._open: list[_Open] = []

    def come(self, number: int, at: int) -> None:
        """Record the arrival of a number."""
        there = self.there
        expected = there.highest + 1
        if number > expected:
            self._open.append(_Open(expected, number - expected, at, number - expected))
        if there.add(number) and number < expected:
            self._fill(number, 1, at)

    def come_together(self, lower: int, upper: int, at: int) -> None:
        """Record the arrival of all numbers from ``lower`` to ``upper``; some may have arrived before."""
        expected = self.there.highest + 1
        if lower > expected:
            self._open.append(_Open(expected, lower - expected, at, lower - expected))
        elif lower < expected:
            below = AcknowledgementRanges([(lower, min(upper, expected - 1))])
            for first, last in below.outside(self.there):
                self._fill(first, last - first + 1, at)
        self.there.add_range(lower, upper)

    def _fill(self, first: int, count: int, at: int) -> None:
        """Fill adjacent missing numbers. They are in one gap, because an arrived number separates two gaps."""
        index = bisect_right(self._open, first, key=_FIRST) - 1
        gap = self._open[index]
        gap.missing -= count
        if not gap.missing:
            del self._open[index]
            self._tell(gap, at)

    def end(self) -> None:
        """Finish after the last number; open gaps stay open."""
        for gap in self._open:
            self._tell(gap, None)

    def _tell(self, gap: _Open, until: int | None) -> None:
        self._found.append(Gap(self._role, self._sequence, gap.first, gap.count, gap.since, until))
