"""What remains of requesters that are gone: nothing, however many there were and whatever they did.

Covers core/receiving/reply_outboxes.py and all else that is kept under a name that a peer chooses.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from itertools import product

import pytest
from asked import Endpoint
from growth import entries

from holdfast.core.events import Transmit
from holdfast.core.messages import (
    ANONYMOUS_EPR,
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
    Offer,
    SequenceAcknowledgement,
    TerminateSequence,
    TerminateSequenceResponse,
)
from holdfast.core.receiving.reply_outboxes import IDLE
from holdfast.core.records import Record
from holdfast.core.steering import Steering
from holdfast.core.versions import RM, Versions

INACTIVE = 7_200.0
DAYS = 3 * INACTIVE
"""Longer than anything of a requester that is gone is kept, with the policy of these tests."""


class Clients:
    """Clients of an endpoint. Each has one request, addresses and Identifiers that nobody else has, and a habit.

    Args:
        rm: The version of WS-RM.
        habit: What they do with what the endpoint sends them; see the methods with these names.
        ends: Whether they terminate their Sequence.
        offers: Whether they offer a Sequence for the reply.
    """

    def __init__(self, rm: str, habit: str, *, ends: bool = True, offers: bool = False) -> None:
        self.endpoint = Endpoint(
            rm,
            allows=lambda _: True,
            inactivity_timeout=INACTIVE,
            keep_alive_timeout=INACTIVE,
            remember_terminated=10.0,
        )
        self.habit, self.ends, self.offers = habit, ends, offers
        self._react: Callable[[Transmit], Envelope | None] = getattr(self, habit, self.takes_all)
        self.count = 0

    # --- habits ---------------------------------------------------------------------------------------------------

    def takes_all(self, sent: Transmit) -> Envelope | None:
        """Answer as a requester should."""
        control = sent.envelope.control
        if isinstance(control, TerminateSequence):
            return self._answer(sent, control=TerminateSequenceResponse(control.identifier))
        if isinstance(control, CloseSequence):
            return self._answer(sent, control=CloseSequenceResponse(control.identifier))
        return self.takes_replies(sent)

    def takes_replies(self, sent: Transmit) -> Envelope | None:
        """Take the reply, and stop: the end of its Sequence finds nobody."""
        control, sequence = sent.envelope.control, sent.envelope.sequence
        if isinstance(control, CreateSequence):
            return self._answer(sent, control=CreateSequenceResponse(f"urn:granted:{sent.to}"))
        if sequence is not None and control is None:
            ranges = SequenceAcknowledgement(sequence.identifier, ((1, sequence.message_number),))
            return self._answer(sent, control=Acknowledge(), acknowledgements=(ranges,))
        raise ConnectionError

    def refuses(self, sent: Transmit) -> Envelope | None:
        return self._answer(sent, fault=Fault("Client", "no"))

    def is_silent(self, sent: Transmit) -> Envelope | None:
        return None

    def is_gone(self, sent: Transmit) -> Envelope | None:
        raise ConnectionError

    def asks_for_a_pause(self, sent: Transmit) -> Envelope | None:
        self.endpoint.protocol.outbound.pause(sent.to, 600.0, self.endpoint.now)
        raise ConnectionError

    def _answer(self, sent: Transmit, **fields: object) -> Envelope:
        answer = self.endpoint.envelope(relates_to=sent.envelope.message_id)
        for name, value in fields.items():
            setattr(answer, name, value)
        return answer

    # --- rounds ---------------------------------------------------------------------------------------------------

    def round(self) -> None:
        """Let a new client ask, and then time pass."""
        self.count += 1
        here = self._address()
        offer = Offer(f"urn:offer:{self.count}", here) if self.offers else None
        acks_to = here if self.offers else ANONYMOUS_EPR
        create = CreateSequence(acks_to, offer=offer)
        name = f"urn:create:{self.count}"
        answer = self.endpoint.ask(control=create, message_id=name, to="http://d/", reply_to=ANONYMOUS_EPR)
        assert answer is not None and isinstance(answer.control, CreateSequenceResponse), answer
        inbound = answer.control.identifier
        self.endpoint.send(inbound, 1, message_id=f"urn:m:{self.count}", reply_to=here, to="http://d/")
        record = next(record for record in self.endpoint.records() if record.sequence == inbound)
        self.endpoint.protocol.replies.reply(record, Record("", 0, "urn:r", b"<r/>", 0.0), self.endpoint.now)
        self.endpoint.settle()
        self.pass_time(60.0)
        if self.ends:
            last = 1 if self.endpoint.versions.rm.can.closes else None
            self.endpoint.ask(
                control=TerminateSequence(inbound, last), message_id=f"urn:t:{self.count}", to="http://d/"
            )
        queue = self.endpoint.protocol.queues.get("inbox")
        assert queue is not None
        queue.deletion.purge(0, queue.partitions[0].durable_end)
        self.pass_time(60.0)

    def _address(self) -> EndpointReference:
        prefix = MC_ANONYMOUS if self.habit == "polls" else "http://client/"
        return EndpointReference(f"{prefix}{self.count}")

    def pass_time(self, seconds: float) -> None:
        """Let time pass from deadline to deadline, and let the clients react."""
        until = self.endpoint.now + seconds
        while True:
            self._exchange()
            due = self.endpoint.protocol.deadline()
            if due is None or due >= until:
                break
            # At least a little later, so that messages that are repeated every second need not be counted in days.
            self.endpoint.pass_time(min(max(due - self.endpoint.now, seconds / 200), until - self.endpoint.now))
        self.endpoint.pass_time(until - self.endpoint.now)
        self._exchange()

    def _exchange(self) -> None:
        if self.habit == "polls":
            self._poll()
        while self.endpoint.transmitted:
            sent = self.endpoint.transmitted.pop(0)
            try:
                answer = self._react(sent)
            except ConnectionError:
                self.endpoint.protocol.failed(sent, self.endpoint.now, "nobody listens", has_left=False)
            else:
                self.endpoint.protocol.received(sent, answer, self.endpoint.now)
            self.endpoint.settle()

    def _poll(self) -> None:
        """Poll as long as there is something, and take it: a poll's answer is answered in a message of its own."""
        address = self._address()
        while (given := self.endpoint.ask(control=MakeConnection(address.address), to="http://d/")) is not None:
            sent = Transmit(address.address, given, "", 0, 1, self.endpoint.now)
            with suppress(ConnectionError):
                answer = self.takes_all(sent)
                assert answer is not None
                fields = {"control": answer.control, "relates_to": answer.relates_to, "to": "http://d/"}
                self.endpoint.ask(**fields, acknowledgements=answer.acknowledgements)

    def held(self) -> Counter[str]:
        """Everything that the endpoint holds in memory and in its store."""
        self.endpoint.answers.clear()
        self.endpoint.incidents.clear()
        stored = self.endpoint.store.load()
        found = entries(self.endpoint.protocol)
        for name in ("queues", "sequences", "cursors", "bounds", "homes", "held"):
            found[f"stored {name}"] = len(getattr(stored, name))
        return +found


HABITS = ["takes_all", "takes_replies", "refuses", "is_silent", "is_gone", "asks_for_a_pause", "polls"]


@pytest.mark.parametrize("offers", [False, True], ids=["to an address", "in an offered Sequence"])
@pytest.mark.parametrize("ends", [True, False], ids=["ends", "stops"])
@pytest.mark.parametrize(("rm", "habit"), [*product([one.value for one in RM if one.can.creates], HABITS)])
def test_nothing_remains_of_requesters_that_are_gone(rm: str, habit: str, ends: bool, offers: bool) -> None:
    if habit == "polls" and not Versions(rm).rm.can.closes:
        pytest.skip("WS-MakeConnection belongs to WS-RM 1.1")
    clients = Clients(rm, habit, ends=ends, offers=offers)
    found = []
    for _ in range(2):
        for _ in range(4):
            clients.round()
        clients.pass_time(DAYS)
        clients.pass_time(DAYS)
        # What was kept of the last time is replaced by the next.
        clients.round()
        clients.pass_time(DAYS)
        found.append(clients.held())
    assert found[1] == found[0], {name: (found[0][name], found[1][name]) for name in found[0] | found[1]}


def asked_once(habit: str = "takes_all", rm: str = "1.1") -> Clients:
    """A client without an Offer that has asked once, and its reply was sent."""
    clients = Clients(rm, habit, ends=False)
    clients.round()
    return clients


KEY = "to/http://client/1"


def test_an_idle_requester_is_told_that_the_sequence_of_its_replies_ends() -> None:
    clients = asked_once()
    outboxes = clients.endpoint.protocol.outbound.outboxes
    assert KEY in outboxes
    told: list[object] = []
    react = clients._react
    clients._react = lambda sent: told.append(type(sent.envelope.control)) or react(sent)
    clients.pass_time(IDLE)
    assert (told[-2:], KEY in outboxes) == ([CloseSequence, TerminateSequence], False)


@pytest.mark.parametrize("habit", ["takes_all", "takes_replies", "is_gone"])
@pytest.mark.parametrize("rm", ["1.0", "1.1"])
def test_a_restart_at_any_time_changes_nothing_of_what_is_kept(rm: str, habit: str) -> None:
    clients = asked_once(habit, rm)
    most = 2 * INACTIVE + 4 * IDLE
    for _ in range(20):
        clients.endpoint = clients.endpoint.restart()
        clients.pass_time(most / 20)
    discarded = [one for one in clients.endpoint.incidents if one.name == "replies.discarded"]
    # A life of the endpoint hears of nobody that is gone, so patience begins again with each.
    assert (KEY in clients.endpoint.protocol.outbound.outboxes, discarded) == (habit == "is_gone", [])
    clients.pass_time(DAYS)
    assert not clients.endpoint.protocol.outbound.outboxes
    assert not clients.endpoint.restart().protocol.outbound.outboxes


def test_what_an_operator_suspends_remains_until_he_resumes_it() -> None:
    clients = asked_once("is_gone")
    protocol = clients.endpoint.protocol
    steering = Steering(protocol)
    steering.suspend(protocol.outbound.outboxes[KEY], "a test")
    clients.endpoint.settle()
    clients.pass_time(DAYS)
    assert list(protocol.outbound.outboxes) == [KEY]
    steering.resume(protocol.outbound.outboxes[KEY], clients.endpoint.now)
    clients.pass_time(DAYS)
    assert not protocol.outbound.outboxes


@pytest.mark.parametrize("is_late", [False, True], ids=["in the batch of its end", "later"])
def test_a_late_reply_opens_the_outbox_again(is_late: bool) -> None:
    clients = asked_once()
    endpoint = clients.endpoint
    inbound = next(iter(endpoint.protocol.inbound.destinations))
    endpoint.send(inbound, 2, message_id="urn:late", reply_to=EndpointReference("http://client/1"), to="http://d/")
    (record,) = [one for one in endpoint.records() if one.message_number == 2]
    if is_late:
        clients.pass_time(3 * IDLE)
        assert KEY not in endpoint.protocol.outbound.outboxes
    else:
        endpoint.protocol.outbound.registry.discard(KEY, endpoint.now)
    endpoint.protocol.replies.reply(record, Record("", 0, "urn:r", b"<late/>", 0.0), endpoint.now)
    endpoint.settle()
    clients.endpoint = endpoint.restart()
    bodies: list[bytes] = []
    react = clients._react
    clients._react = lambda sent: bodies.append(sent.envelope.body) or react(sent)
    clients.pass_time(60.0)
    assert b"<late/>" in bodies
    assert clients.endpoint.protocol.outbound.outboxes[KEY].records.is_empty


def test_a_request_for_one_more_address_waits_until_there_is_room() -> None:
    clients = Clients("1.1", "is_gone")
    endpoint = clients.endpoint = Endpoint("1.1", allows=lambda _: True, max_sequences=8)
    for _ in range(2):
        clients.round()
    inbound = endpoint.create("urn:create:more")
    for address, is_taken in (("http://client/3", False), ("http://client/2", True)):
        before = len(endpoint.protocol.inbound.destinations[inbound].accepted)
        endpoint.send(inbound, 1, message_id="urn:m", reply_to=EndpointReference(address), to="http://d/")
        assert len(endpoint.protocol.inbound.destinations[inbound].accepted) == before + is_taken
