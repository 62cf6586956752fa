"""A batch read of queues. Each method notes where Spark runs it: in the *driver*, or in a *task*."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from holdfast.pipeline import offsets
from holdfast.pipeline.client import DataPlane, Patience
from holdfast.pipeline.options import ReadOptions
from holdfast.pipeline.tasks import WsrmPartition, read_task

if TYPE_CHECKING:
    import pyarrow as pa


class WsrmReader(DataSourceReader):
    """A batch read: from startingOffsets to endingOffsets as they stand when the read is planned. Uses no cursor."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        """In the driver, once for each loaded DataFrame."""
        options = self._options
        plane = DataPlane(options.broker, options.access)
        patience = Patience(options.away)
        try:
            ends = patience.call(lambda: plane.ends(options.queue))
            start = {**ends.firsts, **offsets.resolve(options.starting, ends, "startingOffsets")}
            end = {**ends.ends, **offsets.resolve(options.ending, ends, "endingOffsets")}
            prints = patience.call(lambda: plane.fingerprints(options.queue, ends.epoch, end))
        finally:
            plane.close()
        known = tuple((partition, end[partition], text) for partition, text in sorted(prints.items()) if text)
        ranges = [offsets.Range(p, start[p], end[p]) for p in sorted(end) if end[p] > start[p]]
        return [WsrmPartition(ends.epoch, part, known) for part in offsets.plan(ranges, options.tasks)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """In a task."""
        return read_task(self._options, partition)
