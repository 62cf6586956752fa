"""Convert a Parquet table of landed rows into a Delta table, in the same directory.

Spark copies the rows into new files, which no reader of the Parquet table sees. One commit then creates the Delta
table with all files, the newest batch and its origin. Only after that are the old directories deleted. So at any moment
the directory is the whole old table or the whole new one, and a run that was killed can be repeated. The landing must
not run in the meantime. If it does, it fails, or leaves a batch that the next conversion adds.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.types import StringType, StructField, StructType

from holdfast.client.errors import PipelineError
from holdfast.pipeline.landing.delta import DeltaTable
from holdfast.pipeline.landing.layout import DAYS, Layout, nothing, write_rows
from holdfast.pipeline.landing.parquet import ParquetTable, Unit, listed, read_units, span, whole_layout
from holdfast.pipeline.landing.publication import ATTEMPTS
from holdfast.pipeline.spark import files

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STEP = 1 << 30
"""Bytes of Parquet files that one step copies, unless one directory has more."""

_COPIED = "converted-"


@dataclass(frozen=True, slots=True)
class Conversion:
    """Result of a conversion.

    Args:
        before: Rows of the Parquet table, of the batches that were not in the Delta table yet.
        rows: Rows that the Delta table gained.
        deleted: Number of deleted directories.
    """

    before: int
    rows: int
    deleted: int


def convert(spark: SparkSession, out: str, *, on_step: Callable[[int, int, int], None] | None = None) -> Conversion:
    """Convert a Parquet table into a Delta table. You can stop it at any time and run it again.

    Args:
        spark: A classic session.
        out: Directory that a landing or a pipeline wrote. No query may write to it in the meantime.
        on_step: Called after each copied part with its first and last batch, and the number of its rows.

    Raises:
        ConfigurationError: There is no table, or ``deltalake`` is not installed.
        PipelineError: A landing added a batch in the meantime. The table is unchanged.
    """
    session = spark.newSession()  # keeps its settings apart from other sessions
    old, new = ParquetTable(session, out), DeltaTable(session, out)
    units = _pending(old, new)
    if not (units or new.there()):
        raise nothing(out)
    before, after = _copy(session, out, old, new, units, on_step) if units else (0, 0)
    return Conversion(before, after, _forget(session, out, new) if listed(session, out) else 0)


def _pending(old: ParquetTable, new: DeltaTable) -> list[Unit]:
    newest, _ = new.newest() or (-1, "")
    return [unit for unit in old.units() if unit.last > newest]


def _copy(
    spark: SparkSession,
    out: str,
    old: ParquetTable,
    new: DeltaTable,
    units: list[Unit],
    on_step: Callable[[int, int, int], None] | None,
) -> tuple[int, int]:
    """Add the rows to the Delta table, which need not exist; return the number of rows before and after."""
    layout = whole_layout(units)
    place = f"{out}/rows/{_COPIED}{secrets.token_hex(6)}"
    before, added = 0, []
    for step in _steps(spark, out, units):
        rows = read_units(spark, out, step, layout)
        found, part = rows.count(), f"{place}/{step[0].first}"
        write_rows(rows, part, _as_delta(layout))
        added += new.actions(part, _as_delta(layout))
        before += found
        if on_step is not None:
            on_step(step[0].first, step[-1].last, found)
    after = sum(json.loads(file.stats)["numRecords"] for file in added)
    if before != after or _pending(old, new) != units:
        files.delete(spark, place)
        what = f"{before} rows became {after}" if before != after else "a batch was added"
        raise PipelineError(
            f"{what} while {out} was converted; it still is the Parquet table that it was",
            remedy="Stop the landing, and convert the table again",
        )
    newest = units[-1].last
    if new.there():  # a landing added these batches while the table was created
        new.prepare(_as_delta(layout))
    new.commit(added, newest, _as_delta(layout), old.origin(newest))
    return before, after


def _as_delta(layout: Layout) -> Layout:
    """Return the layout of the Delta table: it is partitioned by a day only."""
    if layout.by is None or layout.by in DAYS.values():
        return layout
    return Layout(StructType([*layout.schema.fields, StructField(layout.by, StringType())]))


def _steps(spark: SparkSession, out: str, units: list[Unit]) -> Iterator[list[Unit]]:
    step: list[Unit] = []
    filled = 0
    for unit in units:
        size = files.size(spark, f"{out}/{unit.name}")
        if step and filled + size > STEP:
            yield step
            step, filled = [], 0
        step.append(unit)
        filled += size
    yield step


def _forget(spark: SparkSession, out: str, new: DeltaTable) -> int:
    done = [name for name in listed(spark, out) if new.has(span(name)[1])]
    used = {path.split("/")[1] for path in new.paths() if path.startswith("rows/")}
    copied = [name for name in files.names(spark, f"{out}/rows") if name.startswith(_COPIED) and name not in used]
    for name in (*(f"rows/{name}" for name in copied), ATTEMPTS, *done):  # the last ones, which a later run looks for
        files.delete(spark, f"{out}/{name}")
    return len(done) + len(copied)
