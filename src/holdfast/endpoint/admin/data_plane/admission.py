"""Which records a limited batch admits: the oldest over all partitions, by the time of their delivery.

A stream with windows drops rows that are older than its watermark, and the newest row of a batch moves that watermark.
So a batch must not hold a newer record of one partition while another partition still has an older one. Each partition
is ordered by delivery time, so one time cuts all partitions, and a search finds it in a few probes. Pure: no network,
no store, no clock.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

K = TypeVar("K", int, tuple[str, int])

FOREVER = 2**53
"""Microseconds since 1970: no record is delivered later."""
SECOND = 1_000_000
_GROWTH = 8
"""By how much the search widens its step while it knows no bound."""


@dataclass(frozen=True, slots=True)
class Guess:
    """Estimate of the time that ends a batch. A wrong guess costs only probes.

    Args:
        ended: When the batch before ended, in microseconds since 1970; before the first batch the present time.
        width: How much time that batch held, in microseconds; 0 if that is unknown.
    """

    ended: int
    width: int = 0


@dataclass(frozen=True, slots=True)
class Probe(Generic[K]):
    """A question of the search: the position of a time in some partitions.

    Args:
        time: Microseconds since 1970.
        within: The positions between which the answer lies in each partition. The answer is the first record that was
            delivered at that time or later, or the end of these positions.
    """

    time: int
    within: Mapping[K, tuple[int, int]]


@dataclass(slots=True)
class _Bracket:
    """The end of a batch lies between two times, and so between two places in each partition."""

    low: int
    high: int
    few: int
    """Rows up to ``low``."""
    many: int
    """Rows up to ``high``: too many."""

    def next(self, guess: Guess, probes: int, wanted: int) -> int:
        """Gallop while one of the times is unknown, then interpolate and bisect in turn."""
        step = (guess.width or SECOND) * _GROWTH ** max(0, probes - 1)
        if self.low == 0 and self.high == FOREVER:
            probe = guess.ended + guess.width
        elif self.high == FOREVER:
            probe = self.low + step
        elif self.low == 0:
            probe = self.high - step
        elif probes % 2:
            probe = (self.low + self.high) // 2
        else:
            probe = self.low + (self.high - self.low) * (wanted - self.few) // (self.many - self.few)
        return min(max(probe, self.low + 1), self.high - 1)


def oldest(
    since: Mapping[K, int], ends: Mapping[K, int], most: int, guess: Guess
) -> Generator[Probe[K], Mapping[K, int], tuple[dict[K, int], Guess]]:
    """Search the positions up to which a batch reads: the oldest records over all partitions, ``most`` at most.

    The batch has at least fifteen sixteenths of ``most`` rows if there are so many. Every record that it leaves was
    delivered no earlier than every record that it takes, unless the server's clock was set back.

    Args:
        since: Where the batch begins in each partition.
        most: Rows at most, from 1 on.
        guess: Where to look first.

    Yields:
        A probe; send its answer.

    Returns:
        The positions, and where to look first for the end of the next batch.
    """
    below = {one: since.get(one, 0) for one in ends}
    above = dict(ends)
    bracket = _Bracket(0, FOREVER, 0, _rows(below, above))
    if bracket.many <= most:
        return above, guess
    enough = most - most // 16
    start, probes = dict(below), 0
    unsure = _unsure(below, above)
    while bracket.few < enough and bracket.high - bracket.low > 1 and len(unsure) > 1:
        time = bracket.next(guess, probes, (enough + most) // 2)
        answer = yield Probe(time, {one: (below[one], above[one]) for one in unsure})
        found = below | {one: min(max(answer[one], below[one]), above[one]) for one in unsure}
        rows = _rows(start, found)
        if rows <= most:
            bracket.low, bracket.few, below = time, rows, found
        else:
            bracket.high, bracket.many, above = time, rows, found
        unsure = _unsure(below, above)
        probes += 1
    if bracket.few < enough:  # records of one partition, or of one microsecond: these have no order among partitions
        below = share(below, above, most - bracket.few)
    if bracket.low == 0:
        return below, guess
    if bracket.high - bracket.low == 1:  # the next batch probably continues with these records
        return below, Guess(bracket.low, 1)
    width = bracket.low - guess.ended if guess.width > 1 else bracket.high - bracket.low
    return below, Guess(bracket.low, max(1, width))


def share(since: Mapping[K, int], ends: Mapping[K, int], max_rows: int) -> dict[K, int]:
    """Return positions at most ``max_rows`` rows further: equal shares, and the others get what some do not need. If
    there are fewer rows than partitions, the next batch continues with those that had none in this one."""
    order: list[K] = sorted(ends)
    turn: int = sum(since.get(partition, 0) for partition in order) % max(1, len(order))
    until = {partition: since.get(partition, 0) for partition in order[turn:] + order[:turn]}
    while max_rows > 0 and (behind := [p for p in until if until[p] < ends[p]]):
        quota = max(1, max_rows // len(behind))
        for partition in behind:
            step = min(quota, ends[partition] - until[partition], max_rows)
            until[partition] += step
            max_rows -= step
    return until


def _unsure(below: Mapping[K, int], above: Mapping[K, int]) -> list[K]:
    """Return the partitions whose part of the batch is still uncertain."""
    return [one for one in below if below[one] < above[one]]


def _rows(since: Mapping[K, int], until: Mapping[K, int]) -> int:
    return sum(until[one] - since[one] for one in since)
