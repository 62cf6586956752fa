"""The audit: an honest journal breaks no rule, and each thing that must not be is found, and called by its name.

Covers pipeline/audit/event_pass.py, pipeline/audit/findings.py and pipeline/audit/report.py.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import plain_audit
import pytest
import told as _told
from lxml import html

from holdfast.endpoint.journal.columns import COLUMNS, NAMES
from holdfast.endpoint.journal.files import HEADER, frames_of
from holdfast.pipeline.audit.findings import WHERE
from holdfast.pipeline.audit.rules import RULES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]
Row = dict[str, Any]
_TIMES = tuple(column.name for column in COLUMNS if column.type == "timestamp")


def frame(spark: SparkSession, rows: list[Row]) -> DataFrame:
    from holdfast.pipeline.journal import DDL

    def value(row: Row, name: str) -> Any:
        seconds = row[name]
        return datetime.fromtimestamp(seconds, UTC) if name in _TIMES and seconds is not None else seconds

    return spark.createDataFrame([tuple(value(row, name) for name in NAMES) for row in rows], DDL)


def row(event: str, ordinal: int, **more: Any) -> Row:
    usual = dict.fromkeys(NAMES) | {"at": 100.0 + ordinal, "run": "one", "ordinal": ordinal, "event": event}
    return usual | more


def honest() -> list[Row]:
    """A Sequence of four messages, handled; and one that waited for the third."""
    place = {"queue": "inbox", "partition": 0, "count": 1}
    told = [
        row("started", 0, attempt=1),
        row("recovered", 1, count=0),
        row("queue stands", 2, queue="inbox", partition=0, offset=0, attempt=1, detail="epoch"),
        row("created", 3, sequence="s", peer="p", detail="exactly-once in-order, NoDiscard"),
        row("delivered", 4, sequence="s", number=1, offset=0, since=101.0, **place),
        row("delivered", 5, sequence="s", number=2, offset=1, since=101.0, **place),
        row("acknowledged", 6, sequence="s", number=1, count=2),
        row("handed over", 7, sequence="s", number=1, offset=0, attempt=1, **place),
        row("handled", 8, queue="inbox", partition=0, offset=0, count=1),
        row("held", 9, sequence="s", number=4, count=1, since=108.0),
        row("acknowledged", 10, sequence="s", number=4, count=1),
        row("delivered", 11, sequence="s", number=3, offset=2, since=109.0, **place),
        row("delivered", 12, sequence="s", number=4, offset=3, since=108.0, **place),
        row("acknowledged", 13, sequence="s", number=3, count=1),
        row("handed over", 14, sequence="s", number=2, offset=1, attempt=1, **place),
        row("handled", 15, queue="inbox", partition=0, offset=1, count=1),
        row("duplicate", 16, sequence="s", number=2, count=1),
    ]
    return told


def later(rows: list[Row], *more: Row) -> list[Row]:
    """The same, and then that."""
    last = rows[-1]["ordinal"]
    return rows + [one | {"ordinal": last + 1 + n, "at": 100.0 + last + 1 + n} for n, one in enumerate(more)]


def restarted(rows: list[Row], *, accepted: int, end: int) -> list[Row]:
    """The same, and a second run that took over so much."""
    stands = {"sequence": "s", "number": 1, "count": accepted, "detail": "created, exactly-once in-order, NoDiscard"}
    queue = {"queue": "inbox", "partition": 0, "offset": end, "attempt": 2, "detail": "epoch"}
    again = [row("started", 0, attempt=2), row("queue stands", 1, **queue), row("stands", 2, **stands)]
    again.append(row("incident", 3))  # else a crash could have cut off what stands
    return rows + [one | {"run": "two", "at": 50.0} for one in again]  # the clock was set back


PLACE = {"queue": "inbox", "partition": 0, "count": 1}


def _not_delivered() -> list[Row]:
    return later(honest(), row("acknowledged", 0, sequence="s", number=5, count=2))


def _never_released() -> list[Row]:
    held = [row("held", 0, sequence="s", number=6, count=1), row("acknowledged", 0, sequence="s", number=6, count=1)]
    return later(honest(), *held, row("forgotten", 0, sequence="s"))


def _too_early() -> list[Row]:
    said = row("acknowledged", 0, sequence="s", number=5, count=1)
    return later(honest(), said, row("delivered", 0, sequence="s", number=5, offset=4, **PLACE))


def _acknowledged_then_gone() -> list[Row]:
    return restarted(honest(), accepted=3, end=4)


def _twice() -> list[Row]:
    return later(honest(), row("delivered", 0, sequence="s", number=4, offset=4, **PLACE))


def _out_of_order() -> list[Row]:
    rows = honest()
    rows[4]["offset"], rows[5]["offset"] = 1, 0
    return rows


def _offset_twice() -> list[Row]:
    return later(honest(), row("delivered", 0, sequence="other", number=1, offset=3, **PLACE))


def _offset_skipped() -> list[Row]:
    return later(honest(), *(row("delivered", 0, sequence="o", number=n, offset=4 + n, **PLACE) for n in (1, 2)))


def _delivered_then_gone() -> list[Row]:
    return restarted(honest(), accepted=4, end=3)


def _handled_again() -> list[Row]:
    return later(honest(), row("handed over", 0, sequence="s", number=1, offset=0, attempt=2, **PLACE))


def _handled_out_of_order() -> list[Row]:
    rows = [one for one in honest() if one["ordinal"] not in (7, 8, 14, 15)]
    given = [row("handed over", 0, sequence="s", number=n, offset=n - 1, attempt=1, **PLACE) for n in (2, 1)]
    return later(rows, *given)


PLANTED: dict[str, Callable[[], list[Row]]] = {
    "acknowledged, not delivered": _not_delivered,
    "acknowledged, never released": _never_released,
    "acknowledged too early": _too_early,
    "acknowledged, then gone": _acknowledged_then_gone,
    "delivered twice": _twice,
    "delivered out of order": _out_of_order,
    "offset used twice": _offset_twice,
    "offset skipped": _offset_skipped,
    "delivered, then gone": _delivered_then_gone,
    "handled again": _handled_again,
    "handled out of order": _handled_out_of_order,
}


@pytest.mark.nightly  # the next test has each of them, among others
def test_each_planted_violation_is_found_and_nothing_else(spark: SparkSession) -> None:
    from holdfast.pipeline.audit.findings import audit

    assert PLANTED.keys() == RULES.keys()
    journals = [honest(), restarted(honest(), accepted=4, end=4), *(plant() for plant in PLANTED.values())]
    rows = _told.apart(journals)
    audited = audit(frame(spark, rows))
    found = audited.violations.collect()
    broken = {(one["run"] or one["sequence"]).partition("/")[0]: one["rule"] for one in found}
    audited.release()
    assert len(found) == len(PLANTED)
    assert broken == {str(number): rule for number, rule in enumerate(PLANTED, 2)}


def test_spark_finds_what_the_deciders_find_without_it(spark: SparkSession) -> None:
    """In histories of the simulated core, of which files are gone, with rows of sinks; and in those that lack what came
    into queues, or in which something was planted."""
    from holdfast.pipeline.audit.event_pass import KINDS
    from holdfast.pipeline.audit.findings import audit

    chance = random.Random(1)
    journals = [_told.with_a_sink(_told.worn(runs, chance), chance) for runs in _told.files_of(6)]
    spoilt = [[row for row in journal if row["event"] != "delivered"] for journal in journals]
    rows = _told.apart([*journals, *spoilt, *(plant() for plant in PLANTED.values())])
    expected = plain_audit.found_in(rows)
    audited = audit(frame(spark, rows))
    found = [(kind, tuple(row[kind])) for row in audited.found.collect() for kind in KINDS if row[kind] is not None]
    assert {kind for kind, _ in found} == KINDS.keys()
    # Tasks count latencies each for itself.
    assert told_by(found) == told_by([(kind, tuple(one)) for one in expected for kind in KINDS if is_one(one, kind)])
    names = ("rule", *WHERE[:-1])
    collected = audited.violations.collect()
    violations = Counter(tuple(row[name] for name in names) for row in collected)
    audited.release()
    broken = {(one["run"] or one["sequence"]).partition("/")[0]: one["rule"] for one in collected}
    planted = {str(number): rule for number, rule in enumerate(PLANTED, len(journals) + len(spoilt))}
    assert {number: rule for number, rule in broken.items() if int(number) >= len(journals) + len(spoilt)} == planted
    assert violations == Counter(tuple(getattr(one, name) for name in names) for one in plain_audit.violations_of(rows))
    assert violations.total() > 2 * len(PLANTED)


def is_one(found: Any, kind: str) -> bool:
    from holdfast.pipeline.audit.event_pass import KINDS

    return type(found) is KINDS[kind]


def told_by(found: list[tuple[str, tuple[Any, ...]]]) -> Counter[Any]:
    told: Counter[Any] = Counter()
    for kind, values in found:
        if kind == "latency":
            told[kind, *values[:-1]] += values[-1]
        else:
            told[kind, *values] += 1
    return told


@pytest.mark.nightly
def test_the_tables_and_the_report_tell_what_happened(spark: SparkSession, tmp_path: Path) -> None:
    from holdfast.pipeline.audit.findings import audit
    from holdfast.pipeline.audit.report import report
    from holdfast.pipeline.journal import read_journal

    hostile = "urn:<script>alert(1)</script>"
    rows = [one | {"sequence": hostile} if one["sequence"] == "s" else one for one in _twice()]
    del rows[14]  # a hole
    own = [name for name in NAMES if name not in ("run", "ordinal", "worker")]
    place = tmp_path / "store" / "journal"
    place.mkdir(parents=True)
    data = b""
    for one in rows:
        data += frames_of("one", None, one["ordinal"], [("r", [tuple(one[name] for name in own)])])[0]
    (place / "_live-1.journal").write_bytes(HEADER + data + b"torn")

    audited = audit(read_journal(spark, tmp_path / "store"))
    (sequence,) = audited.sequences.collect()
    assert (sequence["messages"], sequence["highest"], sequence["missing"]) == (4, 4, 0)
    assert (sequence["delivered"], sequence["acknowledged"], sequence["duplicates"]) == (4, 4, 1)
    assert (sequence["completeness"], sequence["state"]) == (1.0, "created")
    assert sequence["assurance"] == "exactly-once in-order"
    (gap,) = audited.gaps.collect()
    assert (gap["number"], gap["count"], gap["seconds"]) == (3, 1, 2.0)
    (peer,) = audited.peers.collect()
    assert (peer["peer"], peer["sequences"], peer["complete"]) == ("p", 1, 1)
    ways = {one["stage"]: one for one in audited.latencies.collect()}
    assert ways["received to handled"]["messages"] == 2
    # 3, 4, 2 and 4 seconds after they had come; what is delivered once more says nothing of when it came.
    assert ways["received to delivered"]["messages"] == 4
    assert ways["received to delivered"]["p50"] == pytest.approx(3.5, rel=0.01)
    assert ways["received to delivered"]["p100"] == pytest.approx(4.0, rel=0.01)
    assert ways["held to delivered"]["messages"] == 1
    (hole,) = audited.cannot_say.collect()
    assert (hole["after"], hole["events"]) == (13, 1)
    page = report(audited, ["store"])
    audited.release()
    assert "Open gaps" in page
    assert "Violations: 1." in page
    assert "Times are in the time zone UTC." in page
    told = html.document_fromstring(page)
    (link,) = {link.get("href") for link in told.xpath("//a") if link.text == hostile}
    assert told.get_element_by_id(link[1:]).xpath("td[1]")[0].text_content() == hostile
    assert page.count("<script>") == 1 and "alert(" not in told.xpath("string(//script)")
    assert "<svg" in page


@pytest.mark.nightly
def test_where_the_oldest_part_is_deleted_nothing_is_a_violation(spark: SparkSession) -> None:
    from holdfast.pipeline.audit.event_pass import is_of_several
    from holdfast.pipeline.audit.findings import audit

    stands = {"number": 1, "count": 4, "detail": "closed, exactly-once in-order, NoDiscard", "peer": "p"}
    queue = {"queue": "inbox", "partition": 0, "offset": 9, "attempt": 3, "detail": "epoch"}
    rows = [
        row("queue stands", 50, **queue),
        row("stands", 51, sequence="s", **stands),
        row("acknowledged", 52, sequence="s", number=1, count=4),
        row("handed over", 53, sequence="s", number=4, offset=8, attempt=1, **PLACE),
        row("handled", 54, queue="inbox", partition=0, offset=0, count=9),
        row("duplicate", 55, sequence="s", number=4, count=1),
    ]
    audited = audit(frame(spark, rows))
    assert audited.violations.collect() == []
    said = {(one["run"], one["why"]): one["events"] for one in audited.cannot_say.collect()}
    assert said == {
        ("one", "earlier events are no longer kept"): 50,
        (None, "no events of runs 1 to 2 are here"): None,
    }
    (sequence,) = audited.sequences.collect()
    assert (sequence["begun"], sequence["state"], sequence["peer"]) == (None, "closed", "p")
    assert (sequence["messages"], sequence["missing"], sequence["delivered"]) == (4, 0, 0)
    assert not is_of_several(audited.summed)
    audited.release()
    audited = audit(frame(spark, [*rows, *(one | {"run": "another server's"} for one in rows)]))
    assert is_of_several(audited.summed)
    audited.release()


def test_where_there_is_no_journal_says_so(spark: SparkSession, tmp_path: Path) -> None:
    from holdfast.exceptions import ConfigurationError
    from holdfast.pipeline.journal import read_journal

    with pytest.raises(ConfigurationError, match="no event journal"):
        read_journal(spark, tmp_path)


def test_a_plot_of_one_minute_shows_minutes_not_years() -> None:
    from holdfast.pipeline.audit.report import _widen
    from holdfast.pipeline.html_report import new_figure

    (axes,) = new_figure().axes
    at = datetime(2026, 11, 23, 13, 31)
    axes.plot([at], [5], ".-")
    _widen(axes, [at])
    first, last = axes.get_xlim()
    assert (last - first) * 24 * 60 == pytest.approx(10.0)
