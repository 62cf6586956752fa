"""The blocking client of the data plane, against a small server: what it asks, and what it makes of each answer.

Covers client/connection.py and client/data_plane.py.
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable
from dataclasses import replace

import pytest
from fake_server import FakeServer, record

from holdfast.client.data_plane import DataPlane, Patience, read_range
from holdfast.client.errors import (
    IncompleteRead,
    OffsetRefused,
    PipelineError,
    RecordsTrimmed,
    ServerAway,
    UnknownQueue,
)
from holdfast.client.offsets import Ends, Place, Range
from holdfast.pipeline.reader.columns import BatchBuilder
from holdfast.store.records import decode_record


class Time:
    """A clock that only moves when somebody sleeps, and what is to happen then."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []
        self.on_sleep = lambda: None

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds
        self.on_sleep()

    def patience(self, seconds: float) -> Patience:
        return Patience(seconds, clock=lambda: self.now, sleep=self.sleep)


def numbers(plane: DataPlane, part: Range, patience: Patience, epoch: str = "e1") -> list[int]:
    lists = read_range(plane, "orders", epoch, part, patience)
    return [decode_record(data).message_number for records in lists for _, data in records]


def test_ends_include_the_epoch(server: FakeServer):
    server.create("or/ders", partitions=2)
    server.append("or/ders", 1, [record(1), record(2)])
    assert DataPlane(server.url).ends("or/ders") == Ends("or/ders", "e1", {0: (0, 0), 1: (0, 2)})
    assert server.requests == ["GET /queues/or%2Fders/ends"]


def test_the_next_positions_of_several_queues_take_one_request(server: FakeServer):
    for queue in ("or/ders", "returns", "other"):
        server.create(queue, partitions=2)
        server.append(queue, 1, [record(1), record(2)])
    stands = {"or/ders": Place("e1", {1: 2}), "returns": Place("e1", {0: 0}), "gone": Place("e1", {})}
    found = DataPlane(server.url).next_positions(stands, most=1, others=True)
    assert found.positions == {"or/ders": {0: 0, 1: 2}, "returns": {0: 0, 1: 1}}
    assert found.fingerprints["returns"] == {0: "", 1: server.queues["returns"].fingerprint(1, 1)}
    assert found.ends["other"] == Ends("other", "e1", {0: (0, 0), 1: (0, 2)})
    assert server.requests == ["POST /next-positions"]


def test_an_unknown_queue_is_told_with_the_nearest_one(server: FakeServer):
    plane = DataPlane(server.url)
    with pytest.raises(UnknownQueue, match="none yet"):
        plane.ends("order")
    server.create("orders")
    with pytest.raises(UnknownQueue, match="Did you mean 'orders'"):
        plane.ends("order")


_CALLS: list[Callable[[DataPlane], object]] = [
    DataPlane.queues,
    DataPlane.all_ends,
    lambda plane: plane.ends("orders"),
    lambda plane: plane.missing("orders", ""),
    lambda plane: plane.advance_cursor("orders", "me", "e1", {0: 0}),
    lambda plane: plane.offsets_at("orders", "e1", {0: 0}),
]


@pytest.mark.parametrize("call", _CALLS)
def test_a_path_in_the_url_is_told_and_not_taken_for_a_server_without_queues(
    server: FakeServer, call: Callable[[DataPlane], object]
):
    server.create("orders")
    with pytest.raises(PipelineError, match="/elsewhere is not the URL of an admin listener") as told:
        call(DataPlane(f"{server.url}/elsewhere"))
    assert told.value.remedy == "Remove the path /elsewhere from option broker"


def test_a_server_that_cannot_list_its_queues_has_no_unknown_queue(server: FakeServer):
    server.token = "secret"
    with pytest.raises(PipelineError, match="answered 401"):
        DataPlane(server.url).unknown("orders")
    server.stop()
    with pytest.raises(ServerAway):
        DataPlane(server.url).unknown("orders")


def test_a_cursor_is_made_and_moved_but_never_back(server: FakeServer):
    server.create("orders")
    plane = DataPlane(server.url)
    assert plane.cursor("orders", "a/b") is None
    assert plane.advance_cursor("orders", "a/b", "e1", {0: 12}) == {0: 12}
    assert plane.advance_cursor("orders", "a/b", "e1", {0: 3}) == {0: 12}
    assert plane.cursor("orders", "a/b") == ("e1", {0: 12})


def test_a_range_is_read_over_one_kept_connection(server: FakeServer):
    server.create("orders")
    server.append("orders", 0, [record(i) for i in range(1000)])
    plane = DataPlane(server.url)
    assert numbers(plane, Range(0, 10, 700), Time().patience(0)) == list(range(10, 700))
    connection = plane._connection
    assert numbers(plane, Range(0, 0, 10), Time().patience(0)) == list(range(10))
    assert plane._connection is connection


def test_records_come_without_the_fields_that_nobody_wants(server: FakeServer):
    server.create("orders")
    server.append("orders", 0, [record(i, headers=b"<h/>", transport=b"t") for i in range(3)])
    plane = DataPlane(server.url)
    for without in (["body"], ["body", "headers", "transport"]):
        blocks = read_range(plane, "orders", "e1", Range(0, 0, 3), Time().patience(0), (), without)
        found = [decode_record(data) for block in blocks for _, data in block]
        emptied = dict.fromkeys(without, b"")
        assert found == [replace(record(i, headers=b"<h/>", transport=b"t"), **emptied) for i in range(3)]


@pytest.mark.parametrize(
    ("names", "unused"),
    [
        ({"offset", "headers", "body"}, []),
        ({"sequence", "body"}, []),
        ({"headers"}, ["body", "transport"]),
        ({"delivered_at", "offset"}, ["body", "headers", "transport"]),
    ],
)
def test_a_reader_that_has_no_body_spares_the_wire_whatever_else_it_does_not_want(names: set[str], unused: list[str]):
    assert BatchBuilder("orders", 0, names).unused == unused


def test_a_read_that_is_cut_off_goes_on_where_it_was(server: FakeServer):
    server.create("orders")
    server.append("orders", 0, [record(i) for i in range(1000)])
    server.on_records = lambda asked: 60_000 if asked <= 2 else None
    time = Time()
    assert numbers(DataPlane(server.url), Range(0, 0, 1000), time.patience(5)) == list(range(1000))
    starts = [int(r.partition("from=")[2].partition("&")[0]) for r in server.requests]
    assert len(starts) == 3
    assert 0 == starts[0] < starts[1] < starts[2] < 1000
    assert time.slept == [0.1, 0.1]  # each read got on, so patience began anew


def test_a_read_waits_for_a_server_that_was_killed_and_comes_back(server: FakeServer):
    server.create("orders")
    server.append("orders", 0, [record(i) for i in range(1000)])
    plane = DataPlane(server.url)
    time = Time()
    lists = read_range(plane, "orders", "e1", Range(0, 0, 1000), time.patience(60))
    server.on_records = lambda asked: 100_000
    got = [offset for offset, _ in next(lists)]
    server.stop()
    server.on_records = lambda asked: None
    time.on_sleep = lambda: server.start() if len(time.slept) == 4 else None
    got += [offset for records in lists for offset, _ in records]
    assert got == list(range(1000))
    assert time.slept == pytest.approx([0.1, 0.2, 0.4, 0.8])


def test_patience_ends_with_the_reason_and_the_option_to_wait_longer(server: FakeServer):
    server.create("orders")
    server.append("orders", 0, [record(1)])
    plane = DataPlane(server.url)
    server.stop()
    time = Time()
    with pytest.raises(ServerAway, match=r"does not answer: .*tried for 5 s") as caught:
        numbers(plane, Range(0, 0, 1), time.patience(5))
    assert "awaySeconds" in caught.value.remedy
    assert sum(time.slept) == pytest.approx(5)
    assert "".join(traceback.format_exception(caught.value)).count("Traceback") == 1


def test_a_connection_the_server_closed_while_idle_is_opened_again_at_once(server: FakeServer):
    server.create("orders")
    plane = DataPlane(server.url)
    before = plane.ends("orders")
    server.stop()
    server.start()
    assert plane.ends("orders") == before


@pytest.mark.parametrize(
    ("part", "epoch", "error"),
    [
        (Range(0, 0, 5), "other", OffsetRefused),
        (Range(0, 0, 5), "e1", RecordsTrimmed),
        (Range(0, 3, 9), "e1", OffsetRefused),
    ],
)
def test_a_refused_range_is_not_tried_again(server: FakeServer, part: Range, epoch: str, error: type[PipelineError]):
    server.create("orders").firsts[0] = 3
    server.append("orders", 0, [record(i) for i in range(8)])
    with pytest.raises(error) as caught:
        numbers(DataPlane(server.url), part, Time().patience(60), epoch)
    assert caught.value.remedy
    assert len(server.requests) == 1


def test_a_server_that_sends_another_range_is_not_believed(server: FakeServer):
    server.create("orders")
    server.append("orders", 0, [record(i) for i in range(8)])
    server.records = lambda *_: (b"\0" * 16, None)  # type: ignore[method-assign]
    with pytest.raises(IncompleteRead, match="offset 0 instead of 3"):
        numbers(DataPlane(server.url), Range(0, 3, 8), Time().patience(60))


def test_a_server_that_sends_records_in_another_way_is_of_another_version(server: FakeServer):
    server.create("orders")
    server.append("orders", 0, [record(1)])
    server.media_type = "application/vnd.holdfast.records"
    with pytest.raises(
        PipelineError,
        match=r"sends records as application/vnd.holdfast.records, but this "
        r"version",
    ) as told:
        numbers(DataPlane(server.url), Range(0, 0, 1), Time().patience(60))
    assert "same version" in told.value.remedy
    assert len(server.requests) == 1


def test_an_answer_of_another_kind_of_server_is_told_as_such(server: FakeServer):
    server.create("orders")
    server.ends = lambda *_: {"hello": "world"}  # type: ignore[method-assign]
    with pytest.raises(PipelineError, match="does not understand"):
        DataPlane(server.url).ends("orders")


def test_a_server_error_counts_as_away_and_keeps_its_reason(server: FakeServer):
    from fake_server import Refusal

    server.create("orders")

    def fail(*_: object) -> None:
        raise Refusal(503, "the store is full")

    server.ends = fail  # type: ignore[assignment]
    with pytest.raises(ServerAway, match="503: the store is full"):
        DataPlane(server.url).ends("orders")


def test_a_cursor_goes_out_as_json(server: FakeServer):
    server.create("orders")
    seen = []
    server.put_cursor = lambda queue, name, body: seen.append(json.dumps(body)) or {"offsets": {}}  # type: ignore
    DataPlane(server.url).advance_cursor("orders", "spark", "e1", {1: 2, 0: 1})
    assert seen == ['{"epoch": "e1", "offsets": {"0": 1, "1": 2}}']
