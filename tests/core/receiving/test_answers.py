"""AnswerSender: an answer goes to an allowed address, else on the back-channel, and nowhere else."""

from __future__ import annotations

import pytest

from holdfast.core.commit import GroupCommit
from holdfast.core.events import BackChannel, Effect, Incident, Respond, Transmit
from holdfast.core.faults import SEQUENCE_CLOSED, UNKNOWN_SEQUENCE, sequence_fault
from holdfast.core.messages import (
    ANONYMOUS_EPR,
    MC_ANONYMOUS,
    NONE,
    CloseSequenceResponse,
    EndpointReference,
    Envelope,
    Sequence,
    SequenceAcknowledgement,
)
from holdfast.core.policy import DestinationPolicy
from holdfast.core.receiving.allowed_addresses import Addresses
from holdfast.core.receiving.answers import AnswerSender, envelope_in, response_to
from holdfast.core.rm_destination.destination import RMDestination
from holdfast.core.sending.polling.mailboxes import Mailboxes
from holdfast.core.versions import ALL_VERSIONS, SOAP, Addressing, Versions

BACK = BackChannel("the request")
ALLOWED = EndpointReference("http://allowed/", (b"<p xmlns='urn:p'/>",))
POLLED = EndpointReference(MC_ANONYMOUS + "1")
ELSEWHERE = EndpointReference("http://elsewhere/")
VERSIONS = Versions()


class Answers:
    """What is answered, and where."""

    def __init__(self) -> None:
        self.effects: list[Effect] = []
        self.commit = GroupCommit()
        self.mailboxes = Mailboxes()
        allowed = Addresses(lambda address: address == ALLOWED.address)
        self.answering = AnswerSender(allowed, self.commit, self.effects, self.mailboxes)

    def taken(self) -> list[Effect]:
        effects = [effect for effect in self.effects if not isinstance(effect, Incident)]
        self.effects.clear()
        return effects


@pytest.mark.parametrize("target", [None, ANONYMOUS_EPR, EndpointReference(NONE), ELSEWHERE])
def test_an_answer_without_an_allowed_address_goes_on_the_back_channel_or_nowhere(
    target: EndpointReference | None,
) -> None:
    answers, answer = Answers(), envelope_in(VERSIONS)
    answers.answering.answer(target, BACK, answer)
    assert answers.taken() == [Respond(BACK, answer)]
    assert answer.to is None
    answers.answering.answer(target, None, answer)
    assert answers.taken() == []


def test_an_answer_to_an_allowed_address_follows_the_empty_response() -> None:
    answers, answer = Answers(), envelope_in(VERSIONS)
    answers.answering.answer(ALLOWED, BACK, answer)
    assert answers.taken() == [Respond(BACK, None), Transmit(ALLOWED.address, answer)]
    assert (answer.to, answer.reference_parameters) == (ALLOWED.address, ALLOWED.reference_parameters)
    answers.answering.answer(ALLOWED, None, answer)
    assert answers.taken() == [Transmit(ALLOWED.address, answer)]


def test_an_answer_to_a_peer_that_polls_goes_on_the_back_channel_else_to_its_mailbox() -> None:
    answers, answer = Answers(), envelope_in(VERSIONS)
    answers.mailboxes.add_sequence(POLLED.address, "urn:s", "")
    answers.answering.answer(POLLED, BACK, answer)
    assert answers.taken() == [Respond(BACK, answer)]
    assert answer.to == POLLED.address
    answers.answering.answer(POLLED, None, answer)
    assert answers.taken() == []
    (box,) = answers.mailboxes
    assert (box.messages, answer.to) == ([answer], POLLED.address)


def test_a_durable_answer_waits_for_the_open_batch() -> None:
    answers, answer = Answers(), envelope_in(VERSIONS)
    answers.answering.answer_durably(None, BACK, answer)
    assert answers.taken() == []
    answers.commit.take()
    assert answers.taken() == []
    answers.commit.durable(1.0)
    assert answers.taken() == [Respond(BACK, answer)]


@pytest.mark.parametrize("versions", ALL_VERSIONS, ids=str)
def test_a_response_names_what_it_answers_in_the_versions_of_the_sequence(versions: Versions) -> None:
    request = envelope_in(versions)
    request.message_id = "urn:m"
    response = response_to(request, versions, CloseSequenceResponse("urn:s"))
    assert (response.versions, response.relates_to) == (versions, "urn:m")
    request.message_id = ""
    assert response_to(request, versions, CloseSequenceResponse("urn:s")).relates_to is None


# --- faults -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault_to", "reply_to", "told"),
    [(ALLOWED, ANONYMOUS_EPR, True), (None, ALLOWED, True), (ANONYMOUS_EPR, ALLOWED, False), (None, None, False)],
)
def test_a_fault_goes_to_where_faults_go_and_only_then_to_where_replies_go(
    fault_to: EndpointReference | None, reply_to: EndpointReference | None, told: bool
) -> None:
    answers, envelope = Answers(), envelope_in(VERSIONS)
    envelope.fault_to, envelope.reply_to = fault_to, reply_to
    answers.answering.fault(envelope, sequence_fault(UNKNOWN_SEQUENCE, "urn:s"), BACK)
    assert [type(effect) for effect in answers.taken()] == ([Respond, Transmit] if told else [Respond])
    assert answers.answering.fault_beside(envelope, sequence_fault(UNKNOWN_SEQUENCE, "urn:s")) is told
    assert [type(effect) for effect in answers.taken()] == ([Transmit] if told else [])


@pytest.mark.parametrize("code", [SEQUENCE_CLOSED, UNKNOWN_SEQUENCE])
def test_a_fault_about_a_known_sequence_goes_to_acks_to(code: str) -> None:
    answers, envelope = Answers(), envelope_in(VERSIONS)
    envelope.fault_to = ELSEWHERE
    envelope.sequence = Sequence("urn:s", 7)
    destination = RMDestination("urn:s", VERSIONS, ALLOWED, DestinationPolicy(), 0.0)
    answers.answering.fault(envelope, sequence_fault(code, "urn:s"), BACK, destination)
    (incident,) = [effect for effect in answers.effects if isinstance(effect, Incident)]
    assert (incident.identifier, incident.number, incident.detail) == ("urn:s", 7, {"code": code})
    _, told = answers.taken()
    assert isinstance(told, Transmit) and told.to == ALLOWED.address
    expected = (destination.acknowledgement(),) if code == SEQUENCE_CLOSED else ()
    assert told.envelope.acknowledgements == expected


def test_a_fault_brings_the_acknowledgements_that_it_is_given() -> None:
    answers = Answers()
    given = (SequenceAcknowledgement("urn:s", ((1, 2),)),)
    answers.answering.fault(envelope_in(VERSIONS), sequence_fault(UNKNOWN_SEQUENCE), BACK, acknowledgements=given)
    (told,) = answers.taken()
    assert isinstance(told, Respond) and told.envelope is not None
    assert told.envelope.acknowledgements == given


@pytest.mark.parametrize("addressing", [None, *Addressing])
def test_a_fault_for_a_peer_without_reliable_messaging_fits_its_versions(
    addressing: Addressing | None,
) -> None:
    answers = Answers()
    answers.answering.fault(Envelope(SOAP.V1_1, addressing), sequence_fault(UNKNOWN_SEQUENCE), BACK)
    (told,) = answers.taken()
    assert isinstance(told, Respond) and told.envelope is not None
    assert told.envelope.addressing is addressing, "none for who has none, as WCF's BasicHttpBinding"
    assert Versions(told.envelope.rm.value, (addressing or Addressing.V2005_08).value)
