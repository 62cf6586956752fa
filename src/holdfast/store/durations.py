"""Histograms of durations, cheap enough for every commit and for some of the requests."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

BOUNDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Seconds: the upper bounds of the buckets; one more bucket holds longer durations."""


class Durations:
    """Durations of one kind.

    Args:
        bounds: Seconds, ascending: the upper bounds of the buckets.

    Attributes:
        counts: Number of durations in each bucket, without those in lower buckets.
        seconds: Sum of all durations.
    """

    __slots__ = ("_bounds", "counts", "seconds")

    def __init__(self, bounds: tuple[float, ...] = BOUNDS) -> None:
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.seconds = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(self._bounds, seconds)] += 1
        self.seconds += seconds

    def buckets(self) -> Iterator[tuple[str, float]]:
        """Yield each upper bound as text, and the number of durations up to it, in Prometheus's format."""
        below = 0
        for bound, count in zip((*map(str, self._bounds), "+Inf"), self.counts, strict=True):
            below += count
            yield bound, below
