"""Polls: what waits for a client that polls, who gets it, and what a repeat, a loss or a restart changes.

Covers core/sending/polling/mailboxes.py, core/sending/polling/waiting_polls.py and core/sending/served_polls.py.
"""

from __future__ import annotations

from typing import Any

import pytest
from asked import Endpoint

from holdfast.core.messages import (
    ANONYMOUS_EPR,
    MC_ANONYMOUS,
    MC_NS,
    Acknowledge,
    AckRequested,
    CloseSequence,
    CloseSequenceResponse,
    CreateSequence,
    CreateSequenceResponse,
    EndpointReference,
    Envelope,
    MakeConnection,
    Offer,
    Sequence,
    SequenceAcknowledgement,
    TerminateSequence,
    TerminateSequenceResponse,
)
from holdfast.core.origin import USER, Origin, in_session
from holdfast.core.rm_source.control_requests import ANSWERED_ENOUGH
from holdfast.core.sending.polling.mailboxes import MOST_MESSAGES

A = EndpointReference(MC_ANONYMOUS + "a")
B = EndpointReference(MC_ANONYMOUS + "b")
ANN, BEN = Origin(party=f"{USER}ann"), Origin(party=f"{USER}ben")
HERE = "http://here/service"


class Peer:
    """A client that polls, and what it was given."""

    def __init__(self, endpoint: Endpoint, address: EndpointReference = A, origin: Origin | None = None) -> None:
        self.endpoint, self.address, self.origin = endpoint, address, origin or Origin(party="address 10.0.0.1")
        self.given: list[Envelope] = []
        self.identifier = ""

    def ask(self, **fields: Any) -> Envelope | None:
        exchange = object()
        envelope = self.endpoint.envelope(**{"to": HERE} | fields)
        self.endpoint.protocol.receive(envelope, exchange, self.endpoint.now, origin=self.origin)
        self.endpoint.pass_time(0.0)
        return self.endpoint.answers[exchange]

    def create(self, offered: str | None = "urn:offer", message_id: str = "urn:create") -> Envelope:
        offer = Offer(offered, self.address) if offered else None
        answer = self.ask(
            control=CreateSequence(self.address, offer=offer), message_id=message_id, reply_to=self.address
        )
        assert answer is not None
        if isinstance(answer.control, CreateSequenceResponse):
            self.identifier = answer.control.identifier
        return answer

    def request(self, number: int, **fields: Any) -> Envelope | None:
        return self.ask(
            sequence=Sequence(self.identifier, number),
            action="urn:a",
            body=b"<m%d/>" % number,
            message_id=f"urn:m{number}",
            reply_to=self.address,
            **fields,
        )

    def poll(self, **fields: Any) -> Envelope | None:
        answer = self.ask(control=MakeConnection(**(fields or {"address": self.address.address})))
        if answer is not None:
            self.given.append(answer)
        return answer

    def acknowledge(self, *numbers: int, of: str = "urn:offer") -> Envelope | None:
        ranges = tuple((number, number) for number in numbers)
        return self.ask(control=Acknowledge(), acknowledgements=(SequenceAcknowledgement(of, ranges),))


def asked_and_answered(*numbers: int, **policy: Any) -> Peer:
    """A client with an Offer whose requests have their replies, which wait for its polls."""
    peer = Peer(Endpoint(**policy))
    peer.create()
    for number in numbers:
        assert peer.request(number) is None  # 202
        peer.endpoint.reply(number)
    return peer


def bodies(*given: Envelope | None) -> list[bytes]:
    return [one.body for one in given if one is not None]


def test_a_client_that_polls_is_granted_a_sequence_in_the_answer_to_its_request() -> None:
    answer = Peer(Endpoint()).create()
    assert isinstance(answer.control, CreateSequenceResponse)
    assert answer.control.accept_acks_to is not None


def test_a_reply_waits_for_a_poll_and_acknowledges_its_request() -> None:
    peer = asked_and_answered(1)
    assert not peer.endpoint.transmitted
    given = peer.poll()
    assert given is not None
    assert (given.body, given.relates_to, given.to) == (b"<r1/>", "urn:m1", A.address)
    assert given.sequence == Sequence("urn:offer", 1)
    assert given.acknowledgements[0].ranges == ((1, 1),)
    assert not given.message_pending


def test_a_reply_goes_before_an_acknowledgement_that_it_makes_superfluous() -> None:
    """Metro asks for an acknowledgement with each request, and polls every 2.5 seconds whatever is pending."""
    peer = asked_and_answered()
    assert peer.request(1, ack_requested=(AckRequested(peer.identifier),)) is None
    peer.endpoint.pass_time(5.0)
    peer.endpoint.reply(1)
    given = peer.poll()
    assert given is not None and given.relates_to == "urn:m1" and given.message_pending is not True
    assert [one.ranges for one in given.acknowledgements] == [((1, 1),)]
    peer.acknowledge(1)
    assert peer.request(2, ack_requested=(AckRequested(peer.identifier),)) is None
    peer.endpoint.pass_time(5.0)
    alone = peer.poll()  # no reply yet
    assert alone is not None and isinstance(alone.control, Acknowledge)


def test_a_poll_with_nothing_waiting_is_answered_with_nothing() -> None:
    peer = Peer(Endpoint())
    peer.create()
    assert peer.poll() is None
    peer.request(1)
    assert peer.poll() is None


def test_each_poll_gets_one_message_and_learns_whether_another_one_waits() -> None:
    peer = asked_and_answered(1, 2, 3)
    given = [peer.poll() for _ in range(4)]
    assert bodies(*given) == [b"<r1/>", b"<r2/>", b"<r3/>"]
    assert [one.message_pending for one in given if one is not None] == [True, True, False]


def test_a_reply_whose_answer_was_lost_is_given_again_until_it_is_acknowledged() -> None:
    peer = asked_and_answered(1)
    peer.poll()
    assert peer.poll() is None
    peer.endpoint.pass_time(10.0)
    given = peer.poll()
    assert given is not None
    assert (given.body, given.sequence) == (b"<r1/>", Sequence("urn:offer", 1))
    assert peer.acknowledge(1) is None
    peer.endpoint.pass_time(100.0)
    assert peer.poll() is None


def test_a_reply_that_is_never_acknowledged_holds_back_no_other_one() -> None:
    """Its client may be unable to accept it."""
    peer = asked_and_answered(1)
    for _ in range(ANSWERED_ENOUGH):
        assert bodies(peer.poll()) == [b"<r1/>"]
        peer.endpoint.pass_time(100.0)
    for number in range(2, 6):
        assert peer.request(number) is None or bodies(peer.given)
        peer.endpoint.reply(number)
        assert b"<r%d/>" % number in bodies(peer.poll(), peer.poll())
        peer.acknowledge(number)


def test_a_repeated_request_gets_its_reply_without_a_poll() -> None:
    peer = asked_and_answered(1)
    assert bodies(peer.request(1)) == [b"<r1/>"]
    assert peer.request(1) is None
    peer.endpoint.pass_time(10.0)
    assert bodies(peer.request(1)) == [b"<r1/>"]
    peer.acknowledge(1)
    peer.endpoint.pass_time(100.0)
    repeated = peer.request(1)
    assert repeated is not None and repeated.acknowledgements[0].ranges == ((1, 1),)


def test_what_waits_for_a_poll_survives_a_crash_with_its_numbers() -> None:
    peer = asked_and_answered(1, 2)
    peer.poll()
    peer.endpoint = peer.endpoint.restart()
    given = [peer.poll(), peer.poll()]
    assert [(one.body, one.sequence and one.sequence.message_number) for one in given if one is not None] == [
        (b"<r1/>", 1),
        (b"<r2/>", 2),
    ]
    assert not peer.endpoint.transmitted


def test_a_reply_that_must_be_read_from_the_store_makes_the_poll_wait_for_that_only() -> None:
    peer = asked_and_answered(*range(1, 300), max_open_requests=1000)
    peer.endpoint = peer.endpoint.restart()
    given: list[bytes] = []
    while (answer := peer.poll()) is not None:
        given.append(answer.body)
        assert answer.sequence is not None
        peer.acknowledge(answer.sequence.message_number)
        if len(given) > 400:
            break
    assert set(given) == {b"<r%d/>" % number for number in range(1, 300)}


def test_a_client_that_polls_cannot_make_its_destination_poll() -> None:
    peer = Peer(Endpoint())
    peer.create(offered=None)
    answer = peer.ask(
        sequence=Sequence(peer.identifier, 1),
        action="urn:a",
        body=b"<m/>",
        message_id="urn:m1",
        reply_to=A,
        to=B.address,
    )
    assert answer is None
    peer.endpoint.reply(1)
    given = peer.poll()
    assert given is not None and isinstance(given.control, CreateSequence)
    assert not given.control.acks_to.is_polled
    peer.endpoint.pass_time(1000.0)
    assert not peer.endpoint.transmitted


def test_two_clients_get_their_own_replies() -> None:
    one = asked_and_answered(1)
    other = Peer(one.endpoint, B)
    other.create("urn:offer-b", "urn:create-b")
    assert other.poll() is None
    assert bodies(one.poll()) == [b"<r1/>"]


def test_an_address_that_nobody_named_gets_nothing() -> None:
    peer = asked_and_answered(1)
    stranger = Peer(peer.endpoint, B)
    assert stranger.poll() is None
    assert stranger.poll(address="urn:x") is None
    assert stranger.poll(address=MC_ANONYMOUS) is None


def test_only_the_owner_of_an_address_polls_its_messages_also_after_a_restart() -> None:
    ann = Peer(Endpoint(), origin=ANN)
    ann.create()
    ann.request(1)
    ann.endpoint.reply(1)
    for endpoint in (ann.endpoint, ann.endpoint.restart()):
        ann.endpoint = endpoint
        for stranger in (Peer(endpoint, A, BEN), Peer(endpoint, A)):
            assert stranger.poll() is None
            assert stranger.poll(identifier=ann.identifier) is None
            assert stranger.poll(identifier="urn:offer") is None
        assert any(one.name == "message.unauthorized" for one in endpoint.incidents)
        endpoint.pass_time(10.0)
        assert bodies(ann.poll()) == [b"<r1/>"]


@pytest.mark.parametrize("session", ["urn:holdfast:x509:1", "urn:holdfast:saml:1"])
def test_a_party_of_the_same_name_by_another_issuer_does_not_poll(session: str) -> None:
    ann = Peer(Endpoint(), origin=Origin(party=in_session(session, f"{USER}ann")))
    ann.create()
    ann.request(1)
    ann.endpoint.reply(1)
    for endpoint in (ann.endpoint, ann.endpoint.restart()):
        ann.endpoint = endpoint
        for other in (ANN, Origin(party=in_session(f"{session}2", f"{USER}ann"))):
            stranger = Peer(endpoint, A, other)
            assert stranger.poll() is None
            assert stranger.poll(identifier=ann.identifier) is None
            refused = stranger.create("urn:offer-b", "urn:create-b").fault
            assert refused is not None and "another user" in refused.reason
        endpoint.pass_time(10.0)
        assert bodies(ann.poll()) == [b"<r1/>"]


def test_a_user_polls_in_each_of_its_security_sessions() -> None:
    ann = Peer(Endpoint(), origin=Origin(party=in_session("urn:uuid:1", f"{USER}ann")))
    ann.create()
    ann.request(1)
    ann.endpoint.reply(1)
    ann.origin = Origin(party=in_session("urn:uuid:2", f"{USER}ann"))
    assert bodies(ann.poll()) == [b"<r1/>"]


def test_another_user_cannot_have_messages_sent_to_an_address_that_is_taken() -> None:
    endpoint = Endpoint()
    Peer(endpoint, A, ANN).create()
    ben = Peer(endpoint, A, BEN)
    refused = ben.create("urn:offer-b", "urn:create-b").fault
    assert refused is not None
    assert (refused.code, "another user" in refused.reason) == ("CreateSequenceRefused", True)
    ben.address = B
    ben.create(None, "urn:create-b")
    ben.address = A
    answer = ben.request(1)
    assert answer is not None and answer.fault is not None
    assert answer.fault.code == "OnlyAnonymousAddressSupported"


def test_a_one_way_message_is_acknowledged_in_its_answer() -> None:
    peer = Peer(Endpoint())
    peer.create(None)
    answer = peer.ask(sequence=Sequence(peer.identifier, 1), action="urn:a", body=b"<m/>")
    assert answer is not None
    assert answer.acknowledgements[0].ranges == ((1, 1),)


def test_ack_requested_on_a_poll_is_answered() -> None:
    peer = Peer(Endpoint())
    peer.create(None)
    peer.ask(sequence=Sequence(peer.identifier, 1), action="urn:a", body=b"<m/>")
    answer = peer.ask(control=MakeConnection(A.address), ack_requested=(AckRequested(peer.identifier),))
    assert answer is not None
    assert answer.acknowledgements[0].ranges == ((1, 1),)


def test_terminate_sequence_of_the_replies_is_given_at_a_poll_until_it_is_answered() -> None:
    peer = asked_and_answered(1)
    peer.poll()
    peer.acknowledge(1)
    peer.ask(control=TerminateSequence(peer.identifier, 1), message_id="urn:t", reply_to=A)
    peer.endpoint.pass_time(0.0)
    closing = peer.poll()
    assert closing is not None and closing.control == CloseSequence("urn:offer", 1)
    assert peer.poll() is None
    peer.endpoint.pass_time(10.0)
    repeated = peer.poll()
    assert repeated is not None and repeated.message_id == closing.message_id
    peer.ask(control=CloseSequenceResponse("urn:offer"), relates_to=closing.message_id)
    ending = peer.poll()
    assert ending is not None and ending.control == TerminateSequence("urn:offer", 1)
    peer.ask(control=TerminateSequenceResponse("urn:offer"), relates_to=ending.message_id)
    peer.endpoint.pass_time(100.0)
    assert peer.poll() is None


def test_an_end_that_the_destination_decides_waits_for_a_poll_once() -> None:
    peer = Peer(Endpoint())
    peer.create(None)
    peer.endpoint.protocol.end_inbound(peer.identifier, peer.endpoint.now, terminate=True)
    peer.endpoint.settle()
    for _ in range(3):
        peer.endpoint.pass_time(5.0)
    given = peer.poll()
    assert given is not None
    assert isinstance(given.control, TerminateSequence)
    assert peer.poll() is None
    assert not peer.endpoint.transmitted


def test_a_client_without_an_offer_is_asked_for_a_sequence_at_a_poll() -> None:
    peer = Peer(Endpoint())
    peer.create(None)
    peer.request(1)
    peer.endpoint.reply(1)
    for endpoint in (peer.endpoint, peer.endpoint.restart()):
        peer.endpoint = endpoint
        endpoint.pass_time(10.0)
        asked = next(one for one in iter(peer.poll, None) if not isinstance(one.control, Acknowledge))
        assert isinstance(asked.control, CreateSequence)
        assert asked.control.acks_to.address.startswith(f"{HERE}?holdfast=")
        assert asked.reply_to == asked.control.acks_to
    secret = asked.control.acks_to.address.partition("holdfast=")[2]
    peer.origin = Origin(secret=secret, party="address 10.0.0.1")
    peer.ask(control=CreateSequenceResponse("urn:theirs"), relates_to=asked.message_id)
    given = peer.poll()
    assert given is not None
    assert (given.body, given.sequence) == (b"<r1/>", Sequence("urn:theirs", 1))
    peer.acknowledge(1, of="urn:theirs")
    peer.endpoint.pass_time(100.0)
    assert peer.poll() is None


@pytest.mark.parametrize("rm", ["1.0", "1.1"])
def test_rm_1_0_and_1_1_poll_alike(rm: str) -> None:
    peer = Peer(Endpoint(rm))
    peer.create()
    peer.request(1)
    peer.endpoint.reply(1)
    assert bodies(peer.poll()) == [b"<r1/>"]


# --- by the Identifier of a Sequence ------------------------------------------------------------------------------


@pytest.mark.parametrize("identifier", ["urn:offer", "the Sequence of the requests"])
def test_a_poll_for_a_sequence_gets_its_replies(identifier: str) -> None:
    peer = asked_and_answered(1, 2)
    name = identifier if identifier == "urn:offer" else peer.identifier
    assert bodies(peer.poll(identifier=name), peer.poll(identifier=name)) == [b"<r1/>", b"<r2/>"]


def test_a_poll_for_a_sequence_and_an_address_must_match_both() -> None:
    peer = asked_and_answered(1)
    assert peer.poll(identifier="urn:offer", address=B.address) is None or not peer.given[-1].body
    assert bodies(peer.poll(identifier="urn:offer", address=A.address)) == [b"<r1/>"]


def test_an_anonymous_client_polls_for_its_sequence_and_gets_each_late_reply_in_turn() -> None:
    endpoint = Endpoint(reply_patience=0.0)
    peer = Peer(endpoint, ANONYMOUS_EPR)
    peer.create()
    for number in (1, 2):
        peer.ask_nothing = endpoint.request(peer.identifier, number)  # type: ignore[attr-defined]
        endpoint.pass_time(1.0)
        endpoint.reply(number)
    given = [peer.poll(identifier=peer.identifier) for _ in range(3)]
    assert bodies(*given) == [b"<r1/>", b"<r2/>", b"<r1/>"]
    assert [one.message_pending for one in given if one is not None] == [True, True, True]


def test_a_poll_for_a_sequence_without_replies_gets_its_acknowledgement() -> None:
    peer = Peer(Endpoint(), ANONYMOUS_EPR)
    peer.create(None)
    peer.ask(sequence=Sequence(peer.identifier, 1), action="urn:a", body=b"<m/>")
    answer = peer.poll(identifier=peer.identifier)
    assert answer is not None
    assert answer.acknowledgements[0].ranges == ((1, 1),)
    assert peer.poll(identifier="urn:unknown") is None


# --- what a poll must be ------------------------------------------------------------------------------------------


def test_polls_without_a_selection_or_with_an_unknown_one_get_their_faults() -> None:
    peer = asked_and_answered(1)
    missing = peer.ask(control=MakeConnection())
    unknown = peer.ask(control=MakeConnection(A.address, unsupported="{urn:x}y"))
    assert missing is not None and missing.fault is not None and unknown is not None and unknown.fault is not None
    assert (missing.fault.code, missing.fault.code_namespace) == ("MissingSelection", MC_NS)
    assert (unknown.fault.code, unknown.fault.not_understood) == ("UnsupportedSelection", ("{urn:x}y",))
    assert bodies(peer.poll()) == [b"<r1/>"]


# --- bounds -------------------------------------------------------------------------------------------------------


def test_the_messages_that_wait_besides_replies_are_few_and_the_newest() -> None:
    peer = Peer(Endpoint())
    peer.create(None)
    mailboxes = peer.endpoint.protocol.outbound.context.mailboxes
    for number in range(100):
        mailboxes.put(A.address, peer.endpoint.envelope(message_id=f"urn:{number}"))
        mailboxes.put(B.address, peer.endpoint.envelope(message_id=f"urn:{number}"))
    given = [peer.poll() for _ in range(MOST_MESSAGES + 1)]
    assert [one.message_id for one in given if one] == [f"urn:{n}" for n in range(100 - MOST_MESSAGES, 100)]


@pytest.mark.parametrize("offered", ["urn:offer", None])
def test_no_more_replies_wait_than_requests_may_be_open(offered: str | None) -> None:
    peer = Peer(Endpoint(max_open_requests=3))
    peer.create(offered)
    for number in range(1, 10):
        peer.request(number)
        if number == len(peer.endpoint.records()):
            peer.endpoint.reply(number)
    assert 0 < len(peer.endpoint.records()) <= 3


def test_replies_whose_client_no_longer_polls_are_discarded_with_a_report() -> None:
    peer = asked_and_answered(1, 2, inactivity_timeout=100.0, remember_terminated=10.0)
    peer.poll()
    for _ in range(40):
        peer.endpoint.pass_time(10.0)
    assert [one.name for one in peer.endpoint.incidents if one.name == "replies.discarded"] == ["replies.discarded"]
    assert peer.poll() is None
    assert not peer.endpoint.protocol.outbound.outboxes
    for _ in range(30):
        peer.endpoint.pass_time(3600.0)
    assert not list(peer.endpoint.protocol.outbound.context.mailboxes)
    assert not list(peer.endpoint.restart().protocol.outbound.context.mailboxes)


def test_a_client_that_polls_keeps_its_sequence_alive() -> None:
    peer = asked_and_answered(1, inactivity_timeout=100.0)
    for _ in range(10):
        peer.endpoint.pass_time(50.0)
        peer.poll()
    assert b"<r1/>" in bodies(*peer.given)
    assert not peer.endpoint.protocol.inbound.destinations[peer.identifier].is_over


def test_without_a_poll_nothing_is_due_and_no_timer_runs_hot() -> None:
    peer = asked_and_answered(1, 2, 3)
    peer.poll()
    peer.endpoint.pass_time(100.0)
    deadline = peer.endpoint.protocol.deadline()
    assert deadline is None or deadline > peer.endpoint.now
