"""The report of an audit as one HTML page, for an operator."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from holdfast.pipeline.audit.findings import HOLES
from holdfast.pipeline.audit.rules import RULES
from holdfast.pipeline.html_report import COLOURS, Heading, Link, Part, Plot, Table, Text, drawn, new_figure, render

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pyspark.sql import DataFrame

    from holdfast.pipeline.audit.findings import Audit

MOST_ROWS = 200
"""Maximum rows of a table in the report; the tables themselves are complete."""
_LINES = ("delivered", "acknowledged", "handled", "arrived", "duplicate", "retransmitted", "held", "fault sent")
"""Events drawn over time."""
_MINUTES = 5_000
"""Maximum points of a line: the newest ones."""


def report(audited: Audit, places: Sequence[str]) -> str:
    """Return the HTML page.

    Raises:
        ConfigurationError: A package that draws or writes the page is not installed.
    """
    found, holes = audited.violations.count(), audited.cannot_say.count()
    looked_at = audited.sequences.selectExpr("count(*)", "coalesce(sum(messages), 0)").first()
    assert looked_at is not None
    zone = _zone(audited.violations)
    parts: list[Part] = [
        Text(
            f"The event journal of {', '.join(places)}. Sequences: {looked_at[0]:,}. Messages: {looked_at[1]:,}. "
            f"Times are in the time zone {zone.key}."
        )
    ]
    verdict = f"A guarantee was broken. Violations: {found:,}." if found else "No violation was found."
    parts.append(Text(verdict, is_bad=bool(found), is_verdict=not found))
    damaged = audited.cannot_say.where("kind = 'damaged'").count()
    if damaged:
        parts.append(Text(f"Damaged files of the journal that were skipped: {damaged:,}.", is_bad=True))
    if holes:
        parts.append(
            Text(f"The journal has {holes:,} holes, for which the audit has no events. They are listed at the end.")
        )
    sequences = _Sequences(audited)
    if found:
        parts += _violations(audited, sequences)
    parts += [Heading("Peers"), *_by_role(audited.peers, _PEERS, "peer")]
    parts += [Heading("Over time"), *_over_time(audited, zone)]
    parts += [Heading("Latencies in seconds"), _table(audited.latencies, _LATENCIES, "stage", "name")]
    parts += [
        Heading("Sequences"),
        Text("Sequences with violations first, then those with missing messages."),
        *sequences.parts(),
    ]
    parts += [Heading("Gaps"), *_gaps_over_time(audited, zone), Text("Open gaps first, then the longest.")]
    parts.append(_table(audited.gaps, _GAPS, "until IS NOT NULL", "-seconds", "since", "sequence", link=sequences))
    parts += [Heading("Faults"), _table(audited.faults, _FAULTS, "first", "event", link=sequences)]
    if holes:
        parts += [Heading("Holes in the journal"), *_holes(audited)]
    return render("Audit", parts)


_ROLES = {"in": "received", "out": "sent"}
_NUMBERS = "concat(number, if(count > 1, concat('-', number + count - 1), ''))"
_SHARE = "concat(format_number(floor(1000 * {0}) / 10, if({0} = 1, 0, 1)), ' %')"
# Columns of a table in the report: name -> SQL expression.
_PEERS = {
    "in": {
        "peer": "peer",
        "Sequences": "sequences",
        "complete": "complete",
        "messages": "messages",
        "missing": "missing",
        "there": _SHARE.format("completeness"),
        "acknowledged": "acknowledged",
        "held": "held",
        "discarded": "discarded",
        "repeats dropped": "duplicates",
    },
    "out": {
        "peer": "peer",
        "Sequences": "sequences",
        "complete": "complete",
        "messages arrived": "messages",
        "missing": "missing",
        "there": _SHARE.format("completeness"),
        "transmitted": "transmitted",
        "sent again": "retransmitted",
        "retransmissions for each message": "retransmission_rate",
    },
}
_SEQUENCES = {
    "in": {
        "Sequence": "sequence",
        "peer": "peer",
        "promise": "assurance",
        "state": "state",
        "begun": "date_format(begun, 'yyyy-MM-dd HH:mm:ss')",
        "messages": "messages",
        "missing": "missing",
        "there": _SHARE.format("completeness"),
        "held": "held",
        "repeats dropped": "duplicates",
    },
    "out": {
        "Sequence": "sequence",
        "peer": "peer",
        "outbox": "key",
        "state": "state",
        "begun": "date_format(begun, 'yyyy-MM-dd HH:mm:ss')",
        "messages arrived": "messages",
        "missing": "missing",
        "transmitted": "transmitted",
        "sent again": "retransmitted",
    },
}
_LATENCIES = {
    "from … to": "stage",
    "queue or outbox": "name",
    "messages": "messages",
    "half within": "p50",
    "90 %": "p90",
    "99 %": "p99",
    "99.9 %": "p99_9",
    "longest": "p100",
}
_VIOLATIONS = {
    "rule": "rule",
    "Sequence": "sequence",
    "numbers": _NUMBERS,
    "queue": "queue",
    "partition": "partition",
    "offset": "offset",
    "time": "at",
    "event": "concat(run, ' #', ordinal)",
}
_GAPS = {
    "Sequence": "sequence",
    "was": "if(role = 'in', 'received', 'sent')",
    "numbers": _NUMBERS,
    "open since": "since",
    "closed": "coalesce(date_format(until, 'yyyy-MM-dd HH:mm:ss.SSS'), 'still open')",
    "seconds": "seconds",
}
_FAULTS = {
    "what": "event",
    "Sequence": "sequence",
    "code and reason": "detail",
    "times": "times",
    "first": "first",
    "last": "last",
}
_HOLES = {
    "kind": "kind",
    "time": "at",
    "worker": "worker",
    "run": "run",
    "after event": "after",
    "events missing": "events",
    "why": "why",
}


class _Sequences:
    """The Sequences with a row in the page, and the links to them."""

    def __init__(self, audited: Audit) -> None:
        broken = audited.violations.where("sequence IS NOT NULL").groupBy("sequence").count()
        self._rows = audited.sequences.join(broken.withColumnRenamed("count", "violations"), "sequence", "left")
        self._tables = {role: self._table_of(role, columns) for role, columns in _SEQUENCES.items()}
        shown = [row[0] for table in self._tables.values() for row in table.rows]
        self._ids = {str(name): f"sequence-{number}" for number, name in enumerate(shown)}

    def _table_of(self, role: str, columns: Mapping[str, str]) -> Table:
        columns = {**columns, "violations": "violations"}
        return _table(
            self._rows.where(f"role = '{role}'"), columns, "-coalesce(violations, 0)", "-missing", "-held", "begun"
        )

    def link(self, sequence: object) -> object:
        """Return a cell with a link to a Sequence, if the page has a row for it."""
        id = self._ids.get(str(sequence))
        return sequence if id is None else Link(str(sequence), id)

    def parts(self) -> Iterator[Part]:
        for role, table in self._tables.items():
            if table.rows:
                yield Heading(_ROLES[role].capitalize(), level=3)
                yield replace(table, ids=[self._ids[str(row[0])] for row in table.rows])


def _violations(audited: Audit, sequences: _Sequences) -> Iterator[Part]:
    yield Heading("Violations")
    broken = audited.violations.groupBy("rule").count().orderBy("rule").collect()
    yield Table(("rule", "meaning", "times"), [(row[0], RULES[row[0]], row[1]) for row in broken])
    yield _table(audited.violations, _VIOLATIONS, "rule", "at", "sequence", "number", link=sequences)


def _by_role(table: DataFrame, columns: Mapping[str, Mapping[str, str]], *order: str) -> Iterator[Part]:
    for role, of_role in columns.items():
        found = _table(table.where(f"role = '{role}'"), of_role, *order)
        if found.rows:
            yield Heading(_ROLES[role].capitalize(), level=3)
            yield found


def _holes(audited: Audit) -> Iterator[Part]:
    counted = {row[0]: row[1] for row in audited.cannot_say.groupBy("kind").count().collect()}
    meanings = [(kind, meaning, counted[kind]) for kind, meaning in HOLES.items() if kind in counted]
    yield Table(("kind", "meaning", "times"), meanings)
    yield _table(audited.cannot_say, _HOLES, f"array_position(array{tuple(HOLES)}, kind)", "at", "run")


def _table(table: DataFrame, columns: Mapping[str, str], *order: str, link: _Sequences | None = None) -> Table:
    from pyspark.sql import functions as F

    ordered = table.orderBy(*map(F.expr, order)).limit(MOST_ROWS + 1)
    types = dict(ordered.selectExpr(*(f"{how} AS `{name}`" for name, how in columns.items())).dtypes)
    # As text in the session's time zone, because Python would assume its own.
    shown = [
        F.date_format(F.expr(how), "yyyy-MM-dd HH:mm:ss.SSS") if types[name] == "timestamp" else F.expr(how)
        for name, how in columns.items()
    ]
    rows = ordered.select(*shown).collect()
    left = table.count() - MOST_ROWS if len(rows) > MOST_ROWS else 0
    found = [list(row) for row in rows[:MOST_ROWS]]
    if link is not None:
        at = list(columns).index("Sequence")
        for row in found:
            row[at] = row[at] and link.link(row[at])
    return Table(tuple(columns), found, left)


def _zone(table: DataFrame) -> ZoneInfo:
    try:
        return ZoneInfo(str(table.sparkSession.conf.get("spark.sql.session.timeZone")))
    except (ZoneInfoNotFoundError, ValueError):  # an offset, such as +02:00
        return ZoneInfo("UTC")


def _over_time(audited: Audit, zone: ZoneInfo) -> list[Plot | Text]:
    from pyspark.sql import functions as F

    drawn_ones = audited.over_time.where(F.col("event").isin(*_LINES))
    newest = drawn_ones.orderBy(F.col("minute").desc()).limit(_MINUTES)
    newest = newest.selectExpr(_SECOND, "event", "messages").collect()
    if not newest:
        return [Text("Nothing happened.")]
    figure = new_figure()
    (axes,) = figure.axes
    for colour, event in zip(COLOURS, _LINES, strict=True):
        points = sorted((_time(row["second"], zone), row["messages"]) for row in newest if row["event"] == event)
        if points:
            axes.plot([at for at, _ in points], [count for _, count in points], ".-", color=colour, label=event, lw=1)
    _widen(axes, [_time(row["second"], zone) for row in newest])
    axes.set_ylabel("messages a minute")
    axes.legend(fontsize=8, ncols=4)
    axes.set_ylim(bottom=0)
    return [drawn(figure, f"Messages in each minute by event. Times in {zone.key}.")]


def _gaps_over_time(audited: Audit, zone: ZoneInfo) -> list[Plot]:
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
    rows = steps.select("minute", *sums).orderBy(F.col("minute").desc()).limit(_MINUTES)
    rows = rows.selectExpr(_SECOND, "gaps", "numbers").collect()
    if not rows:
        return []
    rows.reverse()
    figure = new_figure()
    (axes,) = figure.axes
    for colour, name, said in zip(COLOURS, ("gaps", "numbers"), ("open gaps", "numbers in them"), strict=False):
        points = [_time(row["second"], zone) for row in rows], [row[name] for row in rows]
        axes.plot(*points, ".-", drawstyle="steps-post", color=colour, label=said, lw=1)
    axes.legend(fontsize=8, ncols=2)
    _widen(axes, [_time(row["second"], zone) for row in rows])
    axes.set_ylim(bottom=0)
    return [
        drawn(
            figure,
            f"Open gaps at the end of each minute: numbers that arrived later, or never. Times in {zone.key}.",
        )
    ]


def _widen(axes: Axes, times: Sequence[datetime]) -> None:
    """Show at least ten minutes: around a single one, matplotlib would draw four years."""
    first, last = min(times), max(times)
    if last - first < _SHORTEST:
        around: Any = first - _SHORTEST / 2, last + _SHORTEST / 2  # matplotlib's types know no dates
        axes.set_xlim(*around)


_SHORTEST = timedelta(minutes=10)
_SECOND = "unix_timestamp(minute) AS second"


def _time(second: int, zone: ZoneInfo) -> Any:
    """Return a time for a plot, without its zone, which the caption names."""
    return datetime.fromtimestamp(second, zone).replace(tzinfo=None)
