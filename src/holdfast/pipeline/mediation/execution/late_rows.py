"""Rows that a step with state drops because they come later than its watermark, or have no time.

Spark drops late rows inside its state operator, before the batch's function sees anything, and reports only their
number. The stream leaves out rows without a time, and counts them. If one of the two numbers is above 0, this module
reads the batch's records again, and makes those below the watermark, or those without a time, dead letters.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Dropped:
    """The numbers of rows that a batch dropped.

    Args:
        late: Rows below the watermark: ``numRowsDroppedByWatermark`` of the progress that Spark publishes at the end of
            the batch. If a step aggregates, Spark groups rows before it drops them, so the number may be lower than
            that of messages.
        untimed: Rows without a time.
    """

    late: int
    untimed: int


def dropped_rows(query: StreamingQuery) -> Dropped:
    """Return how many rows the running batch dropped, once its rows have been computed."""
    late, untimed = 0, dict[str, int]()
    for operator in _operators(query):
        metric = operator.metrics().get(_METRIC)
        late += int(metric.get().value()) if metric.isDefined() else 0
        # SQL that names an input twice has its count twice.
        if operator.getClass().getSimpleName() == _COUNTED and operator.name().startswith(NO_TIME):
            untimed[operator.name()] = int(operator.collectedMetrics().getLong(0))
    return Dropped(late, sum(untimed.values()))


def rows_read(query: StreamingQuery) -> int:
    """Return how many rows the running batch read from the query's source, once its rows have been computed.

    SQL that names an input twice scans the source twice.
    """
    return max((int(one.metrics().get("numOutputRows").get().value()) for one in _scans(query)), default=0)


def _scans(query: StreamingQuery) -> list[Any]:
    return [one for one in _operators(query) if one.getClass().getSimpleName() == _SCAN]


def _operators(query: StreamingQuery) -> Iterator[Any]:
    execution: Any = query._jsq.streamingQuery().lastExecution()
    left = [execution.executedPlan()]
    while left:
        operator = left.pop()
        yield operator
        children = operator.children().iterator()
        while children.hasNext():
            left.append(children.next())


def late_letters(
    spark: SparkSession,
    plan: PipelinePlan,
    query: Query,
    inferred: Mapping[str, T.StructType],
    checkpoint: str,
    batch: int,
    running: StreamingQuery,
    dropped: Dropped,
) -> list[DataFrame]:
    """Return the rows that the running batch dropped as dead letters: older than its watermark, or without a time.

    Spark drops an older row if its window has ended, and counts it if its window is still open. If Spark dropped any,
    the result includes both kinds, because only Spark's operator knows the difference.
    """
    from pyspark.sql import functions as F

    step = query.stream[-1]
    assert step.state is not None
    watermark = watermark_of(spark, checkpoint, batch)
    frames = Frames(plan, spark, inferred, keeps=False)
    scans = _scans(running)
    if not scans:  # a batch without messages, which Spark runs when the watermark has risen
        return []
    # The start of batch 0 is in no checkpoint, but the scan has it.
    start, end = (json.loads(one.json()) for one in (scans[0].start(), scans[0].end()))
    frames.add(query.source.name, read_batch(spark, query.source, start, end))
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
        if dropped.untimed:
            letters.append(as_letters(rows.where(time.isNull()), step.name, F.array(F.lit(no_time_of(column.name)))))
        if dropped.late:
            older = time < F.timestamp_millis(F.lit(watermark))
            letters.append(as_letters(rows.where(older), step.name, F.array(F.lit(late))))
    return letters
