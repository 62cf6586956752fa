"""Landing as a process of its own: ``python -m holdfast.pipeline.land_job``, and the command ``holdfast land``.

Prints one line of JSON a batch. May be killed at any time and started again with the same arguments.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from holdfast.exceptions import ConfigurationError, HoldfastError
from holdfast.pipeline.options import ReadOptions
from holdfast.pipeline.session import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery
    from pyspark.sql.types import StructType

DEFAULT_INTERVAL = 10.0
"""Seconds: a batch is a directory of files, and tables of many small files are slow to read."""

_PYTHON_IS_LATE = "Python worker failed to connect back"
_STARTS = 6
"""Spark gives a source's Python process ten seconds to start, and ends the query when a busy machine needs more."""

_OUR_ERROR = re.compile(r"holdfast\.\w[\w.]*: (.+(?:\n  \S.*)?)")


@click.command()
@click.option("--broker", required=True, help="URL of the server's admin listener.")
@click.option("--queue", default="inbox", show_default=True, help="The queue to land.")
@click.option("--out", required=True, help="Directory for the Parquet files.")
@click.option("--checkpoint", required=True, help="Directory of the job's progress. It belongs to --out.")
@click.option("--schema", help='Fields of the body\'s element: "carrier STRING, flight INT".')
@click.option(
    "--schema-file", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="The same, in a file."
)
@click.option("--prefix", default="", help="Put before the names of the parsed columns.")
@click.option("--reader", default="land", show_default=True, help="Name of the cursor on the server.")
@click.option("--max-rows-per-batch", type=click.IntRange(min=1), help="Messages of one batch at most.")
@click.option("--away-seconds", type=click.FloatRange(min=0), help="How long to wait for a server that is away.")
@click.option(
    "--interval",
    type=click.FloatRange(min=0),
    help=f"Seconds from the start of a batch to the next; 0: as they come.  [default: {DEFAULT_INTERVAL:g}]",
)
@click.option("--available-now", is_flag=True, help="Land what is there now, then end.")
@click.option("--until-rows", type=click.IntRange(min=1), help="End when so many messages have been landed in all.")
@click.option("--verbose", is_flag=True, help="Show Spark's own errors, with their tracebacks.")
@click.option("--master", default="local[*]", show_default=True, help="Spark's master.")
def land_command(**arguments: Any) -> None:
    """Land a queue as Parquet files, each message exactly once.

    \b
    holdfast land --broker http://127.0.0.1:8081 --out landed --checkpoint landed.checkpoint --available-now
    holdfast land --broker http://127.0.0.1:8081 --queue orders --out orders --checkpoint orders.checkpoint \\
        --schema "carrier STRING, flight INT" --interval 10
    """
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    try:
        _run(arguments, stop)
    except HoldfastError as error:
        click.echo(f"holdfast: {error}", err=True)
        sys.exit(1)


def _run(arguments: dict[str, Any], stop: threading.Event) -> None:
    if arguments["available_now"] and arguments["interval"] is not None:
        raise click.UsageError("--available-now and --interval exclude each other")
    if arguments["schema"] and arguments["schema_file"]:
        raise click.UsageError("--schema and --schema-file exclude each other")
    try:  # before Spark starts, which takes a while
        ReadOptions.parse({"broker": arguments["broker"], "queue": arguments["queue"], **_source_options(arguments)})
    except ConfigurationError as error:
        raise click.UsageError(str(error)) from error
    with _in_a_sentence():
        spark = session("holdfast land", arguments["master"], **{"spark.sql.streaming.numRecentProgressUpdates": "20"})
        try:
            if not arguments["verbose"]:  # what ends the query is told in one sentence
                log4j = spark._jvm.org.apache.logging.log4j
                log4j.core.config.Configurator.setLevel("org.apache.spark", log4j.Level.OFF)
                logging.getLogger("py4j").setLevel(logging.CRITICAL)
            if not stop.is_set():
                _land(spark, arguments, stop)
        finally:
            spark.stop()


@contextlib.contextmanager
def _in_a_sentence() -> Iterator[None]:
    """What Spark refuses, and the end of its Java process: that may be killed, or be stopped together with this one,
    as systemd does."""
    try:
        yield
    except HoldfastError:
        raise
    except Exception as error:
        from py4j.protocol import Py4JNetworkError
        from pyspark.errors import PySparkException

        if isinstance(error, PySparkException):
            raise HoldfastError(_sentence(str(error)), remedy="what is landed is safe") from error
        if isinstance(error, Py4JNetworkError | ConnectionError):
            raise HoldfastError(
                "Spark's Java process has ended", remedy="what is landed is safe; start again to go on"
            ) from error
        raise


def _land(spark: SparkSession, arguments: dict[str, Any], stop: threading.Event) -> None:
    from holdfast.pipeline.landing import land, settle

    where = {name: arguments[name] for name in ("broker", "queue", "checkpoint", "reader")}
    rows = _rows_by_batch(spark, arguments["out"])
    how: dict[str, Any] = {
        "out": arguments["out"],
        "schema": _schema(arguments),
        "prefix": arguments["prefix"],
        "trigger": _trigger(arguments),
        "options": _source_options(arguments),
    }
    for left in reversed(range(_STARTS)):
        try:
            _follow(land(spark, **how, **where), rows, arguments["until_rows"], stop)
            break
        except HoldfastError as error:
            if not left or _PYTHON_IS_LATE not in str(error.__cause__):
                raise
    settled = settle(spark, **where)
    _print({"event": "end", "rows": sum(rows.values()), "cursor": settled})


def _rows_by_batch(spark: SparkSession, out: str) -> dict[int, int]:
    from holdfast.pipeline.landing import read_landed

    try:
        landed = read_landed(spark, out)
    except ConfigurationError:
        return {}
    return {int(row["batch"]): int(row["count"]) for row in landed.groupBy("batch").count().collect()}


def _schema(arguments: dict[str, Any]) -> StructType | str | None:
    from pyspark.sql.types import StructType

    if not arguments["schema_file"]:
        return arguments["schema"] or None
    text = arguments["schema_file"].read_text(encoding="utf-8").strip()
    return StructType.fromJson(json.loads(text)) if text.startswith("{") else text


def _trigger(arguments: dict[str, Any]) -> dict[str, Any]:
    if arguments["available_now"]:
        return {"availableNow": True}
    interval = DEFAULT_INTERVAL if arguments["interval"] is None else arguments["interval"]
    return {"processingTime": f"{round(interval * 1000)} milliseconds"}


def _source_options(arguments: dict[str, Any]) -> dict[str, str]:
    names = {"max_rows_per_batch": "maxRowsPerBatch", "away_seconds": "awaySeconds"}
    return {option: str(arguments[name]) for name, option in names.items() if arguments[name] is not None}


def _follow(query: StreamingQuery, rows: dict[int, int], until_rows: int | None, stop: threading.Event) -> None:
    """Report batches until the query ends or is to end. ``rows``: batch id -> rows, kept up to date."""
    from pyspark.errors import StreamingQueryException

    told = -1
    ended = False
    while not ended:
        try:
            ended = bool(query.awaitTermination(0.2))
        except StreamingQueryException as error:
            raise HoldfastError(_sentence(str(error)), remedy="what is landed is safe; start again to go on") from error
        for progress in query.recentProgress:
            if progress["batchId"] > told and progress["numInputRows"]:
                told = progress["batchId"]
                rows[told] = progress["numInputRows"]
                _report(progress, sum(rows.values()))
        if not ended and (stop.is_set() or (until_rows is not None and sum(rows.values()) >= until_rows)):
            query.stop()
            ended = True


def _report(progress: Any, total: int) -> None:
    source = progress["sources"][0]
    _print(
        {
            "event": "batch",
            "batch": progress["batchId"],
            "rows": progress["numInputRows"],
            "total": total,
            "milliseconds": progress["durationMs"].get("triggerExecution"),
            "end": json.loads(source["endOffset"]),
            "latest": json.loads(source["latestOffset"] or "null"),
        }
    )


def _print(line: dict[str, Any]) -> None:
    click.echo(json.dumps(line))


def _sentence(text: str) -> str:
    """The last of our own errors in a query's report, which else is a page of Java and Python tracebacks."""
    ours = _OUR_ERROR.findall(text)
    return str(ours[-1] if ours else text.strip().splitlines()[0])


if __name__ == "__main__":
    land_command()
