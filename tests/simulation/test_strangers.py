"""Forged messages in the simulator: what a stranger says changes no Sequence.

Covers simulation/actors/strangers.py.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest
from worlds import worlds

from holdfast.simulation.options import Options
from holdfast.simulation.simulator import Simulator


@worlds(120)
@pytest.mark.parametrize("is_certified", [False, True])
def test_nothing_that_a_stranger_says_changes_a_sequence(is_certified: bool, seeds: range) -> None:
    counts: Counter[str] = Counter()
    for seed in seeds:
        drawn = replace(Options.draw(random.Random(seed)), listener=True, strangers=20, certified=is_certified)
        counts.update(Simulator(seed, drawn).run().counts)
    refused = counts["message.unauthorized"]
    assert counts["forged"] > 8 * len(seeds) and counts["statement.unauthorized"] > 2 * len(seeds)
    assert refused > 4 * len(seeds) if is_certified else refused == 0


def test_strangers_come_to_some_worlds_and_leave_the_others_as_they_were() -> None:
    drawn = [Options.draw(random.Random(seed)) for seed in range(120)]
    worlds = [one.with_strangers(random.Random(f"strangers of {seed}")) for seed, one in enumerate(drawn)]
    visited = [one.strangers > 0 for one in worlds]
    assert 10 < sum(visited) < 30
    assert all(one == other for one, other, is_visited in zip(worlds, drawn, visited, strict=True) if not is_visited)
    assert {one.certified for one in worlds if one.strangers} == {True, False}
