"""The command behind scripts/demo; the script sets up the environment first."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from demo.check import Verdict
from demo.flights import COUNT
from demo.run import Options, Outcome, Teller, run
from holdfast.exceptions import HoldfastError


class Messages(click.ParamType):  # type: ignore[type-arg]  # at run time only the newest take one
    """A number of departures, or ``all``."""

    name = "N|all"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if value == "all":
            return COUNT
        try:
            number = int(str(value).replace(",", ""))
        except ValueError:
            self.fail(f"{value!r} is neither a number nor all", param, ctx)
        if not 10 <= number <= COUNT:
            self.fail(f"{number} is not between 10 and {COUNT:,}, the departures there are", param, ctx)
        return number


@click.command(context_settings={"max_content_width": 110})
@click.option("--messages", type=Messages(), default="5000", show_default=True, help="How many departures to send.")
@click.option(
    "--loss",
    type=click.FloatRange(0.0, 0.9),
    default=0.1,
    show_default=True,
    help="The share of requests, and of responses, that are lost.",
)
@click.option("--seed", type=int, default=1, show_default=True, help="Seed of the network faults and of the kills.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default="demo-out",
    show_default=True,
    help="Directory for stores, logs and the landed table. A run replaces the files of an earlier demo; a directory "
    "with other files is refused.",
)
def demo(messages: int, loss: float, seed: int, out: Path) -> None:
    """Send real departures through a broker, a bad network and kills, and check each one at both ends.

    \b
    An RM Source reads the departures from New York City in 2013 and sends each as a SOAP message to a broker, one
    Sequence an airline. The broker forwards them to a second service. Spark also reads them from the broker and lands
    them in a Delta table, OUT/landed. On both connections, proxies lose requests and responses, duplicate them and
    delay them. The source, the broker, the service and the Spark driver are killed in turn with SIGKILL while they
    work, and restarted. At the end, both queues and the table are compared with the data set, field by field.

    \b
    scripts/demo
    scripts/demo --messages 20000 --loss 0.3 --seed 7 --out /tmp/departures

    \b
    Exit code 0: every departure was forwarded and landed once and in order. 1: some were not; the output names them.
    2: wrong usage.
    """
    click.echo(f"{messages:,} departures: source -> broker -> second service, and broker -> Spark")
    click.echo(f"both networks lose {loss:.0%} of the requests and {loss:.0%} of the responses")
    try:
        outcome = run(Options(messages, loss, seed, out), Teller())
    except HoldfastError as error:
        click.echo(f"\nholdfast demo: {error}", err=True)
        sys.exit(1)
    except (KeyboardInterrupt, asyncio.CancelledError):
        click.echo("\nholdfast demo: stopped; no process is left. The next run starts from the beginning.", err=True)
        sys.exit(130)
    report(outcome, messages, out)
    sys.exit(0 if outcome.is_exact else 1)


def report(outcome: Outcome, messages: int, out: Path) -> None:
    """Print the tables, the faults if there are any, and where to look further."""
    console = Console(highlight=False)
    console.print(_numbers(outcome))
    if outcome.airlines:
        console.print(_airlines(outcome.airlines))
    for place, verdict in _places(outcome, out):
        for kind, faults in verdict.faults():
            if faults.count:
                console.print(f"[bold red]{faults.count:,} {kind}[/] in {place}, among them:")
                for example in faults.examples:
                    console.print(f"  {example}", markup=False)
    if outcome.is_exact:
        console.print(
            f"[bold green]Exact[/]: after {outcome.counts['kills']} kills, each of the {messages:,} departures reached "
            "the second service and the table once, per airline in order, every field as in the data set. "
            f"{outcome.seconds:.0f} s."
        )
    console.print(f"Delta table: {out}/landed    look into a store: holdfast sequences {out}/broker", markup=False)


def _places(outcome: Outcome, out: Path) -> list[tuple[str, Verdict]]:
    return [
        ("the broker's queue", outcome.queue),
        ("the second service's queue", outcome.forwarded),
        (f"{out}/landed", outcome.landed),
    ]


def _numbers(outcome: Outcome) -> Table:
    counts = outcome.counts
    before, behind = counts["lost before the broker"], counts["lost behind the broker"]
    by_broker, by_service = counts["dropped by the broker"], counts["dropped by the service"]
    rows = [
        ("sent", counts["sent"], "departures, each acknowledged by the broker"),
        ("processes killed", counts["kills"], "source, broker, second service, Spark driver"),
        ("lost on the wire", before + behind, f"{before:,} before the broker, {behind:,} after it"),
        ("unanswered", counts["unreachable"], "while the receiver was dead"),
        ("duplicated on the wire", counts["doubled"], f"and {counts['delayed']:,} delayed"),
        ("duplicates dropped", by_broker + by_service, f"{by_broker:,} by the broker, {by_service:,} by the service"),
        ("accepted", outcome.queue.rows, "in the broker's queue"),
        ("forwarded", outcome.forwarded.rows, "in the second service's queue"),
        ("landed", outcome.landed.rows, "by Spark, in a Delta table"),
    ]
    table = Table(title="Messages", title_justify="left", show_header=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_column(style="dim")
    for label, number, remark in rows:
        table.add_row(label, f"{number:,}", remark)
    table.add_section()
    verdicts = (outcome.queue, outcome.forwarded, outcome.landed)
    for found in zip(*(verdict.faults() for verdict in verdicts), strict=True):
        kind, counted = found[0][0], [faults.count for _, faults in found]
        remark = "{:,} accepted, {:,} forwarded, {:,} landed".format(*counted) if any(counted) else ""
        table.add_row(f"[{'red' if any(counted) else 'green'}]{kind}[/]", f"{max(counted):,}", remark)
    return table


def _airlines(airlines: list[dict[str, object]]) -> Table:
    table = Table(title="The latest airlines, by Spark", title_justify="left")
    for heading in ("airline", "departures", "cancelled", "mean delay, minutes", "an hour late, %"):
        table.add_column(heading, justify="left" if heading == "airline" else "right")
    for airline in airlines[:5]:
        values = [airline[name] for name in ("carrier", "departures", "cancelled", "mean_delay", "hour_late")]
        table.add_row(*(_text(value) for value in values))
    return table


def _text(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else str(value)


if __name__ == "__main__":
    demo(prog_name="scripts/demo")
