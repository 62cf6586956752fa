"""Landing into a Delta table, seen by Spark and by Delta's own reader.

Covers pipeline/landing/layout.py and pipeline/landing/statistics.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from holdfast.client.errors import PipelineError
from holdfast.exceptions import ConfigurationError
from holdfast.pipeline.landing import delta
from holdfast.pipeline.landing.compaction import compact
from holdfast.pipeline.landing.delta import DeltaTable
from holdfast.pipeline.landing.layout import Layout
from holdfast.pipeline.landing.parquet import ParquetTable
from holdfast.pipeline.landing.tables import read_landed, table_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

deltalake: Any = pytest.importorskip("deltalake", reason="deltalake is not installed: pip install 'holdfast[spark]'")

pytestmark = pytest.mark.spark


def rows(spark: SparkSession, batch: int, n: str = "int(id)", more: str = "") -> DataFrame:
    at = f"timestamp_seconds(1357000000 + 36000 * ({10 * batch} + id)) AS delivered_at"
    made = spark.range(10).selectExpr(
        f"{10 * batch} + id AS offset", f"{n} AS n", "timestamp_ntz'2013-01-01 01:02:03' AS t", at
    )
    return made.selectExpr("*", more) if more else made


def land(table: DeltaTable, made: DataFrame, batch: int, day: str | None = None) -> None:
    """As landing does it."""
    layout = Layout(made.schema, day)
    table.prepare(layout)
    if not table.has(batch):
        table.write(made, batch, layout)


def seen_by_delta(out: Path) -> list[int]:
    return sorted(deltalake.DeltaTable(str(out)).to_pyarrow_table(columns=["offset"])["offset"].to_pylist())


@pytest.mark.nightly
@pytest.mark.parametrize("day", [None, "delivered_day"])
def test_each_batch_is_in_the_table_once_wherever_its_landing_ends(
    spark: SparkSession, tmp_path: Path, day: str | None, monkeypatch: pytest.MonkeyPatch
):
    out = tmp_path / "lan ded"
    table = DeltaTable(spark, str(out))
    table.prepare(Layout(rows(spark, 0).schema, day))
    assert table.begun() == ""  # made, but nothing is in it: a landing that was ended here begins again
    with pytest.raises(ConfigurationError, match="nothing has been landed"):
        table.read()
    land(table, rows(spark, 0), 0, day)
    assert table.begun()

    class Killed(Exception):
        pass

    def killed(*_: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(DeltaTable, "actions", killed)  # between the files and the log
        with pytest.raises(Killed):
            land(table, rows(spark, 1), 1, day)
    assert seen_by_delta(out) == list(range(10))
    for _ in range(2):  # and after the log, before Spark's own
        land(table, rows(spark, 1), 1, day)
    land(table, rows(spark, 2, more="true AS more"), 2, day)
    assert seen_by_delta(out) == list(range(30))
    for _ in range(2):
        found = read_landed(spark, str(out))
        assert sorted((row.offset, row.batch, row.n) for row in found.collect()) == [
            (i, i // 10, i % 10) for i in range(30)
        ]
        assert found.where("more").count() == 10
        if day:
            assert found.where("delivered_day = '2013-01-02'").count() > 0
            by_delta = deltalake.DeltaTable(str(out)).to_pyarrow_table(columns=["delivered_day", "delivered_at"])
            assert [str(d) for d in by_delta["delivered_day"].to_pylist()] == [
                str(at.date()) for at in by_delta["delivered_at"].to_pylist()
            ]
        done = compact(spark, str(out), keep=0)
        table = DeltaTable(spark, str(out))
    assert (done.replaced, done.made) == (0, 0)  # the second time
    assert table.has(2) and not table.has(3)
    assert seen_by_delta(out) == list(range(30))
    land(table, rows(spark, 3, more="true AS more"), 3, day)
    assert seen_by_delta(out) == list(range(40))
    assert table.numbers() == [0, 1, 2, 3]


@pytest.mark.parametrize("only", [False, pytest.param(True, marks=pytest.mark.nightly)])
@pytest.mark.parametrize(
    ("when", "how_far"),
    [
        pytest.param("write_rows", "in", marks=pytest.mark.nightly),
        pytest.param("actions", "in", marks=pytest.mark.nightly),
        ("actions", "written"),
        pytest.param("_is_in", "in", marks=pytest.mark.nightly),
    ],
)
def test_of_two_drivers_that_land_one_batch_at_a_time_one_does(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str, how_far: str, only: bool
):
    """As when one is cut off, and another was started in its place: which comes between any two of the first's steps,
    and commits, or dies just before that."""
    made = rows(spark, 1)
    table, layout = DeltaTable(spark, str(tmp_path)), Layout(made.schema)
    land(table, rows(spark, 0), 0)
    room: Any = DeltaTable if when == "actions" else delta
    real = getattr(room, when)

    class Killed(Exception):
        pass

    def killed(*_: Any) -> None:
        raise Killed

    def and_the_other(*given: Any) -> Any:
        done = real(*given)
        with monkeypatch.context() as patch:
            patch.setattr(room, when, real)
            if how_far == "in":
                DeltaTable(spark, str(tmp_path)).write(made, 1, layout, only=only)
            else:
                patch.setattr(DeltaTable, "actions", killed)
                with pytest.raises(Killed):
                    DeltaTable(spark, str(tmp_path)).write(made, 1, layout, only=only)
        return done

    with monkeypatch.context() as patch:
        patch.setattr(room, when, and_the_other)
        if how_far == "in":
            with pytest.raises(PipelineError, match="by another driver"):
                table.write(made, 1, layout, only=only)
        else:
            table.write(made, 1, layout, only=only)
            assert len(list((tmp_path / "rows" / "1").iterdir())) == 1
    first = 10 if only else 0
    assert seen_by_delta(tmp_path) == list(range(first, 20))
    assert sorted(row.offset for row in read_landed(spark, str(tmp_path)).collect()) == list(range(first, 20))
    land(table, rows(spark, 2), 2)
    assert seen_by_delta(tmp_path) == list(range(first, 30))


@pytest.mark.nightly
def test_a_table_that_each_batch_replaces_is_replaced_by_one_commit_also_by_nothing(
    spark: SparkSession, tmp_path: Path
):
    out = tmp_path / "landed"
    table = DeltaTable(spark, str(out))
    seen = []
    for batch in range(3):
        made = rows(spark, batch, more="true AS more") if batch == 1 else rows(spark, batch)
        layout = Layout(made.schema)
        table.prepare(layout)
        table.write(made, batch, layout, f"of {batch}", only=True)
        assert table.newest() == (batch, f"of {batch}")
        assert table.numbers() == [batch]
    for version in range(deltalake.DeltaTable(str(out)).version() + 1):
        then = deltalake.DeltaTable(str(out), version=version).to_pyarrow_table(columns=["offset"])["offset"]
        seen.append(sorted(then.to_pylist()))
    ten = [list(range(10 * batch, 10 * batch + 10)) for batch in range(3)]
    assert seen == [[], ten[0], ten[0], ten[1], ten[2]]  # made, a batch, a column, two batches
    assert len(list(out.glob("rows/*/*/*.parquet"))) > len(deltalake.DeltaTable(str(out)).file_uris())
    compact(spark, str(out), keep=0)
    assert len(list(out.rglob("*.parquet"))) == 1
    table.write(rows(spark, 3).where("false"), 3, Layout(rows(spark, 3).schema), only=True)
    assert seen_by_delta(out) == []
    assert table.has(3)
    assert read_landed(spark, str(out)).collect() == []


def test_what_others_have_put_into_a_table_is_not_replaced_by_the_first_batch(spark: SparkSession, tmp_path: Path):
    made = rows(spark, 0)
    deltalake.write_deltalake(str(tmp_path), pa.table({"offset": pa.array([77], pa.int64())}))
    table, layout = DeltaTable(spark, str(tmp_path)), Layout(made.schema)
    table.prepare(layout)
    with pytest.raises(ConfigurationError, match="has rows that others have put there"):
        table.write(made, 0, layout, only=True)
    assert seen_by_delta(tmp_path) == [77]


def test_what_a_delta_table_cannot_become_is_refused_with_the_way_out(spark: SparkSession, tmp_path: Path):
    out = tmp_path / "landed"
    table = DeltaTable(spark, str(out))
    land(table, rows(spark, 0), 0)
    for made, day, why in (
        (rows(spark, 1, "bigint(id)"), None, "n would become bigint, but is int"),
        (rows(spark, 1, "tinyint(id)"), None, "n would become tinyint, but is int"),
        (rows(spark, 1), "delivered_day", "is not partitioned, and cannot become partitioned by delivered_day"),
    ):
        with pytest.raises(ConfigurationError, match=why) as caught:
            table.prepare(Layout(made.schema, day))
        assert "holdfast reland" in caught.value.remedy
    assert isinstance(table_of(spark, str(out)), DeltaTable)
    with pytest.raises(ConfigurationError, match="is a delta table, not a parquet one"):
        table_of(spark, str(out), "parquet")
    made = rows(spark, 0)
    ParquetTable(spark, str(tmp_path / "p")).write(made, 0, Layout(made.schema))
    with pytest.raises(ConfigurationError, match="is a parquet table, not a delta one") as caught:
        table_of(spark, str(tmp_path / "p"), "delta")
    assert f"holdfast convert {tmp_path}/p" in caught.value.remedy
    assert (table_of(spark, str(tmp_path / "p")).kind, table_of(spark, str(tmp_path / "new")).kind) == (
        "parquet",
        "delta",
    )
    with pytest.raises(ConfigurationError, match="no table of kind 'orc'"):
        table_of(spark, str(tmp_path / "p"), "orc")


def test_a_struct_may_get_fields_in_lists_and_maps_too(spark: SparkSession, tmp_path: Path):
    table = DeltaTable(spark, str(tmp_path))
    for batch, one in enumerate(("named_struct('a', n)", "named_struct('z', 'z', 'a', n)", "named_struct('z', 'y')")):
        land(table, rows(spark, batch, more=f"map('k', array({one})) AS m"), batch)
    read = read_landed(spark, str(tmp_path)).where("offset IN (1, 11, 21)").orderBy("offset").selectExpr("m.k[0] AS o")
    assert [tuple(row.o) for row in read.collect()] == [(1, None), (1, "z"), (None, "y")]
    of_delta = deltalake.DeltaTable(str(tmp_path)).to_pyarrow_table()["m"].to_pylist()
    assert {tuple(sorted(one[0][1][0])) for one in of_delta} == {("a", "z")}


def test_without_deltalake_the_way_to_it_is_told(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(__import__("sys").modules, "deltalake", None)
    with pytest.raises(ConfigurationError, match="needs the package deltalake") as caught:
        DeltaTable(spark, str(tmp_path))
    assert "holdfast[spark]" in caught.value.remedy


def test_a_schema_is_needed_for_nothing_but_its_columns(spark: SparkSession, tmp_path: Path):
    table = DeltaTable(spark, str(tmp_path / "landed"))
    table.prepare(Layout(StructType(rows(spark, 0).schema.fields)))
    land(table, rows(spark, 0).where("false"), 0)  # a batch without rows
    assert table.has(0)
    land(table, rows(spark, 1), 1)
    assert seen_by_delta(tmp_path / "landed") == list(range(10, 20))


@pytest.mark.parametrize(("keep", "left"), [(0.0, 1), (0.5, 4), (1800.0, 4), (5400.0, 4)])
def test_what_is_replaced_is_kept_no_shorter_than_is_said(spark: SparkSession, tmp_path: Path, keep: float, left: int):
    """Delta counts in hours; who reads meanwhile has files open, or their names."""
    for number in range(3):
        deltalake.write_deltalake(str(tmp_path), pa.table({"n": [number]}), mode="append")
    assert DeltaTable(spark, str(tmp_path)).compact(1 << 20, keep) == (3, 1, 4 - left)
    assert len(list(tmp_path.glob("*.parquet"))) == left


def test_each_file_tells_its_least_and_greatest_values_and_a_reader_skips_by_them(spark: SparkSession, tmp_path: Path):
    out = tmp_path / "out"
    table = DeltaTable(spark, str(out))
    more = "nullif(concat('t', n), 't3') AS text"
    for batch in range(3):
        made = rows(spark, batch, more=more)
        made = made.selectExpr("*", "repeat('x', 95 + int(offset)) AS long", "timestamp_micros(offset - 1) AS fine")
        land(table, made.coalesce(1), batch)
    found = deltalake.DeltaTable(str(out)).get_add_actions(flatten=True)
    told = {row["min.offset"]: row for row in pa.table(found).to_pylist()}
    assert sorted(told) == [0, 10, 20]
    first = told[0]
    assert (first["num_records"], first["max.offset"], first["null_count.text"]) == (10, 9, 1)
    assert (first["min.text"], first["max.text"]) == ("t0", "t9")
    assert (first["min.fine"].isoformat(), first["max.fine"].isoformat()) == (
        "1969-12-31T23:59:59.999000+00:00",  # a millisecond: no value is outside
        "1970-01-01T00:00:00.001000+00:00",
    )
    assert (first.get("min.long"), first["null_count.long"]) == (None, 0)
    (tmp_path / "gone").mkdir()
    for path in (out / "rows").rglob("*.parquet"):  # a reader of the last batch needs no other file
        if "rows/2/" not in path.as_posix():
            path.rename(tmp_path / "gone" / path.name)
    read = deltalake.DeltaTable(str(out)).to_pyarrow_dataset().to_table(filter=pa.compute.field("offset") >= 20)
    assert sorted(read["offset"].to_pylist()) == list(range(20, 30))


def test_an_empty_batch_makes_no_commit_on_request(spark: SparkSession, tmp_path: Path):
    table, made = DeltaTable(spark, str(tmp_path)), rows(spark, 0)
    table.prepare(Layout(made.schema))
    table.write(made.where("false"), 0, Layout(made.schema), if_any=True)
    assert (table.newest(), deltalake.DeltaTable(str(tmp_path)).version()) == (None, 0)
    assert list((tmp_path / "rows").iterdir()) == []
    table.write(made, 1, Layout(made.schema), if_any=True)
    assert seen_by_delta(tmp_path) == list(range(10))


def test_a_table_is_found_by_its_url_too(spark: SparkSession, tmp_path: Path):
    url, made = f"file:{tmp_path}/lan ded", rows(spark, 0)
    land(DeltaTable(spark, url), made, 0)
    assert read_landed(spark, url).count() == 10
    assert seen_by_delta(next(path for path in tmp_path.iterdir())) == list(range(10))
