from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.pipeline import offsets
from holdfast.pipeline.errors import OffsetRefused, RecordsTrimmed
from holdfast.pipeline.offsets import Ends, Range

ENDS = Ends("orders", "e1", {0: (5, 120), 1: (0, 8)})


def test_an_offset_is_flat_json_with_its_identity_and_the_same_text_each_time():
    text = json.dumps(offsets.to_offset("orders", "e1", {10: 3, 2: 1, 0: 7}))
    assert text == '{"v": 2, "queue": "orders", "epoch": "e1", "before": "", "0": 7, "2": 1, "10": 3}'
    assert offsets.positions_of(json.loads(text), "orders", "e1") == {0: 7, 2: 1, 10: 3}


@pytest.mark.parametrize(
    ("offset", "says"),
    [
        ({"v": 3, "queue": "orders", "epoch": "e1"}, "not written by this version"),
        ({"v": True, "queue": "orders", "epoch": "e1"}, "not written by this version"),
        ({"v": 1, "queue": "others", "epoch": "e1"}, "checkpoint is of queue 'others'"),
        ({"v": 1, "queue": "orders", "epoch": "e0"}, "its epoch is e1"),
        ({"v": 1, "queue": "orders", "epoch": "e1", "0": "7"}, "cannot be read"),
        ({"v": 1, "queue": "orders", "epoch": "e1", "x": 7}, "cannot be read"),
    ],
)
def test_an_offset_that_is_not_of_this_queue_is_refused_with_a_remedy(offset: dict, says: str):
    with pytest.raises(OffsetRefused, match=says) as caught:
        offsets.positions_of(offset, "orders", "e1")
    assert caught.value.remedy


prints = st.dictionaries(st.integers(0, 30), st.text("0123456789abcdef", min_size=1, max_size=16), max_size=5)


@given(st.dictionaries(st.integers(0, 30), st.integers(0, 2**40)), prints)
def test_fingerprints_come_back_from_an_offset_with_the_positions_they_are_of(positions: dict, fingerprints: dict):
    offset = json.loads(json.dumps(offsets.to_offset("orders", "e1", positions, fingerprints)))
    assert all(type(value) in (str, int) for value in offset.values())
    assert offsets.positions_of(offset, "orders", "e1") == positions
    assert offsets.fingerprints_of(offset) == fingerprints
    known = offsets.known_of(offset, "orders")
    assert known == [(p, positions[p], fingerprints[p]) for p in sorted(fingerprints) if p in positions]


def test_an_offset_of_version_1_is_still_read_and_knows_no_fingerprints():
    old = {"v": 1, "queue": "orders", "epoch": "e1", "0": 7, "1": 3}
    assert offsets.positions_of(old, "orders", "e1") == {0: 7, 1: 3}
    assert offsets.known_of(old, "orders") == []


@pytest.mark.parametrize("before", [7, None, "x", "0:", "0:zz", ",", "0:ab,"])
def test_fingerprints_that_cannot_be_read_are_refused(before: object):
    with pytest.raises(OffsetRefused, match="cannot be read"):
        offsets.fingerprints_of({"v": 2, "queue": "orders", "epoch": "e1", "before": before, "0": 7})


def test_ranges_leave_out_partitions_without_news_and_start_a_new_partition_at_0():
    start = offsets.to_offset("orders", "e1", {0: 5, 1: 8})
    end = offsets.to_offset("orders", "e1", {0: 7, 1: 8, 2: 3})
    assert offsets.ranges_between(start, end, "orders") == [Range(0, 5, 7), Range(2, 0, 3)]


def test_an_end_below_the_start_and_a_vanished_partition_are_refused():
    start = offsets.to_offset("orders", "e1", {0: 5, 1: 8})
    for end in ({0: 4, 1: 8}, {0: 5}):
        with pytest.raises(OffsetRefused, match="put back to an earlier state"):
            offsets.ranges_between(start, offsets.to_offset("orders", "e1", end), "orders")


def test_ranges_of_two_epochs_are_refused():
    with pytest.raises(OffsetRefused, match="epoch"):
        offsets.ranges_between(offsets.to_offset("q", "e1", {0: 1}), offsets.to_offset("q", "e2", {0: 2}), "q")


def test_advancing_without_a_limit_goes_to_the_end():
    start = offsets.to_offset("orders", "e1", {0: 5})
    assert offsets.advance(start, ENDS) == offsets.to_offset("orders", "e1", {0: 120, 1: 8})


def test_advancing_refuses_a_queue_that_was_created_anew_or_put_back():
    with pytest.raises(OffsetRefused, match="its epoch is e1"):
        offsets.advance(offsets.to_offset("orders", "e0", {0: 5}), ENDS)
    with pytest.raises(OffsetRefused, match="ends at 8, below the 9 already read"):
        offsets.advance(offsets.to_offset("orders", "e1", {0: 5, 1: 9}), ENDS)


def test_rows_are_shared_fairly_and_what_one_partition_does_not_need_goes_to_the_others():
    assert offsets.share({0: 0, 1: 0, 2: 4}, {0: 100, 1: 2, 2: 100}, 30) == {0: 14, 1: 2, 2: 18}


partitions = st.dictionaries(st.integers(0, 20), st.tuples(st.integers(0, 500), st.integers(0, 500)), min_size=1)


@given(partitions, st.integers(1, 3000))
def test_sharing_takes_as_many_rows_as_allowed_and_never_more_than_there_are(shape: dict, limit: int):
    since = {p: start for p, (start, _) in shape.items()}
    ends = {p: start + rows for p, (start, rows) in shape.items()}
    until = offsets.share(since, ends, limit)
    assert all(since[p] <= until[p] <= ends[p] for p in shape)
    assert sum(until[p] - since[p] for p in shape) == min(limit, sum(rows for _, rows in shape.values()))


@given(
    st.dictionaries(st.integers(0, 6), st.tuples(st.integers(0, 99), st.integers(1, 40_000)), min_size=1),
    st.integers(1, 8),
)
def test_a_plan_read_in_order_is_the_ranges_in_order_in_no_more_tasks_than_allowed(shape: dict, tasks: int):
    ranges = [Range(p, start, start + rows) for p, (start, rows) in sorted(shape.items())]
    parts = offsets.plan(ranges, tasks)
    rows = [(r.partition, at) for part in parts for r in part for at in (r.start, r.end)]
    joined: list[list[int]] = []
    for (partition, start), (_, end) in zip(rows[::2], rows[1::2], strict=True):
        if joined and joined[-1][0] == partition:
            assert joined[-1][2] == start
            joined[-1][2] = end
        else:
            joined.append([partition, start, end])
    assert [Range(*part) for part in joined] == ranges
    assert len(parts) <= tasks
    assert all(sum(r.rows for r in part) >= offsets.MIN_TASK_ROWS for part in parts[:-1])


def test_a_small_batch_is_one_task_that_reads_one_partition_after_the_other():
    assert offsets.plan([Range(0, 0, 10), Range(3, 5, 9)], 8) == [(Range(0, 0, 10), Range(3, 5, 9))]
    assert offsets.plan([], 8) == []


def test_a_large_partition_is_divided():
    assert offsets.plan([Range(0, 0, 30_000)], 2) == [(Range(0, 0, 15_000),), (Range(0, 15_000, 30_000),)]


def test_a_position_by_option_is_resolved_to_offsets():
    assert offsets.resolve("earliest", ENDS, "x") == {0: 5, 1: 0}
    assert offsets.resolve("latest", ENDS, "x") == {0: 120, 1: 8}
    assert offsets.resolve({0: 120}, ENDS, "x") == {0: 120}


@pytest.mark.parametrize(
    ("position", "error", "says"),
    [
        ({0: 121}, OffsetRefused, "partition 0 ends at 120"),
        ({7: 0}, OffsetRefused, r"partition 7 is not there \(partitions: \[0, 1\]\)"),
        ({0: 4}, RecordsTrimmed, "partition 0 begins at 5"),
    ],
)
def test_a_position_that_is_not_there_is_refused(position: dict, error: type[Exception], says: str):
    with pytest.raises(error, match=says):
        offsets.resolve(position, ENDS, "startingOffsets")
