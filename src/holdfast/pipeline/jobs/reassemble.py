"""The command ``holdfast reassemble``: captures into every message once, in order, and the gap report."""

from __future__ import annotations

import re
import sys
import threading
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from holdfast.exceptions import ConfigurationError, HoldfastError
from holdfast.pipeline.html_report import check_installed, check_writable, write_report
from holdfast.pipeline.jobs.command import command_session, hear, patiently, print_line, spark_options
from holdfast.pipeline.spark import files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

    from holdfast.pipeline.reassembly.tables import Reassembled


SHOWN = 10
"""Reasons why something could not be read that are printed; the report has more."""
DEFAULT_INTERVAL = 10.0
"""Seconds: a batch is a directory of files, and the larger it is the less its state costs a message."""

_ELSEWHERE = re.compile(r"\A[A-Za-z][A-Za-z0-9+.-]+:/|[*?\[{]")


@click.command()
@click.argument("capture", nargs=-1, required=True)
@click.option("--out", required=True, help="Directory for the tables: messages, sequences, unplaced.")
@click.option(
    "--column", help="CAPTURE is Parquet, and this column has the envelopes.  [default: files, each with some]"
)
@click.option("--report", type=click.Path(dir_okay=False, path_type=Path), help="The gap report: FILE.json, FILE.html.")
@click.option("--stream", is_flag=True, help="CAPTURE is one directory: go on with what comes there, until stopped.")
@click.option("--checkpoint", help="Directory of the stream's progress and state. It belongs to --out.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    help="Seconds without a sign of a Sequence after which its gaps are taken for final.  [default: 300]",
)
@click.option(
    "--interval",
    type=click.FloatRange(min=0),
    help=f"Seconds from batch to batch.  [default: {DEFAULT_INTERVAL:g}]",
)
@click.option("--available-now", is_flag=True, help="Take what is there now, then end; run again to go on.")
@spark_options
def reassemble_command(**arguments: Any) -> None:
    """Put captured messages together: each once, in order, and which are missing.

    CAPTURE are files, directories or patterns: envelopes, HTTP messages with their heads (as tcpflow writes them), WARC
    records, WCF's message logs (.svclog), HAR, Fiddler's SAZ, mitmproxy's flows, also in gzip. With --column it is
    Parquet, for instance of a topic's values.

    \b
    holdfast reassemble captured/ --out put-together --report gaps.html
    holdfast reassemble topic.parquet --column value --out put-together
    holdfast reassemble captured/ --stream --out put-together --checkpoint put-together.checkpoint --timeout 60

    A stream may be killed at any time and started again with the same arguments: nothing is lost or doubled.

    Exits with 0 if nothing is missing that is known of and everything could be read; else with 1, and says what.
    """
    try:
        _check(arguments)
        stop = threading.Event()
        if arguments["stream"]:
            hear(stop)
        with _session(arguments, stop if arguments["stream"] else None) as spark:
            done = _follow(spark, arguments, stop) if arguments["stream"] else _reassemble(spark, arguments)
            found = _figures(done, arguments["report"])
        if found:
            click.echo(f"holdfast: {found}\n  what is in {arguments['out']} says which", err=True)
            sys.exit(1)
    except HoldfastError as error:
        click.echo(f"holdfast: {error}", err=True)
        sys.exit(1)


def _check(arguments: dict[str, Any]) -> None:
    streams = [name for name in ("checkpoint", "timeout", "interval", "available_now") if arguments[name]]
    if streams and not arguments["stream"]:
        raise click.UsageError(f"--{streams[0].replace('_', '-')} is for --stream")
    if arguments["stream"] and not arguments["checkpoint"]:
        raise click.UsageError("--stream needs a --checkpoint")
    if arguments["stream"] and len(arguments["capture"]) > 1:
        raise click.UsageError("--stream takes one CAPTURE: a directory, or a pattern of some")
    if arguments["available_now"] and arguments["interval"] is not None:
        raise click.UsageError("--available-now and --interval exclude each other")
    report: Path | None = arguments["report"]
    if report is not None and report.suffix not in (".json", ".html"):
        raise click.UsageError(f"--report is to end with .json or .html, not {report.suffix or 'without either'!r}")
    if report is not None and report.suffix == ".html":
        check_installed()
    if report is not None:
        check_writable(report)
    for path in arguments["capture"]:
        is_here = not _ELSEWHERE.search(path)  # what is elsewhere, or a pattern, only Spark can look for
        if is_here and not Path(path).exists():
            raise ConfigurationError(
                f"there is no capture at {path}", remedy="name a file or a directory that is there"
            )


def _session(arguments: dict[str, Any], stop: threading.Event | None) -> Any:
    remedy = "run it again: it goes on" if arguments["stream"] else "run it again: it begins anew"
    verbose = arguments["verbose"]
    return command_session("holdfast reassemble", arguments["master"], verbose=verbose, remedy=remedy, stop=stop)


def _reassemble(spark: SparkSession, arguments: dict[str, Any]) -> Reassembled:
    from holdfast.pipeline.reassembly.tables import reassemble

    def told(step: str, count: int | None) -> None:
        print_line({"event": "step", "done": step, **({} if count is None else {"messages": count})})

    files.check_writable(spark, arguments["out"])
    return reassemble(_capture(spark, arguments), arguments["out"], on_step=told)


def _follow(spark: SparkSession, arguments: dict[str, Any], stop: threading.Event) -> Reassembled:
    """Run the stream until it ends or is to stop; a line for each batch."""
    from holdfast.pipeline.reassembly.stream import (
        TIMEOUT,
        capture_stream,
        is_idle,
        read_streamed,
        reassemble_stream,
    )

    interval = DEFAULT_INTERVAL if arguments["interval"] is None else arguments["interval"]

    def run() -> None:
        query = reassemble_stream(
            capture_stream(spark, arguments["capture"][0], column=arguments["column"]),
            arguments["out"],
            checkpoint=arguments["checkpoint"],
            timeout=arguments["timeout"] or TIMEOUT,
            interval=0.0 if arguments["available_now"] else interval,
        )
        last = -1
        while not stop.is_set() and not query.awaitTermination(0.5):
            last = _tell(query, last)
            if arguments["available_now"] and is_idle(query):
                break
        query.stop()
        _tell(query, last)

    patiently(run)
    return read_streamed(spark, arguments["out"])


def _tell(query: StreamingQuery, last: int) -> int:
    """Print a line for each batch after ``last`` that took something; the last there is."""
    for batch in list(query.recentProgress):
        if batch["batchId"] > last and batch["numInputRows"]:
            last = batch["batchId"]
            seconds = batch["durationMs"].get("triggerExecution", 0) / 1_000
            print_line({"event": "batch", "batch": last, "rows": batch["numInputRows"], "seconds": seconds})
    return last


def _capture(spark: SparkSession, arguments: dict[str, Any]) -> DataFrame:
    from holdfast.pipeline.reassembly.tables import as_capture, capture_of

    if arguments["column"] is None:
        return capture_of(spark, *arguments["capture"])
    return as_capture(spark.read.parquet(*arguments["capture"]), arguments["column"])


def _figures(done: Reassembled, file: Path | None) -> str:
    """Print the figures and write the report; what is wrong, "" for nothing."""
    from holdfast.pipeline.reassembly import report as reassembly_report

    if file is None:
        counted = reassembly_report.figures(done)
        bad = [] if counted.is_whole else reassembly_report.groups(done)
    else:
        gathered = reassembly_report.report(done)
        bad = gathered.groups
        write = reassembly_report.as_html if file.suffix == ".html" else reassembly_report.as_json
        write_report(file, write(gathered))
        counted = gathered.figures
    for group in bad[:SHOWN]:
        print_line({"event": "not read", **group})
    print_line({"event": "end", **asdict(counted)})
    return reassembly_report.in_a_sentence(counted)
