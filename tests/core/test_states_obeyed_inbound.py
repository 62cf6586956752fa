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
from holdfast.core.protocol_settings import Environment, MessageRules, Policies
from holdfast.core.queues.queue import Queue
from holdfast.core.states.inbound import (
    DESTINATION_TABLES,
    SETTLING_TABLE,
    DestinationAction,
    DestinationEvent,
    DestinationState,
    SettlingAction,
    SettlingEvent,
    SettlingState,
)
from holdfast.core.steering import Steering
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
            Environment(self.store.read, lambda: f"urn:{next(identifiers)}", lambda: 0.0),
            policies=Policies(
                destination=DestinationPolicy(
                    assurance=Assurance(),
                    max_message_number=99,
                    buffer=4,
                    inactivity_timeout=LIFE,
                    remember_terminated=10 * LIFE,
                )
            ),
            rules=MessageRules(allows=lambda _: True),
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
            E.MESSAGE_WHILE_SUSPENDED: 3,
            E.DUPLICATE_MESSAGE: 1,
            E.MESSAGE_ABOVE_LIMIT: 100,
            E.MESSAGE_AFTER_LAST: 7,
        }
        if event is E.MESSAGE_WHILE_SUSPENDED:
            Steering(self.protocol).suspend_inbound(self.destination, "in this test")
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


def seen(one: Inbound, accepted: int, was_over: bool, was_disowned: bool, was_telling: bool) -> set[A]:
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
            elif isinstance(control, Acknowledge) and not incidents & {"message.not_held"}:
                done.add(A.ACKNOWLEDGE)
        elif isinstance(effect, Transmit):
            is_fault, control = effect.envelope.fault is not None, effect.envelope.control
            if not isinstance(control, Acknowledge):  # of the messages before
                done.add(A.SEND_FAULT if is_fault else TOLD[type(control)])
    if one.destination.accepted.count > accepted:
        done = done - {A.ACKNOWLEDGE} | {A.ACCEPT}
    if "message.not_held" in incidents:
        done.add(A.LEAVE)
    if "message.duplicate_dropped" in incidents:
        done.add(A.ACKNOWLEDGE)
    if one.destination.is_over and not was_over and not done:
        done.add(A.END_FOR_SOURCE if one.destination.disowned else A.END)
    elif one.destination.disowned and not was_disowned:
        done.add(A.DISOWN)
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
    destination = one.destination
    accepted, was_over, was_disowned = destination.accepted.count, destination.is_over, destination.disowned
    is_telling = event in RESPONSES and state in (D.CLOSED, D.TERMINATING)
    one.effects.clear()
    one.happen()
    assert one.destination.state is after
    assert seen(one, accepted, was_over, was_disowned, is_telling) == ({action} - {A.NOTHING})
    if action is A.END:
        assert one.destination.last_fault == "time is up"
    if action in (A.END_FOR_SOURCE, A.DISOWN):
        assert one.protocol.acknowledging.acknowledgement(one.identifier) is None


@pytest.mark.parametrize("rm", RM)
@pytest.mark.parametrize("state", D)
@pytest.mark.parametrize("event", [event for event in E if not event.is_ours])
def test_an_event_of_the_peers_without_a_cell_is_answered_as_of_an_unknown_sequence(rm: RM, state: D, event: E) -> None:
    table = DESTINATION_TABLES[rm]
    cannot_happen = (E.MESSAGE_WITHOUT_ROOM, E.MESSAGE_WHILE_SUSPENDED, E.ACK_REQUESTED_BEFORE_END_IS_TOLD, *RESPONSES)
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


# --- how an end is settled --------------------------------------------------------------------------------------------

U, UE, UA = SettlingState, SettlingEvent, SettlingAction


def ending(rm: RM, state: U, *, is_request: bool) -> Inbound:
    """A Sequence whose source can be told, with its end as far as that; 4 came, and 3 only if it is a request."""
    one = Inbound(rm, E.DECIDE_TO_CLOSE)
    one.send(4)
    if is_request or state is U.AWAITING:
        one.send(3, message_id="urn:m3", reply_to=EndpointReference("http://source.test/replies"))
    if state is not U.OPEN:
        one.protocol.end_inbound(one.identifier, one.now)
    if state in (U.AWAITING, U.SETTLED):
        one.settle()
    assert one.destination.settling is state
    one.protocol.take_effects()
    one.effects.clear()
    return one


def said(one: Inbound) -> list[Any]:
    """What was answered: a fault's code, the kind of a message, None for nothing."""
    answers = [effect.envelope for effect in one.effects if isinstance(effect, Respond)]
    return [envelope and (envelope.fault.code if envelope.fault else type(envelope.control)) for envelope in answers]


def told(one: Inbound) -> list[type]:
    controls = [type(effect.envelope.control) for effect in one.effects if isinstance(effect, Transmit)]
    return [control for control in controls if control in TOLD]


def commit(one: Inbound) -> None:
    one.store.commit(one.protocol.take_batch())
    one.protocol.batch_durable(one.now)
    one.effects += one.protocol.take_effects()


@pytest.mark.parametrize("state", U)
def test_a_sequence_is_settled_when_it_ends_and_not_again(state: U) -> None:
    one = ending(RM.V1_1, state, is_request=False)
    one.protocol.end_inbound(one.identifier, one.now, terminate=True)
    effects = one.protocol.take_effects()
    incomplete = [effect for effect in effects if isinstance(effect, Incident) and effect.name == "sequence.incomplete"]
    action, after = SETTLING_TABLE[state, UE.END]
    # Where 3 is missing before 4, that is told once.
    assert (bool(incomplete), one.destination.settling) == (action is UA.SETTLE, after)


@pytest.mark.parametrize("state", [U.SETTLING, U.AWAITING, U.SETTLED])
def test_a_waiver_of_awaited_replies_is_durable_before_it_is_final(state: U) -> None:
    one = ending(RM.V1_1, state, is_request=state is U.SETTLING)
    action, after = SETTLING_TABLE[state, UE.WAIVED]
    versions = Versions()
    close = Envelope(versions.soap, versions.addressing, versions.rm, control=CloseSequence(one.identifier))
    one.protocol.receive(close, object(), one.now)
    assert one.destination.settling is after
    assert one.destination.acknowledgement().final == (action is UA.NOTHING)
    one.settle()
    assert one.destination.acknowledgement().final
    assert one.destination.acknowledged == one.destination.accepted


@pytest.mark.parametrize("is_request", [False, True])
def test_when_its_end_is_durable_all_is_acknowledged_but_what_awaits_its_reply(is_request: bool) -> None:
    one = ending(RM.V1_1, U.SETTLING, is_request=is_request)
    assert SETTLING_TABLE[U.SETTLING, UE.DURABLE] == (UA.ACKNOWLEDGE_ALL, U.AWAITING)
    commit(one)
    assert one.destination.settling is (U.AWAITING if is_request else U.SETTLED)
    assert (3 in one.destination.accepted, 3 in one.destination.acknowledged) == (is_request, False)
    assert one.destination.acknowledgement().final == (not is_request)


def test_the_last_reply_makes_acknowledgements_final() -> None:
    one = ending(RM.V1_1, U.AWAITING, is_request=True)
    assert SETTLING_TABLE[U.AWAITING, UE.LAST_REPLY] == (UA.NOTHING, U.SETTLED)
    (record,) = [record for _, record in one.store.read("inbox", 0, 0, 9) if record.message_number == 3]
    one.protocol.replies.reply(record, None, one.now)
    assert not one.destination.acknowledgement().final
    one.settle()
    assert one.destination.settling is U.SETTLED
    assert one.destination.acknowledgement().final


@pytest.mark.parametrize("state", [U.SETTLING, U.AWAITING, U.SETTLED])
def test_its_source_is_told_once_it_may_know(state: U) -> None:
    one = ending(RM.V1_1, state, is_request=state is not U.SETTLED)
    if state is U.SETTLING:
        one.destination.decide()  # a newer one is on its way
        commit(one)
        assert one.destination.settling is U.SETTLING
    else:
        one.now += 3.0
        one.protocol.pump(one.now)
        one.effects += one.protocol.take_effects()
    action, _ = SETTLING_TABLE[state, UE.TELL]
    assert (told(one) == [CloseSequence]) == (action is UA.TELL)


@pytest.mark.parametrize("state", [U.SETTLING, U.AWAITING, U.SETTLED])
def test_a_message_refused_after_the_end_is_answered_once_that_is_durable(state: U) -> None:
    one = ending(RM.V1_1, state, is_request=False)
    versions = Versions()
    message = Envelope(versions.soap, versions.addressing, versions.rm, action="urn:a", body=b"<m/>")
    message.sequence = Sequence(one.identifier, 9)
    one.protocol.receive(message, object(), one.now)
    one.effects += one.protocol.take_effects()
    at_once = {UA.WAIT: [], UA.SAY_NOTHING: [None], UA.ANSWER: [None]}[SETTLING_TABLE[state, UE.REFUSED][0]]
    assert said(one) == at_once  # a fault goes to AcksTo
    one.settle()
    faults = [one.envelope.fault for one in one.effects if isinstance(one, Transmit) and one.envelope.fault]
    assert [fault.code for fault in faults] == ([] if state is U.AWAITING else ["SequenceClosed"])


@pytest.mark.parametrize("is_request", [False, True])
def test_a_refused_number_is_answered_once_the_end_it_brings_is_durable(
    is_request: bool,
) -> None:
    one = ending(RM.V1_0, U.OPEN, is_request=is_request)
    versions = Versions("1.0")
    message = Envelope(versions.soap, versions.addressing, versions.rm, action="urn:a", body=b"<m/>")
    message.sequence = Sequence(one.identifier, 100)
    one.protocol.receive(message, object(), one.now)
    one.effects += one.protocol.take_effects()
    assert SETTLING_TABLE[one.destination.settling, UE.REFUSED_FOR_ITSELF][0] is UA.WAIT
    assert not any(isinstance(effect, Transmit) for effect in one.effects)
    commit(one)
    assert SETTLING_TABLE[one.destination.settling, UE.REFUSED_FOR_ITSELF][0] is UA.ANSWER
    faults = [one.envelope.fault for one in one.effects if isinstance(one, Transmit) and one.envelope.fault]
    assert [fault.code for fault in faults] == ["MessageNumberRollover"]
