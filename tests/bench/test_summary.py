"""The statistics of measurements: against figures worked out by hand, and against the standard library's."""

from __future__ import annotations

import math
import statistics

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from bench.paper.summary import quantile, summarize

VALUES = st.lists(st.floats(0, 1e9, allow_nan=False), min_size=1, max_size=200)


def test_what_lies_more_than_two_deviations_from_the_mean_is_removed_once() -> None:
    # Mean 1,099, deviation 9,999: the first is 9.9 deviations away. Of what is left the 198 would be removed in turn.
    values = [100_001.0, *[98.0] * 98, 198.0]
    found = summarize(values)
    assert (found.outliers, found.smallest, found.largest) == (1, 98.0, 198.0)
    assert found.mean == pytest.approx((98 * 98 + 198) / 99)
    assert found.deviation == pytest.approx(statistics.stdev(values[1:]))
    assert found.error == pytest.approx(found.deviation / math.sqrt(99))


def test_a_value_that_is_too_small_is_an_outlier_too() -> None:
    assert summarize([1.0, *[100.0] * 99]).outliers == 1


def test_runs_that_took_the_same_have_no_outliers() -> None:
    found = summarize([7.0] * 100)
    assert (found.mean, found.deviation, found.error, found.outliers) == (7.0, 0.0, 0.0, 0)


def test_one_run_is_its_own_mean() -> None:
    found = summarize([3.0])
    assert (found.mean, found.deviation, found.error, found.smallest, found.largest) == (3.0, 0.0, 0.0, 3.0, 3.0)


def test_nothing_cannot_be_summed_up() -> None:
    with pytest.raises(ValueError, match="nothing"):
        summarize([])


@given(VALUES)
def test_the_figures_are_those_of_what_was_left(values: list[float]) -> None:
    found = summarize(values)
    if len(values) > 1:
        mean, reach = statistics.fmean(values), 2 * statistics.stdev(values)
        # A value that lies on the edge itself may fall to either side by rounding.
        assume(all(abs(abs(value - mean) - reach) > 1e-6 * reach for value in values) or reach == 0)
        kept = [value for value in values if abs(value - mean) <= reach or reach == 0]
    else:
        kept = values
    assert found.outliers == len(values) - len(kept)
    assert found.outliers <= len(values) / 4, "Chebyshev"
    assert found.mean == pytest.approx(statistics.fmean(kept))
    assert found.smallest == min(kept)
    assert found.largest == max(kept)
    if len(kept) > 1:
        assert found.deviation == pytest.approx(statistics.stdev(kept), rel=1e-6, abs=1e-6)


@pytest.mark.parametrize(
    ("share", "expected"), [(0, 1), (0.01, 1), (0.07, 7), (0.5, 50), (0.9, 90), (0.99, 99), (0.999, 100), (1, 100)]
)
def test_a_quantile_is_the_nearest_rank(share: float, expected: int) -> None:
    assert quantile(list(range(1, 101)), share) == expected


@given(VALUES, st.floats(0, 1))
def test_at_least_that_share_of_the_values_does_not_exceed_a_quantile(values: list[float], share: float) -> None:
    found = quantile(sorted(values), share)
    assert found in values
    assert sum(value <= found for value in values) >= share * len(values) - 1e-6
    assert sum(value < found for value in values) <= share * len(values) + 1e-6


@pytest.mark.parametrize(("values", "share"), [([], 0.5), ([1.0], -0.1), ([1.0], 1.1)])
def test_a_quantile_of_nothing_or_of_no_share_is_refused(values: list[float], share: float) -> None:
    with pytest.raises(ValueError, match="no quantile"):
        quantile(values, share)
