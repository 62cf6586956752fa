"""The report of an audit as one HTML page, for an operator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from holdfast.pipeline.page import COLOURS, Heading, Part, Plot, Table, Text, drawn, new_figure, render
from holdfast.pipeline.rules import RULES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from holdfast.pipeline.audit import Audit

MOST_ROWS = 200
"""Of a table in the report; the tables have all."""
_LINES = ("delivered", "acknowledged", "handled", "arrived", "duplicate", "retransmitted", "held", "fault sent")
"""Events that are drawn over time."""
_MINUTES = 5_000
"""So many points of a line are drawn at most: the newest."""


def report(audited: Audit, places: Sequence[str]) -> str:
    """The page.

    Args:
        audited: What is told.
        places: Where the journals are.

    Raises:
        ConfigurationError: What draws and writes it is not installed.
    """
    found, holes = audited.violations.count(), audited.cannot_say.count()
    looked_at = audited.sequences.selectExpr("count(*)", "coalesce(sum(messages), 0)").first()
    assert looked_at is not None
    parts: list[Part] = [
        Text(f"The event journal of {', '.join(places)}. Sequences: {looked_at[0]:,}. Messages: {looked_at[1]:,}.")
    ]
    verdict = f"What was promised is broken. Violations: {found:,}." if found else "No violation was found."
    parts.append(Text(verdict, is_bad=bool(found)))
    if holes:
        parts.append(
            Text(f"The journal has {holes:,} holes: of what happened there nothing can be said. They are listed below.")
        )
    if found:
        parts.append(Heading("Violations"))
        broken = audited.violations.groupBy("rule").count().orderBy("rule").collect()
        parts.append(Table(("rule", "meaning", "times"), [(row[0], RULES[row[0]], row[1]) for row in broken]))
        parts.append(_table(audited.violations, "rule", "at"))
    parts += [Heading("Peers"), _table(audited.peers, "role", "peer")]
    parts += [Heading("Over time"), *_over_time(audited)]
    parts += [Heading("Latencies, seconds"), _table(audited.latencies, "stage", "name")]
    parts += [Heading("Sequences"), Text("Those that miss something first.")]
    parts.append(_table(audited.sequences, "-missing", "-held", "begun"))
    parts += [Heading("Gaps"), *_gaps_over_time(audited), Text("Those that are open first, then the longest.")]
    parts.append(_table(audited.gaps, "until IS NOT NULL", "-seconds", "since", "sequence"))
    parts += [Heading("Faults"), _table(audited.faults, "first", "event")]
    if holes:
        parts += [Heading("Where nothing can be said"), _table(audited.cannot_say, "at", "run")]
    return render("Audit", parts)


def _table(table: DataFrame, *order: str) -> Table:
    from pyspark.sql import functions as F

    rows = table.orderBy(*map(F.expr, order)).limit(MOST_ROWS + 1).collect()
    left = table.count() - MOST_ROWS if len(rows) > MOST_ROWS else 0
    return Table(table.columns, [tuple(_plain(cell) for cell in row) for row in rows[:MOST_ROWS]], left)


def _over_time(audited: Audit) -> list[Plot | Text]:
    from pyspark.sql import functions as F

    drawn_ones = audited.over_time.where(F.col("event").isin(*_LINES))
    newest = drawn_ones.orderBy(F.col("minute").desc()).limit(_MINUTES).collect()
    if not newest:
        return [Text("Nothing happened.")]
    figure = new_figure()
    (axes,) = figure.axes
    for colour, event in zip(COLOURS, _LINES, strict=True):
        points = sorted((row["minute"], row["messages"]) for row in newest if row["event"] == event)
        if points:
            axes.plot([at for at, _ in points], [count for _, count in points], ".-", color=colour, label=event, lw=1)
    axes.set_ylabel("messages a minute")
    axes.legend(fontsize=8, ncols=4)
    axes.set_ylim(bottom=0)
    return [drawn(figure, "Messages in each minute, by what happened to them.")]


def _gaps_over_time(audited: Audit) -> list[Plot]:
    """How many numbers lie in gaps that are open, minute by minute."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    opened = audited.gaps.selectExpr("date_trunc('minute', since) AS minute", "1 AS gaps", "count AS numbers")
    closed = audited.gaps.where("until IS NOT NULL")
    closed = closed.selectExpr("date_trunc('minute', until) AS minute", "-1 AS gaps", "-count AS numbers")
    steps = (
        opened.unionByName(closed).groupBy("minute").agg(F.sum("gaps").alias("gaps"), F.sum("numbers").alias("numbers"))
    )
    until_then = Window.orderBy("minute").rowsBetween(Window.unboundedPreceding, Window.currentRow)
    sums = [F.sum(name).over(until_then).alias(name) for name in ("gaps", "numbers")]
    rows = steps.select("minute", *sums).orderBy(F.col("minute").desc()).limit(_MINUTES).collect()
    if not rows:
        return []
    rows.reverse()
    figure = new_figure()
    (axes,) = figure.axes
    for colour, name, said in zip(COLOURS, ("gaps", "numbers"), ("open gaps", "numbers in them"), strict=False):
        points = [row["minute"] for row in rows], [row[name] for row in rows]
        axes.plot(*points, ".-", drawstyle="steps-post", color=colour, label=said, lw=1)
    axes.legend(fontsize=8, ncols=2)
    axes.set_ylim(bottom=0)
    return [drawn(figure, "Gaps that are open at the end of each minute: numbers that came later, or never.")]


def _plain(cell: Any) -> object:
    return cell if cell is None or isinstance(cell, int | float | str | bool) else str(cell)
