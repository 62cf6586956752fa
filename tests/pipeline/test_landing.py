from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from fake_server import FakeServer, record
from pyspark.sql.types import IntegerType, StringType, StructField, StructType

from holdfast.exceptions import ConfigurationError
from holdfast.pipeline.landing import BodyColumns, land, read_landed, settle

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

ORDER = StructType([StructField("id", IntegerType()), StructField("city", StringType())])


@pytest.fixture
def orders(server: FakeServer) -> FakeServer:
    server.create("orders")
    server.append("orders", 0, [record(i) for i in range(100)])
    return server


class Place:
    """A directory to land in, with its checkpoint."""

    def __init__(self, spark: SparkSession, server: FakeServer, directory: Path, patiently: Any) -> None:
        self._spark = spark
        self._patiently = patiently
        self._server = server
        self.out = directory / "landed"
        self.checkpoint = directory / "checkpoint"

    def run(self, **arguments: Any) -> None:
        given: dict[str, Any] = {
            "schema": ORDER,
            "trigger": {"availableNow": True},
            "options": {"maxRowsPerBatch": "40"},
            "checkpoint": str(self.checkpoint),
        }
        arguments = {**given, **arguments}
        assert self._patiently(
            lambda: land(self._spark, self._server.url, "orders", str(self.out), **arguments).awaitTermination(280)
        )

    def rows(self) -> list[Any]:
        return read_landed(self._spark, str(self.out)).orderBy("message_number").collect()


@pytest.fixture
def place(spark: SparkSession, orders: FakeServer, tmp_path: Path, patiently: Any) -> Place:
    return Place(spark, orders, tmp_path, patiently)


def test_a_queue_is_landed_once_with_its_bodies_in_columns(spark: SparkSession, place: Place, orders: FakeServer):
    orders.append("orders", 0, [record(100, "<order id='100'><city>Åre</city></order>"), record(101, "<order")])
    place.run()
    rows = place.rows()
    assert [(row.message_number, row.id, row.batch) for row in rows[:101]] == [(i, i, i // 40) for i in range(101)]
    assert (rows[100].city, rows[100].corrupt_record, rows[99].city) == ("Åre", None, None)
    assert (rows[101].id, rows[101].body) == (None, "<order")
    assert rows[101].corrupt_record.startswith("not well-formed")
    assert rows[7].asDict()["action"] == "urn:orders/Submit"
    settled = settle(spark, orders.url, "orders", str(place.checkpoint))
    assert settled == {0: 102}
    assert orders.queues["orders"].cursors == {"land": {"0": 102}}


def test_a_batch_that_is_repeated_replaces_itself_and_one_that_is_not_overwrites_nothing(
    spark: SparkSession, place: Place, orders: FakeServer
):
    place.run()
    before = place.rows()
    # as if the driver had died after the last batch was written, before that was noted; and half of it got lost
    for path in (place.checkpoint / "commits").glob("*2*"):
        path.unlink()
    (place.out / "batch=2" / "_SUCCESS").unlink()
    assert {row.batch for row in place.rows()} == {0, 1}
    place.run()
    assert place.rows() == before
    assert len(before) == 100
    # without the checkpoint batch ids would start again, and new batches replace old ones
    shutil.rmtree(place.checkpoint)
    with pytest.raises(ConfigurationError, match="its batches would overwrite them") as caught:
        place.run()
    assert "land into another directory" in caught.value.remedy
    assert place.rows() == before


def test_nothing_landed_yet_is_told(spark: SparkSession, tmp_path: Path):
    with pytest.raises(ConfigurationError, match="nothing has been landed"):
        read_landed(spark, str(tmp_path / "landed"))
    assert settle(spark, "http://127.0.0.1:9", "orders", str(tmp_path / "checkpoint")) is None


def batch(*bodies: str) -> pa.RecordBatch:
    rows = [
        {"sequence": "s", "message_number": i, "message_id": None, "action": "a", "received_at": None, "body": body}
        for i, body in enumerate(bodies)
    ]
    return pa.RecordBatch.from_pylist(rows)


def test_columns_are_parsed_batch_by_batch_with_nulls_allowed_everywhere():
    strict = StructType([StructField("id", IntegerType(), nullable=False)])
    columns = BodyColumns(strict, prefix="order_")
    (made,) = columns([batch("<o><id>1</id></o>", "<o/>")])
    assert made.schema.names == columns.schema.fieldNames()
    assert columns.schema["order_id"].nullable
    assert made["order_id"].to_pylist() == [1, None]
    assert made["corrupt_record"].to_pylist() == [None, "id is missing"]


def test_without_a_schema_bodies_are_not_looked_at():
    (made,) = BodyColumns(StructType())([batch("no xml")])
    assert made["corrupt_record"].to_pylist() == [None]
    assert made["body"].to_pylist() == ["no xml"]


@pytest.mark.parametrize("name", ["action", "Body", "batch", "corrupt_record"])
def test_a_parsed_column_may_not_take_the_name_of_another(name: str):
    fields = StructType([StructField(name, StringType())])
    with pytest.raises(ConfigurationError, match=f"would be called '{name}'") as caught:
        BodyColumns(fields)
    assert "prefix" in caught.value.remedy
    assert f"x_{name}" in BodyColumns(fields, "x_").schema.fieldNames()
