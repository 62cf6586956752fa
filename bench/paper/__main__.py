"""``python -m bench.paper``: measurements that need only an installed Holdfast. All code is in bench.paper."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import click

from bench.paper import table
from bench.paper.plots import check_installed, draw
from bench.paper.table import TARGET, Row
from holdfast.cli.progress import LOG_INTERVAL
from holdfast.cli.tables import json_option, print_table
from holdfast.exceptions import HoldfastError


@click.command()
@click.option("--runs", type=click.IntRange(1), default=100, show_default=True, help="Of each operation.")
@click.option(
    "--directory",
    type=click.Path(exists=True, file_okay=False, writable=True, path_type=Path),
    help="Directory for temporary stores, on the disk to measure.  [default: that of temporary files]",
)
@click.option(
    "--plots",
    type=click.Path(file_okay=False, path_type=Path),
    help="Draw the runs as PNG files there; needs the extra 'bench'.",
)
@json_option
def paper(runs: int, directory: Path | None, plots: Path | None, as_json: bool) -> None:
    """Measure every operation that a paper of 2005 measured of a WS-RM implementation.

    \b
    python -m bench.paper
    python -m bench.paper --directory /var/lib/holdfast --json --plots figures

    Times are microseconds of wall time. Mean and deviation leave out outliers: runs more than two deviations from the
    mean of all, removed once. Memory is the most that a run allocated, in bytes. The table takes about ten seconds.
    """
    try:
        if plots is not None:
            check_installed()
        rows = table.measure(runs, directory, _Progress())
    except HoldfastError as error:
        raise click.ClickException(str(error)) from error
    if plots is not None:
        for file in draw(rows, plots):
            click.echo(f"drawn: {file}", err=True)
    if as_json:
        click.echo(json.dumps({"runs": runs, "rows": [row.as_json() for row in rows]}, indent=2))
        return
    _print(rows)


class _Progress:
    """Shows the current operation: on a terminal one line that is overwritten, elsewhere a line every few seconds.

    It shows nothing during a measurement, because a thread for that would be measured too.
    """

    def __init__(self) -> None:
        self._told = time.monotonic()

    def __call__(self, done: int, total: int, name: str) -> None:
        text = f"{done}/{total} {name}"
        if sys.stderr.isatty():
            click.echo(f"\r\x1b[K{text if done < total else ''}", nl=False, err=True)
        elif time.monotonic() - self._told >= LOG_INTERVAL:
            self._told = time.monotonic()
            click.echo(f"{time.strftime('%H:%M:%S')} {text}", err=True)


def _print(rows: list[Row]) -> None:
    columns = [
        "operation",
        "2005, us",
        "here, us",
        "times",
        "dev",
        "error",
        "outliers",
        "min",
        "max",
        "memory",
        "2005, B",
    ]
    print_table(columns, [_cells(row) for row in rows], right=columns[1:])
    slower = [row for row in rows if row.times_as_fast is None or row.times_as_fast < TARGET]
    notes = [f"{row.name}: {row.remark}" for row in slower if row.remark]
    click.echo(f"\nNot {TARGET:.0f} times as fast as in 2005, or without a value of 2005:")
    for note in notes:
        click.echo(f"  {note}")


def _cells(row: Row) -> list[str]:
    here, ratio = row.here, row.times_as_fast
    then = [f"{row.paper:,.2f}" if row.paper is not None else "-"]
    memory = str(row.printed.memory) if row.printed is not None else "-"
    if here is None:
        return [row.name, *then, *["-"] * 8, memory]
    figures = [f"{value:,.2f}" for value in (here.deviation, here.error)]
    ends = [f"{value:,.2f}" for value in (here.smallest, here.largest)]
    faster = f"{ratio:.1f}" if ratio is not None else "-"
    return [
        row.name,
        *then,
        f"{here.mean:,.2f}",
        faster,
        *figures,
        str(here.outliers),
        *ends,
        f"{row.held:,.0f}",
        memory,
    ]


if __name__ == "__main__":
    paper()
