"""The shipped core, simulated on Spark: many seeded Sequences for each combination of network and policy.

A row of the result depends only on its combination and its seed. So a result is the same on any cluster, and any row
can be repeated alone with ``holdfast.simulation.trial``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.pipeline.simulation.grid import Cell, Grid
from holdfast.pipeline.spark.ddl import arrow_schema, record_batch

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession

    from holdfast.simulation.trial import Outcome

PER_TASK = 1_000
"""Sequences of one task: about a second of work."""
MOST_TASKS = 10_000

OUTCOMES = (
    "cell INT, loss DOUBLE, delay DOUBLE, window INT, backoff STRING, seed BIGINT, messages INT, delivered INT, "
    "is_complete BOOLEAN, seconds DOUBLE, transmissions INT, requests INT, dropped INT, latencies ARRAY<FLOAT>"
)
"""Columns of :func:`simulate`: the combination, then as in :class:`~holdfast.simulation.trial.Outcome`."""

_AXES = ("cell", "loss", "delay", "window", "backoff")


def simulate(spark: SparkSession, grid: Grid) -> DataFrame:
    """Simulate every Sequence of a grid.

    Args:
        spark: Any session, classic or Connect.

    Returns:
        A row for each Sequence, see :data:`OUTCOMES`. Each action on the DataFrame runs all simulations again, so write
        it to a table first.
    """
    tasks = max(1, min(MOST_TASKS, -(-grid.total // PER_TASK)))
    return spark.range(0, grid.total, 1, tasks).mapInArrow(_Tried(grid), OUTCOMES)


@dataclass(frozen=True)
class _Tried:
    """Simulates Sequences by number, in a task."""

    grid: Grid

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from holdfast.simulation import trial

        grid = self.grid
        cells = grid.cells
        trials = [grid.trial(cell) for cell in cells]
        schema = arrow_schema(OUTCOMES)
        for batch in batches:
            rows = []
            for number in batch.column(0).to_pylist():
                cell, seed = divmod(number, grid.sequences)
                seed += grid.seed
                rows.append(_row(cell, cells[cell], seed, grid.messages, trial.run(trials[cell], seed)))
            yield record_batch(rows, schema)


def _row(number: int, cell: Cell, seed: int, messages: int, outcome: Outcome) -> tuple[object, ...]:
    return (
        number,
        cell.loss,
        cell.delay,
        cell.window,
        cell.backoff,
        seed,
        messages,
        len(outcome.latencies),
        outcome.is_complete,
        outcome.seconds,
        outcome.transmissions,
        outcome.requests,
        outcome.dropped,
        outcome.latencies,
    )


def summarize(outcomes: DataFrame) -> DataFrame:
    """Summarize the Sequences of each combination.

    Args:
        outcomes: From :func:`simulate`.

    Returns:
        A row for each combination, in the grid's order: ``cell, loss, delay, window, backoff``, then ``sequences``,
        ``incomplete`` (Sequences that did not complete), ``goodput`` (messages delivered for each second of a
        Sequence's time), ``overhead`` (transmissions for each delivered message, beyond the first), ``goodput_margin``
        and ``overhead_margin`` (with 95 % confidence, the value for infinitely many Sequences differs by at most this),
        ``requests`` (all requests for each message), and seconds from submission to delivery: ``latency_50``,
        ``latency_95`` and ``latency_99``, within which 50, 95 and 99 % of the messages arrive, and ``longest``.
    """
    from pyspark.sql import functions as F

    delivered = F.sum("delivered")
    goodput, overhead = delivered / F.sum("seconds"), F.sum("transmissions") / delivered - 1
    figures = outcomes.groupBy(*_AXES).agg(
        F.count("*").alias("sequences"),
        F.sum(F.when(F.col("is_complete"), 0).otherwise(1)).alias("incomplete"),
        goodput.alias("goodput"),
        _margin("delivered", "seconds").alias("goodput_margin"),
        overhead.alias("overhead"),
        _margin("transmissions", "delivered").alias("overhead_margin"),
        (F.sum("requests") / delivered).alias("requests"),
    )
    quantiles = (
        outcomes.select("cell", F.explode("latencies").alias("latency"))
        .groupBy("cell")
        .agg(
            F.percentile_approx("latency", [0.5, 0.95, 0.99], QUANTILE_ACCURACY).alias("of"),
            F.max("latency").alias("longest"),
        )
        .select("cell", *(F.col("of")[at].alias(f"latency_{of}") for at, of in enumerate((50, 95, 99))), "longest")
    )
    return figures.join(quantiles, "cell", "left").orderBy("cell")


QUANTILE_ACCURACY = 100_000
"""A quantile's rank is off by at most this part of the messages. Of 1,000, the 99 % could be any from 98.9 to 99.1 %,
which differ by a sixth at a loss of a fifth. ``percentile`` is exact, but keeps every latency in memory."""

CONFIDENCE = 1.96
"""Standard deviations on either side of a mean, for 95 %."""


def _margin(of: str, by: str) -> Column:
    """Return how far the ratio of two sums may differ from that of infinitely many Sequences.

    This is the delta method, with each Sequence drawn independently.
    """
    from pyspark.sql import functions as F

    count, ratio = F.count("*"), F.sum(of) / F.sum(by)
    # The variance of (of - ratio * by), which has the mean 0.
    squares = F.sum(F.col(of) * F.col(of)) + ratio * ratio * F.sum(F.col(by) * F.col(by))
    variance = (squares - 2 * ratio * F.sum(F.col(of) * F.col(by))) / (count - 1)
    known = F.when((count > 1) & (F.sum(by) > 0), F.greatest(variance, F.lit(0.0)))
    return F.lit(CONFIDENCE) * F.sqrt(known / count) / F.avg(by)
