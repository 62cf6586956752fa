"""What has been landed as Parquet: directories, which of them count, and how to read them as one table.

``batch=7`` holds the rows of a batch, ``compacted=0-99-TOKEN`` those of the batches 0 to 99. One counts when it is
complete: a batch when Spark has noted so (``_SUCCESS``), a compacted one when our own note is there, which is written
last. A batch that lies in a compacted directory that counts does not. The note, ``_landed-DIGEST``, has the schema; the
digest is the schema's, so that a listing says which directories share one.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql.types import DateType, IntegerType, StringType, StructField, StructType

from holdfast.exceptions import ConfigurationError
from holdfast.pipeline import files
from holdfast.pipeline.widening import as_written, merged

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

DAYS = {"delivered": "delivered_day", "received": "received_day"}
"""By which time rows may be partitioned, and the column that says which day it was."""

BATCH, COMPACTED = "batch", "compacted"
_UNIT = re.compile(rf"{BATCH}=([0-9]+)|{COMPACTED}=([0-9]+)-([0-9]+)-[0-9a-f]+")
_NOTE = re.compile(r"_landed-([0-9a-f]{16})")


@dataclass(frozen=True)
class Layout:
    """How rows lie in files.

    Args:
        schema: The columns in the files, without ``batch`` and the day.
        day: The column that says the day, of ``DAYS``, None if rows are not partitioned by it.
    """

    schema: StructType
    day: str | None = None

    def text(self) -> str:
        """For ``parsed``."""
        return json.dumps({"day": self.day, "schema": self.schema.jsonValue()}, sort_keys=True)

    @classmethod
    def parsed(cls, text: str) -> Layout:
        """What ``text`` gave."""
        told = json.loads(text)
        return cls(StructType.fromJson(told["schema"]), told["day"])

    @property
    def note(self) -> str:
        """The name of the file that says so."""
        return f"_landed-{hashlib.sha256(self.text().encode()).hexdigest()[:16]}"

    def with_day(self, rows: DataFrame) -> DataFrame:
        """Rows with the day's column, if there is one: the day in UTC, whatever the session's time zone."""
        return rows if self.day is None else rows.withColumn(self.day, day_of(self.day))


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
    """Every complete directory, also those whose rows lie in a compacted one."""
    layouts: dict[str, Layout] = {}
    found = []
    for name in listed(spark, out):
        inside = files.names(spark, f"{out}/{name}")
        note = next((one for one in inside if _NOTE.fullmatch(one)), None)
        match = _UNIT.fullmatch(name)
        assert match
        if "_SUCCESS" not in inside or (note is None and match[2]):
            continue
        if note is None:  # a batch whose writer ended just there: its files say the same
            layout = _of_files(spark, f"{out}/{name}")
        else:
            if note not in layouts:
                layouts[note] = Layout.parsed(files.read_text(spark, f"{out}/{name}/{note}"))
            layout = layouts[note]
        found.append(Unit(int(match[1] or match[2]), int(match[1] or match[3]), name, layout))
    return found


def _of_files(spark: SparkSession, directory: str) -> Layout:
    schema = spark.read.parquet(directory).schema
    day = next((day for day in DAYS.values() if day in schema.names), None)
    return Layout(StructType([field for field in schema.fields if field.name != day]), day)


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
        if layout.day != newest_first[0].day:
            how, before = (
                f"partitioned by {day}" if day else "not by day" for day in (newest_first[0].day, layout.day)
            )
            raise ConfigurationError(
                f"rows are to be {how}, but are {before} in what is landed",
                remedy="land as before, or land all again, and go on there: holdfast reland",
            )
    return Layout(merged([layout.schema for layout in newest_first]), newest_first[0].day)


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
    further += [StructField(layout.day, DateType())] if layout.day else []
    reader = spark.read.schema(StructType([*own.fields, *further])).option("basePath", out)
    rows = reader.parquet(*(f"{out}/{unit.name}" for unit in units))
    wide = [F.col(f"`{field.name}`").cast(field.dataType).alias(field.name) for field in layout.schema.fields]
    return rows.select(*wide, BATCH, *([layout.day] if layout.day else []))


def note(spark: SparkSession, directory: str, layout: Layout) -> None:
    """Say that a directory is complete, and how rows lie in it."""
    files.publish_text(spark, f"{directory}/{layout.note}", layout.text())


def nothing(out: str) -> ConfigurationError:
    """What to say where nothing is."""
    return ConfigurationError(f"nothing has been landed in {out} yet", remedy="run holdfast land, or look elsewhere")


class ParquetTable:
    """Landed rows as directories of Parquet: batches, each of which replaces itself when it is repeated.

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

    def prepare(self, layout: Layout) -> None:
        """See that rows of this layout can be landed here.

        Raises:
            ConfigurationError: They would make no table with those that are here.
        """
        whole_layout(self.units(), layout)

    def has(self, batch: int) -> bool:
        """Whether the batch is here for good, and must not be written again: it may always be."""
        return False

    def write(self, rows: DataFrame, batch: int, layout: Layout) -> None:
        """Land a batch, in place of what it held."""
        place = f"{self._out}/{BATCH}={batch}"
        write_rows(rows, place, layout)
        note(rows.sparkSession, place, layout)

    def read(self) -> DataFrame:
        """All rows, with the columns ``batch`` and the day.

        Raises:
            ConfigurationError: There are none yet.
        """
        units = self.units()
        if not units:
            raise nothing(self._out)
        return read_units(self._spark, self._out, units, whole_layout(units))


def write_rows(rows: DataFrame, place: str, layout: Layout) -> None:
    """Rows into a directory, in place of what it held."""
    writer = layout.with_day(rows).write.mode("overwrite").option("partitionOverwriteMode", "static")
    (writer.partitionBy(layout.day) if layout.day else writer).parquet(place)
