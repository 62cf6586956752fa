"""Requests and replies through a forwarder: each requester gets its one reply, whoever is killed and whenever.

Covers core/sending/outboxes/forwarder_state.py and core/sending/outboxes/outbox.py.
"""

from __future__ import annotations

from functools import partial
from typing import Any
from uuid import UUID

import pytest

from holdfast.core.events import Stopped, Transmit
from holdfast.core.faults import addressing_fault
from holdfast.core.messages import (
    ANONYMOUS_EPR,
    NONE_EPR,
    CreateSequence,
    CreateSequenceResponse,
    Envelope,
    Expects,
    Fault,
    Offer,
    Routed,
    Sequence,
)
from holdfast.core.policy import Assurance, ForwardingPolicy, SourcePolicy
from holdfast.core.versions import Addressing, Versions, newest_rm
from holdfast.store import MemoryStore
from tests.support.chain import BROKER, SERVICE, STEADY, WAYS, Chain, Journey, echo

IN_DOUBT = "fault InDoubt: The session of the service ended before it replied: it may have executed the request."
NO_REPLY = "fault NoReply: The service received the request and sent no reply."


@pytest.mark.parametrize("way", WAYS)
def test_a_reply_comes_back_to_who_asked_in_whatever_way_the_two_speak(way: str) -> None:
    chain = Chain(**WAYS[way])
    chain.ask("one", "two", "three")
    chain.go()
    assert sorted(chain.replies) == [(f"urn:m:{body}", f"re {body}") for body in ("one", "three", "two")]
    assert chain.outbox.records.is_empty and chain.forwarder.records.is_empty
    assert [record.body for record in chain.broker.kept] == [b"one", b"two", b"three"], "replies are in no queue"


@pytest.mark.parametrize(
    "victim", ["broker", *(pytest.param(one, marks=pytest.mark.nightly) for one in ("service", "requester"))]
)
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
        assert chain.outbox.records.is_empty and chain.forwarder.records.is_empty, (way, step)
        if party.run == 1:
            break
    assert step > 10


def requests_to_the_service(chain: Chain) -> list[Envelope]:
    return [sent for _, to, sent in chain.journeys if to == SERVICE and sent.sequence is not None]


def test_a_forwarded_request_has_its_own_messageid_also_after_a_crash() -> None:
    chain = Chain(policy=ForwardingPolicy(expires=3600.0))
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
    assert all(not chain.requester.protocol.outbound.sequences.has(name or "") for name in (one, two))
    assert sorted(chain.replies) == [("urn:the-same", "re one"), ("urn:the-same", "re two")]


@pytest.mark.parametrize("forwarder_offers", [True, False])
@pytest.mark.parametrize("reply", [echo, lambda _record: None])
def test_a_request_that_is_not_in_memory_is_read_before_its_reply_is_taken(forwarder_offers: bool, reply: Any) -> None:
    chain = Chain(forwarder_offers=forwarder_offers, handler=reply)
    chain.ask("one")
    chain.go(until=lambda: bool(chain.handled))
    chain.forwarder.records.here.release()
    reads = chain.broker.reads
    chain.go()
    assert chain.broker.reads > reads
    assert chain.replies == [("urn:m:one", "re one" if reply is echo else NO_REPLY)]
    assert chain.outbox.records.is_empty and chain.forwarder.records.is_empty


@pytest.mark.parametrize("way", WAYS)
def test_a_request_that_the_service_does_not_answer_is_answered_with_a_fault(way: str) -> None:
    """An acknowledgement alone would be no answer: Metro takes it for the reply, .NET ends its call."""
    chain = Chain(**WAYS[way], handler=lambda _record: None)
    chain.ask("one")
    chain.go(chain.policy.patience + 60.0)  # where replies go to an address, one may still come
    assert chain.replies == [("urn:m:one", NO_REPLY)]
    assert chain.outbox.records.is_empty and chain.forwarder.records.is_empty
    (told,) = [one for one in chain.broker.incidents if one.level == "warning"]
    assert (told.name, told.detail["forwarder"]) == ("request.no_reply", "forward/x/0")


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
    assert chain.forwarder.records.is_empty


def as_fault(envelope: Envelope) -> None:
    """A service's replies are faults."""
    if envelope.body:
        envelope.fault = Fault("Broken", "it broke")


def as_addressing_fault(envelope: Envelope) -> None:
    if envelope.body:
        envelope.fault = addressing_fault("ActionNotSupported", "no such operation")
        envelope.action = WSA_FAULT[envelope.addressing]


WSA_FAULT = {
    Addressing.V2003_03: "http://schemas.xmlsoap.org/ws/2003/03/addressing/fault",
    Addressing.V2004_03: "http://schemas.xmlsoap.org/ws/2004/03/addressing/fault",
    Addressing.V2004_08: "http://schemas.xmlsoap.org/ws/2004/08/addressing/fault",
    Addressing.V2005_08: "http://www.w3.org/2005/08/addressing/fault",
}
SPEAKS = {addressing: Versions(newest_rm(addressing), addressing) for addressing in Addressing}


def between(requester: Addressing, service: Addressing, **told: Any) -> Chain:
    """A chain whose requester and service speak these versions of WS-Addressing, and the same SOAP."""
    chain = Chain(versions=SPEAKS[service], **told)
    chain.choices[:] = [(SPEAKS[requester], True)]
    chain.requester.kill()
    chain.settle()
    return chain


each_pair = pytest.mark.parametrize(
    ("requester", "service"), [(requester, service) for requester in Addressing for service in Addressing], ids=str
)


@each_pair
def test_a_fault_of_the_services_addressing_goes_back_in_that_of_the_requester(
    requester: Addressing, service: Addressing
) -> None:
    chain = between(requester, service)
    chain.service.write = as_addressing_fault
    chain.ask("one")
    chain.go()
    (reply,) = chain.requester.kept
    if requester is service:
        assert (reply.action, reply.body) == (WSA_FAULT[service], b"re one"), "what a service wrote is passed on"
    else:
        assert reply.action == f"urn:fault:{requester.value}"
        assert reply.body == b"fault ActionNotSupported: no such operation"
    assert chain.forwarder.records.is_empty


@each_pair
@pytest.mark.parametrize("fate", ["refused", "no reply", "expired", "no reply, restarted"])
def test_a_fault_that_a_forwarder_tells_is_in_the_requesters_addressing(
    requester: Addressing, service: Addressing, fate: str
) -> None:
    chain = between(requester, service, handler=lambda _record: None)
    if fate == "refused":
        chain.refuse("one")
    chain.service.is_up = fate != "expired"
    chain.ask("one")
    if fate == "no reply, restarted":
        chain.go(until=lambda: bool(chain.broker.kept))
        chain.broker.kill()
    chain.go()
    (reply,) = chain.requester.kept
    assert reply.action == f"urn:fault:{requester.value}"


def test_a_reply_to_a_requester_whose_sequence_is_gone_is_dropped_and_told() -> None:
    chain = Chain()
    chain.ask("one")
    chain.go(until=lambda: bool(chain.handled))
    (identifier,) = (one for one in chain.broker.protocol.inbound.destinations if one != chain.forwarder.source.offer)
    chain.requester.is_up = False
    chain.broker.protocol.inbound._end_memory(chain.broker.protocol.inbound.destinations[identifier], chain.now)
    chain.go()
    told = [(one.name, one.identifier, one.number) for one in chain.broker.incidents if one.level == "warning"]
    assert told == [("reply.dropped", identifier, 1)]
    assert chain.forwarder.records.is_empty


@pytest.mark.parametrize("assurance", ["at-least-once", "exactly-once"])
def test_requests_of_a_lost_sequence_are_repeated_as_the_assurance_allows(assurance: str) -> None:
    sending = SourcePolicy(retransmission=STEADY, assurance=Assurance.parse(assurance))
    chain = Chain(policy=ForwardingPolicy(sending=sending))
    chain.ask("one")
    chain.go(until=lambda: bool(requests_to_the_service(chain)))
    chain.service.store = MemoryStore()  # it has forgotten everything
    chain.service.kill()
    chain.go()
    stopped = [one for one in chain.broker.told if isinstance(one, Stopped)]
    assert not stopped
    if assurance == "at-least-once":
        sent = {(one.sequence.identifier, one.message_id) for one in requests_to_the_service(chain) if one.sequence}
        assert len(sent) == 2 and len({message_id for _, message_id in sent}) == 1
        assert chain.replies == [("urn:m:one", "re one")]
    else:
        assert chain.replies == [("urn:m:one", IN_DOUBT)]
        assert [letter.origin.code for letter in chain.letters if letter.origin] == ["InDoubt"]
    chain.ask("two")
    chain.go()
    assert chain.replies[1:] == [("urn:m:two", "re two")]


@pytest.mark.parametrize("ordered", [False, True])
def test_a_one_way_message_in_doubt_waits_for_a_decision_but_requests_do_not(ordered: bool) -> None:
    assurance = Assurance.parse("exactly-once in-order" if ordered else "exactly-once")
    chain = Chain(policy=ForwardingPolicy(sending=SourcePolicy(retransmission=STEADY, assurance=assurance)))
    chain.ask("one")
    chain.ask("two", wants_reply=False)
    chain.ask("three")
    chain.go(until=lambda: len(requests_to_the_service(chain)) == 3)
    chain.service.store = MemoryStore()  # it has forgotten everything
    chain.service.kill()
    chain.go()
    (stopped,) = [one for one in chain.broker.told if isinstance(one, Stopped)]
    assert (stopped.in_doubt, stopped.first, stopped.last) == ("2-2", 1, 1)
    assert sorted(chain.replies) == [("urn:m:one", IN_DOUBT), ("urn:m:three", IN_DOUBT)]
    chain.forwarder.resume([*chain.forwarder_choices], chain.now)
    chain.broker.settle()
    chain.go()
    assert chain.bodies == ["two"] and len(chain.replies) == 2


@pytest.mark.parametrize("assurance", ["exactly-once", "exactly-once in-order"])
def test_a_request_in_doubt_is_answered_once_whoever_is_killed_meanwhile(assurance: str) -> None:
    sending = SourcePolicy(retransmission=STEADY, assurance=Assurance.parse(assurance))
    step = 0
    while True:
        step += 1
        chain = Chain(policy=ForwardingPolicy(sending=sending))
        chain.ask("one")
        chain.go(until=partial(lambda one: bool(requests_to_the_service(one)), chain))
        chain.service.store = MemoryStore()
        chain.service.kill()
        chain.broker.die_at = chain.broker.events + step
        chain.ask("two", "three")
        chain.go(200.0)
        assert sorted(key for key, _ in chain.replies) == ["urn:m:one", "urn:m:three", "urn:m:two"], step
        assert set(dict(chain.replies).values()) <= {IN_DOUBT, "re one", "re two", "re three"}, step
        executed = [f"urn:m:{body}" for body in chain.bodies]
        assert len(executed) == len(set(executed)), step
        assert {key for key, said in chain.replies if said != IN_DOUBT} <= set(executed), step
        assert (
            chain.forwarder.records.is_empty and not chain.forwarder.lifecycle.stopped and chain.forwarder.doubt is None
        ), step
        if chain.broker.run == 1:
            break
    assert step > 10


def test_a_reply_waits_for_no_other_and_an_unrelated_one_is_dropped() -> None:
    chain = Chain(versions=Versions("1.1"))
    chain.ask("one", "two")
    chain.service.is_handling = False
    chain.go(5.0)
    source = chain.forwarder.source
    assert source is not None and source.offer is not None
    offered = chain.broker.protocol.inbound.destinations[source.offer]
    assert len(source.waiting.unreplied) == 2 and chain.replies == []
    (_, second) = source.waiting.unreplied.values()

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
    assert names == ["message.unsolicited_dropped"] * 2
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


# --- requests without a ReplyTo (WS-Addressing 1.0 core, section 3.2): Sandesha2 and gSOAP send them ------------------


class Plain:
    """A requester that sends one request at a time, as it is told."""

    def __init__(self, chain: Chain, *, offers: bool) -> None:
        self.chain = chain
        (created,) = self.send(control=CreateSequence(ANONYMOUS_EPR, offer=Offer("urn:o") if offers else None))
        assert created is not None and isinstance(created.control, CreateSequenceResponse)
        self.identifier = created.control.identifier

    def send(self, **fields: Any) -> list[Envelope]:
        """Send a request; the answers, with all that happens then without time passing."""
        seen: list[Envelope] = []
        versions = self.chain.versions
        envelope = Envelope(versions.soap, versions.addressing, versions.rm, to=BROKER, **fields)
        self.chain.broker.write = seen.append
        requester = self.chain.requester
        self.chain.carry(Journey(requester, requester.run, Transmit(BROKER, envelope)))
        self.chain.settle()
        return seen

    def ask(self, number: int = 1, expects: Expects | None = None, **fields: Any) -> tuple[bytes, Any, str | None]:
        """Ask without a ReplyTo: what the answer says, acknowledges and relates to."""
        routed = None if expects is None else Routed(("inbox",), True, expects)
        fields = {"message_id": f"urn:m:{number}", "routed": routed} | fields
        sequence = Sequence(self.identifier, number)
        (answer,) = self.send(sequence=sequence, action="urn:a", body=b"%d" % number, **fields)
        return answer.body, answer.acknowledgements[0].ranges, answer.relates_to


def knowing(**told: Any) -> Chain:
    """A chain whose service knows by the operation what is a request."""
    chain = Chain(**told)
    chain.service.protocol.accepting._always_replies = lambda _action: True
    return chain


offers_or_not = pytest.mark.parametrize("offers", [True, False])


@offers_or_not
@pytest.mark.parametrize(  # a reply in no Sequence that names no request is nobody's
    ("forwarder_offers", "message_id"), [(True, "urn:m:1"), (True, None), (False, "urn:m:1")]
)
def test_without_a_reply_to_the_repeat_of_a_message_gets_the_reply(
    offers: bool, forwarder_offers: bool, message_id: str | None
) -> None:
    chain = knowing(forwarder_offers=forwarder_offers)
    requester = Plain(chain, offers=offers)
    assert requester.ask(message_id=message_id) == (b"", ((1, 1),), None)
    assert requester.ask(message_id=message_id) == (b"re 1", ((1, 1),), message_id)
    chain.broker.kill()
    chain.go(5.0)
    assert requester.ask(message_id=message_id) == (b"re 1", ((1, 1),), message_id)
    assert chain.bodies == ["1"] and chain.forwarder.records.is_empty
    (sent,) = requests_to_the_service(chain)
    assert (sent.message_id, sent.reply_to) == (message_id, None), "the service sees what the sender wrote"


@offers_or_not
def test_a_one_way_message_without_a_reply_to_is_acknowledged_whenever_it_comes(offers: bool) -> None:
    chain = Chain()
    requester = Plain(chain, offers=offers)
    for _ in range(3):
        assert requester.ask() == (b"", ((1, 1),), None)
    assert chain.bodies == ["1"] and chain.forwarder.records.is_empty
    assert [one.name for one in chain.broker.incidents if one.level == "warning"] == []


@pytest.mark.parametrize("expects", [None, Expects.REQUEST])
def test_a_forwarder_with_an_address_brings_replies_to_requests_only(expects: Expects | None) -> None:
    chain = knowing(address=BROKER)
    requester = Plain(chain, offers=True)
    assert requester.ask(expects=expects)[0] == (b"" if expects is None else b"re 1")
    chain.go(5.0)
    assert requester.ask(expects=expects)[0] == (b"" if expects is None else b"re 1")
    assert chain.bodies == ["1"] and chain.forwarder.records.is_empty


@offers_or_not
@pytest.mark.parametrize("address", ["", BROKER])
def test_a_route_says_that_a_message_without_a_reply_to_is_a_request(offers: bool, address: str) -> None:
    chain = Chain(address=address)  # its service needs a ReplyTo
    requester = Plain(chain, offers=offers)
    for _ in range(2):
        assert requester.ask(expects=Expects.REQUEST) == (b"re 1", ((1, 1),), "urn:m:1")
        chain.go(1.0)  # a repeat that crosses the reply waits for a moment
    assert requester.ask(2, Expects.REQUEST, message_id=None) == (b"re 2", ((1, 2),), None)
    assert requester.ask(3, Expects.REQUEST, reply_to=NONE_EPR) == (b"", ((1, 3),), None)
    assert requester.ask(4, Expects.REQUEST, relates_to="urn:x") == (b"", ((1, 4),), None)


@offers_or_not
@pytest.mark.parametrize("reply_to", [None, ANONYMOUS_EPR])
def test_a_route_says_that_its_messages_are_one_way_and_no_reply_is_kept(offers: bool, reply_to: Any) -> None:
    chain = knowing()
    requester = Plain(chain, offers=offers)
    for _ in range(3):
        assert requester.ask(expects=Expects.ONE_WAY, reply_to=reply_to) == (b"", ((1, 1),), None)
    assert chain.bodies == ["1"] and chain.forwarder.records.is_empty
    assert [record.reply_to for record in chain.broker.kept] == ["none"]


def test_a_reply_in_the_answer_to_another_message_is_not_its_reply() -> None:
    chain = knowing()
    requester = Plain(chain, offers=True)

    def write(answer: Envelope) -> None:
        if answer.body:
            answer.relates_to = "urn:m:7"

    chain.service.write = write
    for _ in range(2):
        assert requester.ask() == (b"", ((1, 1),), None)
    assert [one.name for one in chain.broker.incidents if one.number] == [
        "message.unsolicited_dropped",
        "message.duplicate_dropped",
    ]


@pytest.mark.parametrize("rm", ["1.0", "1.1"])
def test_replies_to_one_way_messages_let_their_source_end_its_sequence(rm: str) -> None:
    chain = knowing(versions=Versions(rm))
    chain.ask("one", "two", wants_reply=False)
    chain.go(5.0)
    (destination,) = [one for one in chain.broker.protocol.inbound.destinations.values() if one.replies.numbers]
    chain.outbox.want_end(chain.now)
    chain.requester.settle()
    chain.go()
    assert destination.is_over and chain.outbox.source is None
    assert chain.replies == []
