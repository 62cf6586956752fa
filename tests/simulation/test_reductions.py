"""What makes the search small loses no schedule: a search without it meets the same states, and no others.

The plain search here has living endpoints, copied whole; it remembers no step, tries every one of several packets that
are alike, and goes on from *every* living state, also from one that is taken for equal to another. If two such states
could do different things, what one of them could do would have been lost.

Covers simulation/explorer/memory.py, simulation/explorer/situation.py, simulation/explorer/stage.py and
simulation/nodes/fingerprint.py.
"""

from __future__ import annotations

import io
import pickle
from collections import deque
from hashlib import blake2b
from typing import Any

import pytest

from holdfast.core.events import Transmit
from holdfast.core.messages import ANONYMOUS_EPR, CreateSequence, Envelope
from holdfast.core.policy import SourcePolicy
from holdfast.core.rm_destination.destination import RMDestination
from holdfast.core.rm_source.source import RMSource
from holdfast.core.versions import SOAP, Versions
from holdfast.simulation.explorer.exploration import Explorer
from holdfast.simulation.explorer.memory import Memory
from holdfast.simulation.explorer.situation import Action, Bounds, Keys, Kind, Packet, Situation
from holdfast.simulation.explorer.stage import Stage, begin
from holdfast.simulation.promises.invariant import InvariantViolation


class Pickler(pickle.Pickler):
    def persistent_id(self, value: Any) -> int | None:
        return 0 if value is ANONYMOUS_EPR else None  # the core asks for this very object


class Unpickler(pickle.Unpickler):
    def persistent_load(self, _number: int) -> Any:
        return ANONYMOUS_EPR


def saved(situation: Situation) -> bytes:
    file = io.BytesIO()
    Pickler(file, pickle.HIGHEST_PROTOCOL).dump(situation)
    return file.getvalue()


def restored(data: bytes) -> Situation:
    situation: Situation = Unpickler(io.BytesIO(data)).load()
    return situation


class PlainSearch:
    """Breadth first, like the explorer, and with nothing that makes it small.

    Args:
        bounds: How far it goes.
    """

    def __init__(self, bounds: Bounds) -> None:
        self.following: dict[bytes, frozenset[bytes]] = {}
        """Key of a state -> the keys of all that may follow."""
        self.ends: set[bytes] = set()
        self.living = 0
        """Living states that were expanded; several of them may have one key."""
        self.violation: InvariantViolation | None = None
        self.depth = 0
        self._keys = Keys()
        self._seen: set[bytes] = set()
        self._frontier: deque[tuple[bytes, int]] = deque()
        self._add(begin(Stage(bounds)), 0)

    def run(self) -> None:
        """Until all is seen, or something breaks."""
        while self._frontier and self.violation is None:
            data, self.depth = self._frontier.popleft()
            self._expand(data)

    def _add(self, situation: Situation, depth: int) -> bytes:
        data = saved(situation)
        identity = blake2b(data, digest_size=16).digest()
        if identity not in self._seen:
            self._seen.add(identity)
            self._frontier.append((data, depth))
        return self._keys.of(situation)

    def _expand(self, data: bytes) -> None:
        self.living += 1
        situation = restored(data)
        key, actions = self._keys.of(situation), list(every_action(situation))
        following = set()
        for action in actions:
            situation = restored(data)
            try:
                situation.perform(action)
            except InvariantViolation as violation:
                self.violation = violation
                self.depth += 1
                return
            following.add(self._add(situation, self.depth + 1))
        if all(verb == "crash" for verb, *_ in actions):
            self.ends.add(key)
        assert self.following.setdefault(key, frozenset(following)) == following, "equal states, and yet they differ"


def every_action(situation: Situation) -> list[Action]:
    """Also those of a packet that is like an earlier one."""
    actions, packets = list(situation.actions()), situation.packets
    first = {packet.form: index for index, packet in reversed(list(enumerate(packets)))}
    for index, packet in enumerate(packets):
        if first[packet.form] != index:
            like = [action for action in actions if action[1] == first[packet.form]]
            actions += [(verb, index, 0) for verb, *_ in like if verb in ("deliver", "lose", "duplicate")]
    return actions


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "bounds",
    [
        pytest.param(Bounds(messages=1, losses=1), marks=pytest.mark.nightly),
        pytest.param(Bounds(messages=2, losses=0), marks=pytest.mark.nightly),
        pytest.param(Bounds(messages=1, losses=0, crashes=1, requests=True), marks=pytest.mark.nightly),
        pytest.param(Bounds(messages=1, losses=0, duplicates=1), marks=pytest.mark.nightly),
        Bounds(messages=1, losses=0, versions=Versions("1.0")),
    ],
    ids=str,
)
def test_states_that_are_taken_for_equal_lead_to_equal_states_and_none_is_lost(bounds: Bounds) -> None:
    plain, explorer = PlainSearch(bounds), Explorer(bounds)
    plain.run()
    result = explorer.run()
    assert plain.violation is None
    assert result.violation is None
    assert explorer.met == set(plain.following)
    assert explorer.ends == plain.ends
    assert plain.living >= result.states
    print(f"{bounds}: {plain.living} living states, {result.states} that differ")


@pytest.mark.slow
@pytest.mark.parametrize("bug", ["hold", "acknowledge"])
def test_a_plain_search_finds_nothing_sooner(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if bug == "hold":
        monkeypatch.setattr(RMDestination, "hold", lambda self, number, size=0: False)
    else:
        monkeypatch.setattr(RMDestination, "acknowledge", lambda self, number: self.acknowledged.add(number + 1))
    bounds = Bounds(messages=2, losses=0)
    plain, result = PlainSearch(bounds), Explorer(bounds).run()
    plain.run()
    assert plain.violation is not None and result.violation is not None
    assert plain.violation.invariant == result.violation.invariant
    assert plain.depth == len(result.schedule)


def test_a_remembered_endpoint_is_what_it_was() -> None:
    memory = Memory(Bounds(messages=1, losses=0))
    situation = memory.begin()
    for _ in range(6):
        situation.perform(next(situation.actions()))
    memory.missing(situation)  # puts both on the stage
    source, destination = memory.stage.world.nodes
    new = RMSource("urn:new", "new", Versions("1.1"), SourcePolicy(), 0.0)
    assert source.protocol.outbound.registry.is_anonymous(new)
    assert not destination.protocol.outbound.registry.is_anonymous(new)
    assert source.setup.source_policy is source.protocol.outbound.registry.policy
    for index, endpoint in enumerate(situation.endpoints):
        assert memory.stage.form(index) == endpoint.form


def test_a_step_is_worked_out_once() -> None:
    memory = Memory(Bounds(messages=1, losses=0))
    situation = memory.begin()
    for _ in range(3):
        situation.copy().perform(next(situation.actions()))
    assert memory.steps == 1


def test_a_copy_of_a_situation_lives_its_own_life() -> None:
    situation, keys = Memory(Bounds(messages=2, losses=1)).begin(), Keys()
    before = keys.of(situation)
    copy = situation.copy()
    assert keys.of(copy) == before
    copy.perform(next(copy.actions()))
    assert keys.of(copy) != before
    assert keys.of(situation) == before


def test_states_that_differ_in_their_identifiers_only_are_the_same() -> None:
    keys, stages = Keys(), (Stage(Bounds()), Stage(Bounds()))
    one, other = begin(stages[0]), begin(stages[1])
    stages[1].world.nodes[1].identifiers += 5  # what it grants next has another name
    for _ in range(6):
        for situation in (one, other):
            situation.perform(next(situation.actions()))
        assert keys.of(one) == keys.of(other)


def test_states_that_differ_in_the_time_of_the_day_only_are_the_same() -> None:
    keys, stages = Keys(), (Stage(Bounds()), Stage(Bounds()))
    one, other = begin(stages[0]), begin(stages[1])
    stages[1].world.clock.now += 3600.0
    for _ in range(6):
        for situation in (one, other):
            situation.perform(next(situation.actions()))
    # What had a time before the hour is in the past in one of them: nothing depends on how long ago.
    assert keys.of(one) == keys.of(other)


def test_the_order_of_packets_does_not_count() -> None:
    keys, situation = Keys(), Memory(Bounds(messages=3, losses=0)).begin()
    while len(situation.packets) < 3:
        situation.perform(next(situation.actions()))
    other = situation.copy()
    other.packets.reverse()
    assert keys.of(other) == keys.of(situation)


def test_packets_with_unknown_names_differ_only_by_which_names_are_equal() -> None:
    keys = Keys()

    def create(*numbers: int) -> bytes:
        situation = begin(Stage(Bounds(messages=1, losses=0)))
        for number in numbers:
            envelope = Envelope(SOAP.V1_2, control=CreateSequence(ANONYMOUS_EPR), message_id=f"urn:source:{number}")
            situation.packets.append(Packet(0, 1, Transmit("http://destination.test/", envelope)))
        return keys.of(situation)

    assert create(7, 8) == create(8, 9) == create(9, 8)
    assert create(7, 8) != create(7, 7)


def test_states_that_differ_in_what_may_still_go_wrong_are_different() -> None:
    keys = Keys()
    assert keys.of(begin(Stage(Bounds(losses=1)))) != keys.of(begin(Stage(Bounds(losses=2))))


def test_of_packets_that_are_alike_one_is_tried() -> None:
    situation = Memory(Bounds(messages=1, losses=0)).begin()
    while not situation.packets:
        situation.perform(next(situation.actions()))
    tried = len(list(situation.actions()))
    situation.packets.append(situation.packets[0])
    assert len(list(situation.actions())) == tried


def test_an_answer_to_a_process_that_is_gone_reaches_nobody() -> None:
    situation = Memory(Bounds(messages=1, losses=0, crashes=1)).begin()
    while not situation.packets:
        situation.perform(next(situation.actions()))
    situation.perform(("crash", 0, 0))  # its CreateSequence is still on its way
    assert [packet.kind for packet in situation.packets].count(Kind.ORPHAN) == 1
    orphan = next(index for index, packet in enumerate(situation.packets) if packet.kind is Kind.ORPHAN)
    situation.perform(("deliver", orphan, 0))
    situation.perform(("durable", 1, 0))
    assert not any(packet.is_response for packet in situation.packets)
