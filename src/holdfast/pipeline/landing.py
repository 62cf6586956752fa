"""Landing: a queue into Parquet, each message exactly once, XML bodies parsed into columns.

Each micro-batch owns the directory ``batch=<id>`` and overwrites it: a batch that Spark repeats after a crash
replaces itself. That holds as long as batch ids do not start again, so data without its checkpoint is refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql.types import ArrayType, DataType, LongType, StringType, StructField, StructType, TimestampType

from holdfast.exceptions import ConfigurationError
from holdfast.pipeline import files
from holdfast.pipeline.bodies import BodyReader
from holdfast.pipeline.client import DataPlane, Patience
from holdfast.pipeline.offsets import Positions, positions_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

READER = "land"
"""The cursor's name, unless told otherwise."""

_ENVELOPE = StructType(
    [
        StructField("sequence", StringType()),
        StructField("message_number", LongType()),
        StructField("message_id", StringType()),
        StructField("action", StringType()),
        StructField("received_at", TimestampType()),
        StructField("body", StringType()),
    ]
)
CORRUPT = "corrupt_record"


def land(
    spark: SparkSession,
    broker: str,
    queue: str,
    out: str,
    *,
    checkpoint: str,
    schema: StructType | str | None = None,
    prefix: str = "",
    reader: str = READER,
    trigger: Mapping[str, Any] | None = None,
    options: Mapping[str, str] | None = None,
) -> StreamingQuery:
    """Start a query that lands a queue as Parquet below ``out``; read it with ``read_landed``.

    Columns: sequence, message_number, message_id, action, received_at, body, one for each field of ``schema``, and
    ``corrupt_record``: why the body or a value of it could not be read, null where all is well. Such a row is landed
    all the same, with the values that could be read.

    Args:
        spark: A classic session, see ``holdfast.pipeline.session``.
        broker: URL of the server's admin listener.
        queue: The queue.
        out: Directory, of any file system Spark knows.
        checkpoint: Directory of the query's progress. It belongs to ``out``: keep, move and delete them together.
        schema: Fields of the body's element (children or attributes, see ``bodies``), or as DDL; None: no parsing.
        prefix: Put before the names of the parsed columns.
        reader: Name of the cursor on the server.
        trigger: ``{"availableNow": True}``, ``{"processingTime": "10 seconds"}``; None: as soon as there is something.
        options: Further options of the source.

    Raises:
        ConfigurationError: The schema cannot be used; or ``out`` holds batches that the checkpoint knows nothing of:
            its batch ids would start again at 0, and overwrite what is there.
    """
    parser = BodyColumns(_schema_of(schema), prefix)
    _refuse_foreign_data(spark, out, checkpoint)
    source = spark.readStream.format("wsrm").options(**dict(options or {}))
    stream = source.option("broker", broker).option("queue", queue).option("reader", reader).load()
    writer = stream.writeStream.queryName(f"land-{queue}").option("checkpointLocation", checkpoint)
    if trigger:
        writer = writer.trigger(**trigger)
    return writer.foreachBatch(_batch_writer(out, parser)).start()


def _schema_of(schema: StructType | str | None) -> StructType:
    return StructType.fromDDL(schema) if isinstance(schema, str) else schema or StructType()


def _batch_writer(out: str, parser: BodyColumns) -> Callable[[DataFrame, int], None]:
    def write(batch: DataFrame, batch_id: int) -> None:
        parsed = batch.select(*_ENVELOPE.fieldNames()).mapInArrow(parser, parser.schema)
        parsed.write.mode("overwrite").parquet(f"{out}/batch={batch_id}")

    return write


class BodyColumns:
    """For ``mapInArrow``: adds the parsed columns and ``corrupt_record`` to the envelope's.

    Args:
        fields: Fields of the body's element.
        prefix: Put before their names.

    Raises:
        ConfigurationError: Two columns would have the same name, or a type cannot be read from a text.
    """

    def __init__(self, fields: StructType, prefix: str = "") -> None:
        self._fields = fields
        self._prefix = prefix
        taken = {name.lower() for name in (*_ENVELOPE.fieldNames(), CORRUPT, "batch")}
        for name in (prefix + field.name for field in fields.fields):
            if name.lower() in taken:
                raise ConfigurationError(
                    f"two landed columns would be called {name!r}",
                    remedy="give the parsed ones a prefix: prefix='body_'",
                )
            taken.add(name.lower())
        BodyReader(fields)  # its types are refused here, not in a task
        parsed = [StructField(prefix + field.name, _nullable(field.dataType)) for field in fields.fields]
        self.schema = StructType([*_ENVELOPE.fields, *parsed, StructField(CORRUPT, StringType())])

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """In a task: the batches with their new columns."""
        import pyarrow as pa
        from pyspark.sql.pandas.types import to_arrow_type

        reader = BodyReader(self._fields)
        kinds = [to_arrow_type(_nullable(field.dataType), timezone="UTC") for field in self._fields.fields]
        for batch in batches:
            bodies = batch.column(batch.schema.get_field_index("body")).cast(pa.binary()).to_pylist()
            read = [reader.read(body) for body in bodies] if kinds else [({}, None)] * len(bodies)
            arrays = [batch.column(i) for i in range(batch.num_columns)]
            for field, kind in zip(self._fields.fields, kinds, strict=True):
                arrays.append(pa.array([values[field.name] for values, _ in read], kind))
            arrays.append(pa.array([problem for _, problem in read], pa.string()))
            yield pa.RecordBatch.from_arrays(arrays, names=self.schema.fieldNames())


def _nullable(kind: DataType) -> DataType:
    """The type with null allowed everywhere: a corrupt row has nulls where the schema promises none."""
    if isinstance(kind, StructType):
        return StructType([StructField(f.name, _nullable(f.dataType)) for f in kind.fields])
    if isinstance(kind, ArrayType):
        return ArrayType(_nullable(kind.elementType))
    return kind


def read_landed(spark: SparkSession, out: str) -> DataFrame:
    """What ``land`` has landed so far, with the column ``batch``; a batch that is being written is left out.

    Raises:
        ConfigurationError: There is nothing yet.
    """
    batches = [f"{out}/{name}" for name in _batches(spark, out) if "_SUCCESS" in files.names(spark, f"{out}/{name}")]
    if not batches:
        raise ConfigurationError(f"nothing has been landed in {out} yet", remedy="run holdfast land, or look elsewhere")
    return spark.read.option("basePath", out).option("mergeSchema", "true").parquet(*batches)


def _batches(spark: SparkSession, out: str) -> list[str]:
    return [name for name in files.names(spark, out) if name.startswith("batch=")]


def _refuse_foreign_data(spark: SparkSession, out: str, checkpoint: str) -> None:
    if _batches(spark, out) and not files.names(spark, f"{checkpoint}/offsets"):
        raise ConfigurationError(
            f"{out} holds landed batches, but the checkpoint {checkpoint} is new: its batches would overwrite them",
            remedy="use the checkpoint the data was landed with; if it is lost, land into another directory",
        )


def settle(spark: SparkSession, broker: str, queue: str, checkpoint: str, *, reader: str = READER) -> Positions | None:
    """Move the cursor to what the checkpoint says is landed: Spark itself leaves it one batch behind at a run's end.

    Returns:
        Where the cursor stands now; None if no batch has been completed yet.

    Raises:
        ServerAway: For a minute; harmless, the next run's first batch moves the cursor.
    """
    done = [int(name) for name in files.names(spark, f"{checkpoint}/commits") if name.isdigit()]
    if not done:
        return None
    lines = files.read_text(spark, f"{checkpoint}/offsets/{max(done)}").splitlines()
    offset = json.loads(lines[2])  # version, settings, then one line for each source
    plane = DataPlane(broker)
    positions = positions_of(offset, queue)
    try:
        return Patience(60.0).call(lambda: plane.advance_cursor(queue, reader, str(offset["epoch"]), positions))
    finally:
        plane.close()
