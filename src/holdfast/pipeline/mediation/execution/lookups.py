"""Tables to join with, cached in Spark between the batches of a query, and read again after a while."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING

from holdfast.pipeline.mediation.definition.plan import TablePlan
from holdfast.pipeline.mediation.execution.frames import read_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Lookups:
    """The tables of one query's batches. Only that query's thread reads them.

    Args:
        clock: Returns seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._kept: dict[str, tuple[float, DataFrame]] = {}

    def read(self, spark: SparkSession, table: TablePlan) -> DataFrame:
        """Return the current content of a table or, with ``refresh``, a cached one that is no older than that."""
        if table.refresh is None:
            return read_table(spark, table)
        now = self._clock()
        read_at, rows = self._kept.get(table.name, (now, None))
        if rows is not None and now - read_at < table.refresh:
            return rows
        self._forget(table.name)
        rows = _cached(read_table(spark, table))
        self._kept[table.name] = now, rows
        return rows

    def release(self) -> None:
        """Drop every table from the cache."""
        for name in list(self._kept):
            self._forget(name)

    def _forget(self, name: str) -> None:
        _, rows = self._kept.pop(name, (0.0, None))
        if rows is not None:
            rows.unpersist()


def _cached(rows: DataFrame) -> DataFrame:
    """Read all rows into the cache, so that they have the state of one moment.

    Spark finds cached rows by their plan, and two reads of one path have the same plan. The added column makes each
    plan unique, so that another query, or the next read, does not find these rows.
    """
    from pyspark.sql import functions as F

    mark = "holdfast_read"
    kept = rows.withColumn(mark, F.lit(uuid.uuid4().hex)).drop(mark).persist()
    kept.count()
    return kept
