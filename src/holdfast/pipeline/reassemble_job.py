"""The command ``holdfast reassemble``: captures into every message once, in order, and the gap report."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from holdfast.exceptions import HoldfastError
from holdfast.pipeline.job import command_session, print_line
from holdfast.pipeline.page import check_installed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from holdfast.pipeline.reassembly import Reassembled


@click.command()
@click.argument("capture", nargs=-1, required=True)
@click.option("--out", required=True, help="Directory for the tables: messages, sequences, unplaced.")
@click.option(
    "--column", help="CAPTURE is Parquet, and this column has the envelopes.  [default: files, each with some]"
)
@click.option("--report", type=click.Path(dir_okay=False, path_type=Path), help="The gap report: FILE.json, FILE.html.")
@click.option("--verbose", is_flag=True, help="Show Spark's own errors, with their tracebacks.")
@click.option("--master", help="Spark's master.  [default: what spark-submit was told, else local[*]]")
def reassemble_command(**arguments: Any) -> None:
    """Put captured messages together: each once, in order, and which are missing.

    CAPTURE are files, directories or patterns: envelopes, HTTP messages with their heads (as tcpflow writes them), WARC
    records, also in gzip. With --column it is Parquet, for instance of a topic's values.

    \b
    holdfast reassemble captured/ --out put-together --report gaps.html
    holdfast reassemble topic.parquet --column value --out put-together

    Exits with 0 if nothing is missing that is known of and everything could be read; else with 1, and says what.
    """
    try:
        _check(arguments)
        with _session(arguments) as spark:
            found = _figures(_reassemble(spark, arguments), arguments["report"])
        if found:
            click.echo(
                f"holdfast: {found}\n  the tables sequences and unplaced in {arguments['out']} have all", err=True
            )
            sys.exit(1)
    except HoldfastError as error:
        click.echo(f"holdfast: {error}", err=True)
        sys.exit(1)


def _check(arguments: dict[str, Any]) -> None:
    report: Path | None = arguments["report"]
    if report is not None and report.suffix not in (".json", ".html"):
        raise click.UsageError(f"--report is to end with .json or .html, not {report.suffix or 'without either'!r}")
    if report is not None and report.suffix == ".html":
        check_installed()


def _session(arguments: dict[str, Any]) -> Any:
    remedy = "run it again: it begins anew"
    return command_session("holdfast reassemble", arguments["master"], verbose=arguments["verbose"], remedy=remedy)


def _reassemble(spark: SparkSession, arguments: dict[str, Any]) -> Reassembled:
    from holdfast.pipeline.reassembly import reassemble

    def told(step: str, count: int | None) -> None:
        print_line({"event": "step", "done": step, **({} if count is None else {"messages": count})})

    return reassemble(_capture(spark, arguments), arguments["out"], on_step=told)


def _capture(spark: SparkSession, arguments: dict[str, Any]) -> DataFrame:
    from holdfast.pipeline.reassembly import as_capture, capture_of

    if arguments["column"] is None:
        return capture_of(spark, *arguments["capture"])
    return as_capture(spark.read.parquet(*arguments["capture"]), arguments["column"])


def _figures(done: Reassembled, file: Path | None) -> str:
    """Print the figures and write the report; what is wrong, "" for nothing."""
    from holdfast.pipeline import reassembly_report

    if file is None:
        counted = reassembly_report.figures(done)
    else:
        gathered = reassembly_report.report(done)
        write = reassembly_report.as_html if file.suffix == ".html" else reassembly_report.as_json
        file.write_text(write(gathered), encoding="utf-8")
        counted = gathered.figures
    print_line({"event": "end", **asdict(counted)})
    return reassembly_report.in_a_sentence(counted)
