"""What an audit counts, without Spark: the same as a model that knows sets and no ranges; and what memory it takes.

Covers pipeline/audit/counters.py, pipeline/audit/events.py and pipeline/audit/gaps.py.
"""

from __future__ import annotations

import io
import random
from collections import Counter
from functools import cache
from typing import Any

import told as _told
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_audit import found_in, model
from staged import PARTITIONS, Side, row

from examples import examples
from holdfast.core.policy import DestinationPolicy
from holdfast.endpoint.journal.events import Collector
from holdfast.endpoint.journal.files import HEADER, frames_of, rows_of
from holdfast.pipeline.audit.counters import decide
from holdfast.pipeline.audit.events import IN, WAY, Gap, Latencies, Latency, SequenceRow, Told, Violation
from holdfast.pipeline.audit.gaps import Gaps

Row = dict[str, Any]
SEEDS = range(examples(150))


@cache
def files(seed: int) -> list[list[list[list[Row]]]]:
    return _told.files_of(seed)


def counted(rows: list[Row]) -> Counter[Any]:
    return Counter(one for one in found_in(rows) if type(one) is not Violation)


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(st.sampled_from(SEEDS), min_size=1, max_size=3, unique=True), st.data())
def test_the_tables_are_those_of_the_model_for_any_journal(seeds: list[int], data: st.DataObject) -> None:
    """Of several workers, under loss, repeats and restarts, forwarded, some of whose files are gone, and with rows of
    sinks."""
    journals = [runs for seed in seeds for runs in files(seed)]
    chance = random.Random(data.draw(st.integers(0, 1_000)))
    rows = _told.apart([_told.worn(runs, chance) for runs in journals])
    rows = _told.with_a_sink(rows, chance)
    assert counted(rows) == Counter(model(rows))


def test_rows_of_a_sink_have_its_name_as_peer_and_no_gaps_whatever_files_are_gone() -> None:
    """A sink with two queues, whose rows lie in every partition of both."""
    side, journal = Side(), Collector(iter(range(1, 1_000)).__next__, DestinationPolicy())
    for batch in range(2):
        side.stage(batch, f"t{batch}", [row(f"{n}", f"k{n}", ("inbox", "other")[n % 3 > 0]) for n in range(40)])
        side.publish(batch, f"t{batch}", count=40)
        while side.taken or side.wanted or side.protocol.wants_commit or side.protocol.effects:
            if side.taken:
                journal.durable(side.taken[0])
            side.step()
    data, _ = frames_of("run", None, 0, journal.take())
    events = rows_of(io.BytesIO(HEADER + data))
    assert sum(one["event"] == "delivered" for one in events) == 80
    for kept in range(0, len(events), 7):
        found = found_in(events[kept:])
        assert not [one for one in found if type(one) is not SequenceRow and type(one) is not Latency]
        sequences = [one for one in found if type(one) is SequenceRow]
        assert {one.peer for one in sequences} <= {"sink/s"}
        assert not any(one.missing for one in sequences)
    assert sorted(one.sequence for one in found_in(events) if type(one) is SequenceRow) == [
        f"urn:sink:0#{partition}" for partition in range(PARTITIONS)
    ]
    assert {one["partition"] for one in events if one["sequence"] == "urn:sink:0#1"} == {1}


def test_what_the_tables_are_tested_with_has_everything_in_it() -> None:
    rows = [row for seed in SEEDS for runs in files(seed) for run in runs for file in run for row in file]
    events = Counter(row["event"] for row in rows)
    assert min(events[one] for one in ("held", "duplicate", "arrived", "retransmitted", "handled", "expired")) > 2
    found = Counter(type(one).__name__ for one in model(_told.apart([rows[:20_000]])))
    assert found.keys() == {"SequenceRow", "Gap", "Latency"}


@given(st.lists(st.tuples(st.integers(1, 25), st.integers(1, 6)), max_size=20))
def test_gaps_are_those_of_a_set_of_numbers(ranges: list[tuple[int, int]]) -> None:
    found: list[Any] = []
    gaps = Gaps(IN, "s", found)
    came: set[int] = set()
    opened: dict[int, set[int]] = {}
    closed: set[int] = set()
    for at, (lower, count) in enumerate(ranges):
        numbers = range(lower, lower + count)
        highest = max(came, default=0)
        if lower > highest + 1:
            opened[highest + 1] = set(range(highest + 1, lower))
        came |= set(numbers)
        closed |= {first for first, missing in opened.items() if missing <= came}
        if count == 1:
            gaps.come(lower, at)
        else:
            gaps.come_together(lower, numbers[-1], at)
        assert {one.number for one in found} == closed
    gaps.end()
    assert {(one.number, one.count) for one in found if isinstance(one, Gap)} == {
        (first, len(missing)) for first, missing in opened.items()
    }


@given(st.integers(0, 10**13))
def test_a_latency_is_told_to_one_part_in_500(took: int) -> None:
    latencies = Latencies()
    latencies.add("stage", "name", took)
    (told,) = latencies.take()
    assert abs(told.took - took) * 500 <= took


def test_a_long_sequence_and_a_long_queue_are_read_and_not_kept() -> None:
    """Of many messages no more is remembered than of one, and nothing is told before the end."""
    many = 30_000  # to remember only their numbers would take twice the memory below
    usual = dict.fromkeys(Told._fields)
    taken = 0

    def events() -> Any:
        nonlocal taken
        for number in range(1, many + 1):
            taken = number
            common = {"sequence": "s", "number": number, "count": 1, "queue": "q", "partition": 0, "offset": number - 1}
            place = {"run": "r", "ordinal": number, "at": number, "since": number, "rewound": False, "restored": False}
            yield Told(**usual | common | place | {"about": f"{IN} s", "event": "delivered"})
        for number in range(1, many + 1):
            place = {"queue": "q", "partition": 0, "offset": number - 1, "run": "r", "ordinal": number, "count": 1}
            yield Told(**usual | place | {"about": f"{WAY} 0 q", "event": "handled", "at": number + 1})
            told = {"event": "delivered", "at": number, "since": number}
            yield Told(**usual | place | {"about": f"{WAY} 0 q"} | told)

    import tracemalloc

    found = decide(events())
    tracemalloc.start()
    first = next(found)
    assert type(first).__name__ == "SequenceRow"
    assert taken == many
    (latency,) = found
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert latency.messages == many  # type: ignore[union-attr]
    assert peak < 1_000_000


def test_an_offset_handled_before_a_restore_says_nothing_of_its_new_record() -> None:
    usual = dict.fromkeys(Told._fields) | {"about": f"{WAY} 0 q", "queue": "q", "partition": 0, "offset": 5, "count": 1}
    handled = [Told(**usual | {"event": "handled", "at": at}) for at in (20, 47)]
    came = [Told(**usual | {"event": "delivered", "at": at, "since": at - 3}) for at in (10, 40)]
    assert sorted(decide([*handled, *came])) == [
        ("received to handled", "q", 10, 1),
        ("received to handled", "q", 13, 1),
    ]
