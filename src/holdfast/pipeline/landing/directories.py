"""What has been landed as Parquet: directories, which of them count, and how to read them as one table.

``batch=7`` holds the rows of a batch, ``compacted=0-63-TOKEN`` those of the batches 0 to 63. Each gets its name when it
is whole (``publication``), and has a note then, ``_landed-DIGEST``, with how rows lie in it; the digest is the
layout's, so that a listing says which directories share one. A batch that lies in a compacted directory counts
no longer.
``_origin`` in a batch's directory says of which query it is, and from where to where it reaches.
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
"""By which time rows may be partitioned, and the column that says which day it was."""

BATCH, COMPACTED = "batch", "compacted"
_UNIT = re.compile(rf"{BATCH}=([0-9]+)|{COMPACTED}=([0-9]+)-([0-9]+)-[0-9a-f]+")
_NOTE = re.compile(r"_landed-([0-9a-f]{16})")
_ORIGIN = "_origin"
_PLACE = ("queue", "partition", "offset", "sequence", "rm", "message_number")
"""By what rows of a batch are ordered, as far as they have it."""

WRITING = {
    # Days before 1582 and times before 1900 as they are (.NET's "no time" is in the year 1): else the write may fail.
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.int96RebaseModeInWrite": "CORRECTED",
    # Not INT96, which other readers of Parquet take for nanoseconds: these end in 2262, without a word.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}
"""Settings of who writes rows to be kept."""


@dataclass(frozen=True)
class Layout:
    """How rows lie in files.

    Args:
        schema: The columns in the files, without ``batch`` and the one by which rows are partitioned.
        by: The column by which they are, each value a directory of its own: one of ``DAYS``, which is computed, or
            a text of the rows; None: they are not.
    """

    schema: StructType
    by: str | None = None

    def text(self) -> str:
        """For ``parsed``."""
        return json.dumps({"by": self.by, "schema": self.schema.jsonValue()}, sort_keys=True)

    @classmethod
    def parsed(cls, text: str) -> Layout:
        """What ``text`` gave."""
        told = json.loads(text)
        return cls(StructType.fromJson(told["schema"]), told["by"])

    @property
    def note(self) -> str:
        """The name of the file that says so."""
        return f"_landed-{hashlib.sha256(self.text().encode()).hexdigest()[:16]}"

    @property
    def order(self) -> list[str]:
        """By what rows of several batches lie in one file."""
        return [*([self.by] if self.by else []), BATCH, *(name for name in _PLACE if name in self.schema.names)]

    def with_day(self, rows: DataFrame) -> DataFrame:
        """Rows with the day's column, if they are partitioned by one: the day in UTC, whatever the session's zone."""
        return rows.withColumn(self.by, day_of(self.by)) if self.by and self.by in DAYS.values() else rows


def day_of(day: str) -> Column:
    """The day, in UTC, of the time that a column of ``DAYS`` is of."""
    from pyspark.sql import functions as F

    return F.expr(f"date_from_unix_date(CAST(floor(unix_micros({day[:-4]}_at) / 86400000000) AS INT))")


@dataclass(frozen=True)
class Unit:
    """A directory that counts.

    Args:
        first, last: The batches whose rows it has.
        name: Its name.
        layout: How they lie there.
    """

    first: int
    last: int
    name: str
    layout: Layout

    @property
    def compacted(self) -> bool:
        """Whether it may hold several batches, so that ``batch`` is a column of its files."""
        return self.name.startswith(COMPACTED)


def listed(spark: SparkSession, out: str) -> list[str]:
    """The names of directories with landed rows, complete or not."""
    return [name for name in files.names(spark, out) if _UNIT.fullmatch(name)]


def complete(spark: SparkSession, out: str) -> list[Unit]:
    """Every complete directory, also those whose rows lie in a compacted one: as they are at one moment.

    Looked at one by one, a directory may be deleted meanwhile, and its rows are in one that came after the list was
    made. So it is looked at again until no compaction has come between.
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
    """Of complete directories those that count, in the order of their batches: each batch is in one."""
    chosen: list[Unit] = []
    for unit in sorted(found, key=lambda unit: (unit.first, -unit.last, not unit.compacted, unit.name)):
        if not chosen or unit.first > chosen[-1].last:
            chosen.append(unit)
    return chosen


def whole_layout(found: Iterable[Unit], then: Layout | None = None) -> Layout:
    """The layout that all of these are read by, and what comes next.

    Raises:
        ConfigurationError: There is none.
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
    """The rows of directories, with the columns of a layout that all of them can be read by."""
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
    """Say that a directory is complete, and how rows lie in it."""
    files.publish_text(spark, f"{directory}/{layout.note}", layout.text())


def nothing(out: str) -> ConfigurationError:
    """What to say where nothing is."""
    return ConfigurationError(f"nothing has been landed in {out} yet", remedy="run holdfast land, or look elsewhere")


def landed_by_another(batch: int, out: str) -> PipelineError:
    """What to say where another driver has landed a batch first."""
    return PipelineError(
        f"batch {batch} was added to {out} by another driver while this one wrote it",
        remedy="one of the two is to be stopped; this one's files are not in the table, and nothing is twice",
    )


class ParquetTable:
    """Landed rows as directories of Parquet, each of a batch, which is there once and for good; or of several.

    Args:
        spark: A classic session.
        out: The directory.
    """

    kind = "parquet"

    def __init__(self, spark: SparkSession, out: str) -> None:
        self._spark = spark
        self._out = out

    def begun(self) -> str:
        """What is there already, complete or not; "" if nothing is."""
        return next(iter(listed(self._spark, self._out)), "")

    def units(self) -> list[Unit]:
        """The directories that count."""
        return counting(complete(self._spark, self._out))

    def numbers(self) -> list[int]:
        """The batches that are complete."""
        return [number for unit in self.units() for number in range(unit.first, unit.last + 1)]

    def newest(self) -> tuple[int, str] | None:
        """The newest batch, and its origin, "" if that is not known; None without a batch."""
        units = self.units()
        return (units[-1].last, self.origin(units[-1].last)) if units else None

    def foreign(self) -> str:
        """What is there, and is no part of such a table, but of one that others read or write; "" if nothing is."""
        there = set(files.names(self._spark, self._out)) - set(listed(self._spark, self._out))
        return next((name for name in sorted(there) if name.endswith(".parquet") or "=" in name), "")

    def prepare(self, layout: Layout) -> None:
        """See that rows of this layout can be landed here.

        Raises:
            ConfigurationError: They would make no table with those that are here.
        """
        whole_layout(self.units(), layout)

    def has(self, batch: int) -> bool:
        """Whether the batch is here for good, and is not to be written again."""
        if _note_in(self._spark, f"{self._out}/{BATCH}={batch}"):
            return True
        spans = [(name, match) for name in listed(self._spark, self._out) if (match := _UNIT.fullmatch(name))]
        around = [name for name, match in spans if match[2] and int(match[2]) <= batch <= int(match[3])]
        return any(_note_in(self._spark, f"{self._out}/{name}") for name in around)

    def origin(self, batch: int) -> str:
        """Of which query a batch is and from where to where, as ``write`` was told; "" if that is not known."""
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
            rows: Its rows.
            batch: Its number.
            layout: How they are to lie.
            origin: Told by ``origin`` later.
            only: They are all of the table: what it holds of earlier batches is taken away just before they are seen.
                So a reader finds what was, or nothing for a moment, or these.
            if_any: Without rows there is to be no directory; of partitioned rows only.

        Raises:
            PipelineError: Another driver has landed it, or a later one, meanwhile; nothing of these rows is there.
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
        """Take away what is there of earlier batches: of one that is all of the table, and whose driver was killed."""
        take_away(self._spark, self._out, self._earlier(batch))

    def _earlier(self, batch: int) -> list[str]:
        spans = [(name, match) for name in listed(self._spark, self._out) if (match := _UNIT.fullmatch(name))]
        ends = {name: int(match[1] or match[3]) for name, match in spans}
        if any(last > batch for last in ends.values()):
            raise landed_by_another(batch, self._out)
        return [name for name, last in ends.items() if last < batch]

    def read(self) -> DataFrame:
        """All rows, with the columns ``batch`` and the one they are partitioned by.

        Raises:
            ConfigurationError: There are none yet.
        """
        units = self.units()
        if not units:
            raise nothing(self._out)
        return read_units(self._spark, self._out, units, whole_layout(units))


def write_rows(rows: DataFrame, place: str, layout: Layout) -> None:
    """Rows into a directory, in place of what it held."""
    for name, value in WRITING.items():
        rows.sparkSession.conf.set(name, value)
    writer = layout.with_day(rows).write.mode("overwrite").option("partitionOverwriteMode", "static")
    (writer.partitionBy(layout.by) if layout.by else writer).parquet(place)
