"""A batch read of queues. Each method notes where Spark runs it: in the *driver*, or in a *task*."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from holdfast.client import offsets
from holdfast.client.data_plane import DataPlane, Patience
from holdfast.client.errors import OffsetRefused
from holdfast.client.offsets import Ends, QueueRange, Range
from holdfast.client.terminal_text import few
from holdfast.pipeline.reader import bounds
from holdfast.pipeline.reader.options import RECEIVED
from holdfast.pipeline.reader.position_values import ByQueue
from holdfast.pipeline.reader.tasks import Part, PortableReader, WsrmPartition, read_task

if TYPE_CHECKING:
    import pyarrow as pa


class WsrmReader(PortableReader, DataSourceReader):
    """A batch read, with its start and end determined at planning. Uses no cursor."""

    def partitions(self) -> Sequence[InputPartition]:
        """In the driver, once for each loaded DataFrame."""
        options = self._options
        patience = Patience(options.away)
        with closing(DataPlane(options.broker, options.access)) as plane:
            there = patience.call(lambda: bounds.queues_there(plane, options))
            if not there:
                raise bounds.no_match(options)
            home = patience.call(lambda: self._home(plane))
            ranges: list[QueueRange] = []
            known: dict[str, list[offsets.Known]] = {}
            for queue, ends in there.items():
                ranges += patience.call(lambda one=ends: self._ranges(plane, one, home))  # type: ignore[misc]
                at = {part.partition: part.end for name, part in ranges if name == queue}
                found = patience.call(lambda q=queue, e=ends, a=at: plane.fingerprints(q, e.epoch, a)) if at else {}  # type: ignore[misc]
                known[queue] = [(one, at[one], text) for one, text in sorted(found.items()) if text]
            nodes = patience.call(plane.nodes) if ranges else None
        plan = offsets.plan(ranges, options.tasks, options.min_tasks, options.ease)
        return [
            WsrmPartition(tuple(self._part(there[queue], part, known[queue]) for queue, part in task), nodes)
            for task in plan
        ]

    def _home(self, plane: DataPlane) -> int | None:
        """Return the single partition with all requested records, if the server knows it."""
        return plane.partition_of(self._options.sequence) if self._options.sequence else None

    def _ranges(self, plane: DataPlane, ends: Ends, home: int | None) -> list[QueueRange]:
        options = self._options
        start, end = bounds.start_of(plane, options, ends), bounds.end_of(plane, options, ends)
        if strange := sorted(options.partitions - set(end)):
            raise OffsetRefused(
                f"option partitions names {strange[0]}, which queue {ends.queue!r} does not have",
                remedy=f"Its partitions are {few(map(str, sorted(end)))}",
            )
        for partition in sorted(end):
            self._refuse_backwards(ends, partition, start[partition], end[partition])
        wanted = [
            (ends.queue, Range(p, start[p], end[p]))
            for p in sorted(options.partitions or end)
            if end[p] > start[p] and home in (None, p)
        ]
        left, gone = offsets.split_trimmed(wanted, {ends.queue: ends})
        bounds.refuse_or_tell(gone, options, "are requested")
        return left

    def _refuse_backwards(self, ends: Ends, partition: int, start: int, end: int) -> None:
        """Reject a range with its end before its start; a range with deleted records has no start of its own."""
        starting = self._options.starting
        given = {} if isinstance(starting, str) else starting.get(ends.queue, {})
        if end < start and given.get(partition, -1) >= 0:
            raise OffsetRefused(
                f"queue {ends.queue!r} partition {partition} has the range {start} to {end}: its end is before its "
                "start",
                remedy="Swap options startingOffsets and endingOffsets",
            )

    def _part(self, ends: Ends, part: Range, known: Sequence[offsets.Known]) -> Part:
        options = self._options
        since = until = None
        if options.time_of == RECEIVED:
            since = _time(options.starting_at, options.starting_times, ends.queue, part.partition)
            until = _time(options.ending_at, options.ending_times, ends.queue, part.partition)
        own = tuple(one for one in known if one[0] == part.partition)
        return Part(ends.queue, ends.epoch, part, own, since, until)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """In a task."""
        return read_task(self._options, partition)


def _time(time: int | None, times: ByQueue | None, queue: str, partition: int) -> int | None:
    return time if times is None else times.get(queue, {}).get(partition)
