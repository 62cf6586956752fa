"""Reads that name the columns they want, as Spark calls them: what is asked of the server, and what comes of it."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest
from fake_server import FakeServer, record
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.streaming.datasource import ReadAllAvailable

from examples import examples
from holdfast.client.errors import OffsetRefused, RecordsTrimmed
from holdfast.client.offsets import Range, plan
from holdfast.exceptions import ConfigurationError
from holdfast.pipeline.reader.columns import COLUMNS
from holdfast.pipeline.reader.options import ReadOptions
from holdfast.pipeline.reader.stream import WsrmStreamReader
from holdfast.pipeline.source import WsrmDataSource

NAMES = [name for name, *_ in COLUMNS]
ALL = ReadAllAvailable()
PLACE = "queue,partition,offset"
Row = dict[str, Any]


def source(server: FakeServer, **options: str) -> WsrmDataSource:
    usual = {"broker": server.url, "waitSeconds": "0", "awaySeconds": "0", "reader": "spark", "queue": "orders,returns"}
    return WsrmDataSource(options=CaseInsensitiveDict({**usual, **options}))


def stream(server: FakeServer, **options: str) -> WsrmStreamReader:
    made = source(server, **options)
    return made.streamReader(made.schema())


def rows(reader: Any, partitions: Any) -> list[Row]:
    """As tasks read them: with what was pickled."""
    found: list[Row] = []
    for partition in partitions:
        task = pickle.loads(pickle.dumps(reader))
        for batch in task.read(pickle.loads(pickle.dumps(partition))):
            found += batch.to_pylist()
    return found


def batch(server: FakeServer, **options: str) -> list[Row]:
    made = source(server, **options)
    reader = made.reader(made.schema())
    found = rows(reader, reader.partitions())
    assert all(list(row) == made.schema().names for row in found)
    return found


def only(whole: list[Row], names: set[str]) -> list[Row]:
    return [{name: value for name, value in row.items() if name in names} for row in whole]


def of_records(server: FakeServer) -> list[str]:
    return [one for one in server.requests if "/records?" in one]


@pytest.fixture
def shop(server: FakeServer) -> FakeServer:
    for queue, epoch in (("orders", "e1"), ("returns", "e2")):
        server.create(queue, partitions=2, epoch=epoch)
        for partition, count in ((0, 12), (1, 3)):
            made = [
                record(
                    i,
                    sequence=f"urn:s{i % 2}",
                    action=f"urn:{queue}/{i % 3}",
                    headers=b"<h/>",
                    message_id=f"urn:m{i}" if i % 2 else None,
                    released_at=1_700_000_100.0 + i if i % 4 else None,
                )
                for i in range(count)
            ]
            server.append(queue, partition, made)
    return server


narrowings = st.fixed_dictionaries(
    {},
    optional={
        "sequence": st.just("urn:s1"),
        "action": st.just("urn:orders/2"),
        "partitions": st.sampled_from(["0", "0,1"]),
        "minPartitions": st.just("4"),
        "startingOffsets": st.sampled_from(["earliest", '{"orders": {"0": 5}}']),
        "endingOffsets": st.sampled_from(["latest", '{"orders": {"0": 9, "1": 1}, "returns": {"0": 0}}']),
    },
)
arrival = st.just({}) | st.just({"timestampType": "received", "endingTimestamp": "1700000006250"})


@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(names=st.sets(st.sampled_from(NAMES), min_size=1), narrowed=narrowings, arrived=arrival)
def test_any_columns_of_any_read_are_those_columns_of_the_whole_read(
    shop: FakeServer, names: set[str], narrowed: dict[str, str], arrived: dict[str, str]
):
    asked = narrowed if arrived == {} else {k: v for k, v in narrowed.items() if k != "endingOffsets"} | arrived
    whole = batch(shop, headers="true", **asked)
    assert batch(shop, columns=", ".join(names), **asked) == only(whole, names)


def test_the_columns_are_in_the_schemas_order_whatever_the_order_of_their_names(shop: FakeServer):
    assert source(shop, columns="body, OFFSET,queue").schema().names == ["queue", "offset", "body"]


def test_a_read_of_positions_requests_no_record_and_checks_each_range_once(shop: FakeServer):
    made = source(shop, columns="offset")
    reader = made.reader(made.schema())
    partitions = reader.partitions()
    shop.requests.clear()
    assert rows(reader, partitions) == [{"offset": i} for count in (12, 3) * 2 for i in range(count)]
    assert [one.partition("?")[0] for one in shop.requests] == ["GET /queues/orders/ends"] * 2 + [
        "GET /queues/returns/ends"
    ] * 2
    assert all("epoch=" in one and "known=" in one for one in shop.requests)


@pytest.mark.parametrize(
    ("options", "tasks"),
    [
        ({"columns": "offset"}, 3),
        ({"columns": "offset,action"}, 6),
        ({"columns": "offset", "action": "urn:a"}, 6),
        ({"columns": "offset", "timestampType": "received", "endingTimestamp": "2100-01-01"}, 6),
        ({"columns": "offset", "timestampType": "received"}, 3),
        ({"columns": "offset", "tasks": "5"}, 3),
        ({"columns": "offset", "minPartitions": "7"}, 7),
    ],
)
def test_fewer_tasks_are_planned_where_no_record_is_read(options: dict[str, str], tasks: int):
    asked = ReadOptions.parse({"broker": "http://127.0.0.1:8081", **options})
    rows = [("orders", Range(0, 0, 300_000))]
    assert len(plan(rows, asked.tasks, asked.min_tasks, asked.ease)) == tasks


@pytest.mark.parametrize(
    ("columns", "without"), [("offset,action", "body,headers,transport"), ("headers", "body,transport"), ("body", "")]
)
def test_what_is_large_and_not_named_is_not_sent(shop: FakeServer, columns: str, without: str):
    batch(shop, columns=columns)
    asked = of_records(shop)
    assert asked
    assert all(one.partition("without=")[2] == without for one in asked)


def test_what_is_looked_at_is_read_although_it_is_no_column(shop: FakeServer):
    assert batch(shop, columns="offset", sequence="urn:s1", partitions="1") == [{"offset": 1}] * 2
    assert len(of_records(shop)) == 2


@pytest.mark.parametrize("bears", [True, False])
@pytest.mark.parametrize("columns", ["offset", PLACE])
def test_of_positions_too_what_is_deleted_is_skipped_and_told_or_ends_the_read(
    shop: FakeServer, caplog: pytest.LogCaptureFixture, columns: str, bears: bool
):
    made = source(shop, queue="orders", columns=columns, failOnDataLoss=str(not bears).lower())
    reader = made.reader(made.schema())
    partitions = reader.partitions()
    shop.queues["orders"].firsts[0] = 6
    if bears:
        assert [row["offset"] for row in rows(reader, partitions)] == [*range(6, 12), *range(3)]
        assert "6 records that this task has to read are deleted, and skipped" in caplog.text
    else:
        with pytest.raises(RecordsTrimmed, match="partition 0: records below 6 are deleted") as caught:
            rows(reader, partitions)
        assert "restore the store" in caught.value.remedy


def test_of_positions_too_a_queue_that_was_put_back_or_made_anew_is_refused(shop: FakeServer):
    made = source(shop, queue="orders", columns="offset")
    reader = made.reader(made.schema())
    partitions = reader.partitions()
    orders = shop.queues["orders"]
    kept = orders.partitions[0]
    orders.partitions[0] = kept[:8]
    with pytest.raises(OffsetRefused):
        rows(reader, partitions)
    orders.partitions[0] = [*kept[:8], *kept[:8]]
    with pytest.raises(OffsetRefused, match="older copy"):
        rows(reader, partitions)
    orders.partitions[0], orders.epoch = kept, "e9"
    with pytest.raises(OffsetRefused, match="epoch e9"):
        rows(reader, partitions)


def test_a_range_beyond_the_end_is_refused_also_where_no_fingerprint_is_known(shop: FakeServer):
    reader = stream(shop, queue="orders", columns="offset")
    beyond = {"v": 1, "queue": "orders", "epoch": "e1", "0": 13}
    with pytest.raises(OffsetRefused, match="partition 0 ends at 12, below 13"):
        rows(reader, reader.partitions({"v": 1, "queue": "orders", "epoch": "e1", "0": 0}, beyond))


def test_a_stream_goes_on_from_its_checkpoint_with_other_columns(shop: FakeServer):
    first = stream(shop, columns="offset")
    start = first.initialOffset()
    end = json.loads(json.dumps(first.latestOffset(start, ALL)))
    assert len(rows(first, first.partitions(start, end))) == 30
    shop.append("orders", 1, [record(77)])
    again = stream(shop, columns="message_number,queue")
    later = again.latestOffset(end, ALL)
    assert rows(again, again.partitions(end, later)) == [{"queue": "orders", "message_number": 77}]
    assert later == stream(shop).latestOffset(end, ALL), "offsets are the same whatever the columns"


@pytest.mark.parametrize(
    ("options", "says", "remedy"),
    [
        ({"columns": "ofset"}, "names 'ofset', but read=messages has no such column", "Did you mean 'offset'?"),
        ({"columns": "offset,zzz"}, "names 'zzz'", "queue, partition, offset"),
        ({"columns": "attempts"}, "names 'attempts', but read=messages has no such column", ""),
        (
            {"columns": "attempt", "read": "letters"},
            "names 'attempt', but read=letters has no such column",
            "mean 'attempts'?",
        ),
        ({"columns": "offset,,action"}, "names a column twice, or has", "Use the form queue,offset"),
        ({"columns": "offset,Offset"}, "names a column twice", "Use the form queue,offset"),
        ({"columns": ""}, "or has an", "Use the form queue,offset"),
        ({"columns": "offset", "body": "true"}, "columns and body exclude each other", "Remove one"),
        ({"columns": "offset", "includeHeaders": "false"}, "columns and headers exclude each other", "Remove one"),
    ],
)
def test_names_that_are_none_are_refused_with_the_nearest(options: dict[str, str], says: str, remedy: str):
    with pytest.raises(ConfigurationError, match=says) as caught:
        ReadOptions.parse({"broker": "http://127.0.0.1:8081", **options})
    assert remedy in caught.value.remedy
