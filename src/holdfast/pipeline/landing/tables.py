"""Land queues in a table, each message exactly once, with XML bodies parsed into columns.

The table is a Delta table (``delta``), or a Parquet table (``parquet``). If Spark repeats a batch after a crash, the
landing finds the batch in the table, or lands it whole. This requires that batch ids do not start again at 0, so the
landing rejects data without its checkpoint.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from holdfast.exceptions import ConfigurationError
from holdfast.pipeline.bodies.columns import CORRUPT, PREFIX, BodyColumns
from holdfast.pipeline.bodies.leniencies import MAX_ELEMENTS
from holdfast.pipeline.bodies.message_types import OTHER, TABLE, TableNames, note_types, table_names, with_table
from holdfast.pipeline.bodies.schemas import schema_of
from holdfast.pipeline.landing.delta import DeltaTable
from holdfast.pipeline.landing.layout import BATCH, DAYS, LOG, WRITING, Layout
from holdfast.pipeline.landing.parquet import ParquetTable, listed, only_grows
from holdfast.pipeline.reader.options import MESSAGES, ReadOptions
from holdfast.pipeline.spark import files
from holdfast.pipeline.spark.checkpoints import is_there, origin, reader_of, refuse_foreign_data, refuse_nested
from holdfast.settings import NonEmpty, check_arguments, suggestion

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery
    from pyspark.sql.types import StructType

Table = ParquetTable | DeltaTable


AS_ROWS_ARRIVE = {"processingTime": "0 seconds"}
"""The trigger of a landing that is given none."""
_RELANDED = "_relanded"
"""File in a directory that ``reland`` wrote: the source and how bodies are parsed."""
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
    """Result of landing one batch.

    Args:
        batch: Number of the batch, the value of the column ``batch``.
        rows: Number of rows.
        flagged: Number of rows with a ``corrupt_record``.
        first_flagged: Queue, partition, offset and ``corrupt_record`` of the first flagged row.
        tables: Number of rows by table, if each message type has its own table.
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
        name: Directory below the landing's directory; "" stands for that directory, with every message.
        out: Full path of the directory.
        table, parser, layout: The table, the parser of its rows, and their layout.
    """

    name: str
    out: str
    table: Table
    parser: BodyColumns
    layout: Layout


def land(
    spark: SparkSession,
    broker: NonEmpty,
    queue: str,
    out: NonEmpty,
    *,
    checkpoint: NonEmpty,
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
    table: str | None = None,
    types: Mapping[str, StructType | str] | None = None,
    on_batch: Callable[[LandedBatch], None] | None = None,
) -> StreamingQuery:
    """Start a query that lands queues as a table below ``out``; read it with ``read_landed``.

    Columns: queue, partition, offset, sequence, message_number, message_id, action, received_at, delivered_at, body,
    one for each field of ``schema``, and ``corrupt_record``. If the query cannot parse a body or a value,
    ``corrupt_record`` contains the reason; otherwise it is null. The query still lands such a row, with the values that
    it can parse; ``reland`` parses the body again.

    Args:
        spark: A classic session, see ``holdfast.pipeline.session``.
        broker: URL of the server's admin listener.
        queue: One queue, or several separated by commas; or "", with the option ``queuePattern``.
        out: Directory in any file system that Spark supports.
        checkpoint: Directory of the query's progress. Keep, move and delete it together with ``out``.
        schema: Fields of the body's element (children or attributes, see ``bodies``), or DDL; None: no parsing.
        prefix: Prefix for the names of the parsed columns.
        reader: Name of the cursor on the server; None: a name derived from the checkpoint.
        trigger: ``{"availableNow": True}``, ``{"processingTime": "10 seconds"}``; None: as soon as rows arrive.
        options: Further options of the source.
        lenient: Deviations to ignore instead of flagging them, from ``leniencies.LENIENCIES``: "empty",
            "nanoseconds", "zones".
        max_elements: Maximum number of elements in a body. The query flags larger bodies and does not parse them.
        also: Further columns of the source to land: "to", "reply_to", "relates_to", "soap_version", "headers".
        element: Name of the body's element, ``{namespace}local`` or the local name. The query flags a body with another
            element and does not parse it. "": any element.
        by_day: Partition the rows by the UTC day on which they were "delivered" or "received", in a column
            ``delivered_day`` or ``received_day``; None: no partitioning.
        table: Format of a new table: "delta", the default, or "parquet". A table that exists keeps its format.
        types: Instead of ``schema`` and ``element``, a mapping from the body's element to its fields. Each type has a
            table below ``out``, named after the element's local name; all other messages are in the table ``other``.
        on_batch: Called after each landed batch, in the driver, in the query's own thread.

    Raises:
        ConfigurationError: The schema is invalid; ``out`` is the checkpoint, or one is inside the other; ``out``
            contains batches that are unknown to the checkpoint, so that
            batch ids would start again at 0; ``out`` and the checkpoint do not match in another way; the new type of a
            field cannot hold the values of its type in the table, see ``widening``; the existing table is of another
            kind, or has other partitions; or ``out`` is not writable.
    """
    check_arguments(land, locals())
    refuse_nested(spark, out, checkpoint)

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
    read = {**(options or {}), "broker": broker, "reader": reader or reader_of(spark, checkpoint)}
    read |= ({"queue": queue} if queue else {}) | ({"headers": "true"} if "headers" in also else {})
    check_columns(ReadOptions.parse(read), targets[0].parser.envelope.fieldNames())
    _prepare(spark, targets, checkpoint)
    stream = spark.readStream.format("wsrm").options(**read).load()
    writer = stream.writeStream.option("checkpointLocation", checkpoint)
    # A session has one query of a name. Two landings of a queue into different tables may run in one.
    name = f"land-{queue or read.get('queuePattern', '')} into {out}"
    writer = writer.queryName(name).trigger(**(trigger or AS_ROWS_ARRIVE))
    divided = None if types is None else names
    return writer.foreachBatch(_batch_writer(targets, divided, checkpoint, on_batch)).start()


def check_columns(options: ReadOptions, needed: Iterable[str]) -> None:
    """Check that a source returns the columns that a landing needs.

    Raises:
        ConfigurationError: It does not.
    """
    if missing := [name for name in needed if name not in options.names]:
        option = "columns" if options.columns else "read" if options.read != MESSAGES else "body"
        raise ConfigurationError(
            f"a landing needs the column {missing[0]}, but with option {option} the source does not return it",
            remedy=f"Remove option {option}",
        )


def _prepare(spark: SparkSession, targets: Collection[_Target], checkpoint: str) -> None:
    for one in targets:
        # A new type has no table yet. The table OTHER shows that the checkpoint and the directory go together.
        every = one.name in ("", OTHER) or bool(one.table.begun())
        refuse_foreign_data(spark, one.table, one.out, checkpoint, every=every)
        one.table.prepare(one.layout)


def _layout(parser: BodyColumns, by_day: str | None) -> Layout:
    if by_day is not None and by_day not in DAYS:
        raise ConfigurationError(
            f"there is no day called {by_day!r}", remedy=suggestion(by_day, DAYS, f"Name one of {', '.join(DAYS)}")
        )
    day = DAYS[by_day] if by_day else None
    if day and day in (name.lower() for name in parser.schema.fieldNames()):
        raise ConfigurationError(f"two landed columns would have the name {day!r}", remedy=PREFIX)
    return Layout(parser.schema, day)


def table_of(spark: SparkSession, out: str, kind: str | None = None, *, replaced: bool = False) -> Table:
    """Return the table below ``out``, which need not exist yet.

    Args:
        spark: A classic session.
        out: Directory of the table.
        kind: "delta" or "parquet"; None: that of the existing table, or Delta.
        replaced: Whether each batch will replace the rows, which only a Delta table allows.

    Raises:
        ConfigurationError: The table is of another kind, the kind does not exist, or ``deltalake`` is not installed.
    """
    kinds: dict[str, type[Table]] = {table.kind: table for table in (DeltaTable, ParquetTable)}
    if kind is not None and kind not in kinds:
        raise ConfigurationError(
            f"there is no table of kind {kind!r}", remedy=suggestion(kind, kinds, f"Name one of {', '.join(kinds)}")
        )
    there = "delta" if LOG in files.names(spark, out) else "parquet" if listed(spark, out) else kind or "delta"
    if kind not in (None, there):
        raise ConfigurationError(
            f"{out} is a {there} table, not a {kind} one",
            remedy="name no format, or use another directory"
            + (f", or convert the table with `holdfast convert {out}`" if kind == "delta" else ""),
        )
    if replaced and there == "parquet":
        raise only_grows(out)
    return kinds[there](spark, out)


def _refuse_two_ways(spark: SparkSession, out: str, schema: StructType | str | None, element: str) -> None:
    """Reject types in combination with one schema or element, or with a directory that is already one table.

    Raises:
        ConfigurationError: The caller gave both, or the directory is a table.
    """
    if schema is not None or element:
        raise ConfigurationError(
            "types are given together with a schema or an element", remedy="Give the fields of each type with the type"
        )
    if table_of(spark, out).begun():
        raise ConfigurationError(
            f"{out} is a table, and with types it is to hold a table of each",
            remedy="Name another directory, with a new checkpoint",
        )


def _batch_writer(
    targets: list[_Target],
    divided: Mapping[str, str] | None,
    checkpoint: str,
    on_batch: Callable[[LandedBatch], None] | None,
) -> Callable[[DataFrame, int], None]:
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
    """Land the messages of a batch for one table, unless an earlier attempt landed them."""
    if is_there(target.table, batch, told, target.out):
        return _there(target.table, batch)
    mine = messages.where(messages[TABLE] == target.name).drop(TABLE) if target.name else messages
    return _write(mine, target.table, batch, target.parser, target.layout, told)


def _together(batch: int, landed: Mapping[str, LandedBatch]) -> LandedBatch:
    rows = {name: one.rows for name, one in landed.items()}
    first = next((one.first_flagged for one in landed.values() if one.first_flagged), None)
    return LandedBatch(batch, sum(rows.values()), sum(one.flagged for one in landed.values()), first, rows)


def _there(table: Table, batch: int) -> LandedBatch:
    (seen,) = table.read().where(f"batch = {batch}").agg(*_counts()).collect()
    return _landed(batch, seen.asDict())


def _write(
    messages: DataFrame, table: Table, batch: int, parser: BodyColumns, layout: Layout, told: str
) -> LandedBatch:
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


def read_landed(spark: SparkSession, out: NonEmpty) -> DataFrame:
    """Return the rows landed so far, with the column ``batch``, and with the day if the table is partitioned by it.

    The result excludes a batch that is still being written. If rows were landed with several schemas, the columns are
    those of the newest schema, followed by those that only older schemas have; see ``widening``.

    Raises:
        ConfigurationError: The table has no batch yet.
    """
    check_arguments(read_landed, locals())
    return table_of(spark, out).read()


def replace_table(rows: DataFrame, out: str) -> DataFrame:
    """Replace the Delta table below ``out`` by these rows, in one commit, and return them as read from there.

    If an earlier version wrote plain Parquet files to ``out``, they are deleted first.
    """
    spark = rows.sparkSession
    table, layout = DeltaTable(spark, out), Layout(rows.schema)
    if not table.there():
        files.delete(spark, out)
    table.prepare(layout)
    newest, _ = table.newest() or (-1, "")
    settings = {name: str(spark.conf.get(name)) for name in WRITING}
    try:
        table.write(rows, newest + 1, layout, only=True)
    finally:
        for name, value in settings.items():  # it is the caller's session
            spark.conf.set(name, value)
    return table.read().drop(BATCH)


def reland(
    spark: SparkSession,
    landed: NonEmpty,
    out: NonEmpty,
    *,
    schema: StructType | str | None = None,
    prefix: str = "",
    lenient: Collection[str] = (),
    max_elements: int = MAX_ELEMENTS,
    also: Collection[str] = (),
    element: str = "",
    by_day: str | None = None,
    table: str | None = None,
    on_batch: Callable[[LandedBatch], None] | None = None,
) -> None:
    """Land the rows of a table again, into another table.

    The new table may have another schema, other leniencies, partitions by day, or another kind: the landed rows contain
    the bodies, so ``reland`` can parse them again. ``out`` gets the same batches as ``landed``, which stays unchanged.
    To continue the landing into ``out``, call ``land`` with the checkpoint of ``landed``. You can stop ``reland`` at
    any time and run it again with the same arguments: it keeps the batches that are complete.

    Args:
        spark: A classic session.
        landed: Directory that ``land`` wrote. No query may land there in the meantime.
        out: Another directory.
        schema, prefix, lenient, max_elements, also, element, by_day, table, on_batch: As in ``land``.

    Raises:
        ConfigurationError: ``landed`` has no batch; ``out`` is the same directory, or contains other batches, or rows
            that were parsed with other arguments; the schema is invalid; or a column of ``also`` was not landed.
    """
    check_arguments(reland, locals())
    parser = BodyColumns(schema_of(schema), prefix, lenient, max_elements, also, element)
    layout = _layout(parser, by_day)
    how = {"of": files.qualified(spark, landed), **json.loads(layout.text()), "prefix": prefix}
    how |= {"lenient": sorted(lenient), "max_elements": max_elements, **({"element": element} if element else {})}
    session = spark.newSession()  # keeps its settings apart from other sessions
    old, new = table_of(session, landed), table_of(session, out, table)
    messages = old.read()
    if absent := sorted(set(also).difference(messages.columns)):
        raise ConfigurationError(
            f"{landed} has no column {absent[0]!r}: it was landed without it",
            remedy="Leave it out, or land the queue again from its beginning, if the server still has it",
        )
    batches = old.numbers()
    others = sorted(set(new.numbers() if new.begun() else ()) - set(batches))
    if others or files.same(spark, landed, out):
        raise ConfigurationError(
            f"{out} holds batch {others[0]}, which {landed} does not" if others else f"{out} is where they are from",
            remedy="Land again into another directory",
        )
    _begin_reland(session, new, out, how)
    new.prepare(layout)
    for batch in batches:
        rows = messages.where(f"batch = {batch}")
        done = _there(new, batch) if new.has(batch) else _write(rows, new, batch, parser, layout, old.origin(batch))
        if on_batch is not None:
            on_batch(done)


def _begin_reland(spark: SparkSession, table: Table, out: str, how: dict[str, Any]) -> None:
    """Check that a directory was written with these arguments; record them before the first batch."""
    told = files.read_text(spark, f"{out}/{_RELANDED}") if _RELANDED in files.names(spark, out) else ""
    before: dict[str, Any] = json.loads(told or "{}")
    if not table.begun():
        files.publish_text(spark, f"{out}/{_RELANDED}", json.dumps(how))
    elif before != how:
        other = ", ".join(_SAID[name] for name in {**before, **how} if before.get(name) != how.get(name))
        raise ConfigurationError(
            f"{out} holds rows that were landed {f'again with another {other}' if before else 'by something else'}, "
            "and these rows are not parsed again",
            remedy="Land again into another directory, or delete this one; to continue, give the first arguments",
        )
