"""Records of a Kafka topic that a pipeline's sink sent again after a crash, each read once.

A sink sends a batch until Kafka has acknowledged all of it, and only then the next. So a record of a batch before the
writer's newest in a partition is a repeat. For the newest batch, it is enough to know the rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.pipeline.mediation.kafka.records import BATCH, ROW, WRITER, header

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_STREAM = ["queue", "partition", WRITER]
"""Columns that identify one writer's records in one partition, where its batches are in order."""
_IDENTITY = [*_STREAM, BATCH, ROW]


def each_once(rows: DataFrame, before: DataFrame | None) -> tuple[DataFrame, DataFrame]:
    """Return the rows of a batch that repeat no earlier row, and the state for the next batch.

    Args:
        rows: A batch of a Kafka topic, see ``kafka_records.as_rows``. Rows without an identity are all kept.
        before: The state after the batch before; None for the first.

    Returns:
        The rows, and the rows of each writer's newest batch in each partition.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    told = rows.select(
        "*",
        header(WRITER).alias(WRITER),
        header(BATCH).try_cast("bigint").alias(BATCH),
        header(ROW).try_cast("bigint").alias(ROW),
    )
    has_identity = F.col(WRITER).isNotNull() & F.col(BATCH).isNotNull() & F.col(ROW).isNotNull()
    ours = told.where(has_identity)
    known = ours.select(*_IDENTITY)
    newest, nth = "holdfast_newest", "holdfast_nth"
    so_far = Window.partitionBy(*_STREAM).orderBy("offset").rowsBetween(Window.unboundedPreceding, Window.currentRow)
    marked = ours.withColumn(nth, F.row_number().over(Window.partitionBy(*_IDENTITY).orderBy("offset")))
    marked = marked.withColumn(newest, F.max(BATCH).over(so_far))
    if before is not None:
        known = known.unionByName(before)
        latest = before.groupBy(*_STREAM).agg(F.max(BATCH).alias("holdfast_latest"))
        marked = marked.join(latest, _STREAM, "left").join(before, _IDENTITY, "left_anti")
        marked = marked.withColumn(newest, F.greatest(newest, "holdfast_latest"))
    fresh = marked.where((F.col(nth) == 1) & (F.col(BATCH) == F.col(newest))).select(*rows.columns)
    others = told.where(~has_identity).select(*rows.columns)
    last = F.max(BATCH).over(Window.partitionBy(*_STREAM))
    seen = known.distinct().withColumn(newest, last).where(F.col(BATCH) == F.col(newest)).select(*_IDENTITY)
    return others.unionByName(fresh), seen
