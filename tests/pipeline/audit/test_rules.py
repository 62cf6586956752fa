"""The rules of the audit, without Spark: honest histories break none, and each thing planted in one breaks its own."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import told as _told
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_audit import violations_of

from examples import examples
from holdfast.core.queues.description import DEAD_LETTERS
from holdfast.endpoint.journal.columns import NAMES
from holdfast.endpoint.journal.events import ROWS
from holdfast.endpoint.journal.files import HEADER, frames_of, segments
from holdfast.endpoint.journal.parquet import to_parquet_all
from holdfast.pipeline.audit.rules import RULES

Row = dict[str, Any]
Rows = list[Row]
SEEDS = range(examples(200))


@cache
def journals(*, loses: bool) -> tuple[Rows, ...]:
    return tuple(journal for seed in SEEDS for journal in _told.histories(seed, loses=loses))


def broken(rows: Rows) -> set[str]:
    return {one.rule for one in violations_of(rows)}


@pytest.mark.parametrize("loses", [True, False])
def test_no_journal_of_the_simulated_core_breaks_a_rule(loses: bool) -> None:
    """Under loss, repeats, crashes that lose the ends of runs, clocks that are set back, brokers and handlers."""
    assert len({row["event"] for journal in journals(loses=loses) for row in journal}) > 15
    assert [found for journal in journals(loses=loses) if (found := violations_of(journal))] == []


@settings(max_examples=examples(300), deadline=None)
@given(st.integers(0, 10_000), st.data())
def test_no_part_of_a_journal_that_a_crash_leaves_breaks_a_rule(number: int, data: st.DataObject) -> None:
    """Each run may lose its end, at any event."""
    journal = journals(loses=False)[number % len(journals(loses=False))]
    runs: dict[str, Rows] = {}
    for row in journal:
        runs.setdefault(row["run"], []).append(row)
    kept = [rows[: data.draw(st.integers(1, len(rows)))] for rows in runs.values()]
    assert violations_of([row for rows in kept for row in rows]) == []


@settings(max_examples=examples(300), deadline=None)
@given(st.integers(0, len(SEEDS) - 1), st.data())
def test_no_journal_of_which_files_are_gone_breaks_a_rule(seed: int, data: st.DataObject) -> None:
    """The oldest are deleted in time; any may be damaged. Each that is left begins with how all stands."""
    for runs in files(seed):
        names = [(number, index) for number, run in enumerate(runs) for index in range(len(run))]
        kept = names[data.draw(st.integers(0, len(names) - 1)) :]
        lost = data.draw(st.sets(st.sampled_from(kept), max_size=2))
        journal = [row for one in kept if one not in lost for row in runs[one[0]][one[1]]]
        assert violations_of(journal) == []


@cache
def files(seed: int) -> list[list[list[Rows]]]:
    return _told.files_of(seed)


def test_simulated_runs_have_several_files() -> None:
    """Else the test above would say nothing."""
    assert sum(len(run) > 2 for seed in range(10) for runs in files(seed) for run in runs) > 5


# --- what is planted --------------------------------------------------------------------------------------------------


def inbound(rows: Rows, *events: str) -> Rows:
    return [row for row in rows if row["event"] in events and row["sequence"] and not row["key"] and row["number"]]


def last_run(rows: Rows) -> str:
    return str(rows[-1]["run"])


def later(rows: Rows, *more: Row) -> Rows:
    """The same, and then that."""
    last = rows[-1]
    ordinal = max(row["ordinal"] for row in rows if row["run"] == last["run"])
    usual = dict.fromkeys(last) | {"run": last["run"], "worker": last["worker"], "at": last["at"]}
    return rows + [usual | one | {"ordinal": ordinal + 1 + index} for index, one in enumerate(more)]


def without(row: Row, *names: str) -> Row:
    return {name: value for name, value in row.items() if name not in ("run", "ordinal", "at", "worker", *names)}


def end_of(rows: Rows, queue: str, partition: int) -> int:
    here = [one for one in rows if (one["queue"], one["partition"]) == (queue, partition)]
    delivered = [one["offset"] + 1 for one in here if one["event"] == "delivered"]
    return int(max(delivered + [one["offset"] for one in here if one["event"] == "queue stands"]))


def not_delivered(rows: Rows, chance: random.Random) -> Rows | None:
    said = inbound(rows, "acknowledged")
    if not said:
        return None
    one = chance.choice(said)
    return later(rows, {"event": "acknowledged", "sequence": one["sequence"], "number": 10_000, "count": 2})


def never_released(rows: Rows, chance: random.Random) -> Rows | None:
    said = inbound(rows, "acknowledged")
    if not said:
        return None
    one = {"sequence": chance.choice(said)["sequence"], "number": 10_000, "count": 1}
    ended = {"event": "forgotten", "sequence": one["sequence"]}
    return later(rows, one | {"event": "held"}, one | {"event": "acknowledged"}, ended)


def too_early(rows: Rows, chance: random.Random) -> Rows | None:
    said = inbound(rows, "acknowledged")
    if not said:
        return None
    one = {"sequence": chance.choice(said)["sequence"], "number": 10_000, "count": 1}
    return later(rows, one | {"event": "acknowledged"}, one | {"event": "not queued"})


def acknowledged_then_gone(rows: Rows, chance: random.Random) -> Rows | None:
    """A last run that knows one number less of a Sequence than the run before it said."""
    said = [one for one in inbound(rows, "acknowledged") if one["run"] == last_run(rows)]
    if not said:
        return None
    one = chance.choice(said)
    begun = max(row["attempt"] or 0 for row in rows if row["event"] in ("started", "queue stands")) + 1
    again = [
        {"event": "started", "attempt": begun},
        {"event": "stands", "sequence": one["sequence"], "number": 1, "count": one["number"] - 1, "detail": "created"},
        {"event": "incident"},  # else a crash could have cut off what stands
    ]
    return later(rows, *again)[: len(rows)] + [
        dict.fromkeys(rows[0]) | new | {"run": "the last", "ordinal": index, "at": 1.0}
        for index, new in enumerate(again)
    ]


def twice(rows: Rows, chance: random.Random) -> Rows | None:
    known = {row["queue"] for row in rows if row["event"] == "queue stands" and row["run"] == last_run(rows)}
    delivered = [one for one in inbound(rows, "delivered") if one["queue"] in known]
    # A dead letter may come into its queue again: the operator had it tried.
    dead = {(row["sequence"], row["number"]) for row in rows if row["event"] == "given up"}
    ascending = sorted(delivered, key=lambda row: row["number"])
    newest_of = {(one["sequence"], one["queue"]): one["number"] for one in ascending}
    delivered = [one for one in delivered if (one["sequence"], newest_of[one["sequence"], one["queue"]]) not in dead]
    if not delivered:
        return None
    one = chance.choice(delivered)
    offset = end_of(rows, one["queue"], one["partition"])
    # Of one with order, whatever was delivered behind it would make it late as well.
    newest = newest_of[one["sequence"], one["queue"]]
    return later(rows, without(one, "offset", "number") | {"offset": offset, "number": newest})


def out_of_order(rows: Rows, chance: random.Random) -> Rows | None:
    ordered = {row["sequence"] for row in rows if "in-order" in (row["detail"] or "") and not row["key"]}
    delivered = [one for one in inbound(rows, "delivered") if one["sequence"] in ordered]
    files = {(row["run"], row["ordinal"]) for row in rows if row["event"] == "queue stands"}
    pairs = [
        (one, other)
        for one in delivered
        for other in delivered
        if one["number"] + 1 == other["number"]
        and all(one[name] == other[name] for name in ("sequence", "queue", "partition", "run"))
        # The rule compares a message with the last in the queue so far: none behind both may come between them, where
        # one batch took what had waited for the second of them.
        and not any(
            more["offset"] > max(one["offset"], other["offset"])
            for more in delivered
            if all(more[name] == one[name] for name in ("sequence", "queue", "partition", "run"))
            and more["ordinal"] < max(one["ordinal"], other["ordinal"])
        )
        # No file may begin between them: it would say how long the queue was.
        and not any((one["run"], ordinal) in files for ordinal in range(*sorted((one["ordinal"], other["ordinal"]))))
    ]
    if not pairs:
        return None
    one, other = chance.choice(pairs)
    changed = {id(one): other["offset"], id(other): one["offset"]}
    return [row | {"offset": changed[id(row)]} if id(row) in changed else row for row in rows]


def offset_twice(rows: Rows, chance: random.Random) -> Rows | None:
    delivered = [one for one in inbound(rows, "delivered") if one["run"] == last_run(rows)]
    if not delivered:
        return None
    return later(rows, without(chance.choice(delivered), "sequence", "number") | {"sequence": "other", "number": 1})


def offset_skipped(rows: Rows, chance: random.Random) -> Rows | None:
    delivered = [one for one in inbound(rows, "delivered") if one["run"] == last_run(rows)]
    if not delivered:
        return None
    one = chance.choice(delivered)
    known = {(row["run"], row["queue"], row["partition"]) for row in rows if row["event"] == "queue stands"}
    if (one["run"], one["queue"], one["partition"]) not in known:
        return None
    end = end_of(rows, one["queue"], one["partition"])
    more = [
        without(one, "sequence", "number")
        | {"sequence": "other", "number": 1 + n, "offset": end + 2 + n, "at": 1e6 + n}
        for n in range(2)
    ]
    return later(rows, *more)


def delivered_then_gone(rows: Rows, chance: random.Random) -> Rows | None:
    delivered = [one for one in inbound(rows, "delivered") if one["run"] == last_run(rows)]
    known = {(r["queue"], r["partition"]): r for r in rows if r["event"] == "queue stands"}
    delivered = [one for one in delivered if (one["queue"], one["partition"]) in known]
    if not delivered:
        return None
    one = chance.choice(delivered)
    stands = known[one["queue"], one["partition"]]
    return later(rows, without(stands, "offset") | {"offset": end_of(rows, one["queue"], one["partition"]) - 1})


def handled_again(rows: Rows, chance: random.Random) -> Rows | None:
    rewound = {(row["run"], row["queue"]) for row in rows if row["event"] == "rewound"}
    done = [
        (row["queue"], row["partition"], row["offset"])
        for row in rows
        if row["event"] == "handled" and row["run"] == last_run(rows) and (row["run"], row["queue"]) not in rewound
    ]
    handed = [one for one in inbound(rows, "handed over") if (one["queue"], one["partition"], one["offset"]) in done]
    if not handed:
        return None
    return later(rows, without(chance.choice(handed), "attempt") | {"attempt": 2})


def handled_out_of_order(rows: Rows, chance: random.Random) -> Rows | None:
    ordered = {row["sequence"] for row in rows if "in-order" in (row["detail"] or "") and not row["key"]}
    rewound = {(row["run"], row["queue"]) for row in rows if row["event"] == "rewound"}
    handed = [
        one
        for one in inbound(rows, "handed over")
        if one["sequence"] in ordered
        and one["queue"] != DEAD_LETTERS
        and one["run"] == last_run(rows)
        and (one["run"], one["queue"]) not in rewound
    ]
    if not handed:
        return None
    one = chance.choice(handed)
    offsets = [one["offset"] + 100_000, one["offset"] + 100_001]
    given = [without(one) | {"number": 10_001 - n, "offset": at, "attempt": 1} for n, at in enumerate(offsets)]
    return later(rows, *given)


PLANTED: Mapping[str, Callable[[Rows, random.Random], Rows | None]] = {
    "acknowledged, not delivered": not_delivered,
    "acknowledged, never released": never_released,
    "acknowledged too early": too_early,
    "acknowledged, then gone": acknowledged_then_gone,
    "delivered twice": twice,
    "delivered out of order": out_of_order,
    "offset used twice": offset_twice,
    "offset skipped": offset_skipped,
    "delivered, then gone": delivered_then_gone,
    "handled again": handled_again,
    "handled out of order": handled_out_of_order,
}


@pytest.mark.parametrize("rule", RULES)
def test_what_is_planted_in_a_simulated_history_breaks_its_rule_and_no_other(rule: str) -> None:
    planted = 0
    for seed, journal in enumerate(journals(loses=True)):
        rows = PLANTED[rule](journal, random.Random(seed))
        if rows is not None:
            planted += 1
            assert broken(rows) == {rule}, seed
    assert planted >= 5


@cache
def all_borders() -> list[tuple[int, int, Any]]:
    return [
        (seed, journal, border)
        for seed in SEEDS
        for journal, runs in enumerate(files(seed))
        for border in _told.borders(runs)
    ]


KINDS_OF_BORDER = ("rotation", "restart", "stopped")


def never_delivered(rows: Rows) -> set[tuple[str, int | None, int | None]]:
    return {(one.rule, one.number, one.count) for one in violations_of(rows)}


def test_every_kind_of_border_between_files_is_planted_at() -> None:
    counted = Counter(kind for _, _, (kind, *_) in all_borders())
    assert counted.keys() == set(KINDS_OF_BORDER)
    assert min(counted.values()) > 5, counted


@settings(max_examples=examples(300), deadline=None)
@given(st.sampled_from(KINDS_OF_BORDER), st.integers(0), st.booleans(), st.booleans())
def test_what_was_acknowledged_and_never_delivered_is_found_behind_every_border(
    kind: str, which: int, said_behind: bool, other_workers: bool
) -> None:
    """A new file, a new run, beside the files of other workers: whatever stands in the next file, it was not told."""
    of_kind = [place for place in all_borders() if place[2][0] == kind]
    seed, journal, border = of_kind[which % len(of_kind)]
    said_behind &= border[0] != "restart"  # what a killed run accepted in its last second was maybe not written
    worlds = list(files(seed))
    worlds[journal] = _told.with_one_never_delivered(worlds[journal], border, said_behind=said_behind)
    journals = [[row for run in runs for file in run for row in file] for runs in worlds]
    rows = _told.apart(journals) if other_workers else journals[journal]
    assert never_delivered(rows) == {("acknowledged, not delivered", _told.PLANTED, 1)}


def test_what_was_never_delivered_is_found_when_its_file_became_parquet(tmp_path: Path) -> None:
    for number, (seed, journal, border) in enumerate(all_borders()[::40]):
        directory = tmp_path / str(number)
        directory.mkdir()
        runs = _told.with_one_never_delivered(files(seed)[journal], border, said_behind=False)
        for at, file in enumerate(file for run in runs for file in run):
            told = [tuple(row[name] for name in NAMES if name not in ("run", "ordinal", "worker")) for row in file]
            data, _ = frames_of(file[0]["run"], None, file[0]["ordinal"], [(ROWS, told)])
            (directory / f"_{at:04d}.journal").write_bytes(HEADER + data)
        to_parquet_all(directory)
        rows = [row for one in segments(directory) for row in pq.read_table(one.path).to_pylist()]
        times = ("at", "since")
        rows = [row | {one: row[one] and row[one].timestamp() for one in times} for row in rows]
        assert never_delivered(rows) == {("acknowledged, not delivered", _told.PLANTED, 1)}


def test_behind_a_hole_what_stands_counts_as_told() -> None:
    """The file in which it would have been delivered is gone."""
    for seed, journal, border in all_borders()[::7]:
        kind, number, index, _ = border
        if kind == "rotation":
            runs = _told.with_one_never_delivered(files(seed)[journal], border, said_behind=True)
            del runs[number][index]
            assert never_delivered([row for run in runs for file in run for row in file]) == set()


def test_a_sequence_that_loses_a_number_within_a_run_is_found() -> None:
    """The rule looked at the first file of a run only."""
    usual = dict.fromkeys(NAMES) | {"run": "one", "at": 1.0, "sequence": "s"}
    detail = "created, exactly-once in-order, NoDiscard"
    told = [
        {"event": "created", "detail": "exactly-once in-order, NoDiscard"},
        *({"event": "not queued", "number": number, "count": 1} for number in (1, 2)),
        {"event": "acknowledged", "number": 1, "count": 2},
        {"event": "stands", "number": 1, "count": 1, "detail": detail},
        {"event": "duplicate", "number": 1, "count": 1},
    ]
    rows = [usual | {"ordinal": ordinal} | one for ordinal, one in enumerate(told)]
    assert never_delivered(rows) == {("acknowledged, then gone", 2, 1)}
    assert never_delivered(rows[:-1]) == set()  # a crash may have cut off the rest of what stands


PROMISED = "exactly-once in-order, NoDiscard"


def ended_in_order(number: int, *events: Row, accepted: tuple[int, int] | None, end: int) -> Rows:
    """One run of a server with the Sequence "s" and the queue "q", which begins and ends with these numbers accepted
    and the queue this long."""
    queue = {"event": "queue stands", "sequence": None, "queue": "q", "partition": 0, "detail": "epoch"}
    before, after = accepted or (0, 0)
    lists = [
        [queue | {"offset": offset}, {"event": "stands", "number": 1, "count": count, "detail": f"created, {PROMISED}"}]
        for offset, count in ((end - sum(one["event"] == "delivered" for one in events), before), (end, after))
    ]
    begun = lists[0] if before else [lists[0][0], {"event": "created", "detail": PROMISED}]
    rows = [{"event": "started", "sequence": None}, *begun, *events, *lists[1], {"event": "stopped", "sequence": None}]
    usual = dict.fromkeys(NAMES) | {"run": f"run {number}", "attempt": number, "sequence": "s"}
    return [usual | row | {"ordinal": ordinal, "at": 100.0 * number + ordinal} for ordinal, row in enumerate(rows)]


def delivered_at(offset: int, number: int) -> Row:
    return {"event": "delivered", "queue": "q", "partition": 0, "offset": offset, "number": number, "count": 1}


def acknowledged(number: int, count: int) -> Row:
    return {"event": "acknowledged", "number": number, "count": count}


def test_an_unbacked_number_is_found_when_a_later_run_acknowledges_it() -> None:
    one = ended_in_order(1, delivered_at(0, 1), accepted=(0, 2), end=1)
    two = ended_in_order(2, accepted=(2, 2), end=1)
    three = ended_in_order(3, acknowledged(1, 2), accepted=(2, 2), end=1)
    assert never_delivered([*one, *two]) == set()
    assert never_delivered([*one, *two, *three]) == {("acknowledged, not delivered", 2, 1)}
    told_late = ended_in_order(3, delivered_at(1, 2), acknowledged(1, 2), accepted=(2, 2), end=2)
    assert never_delivered([*one, *two, *told_late]) == set()


def test_what_a_run_without_a_journal_did_between_two_others_is_no_violation() -> None:
    """An operator may turn the journal off and on again, or change a store while its server is stopped."""
    one = ended_in_order(1, delivered_at(0, 1), acknowledged(1, 1), accepted=(0, 1), end=1)
    two = ended_in_order(2, acknowledged(1, 3), delivered_at(3, 4), accepted=(3, 4), end=4)
    assert violations_of([*one, *two]) == []


def test_offsets_that_a_server_skipped_before_it_stopped_in_order_are_found() -> None:
    one = ended_in_order(1, delivered_at(0, 1), accepted=(0, 1), end=1)
    one = [row | {"offset": 3} if row["event"] == "queue stands" and row["ordinal"] > 2 else row for row in one]
    two = ended_in_order(2, delivered_at(3, 2), acknowledged(1, 2), accepted=(1, 2), end=4)
    assert [(one.rule, one.offset, one.count) for one in violations_of([*one, *two])] == [("offset skipped", 1, 2)]


def test_a_dead_letter_that_is_tried_again_is_not_delivered_twice_and_is_delivered() -> None:
    usual = dict.fromkeys(NAMES) | {"run": "one", "sequence": "s", "count": 1, "partition": 0}
    told = [
        {"event": "created", "detail": "exactly-once in-order, NoDiscard"},
        {"event": "delivered", "number": 1, "queue": "inbox", "offset": 0},
        {"event": "given up", "number": 1, "queue": DEAD_LETTERS, "offset": 0},
        {"event": "given up", "number": 2, "queue": DEAD_LETTERS, "offset": 1},
        {"event": "acknowledged", "number": 1, "count": 2},
        {"event": "delivered", "number": 1, "queue": "inbox", "offset": 1},
        {"event": "delivered", "number": 1, "queue": "inbox", "offset": 2},
    ]
    rows = [usual | {"ordinal": ordinal, "at": float(ordinal)} | one for ordinal, one in enumerate(told)]
    assert never_delivered(rows[:-1]) == set()
    assert never_delivered(rows) == {("delivered twice", 1, 1)}


def test_after_a_restore_a_repeat_is_no_violation_but_a_second_one_is() -> None:
    """Messages whose acknowledgement was lost, and rows of a sink that move again under their names."""
    names = journals(loses=False)[0][0].keys()
    inbox = {"queue": "inbox", "partition": 0}

    def run(name: str, epoch: str, *more: Row) -> Rows:
        stands = {"event": "queue stands", "offset": 1 if epoch == "new" else 0, "detail": epoch, **inbox}
        told = [{"event": "started"}, stands, *more]
        attempt = 2 if epoch == "new" else 1
        usual = dict.fromkeys(names) | {"run": name, "attempt": attempt, "at": 1.0}
        return [usual | one | {"ordinal": ordinal} for ordinal, one in enumerate(told)]

    def delivered(number: int, offset: int) -> Row:
        return {"event": "delivered", "sequence": "s", "number": number, "offset": offset, "count": 1, **inbox}

    created = {"event": "created", "sequence": "s", "detail": "exactly-once in-order, NoDiscard"}
    known = {"event": "stands", "sequence": "s", "number": 1, "count": 1, "detail": "created, exactly-once in-order"}
    before = run("one", "old", created, delivered(1, 0), delivered(2, 1), delivered(3, 2))
    again = [delivered(2, 1), delivered(3, 2)]
    assert broken([*before, *run("two", "new", known, *again)]) == set()
    assert broken([*before, *run("two", "new", known, *again, delivered(3, 3))]) == {"delivered twice"}
    assert broken([*before, *run("two", "new", known, delivered(1, 1))]) == {"delivered twice"}
    assert "delivered twice" in broken([*before, *run("two", "old", *again)])
