"""Landing a queue: each message once, whichever driver repeats or dies.

Covers pipeline/landing/tables.py and pipeline/spark/checkpoints.py.
"""

from __future__ import annotations

import shutil
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fake_server import FakeServer, record
from pyspark.sql.types import IntegerType, StringType, StructField, StructType
from wild import ODD, POISON, WILD

from holdfast.client.errors import OffsetRefused, PipelineError
from holdfast.exceptions import ConfigurationError
from holdfast.pipeline.bodies.columns import BodyColumns
from holdfast.pipeline.jobs.command import reading
from holdfast.pipeline.landing import parquet as landed_room
from holdfast.pipeline.landing import tables as landing
from holdfast.pipeline.landing.layout import Layout
from holdfast.pipeline.landing.parquet import ParquetTable
from holdfast.pipeline.landing.tables import LandedBatch, land, read_landed, reland
from holdfast.pipeline.reader.options import ReadOptions
from holdfast.pipeline.spark.checkpoints import reader_of, refuse_nested, settle

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

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
        self.kind: str | None = None

    def run(self, queue: str = "orders", **arguments: Any) -> None:
        given: dict[str, Any] = {
            "schema": ORDER,
            "trigger": {"availableNow": True},
            "options": {"maxRowsPerBatch": "40"},
            "checkpoint": str(self.checkpoint),
            "table": self.kind,
        }
        arguments = {**given, **arguments}
        assert self._patiently(
            lambda: land(self._spark, self._server.url, queue, str(self.out), **arguments).awaitTermination(280)
        )

    def rows(self) -> list[Any]:
        return self.frame().orderBy("message_number").collect()

    def frame(self) -> DataFrame:
        return read_landed(self._spark, str(self.out))


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
    settled = settle(spark, orders.url, str(place.checkpoint))
    assert settled == {"orders": {0: 102}}
    assert orders.queues["orders"].cursors == {reader_of(spark, str(place.checkpoint)): {"0": 102}}


@pytest.mark.nightly
def test_a_repeated_batch_lands_once_and_a_foreign_checkpoint_is_refused(
    spark: SparkSession, place: Place, orders: FakeServer, tmp_path: Path
):
    place.kind = "parquet"
    place.run()
    before = place.rows()
    # as if the driver had died after the last batch was written, before that was noted; or before it was written
    for is_there in (True, False):
        for path in (place.checkpoint / "commits").glob("*2*"):
            path.unlink()
        if not is_there:
            shutil.rmtree(place.out / "batch=2")
            assert {row.batch for row in place.rows()} == {0, 1}
        place.run()
        assert place.rows() == before
    assert len(before) == 100
    assert spark.read.parquet(str(place.out)).count() == 100  # and so any reader of Parquet finds it

    def refused(why: str, remedy: str, **arguments: Any) -> None:
        with pytest.raises(ConfigurationError, match=why) as caught:
            place.run(**arguments)
        assert remedy in caught.value.remedy
        assert place.rows() == before

    copied, other = (str(tmp_path / name) for name in ("copied", "other"))
    shutil.copytree(place.checkpoint, copied)
    orders.append("orders", 0, [record(i) for i in range(100, 110)])
    place.run()
    before = place.rows()
    refused("contains batch 3, but the checkpoint .*copied is only at 2", "if it is lost", checkpoint=copied)
    refused("is new: its batches would start at 0", "if it is lost", checkpoint=str(tmp_path / "new"))
    orders.create("others")
    orders.append("others", 0, [record(i) for i in range(200)])
    place.out, out = tmp_path / "others", place.out
    place.run(queue="others", checkpoint=other)
    place.out = out
    refused("is at batch 4, but .*landed is only at 3", "directory, use a new checkpoint", checkpoint=other)
    place.out = tmp_path / "others"
    before = place.rows()
    refused("contains batch 4, but .* is only at 3", "if it is lost")
    shutil.rmtree(place.out / "batch=4")
    for path in (tmp_path / "other" / "commits").glob("*4*"):
        path.unlink()
    before = place.rows()
    refused("was written with a checkpoint", "if it is lost")
    place.out = tmp_path / "elsewhere"
    with pytest.raises(ConfigurationError, match=r"is at batch 3, but .*elsewhere has no batch"):
        place.run()


def test_foreign_tables_and_unwritable_places_are_refused_before_the_query_starts(
    spark: SparkSession, place: Place, tmp_path: Path
):
    spark.range(3).write.parquet(str(place.out))
    with pytest.raises(ConfigurationError, match=r"contains part-.*parquet, which Holdfast did not write"):
        place.run()
    place.out = tmp_path / "by hand"
    deltalake = pytest.importorskip("deltalake")
    deltalake.write_deltalake(str(place.out), pa.table({"id": [1, 2, 3]}))
    with pytest.raises(ConfigurationError, match="contains a Delta table, which Holdfast did not write"):
        place.run()
    (tmp_path / "file").write_text("")
    place.out = tmp_path / "file" / "below"
    with pytest.raises(ConfigurationError, match="cannot be written: ") as caught:
        place.run()
    assert "may write" in caught.value.remedy
    place.out = tmp_path / "fine"
    with pytest.raises(ConfigurationError, match="cannot be written: "):
        place.run(checkpoint=str(tmp_path / "file" / "checkpoint"))


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"columns": "queue,offset"}, "option columns"),
        ({"body": "false"}, "needs the column body, but with option body"),
        ({"read": "journal"}, "option read"),
    ],
)
def test_a_source_without_the_landed_columns_is_refused_and_has_no_cursor(
    place: Place, orders: FakeServer, options: dict[str, str], told: str
):
    with pytest.raises(ConfigurationError, match=told):
        place.run(options=options)
    assert orders.queues["orders"].cursors == {}
    assert not place.out.exists()


@pytest.mark.nightly
def test_of_two_drivers_of_one_checkpoint_one_lands_a_batch_and_the_other_fails(
    spark: SparkSession, place: Place, orders: FakeServer, monkeypatch: pytest.MonkeyPatch
):
    """As when an orchestrator starts a job again while the first still lives; one session starts no query twice, so
    what both do with the batch is called here."""
    place.kind = "parquet"
    place.run()
    (place.checkpoint / "commits" / "2").unlink()
    shutil.rmtree(place.out / "batch=2")
    out, parser = str(place.out), BodyColumns(ORDER)
    given: dict[str, Any] = {"broker": orders.url, "queue": "orders", "startingOffsets": '{"0": 80}'}
    rows = spark.read.format("wsrm").options(**given).load()
    target = landing._Target("", out, ParquetTable(spark, out), parser, Layout(parser.schema))
    driver = landing._batch_writer([target], None, str(place.checkpoint), None)
    real = landed_room.write_rows

    def and_the_other(*written: Any) -> None:
        real(*written)
        monkeypatch.setattr(landed_room, "write_rows", real)
        driver(rows, 2)

    monkeypatch.setattr(landed_room, "write_rows", and_the_other)
    with pytest.raises(PipelineError, match=r"batch 2 was added to .* by another driver") as caught:
        driver(rows, 2)
    assert "stop one of the two" in caught.value.remedy
    driver(rows, 2)  # it is there
    assert [row.message_number for row in place.rows()] == list(range(100))
    assert spark.read.parquet(out).count() == 100
    assert list((place.out / "_attempts").iterdir()) == []
    # Spark may let both of them decide what the batch is, if both do in the same moment: then it is the first's
    offsets = place.checkpoint / "offsets" / "2"
    offsets.write_text(offsets.read_text().replace("100", "99"))
    offsets.with_name(".2.crc").unlink(missing_ok=True)
    with pytest.raises(PipelineError, match="has other messages than this query's batch 2"):
        driver(rows, 2)


@pytest.mark.nightly
def test_several_queues_or_those_of_a_pattern_are_landed_in_one_table(
    spark: SparkSession, place: Place, orders: FakeServer
):
    orders.create("returns")
    orders.append("returns", 0, [record(i) for i in range(3)])
    place.run(queue="orders,returns", options={})
    counted = {row.queue: row["count"] for row in place.frame().groupBy("queue").count().collect()}
    assert counted == {"orders": 100, "returns": 3}
    with pytest.raises(OffsetRefused, match="does not belong to queue 'others'"):
        settle(spark, orders.url, str(place.checkpoint), queues=["others"])
    place.out, place.checkpoint = place.out.with_name("matched"), place.checkpoint.with_name("other")
    place.run(queue="", options={"queuePattern": "ord.*|ret.*"})
    orders.create("retours")
    orders.append("retours", 0, [record(i) for i in range(4)])
    place.run(queue="", options={"queuePattern": "ord.*|ret.*"})
    counted = {row.queue: row["count"] for row in place.frame().groupBy("queue").count().collect()}
    assert counted == {"orders": 100, "returns": 3, "retours": 4}
    stood = settle(spark, orders.url, str(place.checkpoint))
    assert stood == {"orders": {0: 100}, "returns": {0: 3}, "retours": {0: 4}}
    name = reader_of(spark, str(place.checkpoint))
    cursors = {queue: orders.queues[queue].cursors[name] for queue in stood}
    assert cursors == {"orders": {"0": 100}, "returns": {"0": 3}, "retours": {"0": 4}}


def test_whatever_a_body_holds_is_one_row_and_the_others_go_on(spark: SparkSession, server: FakeServer, place: Place):
    place.kind = "parquet"
    bodies = ["<o><ok>1</ok></o>", *POISON, *ODD, "<o><ok>0</ok></o>"]
    server.create("wild")
    server.append("wild", 0, [record(number, body) for number, body in enumerate(bodies)])
    batches: list[LandedBatch] = []
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")  # it is not what a text without a zone is in
    try:
        place.run(queue="wild", schema=WILD, on_batch=batches.append, options={"maxRowsPerBatch": "1000"})
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    # PySpark makes no datetime of a time on the first day of the year 1
    rows = place.frame().drop("at").orderBy("offset").collect()
    assert batches == [LandedBatch(0, len(bodies), len(POISON), ("wild", 0, 1, rows[1].corrupt_record))]
    assert [row.body for row in rows] == bodies
    assert (rows[0].ok, rows[0].corrupt_record, rows[-1].ok, rows[-1].corrupt_record) == (True, None, False, None)
    for row in rows[1 : len(POISON) + 1]:
        assert row.corrupt_record.startswith(POISON[row.body])
    texts = place.frame().selectExpr(
        "body", *(f"string({name}) AS {name}" for name in {name for name, _ in ODD.values()})
    )
    assert {row.body: row[ODD[row.body][0]] for row in texts.collect() if row.body in ODD} == {
        body: text for body, (_, text) in ODD.items()
    }
    # other readers of Parquet find the same times
    (file,) = (place.out / "batch=0").glob("*.parquet")
    assert pq.ParquetFile(file).schema_arrow.field("at").type == pa.timestamp("us", tz="UTC")


@pytest.mark.nightly
def test_landed_rows_are_read_again_by_another_schema_and_the_landing_goes_on_there(
    spark: SparkSession, place: Place, orders: FakeServer
):
    place.kind = "parquet"
    orders.append(
        "orders",
        0,
        [record(100, "<order><id/><city>Åre</city></order>"), record(101, "<order><id>2147483648</id></order>")],
    )
    place.run()
    flagged = place.frame().where("corrupt_record IS NOT NULL").orderBy("offset").collect()
    assert [(row.offset, row.corrupt_record) for row in flagged] == [
        (100, "id: '' is empty"),
        (101, "id: '2147483648' is not an integer of 32 bits"),
    ]
    before = place.rows()
    again: list[LandedBatch] = []
    out = place.out.with_name("again")
    wider = "id BIGINT, city STRING"
    with pytest.raises(ConfigurationError, match=r"id would become smallint, but is int in the landed rows") as caught:
        place.run(schema="id SMALLINT")
    assert "holdfast reland" in caught.value.remedy
    place.run(schema="city STRING, more STRING")  # nothing new to land
    orders.append("orders", 0, [record(102, "<order><id>2147483649</id></order>")])
    place.run(schema=wider)  # a landing may go on by a wider type
    assert [row.id for row in place.rows()] == [*range(100), None, None, 2**31 + 1]
    before = place.rows()
    for _ in range(2):  # may be run again
        again.clear()
        reland(spark, str(place.out), str(out), schema=wider, lenient=["empty"], on_batch=again.append)
        assert again == [LandedBatch(i, rows, 0, None) for i, rows in enumerate((40, 40, 22, 1))]
    assert place.rows() == before
    for how, what in (
        ({"schema": "id STRING", "lenient": ["empty"]}, "another schema"),
        ({"schema": wider}, "another leniency"),
        ({"schema": wider, "lenient": ["empty"], "max_elements": 9}, "another limit of elements"),
        ({"schema": "b_id BIGINT, b_city STRING", "prefix": "b_"}, "another schema, prefix, leniency"),
    ):  # what is there would be kept as it is
        with pytest.raises(ConfigurationError, match=f"{what}, and these rows are not parsed again") as caught:
            reland(spark, str(place.out), str(out), **how)
        assert "another directory" in caught.value.remedy
    shutil.copytree(place.out, out.with_name("landed-twice"))
    with pytest.raises(ConfigurationError, match="landed by something else"):
        reland(spark, str(place.out), str(out.with_name("landed-twice")), schema=wider)
    orders.append("orders", 0, [record(103, "<order><id>2147483650</id></order>")])
    place.out, place.kind = out, None  # a table of Delta, as all that are new
    place.run(schema=wider)
    rows = place.rows()
    assert [row.id for row in rows] == [*range(100), None, 2**31, 2**31 + 1, 2**31 + 2]
    assert [row.batch for row in rows] == [i // 40 for i in range(102)] + [3, 4]
    assert [row.received_at for row in rows[:103]] == [row.received_at for row in before]
    # nothing is overwritten that is not the same
    for landed, why in ((place.out, "is where they are from"), (out.with_name("landed"), "holds batch 4")):
        with pytest.raises(ConfigurationError, match=why):
            reland(spark, str(landed), str(out), schema=wider)
    with pytest.raises(ConfigurationError, match="nothing has been landed"):
        reland(spark, str(out.with_name("none")), str(out), schema=wider)


@pytest.mark.nightly
def test_a_queue_is_landed_in_a_delta_table_by_day_once_wherever_its_driver_dies(
    spark: SparkSession, place: Place, orders: FakeServer
):
    deltalake = pytest.importorskip("deltalake", reason="deltalake is not installed: pip install 'holdfast[spark]'")
    batches: list[LandedBatch] = []
    how: dict[str, Any] = {"by_day": "delivered", "on_batch": batches.append}
    place.run(**how)
    # as if the driver had died after the last batch was in the table, before that was noted
    for path in (place.checkpoint / "commits").glob("*2*"):
        path.unlink()
    orders.append("orders", 0, [record(100, "<order><id>100</id><more>1</more></order>"), record(101, "<order")])
    place.run(**how, schema=f"{ORDER.toDDL()}, more INT")
    assert [batch.batch for batch in batches] == [0, 1, 2, 2, 3]
    assert [batch.rows for batch in batches] == [40, 40, 20, 20, 2]
    rows = place.rows()
    assert [(row.message_number, row.batch) for row in rows] == [(i, 3 if i > 99 else i // 40) for i in range(102)]
    assert [(row.id, row.more) for row in rows[98:101]] == [(98, None), (99, None), (100, 1)]
    assert batches[-1].first_flagged == ("orders", 0, 101, rows[101].corrupt_record)
    table = deltalake.DeltaTable(str(place.out)).to_pyarrow_table()
    assert sorted(table["message_number"].to_pylist()) == list(range(102))
    assert set(table["delivered_day"].to_pylist()) == {row.delivered_at.date() for row in rows}
    with pytest.raises(ConfigurationError, match="is a delta table, not a parquet one"):
        place.run(table="parquet")
    with pytest.raises(ConfigurationError, match="id would become string, but is int"):
        place.run(**how, schema="id STRING")
    again = place.out.with_name("again")
    reland(spark, str(place.out), str(again), schema="id STRING", by_day="received")
    read = read_landed(spark, str(again)).orderBy("message_number").collect()
    assert [row.id for row in read] == [*map(str, range(101)), None]
    assert {row.received_day for row in read} == {row.received_at.date() for row in rows}
    shutil.rmtree(place.checkpoint)
    with pytest.raises(ConfigurationError, match="its batches would start at 0"):
        place.run(**how)


@pytest.mark.nightly
def test_further_columns_of_the_messages_are_landed_if_asked_for(
    spark: SparkSession, place: Place, orders: FakeServer, tmp_path: Path
):
    place.run(schema=None)
    block = b"<k xmlns='urn:k'>v</k>"
    orders.append("orders", 0, [record(100, to="http://shop/", relates_to="urn:uuid:7", headers=block)])
    also = ("headers", "to", "relates_to")
    place.run(schema="city STRING", also=also)  # an earlier landing goes on
    rows = place.rows()
    assert [rows[100][name] for name in also] == [block.decode(), "http://shop/", "urn:uuid:7"]
    assert [rows[0][name] for name in also] == [None, None, None]
    again = str(tmp_path / "again")
    reland(spark, str(place.out), again, schema="id INT", also=["to"])
    assert [row.to for row in read_landed(spark, again).where("id >= 99").orderBy("id").collect()] == [
        None,
        "http://shop/",
    ]
    with pytest.raises(ConfigurationError, match="has no column 'reply_to'"):
        reland(spark, str(place.out), str(tmp_path / "more"), also=["reply_to"])
    with pytest.raises(ConfigurationError, match="'sent_at' is not a column for also"):
        place.run(also=["sent_at"])
    with pytest.raises(ConfigurationError, match="would have the name 'to'"):
        place.run(schema="to STRING", also=["to"])


def test_days_and_tables_that_there_are_not_are_refused(spark: SparkSession, place: Place):
    with pytest.raises(ConfigurationError, match="no day called 'sent'"):
        place.run(by_day="sent")
    with pytest.raises(ConfigurationError, match="two landed columns would have the name 'delivered_day'"):
        place.run(by_day="delivered", schema="Delivered_Day DATE")
    with pytest.raises(ConfigurationError, match="no table of kind 'orc'"):
        place.run(table="orc")


def test_the_fields_and_the_element_of_a_landing_may_come_from_an_xml_schema(
    spark: SparkSession, server: FakeServer, place: Place, tmp_path: Path
):
    file = tmp_path / "order.xsd"
    file.write_text(ORDERS_XSD)
    namespace = "xmlns='urn:shop' xmlns:xsi='http://www.w3.org/2001/XMLSchema-instance'"
    server.create("shop")
    texts = [
        f"<order {namespace} id='7'><line>a</line><line><![CDATA[<b>]]>&amp;</line><paid xsi:nil='true'/></order>",
        f"<order {namespace} id='8'><paid>2.50</paid></order>",
        f"<bill {namespace}/>",
    ]
    server.append("shop", 0, [record(number, text) for number, text in enumerate(texts)])
    arguments = dict.fromkeys(("schema", "schema_file"), None) | {"prefix": "", "lenient": (), "max_elements": 100}
    place.run("shop", **reading(arguments | {"also": (), "element": "order", "xsd": file}))
    first, second, third = place.rows()
    assert (first.id, first.line, first.paid, first.corrupt_record) == (7, ["a", "<b>&"], None, None)
    assert (second.id, second.line, second.paid, second.corrupt_record) == (8, None, Decimal("2.50"), None)
    assert (third.id, "order" in third.corrupt_record) == (None, True)
    with pytest.raises(ConfigurationError, match="declares 2 elements"):
        reading(arguments | {"also": (), "element": "", "xsd": file})


ORDERS_XSD = """<xs:schema xmlns:xs="http://www.w3.org/2001/XMLSchema" targetNamespace="urn:shop"
  elementFormDefault="qualified">
 <xs:element name="order"><xs:complexType>
  <xs:sequence>
   <xs:element name="line" type="xs:string" minOccurs="0" maxOccurs="unbounded"/>
   <xs:element name="paid" nillable="true" minOccurs="0">
    <xs:simpleType><xs:restriction base="xs:decimal"><xs:totalDigits value="6"/><xs:fractionDigits value="2"/>
    </xs:restriction></xs:simpleType></xs:element>
  </xs:sequence>
  <xs:attribute name="id" type="xs:int"/>
 </xs:complexType></xs:element>
 <xs:element name="bill"/>
</xs:schema>"""


@pytest.mark.parametrize(
    ("out", "checkpoint", "told"),
    [
        ("a", "a", "same directory"),
        ("a", "a/", "same directory"),
        ("a", "file:{}/b/../a", "same directory"),
        ("a", "a/_checkpoint", "the checkpoint is inside"),
        ("a", "link/checkpoint", "the checkpoint is inside"),
        ("a b/out", "a b", "the table is inside"),
        ("a", "ab", ""),
        ("a/out", "a/checkpoint", ""),
    ],
)
def test_a_table_and_its_checkpoint_are_in_separate_directories(
    spark: SparkSession, tmp_path: Path, out: str, checkpoint: str, told: str
):
    (tmp_path / "a").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "a")
    place = checkpoint.format(tmp_path) if checkpoint.startswith("file:") else f"{tmp_path}/{checkpoint}"
    if not told:
        refuse_nested(spark, str(tmp_path / out), place)
        return
    with pytest.raises(ConfigurationError, match=told) as caught:
        land(spark, "http://b", "orders", str(tmp_path / out), checkpoint=place)
    assert f"such as {tmp_path / out}.checkpoint" in caught.value.remedy
    assert [one.name for one in tmp_path.iterdir()] in (["a", "link"], ["link", "a"])


def test_an_empty_table_is_reported(spark: SparkSession, tmp_path: Path):
    with pytest.raises(ConfigurationError, match="nothing has been landed"):
        read_landed(spark, str(tmp_path / "landed"))
    assert settle(spark, "http://127.0.0.1:9", str(tmp_path / "checkpoint")) == {}


def test_each_checkpoint_has_a_reader_of_its_own_that_stays(spark: SparkSession, tmp_path: Path):
    one, other = (str(tmp_path / name) for name in ("one", "other"))
    name = reader_of(spark, one)
    assert ReadOptions.parse({"broker": "http://127.0.0.1:1", "reader": name}).reader == name
    assert reader_of(spark, other) != name
    assert reader_of(spark, one) == name
    (tmp_path / "one").rename(tmp_path / "moved")
    assert reader_of(spark, str(tmp_path / "moved")) == name


@pytest.mark.spark
def test_an_unreadable_schema_is_reported_with_a_remedy(spark: SparkSession, tmp_path: Path):
    with pytest.raises(ConfigurationError, match="'carrier STRNG' cannot be read") as caught:
        land(spark, "http://b", "orders", str(tmp_path / "o"), checkpoint=str(tmp_path / "c"), schema="carrier STRNG")
    assert "carrier STRING" in caught.value.remedy
