"""The end of an HTTP exchange says what becomes of a request: whether it is sent again, and whether it has a reply.

Covers core/sending/composer.py, core/sending/outbound_sequences.py and core/sending/read_ahead.py.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sending import NEW, OLD, STEADY, TO, Sending, numbers

from holdfast.core.events import Delivered, Ended, Transmit, Unanswered
from holdfast.core.faults import UNKNOWN_SEQUENCE, sequence_fault
from holdfast.core.messages import (
    Acknowledge,
    AckRequested,
    CloseSequenceResponse,
    CreateSequence,
    CreateSequenceResponse,
    EndpointReference,
    Envelope,
    Fault,
    LastMessage,
    RequestAcknowledgement,
    SequenceAcknowledgement,
    TerminateSequence,
    TerminateSequenceResponse,
)
from holdfast.core.origin import Origin
from holdfast.core.policy import ForwardingPolicy
from holdfast.core.queues.dead_letters import DeadLetters
from holdfast.core.rm_source.control_requests import ANSWERED_ENOUGH
from holdfast.core.sending.outboxes.outbox import Outbox
from holdfast.core.versions import Versions
from holdfast.endpoint.handling.dead_letters import seal, unseal
from holdfast.simulation.nodes.network import PERFECT, NetworkFaults
from holdfast.simulation.options import Options
from holdfast.simulation.simulator import Simulator

LONG = 60.0
"""Seconds: many times the timeout after which a message is sent again."""


def asked(*bodies: str, sending: Sending | None = None, **fields: bool) -> tuple[Sending, Outbox, list[Transmit]]:
    """A Sequence, and the requests that left in it."""
    sending = sending or Sending()
    outbox = sending.open()
    sending.submit(outbox, *bodies, **({"wants_reply": True} | fields))
    (create,) = sending.take()
    sending.grant(create, "urn:s")
    return sending, outbox, sending.take()


def unanswered(sending: Sending) -> list[str]:
    return [effect.message_id for effect in sending.told if isinstance(effect, Unanswered)]


def test_a_request_is_not_sent_again_while_the_exchange_that_carries_it_is_open() -> None:
    sending, _, (request,) = asked("1")
    assert sending.wait(LONG) == []
    sending.protocol.failed(request, sending.now)
    assert sending.take() == [], "what came back may be its reply, so not at once"
    assert numbers(sending.wait(STEADY.floor)) == [1]


def test_a_one_way_message_is_sent_again_while_its_exchange_is_open() -> None:
    sending, _, _ = asked("1", wants_reply=False)
    assert numbers(sending.wait(STEADY.cap)) == [1]


def test_a_request_waits_for_its_own_exchange_only() -> None:
    sending, _, sent = asked("1", "2")
    assert numbers(sent) == [1, 2]
    sending.protocol.failed(sent[1], sending.now)
    assert numbers(sending.wait(LONG)) == [2]


def end_with_nothing(sending: Sending, request: Transmit) -> None:
    sending.protocol.received(request, None, sending.now)


def end_with_another_acknowledgement(sending: Sending, request: Transmit) -> None:
    sending.answer(request, control=Acknowledge(), acknowledgements=(SequenceAcknowledgement("urn:s", ()),))


def end_with_a_fault(sending: Sending, request: Transmit) -> None:
    sending.answer(request, fault=Fault("Server", "the database is away", sender=False))


def end_in_a_header_that_nobody_understands(sending: Sending, request: Transmit) -> None:
    sending.answer(request, not_understood=("{urn:h}Header",))


def end_with_a_cut_connection(sending: Sending, request: Transmit) -> None:
    sending.protocol.failed(request, sending.now, "the connection was cut")


@pytest.mark.parametrize(
    "end",
    [
        end_with_nothing,
        end_with_another_acknowledgement,
        end_with_a_fault,
        end_in_a_header_that_nobody_understands,
        end_with_a_cut_connection,
    ],
)
def test_however_its_exchange_ends_without_a_reply_a_request_is_sent_again(
    end: Callable[[Sending, Transmit], None],
) -> None:
    sending, _, (request,) = asked("1")
    sending.wait(LONG)
    end(sending, request)
    assert numbers(sending.wait(STEADY.cap)) == [1]
    assert unanswered(sending) == []


def test_the_last_exchange_to_end_says_that_there_is_no_reply_and_not_the_first() -> None:
    sending, outbox, (first,) = asked("1")
    assert outbox.source is not None
    outbox.source.sent(1, "urn:m:1", 0.0, sending.now)  # nothing does that by itself
    second = Transmit(first.to, first.envelope, first.source, 1, 2)
    sending.acknowledge(second, (1, 1))
    assert unanswered(sending) == [], "the reply may come back on the first"
    sending.protocol.failed(first, sending.now)
    assert unanswered(sending) == [], "a connection that was cut says nothing"
    (third,) = sending.wait(STEADY.cap)
    sending.acknowledge(third, (1, 1))
    assert unanswered(sending) == ["urn:m:1"]


def test_where_replies_go_to_an_address_an_answer_says_nothing_of_them() -> None:
    sending, _, (request,) = asked("1", sending=Sending(local="http://here/"))
    sending.acknowledge(request, (1, 1))
    assert unanswered(sending) == []
    assert numbers(sending.wait(STEADY.cap)) == [1]


def test_a_request_whose_reply_is_on_its_way_to_the_store_is_not_sent_again() -> None:
    sending, _, (request,) = asked("1")
    sending.wait(LONG)
    envelope = Envelope(NEW.soap, NEW.addressing, NEW.rm, "urn:reply", body=b"<r/>", relates_to="urn:m:1")
    envelope.acknowledgements = (SequenceAcknowledgement("urn:s", ((1, 1),)),)
    sending.protocol.received(request, envelope, sending.now)
    batch = sending.protocol.take_batch()
    for _ in range(3):  # the disk takes its time
        sending.now += LONG
        sending.protocol.pump(sending.now)
        assert not [one for one in sending.protocol.take_effects() if isinstance(one, Transmit)]
    sending.store.commit(batch)
    sending.protocol.batch_durable(sending.now)
    assert sending.wait(LONG) == []


@pytest.mark.parametrize("wants_reply", [True, False])
def test_an_answer_that_is_too_large_is_not_requested_again(wants_reply: bool) -> None:
    """A repeat would bring it again. An acknowledgement is small, so the source asks for that, and goes on."""
    sending, outbox, (request,) = asked("1", wants_reply=wants_reply)
    sending.protocol.failed(request, sending.now, not_accepted="17 MB", is_too_large=True)
    (question,) = sending.wait(STEADY.cap)
    assert isinstance(question.envelope.control, RequestAcknowledgement)
    assert not question.envelope.body
    sending.submit(outbox, "2", **({"wants_reply": True} if wants_reply else {}))
    assert numbers(sending.take()) == [2], "others do not wait"
    sending.answer(question, control=Acknowledge(), acknowledgements=(SequenceAcknowledgement("urn:s", ((1, 1),)),))
    told = [effect.too_large for effect in sending.told if isinstance(effect, Unanswered)]
    assert told == (["17 MB"] if wants_reply else [])
    assert 1 not in [one.number for one in sending.wait(LONG)]


def test_a_message_that_did_not_arrive_leaves_again_after_an_answer_too_large() -> None:
    sending, _, (request,) = asked("1")
    for _ in range(3):
        sending.protocol.failed(request, sending.now, not_accepted="17 MB", is_too_large=True)
        (question,) = sending.wait(STEADY.cap)
        assert isinstance(question.envelope.control, RequestAcknowledgement)
        end_with_another_acknowledgement(sending, question)
        (request,) = sending.wait(STEADY.cap)
        assert request.envelope.body
    assert unanswered(sending) == []


POSTED = "http://here/answers"


@pytest.mark.parametrize("acknowledged_before", range(1, ANSWERED_ENOUGH + 2))
def test_large_replies_of_unknown_senders_end_a_request_only_if_it_arrived(acknowledged_before: int) -> None:
    """Anybody may claim to reply. So one such reply ends nothing, and none says that the request arrived."""
    sending, outbox, _ = asked("1", "2", sending=Sending(local=POSTED))
    claim = Envelope(NEW.soap, NEW.addressing, NEW.rm, relates_to="urn:m:1")
    ended: list[list[str]] = []
    for number in range(1, ANSWERED_ENOUGH + 2):
        if number == acknowledged_before:
            sending.answer(None, control=Acknowledge(), acknowledgements=(SequenceAcknowledgement("urn:s", ((1, 2),)),))
        for sender in ("http://another/", TO):
            sending.protocol.reply_unproven(claim, "17 MB", sending.now, Origin(sender))
        sending.settle()
        ended.append(unanswered(sending))
    first = max(acknowledged_before, ANSWERED_ENOUGH) - 1
    assert ended == [[]] * first + [["urn:m:1"]] * (len(ended) - first)
    assert [one.too_large for one in sending.told if isinstance(one, Unanswered)] == ["17 MB"]
    assert outbox.source is not None and 1 in outbox.source.acknowledged
    assert outbox.source.waiting.unreplied == {2: "urn:m:2"}, "the other one still waits"


def test_a_request_that_may_not_have_arrived_waits_despite_such_replies() -> None:
    sending, _, (request,) = asked("1", sending=Sending(local=POSTED))
    claim = Envelope(NEW.soap, NEW.addressing, NEW.rm, relates_to="urn:m:1")
    for _ in range(2 * ANSWERED_ENOUGH):
        sending.protocol.reply_unproven(claim, "17 MB", sending.now, Origin(TO))
    end_with_nothing(sending, request)
    (question,) = sending.wait(STEADY.cap)
    assert isinstance(question.envelope.control, RequestAcknowledgement)
    assert unanswered(sending) == []


# --- slow services ----------------------------------------------------------------------------------------------------


class SlowService:
    """A peer as CXF is: it answers a request when its service is done, and a repeat at once, with an acknowledgement
    alone. What is sent travels in virtual time.

    Args:
        sending: The source.
        seconds: That each service takes.
        lose: Share of exchanges whose request is lost on a connection that is cut.
    """

    def __init__(self, sending: Sending, seconds: list[float], lose: float = 0.0, seed: int = 0) -> None:
        self.sending = sending
        self.seconds = seconds
        self.lose = lose
        self.chance = random.Random(seed)
        self.calls: list[tuple[float, int, Callable[[], None]]] = []
        self.order = itertools.count()
        self.begun: set[int] = set()
        self.carried: list[int] = []
        self.replied: list[bytes] = []

    def _at(self, when: float, call: Callable[[], None]) -> None:
        heapq.heappush(self.calls, (when, next(self.order), call))

    def take(self, sent: Transmit) -> None:
        sending = self.sending
        if isinstance(sent.envelope.control, CreateSequence):
            return self._at(sending.now, partial(sending.grant, sent, "urn:s"))
        if not sent.number:
            name = type(sent.envelope.control).__name__
            answer = CloseSequenceResponse("urn:s") if name == "CloseSequence" else TerminateSequenceResponse("urn:s")
            return self._at(sending.now, partial(sending.answer, sent, control=answer))
        self.carried.append(sent.number)
        if self.chance.random() < self.lose:
            return self._at(sending.now + 0.01, partial(sending.protocol.failed, sent, sending.now + 0.01))
        if sent.number in self.begun:
            return self._at(sending.now + 0.01, partial(sending.acknowledge, sent, (sent.number, sent.number)))
        self.begun.add(sent.number)
        self._at(sending.now + self.seconds[sent.number - 1], partial(self._reply, sent))

    def _reply(self, sent: Transmit) -> None:
        acknowledgement = SequenceAcknowledgement("urn:s", ((sent.number, sent.number),))
        body = b"reply to " + sent.envelope.body
        self.sending.answer(sent, control=None, action="urn:reply", body=body, acknowledgements=(acknowledgement,))

    def run(self, until: float) -> None:
        """Let time pass."""
        sending = self.sending
        while sending.now < until:
            for sent in sending.take():
                self.take(sent)
            times = [until, *(when for when, _, _ in self.calls[:1])]
            deadline = sending.protocol.deadline()
            if deadline is not None:
                times.append(deadline)
            sending.now = max(sending.now, min(times))
            while self.calls and self.calls[0][0] <= sending.now:
                heapq.heappop(self.calls)[2]()


SECONDS = st.lists(st.floats(0.0, 50.0), min_size=1, max_size=12)


@given(seconds=SECONDS)
def test_on_a_clean_network_a_slow_service_gets_no_request_twice(
    seconds: list[float],
) -> None:
    sending = Sending()
    service = SlowService(sending, seconds)
    outbox = sending.open()
    sending.submit(outbox, *map(str, range(len(seconds))), wants_reply=True)
    service.run(sending.now + 60.0 * len(seconds))
    replies = [effect for effect in sending.told if isinstance(effect, Delivered)]
    assert len(replies) == len(seconds) and unanswered(sending) == []
    assert sorted(service.carried) == list(range(1, len(seconds) + 1))


@given(seconds=SECONDS, seed=st.integers(0, 1000))
def test_where_requests_are_lost_no_reply_of_a_slow_service_is(seconds: list[float], seed: int) -> None:
    sending = Sending()
    service = SlowService(sending, seconds, 0.2, seed)
    outbox = sending.open()
    sending.submit(outbox, *map(str, range(len(seconds))), wants_reply=True)
    service.run(sending.now + 200.0 * len(seconds))
    replies = [effect for effect in sending.told if isinstance(effect, Delivered)]
    assert len(replies) == len(seconds) and unanswered(sending) == []


@pytest.mark.parametrize("broker", [None, NEW])
@pytest.mark.parametrize("offer", [False, True])
@pytest.mark.parametrize("network", [PERFECT, NetworkFaults(0.2, 0.2, silent=0.3)])
def test_our_own_destination_replies_to_every_request_however_slow_its_handlers(
    broker: Versions | None, offer: bool, network: NetworkFaults
) -> None:
    options = Options(requests=1.0, messages=6, handler_latency=5.0, offer=offer, network=network)
    options = replace(options, broker=broker, broker_offers=offer)
    for seed in range(5):
        counts = Simulator(seed, options).run().counts
        # The simulated broker has an address for replies: its exchanges end at once, and it repeats what is slow.
        assert counts["messages transmitted"] == 6 or network is not PERFECT or broker is not None


# --- LastMessage ------------------------------------------------------------------------------------------------------


def ending(*, forwards: bool = False) -> tuple[Sending, Outbox, Transmit]:
    """A Sequence of WS-RM 1.0 with one message, which is acknowledged, and the LastMessage that left."""
    sending = Sending(letters=DeadLetters(seal, unseal) if forwards else None)
    sending.choices = [(OLD, False)]
    outbox, (message,) = sending.opened("a", "1")
    if forwards:
        outbox.forwarding = ForwardingPolicy(refusals=1, patience=0.0)
    sending.acknowledge(message, (1, 1))
    outbox.want_end(sending.now)
    (last,) = sending.take()
    assert isinstance(last.envelope.control, LastMessage)
    return sending, outbox, last


def refuse_as_metro(sending: Sending, sent: Transmit) -> Transmit:
    """It faults each repeat of a LastMessage that it has. What follows, after that."""
    sending.answer(sent, fault=Fault("Server", "WSRM1146: Unexpected exception while registering message"))
    (following,) = sending.wait(STEADY.cap)
    return following


@pytest.mark.parametrize("forwards", [False, True])
def test_the_source_asks_what_arrived_if_a_repeated_last_message_is_refused(
    forwards: bool,
) -> None:
    sending, outbox, last = ending(forwards=forwards)
    sending.protocol.failed(last, sending.now)
    (repeat,) = sending.wait(STEADY.cap)
    assert isinstance(repeat.envelope.control, LastMessage)
    question = refuse_as_metro(sending, repeat)
    assert isinstance(question.envelope.control, RequestAcknowledgement)
    assert question.envelope.ack_requested == (AckRequested("urn:s:a"),) and question.envelope.sequence is None
    acknowledgement = SequenceAcknowledgement("urn:s:a", ((1, 2),))
    sending.answer(question, control=Acknowledge(), acknowledgements=(acknowledgement,))
    (terminate,) = sending.take()
    assert isinstance(terminate.envelope.control, TerminateSequence)
    sending.protocol.received(terminate, None, sending.now)
    sending.settle()
    assert outbox.source is None and not sending.stopped
    assert [effect.key for effect in sending.told if isinstance(effect, Ended)] == ["a"]


@pytest.mark.parametrize("sender", [False, True])
def test_where_it_refuses_the_question_too_the_sequence_is_terminated(sender: bool) -> None:
    sending, outbox, last = ending()
    question = refuse_as_metro(sending, refuse_as_metro(sending, last))
    assert isinstance(question.envelope.control, RequestAcknowledgement)
    sending.answer(question, fault=Fault("Server", "no", sender=sender))
    (terminate,) = sending.take()
    assert isinstance(terminate.envelope.control, TerminateSequence)
    assert outbox.records.waiting == 0 and not sending.stopped


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("progress", ["sent", "acknowledged", "ended", "lost"])
def test_a_message_after_the_last_message_goes_to_the_next_sequence(progress: str, restarts: bool) -> None:
    """Its record is at the offset of LastMessage's number, which says nothing about it."""
    sending, outbox, last = ending()
    if progress in ("acknowledged", "ended"):
        sending.acknowledge(last, (1, 2))
    (terminate,) = sending.take() or [None]
    sending.submit(outbox, "2", wants_reply=True)
    if restarts:
        sending = Sending(sending.store)
        sending.choices = [(OLD, False)]
        outbox = sending.open()
        (again, *_) = sending.take()
        last, terminate = (again, None) if again.number else (last, again)
    for _ in range(2):
        records = outbox.records
        assert (records.is_acknowledged(1), records.waiting, records.is_empty) == (False, 1, False)
        assert (records.may_have_left(1), records.in_doubt(), records.unsent) == (False, 0, 1)
        sending.settle()
    if progress == "lost":
        sending.answer(last, fault=sequence_fault(UNKNOWN_SEQUENCE, "urn:s:a"))
    elif progress == "sent":
        sending.acknowledge(last, (1, 2))
        (terminate,) = sending.take()
    if terminate is not None:
        sending.protocol.received(terminate, None, sending.now)
    (create,) = sending.take()
    sending.grant(create, "urn:s:b")
    (message,) = sending.take()
    assert (message.number, message.envelope.body, sending.stopped) == (1, b"2", [])
    assert not records.is_acknowledged(1)


def test_a_last_message_that_is_lost_again_and_again_is_not_left_out() -> None:
    sending, _, sent = ending()
    for _ in range(6):
        sending.protocol.failed(sent, sending.now, "no answer in time")
        (sent,) = sending.wait(STEADY.cap)
        assert isinstance(sent.envelope.control, LastMessage)


def test_a_last_message_that_is_answered_but_never_acknowledged_ends_the_sequence() -> None:
    sending, _, sent = ending()
    for _ in range(ANSWERED_ENOUGH):
        assert isinstance(sent.envelope.control, LastMessage)
        sending.protocol.received(sent, None, sending.now)
        (sent,) = sending.take() or sending.wait(STEADY.cap)
    assert isinstance(sent.envelope.control, TerminateSequence)


@pytest.mark.parametrize(("offers", "held"), [(False, 0.0), (True, STEADY.cap)])
def test_create_sequence_is_repeated_although_its_exchange_hangs(offers: bool, held: float) -> None:
    """CXF, starting slowly, loses an offered Sequence of which it processes several copies at once: that one waits."""
    sending = Sending()
    sending.choices = [(NEW, offers)]
    sending.submit(sending.open(), "1")
    (create,) = sending.take()
    due = sending.now + max(held, STEADY.initial)
    assert sending.protocol.deadline() == due
    (repeat,) = sending.wait(due - sending.now)
    assert (repeat.envelope.message_id, repeat.attempt) == (create.envelope.message_id, 2)
    assert repeat.envelope.control == create.envelope.control
    accept = EndpointReference(TO) if offers else None
    # The answer of the first one was only slow.
    sending.answer(create, control=CreateSequenceResponse("urn:s", accept_acks_to=accept))
    (message,) = sending.take()
    sending.answer(repeat, control=CreateSequenceResponse("urn:s", accept_acks_to=accept))
    assert message.number == 1 and not sending.take()


def test_an_offer_leaves_again_as_soon_as_its_exchange_has_ended() -> None:
    sending = Sending()
    sending.choices = [(NEW, True)]
    sending.submit(sending.open(), "1")
    (create,) = sending.take()
    sending.lose(create)
    assert sending.wait(STEADY.initial)


def test_create_sequence_that_is_answered_without_a_grant_is_repeated() -> None:
    sending = Sending()
    sending.submit(sending.open(), "1")
    (create,) = sending.take()
    for _ in range(3):
        sending.protocol.received(create, None, sending.now)
        (create,) = sending.wait(STEADY.cap)
