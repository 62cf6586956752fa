"""Merge the small files of a Delta table, with Delta's own compaction. A landing can continue in the meantime."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.exceptions import ConfigurationError
from holdfast.pipeline.landing.delta import DeltaTable
from holdfast.pipeline.landing.layout import nothing
from holdfast.pipeline.landing.tables import table_of
from holdfast.settings import NonEmpty, SecondsOrZero, check_arguments

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TARGET = 128 << 20
"""Default size up to which files are merged, in bytes."""

KEEP = 3600.0
"""Default time to keep replaced files, in seconds."""


@dataclass(frozen=True, slots=True)
class Compaction:
    """Result of a compaction.

    Args:
        replaced: Number of files that the table no longer uses.
        made: Number of new files with their rows.
        deleted: Number of deleted files, which earlier commits replaced.
    """

    replaced: int
    made: int
    deleted: int


def compact(spark: SparkSession, out: NonEmpty, *, target: int = TARGET, keep: SecondsOrZero = KEEP) -> Compaction:
    """Merge small files of a table. You can stop the compaction at any time and run it again.

    Args:
        spark: A classic session.
        out: Directory of a Delta table that ``land`` or a pipeline wrote, or is writing.
        target: Size up to which files are merged, in bytes.
        keep: Seconds to keep replaced files for current readers, rounded up to whole hours.

    Raises:
        ConfigurationError: The table has no batch yet, or is a Parquet table.
    """
    check_arguments(compact, locals())
    table = table_of(spark, out)
    if not table.begun():
        raise nothing(out)
    if not isinstance(table, DeltaTable):
        raise ConfigurationError(
            f"{out} is a Parquet table, and Holdfast compacts only Delta tables",
            remedy=f"Convert it with `holdfast convert {out}`, which also merges its files",
        )
    return Compaction(*table.compact(target, keep))
