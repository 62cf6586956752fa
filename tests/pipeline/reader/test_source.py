"""The readers as Spark calls them, in its order, without Spark.

Covers pipeline/reader/batches.py, pipeline/reader/tasks.py and pipeline/source.py.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import pickle
import sys
from typing import Any

import pytest
from fake_server import FakeServer, record
from pyspark.sql.datasource import CaseInsensitiveDict, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import LongType, StructType

from holdfast.client.errors import OffsetRefused, RecordsTrimmed, ServerAway, UnknownQueue
from holdfast.client.offsets import Place, Places, parse
from holdfast.exceptions import ConfigurationError
from holdfast.pipeline.reader.batches import WsrmReader
from holdfast.pipeline.reader.stream import WsrmStreamReader
from holdfast.pipeline.source import WsrmDataSource


def source(server: FakeServer, **options: str) -> WsrmDataSource:
    given = {
        "broker": server.url,
        "queue": "orders",
        "waitSeconds": "0",
        "awaySeconds": "0",
        "tasks": "2",
        "reader": "spark",
    }
    return WsrmDataSource(options=CaseInsensitiveDict({**given, **options}))


def stream(server: FakeServer, **options: str) -> WsrmStreamReader:
    made = source(server, **options)
    return made.streamReader(made.schema())


def batch(server: FakeServer, **options: str) -> WsrmReader:
    made = source(server, **options)
    return made.reader(made.schema())


def offset(server: FakeServer, reader: str = "spark", **positions: int) -> dict[str, Any]:
    """As the source makes it of what the server holds."""
    at = {int(key[1:]): value for key, value in positions.items()}
    prints = {partition: server.queues["orders"].fingerprint(partition, position) for partition, position in at.items()}
    place = Place("e1", at, {one: text for one, text in prints.items() if text})
    return Places({"orders": place}, reader=reader).to_json()


def rows(reader: WsrmStreamReader | WsrmReader, partitions: Any) -> list[tuple[int, int, int]]:
    """Position and number of every row, read as tasks do: with what was pickled."""
    found = []
    for partition in partitions:
        task = pickle.loads(pickle.dumps(reader))
        for made in task.read(pickle.loads(pickle.dumps(partition))):
            columns = [made.column(made.schema.names.index(n)) for n in ("partition", "offset", "message_number")]
            found += list(zip(*(column.to_pylist() for column in columns), strict=True))
    return found


@pytest.fixture
def orders(server: FakeServer) -> FakeServer:
    server.create("orders", partitions=2)
    server.append("orders", 0, [record(i) for i in range(120)])
    server.append("orders", 1, [record(1000 + i) for i in range(8)])
    return server


TRUTH = [(0, i, i) for i in range(120)] + [(1, i, 1000 + i) for i in range(8)]


def test_the_format_is_called_wsrm_and_options_decide_its_columns(orders: FakeServer):
    assert WsrmDataSource.name() == "wsrm"
    assert source(orders).schema().names[-1] == "body"
    assert source(orders, body="false", headers="true").schema().names[-1] == "headers"


def test_a_users_schema_is_refused_because_the_columns_are_fixed(orders: FakeServer):
    with pytest.raises(ConfigurationError, match="requested struct<body:bigint>"):
        source(orders).reader(StructType().add("body", LongType()))


def test_a_batch_read_gives_every_row_once_and_leaves_no_cursor(orders: FakeServer):
    reader = batch(orders)
    assert rows(reader, reader.partitions()) == TRUTH
    assert orders.queues["orders"].cursors == {}


def test_a_batch_read_is_narrowed_by_offsets(orders: FakeServer):
    reader = batch(orders, startingOffsets='{"0": 110, "1": 2}', endingOffsets='{"0": 115}')
    assert rows(reader, reader.partitions()) == TRUTH[110:115] + TRUTH[122:]


@pytest.mark.parametrize("starting", ["latest", '{"0": -1}'])
def test_a_batch_that_begins_at_the_end_is_refused(orders: FakeServer, starting: str):
    with pytest.raises(ConfigurationError, match="reads nothing") as caught:
        batch(orders, startingOffsets=starting)
    assert caught.value.remedy


def test_a_batch_whose_end_lies_before_its_beginning_is_refused(orders: FakeServer):
    with pytest.raises(OffsetRefused, match="partition 0 has the range 110 to 15"):
        batch(orders, startingOffsets='{"0": 110}', endingOffsets='{"0": 15}').partitions()
    assert batch(orders, startingOffsets='{"0": 15, "1": 8}', endingOffsets='{"0": 15}').partitions() == []
    orders.queues["orders"].firsts[0] = 20
    assert batch(orders, endingOffsets='{"0": 15, "1": 0}').partitions() == []  # deleted, and not asked for by number


def test_a_batch_ends_where_it_was_planned_to_end(orders: FakeServer):
    reader = batch(orders)
    partitions = reader.partitions()
    orders.append("orders", 0, [record(5000)])
    assert rows(reader, partitions) == TRUTH


def test_sparks_placeholder_for_no_partitions_has_no_rows(orders: FakeServer):
    assert rows(batch(orders), [InputPartition(None)]) == []


def test_the_first_offset_comes_from_the_cursor_and_stays_the_same_after_a_crash(orders: FakeServer):
    orders.queues["orders"].firsts[0] = 5
    assert stream(orders).initialOffset() == offset(orders, p0=5, p1=0)
    assert orders.queues["orders"].cursors == {"spark": {"0": 5, "1": 0}}
    orders.append("orders", 0, [record(5000)])
    assert stream(orders, startingOffsets="latest").initialOffset() == offset(orders, p0=5, p1=0)


def test_readers_of_two_names_start_on_their_own(orders: FakeServer):
    assert stream(orders, startingOffsets="latest", reader="a").initialOffset() == offset(orders, "a", p0=120, p1=8)
    assert stream(orders, startingOffsets='{"0": 7}', reader="b").initialOffset() == offset(orders, "b", p0=7, p1=0)


def test_a_checkpoint_goes_on_under_its_own_readers_name_only(orders: FakeServer):
    start = stream(orders).latestOffset(stream(orders).initialOffset(), ReadMaxRows(10))
    with pytest.raises(OffsetRefused, match="has the name 'spark', but option reader is 'other'") as caught:
        stream(orders, reader="other").latestOffset(start, ReadAllAvailable())
    assert "Set the option reader back to 'spark'" in caught.value.remedy
    assert "other" not in orders.queues["orders"].cursors
    old = {name: value for name, value in start.items() if name != "reader"}
    assert stream(orders).latestOffset(old, ReadAllAvailable()) == offset(orders, p0=120, p1=8)


def test_going_on_at_a_cursor_is_said(orders: FakeServer, caplog: pytest.LogCaptureFixture):
    stream(orders).initialOffset()
    assert caplog.text == ""
    stream(orders).initialOffset()
    assert "continues where reader spark of queue orders stopped" in caplog.text


def test_a_restart_on_many_partitions_names_a_few_of_them(server: FakeServer, caplog: pytest.LogCaptureFixture):
    server.create("orders", partitions=128)
    for partition in range(128):
        server.append("orders", partition, [record(number) for number in range(partition % 4)])
    reader = stream(server)
    start = reader.initialOffset()
    reader.commit(reader.latestOffset(start, ReadAllAvailable()))
    stream(server).initialOffset()
    (told,) = caplog.messages
    assert "stopped: partition 1 offset 1, partition 2 offset 2, partition 3 offset 3" in told
    assert told.endswith("more; offset 0 in the other 32 partitions'")
    assert len(told) < 500


def test_a_stream_in_sparks_order_of_calls_reads_every_row_once(orders: FakeServer):
    reader = stream(orders, maxRowsPerBatch="50")
    limit = reader.getDefaultReadLimit()
    start = reader.initialOffset()
    found: list[tuple[int, int, int]] = []
    while (end := reader.latestOffset(start, limit)) != start:
        assert json.loads(json.dumps(end)) == end
        reader.commit(start)
        part = rows(reader, reader.partitions(start, end))
        assert len(part) <= 50
        found += part
        start = end
    assert sorted(found) == TRUTH
    assert start == offset(orders, p0=120, p1=8)
    assert parse(reader.reportLatestOffset() or {}).queues["orders"].positions == {0: 120, 1: 8}
    stands = orders.queues["orders"].cursors["spark"]
    assert (stands["0"] > 80, stands["1"]) == (True, 0)  # one batch behind, and the oldest were read first


def test_the_limit_of_the_call_counts_not_the_options(orders: FakeServer):
    reader = stream(orders, maxRowsPerBatch="50")
    start = reader.initialOffset()
    assert reader.latestOffset(start, ReadAllAvailable()) == offset(orders, p0=120, p1=8)
    assert reader.latestOffset(start, ReadMaxRows(2)) == offset(orders, p0=2, p1=0)


def test_available_now_ends_where_the_queue_ended_when_the_run_began(orders: FakeServer):
    reader = stream(orders)
    reader.prepareForTriggerAvailableNow()
    start = reader.initialOffset()
    orders.append("orders", 0, [record(5000)])
    end = reader.latestOffset(start, ReadMaxRows(1000))
    assert end == offset(orders, p0=120, p1=8)
    assert orders.queues["orders"].cursors["spark"] == {"0": 0, "1": 0}
    assert reader.latestOffset(end, ReadMaxRows(1000)) == end
    assert orders.queues["orders"].cursors["spark"] == {"0": 120, "1": 8}  # no later batch of this run would move it
    assert stream(orders).latestOffset(end, ReadMaxRows(1000)) == offset(orders, p0=121, p1=8)


def test_a_batch_that_is_repeated_is_cut_the_same_way_and_reads_the_same_rows(orders: FakeServer):
    start, end = offset(orders, p0=100, p1=0), offset(orders, p0=110, p1=8)
    before = stream(orders).partitions(start, end)
    orders.append("orders", 0, [record(5000)])
    before_it = len(orders.requests)
    again = stream(orders).partitions(start, end)
    assert again == before
    assert orders.requests[before_it:] == ["GET /nodes"]  # the cut needs no answer of the server
    assert rows(stream(orders), again) == TRUTH[100:110] + TRUTH[120:]


def test_a_partition_that_appears_is_read_from_its_beginning(orders: FakeServer):
    reader = stream(orders)
    start = offset(orders, p0=120, p1=8)
    orders.append("orders", 2, [record(1), record(2)])
    end = reader.latestOffset(start, ReadMaxRows(100))
    assert end == offset(orders, p0=120, p1=8, p2=2)
    assert rows(reader, reader.partitions(start, end)) == [(2, 0, 1), (2, 1, 2)]


def test_a_recreated_queue_is_refused_with_a_remedy(orders: FakeServer):
    reader = stream(orders)
    start = reader.initialOffset()
    orders.queues["orders"].epoch = "e2"
    for call in (
        lambda: reader.latestOffset(start, ReadAllAvailable()),
        lambda: reader.commit(start),
        lambda: rows(reader, reader.partitions(start, offset(orders, p0=3))),
    ):
        with pytest.raises(OffsetRefused, match="e2") as caught:
            call()
        assert "new checkpoint" in caught.value.remedy


def test_a_cursor_of_an_earlier_queue_is_refused_with_the_remedy(orders: FakeServer):
    reader = stream(orders)
    orders.cursor = lambda *_: {"epoch": "e0", "offsets": {"0": 3}}  # type: ignore[method-assign]
    with pytest.raises(OffsetRefused, match="its epoch is e0, the queue's is e1") as caught:
        reader.initialOffset()
    assert f"holdfast cursors delete --admin {orders.url} orders spark" in caught.value.remedy


def test_a_queue_that_was_put_back_is_refused(orders: FakeServer):
    with pytest.raises(OffsetRefused, match="ends at 120, below the position 121 of the query"):
        stream(orders).latestOffset(offset(orders, p0=121, p1=8), ReadAllAvailable())


def test_trimmed_records_fail_the_task_they_are_not_skipped(orders: FakeServer):
    reader = stream(orders)
    partitions = reader.partitions(offset(orders, p0=0), offset(orders, p0=10))
    orders.queues["orders"].firsts[0] = 5
    with pytest.raises(RecordsTrimmed, match="records below 5 are trimmed"):
        rows(reader, partitions)


def test_a_server_that_is_away_is_no_news_until_patience_is_over(orders: FakeServer):
    reader = stream(orders, awaySeconds="0.05")
    start = reader.initialOffset()
    orders.stop()
    assert reader.latestOffset(start, ReadAllAvailable()) is start  # and has waited for 0.05 s
    with pytest.raises(ServerAway, match=r"tried for 0.05 s"):
        reader.latestOffset(start, ReadAllAvailable())
    orders.start()
    assert reader.latestOffset(start, ReadAllAvailable()) == offset(orders, p0=120, p1=8)


def test_a_commit_to_a_server_that_is_away_is_logged_and_made_good_by_the_next(
    orders: FakeServer, caplog: pytest.LogCaptureFixture
):
    reader = stream(orders)
    reader.initialOffset()
    orders.stop()
    with caplog.at_level(logging.WARNING, "holdfast.pipeline"):
        reader.commit(offset(orders, p0=10, p1=0))
    assert "event='cursor.not_moved' reader='spark' queue='orders'" in caplog.text
    orders.start()
    reader.commit(offset(orders, p0=20, p1=4))
    reader.commit(offset(orders, p0=20, p1=4))
    assert orders.queues["orders"].cursors["spark"] == {"0": 20, "1": 4}


def test_a_stream_without_a_name_of_its_own_is_refused_and_a_batch_read_needs_none(orders: FakeServer):
    unnamed = WsrmDataSource(options=CaseInsensitiveDict({"broker": orders.url}))
    refused = unnamed.streamReader(source(orders).schema())
    assert isinstance(refused, SupportsTriggerAvailableNow)
    # Whatever Spark asks it first: made, it must say nothing, or PySpark ends with an error of its own.
    for ask in (
        refused.getDefaultReadLimit,
        refused.prepareForTriggerAvailableNow,
        refused.initialOffset,
        lambda: refused.latestOffset({}, ReadMaxRows(1)),
        lambda: refused.partitions({}, {}),
    ):
        with pytest.raises(ConfigurationError, match="option reader is missing") as caught:
            ask()
        assert "each query" in caught.value.remedy
    for name in ("handler", "a b", "own/sizes", "x" * 101):
        with pytest.raises(ConfigurationError):
            source(orders, reader=name).schema()
    made = WsrmDataSource(options=CaseInsensitiveDict({"broker": orders.url, "queue": "orders"}))
    assert rows(made.reader(made.schema()), made.reader(made.schema()).partitions()) == TRUTH


def test_a_restored_queue_that_grew_past_the_checkpoint_is_refused_everywhere(orders: FakeServer):
    reader = stream(orders)
    start, end = offset(orders, p0=100, p1=8), offset(orders, p0=110, p1=8)
    partitions = reader.partitions(start, end)
    plan = batch(orders).partitions()
    orders.queues["orders"].partitions[0][90:] = []
    orders.append("orders", 0, [record(7000 + i) for i in range(60)])
    for call in (
        lambda: reader.latestOffset(end, ReadAllAvailable()),
        lambda: rows(reader, partitions),
        lambda: reader.commit(end),
        lambda: rows(batch(orders), plan),
    ):
        with pytest.raises(OffsetRefused, match="older copy"):
            call()


def test_a_checkpoint_of_version_1_continues_and_gets_fingerprints(orders: FakeServer):
    old = {"v": 1, "queue": "orders", "epoch": "e1", "0": 100, "1": 8}
    reader = stream(orders)
    end = reader.latestOffset(old, ReadAllAvailable())
    assert end == offset(orders, p0=120, p1=8)
    assert rows(reader, reader.partitions(old, end)) == TRUTH[100:120]
    reader.commit(old)


def test_an_unknown_queue_is_an_error_not_an_empty_table(orders: FakeServer):
    with pytest.raises(UnknownQueue, match="Did you mean 'orders'"):
        batch(orders, queue="order").partitions()


def test_a_reader_in_use_is_pickled_without_its_connection(orders: FakeServer):
    reader = stream(orders)
    reader.initialOffset()
    again = pickle.loads(pickle.dumps(reader))
    assert again.initialOffset() == reader.initialOffset()


@pytest.mark.parametrize(("ends_by", "is_told"), [(EOFError(), False), (None, True), (ValueError("ours"), True)])
def test_only_sparks_message_about_its_closed_connection_is_suppressed(
    orders: FakeServer, monkeypatch: pytest.MonkeyPatch, ends_by: Exception | None, is_told: bool
):
    told = io.StringIO()
    monkeypatch.setattr("sys.stderr", told)
    reader = stream(orders)
    with contextlib.suppress(EOFError, ValueError):
        try:  # as PySpark's source runner does
            if ends_by is not None:
                raise ends_by
        finally:
            reader.stop()
    print("BrokenPipeError", file=sys.stderr)
    assert bool(told.getvalue()) == is_told
