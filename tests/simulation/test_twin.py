"""Two destinations of one source that grant the same Identifier, in the simulator."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

from worlds import worlds

from holdfast.simulation.options import Options
from holdfast.simulation.simulator import Simulator


@worlds(60)
def test_two_sequences_with_one_identifier_both_deliver_everything_whoever_crashes(seeds: range) -> None:
    counts: Counter[str] = Counter()
    for seed in seeds:
        chance = random.Random(seed)
        drawn = Options.draw(chance)
        options = next(one for _ in range(1000) if (one := drawn.with_twin(chance)).twin)
        counts.update(Simulator(seed, replace(options, crash_source=0.02)).run().counts)
    assert counts["messages to the second destination"] > 4 * len(seeds) and counts["crashes"] > len(seeds) / 2
    assert counts["messages in a Sequence with the Identifier of another"] > 5 * len(seeds)


def test_some_worlds_have_a_second_destination() -> None:
    worlds = [Simulator(seed).options for seed in range(300)]
    twins = [one for one in worlds if one.twin]
    assert 8 < len(twins) < 40
    assert not any(one.may_stop or one.broker is not None for one in twins)
