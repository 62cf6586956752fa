"""What a request is answered with: its reply, for as long as its sender may ask for it, and over every crash.

Covers core/rm_destination/request_replies.py.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
from asked import Endpoint, code, ranges
from hypothesis import given, settings
from hypothesis import strategies as st

from examples import examples
from holdfast.core.faults import UNKNOWN_SEQUENCE, sequence_fault
from holdfast.core.messages import (
    ANONYMOUS_EPR,
    NONE_EPR,
    Acknowledge,
    AckRequested,
    CloseSequence,
    CloseSequenceResponse,
    CreateSequence,
    CreateSequenceResponse,
    EndpointReference,
    Envelope,
    LastMessage,
    Offer,
    RequestAcknowledgement,
    Sequence,
    SequenceAcknowledgement,
    TerminateSequence,
    TerminateSequenceResponse,
)
from holdfast.core.policy import Assurance
from holdfast.core.receiving.replies import APART
from holdfast.core.records import Record
from holdfast.core.rm_destination.request_replies import ANSWERED_RANGES
from holdfast.core.versions import Versions

ELSEWHERE = EndpointReference("http://s/faults")
HERE = EndpointReference("http://s/decoupled")


def is_waiting(answer: Envelope | None) -> bool:
    return answer is not None and answer.action == "no answer yet"


def body(answer: Envelope | None) -> bytes:
    assert answer is not None
    return answer.body


# --- a bad header beside a message: that is processed as without it (section 3.3) -------------------------------------

BAD_HEADERS: dict[str, tuple[str, dict[str, Any]]] = {
    "an acknowledgement of an unknown Sequence": (
        "UnknownSequence",
        {"acknowledgements": (SequenceAcknowledgement("urn:nowhere", ((1, 1),)),)},
    ),
    "an acknowledgement of what was never sent": (
        "InvalidAcknowledgement",
        {"acknowledgements": (SequenceAcknowledgement("urn:o", ((1, 7),)),)},
    ),
    "an acknowledgement upside down": (
        "InvalidAcknowledgement",
        {"acknowledgements": (SequenceAcknowledgement("urn:o", ((2, 1),)),)},
    ),
    "a Nack of what was never sent": (
        "InvalidAcknowledgement",
        {"acknowledgements": (SequenceAcknowledgement("urn:o", (), (9,)),)},
    ),
    "a Nack of an unknown Sequence": (
        "UnknownSequence",
        {"acknowledgements": (SequenceAcknowledgement("urn:nowhere", (), (1,)),)},
    ),
    "AckRequested for an unknown Sequence": ("UnknownSequence", {"ack_requested": (AckRequested("urn:nowhere"),)}),
    "all of them": (
        "InvalidAcknowledgement",
        {
            "acknowledgements": (
                SequenceAcknowledgement("urn:o", ((1, 7),)),
                SequenceAcknowledgement("urn:nowhere", ((1, 1),)),
            ),
            "ack_requested": (AckRequested("urn:nowhere"), AckRequested("urn:nothing")),
        },
    ),
}
bad_headers = pytest.mark.parametrize(("expected", "headers"), BAD_HEADERS.values(), ids=BAD_HEADERS)


@bad_headers
@pytest.mark.parametrize("keeps_saying_so", [False, True])
def test_a_bad_header_is_answered_with_a_fault_and_its_repeat_with_the_reply(
    expected: str, headers: dict[str, Any], keeps_saying_so: bool
) -> None:
    endpoint = Endpoint()
    identifier = endpoint.create(offer=Offer("urn:o"))
    request: dict[str, Any] = {"message_id": "urn:m1", "reply_to": ANONYMOUS_EPR}
    assert code(endpoint.send(identifier, 1, **request, **headers)) == expected
    endpoint.reply(1)
    for again in (endpoint, endpoint.restart()):
        answer = again.send(identifier, 1, **request, **(headers if keeps_saying_so else {}))
        assert body(answer) == b"<r1/>"
        assert ranges(answer) == ((1, 1),)


@bad_headers
def test_a_request_whose_repeat_has_a_bad_header_gets_its_reply(expected: str, headers: dict[str, Any]) -> None:
    endpoint = Endpoint()
    identifier = endpoint.create(offer=Offer("urn:o"))
    assert is_waiting(endpoint.request(identifier, 1))
    assert is_waiting(endpoint.send(identifier, 1, message_id="urn:m1", reply_to=ANONYMOUS_EPR, **headers))
    endpoint.reply(1)
    assert [body(answer) for answer in endpoint.answers.values() if answer and answer.body] == [b"<r1/>"] * 2


@bad_headers
def test_the_fault_for_a_header_beside_a_one_way_message_acknowledges_that(
    expected: str, headers: dict[str, Any]
) -> None:
    endpoint = Endpoint()
    identifier = endpoint.create(offer=Offer("urn:o"))
    answer = endpoint.send(identifier, 1, **headers)
    assert code(answer) == expected
    assert ranges(answer) == ((1, 1),)
    assert ranges(endpoint.send(identifier, 1, **headers)) == ((1, 1),)


@bad_headers
def test_where_faults_have_an_address_the_carrier_is_answered_as_without_the_header(
    expected: str, headers: dict[str, Any]
) -> None:
    endpoint = Endpoint(allows=lambda _: True)
    identifier = endpoint.create(offer=Offer("urn:o"))
    request: dict[str, Any] = {"message_id": "urn:m1", "reply_to": ANONYMOUS_EPR, "fault_to": ELSEWHERE}
    assert is_waiting(endpoint.send(identifier, 1, **request, **headers))
    (told,) = endpoint.transmitted
    assert (told.to, code(told.envelope)) == (ELSEWHERE.address, expected)
    endpoint.reply(1)
    assert [body(answer) for answer in endpoint.answers.values() if answer and answer.body] == [b"<r1/>"]


@bad_headers
def test_a_message_that_is_refused_is_answered_with_its_own_fault(expected: str, headers: dict[str, Any]) -> None:
    endpoint = Endpoint()
    identifier = endpoint.create(offer=Offer("urn:o"))
    endpoint.ask(control=CloseSequence(identifier), message_id="urn:x")
    assert code(endpoint.send(identifier, 1, **headers)) == "SequenceClosed"


@bad_headers
@pytest.mark.parametrize("control", [CloseSequence, TerminateSequence])
def test_an_end_with_a_bad_header_is_an_end_and_its_repeat_gets_the_response(
    expected: str, headers: dict[str, Any], control: type[CloseSequence] | type[TerminateSequence]
) -> None:
    endpoint = Endpoint()
    identifier = endpoint.create(offer=Offer("urn:o"))
    endpoint.send(identifier, 1)
    assert code(endpoint.ask(control=control(identifier, 1), message_id="urn:x", **headers)) == expected
    again = endpoint.ask(control=control(identifier, 1), message_id="urn:x", **headers)
    assert again is not None and isinstance(again.control, CloseSequenceResponse | TerminateSequenceResponse)
    assert ranges(again) == ((1, 1),)


def test_a_create_sequence_with_a_bad_header_is_granted() -> None:
    endpoint = Endpoint()
    bad = (SequenceAcknowledgement("urn:nowhere", ((1, 1),)),)
    answer = endpoint.ask(control=CreateSequence(ANONYMOUS_EPR), message_id="urn:c", acknowledgements=bad)
    assert answer is not None and isinstance(answer.control, CreateSequenceResponse)


def test_one_answer_says_all_that_was_asked_for_and_what_was_unknown() -> None:
    endpoint = Endpoint()
    first, second = endpoint.create("urn:c1"), endpoint.create("urn:c2")
    endpoint.send(second, 1)
    asked = (AckRequested("urn:nowhere"), AckRequested(first), AckRequested(second))
    answer = endpoint.ask(control=RequestAcknowledgement(), ack_requested=asked)
    assert code(answer) == "UnknownSequence"
    assert answer is not None
    assert [(one.identifier, one.ranges) for one in answer.acknowledgements] == [(first, ()), (second, ((1, 1),))]
    answer = endpoint.ask(control=RequestAcknowledgement(), ack_requested=asked[1:])
    assert answer is not None and isinstance(answer.control, Acknowledge)
    assert [one.identifier for one in answer.acknowledgements] == [first, second]


# --- a request behind a gap (section 3.8) ----------------------------------------------------------------------------


asks_or_not = pytest.mark.parametrize("is_asked", [False, True])
offers_or_not = pytest.mark.parametrize("is_offered", [False, True])
either_version = pytest.mark.parametrize("rm", ["1.0", "1.1"])


def requester(rm: str, is_offered: bool, **policy: Any) -> tuple[Endpoint, str]:
    endpoint = Endpoint(rm, **policy)
    return endpoint, endpoint.create(**({"offer": Offer("urn:o")} if is_offered else {}))


def asked(identifier: str, number: int, is_asked: bool) -> dict[str, Any]:
    request: dict[str, Any] = {"message_id": f"urn:m{number}", "reply_to": ANONYMOUS_EPR}
    return request | ({"ack_requested": (AckRequested(identifier),)} if is_asked else {})


@either_version
@asks_or_not
@offers_or_not
def test_a_request_behind_a_gap_is_never_answered_by_an_acknowledgement_alone(
    rm: str, is_asked: bool, is_offered: bool
) -> None:
    """Metro takes that for its reply, .NET for the end of its call."""
    endpoint, identifier = requester(rm, is_offered)
    for _ in range(2):
        assert is_waiting(endpoint.send(identifier, 2, **asked(identifier, 2, is_asked)))
    endpoint.pass_time(endpoint.policy.reply_patience)
    assert list(endpoint.answers.values())[-2:] == [None, None], "202"
    endpoint.request(identifier, 1)
    for number in (1, 2):
        endpoint.reply(number)
    assert body(endpoint.send(identifier, 2, **asked(identifier, 2, is_asked))) == b"<r2/>"


@either_version
@asks_or_not
@offers_or_not
def test_a_request_that_waits_too_long_for_its_reply_is_answered_202_and_asks_again(
    rm: str, is_asked: bool, is_offered: bool
) -> None:
    endpoint, identifier = requester(rm, is_offered, reply_patience=5.0)
    for _ in range(2):
        assert is_waiting(endpoint.send(identifier, 1, **asked(identifier, 1, is_asked)))
        endpoint.pass_time(5.0)
        assert list(endpoint.answers.values())[-1] is None, "202"
    assert is_waiting(endpoint.send(identifier, 1, **asked(identifier, 1, is_asked)))
    endpoint.reply(1)
    answer = list(endpoint.answers.values())[-1]
    assert (body(answer), ranges(answer)) == (b"<r1/>", ((1, 1),))


@either_version
@offers_or_not
def test_a_request_that_waits_keeps_no_acknowledgement_from_whoever_asks_for_it(rm: str, is_offered: bool) -> None:
    endpoint, identifier = requester(rm, is_offered, reply_patience=5.0)
    endpoint.send(identifier, 1)  # its answer is lost
    endpoint.send(identifier, 2, **asked(identifier, 2, True))
    endpoint.pass_time(5.0)
    assert list(endpoint.answers.values())[-1] is None, "202"
    ask = {"control": RequestAcknowledgement(), "ack_requested": (AckRequested(identifier),)}
    assert ranges(endpoint.ask(**ask)) == ((1, 1),)  # WS-RM 3.8
    assert ranges(endpoint.send(identifier, 1)) == ((1, 1),)
    assert ranges(endpoint.send(identifier, 3)) == ((1, 1), (3, 3))
    endpoint.reply(2)
    assert ranges(endpoint.ask(**ask)) == ((1, 3),)
    assert ranges(endpoint.send(identifier, 2, **asked(identifier, 2, True))) == ((1, 3),)


@offers_or_not
def test_a_request_that_finds_no_room_is_answered_202_though_it_asks(is_offered: bool) -> None:
    endpoint, identifier = requester("1.1", is_offered, max_open_requests=1)
    endpoint.request(identifier, 1)
    assert endpoint.send(identifier, 2, **asked(identifier, 2, True)) is None


def test_a_request_beyond_a_gap_gets_its_reply_when_it_is_repeated() -> None:
    """What closes the gap may need that connection: a client may have but two."""
    endpoint = Endpoint(reply_patience=30.0)
    identifier = endpoint.create(offer=Offer("urn:o"))
    endpoint.request(identifier, 2)
    waiting = len(endpoint.answers)
    endpoint.pass_time(1.4)
    assert len(endpoint.answers) == waiting
    endpoint.pass_time(0.2)
    assert len(endpoint.answers) == waiting + 1 and list(endpoint.answers.values())[-1] is None, "202"
    endpoint.request(identifier, 1)
    endpoint.pass_time(1.6)
    assert len(endpoint.answers) == waiting + 1, "one that is beyond no gap waits as long as before"


def test_a_request_whose_gap_closed_in_time_waits_as_long_as_any_other() -> None:
    """Requests overtake each other on several connections; a slow service must not cost a repeat of each."""
    endpoint = Endpoint(reply_patience=30.0)
    identifier = endpoint.create(offer=Offer("urn:o"))
    endpoint.request(identifier, 2)
    endpoint.pass_time(0.5)
    endpoint.request(identifier, 1)
    waiting = len(endpoint.answers)
    endpoint.pass_time(29.0)
    assert len(endpoint.answers) == waiting
    endpoint.pass_time(1.1)
    assert len(endpoint.answers) == waiting + 2


def test_a_requester_with_an_address_that_asks_is_acknowledged_there() -> None:
    endpoint, identifier = addressable()
    asked = (AckRequested(identifier),)
    assert endpoint.send(identifier, 2, message_id="urn:m2", reply_to=HERE, ack_requested=asked) is None
    endpoint.pass_time(endpoint.policy.acknowledgement_interval)
    assert [ranges(sent.envelope) for sent in endpoint.transmitted] == [()]


def test_an_expired_request_is_acknowledged_though_it_gets_no_reply() -> None:
    endpoint = Endpoint(assurance=Assurance.parse("at-most-once in-order"))
    identifier = endpoint.create()
    endpoint.send(identifier, 2)
    assert ranges(endpoint.request(identifier, 1)) == ((1, 2),)


def test_a_reply_to_an_address_asks_for_no_acknowledgement_however_often_it_is_sent() -> None:
    # CXF's client, live: a reply that asks is lost to the call that waits for it.
    endpoint, identifier = addressable()
    endpoint.send(identifier, 1, message_id="urn:m1", reply_to=HERE)
    endpoint.reply(1)
    endpoint.pass_time(60.0)
    replies = [sent.envelope for sent in endpoint.transmitted if sent.envelope.body == b"<r1/>"]
    assert len(replies) > 1
    assert all(not reply.ack_requested for reply in replies)


@pytest.mark.parametrize("rm", ["1.0", "1.1"])
@pytest.mark.parametrize("is_restarted", [False, True])
def test_each_transmission_of_a_reply_to_an_address_acknowledges_its_request(rm: str, is_restarted: bool) -> None:
    endpoint, identifier = addressable(rm)
    for number in (1, 2):
        endpoint.send(identifier, number, message_id=f"urn:m{number}", reply_to=HERE)
    endpoint.reply(1)
    if is_restarted:
        endpoint = endpoint.restart()
    endpoint.pass_time(60.0)
    said = [(sent.envelope.body, ranges(sent.envelope)) for sent in endpoint.transmitted if sent.envelope.body]
    assert len(said) >= 1
    assert set(said) == {(b"<r1/>", ((1, 1),))}
    endpoint.transmitted.clear()
    endpoint.ask(acknowledgements=(SequenceAcknowledgement("urn:o", ((1, 1),)),))
    endpoint.pass_time(60.0)
    assert endpoint.transmitted == []  # nothing goes alone


@pytest.mark.parametrize("is_taken", [False, True])
@pytest.mark.parametrize("is_asked", [False, True])
def test_a_repeat_of_an_acknowledged_request_is_acknowledged_at_its_address_again(
    is_taken: bool, is_asked: bool
) -> None:
    endpoint, identifier = addressable()
    endpoint.send(identifier, 1, message_id="urn:m1", reply_to=HERE)
    endpoint.reply(1)
    if is_taken:
        endpoint.ask(acknowledgements=(SequenceAcknowledgement("urn:o", ((1, 1),)),))
    asked = (AckRequested(identifier),) if is_asked else ()
    for _ in range(2):
        endpoint.transmitted.clear()
        assert endpoint.send(identifier, 1, message_id="urn:m1", reply_to=HERE, ack_requested=asked) is None
        endpoint.pass_time(60.0)
        said = [(sent.to, body(sent.envelope), ranges(sent.envelope)) for sent in endpoint.transmitted]
        assert ((HERE.address, b"", ((1, 1),)) in said) == (is_taken or is_asked)
        assert ((HERE.address, b"<r1/>", ((1, 1),)) in said) == (not is_taken)  # it carries the acknowledgement


def without_offer(rm: str) -> tuple[Endpoint, list[str]]:
    """Two Sequences of requesters that listen at one address and offered no Sequence for replies."""
    endpoint = Endpoint(rm, allows=lambda _: True)
    identifiers = []
    for name in ("urn:c1", "urn:c2"):
        endpoint.ask(control=CreateSequence(HERE), message_id=name, reply_to=HERE, to="http://d/")
        response = endpoint.transmitted.pop().envelope.control
        assert isinstance(response, CreateSequenceResponse)
        identifiers.append(response.identifier)
    return endpoint, identifiers


def grant(endpoint: Endpoint) -> None:
    """The requester grants the Sequence that its reply needs."""
    (sent,) = [one for one in endpoint.transmitted if isinstance(one.envelope.control, CreateSequence)]
    endpoint.transmitted.clear()
    granted = endpoint.envelope(control=CreateSequenceResponse("urn:r"), relates_to=sent.envelope.message_id)
    endpoint.protocol.received(sent, granted, endpoint.now)
    endpoint.pass_time(0.0)


def said_at(endpoint: Endpoint) -> list[tuple[bytes, str, Any]]:
    """What went to the requester: body, and which numbers of which Sequence it acknowledges."""
    return [
        (sent.envelope.body, acknowledgement.identifier, acknowledgement.ranges)
        for sent in endpoint.transmitted
        for acknowledgement in sent.envelope.acknowledgements
    ]


@either_version
def test_a_reply_without_an_offer_carries_its_requests_acknowledgement_each_time(rm: str) -> None:
    """An acknowledgement alone names no request: of two clients at one address the other may take it (CXF)."""
    endpoint, (one, other) = without_offer(rm)
    endpoint.send(one, 1, message_id="urn:m1", reply_to=HERE)
    endpoint.reply(1)
    grant(endpoint)
    assert said_at(endpoint) == [(b"<r1/>", one, ((1, 1),))]
    endpoint.transmitted.clear()
    count = 2 * endpoint.policy.acknowledgement_count
    for number in range(2, count + 1):
        for identifier, first in ((one, 1), (other, 2)):
            endpoint.send(identifier, number + 1 - first, message_id=f"urn:{number}", reply_to=HERE)
    for record in endpoint.records()[1:]:  # all become durable together
        endpoint.protocol.replies.reply(record, Record("", 0, "urn:reply", b"<r/>", 0.0), endpoint.now)
    endpoint.pass_time(0.0)
    said = said_at(endpoint)
    while endpoint.transmitted:
        sent = endpoint.transmitted.pop(0)
        number = sent.number
        taken = endpoint.envelope(
            control=Acknowledge(), acknowledgements=(SequenceAcknowledgement("urn:r", ((1, number),)),)
        )
        before = len(endpoint.transmitted)
        endpoint.protocol.received(sent, taken, endpoint.now)
        endpoint.pass_time(0.0)
        said += said_at(endpoint)[before:]
    assert set(said) == {(b"<r/>", one, ((1, count),)), (b"<r/>", other, ((1, count - 1),))}
    endpoint.pass_time(60.0)
    assert endpoint.transmitted == [], "nothing goes alone"


@either_version
def test_a_reply_without_an_offer_carries_the_acknowledgement_after_a_restart(rm: str) -> None:
    endpoint, (identifier, _) = without_offer(rm)
    endpoint.send(identifier, 1, message_id="urn:m1", reply_to=HERE)
    endpoint.reply(1)
    grant(endpoint)
    again = endpoint.restart()
    again.pass_time(60.0)
    assert (b"<r1/>", identifier, ((1, 1),)) in said_at(again)


def test_a_reply_to_an_address_that_cannot_leave_costs_no_acknowledgement() -> None:
    endpoint, (identifier, _) = without_offer("1.1")
    endpoint.send(identifier, 1, message_id="urn:m1", reply_to=HERE)
    endpoint.reply(1)  # nobody grants the Sequence that it needs
    endpoint.pass_time(endpoint.policy.acknowledgement_interval)
    assert said_at(endpoint) == [(b"", identifier, ((1, 1),))]


# --- where replies and faults go (WS-Addressing 2005/08 core, 3.4) ---------------------------------------------------

SESSION = b"<k:session xmlns:k='urn:k'>1</k:session>"
NAMED = EndpointReference(HERE.address, (SESSION,))
FAULTS = EndpointReference(ELSEWHERE.address, (b"<desk xmlns='urn:k'/>",))


def answer_with_fault(endpoint: Endpoint) -> None:
    (record,) = endpoint.records()
    fault = Record("", 0, "urn:fault", b"<f/>", 0.0, fault_to=record.fault_to)
    endpoint.protocol.replies.reply(record, fault, endpoint.now)
    endpoint.pass_time(0.0)


@either_version
@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_reply_carries_the_reference_parameters_of_its_reply_to(rm: str, is_restarted: bool) -> None:
    endpoint, (identifier, _) = without_offer(rm)
    endpoint.send(identifier, 1, message_id="urn:m1", reply_to=NAMED)
    endpoint = endpoint.restart() if is_restarted else endpoint
    endpoint.reply(1)
    endpoint.transmitted = [sent for sent in endpoint.transmitted if sent.to == HERE.address]
    grant(endpoint)
    (sent,) = [sent for sent in endpoint.transmitted if sent.envelope.body]
    assert (sent.to, sent.envelope.reference_parameters) == (NAMED.address, NAMED.reference_parameters)


@either_version
@pytest.mark.parametrize("is_offered", [False, True])
def test_a_reply_on_the_back_channel_carries_the_reference_parameters_too(rm: str, is_offered: bool) -> None:
    endpoint, identifier = requester(rm, is_offered)
    named = EndpointReference(ANONYMOUS_EPR.address, (SESSION,))
    endpoint.send(identifier, 1, message_id="urn:m1", reply_to=named)
    endpoint.reply(1)
    for again in (endpoint, endpoint.restart()):
        answer = again.send(identifier, 1, message_id="urn:m1", reply_to=named)
        assert (body(answer), answer and answer.reference_parameters) == (b"<r1/>", (SESSION,))


@either_version
@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_fault_goes_to_the_fault_to_with_its_reference_parameters(rm: str, is_restarted: bool) -> None:
    endpoint, (identifier, _) = without_offer(rm)
    endpoint.send(identifier, 1, message_id="urn:m1", reply_to=NAMED, fault_to=FAULTS)
    endpoint = endpoint.restart() if is_restarted else endpoint
    answer_with_fault(endpoint)
    endpoint.transmitted = [sent for sent in endpoint.transmitted if sent.to == FAULTS.address]
    grant(endpoint)
    (sent,) = [sent for sent in endpoint.transmitted if sent.envelope.body]
    assert (sent.to, sent.envelope.reference_parameters) == (FAULTS.address, FAULTS.reference_parameters)
    assert sent.envelope.relates_to == "urn:m1"


def test_a_fault_for_the_address_none_is_discarded() -> None:
    endpoint, (identifier, _) = without_offer("1.1")
    endpoint.send(identifier, 1, message_id="urn:m1", reply_to=NAMED, fault_to=NONE_EPR)
    answer_with_fault(endpoint)
    assert [sent for sent in endpoint.transmitted if isinstance(sent.envelope.control, CreateSequence)] == []
    endpoint.pass_time(endpoint.policy.acknowledgement_interval)
    assert said_at(endpoint) == [(b"", identifier, ((1, 1),))]


@either_version
def test_a_message_with_the_reply_to_none_is_one_way_and_sends_no_fault(rm: str) -> None:
    endpoint, (identifier, _) = without_offer(rm)
    endpoint.send(identifier, 1, message_id="urn:m1", reply_to=NONE_EPR, fault_to=FAULTS)
    (record,) = endpoint.records()
    assert not record.wants_reply
    endpoint.pass_time(endpoint.policy.acknowledgement_interval)
    assert said_at(endpoint) == [(b"", identifier, ((1, 1),))]
    assert not any(sent.to == FAULTS.address for sent in endpoint.transmitted)


@either_version
def test_messages_with_the_same_message_id_are_distinct_by_their_numbers(rm: str) -> None:
    endpoint, identifier = requester(rm, True)
    for number in (1, 2):
        assert is_waiting(endpoint.send(identifier, number, message_id="urn:same", reply_to=ANONYMOUS_EPR))
    endpoint.reply(2)
    endpoint.reply(1)
    answers = [endpoint.send(identifier, n, message_id="urn:same", reply_to=ANONYMOUS_EPR) for n in (1, 2)]
    assert [body(answer) for answer in answers] == [b"<r1/>", b"<r2/>"]
    assert [answer and answer.relates_to for answer in answers] == ["urn:same"] * 2


# --- a Sequence that the destination ends while a request awaits its reply (sections 3.5 and 3.6) ---------------------


def addressable(rm: str = "1.1", **policy: Any) -> tuple[Endpoint, str]:
    """A requester that listens for acknowledgements and replies."""
    endpoint = Endpoint(rm, allows=lambda _: True, **policy)
    create = CreateSequence(HERE, offer=Offer("urn:o", HERE if rm == "1.1" else None))
    endpoint.ask(control=create, message_id="urn:c", reply_to=HERE, to="http://d/")
    response = endpoint.transmitted.pop().envelope.control
    assert isinstance(response, CreateSequenceResponse)
    return endpoint, response.identifier


def end(endpoint: Endpoint, identifier: str, how: str) -> None:
    if how == "time":
        endpoint.pass_time(10.0)
    else:
        assert endpoint.protocol.end_inbound(identifier, endpoint.now, terminate=how == "terminate")
        endpoint.settle()


AFTERWARDS = {"time": "UnknownSequence", "close": "SequenceClosed", "terminate": "SequenceTerminated"}
ENDS = [(rm, how) for rm in ("1.0", "1.1") for how in AFTERWARDS]


@pytest.mark.parametrize(("rm", "how"), ENDS)
@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize("is_offered", [False, True])
def test_an_accepted_request_is_answered_though_the_destination_ended_its_sequence(
    rm: str, how: str, is_restarted: bool, is_offered: bool
) -> None:
    endpoint = Endpoint(rm, inactivity_timeout=10.0)
    identifier = endpoint.create(**({"offer": Offer("urn:o")} if is_offered else {}))
    assert is_waiting(endpoint.request(identifier, 1))
    endpoint.send(identifier, 2)
    end(endpoint, identifier, how)
    if is_restarted:
        endpoint = endpoint.restart()
    # Until the reply is there nobody hears of the end: its requester would give the request up.
    assert is_waiting(endpoint.request(identifier, 1))
    assert endpoint.request(identifier, 3) is None
    assert endpoint.send(identifier, 4) is None
    asked = endpoint.ask(control=RequestAcknowledgement(), ack_requested=(AckRequested(identifier),))
    assert ranges(asked) == ((2, 2),)
    assert asked is not None and not asked.acknowledgements[0].final
    endpoint.reply(1)
    replies = [answer for answer in endpoint.answers.values() if answer is not None and answer.body]
    assert [(body(answer), ranges(answer)) for answer in replies] == [(b"<r1/>", ((1, 2),))] * (1 + (not is_restarted))
    assert replies[-1].acknowledgements[0].final == (rm == "1.1")
    for again in (endpoint, endpoint.restart()):
        assert body(again.request(identifier, 1)) == b"<r1/>"
        afterwards = AFTERWARDS[how] if rm == "1.1" or how == "time" else "SequenceTerminated"
        assert code(again.request(identifier, 3)) == afterwards


@pytest.mark.parametrize(("rm", "how"), ENDS)
def test_a_lost_reply_is_given_again_after_the_destination_ended_the_sequence(rm: str, how: str) -> None:
    endpoint = Endpoint(rm, inactivity_timeout=10.0)
    identifier = endpoint.create(offer=Offer("urn:o"))
    endpoint.request(identifier, 1)
    endpoint.reply(1)
    end(endpoint, identifier, how)
    for again in (endpoint, endpoint.restart()):
        assert body(again.request(identifier, 1)) == b"<r1/>"
        for _ in range(2):  # what is closed or being terminated ends with its inactivity
            again.pass_time(endpoint.policy.remember_terminated + 1.0)
        assert again.protocol.outbound.outboxes == {}


@pytest.mark.parametrize("rm", ["1.0", "1.1"])
@pytest.mark.parametrize("terminate", [False, True])
def test_a_requester_with_an_address_is_told_of_the_end_after_it_has_the_reply(rm: str, terminate: bool) -> None:
    endpoint, identifier = addressable(rm)
    endpoint.send(identifier, 1, message_id="urn:m1", reply_to=HERE)
    end(endpoint, identifier, "terminate" if terminate else "close")
    endpoint.pass_time(60.0)
    assert endpoint.transmitted == []
    endpoint.reply(1)
    endpoint.pass_time(0.0)
    assert [body(sent.envelope) for sent in endpoint.transmitted] == [b"<r1/>"]
    endpoint.transmitted.clear()
    endpoint.ask(acknowledgements=(SequenceAcknowledgement("urn:o", ((1, 1),)),))
    endpoint.pass_time(3.0)
    told = [sent.envelope for sent in endpoint.transmitted]
    if rm == "1.0":
        assert [code(envelope) for envelope in told if envelope.fault is not None] == ["SequenceTerminated"]
    else:
        expected = TerminateSequence(identifier) if terminate else CloseSequence(identifier)
        (ending,) = [one for one in told if one.control == expected]
        assert (ranges(ending), ending.acknowledgements[0].final) == (((1, 1),), True)


def test_a_source_that_closes_early_is_acknowledged_and_gets_its_reply_too() -> None:
    endpoint = Endpoint()
    identifier = endpoint.create(offer=Offer("urn:o"))
    endpoint.request(identifier, 1)
    closed = endpoint.ask(control=CloseSequence(identifier, 1), message_id="urn:x")
    assert closed is not None and isinstance(closed.control, CloseSequenceResponse)
    assert (ranges(closed), closed.acknowledgements[0].final) == (((1, 1),), True)
    again = endpoint.restart()
    assert is_waiting(again.request(identifier, 1))
    for one in (endpoint, again):
        one.reply(1)
        assert [body(answer) for answer in one.answers.values() if answer and answer.body] == [b"<r1/>"]


def test_a_sequence_is_not_forgotten_while_a_request_of_it_is_handled() -> None:
    endpoint = Endpoint(inactivity_timeout=10.0)
    identifier = endpoint.create(offer=Offer("urn:o"))
    endpoint.request(identifier, 1)
    end(endpoint, identifier, "time")
    for _ in range(5):
        endpoint.pass_time(endpoint.policy.remember_terminated)
    endpoint.reply(1)
    assert body(endpoint.request(identifier, 1)) == b"<r1/>"
    endpoint.pass_time(endpoint.policy.remember_terminated)
    assert code(endpoint.request(identifier, 1)) == "UnknownSequence"


@pytest.mark.parametrize("terminate", [False, True])
def test_an_end_is_not_told_to_anybody_before_it_is_durable(terminate: bool) -> None:
    endpoint = Endpoint()
    identifier = endpoint.create()
    endpoint.send(identifier, 1)
    endpoint.protocol.end_inbound(identifier, endpoint.now, terminate=terminate)
    new = Sequence(identifier, 2)
    assert is_waiting(endpoint.ask(sequence=new, action="urn:a", body=b"<m2/>", durable=False))
    endpoint.settle()
    assert code(list(endpoint.answers.values())[-1]) == ("SequenceTerminated" if terminate else "SequenceClosed")


def test_a_sequence_whose_end_the_source_confirms_is_over_and_forgotten() -> None:
    endpoint, identifier = addressable(max_sequences=1, inactivity_timeout=None)
    end(endpoint, identifier, "terminate")
    endpoint.ask(control=TerminateSequenceResponse(identifier))
    assert endpoint.create("urn:another") != identifier  # it counts no more
    endpoint.pass_time(endpoint.policy.remember_terminated + 1.0)
    assert identifier not in endpoint.protocol.inbound.destinations


@pytest.mark.parametrize("rm", ["1.0", "1.1"])
@pytest.mark.parametrize("is_fault", [False, True])
@pytest.mark.parametrize("is_restarted", [False, True])
def test_after_the_end_a_source_hears_nothing_of_requests_without_replies(
    rm: str, is_fault: bool, is_restarted: bool
) -> None:
    endpoint, identifier = addressable(rm)
    for number in (1, 2):
        endpoint.send(identifier, number, message_id=f"urn:m{number}", reply_to=HERE)
    if is_fault:
        endpoint.ask(fault=sequence_fault(UNKNOWN_SEQUENCE, identifier))
    else:
        endpoint.ask(control=TerminateSequence(identifier), message_id="urn:x")
    if is_restarted:
        endpoint = endpoint.restart()
    endpoint.transmitted.clear()
    endpoint.reply(1)
    endpoint.pass_time(endpoint.policy.acknowledgement_interval)
    for asked in ((), (AckRequested(identifier),)):  # late repeats
        endpoint.send(identifier, 1, message_id="urn:m1", reply_to=HERE, ack_requested=asked)
        endpoint.send(identifier, 2, message_id="urn:m2", reply_to=HERE, ack_requested=asked)
    endpoint.pass_time(endpoint.policy.acknowledgement_interval)
    assert body(endpoint.transmitted[0].envelope) == b"<r1/>"
    endpoint.reply(2)
    endpoint.pass_time(endpoint.policy.acknowledgement_interval)
    assert b"<r2/>" in [body(sent.envelope) for sent in endpoint.transmitted]
    assert all(not sent.envelope.acknowledgements for sent in endpoint.transmitted)


# --- what cannot be answered ------------------------------------------------------------------------------------------


def told_of(endpoint: Endpoint) -> list[tuple[str, int]]:
    return [(one.level, one.number) for one in endpoint.incidents if one.name == "request.no_reply"]


def test_a_request_without_a_reply_leaves_a_line_where_its_sender_cannot_go_on() -> None:
    for create, reply_to, lines in (
        ({"offer": Offer("urn:o")}, ANONYMOUS_EPR, [("warning", 1)]),
        ({}, HERE, [("warning", 1)]),
        ({}, ANONYMOUS_EPR, []),
    ):
        for answers in (True, False):
            endpoint = Endpoint(allows=lambda _: True, tell=lambda *_: Record("", 0, "urn:fault", b"", 0.0))
            endpoint.protocol.accepting._replies_to = lambda _action, answers=answers: answers  # type: ignore[misc]
            identifier = endpoint.create(**create)  # type: ignore[arg-type]
            endpoint.send(identifier, 1, message_id="urn:m1", reply_to=reply_to)
            endpoint.send(identifier, 2)
            if answers:
                endpoint.protocol.replies.reply(endpoint.records()[0], None, endpoint.now)
                endpoint.settle()
            assert told_of(endpoint) == lines


# --- bounds -----------------------------------------------------------------------------------------------------------


def test_requests_whose_replies_are_not_taken_are_not_accepted_without_end() -> None:
    endpoint = Endpoint(max_open_requests=4)
    identifier = endpoint.create(offer=Offer("urn:o"))
    for number in (1, 2, 3, 4):
        endpoint.request(identifier, number)
    assert endpoint.request(identifier, 5) is None  # to be sent again
    assert ranges(endpoint.send(identifier, 5)) == ((5, 5),)  # one that wants no reply costs nothing
    for number in (1, 2, 3, 4):
        endpoint.reply(number)
    assert endpoint.request(identifier, 6) is None
    endpoint.ask(control=Acknowledge(), acknowledgements=(SequenceAcknowledgement("urn:o", ((1, 1),)),))
    assert is_waiting(endpoint.request(identifier, 6))


def test_replies_that_go_in_no_sequence_are_kept_up_to_the_limit() -> None:
    endpoint = Endpoint(max_open_requests=4)
    identifier = endpoint.create()
    for number in range(1, 101):
        endpoint.request(identifier, number)
        endpoint.reply(number)
    for again in (endpoint, endpoint.restart()):
        assert body(again.request(identifier, 97)) == b"<r97/>"
        late = again.request(identifier, 96)
        assert (body(late), ranges(late)) == (b"", ((1, 100),))
        assert len(again.protocol.inbound.destinations[identifier].replies.numbers) == 4
    first, end = endpoint.store.load().bounds[f"replies/plain/{identifier}", 0]
    assert end - first < 80


def keep(endpoint: Endpoint, number: int) -> bool:
    """A reply comes to a message that was acknowledged without one."""
    record = next(record for record in endpoint.records() if record.message_number == number)
    kept = endpoint.protocol.replies.keep(record, Record("", 0, "urn:reply", b"<r%d/>" % number, 0.0), endpoint.now)
    endpoint.settle()
    return kept


@offers_or_not
def test_a_reply_is_kept_once_for_a_message_that_was_acknowledged_without_it(is_offered: bool) -> None:
    endpoint, identifier = requester("1.1", is_offered)
    endpoint.send(identifier, 1, message_id="urn:m1")
    assert [keep(endpoint, 1), keep(endpoint, 1)] == [True, False]
    for again in (endpoint, endpoint.restart()):
        assert not keep(again, 1)
        assert body(again.send(identifier, 1, message_id="urn:m1")) == b"<r1/>"
    if is_offered:
        endpoint.ask(control=Acknowledge(), acknowledgements=(SequenceAcknowledgement("urn:o", ((1, 1),)),))
        assert not keep(endpoint, 1)
    endpoint.ask(control=TerminateSequence(identifier), message_id="urn:t")
    assert not keep(endpoint, 1)


def test_no_reply_is_kept_for_a_waiting_request_or_in_the_older_addressing() -> None:
    endpoint, identifier = requester("1.1", True)
    endpoint.request(identifier, 1)
    assert not keep(endpoint, 1)
    endpoint = Endpoint("1.0")
    endpoint.versions = Versions("1.0", "2004/08")
    identifier = endpoint.create()
    endpoint.send(identifier, 1, message_id="urn:m1")
    assert not keep(endpoint, 1)


def test_kept_replies_without_a_reply_to_are_limited_and_leave_room_for_requests() -> None:
    endpoint, identifier = requester("1.1", True, max_open_requests=4)
    for number in range(1, 7):
        endpoint.send(identifier, number, message_id=f"urn:m{number}")
    assert [keep(endpoint, number) for number in range(1, 7)] == [True, True, False, False, False, False]
    assert is_waiting(endpoint.request(identifier, 7))
    endpoint, identifier = requester("1.1", False, max_open_requests=4)
    for number in range(1, 7):
        endpoint.send(identifier, number, message_id=f"urn:m{number}")
        assert keep(endpoint, number)
    bodies = [body(endpoint.send(identifier, number, message_id=f"urn:m{number}")) for number in range(1, 7)]
    assert bodies == [b"", b"", b"<r3/>", b"<r4/>", b"<r5/>", b"<r6/>"]


def test_what_is_remembered_of_answered_requests_is_bounded() -> None:
    endpoint = Endpoint()
    identifier = endpoint.create(offer=Offer("urn:o"))
    count = 2 * ANSWERED_RANGES + 10
    for number in range(1, 2 * count, 2):
        endpoint.request(identifier, number)
        endpoint.send(identifier, number + 1)
        endpoint.reply(number)
        acknowledged = SequenceAcknowledgement("urn:o", ((1, (number + 1) // 2),))
        endpoint.ask(control=Acknowledge(), acknowledgements=(acknowledged,))
    for again in (endpoint, endpoint.restart()):
        destination = again.protocol.inbound.destinations[identifier]
        assert len(destination.replies.answered) == ANSWERED_RANGES
        assert again.request(identifier, 2 * count - 1) is None
        assert ranges(again.request(identifier, 1)) == ((1, 2 * count),)


def test_of_two_sequences_created_alike_the_newer_one_is_granted_again() -> None:
    endpoint = Endpoint(now=1000.0)
    first = endpoint.create("urn:c")
    endpoint.send(first, 1)
    endpoint.now = 10.0
    second = endpoint.create("urn:c")
    assert second != first
    for again in (endpoint, endpoint.restart()):
        assert again.create("urn:c") == second


# --- a restart changes no answer --------------------------------------------------------------------------------------


class History:
    """What a requester said, and what it would be told if it said everything again."""

    def __init__(self, rm: str, pattern: str, **policy: Any) -> None:
        self.reply_to = HERE if pattern == "listener" else ANONYMOUS_EPR
        self.endpoint = Endpoint(rm, allows=lambda _: True, inactivity_timeout=1000.0, **policy)
        offer = None if pattern == "plain" else Offer("urn:o", self.reply_to if rm == "1.1" else None)
        self.said: list[dict[str, Any]] = []
        create = CreateSequence(self.reply_to, None, offer)
        self.say(control=create, message_id="urn:c", reply_to=self.reply_to, to="http://d/")
        self.identifier = "urn:d1"
        self.open: list[int] = []
        self.replied = 0

    def say(self, **fields: Any) -> None:
        self.said.append(fields)
        self.endpoint.ask(**fields)

    def do(self, step: tuple[str, int]) -> None:
        verb, number = step
        endpoint, identifier = self.endpoint, self.identifier
        if verb == "request":
            message_id = f"urn:m{number}"
            self.message(number, message_id=message_id, reply_to=self.reply_to)
        elif verb == "one-way":
            self.message(number)
        elif verb == "last" and endpoint.versions.rm.value == "1.0":
            self.say(sequence=Sequence(identifier, number, True), control=LastMessage())
        elif verb in ("reply", "none"):
            self.handle(number, has_reply=verb == "reply")
        elif verb == "heard":
            self.say(control=Acknowledge(), acknowledgements=(SequenceAcknowledgement("urn:o", ((1, number),)),))
        elif verb in ("close", "terminate"):
            endpoint.protocol.end_inbound(identifier, endpoint.now, terminate=verb == "terminate")
        elif verb == "closed" and endpoint.versions.rm.value == "1.1":
            self.say(control=CloseSequence(identifier, number), message_id="urn:close")
        elif verb == "terminated":
            self.say(control=TerminateSequence(identifier), message_id="urn:terminate")
        elif verb == "silence":
            endpoint.pass_time(1000.0)
        endpoint.settle()

    def message(self, number: int, **fields: Any) -> None:
        text = b"<m%d/>" % number
        self.say(sequence=Sequence(self.identifier, number), action="urn:a", body=text, **fields)

    def handle(self, number: int, *, has_reply: bool) -> None:
        waiting = [
            record for record in self.endpoint.records() if record.wants_reply and record.message_number == number
        ]
        destination = self.endpoint.protocol.inbound.destinations.get(self.identifier)
        if waiting and destination is not None and destination.replies.is_unanswered(number):
            if has_reply:
                self.endpoint.reply(number)
            else:
                self.endpoint.protocol.replies.reply(waiting[0], None, self.endpoint.now)

    def repeats(self) -> list[dict[str, Any]]:
        """All that was said, and questions that could be asked at any time."""
        asked = (AckRequested(self.identifier),)
        return [
            *self.said,
            *({**fields, "ack_requested": asked} for fields in self.said if "sequence" in fields),
            {"control": RequestAcknowledgement(), "ack_requested": asked},
            {"sequence": Sequence(self.identifier, 50), "action": "urn:a", "body": b"<new/>"},
        ]


STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["request"] * 4
            + ["reply"] * 4
            + ["heard"] * 2
            + ["one-way", "none", "last", "close", "terminate", "closed", "terminated", "silence"]
        ),
        st.integers(1, 6),
    ),
    max_size=14,
)


@settings(max_examples=examples(60), deadline=None)
@given(
    rm=st.sampled_from(["1.0", "1.1"]),
    pattern=st.sampled_from(["offer", "plain", "listener"]),
    steps=STEPS,
    assurance=st.sampled_from(["exactly-once in-order", "exactly-once", "at-most-once in-order"]),
)
def test_a_restart_changes_no_answer_to_what_is_said_again(
    rm: str, pattern: str, steps: list[tuple[str, int]], assurance: str
) -> None:
    history = History(rm, pattern, assurance=Assurance.parse(assurance))
    for step in steps:
        history.do(step)
        running, restarted = deepcopy(history.endpoint), history.endpoint.restart()
        running.transmitted.clear()
        for fields in history.repeats():
            for endpoint in (running, restarted):
                endpoint.pass_time(APART)
            assert running.ask(**fields) == restarted.ask(**fields), (step, fields)
            assert [sent.envelope for sent in running.transmitted if sent.envelope.fault] == [
                sent.envelope for sent in restarted.transmitted if sent.envelope.fault
            ]
        for identifier, destination in running.protocol.inbound.destinations.items():
            assert (
                destination.acknowledgement() == restarted.protocol.inbound.destinations[identifier].acknowledgement()
            )
