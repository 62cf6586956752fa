"""A task of a read, and how it runs: in a separate process, with pickled arguments."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import InputPartition

from holdfast import __version__
from holdfast.client.data_plane import DataPlane, Patience, read_range
from holdfast.client.errors import PipelineError, RecordsTrimmed
from holdfast.client.nodes import Nodes
from holdfast.client.offsets import Known, Range
from holdfast.client.owners import OwnerPlanes
from holdfast.pipeline.reader.bounds import refuse_or_tell
from holdfast.pipeline.reader.columns import BatchBuilder
from holdfast.pipeline.reader.options import ReadOptions
from holdfast.pipeline.spark.workers import spare_collections

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class Part:
    """A range of one partition of a queue.

    Args:
        queue: Its name.
        epoch: Its epoch.
        range: The offsets.
        known: Values that the server must compare.
        since, until: Only records with since <= received_at < until, microseconds since 1970; None for no limit.
    """

    queue: str
    epoch: str
    range: Range
    known: tuple[Known, ...] = ()
    since: int | None = None
    until: int | None = None


@dataclass
class WsrmPartition(InputPartition):
    """The ranges that one task reads, one after the other, and the nodes of the cluster that had them at planning."""

    parts: tuple[Part, ...]
    nodes: Nodes | None = None

    def __post_init__(self) -> None:
        super().__init__(None)


class PortableReader:
    """A reader that a task receives as its options alone, and builds again from them."""

    _options: ReadOptions

    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    def __getstate__(self) -> dict[str, Any]:
        return {"version": __version__, "options": self._options}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """In a task.

        Raises:
            PipelineError: Another version of Holdfast has pickled it.
        """
        if state.get("version") != __version__:
            raise PipelineError(
                f"the driver runs Holdfast {state.get('version')}, and this executor {__version__}",
                remedy="Install one version on the driver and on all executors",
            )
        type(self).__init__(self, state["options"])


def read_task(options: ReadOptions, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """In a task: yield the rows of one partition; they depend only on its ranges."""
    spare_collections()
    if not isinstance(partition, WsrmPartition):
        return  # Spark's placeholder for a read without partitions
    patience = Patience(options.away)
    with (
        closing(DataPlane(options.broker, options.access)) as plane,
        closing(OwnerPlanes(plane, partition.nodes)) as owners,
    ):
        for part in partition.parts:
            for batch in _read_part(options, owners, patience, part):
                narrowed = _narrowed(batch, options, part)
                if narrowed.num_rows:
                    yield narrowed


def _read_part(options: ReadOptions, owners: OwnerPlanes, patience: Patience, part: Part) -> Iterator[pa.RecordBatch]:
    """Yield every record of the range, except those deleted meanwhile, if the options tolerate that."""
    wanted = part.range
    while wanted.start < wanted.end:
        try:
            for batch in _batches(options, owners, patience, replace(part, range=wanted)):
                wanted = Range(wanted.partition, wanted.start + batch.num_rows, wanted.end)
                yield batch
        except RecordsTrimmed:
            if options.fail_on_loss:
                raise
            first = patience.call(lambda: owners.any_node.ends(part.queue)).firsts[wanted.partition]
            # One record at least, so that the loop ends whatever the server answers.
            gone = Range(wanted.partition, wanted.start, min(max(first, wanted.start + 1), wanted.end))
            refuse_or_tell([(part.queue, gone)], options, "this task has to read")
            wanted = Range(wanted.partition, gone.end, wanted.end)


def _batches(options: ReadOptions, owners: OwnerPlanes, patience: Patience, part: Part) -> Iterator[pa.RecordBatch]:
    """Yield the range as it is now. If no record is needed, the server only confirms that all exist."""
    asked = part.range
    builder = BatchBuilder(part.queue, asked.partition, options.needed)
    if options.needs_records:
        blocks = read_range(owners, part.queue, part.epoch, asked, patience, part.known, builder.unused)
        yield from builder.batches(blocks)
    else:
        patience.call(lambda: owners.any_node.check_range(part.queue, part.epoch, asked, part.known))
        yield from builder.positions(asked.start, asked.end)


def _narrowed(batch: pa.RecordBatch, options: ReadOptions, part: Part) -> pa.RecordBatch:
    import pyarrow as pa
    import pyarrow.compute as pc

    masks = [
        pc.equal(batch.column(name), value)
        for name, value in (("sequence", options.sequence), ("action", options.action))
        if value
    ]
    received = batch.column("received_at").cast(pa.int64()) if (part.since, part.until) != (None, None) else None
    masks += [pc.greater_equal(received, part.since)] if part.since is not None else []
    masks += [pc.less(received, part.until)] if part.until is not None else []
    for mask in masks[1:]:
        masks[0] = pc.and_(masks[0], mask)
    rows = batch.filter(masks[0]) if masks else batch
    names = options.names
    return rows.select([name for name in rows.schema.names if name in names])
