"""The command ``holdfast compact``: small files of landed rows, put together."""

from __future__ import annotations

import sys

import click

from holdfast.exceptions import HoldfastError
from holdfast.pipeline.jobs.command import command_session, print_line, spark_options

ONLY_READ_LANDED = (
    "warning: only read_landed reads a compacted table of Parquet right. DuckDB, Polars and PyArrow count rows twice, "
    "pandas fails. If others read it, land with --format delta."
)


@click.command()
@click.option("--out", required=True, help="What holdfast land has landed. It may go on landing.")
@click.option("--target-mb", type=click.IntRange(min=1), default=128, show_default=True, help="Files grow up to this.")
@click.option(
    "--keep-seconds",
    type=click.FloatRange(min=0),
    default=3600.0,
    show_default=True,
    help="How long what is replaced is kept, for whoever is reading it.",
)
@spark_options
def compact_command(out: str, target_mb: int, keep_seconds: float, verbose: bool, master: str | None) -> None:
    """Put small files of what has been landed together; read_landed sees each row once, before, meanwhile and after.

    What is replaced is deleted by the first run after --keep-seconds. Runs may overlap.

    \b
    holdfast compact --out landed
    holdfast compact --out landed --target-mb 512 --keep-seconds 86400
    """
    try:
        with command_session("holdfast compact", master, verbose=verbose, remedy="what is landed is safe") as spark:
            from holdfast.pipeline.landing.compaction import compact
            from holdfast.pipeline.landing.delta import DeltaTable
            from holdfast.pipeline.landing.tables import table_of

            if not isinstance(table_of(spark, out), DeltaTable):
                click.echo(ONLY_READ_LANDED, err=True)

            def told(name: str) -> None:
                print_line({"event": "made", "directory": name})

            done = compact(spark, out, target=target_mb << 20, keep=keep_seconds, on_made=told)
        print_line({"event": "end", "replaced": done.replaced, "made": done.made, "deleted": done.deleted})
    except HoldfastError as error:
        click.echo(f"holdfast: {error}", err=True)
        sys.exit(1)
