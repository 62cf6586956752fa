"""Retention: its words, how it finds what is too old with few looks, and how it knows what records take."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.queues.retention import DAY, MARKS, RECORD_BYTES, RetentionPolicy, Search, Sizes, floors_by_size
from holdfast.core.records import Record
from holdfast.exceptions import ConfigurationError


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("7d", RetentionPolicy(7 * DAY)),
        ("12h", RetentionPolicy(DAY / 2)),
        ("90m, 10GB", RetentionPolicy(5400.0, 10**10)),
        ("2w", RetentionPolicy(14 * DAY)),
        ("none", RetentionPolicy(None, None)),
        ("none 500MB", RetentionPolicy(None, 500_000_000)),
        ("10gb", RetentionPolicy(7 * DAY, 10**10)),
        ("7d readers none", RetentionPolicy(7 * DAY, None, None, None)),
        ("1h readers 3d 2TB", RetentionPolicy(3600.0, None, 3 * DAY, 2 * 10**12)),
    ],
)
def test_words_say_how_long_and_how_much(text: str, policy: RetentionPolicy) -> None:
    assert RetentionPolicy.parse(text) == policy
    assert RetentionPolicy.parse(str(policy)) == policy


@pytest.mark.parametrize(
    "text", ["", "7", "d", "-1d", "0d", "7 d", "a week", "7d readers readers 3d", "7d readers", "0.1B", "nan d"]
)
def test_words_that_say_nothing_are_refused_with_what_would(text: str) -> None:
    with pytest.raises(ConfigurationError, match="not a retention") as caught:
        RetentionPolicy.parse(text)
    assert "7d" in caught.value.remedy


def record(at: float, size: int = 10) -> Record:
    return Record("urn:s", 1, "urn:a", b"x" * size, at)


def through(search: Search, look: Callable[[int], float | None]) -> tuple[int, float | None]:
    """What it finds."""
    while (probe := search.probe) is not None:
        search.take(look(probe))
    return search.found, search.at


@given(st.lists(st.integers(0, 50), max_size=300), st.integers(0, 60), st.integers(0, 300))
def test_what_is_too_old_is_found_as_if_every_record_had_been_looked_at(times, than, start) -> None:
    times.sort()
    start = min(start, len(times))
    found, at = through(Search(start, len(times), float(than)), lambda offset: float(times[offset]))
    expected = next((n for n in range(start, len(times)) if times[n] >= than), len(times))
    assert found == expected
    assert at == (times[found] if found < len(times) else None)


@pytest.mark.parametrize("count", [1, 1000, 10**6, 10**9])
def test_few_records_are_looked_at_however_many_there_are(count: int) -> None:
    looked: list[int] = []

    def look(offset: int) -> float:
        looked.append(offset)
        return float(offset)

    for than in (0, 1, count // 3, count):
        looked.clear()
        assert through(Search(0, count, float(than)), look)[0] == than
        assert len(looked) <= 2 * count.bit_length() + 2


@given(st.integers(0, 90), st.integers(0, 90), st.integers(0, 8))
def test_what_cannot_be_read_is_not_let_go_of(start, than, readable) -> None:
    looks = iter(range(readable))
    search = Search(min(start, 90), 90, float(than))
    found = through(search, lambda offset: None if next(looks, None) is None else float(offset))
    assert found in {(search.start, None), (max(start, than), float(max(start, than))), (90, None)}
    assert readable or found == (search.start, None)


@given(st.lists(st.integers(0, 5000), min_size=1, max_size=200), st.integers(0, 200), st.integers(1, 20_000))
def test_sizes_are_counted_from_the_first_record_on_to_one_mark(bodies, first, spacing) -> None:
    sizes = Sizes(0, spacing)
    for offset, size in enumerate(bodies):
        sizes.add(offset, record(float(offset), size))
    first = min(first, len(bodies))
    sizes.cut(first)
    rest = sum(size + RECORD_BYTES for size in bodies[first:])
    assert rest <= sizes.held <= rest + spacing + 5000 + RECORD_BYTES
    again = Sizes(first, spacing, sizes.to_state())
    assert again.marks == sizes.marks
    assert again.measured <= len(bodies)


def test_marks_stay_few_however_much_a_reader_holds_back() -> None:
    sizes = Sizes(0, 1)
    for offset in range(20_000):
        sizes.add(offset, record(float(offset)))
    assert len(sizes.marks) <= 4 * MARKS + 1
    assert sizes.held == 20_000 * (10 + RECORD_BYTES)


@pytest.mark.parametrize(
    "state",
    [
        None, {}, {"marks": 1}, {"marks": []}, {"marks": [1]}, {"marks": [[1, 2]]}, {"marks": [["a", 0, 0.0]]},
        {"marks": [[0, 0, 0.0], [0, 5, 1.0]]}, {"marks": [[-1, 0, 0.0]]}, {"marks": [[True, 0, 0.0]]},
    ],
)  # fmt: skip
def test_marks_that_cannot_be_understood_are_left_aside(state: object) -> None:
    assert Sizes(7, 100, state).marks == [(7, 0, 0.0)]


def test_the_oldest_goes_first_whichever_partition_it_is_in() -> None:
    parts = [Sizes(0, 1), Sizes(0, 1)]
    for offset in range(10):
        parts[0].add(offset, record(float(offset), 800))
        parts[1].add(offset, record(float(5 + offset), 800))
    assert floors_by_size(parts, 20_000, [0, 0]) == [0, 0]
    assert floors_by_size(parts, 15_000, [0, 0]) == [5, 0]
    assert floors_by_size(parts, 10_000, [0, 0]) in ([8, 2], [7, 3])
    assert floors_by_size(parts, 1, [0, 0]) == [9, 10] or floors_by_size(parts, 1, [0, 0]) == [10, 9]


@given(
    st.lists(st.lists(st.floats(0, 1_000), max_size=8), min_size=1, max_size=3),
    st.integers(1, 3_000),
)
def test_what_is_left_has_the_bytes_of_the_limit_however_the_clock_jumped(times: list[list[float]], limit: int) -> None:
    """A clock that was set back gives a partition's last records an earlier time than those before them."""
    parts = [Sizes(0, 1) for _ in times]
    for part, ats in zip(parts, times, strict=True):
        for offset, at in enumerate(ats):
            part.add(offset, record(at, 100))
    there = sum(part.held for part in parts)
    for part, floor in zip(parts, floors_by_size(parts, limit, [0] * len(parts)), strict=True):
        part.cut(floor)
    assert sum(part.held for part in parts) >= min(limit, there)


def test_what_goes_in_any_case_does_not_count_against_what_a_reader_protects() -> None:
    parts = [Sizes(0, 1), Sizes(0, 1)]
    for offset in range(4):
        parts[0].add(offset, record(10.0 + offset, 800))
        parts[1].add(offset, record(float(offset), 800))
    assert floors_by_size(parts, 6_000, [0, 0]) == [0, 2]
    assert floors_by_size(parts, 6_000, [2, 0]) == [0, 0]
    assert floors_by_size(parts, 5_000, [2, 0]) == [0, 1]


@given(
    st.lists(st.tuples(st.integers(0, 1), st.floats(0, 1_000), st.booleans(), st.integers(0, 8)), max_size=30),
    st.integers(1, 3_000),
    st.integers(1, 400),
)
def test_what_was_let_go_of_earlier_does_not_count_as_held(
    steps: list[tuple[int, float, bool, int]], limit: int, spacing: int
) -> None:
    """A cursor holds back what was let go of, and a start anew forgets when it was delivered (seed 75234)."""
    parts, expired = [Sizes(0, spacing), Sizes(0, spacing)], [0, 0]
    ends = [0, 0]
    for index, at, is_counted_anew, behind in steps:
        parts[index].add(ends[index], record(at, 100))
        ends[index] += 1
        if is_counted_anew:  # without the times of what lies below
            parts[index] = Sizes(first := max(0, expired[index] - behind), spacing)
            for offset in range(first, ends[index]):
                parts[index].add(offset, record(at, 100))
        there = sum(ends) - sum(expired)
        floors = floors_by_size(parts, limit, expired)
        expired = [max(floor, start) for floor, start in zip(floors, expired, strict=True)]
        left = sum(ends) - sum(expired)
        assert left == there or left * (100 + RECORD_BYTES) >= limit
