"""SequenceTermination: by a destination of its own accord, and as a source asks (WS-RM 1.2 sections 3.5 and 3.6)."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from asked import Endpoint, code, ranges
from reads import take_effects

from holdfast.core.events import Respond, Transmit
from holdfast.core.messages import (
    ANONYMOUS_EPR,
    NONE_EPR,
    CloseSequence,
    CloseSequenceResponse,
    CreateSequence,
    CreateSequenceResponse,
    EndpointReference,
    Envelope,
    Offer,
    Sequence,
    TerminateSequence,
    TerminateSequenceResponse,
)
from holdfast.core.protocol import RMProtocol
from holdfast.core.protocol_messages.sequence_termination import ATTEMPTS
from holdfast.core.protocol_settings import Environment, MessageRules
from holdfast.core.queues.queue import Queue
from holdfast.core.versions import Versions
from holdfast.store.memory import MemoryStore

SOURCE = EndpointReference("http://source.test/")


class Destination:
    """A protocol with one inbound Sequence and what it sends."""

    def __init__(self, acks_to: EndpointReference, rm: str = "1.1") -> None:
        self.store = MemoryStore()
        self.now = 0.0
        self.versions = Versions(rm)
        self.transmitted: list[Transmit] = []
        self.answers: list[Envelope | None] = []
        identifiers = itertools.count()
        self.protocol = RMProtocol(
            Queue("inbox"),
            Environment(self.store.read, lambda: f"urn:{next(identifiers)}", lambda: 0.0),
            rules=MessageRules(allows=lambda _: True),
        )
        created = self.ask(control=CreateSequence(acks_to), message_id="urn:create")
        assert created is not None and isinstance(created.control, CreateSequenceResponse)
        self.identifier = created.control.identifier

    def settle(self) -> None:
        while True:
            for effect in take_effects(self.protocol, self.store, self.now):
                if isinstance(effect, Respond):
                    self.answers.append(effect.envelope)
                elif isinstance(effect, Transmit):
                    self.transmitted.append(replace(effect))
            if not self.protocol.wants_commit:
                return
            self.store.commit(self.protocol.take_batch())
            self.protocol.batch_durable(self.now)

    def ask(self, **fields: object) -> Envelope | None:
        versions = self.versions
        envelope = Envelope(versions.soap, versions.addressing, versions.rm, **fields)  # type: ignore[arg-type]
        self.protocol.receive(envelope, object(), self.now)
        self.settle()
        return self.answers[-1]

    def send(self, number: int, **fields: object) -> Envelope | None:
        return self.ask(sequence=Sequence(self.identifier, number), action="urn:a", body=b"<m/>", **fields)

    def end(self, *, terminate: bool) -> bool:
        ended = self.protocol.end_inbound(self.identifier, self.now, terminate=terminate)
        self.settle()
        return ended

    def advance(self, seconds: float) -> None:
        self.now += seconds
        self.protocol.pump(self.now)
        self.settle()


@pytest.mark.parametrize("terminate", [False, True])
def test_the_source_is_told_at_acks_to_with_the_final_acknowledgement(terminate: bool) -> None:
    destination = Destination(SOURCE)
    destination.send(1)
    assert destination.end(terminate=terminate)
    told = destination.transmitted[-1]
    assert told.to == SOURCE.address
    assert isinstance(told.envelope.control, TerminateSequence if terminate else CloseSequence)
    (acknowledgement,) = told.envelope.acknowledgements
    assert (acknowledgement.ranges, acknowledgement.final) == (((1, 1),), True)


@pytest.mark.parametrize("at_once", [2, 3])
@pytest.mark.parametrize("end", [CloseSequence, TerminateSequence])
@pytest.mark.parametrize("batches", [0, 1])
@pytest.mark.parametrize("wants_reply", [False, True])
def test_each_concurrent_termination_is_answered_with_the_final_acknowledgement(
    end: type[CloseSequence | TerminateSequence], at_once: int, batches: int, wants_reply: bool
) -> None:
    """WCF's client fails at a CloseSequenceResponse without Final; over a bad network its request comes twice.
    ``batches`` are durable between the requests."""
    destination = Destination(ANONYMOUS_EPR)
    protocol, versions = destination.protocol, destination.versions
    reply_to = {"message_id": "urn:m:1", "reply_to": ANONYMOUS_EPR} if wants_reply else {}
    destination.send(1, **reply_to)
    destination.answers.clear()
    for _ in range(at_once):
        envelope = Envelope(versions.soap, versions.addressing, versions.rm, message_id="urn:end")
        envelope.control = end(destination.identifier, 1)
        protocol.receive(envelope, object(), destination.now)
        if batches and protocol.wants_commit:
            destination.store.commit(protocol.take_batch())
            protocol.batch_durable(destination.now)
    destination.settle()
    said = [answer.acknowledgements[0] for answer in destination.answers if answer is not None and answer.relates_to]
    assert [(one.ranges, one.final) for one in said] == [(((1, 1),), True)] * at_once


@pytest.mark.parametrize("terminate", [False, True])
def test_it_is_told_again_with_the_same_message_id_until_it_answers(terminate: bool) -> None:
    destination = Destination(SOURCE)
    destination.end(terminate=terminate)
    destination.advance(2.0)
    first, second = destination.transmitted
    assert first.envelope.message_id == second.envelope.message_id is not None
    response = TerminateSequenceResponse if terminate else CloseSequenceResponse
    destination.ask(control=response(destination.identifier), relates_to=first.envelope.message_id)
    destination.advance(1000.0)
    assert len(destination.transmitted) == 2


def test_a_source_that_stays_silent_is_not_told_for_ever() -> None:
    destination = Destination(SOURCE)
    destination.end(terminate=False)
    for _ in range(3 * ATTEMPTS):
        destination.advance(100.0)
    assert len(destination.transmitted) == ATTEMPTS


def test_an_anonymous_source_learns_from_the_answer_to_its_next_message() -> None:
    destination = Destination(ANONYMOUS_EPR)
    destination.send(1)
    destination.end(terminate=False)
    assert destination.transmitted == []
    answer = destination.send(2)
    assert code(answer) == "SequenceClosed"
    assert answer is not None and answer.acknowledgements[0].final
    destination.end(terminate=True)
    assert code(destination.send(3)) == "SequenceTerminated"


def test_in_1_0_which_has_neither_it_is_told_by_a_fault() -> None:
    destination = Destination(SOURCE, rm="1.0")
    destination.end(terminate=False)
    fault = destination.transmitted[-1].envelope.fault
    assert fault is not None
    assert fault.code == "SequenceTerminated"


def test_what_is_over_or_unknown_cannot_be_ended() -> None:
    destination = Destination(ANONYMOUS_EPR)
    destination.ask(control=TerminateSequence(destination.identifier), message_id="urn:t")
    assert not destination.end(terminate=True)
    assert not destination.protocol.end_inbound("urn:unknown", 0.0)


# --- what the source asks for -----------------------------------------------------------------------------------------


def test_close_answers_with_the_final_acknowledgement_and_takes_nothing_more() -> None:
    endpoint = Endpoint()
    identifier = endpoint.create()
    endpoint.send(identifier, 1)
    closed = endpoint.ask(control=CloseSequence(identifier, 1), message_id="urn:x")
    assert closed is not None and isinstance(closed.control, CloseSequenceResponse)
    assert closed.relates_to == "urn:x"
    assert closed.acknowledgements[0].final
    refused = endpoint.send(identifier, 2)
    assert code(refused) == "SequenceClosed"
    assert refused is not None and refused.acknowledgements[0].final


@pytest.mark.parametrize("is_restarted", [False, True])
def test_what_comes_again_after_the_end_is_answered_in_kind(is_restarted: bool) -> None:
    endpoint = Endpoint()
    identifier = endpoint.create()
    endpoint.send(identifier, 1)
    for _ in range(2):
        answer = endpoint.ask(control=TerminateSequence(identifier, 1), message_id="urn:t")
        assert answer is not None and isinstance(answer.control, TerminateSequenceResponse)
        if is_restarted:
            endpoint = endpoint.restart()
    assert ranges(endpoint.send(identifier, 1)) == ((1, 1),)
    assert code(endpoint.send(identifier, 2)) == "SequenceTerminated"
    endpoint.now = endpoint.policy.remember_terminated + 1.0
    endpoint.protocol.pump(endpoint.now)
    endpoint.settle()
    assert code(endpoint.send(identifier, 1)) == "UnknownSequence"


@pytest.mark.parametrize(("addressing", "reply_to"), [("2004/08", None), ("2005/08", NONE_EPR)])
def test_the_end_is_not_answered_where_no_answer_is_wanted(addressing: str, reply_to: EndpointReference | None) -> None:
    endpoint = Endpoint("1.0")
    endpoint.versions = Versions("1.0", addressing)
    identifier = endpoint.create(offer=Offer("urn:o"))
    assert endpoint.ask(control=TerminateSequence(identifier), reply_to=reply_to) is None
    assert endpoint.protocol.inbound.destinations[identifier].is_over
