"""The audit without Spark: its deciders over rows in memory, and a model of what they count that knows sets and no
ranges, and looks at everything at once."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import groupby
from typing import Any

from holdfast.pipeline.audit.counters import decide
from holdfast.pipeline.audit.events import (
    AT_MOST_ONCE,
    COMING,
    IN,
    INBOUND,
    OUT,
    OUTBOUND,
    PLACE,
    PLACED,
    SENDING,
    TAKEN,
    WAY,
    Found,
    Gap,
    Latencies,
    Latency,
    SequenceRow,
    Told,
    Violation,
)

Row = Mapping[str, Any]
Place = tuple[int | None, str, int]


def found_in(rows: Iterable[Row]) -> list[Found]:
    """All that the deciders find."""
    return list(decide(told(list(rows))))


def violations_of(rows: Iterable[Row]) -> list[Violation]:
    """What must not be."""
    found = found_in(rows)
    promised = {one.sequence for one in found if type(one) is SequenceRow and AT_MOST_ONCE in (one.assurance or "")}
    violations = [one for one in found if type(one) is Violation]
    return [one for one in violations if not (one.unless_at_most_once and one.sequence in promised)]


def micros(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1e6)


def in_order(rows: Iterable[Row]) -> list[list[Row]]:
    """The runs, the first first, each with its rows in their order."""
    runs: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        runs[row["run"]].append(row)

    def began(name: str) -> tuple[Any, ...]:
        numbers = [row["attempt"] for row in runs[name] if row["event"] in ("started", "queue stands")]
        return max(numbers, default=0), min(micros(row["at"]) or 0 for row in runs[name]), name

    return [sorted(runs[name], key=lambda row: row["ordinal"]) for name in sorted(runs, key=began)]


def homes_of(rows: Iterable[Row]) -> dict[tuple[int | None, str], Place]:
    """Where the messages of an outbox lie: worker, key -> place."""
    homes = {}
    for row in rows:
        if row["key"] is not None and row["queue"] is not None and row["event"] in ("created", "stands"):
            homes[row["worker"], row["key"]] = (row["worker"], row["queue"], row["partition"])
    return homes


def told(rows: list[Row]) -> list[Told]:
    """The events as Spark brings them together."""
    runs = in_order(rows)
    epochs: dict[tuple[Any, ...], str] = {}
    of_queue: dict[tuple[Any, ...], set[str]] = defaultdict(set)
    for row in rows:
        if row["event"] == "queue stands" and row["detail"]:
            epochs[row["run"], row["queue"], row["partition"]] = row["detail"]
            of_queue[row["worker"], row["queue"]].add(row["detail"])
    rewound = {(row["run"], row["queue"], row["partition"]) for row in rows if row["event"] == "rewound"}
    restored = {worker for (worker, _), several in of_queue.items() if len(several) > 1}
    homes = homes_of(rows)
    followed = {(row["worker"], row["queue"], row["partition"]) for row in rows if row["event"] == "handled"}
    followed |= set(homes.values())
    found: list[tuple[tuple[Any, ...], Told]] = []
    for rank, run in enumerate(runs):
        for row, last in zip(run, lasts_of(run), strict=True):
            where = (row["run"], row["queue"], row["partition"])
            known = {name: row[name] for name in Told._fields if name in row} | {
                "at": micros(row["at"]),
                "since": micros(row["since"]),
                "epoch": epochs.get(where),
                "restored": row["worker"] in restored,
                "rewound": where in rewound,
                "last": last,
            }
            for about, *order in _abouts(row, rank, homes, followed):
                found.append(((about, *order), Told(about=about, **known)))
    return [one for _, one in sorted(found, key=lambda one: one[0])]


def lasts_of(run: list[Row]) -> list[int]:
    """For each event of a run the ordinal of the last that follows without a hole."""
    lasts: list[int] = []
    for row, following in zip(reversed(run), [None, *reversed(run)], strict=False):
        is_next = following is not None and following["ordinal"] <= row["ordinal"] + 1
        lasts.append(lasts[-1] if is_next else row["ordinal"])
    return lasts[::-1]


def _abouts(
    row: Row, rank: int, homes: Mapping[tuple[int | None, str], Place], followed: set[Place]
) -> Iterator[tuple[str, int, int]]:
    event, sequence, key, here = row["event"], row["sequence"], row["key"], (rank, row["ordinal"])
    place = (row["worker"], row["queue"], row["partition"])
    if sequence is not None and key is None and event in INBOUND:
        yield f"{IN} {sequence}", *here
    if sequence is not None and (event in SENDING or (key is not None and event in OUTBOUND)):
        yield f"{OUT} {sequence}", *here
    if row["queue"] is not None and event in PLACED:
        yield f"{PLACE} {place}", *here
    if event == "arrived":
        place = homes.get((row["worker"], key), place)
    if place in followed and event in (*COMING, *TAKEN):
        yield f"{WAY} {place}", row["offset"], int(event in COMING)


# --- the model --------------------------------------------------------------------------------------------------------


def model(rows: list[Row]) -> list[SequenceRow | Gap | Latency]:
    """What is counted, one message after another."""
    inbound: dict[str, list[Row]] = defaultdict(list)
    outbound: dict[str, list[Row]] = defaultdict(list)
    for row in (row for run in in_order(rows) for row in run):
        if row["sequence"] is None:
            continue
        if row["event"] in SENDING or row["key"] is not None:
            if row["event"] in (*SENDING, *OUTBOUND):
                outbound[row["sequence"]].append(row)
        elif row["event"] in INBOUND:
            inbound[row["sequence"]].append(row)
    found: list[SequenceRow | Gap | Latency] = []
    for name, events in inbound.items():
        found += _inbound(name, events)
    for name, events in outbound.items():
        found += _outbound(name, events)
    return [*found, *_latencies(rows)]


def _numbers(row: Row) -> range:
    return range(row["number"], row["number"] + row["count"]) if row["number"] else range(0)


def _of(events: list[Row], *names: str, keep: Callable[[Row], bool] = lambda _: True) -> set[int]:
    return {number for row in events if row["event"] in names and keep(row) for number in _numbers(row)}


def _first(values: Iterable[Any]) -> Any:
    return next((one for one in values if one is not None), None)


def _inbound(name: str, events: list[Row]) -> Iterator[SequenceRow | Gap]:
    there = _of(events, "delivered", "held", "discarded", "not queued", "given up", "stands")
    gone = _of(events, "delivered", "discarded", "not queued", "given up")
    for stands, together in groupby(events, lambda row: (row["run"], row["event"] == "stands")):
        if stands[1]:
            here = list(together)
            gone |= _of(here, "stands", keep=lambda row: row["detail"] != "held") - _of(
                here, "stands", keep=lambda row: row["detail"] == "held"
            )
    held = _of(events, "held") | _of(events, "stands", keep=lambda row: row["detail"] == "held")
    state = assurance = None
    is_over = False
    for row in events:
        detail = (row["detail"] or "").split(", ")
        if row["event"] in ("created", "closed", "terminated", "expired"):
            state, is_over = row["event"], is_over or row["event"] in ("terminated", "expired")
        if row["event"] == "stands" and detail != ["held"] and not is_over:
            state = {"closing": "closed", "terminating": "terminated"}.get(detail[0], detail[0])
        promised = detail if row["event"] == "created" else detail[1:]
        if row["event"] in ("created", "stands") and promised and AT_MOST_ONCE not in (assurance or ""):
            assurance = promised[0]
    is_sink = any(row["event"] == "delivered" and row["peer"] for row in events)
    yield SequenceRow(
        role=IN,
        sequence=name,
        peer=_first(row["peer"] for row in events),
        key=None,
        assurance=assurance,
        state=state,
        begun=_first(micros(row["at"]) for row in reversed(events) if row["event"] == "created"),
        ended=_first(micros(row["at"]) for row in reversed(events) if row["event"] in ("terminated", "expired")),
        messages=len(there),
        highest=max(there, default=0),
        missing=0 if is_sink else max(there, default=0) - len(there),
        delivered=len(_of(events, "delivered")),
        held=len(held - gone),
        discarded=len(_of(events, "discarded")),
        not_queued=len(_of(events, "not queued")),
        acknowledged=len(_of(events, "acknowledged")),
        duplicates=sum(row["event"] == "duplicate" for row in events),
        transmitted=0,
        retransmitted=0,
    )
    if not is_sink:
        yield from _gaps(IN, name, [row for row in events if _of([row], *_THERE)])


_THERE = ("delivered", "held", "discarded", "not queued", "given up", "stands", "arrived")


def _outbound(name: str, events: list[Row]) -> Iterator[SequenceRow | Gap]:
    there, sent = _of(events, "arrived", "stands"), _of(events, *SENDING)
    times = sum(len(_numbers(row)) for row in events if row["event"] in SENDING)
    known: set[int] = set()
    again = 0
    for row in events:
        if row["event"] in SENDING:
            numbers = set(_numbers(row))
            again += len(numbers if row["event"] == "retransmitted" else numbers & known)
            known |= numbers
    assert again >= times - len(sent)
    ended = _first(micros(row["at"]) for row in reversed(events) if row["event"] == "terminated")
    highest = max(there | sent, default=0)
    yield SequenceRow(
        role=OUT,
        sequence=name,
        peer=_first(row["peer"] for row in events),
        key=_first(row["key"] for row in events),
        assurance=None,
        state="created" if ended is None else "terminated",
        begun=_first(micros(row["at"]) for row in reversed(events) if row["event"] == "created"),
        ended=ended,
        messages=len(there),
        highest=highest,
        missing=highest - len(there),
        delivered=0,
        held=0,
        discarded=0,
        not_queued=0,
        acknowledged=len(there),
        duplicates=0,
        transmitted=len(sent),
        retransmitted=again,
    )
    yield from _gaps(OUT, name, [row for row in events if _of([row], *_THERE)])


def _gaps(role: str, name: str, events: list[Row]) -> Iterator[Gap]:
    """Each number that is missing is looked for in all that comes after."""
    came: dict[int, int] = {}
    opened = []
    for row in events:
        at, highest = micros(row["at"]), max(came, default=0)
        assert at is not None
        if _numbers(row)[0] > highest + 1:
            opened.append((highest + 1, _numbers(row)[0], at))
        for number in _numbers(row):
            came.setdefault(number, at)
    order = {number: index for index, number in enumerate(came)}
    for lower, upper, since in opened:
        numbers = range(lower, upper)
        missing = [number for number in numbers if number not in came]
        last = None if missing else came[max(numbers, key=lambda number: order[number])]
        yield Gap(role, name, lower, upper - lower, since, last)


def _latencies(rows: list[Row]) -> Iterator[Latency]:
    took: Counter[tuple[str, str, int]] = Counter()

    def add(stage: str, name: str, since: int | None, at: int | None) -> None:
        if since is not None and at is not None and at >= since:
            gathered = Latencies()
            gathered.add(stage, name, at - since)
            (one,) = gathered.take()
            took[one.stage, one.name, one.took] += 1

    homes = homes_of(rows)
    taken: list[tuple[str, str, Place, int, int, int]] = []
    for row in rows:
        at = micros(row["at"])
        assert at is not None
        if row["event"] == "handled":
            place = (row["worker"], row["queue"], row["partition"])
            taken.append(("received to handled", row["queue"], place, row["offset"], row["count"], at))
        elif row["event"] == "arrived" and (row["worker"], row["key"]) in homes:
            place = homes[row["worker"], row["key"]]
            taken.append(("received to arrived", row["key"], place, row["offset"], row["count"], at))
    held: dict[tuple[str, int], tuple[int | None, int | None]] = {}
    for row in (row for run in in_order(rows) for row in run):
        at, since = micros(row["at"]), micros(row["since"])
        assert at is not None
        if row["event"] in COMING:
            here = (row["worker"], row["queue"], row["partition"])
            done: dict[tuple[str, str], int] = {}
            for stage, name, place, first, count, then in taken:
                if place == here and first <= row["offset"] < first + count and then >= at:
                    done[stage, name] = min(then, done.get((stage, name), then))
            for (stage, name), then in done.items():
                add(stage, name, since, then)
        if row["key"] is not None or row["sequence"] is None:
            if row["event"] == "delivered":
                add("received to delivered", row["queue"], since, at)
            continue
        one = (row["sequence"], row["number"])
        if row["event"] == "held":
            held[one] = at, since
        elif row["event"] == "discarded":
            held.pop(one, None)
        elif row["event"] == "delivered":
            waits, came = held.pop(one, (None, None))
            add("held to delivered", row["queue"], waits, at)
            add("received to delivered", row["queue"], came if since is None else since, at)
    return (Latency(*key, messages) for key, messages in took.items())
