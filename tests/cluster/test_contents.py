"""What a check of stores says about those of simulated endpoints, which keep all promises: nothing.

The stores are checked while the endpoints run, and some of them with a message missing.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from typing import Any

import pytest

from holdfast.cluster.contents import check_store
from holdfast.core.records import Batch
from holdfast.core.states.inbound import DestinationState
from holdfast.simulation.nodes.node import INBOX, Node
from holdfast.simulation.nodes.routed_queues import is_routed
from holdfast.simulation.promises.invariant import Invariant
from holdfast.simulation.simulator import Simulator
from holdfast.simulation.world import World
from holdfast.store.memory import MemoryStore


def stores_of(seed: int, share: float) -> Iterator[MemoryStore]:
    """Return a share of the contents that the endpoints of a world have at some time, and all at the end."""
    found: list[MemoryStore] = []
    draw = random.Random(seed)

    class Keep(Invariant):
        def stored(self, world: World, node: Node, batch: Batch) -> None:
            if draw.random() < share:
                found.append(copy.deepcopy(node.store.durable))

    simulator = Simulator(seed, invariants=[Keep])
    simulator.run()
    yield from found
    yield from (node.store.durable for node in simulator.world.nodes)


def check_worlds(first: int, last: int) -> int:
    """Check the stores of worlds; return how many records these have."""
    records = 0
    for seed in range(first, last):
        for store in stores_of(seed, 0.1):
            found = check_store(store, 0)
            assert not found.problems, (seed, found.problems)
            records += found.bodies
    return records


def test_a_store_that_keeps_its_promises_breaks_no_rule() -> None:
    assert check_worlds(0, 20) > 100


@pytest.mark.nightly
@pytest.mark.parametrize("first", range(1000, 3000, 200))
def test_many_more_stores_that_keep_their_promises_break_no_rule(first: int) -> None:
    check_worlds(first, first + 200)


def lose(store: Any) -> bool:
    """Lose the last message of an open Sequence, if it is in one queue only, and no record was deleted."""
    snapshot = store.load()
    if any(begin or is_routed(queue) for (queue, _), (begin, _) in snapshot.bounds.items()):
        return False
    for where, (begin, end) in snapshot.bounds.items():
        ((_, last),) = store.read(*where, end - 1, end) if end else ((0, None),)
        state = snapshot.sequences.get(last.sequence) if last is not None and last.message_number else None
        if where[0] == INBOX and state is not None and state["state"] == DestinationState.CREATED.value:
            del store._records[where][end - 1]
            store._bounds[where] = (begin, end - 1)
            return True
    return False


def test_a_store_that_lost_a_message_breaks_a_rule() -> None:
    lost = [store for seed in range(40) for store in stores_of(seed, 0.1) if lose(store)]
    assert len(lost) > 10
    for store in lost:
        assert any("accepted, but not stored" in problem for problem in check_store(store, 0).problems)
