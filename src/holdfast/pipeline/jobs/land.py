"""Landing as a separate process: ``python -m holdfast.pipeline.jobs.land``, and the command ``holdfast land``.

Prints one line of JSON for each batch. It may be killed at any time and started again with the same arguments.
"""

from __future__ import annotations

import json
import re
import threading
from collections import Counter
from typing import TYPE_CHECKING, Any

import click

from holdfast.client.command_options import away_option, have_answer, own_words
from holdfast.client.option_types import Count, Seconds
from holdfast.exceptions import ConfigurationError, HoldfastError, counted
from holdfast.pipeline.jobs.command import (
    WAIT_AT_END,
    access_options,
    errors_reported,
    further_option,
    hear,
    job_session,
    patiently,
    reading,
    reading_options,
    sentence,
    source_access,
    spark_options,
    table,
    table_options,
    tell_of_flags,
)
from holdfast.pipeline.jobs.output import flags, flags_text, json_option, sparse, tell
from holdfast.pipeline.reader.bounds import look_at_queues
from holdfast.pipeline.reader.options import ReadOptions
from holdfast.pipeline.session import check_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

    from holdfast.pipeline.landing.tables import LandedBatch

_TYPE = re.compile(r"((?:\{[^{}]*\})?[^={}]+)=(.*\S.*)", re.DOTALL)

DEFAULT_INTERVAL = 10.0
"""Seconds: a batch is a directory of files, and tables with many small files are slow to read."""


def _types(context: click.Context, option: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    found: dict[str, str] = {}
    for value in values:
        match = _TYPE.fullmatch(value)
        if match is None or match[1] in found:
            what = f"{value!r} is not ELEMENT=FIELDS" if match is None else f"{match[1]} is given twice"
            raise click.BadParameter(what, context, option)
        found[match[1]] = match[2]
    try:
        from holdfast.pipeline.bodies.message_types import table_names

        table_names(found)
    except ConfigurationError as error:
        raise click.BadParameter(str(error), context, option) from error
    return found


@click.command()
@click.option("--broker", required=True, help="URL of the server's admin listener.")
@click.option("--queue", help="The queue to land, or several separated by commas.  [default: inbox]")
@click.option("--queue-pattern", metavar="REGEX", help="Land every queue with a full name that matches this pattern.")
@click.option("--out", required=True, help="Directory of the table.")
@click.option("--checkpoint", required=True, help="Directory of the job's progress. It belongs to --out.")
@click.option("--reader", help="Name of the cursor on the server.  [default: one derived from the checkpoint]")
@access_options
@click.option("--max-rows-per-batch", type=Count(), help="Maximum number of messages in one batch.")
@away_option
@further_option
@click.option(
    "--interval",
    type=Seconds(),
    help=f"Seconds from the start of one batch to the next; 0: as messages arrive.  [default: {DEFAULT_INTERVAL:g}]",
)
@click.option("--available-now", is_flag=True, help="Land the current messages, then end.")
@click.option("--until-rows", type=Count(), help="End after this many messages in total.")
@table_options
@reading_options
@click.option(
    "--type",
    "types",
    multiple=True,
    metavar="ELEMENT=FIELDS",
    callback=_types,
    help="Land bodies of this element in a separate table below --out, with these fields. Others go to the table "
    "other.",
)
@json_option
@spark_options
def land_command(**arguments: Any) -> None:
    """Land queues as a Delta or Parquet table, each message exactly once.

    \b
    holdfast land --broker http://127.0.0.1:8081 --out landed --checkpoint landed.checkpoint --available-now
    holdfast land --broker http://127.0.0.1:8081 --queue orders --out orders --checkpoint orders.checkpoint \\
        --schema "carrier STRING, flight INT" --interval 10 --by-day delivered
    holdfast land --broker http://127.0.0.1:8081 --queue orders --out orders --checkpoint orders.checkpoint \\
        --xsd orders.xsd --element order
    holdfast land --broker http://127.0.0.1:8081 --out shop --checkpoint shop.checkpoint \\
        --type "order=id INT, customer STRING" --type "{urn:example:shop}return=id INT, reason STRING"
    """
    stop = threading.Event()
    hear(stop)
    with own_words():
        _run(arguments, stop)


def _run(arguments: dict[str, Any], stop: threading.Event) -> None:
    if arguments["available_now"] and arguments["interval"] is not None:
        raise click.UsageError("--available-now and --interval exclude each other")
    try:  # before Spark starts, which takes a while
        where = {name: arguments[name] for name in ("broker", "queue", "reader") if arguments[name] is not None}
        options = ReadOptions.parse({"reader": "land", **where, **_source_options(arguments)})
        options.check_stream()
    except ConfigurationError as error:
        raise click.UsageError(str(error)) from error
    if arguments["types"] and any(arguments[name] for name in ("schema", "schema_file", "xsd", "element")):
        raise click.UsageError(
            "--type contains the fields of its element: omit --schema, --schema-file, --xsd and --element"
        )
    check_spark()
    bodies = reading(arguments)
    from holdfast.pipeline.bodies.columns import ENVELOPE
    from holdfast.pipeline.landing.tables import check_columns

    check_columns(options, ENVELOPE.fieldNames())
    have_answer(lambda: look_at_queues(options), arguments["away_seconds"], stop)
    with job_session("holdfast land", arguments, stop) as spark:
        if not stop.is_set():
            _land(spark, arguments | {"bodies": bodies}, options, stop)


def _land(spark: SparkSession, arguments: dict[str, Any], options: ReadOptions, stop: threading.Event) -> None:
    from holdfast.pipeline.bodies.message_types import OTHER, table_names
    from holdfast.pipeline.landing.tables import land
    from holdfast.pipeline.spark.checkpoints import settle

    place = {name: arguments[name] for name in ("broker", "checkpoint", "reader")}
    types: dict[str, str] = arguments["types"]
    tables = [f"/{name}" for name in (*table_names(types).values(), OTHER)] if types else [""]
    landed = _landed_before(spark, [arguments["out"] + name for name in tables])
    before = sum(batch.flagged for batch in landed.values())
    written: dict[int, LandedBatch] = {}
    how: dict[str, Any] = {
        **place,
        "queue": ",".join(options.queues),
        "out": arguments["out"],
        "trigger": _trigger(arguments),
        "options": _source_options(arguments),
        "on_batch": lambda batch: written.update({batch.batch: batch}),
        **table(arguments),
        **arguments["bodies"],
        "types": types or None,
    }
    patiently(lambda: _follow(land(spark, **how), landed, written, arguments["until_rows"], stop))
    away = WAIT_AT_END if stop.is_set() else options.away
    settled = settle(spark, **place, queues=options.queues, access=options.access, away=away)
    rows, flagged = _total(landed), sum(batch.flagged for batch in landed.values())
    text = f"{counted(rows, 'message')} in {arguments['out']}"
    tell(text, event="end", rows=rows, flagged=flagged, cursor=sparse(settled))
    if flagged > before:
        tell_of_flags(flagged, rows, arguments["out"])


def _landed_before(spark: SparkSession, tables: list[str]) -> dict[int, LandedBatch]:
    from pyspark.sql import functions as F

    from holdfast.pipeline.bodies.columns import CORRUPT
    from holdfast.pipeline.landing.tables import LandedBatch, read_landed

    rows: Counter[int] = Counter()
    flagged: Counter[int] = Counter()
    for out in tables:
        try:
            landed = read_landed(spark, out)
        except ConfigurationError:
            continue
        counts = landed.groupBy("batch").agg(F.count("*").alias("rows"), F.count(CORRUPT).alias("flagged"))
        for row in counts.collect():
            rows[int(row["batch"])] += row["rows"]
            flagged[int(row["batch"])] += row["flagged"]
    return {batch: LandedBatch(batch, rows[batch], flagged[batch], None) for batch in rows}


def _trigger(arguments: dict[str, Any]) -> dict[str, Any]:
    if arguments["available_now"]:
        return {"availableNow": True}
    interval = DEFAULT_INTERVAL if arguments["interval"] is None else arguments["interval"]
    return {"processingTime": f"{round(interval * 1000)} milliseconds"}


def _source_options(arguments: dict[str, Any]) -> dict[str, str]:
    names = {
        "queue_pattern": "queuePattern",
        "max_rows_per_batch": "maxRowsPerBatch",
        "away_seconds": "awaySeconds",
    }
    own = {option: str(arguments[name]) for name, option in names.items() if arguments.get(name) is not None}
    return {**arguments.get("further", {}), **own, **source_access(arguments)}


def _total(landed: dict[int, LandedBatch]) -> int:
    return sum(batch.rows for batch in landed.values())


def _follow(
    query: StreamingQuery,
    landed: dict[int, LandedBatch],
    written: dict[int, LandedBatch],
    until_rows: int | None,
    stop: threading.Event,
) -> None:
    """Report batches until the query ends or is to end.

    ``written`` is what the query's own thread has written; from there a batch goes to ``landed``, under its id, when
    the query has noted that it is done: one that is repeated is counted once. What is in the table when the query is
    stopped counts, too, though it may not come to note it.
    """
    from pyspark.errors import StreamingQueryException

    told = -1

    def report() -> None:
        nonlocal told
        for progress in query.recentProgress:
            if progress["batchId"] > told and progress["numInputRows"]:
                told = progress["batchId"]
                landed[told] = written.pop(told)
                _report(progress, landed[told], _total(landed))

    ended = False
    while not ended:
        try:
            ended = bool(query.awaitTermination(0.2))
        except StreamingQueryException as error:
            raise HoldfastError(sentence(str(error)), remedy="Landed rows are safe; start again to continue") from error
        report()
        if not ended and (stop.is_set() or (until_rows is not None and _total(landed) >= until_rows)):
            query.stop()
            report()
            landed.update(written)
            ended = True


def _report(progress: Any, batch: LandedBatch, total: int) -> None:
    source = progress["sources"][0]
    milliseconds = progress["durationMs"].get("triggerExecution")
    tables = dict(batch.tables)
    by_table = f" ({', '.join(f'{name} {rows:,}' for name, rows in tables.items())})" if tables else ""
    seconds = "" if milliseconds is None else f" in {milliseconds / 1_000:.1f} s"
    landed = f"{counted(batch.rows, 'message')}{by_table}{seconds}"
    tell(
        f"batch {batch.batch}: {landed}, {total:,} in all{flags_text(batch)}",
        event="batch",
        batch=batch.batch,
        rows=batch.rows,
        total=total,
        **({"tables": tables} if tables else {}),
        **flags(batch),
        milliseconds=milliseconds,
        end=sparse(json.loads(source["endOffset"])),
        latest=sparse(json.loads(source["latestOffset"] or "null")),
    )


if __name__ == "__main__":
    with errors_reported():  # spark-submit runs this file
        land_command()
