"""Streams of several queues, streams that wait, and what is deleted before it is read: as Spark calls them.

Covers pipeline/reader/bounds.py and pipeline/reader/stream.py.
"""

from __future__ import annotations

import json
import logging
import pickle
import re
import threading
from contextlib import suppress
from typing import Any

import pytest
from fake_server import FakeServer, record
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from holdfast.client.data_plane import DataPlane
from holdfast.client.errors import OffsetRefused, PipelineError, RecordsTrimmed, UnknownQueue
from holdfast.client.offsets import parse
from holdfast.pipeline.reader.options import ReadOptions
from holdfast.pipeline.reader.stream import WsrmStreamReader
from holdfast.pipeline.source import WsrmDataSource

ALL = ReadAllAvailable()
Row = tuple[str, int, int]


def given(server: FakeServer, **options: str) -> dict[str, str]:
    usual = {"broker": server.url, "waitSeconds": "0", "awaySeconds": "0", "reader": "spark"}
    return CaseInsensitiveDict({**usual, **options})


def stream(server: FakeServer, **options: str) -> WsrmStreamReader:
    made = WsrmDataSource(options=given(server, **options))
    return made.streamReader(made.schema())


def rows(reader: Any, partitions: Any) -> list[Row]:
    found = []
    for partition in partitions:
        task = pickle.loads(pickle.dumps(reader))
        for made in task.read(pickle.loads(pickle.dumps(partition))):
            columns = [made.column(made.schema.names.index(n)) for n in ("queue", "partition", "offset")]
            found += list(zip(*(column.to_pylist() for column in columns), strict=True))
    return found


def next_batch(reader: WsrmStreamReader, start: dict[str, Any], limit: Any = ALL) -> tuple[dict[str, Any], list[Row]]:
    """As Spark does it, which keeps offsets as JSON."""
    end = json.loads(json.dumps(reader.latestOffset(start, limit)))
    return end, rows(reader, reader.partitions(start, end))


def batch(server: FakeServer, **options: str) -> list[Row]:
    made = WsrmDataSource(options=given(server, **options))
    reader = made.reader(made.schema())
    return rows(reader, reader.partitions())


def of(queue: str, partition: int, *offsets: int) -> list[Row]:
    return [(queue, partition, offset) for offset in range(*offsets)]


@pytest.fixture
def shop(server: FakeServer) -> FakeServer:
    for queue, epoch in (("orders", "e1"), ("orders-late", "e2"), ("returns", "e3")):
        server.create(queue, partitions=2, epoch=epoch)
        server.append(queue, 0, [record(i) for i in range(10)])
    server.append("orders", 1, [record(i) for i in range(3)])
    return server


# --- several queues ---------------------------------------------------------------------------------------------------


def test_several_queues_are_one_table_and_each_row_says_whose_it_is(shop: FakeServer):
    expected = [*of("orders", 0, 10), *of("orders", 1, 3), *of("returns", 0, 10)]
    assert batch(shop, queue="returns,orders") == expected
    assert batch(shop, queuePattern="orders.*") == [*expected[:13], *of("orders-late", 0, 10)]
    narrowed = batch(shop, subscribe="orders,returns", endingOffsets='{"orders": {"0": 2}}', partitions="0")
    assert narrowed == [*of("orders", 0, 2), *of("returns", 0, 10)]


def test_a_stream_of_several_queues_shares_its_rows_and_keeps_a_cursor_in_each(shop: FakeServer):
    reader = stream(shop, queue="orders,returns", maxRowsPerBatch="9")
    start = reader.initialOffset()
    found: list[Row] = []
    while True:
        end, some = next_batch(reader, start, ReadMaxRows(9))
        if end == start:
            break
        assert len(some) <= 9
        found += some
        reader.commit(end)
        start = end
    assert sorted(found) == [*of("orders", 0, 10), *of("orders", 1, 3), *of("returns", 0, 10)]
    assert [shop.queues[queue].cursors for queue in ("orders", "returns")] == [
        {"spark": {"0": 10, "1": 3}},
        {"spark": {"0": 10, "1": 0}},
    ]
    assert shop.queues["orders-late"].cursors == {}


def test_a_queue_without_news_is_not_asked_about_nor_its_cursor_moved(shop: FakeServer):
    reader = stream(shop, queue="orders,returns")
    end, _ = next_batch(reader, reader.initialOffset())
    reader.commit(end)
    shop.append("orders", 0, [record(10)])
    shop.requests.clear()
    end, _ = next_batch(reader, end)
    reader.commit(end)
    assert not [one for one in shop.requests if "returns" in one]


def test_a_queue_that_appears_joins_at_its_beginning_and_is_protected_from_then_on(shop: FakeServer):
    reader = stream(shop, queuePattern="orders.*", startingOffsets="latest")
    start = reader.initialOffset()
    assert next_batch(reader, start) == (start, [])
    shop.create("orders-new", epoch="e9")
    assert next_batch(reader, start) == (start, []), "empty, and no batch of no rows"
    assert shop.queues["orders-new"].cursors == {"spark": {"0": 0}}
    shop.append("orders-new", 0, [record(i) for i in range(4)])
    end, found = next_batch(reader, start)
    assert found == of("orders-new", 0, 4)
    again = stream(shop, queuePattern="orders.*")
    shop.append("orders-new", 0, [record(4)])
    assert rows(again, again.partitions(start, end)) == found
    assert next_batch(again, end)[1] == of("orders-new", 0, 4, 5)


def test_a_queue_that_joins_begins_at_its_first_record_also_in_a_repeated_batch(shop: FakeServer):
    reader = stream(shop, queue="orders")
    end, _ = next_batch(reader, reader.initialOffset())
    shop.queues["returns"].firsts[0] = 4
    more = stream(shop, queue="orders,returns")
    later, found = next_batch(more, end)
    assert found == of("returns", 0, 4, 10)
    assert (later["returns/begins"], "skipped" in later) == ("0:4", False)
    again = stream(shop, queue="orders,returns")
    assert rows(again, again.partitions(end, later)) == found


def test_a_queue_that_was_read_under_the_same_name_before_goes_on_where_it_stood(shop: FakeServer):
    shop.queues["returns"].cursors["spark"] = {"0": 7, "1": 0}
    reader = stream(shop, queue="orders")
    end, _ = next_batch(reader, reader.initialOffset())
    assert next_batch(stream(shop, queue="orders,returns"), end)[1] == of("returns", 0, 7, 10)


def test_a_queue_that_is_not_read_any_more_is_refused_unless_that_is_borne(
    shop: FakeServer, caplog: pytest.LogCaptureFixture
):
    reader = stream(shop, queue="orders,returns")
    end, _ = next_batch(reader, reader.initialOffset())
    shop.append("orders", 0, [record(10)])
    with pytest.raises(
        OffsetRefused, match="checkpoint has a position in 'returns', but the query reads only 'orders'"
    ) as caught:
        stream(shop, queue="orders").latestOffset(end, ALL)
    assert "failOnDataLoss=false" in caught.value.remedy
    later, found = next_batch(stream(shop, queue="orders", failOnDataLoss="false"), end)
    assert found == of("orders", 0, 10, 11)
    assert set(parse(later).queues) == {"orders"}
    assert "queue returns is dropped" in caplog.text


def test_a_queue_that_is_gone_from_the_server_is_an_error_unless_that_is_borne(shop: FakeServer):
    reader = stream(shop, queuePattern="orders.*")
    end, _ = next_batch(reader, reader.initialOffset())
    del shop.queues["orders-late"]
    with pytest.raises(UnknownQueue, match="no queue 'orders-late'"):
        reader.latestOffset(end, ALL)
    shop.append("orders", 1, [record(3)])
    assert next_batch(stream(shop, queuePattern="orders.*", failOnDataLoss="false"), end)[1] == of("orders", 1, 3, 4)


def test_a_pattern_that_matches_nothing_is_told(shop: FakeServer, caplog: pytest.LogCaptureFixture):
    with pytest.raises(UnknownQueue, match="queuePattern 'order'"):
        batch(shop, queuePattern="order")
    reader = stream(shop, queuePattern="invoices.*")
    start = reader.initialOffset()
    assert "no record has been read yet" in caplog.text
    assert next_batch(reader, start) == (start, [])
    shop.create("invoices")
    shop.append("invoices", 0, [record(1)])
    assert next_batch(reader, start)[1] == of("invoices", 0, 1)


def test_one_of_several_queues_that_is_not_there_is_named_with_the_nearest(shop: FakeServer):
    with pytest.raises(UnknownQueue, match="no queue 'return'") as caught:
        batch(shop, queue="orders,return")
    assert caught.value.remedy == "Did you mean 'returns'?"


def test_a_literal_checkpoint_of_one_queue_still_works_when_another_joins(shop: FakeServer):
    old = json.loads('{"v": 2, "queue": "orders", "epoch": "e1", "before": "", "0": 8, "1": 3}')
    older = json.loads('{"v": 1, "queue": "orders", "epoch": "e1", "0": 8, "1": 3}')
    last = json.loads('{"v": 2, "queue": "orders", "epoch": "e1", "before": "", "0": 9, "1": 3}')
    for start in (old, older):
        end, found = next_batch(stream(shop, queue="orders"), start)
        assert found == of("orders", 0, 8, 10)
        assert end["v"] == 3
        reader = stream(shop, queue="orders")
        assert rows(reader, reader.partitions(start, last)) == of("orders", 0, 8, 9), "a batch that was under way"
        reader.commit(last)
        both = next_batch(stream(shop, queue="orders,returns"), start)[1]
        assert both == [*of("orders", 0, 8, 10), *of("returns", 0, 10)]
    assert shop.queues["orders"].cursors == {"spark": {"0": 9, "1": 3}}
    done = json.loads('{"v": 2, "queue": "orders", "epoch": "e1", "before": "", "0": 10, "1": 3}')
    assert stream(shop, queue="orders").latestOffset(done, ALL) is done, "nothing new: the same text"


def test_available_now_ends_where_all_queues_ended_when_the_run_began(shop: FakeServer):
    reader = stream(shop, queue="orders,returns", minRowsPerBatch="1000")
    reader.prepareForTriggerAvailableNow()
    start = reader.initialOffset()
    shop.append("returns", 0, [record(10)])
    end, found = next_batch(reader, start)
    assert len(found) == 23
    assert reader.latestOffset(end, ALL) == end


# --- waiting for a batch to be full -----------------------------------------------------------------------------------


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def waiting(server: FakeServer, clock: Clock, **options: str) -> WsrmStreamReader:
    options = {"minRowsPerBatch": "30", "maxTriggerDelay": "60s", "startingOffsets": "latest", **options}
    return WsrmStreamReader(ReadOptions.parse(given(server, **options)), clock)


@pytest.mark.parametrize("queues", ["orders", "orders,returns"])
def test_a_batch_waits_until_it_is_full_or_its_first_rows_have_waited_long_enough(shop: FakeServer, queues: str):
    clock = Clock()
    reader = waiting(shop, clock, queue=queues)
    start = reader.initialOffset()
    clock.now += 1000
    assert reader.latestOffset(start, ALL) is start
    shop.append("orders", 0, [record(i) for i in range(29)])
    for _ in range(3):
        assert reader.latestOffset(start, ALL) is start
        clock.now += 19
    shop.append("orders", 0, [record(29)])
    end, found = next_batch(reader, start)
    assert len(found) == 30, "full"
    shop.append("orders", 0, [record(30)])
    assert reader.latestOffset(end, ALL) is end
    clock.now += 59
    assert reader.latestOffset(end, ALL) is end
    clock.now += 1
    assert len(next_batch(reader, end)[1]) == 1, "waited"


def test_a_batch_that_waits_asks_the_server_to_hold_its_answer_back(shop: FakeServer):
    clock = Clock()
    reader = waiting(shop, clock, queue="orders", waitSeconds="0.01")
    start = reader.initialOffset()
    shop.append("orders", 0, [record(10)])
    assert reader.latestOffset(start, ALL) is start
    assert reader.latestOffset(start, ALL) is start
    clock.now += 59.995
    assert reader.latestOffset(start, ALL) is start
    asked = [(one["least"], round(one["wait"], 3)) for one in shop.nexts]
    assert asked == [(1, 0.01), (30, 0.01), (30, 0.005)], "no longer than its rows may wait"


@pytest.mark.parametrize(
    "which", [{"queue": "orders"}, {"queue": "orders,returns"}, {"queuePattern": "orders|returns"}]
)
def test_a_batch_takes_one_request_beside_its_records_and_the_cursors(shop: FakeServer, which: dict[str, str]):
    reader = stream(shop, **which)
    start = reader.initialOffset()
    batches = 0
    shop.requests.clear()
    while (end := next_batch(reader, start, ReadMaxRows(2))[0]) != start:
        reader.commit(end)
        start, batches = end, batches + 1
    asked = [one for one in shop.requests if "/records" not in one and "/cursors/" not in one]
    assert batches > 5
    asked.remove("GET /nodes")  # once: the server is no node of a cluster
    assert asked == ["POST /next-positions"] * (batches + 1), "and one that found nothing"


def test_several_queues_are_waited_for_by_one_request(shop: FakeServer):
    reader = stream(shop, queue="orders,returns", waitSeconds="60", startingOffsets="latest")
    start = reader.initialOffset()
    shop.requests.clear()
    later = threading.Timer(0.05, shop.append, ("returns", 0, [record(10)]))
    later.start()
    _, found = next_batch(reader, start)
    later.join()
    assert found == of("returns", 0, 10, 11)
    assert shop.requests[0] == "POST /next-positions"
    assert len(shop.nexts) == 1


# --- what is deleted before it is read --------------------------------------------------------------------------------

LOST = "queue orders partition 0 offsets 2 to 4"


def test_records_deleted_unread_end_the_query_before_a_row_is_read(shop: FakeServer):
    reader = stream(shop, queue="orders", startingOffsets='{"0": 2}')
    start = reader.initialOffset()
    shop.queues["orders"].firsts[0] = 5
    with pytest.raises(RecordsTrimmed, match=f"3 records that this stream has not read are deleted: {LOST}") as caught:
        reader.latestOffset(start, ALL)
    assert "failOnDataLoss" in caught.value.remedy


def test_skipped_records_are_counted_in_the_offset_and_a_repeat_has_the_same_rows(
    shop: FakeServer, caplog: pytest.LogCaptureFixture
):
    options = {"queue": "orders", "startingOffsets": '{"0": 2, "1": 3}', "failOnDataLoss": "false"}
    reader = stream(shop, **options)
    start = reader.initialOffset()
    shop.queues["orders"].firsts[0] = 5
    end, found = next_batch(reader, start)
    assert found == of("orders", 0, 5, 10)
    assert f"3 records that this stream has not read are deleted, and skipped: {LOST}" in caplog.text
    assert end["skipped"] == 3
    again = stream(shop, **options)
    assert rows(again, again.partitions(start, end)) == found
    shop.append("orders", 0, [record(i) for i in range(10)])
    shop.queues["orders"].firsts[0] = 14
    later, found = next_batch(again, end)
    assert found == of("orders", 0, 14, 20)
    assert later["skipped"] == 3 + 4


def test_records_deleted_before_a_batch_is_repeated_are_counted_by_the_next(
    shop: FakeServer, caplog: pytest.LogCaptureFixture
):
    options = {"queue": "orders", "failOnDataLoss": "false"}
    reader = stream(shop, **options)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    shop.queues["orders"].firsts[0] = 4
    again = stream(shop, **options)
    assert rows(again, again.partitions(start, end)) == [*of("orders", 0, 4, 10), *of("orders", 1, 3)]
    assert re.search("4 records that a repeated batch has to read.*offsets 0 to 3", caplog.text)
    shop.append("orders", 0, [record(10)])
    later, found = next_batch(again, end)
    assert (found, later["skipped"]) == (of("orders", 0, 10, 11), 4)


def test_a_batch_with_only_deleted_records_has_no_rows_and_the_stream_continues(shop: FakeServer):
    reader = stream(shop, queue="orders", startingOffsets='{"1": 3}', failOnDataLoss="false", minRowsPerBatch="50")
    start = reader.initialOffset()
    shop.queues["orders"].firsts[0] = 10
    end, found = next_batch(reader, start)
    assert (found, end["skipped"]) == ([], 10)
    assert reader.latestOffset(end, ALL) == end


@pytest.mark.parametrize("bears", [True, False])
@pytest.mark.parametrize("which", [{"queue": "orders"}, {"queuePattern": "orders"}])
def test_records_deleted_during_an_available_now_run_are_reported_before_a_batch(
    shop: FakeServer, caplog: pytest.LogCaptureFixture, bears: bool, which: dict[str, str]
):
    """A run over a long backlog, and a retention that overtakes it."""
    reader = stream(shop, **which, failOnDataLoss=str(not bears).lower())
    reader.prepareForTriggerAvailableNow()
    start, found = next_batch(reader, reader.initialOffset(), ReadMaxRows(2))
    shop.append("orders", 0, [record(i) for i in range(5)])
    shop.queues["orders"].firsts[0] = 8
    if not bears:
        with pytest.raises(RecordsTrimmed, match="7 records that this stream has not read are deleted"):
            reader.latestOffset(start, ALL)
        return
    end, more = next_batch(reader, start)
    assert [*found, *more] == [
        *of("orders", 0, 0, 1),
        *of("orders", 1, 0, 1),
        *of("orders", 0, 8, 10),
        *of("orders", 1, 1, 3),
    ]
    assert end["skipped"] == 7
    assert "7 records that this stream has not read are deleted, and skipped" in caplog.text
    shop.queues["orders"].firsts[0] = 15
    assert reader.latestOffset(end, ALL) == end, "what is beyond the run's end is the next run's"
    shop.create("orders", partitions=2, epoch="another")
    with pytest.raises(OffsetRefused, match="is another, not"):
        reader.latestOffset(end, ALL)


@pytest.mark.parametrize("bears", [True, False])
def test_what_is_deleted_while_a_task_reads_is_skipped_in_its_log_or_fails_it(
    shop: FakeServer, caplog: pytest.LogCaptureFixture, bears: bool
):
    reader = stream(shop, queue="orders", failOnDataLoss=str(not bears).lower())
    start = reader.initialOffset()
    partitions = reader.partitions(start, reader.latestOffset(start, ALL))
    shop.queues["orders"].firsts[0] = 6
    if bears:
        assert rows(reader, partitions) == [*of("orders", 0, 6, 10), *of("orders", 1, 3)]
        assert "6 records that this task has to read are deleted, and skipped" in caplog.text
        end = reader.latestOffset(start, ALL)
        assert "deleted during or after a batch that read them:" in caplog.text, "in the driver's log too"
        assert end["skipped"] == 6
    else:
        with caplog.at_level(logging.WARNING), pytest.raises(RecordsTrimmed, match="records below 6"):
            rows(reader, partitions)


def test_a_read_of_deleted_records_is_refused_unless_tolerated(shop: FakeServer, caplog: pytest.LogCaptureFixture):
    shop.queues["orders"].firsts[0] = 5
    options = {"queue": "orders", "startingOffsets": '{"0": 2}'}
    with pytest.raises(RecordsTrimmed, match=f"are requested are deleted: {LOST}"):
        batch(shop, **options)
    with pytest.raises(RecordsTrimmed, match=f"are requested are deleted: {LOST}"):
        stream(shop, **options).initialOffset()
    options["failOnDataLoss"] = "false"
    assert batch(shop, **options, partitions="0") == of("orders", 0, 5, 10)
    assert parse(stream(shop, **options).initialOffset()).queues["orders"].positions == {0: 5, 1: 0}
    assert caplog.text.count(f"are requested are deleted, and skipped: {LOST}") == 2
    assert batch(shop, queue="orders", startingOffsets="earliest", partitions="0") == of("orders", 0, 5, 10)


# --- times ------------------------------------------------------------------------------------------------------------

FIRST = 1_700_000_000.25
"""When the record with number 0 was received, see ``fake_server.record``."""


def at(number: float) -> str:
    return str(round((FIRST + number) * 1000))


def test_a_read_goes_from_a_time_to_a_time_of_delivery(shop: FakeServer):
    assert batch(shop, queue="orders", startingTimestamp=at(2), endingTimestamp=at(5)) == [
        *of("orders", 0, 2, 5),
        *of("orders", 1, 2, 3),
    ]
    per = {"startingOffsetsByTimestamp": f'{{"0": {at(8)}}}', "endingOffsetsByTimestamp": f'{{"1": {at(1)}}}'}
    assert batch(shop, queue="orders", **per) == [*of("orders", 0, 8, 10), *of("orders", 1, 0, 1)]
    assert batch(shop, queue="orders", startingTimestamp=at(100)) == []
    with pytest.raises(OffsetRefused, match="startingOffsetsByTimestamp names partition 7"):
        batch(shop, queue="orders", startingOffsetsByTimestamp='{"7": 1}')


def test_a_stream_begins_at_a_time_once_and_for_all(shop: FakeServer):
    reader = stream(shop, queue="orders", startingTimestamp=at(7.5))
    start = reader.initialOffset()
    assert parse(start).queues["orders"].positions == {0: 8, 1: 3}
    assert stream(shop, queue="orders", startingTimestamp=at(1)).initialOffset() == start


def test_by_time_of_arrival_a_read_is_exact_and_a_stream_has_no_less(server: FakeServer):
    """Numbers 3 and 4 came early, and were held until 2 was there, at 5."""
    server.create("orders")
    held = [record(3, received_at=FIRST + 3, released_at=FIRST + 5), record(4, released_at=FIRST + 5)]
    server.append("orders", 0, [record(0), record(1), record(2, received_at=FIRST + 5), *held, record(6)])
    found = batch(server, queue="orders", timestampType="received", startingTimestamp=at(3), endingTimestamp=at(5))
    assert found == of("orders", 0, 3, 5)
    assert batch(server, queue="orders", startingTimestamp=at(3), endingTimestamp=at(5)) == []
    reader = stream(server, queue="orders", timestampType="received", startingTimestamp=at(4))
    assert next_batch(reader, reader.initialOffset())[1] == of("orders", 0, 2, 6)


def test_a_server_that_is_too_old_to_find_times_is_told(shop: FakeServer):
    shop.finds_times = False
    with pytest.raises(PipelineError, match="cannot find offsets by time: it is older") as caught:
        batch(shop, queue="orders", startingTimestamp=at(2))
    assert "or give offsets" in caught.value.remedy
    with pytest.raises(UnknownQueue, match="no queue 'order'"):
        batch(shop, queue="order", startingTimestamp=at(2))


# --- narrowing --------------------------------------------------------------------------------------------------------


def test_a_read_is_narrowed_by_sequence_and_action(server: FakeServer):
    server.create("orders")
    server.append("orders", 0, [record(i, sequence=f"urn:s{i % 2}", action=f"urn:a{i % 3}") for i in range(12)])
    assert batch(server, queue="orders", sequence="urn:s1") == of("orders", 0, 1, 12, 2)
    assert batch(server, queue="orders", sequence="urn:s1", action="urn:a0") == of("orders", 0, 3, 12, 6)
    assert batch(server, queue="orders", action="urn:none") == []
    reader = stream(server, queue="orders", action="urn:a2")
    assert next_batch(reader, reader.initialOffset())[1] == of("orders", 0, 2, 12, 3)


def test_of_a_sequence_that_the_server_knows_only_its_partition_is_read(server: FakeServer):
    server.create("orders", partitions=2)
    for partition in (0, 1):
        server.append("orders", partition, [record(i, sequence=f"urn:s{partition}") for i in range(4)])
    for homes, asked in ({}, {"/0/", "/1/"}), ({"urn:s1": 1}, {"/1/"}):
        server.homes = homes
        server.requests.clear()
        assert batch(server, queue="orders", sequence="urn:s1") == of("orders", 1, 4)
        read = [one for one in server.requests if "/records" in one]
        assert {part for part in ("/0/", "/1/") for one in read if part in one} == asked
    assert batch(server, queue="orders", sequence="urn:s1", partitions="0") == []


def test_partitions_that_are_not_there_are_refused(shop: FakeServer):
    with pytest.raises(OffsetRefused, match="option partitions names 5") as caught:
        batch(shop, queue="orders", partitions="0,5")
    assert "0, 1" in caught.value.remedy


# --- versions ---------------------------------------------------------------------------------------------------------


def test_a_server_of_another_data_plane_is_refused_by_its_version(shop: FakeServer):
    shop.version = 2
    for queues in ("orders", "orders,returns"):
        with pytest.raises(PipelineError, match="uses version 2 of the data plane, but this client uses 1"):
            batch(shop, queue=queues)


def test_an_executor_with_another_version_of_holdfast_fails_with_a_remedy(
    shop: FakeServer, monkeypatch: pytest.MonkeyPatch
):
    made = WsrmDataSource(options=given(shop, queue="orders"))
    for reader in (made.reader(made.schema()), stream(shop, queue="orders")):
        sent = pickle.dumps(reader)
        with monkeypatch.context() as patch:
            patch.setattr("holdfast.pipeline.reader.tasks.__version__", "99.1")
            with pytest.raises(PipelineError, match=r"driver runs Holdfast .*, and this executor 99\.1"):
                pickle.loads(sent)


@pytest.mark.every(5)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"maxRowsPerBatch": "3"},
        {"maxRowsPerBatch": "3", "minRowsPerBatch": "3", "maxTriggerDelay": "0"},
        {"minPartitions": "5"},
        {"tasks": "1", "failOnDataLoss": "false"},
        {"body": "false", "headers": "true", "minPartitions": "2"},
        {"columns": "queue,partition,offset", "maxRowsPerBatch": "3"},
    ],
)
@pytest.mark.parametrize("which", [{"queue": "orders"}, {"queue": "returns,orders"}, {"queuePattern": "orders.*"}])
@pytest.mark.parametrize("available_now", [True, False])
def test_whatever_the_options_every_row_comes_once(
    shop: FakeServer, which: dict[str, str], options: dict[str, str], available_now: bool
):
    reader = stream(shop, **which, **options)
    if available_now:
        reader.prepareForTriggerAvailableNow()
    limit, start = reader.getDefaultReadLimit(), reader.initialOffset()
    found: list[Row] = []
    for _ in range(40):
        end, some = next_batch(reader, start, limit)
        if end == start:
            break
        assert len(reader.partitions(start, end)) >= min(int(options.get("minPartitions", 1)), len(some))
        again = stream(shop, **which, **options)
        assert rows(again, again.partitions(start, end)) == some, "repeated after a crash"
        found += some
        start = end
    assert sorted(found) == sorted(batch(shop, **which))


def test_a_dropped_cursor_with_deleted_records_stops_only_intolerant_queries(shop: FakeServer):
    end, _ = next_batch(reader := stream(shop, queue="orders"), reader.initialOffset())
    del shop.queues["orders"].cursors["spark"]
    shop.append("orders", 0, [record(i) for i in range(10, 20)])
    shop.queues["orders"].firsts[0] = 15
    with pytest.raises(RecordsTrimmed):
        stream(shop, queue="orders").commit(end)
    for _ in range(2):  # also started again
        bearing = stream(shop, queue="orders", failOnDataLoss="false")
        later, found = next_batch(bearing, end)
        assert found == of("orders", 0, 15, 20)
        bearing.commit(end)
    bearing.commit(later)
    assert shop.queues["orders"].cursors == {"spark": {"0": 20, "1": 3}}


def test_a_tolerant_query_creates_no_cursor_in_a_deleted_queue(shop: FakeServer):
    end, _ = next_batch(reader := stream(shop, queuePattern="orders.*"), reader.initialOffset())
    del shop.queues["orders-late"]
    shop.append("orders", 0, [record(10)])
    with pytest.raises(UnknownQueue):
        stream(shop, queuePattern="orders.*").commit(end)
    for _ in range(2):
        bearing = stream(shop, queuePattern="orders.*", failOnDataLoss="false")
        later, found = next_batch(bearing, end)
        assert found == of("orders", 0, 10, 11)
        bearing.commit(end)
    bearing.commit(later)
    assert shop.queues["orders"].cursors["spark"]["0"] == 11


def test_a_repeated_batch_continues_without_a_deleted_queue_if_tolerated(shop: FakeServer):
    reader = stream(shop, queuePattern="orders.*")
    start = reader.initialOffset()
    end, _ = next_batch(reader, start)
    del shop.queues["orders-late"]
    again = stream(shop, queuePattern="orders.*", failOnDataLoss="false")
    assert rows(again, again.partitions(start, end)) == [*of("orders", 0, 10), *of("orders", 1, 3)]
    shop.append("orders", 0, [record(10)])
    assert next_batch(again, end)[0]["skipped"] == 10
    with pytest.raises(PipelineError):
        rows(unforgiving := stream(shop, queuePattern="orders.*"), unforgiving.partitions(start, end))


def test_a_queue_that_appears_while_the_first_batch_is_away_joins_at_its_beginning(shop: FakeServer):
    reader = stream(shop, queuePattern="orders.*", startingOffsets="latest")
    start = reader.initialOffset()
    shop.append("orders", 0, [record(10)])
    end, found = next_batch(reader, start)  # Spark has noted the end, and dies
    shop.create("orders-new", epoch="e9")
    shop.append("orders-new", 0, [record(i) for i in range(4)])
    again = stream(shop, queuePattern="orders.*", startingOffsets="latest")
    assert rows(again, again.partitions(again.initialOffset(), end)) == found == of("orders", 0, 10, 11)
    assert next_batch(again, end)[1] == of("orders-new", 0, 4)


@pytest.mark.every(3)
@pytest.mark.parametrize("how", [{"queuePattern": "orders(-.*)?"}, {"queue": "orders,orders-late"}])
@pytest.mark.parametrize(
    "start",
    [
        {"startingOffsets": "latest"},
        {"startingOffsets": '{"orders": {"0": 4}, "orders-late": {"0": 6, "1": -1}}'},
        {"startingTimestamp": "1700000004000"},
        {},
    ],
)
def test_a_first_start_that_dies_anywhere_begins_every_queue_at_one_time(
    shop: FakeServer, monkeypatch: pytest.MonkeyPatch, start: dict[str, str], how: dict[str, str]
):
    """Before there is a cursor a restart is a first start; from then on each queue begins where it was to begin."""
    asked = DataPlane._request
    queues = ("orders", "orders-late")
    allowed, is_whole = 0, False
    while not is_whole:
        reader, left = f"dies-at-{allowed}", allowed
        options = {**how, **start, "reader": reader}

        def request(plane: DataPlane, *args: Any, **named: Any) -> Any:
            nonlocal left
            left -= 1
            if left < 0:
                raise MemoryError
            return asked(plane, *args, **named)

        monkeypatch.setattr(DataPlane, "_request", request)
        with suppress(MemoryError):
            stream(shop, **options).initialOffset()
            is_whole = True
        monkeypatch.setattr(DataPlane, "_request", asked)
        before = begins(shop, reader)
        at_first = begins(shop, reader, options)
        for queue in queues:  # time goes on
            shop.append(queue, 0, [record(99)])
        late = f"orders-{allowed}"
        if "queuePattern" in how:
            shop.create(late, epoch="late")
            shop.append(late, 0, [record(0)])
        found = parse(stream(shop, **options).initialOffset())
        expected = at_first if before else begins(shop, reader, options)
        assert {queue: found.queues[queue].positions for queue in queues} == expected, allowed
        if before and "queuePattern" in how:
            assert found.queues[late].positions == {0: 0}
        assert [name for one in shop.queues.values() for name in one.cursors if "begins" in name] == []
        shop.queues.pop(late, None)
        allowed += 1
    assert allowed > 6


def begins(shop: FakeServer, reader: str, options: dict[str, str] | None = None) -> Any:
    """Whether a reader has a cursor; with options, where it would begin now."""
    if options is None:
        return any(reader in queue.cursors for queue in shop.queues.values())
    fresh = parse(stream(shop, **{**options, "reader": f"{reader}-fresh"}).initialOffset())
    for queue in shop.queues.values():
        queue.cursors.pop(f"{reader}-fresh", None)
    return {queue: place.positions for queue, place in fresh.queues.items() if queue in ("orders", "orders-late")}


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_queue_that_returns_is_continued_and_another_of_its_name_read_anew(shop: FakeServer, is_restarted: bool):
    options = {"queuePattern": "orders.*", "failOnDataLoss": "false"}
    reader, found = stream(shop, **options), []
    start = reader.initialOffset()

    def read() -> None:
        nonlocal reader, start
        end, some = next_batch(reader, start)
        again = stream(shop, **options)
        assert rows(again, again.partitions(start, end)) == some
        reader.commit(end)
        found.extend(some)
        start = end
        if is_restarted:
            reader = stream(shop, **options)

    for number in range(10, 14):
        shop.append("orders", 0, [record(number)])
        if number in (11, 13):  # it goes, before the batch that has it was said to be done
            end, some = next_batch(reader, start)
            found += some
            start = end
            late = shop.queues.pop("orders-late")
            shop.append("orders", 1, [record(number)])
            read()
            assert start["orders-late/left"] == 1
            shop.queues["orders-late"] = late
        shop.append("orders-late", 0, [record(number)])
        read()
        assert "orders-late/left" not in start
    assert sorted(found) == [*of("orders", 0, 14), *of("orders", 1, 5), *of("orders-late", 0, 14)]
    del shop.queues["orders-late"]
    shop.append("orders", 0, [record(14)])
    read()
    shop.create("orders-late", partitions=2, epoch="e4")
    shop.append("orders-late", 0, [record(0), record(1)])
    found.clear()
    read()
    assert found == of("orders-late", 0, 2)


def test_a_queue_that_returns_with_other_records_below_its_position_is_refused(shop: FakeServer):
    reader = stream(shop, queuePattern="orders.*", failOnDataLoss="false")
    end, _ = next_batch(reader, reader.initialOffset())
    late = shop.queues.pop("orders-late")
    shop.append("orders", 0, [record(10)])
    end, _ = next_batch(reader, end)
    late.partitions[0][5:] = late.partitions[0][:8]
    shop.queues["orders-late"] = late
    with pytest.raises(OffsetRefused, match="older copy"):
        reader.latestOffset(end, ALL)


@pytest.mark.parametrize("start", [{"startingOffsets": "latest"}, {"startingTimestamp": "9999999999999"}])
def test_a_run_of_what_is_available_begins_at_the_end_also_while_writers_go_on(shop: FakeServer, start: dict[str, str]):
    reader = stream(shop, queue="orders", **start)
    reader.prepareForTriggerAvailableNow()  # which Spark does first
    shop.append("orders", 0, [record(i) for i in range(10, 15)])
    begin = reader.initialOffset()
    shop.append("orders", 0, [record(15)])
    assert next_batch(reader, begin) == (begin, [])
    again = stream(shop, queue="orders", **start)
    again.prepareForTriggerAvailableNow()
    assert next_batch(again, begin)[1] == of("orders", 0, 15, 16)


def test_of_two_queries_that_use_one_name_the_one_that_lags_is_told_once(
    shop: FakeServer, caplog: pytest.LogCaptureFixture
):
    slow, quick = stream(shop, queue="orders"), stream(shop, queue="orders")
    start = slow.initialOffset()
    assert quick.initialOffset() == start
    first, _ = next_batch(slow, start, ReadMaxRows(4))
    second, _ = next_batch(slow, first, ReadMaxRows(4))
    slow.commit(first)
    end, _ = next_batch(quick, start)
    with caplog.at_level(logging.WARNING):
        caplog.clear()
        quick.commit(end)
        assert not caplog.messages
        for offset in (first, second, end):
            slow.commit(offset)
    (told,) = caplog.messages
    assert "is at partition 0 offset 10, but this query is at partition 0 offset 5: another query uses the name" in told
