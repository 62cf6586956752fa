"""Figures of many runs: quantiles, and mean and deviation without outliers.

The paper that :mod:`bench.paper.table` compares with used a program to remove outliers from each 100 results, and does
not print its rule. Its figures show the following. Each standard error is the deviation divided by the root of the
number of remaining values, so mean and deviation are those of the remaining values. One row lost twelve values, which
is more than can lie beyond three deviations of 100 values (Chebyshev: eleven). If its maxima are also those of the
remaining values, one value of eight deviations above the mean remained, so nothing was removed twice. All rows match
the rule used here: **values more than two standard deviations from the mean of all runs are removed, once.**
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

OUTLIER_DEVIATIONS = 2.0
"""A value further than this many standard deviations of all values from their mean is an outlier."""


@dataclass(frozen=True, slots=True)
class Summary:
    """A summary of values; all fields except ``outliers`` are in the values' own unit.

    Attributes:
        mean: Mean of the remaining values.
        deviation: Their standard deviation (of a sample: over n - 1).
        error: The standard error of the mean: the deviation over the root of n.
        outliers: Number of removed values.
        smallest: Minimum of the remaining values.
        largest: Maximum of the remaining values.
    """

    mean: float
    deviation: float
    error: float
    outliers: int
    smallest: float
    largest: float


def summarize(values: Sequence[float]) -> Summary:
    """Remove the outliers, once, and summarize the rest.

    Args:
        values: At least one.

    Raises:
        ValueError: the list is empty.
    """
    if not values:
        raise ValueError("there is nothing to sum up")
    mean, deviation = _mean_and_deviation(values)
    reach = OUTLIER_DEVIATIONS * deviation
    kept = [value for value in values if abs(value - mean) <= reach]
    mean, deviation = _mean_and_deviation(kept)
    error = deviation / math.sqrt(len(kept))
    return Summary(mean, deviation, error, len(values) - len(kept), min(kept), max(kept))


def _mean_and_deviation(values: Sequence[float]) -> tuple[float, float]:
    mean = math.fsum(values) / len(values)
    if len(values) == 1:
        return mean, 0.0
    return mean, math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))


def quantile(ordered: Sequence[float], share: float) -> float:
    """Return the smallest value that at least ``share`` of all values do not exceed (nearest rank).

    Args:
        ordered: The values, smallest first, at least one.
        share: 0 to 1.

    Raises:
        ValueError: the list is empty, or ``share`` is out of range.
    """
    if not ordered or not 0 <= share <= 1:
        raise ValueError(f"no quantile {share} of {len(ordered)} values")
    # Round the product first, because 0.07 * 100 = 7.000000000000001 would select the eighth value instead of the
    # seventh.
    return ordered[max(0, math.ceil(round(share * len(ordered), 9)) - 1)]
