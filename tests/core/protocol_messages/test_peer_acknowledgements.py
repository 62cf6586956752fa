"""PeerAcknowledgements: whom the peer speaks of. ``test_outbound`` has the answers to what was sent."""

from __future__ import annotations

import pytest
from asked import Endpoint, code

from holdfast.core.events import BackChannel
from holdfast.core.faults import INVALID_ACKNOWLEDGEMENT, SEQUENCE_TERMINATED, UNKNOWN_SEQUENCE, sequence_fault
from holdfast.core.messages import Fault, Offer, SequenceAcknowledgement, TerminateSequence
from holdfast.core.protocol_messages.peer_acknowledgements import is_reply

ANSWERED = (SequenceAcknowledgement("urn:s", ((1, 1),)),)


@pytest.mark.parametrize(
    ("is_answer", "relates_to", "acknowledgements", "fault", "expected"),
    [
        (True, "urn:m", ANSWERED, Fault("Sender", "no"), True),
        (False, "urn:m", ANSWERED, Fault("Sender", "no"), False),
        (True, None, ANSWERED, Fault("Sender", "no"), False),
        (True, "urn:m", (), Fault("Sender", "no"), False),
        (True, "urn:m", ANSWERED, sequence_fault(UNKNOWN_SEQUENCE, "urn:s"), False),
    ],
)
def test_a_fault_is_a_reply_if_it_answers_a_request_that_it_acknowledges(
    is_answer: bool,
    relates_to: str | None,
    acknowledgements: tuple[SequenceAcknowledgement, ...],
    fault: Fault,
    expected: bool,
) -> None:
    envelope = Endpoint().envelope(relates_to=relates_to, acknowledgements=acknowledgements, fault=fault)
    assert is_reply(envelope, None if is_answer else BackChannel(object())) is expected


@pytest.mark.parametrize("fault_code", [UNKNOWN_SEQUENCE, SEQUENCE_TERMINATED])
def test_a_fault_that_a_source_tells_of_its_sequence_ends_that_and_is_not_answered(fault_code: str) -> None:
    endpoint = Endpoint()
    identifier, other = endpoint.create("urn:c1"), endpoint.create("urn:c2")
    assert endpoint.ask(fault=sequence_fault(fault_code, identifier)) is None
    destinations = endpoint.protocol.inbound.destinations
    assert destinations[identifier].is_over
    assert not destinations[other].is_over


@pytest.mark.parametrize("identifier", ["urn:nowhere", None])
def test_a_fault_about_nothing_that_is_known_changes_nothing(identifier: str | None) -> None:
    endpoint = Endpoint()
    created = endpoint.create()
    assert endpoint.ask(fault=sequence_fault(SEQUENCE_TERMINATED, identifier)) is None
    assert not endpoint.protocol.inbound.destinations[created].is_over


def test_of_several_acknowledgements_the_fault_for_the_first_bad_one_is_told() -> None:
    endpoint = Endpoint()
    identifier = endpoint.create(offer=Offer("urn:o"))
    bad = (SequenceAcknowledgement("urn:o", ((1, 9),)), SequenceAcknowledgement("urn:nowhere", ((1, 1),)))
    assert code(endpoint.send(identifier, 1, acknowledgements=bad)) == INVALID_ACKNOWLEDGEMENT
    assert code(endpoint.send(identifier, 2, acknowledgements=bad[::-1])) == UNKNOWN_SEQUENCE


def test_acknowledging_replies_after_their_sequence_ended_with_the_requests_is_valid() -> None:
    endpoint = Endpoint()
    identifier = endpoint.create(offer=Offer("urn:o"))
    end = TerminateSequence(identifier)
    assert endpoint.ask(control=end, message_id="urn:t1") is not None
    again = endpoint.ask(
        control=end, message_id="urn:t2", acknowledgements=(SequenceAcknowledgement("urn:o", ((1, 1),)),)
    )
    assert again is not None and again.fault is None
