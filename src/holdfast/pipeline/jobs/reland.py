"""The command ``holdfast reland``: parses landed messages again with another schema."""

from __future__ import annotations

from typing import Any

import click

from holdfast.client.command_options import own_words
from holdfast.exceptions import counted
from holdfast.pipeline.jobs.command import (
    job_session,
    reading,
    reading_options,
    spark_options,
    table,
    table_options,
    tell_of_flags,
)
from holdfast.pipeline.jobs.output import flags, flags_text, json_option, tell


@click.command()
@click.option("--landed", required=True, help="Output of holdfast land. It is not changed.")
@click.option("--out", required=True, help="Another directory, in which holdfast land continues afterwards.")
@table_options
@reading_options
@json_option
@spark_options
def reland_command(**arguments: Any) -> None:
    """Parse the bodies of landed messages again, with another schema or other leniencies.

    Stop the landing first. Afterwards, start it with the new --out and --schema, and the same --checkpoint.

    \b
    holdfast reland --landed landed --out read --schema-file order.ddl
    holdfast reland --landed orders --out orders2 --schema "carrier STRING, flight BIGINT" --lenient empty
    """
    how = {**table(arguments), **reading(arguments)}
    with own_words(), job_session("holdfast reland", arguments) as spark:
        from holdfast.pipeline.landing.tables import LandedBatch, reland

        done: list[LandedBatch] = []

        def told(batch: LandedBatch) -> None:
            done.append(batch)
            text = f"batch {batch.batch}: {counted(batch.rows, 'row')}{flags_text(batch)}"
            tell(text, event="batch", batch=batch.batch, rows=batch.rows, **flags(batch))

        reland(spark, arguments["landed"], arguments["out"], on_batch=told, **how)
    rows, flagged = sum(batch.rows for batch in done), sum(batch.flagged for batch in done)
    tell(f"{counted(rows, 'row')} in {arguments['out']}", event="end", rows=rows, flagged=flagged)
    tell_of_flags(flagged, rows, arguments["out"])
