"""A grid of simulations as a command, ``holdfast simulate --grid``: rows as Delta tables, a summary, and a page."""

from __future__ import annotations

import json
import time
from pathlib import Path

import click

from holdfast.pipeline.jobs.command import command_session
from holdfast.pipeline.simulation.grid import Grid
from holdfast.pipeline.spark import files


def run_grid(grid: Grid, out: str, html: Path | None, master: str | None, *, as_json: bool = False) -> None:
    """Simulate a grid, and print the best policy for each network.

    Args:
        grid: The combinations to simulate.
        out: Directory for the rows: ``outcomes``, one for each Sequence, and ``summary``, one for each combination.
        html: File of the page; None: no page.
        master: Spark's.
        as_json: Whether to print a line of JSON for each combination instead.

    Raises:
        HoldfastError: The simulation failed.
    """
    if html is not None:
        from holdfast.pipeline.html_report import check_installed, check_writable

        check_installed()
        check_writable(html)
    began = time.monotonic()
    with command_session("holdfast simulate", master, verbose=False, remedy="Simulate again") as spark:
        from holdfast.pipeline.landing.tables import replace_table
        from holdfast.pipeline.simulation.trials import simulate, summarize

        files.check_writable(spark, out)
        outcomes = replace_table(simulate(spark, grid), f"{out}/outcomes")
        seconds = time.monotonic() - began
        summary = replace_table(summarize(outcomes).coalesce(1), f"{out}/summary")
        rows = [row.asDict() for row in summary.orderBy("cell").collect()]
    from holdfast.pipeline.simulation.report import parts, reading

    click.echo(f"{grid.total:,} Sequences in {seconds:.0f} s; the rows are in {out}", err=True)
    if as_json:
        for row in rows:
            click.echo(json.dumps(row))
    else:
        click.echo("\n".join(reading(rows)))
    if html is not None:
        from holdfast.pipeline.html_report import render, write_report

        write_report(html, render("Simulated Sequences", parts(grid, rows, seconds)))
