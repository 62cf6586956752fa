"""Requests and replies through a forwarder: each requester gets its one reply, whoever is killed and whenever."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from holdfast.core.events import Stopped
from holdfast.core.messages import Envelope, Fault, Sequence
from holdfast.core.policy import Assurance, ForwardingPolicy, SourcePolicy
from holdfast.core.versions import Versions
from holdfast.store import MemoryStore
from tests.support.chain import BROKER, SERVICE, STEADY, Chain, echo

WAYS: dict[str, dict[str, Any]] = {
    "all anonymous": {},
    "the requester offers nothing": {"offers": False},
    "the forwarder offers nothing": {"forwarder_offers": False},
    "nobody offers": {"offers": False, "forwarder_offers": False},
    "the requester listens": {"listens": (True, False)},
    "both listen": {"listens": (True, True)},
    "1.0": {"versions": Versions("1.0")},
}

NO_REPLY = "fault NoReply: The service received the request and sent no reply."


@pytest.mark.parametrize("way", WAYS)
def test_a_reply_comes_back_to_who_asked_in_whatever_way_the_two_speak(way: str) -> None:
    chain = Chain(**WAYS[way])
    chain.ask("one", "two", "three")
    chain.go()
    assert sorted(chain.replies) == [(f"urn:m:{body}", f"re {body}") for body in ("one", "three", "two")]
    assert chain.outbox.is_empty and chain.forwarder.is_empty
    assert [record.body for record in chain.broker.kept] == [b"one", b"two", b"three"], "replies are in no queue"


@pytest.mark.parametrize("victim", ["broker", "service", "requester"])
@pytest.mark.parametrize("way", WAYS)
def test_whoever_is_killed_at_any_step_each_requester_gets_exactly_one_reply(way: str, victim: str) -> None:
    step = 0
    while True:
        step += 1
        chain = Chain(**WAYS[way])
        party = getattr(chain, victim)
        party.die_at = party.events + step + (victim == "requester")  # what it asks for is durable first
        chain.ask("one", "two")
        chain.go(400.0)
        assert sorted(chain.replies) == [("urn:m:one", "re one"), ("urn:m:two", "re two")], (way, step)
        assert chain.outbox.is_empty and chain.forwarder.is_empty, (way, step)
        if party.run == 1:
            break
    assert step > 10


def requests_to_the_service(chain: Chain) -> list[Envelope]:
    return [sent for _, to, sent in chain.journeys if to == SERVICE and sent.sequence is not None]


def test_a_forwarded_request_has_a_messageid_of_its_own_the_same_after_a_crash_and_one_way_messages_keep_theirs() -> (
    None
):
    chain = Chain()
    chain.ask("one", message_id="urn:the-same")
    chain.ask("two", message_id="urn:the-same", key="another")
    chain.ask("three", wants_reply=False, message_id="urn:mine")
    chain.service.is_up = False
    chain.go(10.0)
    chain.service.is_up = True
    chain.go(until=lambda: len(requests_to_the_service(chain)) >= 3)
    chain.broker.kill()
    chain.go()
    by_body: dict[bytes, set[str | None]] = {}
    for sent in requests_to_the_service(chain):
        by_body.setdefault(sent.body, set()).add(sent.message_id)
    assert by_body.pop(b"three") == {"urn:mine"}
    (one,), (two,) = by_body.values()
    assert one != two and all(name is not None and UUID(name).version == 8 for name in (one, two))
    assert all(chain.requester.protocol.outbound.by_identifier.keys().isdisjoint(name or "") for name in (one, two))
    assert sorted(chain.replies) == [("urn:the-same", "re one"), ("urn:the-same", "re two")]


@pytest.mark.parametrize("forwarder_offers", [True, False])
@pytest.mark.parametrize("reply", [echo, lambda _record: None])
def test_a_request_that_is_not_in_memory_is_read_before_its_reply_is_taken(forwarder_offers: bool, reply: Any) -> None:
    chain = Chain(forwarder_offers=forwarder_offers, handler=reply)
    chain.ask("one")
    chain.go(until=lambda: bool(chain.handled))
    chain.forwarder.here.clear()
    reads = chain.broker.reads
    chain.go()
    assert chain.broker.reads > reads
    assert chain.replies == [("urn:m:one", "re one" if reply is echo else NO_REPLY)]
    assert chain.outbox.is_empty and chain.forwarder.is_empty


@pytest.mark.parametrize("way", [way for way in WAYS if way != "both listen"])
def test_a_request_that_the_service_does_not_answer_is_answered_with_a_fault(way: str) -> None:
    """An acknowledgement alone would be no answer: Metro takes it for the reply, .NET ends its call."""
    chain = Chain(**WAYS[way], handler=lambda _record: None)
    chain.ask("one")
    chain.go()
    assert chain.replies == [("urn:m:one", NO_REPLY)]
    assert chain.outbox.is_empty and chain.forwarder.is_empty
    (told,) = [one for one in chain.broker.incidents if one.level == "warning"]
    assert (told.name, told.detail["forwarder"]) == ("request without a reply", "forward/x/0")


@pytest.mark.parametrize("forwarder_offers", [True, False])
@pytest.mark.parametrize("soap", ["1.1", "1.2"])
def test_a_fault_as_reply_goes_back_as_one_and_as_one_of_the_requesters_own_soap(
    forwarder_offers: bool, soap: str
) -> None:
    chain = Chain(forwarder_offers=forwarder_offers, versions=Versions("1.1", soap=soap))
    chain.choices[:] = [(Versions("1.1"), True)]
    chain.requester.kill()
    chain.service.write = as_fault
    chain.settle()
    chain.ask("one")
    chain.go()
    # What a service wrote is passed on as it is, if the requester can read it.
    assert chain.replies == [("urn:m:one", "re one" if soap == "1.2" else "fault Broken: it broke")]
    assert chain.forwarder.is_empty


def as_fault(envelope: Envelope) -> None:
    """A service's replies are faults."""
    if envelope.body:
        envelope.fault = Fault("Broken", "it broke")


def test_a_reply_to_a_requester_whose_sequence_is_gone_is_dropped_and_told() -> None:
    chain = Chain()
    chain.ask("one")
    chain.go(until=lambda: bool(chain.handled))
    (identifier,) = (one for one in chain.broker.protocol.inbound.destinations if one != chain.forwarder.source.offer)
    chain.requester.is_up = False
    chain.broker.protocol.inbound._end_memory(chain.broker.protocol.inbound.destinations[identifier], chain.now)
    chain.go()
    told = [(one.name, one.identifier, one.number) for one in chain.broker.incidents if one.level == "warning"]
    assert told == [("reply unwanted", identifier, 1)]
    assert chain.forwarder.is_empty


@pytest.mark.parametrize("assurance", ["at-least-once", "exactly-once"])
def test_requests_of_a_lost_sequence_are_asked_again_in_a_new_one_as_the_assurance_allows(assurance: str) -> None:
    sending = SourcePolicy(retransmission=STEADY, assurance=Assurance.parse(assurance))
    chain = Chain(policy=ForwardingPolicy(sending=sending))
    chain.ask("one")
    chain.go(until=lambda: bool(requests_to_the_service(chain)))
    chain.service.store = MemoryStore()  # it has forgotten everything
    chain.service.kill()
    chain.go()
    stopped = [one for one in chain.broker.told if isinstance(one, Stopped)]
    if assurance == "at-least-once":
        sent = {(one.sequence.identifier, one.message_id) for one in requests_to_the_service(chain) if one.sequence}
        assert len(sent) == 2 and len({message_id for _, message_id in sent}) == 1
        assert chain.replies == [("urn:m:one", "re one")] and not stopped
    else:
        assert chain.replies == [] and [one.key for one in stopped] == ["forward/x/0"]
        chain.broker.protocol.outbound.resume(chain.forwarder, [*chain.forwarder_choices], chain.now)
        chain.go()
        assert chain.replies == [("urn:m:one", "re one")]


def test_a_reply_waits_for_no_other_and_what_answers_nothing_is_acknowledged_and_dropped() -> None:
    chain = Chain(versions=Versions("1.1"))
    chain.ask("one", "two")
    chain.service.is_handling = False
    chain.go(5.0)
    source = chain.forwarder.source
    assert source is not None and source.offer is not None
    offered = chain.broker.protocol.inbound.destinations[source.offer]
    assert len(source.unreplied) == 2 and chain.replies == []
    (_, second) = source.unreplied.values()

    def come(number: int, relates_to: str) -> None:
        versions = chain.versions
        envelope = Envelope(versions.soap, versions.addressing, versions.rm, action="urn:reply", body=b"early")
        envelope.sequence, envelope.relates_to = Sequence(offered.identifier, number), relates_to
        chain.broker.protocol.receive(envelope, None, chain.now)
        chain.broker.settle()
        chain.go(5.0)

    come(7, second)
    assert chain.replies == [("urn:m:two", "early")], "the six before it are not here"
    come(8, "urn:nobody's")
    come(9, second)
    assert chain.replies == [("urn:m:two", "early")]
    assert [number for number in (7, 8, 9) if number in offered.acknowledged] == [7, 8, 9]
    names = [one.name for one in chain.broker.incidents if one.number in (8, 9)]
    assert names == ["unasked message dropped"] * 2
    assert len(chain.broker.kept) == 2
    chain.service.is_handling = True
    chain.service.kill()
    chain.go()
    assert sorted(chain.replies) == [("urn:m:one", "re one"), ("urn:m:two", "early")]


def test_a_reply_that_takes_its_time_finds_its_requester_who_asks_again_meanwhile() -> None:
    chain = Chain(offers=False)
    chain.service.is_handling = False
    chain.ask("one")
    chain.go(400.0)
    asked = [sent for _, to, sent in chain.journeys if to == BROKER and sent.sequence is not None]
    assert len(asked) > 5 and chain.replies == []
    chain.service.is_handling = True
    chain.service.kill()
    chain.go()
    assert chain.replies == [("urn:m:one", "re one")]
    assert len(chain.handled) == 1
