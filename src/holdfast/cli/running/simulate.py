"""``holdfast simulate``: the shipped simulator from the command line. Thin: everything is in holdfast.simulation."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from holdfast.cli.program import wrong_usage
from holdfast.client.command_options import no_effect
from holdfast.client.option_types import Count, Number
from holdfast.core.versions import RM_OF_NAME, Versions

OF_RUNS = ("seed", "runs", "loss", "trace")
OF_SEARCH = (
    "messages",
    "losses",
    "duplicates",
    "crashes",
    "early",
    "late",
    "requests",
    "rm",
    "listener",
    "most_states",
)
OF_GRID = ("sequences", "out", "as_json", "html", "master")
"""Options of each mode; a grid also has ``seed``."""
BROKEN, STOPPED_EARLY = 1, 3
"""Exit codes."""


@click.command()
@click.option(
    "--seed",
    type=Count(0),
    default=0,
    show_default=True,
    help="Seed of the run. The same seed gives the same run.",
)
@click.option("--runs", type=Count(), default=1, show_default=True, help="Number of seeds, starting at --seed.")
@click.option(
    "--loss", type=Number(0, 1, max_open=True), help="Share of requests, and of responses, that are lost: below 1."
)
@click.option("--trace", is_flag=True, help="Print every step.")
@click.option(
    "--exhaustive", is_flag=True, help="Search every interleaving within the bounds below instead of one run."
)
@click.option("--messages", type=Count(1, 5), default=2, show_default=True, help="Messages submitted.")
@click.option("--losses", type=Count(0), default=1, show_default=True, help="Maximum number of lost packets.")
@click.option(
    "--duplicates", type=Count(0), default=0, show_default=True, help="Maximum number of duplicated requests."
)
@click.option(
    "--crashes", type=Count(0), default=0, show_default=True, help="Maximum number of crashes of either side."
)
@click.option("--early", type=Count(0), default=0, show_default=True, help="Maximum number of timers that fire early.")
@click.option("--late", type=Count(0), default=0, show_default=True, help="Number of further messages, at any moment.")
@click.option("--requests", is_flag=True, help="Every message asks for a reply.")
@click.option("--rm", type=click.Choice([*RM_OF_NAME]), default="1.1", show_default=True, help="WS-RM version.")
@click.option(
    "--listener", is_flag=True, help="The source has an address: acknowledgements arrive in their own requests."
)
@click.option("--most-states", type=Count(), help="Stop the search after this many states.")
@click.option(
    "--grid",
    multiple=True,
    metavar="NAME=VALUES",
    help="Run these networks and policies on Spark. Can be repeated.",
)
@click.option(
    "--sequences",
    type=Count(),
    default=1000,
    show_default=True,
    help="Number of Sequences for each combination.",
)
@click.option("--out", help="Directory for the grid's rows, as Delta tables.")
@click.option("--json", "as_json", is_flag=True, help="Print a line of JSON for each combination of the grid.")
@click.option(
    "--html", type=click.Path(dir_okay=False, path_type=Path), help="Write an HTML page with plots of the grid."
)
@click.option("--master", help="Spark master.  [default: the one given to spark-submit, else local[*]]")
def simulate(
    seed: int,
    runs: int,
    loss: float | None,
    trace: bool,
    exhaustive: bool,
    messages: int,
    losses: int,
    duplicates: int,
    crashes: int,
    early: int,
    late: int,
    requests: bool,
    rm: str,
    listener: bool,
    most_states: int | None,
    **of_grid: Any,
) -> None:
    """Run the protocol in a simulated network with losses and crashes, and check its guarantees.

    \b
    holdfast simulate --seed 7 --trace
    holdfast simulate --runs 1000
    holdfast simulate --exhaustive --messages 2 --losses 1 --crashes 1

    The seed decides the versions, the policies, the losses, duplicates, delays and crashes. The exit code is 1 if a
    guarantee was broken. The command then prints the seed, or the shortest schedule, that shows it. The exit code is 3
    if a search found none, but stopped early because of --most-states.

    A grid measures how well a policy works on networks with loss, delay and limited capacity. It runs one Sequence for
    each seed and combination of loss, delay (one way), window and backoff; also messages, interval, capacity and line.

    \b
    holdfast simulate --grid loss=0,0.1,0.3 --grid delay=10ms,200ms --grid window=8,32 --out grid --html grid.html
    holdfast simulate --grid "backoff=usual,mine:initial=1s;cap=5s" --sequences 10000 --out grid

    The backoffs are usual, eager, steady, patient, or NAME:initial=…;floor=…;cap=…;jitter=….
    """
    if grid := of_grid.pop("grid"):
        no_effect("with --grid", *OF_RUNS[1:], "exhaustive", *OF_SEARCH)
        _simulate_grid(grid, seed, of_grid)
        return
    no_effect("without --grid", *OF_GRID)
    from holdfast.simulation import narration as shown
    from holdfast.simulation.explorer.situation import Bounds

    if not exhaustive:
        no_effect("without --exhaustive", *OF_SEARCH)
        if trace and runs > 1:
            raise click.UsageError("--trace prints one run: omit --runs.")
        sys.exit(BROKEN if shown.simulate(seed, runs, loss=loss, trace=trace, say=click.echo).failures else 0)
    no_effect("with --exhaustive", *OF_RUNS)
    bounds = Bounds(messages, losses, duplicates, crashes, early, late, requests, Versions(rm), listener, most_states)

    def progress(states: int, transitions: int) -> None:
        if sys.stderr.isatty():
            click.echo(f"\r{states:,} states, {transitions:,} transitions", nl=False, err=True)

    result = shown.explore(bounds, say=click.echo, progress=progress)
    if result.violation is not None:
        sys.exit(BROKEN)
    if not result.is_complete:
        click.echo(
            f"holdfast: the search stopped early, after {result.states:,} states: it found no broken guarantee, but "
            "did not see every interleaving\n  Raise or omit --most-states, or search within smaller bounds",
            err=True,
        )
        sys.exit(STOPPED_EARLY)


def _simulate_grid(words: tuple[str, ...], seed: int, arguments: dict[str, Any]) -> None:
    from holdfast.pipeline.jobs.grid import run_grid
    from holdfast.pipeline.simulation.grid import parse_grid

    if not arguments["out"]:
        raise click.UsageError("--grid needs --out, the directory for its rows.")
    given = {"sequences": arguments["sequences"], "seed": seed}
    place = {name: arguments[name] for name in ("out", "html", "master", "as_json")}
    with wrong_usage():
        grid = parse_grid(" ".join(words).split(), **given)
    run_grid(grid, **place)
