"""Acceptance: application messages that are taken and kept, taken and dropped, or refused."""

from __future__ import annotations

from typing import Any

import pytest
from asked import Endpoint, code, ranges

from holdfast.core.messages import (
    ANONYMOUS_EPR,
    NONE_EPR,
    Acknowledge,
    CreateSequence,
    CreateSequenceResponse,
    EndpointReference,
    Expects,
    Fault,
    Offer,
    Routed,
    Sequence,
)
from holdfast.core.policy import Assurance
from holdfast.core.records import Record


def test_a_message_without_a_sequence_is_refused_in_its_versions_own_way() -> None:
    assert code(Endpoint().ask(action="urn:a", body=b"<m/>")) == "WSRMRequired"


def test_an_endpoint_for_replies_only_acknowledges_other_messages_and_stores_none() -> None:
    endpoint = Endpoint(assurance=Assurance(in_order=False))
    endpoint.protocol.accepting._unrequested = lambda _envelope: None
    identifier = endpoint.create()
    assert ranges(endpoint.send(identifier, 2)) == ((2, 2),)
    assert ranges(endpoint.send(identifier, 1, relates_to="urn:never-asked")) == ((1, 2),)
    assert endpoint.records() == []
    told = [one.number for one in endpoint.incidents if one.name == "message.unsolicited_dropped"]
    assert told == [2, 1]
    again = endpoint.restart()
    assert ranges(again.send(identifier, 1)) == ((1, 2),)
    assert again.records() == []


def test_a_fault_about_a_message_is_logged_with_its_sequence_and_number() -> None:
    endpoint = Endpoint()
    endpoint.protocol.accepting._accepts = lambda action: False
    identifier = endpoint.create()
    assert code(endpoint.send(identifier, 7)) == "ActionNotSupported"
    (incident,) = [one for one in endpoint.incidents if one.name == "fault.raised"]
    assert (incident.identifier, incident.number) == (identifier, 7)


def refusing(mandatory: tuple[str, ...] = ()) -> tuple[Endpoint, str, dict[str, Any]]:
    """An endpoint whose one Sequence offers another, and what a message says that it refuses."""
    endpoint = Endpoint(tell=lambda record, fault, _wsa: Record("", 0, "urn:fault", fault.code.encode(), 0.0))
    endpoint.protocol.accepting._accepts = lambda action: action != "urn:unknown"
    identifier = endpoint.create(offer=Offer("urn:offered", ANONYMOUS_EPR))
    return endpoint, identifier, {"not_understood": mandatory} if mandatory else {"action": "urn:unknown"}


REFUSED = pytest.mark.parametrize(
    ("mandatory", "said"), [((), b"ActionNotSupported"), (("{urn:x}h",), b"MustUnderstand")], ids=["action", "header"]
)


@REFUSED
def test_a_request_that_is_refused_is_acknowledged_with_the_fault_as_its_reply(
    mandatory: tuple[str, ...], said: bytes
) -> None:
    endpoint, identifier, wrong = refusing(mandatory)
    answer = endpoint.send(identifier, 1, message_id="urn:m1", reply_to=ANONYMOUS_EPR, **wrong)
    assert answer is not None and answer.sequence is not None
    assert (answer.sequence.identifier, answer.sequence.message_number) == ("urn:offered", 1)
    assert (answer.relates_to, answer.body, ranges(answer)) == ("urn:m1", said, ((1, 1),))
    (told,) = [one for one in endpoint.incidents if one.name == "message.refused"]
    assert (told.level, told.identifier, told.number) == ("warning", identifier, 1)
    assert told.detail is not None and told.detail["code"] == said.decode() and told.detail["reason"]
    again = endpoint.restart()
    repeated = again.send(identifier, 1, message_id="urn:m1", reply_to=ANONYMOUS_EPR, **wrong)
    assert repeated is not None and repeated.body == said, "the same after a crash"
    assert again.request(identifier, 2) is not None
    again.reply(2)
    assert [record.message_number for record in again.records()] == [2]


@REFUSED
def test_a_one_way_message_of_wcf_that_is_refused_is_acknowledged_with_the_fault(
    mandatory: tuple[str, ...], said: bytes
) -> None:
    endpoint, identifier, wrong = refusing(mandatory)
    answer = endpoint.send(identifier, 1, **wrong)
    assert answer is not None and (answer.relates_to, answer.body, ranges(answer)) == (None, said, ((1, 1),))
    told_none = endpoint.send(identifier, 2, reply_to=NONE_EPR, **wrong)
    assert told_none is not None and (told_none.body, ranges(told_none)) == (b"", ((1, 2),))
    assert endpoint.records() == []


@REFUSED
def test_a_one_way_message_with_a_message_id_is_refused_outside_and_may_come_again(
    mandatory: tuple[str, ...], said: bytes
) -> None:
    endpoint, identifier, wrong = refusing(mandatory)
    assert code(endpoint.send(identifier, 1, message_id="urn:m1", **wrong)) == said.decode()
    assert ranges(endpoint.send(identifier, 1, message_id="urn:m1")) == ((1, 1),)
    assert len(endpoint.records()) == 1


def test_a_request_beyond_a_gap_that_is_refused_has_its_fault_and_the_gap_may_close() -> None:
    endpoint, identifier, wrong = refusing()
    answer = endpoint.send(identifier, 2, message_id="urn:m2", reply_to=ANONYMOUS_EPR, **wrong)
    assert answer is not None and (answer.body, ranges(answer)) == (b"ActionNotSupported", ((2, 2),))
    assert ranges(endpoint.send(identifier, 1)) == ((1, 2),)
    assert ranges(endpoint.send(identifier, 3)) == ((1, 3),)
    assert [record.message_number for record in endpoint.records()] == [1, 3]


def test_a_message_that_no_route_takes_is_refused_in_the_same_way() -> None:
    endpoint, identifier, _ = refusing()
    answer = endpoint.send(
        identifier, 1, message_id="urn:m1", reply_to=ANONYMOUS_EPR, routed=Fault("Sender", "No route takes it.")
    )
    assert answer is not None and (answer.body, ranges(answer)) == (b"Sender", ((1, 1),))


# --- a queue that nobody replies for ----------------------------------------------------------------------------------

HERE = EndpointReference("http://s/decoupled")
ANSWERED_BY_NOBODY = pytest.mark.parametrize(
    "routed", [None, Routed(("inbox",), False)], ids=["no handler", "no forwarder"]
)


def unanswered(rm: str, offer: Offer | None, acks_to: EndpointReference = ANONYMOUS_EPR) -> tuple[Endpoint, str]:
    """An endpoint with a queue that has no handlers, and an open Sequence."""
    endpoint = Endpoint(
        rm,
        allows=lambda _address: True,
        tell=lambda record, fault, _wsa: (
            Record("", 0, "urn:fault", fault.code.encode(), 0.0) if record.wants_reply else None
        ),
    )
    endpoint.protocol.accepting._replies_to = lambda _action: False
    create = CreateSequence(acks_to, offer=offer)
    answer = endpoint.ask(control=create, message_id="urn:create", to="http://d/")
    assert answer is not None and isinstance(answer.control, CreateSequenceResponse)
    return endpoint, answer.control.identifier


def told_of(endpoint: Endpoint) -> list[int]:
    return [one.number for one in endpoint.incidents if one.name == "request.no_reply"]


@ANSWERED_BY_NOBODY
@pytest.mark.parametrize("rm", ["1.0", "1.1"])
def test_a_request_to_a_queue_that_nobody_replies_for_is_answered_with_a_fault(rm: str, routed: Routed | None) -> None:
    endpoint, identifier = unanswered(rm, Offer("urn:o", ANONYMOUS_EPR))
    request: dict[str, Any] = {"message_id": "urn:m", "reply_to": ANONYMOUS_EPR, "routed": routed}
    answer = endpoint.send(identifier, 1, **request)
    assert answer is not None and (answer.body, answer.relates_to) == (b"NoReply", "urn:m")
    assert ranges(answer) == ((1, 1),) and answer.sequence == Sequence("urn:o", 1)
    again = endpoint.restart()
    answer = again.send(identifier, 1, **request)
    assert answer is not None and (answer.body, answer.sequence) == (b"NoReply", Sequence("urn:o", 1))
    (record,) = again.records()
    assert (record.message_number, record.wants_reply) == (1, False), "whoever reads it need not reply"
    assert told_of(endpoint) == [1]


@ANSWERED_BY_NOBODY
@pytest.mark.parametrize("offer", [None, Offer("urn:o", HERE)], ids=["no offer", "offer"])
def test_a_requester_with_an_address_gets_that_fault_there(offer: Offer | None, routed: Routed | None) -> None:
    endpoint, identifier = unanswered("1.1", offer, HERE)
    assert endpoint.send(identifier, 1, message_id="urn:m", reply_to=HERE, routed=routed) is None
    endpoint.pass_time(0.0)
    if offer is None:
        (create,) = [one.envelope for one in endpoint.transmitted if isinstance(one.envelope.control, CreateSequence)]
        assert create.to == HERE.address  # of the Sequence that brings the reply
        (outbox,) = endpoint.protocol.outbound.outboxes.values()
        assert outbox.records.waiting == 1
    else:
        (reply,) = [one for one in endpoint.transmitted if one.number]
        assert (reply.to, reply.envelope.body, reply.envelope.relates_to) == (HERE.address, b"NoReply", "urn:m")
        assert ranges(reply.envelope) == ((1, 1),)


@ANSWERED_BY_NOBODY
@pytest.mark.parametrize("offer", [None, Offer("urn:o", ANONYMOUS_EPR)], ids=["no offer", "offer"])
@pytest.mark.parametrize(
    "fields",
    [
        {},  # WCF
        {"message_id": "urn:m"},  # CXF, Sandesha2 in 2004/08; Metro, Holdfast
        {"message_id": "urn:m", "reply_to": NONE_EPR},  # CXF, Sandesha2
        {"message_id": "urn:m", "reply_to": NONE_EPR, "fault_to": ANONYMOUS_EPR},  # Sandesha2
        {"reply_to": ANONYMOUS_EPR},
        {"message_id": "urn:m", "reply_to": ANONYMOUS_EPR, "fault_to": NONE_EPR},
        {"message_id": "urn:m", "reply_to": ANONYMOUS_EPR, "relates_to": "urn:x"},
    ],
    ids=str,
)
def test_a_one_way_message_to_a_queue_that_nobody_replies_for_gets_no_fault(
    fields: dict[str, Any], offer: Offer | None, routed: Routed | None
) -> None:
    endpoint, identifier = unanswered("1.1", offer)
    for _ in range(2):
        answer = endpoint.send(identifier, 1, routed=routed, **fields)
        assert answer is not None and (answer.body, answer.fault) == (b"", None)
        assert isinstance(answer.control, Acknowledge) and ranges(answer) == ((1, 1),)
    assert told_of(endpoint) == []


@ANSWERED_BY_NOBODY
def test_an_anonymous_request_without_an_offer_is_acknowledged_as_it_may_be_one_way(routed: Routed | None) -> None:
    endpoint, identifier = unanswered("1.1", None)
    answer = endpoint.send(identifier, 1, message_id="urn:m", reply_to=ANONYMOUS_EPR, routed=routed)
    assert answer is not None and isinstance(answer.control, Acknowledge) and ranges(answer) == ((1, 1),)


@pytest.mark.parametrize("reply_to", [ANONYMOUS_EPR, HERE])
def test_no_fault_tells_of_a_missing_reply_where_the_route_says_one_way(reply_to: EndpointReference) -> None:
    endpoint, identifier = unanswered("1.1", Offer("urn:o", ANONYMOUS_EPR))
    routed = Routed(("inbox",), False, Expects.ONE_WAY)
    answer = endpoint.send(identifier, 1, message_id="urn:m", reply_to=reply_to, routed=routed)
    assert answer is not None and isinstance(answer.control, Acknowledge) and ranges(answer) == ((1, 1),)


def test_requests_beyond_a_gap_without_a_replier_are_answered_and_kept_in_order() -> None:
    endpoint, identifier = unanswered("1.1", Offer("urn:o", ANONYMOUS_EPR))
    for number in (3, 2, 1):
        answer = endpoint.send(identifier, number, message_id=f"urn:m{number}", reply_to=ANONYMOUS_EPR)
        assert answer is not None and (answer.body, answer.relates_to) == (b"NoReply", f"urn:m{number}")
    endpoint.settle()
    assert [(one.message_number, one.wants_reply) for one in endpoint.records()] == [(1, False), (2, False), (3, False)]
