"""RMProtocol as a whole: scenarios between two endpoints, each with a title. The simulator covers what has none."""

from __future__ import annotations

import itertools

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
    Fault,
    LastMessage,
    Offer,
    RequestAcknowledgement,
    Sequence,
    SequenceAcknowledgement,
    TerminateSequence,
)
from holdfast.core.policy import Assurance
from holdfast.core.receiving.replies import APART
from holdfast.core.records import Record
from holdfast.core.rm_source.source import TOLD_ENOUGH
from holdfast.core.versions import RM


def test_nothing_is_answered_before_it_is_durable() -> None:
    endpoint = Endpoint()
    create = CreateSequence(ANONYMOUS_EPR)
    answer = endpoint.ask(control=create, message_id="urn:c", durable=False)
    assert answer is not None and answer.action == "no answer yet"
    identifier = endpoint.create("urn:other")
    answer = endpoint.ask(sequence=Sequence(identifier, 1), action="urn:a", body=b"<m/>", durable=False)
    assert answer is not None and answer.action == "no answer yet"


def test_only_the_newest_ended_sequences_are_remembered_up_to_a_limit() -> None:
    endpoint = Endpoint(max_remembered=2)
    identifiers = []
    for number in range(4):
        endpoint.now += 1.0
        identifiers.append(endpoint.create(f"urn:create:{number}"))
        endpoint.ask(control=TerminateSequence(identifiers[-1]))
    assert list(endpoint.protocol.inbound.destinations) == identifiers[2:]
    assert set(endpoint.store.load().sequences) == set(identifiers[2:])
    again = Endpoint(store=endpoint.store, now=endpoint.now, max_remembered=1)
    assert list(again.protocol.inbound.destinations) == identifiers[3:]


def test_every_answer_to_an_anonymous_sender_acknowledges() -> None:
    endpoint = Endpoint()
    identifier = endpoint.create()
    assert ranges(endpoint.send(identifier, 1)) == ((1, 1),)
    assert ranges(endpoint.send(identifier, 3)) == ((1, 1), (3, 3))
    assert ranges(endpoint.send(identifier, 1)) == ((1, 1), (3, 3))
    asked = endpoint.ask(control=RequestAcknowledgement(), ack_requested=(AckRequested(identifier),))
    assert asked is not None and isinstance(asked.control, Acknowledge)
    assert ranges(asked) == ((1, 1), (3, 3))


def test_a_message_and_an_ack_requested_of_an_unknown_sequence_are_unknown_sequence() -> None:
    endpoint = Endpoint()
    assert code(endpoint.send("urn:none", 1)) == "UnknownSequence"
    asked = endpoint.ask(control=RequestAcknowledgement(), ack_requested=(AckRequested("urn:none"),))
    assert code(asked) == "UnknownSequence"
    acknowledged = endpoint.ask(
        control=Acknowledge(), acknowledgements=(SequenceAcknowledgement("urn:none", ((1, 1),)),)
    )
    assert code(acknowledged) == "UnknownSequence"


def test_in_order_the_queue_has_what_the_gap_allows_also_over_a_restart() -> None:
    endpoint = Endpoint()
    identifier = endpoint.create()
    endpoint.send(identifier, 2)
    assert endpoint.records() == []
    again = endpoint.restart()
    assert ranges(again.send(identifier, 1)) == ((1, 2),)
    assert [record.message_number for record in again.records()] == [1, 2]
    assert ranges(again.send(identifier, 2)) == ((1, 2),)
    assert len(again.records()) == 2


def test_a_message_held_behind_a_gap_is_delivered_when_the_gap_closes_and_says_so() -> None:
    endpoint = Endpoint()
    identifier = endpoint.create()
    endpoint.send(identifier, 2)
    endpoint.now = 40.0
    endpoint.send(identifier, 1)
    first, second = endpoint.records()
    assert (first.received_at, first.delivered_at) == (40.0, 40.0)
    assert (second.received_at, second.delivered_at) == (0.0, 40.0)


def test_a_sequence_that_expires_or_falls_silent_is_ended_and_tells_its_gap() -> None:
    for fields in ({"expires": 10.0}, {}):
        endpoint = Endpoint(inactivity_timeout=10.0)
        identifier = endpoint.create(**fields)
        endpoint.send(identifier, 1)
        endpoint.send(identifier, 3)
        endpoint.now = endpoint.protocol.deadline() or 0.0
        assert endpoint.now == 10.0
        endpoint.protocol.pump(endpoint.now)
        endpoint.settle()
        (told,) = (incident for incident in endpoint.incidents if incident.name == "sequence.incomplete")
        assert told.detail is not None and told.detail["missing"] == "2-2"
        assert [record.message_number for record in endpoint.records()] == [1, 3]
        for after in (endpoint, endpoint.restart()):  # forgotten by both sides without a word, says the clause
            assert [code(after.send(identifier, number)) for number in (2, 4)] == ["UnknownSequence"] * 2


def test_a_1_0_rollover_is_durable_before_it_is_told() -> None:
    endpoint = Endpoint("1.0", max_message_number=1)
    identifier = endpoint.create()
    endpoint.send(identifier, 1)
    waiting = endpoint.ask(sequence=Sequence(identifier, 2), action="urn:a", body=b"<m/>", durable=False)
    assert waiting is not None and waiting.action == "no answer yet"
    endpoint.settle()
    faults = [answer for answer in endpoint.answers.values() if answer is not None and answer.fault is not None]
    assert [code(fault) for fault in faults] == ["MessageNumberRollover"]
    assert code(endpoint.restart().send(identifier, 2)) == "SequenceTerminated"


class TestRequestAndReply:
    """Two-way: the reply is a message of the offered Sequence, and its request is acknowledged with it."""

    def reply(self, endpoint: Endpoint, number: int, *, durable: bool = True) -> None:
        record = next(record for record in endpoint.records() if record.message_number == number)
        endpoint.protocol.replies.reply(record, Record("", 0, "urn:reply", b"<r%d/>" % number, 0.0), endpoint.now)
        endpoint.settle(durable=durable)

    def test_a_request_is_acknowledged_in_the_answer_that_carries_its_reply(self) -> None:
        endpoint = Endpoint()
        identifier = endpoint.create(offer=Offer("urn:o"))
        waiting = endpoint.request(identifier, 1)
        assert waiting is not None and waiting.action == "no answer yet"
        self.reply(endpoint, 1)
        (answer,) = (a for a in endpoint.answers.values() if a is not None and a.body)
        assert answer.sequence == Sequence("urn:o", 1)
        assert answer.body == b"<r1/>"
        assert answer.relates_to == "urn:m1"
        assert ranges(answer) == ((1, 1),)

    def test_a_repeat_is_answered_by_the_same_reply_also_after_a_crash(self) -> None:
        endpoint = Endpoint()
        identifier = endpoint.create(offer=Offer("urn:o"))
        endpoint.request(identifier, 1)
        self.reply(endpoint, 1)
        for again in (endpoint, endpoint.restart()):
            answer = again.request(identifier, 1)
            assert answer is not None
            assert (answer.sequence, answer.body) == (Sequence("urn:o", 1), b"<r1/>")

    def test_a_repeat_waits_for_a_reply_that_is_not_durable_yet(self) -> None:
        endpoint = Endpoint()
        identifier = endpoint.create(offer=Offer("urn:o"))
        endpoint.request(identifier, 1)
        self.reply(endpoint, 1, durable=False)
        waiting = endpoint.ask(
            sequence=Sequence(identifier, 1), action="urn:a", message_id="urn:m1", reply_to=ANONYMOUS_EPR, durable=False
        )
        assert waiting is not None and waiting.action == "no answer yet"
        endpoint.settle()
        endpoint.pass_time(APART)
        assert sum(a is not None and a.body == b"<r1/>" for a in endpoint.answers.values()) == 2

    def test_a_late_repeat_never_gets_the_reply_to_another_request(self) -> None:
        endpoint = Endpoint()
        identifier = endpoint.create(offer=Offer("urn:o"))
        for number in (1, 2):
            endpoint.request(identifier, number)
            self.reply(endpoint, number)
        endpoint.ask(control=Acknowledge(), acknowledgements=(SequenceAcknowledgement("urn:o", ((1, 2),)),))
        endpoint.request(identifier, 3)
        self.reply(endpoint, 3)
        # Nothing at all: an acknowledgement without a reply would end .NET's session.
        for again in (endpoint, endpoint.restart()):
            assert again.request(identifier, 1) is None

    def test_a_crash_before_the_reply_leaves_the_request_unacknowledged(self) -> None:
        endpoint = Endpoint()
        identifier = endpoint.create(offer=Offer("urn:o"))
        endpoint.request(identifier, 1)
        again = endpoint.restart()
        asked = again.ask(control=RequestAcknowledgement(), ack_requested=(AckRequested(identifier),))
        assert ranges(asked) == ()
        waiting = again.request(identifier, 1)
        assert waiting is not None and waiting.action == "no answer yet"
        self.reply(again, 1)
        assert any(a is not None and a.body == b"<r1/>" for a in again.answers.values())

    def test_a_requester_that_waits_too_long_gets_an_empty_answer_and_may_ask_again(self) -> None:
        endpoint = Endpoint(reply_patience=5.0)
        identifier = endpoint.create(offer=Offer("urn:o"))
        endpoint.request(identifier, 1)
        endpoint.pass_time(5.0)
        assert list(endpoint.answers.values())[-1] is None
        self.reply(endpoint, 1)
        answer = endpoint.request(identifier, 1)
        assert answer is not None and answer.body == b"<r1/>"

    def test_last_message_of_1_0_is_answered_in_kind_after_every_reply(self) -> None:
        endpoint = Endpoint("1.0")
        identifier = endpoint.create(offer=Offer("urn:o"))
        endpoint.request(identifier, 1)
        self.reply(endpoint, 1)
        answer = endpoint.ask(sequence=Sequence(identifier, 2, True), control=LastMessage())
        assert answer is not None and isinstance(answer.control, LastMessage)
        assert answer.sequence == Sequence("urn:o", 2, True)
        assert ranges(answer) == ((1, 2),)
        ended = endpoint.ask(control=TerminateSequence(identifier))
        assert ended is not None and ended.control == TerminateSequence("urn:o")


def test_a_fault_is_never_answered() -> None:
    endpoint = Endpoint()
    assert endpoint.ask(fault=Fault("Sender", "no")) is None


# --- requesters with an address of their own ------------------------------------------------------------------------


class TestAddressableRequester:
    """Acknowledgements and replies go to where the requester listens (a decoupled endpoint of CXF's)."""

    HERE = EndpointReference("http://s/decoupled")

    def created(self, rm: str = "1.1") -> tuple[Endpoint, str]:
        endpoint = Endpoint(rm, allows=lambda _: True)
        create = CreateSequence(self.HERE, offer=Offer("urn:o", self.HERE if rm == "1.1" else None))
        endpoint.protocol.receive(
            endpoint.envelope(control=create, message_id="urn:c", reply_to=self.HERE, to="http://d/"), object(), 0.0
        )
        endpoint.settle()
        (response,) = endpoint.transmitted
        assert isinstance(response.envelope.control, CreateSequenceResponse)
        endpoint.transmitted.clear()
        return endpoint, response.envelope.control.identifier

    def replied(self, rm: str = "1.1") -> tuple[Endpoint, str]:
        """A request came and its reply went."""
        endpoint, identifier = self.created(rm)
        assert endpoint.send(identifier, 1, message_id="urn:m1", reply_to=self.HERE) is None
        reply = Record("", 0, "urn:r", b"<r1/>", 0.0, "", "")
        endpoint.protocol.replies.reply(endpoint.records()[0], reply, endpoint.now)
        self.pass_time(endpoint, 0.0)
        return endpoint, identifier

    @staticmethod
    def pass_time(endpoint: Endpoint, seconds: float) -> None:
        endpoint.now += seconds
        endpoint.settle()
        endpoint.protocol.pump(endpoint.now)
        endpoint.settle()

    def requests_to_end(self, endpoint: Endpoint, seconds: int) -> list[object]:
        """What of the lifecycle is sent in that time, to a requester that answers 202 to everything."""
        said = []
        for _ in range(seconds):
            self.pass_time(endpoint, 1.0)
            for sent in endpoint.transmitted:
                endpoint.protocol.received(sent, None, endpoint.now)
            endpoint.settle()
            said += [sent.envelope.control for sent in endpoint.transmitted if sent.envelope.control is not None]
            endpoint.transmitted.clear()
        return said

    def test_a_message_beside_a_reply_is_acknowledged_alone_together_with_the_request(self) -> None:
        endpoint, identifier = self.replied()
        assert endpoint.send(identifier, 2) is None
        endpoint.transmitted.clear()
        self.pass_time(endpoint, endpoint.policy.acknowledgement_interval)
        assert [(sent.to, ranges(sent.envelope)) for sent in endpoint.transmitted] == [(self.HERE.address, ((1, 2),))]

    def test_the_final_acknowledgement_has_requests_whose_replies_are_not_acknowledged(self) -> None:
        endpoint, identifier = self.replied()
        answer = endpoint.ask(control=CloseSequence(identifier, 1), message_id="urn:close")
        assert ranges(answer) == ((1, 1),)

    def test_after_a_crash_a_request_with_a_reply_stays_acknowledged(self) -> None:
        endpoint, identifier = self.replied()
        again = endpoint.restart()
        again.ask(control=RequestAcknowledgement(), ack_requested=(AckRequested(identifier),))
        told = [sent.envelope for sent in again.transmitted if isinstance(sent.envelope.control, Acknowledge)]
        assert [ranges(envelope) for envelope in told] == [((1, 1),)]

    def test_a_request_whose_handler_answers_nothing_is_acknowledged_too(self) -> None:
        endpoint, identifier = self.created()
        endpoint.send(identifier, 1, message_id="urn:m1", reply_to=self.HERE)
        self.pass_time(endpoint, 60.0)
        assert endpoint.transmitted == []
        endpoint.protocol.replies.reply(endpoint.records()[0], None, endpoint.now)
        endpoint.settle()
        self.pass_time(endpoint, endpoint.policy.acknowledgement_interval)
        assert [ranges(sent.envelope) for sent in endpoint.transmitted] == [((1, 1),)]

    def test_the_end_of_replies_is_repeated_only_so_often_to_a_silent_requester(self) -> None:
        endpoint, identifier = self.replied()
        endpoint.ask(acknowledgements=(SequenceAcknowledgement("urn:o", ((1, 1),)),))
        endpoint.transmitted.clear()
        endpoint.ask(control=TerminateSequence(identifier, 1), message_id="urn:t")
        assert self.requests_to_end(endpoint, 600) == [CloseSequence("urn:o", 1)] * TOLD_ENOUGH
        assert endpoint.protocol.outbound.outboxes == {}
        assert endpoint.protocol.outbound.deadline() is None
        assert endpoint.restart().protocol.outbound.outboxes == {}

    def test_replies_that_are_not_acknowledged_are_sent_for_as_long_as_it_takes(self) -> None:
        endpoint, identifier = self.replied()
        endpoint.ask(control=TerminateSequence(identifier, 1), message_id="urn:t")
        endpoint.transmitted.clear()
        assert self.requests_to_end(endpoint, 600) == []
        named = (AckRequested(identifier),)  # which is forgotten by now, and unguessable
        endpoint.ask(ack_requested=named, acknowledgements=(SequenceAcknowledgement("urn:o", ((1, 1),)),))
        assert self.requests_to_end(endpoint, 600) == [CloseSequence("urn:o", 1)] * TOLD_ENOUGH


# --- a source whose CreateSequence is refused -----------------------------------------------------------------------


class TestRefusedSource:
    REFUSAL = Fault("CreateSequenceRefused", "no", is_rm=True)

    def asking(self) -> Endpoint:
        endpoint = Endpoint()
        choices = [(endpoint.versions, True), (endpoint.versions, False)]
        outbox = endpoint.protocol.outbound.open("", "http://d/", choices)
        endpoint.protocol.submit(outbox, Record("", 0, "urn:a", b"<m/>", 0.0, "urn:m", ""), 0.0)
        self.pump(endpoint)
        return endpoint

    @staticmethod
    def pump(endpoint: Endpoint, seconds: float = 0.0) -> None:
        endpoint.now += seconds
        for _ in range(3):
            endpoint.settle()
            endpoint.protocol.pump(endpoint.now)

    def refuse(self, endpoint: Endpoint) -> None:
        sent = endpoint.transmitted[-1]
        endpoint.protocol.received(sent, endpoint.envelope(fault=self.REFUSAL), endpoint.now)
        self.pump(endpoint)

    @staticmethod
    def offers(endpoint: Endpoint) -> list[str | None]:
        created = [sent.envelope.control for sent in endpoint.transmitted]
        assert all(isinstance(control, CreateSequence) for control in created)
        return [control.offer.identifier if control.offer else None for control in created]  # type: ignore[union-attr]

    def test_the_offer_of_a_refused_create_sequence_is_not_made_again(self) -> None:
        endpoint = self.asking()
        self.refuse(endpoint)
        first, second = self.offers(endpoint)
        assert first is not None
        assert second is None

    def test_a_refused_repeat_is_followed_by_another_offer(self) -> None:
        endpoint = self.asking()
        endpoint.protocol.failed(endpoint.transmitted[-1], endpoint.now)
        self.pump(endpoint, 60.0)
        self.refuse(endpoint)
        first, repeated, another = self.offers(endpoint)
        assert first == repeated
        assert another not in (None, first)
        self.refuse(endpoint)
        assert self.offers(endpoint)[3:] == [None]


@pytest.mark.parametrize("in_order", [True, False])
@pytest.mark.parametrize("rm", [one.value for one in RM])
def test_a_restored_destination_lets_no_message_wait_behind_a_lost_one(rm: str, in_order: bool) -> None:
    """Whenever the copy was made, and whatever was acknowledged since: the source is told, or the message delivered."""
    assurance = Assurance(in_order=in_order)
    for before, lost in itertools.product(range(3), range(3)):
        endpoint = Endpoint(rm, assurance=assurance)
        identifier = endpoint.create()
        for number in range(before):
            endpoint.send(identifier, number + 1)
        copy = endpoint.restart()
        for number in range(lost):
            endpoint.send(identifier, before + number + 1)
        assert copy.protocol.restored(copy.now) == in_order
        copy.settle()
        answer = copy.send(identifier, before + lost + 1)
        kept = [record.message_number for record in copy.records()]
        if in_order:
            closes = RM(rm).can.closes
            assert code(answer) == ("SequenceClosed" if closes else "SequenceTerminated")
            if closes and before:
                assert answer is not None and answer.acknowledgements[0].ranges == ((1, before),)
            assert kept == list(range(1, before + 1))
        else:
            assert kept == [*range(1, before + 1), before + lost + 1]
        again = copy.restart()
        assert again.protocol.restored(again.now) == 0 or not in_order, "closed for good"
        following = again.create("urn:another")
        again.send(following, 1)
        assert len(again.records()) == len(kept) + 1
