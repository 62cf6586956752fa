"""Landed Parquet directories: which of them count, and how to read them as one table.

``batch=7`` contains the rows of batch 7, ``compacted=0-63-TOKEN`` those of batches 0 to 63. A directory gets its name
once it is complete (``publication``). It then contains a note, ``_landed-DIGEST``, with its layout; the digest is that
of the layout, so a listing shows which directories share one. The directory of a batch no longer counts once a
compacted directory contains the batch. ``_origin`` in a batch's directory names the query of the batch, and the start
and end of the batch.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql.types import DataType, DateType, IntegerType, StringType, StructField, StructType

from holdfast.client.errors import PipelineError
from holdfast.exceptions import ConfigurationError
from holdfast.pipeline.landing.publication import WithdrawnError, publish, take_away
from holdfast.pipeline.landing.widening import as_written, merged
from holdfast.pipeline.spark import files

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

DAYS = {"delivered": "delivered_day", "received": "received_day"}
"""Times that rows can be partitioned by -> the column that contains the day."""

BATCH, COMPACTED = "batch", "compacted"
_UNIT = re.compile(rf"{BATCH}=([0-9]+)|{COMPACTED}=([0-9]+)-([0-9]+)-[0-9a-f]+")
_NOTE = re.compile(r"_landed-([0-9a-f]{16})")
_ORIGIN = "_origin"
_PLACE = ("queue", "partition", "offset", "sequence", "rm", "message_number")
"""Columns that order the rows of a batch, if the rows have them."""

WRITING = {
    # Keeps days before 1582 and times before 1900 (.NET's "no time" is in the year 1), which may fail otherwise.
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.int96RebaseModeInWrite": "CORRECTED",
    # Avoids INT96, which other Parquet readers treat as nanoseconds; these overflow silently in 2262.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}
"""Spark settings for sessions that write rows."""


@dataclass(frozen=True)
class Layout:
    """Layout of rows in files.

    Args:
        schema: Columns in the files, without ``batch`` and the partition column.
        by: Partition column, with one directory per value: a computed column of ``DAYS``, or a text column of the rows;
            None: no partitions.
    """

    schema: StructType
    by: str | None = None

    def text(self) -> str:
        """Return the layout as text, for ``parsed``."""
        return json.dumps({"by": self.by, "schema": self.schema.jsonValue()}, sort_keys=True)

    @classmethod
    def parsed(cls, text: str) -> Layout:
        """Parse the result of ``text``."""
        told = json.loads(text)
        return cls(StructType.fromJson(told["schema"]), told["by"])

    @property
    def note(self) -> str:
        """Name of the file that describes this layout."""
        return f"_landed-{hashlib.sha256(self.text().encode()).hexdigest()[:16]}"

    @property
    def order(self) -> list[str]:
        """Columns that order the rows of several batches in one file."""
        return [*([self.by] if self.by else []), BATCH, *(name for name in _PLACE if name in self.schema.names)]

    def with_day(self, rows: DataFrame) -> DataFrame:
        """Add the day column if rows are partitioned by it: the UTC day, regardless of the session's time zone."""
        return rows.withColumn(self.by, day_of(self.by)) if self.by and self.by in DAYS.values() else rows


def day_of(day: str) -> Column:
    """Return the UTC day of the time that belongs to a column of ``DAYS``."""
    from pyspark.sql import functions as F

    return F.expr(f"date_from_unix_date(CAST(floor(unix_micros({day[:-4]}_at) / 86400000000) AS INT))")


@dataclass(frozen=True)
class Unit:
    """A complete directory of landed rows.

    Args:
        first, last: First and last batch with rows in the directory.
        name: Name of the directory.
        layout: Layout of the rows.
    """

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


def complete(spark: SparkSession, out: str) -> list[Unit]:
    """Return a consistent view of all complete directories, including those that a compacted one replaces.

    While the function inspects the directories, a compaction may delete one and publish its rows in a directory that
    the list does not contain. So the function repeats until no compaction has intervened.
    """
    while True:
        names = listed(spark, out)
        found = _complete(spark, out, names)
        if _compacted(names) == _compacted(listed(spark, out)):
            return found


def _compacted(names: list[str]) -> list[str]:
    return [name for name in names if name.startswith(COMPACTED)]


def _complete(spark: SparkSession, out: str, names: list[str]) -> list[Unit]:
    layouts: dict[str, Layout] = {}
    found = []
    for name in names:
        note = _note_in(spark, f"{out}/{name}")
        match = _UNIT.fullmatch(name)
        assert match
        if note is None:
            continue
        if note not in layouts:
            try:
                layouts[note] = Layout.parsed(files.read_text(spark, f"{out}/{name}/{note}"))
            except FileNotFoundError:
                continue  # a compaction just deleted it
        found.append(Unit(int(match[1] or match[2]), int(match[1] or match[3]), name, layouts[note]))
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
                f"rows are to be {how}, but are {before} in what is landed",
                remedy="land as before, or land all again, and go on there: holdfast reland",
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


def note(spark: SparkSession, directory: str, layout: Layout) -> None:
    """Mark a directory as complete and record its layout."""
    files.publish_text(spark, f"{directory}/{layout.note}", layout.text())


def nothing(out: str) -> ConfigurationError:
    """Return the error for a table without batches."""
    return ConfigurationError(f"nothing has been landed in {out} yet", remedy="run holdfast land, or look elsewhere")


def landed_by_another(batch: int, out: str) -> PipelineError:
    """Return the error for a batch that another driver landed first."""
    return PipelineError(
        f"batch {batch} was added to {out} by another driver while this one wrote it",
        remedy="one of the two is to be stopped; this one's files are not in the table, and nothing is twice",
    )


class ParquetTable:
    """Landed rows as Parquet directories, each with one batch, published once and permanently, or with several.

    Args:
        spark: A classic session.
        out: The directory.
    """

    kind = "parquet"

    def __init__(self, spark: SparkSession, out: str) -> None:
        self._spark = spark
        self._out = out

    def begun(self) -> str:
        """Return the name of an existing directory of rows, complete or not; "" if there is none."""
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
        """Return the name of a file or directory that belongs to another kind of table; "" if there is none."""
        there = set(files.names(self._spark, self._out)) - set(listed(self._spark, self._out))
        return next((name for name in sorted(there) if name.endswith(".parquet") or "=" in name), "")

    def prepare(self, layout: Layout) -> None:
        """Check that rows of this layout can be landed here.

        Raises:
            ConfigurationError: The layout does not fit that of the landed rows.
        """
        whole_layout(self.units(), layout)

    def has(self, batch: int) -> bool:
        """Whether the batch is complete, so it must not be written again."""
        if _note_in(self._spark, f"{self._out}/{BATCH}={batch}"):
            return True
        spans = [(name, match) for name in listed(self._spark, self._out) if (match := _UNIT.fullmatch(name))]
        around = [name for name, match in spans if match[2] and int(match[2]) <= batch <= int(match[3])]
        return any(_note_in(self._spark, f"{self._out}/{name}") for name in around)

    def origin(self, batch: int) -> str:
        """Return the origin of a batch (its query, start and end) as passed to ``write``; "" if unknown."""
        place = f"{self._out}/{BATCH}={batch}"
        return files.read_text(self._spark, f"{place}/{_ORIGIN}") if _ORIGIN in files.names(self._spark, place) else ""

    def write(
        self,
        rows: DataFrame,
        batch: int,
        layout: Layout,
        origin: str = "",
        *,
        only: bool = False,
        if_any: bool = False,
    ) -> None:
        """Land a batch.

        Args:
            rows: Rows of the batch.
            batch: Number of the batch.
            layout: Layout of the rows.
            origin: Value for ``origin`` to return later.
            only: Replace the whole table: earlier batches are removed just before the new rows become visible. A reader
                finds the earlier rows, for a moment no rows, or the new rows.
            if_any: Create no directory if there are no rows; for partitioned rows only.

        Raises:
            PipelineError: Another driver landed this batch, or a later one, in the meantime. None of these rows is in
                the table.
        """
        spark = rows.sparkSession

        def write(place: str) -> None:
            write_rows(rows, place, layout)
            if if_any and files.names(spark, place) == ["_SUCCESS"]:
                raise WithdrawnError
            if origin:
                files.write_text(spark, f"{place}/{_ORIGIN}", origin)
            note(spark, place, layout)

        replaced = (lambda: self._earlier(batch)) if only else None
        with contextlib.suppress(WithdrawnError):
            if not publish(spark, self._out, f"{BATCH}={batch}", write, replaced):
                raise landed_by_another(batch, self._out)

    def retire(self, batch: int) -> None:
        """Remove earlier batches, for a batch that replaces the table and lost its driver."""
        take_away(self._spark, self._out, self._earlier(batch))

    def _earlier(self, batch: int) -> list[str]:
        spans = [(name, match) for name in listed(self._spark, self._out) if (match := _UNIT.fullmatch(name))]
        ends = {name: int(match[1] or match[3]) for name, match in spans}
        if any(last > batch for last in ends.values()):
            raise landed_by_another(batch, self._out)
        return [name for name, last in ends.items() if last < batch]

    def read(self) -> DataFrame:
        """Return all rows, with the column ``batch`` and the partition column.

        Raises:
            ConfigurationError: The table has no batch yet.
        """
        units = self.units()
        if not units:
            raise nothing(self._out)
        return read_units(self._spark, self._out, units, whole_layout(units))


def write_rows(rows: DataFrame, place: str, layout: Layout) -> None:
    """Write rows to a directory and replace its contents."""
    for name, value in WRITING.items():
        rows.sparkSession.conf.set(name, value)
    writer = layout.with_day(rows).write.mode("overwrite").option("partitionOverwriteMode", "static")
    (writer.partitionBy(layout.by) if layout.by else writer).parquet(place)
