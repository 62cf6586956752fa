"""A batch read of a server's event journal, over HTTP. Each method notes where Spark runs it.

Each task fetches its own files. From a Parquet file it fetches the requested columns of the row groups that may contain
the requested times; it fetches other files completely.
"""

from __future__ import annotations

import heapq
import io
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from math import ceil
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, InputPartition

from holdfast.client.data_plane import Patience
from holdfast.client.errors import RecordsTrimmed
from holdfast.client.journal import FileMoved, JournalClient, JournalFile, RemoteFile, all_files
from holdfast.pipeline.reader.bounds import is_read
from holdfast.pipeline.reader.tasks import PortableReader
from holdfast.pipeline.spark.logs import log

if TYPE_CHECKING:
    import pyarrow as pa

TASK_BYTES = 8 << 20
"""Bytes of files for each task, if the number of tasks is not set."""
FEW = 4
"""Minimum number of tasks, if there are enough files, even small ones."""
PIECE = 1 << 20
"""Bytes of each request for a file that is read completely."""
ROWS = 65_536
"""Rows of a batch."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass
class JournalPartition(InputPartition):
    """The files that one task reads, one after the other."""

    files: tuple[JournalFile, ...]

    def __post_init__(self) -> None:
        super().__init__(None)


class JournalReader(PortableReader, DataSourceReader):
    """The current events of the journal, of all runs and workers, in no order."""

    def partitions(self) -> Sequence[InputPartition]:
        """In the driver, once for each loaded DataFrame."""
        options = self._options
        with closing(JournalClient(options.broker, options.access)) as client:
            files = list(all_files(client, Patience(options.away)))
        return [JournalPartition(part) for part in shared_out(files, options.tasks, options.min_tasks)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """In a task."""
        if not isinstance(partition, JournalPartition):
            return  # Spark's placeholder for a read without partitions
        options = self._options
        with closing(JournalClient(options.broker, options.access)) as client:
            for file in partition.files:
                try:
                    for batch in self._events(client, file):
                        narrowed = self._narrowed(batch)
                        if narrowed.num_rows:
                            yield narrowed
                except RecordsTrimmed as error:
                    if options.fail_on_loss:
                        raise
                    log.warning("journal.skipped", what=error.message)

    def _events(self, client: JournalClient, file: JournalFile) -> Iterator[pa.RecordBatch]:
        """Yield the events of a file that may match, in order; then, if it is damaged, an event that reports it."""
        from holdfast.endpoint.journal.files import PARQUET  # which no other read needs
        from holdfast.endpoint.journal.parquet import record_batches

        patience, done, damage = Patience(self._options.away), 0, list[str]()
        if not file.name.endswith(PARQUET):
            try:
                remote = io.BufferedReader(RemoteFile(client, file, patience), PIECE)
                for batch in record_batches(remote, damage.append):
                    done += batch.num_rows
                    yield batch
                yield from _told_damaged(file, damage)
                return
            except FileMoved as moved:
                file = moved.made  # a file with the same events, in the same order
        yield from self._parquet(RemoteFile(client, file, patience), done, damage)
        yield from _told_damaged(file, damage)

    def _parquet(self, file: RemoteFile, done: int, damage: list[str]) -> Iterator[pa.RecordBatch]:
        """Yield the part of a Parquet file that may match, without the first ``done`` events.

        If the file is damaged, add the reason to ``damage``, and skip the rest.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            opened = pq.ParquetFile(file, page_checksum_verification=True)
            numbers = range(opened.num_row_groups)
            groups = [one for one in numbers if done or self._may_hold(opened.metadata.row_group(one))]
            columns = [name for name in opened.schema_arrow.names if name in self._needed]
            for group in groups:
                # A group completely or not at all. Without threads, because they would share one connection.
                batches = list(opened.iter_batches(ROWS, row_groups=[group], columns=columns, use_threads=False))
                for batch in batches:
                    fresh = batch.slice(min(done, batch.num_rows))
                    done -= batch.num_rows - fresh.num_rows
                    yield fresh
        except (pa.ArrowException, OSError, ValueError) as error:
            damage.append(f"it cannot be read: {str(error).splitlines()[0]}")

    @property
    def _needed(self) -> frozenset[str]:
        options = self._options
        is_by = {
            "at": (options.starting_at, options.ending_at) != (None, None),
            "sequence": bool(options.sequence),
            "queue": bool(options.queues or options.pattern),
        }
        return options.names.union(name for name, is_used in is_by.items() if is_used)

    def _may_hold(self, group: Any) -> bool:
        """Return whether a row group of a Parquet file may contain the requested times."""
        options = self._options
        for number in range(group.num_columns):
            column = group.column(number)
            told = column.statistics
            if column.path_in_schema == "at" and told is not None and told.has_min_max:
                is_early = options.starting_at is not None and told.max < _time(options.starting_at)
                is_late = options.ending_at is not None and told.min >= _time(options.ending_at)
                return not is_early and not is_late
        return True

    def _narrowed(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        import pyarrow as pa
        import pyarrow.compute as pc

        options, wanted = self._options, pa.scalar(True)
        if options.starting_at is not None:
            wanted = pc.and_(wanted, pc.greater_equal(batch.column("at").cast(pa.int64()), options.starting_at))
        if options.ending_at is not None:
            wanted = pc.and_(wanted, pc.less(batch.column("at").cast(pa.int64()), options.ending_at))
        if options.sequence:
            wanted = pc.and_(wanted, pc.equal(batch.column("sequence"), options.sequence))
        if options.queues or options.pattern:
            queue = batch.column("queue")
            names = [name for name in pc.unique(queue).to_pylist() if name is not None and is_read(options, name)]
            wanted = pc.and_(wanted, pc.is_in(queue, pa.array(names, pa.string())))
        rows = batch if isinstance(wanted, pa.Scalar) else batch.filter(wanted)
        return rows.select([name for name in rows.schema.names if name in options.names])


def _told_damaged(file: JournalFile, damage: list[str]) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    from holdfast.endpoint.journal.parquet import arrow_schema
    from holdfast.pipeline.journal import damaged_event

    if damage:
        yield pa.RecordBatch.from_pylist([damaged_event(file.name, damage[0])], arrow_schema())


def shared_out(files: Sequence[JournalFile], most: int | None, least: int) -> list[tuple[JournalFile, ...]]:
    """Distribute files among tasks, with about equal numbers of bytes."""
    usual = max(FEW, ceil(sum(file.size for file in files) / TASK_BYTES), least)
    shares: list[list[JournalFile]] = [[] for _ in range(min(len(files), usual if most is None else most))]
    sizes = [(0, number) for number in range(len(shares))]
    for file in sorted(files, key=lambda one: one.size, reverse=True):
        size, number = heapq.heappop(sizes)
        shares[number].append(file)
        heapq.heappush(sizes, (size + file.size, number))
    return [tuple(share) for share in shares]


def _time(micros: int) -> datetime:
    return _EPOCH + timedelta(microseconds=micros)
