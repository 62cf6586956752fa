"""Sequences of WS-RM 2003/03, which begin with their first message, and of 2004/03, whose CreateSequence is empty."""

from __future__ import annotations

from typing import Any

import pytest
from asked import Endpoint, code

from holdfast.core.messages import (
    ANONYMOUS_EPR,
    Acknowledge,
    AckRequested,
    CreateSequence,
    CreateSequenceResponse,
    EndpointReference,
    Envelope,
    RequestAcknowledgement,
    Sequence,
    TerminateSequence,
)
from holdfast.core.origin import CERTIFIED, Origin
from holdfast.core.records import Record
from holdfast.core.steering import Steering

LISTENER = EndpointReference("http://allowed/")


def accepted(answer: Envelope | None) -> tuple[tuple[int, int], ...]:
    """What the answer acknowledges."""
    assert answer is not None and isinstance(answer.control, Acknowledge), answer
    (acknowledgement,) = answer.acknowledgements
    return acknowledgement.ranges


def delivered(endpoint: Endpoint) -> list[bytes]:
    """The bodies in the queue."""
    (partition,) = endpoint.protocol.inbound.queue.partitions
    return [record.body for _, record in endpoint.store.read("inbox", 0, 0, partition.end)]


def is_plain(answer: Envelope | None) -> bool:
    """Whether it is a fault without a code of WS-RM."""
    return answer is not None and answer.fault is not None and not answer.fault.is_rm


def from_party(endpoint: Endpoint, party: str, number: int, identifier: str = "urn:s") -> Envelope | None:
    exchange = object()
    envelope = endpoint.envelope(sequence=Sequence(identifier, number), action="urn:a", body=b"<m/>")
    endpoint.protocol.receive(envelope, exchange, endpoint.now, origin=Origin(party=party))
    endpoint.settle()
    return endpoint.answers[exchange]


def test_the_first_message_begins_a_sequence_that_outlives_a_crash() -> None:
    endpoint = Endpoint("2003/03")
    assert accepted(endpoint.send("urn:s", 1)) == ((1, 1),)
    assert accepted(endpoint.send("urn:s", 1)) == ((1, 1),)
    endpoint = endpoint.restart()
    assert accepted(endpoint.send("urn:s", 2)) == ((1, 2),)
    assert delivered(endpoint) == [b"<m1/>", b"<m2/>"]
    assert [one.name for one in endpoint.incidents if one.name == "sequence.created"] == []


def test_nothing_is_acknowledged_before_its_beginning_is_durable() -> None:
    endpoint = Endpoint("2003/03")
    answer = endpoint.send("urn:s", 1, durable=False)
    assert answer is not None and answer.action == "no answer yet"
    crashed = endpoint.restart()
    assert crashed.protocol.inbound.destinations == {}
    assert accepted(crashed.send("urn:s", 1)) == ((1, 1),)
    assert delivered(crashed) == [b"<m1/>"]


def test_a_message_that_overtakes_the_first_is_neither_accepted_nor_refused() -> None:
    endpoint = Endpoint("2003/03")
    assert endpoint.send("urn:s", 2, ack_requested=(AckRequested("urn:s"),)) is None
    assert endpoint.protocol.inbound.destinations == {}
    assert accepted(endpoint.send("urn:s", 1)) == ((1, 1),)
    assert accepted(endpoint.send("urn:s", 2)) == ((1, 2),)
    assert delivered(endpoint) == [b"<m1/>", b"<m2/>"]


def test_a_sequence_that_ended_is_not_begun_again_by_what_is_late() -> None:
    endpoint = Endpoint("2003/03", remember_terminated=60.0)
    endpoint.send("urn:s", 1)
    assert endpoint.ask(control=TerminateSequence("urn:s")) is None
    assert accepted(endpoint.send("urn:s", 1)) == ((1, 1),)
    assert code(endpoint.send("urn:s", 2)) == "SequenceTerminated"
    endpoint.pass_time(61)
    assert endpoint.protocol.inbound.destinations == {}
    assert endpoint.send("urn:s", 2) is None, "its first message could be on its way"
    endpoint.pass_time(61)
    assert code(endpoint.send("urn:s", 2)) == "UnknownSequence"
    assert delivered(endpoint) == [b"<m1/>"]


def test_a_sequence_that_timed_out_stays_ended() -> None:
    endpoint = Endpoint("2003/03", inactivity_timeout=10.0, keep_alive_timeout=None)
    endpoint.send("urn:s", 1)
    endpoint.pass_time(11)
    for one in (endpoint, endpoint.restart()):
        assert code(one.send("urn:s", 2)) == "UnknownSequence"
        assert code(one.send("urn:s", 3)) == "UnknownSequence"
        assert list(one.protocol.inbound.destinations) == ["urn:s"]


def test_a_suspended_sequence_is_not_begun_again() -> None:
    endpoint = Endpoint("2003/03")
    endpoint.send("urn:s", 1)
    Steering(endpoint.protocol).suspend_inbound(endpoint.protocol.inbound.destinations["urn:s"], "in this test")
    endpoint.settle()
    for one in (endpoint, endpoint.restart()):
        one.send("urn:s", 2)
        assert delivered(one) == [b"<m1/>"]


def test_as_many_sequences_begin_as_the_limits_permit() -> None:
    endpoint = Endpoint("2003/03", max_sequences=3, max_party_sequences=2)
    for name in ("urn:1", "urn:2"):
        accepted(from_party(endpoint, "alice", 1, name))
    refused = from_party(endpoint, "alice", 1, "urn:3")
    assert is_plain(refused) and "limit for one peer" in refused.fault.reason  # type: ignore[union-attr]
    assert not refused.fault.sender, "it may try again"  # type: ignore[union-attr]
    accepted(from_party(endpoint, "bob", 1, "urn:4"))
    refused = from_party(endpoint, "carol", 1, "urn:5")
    assert is_plain(refused) and "limit of 3 open Sequences" in refused.fault.reason  # type: ignore[union-attr]
    endpoint.ask(control=TerminateSequence("urn:1"))
    accepted(from_party(endpoint, "carol", 1, "urn:5"))


def test_no_other_proven_party_sends_in_a_sequence() -> None:
    endpoint = Endpoint("2003/03")
    accepted(from_party(endpoint, f"{CERTIFIED}alice", 1))
    assert code(from_party(endpoint, f"{CERTIFIED}mallory", 2)) == "UnknownSequence"
    assert code(from_party(endpoint, f"{CERTIFIED}mallory", 1)) == "UnknownSequence"
    assert accepted(from_party(endpoint, f"{CERTIFIED}alice", 2)) == ((1, 2),)


def test_an_identifier_that_this_side_uses_begins_nothing() -> None:
    endpoint = Endpoint("2003/03")
    outbox = endpoint.protocol.outbound.open("key", "http://d/", [(endpoint.versions, False)])
    endpoint.protocol.submit(outbox, Record("key", 0, "urn:a", b"<m/>", 0.0, "urn:m"), 0.0)
    endpoint.settle()
    assert outbox.source is not None and outbox.source.identifier is not None
    refused = endpoint.send(outbox.source.identifier, 1)
    assert is_plain(refused) and "is in use" in refused.fault.reason  # type: ignore[union-attr]


@pytest.mark.parametrize("where", ["from_", "reply_to"])
def test_acknowledgements_go_to_an_allowed_address_that_the_first_message_names(where: str) -> None:
    endpoint = Endpoint("2003/03", allows=lambda address: address == LISTENER.address, acknowledgement_interval=0.1)
    named: dict[str, Any] = {where: LISTENER}
    assert endpoint.send("urn:s", 1, **named) is None
    endpoint.pass_time(1)
    (sent,) = endpoint.transmitted
    assert (sent.to, sent.envelope.acknowledgements[0].ranges) == (LISTENER.address, ((1, 1),))


def test_acknowledgements_go_into_the_answers_if_the_address_is_not_allowed() -> None:
    endpoint = Endpoint("2003/03")
    assert accepted(endpoint.send("urn:s", 1, from_=EndpointReference("http://127.0.0.1:9/victim"))) == ((1, 1),)


def test_a_header_beside_a_message_ends_the_sequence_after_it() -> None:
    endpoint = Endpoint("2003/03")
    endpoint.send("urn:s", 1)
    assert accepted(endpoint.send("urn:s", 2, terminates="urn:s")) == ((1, 2),)
    assert endpoint.protocol.inbound.destinations["urn:s"].is_over
    assert delivered(endpoint) == [b"<m1/>", b"<m2/>"]


def test_a_request_for_acknowledgement_begins_nothing() -> None:
    endpoint = Endpoint("2003/03")
    answer = endpoint.ask(control=RequestAcknowledgement(), ack_requested=(AckRequested("urn:s"),))
    assert code(answer) == "UnknownSequence"
    assert endpoint.protocol.inbound.destinations == {}


def test_a_response_begins_nothing() -> None:
    endpoint = Endpoint("2003/03")
    envelope = endpoint.envelope(sequence=Sequence("urn:s", 1), action="urn:a", body=b"<m/>")
    endpoint.protocol.receive(envelope, None, endpoint.now)
    endpoint.settle()
    assert endpoint.protocol.inbound.destinations == {}


@pytest.mark.parametrize(("rm", "fault"), [("2003/03", "SequenceTerminated"), ("2004/03", "LastMessageNumberExceeded")])
def test_nothing_is_accepted_after_the_message_that_is_marked_as_the_last(rm: str, fault: str) -> None:
    endpoint = Endpoint(rm)
    identifier = "urn:s" if rm == "2003/03" else endpoint.create()
    endpoint.send(identifier, 1)
    assert accepted(endpoint.send(identifier, 2, sequence=Sequence(identifier, 2, True))) == ((1, 2),)
    assert code(endpoint.send(identifier, 3)) == fault
    assert endpoint.protocol.inbound.destinations[identifier].is_over


def test_2004_03_grants_a_sequence_without_an_offer_or_sends_a_plain_fault() -> None:
    endpoint = Endpoint("2004/03", max_sequences=1)
    answer = endpoint.ask(control=CreateSequence(ANONYMOUS_EPR), message_id="urn:c")
    assert answer is not None and isinstance(answer.control, CreateSequenceResponse)
    refused = endpoint.ask(control=CreateSequence(ANONYMOUS_EPR), message_id="urn:d")
    assert is_plain(refused) and "limit of 1 open Sequences" in refused.fault.reason  # type: ignore[union-attr]
