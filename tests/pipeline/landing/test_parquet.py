"""Landed directories: which of them count, and what is read of them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql.types import StructType

from holdfast.exceptions import ConfigurationError
from holdfast.pipeline.bodies.templates import nullable
from holdfast.pipeline.landing.compaction import compact
from holdfast.pipeline.landing.layout import DAYS, Layout
from holdfast.pipeline.landing.parquet import ParquetTable, Unit, counting
from holdfast.pipeline.landing.tables import read_landed, table_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LAYOUT = Layout(StructType.fromJson({"type": "struct", "fields": []}))


def unit(first: int, last: int | None = None, token: str = "aa") -> Unit:
    if last is None:
        return Unit(first, first, f"batch={first}", LAYOUT)
    return Unit(first, last, f"compacted={first}-{last}-{token}", LAYOUT)


@pytest.mark.parametrize(
    ("there", "count"),
    [
        ([unit(0), unit(1), unit(10)], [unit(0), unit(1), unit(10)]),
        ([unit(0), unit(0, 1), unit(1), unit(2)], [unit(0, 1), unit(2)]),
        ([unit(0, 3), unit(0, 1), unit(2, 3), unit(3)], [unit(0, 3)]),
        ([unit(0, 0), unit(0)], [unit(0, 0)]),
        ([unit(0, 1, "bb"), unit(0, 1, "aa")], [unit(0, 1, "aa")]),  # of two that raced, always the same
        ([unit(0, 2), unit(2, 4), unit(3), unit(4)], [unit(0, 2), unit(3), unit(4)]),
    ],
)
def test_each_batch_counts_once_wherever_its_rows_lie(there: list[Unit], count: list[Unit]):
    assert counting(there) == count
    assert counting(reversed(there)) == count


def test_a_layout_is_written_and_read_back_and_its_note_is_its_own():
    schema = StructType.fromJson(
        {"type": "struct", "fields": [{"name": "a", "type": "long", "nullable": True, "metadata": {}}]}
    )
    layouts = [Layout(schema), Layout(schema, "received_day"), LAYOUT]
    assert [Layout.parsed(layout.text()) for layout in layouts] == layouts
    assert len({layout.note for layout in layouts}) == 3


# --- with Spark -----------------------------------------------------------------------------------------------------


def rows(spark: SparkSession, batch: int, **fields: str) -> DataFrame:
    """Ten rows of a batch, an hour from each to the next, the first at 26 past midnight, in UTC."""
    from pyspark.sql import functions as F

    at = "timestamp_seconds(1357000000 + 3600 * offset)"
    given = {"partition": "0", "offset": f"{10 * batch} + id", **fields, "received_at": at, "delivered_at": at}
    made = spark.range(10).select((F.col("id") + 10 * batch).alias("offset"), "id")
    return made.select(*(F.expr(text).alias(name) for name, text in given.items() if name != "offset"), "offset")


def land(spark: SparkSession, out: Path, batch: int, day: str | None = None, **fields: str) -> None:
    made = rows(spark, batch, **fields)
    layout = Layout(nullable(made.schema), day)
    table = ParquetTable(spark, str(out))
    table.prepare(layout)
    table.write(made, batch, layout)


def offsets(frame: DataFrame) -> list[int]:
    return sorted(row.offset for row in frame.select("offset").collect())


@pytest.mark.spark
def test_fields_come_and_go_and_types_are_widened_and_all_is_one_table(spark: SparkSession, tmp_path: Path):
    out = tmp_path / "landed"
    land(spark, out, 0, n="int(id)", gone="'x'", inner="named_struct('a', int(id))")
    land(spark, out, 1, n="bigint(id)", inner="named_struct('b', 'new', 'a', bigint(id))", more="true")
    land(spark, out, 2, n="string(id)", inner="named_struct('a', bigint(7))")
    found = read_landed(spark, str(out)).orderBy("offset")
    assert dict(found.dtypes) == {
        "partition": "int",
        "offset": "bigint",
        "n": "string",
        "inner": "struct<a:bigint,b:string>",
        "more": "boolean",
        "gone": "string",
        "received_at": "timestamp",
        "delivered_at": "timestamp",
        "batch": "int",
    }
    taken = [(row.batch, row.n, tuple(row.inner), row.more, row.gone) for row in found.collect()[::10]]
    assert taken == [
        (0, "0", (0, None), None, "x"),
        (1, "0", (0, "new"), True, None),
        (2, "0", (7, None), None, None),
    ]
    with pytest.raises(ConfigurationError, match="n would become int, but is string"):
        land(spark, out, 3, n="int(id)")


@pytest.mark.spark
def test_rows_lie_by_the_day_in_utc_whatever_the_sessions_time_zone(spark: SparkSession, tmp_path: Path):
    out = tmp_path / "landed"
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        for batch in range(3):
            land(spark, out, batch, DAYS["delivered"], n="1")
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    assert sorted(path.name for path in (out / "batch=0").glob("*day=*")) == [
        "delivered_day=2013-01-01",
    ]
    found = read_landed(spark, str(out))
    assert found.where("delivered_day != to_date(delivered_at)").count() == 0
    days = {str(row[0]): row[1] for row in found.groupBy("delivered_day").count().collect()}
    assert days == {"2013-01-01": 24, "2013-01-02": 6}
    assert offsets(found) == list(range(30))
    with pytest.raises(ConfigurationError, match="would be not by day, but the landed rows are partitioned"):
        land(spark, out, 3, n="1")


@pytest.mark.spark
def test_a_parquet_table_only_grows_and_the_way_to_replace_its_rows_is_told(
    spark: SparkSession, tmp_path: Path
) -> None:
    out = tmp_path / "landed"
    land(spark, out, 0, n="1")
    made = rows(spark, 1, n="1")
    with pytest.raises(ConfigurationError, match="Holdfast only appends to it") as caught:
        table_of(spark, str(out), replaced=True)
    assert f"holdfast convert {out}" in caught.value.remedy
    with pytest.raises(ConfigurationError, match="Holdfast only appends to it"):
        ParquetTable(spark, str(out)).write(made, 1, Layout(made.schema), only=True)
    with pytest.raises(ConfigurationError, match="compacts only Delta tables") as caught:
        compact(spark, str(out))
    assert f"holdfast convert {out}" in caught.value.remedy
    assert offsets(read_landed(spark, str(out))) == list(range(10))
