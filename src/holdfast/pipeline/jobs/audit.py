"""The command ``holdfast audit``: audits an event journal and reports violations."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from holdfast.client.command_options import away_option, have_answer, own_words
from holdfast.client.journal import JournalClient
from holdfast.exceptions import ConfigurationError, counted
from holdfast.pipeline.html_report import check_installed, check_writable, write_report
from holdfast.pipeline.jobs.command import (
    access_options,
    command_session,
    errors_reported,
    further_option,
    source_access,
    spark_options,
)
from holdfast.pipeline.jobs.output import json_option, tell
from holdfast.pipeline.journal import is_address
from holdfast.pipeline.reader.options import ReadOptions
from holdfast.pipeline.session import check_spark
from holdfast.pipeline.spark import files
from holdfast.store import is_remote, shown

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


FORMATS = ("delta", "parquet", "csv", "json")
SHOWN = 20
"""Maximum of printed violations and holes; the tables contain all of them."""
DAMAGE = ("damaged", "missing")
"""Kinds of holes that may mean a damaged disk."""
_VIOLATED = 1


class _Place(click.Path):
    """A directory, or the URL of a server's admin listener."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if is_address(value):
            return value
        if is_remote(value):
            self.fail(f"{shown(value)} has no journal: name the URL of the server's admin listener", param, ctx)
        return super().convert(value, param, ctx)


@click.command()
@click.argument("place", nargs=-1, required=True, type=_Place(exists=True, file_okay=False, path_type=Path))
@click.option("--out", help="Directory for the tables, with one subdirectory for each.")
@click.option(
    "--format", "kind", type=click.Choice(FORMATS), default="delta", show_default=True, help="Format of the tables."
)
@click.option("--html", type=click.Path(dir_okay=False, path_type=Path), help="Write a report to this file.")
@click.option("--strict", is_flag=True, help="Exit with 1 also if a file of the journal is damaged or missing.")
@access_options
@away_option
@further_option
@json_option
@spark_options
def audit_command(place: tuple[str | Path, ...], **arguments: Any) -> None:
    """Audit an event journal: the fate of every message, and every violation of a guarantee.

    PLACE is the directory of a server's store, or of its journal; with several workers, that of worker 0. Or it is the
    URL of a running server's admin listener; then the audit does not need the server's disk. The server may keep
    running. Several PLACEs are audited together: name the journal of each node of a cluster. Audit other servers
    separately.

    \b
    holdfast audit broker --html report.html
    holdfast audit journal-of-a journal-of-b journal-of-c
    holdfast audit http://127.0.0.1:8081 --token-file token --out audited --format csv

    The command prints a line for each step, each violation and each hole in the journal. The exit code is 0 without
    violations and 1 with violations; it cannot judge the events in a hole. The command names a damaged file,
    skips it, and audits the rest; with --strict, the exit code is then 1 as well.
    """
    with own_words():
        found, damaged, unseen = _run(place, arguments)
    if found:
        click.echo(f"holdfast: a guarantee was broken: violations: {found:,}", err=True)
    if damaged:
        click.echo(
            f"holdfast: files of the journal are damaged or missing: {damaged:,}. The rest was audited. Check the "
            "disk for other damage: `holdfast store check`",
            err=True,
        )
    if unseen:
        click.echo(
            f"holdfast: earlier runs of {workers_text(unseen)} are in no journal that was named. They are older than "
            "its retention, or in the journals of other nodes. In a cluster, name the journals of all nodes: an admin "
            "listener has only those of the present owners",
            err=True,
        )
    if found or (damaged and arguments["strict"]):
        sys.exit(_VIOLATED)


def workers_text(workers: list[int]) -> str:
    which = ", ".join(map(str, workers[:SHOWN])) + (", …" if len(workers) > SHOWN else "")
    return f"worker or cluster partition {which}" if len(workers) == 1 else f"workers or cluster partitions {which}"


def _run(place: tuple[str | Path, ...], arguments: dict[str, Any]) -> tuple[int, int, list[int]]:
    away = arguments["away_seconds"]
    options = {**arguments["further"], **source_access(arguments)}
    options |= {} if away is None else {"awaySeconds": str(away)}
    # Before Spark starts, which takes a while.
    servers = [_server(str(address), options) for address in filter(is_address, place)]
    if arguments["html"] is not None:
        check_installed()
        check_writable(arguments["html"])
    check_spark()
    for server in servers:
        have_answer(server.files, away)
        server.close()
    remedy = "Audit again: nothing was changed"
    with command_session("holdfast audit", arguments["master"], verbose=arguments["verbose"], remedy=remedy) as spark:
        return _audit(spark, place, options, **{name: arguments[name] for name in ("out", "kind", "html")})


def _server(address: str, options: dict[str, str]) -> JournalClient:
    try:
        parsed = ReadOptions.parse({**options, "broker": address, "read": "journal"})
        parsed.check_batch()
    except ConfigurationError as error:
        raise click.UsageError(str(error)) from error
    return JournalClient(parsed.broker, parsed.access)


def _audit(
    spark: SparkSession,
    place: tuple[str | Path, ...],
    options: dict[str, str],
    out: str | None,
    kind: str,
    html: Path | None,
) -> tuple[int, int, list[int]]:
    """Audit the journal; return the number of violations, that of damaged or missing files, and the workers with runs
    of which it has no event."""
    from pyspark.sql import functions as F

    from holdfast.pipeline.audit.event_pass import is_of_several
    from holdfast.pipeline.audit.findings import audit
    from holdfast.pipeline.journal import read_journal

    began = time.monotonic()
    if out is not None:
        files.check_writable(spark, out)
    journal = read_journal(spark, *place, **options)
    if any(map(is_address, place)):
        journal = journal.cache()  # read several times, but transferred over the network once
    audited = audit(journal)
    events = audited.summed.selectExpr("coalesce(sum(events), 0)").first()
    assert events is not None
    if len(place) > 1 and is_of_several(audited.summed):
        raise ConfigurationError(
            "these are the journals of several servers",
            remedy="Audit each server separately: the events of one say nothing about another. Several places may be "
            "the nodes of one cluster, or parts of one journal. Audit the journals from before and after a cluster was "
            "restored separately",
        )
    tell(
        f"{counted(events[0], 'event')} read in {_since(began)} s",
        event="journal",
        events=events[0],
        seconds=_since(began),
    )
    # Each is read several times, and most are small.
    tables = {name: table.cache() for name, table in audited.tables()}
    audited = replace(audited, **tables)
    rows: dict[str, int] = {}
    for name, table in tables.items():
        rows[name] = table.count()
        if out is not None:
            _write(table, f"{out}/{name}", kind)
        tell(f"{name}: {counted(rows[name], 'row')}", event="table", table=name, rows=rows[name], seconds=_since(began))
    for row in audited.cannot_say.orderBy(F.col("kind").isin(*DAMAGE).desc(), "at").limit(SHOWN).collect():
        tell(f"cannot say: {_text(row)}", event="cannot say", **_plain(row))
    for row in audited.violations.orderBy("rule", "at", "sequence", "number").limit(SHOWN).collect():
        tell(f"violation: {_text(row)}", event="violation", **_plain(row))
    if html is not None:
        from holdfast.pipeline.audit.report import report

        write_report(html, report(audited, [str(one) for one in place]))
    damaged = audited.cannot_say.where(F.col("kind").isin(*DAMAGE)).count()
    unseen = audited.cannot_say.where("kind = 'not kept' AND run IS NULL").select("worker").distinct().collect()
    for cached in (journal, *tables.values()):
        cached.unpersist()
    audited.release()
    found, holes = rows["violations"], rows["cannot_say"]
    text = f"{counted(found, 'violation')}, {counted(holes, 'hole')} in the journal, {counted(damaged, 'damaged file')}"
    tell(text, event="end", violations=found, cannot_say=holes, damaged=damaged, seconds=_since(began))
    return found, damaged, sorted(row[0] or 0 for row in unseen)  # without workers, it is null


def _write(table: DataFrame, path: str, kind: str) -> None:
    if kind == "delta":
        from holdfast.pipeline.landing.tables import replace_table

        replace_table(table.coalesce(1), path)
        return
    writer = table.coalesce(1).write.mode("overwrite")
    (writer.option("header", True) if kind == "csv" else writer).format(kind).save(path)


def _plain(row: Any) -> dict[str, Any]:
    return {name: str(value) if name == "at" else value for name, value in row.asDict().items() if value is not None}


def _text(row: Any) -> str:
    first, *others = _plain(row).items()
    return ", ".join([str(first[1]), *(f"{name} {value}" for name, value in others)])


def _since(began: float) -> float:
    return round(time.monotonic() - began, 1)


if __name__ == "__main__":
    with errors_reported():  # spark-submit runs this file
        audit_command()
