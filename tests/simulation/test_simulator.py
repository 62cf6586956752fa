"""The simulator: thousands of seeds in which every promise holds, and planted bugs that it must catch.

Covers simulation/actors/reader.py, simulation/nodes/clock.py, simulation/nodes/ledger.py, simulation/nodes/network.py,
simulation/nodes/node.py, simulation/options.py, simulation/promises/delivery_invariants.py,
simulation/promises/invariant.py, simulation/promises/invariants.py, simulation/promises/liveness.py,
simulation/promises/restarted.py and simulation/world.py.
"""

from __future__ import annotations

import json
import random
import warnings
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import planted_bugs
import pytest
from planted_bugs import MUTANTS
from worlds import worlds

from holdfast.core.messages import IncompleteSequenceBehavior
from holdfast.core.policy import Assurance, Delivery
from holdfast.core.rm_destination.destination import RMDestination
from holdfast.core.sending.outboxes.records import OutboxRecords
from holdfast.core.versions import Versions
from holdfast.exceptions import ConfigurationError
from holdfast.simulation.nodes.clock import EPOCH, SimClock
from holdfast.simulation.nodes.network import NetworkFaults, lossy
from holdfast.simulation.options import Options
from holdfast.simulation.promises.invariants import ALL_INVARIANTS
from holdfast.simulation.promises.routed_invariants import ROUTED_INVARIANTS
from holdfast.simulation.simulator import SimulationFailed, Simulator

SEEDS = 2000
CHUNK = 100
FEW = 40
"""Worlds of the default suite."""
SEARCHED = 4_000
"""Seeds in which each planted bug must show."""
NOTICED_AT: dict[str, int] = json.loads(Path(__file__).with_name("noticed_at.json").read_text(encoding="utf-8"))
"""The first seed that notices each planted bug. A change of the core or of the simulator may move it."""
RENEW = "PYTHONPATH=src:tests/support python tests/simulation/test_simulator.py"


def unread(options: Options) -> Options:
    """The same world without what is drawn beside it: how reading is, handlers, readers, how marks are kept."""
    return replace(options, read_latency=0.0, concurrency=32, alone=False, reader=False, keeps=None, mark_ahead=256)


def first_failure(seeds: Iterable[int]) -> SimulationFailed | None:
    """What the first seed that fails breaks; None if none does."""
    for seed in seeds:
        try:
            Simulator(seed).run()
        except SimulationFailed as failure:
            return failure
    return None


@worlds(150)
def test_everything_arrives_at_a_destination_that_acknowledges_only_on_request(seeds: range) -> None:
    counts: Counter[str] = Counter()
    for seed in seeds:
        chance = random.Random(seed)
        options = replace(Options.draw(chance), asked_only=True, listener=False)
        counts.update(Simulator(seed, options).run().counts)
    assert counts["exchanges lost"] > len(seeds) and counts["crashes"] > len(seeds) / 10


@worlds(150)
def test_nothing_is_doubled_where_a_rollover_names_no_limit(seeds: range) -> None:
    counts: Counter[str] = Counter()
    for seed in seeds:
        chance = random.Random(seed)
        drawn = Options.draw(chance)
        limit = chance.randint(2, 6)
        versions = Versions("1.1", "2005/08", drawn.versions.soap)
        options = replace(drawn, versions=versions, hides_limit=True, destination_limit=limit, messages=12)
        counts.update(Simulator(seed, options).run().counts)
    assert counts["fault.raised"] > len(seeds)


@worlds(150)
def test_everything_arrives_where_early_messages_drop_also_behind_a_broker(seeds: range) -> None:
    counts: Counter[str] = Counter()
    for seed in seeds:
        chance = random.Random(seed)
        drawn = replace(Options.draw(chance), drops_early=True)
        if seed % 3 == 0:
            drawn = next(found for _ in range(1000) if (found := drawn.with_broker(chance)).broker is not None)
        counts.update(Simulator(seed, drawn).run().counts)
    assert counts["message.not_held"] > len(seeds) and counts["exchanges lost"] > len(seeds)
    assert counts["crashes"] > len(seeds) / 3


@worlds(100)
def test_forwarded_messages_arrive_once_and_in_order_whoever_crashes(seeds: range) -> None:
    counts: Counter[str] = Counter()
    for seed in seeds:
        chance = random.Random(seed)
        drawn = replace(Options.draw(chance), partitions=1 + seed % 2)
        options = next(found for _ in range(1000) if (found := drawn.with_broker(chance)).broker is not None)
        crashes = {"crash_source": 0.01, "crash_broker": 0.05, "crash_destination": 0.01}
        counts.update(Simulator(seed, replace(options, **crashes)).run().counts)
    assert counts["crashes"] > 2.5 * len(seeds) and counts["exchanges lost"] > 4 * len(seeds)
    assert counts["message.duplicate_dropped"] > 2.5 * len(seeds) and counts["sequence.created"] > 2.5 * len(seeds)


def with_sessions(seed: int) -> Options:
    """A world with a broker, and many short sessions of one source, whoever crashes."""
    chance = random.Random(seed)
    drawn = Options.draw(chance)
    options = next(found for _ in range(1000) if (found := drawn.with_broker(chance)).broker is not None)
    crashes = {"crash_source": 0.01, "crash_broker": 0.05, "crash_destination": 0.01}
    return replace(options, sessions=1 + seed % 3, requests=0.7, source_limit=3, messages=12, **crashes)  # type: ignore[arg-type]


def test_successive_sessions_of_a_broker_share_no_sequence_whoever_crashes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counts: Counter[str] = Counter()
    for seed in range(8):
        counts.update(Simulator(seed, with_sessions(seed)).run().counts)
    assert counts["crashes"] > 8 and counts["sequence.created"] > 30
    monkeypatch.setattr(OutboxRecords, "cut", lambda _self: False)
    found = set()
    for seed in range(8):
        try:
            Simulator(seed, with_sessions(seed)).run()
        except SimulationFailed as failure:
            found.add(failure.invariant)
    assert found == {"SessionsApart"}


@worlds(100)
def test_held_messages_that_move_one_by_one_are_all_there_whoever_crashes(
    seeds: range, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.core.receiving.held_messages.BLOCK_BYTES", 1)
    counts: Counter[str] = Counter()
    for seed in seeds:
        counts.update(Simulator(seed).run().counts)
    assert counts["crashes"] > len(seeds) / 2 and counts["exchanges lost"] > len(seeds)


def test_two_replies_that_came_in_no_sequence_are_two_dead_letters() -> None:
    options = Options(requests=1.0, messages=6, handler_failures=0.9)
    assert sum(Simulator(seed, options).run().counts["dead_letter.added"] for seed in range(5)) > 5


@pytest.mark.slow
@pytest.mark.parametrize(
    "seeds",
    [
        range(FEW),
        *(pytest.param(range(seed, seed + CHUNK), marks=pytest.mark.nightly) for seed in range(FEW, SEEDS, CHUNK)),
    ],
    ids=str,
)
def test_every_promise_holds_and_everything_heals_in_thousands_of_worlds(seeds: range) -> None:
    counts: Counter[str] = Counter()
    for seed in seeds:
        counts.update(Simulator(seed).run().counts)
    # A simulator in which nothing goes wrong would prove nothing.
    assert counts["crashes"] > len(seeds) / 10 and counts["exchanges lost"] > len(seeds)
    assert counts["message.duplicate_dropped"] > len(seeds)
    assert counts["restarts compared"] > len(seeds) / 2


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_simulator_catches_a_planted_bug(mutant: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """The recorded seed is tried first: to search for it takes minutes of CPU for all bugs together."""
    name = mutant.name  # type: ignore[attr-defined]
    mutant.plant(monkeypatch)  # type: ignore[attr-defined]
    failure = first_failure([NOTICED_AT[name]] if name in NOTICED_AT else [])
    if failure is None:
        warnings.warn(f"no recorded seed notices {name}: renew with `{RENEW}`", stacklevel=1)
        failure = first_failure(range(SEARCHED))
    assert failure is not None, f"{SEARCHED} seeds did not notice it"
    assert failure.invariant in mutant.expected, str(failure)  # type: ignore[attr-defined]


@pytest.mark.nightly
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_first_seed_that_notices_a_planted_bug_breaks_a_promise_that_it_may(
    mutant: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant.plant(monkeypatch)  # type: ignore[attr-defined]
    failure = first_failure(range(SEARCHED))
    assert failure is not None, f"{SEARCHED} seeds did not notice it"
    assert failure.invariant in mutant.expected, str(failure)  # type: ignore[attr-defined]


def test_every_recorded_seed_is_that_of_a_planted_bug() -> None:
    assert NOTICED_AT.keys() == {mutant.name for mutant in MUTANTS}, f"renew with `{RENEW}`"


def test_there_are_more_than_ten_planted_bugs_and_most_invariants_catch_one() -> None:
    assert len(MUTANTS) >= 20
    caught = set().union(*(mutant.expected for mutant in MUTANTS))
    never_planted = {invariant.__name__ for invariant in ALL_INVARIANTS} - caught
    assert {invariant.__name__ for invariant in ROUTED_INVARIANTS} <= caught
    # Their planted bugs have tests of their own, in worlds made for them.
    assert never_planted == {"IncompleteSequences", "SessionsApart"}


def test_a_sequence_that_is_not_discarded_as_it_should_be_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def end(self: RMDestination, last_message_number: int | None) -> object:
        settled = original(self, last_message_number)
        if settled is None:
            return None
        released, discarded, gaps = settled
        return sorted([*released, *discarded]), [], gaps

    original = planted_bugs.replace(monkeypatch, RMDestination, "end", end)
    # A destination that soon expires while a gap is open: the source's messages are late and lost.
    options = Options(
        messages=12,
        behavior=IncompleteSequenceBehavior.DISCARD_ENTIRE_SEQUENCE,
        expires=8.0,
        network=NetworkFaults(lose_request=0.6, delay=0.3, silent=1.0),
    )
    found = set()
    for seed in range(40):
        try:
            Simulator(seed, options).run()
        except SimulationFailed as failure:
            found.add(failure.invariant)
    assert found == {"IncompleteSequences"}


def test_a_seed_tells_the_same_story_every_time() -> None:
    first: list[str] = []
    second: list[str] = []
    Simulator(11, trace=first.append).run()
    Simulator(11, trace=second.append).run()
    assert first == second and len(first) > 10


def test_a_trace_changes_nothing() -> None:
    assert Simulator(5, trace=lambda _line: None).run().events == Simulator(5).run().events


def test_a_failure_names_its_seed_and_how_to_see_it(monkeypatch: pytest.MonkeyPatch) -> None:
    planted_bugs.deliver_a_held_message_early(monkeypatch)
    failure = first_failure(range(400))
    assert failure is not None
    assert f"holdfast simulate --seed {failure.seed} --trace" in str(failure)


def test_an_error_inside_the_core_is_a_failure_with_a_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_arguments: object) -> None:
        raise KeyError("planted")

    monkeypatch.setattr("holdfast.core.protocol_messages.sequence_creation.SequenceCreation.create", broken)
    with pytest.raises(SimulationFailed, match="seed 4: KeyError"):
        Simulator(4).run()


def test_options_come_from_the_seed_and_each_fault_is_missing_in_some_worlds() -> None:
    worlds = [Options.draw(random.Random(seed)) for seed in range(200)]
    assert worlds == [Options.draw(random.Random(seed)) for seed in range(200)]
    assert len({world.versions for world in worlds}) == 6
    for fault in ("lose_request", "lose_response", "duplicate", "delay"):
        rates = {getattr(world.network, fault) for world in worlds}
        assert 0.0 in rates and len(rates) > 1


def test_a_third_of_the_worlds_is_turned_to_what_others_seldom_see() -> None:
    turned = [unread(Simulator(seed).options) for seed in range(400)]
    drawn = [Options.draw(random.Random(seed)) for seed in range(400)]
    assert 27 < sum(one.broker is not None for one in turned) < 73
    others = [
        one.broker is not None or one.strangers > 0 or one.queues > 0 or one.block_bytes is not None for one in turned
    ]
    turned = [one for one, is_other in zip(turned, others, strict=True) if not is_other]
    drawn = [one for one, is_other in zip(drawn, others, strict=True) if not is_other]
    rare = [one for one, other in zip(turned, drawn, strict=True) if one != other]
    assert 66 < len(rare) < 166
    assert sum(one.ends > 0 for one in rare) > 10
    assert sum(one.assurance == Assurance(Delivery.AT_MOST_ONCE, True) for one in rare) > 10
    assert sum(one.handler_failures > 0.0 for one in rare) > 20
    assert all(one.offer or not one.requests for one in rare if one.assurance.delivery is Delivery.AT_MOST_ONCE)


def test_what_is_given_is_not_turned_to_the_rare() -> None:
    assert all(Simulator(seed, Options(messages=1)).options == Options(messages=1) for seed in range(30))


def test_loss_replaces_what_was_drawn() -> None:
    simulator = Simulator(3, loss=0.4)
    assert simulator.options.network.lose_request == simulator.options.network.lose_response == 0.4


def test_a_world_without_faults_sends_every_message_once() -> None:
    report = Simulator(1, Options(messages=12)).run()
    assert report.counts["messages transmitted"] == 12
    assert "message.duplicate_dropped" not in report.counts and "crashes" not in report.counts


def test_a_lossy_network_does_the_same_for_the_same_seed() -> None:
    first, second, other = lossy(0.3, seed=7), lossy(0.3, seed=7), lossy(0.3, seed=8)
    fates = [first.fate() for _ in range(200)]
    assert fates == [second.fate() for _ in range(200)]
    assert fates != [other.fate() for _ in range(200)]
    lost = sum(not fate.copies for fate in fates)
    assert 30 < lost < 90


def test_a_parted_network_lets_nothing_through() -> None:
    network = lossy(0.0)
    assert network.fate().copies
    network.is_partitioned = True
    assert not network.fate().copies


@pytest.mark.parametrize("fault", [{"lose_request": 1.5}, {"duplicate": -0.1}, {"latency": -1.0}])
def test_faults_that_make_no_sense_are_refused(fault: dict[str, float]) -> None:
    with pytest.raises(ConfigurationError):
        NetworkFaults(**fault)


def test_a_wall_clock_may_jump_while_true_time_only_advances() -> None:
    clock = SimClock()
    clock.advance_to(EPOCH + 5)
    clock.advance_to(EPOCH + 1)
    clock.jump(1, -86_400)
    assert clock.now == clock.local(0) == EPOCH + 5
    assert clock.local(1) == EPOCH + 5 - 86_400
    clock.advance_to(clock.true_time(1, clock.local(1)))
    assert clock.local(1) >= EPOCH + 5 - 86_400


def renew() -> None:
    """Search the first seed of every planted bug, and record it."""
    found = {}
    for mutant in MUTANTS:
        with pytest.MonkeyPatch.context() as monkeypatch:
            mutant.plant(monkeypatch)
            failure = first_failure(range(SEARCHED))
        if failure is not None:
            found[mutant.name] = failure.seed
    Path(__file__).with_name("noticed_at.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    renew()
