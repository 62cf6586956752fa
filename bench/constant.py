"""Sources and a sink for Spark that ask nobody: what a query costs with any that is written in Python."""

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
        """One number."""
        return "number BIGINT"

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        """See :class:`Reader`."""
        return Reader(int(self.options["tasks"]))


class Reader(DataSourceStreamReader):
    """There is always more of it."""

    def __init__(self, tasks: int) -> None:
        self._tasks = tasks

    def initialOffset(self) -> dict[str, Any]:
        """None was given."""
        return {"given": 0}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """One more batch."""
        return {"given": start["given"] + 1}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """All alike."""
        return [InputPartition(number) for number in range(self._tasks)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Three rows."""
        import pyarrow as pa

        yield pa.RecordBatch.from_pydict({"number": [1, 2, 3]})


class Simple(Constant):
    """``format("simple")``: three rows in every micro-batch, by Spark's simple reader: they go with the plan."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "simple"

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        """None, so Spark asks for the simple one."""
        return DataSource.streamReader(self, schema)

    def simpleStreamReader(self, schema: Any) -> SimpleDataSourceStreamReader:
        """See :class:`SimpleReader`."""
        return SimpleReader()


class SimpleReader(SimpleDataSourceStreamReader):
    """There is always more of it."""

    def initialOffset(self) -> dict[str, Any]:
        """None was given."""
        return {"given": 0}

    def read(self, start: dict[str, Any]) -> tuple[Iterator[tuple[int]], dict[str, Any]]:
        """Three rows."""
        return iter([(1,), (2,), (3,)]), {"given": start["given"] + 1}

    def readBetweenOffsets(self, start: dict[str, Any], end: dict[str, Any]) -> Iterator[tuple[int]]:
        """Three rows."""
        return iter([(1,), (2,), (3,)])


# --- many rows --------------------------------------------------------------------------------------------------------


class Mapped(DataSource):
    """``format("mapped")``: the record batches of the Arrow file at ``path``, mapped into memory, as they are: of all
    ``columns``, or of those that are named; in as many ``tasks``; as a stream in micro-batches of as many ``batches``.
    """

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "mapped"

    def schema(self) -> Any:
        """That of the file."""
        return from_arrow_schema(self._file().schema.empty_table().select(self._columns()).schema)

    def reader(self, schema: Any) -> DataSourceReader:
        """A batch read."""
        count = int(self.options.get("batches", self._file().num_record_batches))
        return MappedReader(self.options["path"], self._columns(), int(self.options["tasks"]), count)

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        """A stream."""
        count, size = self._file().num_record_batches, int(self.options["batches"])
        return MappedStream(self.options["path"], self._columns(), int(self.options["tasks"]), count, size)

    def _columns(self) -> list[str]:
        names = self.options.get("columns", "")
        return names.split(",") if names else list(self._file().schema.names)

    def _file(self) -> Any:
        return opened(self.options["path"])


class Dropping(DataSource):
    """A sink, ``format("dropping")``: takes all rows, and does nothing with them."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "dropping"

    def writer(self, schema: Any, overwrite: bool) -> DataSourceArrowWriter:
        """Of a batch."""
        return DropBatch()

    def streamWriter(self, schema: Any, overwrite: bool) -> DataSourceStreamArrowWriter:
        """Of a stream."""
        return DropStream()


class _Drop:
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Look at none."""
        for _ in iterator:
            pass
        return WriterCommitMessage()


class DropBatch(_Drop, DataSourceArrowWriter):
    """See :class:`Dropping`."""


class DropStream(_Drop, DataSourceStreamArrowWriter):
    """See :class:`Dropping`."""


def opened(path: str) -> Any:
    """The file, mapped."""
    import pyarrow as pa

    return pa.ipc.open_file(pa.memory_map(path))


@dataclass
class Some(InputPartition):
    """Batches of the file."""

    numbers: range

    def __post_init__(self) -> None:
        super().__init__(None)


def divided(numbers: range, tasks: int) -> list[InputPartition]:
    """Into so many tasks."""
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
        """All of it."""
        return divided(range(self.count), min(self.tasks, self.count))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The batches."""
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
        """Nothing comes."""

    def initialOffset(self) -> dict[str, Any]:
        """The beginning."""
        return {"at": 0}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """So many more."""
        return {"at": min(start["at"] + self.size, self.count)}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:  # type: ignore[override]
        """Those of a micro-batch."""
        return divided(range(start["at"], end["at"]), self.tasks)
