"""AcknowledgementRanges against a plain set of numbers."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.ranges import AcknowledgementRanges

NUMBERS = st.integers(1, 40)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), NUMBERS, NUMBERS),
        st.tuples(st.just("add_range"), NUMBERS, NUMBERS),
        st.tuples(st.just("discard"), NUMBERS, NUMBERS),
        st.tuples(st.just("discard_above"), NUMBERS, NUMBERS),
    ),
    max_size=40,
)


def apply(ranges: AcknowledgementRanges, model: set[int], verb: str, first: int, second: int) -> None:
    if verb == "add":
        assert ranges.add(first) == (first not in model)
        model.add(first)
    elif verb == "add_range":
        lower, upper = sorted((first, second))
        ranges.add_range(lower, upper)
        model.update(range(lower, upper + 1))
    elif verb == "discard":
        ranges.discard(first)
        model.discard(first)
    else:
        ranges.discard_above(first)
        model.difference_update(range(first + 1, 41))


@given(STEPS)
def test_it_behaves_like_a_set(steps: list[tuple[str, int, int]]) -> None:
    ranges, model = AcknowledgementRanges(), set[int]()
    for step in steps:
        apply(ranges, model, *step)
        pairs = list(ranges)
        assert {n for lower, upper in pairs for n in range(lower, upper + 1)} == model
        assert all(upper + 1 < lower for (_, upper), (lower, _) in itertools.pairwise(pairs))
        assert len(ranges) == len(pairs)
        assert ranges.count == len(model)
        assert ranges.highest == max(model, default=0)
        assert ranges.first_gap == next(n for n in range(1, 43) if n not in model)
        assert [n in ranges for n in range(1, 42)] == [n in model for n in range(1, 42)]


@given(STEPS, st.integers(0, 45))
def test_gaps_are_the_complement_and_covers_means_there_is_none(steps: list[tuple[str, int, int]], upper: int) -> None:
    ranges, model = AcknowledgementRanges(), set[int]()
    for step in steps:
        apply(ranges, model, *step)
    missing = {n for lower, last in ranges.gaps(upper) for n in range(lower, last + 1)}
    assert missing == set(range(1, upper + 1)) - model
    assert ranges.covers(upper) == (not missing)


@given(STEPS, STEPS)
def test_update_is_the_union_and_a_saved_copy_is_equal(
    one: list[tuple[str, int, int]], other: list[tuple[str, int, int]]
) -> None:
    first, second = AcknowledgementRanges(), AcknowledgementRanges()
    left, right = set[int](), set[int]()
    for step in one:
        apply(first, left, *step)
    for step in other:
        apply(second, right, *step)
    copy = first.copy()
    copy.update(second)
    assert {n for lower, upper in copy for n in range(lower, upper + 1)} == left | right
    assert AcknowledgementRanges.from_state(first.to_state()) == first
    assert first.as_pairs() == tuple(first)
    assert AcknowledgementRanges(first) == first


@given(STEPS, STEPS)
def test_what_lies_outside_is_the_difference_of_the_sets(
    one: list[tuple[str, int, int]], other: list[tuple[str, int, int]]
) -> None:
    these, those = AcknowledgementRanges(), AcknowledgementRanges()
    left, right = set[int](), set[int]()
    for step in one:
        apply(these, left, *step)
    for step in other:
        apply(those, right, *step)
    found = [*these.outside(those)]
    assert [n for lower, upper in found for n in range(lower, upper + 1)] == sorted(left - right)
    assert all(upper < lower for (_, upper), (lower, _) in itertools.pairwise(found))


def test_a_million_numbers_in_order_take_one_range() -> None:
    ranges = AcknowledgementRanges()
    for number in range(1, 10_001):
        ranges.add(number)
    ranges.add_range(10_001, 1_000_000)
    assert ranges.as_pairs() == ((1, 1_000_000),)


def test_its_truth_is_refused_and_nonsense_is_a_mistake_of_ours() -> None:
    with pytest.raises(TypeError):
        bool(AcknowledgementRanges())
    with pytest.raises(AssertionError):
        AcknowledgementRanges([(3, 2)])
    with pytest.raises(AssertionError):
        AcknowledgementRanges([(0, 2)])


def test_it_reads_as_ranges() -> None:
    assert str(AcknowledgementRanges([(1, 3), (7, 7)])) == "1-3 7-7"
    assert repr(AcknowledgementRanges()) == "AcknowledgementRanges(none)"
    assert AcknowledgementRanges() != "none"
