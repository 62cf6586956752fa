"""The polls of a source: when one leaves, which answers count, and what a restart changes.

Covers core/messages.py.
"""

from __future__ import annotations

import itertools
from copy import deepcopy
from typing import Any

import pytest
from sending import NEW, OLD, TO, Sending, numbers

from holdfast.core.events import Delivered, Transmit
from holdfast.core.faults import ACTION_NOT_SUPPORTED, REFUSES_ACCOUNT, missing_selection, unsupported_selection
from holdfast.core.messages import (
    MC_ANONYMOUS,
    Acknowledge,
    CloseSequence,
    CloseSequenceResponse,
    CreateSequence,
    CreateSequenceResponse,
    EndpointReference,
    Envelope,
    Fault,
    MakeConnection,
    RequestAcknowledgement,
    Sequence,
    SequenceAcknowledgement,
    TerminateSequence,
    TerminateSequenceResponse,
    is_polled,
)
from holdfast.core.policy import PollingPolicy
from holdfast.core.protocol_settings import MessageRules
from holdfast.core.sending.outboxes.outbox import Outbox
from holdfast.core.sending.polling.pollers import MOST_ACKNOWLEDGED
from holdfast.core.sending.reasons import NOT_POLLED
from holdfast.core.versions import Versions
from holdfast.store import MemoryStore

POLLING = PollingPolicy(first=1.0, cap=8.0, jitter=0.0)
LONG = 1000.0


class Client(Sending):
    """A source that polls; a test answers for its destination."""

    def __init__(
        self, store: MemoryStore | None = None, *, now: float = 100.0, rm: Any = NEW, offer: bool = True, **more: Any
    ) -> None:
        super().__init__(store, now=now, local=MC_ANONYMOUS, polling=POLLING, **more)
        self.choices = [(rm, offer)]

    def ask(self, *bodies: str, key: str = "a", to: str = TO) -> tuple[Outbox, list[Transmit]]:
        """Submit requests, and answer CreateSequence."""
        outbox = self.open(key, to)
        self.submit(outbox, *bodies, wants_reply=True)
        (create,) = self.take()
        self.accept(create, f"urn:s:{key}")
        return outbox, self.take()

    def accept(self, create: Transmit, identifier: str) -> None:
        asked = create.envelope.control
        assert isinstance(asked, CreateSequence)
        accept = EndpointReference(TO) if asked.offer is not None else None
        self.answer(create, control=CreateSequenceResponse(identifier, accept_acks_to=accept))

    def ask_and_wait(self, *bodies: str) -> tuple[Outbox, str]:
        """Submit requests that their destination accepts with an empty 202; return the Identifier offered."""
        outbox, sent = self.ask(*bodies)
        for one in sent:
            self.nothing(one)
        assert outbox.source is not None and outbox.source.offer is not None
        return outbox, outbox.source.offer

    def nothing(self, sent: Transmit) -> None:
        self.protocol.received(sent, None, self.now)
        self.settle()

    def poll(self) -> Transmit:
        """Wait for the next poll."""
        for _ in range(100):
            sent = self.wait(0.5)
            for one in sent:
                if not is_poll(one):
                    self.nothing(one)
            if polls := [one for one in sent if is_poll(one)]:
                return polls[0]
        raise AssertionError("no poll")

    def polls_within(self, seconds: float) -> list[float]:
        """The times of the polls, each answered with nothing."""
        times, end = [], self.now + seconds
        while self.now < end:
            for one in self.wait(0.25):
                if is_poll(one):
                    times.append(self.now)
                self.nothing(one)
        return times

    def reply(self, poll: Transmit, offer: str, number: int = 1, body: str = "1", **fields: Any) -> None:
        sequence = Sequence(offer, number)
        fields = {"to": address_of(poll), "relates_to": f"urn:m:{body}"} | fields
        self.answer(poll, action="urn:reply", body=b"<r/>", sequence=sequence, **fields)

    @property
    def delivered(self) -> int:
        return sum(effect.count for effect in self.told if isinstance(effect, Delivered))

    def restart(self) -> Client:
        return Client(deepcopy(self.store), now=self.now)


def is_poll(sent: Transmit) -> bool:
    return isinstance(sent.envelope.control, MakeConnection)


def address_of(poll: Transmit) -> str:
    assert isinstance(poll.envelope.control, MakeConnection)
    return poll.envelope.control.address


# --- the address ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rm", [NEW, OLD])
def test_every_address_that_a_polling_source_names_is_its_own_anonymous_one(rm: Any) -> None:
    client = Client(rm=rm)
    outbox = client.open()
    client.submit(outbox, "1", wants_reply=True)
    (create,) = client.take()
    assert isinstance(create.envelope.control, CreateSequence) and create.envelope.control.offer is not None
    address = create.envelope.control.acks_to
    assert is_polled(address.address) and create.envelope.reply_to == address
    assert create.envelope.control.offer.endpoint == (address if rm is NEW else None)
    client.accept(create, "urn:s")
    (request,) = client.take()
    assert request.envelope.reply_to == address


def test_the_destination_of_a_version_without_acks_to_is_not_polled() -> None:
    client = Client(rm=Versions("2003/03"), offer=False)
    outbox = client.open()
    client.submit(outbox, "1", wants_reply=True)
    (request,) = client.take()
    assert outbox.source is not None and not outbox.source.address
    client.nothing(request)
    assert not client.polls_within(20.0)


def test_all_sequences_to_one_destination_share_an_address_and_others_have_another() -> None:
    client = Client()
    addresses = [client.ask("1", key=key, to=to)[1][0].envelope.reply_to for key, to in (("a", TO), ("b", TO))]
    addresses.append(client.ask("2", key="c", to="http://e/")[1][0].envelope.reply_to)
    assert addresses[0] == addresses[1] != addresses[2]


def test_the_address_survives_a_restart_and_is_polled_at_once() -> None:
    client = Client()
    _, offer = client.ask_and_wait("1")
    address = address_of(client.poll())
    client = client.restart()
    poll = client.poll()
    assert address_of(poll) == address
    client.reply(poll, offer)
    assert client.delivered == 1
    _, (request,) = client.ask("2", key="b")
    assert request.envelope.reply_to == EndpointReference(address)


def test_a_sequence_keeps_the_address_it_began_with() -> None:
    plain = Sending()
    outbox = plain.open()
    plain.submit(outbox, "1", wants_reply=True)
    (create,) = plain.take()
    plain.grant(create, "urn:s")
    client = Client(plain.store)
    (request,) = client.take()
    assert request.envelope.reply_to is not None and request.envelope.reply_to.is_anonymous
    client.nothing(request)
    assert not client.polls_within(20.0)


# --- when a poll leaves -----------------------------------------------------------------------------------------------


def test_polls_become_rarer_while_a_request_waits_and_stop_growing_at_the_cap() -> None:
    client = Client()
    client.ask_and_wait("1")
    times = client.polls_within(60.0)
    pauses = [after - before for before, after in itertools.pairwise(times)]
    assert times[0] == 101.0 and pauses == sorted(pauses) and pauses[-1] == POLLING.cap
    assert 8 < len(times) < 16


def test_a_further_request_is_polled_for_soon() -> None:
    client = Client()
    outbox, (request,) = client.ask("1")
    client.acknowledge(request, (1, 1))
    client.polls_within(60.0)
    client.submit(outbox, "2", wants_reply=True)
    sent = client.take()
    assert 2 in numbers(sent)
    for one in sent:
        client.nothing(one)
    asked_at = client.now
    assert client.polls_within(3.0)[0] <= asked_at + POLLING.first


def test_nothing_is_polled_when_nothing_can_come() -> None:
    client = Client(offer=False)
    outbox = client.open()
    client.submit(outbox, "1")
    (create,) = client.take()
    client.accept(create, "urn:s")
    (message,) = client.take()
    client.acknowledge(message, (1, 1))
    assert not client.polls_within(LONG / 4)


def test_an_idle_sequence_of_replies_is_polled_at_the_cap() -> None:
    client = Client()
    outbox = client.open()
    client.submit(outbox, "1")
    (create,) = client.take()
    client.accept(create, "urn:s")
    (message,) = client.take()
    client.acknowledge(message, (1, 1))
    assert client.polls_within(4 * POLLING.cap) == [108.0, 116.0, 124.0, 132.0]


def test_the_next_poll_leaves_at_once_while_messages_are_pending() -> None:
    client = Client()
    _, offer = client.ask_and_wait("1", "2", "3")
    poll = client.poll()
    now = client.now
    for number in (1, 2, 3):
        client.reply(poll, offer, number, str(number), message_pending=number < 3)
        if number < 3:
            (poll,) = [one for one in client.take() if is_poll(one)]
    assert client.now == now and client.delivered == 3


def test_one_poll_leaves_at_a_time_until_its_answer_is_late() -> None:
    client = Client()
    client.ask_and_wait("1")
    client.poll()
    assert not [one for one in client.wait(POLLING.cap - 0.5) if is_poll(one)]
    assert len([one for one in client.wait(0.5) if is_poll(one)]) == 1


def test_a_poll_waits_while_the_destination_asks_for_a_pause() -> None:
    client = Client()
    client.ask_and_wait("1")
    client.protocol.outbound.pause(TO, 30.0, client.now)
    began = client.now
    client.poll()
    assert client.now >= began + 30.0


def test_a_failed_poll_is_repeated_later() -> None:
    client = Client()
    client.ask_and_wait("1")
    poll = client.poll()
    client.protocol.failed(poll, client.now, "the connection was refused", has_left=False)
    assert address_of(client.poll()) == address_of(poll)


def test_the_end_of_the_source_ends_the_polls() -> None:
    client = Client()
    outbox, offer = client.ask_and_wait("1")
    client.reply(client.poll(), offer)
    outbox.want_end(client.now)
    for _ in range(20):
        for one in client.wait(0.5):
            control = one.envelope.control
            if isinstance(control, CloseSequence):
                client.answer(one, control=CloseSequenceResponse(control.identifier))
            elif isinstance(control, TerminateSequence):
                client.answer(one, control=TerminateSequenceResponse(control.identifier))
            else:
                client.nothing(one)
    assert outbox.source is None
    assert not client.polls_within(LONG / 4)


# --- what the answers bring -------------------------------------------------------------------------------------------


def test_a_reply_counts_once_and_the_next_poll_acknowledges_it() -> None:
    client = Client()
    outbox, offer = client.ask_and_wait("1", "2")
    client.reply(client.poll(), offer)
    poll = client.poll()
    assert poll.envelope.acknowledgements == (client.protocol.inbound.destinations[offer].acknowledgement(),)
    client.reply(poll, offer)
    assert client.delivered == 1 and outbox.records.is_acknowledged(0) and not outbox.records.is_acknowledged(1)


def test_a_poll_acknowledges_few_sequences() -> None:
    client = Client()
    offers = []
    for key in map(str, range(MOST_ACKNOWLEDGED + 2)):
        outbox, (request,) = client.ask(key, key=key)
        client.nothing(request)
        assert outbox.source is not None and outbox.source.offer is not None
        offers.append(outbox.source.offer)
    poll = client.poll()
    for key, offer in enumerate(offers):
        client.reply(poll, offer, 1, str(key), message_pending=True)
        (poll,) = [one for one in client.take() if is_poll(one)]
    assert len(poll.envelope.acknowledgements) <= MOST_ACKNOWLEDGED


def test_acknowledgements_come_by_a_poll() -> None:
    client = Client(offer=False)
    outbox = client.open()
    client.submit(outbox, "1")
    (create,) = client.take()
    client.accept(create, "urn:s")
    (message,) = client.take()
    client.nothing(message)
    acknowledgement = SequenceAcknowledgement("urn:s", ((1, 1),))
    client.answer(client.poll(), relates_to=None, control=Acknowledge(), acknowledgements=(acknowledgement,))
    assert outbox.records.is_acknowledged(0)


@pytest.mark.parametrize("is_granted", [True, False])
def test_the_grant_and_the_refusal_of_a_sequence_come_by_a_poll(is_granted: bool) -> None:
    client = Client(offer=False)
    outbox = client.open()
    client.submit(outbox, "1")
    (create,) = client.take()
    client.nothing(create)
    fields: dict[str, Any] = {"control": CreateSequenceResponse("urn:s")}
    if not is_granted:
        fields = {"fault": Fault("CreateSequenceRefused", "no", is_rm=True)}
    client.answer(client.poll(), **({"relates_to": create.envelope.message_id} | fields))
    if is_granted:
        assert [one.number for one in client.take() if one.number] == [1]
    else:
        assert outbox.lifecycle.stopped == "CreateSequenceRefused"


def test_a_fault_for_a_request_comes_by_a_poll() -> None:
    client = Client()
    outbox, offer = client.ask_and_wait("1")
    client.answer(
        client.poll(), relates_to="urn:m:1", sequence=Sequence(offer, 1), fault=Fault("Sender", "no such order")
    )
    assert outbox.records.is_acknowledged(0) and client.delivered == 1 and not outbox.lifecycle.stopped


def test_the_end_of_a_sequence_comes_by_a_poll() -> None:
    client = Client()
    outbox, _ = client.ask_and_wait("1")
    fault = Fault("UnknownSequence", "gone", is_rm=True, identifier="urn:s:a")
    client.answer(client.poll(), relates_to=None, fault=fault)
    assert outbox.source is None or outbox.lifecycle.stopped


def test_an_acknowledgement_that_waited_for_a_poll_retracts_nothing() -> None:
    client = Client(offer=False)
    outbox = client.open()
    client.submit(outbox, "1", "2")
    (create,) = client.take()
    client.accept(create, "urn:s")
    first, second = client.take()
    client.acknowledge(first, (1, 2))
    client.nothing(second)
    client.submit(outbox, "3")
    (third,) = client.take()
    client.nothing(third)
    older = SequenceAcknowledgement("urn:s", ((1, 1),))
    client.answer(client.poll(), relates_to=None, control=Acknowledge(), acknowledgements=(older,))
    assert not client.incidents("acknowledgement.retracted") and not outbox.lifecycle.stopped


@pytest.mark.parametrize(
    "request_", [TerminateSequence, CloseSequence, RequestAcknowledgement], ids=["terminate", "close", "asks"]
)
def test_a_request_that_comes_by_a_poll_is_answered_with_a_message_of_its_own(request_: Any) -> None:
    client = Client()
    _, offer = client.ask_and_wait("1")
    client.reply(client.poll(), offer)
    control = request_() if request_ is RequestAcknowledgement else request_(offer)
    fields = {"ack_requested": (), "action": "urn:rm"}
    client.answer(client.poll(), message_id="urn:theirs", relates_to=None, control=control, **fields)
    answers = [one for one in client.take() if not is_poll(one) and not one.number]
    if request_ is RequestAcknowledgement:
        assert not answers, "it asks for no Sequence"
    else:
        (answer,) = answers
        assert answer.to == TO and answer.envelope.relates_to == "urn:theirs"
        assert isinstance(answer.envelope.control, TerminateSequenceResponse | CloseSequenceResponse)


# --- who may say what -------------------------------------------------------------------------------------------------


def test_an_answer_for_another_endpoint_that_polls_is_ignored() -> None:
    client = Client()
    outbox, offer = client.ask_and_wait("1")
    client.reply(client.poll(), offer, to=MC_ANONYMOUS + "another")
    assert client.delivered == 0 and not outbox.records.is_acknowledged(0)
    assert len(client.incidents("message.unauthorized")) == 1


def test_a_reply_to_no_request_of_this_source_is_dropped() -> None:
    client = Client(rules=MessageRules(unrequested=lambda envelope: None))
    outbox, offer = client.ask_and_wait("1")
    client.reply(client.poll(), offer, relates_to="urn:m:other")
    assert client.delivered == 0 and not outbox.records.is_acknowledged(0)


def test_only_the_polled_destination_may_reply() -> None:
    client = Client()
    outbox, offer = client.ask_and_wait("1")
    _, (other,) = client.ask("2", key="b", to="http://e/")
    client.answer(other, action="urn:reply", body=b"<r/>", sequence=Sequence(offer, 1), relates_to="urn:m:1")
    assert client.delivered == 0 and not outbox.records.is_acknowledged(0)


def test_nobody_may_post_what_must_come_by_a_poll() -> None:
    client = Client()
    outbox, offer = client.ask_and_wait("1")
    acknowledgement = SequenceAcknowledgement("urn:s:a", ((1, 1),))
    envelope = Envelope(NEW.soap, NEW.addressing, NEW.rm, action="urn:reply", body=b"<r/>", relates_to="urn:m:1")
    envelope.sequence, envelope.acknowledgements = Sequence(offer, 1), (acknowledgement,)
    client.protocol.receive(envelope, object(), client.now)  # type: ignore[arg-type]
    client.settle()
    assert client.delivered == 0 and not outbox.records.is_acknowledged(0)


# --- destinations without MakeConnection ------------------------------------------------------------------------------

REFUSALS = [
    missing_selection(),
    unsupported_selection("{urn:x}y"),
    Fault(ACTION_NOT_SUPPORTED, "no such action", is_addressing=True),
    Fault("Client", "MakeConnection was not recognized"),
    Fault("MustUnderstand", "headers"),
]


@pytest.mark.parametrize("fault", REFUSALS, ids=lambda fault: fault.code)
def test_a_destination_that_refuses_polls_stops_its_outboxes_until_they_are_resumed(fault: Fault) -> None:
    client = Client()
    outbox, offer = client.ask_and_wait("1")
    client.answer(client.poll(), fault=deepcopy(fault))
    assert outbox.lifecycle.stopped == NOT_POLLED and fault.code in outbox.lifecycle.stopped_for
    assert len(client.incidents("polls.refused")) == 1 and len(client.stopped) == 1
    assert not client.polls_within(60.0)
    outbox.resume(client.choices, client.now)
    client.reply(client.poll(), offer)
    assert client.delivered == 1


@pytest.mark.parametrize("code", sorted(REFUSES_ACCOUNT))
def test_credentials_that_are_refused_for_a_poll_are_not_repeated(code: str) -> None:
    """Each further poll with a wrong password brings the account nearer to its lock."""
    client = Client()
    outbox, offer = client.ask_and_wait("1")
    client.answer(client.poll(), fault=Fault(code, "no"))
    assert (outbox.lifecycle.stopped, outbox.lifecycle.stopped_for) == (code, "no")
    assert not client.polls_within(1000.0)
    outbox.resume(client.choices, client.now)
    client.reply(client.poll(), offer)
    assert client.delivered == 1


@pytest.mark.parametrize(
    "fault",
    [
        Fault("Server", "the database is away", sender=False),
        Fault("BadContextToken", "expired", code_namespace="urn:wsse"),
    ],
    ids=lambda fault: fault.code,
)
def test_another_fault_only_makes_polls_rarer(fault: Fault) -> None:
    client = Client()
    outbox, _ = client.ask_and_wait("1")
    client.answer(client.poll(), fault=fault)
    assert not outbox.lifecycle.stopped
    client.poll()


def test_a_refused_poll_does_not_stop_other_destinations() -> None:
    client = Client()
    outbox, _ = client.ask_and_wait("1")
    other, (request,) = client.ask("2", key="b", to="http://e/")
    client.nothing(request)
    polls = {one.to: one for one in client.wait(POLLING.first) if is_poll(one)}
    client.answer(polls[TO], fault=missing_selection())
    assert outbox.lifecycle.stopped and not other.lifecycle.stopped
    assert numbers([request]) == [1]
