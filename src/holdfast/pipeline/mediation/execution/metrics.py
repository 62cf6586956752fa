"""Prometheus metrics of a running pipeline, from the reports of its batches."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from holdfast.pipeline.mediation.execution.batches import MediatedBatch
from holdfast.pipeline.progress import lag_of
from holdfast.store.durations import Durations

BOUNDS = (0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
"""Seconds: the upper bounds of the buckets of a batch's duration."""


class PipelineCollector(Collector):
    """Counters of one pipeline; names and meanings are in docs/reference/metrics.md. Any thread may call it.

    Args:
        sinks: Query -> the names of its sinks: each has a sample from the start.
        clock: Returns the time, in seconds since 1970.
    """

    def __init__(self, sinks: Mapping[str, list[str]], clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._sums: dict[str, Counter[str]] = {name: Counter() for name in sinks}
        self._sinks = {(query, sink): 0 for query, names in sinks.items() for sink in names}
        self._durations = {name: Durations(BOUNDS) for name in sinks}
        self._ended: dict[str, float] = {}
        self._lags: dict[str, Mapping[str, int]] = {}

    def add(self, batch: MediatedBatch) -> None:
        with self._lock:
            counted = {"rows": batch.rows, "dead": batch.dead, "late": batch.late, "doubles": batch.doubles}
            self._sums[batch.query].update(counted)
            for sink, rows in batch.sinks.items():
                self._sinks[batch.query, sink] += rows
            self._durations[batch.query].add(batch.seconds)
            self._ended[batch.query] = self._clock()

    def look(self, query: str, progress: Mapping[str, Any] | None) -> None:
        """Record the lag in a query's progress, such as ``lastProgress``."""
        lag = lag_of(progress) if progress is not None else None
        if lag is not None:
            with self._lock:
                self._lags[query] = lag

    def collect(self) -> Iterator[Metric]:
        with self._lock:
            yield from list(self._collected())

    def _collected(self) -> Iterator[Metric]:
        given = CounterMetricFamily(
            "holdfast_pipeline_rows_out", "Rows that a sink accepted, by query and sink.", labels=["query", "sink"]
        )
        for (query, sink), rows in self._sinks.items():
            given.add_metric([query, sink], rows)
        yield self._sum(
            CounterMetricFamily(
                "holdfast_pipeline_rows_read",
                "Rows that the batches of a query read from its source.",
                labels=["query"],
            ),
            "rows",
        )
        yield given
        yield self._sum(
            CounterMetricFamily("holdfast_pipeline_dead_rows", "Rows that became dead letters.", labels=["query"]),
            "dead",
        )
        yield self._sum(
            CounterMetricFamily(
                "holdfast_pipeline_late_rows",
                "Rows that a step with state dropped because they were later than the watermark, or had no time.",
                labels=["query"],
            ),
            "late",
        )
        yield self._sum(
            CounterMetricFamily(
                "holdfast_pipeline_repeated_records",
                "Records of a Kafka topic that were read before, with `once`.",
                labels=["query"],
            ),
            "doubles",
        )
        yield from self._of_batches()

    def _of_batches(self) -> Iterator[Metric]:
        took = HistogramMetricFamily(
            "holdfast_pipeline_batch_seconds",
            "Seconds from the start of a batch until every sink has its rows.",
            labels=["query"],
        )
        for query, durations in self._durations.items():
            took.add_metric([query], list(durations.buckets()), durations.seconds)
        yield took
        ended = GaugeMetricFamily(
            "holdfast_pipeline_last_batch_timestamp_seconds",
            "Time of the end of the last batch, in seconds since 1970.",
            labels=["query"],
        )
        for query, at in self._ended.items():
            ended.add_metric([query], at)
        yield ended
        lag = GaugeMetricFamily(
            "holdfast_pipeline_lag_records",
            "Records that the query had yet to read when its last batch was planned, by queue or topic.",
            labels=["query", "queue"],
        )
        for query, lags in self._lags.items():
            for queue, records in lags.items():
                lag.add_metric([query, queue], records)
        yield lag

    def _sum(self, family: CounterMetricFamily, what: str) -> Metric:
        for query, sums in self._sums.items():
            family.add_metric([query], sums[what])
        return family
