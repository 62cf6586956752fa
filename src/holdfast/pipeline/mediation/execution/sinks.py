"""Destinations of a batch's rows: messages, tables, dead letters. Each accepts a batch once, however often it is
repeated.

A server knows a sink's last batch, and a table knows its batches.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import reduce
from typing import TYPE_CHECKING

from holdfast.exceptions import ConfigurationError
from holdfast.pipeline.landing.layout import Layout, nothing
from holdfast.pipeline.landing.tables import table_of
from holdfast.pipeline.mediation.definition.plan import PipelinePlan, SinkPlan, SourcePlan
from holdfast.pipeline.mediation.transformations.problems import PROBLEMS
from holdfast.pipeline.spark import files
from holdfast.pipeline.spark.checkpoints import is_there

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_FIELDS = ("action", "headers", "message_id", "relates_to", "reply_to")
_KEY, _ORDER, _AT = "holdfast_key", "holdfast_order", "holdfast_at_"
_PLACE = ("queue", "partition", "offset")
"""The origin of a row, as the source reports it."""
_LETTER = {
    "queue": "STRING",
    "partition": "INT",
    "offset": "BIGINT",
    "sequence": "STRING",
    "message_number": "BIGINT",
    "message_id": "STRING",
    "action": "STRING",
    "received_at": "TIMESTAMP",
    "body": "STRING",
}
"""Columns that a dead letter copies from its row, null if the row lacks them, with their types."""


# --- messages ---------------------------------------------------------------------------------------------------------


def as_messages(rows: DataFrame, sink: SinkPlan) -> DataFrame:
    """Return rows as a sink sends them: its fields, the key, the ordering columns, and the position at the source.

    Raises:
        ConfigurationError: There is no such column.
    """
    from pyspark.sql import functions as F

    fields: dict[str, Column] = {"body": F.expr(sink.body)}
    for name in _FIELDS:
        if told := getattr(sink, name):
            fields[name] = F.expr(told)
    if sink.key:
        fields[_KEY] = F.expr(sink.key)
    if set(_PLACE) <= set(rows.columns):
        fields |= {_AT + name: F.col(name) for name in _PLACE}
    for number, told in enumerate(sink.order):
        fields[f"{_ORDER}_{number}"] = F.expr(told)
    # Rows that compare as equal, such as several made from one row, keep their order; a sort alone does not promise
    # that.
    fields[f"{_ORDER}_row"] = F.monotonically_increasing_id()
    return rows.select(*[column.alias(name) for name, column in fields.items()])


def send(messages: DataFrame, sink: SinkPlan, plan: PipelinePlan, source: SourcePlan, batch: int, refused: str) -> None:
    """Send a batch of messages, in the order of each key; nothing if the batch was already sent.

    Args:
        messages: As ``as_messages`` returns them.
        sink, plan, source: Their definitions.
        batch: The batch's number in its query.
        refused: Directory for rows that the server refuses; "": they fail the batch.
    """
    place = [name for name in messages.columns if name.startswith(_AT)]
    order = [name for name in messages.columns if name.startswith(_ORDER)]
    by = order if sink.order else [*place, *order]
    if sink.key:
        ordered = messages.repartition(messages[_KEY]).sortWithinPartitions(*by)
    else:
        ordered = messages.orderBy(*by)
    options = {**sink_options(sink, plan, source), "batchId": str(batch)}
    if refused:
        options["refused"] = refused
    if refused and place:
        options["refusedColumns"] = ",".join(place)
    else:
        order += place
    ordered.drop(*order).write.format("wsrm").options(**options).mode("append").save()


def sink_name(plan: PipelinePlan, sink: SinkPlan) -> str:
    return f"{plan.name}.{sink.name}"


_CONNECTION = ("cafile", "certificatefile", "keyfile", "proxy")
"""Options of a source that its sinks share, in lower case."""


def sink_options(sink: SinkPlan, plan: PipelinePlan, source: SourcePlan) -> dict[str, str]:
    """Return the options of the wsrm sink, except the batch and the table of refused rows.

    A sink at the broker of its source reaches it in the same way.
    """
    given = sink.options or {}
    own = {name.lower() for name in given}
    own |= {"keyfile"} if "certificatefile" in own else set()  # the certificate may have its key
    shared = {} if sink.broker is not None else source.options or {}
    shared = {name: value for name, value in shared.items() if name.lower() in _CONNECTION and name.lower() not in own}
    token = sink.token_file or (source.token_file if sink.broker is None else None)
    told = {
        "broker": sink.broker or source.broker,
        "queue": sink.queue,
        "to": sink.to,
        "tokenFile": token,
        "sequenceKey": _KEY if sink.key else None,
        "sinkId": sink_name(plan, sink),
    }
    return {**shared, **{name: value for name, value in told.items() if value is not None}, **given}


# --- tables -----------------------------------------------------------------------------------------------------------


def check_table(rows: DataFrame, path: str, kind: str | None = None, *, only: bool = False) -> None:
    """Check that a table can take the columns of these rows, before they are settled; change nothing.

    Args:
        path, kind, only: As of ``write_table``.

    Raises:
        ConfigurationError: As of ``write_table``.
    """
    path = absolute(path)
    table = table_of(rows.sparkSession, path, kind, replaced=only)
    with _remedy(f"Convert the rows to the columns of {path}, for instance with a cast, or name another table"):
        table.check(Layout(rows.schema))


@contextmanager
def _remedy(text: str) -> Iterator[None]:
    """Give the errors of a table this remedy: its own are for a landing."""
    try:
        yield
    except ConfigurationError as error:
        raise ConfigurationError(error.message, remedy=text) from error


def write_table(
    rows: DataFrame, path: str, batch: int, origin: str, kind: str | None = None, *, only: bool = False
) -> None:
    """Write rows as a batch of a table, as a landing does.

    Args:
        path: The table's directory.
        origin: Its query, and the query's position, see ``checkpoints.origin``.
        kind: Format of a new table, see ``table_of``.
        only: Whether they replace the content of the table.

    Raises:
        ConfigurationError: The table has another format or cannot be replaced, or a column has another type.
        PipelineError: Another driver has written the batch meanwhile, or the table's batch has other messages.
    """
    layout = Layout(rows.schema)
    table = table_of(rows.sparkSession, path, kind, replaced=only)
    if is_there(table, batch, origin, path):
        return
    with _remedy(
        f"Batch {batch} is settled with these columns, which a change of the file does not convert. Run the pipeline "
        f"once with --available-now and a new directory as the sink's table, which then has the rows of that run. "
        f"After that, name {path} again"
    ):
        table.prepare(layout)
    table.write(rows, batch, layout, origin, only=only)


# --- dead letters -----------------------------------------------------------------------------------------------------


def as_letters(rows: DataFrame, step: str, reasons: Column | None = None, *, row: Column | None = None) -> DataFrame:
    """Return failed rows as dead letters: the step, the reasons, the origin, and the whole row as JSON.

    Args:
        step: The step that they failed in.
        reasons: Why; None: their problems.
        row: The row as JSON, without its body; None: made of its columns.
    """
    from pyspark.sql import functions as F

    kept = [F.col(f"`{name}`") for name in rows.columns if name not in (PROBLEMS, "body")]
    there = set(rows.columns)
    return rows.select(
        F.lit(step).alias("step"),
        (F.col(PROBLEMS) if reasons is None else reasons).alias("reasons"),
        *[(F.col(name) if name in there else F.lit(None)).cast(kind).alias(name) for name, kind in _LETTER.items()],
        (row if row is not None else F.to_json(F.struct(*kept)) if kept else F.lit("{}")).alias("row"),
    )


def with_messages(letters: DataFrame, messages: DataFrame) -> DataFrame:
    """Return dead letters with the columns of the messages that their rows were made of.

    A letter without a position keeps what it has. If a row has another body than its message, such as the XML of a
    step, this body moves into the row's JSON.

    Args:
        letters: As ``as_letters`` returns them.
        messages: The rows of the source, with at most one row for each position.
    """
    from pyspark.sql import functions as F

    if not {*_PLACE, "body"} <= set(messages.columns):  # options of the source omit some
        return letters
    told = [name for name in _LETTER if name not in _PLACE and name in messages.columns]
    origin = messages.select(*_PLACE, *[F.col(name).alias(_AT + name) for name in told])
    joined = letters.join(origin, list(_PLACE), "left")
    body, own = F.col(_AT + "body"), F.col("body")
    whole = F.substring(F.col("row"), F.lit(1), F.length("row") - 1)
    comma = F.when(F.col("row") == "{}", "").otherwise(",")
    moved = F.concat(whole, comma, F.substring(F.to_json(F.struct(own)), 2, 2**31 - 1))
    found: dict[str, Column] = {name: F.coalesce(F.col(_AT + name).cast(_LETTER[name]), F.col(name)) for name in told}
    found["row"] = F.when(body.isNotNull() & (body != own), moved).otherwise(F.col("row"))
    return joined.select(*[found.get(name, F.col(name)).alias(name) for name in letters.columns])


def refusals(letters: DataFrame) -> tuple[int, str]:
    """Return the number of refused rows, and their most frequent reason."""
    counts = letters.groupBy(letters.reasons[0].alias("reason")).count().collect()
    most = max(counts, key=lambda one: (one["count"], one["reason"]))
    return sum(int(one["count"]) for one in counts), str(most["reason"])


def read_dead_letters(spark: SparkSession, table: str) -> DataFrame:
    """Return the dead letters of all queries of a pipeline, with the column ``query``.

    Raises:
        ConfigurationError: There is no dead letter yet.
    """
    from pyspark.sql import functions as F

    places = [name for name in files.names(spark, table) if name.startswith("query=")]
    tables = [(name, table_of(spark, f"{table}/{name}")) for name in places]
    rows = [one.read().withColumn("query", F.lit(name[6:])) for name, one in tables if one.newest() is not None]
    if not rows:
        raise nothing(table)
    return reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), rows)


def refused_letters(spark: SparkSession, directory: str, sink: SinkPlan, batch: int) -> DataFrame | None:
    """Return the rows of a batch that a server refused; None without any."""
    from pyspark.sql import functions as F

    for query in files.names(spark, directory):
        place = f"{directory}/{query}/refused_batch={batch}"
        if query.startswith("refused_query=") and files.names(spark, place):
            rows = spark.read.parquet(place)
            known = [name for name in _PLACE if _AT + name in rows.columns]
            sent = [F.col(name) for name in rows.columns if name != "body" and not name.startswith(_AT)]
            told = rows.select(
                F.array("refused_reason").alias(PROBLEMS),
                F.to_json(F.struct(*sent)).alias("row"),
                F.col("body").cast("string").alias("body"),
                *[F.col(_AT + name).alias(name) for name in known],
            )
            return as_letters(told, f"sink {sink.name}", row=F.col("row"))
    return None


def forget_refused(spark: SparkSession, directory: str, batch: int) -> None:
    """Delete refused rows of batches before this one: they are now among the dead letters."""
    for query in files.names(spark, directory):
        for name in files.names(spark, f"{directory}/{query}") if query.startswith("refused_query=") else ():
            number = name.partition("=")[2]
            if number.isdigit() and int(number) < batch:
                files.delete(spark, f"{directory}/{query}/{name}")


def absolute(place: str) -> str:
    """Return a directory's name as every process finds it."""
    return place if files.names_system(place) else os.path.abspath(place)
