"""Landing: queues into a table, each message exactly once, XML bodies parsed into columns.

The table is Parquet (``directories``) or Delta (``delta``). A batch that Spark repeats after a crash is seen to be
there, or is landed whole. That holds as long as batch ids do not start again, so data without its checkpoint
is refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from holdfast.exceptions import ConfigurationError
from holdfast.pipeline.bodies.columns import CORRUPT, BodyColumns
from holdfast.pipeline.bodies.leniencies import MAX_ELEMENTS
from holdfast.pipeline.bodies.message_types import OTHER, TABLE, TableNames, note_types, table_names, with_table
from holdfast.pipeline.bodies.schemas import schema_of
from holdfast.pipeline.landing.delta import LOG, DeltaTable
from holdfast.pipeline.landing.directories import DAYS, Layout, ParquetTable, listed
from holdfast.pipeline.spark import files
from holdfast.pipeline.spark.checkpoints import is_there, origin, reader_of, refuse_foreign_data

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery
    from pyspark.sql.types import StructType

Table = ParquetTable | DeltaTable


_RELANDED = "_relanded"
"""In a directory that ``reland`` has begun: of what, and how bodies are read."""
_SAID = {
    "of": "source",
    "by": "partitioning by day",
    "schema": "schema",
    "prefix": "prefix",
    "lenient": "leniency",
    "max_elements": "limit of elements",
    "element": "element",
}


@dataclass(frozen=True, slots=True)
class LandedBatch:
    """What has been landed with one batch.

    Args:
        batch: Its number, the column ``batch``.
        rows: Its rows.
        flagged: How many of them have a ``corrupt_record``.
        first_flagged: Queue, partition, offset and ``corrupt_record`` of the first of them.
        tables: Its rows by table, if they were divided by their types.
    """

    batch: int
    rows: int
    flagged: int
    first_flagged: tuple[str, int, int, str] | None
    tables: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class _Target:
    """One table of a landing.

    Args:
        name: The directory below the landing's; "": that itself, for every message.
        out: Its whole directory.
        table, parser, layout: The table, and how its rows are made and lie there.
    """

    name: str
    out: str
    table: Table
    parser: BodyColumns
    layout: Layout


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
    also: Collection[str] = (),
    element: str = "",
    by_day: str | None = None,
    table: str = "parquet",
    types: Mapping[str, StructType | str] | None = None,
    on_batch: Callable[[LandedBatch], None] | None = None,
) -> StreamingQuery:
    """Start a query that lands queues as a table below ``out``; read it with ``read_landed``.

    Columns: queue, partition, offset, sequence, message_number, message_id, action, received_at, delivered_at, body,
    one for each field of ``schema``, and ``corrupt_record``: why the body or a value of it could not be read, null
    where all is well. Such a row is landed all the same, with the values that could be read; ``reland`` reads it again.

    Args:
        spark: A classic session, see ``holdfast.pipeline.session``.
        broker: URL of the server's admin listener.
        queue: The queue, or several with commas between them; or "", with the option ``queuePattern``.
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
        also: Further columns of the source to land: "to", "reply_to", "relates_to", "soap_version", "headers".
        element: The name of the body's element, ``{namespace}local`` or the local name; a body with another one is
            flagged, and not read. "": any.
        by_day: Partition the rows by the day, in UTC, on which they were "delivered" or "received", a column
            ``delivered_day`` or ``received_day``; None: not at all.
        table: "parquet", or "delta" where ``deltalake`` is installed.
        types: Instead of ``schema`` and ``element``: the body's element -> its fields. Each type has a table
            below ``out``, with the element's local name; all other messages are in the table ``other``.
        on_batch: Called after each batch that is landed, in the driver, in the query's own thread.

    Raises:
        ConfigurationError: The schema cannot be used; or ``out`` holds batches that the checkpoint knows nothing of:
            its batch ids would start again at 0; or the two do not go together otherwise; or a field has a type there
            that its new one cannot hold, see ``widening``; or the table there is of another kind, or partitioned
            otherwise; or nothing can be written there.
    """

    def target(name: str, fields: StructType | str | None, of: str) -> _Target:
        parser = BodyColumns(schema_of(fields), prefix, lenient, max_elements, also, of)
        place = f"{out}/{name}" if name else out
        return _Target(name, place, table_of(spark, place, table), parser, _layout(parser, by_day))

    names = table_names(types or ())
    if types is None:
        targets = [target("", schema, element)]
    else:
        _refuse_two_ways(spark, out, schema, element)
        targets = [*(target(name, types[of], of) for of, name in names.items()), target(OTHER, None, "")]
    for one in targets:
        # A new type has no table yet. The table OTHER shows that the checkpoint and the directory go together.
        every = one.name in ("", OTHER) or bool(one.table.begun())
        refuse_foreign_data(spark, one.table, one.out, checkpoint, every=every)
        one.table.prepare(one.layout)
    source = spark.readStream.format("wsrm").options(**dict(options or {}))
    place = {"broker": broker, **({"queue": queue} if queue else {}), "reader": reader or reader_of(spark, checkpoint)}
    stream = source.options(**place, **({"headers": "true"} if "headers" in also else {})).load()
    writer = stream.writeStream.option("checkpointLocation", checkpoint)
    writer = writer.queryName(f"land-{queue or (options or {})['queuePattern']}")
    if trigger:
        writer = writer.trigger(**trigger)
    divided = None if types is None else names
    return writer.foreachBatch(_batch_writer(targets, divided, checkpoint, on_batch)).start()


def _layout(parser: BodyColumns, by_day: str | None) -> Layout:
    if by_day is not None and by_day not in DAYS:
        raise ConfigurationError(f"there is no day called {by_day!r}", remedy=f"name one of {', '.join(DAYS)}")
    day = DAYS[by_day] if by_day else None
    if day and day in (name.lower() for name in parser.schema.fieldNames()):
        raise ConfigurationError(
            f"two landed columns would be called {day!r}", remedy="give the parsed ones a prefix: prefix='body_'"
        )
    return Layout(parser.schema, day)


def table_of(spark: SparkSession, out: str, kind: str | None = None) -> Table:
    """What is landed below ``out``, or is to be.

    Raises:
        ConfigurationError: It is of another kind, or there is no such kind, or ``deltalake`` is not installed.
    """
    kinds: dict[str, type[Table]] = {table.kind: table for table in (ParquetTable, DeltaTable)}
    if kind is not None and kind not in kinds:
        raise ConfigurationError(f"there is no table of kind {kind!r}", remedy=f"name one of {', '.join(kinds)}")
    there = "delta" if LOG in files.names(spark, out) else "parquet" if listed(spark, out) else kind or "parquet"
    if kind not in (None, there):
        raise ConfigurationError(
            f"{out} is a {there} table, not a {kind} one", remedy="use another directory, or the kind that it is"
        )
    return kinds[there](spark, out)


def _refuse_two_ways(spark: SparkSession, out: str, schema: StructType | str | None, element: str) -> None:
    """See that messages are divided by types, or are all of one.

    Raises:
        ConfigurationError: Both is asked for, or the directory is a table.
    """
    if schema is not None or element:
        raise ConfigurationError(
            "types are given together with a schema or an element", remedy="give the fields of each type with the type"
        )
    if table_of(spark, out).begun():
        raise ConfigurationError(
            f"{out} is a table, and with types it is to hold a table of each",
            remedy="name another directory, with a new checkpoint",
        )


def _batch_writer(
    targets: list[_Target],
    divided: Mapping[str, str] | None,
    checkpoint: str,
    on_batch: Callable[[LandedBatch], None] | None,
) -> Callable[[DataFrame, int], None]:
    """What lands a batch.

    Args:
        targets: The tables.
        divided: Element -> table, of the types by which messages are divided; None: there is one table.
        checkpoint: The query's.
        on_batch: Called after each batch.
    """

    def write(batch: DataFrame, batch_id: int) -> None:
        told = origin(batch.sparkSession, checkpoint, batch_id)
        messages = batch.select(*targets[0].parser.envelope.fieldNames())
        if divided is not None:
            note_types(batch.sparkSession, checkpoint, batch_id, divided)
            messages = messages.mapInArrow(TableNames(divided), with_table(targets[0].parser.envelope)).persist()
        try:
            landed = {one.name: _landed_in(one, messages, batch_id, told) for one in targets}
        finally:
            if divided is not None:
                messages.unpersist()
        if on_batch is not None:
            on_batch(landed[""] if divided is None else _together(batch_id, landed))

    return write


def _landed_in(target: _Target, messages: DataFrame, batch: int, told: str) -> LandedBatch:
    """Land one table's messages of a batch, unless an earlier attempt has landed them."""
    if is_there(target.table, batch, told, target.out):
        return _there(target.table, batch)
    mine = messages.where(messages[TABLE] == target.name).drop(TABLE) if target.name else messages
    return _write(mine, target.table, batch, target.parser, target.layout, told)


def _together(batch: int, landed: Mapping[str, LandedBatch]) -> LandedBatch:
    """What was landed with a batch in all tables."""
    rows = {name: one.rows for name, one in landed.items()}
    first = next((one.first_flagged for one in landed.values() if one.first_flagged), None)
    return LandedBatch(batch, sum(rows.values()), sum(one.flagged for one in landed.values()), first, rows)


def _there(table: Table, batch: int) -> LandedBatch:
    """What was landed with a batch that is there."""
    (seen,) = table.read().where(f"batch = {batch}").agg(*_counts()).collect()
    return _landed(batch, seen.asDict())


def _write(
    messages: DataFrame, table: Table, batch: int, parser: BodyColumns, layout: Layout, told: str
) -> LandedBatch:
    """Land messages as one batch."""
    from pyspark.sql import Observation

    counts = Observation()
    parsed = messages.select(*parser.envelope.fieldNames()).mapInArrow(parser, parser.schema)
    table.write(parsed.observe(counts, *_counts()), batch, layout, told)
    return _landed(batch, counts.get)


def _counts() -> list[Column]:
    from pyspark.sql import functions as F

    flagged = F.when(F.col(CORRUPT).isNotNull(), F.struct("queue", "partition", "offset", CORRUPT))
    return [F.count("*").alias("rows"), F.count(CORRUPT).alias("flagged"), F.min(flagged).alias("first")]


def _landed(batch: int, seen: Mapping[str, Any]) -> LandedBatch:
    return LandedBatch(batch, seen["rows"], seen["flagged"], tuple(seen["first"]) if seen["first"] else None)


def read_landed(spark: SparkSession, out: str) -> DataFrame:
    """What ``land`` has landed so far, with the column ``batch``, and the day if it is partitioned by that.

    A batch that is being written is left out. Where rows were landed by several schemas, the columns are those of the
    newest, and then those that only older ones have; see ``widening``.

    Raises:
        ConfigurationError: There is nothing yet.
    """
    return table_of(spark, out).read()


def reland(
    spark: SparkSession,
    landed: str,
    out: str,
    *,
    schema: StructType | str | None = None,
    prefix: str = "",
    lenient: Collection[str] = (),
    max_elements: int = MAX_ELEMENTS,
    also: Collection[str] = (),
    element: str = "",
    by_day: str | None = None,
    table: str = "parquet",
    on_batch: Callable[[LandedBatch], None] | None = None,
) -> None:
    """Land again what has been landed, by another schema, with other leniencies, by day, or as another kind of table:
    the bodies are in the rows.

    The batches of ``out`` are those of ``landed``, which stays as it is: ``land`` goes on into ``out`` with the
    checkpoint of ``landed``. May be ended at any time and run again with the same arguments: what is there stays.

    Args:
        spark: A classic session.
        landed: What ``land`` has landed; nothing may land there meanwhile.
        out: Another directory.
        schema, prefix, lenient, max_elements, also, element, by_day, table, on_batch: As of ``land``.

    Raises:
        ConfigurationError: There is nothing in ``landed``; ``out`` is the same directory, or holds other batches, or
            rows that were read otherwise; the schema cannot be used; a column of ``also`` was not landed.
    """
    parser = BodyColumns(schema_of(schema), prefix, lenient, max_elements, also, element)
    layout = _layout(parser, by_day)
    how = {"of": files.qualified(spark, landed), **json.loads(layout.text()), "prefix": prefix}
    how |= {"lenient": sorted(lenient), "max_elements": max_elements, **({"element": element} if element else {})}
    session = spark.newSession()  # whose settings are nobody else's
    old, new = table_of(session, landed), table_of(session, out, table)
    messages = old.read()
    if absent := sorted(set(also).difference(messages.columns)):
        raise ConfigurationError(
            f"{landed} has no column {absent[0]!r}: it was landed without it",
            remedy="leave it out, or land the queue again from its beginning, if the server still has it",
        )
    batches = old.numbers()
    others = sorted(set(new.numbers() if new.begun() else ()) - set(batches))
    if others or files.same(spark, landed, out):
        raise ConfigurationError(
            f"{out} holds batch {others[0]}, which {landed} does not" if others else f"{out} is where they are from",
            remedy="land again into another directory",
        )
    _begin_reland(session, new, out, how)
    new.prepare(layout)
    for batch in batches:
        rows = messages.where(f"batch = {batch}")
        done = _there(new, batch) if new.has(batch) else _write(rows, new, batch, parser, layout, old.origin(batch))
        if on_batch is not None:
            on_batch(done)


def _begin_reland(spark: SparkSession, table: Table, out: str, how: dict[str, Any]) -> None:
    """See that what is in a directory comes of these arguments, and note them there before the first batch is."""
    told = files.read_text(spark, f"{out}/{_RELANDED}") if _RELANDED in files.names(spark, out) else ""
    before: dict[str, Any] = json.loads(told or "{}")
    if not table.begun():
        files.publish_text(spark, f"{out}/{_RELANDED}", json.dumps(how))
    elif before != how:
        other = ", ".join(_SAID[name] for name in {**before, **how} if before.get(name) != how.get(name))
        raise ConfigurationError(
            f"{out} holds rows that were landed {f'again with another {other}' if before else 'by something else'}, "
            "and what is there is not read again",
            remedy="land again into another directory, or delete that one first; to go on give what it was begun with",
        )
