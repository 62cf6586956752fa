"""Circuits: a destination that is away costs one message now and then, however much waits for it and however long; one
that is back is not run over.

Covers core/deadlines.py.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from holdfast.core.events import Incident, Transmit
from holdfast.core.messages import (
    Acknowledge,
    CreateSequence,
    CreateSequenceResponse,
    Envelope,
    SequenceAcknowledgement,
)
from holdfast.core.policy import CircuitPolicy, ForwardingPolicy, SourcePolicy
from holdfast.core.sending.circuit import Circuit
from holdfast.core.states.outbox import CIRCUIT_TABLE, CircuitAction, CircuitEvent, CircuitState
from holdfast.core.states.table import NoSuchMove
from holdfast.core.steering import Steering
from holdfast.exceptions import ConfigurationError
from tests.core.forwarding.test_forwarding import NEXT, STEADY, Relay

HOUR = 3600.0


class Fleet(Relay):
    """A relay whose queue has many partitions, each forwarded by itself to one destination, which may be away."""

    def __init__(self, partitions: int, **policy: Any) -> None:
        super().__init__(count=partitions, window=8)
        self.is_up = True
        self.is_listening = True
        """Whether there is a connection to it while it does not answer."""
        self.arrived: list[tuple[float, str, int]] = []
        """When each request came to the destination, or would have, of which outbox, and its number."""
        self.received: set[tuple[str, int]] = set()
        self.pause = 0.0
        settings = ForwardingPolicy(**{"sending": SourcePolicy(retransmission=STEADY)} | policy)
        for partition in range(partitions):
            self.forward(f"f/{partition}", partition, policy=settings)

    def fill(self, each: int) -> None:
        """So many messages wait in each partition."""
        queue, numbers = self.queue, itertools.count()
        for partition in range(len(queue.partitions)):
            while queue.records.ends[partition] < each:
                self.inbound = ""
                self.come(f"m{next(numbers)}")
                if next(numbers) > 20_000:
                    raise AssertionError("no Sequence comes into that partition")

    def run(self, seconds: float) -> None:
        """Let the time pass, and the destination answer or not."""
        protocol = self.protocol
        end = self.now + seconds
        self.settle()
        while True:
            while self.sent:
                self.exchange(self.sent.pop(0))
                self.settle()
            due = protocol.deadline()
            if due is None or due > end:
                self.now = end
                return
            self.now = max(self.now, due)
            self.settle()

    def exchange(self, sent: Transmit) -> None:
        outbox = self.protocol.outbound.sequences.by_local_id.get(sent.source)
        self.arrived.append((self.now, outbox.key if outbox is not None else "", sent.number))
        envelope = Envelope(sent.envelope.soap, sent.envelope.addressing, sent.envelope.rm)
        if self.pause:
            self.protocol.outbound.pause(sent.to, self.pause, self.now)
        if not self.is_up:
            self.protocol.failed(sent, self.now, "nobody listens", has_left=self.is_listening)
            return
        envelope.relates_to = sent.envelope.message_id
        if isinstance(sent.envelope.control, CreateSequence):
            envelope.control = CreateSequenceResponse(f"urn:next:{next(self.identifiers)}")
        elif sent.envelope.sequence is not None:
            sequence = sent.envelope.sequence
            self.received.add((sequence.identifier, sequence.message_number))
            numbers = sorted(number for name, number in self.received if name == sequence.identifier)
            assert numbers == list(range(1, len(numbers) + 1))
            envelope.control = Acknowledge()
            envelope.acknowledgements = (SequenceAcknowledgement(sequence.identifier, ((1, len(numbers)),)),)
        self.protocol.received(sent, envelope, self.now)

    @property
    def circuit(self) -> Circuit:
        return self.protocol.outbound.circuits[NEXT]

    @property
    def incidents(self) -> list[str]:
        return [one.name for one in self.told if isinstance(one, Incident) and one.name.startswith("circuit")]

    def counted(self, since: float = 0.0) -> int:
        return sum(at >= since for at, _, _ in self.arrived)


def test_a_network_that_loses_many_in_a_row_and_answers_others_opens_nothing() -> None:
    fleet = Fleet(1)
    fleet.fill(1)
    fleet.run(1.0)
    circuits, circuit = fleet.protocol.outbound.circuits, fleet.circuit
    for _ in range(20):
        circuits.answered(NEXT, fleet.now)
        for _ in range(3 * circuit.policy.failures):
            fleet.now += circuit.policy.silence / (4 * circuit.policy.failures)
            circuits.failed(NEXT, "lost", fleet.now)
    assert circuit.state is CircuitState.CLOSED
    assert fleet.incidents == []


def test_a_destination_silent_for_long_enough_opens_it() -> None:
    fleet = Fleet(1)
    fleet.fill(1)
    fleet.run(1.0)
    circuits, circuit = fleet.protocol.outbound.circuits, fleet.circuit
    circuits.answered(NEXT, fleet.now)
    for _ in range(circuit.policy.failures):
        circuits.failed(NEXT, "refused", fleet.now)
    assert circuit.state is CircuitState.CLOSED
    fleet.now += circuit.policy.silence
    circuits.failed(NEXT, "refused", fleet.now)
    assert circuit.state is CircuitState.OPEN


@pytest.mark.parametrize("state", CircuitState)
def test_a_circuit_moves_as_its_cell_says(state: CircuitState) -> None:
    for event in CircuitEvent:
        circuit = Circuit(NEXT, CircuitPolicy(), state)
        cell = CIRCUIT_TABLE.get((state, event))
        if cell is None:
            assert event.is_ours, "whatever a destination does, there is a cell for it"
            with pytest.raises(NoSuchMove):
                circuit.handle(event)
        else:
            assert (circuit.handle(event), circuit.state) == cell
    assert {action for action, _ in CIRCUIT_TABLE.values()} == set(CircuitAction)


def test_a_destination_away_for_days_gets_single_messages_less_and_less_often() -> None:
    fleet = Fleet(20)
    fleet.fill(3)
    fleet.run(1.0)
    fleet.is_up = False
    fleet.fill(8)
    away = fleet.now
    fleet.run(72 * HOUR)
    assert fleet.circuit.state is CircuitState.OPEN
    times = [at - away for at, _, _ in fleet.arrived if at > away]
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert gaps[:6] == [2.0, 4.0, 8.0, 16.0, 32.0, 60.0] and set(gaps[6:]) == {60.0}
    assert len({key for at, key, _ in fleet.arrived if at > away + HOUR}) == 20, "they take turns"
    assert fleet.incidents == ["circuit.opened"]
    (told,) = fleet.protocol.outbound.circuits.describe(fleet.now)
    assert told["state"] == "open" and told["reason"] == "nobody listens" and told["waiting"] >= 19
    assert 72 * HOUR - 60 < told["open_for"] <= 72 * HOUR and 0 <= told["next_try"] <= 60.0


def test_where_nobody_listens_the_next_attempt_follows_soon_for_it_costs_nothing() -> None:
    fleet = Fleet(20)
    fleet.fill(3)
    fleet.run(1.0)
    fleet.is_up = fleet.is_listening = False
    fleet.fill(8)
    away = fleet.now
    fleet.run(HOUR)
    times = [at - away for at, _, _ in fleet.arrived if at > away]
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert gaps[:2] == [2.0, 4.0] and set(gaps[2:]) == {4.0}
    assert len({key for at, key, _ in fleet.arrived if at > away + 100}) == 20, "they take turns"
    fleet.is_up = True
    back = fleet.now
    fleet.run(5.0)
    assert fleet.counted(since=back) >= 20 * 8 - 1, "all of it has left within five seconds"


def test_a_destination_that_is_back_is_not_run_over_and_gets_everything() -> None:
    fleet = Fleet(40)
    fleet.is_up = False
    fleet.fill(12)
    fleet.run(10 * HOUR)
    fleet.is_up = True
    sizes: list[int] = []

    def answer_in_rounds() -> None:
        """What is under way at a time is answered together, a moment later."""
        while True:
            fleet.settle()
            together, fleet.sent = fleet.sent, []
            if not together:
                due = fleet.protocol.deadline()
                if due is None or all(outbox.records.is_empty for outbox in fleet.protocol.outbound.outboxes.values()):
                    return
                fleet.now = max(fleet.now, due)
                continue
            sizes.append(len(together))
            fleet.now += 0.05
            for sent in together:
                fleet.exchange(sent)

    answer_in_rounds()
    assert all(outbox.records.is_empty for outbox in fleet.protocol.outbound.outboxes.values())
    assert sizes[0] == 1
    assert all(later <= 4 * earlier for earlier, later in itertools.pairwise(sizes)), sizes
    assert fleet.incidents[-1] == "circuit.closed" and fleet.circuit.state is CircuitState.CLOSED


def test_failures_between_which_the_destination_answers_open_nothing() -> None:
    fleet = Fleet(1)
    fleet.fill(1)
    for _ in range(20):
        fleet.is_up = False
        while fleet.circuit.failures < 4:
            fleet.run(0.25)
        fleet.is_up = True
        fleet.inbound = ""
        fleet.come("again")
        fleet.run(5.0)
        assert fleet.circuit.failures == 0
    assert fleet.incidents == []


def test_a_retry_after_opens_the_circuit_for_as_long_as_it_says() -> None:
    fleet = Fleet(8)
    fleet.fill(2)
    fleet.run(1.0)
    fleet.is_up, fleet.pause = False, 300.0
    fleet.fill(4)
    asked = fleet.now
    fleet.run(299.0)
    assert {at for at, _, _ in fleet.arrived if at > asked} == set()
    fleet.is_up, fleet.pause = True, 0.0
    fleet.run(60.0)
    assert min(at for at, _, _ in fleet.arrived if at > asked) == asked + 300.0
    assert fleet.incidents == ["circuit.opened", "circuit.closed"]
    assert all(outbox.records.is_empty for outbox in fleet.protocol.outbound.outboxes.values())


def test_an_outbox_that_is_stopped_held_back_or_empty_leaves_the_trying_to_another() -> None:
    fleet = Fleet(4)
    fleet.fill(2)
    fleet.is_up = False
    fleet.run(1.0)
    outboxes = [fleet.protocol.outbound.outboxes[f"f/{number}"] for number in range(4)]
    steering = Steering(fleet.protocol)
    steering.suspend(outboxes[0], "in this test")
    outboxes[1].stop("code", "in this test", fleet.now)
    fleet.run(HOUR)
    late = {key for at, key, _ in fleet.arrived if at > fleet.now - HOUR / 2}
    assert late == {"f/2", "f/3"}
    fleet.is_up = True
    fleet.run(120.0)
    assert outboxes[2].records.is_empty and outboxes[3].records.is_empty
    assert fleet.circuit.state is CircuitState.CLOSED
    steering.resume(outboxes[0], fleet.now)
    outboxes[1].resume([*outboxes[1].lifecycle.choices], fleet.now)
    fleet.run(60.0)
    assert all(outbox.records.is_empty for outbox in outboxes)


def test_the_time_that_a_destination_is_away_is_no_silence_of_a_sequence() -> None:
    patient = SourcePolicy(retransmission=STEADY.__class__(initial=1.0, cap=1.0, give_up_after=600.0))
    fleet = Fleet(6, sending=patient)
    fleet.fill(3)
    fleet.run(1.0)
    fleet.is_up = False
    fleet.fill(6)
    fleet.run(300.0)
    fleet.is_up = True
    fleet.run(120.0)
    assert all(
        outbox.records.is_empty and not outbox.lifecycle.stopped for outbox in fleet.protocol.outbound.outboxes.values()
    )


def test_what_is_not_the_destinations_doing_opens_nothing() -> None:
    fleet = Fleet(1)
    fleet.fill(1)
    for _ in range(50):
        for sent in fleet.take(1.0) or fleet.sent:
            fleet.protocol.failed(sent, fleet.now)
    assert fleet.circuit.state is CircuitState.CLOSED and fleet.circuit.failures == 0


def test_a_circuit_that_begins_slower_than_it_ends_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="above cap"):
        CircuitPolicy(first=10.0, cap=1.0)


def test_answers_that_are_too_large_show_that_the_destination_is_there() -> None:
    fleet = Fleet(1)
    fleet.fill(1)
    fleet.settle()
    sent = fleet.sent.pop()
    fleet.protocol.failed(sent, fleet.now, "no answer")
    assert fleet.circuit.failures == 1
    fleet.protocol.failed(sent, fleet.now, not_accepted="17 MB", is_too_large=True)
    assert (fleet.circuit.state, fleet.circuit.failures) == (CircuitState.CLOSED, 0)
