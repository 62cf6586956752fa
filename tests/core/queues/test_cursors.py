"""Cursors of a queue. With retention and time: ``test_queue``."""

from __future__ import annotations

import pytest

from holdfast.core.commit import GroupCommit
from holdfast.core.queues.cursors import ASIDE, HANDLER, OUTBOUND, Cursors, TooManyReaders
from holdfast.core.queues.queue_records import QueueRecords
from holdfast.exceptions import ConfigurationError


class Parts:
    """The cursors of a queue with two partitions of ten records, the first two deleted."""

    def __init__(self) -> None:
        self.commit = GroupCommit()
        self.records = QueueRecords("orders", 2)
        self.records.join(self.commit, [], lambda *_: [])
        self.cursors = Cursors(self.records)
        for one in self.records.partitions:
            one.first, one.end, one.durable_end = 2, 10, 10


def test_a_new_reader_begins_at_the_first_record_of_every_partition() -> None:
    parts = Parts()
    cursor = parts.cursors.add("spark", 7.0, 1)
    assert (cursor.offsets, cursor.kind, cursor.moved_at) == ({0: 2, 1: 2}, "reader", 7.0)
    assert parts.cursors.everywhere == {"spark": cursor}


def test_one_reader_too_many_is_refused_and_the_handlers_count_as_none() -> None:
    parts = Parts()
    parts.cursors.add(HANDLER, 0.0, 1)
    parts.cursors.add("spark", 0.0, 1)
    with pytest.raises(TooManyReaders, match="has 1 readers, which is its limit"):
        parts.cursors.add("export", 0.0, 1)
    with pytest.raises(ConfigurationError, match="not a valid name"):
        parts.cursors.add("a/b", 0.0, None)


def test_an_outbound_cursor_has_one_partition_and_begins_within_it() -> None:
    parts = Parts()
    for name, start, begins in (("a", None, 2), ("b", 99, 10), ("c", 0, 2)):
        parts.cursors.add_outbound(OUTBOUND + name, 1, start)
        assert parts.cursors[OUTBOUND + name].offsets == {1: begins}
    assert parts.cursors.are_followed and len(parts.records.partitions[1].outbound) == 3


def test_a_removed_cursor_is_removed_from_the_store_in_each_of_its_partitions() -> None:
    parts = Parts()
    parts.cursors.add("spark", 0.0, None)
    parts.cursors.add_outbound(OUTBOUND + "a", 1, None)
    parts.cursors.remove("spark")
    parts.cursors.remove(OUTBOUND + "a")
    assert parts.commit.batch.cursors == {
        ("orders", 0, "spark"): None,
        ("orders", 1, "spark"): None,
        ("orders", 1, OUTBOUND + "a"): None,
    }
    assert not parts.cursors and not parts.cursors.everywhere and not parts.cursors.are_followed


@pytest.mark.parametrize("state", [{}, {"offset": "4"}, {"offset": -1}, {"offset": 11}])
def test_an_unreadable_position_is_set_aside_and_the_reader_begins_again(state: dict[str, object]) -> None:
    parts = Parts()
    assert not parts.cursors.recover("spark", 0, state)
    assert parts.cursors["spark"].offsets[0] == 2
    assert parts.commit.batch.cursors[("orders", 0, ASIDE + "spark")] == state


def test_a_position_of_a_partition_that_is_gone_is_set_aside_and_makes_no_cursor() -> None:
    parts = Parts()
    assert not parts.cursors.recover("spark", 5, {"offset": 4})
    assert "spark" not in parts.cursors


def test_unpassed_records_and_lag_count_from_the_first_record() -> None:
    parts = Parts()
    cursor = parts.cursors.add("spark", 5.0, None)
    cursor.offsets.update({0: 0, 1: 10})
    assert parts.cursors.unpassed() == {"spark": [(0, 2)]}
    shown = parts.cursors.shown(cursor, 8.0, 60.0)
    assert (shown["lag"], shown["age"], shown["idle"]) == (8, 60.0, 3.0)
    cursor.offsets[0] = 10
    assert parts.cursors.shown(cursor, 8.0, 60.0)["age"] == 0.0
