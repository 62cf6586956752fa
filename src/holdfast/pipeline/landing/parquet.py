"""Landed Parquet tables: one directory for each batch, which only grow in number.

``batch=7`` contains the rows of batch 7. A directory gets its name once it is complete (``publication``). It then
contains a note, ``_landed-DIGEST``, with its layout; the digest is that of the layout, so a listing shows which
directories share one. ``_origin`` names the query of the batch, and the start and end of the batch.

Earlier versions also merged directories. ``compacted=0-63-TOKEN`` contains the rows of batches 0 to 63, and the
directories of these batches no longer count. This version reads such a table, appends to it, and converts it into a
Delta table (``conversion``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql.types import DataType, DateType, IntegerType, StringType, StructField, StructType

from holdfast.client.errors import PipelineError
from holdfast.exceptions import ConfigurationError
from holdfast.pipeline.landing.layout import BATCH, DAYS, LOG, Layout, landed_by_another, nothing, write_rows
from holdfast.pipeline.landing.publication import publish
from holdfast.pipeline.landing.widening import as_written, merged
from holdfast.pipeline.spark import files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COMPACTED = "compacted"
_UNIT = re.compile(rf"{BATCH}=([0-9]+)|{COMPACTED}=([0-9]+)-([0-9]+)-[0-9a-f]+")
_NOTE = re.compile(r"_landed-([0-9a-f]{16})")
_ORIGIN = "_origin"


@dataclass(frozen=True)
class Unit:
    """A complete directory of landed rows."""

    first: int
    last: int
    name: str
    layout: Layout

    @property
    def compacted(self) -> bool:
        """Whether the directory may contain several batches, so its files have a ``batch`` column."""
        return self.name.startswith(COMPACTED)


def listed(spark: SparkSession, out: str) -> list[str]:
    """Return the names of directories with landed rows, complete or not."""
    return [name for name in files.names(spark, out) if _UNIT.fullmatch(name)]


def span(name: str) -> tuple[int, int]:
    """Return the first and last batch of a directory, by its name."""
    match = _UNIT.fullmatch(name)
    assert match
    return int(match[1] or match[2]), int(match[1] or match[3])


def complete(spark: SparkSession, out: str) -> list[Unit]:
    """Return all complete directories, including those that a compacted one replaces."""
    layouts: dict[str, Layout] = {}
    found = []
    for name in listed(spark, out):
        note = _note_in(spark, f"{out}/{name}")
        if note is None:
            continue
        if note not in layouts:
            layouts[note] = Layout.parsed(files.read_text(spark, f"{out}/{name}/{note}"))
        found.append(Unit(*span(name), name, layouts[note]))
    return found


def _note_in(spark: SparkSession, directory: str) -> str | None:
    return next((one for one in files.names(spark, directory) if _NOTE.fullmatch(one)), None)


def counting(found: Iterable[Unit]) -> list[Unit]:
    """Select the complete directories that count, in batch order; each batch is in exactly one."""
    chosen: list[Unit] = []
    for unit in sorted(found, key=lambda unit: (unit.first, -unit.last, not unit.compacted, unit.name)):
        if not chosen or unit.first > chosen[-1].last:
            chosen.append(unit)
    return chosen


def whole_layout(found: Iterable[Unit], then: Layout | None = None) -> Layout:
    """Return the common layout of all these directories, and of the rows to land next.

    Raises:
        ConfigurationError: There is no common layout.
    """
    layouts = list(dict.fromkeys(unit.layout.text() for unit in sorted(found, key=lambda unit: -unit.last)))
    newest_first = [*([then] if then else []), *map(Layout.parsed, layouts)]
    for layout in newest_first:
        if layout.by != newest_first[0].by:
            how, before = (f"partitioned by {by}" if by else "not by day" for by in (newest_first[0].by, layout.by))
            raise ConfigurationError(
                f"new rows would be {how}, but the landed rows are {before}",
                remedy="Land as before, or parse the rows into another table with `holdfast reland`; continue there",
            )
    return Layout(merged([layout.schema for layout in newest_first]), newest_first[0].by)


def read_units(spark: SparkSession, out: str, units: list[Unit], layout: Layout) -> DataFrame:
    """Read directories with the columns of their common layout."""
    alike: dict[tuple[bool, str], list[Unit]] = {}
    for unit in units:
        alike.setdefault((unit.compacted, unit.layout.note), []).append(unit)
    frames = [_read_alike(spark, out, group, layout) for group in alike.values()]
    return reduce(lambda one, other: one.unionByName(other), frames)


def _read_alike(spark: SparkSession, out: str, units: list[Unit], layout: Layout) -> DataFrame:
    from pyspark.sql import functions as F

    own = as_written(units[0].layout.schema, layout.schema)
    assert isinstance(own, StructType)
    further = [StructField(BATCH, IntegerType())]
    further += [StructField(COMPACTED, StringType())] if units[0].compacted else []
    by: DataType = DateType() if layout.by in DAYS.values() else StringType()
    further += [StructField(layout.by, by)] if layout.by else []
    reader = spark.read.schema(StructType([*own.fields, *further])).option("basePath", out)
    rows = reader.parquet(*(f"{out}/{unit.name}" for unit in units))
    wide = [F.col(f"`{field.name}`").cast(field.dataType).alias(field.name) for field in layout.schema.fields]
    return rows.select(*wide, BATCH, *([layout.by] if layout.by else []))


def foreign(spark: SparkSession, out: str) -> str:
    """Return the name of a file or directory that belongs to another kind of table; otherwise ""."""
    others = (name for name in files.names(spark, out) if not _UNIT.fullmatch(name))
    return next((name for name in others if name.endswith(".parquet") or "=" in name), "")


def note(spark: SparkSession, directory: str, layout: Layout) -> None:
    """Mark a directory as complete and record its layout."""
    files.publish_text(spark, f"{directory}/{layout.note}", layout.text())


def only_grows(out: str) -> ConfigurationError:
    """Return the error for batches that would replace the rows of a Parquet table."""
    return ConfigurationError(
        f"{out} is a Parquet table. Holdfast only appends to it, but each batch would replace its rows",
        remedy=f"Convert it with `holdfast convert {out}`, or name another table, of format delta",
    )


class ParquetTable:
    """Landed rows as Parquet directories, each with one batch, published once and permanently."""

    kind = "parquet"

    def __init__(self, spark: SparkSession, out: str) -> None:
        self._spark = spark
        self._out = out

    def begun(self) -> str:
        """Return the name of an existing directory of rows, complete or not; otherwise ""."""
        return next(iter(listed(self._spark, self._out)), "")

    def units(self) -> list[Unit]:
        """Return the directories that count."""
        return counting(complete(self._spark, self._out))

    def numbers(self) -> list[int]:
        """Return the numbers of the complete batches."""
        return [number for unit in self.units() for number in range(unit.first, unit.last + 1)]

    def newest(self) -> tuple[int, str] | None:
        """Return the newest batch and its origin ("" if unknown); None if there is no batch."""
        units = self.units()
        return (units[-1].last, self.origin(units[-1].last)) if units else None

    def foreign(self) -> str:
        """Return the name of a file or directory that belongs to another kind of table; otherwise ""."""
        return foreign(self._spark, self._out)

    def check(self, layout: Layout) -> None:
        """Check that rows of this layout can be landed here; change nothing.

        Raises:
            ConfigurationError: The layout does not fit that of the landed rows.
        """
        whole_layout(self.units(), layout)

    def prepare(self, layout: Layout) -> None:
        """Make room for rows of this layout; raise as ``check`` does."""
        self.check(layout)

    def has(self, batch: int) -> bool:
        """Whether the batch is complete, so it must not be written again."""
        if _note_in(self._spark, f"{self._out}/{BATCH}={batch}"):
            return True
        spans = ((name, *span(name)) for name in listed(self._spark, self._out))
        around = [name for name, first, last in spans if name.startswith(COMPACTED) and first <= batch <= last]
        return any(_note_in(self._spark, f"{self._out}/{name}") for name in around)

    def origin(self, batch: int) -> str:
        """Return the origin of a batch (its query, start and end) as passed to ``write``; "" if unknown."""
        place = f"{self._out}/{BATCH}={batch}"
        return files.read_text(self._spark, f"{place}/{_ORIGIN}") if _ORIGIN in files.names(self._spark, place) else ""

    def write(
        self, rows: DataFrame, batch: int, layout: Layout, origin: str = "", *, only: bool = False, if_any: bool = False
    ) -> None:
        """Land a batch.

        Args:
            rows: Rows of the batch.
            batch: Number of the batch.
            layout: Layout of the rows.
            origin: Value for ``origin`` to return later.
            only: Replace the whole table.
            if_any: Write nothing if there are no rows; in a Parquet table for partitioned rows only.

        Raises:
            ConfigurationError: A Parquet table cannot be replaced.
            PipelineError: Another driver landed this batch in the meantime, or the table was converted. None of these
                rows is in the table.
        """
        spark = rows.sparkSession
        if only:
            raise only_grows(self._out)

        def write(place: str) -> bool:
            write_rows(rows, place, layout)
            if if_any and files.names(spark, place) == ["_SUCCESS"]:
                return False
            if origin:
                files.write_text(spark, f"{place}/{_ORIGIN}", origin)
            note(spark, place, layout)
            # Readers of the Delta table would not see this directory.
            if LOG in files.names(spark, self._out):
                raise PipelineError(
                    f"{self._out} was converted into a Delta table while batch {batch} was written",
                    remedy="Start again: the batch then goes into the Delta table",
                )
            return True

        if not publish(spark, self._out, f"{BATCH}={batch}", write):
            raise landed_by_another(batch, self._out)

    def read(self) -> DataFrame:
        """Return all rows, with the column ``batch`` and the partition column.

        Raises:
            ConfigurationError: The table has no batch yet.
        """
        units = self.units()
        if not units:
            raise nothing(self._out)
        return read_units(self._spark, self._out, units, whole_layout(units))
