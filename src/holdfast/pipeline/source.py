"""The ``wsrm`` data source: a server's queues as a Spark table or stream, and rows as reliable messages.

Exactly once into a transactional sink, by Spark's own checkpoint: a range of offsets always gives the same rows.
No filter is pushed down (Spark 4.3.0 gives wrong rows then): options narrow a read.
"""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from holdfast.exceptions import ConfigurationError, HoldfastError
from holdfast.pipeline.reader.batches import WsrmReader
from holdfast.pipeline.reader.columns import chosen, spark_struct
from holdfast.pipeline.reader.journal import JournalReader
from holdfast.pipeline.reader.letters import LettersReader
from holdfast.pipeline.reader.options import JOURNAL, LETTERS, MESSAGES, TABLES, ReadOptions
from holdfast.pipeline.reader.stream import RefusedStream, WsrmStreamReader
from holdfast.pipeline.spark.workers import spare_collections
from holdfast.pipeline.writer.sink import WsrmStreamWriter, WsrmWriter, planned


class WsrmDataSource(DataSource):
    """``format("wsrm")`` of ``spark.read``, ``spark.readStream``, ``df.write`` and ``df.writeStream``.

    Options: see ReadOptions and WriteOptions.
    """

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "wsrm"

    def schema(self) -> StructType:
        """The columns that the options ask for."""
        spare_collections()
        return _schema(ReadOptions.parse(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        spare_collections()
        options = self._checked(schema)
        options.check_batch()
        return _READERS[options.read](options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        spare_collections()
        try:
            options = self._checked(schema)
            options.check_stream()
            return WsrmStreamReader(options)
        except HoldfastError as error:
            return RefusedStream(error)

    def writer(self, schema: StructType, overwrite: bool) -> WsrmWriter:
        spare_collections()
        return WsrmWriter(*planned(self.options, schema, overwrite, stream=False))

    def streamWriter(self, schema: StructType, overwrite: bool) -> WsrmStreamWriter:
        spare_collections()
        return WsrmStreamWriter(*planned(self.options, schema, overwrite, stream=True))

    def _checked(self, schema: StructType) -> ReadOptions:
        options = ReadOptions.parse(self.options)
        ours = _schema(options)
        if schema != ours:
            raise ConfigurationError(
                f"the wsrm source has the columns {ours.simpleString()}, but .schema() requested "
                f"{schema.simpleString()}",
                remedy="Remove .schema(); option columns selects columns",
            )
        return options


def _schema(options: ReadOptions) -> StructType:
    return spark_struct(chosen(TABLES[options.read], options.names))


_READERS: dict[str, Callable[[ReadOptions], DataSourceReader]] = {
    MESSAGES: WsrmReader,
    LETTERS: LettersReader,
    JOURNAL: JournalReader,
}


__all__ = ["WsrmDataSource"]
