"""The gap report of a reassembly: figures, JSON for programs, and a page for people."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from holdfast.pipeline.html_report import Heading, Link, Part, Table, Text, render
from holdfast.pipeline.reassembly.rows import CONFLICT, LATE, REFUSED, UNREADABLE, WHYS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from holdfast.pipeline.reassembly.tables import Reassembled

MOST_SEQUENCES, MOST_UNPLACED, MOST_RANGES = 1_000, 200, 20
"""Maximum entries of each kind in a report, the worst first; the tables have all."""

MOST_GROUPS = 50
_KIND = r"\.([A-Za-z0-9]{1,12}(?:\.gz)?)$"
"""The file name extension in a path."""
_FIGURES = r"\b[0-9][0-9,.]*\b|0x[0-9a-fA-F]+"
_LONGEST_PROBLEM = 300

_BAD = (UNREADABLE, REFUSED, CONFLICT, LATE)


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of a reassembly.

    Args:
        sequences: Number of Sequences; ``complete``, ``incomplete`` and ``tail_unknown``: parts of it.
        messages: Distinct messages, including an empty LastMessage; ``seen``: with repeats; ``duplicates``: dropped
            repeats.
        missing: Message numbers that an RM Destination would Nack.
        unplaced: Reason -> number of envelopes that belong to no Sequence or are surplus.
    """

    sequences: int
    complete: int
    incomplete: int
    tail_unknown: int
    messages: int
    seen: int
    duplicates: int
    missing: int
    unplaced: dict[str, int]

    @property
    def is_whole(self) -> bool:
        """Whether no known message is missing, and every message was readable and the only one with its number."""
        return not self.incomplete and not any(self.unplaced.get(why) for why in _BAD)


@dataclass(frozen=True, slots=True)
class Report:
    """The content that :func:`report` gathers.

    Args:
        figures: Of the whole reassembly.
        groups: Unreadable, refused, conflicting or late envelopes, grouped by ``why``, ``kind`` (the end of the file's
            name) and ``problem`` (without its figures): ``count``, number of ``files``, and an ``example`` file.
        sequences: The Sequences, those with problems first.
        unplaced: Unreadable, refused, conflicting or late envelopes: place and reason.
    """

    figures: Figures
    groups: list[dict[str, Any]]
    sequences: list[dict[str, Any]]
    unplaced: list[dict[str, Any]]


def figures(done: Reassembled) -> Figures:
    """Count the results of a reassembly."""
    counted = {
        "sequences": "count(*)",
        "complete": "count_if(state = 'complete')",
        "incomplete": "count_if(state = 'incomplete')",
        "tail_unknown": "count_if(state = 'tail unknown')",
        "messages": "sum(numbers)",
        "seen": "sum(seen)",
        "duplicates": "sum(duplicates)",
        "missing": "sum(aggregate(missing, 0D, (sum, one) -> sum + one.upper - one.lower + 1))",
    }
    (row,) = done.sequences.selectExpr(*(f"{what} AS {name}" for name, what in counted.items())).collect()
    unplaced = {one["why"]: one["count"] for one in done.unplaced.groupBy("why").count().orderBy("why").collect()}
    return Figures(**{name: int(row[name] or 0) for name in counted}, unplaced=unplaced)


def report(done: Reassembled) -> Report:
    """Gather the report, within its limits."""
    counted = figures(done)
    wrong = "(state = 'incomplete' OR size(conflicts) > 0 OR late > 0 OR size(beyond_last) > 0)"
    ranges = ("ranges", "missing", "beyond_last", "not_captured")
    rows = done.sequences.selectExpr(
        f"{wrong} AS is_wrong",
        "sequence", "rm", "state", "ended", "last_message_number", "lowest_last", "in_order_to", "seen", "numbers",
        "duplicates", "late", "faults", f"slice(conflicts, 1, {MOST_RANGES}) AS conflicts",
        *(f"slice({name}, 1, {MOST_RANGES}) AS {name}" for name in ranges),
        *(f"size({name}) AS {name}_count" for name in ranges),
    )  # fmt: skip
    shown = rows.orderBy("is_wrong", "sequence", "rm", ascending=[False, True, True]).limit(MOST_SEQUENCES).collect()
    bad = done.unplaced.where(f"why IN {_BAD}")
    sequences = [_told(row.asDict(recursive=True), ranges) for row in shown]
    return Report(counted, groups(done), sequences, _places(bad))


def groups(done: Reassembled) -> list[dict[str, Any]]:
    """Group the problems of unplaced envelopes, the most frequent first: see :class:`Report`."""
    from pyspark.sql import functions as F

    kind = F.regexp_extract("source", _KIND, 1)
    # Each has its own bytes and places; without these, the problems of one reason are alike.
    reason = F.regexp_replace(F.substring(F.col("problem"), 1, _LONGEST_PROBLEM), _FIGURES, "…")
    bad = done.unplaced.where(F.col("why").isin(*_BAD))
    counted = bad.groupBy("why", kind.alias("kind"), reason.alias("problem")).agg(
        F.count("*").alias("count"), F.count_distinct("source").alias("files"), F.min("source").alias("example")
    )
    ordered = counted.orderBy(F.desc("count"), "why", "kind", "problem")
    return [row.asDict() for row in ordered.limit(MOST_GROUPS).collect()]


def _told(row: dict[str, Any], ranges: Sequence[str]) -> dict[str, Any]:
    for name in ranges:
        row[name] = [[pair["lower"], pair["upper"]] for pair in row[name]]
    return row


def _places(bad: DataFrame) -> list[dict[str, Any]]:
    columns = ("why", "problem", "sequence", "rm", "message_number", "source", "position")
    rows = bad.select(*columns).orderBy("source", "position").limit(MOST_UNPLACED).collect()
    return [row.asDict() for row in rows]


def as_json(gathered: Report) -> str:
    return json.dumps(asdict(gathered), indent=1, ensure_ascii=False) + "\n"


def _ranges(row: dict[str, Any], name: str) -> str:
    pairs, count = row[name], row[f"{name}_count"]
    told = " ".join(f"{lower}-{upper}" if lower < upper else str(lower) for lower, upper in pairs)
    return f"{told} and {count - len(pairs)} more ranges" if count > len(pairs) else told


def as_html(gathered: Report) -> str:
    """Return the report as one HTML page.

    Raises:
        ConfigurationError: A package that writes it is not installed.
    """
    counted = gathered.figures
    ids = {row["sequence"]: f"sequence-{number}" for number, row in enumerate(gathered.sequences)}
    parts: list[Part] = [
        Text(
            f"{counted.messages:,} messages of {counted.sequences:,} Sequences, reassembled from {counted.seen:,}; "
            f"{counted.duplicates:,} duplicates were dropped."
        ),
        Text(_whole(counted), is_bad=not counted.is_whole),
        *_groups(gathered),
        Heading("Sequences"),
        Table(
            ("Sequence", "WS-RM", "state", "ended", "last", "there", "missing", "acknowledged, not captured",
             "beyond the last", "seen", "repeats", "conflicts", "late", "faults"),
            [
                (
                    row["sequence"], row["rm"], row["state"], row["ended"], row["last_message_number"],
                    _ranges(row, "ranges"), _ranges(row, "missing"), _ranges(row, "not_captured"),
                    _ranges(row, "beyond_last"), row["seen"], row["duplicates"],
                    " ".join(str(number) for number in row["conflicts"]), row["late"], " ".join(row["faults"]),
                )
                for row in gathered.sequences
            ],
            counted.sequences - len(gathered.sequences),
            tuple(ids.values()),
        ),
        Heading("Not placed"),
        Table(("why", "what it means", "how many"), [(why, WHYS[why], n) for why, n in counted.unplaced.items()]),
        Table(
            ("why", "problem", "Sequence", "number", "file or topic", "position"),
            [
                (row["why"], row["problem"], _linked(row["sequence"], ids), row["message_number"], row["source"],
                 row["position"])
                for row in gathered.unplaced
            ],
            sum(counted.unplaced.get(why, 0) for why in _BAD) - len(gathered.unplaced),
        ),
    ]  # fmt: skip
    return render("Reassembly", parts)


def _linked(sequence: str | None, ids: dict[str, str]) -> object:
    """Return a cell with a link to a Sequence, if the page has a row for it."""
    return Link(sequence, ids[sequence]) if sequence in ids else sequence


def _groups(gathered: Report) -> list[Part]:
    if not gathered.groups:
        return []
    rows = [
        (row["count"], row["files"], row["why"], row["kind"] or "no ending", row["problem"], row["example"])
        for row in gathered.groups
    ]
    columns = ("how many", "files or topics", "why", "kind of file", "problem", "for example in")
    return [Heading("Unplaced messages, by reason"), Table(columns, rows)]


def _whole(counted: Figures) -> str:
    if counted.is_whole:
        unknown = f" For {counted.tail_unknown:,}, the last message is unknown." if counted.tail_unknown else ""
        return "No known message is missing, and everything was readable." + unknown
    bad = [f"{why}: {counted.unplaced[why]:,}" for why in _BAD if counted.unplaced.get(why)]
    lost = [f"Sequences incomplete: {counted.incomplete:,}", f"numbers missing: {counted.missing:,}"]
    return "; ".join((lost if counted.incomplete else []) + bad) + "."


def in_a_sentence(counted: Figures) -> str:
    """Return the problems in one sentence, for a command's end; "" without any."""
    return "" if counted.is_whole else _whole(counted)
