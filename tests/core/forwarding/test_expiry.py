"""Expiry: what is too old is not sent on, and a requester that waits is told in time, whatever its forwarder does.

What is given up becomes a letter once, its requester is told once, and all else arrives once.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from holdfast.core.events import Incident
from holdfast.core.faults import CREATE_SEQUENCE_REFUSED, SEQUENCE_TERMINATED
from holdfast.core.forwarding import expiry
from holdfast.core.policy import Assurance, ForwardingPolicy, OnExpired, SourcePolicy
from holdfast.core.queues.dead_letters import Origin as LetterOrigin
from holdfast.core.steering import Steering
from tests.support.chain import SERVICE, STEADY, Chain, grants_nothing

UNORDERED = SourcePolicy(retransmission=STEADY, assurance=Assurance.parse("exactly-once"))
IN_ORDER = SourcePolicy(retransmission=STEADY)


def forwarding(sending: SourcePolicy = UNORDERED, **options: Any) -> ForwardingPolicy:
    return ForwardingPolicy(sending=sending, **{"refusals": 3, "patience": 5.0, **options})


@pytest.mark.parametrize("on_expired", OnExpired)
def test_an_expired_message_is_never_sent_and_its_requester_gets_a_fault(on_expired: OnExpired) -> None:
    chain = Chain(policy=forwarding(expires=600.0, on_expired=on_expired))
    chain.settle()
    chain.service.is_up = False
    old = [f"old{number}" for number in range(200)]
    chain.ask(*old, wants_reply=False)
    chain.ask("asked0", "asked1", key="another")
    chain.go(500.0)
    chain.ask("new")
    chain.go(110.0)
    chain.service.is_up = True
    chain.go(300.0)
    assert chain.bodies == ["new"]
    told = dict(chain.replies)
    assert len(chain.replies) == len(told) == 3
    assert [told[f"urn:m:asked{number}"][:14] for number in (0, 1)] == ["fault expired:"] * 2
    assert len(chain.letters) == (202 if on_expired is OnExpired.DEAD_LETTER else 0)
    if chain.letters:
        assert chain.letters[7].origin == LetterOrigin("inbox", 0, 7, "forward/x/0", "expired")
    sequences = {one.sequence.identifier for _, to, one in chain.journeys if to == SERVICE and one.sequence}
    assert len(sequences) == 1, "however many were too old"
    assert chain.forwarder.records.is_empty and chain.outbox.records.is_empty


WAIT = {"all anonymous": {}, "nobody offers": {"offers": False, "forwarder_offers": False}}
"""Requesters that wait for the answer to their request."""


@pytest.mark.parametrize("way", WAIT)
def test_a_requester_that_waits_is_told_within_a_minute_that_the_service_is_away(way: str) -> None:
    chain = Chain(**WAIT[way])
    chain.service.is_up = False
    chain.ask("m0")
    chain.ask("m1", wants_reply=False)
    chain.go(58.0)
    assert chain.replies == [("urn:m:m0", "fault expired: The message expired before it could be forwarded.")]
    chain.service.start()
    chain.go()
    assert chain.bodies == ["m1"] and [letter.record.body for letter in chain.letters] == [b"m0"]


def test_a_requester_with_an_address_waits_as_long_as_the_service_is_away() -> None:
    chain = Chain(listens=(True, False))
    chain.service.is_up = False
    chain.ask("m0")
    chain.go(600.0)
    chain.service.start()
    chain.go(until=lambda: bool(chain.replies))
    assert chain.replies == [("urn:m:m0", "re m0")] and chain.letters == []


@pytest.mark.parametrize("fate", ["its Sequence ended", "its Sequence is forgotten", "it is silent", "it asks again"])
def test_a_request_is_not_sent_on_when_its_requester_has_given_up(fate: str) -> None:
    chain = Chain(policy=ForwardingPolicy(expires=3600.0))
    chain.service.is_up = False
    chain.ask("m0")
    chain.go(40.0)  # it has been told once that there is no reply yet, and asked again
    inbound = chain.broker.protocol.inbound
    (session,) = inbound.destinations.values()
    if fate == "its Sequence ended":
        inbound.fault_received(session, SEQUENCE_TERMINATED, chain.now)
    elif fate == "its Sequence is forgotten":
        inbound._forget(session)
    chain.broker.settle()
    if fate != "it asks again":
        chain.requester.is_up = False
    chain.go(200.0)
    chain.service.start()
    chain.go()
    if fate == "it asks again":
        assert chain.replies == [("urn:m:m0", "re m0")] and chain.bodies == ["m0"]
    else:
        assert chain.bodies == [] and chain.forwarder.records.is_empty
        assert [letter.origin.code for letter in chain.letters if letter.origin] == ["given up"]


def test_what_may_have_been_transmitted_never_expires() -> None:
    chain = Chain(policy=forwarding(expires=60.0))
    chain.ask("m0")
    chain.go(1.0)
    assert chain.bodies == ["m0"]
    chain.service.kill()
    chain.ask("m1")
    chain.go(0.0, until=lambda: any(one.body == b"m1" for _, to, one in chain.journeys if to == SERVICE))
    chain.service.is_up = False
    chain.ask(*(f"late{number}" for number in range(100)))
    chain.go(500.0)
    chain.service.is_up = True
    chain.go(300.0)
    assert "m1" in chain.bodies and len(set(chain.bodies)) == len(chain.bodies)
    assert len(chain.replies) == 102 and chain.forwarder.records.is_empty
    assert len(chain.bodies) + len(chain.letters) == 102


def test_the_expiry_of_the_next_message_wakes_a_waiting_forwarder() -> None:
    chain = Chain(policy=forwarding(expires=3600.0))
    chain.settle()
    chain.service.is_up = False
    chain.ask("m0")
    chain.go(3599.0)
    assert chain.letters == []
    chain.go(2.0)
    assert len(chain.letters) == 1
    assert [one.name for one in chain.broker.incidents if isinstance(one, Incident)].count("messages.expired") == 1


# --- requesters that wait while nothing is sent -----------------------------------------------------------------------

EXPIRED = "fault expired: The message expired before it could be forwarded."
STOPPED = (
    "fault CreateSequenceRefused: The forwarder has stopped until an operator decides: CreateSequenceRefused: not now"
)
POISONED = "fault Poison: The forwarder has stopped until an operator decides: Poison: it cannot be read"


def stopped(**told: Any) -> Chain:
    """A chain whose forwarder has stopped, as its service grants no Sequence."""
    chain = Chain(policy=told.pop("policy", forwarding()), **told)
    chain.service.answers = grants_nothing
    chain.ask("first", wants_reply=False)
    chain.go(100.0)
    assert chain.forwarder.lifecycle.stopped == CREATE_SEQUENCE_REFUSED
    return chain


def suspend(chain: Chain) -> None:
    Steering(chain.broker.protocol).suspend(chain.forwarder, "maintenance")
    chain.broker.settle()


def resume(chain: Chain) -> None:
    chain.service.answers = lambda _envelope: None
    chain.forwarder.resume([*chain.forwarder_choices], chain.now)
    chain.broker.settle()


@pytest.mark.parametrize("way", WAIT)
@pytest.mark.parametrize("expires", [None, 3600.0])
def test_a_stopped_forwarder_answers_each_request_at_once_and_says_why(way: str, expires: float | None) -> None:
    chain = stopped(**WAIT[way], policy=forwarding(expires=expires))
    chain.ask("one")
    chain.go(1.0)
    assert chain.replies == [("urn:m:one", STOPPED)]
    chain.broker.kill()
    chain.go(1.0)
    chain.ask("two")
    chain.go(1.0)
    assert chain.replies[1:] == [("urn:m:two", STOPPED)]
    resume(chain)
    chain.ask("three")
    chain.go()
    assert chain.replies[2:] == [("urn:m:three", "re three")], "each is answered once"
    assert chain.bodies == ["first", "three"], "and none that was answered is executed"
    assert [letter.record.body for letter in chain.letters] == [b"one", b"two"]
    told = [one.detail for one in chain.broker.incidents if one.name == "requests.returned"]
    assert [detail and detail["count"] for detail in told] == [1, 1]
    assert chain.forwarder.records.is_empty


@pytest.mark.parametrize("is_killed", [False, True])
def test_requests_that_wait_when_their_forwarder_stops_are_answered_then(is_killed: bool) -> None:
    chain = Chain(policy=forwarding(patience=20.0))
    chain.service.answers = grants_nothing
    chain.ask("one", "two")
    chain.go(until=lambda: chain.forwarder.lifecycle.unwelcome is not None)
    if is_killed:
        chain.broker.kill()
    chain.go(until=lambda: bool(chain.forwarder.lifecycle.stopped))
    chain.go(1.0)
    assert sorted(chain.replies) == [("urn:m:one", STOPPED), ("urn:m:two", STOPPED)]
    chain.go(200.0)
    assert len(chain.replies) == 2


def test_a_stopped_forwarder_answers_a_request_stored_just_before_a_kill() -> None:
    chain = stopped()
    chain.ask("one")
    chain.go(1.0, until=lambda: len(chain.broker.kept) == 2)
    assert chain.replies == []
    chain.broker.kill()
    chain.go(5.0)
    assert chain.replies == [("urn:m:one", STOPPED)]


def test_one_way_messages_in_front_of_a_request_do_not_keep_its_requester_waiting() -> None:
    chain = Chain(policy=forwarding(IN_ORDER))
    chain.refuse("poison")
    chain.ask("poison", wants_reply=False)
    chain.go(100.0)
    assert chain.forwarder.lifecycle.stopped == "Poison" and chain.forwarder.source is not None
    for number in range(3):
        chain.ask(*(f"{number}.{one}" for one in range(100)), wants_reply=False)
        chain.ask(f"asked{number}")
        chain.go(5.0)
    assert chain.replies == [(f"urn:m:asked{number}", POISONED) for number in range(3)]
    chain.refuse()
    resume(chain)
    chain.go()
    assert sorted(chain.bodies) == sorted(["poison", *(f"{number}.{one}" for number in range(3) for one in range(100))])


def test_what_a_stopped_forwarder_leaves_out_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expiry, "MOST_LEFT_OUT", 5)
    chain = stopped()
    for number in range(9):
        chain.ask(f"{number}", wants_reply=False)
        chain.ask(f"asked{number}")
        chain.go(1.0)
    assert len(chain.replies) == 5 and len(chain.forwarder.records.left_out) == 5
    resume(chain)
    chain.go()
    assert len(chain.replies) == 9 and len(chain.bodies) == 1 + 9 + 4


def test_a_requester_with_an_address_waits_for_an_operator_to_resume_the_forwarder() -> None:
    chain = stopped(listens=(True, False))
    chain.ask("one")
    chain.go(600.0)
    assert chain.replies == []
    resume(chain)
    chain.go()
    assert chain.replies == [("urn:m:one", "re one")]


def test_a_stopped_forwarder_leaves_a_request_to_one_that_still_sends_it() -> None:
    chain = stopped()
    chain.service.answers = lambda _envelope: None
    outbound = chain.broker.protocol.outbound
    outbound.forward("forward/y/0", f"{SERVICE}?y", [*chain.forwarder_choices], chain.broker.queue, 0)
    chain.ask("one")
    chain.go(5.0)
    assert chain.replies == [("urn:m:one", "re one")]


def without_a_connection(chain: Chain) -> None:
    """The request has a number, and never left."""
    chain.ask("zero")
    chain.go(5.0)
    chain.service.is_up = False
    chain.fail = partial(chain.fail, has_left=False)  # type: ignore[method-assign]
    chain.ask("one")
    source = chain.forwarder.source
    assert source is not None
    chain.go(0.9, until=lambda: bool(source.flight.untaken))
    assert source.flight.untaken == [2]
    suspend(chain)


def before_it_is_suspended(chain: Chain) -> None:
    chain.service.is_up = False
    chain.ask("one")
    chain.settle()
    suspend(chain)


def after_it_is_suspended(chain: Chain) -> None:
    chain.settle()
    suspend(chain)
    chain.ask("one")


def before_a_restart(chain: Chain) -> None:
    after_it_is_suspended(chain)
    chain.settle()
    chain.broker.kill()


@pytest.mark.parametrize(
    "asks", [without_a_connection, before_it_is_suspended, after_it_is_suspended, before_a_restart]
)
@pytest.mark.parametrize("way", WAIT)
def test_a_lone_request_in_a_suspended_forwarder_is_answered_in_time(way: str, asks: Callable[[Chain], None]) -> None:
    chain = Chain(**WAIT[way])
    asks(chain)
    told = [("urn:m:zero", "re zero")] if chain.handled else []
    chain.go(40.0)
    assert chain.replies == told
    chain.go(18.0)
    assert chain.replies == [*told, ("urn:m:one", EXPIRED)]
    chain.go(200.0)
    assert chain.replies == [*told, ("urn:m:one", EXPIRED)]


def test_a_suspended_forwarder_answers_requests_behind_one_way_messages_in_time() -> None:
    chain = Chain()
    chain.settle()
    suspend(chain)
    for number in range(3):
        chain.ask(*(f"{number}.{one}" for one in range(100)), wants_reply=False)
        chain.ask(f"asked{number}")
        chain.go(10.0)
    assert chain.replies == []
    chain.go(48.0)
    assert chain.replies == [(f"urn:m:asked{number}", EXPIRED) for number in range(3)]
    resume(chain)
    chain.go()
    assert len(chain.bodies) == 300 and len(chain.replies) == 3


# --- and while its destination is away, whatever else there is to do --------------------------------------------------


def test_a_restart_prolongs_no_wait_for_a_service_that_is_away() -> None:
    chain = Chain()
    chain.service.is_up = False
    chain.ask("one")
    chain.settle()
    chain.broker.kill()
    chain.go(58.0)
    assert chain.replies == [("urn:m:one", EXPIRED)]


def test_every_session_answers_in_time_however_many_wait_for_the_destination() -> None:
    chain = Chain(sessions=64)
    chain.service.is_up = False
    chain.ask("first", key="first")
    chain.go(300.0)
    bodies = [f"m{number}" for number in range(40)]
    for body in bodies:
        chain.ask(body, key=body)
    chain.go(58.0)
    assert sorted(chain.replies) == sorted((f"urn:m:{body}", EXPIRED) for body in ["first", *bodies])


def test_a_requester_is_answered_in_time_while_its_service_grants_no_sequence() -> None:
    chain = Chain()
    chain.service.answers = grants_nothing
    chain.ask("one")
    chain.go(400.0)
    chain.ask("two")
    chain.go(58.0)
    assert not chain.forwarder.lifecycle.stopped
    assert chain.replies == [("urn:m:one", EXPIRED), ("urn:m:two", EXPIRED)]
