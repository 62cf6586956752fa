"""The sink under Spark, in one process: options and columns as Spark hands them over, replays, foreachBatch."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from fake_server import FakeServer, record

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

WAIT = 280


def stream(spark: SparkSession, server: FakeServer, **options: str) -> DataFrame:
    reader = (
        spark.readStream.format("wsrm").option("broker", server.url).option("queue", "in").option("reader", "spark")
    )
    return reader.options(**options).load()


def test_a_stream_sends_each_row_of_a_queue_once_and_a_new_run_goes_on(
    spark: SparkSession, server: FakeServer, tmp_path: Path, patiently: Any
) -> None:
    server.create("in", partitions=2)

    def run() -> None:
        rows = stream(spark, server, maxRowsPerBatch="4").selectExpr("body", "sequence AS carrier", "action")
        writer = rows.writeStream.format("wsrm").option("broker", server.url).option("queue", "out")
        writer = writer.option("sequenceKey", "carrier").option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = writer.queryName("to-out").trigger(availableNow=True).start()
        assert query.awaitTermination(WAIT)

    for first in (0, 5):
        server.append("in", 0, [record(number) for number in range(first, first + 5)])
        server.append("in", 1, [record(100 + number, sequence="urn:two") for number in range(first, first + 5)])
        patiently(run)
    ((query, sink),) = server.sinks.sinks.items()
    assert query == sink.query
    assert [batch for _, batch, _ in sink.published] == list(range(len(sink.published)))
    for key, at in (("urn:uuid:one", 0), ("urn:two", 100)):
        sent = [row["body"].decode() for row in sink.rows if row["key"] == key]
        assert sent == [record(number).body.decode() for number in range(at, at + 10)]
    assert not sink.staged


def test_a_query_says_what_is_wrong_with_its_columns_before_a_row_is_read(
    spark: SparkSession, server: FakeServer, tmp_path: Path
) -> None:
    rows = spark.range(3).selectExpr("'<a/>' AS body", "id")
    with pytest.raises(Exception, match="the wsrm sink does not use column id"):
        rows.write.format("wsrm").mode("append").options(broker=server.url, queue="out", action="urn:a").save()
    with pytest.raises(Exception, match=r"Did you mean 'sequenceKey'\?"):
        rows.write.format("wsrm").mode("append").options(broker=server.url, sequencekee="id").save()
    with pytest.raises(Exception, match="without a path; queue or to sets the destination"):
        rows.write.format("wsrm").mode("append").options(broker=server.url, queue="out", action="urn:a").save("/a")
    with pytest.raises(Exception, match=r'Use mode\("append"\)'):
        rows.drop("id").write.format("wsrm").mode("overwrite").options(
            broker=server.url, queue="out", action="urn:a"
        ).save()
    assert server.requests == []


def test_a_batch_write_with_a_key_sends_each_row_once(spark: SparkSession, server: FakeServer) -> None:
    rows = spark.range(0, 20, 1, 3).selectExpr("concat('<n>', id, '</n>') AS body", "id % 4 AS shard")
    write = rows.write.format("wsrm").mode("append").option("broker", server.url).option("to", "http://service/")
    write = write.option("action", "urn:a").option("sequenceKey", "shard")
    write.option("idempotencyKey", "once").save()
    write.option("idempotencyKey", "once").save()
    (sink,) = server.sinks.sinks.values()
    assert sink.bodies == [f"<n>{number}</n>" for number in range(20)]
    assert {row["key"] for row in sink.rows} == {"0", "1", "2", "3"}
    assert {row["to"] for row in sink.rows} == {"http://service/"}


def test_a_row_that_cannot_be_sent_fails_the_write_which_names_it(spark: SparkSession, server: FakeServer) -> None:
    rows = spark.sql("SELECT * FROM VALUES ('<a/>', 'AA'), ('b', 'UA') AS t(body, carrier)").coalesce(1)
    write = rows.write.format("wsrm").mode("append").option("broker", server.url).option("queue", "out")
    with pytest.raises(Exception, match=r"row 1 of partition 0 of batch 0 cannot be sent, column body.*carrier='UA'"):
        write.option("action", "urn:a").option("sequenceKey", "carrier").save()
    assert all(not sink.staged and not sink.rows for sink in server.sinks.sinks.values())


def test_refused_rows_are_a_table_that_spark_reads(spark: SparkSession, server: FakeServer, tmp_path: Path) -> None:
    rows = spark.range(0, 6, 1, 2).selectExpr("if(id % 3 = 1, 'no', '<a/>') AS body", "id")
    write = rows.write.format("wsrm").mode("append").options(broker=server.url, queue="out", action="urn:a")
    write = write.options(sequenceKey="id", refused=str(tmp_path), sinkId="s", batchId="7", queryId="nightly")
    write.save()
    write.save()
    found = spark.read.parquet(str(tmp_path)).orderBy("id").collect()
    assert [(row.id, row.body, row.refused_query, row.refused_batch) for row in found] == [
        (1, "no", "nightly", 7),
        (4, "no", "nightly", 7),
    ]
    assert [row["key"] for row in server.sinks["s"].rows] == ["0", "2", "3", "5"]


def test_foreach_batch_sends_one_read_to_two_sinks_once_each(
    spark: SparkSession, server: FakeServer, tmp_path: Path, patiently: Any
) -> None:
    server.create("in", partitions=1)
    server.append("in", 0, [record(number) for number in range(6)])
    ran: Counter[int] = Counter()

    def send(batch: DataFrame, batch_id: int) -> None:
        ran[batch_id] += 1
        for sink in ("alerts", "archive"):
            rows = batch.select("body", "action").write.format("wsrm").mode("append")
            rows.options(broker=server.url, queue=sink, sinkId=sink, batchId=str(batch_id)).save()
            if batch_id == 1 and ran[1] == 1:
                raise RuntimeError("dies between two sinks")

    def run() -> None:
        writer = stream(spark, server, maxRowsPerBatch="2").writeStream.foreachBatch(send)
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        assert writer.trigger(availableNow=True).start().awaitTermination(WAIT)

    with pytest.raises(Exception, match="dies between two sinks"):
        patiently(run)
    patiently(run)
    assert ran == {0: 1, 1: 2, 2: 1}
    for sink in ("alerts", "archive"):
        assert server.sinks[sink].bodies == [record(number).body.decode() for number in range(6)]
        assert server.sinks[sink].query != "batches"
