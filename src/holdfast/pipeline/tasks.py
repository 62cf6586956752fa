"""What one task of a read is, and how it is done: in a process of its own, with what was pickled."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

from holdfast.pipeline import offsets
from holdfast.pipeline.client import DataPlane, Known, Patience, read_range
from holdfast.pipeline.columns import BatchBuilder
from holdfast.pipeline.options import ReadOptions

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass
class WsrmPartition(InputPartition):
    """What one task reads: ranges of the queue's partitions, one after the other."""

    epoch: str
    ranges: tuple[offsets.Range, ...]
    known: tuple[Known, ...] = ()

    def __post_init__(self) -> None:
        super().__init__(None)


def read_task(options: ReadOptions, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """In a task: the rows of one partition; they depend on nothing but its ranges."""
    if not isinstance(partition, WsrmPartition):
        return  # Spark's placeholder for a read without partitions
    plane = DataPlane(options.broker, options.access)
    patience = Patience(options.away)
    try:
        for part in partition.ranges:
            builder = BatchBuilder(options.queue, part.partition, body=options.body, headers=options.headers)
            known = [one for one in partition.known if one[0] == part.partition]
            yield from builder.batches(read_range(plane, options.queue, partition.epoch, part, patience, known))
    finally:
        plane.close()
