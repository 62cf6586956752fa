"""The command ``holdfast reassemble``: turns captures into messages, each once and in order, with a gap report."""

from __future__ import annotations

import re
import sys
import threading
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from holdfast.client.command_options import no_effect
from holdfast.client.option_types import Seconds
from holdfast.exceptions import ConfigurationError, counted
from holdfast.pipeline.html_report import check_installed, check_writable, write_report
from holdfast.pipeline.jobs.command import command_session, hear, patiently, spark_options
from holdfast.pipeline.jobs.output import json_option, tell
from holdfast.pipeline.spark import files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

    from holdfast.pipeline.reassembly.report import Figures
    from holdfast.pipeline.reassembly.tables import Reassembled


SHOWN = 10
"""Maximum of printed reasons for unreadable content; the report has more."""
DEFAULT_INTERVAL = 10.0
"""Seconds: a batch is a directory of files, and a larger batch needs less state work for each message."""

_PATTERN = re.compile(r"[*?\[{]")


@click.command()
@click.argument("capture", nargs=-1, required=True)
@click.option("--out", required=True, help="Directory for the tables: messages, sequences, unplaced.")
@click.option(
    "--column",
    help="CAPTURE is Parquet, and this column contains the envelopes.  [default: files with one or "
    "more envelopes each]",
)
@click.option("--report", type=click.Path(dir_okay=False, path_type=Path), help="The gap report: FILE.json, FILE.html.")
@click.option("--stream", is_flag=True, help="CAPTURE is one directory: process new files until stopped.")
@click.option("--checkpoint", help="Directory of the stream's progress and state. It belongs to --out.")
@click.option(
    "--timeout",
    type=Seconds(zero=False),
    help="Seconds of silence after which the gaps of a Sequence count as final.  [default: 300]",
)
@click.option(
    "--interval",
    type=Seconds(),
    help=f"Seconds from one batch to the next.  [default: {DEFAULT_INTERVAL:g}]",
)
@click.option("--available-now", is_flag=True, help="Process the current files, then end; run again to continue.")
@json_option
@spark_options
def reassemble_command(**arguments: Any) -> None:
    """Reassemble captured messages: each once, in order, with a report of the missing ones.

    CAPTURE names files, directories or patterns: envelopes, HTTP messages with their headers (as tcpflow writes them),
    WARC records, WCF's message logs (.svclog), HAR, Fiddler's SAZ, mitmproxy's flows, also compressed with gzip. With
    --column it is Parquet, for instance with the values of a topic.

    \b
    holdfast reassemble captured/ --out put-together --report gaps.html
    holdfast reassemble topic.parquet --column value --out put-together
    holdfast reassemble captured/ --stream --out put-together --checkpoint put-together.checkpoint --timeout 60

    You can kill a stream at any time and start it again with the same arguments: it loses and repeats no message.

    The exit code is 0 if no known message is missing and everything was readable. Otherwise it is 1, and the command
    shows the reason.
    """
    _check(arguments)
    stop = threading.Event()
    if arguments["stream"]:
        hear(stop)
    with _session(arguments, stop if arguments["stream"] else None) as spark:
        done = _follow(spark, arguments, stop) if arguments["stream"] else _reassemble(spark, arguments)
        found = _figures(done, arguments["report"])
    if found:
        click.echo(f"holdfast: {found}\n  the tables in {arguments['out']} show which", err=True)
        sys.exit(1)


def _check(arguments: dict[str, Any]) -> None:
    if not arguments["stream"]:
        no_effect("without --stream", "checkpoint", "timeout", "interval", "available_now")
    if arguments["stream"] and not arguments["checkpoint"]:
        raise click.UsageError("--stream needs a --checkpoint")
    if arguments["stream"] and len(arguments["capture"]) > 1:
        raise click.UsageError("--stream needs exactly one CAPTURE: a directory, or a pattern of directories")
    if arguments["available_now"] and arguments["interval"] is not None:
        raise click.UsageError("--available-now and --interval exclude each other")
    report: Path | None = arguments["report"]
    if report is not None and report.suffix not in (".json", ".html"):
        raise click.UsageError(f"--report must end with .json or .html, not {report.suffix or 'without either'!r}")
    if report is not None and report.suffix == ".html":
        check_installed()
    if report is not None:
        check_writable(report)
    for path in arguments["capture"]:
        is_here = not (files.names_system(path) or _PATTERN.search(path))  # Spark must check the others
        if is_here and not Path(path).exists():
            raise ConfigurationError(f"the capture {path} does not exist", remedy="Name an existing file or directory")


def _session(arguments: dict[str, Any], stop: threading.Event | None) -> Any:
    remedy = "Run it again: it continues" if arguments["stream"] else "Run it again: it starts over"
    verbose = arguments["verbose"]
    return command_session("holdfast reassemble", arguments["master"], verbose=verbose, remedy=remedy, stop=stop)


def _reassemble(spark: SparkSession, arguments: dict[str, Any]) -> Reassembled:
    from holdfast.pipeline.reassembly.tables import reassemble

    def told(step: str, count: int | None) -> None:
        text = f"{step}: {'written' if count is None else counted(count, 'message')}"
        tell(text, event="step", done=step, **({} if count is None else {"messages": count}))

    files.check_writable(spark, arguments["out"])
    return reassemble(_capture(spark, arguments), arguments["out"], on_step=told)


def _follow(spark: SparkSession, arguments: dict[str, Any], stop: threading.Event) -> Reassembled:
    """Run the stream until it ends or is stopped; print a line for each batch."""
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
    for batch in list(query.recentProgress):
        if batch["batchId"] > last and batch["numInputRows"]:
            last = batch["batchId"]
            seconds = batch["durationMs"].get("triggerExecution", 0) / 1_000
            rows = batch["numInputRows"]
            text = f"batch {last}: {counted(rows, 'row')} in {seconds:.1f} s"
            tell(text, event="batch", batch=last, rows=rows, seconds=seconds)
    return last


def _capture(spark: SparkSession, arguments: dict[str, Any]) -> DataFrame:
    from holdfast.pipeline.reassembly.tables import as_capture, capture_of

    if arguments["column"] is None:
        return capture_of(spark, *arguments["capture"])
    return as_capture(spark.read.parquet(*arguments["capture"]), arguments["column"])


def _figures(done: Reassembled, file: Path | None) -> str:
    """Print the figures and write the report; return the problem, "" without one."""
    from holdfast.pipeline.reassembly import report as reassembly_report

    if file is None:
        figures = reassembly_report.figures(done)
        bad = [] if figures.is_whole else reassembly_report.groups(done)
    else:
        gathered = reassembly_report.report(done)
        bad = gathered.groups
        write = reassembly_report.as_html if file.suffix == ".html" else reassembly_report.as_json
        write_report(file, write(gathered))
        figures = gathered.figures
    for group in bad[:SHOWN]:
        what = f"{group['why']}: {group['problem']}" if group["problem"] else group["why"]
        kind = f"{counted(group['count'], 'message')} of kind {group['kind']}"
        tell(f"not read: {kind}, {what}; such as {group['example']}", event="not read", **group)
    tell(_text(figures), event="end", **asdict(figures))
    return reassembly_report.in_a_sentence(figures)


def _text(figures: Figures) -> str:
    states = {"complete": figures.complete, "incomplete": figures.incomplete, "of unknown end": figures.tail_unknown}
    sequences = ", ".join(f"{number:,} {state}" for state, number in states.items() if number)
    messages = f"{counted(figures.messages, 'message')}, {counted(figures.duplicates, 'repeat')} dropped"
    return f"{counted(figures.sequences, 'Sequence')} ({sequences or 'none'}); {messages}, {figures.missing:,} missing"
