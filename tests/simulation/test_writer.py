"""Rows in the simulator: from a writer that dies, through a broker that crashes, to a destination: each once, in order.

``core/sinks/test_staging.py`` has the model of a sink; here are those around it: lost answers, requests that come late,
a second driver beside the first, queues that are trimmed and a forwarder.

Covers simulation/actors/writer.py.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from holdfast.core import staged_blocks as staged
from holdfast.core.sinks.parts import Parts
from holdfast.core.sinks.sink import Part, Sink
from holdfast.simulation.actors.writer import BATCHES
from holdfast.simulation.options import Options
from holdfast.simulation.simulator import SimulationFailed, Simulator


def world(seed: int) -> Options:
    """A world with a writer."""
    chance = random.Random(seed)
    drawn = replace(Options.draw(chance), partitions=1 + seed % 2)
    options = next(found for _ in range(1000) if (found := drawn.with_broker(chance)).writer)
    slow = seed % 4 == 3  # so that it dies with more on its way
    return replace(
        options,
        crash_broker=(0.0, 0.02, 0.05)[seed % 3],
        read_latency=0.5 if slow else 0.0,
        commit_latency=0.5 if slow else options.commit_latency,
    )


@pytest.fixture(autouse=True)
def row_by_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker may die between any two rows that move."""
    monkeypatch.setattr(staged, "MOST_ROWS", 1)


def run(seeds: range) -> Counter[str]:
    counts: Counter[str] = Counter()
    for seed in seeds:
        counts.update(Simulator(seed, world(seed)).run().counts)
    assert counts["batches published"] >= BATCHES * len(seeds)  # what a crash took back is published again
    assert counts["batches published again"] > len(seeds) / 15 and counts["crashes"] > len(seeds)
    assert counts["writer died"] > len(seeds) / 10 and counts["writers together"] > len(seeds) / 15
    return counts


def test_rows_of_a_dying_writer_arrive_once_in_order_behind_a_crashing_broker() -> None:
    run(range(12))


@pytest.mark.nightly
@pytest.mark.parametrize("first", range(1000, 3000, 500))
def test_so_they_do_in_thousands_of_worlds(first: int) -> None:
    run(range(first, first + 500))


def test_some_of_all_seeds_have_a_writer() -> None:
    drawn = [Options.draw(random.Random(seed)).with_broker(random.Random(f"broker of {seed}")) for seed in range(800)]
    assert 20 < sum(one.writer for one in drawn) < 80


# --- planted bugs -----------------------------------------------------------------------------------------------------


def publish_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Sink, "finish", lambda *arguments: None)


def forget_over_a_crash_what_is_published(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Sink.to_state
    monkeypatch.setattr(Sink, "to_state", lambda self: original(self) | {"done": []})


def keep_what_nobody_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Parts, "drop", lambda self, sink, part: None)


def decide_and_save_it_another_time(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Part.save
    monkeypatch.setattr(Part, "save", lambda self: original(self) if self.first_number is None else None)


PLANTED: list[Any] = [
    publish_twice,
    keep_what_nobody_named,
    # The simulator notices these only in its tenth world or later.
    pytest.param(forget_over_a_crash_what_is_published, marks=pytest.mark.nightly),
    pytest.param(decide_and_save_it_another_time, marks=pytest.mark.nightly),
]


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_a_planted_bug_is_noticed(plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    failure = first_failure(range(11, 1200, 12))  # slow worlds in which the broker dies often
    assert failure is not None, "100 seeds did not notice it"
    assert failure.invariant in ("RowsArriveOnce", "WrittenOnce", "AtMostOnce", "Liveness"), str(failure)


def first_failure(seeds: range) -> SimulationFailed | None:
    for seed in seeds:
        try:
            Simulator(seed, world(seed)).run()
        except SimulationFailed as failure:
            return failure
    return None
