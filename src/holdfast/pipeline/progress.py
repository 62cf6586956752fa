"""The progress of ``wsrm`` streams as text for people: rows, time, lag and skipped records.

Spark's interface for Python sources has no metrics for a source, and Spark describes one by the name of a Java object.
But each progress contains offsets, which this module turns into text.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from itertools import chain
from typing import TYPE_CHECKING, Any

from holdfast.client.errors import OffsetRefused
from holdfast.client.offsets import Places, parse
from holdfast.pipeline.spark.checkpoints import topic_positions
from holdfast.settings import check_arguments

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQueryListener

log = logging.getLogger("holdfast.pipeline")


def _places(offset: str | None) -> Places | None:
    """Return the positions in an offset of this source; None for another source, or without an offset."""
    try:
        given = json.loads(offset or "null")
        return parse(given) if isinstance(given, dict) else None
    except (ValueError, RecursionError, OffsetRefused):
        return None


def _positions(offset: str | None) -> Mapping[tuple[str, int], int] | None:
    """Return the positions in an offset, by queue or topic and partition; None for another source."""
    if (ours := _places(offset)) is not None:
        return ours.positions
    try:
        topics = topic_positions(json.loads(offset or ""))
    except (ValueError, AttributeError, RecursionError):
        return None
    return topics if all(isinstance(at, int) for at in topics.values()) else None


def lag_of(source: Mapping[str, Any]) -> dict[str, int] | None:
    """Return how many records of each queue, or Kafka topic, a query had not read at the time of its progress.

    Args:
        source: A progress, such as ``query.lastProgress``, or one of its ``sources``.

    Returns:
        None if no source is ``wsrm`` or Kafka's, or none had a position yet.
    """
    check_arguments(lag_of, locals())
    if "sources" in source:
        lags = [one for one in map(lag_of, source["sources"]) if one is not None]
        return {queue: sum(one.get(queue, 0) for one in lags) for queue in chain(*lags)} if lags else None
    at, latest = _positions(source["endOffset"]), _positions(source["latestOffset"])
    if at is None or latest is None:
        return None
    lag = dict.fromkeys((queue for queue, _ in latest), 0)
    for (queue, partition), there in latest.items():
        lag[queue] += max(0, there - at.get((queue, partition), 0))
    return lag


def describe(progress: Mapping[str, Any]) -> str:
    """Describe a query's progress in a line: ``landing batch 12: 5,000 rows in 0.8 s; 1,200 behind (orders 1,200)``.

    Args:
        progress: The value of ``query.lastProgress``, or one of ``query.recentProgress``.
    """
    check_arguments(describe, locals())
    name = progress["name"] or progress["id"]
    seconds = progress["durationMs"].get("triggerExecution", 0) / 1000
    said = [f"{name} batch {progress['batchId']}: {progress['numInputRows']:,} rows in {seconds:.1f} s"]
    for source in progress["sources"]:
        if lag := lag_of(source):
            each = ", ".join(f"{queue} {rows:,}" for queue, rows in sorted(lag.items()) if rows)
            said.append(f"{sum(lag.values()):,} behind" + (f" ({each})" if each else ""))
        end = _places(source["endOffset"])
        if end is not None and end.skipped:
            said.append(f"{end.skipped:,} deleted before they were read")
    if late := late_rows(progress):
        said.append(f"{late:,} dropped by the watermark")
    return "; ".join(said)


def late_rows(progress: Mapping[str, Any]) -> int:
    """Return how many rows a batch's state operators dropped because they came later than the watermark.

    If a query aggregates, Spark counts the rows of one group in one task once.

    Args:
        progress: The value of ``query.lastProgress``, or one of ``query.recentProgress``.
    """
    return sum(int(one["numRowsDroppedByWatermark"]) for one in progress["stateOperators"])


def watch(spark: SparkSession, tell: Callable[[str], object] = log.info) -> StreamingQueryListener:
    """Report one line for each batch of every query of a session, and for each query's end.

    Args:
        spark: The session.
        tell: Called with each line, in one of Spark's threads. By default: the logger ``holdfast.pipeline``, level
            info.

    Returns:
        The listener; ``spark.streams.removeListener`` ends it.
    """
    check_arguments(watch, locals())
    from pyspark.sql.streaming import StreamingQueryListener

    names: dict[Any, Any] = {}

    class Watching(StreamingQueryListener):
        def onQueryStarted(self, event: Any) -> None:
            names[event.runId] = event.name or event.id
            tell(f"{names[event.runId]} started")

        def onQueryProgress(self, event: Any) -> None:
            tell(describe(event.progress))

        def onQueryIdle(self, event: Any) -> None:
            """Ignore idle queries."""

        def onQueryTerminated(self, event: Any) -> None:
            tell(
                f"{names.pop(event.runId, event.id)} ended"
                + (f": {event.exception.splitlines()[0]}" if event.exception else "")
            )

    listener = Watching()
    spark.streams.addListener(listener)
    return listener
