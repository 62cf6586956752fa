"""A service that refuses messages, in the simulator: they become dead letters, and their requesters receive a reply.

Covers simulation/promises/refusals.py.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest
from worlds import worlds

from holdfast.core.versions import ALL_VERSIONS, Versions
from holdfast.simulation.options import Options
from holdfast.simulation.promises.refusals import TIMES
from holdfast.simulation.simulator import Simulator


@worlds(40)
def test_each_refused_message_becomes_one_dead_letter_whoever_crashes(seeds: range) -> None:
    counts: Counter[str] = Counter()
    for seed in seeds:
        chance = random.Random(seed)
        drawn = Options.draw(chance)
        options = next(found for _ in range(1000) if (found := drawn.with_broker(chance).with_refusals(chance)).refuses)
        crashes = {"crash_source": 0.01, "crash_broker": 0.05, "crash_destination": 0.01}
        counts.update(Simulator(seed, replace(options, **crashes)).run().counts)
    assert counts["messages refused"] > 5 * len(seeds) and counts["dead_letter.added"] > len(seeds)
    assert counts["crashes"] > 2 * len(seeds)


def test_a_service_that_refuses_every_other_message_gets_the_rest() -> None:
    options = Options(refuses=2, messages=10, broker=ALL_VERSIONS[0])
    counts = Simulator(1, options).run().counts
    assert counts["dead_letter.added"] >= 5
    assert counts["messages refused"] >= 5 * TIMES + 5


@worlds(50)
@pytest.mark.parametrize("rm", ["1.0", "1.1"])
def test_dead_letters_that_are_requeued_arrive_once_the_service_is_repaired(rm: str, seeds: range) -> None:
    options = Options(refuses=2, repaired=True, messages=10, requests=0.5, broker=Versions(rm), crash_broker=0.02)
    counts: Counter[str] = Counter()
    for seed in seeds:
        counts.update(Simulator(seed, options).run().counts)
    assert counts["dead_letter.added"] >= 2 * len(seeds) and counts["dead letters requeued"] >= len(seeds)


def test_services_refuse_messages_behind_some_brokers_only() -> None:
    worlds = [Simulator(seed).options for seed in range(300)]
    refusing = [one for one in worlds if one.refuses]
    assert 8 < len(refusing) < 40
    assert all(one.broker is not None for one in refusing)
    assert {bool(one.requests) for one in refusing} == {one.repaired for one in refusing} == {True, False}
