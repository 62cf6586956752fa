"""A source for Spark that asks nobody: what a micro-batch costs with any source that is written in Python."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit

if TYPE_CHECKING:
    import pyarrow as pa


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
