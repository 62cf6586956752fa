"""A peer that forgot the Sequence of its replies looks at our acknowledgement of it first: WCF does, once restarted."""

from __future__ import annotations

import pytest
from asked import Endpoint
from sending import NEW, OLD, STEADY, Sending

from holdfast.core.events import Delivered, Transmit
from holdfast.core.faults import INVALID_ACKNOWLEDGEMENT, SEQUENCE_TERMINATED, UNKNOWN_SEQUENCE
from holdfast.core.messages import (
    ANONYMOUS_EPR,
    CreateSequence,
    CreateSequenceResponse,
    Fault,
    Offer,
    Sequence,
    SequenceAcknowledgement,
)
from holdfast.core.sending.outboxes.outbox import Outbox
from holdfast.core.versions import Versions

BOTH = pytest.mark.parametrize("versions", [NEW, OLD], ids=["1.1", "1.0"])
ENDING = pytest.mark.parametrize("code", [UNKNOWN_SEQUENCE, SEQUENCE_TERMINATED])


def replied(versions: Versions) -> tuple[Sending, Outbox, str]:
    """A Sequence whose first request had its reply; and the Identifier of the Sequence that was offered for replies."""
    sending = Sending()
    sending.choices = [(versions, True)]
    outbox = sending.open()
    sending.submit(outbox, "1", wants_reply=True)
    (create,) = sending.take()
    assert isinstance(create.envelope.control, CreateSequence) and create.envelope.control.offer is not None
    offered = create.envelope.control.offer.identifier
    sending.answer(create, control=CreateSequenceResponse("urn:s", accept_acks_to=ANONYMOUS_EPR))
    (request,) = sending.take()
    acknowledgements = (SequenceAcknowledgement("urn:s", ((1, 1),)),)
    reply = {"sequence": Sequence(offered, 1), "action": "urn:reply", "body": b"<r/>"}
    sending.answer(request, acknowledgements=acknowledgements, **reply)
    assert [effect for effect in sending.told if isinstance(effect, Delivered)]
    return sending, outbox, offered


def acknowledged(sent: Transmit) -> list[str]:
    return [one.identifier for one in sent.envelope.acknowledgements]


@BOTH
@ENDING
@pytest.mark.parametrize("wants_reply", [True, False])
def test_the_faulted_message_goes_again_without_the_unknown_acknowledgement(
    versions: Versions, code: str, wants_reply: bool
) -> None:
    sending, outbox, offered = replied(versions)
    sending.submit(outbox, "2", wants_reply=wants_reply)
    (second,) = sending.take()
    assert acknowledged(second) == [offered]
    sending.refuse(second, code, identifier=offered)
    (again,) = sending.take()
    assert (again.number, acknowledged(again)) == (2, [])
    sending.refuse(again, UNKNOWN_SEQUENCE, identifier="urn:s")
    (create,) = (
        sending.take()
    )  # now the peer has said what became of the message's own Sequence, and nothing is in doubt
    assert isinstance(create.envelope.control, CreateSequence) and sending.stopped == []


@BOTH
@ENDING
def test_so_does_the_end_of_the_sequence(versions: Versions, code: str) -> None:
    sending, outbox, offered = replied(versions)
    outbox.want_end(sending.now)
    (end,) = sending.take()  # CloseSequence, or 1.0's LastMessage
    assert acknowledged(end) == [offered]
    sending.refuse(end, code, identifier=offered)
    (again,) = sending.take()
    assert type(again.envelope.control) is type(end.envelope.control)
    assert acknowledged(again) == []


@BOTH
def test_a_process_that_was_restarted_since_does_not_acknowledge_it_either(versions: Versions) -> None:
    sending, outbox, offered = replied(versions)
    sending.submit(outbox, "2", wants_reply=True)
    (second,) = sending.take()
    sending.refuse(second, UNKNOWN_SEQUENCE, identifier=offered)
    after = Sending(sending.store)
    sent = after.wait(STEADY.cap)
    assert [one.number for one in sent] == [2]
    assert acknowledged(sent[0]) == []


@BOTH
def test_one_that_had_ended_before_is_not_acknowledged_either(versions: Versions) -> None:
    sending, outbox, offered = replied(versions)
    destination = sending.protocol.inbound.destinations[offered]
    sending.protocol.inbound.fault_received(destination, SEQUENCE_TERMINATED, sending.now)
    destination.disowned = False  # as an earlier version saved it
    sending.submit(outbox, "2", wants_reply=True)
    (second,) = sending.take()
    assert acknowledged(second) == [offered]
    sending.refuse(second, UNKNOWN_SEQUENCE, identifier=offered)
    assert [acknowledged(one) for one in sending.take()] == [[]]


@BOTH
def test_a_fault_about_another_of_our_inbound_sequences_lets_a_message_go_again_soon(versions: Versions) -> None:
    sending, outbox, offered = replied(versions)
    sending.submit(outbox, "2", wants_reply=True)
    (second,) = sending.take()
    second.envelope.acknowledgements = ()
    sending.refuse(second, UNKNOWN_SEQUENCE, identifier=offered)
    assert sending.take() == []
    assert [one.number for one in sending.wait(STEADY.floor)] == [2]


@BOTH
def test_an_acknowledgement_that_a_peer_calls_illegal_ends_nothing(versions: Versions) -> None:
    sending, outbox, offered = replied(versions)
    sending.submit(outbox, "2", wants_reply=True)
    (second,) = sending.take()
    sending.refuse(second, INVALID_ACKNOWLEDGEMENT, identifier=offered)
    assert not sending.protocol.inbound.destinations[offered].is_over


# --- the other role: a requester ends the Sequence of its replies -----------------------------------------------------


@pytest.mark.parametrize("rm", ["1.0", "1.1"])
@pytest.mark.parametrize("is_handled", [True, False], ids=["replied", "being handled"])
@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_requester_that_aborts_its_session_ends_both_sequences(rm: str, is_handled: bool, is_restarted: bool) -> None:
    """WCF's Abort sends SequenceTerminated for the Sequence that it offered."""
    endpoint = Endpoint(rm)
    identifier = endpoint.create(offer=Offer("urn:o", ANONYMOUS_EPR if rm == "1.1" else None))
    endpoint.send(identifier, 1)
    endpoint.request(identifier, 2)
    if is_handled:
        endpoint.reply(2)
    endpoint = endpoint.restart() if is_restarted else endpoint
    before = len(endpoint.incidents)
    endpoint.ask(fault=Fault(SEQUENCE_TERMINATED, "the user aborted", is_rm=True, identifier="urn:o"))
    assert endpoint.protocol.inbound.destinations[identifier].is_over
    assert endpoint.protocol.outbound.outboxes == {}
    (told,) = endpoint.incidents[before:]
    assert (told.name, told.level, told.identifier) == ("sequence.terminated", "info", identifier)
    assert told.detail == {"why": "abandoned by its source", "code": SEQUENCE_TERMINATED, "reason": "the user aborted"}
    if not is_handled:
        endpoint.reply(2)  # nobody wants it any more
    answer = endpoint.send(identifier, 3)
    assert answer is not None and answer.fault is not None and answer.fault.code == SEQUENCE_TERMINATED
    endpoint.pass_time(3600.0)
    assert endpoint.protocol.inbound.destinations == {}
    assert endpoint.protocol.outbound.outboxes == {}
