"""Sources and a sink for Spark that contact no server: the minimum cost of a query with a Python source."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    SimpleDataSourceStreamReader,
    WriterCommitMessage,
)
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow

if TYPE_CHECKING:
    import pyarrow as pa


# --- a few rows -------------------------------------------------------------------------------------------------------


class Constant(DataSource):
    """``format("constant")``: three rows for each of as many ``tasks``, in every micro-batch."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "constant"

    def schema(self) -> str:
        """Return one number column."""
        return "number BIGINT"

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        """See :class:`Reader`."""
        return Reader(int(self.options["tasks"]))


class Reader(DataSourceStreamReader):
    """An endless source."""

    def __init__(self, tasks: int) -> None:
        self._tasks = tasks

    def initialOffset(self) -> dict[str, Any]:
        """Return an empty offset."""
        return {"given": 0}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the offset after one more batch."""
        return {"given": start["given"] + 1}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return equal partitions."""
        return [InputPartition(number) for number in range(self._tasks)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield three rows."""
        import pyarrow as pa

        yield pa.RecordBatch.from_pydict({"number": [1, 2, 3]})


class Simple(Constant):
    """``format("simple")``: three rows in every micro-batch, by Spark's simple reader: they go with the plan."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "simple"

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        """Raise, so that Spark uses the simple reader."""
        return DataSource.streamReader(self, schema)

    def simpleStreamReader(self, schema: Any) -> SimpleDataSourceStreamReader:
        """See :class:`SimpleReader`."""
        return SimpleReader()


class SimpleReader(SimpleDataSourceStreamReader):
    """An endless source."""

    def initialOffset(self) -> dict[str, Any]:
        """Return an empty offset."""
        return {"given": 0}

    def read(self, start: dict[str, Any]) -> tuple[Iterator[tuple[int]], dict[str, Any]]:
        """Return three rows."""
        return iter([(1,), (2,), (3,)]), {"given": start["given"] + 1}

    def readBetweenOffsets(self, start: dict[str, Any], end: dict[str, Any]) -> Iterator[tuple[int]]:
        """Return three rows."""
        return iter([(1,), (2,), (3,)])


# --- many rows --------------------------------------------------------------------------------------------------------


class Mapped(DataSource):
    """``format("mapped")``: the record batches of an Arrow file, mapped into memory.

    It reads the file at ``path``, with all or the named ``columns``, in the given number of ``tasks``, as a stream in
    micro-batches of the given number of ``batches``.
    """

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "mapped"

    def schema(self) -> Any:
        """Return the file's schema."""
        return from_arrow_schema(self._file().schema.empty_table().select(self._columns()).schema)

    def reader(self, schema: Any) -> DataSourceReader:
        """Return a batch reader."""
        count = int(self.options.get("batches", self._file().num_record_batches))
        return MappedReader(self.options["path"], self._columns(), int(self.options["tasks"]), count)

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        """Return a stream reader."""
        count, size = self._file().num_record_batches, int(self.options["batches"])
        return MappedStream(self.options["path"], self._columns(), int(self.options["tasks"]), count, size)

    def _columns(self) -> list[str]:
        names = self.options.get("columns", "")
        return names.split(",") if names else list(self._file().schema.names)

    def _file(self) -> Any:
        return opened(self.options["path"])


class Dropping(DataSource):
    """A sink, ``format("dropping")``: accepts all rows and discards them."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "dropping"

    def writer(self, schema: Any, overwrite: bool) -> DataSourceArrowWriter:
        """Return a batch writer."""
        return DropBatch()

    def streamWriter(self, schema: Any, overwrite: bool) -> DataSourceStreamArrowWriter:
        """Return a stream writer."""
        return DropStream()


class _Drop:
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Discard all rows."""
        for _ in iterator:
            pass
        return WriterCommitMessage()


class DropBatch(_Drop, DataSourceArrowWriter):
    """See :class:`Dropping`."""


class DropStream(_Drop, DataSourceStreamArrowWriter):
    """See :class:`Dropping`."""


def opened(path: str) -> Any:
    """Open the file, mapped."""
    import pyarrow as pa

    return pa.ipc.open_file(pa.memory_map(path))


@dataclass
class Some(InputPartition):
    """Batches of the file."""

    numbers: range

    def __post_init__(self) -> None:
        super().__init__(None)


def divided(numbers: range, tasks: int) -> list[InputPartition]:
    """Divide batch numbers among tasks."""
    if not numbers:
        return []
    cuts = [numbers.start + len(numbers) * one // tasks for one in range(tasks + 1)]
    return [Some(range(start, end)) for start, end in itertools.pairwise(cuts)]


@dataclass
class MappedReader(DataSourceReader):
    """A batch read."""

    path: str
    columns: list[str]
    tasks: int
    count: int

    def partitions(self) -> Sequence[InputPartition]:
        """Return all batches."""
        return divided(range(self.count), min(self.tasks, self.count))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the batches."""
        if not isinstance(partition, Some):
            return  # Spark's placeholder for a read without partitions
        file = opened(self.path)
        for number in partition.numbers:
            yield file.get_batch(number).select(self.columns)


@dataclass
class MappedStream(MappedReader, DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """A stream."""

    size: int

    def prepareForTriggerAvailableNow(self) -> None:
        """Do nothing: the file does not grow."""

    def initialOffset(self) -> dict[str, Any]:
        """Return the beginning."""
        return {"at": 0}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the offset after the next micro-batch."""
        return {"at": min(start["at"] + self.size, self.count)}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:  # type: ignore[override]
        """Return the batches of a micro-batch."""
        return divided(range(start["at"], end["at"]), self.tasks)
