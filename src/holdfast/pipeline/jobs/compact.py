"""The command ``holdfast compact``: merge the small files of a table."""

from __future__ import annotations

import click

from holdfast.client.option_types import Count, Seconds
from holdfast.exceptions import counted
from holdfast.pipeline.jobs.command import command_session, spark_options
from holdfast.pipeline.jobs.output import json_option, tell


@click.command()
@click.option("--out", required=True, help="Delta table of holdfast land, a pipeline, or a reassembling stream.")
@click.option("--target-mb", type=Count(), default=128, show_default=True, help="Files grow up to this.")
@click.option(
    "--keep-seconds",
    type=Seconds(),
    default=3600.0,
    show_default=True,
    help="Time to keep replaced files for current readers, rounded up to hours.",
)
@json_option
@spark_options
def compact_command(out: str, target_mb: int, keep_seconds: float, verbose: bool, master: str | None) -> None:
    """Merge the small files of a Delta table. Readers see each row once, before, during and after.

    Holdfast may continue to write to the table. The command also deletes files that earlier commits replaced, if that
    is more than --keep-seconds ago.

    \b
    holdfast compact --out landed
    holdfast compact --out landed --target-mb 512 --keep-seconds 86400
    """
    with command_session("holdfast compact", master, verbose=verbose, remedy="What is landed is safe") as spark:
        from holdfast.pipeline.landing.compaction import compact

        done = compact(spark, out, target=target_mb << 20, keep=keep_seconds)
    tell(
        f"{counted(done.replaced, 'file')} became {done.made:,}; {counted(done.deleted, 'replaced file')} deleted",
        event="end",
        replaced=done.replaced,
        made=done.made,
        deleted=done.deleted,
    )
