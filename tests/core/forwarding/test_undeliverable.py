"""What is not sent on as it is refused for good. It becomes a letter once, its requester is told once, and all else
arrives once.

Covers core/policy.py, core/queues/queues.py and core/sending/outboxes/lifecycle.py.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from holdfast.core.events import BackChannel, Stopped
from holdfast.core.faults import CREATE_SEQUENCE_REFUSED, REFUSES_ACCOUNT
from holdfast.core.messages import CreateSequence, Envelope, Fault, IncompleteSequenceBehavior, Sequence
from holdfast.core.origin import Origin
from holdfast.core.policy import (
    Assurance,
    CircuitPolicy,
    DestinationPolicy,
    ForwardingPolicy,
    OnRefused,
    SourcePolicy,
)
from holdfast.core.queues.dead_letters import Origin as LetterOrigin
from holdfast.core.versions import Versions
from tests.support.chain import BROKER, SERVICE, STEADY, Chain, Journey, grants_nothing

UNORDERED = SourcePolicy(retransmission=STEADY, assurance=Assurance.parse("exactly-once"))
IN_ORDER = SourcePolicy(retransmission=STEADY)
HASTY: dict[str, Any] = {"refusals": 3, "patience": 5.0}
DISCARD = IncompleteSequenceBehavior.DISCARD_FOLLOWING_FIRST_GAP

AS_IT_COMES = DestinationPolicy(assurance=Assurance.parse("exactly-once"))

SERVICES: dict[str, dict[str, Any]] = {
    "takes what comes": {"service_policy": AS_IT_COMES},
    "holds what comes behind a gap": {},
    "drops what comes behind a gap": {"service_policy": DestinationPolicy(buffer=1)},
    "discards what follows a gap": {"service_policy": DestinationPolicy(incomplete_sequence_behavior=DISCARD)},
    "speaks 1.0": {"versions": Versions("1.0")},
    "is offered nothing": {"forwarder_offers": False, "service_policy": AS_IT_COMES},
    "posts its answers": {"address": BROKER, "service_policy": AS_IT_COMES},
}
KEEPS_ORDER = [name for name, options in SERVICES.items() if "service_policy" not in options or "gap" in name]


POISON = {"code": "Poison", "reason": "it cannot be read"}


def refusals_told(chain: Chain) -> list[tuple[str, int, object]]:
    """What the broker's log says of refusals: level, number and fields."""
    told = [one for one in chain.broker.incidents if one.name == "message.refused_by_destination"]
    assert all(one.identifier for one in told)
    return [(one.level, one.number, one.detail) for one in told]


def forwarding(sending: SourcePolicy = UNORDERED, **options: Any) -> ForwardingPolicy:
    return ForwardingPolicy(sending=sending, **{**HASTY, **options})


@pytest.mark.parametrize(
    ("service", "wants_reply"),
    [(service, wants) for service in SERVICES for wants in (True, False) if not wants or service not in KEEPS_ORDER],
)
@pytest.mark.parametrize("poison", ["m0", "m2", "m5"])
def test_a_message_that_is_refused_for_good_becomes_a_letter_and_the_rest_goes_on(
    service: str, poison: str, wants_reply: bool
) -> None:
    chain = Chain(policy=forwarding(), **SERVICES[service])
    chain.refuse(poison)
    others = [f"m{number}" for number in range(6) if f"m{number}" != poison]
    chain.ask(*(f"m{number}" for number in range(6)), wants_reply=wants_reply)
    chain.go(300.0)
    assert sorted(chain.bodies) == others
    (told,) = [one for one in chain.broker.incidents if one.name == "dead_letter.added"]
    assert told.identifier
    assert told.number
    (letter,) = chain.letters
    assert letter.record.body == poison.encode() and letter.reason == "it cannot be read"
    assert letter.attempts == 1 if wants_reply else letter.attempts >= 3
    assert letter.origin == LetterOrigin("inbox", 0, int(poison[1:]), "forward/x/0", "Poison")
    assert chain.forwarder.records.is_empty and not chain.forwarder.lifecycle.stopped
    if wants_reply:
        told = {f"urn:m:{body}": f"re {body}" for body in others} | {
            f"urn:m:{poison}": "fault Poison: it cannot be read"
        }
        assert sorted(chain.replies) == sorted(told.items())
        assert chain.outbox.records.is_empty


@pytest.mark.parametrize("assurance", ["exactly-once", "at-least-once"])
@pytest.mark.parametrize("service", KEEPS_ORDER)
def test_requests_that_an_ordering_service_may_hold_are_not_repeated(service: str, assurance: str) -> None:
    sending = SourcePolicy(retransmission=STEADY, assurance=Assurance.parse(assurance))
    chain = Chain(policy=forwarding(sending, expires=3600.0), **SERVICES[service])
    chain.refuse("m0")
    chain.ask("m0", "m1", "m2")
    chain.go(400.0)
    if assurance == "at-least-once":
        assert {*chain.bodies} == {"m1", "m2"} and len(chain.letters) == 1
        assert len(chain.replies) == len(dict(chain.replies)) == 3 and chain.forwarder.records.is_empty
        return
    assert chain.bodies == [] and chain.letters == []
    (stopped,) = [one for one in chain.broker.told if isinstance(one, Stopped)]
    assert stopped.code == "nobody knows what arrived" and "2 requests" in stopped.reason
    chain.refuse()
    chain.forwarder.resume([*chain.forwarder_choices], chain.now)
    chain.go()
    assert chain.bodies == ["m0", "m1", "m2"] and len(chain.replies) == 3


@pytest.mark.parametrize("service", KEEPS_ORDER)
def test_a_resumed_forwarder_sends_every_refused_message_again(service: str) -> None:
    chain = Chain(policy=forwarding(), **SERVICES[service])
    chain.refuse("m0", "m2")
    chain.ask("m0", "m1", "m2")
    chain.go(400.0)
    assert chain.forwarder.lifecycle.stopped and chain.letters == []
    chain.refuse()
    chain.forwarder.resume([*chain.forwarder_choices], chain.now)
    chain.go()
    assert chain.bodies == ["m0", "m1", "m2"] and len(chain.replies) == 3


@pytest.mark.parametrize("wants_reply", [True, False])
@pytest.mark.parametrize("service", SERVICES)
def test_whoever_is_killed_at_any_step_nothing_is_lost_and_nothing_arrives_twice(
    service: str, wants_reply: bool
) -> None:
    if wants_reply and service in KEEPS_ORDER:
        pytest.skip("it waits for somebody")
    step = 0
    while True:
        step += 2
        chain = Chain(policy=forwarding(), **SERVICES[service])
        chain.refuse("m1")
        chain.broker.die_at = chain.broker.events + step
        chain.ask("m0", "m1", "m2", "m3", wants_reply=wants_reply)
        chain.go(400.0)
        assert sorted(chain.bodies) == ["m0", "m2", "m3"], step
        assert [letter.record.body for letter in chain.letters] == [b"m1"], step
        if wants_reply:
            assert len(chain.replies) == len(dict(chain.replies)) == 4, step
        assert chain.outbox.records.is_empty and chain.forwarder.records.is_empty, step
        if chain.broker.run == 1:
            break
    assert step > 20


def test_in_order_it_waits_for_somebody_unless_the_forwarder_may_decide() -> None:
    chain = Chain(policy=forwarding(IN_ORDER))
    chain.refuse("m1")
    chain.ask("m0", "m1", "m2", wants_reply=False)
    chain.go(300.0)
    (stopped,) = [one for one in chain.broker.told if isinstance(one, Stopped)]
    assert (stopped.code, stopped.reason) == ("Poison", "it cannot be read")
    assert stopped.refused is not None and stopped.refused[1] == 2
    assert chain.letters == [] and chain.bodies == ["m0"]
    chain.refuse()
    chain.forwarder.resume([*chain.forwarder_choices], chain.now)
    chain.go()
    assert chain.bodies == ["m0", "m1", "m2"]

    chain = Chain(policy=forwarding(IN_ORDER, on_refused=OnRefused.DEAD_LETTER))
    chain.refuse("m1")
    chain.ask("m0", "m1", "m2", "m3", wants_reply=False)
    chain.go(300.0)
    assert chain.bodies == ["m0", "m2", "m3"] and len(chain.letters) == 1

    chain = Chain(policy=forwarding(on_refused=OnRefused.WAIT))
    chain.refuse("m1")
    chain.ask("m0", "m1", wants_reply=False)
    chain.go(300.0)
    assert chain.letters == [] and chain.forwarder.lifecycle.stopped == "Poison"


@pytest.mark.parametrize("address", ["", BROKER])
@pytest.mark.parametrize("rm", ["1.0", "1.1"])
def test_a_message_still_being_stored_is_not_sent_in_the_next_sequence_too(rm: str, address: str) -> None:
    policy = DestinationPolicy(assurance=Assurance.parse("exactly-once"), reply_patience=0.05)
    chain = Chain(policy=forwarding(), service_policy=policy, versions=Versions(rm), address=address)
    chain.ask("m9", wants_reply=False)
    chain.go(5.0)
    batches: list[int] = []
    durable = chain.service.durable
    chain.service.durable = lambda: batches.append(0)  # type: ignore[method-assign]
    chain.refuse("m0")
    chain.ask("m0", "m1", "m2", wants_reply=False)
    chain.go(40.0)
    chain.service.durable = durable  # type: ignore[method-assign]
    for _ in batches:
        chain.later(chain.service, durable)
    chain.go(200.0)
    assert sorted(chain.bodies) == ["m1", "m2", "m9"] and len(chain.letters) == 1


@pytest.mark.parametrize("service", SERVICES)
@pytest.mark.parametrize("on_refused", [None, *OnRefused])
def test_a_request_that_is_refused_goes_back_to_its_requester_at_once(
    service: str, on_refused: OnRefused | None
) -> None:
    """Whatever the policy says: whoever waits may ask again."""
    chain = Chain(policy=forwarding(IN_ORDER, on_refused=on_refused, refusals=100, patience=600.0), **SERVICES[service])
    chain.refuse("m0")
    chain.ask("m0")
    chain.go(1.0)
    assert chain.replies == [("urn:m:m0", "fault Poison: it cannot be read")]
    assert not chain.forwarder.lifecycle.stopped and chain.forwarder.records.is_empty
    assert [letter.attempts for letter in chain.letters] == [1]
    assert refusals_told(chain) == [("warning", 1, {"forwarder": "forward/x/0", "action": "urn:a"} | POISON)]
    chain.ask("m1")
    chain.go(5.0)
    assert chain.replies[1:] == [("urn:m:m1", "re m1")] and chain.bodies == ["m1"]


def test_a_message_refused_for_good_is_never_sent_to_probe_its_destination() -> None:
    chain = Chain(policy=forwarding(circuit=CircuitPolicy(failures=2, first=1.0, cap=4.0)))
    chain.refuse("m0")
    chain.ask("m0", wants_reply=False)
    chain.go(1.0)
    chain.service.is_up = False
    chain.go(1.0)
    chain.service.is_up = True
    chain.go(60.0, until=lambda: chain.forwarder.withdrawal is not None)
    chain.service.is_up = False
    before = len(chain.journeys)
    chain.go(60.0)
    sent = [envelope for _, to, envelope in chain.journeys[before:] if to == SERVICE]
    assert len(sent) > 3 and not [envelope for envelope in sent if envelope.sequence is not None]
    chain.refuse()
    chain.service.is_up = True
    chain.go(60.0)
    assert chain.bodies == [] and len(chain.letters) == 1


def test_an_unanswered_transmission_counts_after_a_refusal_in_another_sequence() -> None:
    chain = Chain(policy=forwarding())
    chain.refuse("m0", "m1")
    chain.ask("m0", "m2", "m1", wants_reply=False)
    chain.go(60.0, until=lambda: len(chain.letters) == 1)
    receive, lost = chain.service.receive, []

    def store_without_an_answer(journey: Journey) -> None:
        envelope = journey.transmit.envelope
        if lost or envelope.body != b"m1":
            receive(journey)
            return
        lost.append(journey)
        chain.fail(journey)
        chain.service.protocol.receive(replace(envelope), BackChannel(object()), chain.now)

    chain.service.receive = store_without_an_answer  # type: ignore[method-assign]
    chain.go(120.0)
    assert lost and chain.bodies == ["m2", "m1"] and [letter.record.body for letter in chain.letters] == [b"m0"]


def test_a_late_fault_does_not_end_the_sequence_of_a_request_that_arrived() -> None:
    chain = Chain(policy=forwarding(), address=BROKER, service_policy=AS_IT_COMES)
    chain.refuse("m0")
    chain.service.is_handling = False
    chain.ask("m0", "m1")
    chain.go(0.2)
    source = chain.forwarder.source
    assert source is not None
    fault = Envelope(
        chain.versions.soap, chain.versions.addressing, chain.versions.rm, relates_to=source.waiting.unreplied[2]
    )
    fault.fault = Fault("Poison", "it cannot be read")
    chain.refuse("m0")
    chain.go(60.0, until=lambda: chain.forwarder.withdrawal is not None and source.flight[2].attempts > 1)
    assert chain.forwarder.withdrawal is not None and source.flight[2].attempts > 1
    chain.broker.protocol.receive(fault, None, chain.now, origin=Origin(secret=source.secret))
    chain.broker.settle()
    chain.go(5.0)
    assert chain.letters == [] and source.identifier == chain.forwarder.source.identifier
    chain.service.is_handling = True
    chain.service.kill()
    chain.go()
    assert chain.bodies == ["m1"] and sorted(chain.replies) == [
        ("urn:m:m0", "fault Poison: it cannot be read"),
        ("urn:m:m1", "re m1"),
    ]


def test_several_that_are_refused_each_become_a_letter() -> None:
    chain = Chain(policy=forwarding(), service_policy=AS_IT_COMES)
    poison = ["m1", "m2", "m7", "m11"]
    chain.refuse(*poison)
    everything = [f"m{number}" for number in range(12)]
    chain.ask(*everything)
    chain.go(600.0)
    assert sorted(chain.bodies) == sorted(set(everything) - set(poison))
    assert sorted(letter.record.body.decode() for letter in chain.letters) == sorted(poison)
    assert len(chain.replies) == 12


def test_patience_counts_attempts_and_seconds_and_a_recovered_service_is_served() -> None:
    chain = Chain(policy=forwarding(refusals=3, patience=200.0), service_policy=AS_IT_COMES)
    chain.refuse("m0")
    chain.ask("m0", "m1", wants_reply=False)
    chain.go(190.0)
    assert chain.letters == [] and chain.bodies == ["m1"]
    assert [told[:2] for told in refusals_told(chain)] == [("warning", 1)], "however often it was refused"
    chain.refuse()
    chain.go()
    assert sorted(chain.bodies) == ["m0", "m1"] and chain.letters == [] and chain.forwarder.refusals == {}
    sent = [one for _, to, one in chain.journeys if to == SERVICE and one.body == b"m0"]
    assert 8 < len(sent) < 40, "with backoff"


def test_a_service_that_discards_everything_at_a_gap_is_left_to_somebody() -> None:
    behavior = IncompleteSequenceBehavior.DISCARD_ENTIRE_SEQUENCE
    chain = Chain(policy=forwarding(), service_policy=DestinationPolicy(incomplete_sequence_behavior=behavior))
    chain.refuse("m1")
    chain.ask("m0", "m1", wants_reply=False)
    chain.go(300.0)
    assert chain.forwarder.lifecycle.stopped == "Poison" and chain.letters == []


def test_what_cannot_be_written_is_a_letter_at_once() -> None:
    chain = Chain(policy=forwarding(refusals=1000, patience=1e6), service_policy=AS_IT_COMES)
    chain.ask("m0", "m1")
    chain.broker.unsendable = {b"m0"}
    chain.go()
    assert chain.bodies == ["m1"]
    (letter,) = chain.letters
    assert letter.origin is not None and letter.origin.code == "cannot be written"
    assert ("urn:m:m0", "fault cannot be written: no envelope can hold it") in chain.replies


def test_a_letter_goes_into_its_queue_again_and_arrives_once_the_service_takes_it() -> None:
    chain = Chain(policy=forwarding(), service_policy=AS_IT_COMES)
    chain.refuse("m0", "m1")
    chain.ask("m0", "m1", "m2")
    chain.go(300.0)
    assert len(chain.letters) == 2 and len(chain.replies) == 3
    chain.refuse()
    giving_up = chain.broker.giving_up
    assert giving_up.requeue() == 2
    chain.broker.settle()
    chain.broker.kill()
    chain.settle()
    if chain.letters:  # what was asked for was not durable
        chain.broker.giving_up.requeue()
        chain.broker.settle()
    chain.go()
    assert sorted(chain.bodies) == ["m0", "m1", "m2"] and chain.letters == []
    assert len(chain.replies) == 3, "who asked was told already"


# --- a destination that grants no Sequence ---------------------------------------------------------------------------


def test_a_destination_that_grants_no_sequence_for_a_while_gets_everything_later() -> None:
    chain = Chain(policy=forwarding())
    chain.service.answers = grants_nothing
    chain.ask("m0", "m1", wants_reply=False)
    chain.go(2.0)
    assert chain.forwarder.lifecycle.unwelcome is not None and not chain.forwarder.lifecycle.stopped
    told = [one for one in chain.broker.incidents if one.name == "sequence.refused"]
    assert told[0].detail["versions"] == "RM 1.1, WSA 2005/08, SOAP 1.2"
    assert not [one for one in chain.broker.told if isinstance(one, Stopped)]
    chain.service.answers = lambda _envelope: None
    chain.go(100.0)
    assert chain.bodies == ["m0", "m1"]
    assert chain.forwarder.lifecycle.unwelcome is None


@pytest.mark.parametrize("code", sorted(REFUSES_ACCOUNT))
@pytest.mark.parametrize("refused", ["CreateSequence", "message"])
def test_credentials_that_are_refused_are_sent_once(code: str, refused: str) -> None:
    """Each further attempt with a wrong password brings the account nearer to its lock."""
    chain = Chain(policy=forwarding())

    def refuse(envelope: Envelope) -> Envelope | None:
        if (refused == "CreateSequence") != isinstance(envelope.control, CreateSequence):
            return None
        return Envelope(envelope.soap, envelope.addressing, envelope.rm, fault=Fault(code, "no"))

    chain.service.answers = refuse
    chain.ask("m0", wants_reply=False)
    chain.go(1000.0)
    (stopped,) = [one for one in chain.broker.told if isinstance(one, Stopped)]
    assert (stopped.code, stopped.reason) == (code, "no")
    assert sum(to == SERVICE for _, to, _ in chain.journeys) == (1 if refused == "CreateSequence" else 2)
    chain.service.answers = lambda _envelope: None
    chain.forwarder.resume([*chain.forwarder_choices], chain.now)
    chain.broker.settle()
    chain.go(100.0)
    assert chain.bodies == ["m0"] and chain.letters == []


def test_an_operator_cuts_the_wait_for_the_next_attempt_short() -> None:
    chain = Chain(policy=forwarding(patience=1e6))
    chain.service.answers = grants_nothing
    chain.ask("m0", wants_reply=False)
    chain.go(500.0)
    assert chain.forwarder.lifecycle.unwelcome is not None
    chain.service.answers = lambda _envelope: None
    chain.broker.protocol.outbound.hurry(chain.forwarder, chain.now)
    chain.broker.settle()
    chain.go(0.5)
    assert chain.bodies == ["m0"]


def test_no_granted_sequence_within_the_patience_stops_the_forwarder() -> None:
    chain = Chain(policy=forwarding())
    chain.service.answers = grants_nothing
    chain.ask("m0", wants_reply=False)
    chain.go(100.0)
    (stopped,) = [one for one in chain.broker.told if isinstance(one, Stopped)]
    assert (stopped.code, stopped.reason) == (CREATE_SEQUENCE_REFUSED, "not now")
    asked = sum(to == SERVICE for _, to, _ in chain.journeys)
    assert sum(one.name == "sequence.refused" for one in chain.broker.incidents) >= HASTY["refusals"]
    chain.go(1000.0)
    assert sum(to == SERVICE for _, to, _ in chain.journeys) == asked >= HASTY["refusals"]
    chain.service.answers = lambda _envelope: None
    chain.forwarder.resume([*chain.forwarder_choices], chain.now)
    chain.broker.settle()
    chain.go(100.0)
    assert chain.bodies == ["m0"]


def _declining(chain: Chain, *numbers: int) -> None:
    """The service takes messages of these numbers, and answers each with a fault in the offered Sequence, as WCF does
    for an exception in a one-way operation."""
    said: list[int] = []

    def write(answer: Envelope) -> None:
        (acknowledged, *_) = answer.acknowledgements or (None,)
        if acknowledged is None or answer.control is None:
            return
        for number in numbers:
            if number not in said and any(lower <= number <= upper for lower, upper in acknowledged.ranges):
                said.append(number)
                assert chain.forwarder.source is not None and chain.forwarder.source.offer is not None
                answer.control, answer.fault = None, Fault("Boom", "it threw", detail=b"<why/>")
                answer.action = "http://www.w3.org/2005/08/addressing/fault"
                answer.relates_to = f"urn:m:{number}"
                answer.sequence = Sequence(chain.forwarder.source.offer, len(said))
                return

    chain.service.write = write


@pytest.mark.parametrize("rm", ["1.0", "1.1"])
def test_a_message_acknowledged_but_refused_by_the_service_is_a_dead_letter(rm: str) -> None:
    chain = Chain(policy=forwarding(), versions=Versions(rm))
    _declining(chain, 2)
    chain.ask("1", wants_reply=False)
    chain.go(1.0)
    chain.ask("2", wants_reply=False)
    chain.go(1.0)
    chain.ask("3", wants_reply=False)
    chain.go()
    (letter,) = chain.letters
    assert letter.record.body == b"2" and letter.reason == "it threw" and letter.origin is not None
    assert (letter.origin.code, letter.origin.offset) == ("Boom", 1)
    told = [one for one in chain.broker.incidents if one.name == "message.refused_by_service"]
    assert [(one.level, one.number) for one in told] == [("warning", 2)]
    assert told[0].detail is not None and told[0].detail["message_id"] == "urn:m:2"
    assert (
        chain.bodies == ["1", "2", "3"] and chain.forwarder.records.is_empty and not chain.forwarder.lifecycle.stopped
    )


def test_in_order_nothing_follows_what_the_service_refused_until_somebody_decides() -> None:
    chain = Chain(policy=forwarding(IN_ORDER))
    _declining(chain, 1)
    chain.ask("1", wants_reply=False)
    chain.go(1.0)
    chain.ask("2", wants_reply=False)
    chain.go(1.0)
    assert [letter.record.body for letter in chain.letters] == [b"1"]
    (stopped,) = [one for one in chain.broker.told if isinstance(one, Stopped)]
    assert (stopped.code, stopped.reason) == ("Boom", "it threw") and chain.bodies == ["1"]
    chain.forwarder.resume([*chain.forwarder_choices], chain.now)
    chain.broker.settle()
    chain.go()
    assert chain.bodies == ["1", "2"] and chain.forwarder.records.is_empty and len(chain.letters) == 1


@pytest.mark.parametrize("service", [name for name in SERVICES if name not in KEEPS_ORDER])
@pytest.mark.parametrize("seed", range(12))
def test_the_letters_of_a_sequence_keep_its_order_whatever_is_lost(service: str, seed: int) -> None:
    """Later messages may be refused first, and often enough first."""
    chance = random.Random(seed)
    chain = Chain(policy=forwarding(IN_ORDER, on_refused=OnRefused.DEAD_LETTER), **SERVICES[service])
    carry = chain.carry

    def carry_some(journey: Journey) -> None:
        lost = (
            journey.transmit.envelope.sequence is not None and journey.transmit.to == SERVICE and chance.random() < 0.5
        )
        (chain.fail if lost else carry)(journey)

    chain.carry = carry_some  # type: ignore[method-assign]
    poison = [f"m{number}" for number in range(5)]
    chain.refuse(*poison)
    chain.ask(*poison, "m5", wants_reply=False)
    chain.go(900.0)
    assert [letter.record.body.decode() for letter in chain.letters] == poison
    assert chain.bodies == ["m5"]
