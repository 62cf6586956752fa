"""Which records a limited batch admits: in another order than they were delivered, windows would lose rows."""

from __future__ import annotations

from bisect import bisect_left
from itertools import chain, pairwise

from hypothesis import given
from hypothesis import strategies as st

from holdfast.endpoint.admin.data_plane.admission import Guess, oldest, share

HOUR = 3_600_000_000
NOW = 1_790_000_000_000_000
Times = dict[int, list[int]]


def catch_up(delivered: Times, most: int, guess: Guess | None = None) -> tuple[list[list[int]], int]:
    """The times of each batch's records, and the number of questions to the server."""
    questions = 0

    guess = guess or Guess(NOW)
    at = dict.fromkeys(delivered, 0)
    ends = {one: len(times) for one, times in delivered.items()}
    batches = []
    while at != ends:
        search = oldest(at, ends, most, guess)
        try:
            probe = next(search)
            while True:
                questions += 1
                within = probe.within.items()
                probe = search.send({one: bisect_left(delivered[one], probe.time, *part) for one, part in within})
        except StopIteration as found:
            until, guess = found.value
        batches.append([time for one in at for time in delivered[one][at[one] : until[one]]])
        assert all(at[one] <= until[one] <= ends[one] for one in at)
        assert 0 < len(batches[-1]) <= most
        at = until
    return batches, questions


partitions = st.dictionaries(
    st.integers(0, 7),
    st.builds(
        lambda begin, steps: [begin + sum(steps[: n + 1]) for n in range(len(steps))],
        st.integers(NOW - 40 * HOUR, NOW),
        st.lists(st.sampled_from([0, 0, 1, 1000, 1_000_000, HOUR]), max_size=60),
    ),
    min_size=1,
)


@given(partitions, st.integers(1, 80), st.integers(0, 2 * NOW))
def test_no_batch_has_a_record_older_than_one_of_an_earlier_batch(delivered: Times, most: int, begin: int) -> None:
    batches, _ = catch_up(delivered, most, Guess(begin))
    assert sorted(time for batch in batches for time in batch) == sorted(chain.from_iterable(delivered.values()))
    for before, after in pairwise(batches):
        assert max(before) <= min(after)
        assert len(before) >= most - most // 16


@given(partitions, st.integers(1, 80), st.randoms())
def test_a_clock_that_was_set_back_costs_order_and_no_record(delivered: Times, most: int, chance: object) -> None:
    for times in delivered.values():
        chance.shuffle(times)  # type: ignore[attr-defined]
    batches, _ = catch_up(delivered, most)
    assert sorted(time for batch in batches for time in batch) == sorted(chain.from_iterable(delivered.values()))


def test_a_backlog_in_one_partition_is_read_before_newer_records_of_the_others() -> None:
    old = list(range(NOW - 10 * HOUR, NOW - 2 * HOUR, HOUR // 100))
    new = list(range(NOW - HOUR // 10, NOW, HOUR // 1000))
    batches, _ = catch_up({0: old, 1: new, 2: new}, 100)
    assert [len(set(batch) & set(old)) for batch in batches[:8]] == [len(batch) for batch in batches[:8]]


def test_where_one_partition_alone_has_records_no_time_is_asked_for() -> None:
    batches, questions = catch_up({0: list(range(100)), 1: []}, 40)
    assert ([len(batch) for batch in batches], questions) == ([40, 40, 20], 0)


def test_a_batch_needs_a_few_probes() -> None:
    delivered = {one: list(range(NOW - (one + 1) * HOUR, NOW, 40_000)) for one in range(4)}
    batches, questions = catch_up(delivered, 10_000)
    assert questions <= 20 + 4 * len(batches)
    # records of one commit have one time
    delivered = {one: [NOW + n // 200 * 9_973 for n in range(4_000)] for one in range(4)}
    batches, questions = catch_up(delivered, 20)
    assert questions <= 6 * len(batches)


def test_rows_are_shared_fairly_and_unused_shares_go_to_other_partitions():
    assert share({0: 0, 1: 0, 2: 4}, {0: 100, 1: 2, 2: 100}, 30) == {0: 14, 1: 2, 2: 18}


@given(st.lists(st.integers(0, 9), min_size=1, max_size=12), st.integers(1, 14))
def test_no_partition_waits_for_ever_while_others_grow_faster_than_they_are_read(starts: list[int], limit: int):
    """Also where a batch may have fewer rows than there are partitions."""
    since = dict(enumerate(starts))
    at = dict(since)
    for _ in range(3 * len(since)):
        at = share(at, {p: position + limit for p, position in at.items()}, limit)
    assert [at[p] - since[p] for p in since] == [3 * limit] * len(since)


shapes = st.dictionaries(st.integers(0, 20), st.tuples(st.integers(0, 500), st.integers(0, 500)), min_size=1)


@given(shapes, st.integers(1, 3000))
def test_sharing_takes_as_many_rows_as_allowed_and_never_more_than_there_are(shape: dict, limit: int):
    since = {p: start for p, (start, _) in shape.items()}
    ends = {p: start + rows for p, (start, rows) in shape.items()}
    until = share(since, ends, limit)
    assert all(since[p] <= until[p] <= ends[p] for p in shape)
    assert sum(until[p] - since[p] for p in shape) == min(limit, sum(rows for _, rows in shape.values()))
