"""Batch reads of a source's records: given ranges, or a sample of its queues' current content."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

from holdfast.client.data_plane import DataPlane, Patience
from holdfast.client.offsets import QueueRange, Range
from holdfast.endpoint.admin.data_plane.admission import share
from holdfast.pipeline.mediation.definition.checks import source_options
from holdfast.pipeline.mediation.definition.plan import SourcePlan
from holdfast.pipeline.mediation.kafka import cluster as kafka_cluster
from holdfast.pipeline.mediation.kafka.records import as_rows
from holdfast.pipeline.reader import bounds
from holdfast.pipeline.reader.columns import chosen, spark_struct
from holdfast.pipeline.reader.options import TABLES, ReadOptions
from holdfast.pipeline.spark.checkpoints import ranges_of_queues, topic_positions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_NARROWING = ("queue", "subscribe", "partitions", "timestamptype")
"""Options of a source that select records, in addition to those with the prefixes below."""
_KAFKA = (
    "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, "
    "headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
)
"""The used columns of Spark's connector."""
_BEGINNINGS = ("starting", "ending", "queuepattern", "subscribepattern")


def read_sample(spark: SparkSession, source: SourcePlan, rows: int) -> DataFrame:
    """Read this many current records of a source; no cursor moves."""
    if source.kafka is not None:
        options = kafka_cluster.sample_options(spark, source, rows)
        return as_rows(spark.read.format("kafka").options(**options).load())
    return spark.read.format("wsrm").options(**range_options(source, sample_ranges(source, rows))).load()


def no_rows(spark: SparkSession, source: SourcePlan) -> DataFrame:
    """Return a source's columns without rows; this asks no server."""
    if source.kafka is not None:
        return as_rows(spark.createDataFrame([], _KAFKA))
    options = ReadOptions.parse(source_options(source))
    return spark.createDataFrame([], spark_struct(chosen(TABLES[options.read], options.names)))


def read_batch(spark: SparkSession, source: SourcePlan, start: Mapping[str, Any], end: Mapping[str, Any]) -> DataFrame:
    """Read the records of a query's batch again, from its start and end offset, in the source's form."""
    if source.kafka is not None:
        before, ends = topic_positions(start), topic_positions(end)
        begins = {partition: before.get(partition, -2) for partition in ends}  # -2: a partition's earliest
        options = kafka_cluster.range_options(source, begins, ends)
        return as_rows(spark.read.format("kafka").options(**options).load())
    options = range_options(source, ranges_of_queues(start, end))
    return spark.read.format("wsrm").options(**options).load()


def range_options(source: SourcePlan, ranges: Sequence[QueueRange]) -> dict[str, str]:
    """Return the options for a batch read of some ranges of a source."""
    kept = {
        name: value
        for name, value in source_options(source).items()
        if name.lower() not in _NARROWING and not name.lower().startswith(_BEGINNINGS)
    }
    queues = sorted({queue for queue, _ in ranges})
    starts = {queue: {str(p.partition): p.start for name, p in ranges if name == queue} for queue in queues}
    ends = {queue: {str(p.partition): p.end for name, p in ranges if name == queue} for queue in queues}
    numbers = sorted({part.partition for _, part in ranges})
    narrowed = {"queue": ",".join(queues), "startingOffsets": json.dumps(starts), "endingOffsets": json.dumps(ends)}
    # A partition that was added since has no range.
    return {**kept, **narrowed, **({"partitions": ",".join(map(str, numbers))} if len(queues) == 1 else {})}


def sample_ranges(source: SourcePlan, rows: int) -> list[QueueRange]:
    """Choose ranges with this many records of a source, shared over all partitions of its queues.

    They begin at the source's starting position, or at the first stored records.
    """
    options = ReadOptions.parse(source_options(source))
    patience = Patience(options.away)
    since: dict[tuple[str, int], int] = {}
    ends: dict[tuple[str, int], int] = {}
    with closing(DataPlane(options.broker, options.access)) as plane:
        there = patience.call(lambda: bounds.queues_there(plane, options))
        if not there:
            raise bounds.no_match(options)
        for queue, one in there.items():
            begins = patience.call(lambda one=one: bounds.start_of(plane, options, one))  # type: ignore[misc]
            for partition, (first, end) in one.partitions.items():
                ends[queue, partition] = end
                since[queue, partition] = max(first, begins[partition]) if begins[partition] < end else first
    until = share(since, ends, rows)
    return [(queue, Range(partition, since[queue, partition], until[queue, partition])) for queue, partition in ends]
