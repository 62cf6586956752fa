"""Landed directories: which of them count, and what is read of them."""

from __future__ import annotations

import os
import random
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.types import StructType

from holdfast.exceptions import ConfigurationError
from holdfast.pipeline.bodies.templates import nullable
from holdfast.pipeline.landing import compaction
from holdfast.pipeline.landing.compaction import Compaction, block_of, compact, groups
from holdfast.pipeline.landing.directories import DAYS, Layout, ParquetTable, Unit, complete, counting, write_rows
from holdfast.pipeline.landing.tables import read_landed
from holdfast.pipeline.spark import files

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


def directories(out: Path) -> list[str]:
    return sorted(path.name for path in out.iterdir())


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
    with pytest.raises(ConfigurationError, match="n is to be int, but is string"):
        land(spark, out, 3, n="int(id)")
    # rows of different types are compacted each with their like
    land(spark, out, 3, n="string(id)", inner="named_struct('a', bigint(7))")
    land(spark, out, 4, n="string(id)", inner="named_struct('a', bigint(7))")
    land(spark, out, 5, n="string(id)", inner="named_struct('a', bigint(7))")
    land(spark, out, 6, n="string(id)", inner="named_struct('a', bigint(7))")
    before = read_landed(spark, str(out)).orderBy("offset").collect()
    assert compact(spark, str(out)) == Compaction(4, 2, 0)  # 2 and 3, 4 and 5: 0 and 1 differ, 6 is the newest
    assert read_landed(spark, str(out)).orderBy("offset").collect() == before


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
    for _ in range(2):
        found = read_landed(spark, str(out))
        assert found.where("delivered_day != to_date(delivered_at)").count() == 0
        days = {str(row[0]): row[1] for row in found.groupBy("delivered_day").count().collect()}
        assert days == {"2013-01-01": 24, "2013-01-02": 6}
        assert offsets(found) == list(range(30))
        compact(spark, str(out))
    assert [path.name for path in next(out.glob("compacted=*")).glob("*day=*")]
    with pytest.raises(ConfigurationError, match="to be not by day, but are partitioned by delivered_day"):
        land(spark, out, 3, n="1")


@pytest.mark.spark
def test_compaction_is_seen_at_once_or_not_at_all_wherever_it_ends(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    out = tmp_path / "landed"
    for batch in range(5):
        land(spark, out, batch, n="1")
    table = ParquetTable(spark, str(out))

    def whole() -> None:
        assert offsets(table.read()) == list(range(10 * (max(table.numbers()) + 1)))

    class Killed(Exception):
        pass

    def killed(*_: Any) -> None:
        raise Killed

    for dies_at in ("write_rows", "note", "_swept"):
        with monkeypatch.context() as patch:
            patch.setattr(compaction, dies_at, killed)
            with pytest.raises(Killed):
                compact(spark, str(out))
        whole()
    assert len(list(out.glob("compacted=*"))) == 1
    assert list(out.glob("_attempts/*")) == []
    assert [unit.first for unit in counting(ParquetTable(spark, str(out)).units())] == [0, 4]
    # the landing goes on
    land(spark, out, 5, n="1")
    land(spark, out, 6, n="1")
    whole()
    # what was replaced is there as long as somebody may be reading it
    reading = spark.read.parquet(str(out / "batch=0"))
    assert compact(spark, str(out)) == Compaction(2, 1, 0)
    assert reading.count() == 10
    whole()
    assert compact(spark, str(out), keep=0) == Compaction(0, 0, 6)
    whole()
    assert [name[:13] for name in directories(out)] == ["_attempts", "batch=6", "compacted=0-3", "compacted=4-5"]
    assert list(out.glob(".*")) == []
    # what a compaction that was killed has left is deleted when nobody can be writing it any more
    left = out / "_attempts" / "compacted=4-7-aa-bb"
    left.mkdir()
    assert compact(spark, str(out), keep=0).deleted == 0
    os.utime(left, (0, 0))
    assert compact(spark, str(out), keep=0).deleted == 1
    whole()


@pytest.mark.spark
def test_what_is_large_is_left_alone_and_gaps_are_kept(spark: SparkSession, tmp_path: Path):
    out = tmp_path / "landed"
    for batch in (0, 1, 3, 4, 5, 8):
        land(spark, out, batch, n="1")
    size = files.size(spark, str(out / "batch=3"))
    made: list[str] = []
    assert compact(spark, str(out), target=5 * size // 2, on_made=made.append) == Compaction(4, 2, 0)
    assert [name[:13] for name in made] == ["compacted=0-1", "compacted=4-5"]
    assert compact(spark, str(out), target=100 * size, on_made=made.append) == Compaction(3, 1, 0)
    assert made[2].startswith("compacted=0-7-")
    assert offsets(read_landed(spark, str(out))) == [10 * batch + i for batch in (0, 1, 3, 4, 5, 8) for i in range(10)]
    assert compact(spark, str(out), target=1).made == 0
    with pytest.raises(ConfigurationError, match="nothing has been landed"):
        compact(spark, str(tmp_path / "none"))


def test_blocks_that_are_put_together_are_nested_or_apart_whatever_each_run_saw_and_wants():
    """So no directory is deleted for the sake of one that holds a part of it only, and another run deletes in turn."""
    chance = random.Random(7)
    made: set[tuple[int, int]] = set()
    for _ in range(300):
        there = sorted(chance.sample(range(70), chance.randint(1, 60)))
        seen = [one for one in sorted(made) if one[1] < there[-1] and chance.random() < 0.2]
        units = counting([unit(one) for one in there] + [unit(*one) for one in seen])
        sizes = {one.name: chance.randint(1, 50) for one in units}
        for group in groups(units, sizes, chance.choice([20, 100, 1000])):
            first, last = block_of(group)
            assert len(group) > 1
            assert first <= group[0].first and group[-1].last <= last < units[-1].first
            made.add((first, last))
    assert len(made) > 20
    for one in made:
        assert all(one[1] < other[0] or other[1] < one[0] or contains(one, other) for other in made)


def contains(one: tuple[int, int], other: tuple[int, int]) -> bool:
    spans = sorted((one, other), key=lambda span: span[1] - span[0])
    return spans[1][0] <= spans[0][0] and spans[0][1] <= spans[1][1]


@pytest.mark.spark
def test_compactions_that_run_at_a_time_and_keep_nothing_lose_and_double_no_row(spark: SparkSession, tmp_path: Path):
    """Each wants directories of another size, while rows are landed."""
    out = tmp_path / "landed"
    for batch in range(9):
        land(spark, out, batch, n="1")
    size = files.size(spark, str(out / "batch=3"))
    failed: list[Exception] = []

    def run(target: int) -> None:
        for _ in range(3):
            try:
                compact(spark, str(out), target=target, keep=0)
            except Exception as error:  # what it reads is deleted under it, as it was told that nobody reads
                failed.append(error)

    threads = [threading.Thread(target=run, args=(target * size,)) for target in (3, 5, 9)]
    for thread in threads:
        thread.start()
    for batch in range(9, 12):
        land(spark, out, batch, n="1")
    for thread in threads:
        thread.join()
    assert offsets(read_landed(spark, str(out))) == list(range(120))
    gone = ("not exist", "FILE_NOT_EXIST", "UNABLE_TO_INFER_SCHEMA")  # as Spark looks at it before, while or after
    assert [str(error)[:500] for error in failed if not any(words in str(error) for words in gone)] == []
    compact(spark, str(out), keep=0)
    compact(spark, str(out), keep=0)
    assert offsets(read_landed(spark, str(out))) == list(range(120))
    assert sorted(path.name.rpartition("-")[0] or path.name for path in out.glob("*=*")) == [
        "batch=10",
        "batch=11",
        "compacted=0-7",
        "compacted=8-9",
    ]


@pytest.mark.spark
@pytest.mark.parametrize("step", ["names", "read_text"])
def test_who_looks_while_what_was_just_listed_is_compacted_and_deleted_misses_nothing(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
):
    out = tmp_path / "landed"
    for batch in range(3):
        land(spark, out, batch, n="1")
    look = getattr(files, step)

    def late(session: SparkSession, place: str) -> Any:
        if "/batch=0" in place:
            monkeypatch.undo()
            for _ in range(2):
                compact(spark, str(out), keep=0)
            assert directories(out)[-2:] == ["batch=2", next(out.glob("compacted=0-1-*")).name]
        return look(session, place)

    monkeypatch.setattr(files, step, late)
    found = counting(complete(spark, str(out)))
    assert [(one.first, one.last) for one in found] == [(0, 1), (2, 2)]


@pytest.mark.spark
def test_a_compaction_that_another_overtook_gives_up_what_it_wrote(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    out = tmp_path / "landed"
    for batch in range(3):
        land(spark, out, batch, n="1")

    def overtaken(frame: DataFrame, place: str, layout: Layout) -> None:
        monkeypatch.setattr(compaction, "write_rows", write_rows)
        assert compact(spark, str(out), keep=0) == Compaction(2, 1, 2)
        write_rows(rows(spark, 0, n="1"), place, layout)

    monkeypatch.setattr(compaction, "write_rows", overtaken)
    assert compact(spark, str(out)).made == 0
    assert offsets(read_landed(spark, str(out))) == list(range(30))
    assert [name[:13] for name in directories(out)] == ["_attempts", "batch=2", "compacted=0-1"]
    assert list(out.glob("_attempts/*")) == []
