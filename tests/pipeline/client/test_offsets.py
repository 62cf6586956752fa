"""Offsets of readers, and ranges between them: how they are written, compared and divided.

Covers client/offsets.py.
"""

from __future__ import annotations

import json
import random
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.client import offsets
from holdfast.client.errors import OffsetRefused
from holdfast.client.offsets import Ends, Place, Places, Range, parse
from holdfast.endpoint.admin.data_plane.admission import share

ENDS = Ends("orders", "e1", {0: (5, 120), 1: (0, 8)})


def of(queue: str, epoch: str, **positions: int) -> Places:
    """Where a stream stands in one queue: ``p0=7``."""
    return Places({queue: Place(epoch, {int(name[1:]): at for name, at in positions.items()})})


# --- what Spark keeps -------------------------------------------------------------------------------------------------


def test_an_offset_is_flat_json_with_its_identity_and_the_same_text_each_time():
    places = Places(
        {"returns": Place("e7", {0: 4}), "orders": Place("e1", {10: 3, 2: 1, 0: 7}, {0: "9f"}, {2: 1})}, skipped=6
    )
    text = json.dumps(places.to_json())
    assert text == (
        '{"v": 3, "skipped": 6, "orders/epoch": "e1", "orders/before": "0:9f", "orders/begins": "2:1", '
        '"orders/0": 7, "orders/2": 1, "orders/10": 3, "returns/epoch": "e7", "returns/0": 4}'
    )
    assert parse(json.loads(text)) == places


@pytest.mark.parametrize(
    "offset",
    [
        '{"v": 1, "queue": "orders", "epoch": "e1", "0": 7, "1": 3}',
        '{"v": 2, "queue": "orders", "epoch": "e1", "before": "", "0": 7, "1": 3}',
    ],
)
def test_an_offset_of_an_older_version_is_of_one_queue_and_still_read(offset: str):
    assert parse(json.loads(offset)) == of("orders", "e1", p0=7, p1=3)


def test_the_fingerprints_of_version_2_are_kept():
    old = '{"v": 2, "queue": "orders", "epoch": "e1", "before": "0:9f3c,1:77e0", "0": 1200, "1": 1180}'
    place = parse(json.loads(old)).queues["orders"]
    assert place.known == [(0, 1200, "9f3c"), (1, 1180, "77e0")]


@pytest.mark.parametrize(
    ("offset", "says"),
    [
        ({"v": 4, "orders/epoch": "e1"}, "not written by this version"),
        ({"v": True, "orders/epoch": "e1"}, "not written by this version"),
        ({"orders/0": 4}, "not written by this version"),
        ({"v": 1, "epoch": "e1", "0": 7}, "cannot be read"),
        ({"v": 1, "queue": "orders", "epoch": "e1", "0": "7"}, "cannot be read"),
        ({"v": 2, "queue": "orders", "epoch": "e1", "x": 7}, "cannot be read"),
        ({"v": 2, "queue": "orders", "epoch": 1, "0": 7}, "cannot be read"),
        ({"v": 2, "queue": "orders", "epoch": "e1", "begins": "0:1", "0": 7}, "cannot be read"),
        ({"v": 3, "orders/0": 7}, "cannot be read"),
        ({"v": 3, "orders/epoch": "e1", "orders/0": -1}, "cannot be read"),
        ({"v": 3, "orders/epoch": "e1", "orders/x": 1}, "cannot be read"),
        ({"v": 3, "orders/epoch": "e1", "orders/begins": "0:ab"}, "cannot be read"),
        ({"v": 3, "orders/epoch": "e1", "0": 1}, "cannot be read"),
        ({"v": 3, "skipped": -1}, "cannot be read"),
        ({"v": 3, "skipped": "1"}, "cannot be read"),
    ],
)
def test_what_is_no_offset_is_refused_with_a_remedy(offset: dict, says: str):
    with pytest.raises(OffsetRefused, match=says) as caught:
        parse(offset)
    assert caught.value.remedy


@pytest.mark.parametrize("before", [7, None, "x", "0:", "0:zz", ",", "0:ab,"])
def test_fingerprints_that_cannot_be_read_are_refused(before: object):
    with pytest.raises(OffsetRefused, match="cannot be read"):
        parse({"v": 3, "orders/epoch": "e1", "orders/before": before, "orders/0": 7})


numbers = st.integers(0, 2**40)
prints = st.text("0123456789abcdef", min_size=1, max_size=16)
names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8)
places_of_one = st.builds(
    Place,
    st.text(max_size=8),
    st.dictionaries(st.integers(0, 30), numbers, max_size=4),
    st.dictionaries(st.integers(0, 30), prints, max_size=3),
    st.dictionaries(st.integers(0, 30), numbers, max_size=3),
)


@given(st.builds(Places, st.dictionaries(names, places_of_one, max_size=3), numbers))
def test_whatever_queues_are_called_their_offset_is_flat_and_comes_back(places: Places):
    text = json.loads(json.dumps(places.to_json()))
    assert all(type(value) in (str, int) for value in text.values())
    assert parse(text) == places
    assert json.dumps(parse(text).to_json()) == json.dumps(text)


# --- what lies between ------------------------------------------------------------------------------------------------


def test_ranges_leave_out_partitions_without_news_and_start_a_new_partition_at_0():
    start, end = of("orders", "e1", p0=5, p1=8), of("orders", "e1", p0=7, p1=8, p2=3)
    assert offsets.ranges_between(start, end) == [("orders", Range(0, 5, 7)), ("orders", Range(2, 0, 3))]


def test_a_batch_begins_where_its_end_says_so():
    start = of("orders", "e1", p0=5)
    end = Places({"new": Place("e9", {0: 12, 1: 3}, {}, {0: 10}), "orders": Place("e1", {0: 90}, {}, {0: 80})})
    expected = [("new", Range(0, 10, 12)), ("new", Range(1, 0, 3)), ("orders", Range(0, 80, 90))]
    assert offsets.ranges_between(start, end) == expected


def test_an_early_end_a_lost_partition_and_a_wrong_beginning_are_refused():
    start = of("orders", "e1", p0=5, p1=8)
    for end in (
        of("orders", "e1", p0=4, p1=8),
        of("orders", "e1", p0=5),
        Places({"orders": Place("e1", {0: 9, 1: 9}, {}, {0: 4})}),
        Places({"orders": Place("e1", {0: 9, 1: 9}, {}, {0: 10})}),
    ):
        with pytest.raises(OffsetRefused, match="restored to an earlier state"):
            offsets.ranges_between(start, end)


def test_ranges_of_two_epochs_are_refused():
    with pytest.raises(OffsetRefused, match="its epoch is e2, the checkpoint's is e1"):
        offsets.ranges_between(of("q", "e1", p0=1), of("q", "e2", p0=2))


def test_advancing_without_a_limit_goes_to_the_end():
    end, lost = offsets.advance(of("orders", "e1", p0=5), {"orders": ENDS}, {})
    assert (end, lost) == (of("orders", "e1", p0=120, p1=8), [])


def test_advancing_refuses_a_recreated_or_restored_queue():
    with pytest.raises(OffsetRefused, match="its epoch is e1"):
        offsets.advance(of("orders", "e0", p0=5), {"orders": ENDS}, {})
    with pytest.raises(OffsetRefused, match="ends at 8, below the position 9 of the query"):
        offsets.advance(of("orders", "e1", p0=5, p1=9), {"orders": ENDS}, {})


def test_deleted_unread_records_are_reported_and_counted_in_the_offset():
    start = Places(of("orders", "e1", p0=2).queues, skipped=10)
    end, lost = offsets.advance(start, {"orders": ENDS}, {}, partial(share, max_rows=4))
    assert lost == [("orders", Range(0, 2, 5))]
    assert end == Places({"orders": Place("e1", {0: 7, 1: 2}, {}, {0: 5})}, skipped=13)
    assert offsets.ranges_between(start, end) == [("orders", Range(0, 5, 7)), ("orders", Range(1, 0, 2))]
    assert offsets.has_moved(start, end)


def test_a_queue_that_joins_without_a_row_is_no_batch():
    start = of("orders", "e1", p0=120, p1=8)
    empty = Ends("new", "e9", {0: (4, 4)})
    end, _ = offsets.advance(start, {"orders": ENDS, "new": empty}, {"new": {0: 4}})
    assert not offsets.has_moved(start, end)
    full = Ends("new", "e9", {0: (4, 5)})
    end, _ = offsets.advance(start, {"orders": ENDS, "new": full}, {"new": {0: 4}})
    assert offsets.has_moved(start, end)


@pytest.mark.parametrize("seed", range(150))
def test_batches_of_several_queues_give_every_record_once_or_count_it_as_skipped(seed: int):
    """Queues grow, lose their oldest records and appear; every batch is what its two offsets say, also from JSON."""
    chance = random.Random(seed)
    counts = {queue: chance.randint(1, 4) for queue in chance.sample("abc", chance.randint(1, 3))}
    places = Places({})
    read: dict[tuple[str, int], list[int]] = {}
    bounds = {(queue, p): [0, 0] for queue, count in counts.items() for p in range(count)}
    for _ in range(6):
        for one in bounds.values():
            one[1] += chance.choice((0, 1, 40))
            one[0] = min(one[1], one[0] + chance.choice((0, 0, 5, 60)))
        appeared = {queue for queue in counts if chance.random() < 0.7} | places.queues.keys()
        there = {
            queue: Ends(queue, "e", {p: (bounds[queue, p][0], bounds[queue, p][1]) for p in range(counts[queue])})
            for queue in appeared
        }
        joining = {queue: ends.firsts for queue, ends in there.items() if queue not in places.queues}
        most = chance.choice((1, 30, 500))
        end, lost = offsets.advance(places, there, joining, partial(share, max_rows=most))
        assert end.skipped == places.skipped + sum(part.rows for _, part in lost)
        before, after = (parse(json.loads(json.dumps(one.to_json()))) for one in (places, end))
        ranges = offsets.ranges_between(before, after)
        assert sum(part.rows for _, part in ranges) <= most
        assert all(bounds[queue, part.partition][0] <= part.start for queue, part in ranges)
        if offsets.has_moved(before, after):
            places = after
            for queue, part in [*lost, *ranges]:
                read.setdefault((queue, part.partition), []).extend(range(part.start, part.end))
        else:
            assert not [*ranges, *lost]
    for (queue, partition), numbers_read in read.items():
        stands = places.queues[queue].positions[partition]
        assert numbers_read == list(range(stands - len(numbers_read), stands))  # dense, in order, to where it stands


def test_stored_and_deleted_ranges_are_distinguished():
    ranges = [("orders", Range(0, 2, 9)), ("orders", Range(0, 0, 3)), ("orders", Range(1, 0, 4))]
    left, gone = offsets.split_trimmed(ranges, {"orders": ENDS})
    assert left == [("orders", Range(0, 5, 9)), ("orders", Range(1, 0, 4))]
    assert gone == [("orders", Range(0, 2, 5)), ("orders", Range(0, 0, 3))]


# --- the sharing of work ----------------------------------------------------------------------------------------------


@given(
    st.dictionaries(
        st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 4)),
        st.tuples(st.integers(0, 99), st.integers(1, 90_000)),
        min_size=1,
    ),
    st.none() | st.integers(1, 8),
    st.integers(1, 20),
)
def test_a_plan_in_order_has_the_ranges_in_order_in_the_tasks_asked_for(shape: dict, tasks: int | None, least: int):
    least = least if tasks is None else min(least, tasks)
    ranges = [(queue, Range(p, start, start + rows)) for (queue, p), (start, rows) in sorted(shape.items())]
    parts = offsets.plan(ranges, tasks, least)
    joined: list[tuple[str, Range]] = []
    for queue, part in (one for task in parts for one in task):
        if joined and (joined[-1][0], joined[-1][1].partition) == (queue, part.partition):
            assert joined[-1][1].end == part.start
            joined[-1] = (queue, Range(part.partition, joined[-1][1].start, part.end))
        else:
            joined.append((queue, part))
    assert joined == ranges
    sizes = [sum(part.rows for _, part in task) for task in parts]
    total = sum(sizes)
    assert min(least, total) <= len(parts) <= (tasks or max(least, 4, total // offsets.TASK_ROWS + 1))
    assert max(sizes) - min(sizes) <= 1
    assert len(parts) <= least or min(sizes) >= offsets.MIN_TASK_ROWS


def test_a_small_batch_is_one_task_that_reads_one_partition_after_the_other():
    ranges = [("orders", Range(0, 0, 10)), ("orders", Range(3, 5, 9))]
    assert offsets.plan(ranges, 8) == offsets.plan(ranges, None) == [tuple(ranges)]
    assert offsets.plan([], 8) == []


@pytest.mark.parametrize(
    ("rows", "tasks"), [(1, 1), (9_999, 1), (10_000, 2), (20_000, 4), (200_000, 4), (400_000, 8), (10_000_000, 200)]
)
def test_without_a_number_tasks_go_by_the_rows_alone(rows: int, tasks: int):
    assert len(offsets.plan([("orders", Range(0, 0, rows))], None)) == tasks
    assert len(offsets.plan([("orders", Range(0, 0, 20 * rows))], None, ease=20)) == tasks


def test_a_large_partition_is_divided():
    parts = offsets.plan([("orders", Range(0, 0, 30_000))], 2)
    assert parts == [(("orders", Range(0, 0, 15_000)),), (("orders", Range(0, 15_000, 30_000)),)]


# --- places by option -------------------------------------------------------------------------------------------------


def test_a_position_by_option_is_resolved_to_offsets():
    assert offsets.resolve("earliest", ENDS, "x") == {0: 5, 1: 0}
    assert offsets.resolve("latest", ENDS, "x") == {0: 120, 1: 8}
    assert offsets.resolve({0: 120}, ENDS, "x") == {0: 120}
    assert offsets.resolve({0: -2, 1: -1}, ENDS, "x") == {0: 5, 1: 8}
    assert offsets.resolve({0: 4}, ENDS, "x") == {0: 4}  # deleted, which is its reader's matter


@pytest.mark.parametrize(
    ("position", "says"), [({0: 121}, "partition 0 ends at 120"), ({7: 0}, r"partition 7.*partitions are 0, 1")]
)
def test_a_position_that_is_not_there_is_refused(position: dict, says: str):
    with pytest.raises(OffsetRefused, match=says) as caught:
        offsets.resolve(position, ENDS, "startingOffsets")
    assert caught.value.remedy
