"""The source in a real Spark session: what Spark itself does with it."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from fake_server import FakeServer, record
from pyspark.errors import AnalysisException, StreamingQueryException

from holdfast.client.offsets import parse
from holdfast.pipeline.reader.columns import COLUMNS, spark_struct

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

pytestmark = pytest.mark.spark

WAIT = 280


class Sink:
    """Collects the numbers of each batch; a batch that is repeated replaces itself."""

    def __init__(self, spark: SparkSession, server: FakeServer, checkpoint: Path, patiently: Any) -> None:
        self._spark = spark
        self.patiently = patiently
        self._server = server
        self._checkpoint = checkpoint
        self.batches: dict[int, list[int]] = {}

    def start(self, *, available_now: bool = True, **options: Any) -> StreamingQuery:
        stream = self._spark.readStream.format("wsrm").option("broker", self._server.url).option("queue", "orders")
        stream = stream.option("reader", "spark")
        writer = stream.options(**options).load().writeStream.option("checkpointLocation", str(self._checkpoint))
        trigger: dict[str, Any] = {"availableNow": True} if available_now else {"processingTime": "0 seconds"}
        return writer.trigger(**trigger).foreachBatch(self._collect).start()

    def run(self, **options: Any) -> None:
        assert self.patiently(lambda: self.start(**options).awaitTermination(WAIT))

    def _collect(self, batch: DataFrame, batch_id: int) -> None:
        self.batches[batch_id] = [row.message_number for row in batch.select("message_number").collect()]

    def numbers(self) -> list[int]:
        return sorted(number for batch in self.batches.values() for number in batch)


@pytest.fixture
def orders(server: FakeServer) -> FakeServer:
    server.create("orders", partitions=2)
    server.append("orders", 0, [record(i) for i in range(300)])
    server.append("orders", 1, [record(1000 + i) for i in range(20)])
    return server


@pytest.fixture
def sink(spark: SparkSession, orders: FakeServer, tmp_path: Path, patiently: Any) -> Sink:
    return Sink(spark, orders, tmp_path / "checkpoint", patiently)


NUMBERS = [*range(300), *range(1000, 1020)]


def test_any_session_finds_the_format_by_itself_and_reads_the_queue_as_a_table(spark: SparkSession, orders: FakeServer):
    other = spark.newSession()  # registrations are per session: this one has none
    other.sql(f"CREATE TEMPORARY VIEW orders USING wsrm OPTIONS (broker '{orders.url}', queue 'orders')")
    found = other.sql(
        "SELECT message_number, body, received_at FROM orders WHERE offset = 7 AND partition = 0"
    ).collect()
    assert [(row.message_number, row.body) for row in found] == [
        (7, "<o:order xmlns:o='urn:orders'><o:id>7</o:id></o:order>")
    ]
    assert other.table("orders").schema == spark_struct(one for one in COLUMNS if one[0] != "headers")
    rows = other.sql("SELECT count(*), count(DISTINCT partition, offset), sum(message_number) FROM orders").first()
    assert tuple(rows) == (320, 320, sum(NUMBERS))


def test_an_invalid_option_is_reported_in_holdfasts_words(spark: SparkSession, orders: FakeServer):
    with pytest.raises(AnalysisException, match="Did you mean 'queue'"):
        spark.read.format("wsrm").option("broker", orders.url).option("quee", "orders").load()


def test_a_stream_goes_by_batches_and_a_restart_goes_on_from_the_checkpoint(sink: Sink, orders: FakeServer):
    sink.run(maxRowsPerBatch="150")
    assert sink.numbers() == NUMBERS
    # a batch ends between two times, so it may hold a sixteenth less than its limit: where depends on the present time
    full = [len(batch) for batch in sink.batches.values()][:2]
    assert len(sink.batches) == 3
    assert all(141 <= rows <= 150 for rows in full)
    orders.append("orders", 0, [record(300), record(301)])
    sink.run()
    assert sink.numbers() == sorted([*NUMBERS, 300, 301])
    assert len(sink.batches) == 4
    # a run moves the cursor behind its last batch, which Spark's own commit leaves to the next run
    assert orders.queues["orders"].cursors["spark"] == {"0": 302, "1": 20}


def test_a_server_killed_within_a_read_and_restarted_costs_only_time(sink: Sink, orders: FakeServer):
    restarts: list[threading.Thread] = []

    def crash(asked: int) -> int | None:
        if asked != 1:
            return None
        restarts.append(threading.Thread(target=lambda: (orders.stop(), orders.start())))
        restarts[0].start()
        return 5000  # some whole records, and a part of one

    orders.on_records = crash
    sink.run()
    restarts[0].join()
    assert sink.numbers() == NUMBERS
    assert len([r for r in orders.requests if "/orders/0/records" in r]) == 2


def test_a_running_stream_sees_what_arrives_and_moves_the_cursor(sink: Sink, orders: FakeServer):
    def start() -> StreamingQuery:
        query = sink.start(available_now=False)
        query.processAllAvailable()
        return query

    query = sink.patiently(start)
    try:
        orders.append("orders", 1, [record(2000)])
        query.processAllAvailable()
        progress = query.recentProgress
    finally:
        query.stop()
    assert sink.numbers() == [*NUMBERS, 2000]
    assert orders.queues["orders"].cursors["spark"] == {"0": 300, "1": 20}
    assert sum(p["numInputRows"] for p in progress) == 321
    source = next(p["sources"][0] for p in reversed(progress) if p["numInputRows"])
    for name in ("endOffset", "latestOffset"):
        assert parse(json.loads(source[name])).queues["orders"].positions == {0: 300, 1: 21}


def test_a_recreated_queue_is_refused_with_the_old_checkpoint(sink: Sink, orders: FakeServer):
    sink.run()
    orders.queues["orders"].epoch = "e2"
    orders.append("orders", 0, [record(300)])
    with pytest.raises(StreamingQueryException, match="the epoch of queue 'orders' is e2, not e1"):
        sink.run()
    assert sink.numbers() == NUMBERS
