"""What one can ask of the source, in a real Spark session."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from fake_server import FakeServer, record
from pyspark.errors import PySparkException, StreamingQueryException
from quick_spark import quick_spark
from waiting import until

from holdfast.pipeline.progress import watch
from holdfast.pipeline.spark.java import java_home
from holdfast.testing.ports import free_ports

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

WAIT = 280
ROOT = Path(__file__).parents[3]


@pytest.fixture
def shop(server: FakeServer) -> FakeServer:
    for queue in ("orders", "returns"):
        server.create(queue, partitions=2, epoch=f"epoch of {queue}")
        server.append(queue, 0, [record(i, action=f"urn:a{i % 2}") for i in range(30)])
        server.append(queue, 1, [record(100 + i) for i in range(5)])
    return server


def load(spark: SparkSession, server: FakeServer, **options: str) -> DataFrame:
    return spark.read.format("wsrm").options(**{"broker": server.url, "awaySeconds": "0", **options}).load()


def test_one_dataframe_with_filters_unions_and_counts_gives_right_answers(spark: SparkSession, shop: FakeServer):
    frame = load(spark, shop, queue="orders", minPartitions="3")
    assert frame.count() == 35
    assert frame.where("message_number >= 28").count() == 7
    assert frame.count() == 35
    assert frame.where("message_number >= 28").unionAll(frame).count() == 42
    assert frame.where("partition = 1").where("offset < 2").select("message_number").collect() == [(100,), (101,)]
    frame.createOrReplaceTempView("asked")
    joined = "SELECT count(*) FROM asked a JOIN asked b USING (partition, offset) WHERE a.message_number < 10"
    assert spark.sql(joined).first()[0] == 10
    assert frame.groupBy("partition").count().orderBy("partition").collect() == [(0, 30), (1, 5)]
    assert frame.where("body LIKE '%<o:id>7</o:id>%'").count() == 1
    assert frame.limit(4).count() == 4
    assert frame.rdd.getNumPartitions() == 3


def test_named_columns_are_all_there_are_and_positions_are_counted_without_a_record(
    spark: SparkSession, shop: FakeServer
):
    assert load(spark, shop, queue="orders,returns", columns="offset").count() == 70
    assert not [one for one in shop.requests if "/records?" in one]
    frame = load(spark, shop, queue="orders", columns="message_number,action,delivered_at")
    assert frame.columns == ["message_number", "action", "delivered_at"]
    counted = frame.groupBy("action").agg({"*": "count", "message_number": "max"}).orderBy("action").collect()
    assert [tuple(row) for row in counted] == [("urn:a0", 28, 15), ("urn:a1", 29, 15), ("urn:orders/Submit", 104, 5)]
    assert frame.exceptAll(load(spark, shop, queue="orders").select(*frame.columns)).count() == 0
    with pytest.raises(PySparkException, match="Did you mean 'offset'"):
        load(spark, shop, queue="orders", columns="ofset")


def test_options_narrow_a_read_in_sql_too(spark: SparkSession, shop: FakeServer):
    spark.sql(
        "CREATE OR REPLACE TEMPORARY VIEW narrowed USING wsrm OPTIONS ("
        f"broker '{shop.url}', subscribe 'orders,returns', "
        "startingTimestamp '1700000005250', endingOffsets '{\"orders\": {\"0\": 9, \"1\": -1}}', partitions '0', "
        "action 'urn:a1', body 'false')"
    )
    found = spark.sql("SELECT queue, count(*), min(offset), max(offset) FROM narrowed GROUP BY queue ORDER BY queue")
    assert found.collect() == [("orders", 2, 5, 7), ("returns", 13, 5, 29)]
    assert "body" not in spark.table("narrowed").columns


def test_a_table_that_spark_would_read_without_options_is_refused_at_creation(spark: SparkSession, shop: FakeServer):
    with pytest.raises(PySparkException, match="CREATE TEMPORARY VIEW"):
        spark.sql(f"CREATE TABLE kept USING wsrm OPTIONS (broker '{shop.url}', queue 'orders')")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"queue": "order"}, "has no queue 'order'.*Did you mean 'orders'"),
        ({"queuePattern": "x.*"}, "no queue with a full name that matches option queuePattern 'x"),
        ({"queue": "orders", "startingOffsets": '{"0": 2}'}, "records that are requested are deleted.*failOnDataLoss"),
        ({"queue": "orders", "startingOffsets": '{"0": 31}'}, "partition 0 ends at 30"),
        ({"queue": "orders", "partitions": "9"}, "option partitions names 9"),
        ({"queue": "orders", "tasks": "-1"}, "option tasks='-1' is not a positive whole number"),
        ({"queue": "orders", "kafka.bootstrap.servers": "b:9092"}, "with option broker"),
        ({"queue": "orders", "read": "letter"}, "Did you mean 'letters'"),
        ({"queue": "orders", "token": "wrong"}, "answered 401.*tokenFile"),
        ({"queue": "orders", "broker": "down"}, "does not answer.*awaySeconds sets how long"),
        ({"queue": "orders", "broker": "https"}, "does not answer"),
    ],
)
def test_errors_say_what_is_wrong_and_what_to_do(
    spark: SparkSession, shop: FakeServer, options: dict[str, str], says: str
):
    shop.queues["orders"].firsts[0] = 5
    shop.token = "right" if "token" in options else ""
    brokers = {"down": f"http://127.0.0.1:{free_ports(1)[0]}", "https": shop.url.replace("http:", "https:")}
    options = {**options, **({"broker": brokers[options["broker"]]} if "broker" in options else {})}
    with pytest.raises(PySparkException, match=f"(?s){says}"):
        load(spark, shop, **options).count()


def test_a_session_may_leave_the_python_tracebacks_out(spark: SparkSession, shop: FakeServer):
    bare = spark.newSession()
    bare.conf.set("spark.sql.execution.pyspark.udf.hideTraceback.enabled", "true")
    with pytest.raises(PySparkException, match=r"(?s)has no queue 'order'.*Did you mean 'orders'") as caught:
        load(bare, shop, queue="order").count()
    assert "Traceback" not in str(caught.value)


HIDDEN = """
import sys
from holdfast.pipeline import session
options = {"broker": sys.argv[1], "reader": "r", "awaySeconds": "0"}
rows = session(master="local[1]").readStream.format("wsrm").options(**options).load()
query = rows.writeStream.format("noop").option("checkpointLocation", sys.argv[2]).start()
try:
    query.awaitTermination()
except Exception as error:
    print(error)
"""


@pytest.mark.nightly
def test_an_environment_variable_leaves_the_tracebacks_out_of_the_errors_of_streams(tmp_path: Path) -> None:
    down = f"http://127.0.0.1:{free_ports(1)[0]}"
    told = subprocess.run(
        [sys.executable, "-c", HIDDEN, down, str(tmp_path)],
        env={**os.environ, **quick_spark(), "SPARK_HIDE_TRACEBACK": "1"},
        capture_output=True,
        text=True,
        timeout=WAIT,
        check=True,
    ).stdout
    assert "ServerAway: the server at" in told and "awaySeconds sets how long" in told
    assert "Traceback" not in told


class Stream:
    """One query: runs over what is there, and collects each batch's rows."""

    def __init__(self, spark: SparkSession, server: FakeServer, checkpoint: Path, patiently: Any) -> None:
        self._spark, self._server, self.checkpoint, self._patiently = spark, server, checkpoint, patiently
        self.batches: dict[int, list[tuple[str, int, int]]] = {}
        self.progress: list[Any] = []
        self.started = 0
        """Runs so far, with those that began again because Spark was too busy."""

    def run(self, **options: str) -> None:
        usual = {"broker": self._server.url, "reader": "spark", "awaySeconds": "0"}

        def collect(batch: DataFrame, number: int) -> None:
            self.batches[number] = [tuple(row) for row in batch.select("queue", "partition", "offset").collect()]

        def once() -> bool:
            writer = self._spark.readStream.format("wsrm").options(**{**usual, **options}).load().writeStream
            writer = writer.option("checkpointLocation", str(self.checkpoint)).queryName("asked")
            query = writer.trigger(availableNow=True).foreachBatch(collect).start()
            self.started += 1
            done = bool(query.awaitTermination(WAIT))
            self.progress = list(query.recentProgress)
            return done

        assert self._patiently(once)

    def rows(self) -> list[tuple[str, int, int]]:
        return sorted(row for batch in self.batches.values() for row in batch)


@pytest.fixture
def stream(spark: SparkSession, shop: FakeServer, tmp_path: Path, patiently: Callable[..., Any]) -> Stream:
    return Stream(spark, shop, tmp_path / "checkpoint", patiently)


def of(queue: str, first: int = 0) -> list[tuple[str, int, int]]:
    return [*((queue, 0, i) for i in range(first, 30)), *((queue, 1, i) for i in range(5))]


def test_a_query_continues_with_changed_options_and_reports_skipped_records(
    spark: SparkSession, shop: FakeServer, stream: Stream
):
    said: list[str] = []
    listener = watch(spark, said.append)
    try:
        stream.run(queue="orders", maxRowsPerBatch="15")  # below 16 a batch is exact: it may lack a sixteenth
        assert [len(batch) for batch in stream.batches.values()] == [15, 15, 5]
        stream.run(queue="orders,returns", maxRowsPerBatch="1000", minPartitions="2", columns="offset,queue,partition")
        assert stream.rows() == [*of("orders"), *of("returns")]
        shop.append("returns", 0, [record(30 + i) for i in range(10)])
        shop.queues["returns"].firsts[0] = 34
        with pytest.raises(StreamingQueryException, match="4 records that this stream has not read are deleted"):
            stream.run(queuePattern="orders|returns")
        stream.run(queuePattern="orders|returns", failOnDataLoss="false")
        asyncio.run(until(lambda: sum(line.startswith("asked ended") for line in said) == stream.started))
    finally:
        spark.streams.removeListener(listener)
    assert stream.rows() == sorted([*of("orders"), *of("returns"), *(("returns", 0, i) for i in range(34, 40))])
    end = json.loads([one for one in stream.progress if one["numInputRows"]][-1]["sources"][0]["endOffset"])
    assert (end["skipped"], end["returns/0"], end["orders/epoch"]) == (4, 40, "epoch of orders")
    lines = [line for line in said if " batch " in line and " 0 rows" not in line]
    assert [line.partition(" in ")[0] for line in lines] == [
        "asked batch 0: 15 rows",
        "asked batch 1: 15 rows",
        "asked batch 2: 5 rows",
        "asked batch 3: 35 rows",
        "asked batch 4: 6 rows",
    ]
    assert "; 20 behind (orders 20)" in lines[0]
    assert lines[4].endswith("; 0 behind; 4 deleted before they were read")


OLD = '{"v": 2, "queue": "orders", "epoch": "epoch of orders", "before": "", "0": 20, "1": 5}'
OLDER = '{"v": 1, "queue": "orders", "epoch": "epoch of orders", "0": 20, "1": 5}'


@pytest.mark.parametrize(("offset", "was_done"), [(OLD, False), pytest.param(OLDER, True, marks=pytest.mark.nightly)])
def test_a_checkpoint_of_an_earlier_version_goes_on(shop: FakeServer, stream: Stream, offset: str, was_done: bool):
    """Also one whose first batch was under way, so that its cursor stands where the query began."""
    stream.run(queue="orders", maxRowsPerBatch="25")
    log = stream.checkpoint / "offsets" / "0"
    lines = log.read_text().splitlines()
    assert '"v": 3' in lines[2] or '"v":3' in lines[2]
    for name in ("offsets/1", "commits/1", *(() if was_done else ("commits/0",))):
        (stream.checkpoint / name).unlink()
    for checksum in stream.checkpoint.rglob("*.crc"):
        checksum.unlink()
    log.write_text("\n".join([*lines[:2], offset]))
    stream.batches.clear()
    if not was_done:
        shop.queues["orders"].cursors["spark"] = {"0": 0, "1": 0}
    stream.run(queue="orders")
    assert stream.rows() == (of("orders", 20)[:10] if was_done else of("orders"))


PROGRAM = """
import sys
import holdfast, pyspark_holdfast
assert holdfast.__file__.startswith(sys.argv[2]), holdfast.__file__
from pyspark.sql import SparkSession
settings = {
    "spark.ui.enabled": "false", "spark.driver.memory": "512m", "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
}
builder = SparkSession.builder.master("local[1]")
for name, value in settings.items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
frame = spark.read.format("wsrm").option("broker", sys.argv[1]).option("queue", "orders").load()
spark.sql(f"CREATE TEMPORARY VIEW orders USING wsrm OPTIONS (broker '{sys.argv[1]}', queue 'orders')")
print("ROWS", frame.count(), spark.sql("SELECT max(message_number) FROM orders").first()[0])
"""


@pytest.mark.nightly
def test_what_pip_installs_is_found_by_a_session_of_ones_own(shop: FakeServer, tmp_path: Path):
    """The wheel, unpacked where pip puts it, and nothing registered: in Python and in SQL."""
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=WAIT)
    (wheel,) = tmp_path.glob("holdfast-*.whl")
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    env = {**os.environ, "PYTHONPATH": str(site), "PYSPARK_PYTHON": sys.executable, "JAVA_HOME": str(java_home())}
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM, shop.url, str(site)],
        cwd=tmp_path,
        env=env,
        check=False,
        capture_output=True,
        text=True,
        timeout=WAIT,
    )
    assert "ROWS 35 104" in run.stdout, run.stderr[-3000:]
