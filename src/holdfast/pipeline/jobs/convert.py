"""The command ``holdfast convert``: a Parquet table becomes a Delta table."""

from __future__ import annotations

from pathlib import Path

import click

from holdfast.exceptions import counted
from holdfast.pipeline.jobs.command import command_session, spark_options
from holdfast.pipeline.jobs.output import json_option, tell
from holdfast.pipeline.spark import files


@click.command()
@click.argument("tables", metavar="DIRECTORY...", nargs=-1, required=True)
@json_option
@spark_options
def convert_command(tables: tuple[str, ...], verbose: bool, master: str | None) -> None:
    """Convert Parquet tables into Delta tables, in the same directories.

    DIRECTORY is a table that holdfast land, a pipeline or a reassembling stream wrote. Stop what writes to it, convert
    it, and start that again with the same options and checkpoint, without --format parquet.

    \b
    holdfast convert landed
    holdfast convert shop/order shop/return shop/other
    holdfast convert dead/query=*

    The Parquet table stays readable until the Delta table is complete; then its directories are deleted. You can stop
    the command at any time and run it again.
    """
    from holdfast.pipeline.landing.layout import nothing

    for table in tables:  # before Spark starts, which takes a while
        if not files.names_system(table) and not Path(table).exists():
            raise nothing(table)
    remedy = "No row is lost; run the command again"
    with command_session("holdfast convert", master, verbose=verbose, remedy=remedy) as spark:
        from holdfast.pipeline.landing.conversion import convert

        def copied(first: int, last: int, rows: int) -> None:
            text = f"batches {first:,} to {last:,} copied: {counted(rows, 'row')}"
            tell(text, event="copied", first_batch=first, last_batch=last, rows=rows)

        for table in tables:
            done = convert(spark, table, on_step=copied)
            rows = f"{counted(done.before, 'row')} before, {done.rows:,} after" if done.before else "no rows to copy"
            tell(
                f"{table} is a Delta table: {rows}; "
                f"{counted(done.deleted, 'old directory', 'old directories')} deleted",
                event="converted",
                directory=table,
                rows_before=done.before,
                rows_after=done.rows,
                deleted=done.deleted,
            )
