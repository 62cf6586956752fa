"""Every cell of an RM Destination's table, driven from outside: what comes of it is what it says, and no more."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from holdfast.core.events import Incident, Respond, Transmit
from holdfast.core.messages import (
    ANONYMOUS_EPR,
    Acknowledge,
    AckRequested,
    CloseSequence,
    CloseSequenceResponse,
    CreateSequence,
    CreateSequenceResponse,
    EndpointReference,
    Envelope,
    Fault,
    Offer,
    RequestAcknowledgement,
    Sequence,
    TerminateSequence,
    TerminateSequenceResponse,
)
from holdfast.core.policy import Assurance, DestinationPolicy
from holdfast.core.protocol import RMProtocol
from holdfast.core.queues import Queue
from holdfast.core.states import DESTINATION_TABLES, DestinationAction, DestinationEvent, DestinationState
from holdfast.core.versions import RM, Versions
from holdfast.store.memory import MemoryStore

D, E, A = DestinationState, DestinationEvent, DestinationAction
SOURCE = EndpointReference("http://source.test/")
LIFE = 1000.0


class Inbound:
    """A protocol with one inbound Sequence: 1 and 2 are there."""

    def __init__(self, rm: RM, event: E) -> None:
        self.rm, self.event = rm, event
        self.store = MemoryStore()
        self.now = 0.0
        self.effects: list[Any] = []
        identifiers = itertools.count()
        self.protocol = RMProtocol(
            Queue("inbox"),
            self.store.read,
            lambda: f"urn:{next(identifiers)}",
            lambda: 0.0,
            destination_policy=DestinationPolicy(
                assurance=Assurance(),
                max_message_number=99,
                buffer=4,
                inactivity_timeout=LIFE,
                remember_terminated=10 * LIFE,
            ),
            allows=lambda _: True,
        )
        # Whoever is to be told has an address; whoever asks hears at once.
        is_told = event in (E.DECIDE_TO_CLOSE, E.DECIDE_TO_TERMINATE, *RESPONSES)
        create = CreateSequence(SOURCE) if is_told else CreateSequence(ANONYMOUS_EPR, None, Offer("urn:offered"))
        self.ask(control=create, message_id="urn:create")
        created = next(one.envelope for one in self.effects if isinstance(one, Respond))
        assert isinstance(created.control, CreateSequenceResponse)
        self.identifier = created.control.identifier
        is_request = event is E.ACK_REQUESTED_BEFORE_END_IS_TOLD
        self.send(1, **({"message_id": "urn:m1", "reply_to": ANONYMOUS_EPR} if is_request else {}))
        self.send(2, is_last=event is E.MESSAGE_AFTER_LAST)

    @property
    def destination(self) -> Any:
        return self.protocol.inbound.destinations[self.identifier]

    def settle(self) -> None:
        while self.protocol.wants_commit or self.protocol.effects:
            self.effects += self.protocol.take_effects()
            if self.protocol.wants_commit:
                self.store.commit(self.protocol.take_batch())
                self.protocol.batch_durable(self.now)

    def ask(self, **fields: Any) -> None:
        versions = Versions(self.rm.value)
        envelope = Envelope(versions.soap, versions.addressing, versions.rm, **fields)
        self.protocol.receive(envelope, object(), self.now)
        self.settle()

    def send(self, number: int, *, is_last: bool = False, **fields: Any) -> None:
        self.ask(sequence=Sequence(self.identifier, number, is_last), action="urn:a", body=b"<m/>", **fields)

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.protocol.pump(self.now)
        self.settle()

    def bring_to(self, state: D) -> None:
        if state is D.CLOSED or state is D.TERMINATING:
            self.protocol.end_inbound(self.identifier, self.now, terminate=state is D.TERMINATING)
        elif state is D.TERMINATED and self.event is E.ACK_REQUESTED_BEFORE_END_IS_TOLD:
            self.wait(LIFE)  # a source that ends it wants no replies
        elif state is D.TERMINATED:
            self.ask(control=TerminateSequence(self.identifier), message_id="urn:end")
        self.settle()
        assert self.destination.state is state

    def happen(self) -> None:
        event, name = self.event, self.identifier
        numbers = {
            E.NEW_MESSAGE: 3,
            E.MESSAGE_WITHOUT_ROOM: 50,
            E.DUPLICATE_MESSAGE: 1,
            E.MESSAGE_ABOVE_LIMIT: 100,
            E.MESSAGE_AFTER_LAST: 7,
        }
        if event in numbers:
            self.send(numbers[event])
        elif event in (E.ACK_REQUESTED, E.ACK_REQUESTED_BEFORE_END_IS_TOLD):
            self.ask(control=RequestAcknowledgement(), ack_requested=(AckRequested(name),))
        elif event in (E.ENDING_FAULT, E.OTHER_FAULT):
            code = "SequenceTerminated" if event is E.ENDING_FAULT else "InvalidAcknowledgement"
            self.ask(fault=Fault(code, "no", is_rm=True, identifier=name))
        elif event in CONTROLS:
            self.ask(control=CONTROLS[event](name), message_id="urn:event")
        elif event is E.EXPIRED:
            self.wait(LIFE)
        else:
            self.protocol.end_inbound(name, self.now, terminate=event is E.DECIDE_TO_TERMINATE)
            self.settle()


RESPONSES = (E.CLOSE_SEQUENCE_RESPONSE, E.TERMINATE_SEQUENCE_RESPONSE)
CONTROLS: dict[E, Any] = {
    E.CLOSE_SEQUENCE: CloseSequence,
    E.TERMINATE_SEQUENCE: TerminateSequence,
    E.CLOSE_SEQUENCE_RESPONSE: CloseSequenceResponse,
    E.TERMINATE_SEQUENCE_RESPONSE: TerminateSequenceResponse,
}
ANSWERS: dict[type, A] = {
    CloseSequenceResponse: A.ANSWER_CLOSE,
    TerminateSequenceResponse: A.ANSWER_TERMINATE,
    TerminateSequence: A.TERMINATE_OFFERED,
}
TOLD: dict[type, A] = {CloseSequence: A.SEND_CLOSE, TerminateSequence: A.SEND_TERMINATE}


def seen(one: Inbound, accepted: int, was_over: bool, was_telling: bool) -> set[A]:
    """What it did, told from what came out of it."""
    done: set[A] = set()
    incidents = {effect.name for effect in one.effects if isinstance(effect, Incident)}
    for effect in one.effects:
        if isinstance(effect, Respond) and effect.envelope is not None:
            fault, control = effect.envelope.fault, effect.envelope.control
            if fault is not None:
                done.add(A(f"raise {fault.code}"))
            elif type(control) in ANSWERS:
                done.add(ANSWERS[type(control)])
            elif isinstance(control, Acknowledge) and not incidents & {"message not held"}:
                done.add(A.ACKNOWLEDGE)
        elif isinstance(effect, Transmit):
            is_fault, control = effect.envelope.fault is not None, effect.envelope.control
            if not isinstance(control, Acknowledge):  # of the messages before
                done.add(A.SEND_FAULT if is_fault else TOLD[type(control)])
    if one.destination.accepted.count > accepted:
        done = done - {A.ACKNOWLEDGE} | {A.ACCEPT}
    if "message not held" in incidents:
        done.add(A.LEAVE)
    if "duplicate dropped" in incidents:
        done.add(A.ACKNOWLEDGE)
    if one.destination.is_over and not was_over and not done:
        done.add(A.END if one.destination.last_fault == "time is up" else A.END_FOR_SOURCE)
    if was_telling and not done:
        one.effects.clear()
        one.wait(3.0)
        sent = [type(effect.envelope.control) for effect in one.effects if isinstance(effect, Transmit)]
        if not any(control in TOLD for control in sent):
            done.add(A.STOP_TELLING)
    return done


CELLS = [(rm, *cell, *outcome) for rm in RM for cell, outcome in DESTINATION_TABLES[rm].items()]


@pytest.mark.parametrize(("rm", "state", "event", "action", "after"), CELLS)
def test_what_comes_of_an_event_is_what_its_cell_says(rm: RM, state: D, event: E, action: A, after: D) -> None:
    one = Inbound(rm, event)
    one.bring_to(state)
    accepted, was_over = one.destination.accepted.count, one.destination.is_over
    is_telling = event in RESPONSES and state in (D.CLOSED, D.TERMINATING)
    one.effects.clear()
    one.happen()
    assert one.destination.state is after
    assert seen(one, accepted, was_over, is_telling) == ({action} - {A.NOTHING})


@pytest.mark.parametrize("rm", RM)
@pytest.mark.parametrize("state", D)
@pytest.mark.parametrize("event", [event for event in E if not event.is_ours])
def test_an_event_of_the_peers_without_a_cell_is_answered_as_of_an_unknown_sequence(rm: RM, state: D, event: E) -> None:
    table = DESTINATION_TABLES[rm]
    cannot_happen = (E.MESSAGE_WITHOUT_ROOM, E.ACK_REQUESTED_BEFORE_END_IS_TOLD, *RESPONSES)
    is_state = any(before is state for before, _ in table)
    if (state, event) in table or event in cannot_happen or not is_state:
        return  # room is a question only while it is open; what is itself an answer gets none
    one = Inbound(rm, event)
    one.bring_to(state)
    one.effects.clear()
    one.happen()
    (answer,) = [effect.envelope for effect in one.effects if isinstance(effect, Respond)]
    assert answer.fault is not None and answer.fault.code == "UnknownSequence"
    assert one.destination.state is state
