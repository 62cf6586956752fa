"""Authority: what a peer says of a Sequence counts only if it is the Sequence's own peer.

Covers core/origin.py.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from asked import Endpoint, code
from sending import NEW, TO, Sending

from holdfast.core.events import Incident, Transmit
from holdfast.core.messages import (
    ANONYMOUS_EPR,
    Acknowledge,
    AckRequested,
    CloseSequence,
    Control,
    CreateSequence,
    EndpointReference,
    Envelope,
    Fault,
    Offer,
    Sequence,
    SequenceAcknowledgement,
    TerminateSequence,
    TerminateSequenceResponse,
)
from holdfast.core.origin import Origin, secret_in, with_secret
from holdfast.core.receiving.inbound_sequences import record_of
from holdfast.core.records import Batch, Record
from holdfast.core.rm_source.source import RMSource
from holdfast.core.states.inbound import DestinationState
from holdfast.core.states.outbound import SourceState

ALICE, MALLORY = "certificate CN=alice by CN=ca", "certificate CN=mallory by CN=ca"
OTHER = "http://other/"
LOCAL = "http://here/answers"

WORDS: dict[str, dict[str, Any]] = {
    "acknowledgement": {"control": Acknowledge(), "acknowledgements": (SequenceAcknowledgement("urn:s", ((1, 2),)),)},
    "Nack": {"control": Acknowledge(), "acknowledgements": (SequenceAcknowledgement("urn:s", nacks=(1,)),)},
    "SequenceTerminated": {"fault": Fault("SequenceTerminated", "over", is_rm=True, identifier="urn:s")},
    "UnknownSequence": {"fault": Fault("UnknownSequence", "gone", is_rm=True, identifier="urn:s")},
    "SequenceClosed": {"fault": Fault("SequenceClosed", "closed", is_rm=True, identifier="urn:s")},
    "CloseSequence": {"control": CloseSequence("urn:s")},
    "TerminateSequence": {"control": TerminateSequence("urn:s")},
    "TerminateSequenceResponse": {"control": TerminateSequenceResponse("urn:s")},
}


def opened(local: str = "anonymous") -> tuple[Sending, RMSource, list[Transmit]]:
    """A Sequence urn:s with two messages on their way, and what is on its way."""
    sending = Sending(local=local, initial_window=2)
    outbox = sending.open()
    sending.submit(outbox, "1", "2")
    (create,) = sending.take()
    sending.grant(create, "urn:s")
    assert outbox.source is not None
    return sending, outbox.source, sending.take()


def say(sending: Sending, origin: Origin, **what: Any) -> None:
    envelope = Envelope(NEW.soap, NEW.addressing, NEW.rm, **what)
    sending.protocol.receive(envelope, object(), sending.now, origin=origin)
    sending.settle()


def ignored(sending: Sending) -> list[Incident]:
    return [one for one in sending.told if isinstance(one, Incident) and one.name == "statement.unauthorized"]


def is_untouched(source: RMSource) -> bool:
    return source.state is SourceState.CREATED and not len(source.acknowledged) and set(source.flight) == {1, 2}


@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize("local", ["anonymous", LOCAL])
def test_what_a_stranger_says_of_a_sequence_at_the_listener_does_not_count(word: str, local: str) -> None:
    sending, source, _ = opened(local)
    for origin in (Origin(), Origin(party="address 10.0.0.9"), Origin(secret="guess"), Origin(party=MALLORY)):
        say(sending, origin, **WORDS[word])
    assert is_untouched(source)
    assert len(ignored(sending)) == 4


@pytest.mark.parametrize("word", WORDS)
def test_nor_does_what_another_destination_says_of_it_in_its_own_answer(word: str) -> None:
    sending, source, _ = opened()
    other = sending.open("b", OTHER)
    sending.submit(other, "x")
    (create,) = sending.take()
    sending.grant(create, "urn:other")
    (message,) = sending.take()
    sending.answer(message, **WORDS[word])
    assert is_untouched(source)
    assert ignored(sending)


@pytest.mark.parametrize("local", ["anonymous", LOCAL])
def test_its_destination_says_it_in_any_answer_to_what_went_to_its_address(local: str) -> None:
    sending, source, _ = opened(local)
    second = sending.open("b")
    sending.submit(second, "x")
    (create,) = sending.take()
    sending.grant(create, "urn:another of the same destination")
    (message,) = sending.take()
    sending.answer(message, **WORDS["acknowledgement"])
    assert list(source.acknowledged) == [(1, 2)]


def test_a_destination_with_an_address_to_send_to_says_it_there_with_the_secret() -> None:
    sending, source, _ = opened(LOCAL)
    assert source.secret and source.secret not in (source.identifier, source.local_id)
    say(sending, Origin(secret=source.secret), **WORDS["acknowledgement"])
    assert list(source.acknowledged) == [(1, 2)] and not ignored(sending)


def test_every_address_that_a_peer_is_told_has_the_secret_and_each_peer_has_its_own() -> None:
    sending = Sending(local=LOCAL, initial_window=1)
    for key, to in (("a", TO), ("b", OTHER), ("c", TO)):
        outbox = sending.open(key, to)
        outbox.lifecycle.choices = [(NEW, True)]
        sending.submit(outbox, "1", wants_reply=True)
    creating = sending.take()
    secrets = []
    for sent in creating:
        control = sent.envelope.control
        assert isinstance(control, CreateSequence) and control.offer is not None
        assert sent.envelope.reply_to == control.acks_to == control.offer.endpoint
        secrets.append(secret_in(control.acks_to.address))
        sending.grant(sent, f"urn:s:{sent.source}")
    assert secrets[0] == secrets[2] != secrets[1] and all(secrets)
    for sent in sending.take():
        assert sent.envelope.reply_to is not None
        assert secret_in(sent.envelope.reply_to.address) == secrets[sent.to == OTHER]


def test_the_secret_survives_a_restart() -> None:
    sending, source, _ = opened(LOCAL)
    again = Sending(sending.store, local=LOCAL)
    (outbox,) = again.protocol.outbound.outboxes.values()
    assert outbox.source is not None and outbox.source.secret == source.secret


def test_a_secret_is_in_use_as_long_as_its_peer_may_reply_at_whatever_address() -> None:
    """Only then may a message at that address be larger than others."""
    sending, source, _ = opened(LOCAL)
    again = Sending(sending.store, local=LOCAL)
    for one in (sending, again):
        creation = one.protocol.outbound.creation
        assert creation.has_given(source.secret) and not creation.has_given(source.secret[:-1])
    outbound = again.protocol.outbound
    (outbox,) = outbound.outboxes.values()
    earlier = outbox.to
    outbound.registry.redirect(outbox, OTHER)
    outbound.registry.redirected([str(earlier)])
    assert outbound.creation.has_given(source.secret)
    outbound.creation.leave(OTHER)
    assert not outbound.creation.has_given(source.secret)


def test_a_sequence_without_a_secret_hears_its_peer_only_at_a_listener() -> None:
    for local, heard in ((LOCAL, [(1, 2)]), ("anonymous", [])):
        sending, source, _ = opened(local)
        source.secret = ""
        say(sending, Origin(party="address 10.0.0.9"), **WORDS["acknowledgement"])
        assert list(source.acknowledged) == heard


def test_a_reply_counts_only_from_the_destination_that_has_the_request() -> None:
    sending = Sending(local=LOCAL, initial_window=1)
    outbox = sending.open()
    sending.submit(outbox, "1", wants_reply=True)
    (create,) = sending.take()
    sending.grant(create, "urn:s")
    (request,) = sending.take()
    source = outbox.source
    assert source is not None

    def reply(number: int, origin: Origin) -> None:
        control = CreateSequence(ANONYMOUS_EPR)
        say(sending, origin, control=control, message_id=f"urn:create:{number}")
        identifier = list(sending.protocol.inbound.destinations)[-1]
        relates_to = request.envelope.message_id
        say(sending, origin, sequence=Sequence(identifier, 1), action="urn:reply", relates_to=relates_to, body=b"<r/>")

    reply(1, Origin(party="address 10.0.0.9"))
    assert 1 in source.waiting.unreplied
    reply(2, Origin(secret=source.secret))
    assert 1 not in source.waiting.unreplied and 1 in source.acknowledged


@pytest.mark.parametrize(
    ("origin", "heard"),
    [
        (Origin(party=ALICE), True),
        (Origin(party=MALLORY), False),
        (Origin(), False),
        (Origin(address=OTHER), False),
    ],
)
def test_replies_are_acknowledged_by_who_asked(origin: Origin, heard: bool) -> None:
    endpoint = Endpoint()
    identifier = granted(endpoint, ALICE, offer=Offer("urn:o"))
    (outbox,) = endpoint.protocol.outbound.outboxes.values()
    assert endpoint.protocol.authority.may_speak(outbox, origin) is heard
    assert not endpoint.protocol.authority.may_speak(outbox, Origin(party=MALLORY, names=(identifier,)))


@pytest.mark.parametrize(
    ("origin", "heard"),
    [
        (Origin(party="address 10.0.0.1"), True),
        (Origin(party="address 10.0.0.9"), False),
        (Origin(party="address 10.0.0.9", names=("urn:d1",)), True),
        (Origin(party="address 10.0.0.9", names=("urn:d2",)), False),
    ],
)
def test_without_a_certificate_by_who_names_its_sequence_or_has_its_network_address(
    origin: Origin, heard: bool
) -> None:
    endpoint = Endpoint()
    assert granted(endpoint, "address 10.0.0.1", offer=Offer("urn:o")) == "urn:d1"
    (outbox,) = endpoint.protocol.outbound.outboxes.values()
    assert endpoint.protocol.authority.may_speak(outbox, origin) is heard


CLIENT = EndpointReference("http://client/")
ACKS = EndpointReference("http://client/acks")
ADDRESS = "address 10.0.0.1"


def waiting_reply(party: str) -> Endpoint:
    """A reply to urn:d1 waits for CLIENT, which does not answer, and that Sequence has been forgotten."""
    endpoint = Endpoint(allows=lambda _address: True)
    identifier = granted(endpoint, party, ACKS, offer=Offer("urn:o", CLIENT))
    destination = endpoint.protocol.inbound.destinations[identifier]
    request = {"sequence": Sequence(identifier, 1), "action": "urn:a", "body": b"<m/>", "reply_to": CLIENT}
    told(endpoint, Origin(party=party), **request)
    record = record_of(destination, endpoint.envelope(message_id="urn:m", **request), True, endpoint.now)
    endpoint.protocol.replies.reply(record, Record("", 0, "urn:r", b"<r/>", endpoint.now), endpoint.now)
    endpoint.settle()
    told(endpoint, Origin(party=party), TerminateSequence(identifier))
    endpoint.now += endpoint.policy.remember_terminated + 1.0
    endpoint.protocol.pump(endpoint.now)
    endpoint.settle()
    assert not endpoint.protocol.inbound.destinations
    return endpoint


FORGOTTEN: list[tuple[str, Origin, bool]] = [
    (ALICE, Origin(party=ALICE), True),
    (ALICE, Origin(party=MALLORY), False),
    (ALICE, Origin(party=MALLORY, names=("urn:d1",)), False),
    (ALICE, Origin(), False),
    (ALICE, Origin(address="http://client/"), True),
    (ALICE, Origin(address="http://client/acks"), True),
    (ALICE, Origin(address=OTHER), False),
    (ADDRESS, Origin(party=ADDRESS), True),
    (ADDRESS, Origin(party="address 10.0.0.9"), False),
    (ADDRESS, Origin(party="address 10.0.0.9", names=("urn:d1",)), True),
    (ADDRESS, Origin(party="address 10.0.0.9", names=("urn:d2",)), False),
    (ADDRESS, Origin(), False),
    ("", Origin(), False),
    ("", Origin(party=MALLORY), False),
    ("", Origin(names=("urn:d1",)), True),
    ("", Origin(address="http://client/acks"), True),
]


@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize(("party", "origin", "heard"), FORGOTTEN)
def test_replies_of_a_forgotten_sequence_are_still_acknowledged_by_who_asked_only(
    party: str, origin: Origin, heard: bool, is_restarted: bool
) -> None:
    endpoint = waiting_reply(party)
    if is_restarted:
        endpoint = endpoint.restart()
    (outbox,) = endpoint.protocol.outbound.outboxes.values()
    assert outbox.source is not None and not outbox.records.is_empty
    acknowledgement = SequenceAcknowledgement("urn:o", ((1, 1),))
    envelope = endpoint.envelope(control=Acknowledge(), acknowledgements=(acknowledgement,))
    if origin.address:
        sent = Transmit(origin.address, endpoint.envelope(control=Acknowledge()))
        endpoint.protocol.received(sent, envelope, endpoint.now)
    else:
        for name in origin.names:
            envelope.ack_requested += (AckRequested(name),)
        endpoint.protocol.receive(envelope, object(), endpoint.now, origin=replace(origin, names=()))
    endpoint.settle()
    assert len(outbox.source.acknowledged) == heard
    ignored = [one for one in endpoint.incidents if one.name == "statement.unauthorized"]
    assert len(ignored) == (not heard)


def forget_requesters(endpoint: Endpoint) -> None:
    """Leave the states that a version wrote which saved no requesters."""
    states = endpoint.store.load().sequences
    assert [state.pop("requester") for state in states.values() if state["role"] == "source"]
    endpoint.store.commit(Batch(sequences={**states}))


@pytest.mark.parametrize(
    ("origin", "heard"),
    [(Origin(party=ALICE), False), (Origin(), False), (Origin(address="http://client/"), True)],
)
def test_of_a_store_without_requesters_only_the_address_of_the_replies_counts(origin: Origin, heard: bool) -> None:
    endpoint = waiting_reply(ALICE)
    forget_requesters(endpoint)
    endpoint = endpoint.restart()
    (outbox,) = endpoint.protocol.outbound.outboxes.values()
    assert endpoint.protocol.authority.may_speak(outbox, origin) is heard


def test_a_store_without_requesters_learns_them_while_their_sequences_are_known() -> None:
    endpoint = Endpoint(allows=lambda _address: True)
    granted(endpoint, ALICE, ACKS, offer=Offer("urn:o", CLIENT))
    forget_requesters(endpoint)
    endpoint = endpoint.restart()
    (outbox,) = endpoint.protocol.outbound.outboxes.values()
    assert outbox.source is not None
    assert outbox.source.to_state()["requester"] == [ALICE, ACKS.address, "urn:d1"]


def granted(endpoint: Endpoint, party: str, acks_to: EndpointReference = ANONYMOUS_EPR, **fields: Any) -> str:
    control = CreateSequence(acks_to, **fields)
    exchange = object()
    envelope = endpoint.envelope(control=control, message_id="urn:c", to="http://d/")
    endpoint.protocol.receive(envelope, exchange, endpoint.now, origin=Origin(party=party))
    endpoint.settle()
    return list(endpoint.protocol.inbound.destinations)[-1]


def told(endpoint: Endpoint, origin: Origin, control: Control | None = None, **fields: Any) -> Envelope | None:
    exchange = object()
    envelope = endpoint.envelope(control=control, message_id="urn:m", **fields)
    endpoint.protocol.receive(envelope, exchange, endpoint.now, origin=origin)
    endpoint.settle()
    return endpoint.answers[exchange]


@pytest.mark.parametrize("what", ["close", "terminate", "message", "fault"])
def test_a_sequence_of_a_certificate_s_owner_is_used_and_ended_by_nobody_else(what: str) -> None:
    endpoint = Endpoint()
    identifier = granted(endpoint, ALICE)
    said: dict[str, dict[str, Any]] = {
        "close": {"control": CloseSequence(identifier)},
        "terminate": {"control": TerminateSequence(identifier)},
        "message": {"sequence": Sequence(identifier, 1), "action": "urn:a", "body": b"<m/>"},
        "fault": {"fault": Fault("SequenceTerminated", "over", is_rm=True, identifier=identifier)},
    }
    destination = endpoint.protocol.inbound.destinations[identifier]
    for origin in (Origin(party=MALLORY), Origin(party="address 10.0.0.9"), Origin(), Origin(address=OTHER)):
        assert code(told(endpoint, origin, **said[what])) == "UnknownSequence"
        assert destination.state is DestinationState.CREATED and destination.accepted.count == 0
    answer = told(endpoint, Origin(party=ALICE), **said[what])
    assert answer is None or answer.fault is None


def test_a_secret_is_found_in_a_path_and_in_an_address_that_has_a_query_already() -> None:
    assert secret_in("/answers?holdfast=abc") == "abc"
    assert secret_in(with_secret("http://here/?a=b", "abc")) == "abc"
    assert secret_in("/answers?aholdfast=abc") == secret_in("/holdfast=abc") == secret_in("/") == ""
