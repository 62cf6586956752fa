"""Landing: a queue into Parquet, each message exactly once, XML bodies parsed into columns.

Each micro-batch owns the directory ``batch=<id>`` and overwrites it: a batch that Spark repeats after a crash
replaces itself. That holds as long as batch ids do not start again, so data without its checkpoint is refused.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.types import StructType

from holdfast.endpoint.admin_client import Access
from holdfast.exceptions import ConfigurationError
from holdfast.pipeline import files
from holdfast.pipeline.body_columns import CORRUPT, ENVELOPE, BodyColumns
from holdfast.pipeline.client import DataPlane, Patience
from holdfast.pipeline.errors import OffsetRefused
from holdfast.pipeline.offsets import Positions, parse
from holdfast.pipeline.reading import MAX_ELEMENTS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

READER_FILE = "holdfast-reader"
"""In the checkpoint: the name of its cursor on the server."""

_BATCH = re.compile(r"batch=[0-9]+")

_WRITING = {
    # Days before 1582 and times before 1900 as they are (.NET's "no time" is in the year 1): else the write may fail.
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.int96RebaseModeInWrite": "CORRECTED",
    # Not INT96, which other readers of Parquet take for nanoseconds: these end in 2262, without a word.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}


@dataclass(frozen=True, slots=True)
class LandedBatch:
    """What has been landed with one batch.

    Args:
        batch: Its number, the column ``batch``.
        rows: Its rows.
        flagged: How many of them have a ``corrupt_record``.
        first_flagged: Partition, offset and ``corrupt_record`` of the first of them.
    """

    batch: int
    rows: int
    flagged: int
    first_flagged: tuple[int, int, str] | None


def land(
    spark: SparkSession,
    broker: str,
    queue: str,
    out: str,
    *,
    checkpoint: str,
    schema: StructType | str | None = None,
    prefix: str = "",
    reader: str | None = None,
    trigger: Mapping[str, Any] | None = None,
    options: Mapping[str, str] | None = None,
    lenient: Collection[str] = (),
    max_elements: int = MAX_ELEMENTS,
    on_batch: Callable[[LandedBatch], None] | None = None,
) -> StreamingQuery:
    """Start a query that lands a queue as Parquet below ``out``; read it with ``read_landed``.

    Columns: partition, offset, sequence, message_number, message_id, action, received_at, delivered_at, body, one for
    each field of ``schema``, and ``corrupt_record``: why the body or a value of it could not be read, null where all is
    well. Such a row is landed all the same, with the values that could be read; ``reland`` reads it again.

    Args:
        spark: A classic session, see ``holdfast.pipeline.session``.
        broker: URL of the server's admin listener.
        queue: The queue.
        out: Directory, of any file system Spark knows.
        checkpoint: Directory of the query's progress. It belongs to ``out``: keep, move and delete them together.
        schema: Fields of the body's element (children or attributes, see ``bodies``), or as DDL; None: no parsing.
        prefix: Put before the names of the parsed columns.
        reader: Name of the cursor on the server; None: one that is the checkpoint's own.
        trigger: ``{"availableNow": True}``, ``{"processingTime": "10 seconds"}``; None: as soon as there is something.
        options: Further options of the source.
        lenient: What is passed over instead of flagged, of ``reading.LENIENCIES``: "empty", "nanoseconds",
            "zones".
        max_elements: A body with more elements is not read, but flagged.
        on_batch: Called after each batch that is landed, in the driver, in the query's own thread.

    Raises:
        ConfigurationError: The schema cannot be used; or ``out`` holds batches that the checkpoint knows nothing of:
            its batch ids would start again at 0, and overwrite what is there; or a field has another type there.
    """
    parser = BodyColumns(_schema_of(schema), prefix, lenient, max_elements)
    _refuse_foreign_data(spark, out, checkpoint)
    _refuse_other_types(spark, out, parser.schema)
    source = spark.readStream.format("wsrm").options(**dict(options or {}))
    place = {"broker": broker, "queue": queue, "reader": reader or reader_of(spark, checkpoint)}
    stream = source.options(**place).load()
    writer = stream.writeStream.queryName(f"land-{queue}").option("checkpointLocation", checkpoint)
    if trigger:
        writer = writer.trigger(**trigger)
    return writer.foreachBatch(_batch_writer(out, parser, on_batch)).start()


def _schema_of(schema: StructType | str | None) -> StructType:
    return StructType.fromDDL(schema) if isinstance(schema, str) else schema or StructType()


def _batch_writer(
    out: str, parser: BodyColumns, on_batch: Callable[[LandedBatch], None] | None
) -> Callable[[DataFrame, int], None]:
    def write(batch: DataFrame, batch_id: int) -> None:
        landed = _write(batch, out, batch_id, parser)
        if on_batch is not None:
            on_batch(landed)

    return write


def _write(messages: DataFrame, out: str, batch: int, parser: BodyColumns) -> LandedBatch:
    """Land messages as one batch, in place of what it held."""
    from pyspark.sql import Observation
    from pyspark.sql import functions as F

    for name, value in _WRITING.items():
        messages.sparkSession.conf.set(name, value)
    counts = Observation()
    flagged = F.when(F.col(CORRUPT).isNotNull(), F.struct("partition", "offset", CORRUPT))
    parsed = messages.select(*ENVELOPE.fieldNames()).mapInArrow(parser, parser.schema)
    parsed = parsed.observe(
        counts, F.count("*").alias("rows"), F.count(CORRUPT).alias("flagged"), F.min(flagged).alias("first")
    )
    parsed.write.mode("overwrite").parquet(f"{out}/batch={batch}")
    seen = counts.get
    return LandedBatch(batch, seen["rows"], seen["flagged"], tuple(seen["first"]) if seen["first"] else None)


def read_landed(spark: SparkSession, out: str) -> DataFrame:
    """What ``land`` has landed so far, with the column ``batch``; a batch that is being written is left out.

    Raises:
        ConfigurationError: There is nothing yet.
    """
    batches = [f"{out}/batch={batch}" for batch in _complete(spark, out)]
    if not batches:
        raise _nothing(out)
    return spark.read.option("basePath", out).option("mergeSchema", "true").parquet(*batches)


def reland(
    spark: SparkSession,
    landed: str,
    out: str,
    *,
    schema: StructType | str | None = None,
    prefix: str = "",
    lenient: Collection[str] = (),
    max_elements: int = MAX_ELEMENTS,
    on_batch: Callable[[LandedBatch], None] | None = None,
) -> None:
    """Land again what has been landed, by another schema or with other leniencies: the bodies are in the rows.

    The batches of ``out`` are those of ``landed``, which stays as it is: ``land`` goes on into ``out`` with the
    checkpoint of ``landed``. May be ended at any time and run again.

    Args:
        spark: A classic session.
        landed: What ``land`` has landed; nothing may land there meanwhile.
        out: Another directory.
        schema, prefix, lenient, max_elements, on_batch: As of ``land``.

    Raises:
        ConfigurationError: There is nothing in ``landed``; ``out`` is the same directory, or holds other batches; the
            schema cannot be used.
    """
    parser = BodyColumns(_schema_of(schema), prefix, lenient, max_elements)
    batches = _complete(spark, landed)
    if not batches:
        raise _nothing(landed)
    others = sorted(set(_batches(spark, out)) - {f"batch={batch}" for batch in batches})
    if others or files.same(spark, landed, out):
        raise ConfigurationError(
            f"{out} holds {others[0]}, which {landed} does not" if others else f"{out} is where the messages are from",
            remedy="land again into another directory",
        )
    session = spark.newSession()  # whose settings are nobody else's
    for batch in batches:
        messages = session.read.schema(ENVELOPE).parquet(f"{landed}/batch={batch}")
        done = _write(messages, out, batch, parser)
        if on_batch is not None:
            on_batch(done)


def _complete(spark: SparkSession, out: str) -> list[int]:
    """The batches that are wholly written."""
    numbers = sorted(int(name.partition("=")[2]) for name in _batches(spark, out))
    return [number for number in numbers if "_SUCCESS" in files.names(spark, f"{out}/batch={number}")]


def _nothing(out: str) -> ConfigurationError:
    return ConfigurationError(f"nothing has been landed in {out} yet", remedy="run holdfast land, or look elsewhere")


def _batches(spark: SparkSession, out: str) -> list[str]:
    return [name for name in files.names(spark, out) if _BATCH.fullmatch(name)]


def _refuse_foreign_data(spark: SparkSession, out: str, checkpoint: str) -> None:
    if _batches(spark, out) and not files.names(spark, f"{checkpoint}/offsets"):
        raise ConfigurationError(
            f"{out} holds landed batches, but the checkpoint {checkpoint} is new: its batches would overwrite them",
            remedy="use the checkpoint the data was landed with; if it is lost, land into another directory",
        )


def _refuse_other_types(spark: SparkSession, out: str, schema: StructType) -> None:
    """Spark reads no table in which a column has two types."""
    if not (batches := _complete(spark, out)):
        return
    landed = spark.read.parquet(f"{out}/batch={batches[-1]}").schema
    there = {field.name: field.dataType.simpleString() for field in landed.fields}
    for field in schema.fields:
        kind = field.dataType.simpleString()
        if there.get(field.name, kind) != kind:
            raise ConfigurationError(
                f"{field.name} is to be {kind}, but is {there[field.name]} in what is landed in {out}",
                remedy="land again by the new schema, and go on there: holdfast reland",
            )


def reader_of(spark: SparkSession, checkpoint: str) -> str:
    """The name of the cursor that belongs to a checkpoint; made, and written into it, when it is first asked for.

    It moves with the checkpoint, and no other has it.
    """
    if READER_FILE not in files.names(spark, checkpoint):
        files.write_text(spark, f"{checkpoint}/{READER_FILE}", f"land-{secrets.token_hex(6)}")
    return files.read_text(spark, f"{checkpoint}/{READER_FILE}").strip()


def settle(
    spark: SparkSession,
    broker: str,
    queue: str,
    checkpoint: str,
    *,
    reader: str | None = None,
    access: Access | None = None,
) -> Positions | None:
    """Move the cursor to what the checkpoint says is landed: Spark itself leaves it one batch behind at a run's end.

    Args:
        spark, broker, queue, checkpoint, reader: As for :func:`land`.
        access: What the server demands, if it does.

    Returns:
        Where the cursor stands now; None if no batch has been completed yet.

    Raises:
        ServerAway: For a minute; harmless, the next run's first batch moves the cursor.
        OffsetRefused: The checkpoint is of another queue.
    """
    done = [int(name) for name in files.names(spark, f"{checkpoint}/commits") if name.isdigit()]
    if not done:
        return None
    lines = files.read_text(spark, f"{checkpoint}/offsets/{max(done)}").splitlines()
    offset = json.loads(lines[2])  # version, settings, then one line for each source
    plane = DataPlane(broker, access)
    place = parse(offset).queues.get(queue)
    if place is None:
        raise OffsetRefused(
            f"the checkpoint {checkpoint} is not of queue {queue!r}", remedy="name the queue that was landed with it"
        )
    name = reader or reader_of(spark, checkpoint)
    try:
        return Patience(60.0).call(lambda: plane.advance_cursor(queue, name, place.epoch, place.positions, place.known))
    finally:
        plane.close()
