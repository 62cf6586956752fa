"""Rows that a step with state drops because they come later than its watermark, or have no time.

Spark drops late rows inside its state operator, before the batch's function sees anything, and reports only their
number. The stream leaves out rows without a time, and counts them. If there are any, this module reads the batch's
records again, and makes those below the watermark and those without a time dead letters.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from pyspark.sql import types as T

from holdfast.pipeline.mediation.definition.graph import Graph, Query
from holdfast.pipeline.mediation.definition.plan import PipelinePlan
from holdfast.pipeline.mediation.execution.frames import NO_TIME, Frames, no_time_of, time_column
from holdfast.pipeline.mediation.execution.sinks import as_letters
from holdfast.pipeline.mediation.execution.source_ranges import read_batch
from holdfast.pipeline.spark.checkpoints import watermark_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

_METRIC = "numRowsDroppedByWatermark"
_SCAN = "MicroBatchScanExec"
_COUNTED = "CollectMetricsExec"


def dropped_rows(query: StreamingQuery) -> int:
    """Return how many rows the running batch dropped as late or without a time, once its rows have been computed.

    The number of late rows is ``numRowsDroppedByWatermark`` of the progress that Spark publishes at the end of the
    batch. If a step aggregates, Spark groups rows before it drops them, so the number may be lower than that of
    messages.
    """
    execution: Any = query._jsq.streamingQuery().lastExecution()
    found = 0
    for operator in _operators(execution.executedPlan()):
        metric = operator.metrics().get(_METRIC)
        found += int(metric.get().value()) if metric.isDefined() else 0
        if operator.getClass().getSimpleName() == _COUNTED and operator.name().startswith(NO_TIME):
            found += int(operator.collectedMetrics().getLong(0))
    return found


def rows_read(query: StreamingQuery) -> int:
    """Return how many rows the running batch read from the query's source, once its rows have been computed."""
    execution: Any = query._jsq.streamingQuery().lastExecution()
    scans = [one for one in _operators(execution.executedPlan()) if one.getClass().getSimpleName() == _SCAN]
    return sum(int(one.metrics().get("numOutputRows").get().value()) for one in scans)


def _operators(operator: Any) -> Iterator[Any]:
    yield operator
    children = operator.children().iterator()
    while children.hasNext():
        yield from _operators(children.next())


def late_letters(
    spark: SparkSession,
    plan: PipelinePlan,
    query: Query,
    inferred: Mapping[str, T.StructType],
    checkpoint: str,
    batch: int,
) -> list[DataFrame]:
    """Return the rows of a batch that are older than its watermark, or have no time, as dead letters.

    Spark drops such a row if its window has ended, and counts it if its window is still open. The result includes both
    kinds, because only Spark's operator knows the difference.
    """
    from pyspark.sql import functions as F

    step = query.stream[-1]
    assert step.state is not None
    watermark = watermark_of(spark, checkpoint, batch)
    frames = Frames(plan, spark, inferred, keeps=False)
    frames.add(query.source.name, read_batch(spark, query.source, checkpoint, batch))
    frames.make(query.stream[:-1])
    told = datetime.fromtimestamp(watermark / 1000, UTC).isoformat()
    graph, letters = Graph(plan), []
    for rows in (frames.rows[name] for name in graph.inputs[step.name] if graph.sources(name)):
        column = time_column(rows, step.state.time)
        if column is None:
            continue
        time = F.col(f"`{column.name}`")
        late = (
            f"{column.name} is before {told}, the watermark of batch {batch}: windows that had already ended do not "
            "include this row"
        )
        reason = F.when(time.isNull(), no_time_of(column.name)).otherwise(F.lit(late))
        lost = time.isNull() | (time < F.timestamp_millis(F.lit(watermark)))
        letters.append(as_letters(rows.where(lost), step.name, F.array(reason)))
    return letters
