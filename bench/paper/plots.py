"""The table's rows as pictures, as in the paper: each operation over its runs, and the whole against the size.

Needs matplotlib, which the extra ``bench`` installs.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.paper import whole
from bench.paper.table import WHOLE_PRINTED, Row
from holdfast.exceptions import ConfigurationError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PAPER_COLOUR, OUR_COLOUR = "#b0413e", "#2a6f97"
COLUMNS = 4
"""Operations in a row of pictures."""


def check_installed() -> None:
    """Check that pictures can be drawn, before anything is measured for them.

    Raises:
        ConfigurationError: matplotlib is not installed.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigurationError("plots need matplotlib", remedy="pip install 'holdfast[bench]', or leave out --plots.")


def draw(rows: Sequence[Row], directory: Path) -> list[Path]:
    """Draw all pictures.

    Args:
        rows: The measured rows.
        directory: Directory for the files; created if it does not exist.

    Returns:
        The files: PNG.

    Raises:
        OSError: they cannot be written.
    """
    directory.mkdir(parents=True, exist_ok=True)
    measured = [row for row in rows if row.printed is not None and row.times]
    figures = {
        "overview": _overview(measured),
        "times": _over_runs(measured, "times", "mean", "microseconds"),
        "memory": _over_runs(measured, "memory", "memory", "bytes"),
        "whole": _whole(rows),
    }
    files = []
    for name, figure in figures.items():
        files.append(directory / f"{name}.png")
        figure.savefig(files[-1], dpi=90, metadata={"Software": None})
    return files


def _new(rows: int, columns: int, width: float, height: float) -> tuple[Figure, list[Axes]]:
    from matplotlib.figure import Figure  # no pyplot: no global state, no window

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, list(figure.subplots(rows, columns, squeeze=False).flat)


def _overview(rows: Sequence[Row]) -> Figure:
    figure, (axes,) = _new(1, 1, 10, 0.45 * len(rows) + 1)
    places = range(len(rows))
    ours = [row.here.mean for row in rows if row.here is not None]
    axes.barh(
        [place - 0.2 for place in places], [row.paper or 0 for row in rows], 0.4, color=PAPER_COLOUR, label="2005"
    )
    bars = axes.barh([place + 0.2 for place in places], ours, 0.4, color=OUR_COLOUR, label="here")
    axes.bar_label(bars, [f"{row.times_as_fast:.0f} times as fast" for row in rows], padding=3, fontsize=8)
    axes.set(xscale="log", xlabel="microseconds, mean", yticks=list(places), yticklabels=[row.name for row in rows])
    axes.invert_yaxis()
    axes.legend()
    return figure


def _over_runs(rows: Sequence[Row], what: str, printed: str, unit: str) -> Figure:
    lines = -(-len(rows) // COLUMNS)
    figure, places = _new(lines, COLUMNS, 4 * COLUMNS, 2.3 * lines)
    for axes, row in zip(places, rows, strict=False):
        values: Sequence[Any] = getattr(row, what)
        axes.plot(range(1, len(values) + 1), values, ".", markersize=3, color=OUR_COLOUR)
        axes.axhline(getattr(row.printed, printed), color=PAPER_COLOUR, linewidth=1)
        axes.set(yscale="log", ylabel=unit)
        axes.set_title(_in_lines(row.name), fontsize=8)
    for axes in places[len(rows) :]:
        axes.set_axis_off()
    figure.suptitle(f"each run, {unit}; the line is the paper's mean of 2005", fontsize=10)
    return figure


def _in_lines(name: str, width: int = 36) -> str:
    from textwrap import fill

    return fill(name, width)


def _whole(rows: Sequence[Row]) -> Figure:
    figure, (axes,) = _new(1, 1, 7, 4.5)
    axes.fill_between(whole.SIZES, *WHOLE_PRINTED, color=PAPER_COLOUR, alpha=0.3, label="2005, with MySQL: 4 to 6 ms")
    for what, marker in (("source", "o"), ("sink", "s")):
        found = [row.here for row in rows if row.name.startswith(f"Total processing at a {what}")]
        here = [summary for summary in found if summary is not None]
        means, deviations = [one.mean for one in here], [one.deviation for one in here]
        axes.errorbar(whole.SIZES, means, deviations, marker=marker, capsize=3, label=f"at a {what}, here")
    axes.set(xscale="log", yscale="log", xlabel="bytes of the body", ylabel="microseconds, mean and deviation")
    axes.legend()
    return figure
