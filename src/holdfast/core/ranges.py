"""AcknowledgementRanges: a set of message numbers kept as ranges. Arithmetic only; knows nothing of the protocol."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator


class AcknowledgementRanges:
    """A set of positive whole numbers as ascending, disjoint, non-adjacent ranges, both ends inclusive (WS-RM 3.9).

    Memory grows with the number of gaps, not with the number of members. ``add`` at the upper end, the usual case,
    costs no search. ``bool()`` is refused, so that "is there any" and "is it there at all" cannot be confused.
    """

    __slots__ = ("_lower", "_upper")

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        self._lower: list[int] = []
        self._upper: list[int] = []
        for lower, upper in ranges:
            self.add_range(lower, upper)

    def add(self, number: int) -> bool:
        """Add one number; whether it was new."""
        uppers = self._upper
        # Nearly every message: the next number, without a search.
        if uppers and number == uppers[-1] + 1:
            uppers[-1] = number
            return True
        if not uppers or number > uppers[-1]:
            self._lower.append(number)
            uppers.append(number)
            return True
        if number in self:
            return False
        self.add_range(number, number)
        return True

    def add_range(self, lower: int, upper: int) -> None:
        """Add every number from ``lower`` to ``upper``; joins what overlaps or touches."""
        assert 0 < lower <= upper, (lower, upper)
        # One less and one more, because ranges that touch become one.
        first = bisect_left(self._upper, lower - 1)
        last = bisect_right(self._lower, upper + 1)
        if first < last:
            lower = min(lower, self._lower[first])
            upper = max(upper, self._upper[last - 1])
        self._lower[first:last] = [lower]
        self._upper[first:last] = [upper]

    def update(self, ranges: Iterable[tuple[int, int]]) -> None:
        for lower, upper in ranges:
            self.add_range(lower, upper)

    def discard(self, number: int) -> None:
        """Remove one number, if it is a member; splits its range."""
        index = bisect_left(self._upper, number)
        if index == len(self._upper) or self._lower[index] > number:
            return
        lower, upper = self._lower[index], self._upper[index]
        parts = [(low, up) for low, up in ((lower, number - 1), (number + 1, upper)) if low <= up]
        self._lower[index : index + 1] = [low for low, _ in parts]
        self._upper[index : index + 1] = [up for _, up in parts]

    def discard_above(self, number: int) -> None:
        """Remove every number above ``number``."""
        index = bisect_right(self._lower, number)
        del self._lower[index:], self._upper[index:]
        if index and self._upper[-1] > number:
            self._upper[-1] = number

    def discard_lowest(self) -> None:
        del self._lower[0], self._upper[0]

    def __contains__(self, number: object) -> bool:
        assert isinstance(number, int)
        uppers = self._upper
        if not uppers or number > uppers[-1]:
            return False  # most are asked for before they come
        index = bisect_left(uppers, number)
        return self._lower[index] <= number

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self._lower, self._upper, strict=True)

    def __len__(self) -> int:
        """Return the number of ranges, not of the numbers in them."""
        return len(self._lower)

    def __bool__(self) -> bool:
        # ``if ranges:`` would be read as "any number" by one reader and as "present" by another.
        raise TypeError("use len(), count or a comparison: the truth value of a set of ranges is ambiguous")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, AcknowledgementRanges):
            return NotImplemented
        return self._lower == other._lower and self._upper == other._upper

    __hash__ = None  # type: ignore[assignment]  # mutable

    def __repr__(self) -> str:
        return f"AcknowledgementRanges({self})"

    def __str__(self) -> str:
        return " ".join(f"{lower}-{upper}" for lower, upper in self) or "none"

    @property
    def count(self) -> int:
        """Number of the numbers in all ranges."""
        return sum(self._upper) - sum(self._lower) + len(self._lower)

    @property
    def highest(self) -> int:
        """The highest number, 0 without one."""
        return self._upper[-1] if self._upper else 0

    @property
    def first_gap(self) -> int:
        """The lowest positive number that is not a member."""
        return self._upper[0] + 1 if self._upper and self._lower[0] == 1 else 1

    def covers(self, upper: int) -> bool:
        """Whether every number from 1 to ``upper`` is a member."""
        return upper < self.first_gap

    def gaps(self, upper: int) -> Iterator[tuple[int, int]]:
        """Return the ranges of numbers from 1 to ``upper`` that are not members."""
        expected = 1
        for lower, last in self:
            if lower > upper:
                break
            if lower > expected:
                yield expected, lower - 1
            expected = last + 1
        if expected <= upper:
            yield expected, upper

    def outside(self, others: AcknowledgementRanges) -> Iterator[tuple[int, int]]:
        """Return the ascending ranges of numbers that are members here and not in ``others``."""
        rest = iter(others)
        other = next(rest, None)
        for lower, upper in self:
            at = lower
            while other is not None and other[0] <= upper:
                if other[0] > at:
                    yield at, other[0] - 1
                at = max(at, other[1] + 1)
                if other[1] > upper:
                    break
                other = next(rest, None)
            if at <= upper:
                yield at, upper

    def as_pairs(self) -> tuple[tuple[int, int], ...]:
        """Return the ranges in the form of a SequenceAcknowledgement."""
        # Nearly every Sequence has one range.
        if len(self._lower) == 1:
            return ((self._lower[0], self._upper[0]),)
        return tuple(self)

    def to_state(self) -> list[int]:
        """Return a flat list (lower, upper, lower, upper, ...) to save."""
        if len(self._lower) == 1:
            return [self._lower[0], self._upper[0]]
        return [number for pair in self for number in pair]

    @classmethod
    def from_state(cls, state: list[int]) -> AcknowledgementRanges:
        ranges = cls()
        ranges._lower = list(state[0::2])
        ranges._upper = list(state[1::2])
        return ranges

    def copy(self) -> AcknowledgementRanges:
        other = AcknowledgementRanges()
        other._lower = self._lower.copy()
        other._upper = self._upper.copy()
        return other


def ranges_of(saved: object, end: int) -> AcknowledgementRanges | None:
    """Restore saved ranges of numbers from 1 to ``end``; None if the value is not valid."""
    if not isinstance(saved, list) or len(saved) % 2 or not all(type(number) is int for number in saved):
        return None
    # Numbers from 1, as ranges that neither touch nor cross.
    if any(upper < lower for lower, upper in zip(saved[0::2], saved[1::2], strict=True)):
        return None
    if any(lower < upper + 2 for upper, lower in zip([-1, *saved[1::2]], saved[0::2], strict=False)):
        return None
    if saved and saved[-1] > end:
        return None
    return AcknowledgementRanges.from_state(saved)
