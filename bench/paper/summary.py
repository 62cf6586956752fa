"""Figures of many runs: quantiles, and mean and deviation of what an outlier rule leaves. Knows not what was run.

The paper that :mod:`bench.paper.table` compares with had a program remove outliers from each 100 results, and does
not print its rule. Its figures say this much: each standard error is the deviation over the root of what was left, so
mean and deviation are of what was left; the twelve that one row lost are more than can lie beyond three deviations of
100 values (Chebyshev: eleven); and, if its largest values are of what was left too, one eight deviations above the mean
was kept, so nothing was removed twice. All rows fit the rule that is used here: **what lies more than two standard
deviations from the mean of all runs is removed, once.**
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

OUTLIER_DEVIATIONS = 2.0
"""Beyond so many standard deviations of all values from their mean, a value is an outlier."""


@dataclass(frozen=True, slots=True)
class Summary:
    """What a row of a table says; all but ``outliers`` in the values' own unit.

    Attributes:
        mean: Of what the rule left.
        deviation: Its standard deviation (of a sample: over n - 1).
        error: The standard error of the mean: the deviation over the root of n.
        outliers: How many values were removed.
        smallest: Of what was left.
        largest: Of what was left.
    """

    mean: float
    deviation: float
    error: float
    outliers: int
    smallest: float
    largest: float


def summarize(values: Sequence[float]) -> Summary:
    """Remove the outliers, once, and sum up the rest.

    Args:
        values: At least one.

    Raises:
        ValueError: there are none.
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
    """The smallest value that at least ``share`` of all values do not exceed (nearest rank).

    Args:
        ordered: The values, smallest first, at least one.
        share: 0 to 1.

    Raises:
        ValueError: there are none, or ``share`` is no share.
    """
    if not ordered or not 0 <= share <= 1:
        raise ValueError(f"no quantile {share} of {len(ordered)} values")
    # The product is rounded first, lest 0.07 * 100 = 7.000000000000001 make the eighth value of the seventh.
    return ordered[max(0, math.ceil(round(share * len(ordered), 9)) - 1)]
