"""Services that are slower than the retransmission timeout, in the simulator.

Covers simulation/promises/slow_services.py.
"""

from __future__ import annotations

import random
from collections import Counter

from worlds import worlds

from holdfast.simulation.options import Options
from holdfast.simulation.simulator import Simulator


@worlds(60)
def test_a_request_whose_handler_takes_long_is_handled_once_and_gets_its_reply(seeds: range) -> None:
    counts: Counter[str] = Counter()
    for seed in seeds:
        chance = random.Random(seed)
        drawn = Options.draw(chance)
        worlds = (drawn.with_broker(chance).with_slow_services(chance) for _ in range(1000))
        counts.update(Simulator(seed, next(one for one in worlds if one.handler_latency >= 5.0)).run().counts)
    assert counts["handed over"] > 2.5 * len(seeds) and counts["message.duplicate_dropped"] > 5 * len(seeds)


def test_a_request_is_not_repeated_while_the_exchange_that_carries_it_is_open() -> None:
    options = Options(requests=1.0, messages=4, window=1, handler_latency=20.0, reply_patience=30.0)
    counts = Simulator(1, options).run().counts
    assert counts["messages transmitted"] == 4 and "message.duplicate_dropped" not in counts


def test_some_worlds_have_slow_services() -> None:
    worlds = [Simulator(seed).options for seed in range(300)]
    slow = [one for one in worlds if one.handler_latency >= 5.0]
    assert 8 < len(slow) < 40
    assert all(one.retransmission.initial < one.handler_latency for one in slow)
    assert any(one.requests and one.broker is not None for one in slow)
