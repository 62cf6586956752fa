"""Parquet tables of this version and of older ones become Delta tables, wherever a conversion is killed.

Covers pipeline/landing/conversion.py and pipeline/jobs/convert.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from older import unpack
from pyspark.sql.types import StructType

from holdfast.client.errors import PipelineError
from holdfast.exceptions import ConfigurationError
from holdfast.pipeline.jobs import convert as convert_job
from holdfast.pipeline.landing import conversion
from holdfast.pipeline.landing.conversion import Conversion, convert
from holdfast.pipeline.landing.delta import DeltaTable
from holdfast.pipeline.landing.layout import Layout
from holdfast.pipeline.landing.parquet import ParquetTable
from holdfast.pipeline.landing.tables import read_landed, table_of
from holdfast.pipeline.spark import files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

deltalake: Any = pytest.importorskip("deltalake", reason="deltalake is not installed: pip install 'holdfast[spark]'")


class Killed(BaseException):
    """No handler for errors runs, as after kill -9."""


def rows(spark: SparkSession, batch: int, n: str = "int(id)") -> DataFrame:
    text = "timestamp_ntz'0001-01-01 00:00:00' AS t"
    return spark.range(10).selectExpr(f"{10 * batch} + id AS offset", f"{n} AS n", text)


def land(spark: SparkSession, out: Path, batch: int, n: str = "int(id)") -> None:
    made = rows(spark, batch, n)
    table = table_of(spark, str(out), None if out.exists() else "parquet")
    table.prepare(Layout(made.schema))
    table.write(made, batch, Layout(made.schema), f"of {batch}")


def found(frame: DataFrame, *names: str) -> list[tuple[Any, ...]]:
    return sorted(map(tuple, frame.selectExpr(*names).collect()))


def whole(batches: int) -> list[tuple[int, int, str]]:
    return [(i, i // 10, str(i % 10)) for i in range(10 * batches)]


SEEN = ("offset", "batch", "string(n)")


def left(out: Path) -> list[str]:
    return sorted(path.name for path in out.iterdir())


@pytest.mark.nightly
@pytest.mark.spark
def test_batches_of_several_schemas_become_one_table_that_a_landing_continues(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "lan ded"
    for batch in range(3):
        land(spark, out, batch, "int(id)" if batch < 2 else "bigint(id)")
    before = found(read_landed(spark, str(out)), *SEEN, "string(t)")
    monkeypatch.setattr(conversion, "STEP", 1)
    steps: list[tuple[int, int, int]] = []
    assert convert(spark, str(out), on_step=lambda *step: steps.append(step)) == Conversion(30, 30, 3)
    assert steps == [(0, 0, 10), (1, 1, 10), (2, 2, 10)]
    assert found(read_landed(spark, str(out)), *SEEN, "string(t)") == before
    assert left(out) == ["_delta_log", "rows"]
    table = table_of(spark, str(out))
    assert (table.kind, table.newest()) == ("delta", (2, "of 2"))
    land(spark, out, 3, "bigint(id)")
    assert convert(spark, str(out)) == Conversion(0, 0, 0)
    assert found(read_landed(spark, str(out)), *SEEN) == whole(4)
    by_delta = deltalake.DeltaTable(str(out)).to_pyarrow_table(columns=["offset"])
    assert sorted(by_delta["offset"].to_pylist()) == list(range(40))
    with pytest.raises(ConfigurationError, match="nothing has been landed"):
        convert(spark, str(tmp_path / "none"))


def dies(where: Any, name: str, after: int = 0, *, later: bool = False) -> Callable[[pytest.MonkeyPatch], None]:
    """Kill the conversion at a call, before or after it is done."""

    def set_up(patch: pytest.MonkeyPatch) -> None:
        real, calls = getattr(where, name), []

        def call(*arguments: Any, **more: Any) -> Any:
            calls.append(name)
            if len(calls) <= after:
                return real(*arguments, **more)
            if later:
                real(*arguments, **more)
            raise Killed

        patch.setattr(where, name, call)

    return set_up


@pytest.mark.nightly
@pytest.mark.spark
@pytest.mark.parametrize(
    ("death", "is_done"),
    [
        pytest.param(dies(conversion, "write_rows", 1), False, id="in the copy", marks=pytest.mark.nightly),
        pytest.param(dies(DeltaTable, "actions", 1), False, id="after the copy", marks=pytest.mark.nightly),
        pytest.param(dies(DeltaTable, "commit"), False, id="before the commit"),
        pytest.param(dies(DeltaTable, "commit", later=True), True, id="after the commit", marks=pytest.mark.nightly),
        pytest.param(dies(files, "delete", 1), True, id="deleting", marks=pytest.mark.nightly),
        pytest.param(dies(files, "delete", 2, later=True), True, id="deleting more", marks=pytest.mark.nightly),
    ],
)
def test_a_reader_after_a_kill_sees_the_whole_old_or_the_whole_new_table(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    death: Callable[[pytest.MonkeyPatch], None],
    is_done: bool,
) -> None:
    out = tmp_path / "landed"
    for batch in range(3):
        land(spark, out, batch)
    monkeypatch.setattr(conversion, "STEP", 1)
    with monkeypatch.context() as patch:
        death(patch)
        with pytest.raises(Killed):
            convert(spark, str(out))
    assert table_of(spark, str(out)).kind == ("delta" if is_done else "parquet")
    assert found(read_landed(spark, str(out)), *SEEN) == whole(3)
    if not is_done:  # the landing may continue before the next attempt
        land(spark, out, 3)
    batches = 3 if is_done else 4
    done = convert(spark, str(out))
    assert (done.before, done.rows) == ((0, 0) if is_done else (40, 40))
    assert left(out) == ["_delta_log", "rows"]
    assert len(list((out / "rows").iterdir())) == 1
    assert found(read_landed(spark, str(out)), *SEEN) == whole(batches)


@pytest.mark.nightly
@pytest.mark.spark
def test_a_batch_that_is_landed_during_a_conversion_is_in_one_of_both_tables(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "landed"
    for batch in range(2):
        land(spark, out, batch)
    made = rows(spark, 2)
    real = DeltaTable.actions

    def and_a_batch(*arguments: Any) -> Any:
        land(spark, out, 2)
        return real(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(DeltaTable, "actions", and_a_batch)
        with pytest.raises(PipelineError, match=r"a batch was added while .* still is the Parquet table") as caught:
            convert(spark, str(out))
    assert "stop the landing" in caught.value.remedy
    assert not (out / "_delta_log").exists()
    assert list((out / "rows").iterdir()) == []
    assert found(read_landed(spark, str(out)), *SEEN) == whole(3)

    landing = ParquetTable(spark, str(out))  # of a driver that still runs
    commit = DeltaTable.commit

    def after_one_more(*arguments: Any, **more: Any) -> None:
        landing.write(rows(spark, 3), 3, Layout(made.schema), "of 3")
        commit(*arguments, **more)

    with monkeypatch.context() as patch:
        patch.setattr(DeltaTable, "commit", after_one_more)
        patch.setattr(conversion, "_forget", lambda *_: 0)
        assert convert(spark, str(out)) == Conversion(30, 30, 0)
    assert convert(spark, str(out)) == Conversion(10, 10, 4)
    assert found(read_landed(spark, str(out)), *SEEN) == whole(4)
    with pytest.raises(PipelineError, match="was converted into a Delta table while batch 4 was written"):
        landing.write(rows(spark, 4), 4, Layout(made.schema))
    assert left(out) == ["_attempts", "_delta_log", "rows"]


@pytest.mark.nightly
@pytest.mark.spark
@pytest.mark.parametrize("name", ["plain", "by-day"])
def test_a_table_that_an_older_version_compacted_is_read_continued_and_converted(
    spark: SparkSession, tmp_path: Path, name: str
) -> None:
    unpack("compacted", tmp_path)
    out = tmp_path / name
    assert found(read_landed(spark, str(out)), *SEEN) == whole(7)
    table = table_of(spark, str(out))
    assert isinstance(table, ParquetTable)
    assert [table.has(batch) for batch in (0, 3, 6, 7)] == [True, True, True, False]
    (newest,) = [unit for unit in table.units() if unit.last == 6]
    more = read_landed(spark, str(out)).where("batch = 6").selectExpr("* EXCEPT (offset)", "offset + 10 AS offset")
    table.prepare(newest.layout)
    table.write(more.select(*newest.layout.schema.names), 7, newest.layout)
    assert found(read_landed(spark, str(out)), *SEEN) == whole(8)
    before = found(read_landed(spark, str(out)), "*")
    assert convert(spark, str(out)) == Conversion(80, 80, 9)
    assert left(out) == ["_delta_log", "rows"]
    assert found(read_landed(spark, str(out)), "*") == before
    by_day = deltalake.DeltaTable(str(out)).metadata().partition_columns
    assert by_day == (["delivered_day"] if name == "by-day" else [])


@pytest.mark.nightly
@pytest.mark.spark
def test_a_table_that_lies_by_kind_becomes_one_with_the_kind_as_a_column(spark: SparkSession, tmp_path: Path) -> None:
    """As a reassembling stream of an older version wrote it."""
    made = spark.range(10).selectExpr("id AS offset", "if(id < 5, 'message', 'state') AS kind")
    layout = Layout(StructType([made.schema["offset"]]), "kind")
    ParquetTable(spark, str(tmp_path)).write(made, 0, layout)
    convert(spark, str(tmp_path))
    assert found(read_landed(spark, str(tmp_path)).where("kind = 'state'"), "offset") == [(i,) for i in range(5, 10)]


def test_the_command_prints_the_rows_before_and_after_of_each_table(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def converted(_: Any, out: str, on_step: Any) -> Conversion:
        on_step(0, 3, 40)
        return done

    done = Conversion(40, 40, 4)
    monkeypatch.setattr(convert_job, "command_session", lambda *_, **__: nullcontext())
    monkeypatch.setattr(conversion, "convert", converted)
    tables = [str(tmp_path / "one"), f"file:{tmp_path}/two"]
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    result = CliRunner().invoke(convert_job.convert_command, [*tables, "--json"])
    assert result.exit_code == 0, result.output
    told = [json.loads(line) for line in result.stdout.splitlines()]
    assert told[0] == {"event": "copied", "first_batch": 0, "last_batch": 3, "rows": 40}
    end = {"event": "converted", "rows_before": 40, "rows_after": 40, "deleted": 4}
    assert [told[1], told[3]] == [{**end, "directory": name} for name in tables]
    done = Conversion(0, 0, 1)
    result = CliRunner().invoke(convert_job.convert_command, tables[:1])
    assert f"{tables[0]} is a Delta table: no rows to copy; 1 old directory deleted" in result.output
    result = CliRunner().invoke(convert_job.convert_command, [str(tmp_path / "three")])
    assert (result.exit_code, "nothing has been landed" in str(result.exception)) == (1, True)
