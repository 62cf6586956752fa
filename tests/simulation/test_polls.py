"""Sources and brokers that poll with MakeConnection, in the simulator: loss, duplicates, crashes, slow services."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest

from holdfast.simulation.options import Options
from holdfast.simulation.simulator import Simulator


def run(seeds: range) -> Counter[str]:
    """Run the worlds of these seeds, with polls instead of listeners."""
    counts: Counter[str] = Counter()
    for seed in seeds:
        options = replace(Options.of_seed(seed, random.Random(seed)), polls=True, listener=False)
        counts.update(Simulator(seed, options).run().counts)
    return counts


def test_every_reply_arrives_once_by_polls_whatever_is_lost_or_crashes() -> None:
    counts = run(range(15))
    assert counts["crashes"] > 30 and counts["exchanges lost"] > 100 and counts["handed over"] > 200


@pytest.mark.nightly
def test_every_reply_arrives_once_by_polls_in_many_worlds() -> None:
    counts = run(range(15, 800))
    assert counts["crashes"] > 1000 and counts["exchanges lost"] > 5000


def test_a_reply_that_takes_long_needs_few_polls() -> None:
    lines: list[str] = []
    options = Options(offer=True, requests=1.0, messages=1, handler_latency=20.0, polls=True)
    Simulator(1, options, trace=lines.append).run()
    polls = sum("source sends" in line and "MakeConnection" in line for line in lines)
    assert 3 < polls < 40
