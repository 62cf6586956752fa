"""The layout of landed rows in files, for both kinds of table: columns, partitions by day, and Spark's settings."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.types import StructType

from holdfast.client.errors import PipelineError
from holdfast.exceptions import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

DAYS = {"delivered": "delivered_day", "received": "received_day"}
"""Times that rows can be partitioned by -> the column that contains the day."""

BATCH = "batch"
"""Column with the number of the batch that landed the row."""

LOG = "_delta_log"
"""Directory that makes its parent a Delta table."""

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
        return json.dumps({"by": self.by, "schema": self.schema.jsonValue()}, sort_keys=True)

    @classmethod
    def parsed(cls, text: str) -> Layout:
        told = json.loads(text)
        return cls(StructType.fromJson(told["schema"]), told["by"])

    @property
    def note(self) -> str:
        """Name of the file that describes this layout."""
        return f"_landed-{hashlib.sha256(self.text().encode()).hexdigest()[:16]}"

    def with_day(self, rows: DataFrame) -> DataFrame:
        """Add the day column if rows are partitioned by it: the UTC day, regardless of the session's time zone."""
        return rows.withColumn(self.by, day_of(self.by)) if self.by and self.by in DAYS.values() else rows


def day_of(day: str) -> Column:
    from pyspark.sql import functions as F

    return F.expr(f"date_from_unix_date(CAST(floor(unix_micros({day[:-4]}_at) / 86400000000) AS INT))")


def write_rows(rows: DataFrame, place: str, layout: Layout) -> None:
    """Write rows to a directory and replace its contents."""
    for name, value in WRITING.items():
        rows.sparkSession.conf.set(name, value)
    writer = layout.with_day(rows).write.mode("overwrite").option("partitionOverwriteMode", "static")
    (writer.partitionBy(layout.by) if layout.by else writer).parquet(place)


def nothing(out: str) -> ConfigurationError:
    """Return the error for a table without batches."""
    return ConfigurationError(
        f"nothing has been landed in {out} yet", remedy="Check the directory, or run holdfast land"
    )


def landed_by_another(batch: int, out: str) -> PipelineError:
    """Return the error for a batch that another driver landed first."""
    return PipelineError(
        f"batch {batch} was added to {out} by another driver while this one wrote it",
        remedy="Stop one of the two; the rows of this one are not in the table, and no row is there twice",
    )
