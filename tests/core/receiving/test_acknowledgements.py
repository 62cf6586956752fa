"""Acknowledgements: AckRequested wherever it stands (section 3.8), and when an addressable AcksTo hears."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from asked import Endpoint, code, ranges

from holdfast.core.messages import (
    ANONYMOUS_EPR,
    Acknowledge,
    AckRequested,
    CloseSequence,
    CreateSequence,
    CreateSequenceResponse,
    EndpointReference,
    Offer,
    RequestAcknowledgement,
    SequenceAcknowledgement,
    TerminateSequence,
)
from holdfast.core.protocol_messages.table import CONTROLS
from holdfast.core.receiving.acknowledgements import FIRST_PAUSE, MOST_ATTEMPTS

ACKS = EndpointReference("http://s/acks")


def addressable(endpoint: Endpoint) -> str:
    answer = endpoint.ask(control=CreateSequence(ACKS), message_id="urn:addressable")
    assert answer is not None and isinstance(answer.control, CreateSequenceResponse)
    return answer.control.identifier


@pytest.mark.parametrize("is_bad", [False, True])
def test_an_acknowledgement_requested_beside_a_message_goes_to_acks_to(is_bad: bool) -> None:
    endpoint = Endpoint(acknowledgement_interval=1000.0, allows=lambda _: True)
    told, one, other = addressable(endpoint), endpoint.create("urn:c1"), endpoint.create("urn:c2")
    endpoint.send(told, 1)
    endpoint.send(other, 1)
    assert endpoint.transmitted == []
    bad = {"acknowledgements": (SequenceAcknowledgement("urn:nowhere", ((1, 1),)),)} if is_bad else {}
    asked = (AckRequested(told), AckRequested(other), AckRequested(one))
    answer = endpoint.send(one, 1, ack_requested=asked, **bad)
    assert answer is not None
    assert [(found.identifier, found.ranges) for found in answer.acknowledgements] == [(one, ((1, 1),))]
    assert (answer.fault is not None) == is_bad  # what carries a bad header is processed as without it
    (acknowledgement,) = endpoint.transmitted
    assert (acknowledgement.to, ranges(acknowledgement.envelope)) == (ACKS.address, ((1, 1),))


def test_a_message_that_asks_is_acknowledged_in_its_answer_once_stored() -> None:
    endpoint = Endpoint()
    identifier = endpoint.create(offer=Offer("urn:o"))
    asked = (AckRequested(identifier),)
    assert ranges(endpoint.send(identifier, 1, ack_requested=asked)) == ((1, 1),)
    waiting = endpoint.send(identifier, 2, message_id="urn:m2", reply_to=ANONYMOUS_EPR, ack_requested=asked)
    assert waiting is not None and waiting.action == "no answer yet"
    endpoint.reply(2)
    (answer,) = [answer for answer in endpoint.answers.values() if answer and answer.body]
    assert ranges(answer) == ((1, 2),)


def test_ack_requested_of_an_unknown_sequence_is_a_fault_and_its_message_is_kept() -> None:
    endpoint = Endpoint()
    identifier = endpoint.create()
    answer = endpoint.send(identifier, 1, ack_requested=(AckRequested("urn:nowhere"), AckRequested(identifier)))
    assert code(answer) == "UnknownSequence"
    assert answer is not None and answer.fault is not None and answer.fault.identifier == "urn:nowhere"
    assert [record.body for record in endpoint.records()] == [b"<m1/>"]
    assert ranges(endpoint.send(identifier, 1, ack_requested=(AckRequested(identifier),))) == ((1, 1),)


@pytest.mark.parametrize("kind", [CreateSequence, CloseSequence, TerminateSequence])
def test_what_is_asked_for_beside_an_rm_protocol_message_is_told_at_acks_to_too(kind: type[Any]) -> None:
    endpoint = Endpoint(acknowledgement_interval=1000.0, allows=lambda _: True)
    told, other = addressable(endpoint), endpoint.create("urn:c1")
    endpoint.send(told, 1)
    control = CreateSequence(ANONYMOUS_EPR) if kind is CreateSequence else kind(other)
    answer = endpoint.ask(control=control, message_id="urn:x", ack_requested=(AckRequested(told), AckRequested(other)))
    assert answer is not None and answer.fault is None
    assert type(answer.control) in CONTROLS[kind].answers
    (acknowledgement,) = endpoint.transmitted
    assert (acknowledgement.to, ranges(acknowledgement.envelope)) == (ACKS.address, ((1, 1),))


def test_headers_alone_are_answered_on_the_back_channel_or_at_acks_to() -> None:
    endpoint = Endpoint(acknowledgement_interval=1000.0, allows=lambda _: True)
    told, anonymous = addressable(endpoint), endpoint.create("urn:c1")
    endpoint.send(told, 1)
    endpoint.send(anonymous, 1)
    endpoint.send(anonymous, 2)
    answer = endpoint.ask(control=RequestAcknowledgement(), ack_requested=(AckRequested(told), AckRequested(anonymous)))
    assert answer is not None and isinstance(answer.control, Acknowledge)
    assert ranges(answer) == ((1, 2),)
    (acknowledgement,) = endpoint.transmitted
    assert (acknowledgement.to, ranges(acknowledgement.envelope)) == (ACKS.address, ((1, 1),))
    assert endpoint.ask(control=RequestAcknowledgement(), ack_requested=(AckRequested(told),)) is None
    assert len(endpoint.transmitted) == 2


def test_an_unposted_acknowledgement_is_retried_with_backoff_and_a_limit() -> None:
    endpoint = Endpoint(allows=lambda _: True, inactivity_timeout=None)
    identifier = addressable(endpoint)
    endpoint.send(identifier, 1)
    times = []
    for _ in range(1000):
        endpoint.pass_time(0.25)
        for sent in endpoint.transmitted:
            assert (sent.to, ranges(sent.envelope)) == (ACKS.address, ((1, 1),))
            times.append(endpoint.now)
            endpoint.protocol.failed(sent, endpoint.now, "no connection")
        endpoint.transmitted.clear()
    pauses = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert pauses == [FIRST_PAUSE * 2**count for count in range(MOST_ATTEMPTS - 1)]
    endpoint.send(identifier, 1)  # a repeat asks anew
    endpoint.pass_time(1.0)
    (sent,) = endpoint.transmitted
    assert (sent.attempt, ranges(sent.envelope)) == (1, ((1, 1),))


def test_an_acknowledgement_of_a_sequence_that_is_over_is_not_sent_again() -> None:
    endpoint = Endpoint(allows=lambda _: True)
    identifier = addressable(endpoint)
    endpoint.send(identifier, 1)
    endpoint.pass_time(1.0)
    (sent,) = endpoint.transmitted
    endpoint.transmitted.clear()
    endpoint.protocol.failed(sent, endpoint.now)
    endpoint.ask(control=TerminateSequence(identifier), message_id="urn:t")
    endpoint.pass_time(60.0)
    assert [one for one in endpoint.transmitted if isinstance(one.envelope.control, Acknowledge)] == []
