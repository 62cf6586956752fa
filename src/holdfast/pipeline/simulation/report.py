"""The results of a grid of simulations, in a few sentences and as a page with plots."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from math import floor, log10
from typing import TYPE_CHECKING, Any

from holdfast.pipeline.html_report import COLOURS, Heading, Part, Plot, Table, Text, drawn, new_figure
from holdfast.pipeline.simulation.grid import Grid

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Row = Mapping[str, Any]
"""A row from :func:`~holdfast.pipeline.simulation.trials.summarize`."""

COLUMNS: Mapping[str, Callable[[Row], object]] = {
    "loss": lambda row: f"{row['loss']:.3g}",
    "delay": lambda row: _told(row["delay"]),
    "window": lambda row: row["window"],
    "backoff": lambda row: row["backoff"],
    "messages/s": lambda row: _with_margin(row["goodput"], row.get("goodput_margin")),
    "retransmissions for each message": lambda row: _with_margin(row["overhead"], row.get("overhead_margin")),
    "requests for each message": lambda row: row["requests"],
    "half within": lambda row: _told(row["latency_50"]),
    "95 % within": lambda row: _told(row["latency_95"]),
    "99 % within": lambda row: _told(row["latency_99"]),
    "longest": lambda row: _told(row["longest"]),
    "incomplete": lambda row: row["incomplete"],
}
"""Columns of the table: name -> the value of a row of the summary."""

MARGINS = (
    "± is the 95 % confidence margin around the value for infinitely many Sequences. The latencies have no margin: the "
    "messages of one Sequence wait for each other, so the usual formula, for independent values, would make it too "
    "small. Simulate again with another --seed to see how much they vary."
)

ABOUT_AS_GOOD = 0.05
"""If the goodput of two policies differs by less than this share, the one with fewer transmissions is better."""


def best_of(rows: Sequence[Row]) -> Row:
    """Return the best policy on one network.

    Among the policies with the fewest incomplete Sequences and about the best goodput, it is the one with the fewest
    transmissions.
    """
    fewest = min(row["incomplete"] for row in rows)
    reliable = [row for row in rows if row["incomplete"] == fewest and row["goodput"] is not None]
    quickest = max((row["goodput"] for row in reliable), default=0.0)
    quick = [row for row in reliable if row["goodput"] >= quickest * (1 - ABOUT_AS_GOOD)]
    return min(quick or list(rows), key=lambda row: (row["overhead"] or 0.0, -(row["goodput"] or 0.0)))


def networks(rows: Sequence[Row]) -> Iterator[tuple[float, float, list[Row]]]:
    """Yield the rows by network: loss, delay, and the policies simulated there."""
    ordered = sorted(rows, key=lambda row: (row["loss"], row["delay"]))
    for (loss, delay), found in groupby(ordered, key=lambda row: (row["loss"], row["delay"])):
        yield loss, delay, list(found)


def reading(rows: Sequence[Row]) -> list[str]:
    """Describe the best policy for each network in a sentence, with the cases of little difference."""
    lines = []
    for loss, delay, tried in networks(rows):
        best = best_of(tried)
        worst = min(tried, key=lambda row: row["goodput"] or 0.0)
        goodput = _with_margin(best["goodput"], best.get("goodput_margin"))
        lines.append(
            f"Loss {loss:.0%}, delay {_told(delay)}: window {best['window']} with the backoff {best['backoff']} is "
            f"best, {goodput} messages/s at {best['overhead']:.0%} overhead, 95 % within "
            f"{_told(best['latency_95'])}. {_beside(best, worst)}"
        )
    if left := sum(row["incomplete"] for row in rows):
        lines.append(f"{left:,} Sequences did not complete: see the column incomplete.")
    return lines


def _beside(best: Row, worst: Row) -> str:
    times = best["goodput"] / worst["goodput"] if worst["goodput"] else float("inf")
    if times < 1 + ABOUT_AS_GOOD:
        return "The goodput of the policies differs by less than a twentieth there."
    return f"That is {times:.3g} times the goodput of window {worst['window']} with {worst['backoff']}."


def _cell(row: Row) -> int:
    return int(row["cell"])


def _with_margin(value: float | None, margin: float | None) -> str:
    """Format a value with only as many digits as its margin allows."""
    if value is None:
        return ""
    if not margin:
        return f"{value:.3g}"
    places = max(0, 1 - floor(log10(margin)))
    return f"{value:.{places}f} ± {margin:.{places}f}"


def _told(seconds: float | None) -> str:
    if seconds is None:
        return "unknown time"
    return f"{seconds * 1000:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def parts(grid: Grid, rows: Sequence[Row], seconds: float) -> list[Part]:
    """Return the page: the best policies, the plots, the table."""
    about = (
        f"{grid.total:,} Sequences of {grid.messages} messages, {grid.sequences:,} for each of {len(grid.cells)} "
        f"combinations, seeds from {grid.seed}, in {seconds:,.0f} s. The network delivers at most "
        f"{grid.capacity:g} requests a second, and {grid.line} wait in line. The simulated core is the one that "
        "endpoints run."
    )
    backoffs = [[name, *(getattr(one, part) for part in _BACKOFF)] for name, one in grid.backoff.items()]
    return [
        Text(about),
        Heading("Best policies"),
        *map(Text, reading(rows)),
        Heading("Goodput, overhead and latency"),
        *(_plot(rows, delay) for delay in sorted({row["delay"] for row in rows})),
        Heading("All combinations"),
        Text(MARGINS),
        Table(tuple(COLUMNS), [[tell(row) for tell in COLUMNS.values()] for row in sorted(rows, key=_cell)]),
        Heading("The backoffs"),
        Table(("name", "initial, seconds", "floor, seconds", "cap, seconds", "jitter"), backoffs),
    ]


_BACKOFF = ("initial", "floor", "cap", "jitter")

_FIGURES = (
    ("goodput", "messages/s", True),
    ("overhead", "retransmissions for each message", False),
    ("latency_95", "seconds, 95 % within", True),
)


def _plot(rows: Sequence[Row], delay: float) -> Plot:
    figure = new_figure(1, len(_FIGURES), width=12, height=3.8)
    here = [row for row in rows if row["delay"] == delay]
    for axes, (name, unit, is_log) in zip(figure.axes, _FIGURES, strict=True):
        _lines(axes, here, name)
        axes.set(title=name.partition("_")[0], xlabel="loss", ylabel=unit, yscale="log" if is_log else "linear")
    # Below the plots, because inside one it would cover lines.
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=8)
    return drawn(figure, f"Delay {_told(delay)} one way.")


def _lines(axes: Axes, rows: Sequence[Row], name: str) -> None:
    policies = sorted({(row["backoff"], row["window"]) for row in rows})
    backoffs = sorted({backoff for backoff, _ in policies})
    windows = sorted({window for _, window in policies})
    for backoff, window in policies:
        mine = [row for row in rows if (row["backoff"], row["window"]) == (backoff, window)]
        found = sorted((row["loss"], row[name], row.get(f"{name}_margin") or 0.0) for row in mine)
        style = ("-", "--", ":", "-.")[windows.index(window) % 4]
        colour = COLOURS[backoffs.index(backoff) % len(COLOURS)]
        losses, values, margins = zip(*found, strict=True)
        label = f"{backoff}, window {window}"
        if f"{name}_margin" in mine[0]:
            axes.errorbar(losses, values, margins, linestyle=style, marker=".", color=colour, label=label, capsize=2)
        else:
            axes.plot(losses, values, style, marker=".", color=colour, label=label)
