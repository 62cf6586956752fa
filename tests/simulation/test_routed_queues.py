"""Worlds with several queues and readers, blocks of held messages, and several sinks: what happens in them.

The planted bugs of these worlds are in ``support/planted_bugs.py``, and ``test_simulator.py`` plants them.

Covers simulation/actors/routed_readers.py, simulation/forwarded_services.py, simulation/nodes/routed_queues.py and
simulation/promises/routed_invariants.py.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest
from worlds import worlds

from holdfast.core.policy import Assurance, Delivery
from holdfast.core.queues.queue import Queue
from holdfast.core.queues.retention import RetentionPolicy
from holdfast.simulation.nodes.network import NetworkFaults
from holdfast.simulation.nodes.routed_queues import is_routed, names_of, route_of
from holdfast.simulation.options import Options
from holdfast.simulation.simulator import SimulationFailed, Simulator

RETENTIONS = (
    RetentionPolicy(age=None, size=1, reader_age=None, reader_size=None),
    RetentionPolicy(age=0.5, size=None, reader_age=None, reader_size=None),
    RetentionPolicy(age=0.5, size=500, reader_age=None, reader_size=1000),
    RetentionPolicy(age=None, size=1, reader_age=2.0, reader_size=None),
)


def drawn(seed: int) -> Options:
    """A world as its seed has it."""
    return Simulator(seed).options


def is_new(options: Options) -> bool:
    """Whether a world has any of what this file is about."""
    has_writers = options.writers > 1 or options.repeats > 0.0 or options.remembers is not None
    return options.queues > 0 or options.broker_queues > 0 or options.block_bytes is not None or has_writers


def test_every_kind_of_world_is_among_all_seeds() -> None:
    worlds = [drawn(seed) for seed in range(400)]
    assert sum(one.queues > 0 for one in worlds) > 50
    assert {one.partitions for one in worlds if one.queues} == {1, 2, 3}
    assert sum(one.block_crashes > 0.0 for one in worlds) > 30
    assert sum(one.writers > 1 for one in worlds) > 5 and sum(one.repeats > 0.0 for one in worlds) > 5
    assert sum(one.broker_queues > 0 for one in worlds) > 8
    assert sum(is_new(one) for one in worlds) < 240


def test_a_route_is_the_same_at_every_repeat_and_every_combination_of_queues_is_one() -> None:
    names = names_of(3)
    routes = {route_of(b"m%d" % number, names) for number in range(200)}
    assert len(routes) == 8
    assert route_of(b"m1", names) == route_of(b"m1", names)


@worlds(100)
@pytest.mark.parametrize("retention", RETENTIONS, ids=str)
def test_readers_of_several_queues_read_all_that_they_protect(retention: RetentionPolicy, seeds: range) -> None:
    counts: Counter[str] = Counter()
    for seed in seeds:
        chance = random.Random(seed)
        options = replace(
            Options.draw(chance), queues=2, routed_retention=retention, partitions=1 + seed % 3, crash_destination=0.03
        )
        counts.update(Simulator(seed, options).run().counts)
    assert counts["records read"] > 50 and counts["readers went back"] > 5 and counts["crashes"] > 5
    assert counts["settlements that came late"] > 2 and counts["cursors deleted"] > 2
    is_limited = retention.reader_age is not None or retention.reader_size is not None
    assert (counts["records missed, and reported"] > 0) == is_limited


@worlds(200)
def test_a_destination_that_dies_between_two_blocks_releases_held_messages_whole(seeds: range) -> None:
    counts: Counter[str] = Counter()
    for seed in seeds:
        options = Options(
            messages=16,
            window=16,
            initial_window=16,
            commit_latency=0.5,
            network=NetworkFaults(lose_request=0.2, delay=0.6),
            assurance=Assurance(Delivery.EXACTLY_ONCE, in_order=True),
            block_bytes=1,
            block_crashes=0.3,
            queues=seed % 3,
        )
        counts.update(Simulator(seed, options).run().counts)
    assert counts["crashes between blocks"] > len(seeds) / 2


@worlds(50)
def test_rows_of_writers_with_repeated_requests_arrive_once_and_sinks_are_forgotten(seeds: range) -> None:
    counts: Counter[str] = Counter()
    for seed in seeds:
        chance = random.Random(seed)
        options = next(found for _ in range(1000) if (found := Options.draw(chance).with_broker(chance)).writer)
        options = replace(options, writers=2, repeats=0.3, remembers=200.0, crash_broker=0.03)
        counts.update(Simulator(seed, options).run().counts)
    assert counts["requests of writers that came twice"] > len(seeds) and counts["crashes"] > len(seeds)
    assert counts["sink.forgotten"] >= 2 * len(seeds)


def with_broker_queues(seed: int) -> Options:
    """A world with a broker that has several queues, and crashes often."""
    chance = random.Random(seed)
    drawn = next(found for _ in range(1000) if (found := Options.draw(chance).with_broker(chance)).broker is not None)
    options = next(found for _ in range(1000) if (found := drawn.with_broker_queues(chance)).broker_queues)
    return replace(options, crash_broker=0.05)


@worlds(60)
def test_every_forwarder_of_a_broker_sends_its_queue_whoever_crashes(seeds: range) -> None:
    counts: Counter[str] = Counter()
    drawn = [with_broker_queues(seed) for seed in seeds]
    assert {one.broker_queues for one in drawn} == {1, 2, 3} and {one.partitions for one in drawn} == {1, 2}
    for seed, options in zip(seeds, drawn, strict=True):
        counts.update(Simulator(seed, options).run().counts)
    assert counts["crashes"] > 2.5 * len(seeds) and counts["messages to services of further queues"] > 5 * len(seeds)


def broken(seed: int) -> str | None:
    """The promise that is broken in a world with queues of a broker."""
    try:
        Simulator(seed, with_broker_queues(seed)).run()
    except SimulationFailed as failure:
        return failure.invariant
    return None


def test_a_forwarder_that_passes_over_what_waits_at_a_start_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def follow(self: Queue, name: str, partition: int, start: int | None, grown: object) -> None:
        if is_routed(self.name) and name in self.cursors:
            self.cursors[name].offsets[partition] = self.partitions[partition].durable_end
        original(self, name, partition, start, grown)

    original = Queue.follow
    monkeypatch.setattr(Queue, "follow", follow)
    assert any(broken(seed) == "EveryForwarderSendsItsQueue" for seed in range(40))


@pytest.mark.nightly
@pytest.mark.parametrize("first", range(2000, 12000, 1000))
def test_every_promise_holds_in_thousands_of_them(first: int) -> None:
    counts: Counter[str] = Counter()
    for seed in range(first, first + 1000):
        simulator = Simulator(seed)
        if is_new(simulator.options):
            counts.update(simulator.run().counts)
    assert counts["crashes between blocks"] > 10 and counts["records missed, and reported"] > 100
