"""Forwarding: an outbox over a queue that messages come into. No copy, the same numbers after a crash, and nothing is
deleted that the destination does not have, or that a reader or handler has not passed.

Covers core/records.py.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sending import Sending, sequence_of

from examples import examples
from holdfast.core.events import Delivered, Incident, ReadWanted, Stopped, Submitted, Transmit
from holdfast.core.faults import UNKNOWN_SEQUENCE, sequence_fault
from holdfast.core.forwarding.undeliverable import discard
from holdfast.core.messages import (
    ANONYMOUS_EPR,
    CloseSequence,
    CloseSequenceResponse,
    CreateSequence,
    CreateSequenceResponse,
    Envelope,
    Sequence,
    TerminateSequence,
    TerminateSequenceResponse,
)
from holdfast.core.policy import Assurance, ForwardingPolicy, SourcePolicy
from holdfast.core.protocol import RMProtocol
from holdfast.core.protocol_settings import Environment, MessageRules, Policies
from holdfast.core.queues.cursors import HANDLER
from holdfast.core.queues.dead_letters import DeadLetters
from holdfast.core.queues.deletion import TRIM_EVERY
from holdfast.core.queues.description import fingerprint_of
from holdfast.core.queues.queue import Queue
from holdfast.core.queues.retention import DAY, RetentionPolicy
from holdfast.core.ranges import AcknowledgementRanges
from holdfast.core.records import Batch
from holdfast.core.retransmission import RetransmissionPolicy
from holdfast.core.rm_source.acknowledgement_history import MOST_RETRACTED, Retractions
from holdfast.core.sending.outboxes.outbox import Outbox
from holdfast.core.sending.outboxes.peer_answers import RETRACTED
from holdfast.core.sending.outboxes.records import SAVE_EVERY
from holdfast.core.versions import Versions
from holdfast.endpoint.handling.dead_letters import seal, unseal
from holdfast.exceptions import ConfigurationError
from holdfast.store import MemoryStore
from tests.support.chain import fault_as_reply

NEXT = "http://next/"
NEW = Versions("1.1")
CHOICES = [(NEW, False)]
STEADY = RetransmissionPolicy(initial=1.0, floor=0.5, cap=1.0, jitter=0.0)


class Relay:
    """An endpoint that receives into one queue and sends on from it. What it commits is durable at once."""

    def __init__(self, before: Relay | None = None, **options: Any) -> None:
        self.store = before.store if before is not None else MemoryStore()
        self.now = before.now if before is not None else 100.0
        self.appended: list[tuple[str, bytes]] = before.appended if before is not None else []
        """Every record that was ever put into a queue of the store."""
        self.identifiers = before.identifiers if before is not None else itertools.count(1)
        self.options: dict[str, Any] = {**(before.options if before is not None else {}), **options}
        options = dict(self.options)
        is_handled, window = options.pop("is_handled", False), options.pop("window", 8)
        self.letters = DeadLetters(seal, unseal)
        self.queue = Queue("inbox", dead_letters=self.letters, **options)
        self.queue.deletion.is_handled = is_handled
        self.told: list[object] = []
        self.sent: list[Transmit] = []
        self.inbound = ""
        self.protocol = RMProtocol(
            self.queue,
            Environment(self.store.read, lambda: f"urn:id:{next(self.identifiers)}", lambda: 0.0),
            letters=self.letters,
            policies=Policies(source=SourcePolicy(retransmission=STEADY, initial_window=window, window=window)),
            rules=MessageRules(replies=lambda _action: False, tell=fault_as_reply),
        )
        self.protocol.recover(self.store.load(), self.now)
        if not self.queue.description.epoch:
            self.queue.description.begin("e")
        self.settle()

    def settle(self) -> None:
        self.protocol.pump(self.now)
        while True:
            for effect in self.protocol.take_effects():
                if isinstance(effect, Transmit):
                    self.sent.append(effect)
                elif isinstance(effect, ReadWanted):
                    found = self.store.read(effect.queue, effect.partition, effect.start, effect.end)
                    self.protocol.records_read(effect, found, self.now)
                else:
                    self.told.append(effect)
            if not self.protocol.wants_commit:
                if self.protocol.effects:
                    continue
                return
            self.commit(self.protocol.take_batch())
            self.protocol.batch_durable(self.now)

    def commit(self, batch: Batch) -> None:
        self.appended += [(queue, record.body) for queue, _, _, record in batch.appends]
        self.store.commit(batch)

    def come(self, *bodies: str) -> None:
        """Messages arrive in one Sequence."""
        for body in bodies:
            envelope = Envelope(NEW.soap, NEW.addressing, NEW.rm)
            if not self.inbound:
                envelope.action, envelope.message_id = "urn:create", f"urn:create:{next(self.identifiers)}"
                envelope.control = CreateSequence(ANONYMOUS_EPR, None, None)
                self.protocol.receive(envelope, object(), self.now)
                self.settle()
                self.inbound = list(self.protocol.inbound.destinations)[-1]
                self.number = itertools.count(1)
                envelope = Envelope(NEW.soap, NEW.addressing, NEW.rm)
            envelope.action, envelope.body, envelope.message_id = "urn:a", body.encode(), f"urn:m:{body}"
            envelope.headers = (b"<h/>",)
            envelope.sequence = Sequence(self.inbound, next(self.number), False)
            self.protocol.receive(envelope, object(), self.now)
        self.settle()

    def forward(
        self, key: str = "next", partition: int = 0, start: int | None = None, policy: ForwardingPolicy | None = None
    ) -> Outbox:
        outbox = self.protocol.outbound.forward(key, NEXT, CHOICES, self.queue, partition, start, policy)
        self.settle()
        return outbox

    def take(self, seconds: float = 0.0) -> list[Transmit]:
        """What is sent within that time. CreateSequence is granted, and the Sequence's end confirmed."""
        self.now += seconds
        self.settle()
        messages: list[Transmit] = []
        while self.sent:
            sent = self.sent.pop(0)
            control = sent.envelope.control
            if isinstance(control, CreateSequence):
                self.answer(sent, control=CreateSequenceResponse(f"urn:next:{next(self.identifiers)}"))
            elif isinstance(control, CloseSequence):
                self.answer(sent, control=CloseSequenceResponse(control.identifier))
            elif isinstance(control, TerminateSequence):
                self.answer(sent, control=TerminateSequenceResponse(control.identifier))
            else:
                messages.append(sent)
        return messages

    answer, acknowledge = Sending.answer, Sending.acknowledge

    def handle(self, offset: int) -> None:
        self.queue.move_cursor(HANDLER, 0, offset, self.now, {"done": [1, offset] if offset else []})
        self.settle()

    @property
    def kept(self) -> range:
        bounds = self.store.load().bounds[self.queue.name, 0]
        assert bounds == (self.queue.records.firsts[0], self.queue.records.ends[0])
        return range(*bounds)


def said(sent: list[Transmit]) -> list[tuple[str, int, bytes]]:
    return [(one.envelope.sequence.identifier, one.number, one.envelope.body) for one in sent if one.envelope.sequence]


def ranges_of(numbers: Iterable[int]) -> list[tuple[int, int]]:
    return list(AcknowledgementRanges((number, number) for number in sorted(numbers)))


def names(count: int) -> list[str]:
    return [f"m{number}" for number in range(count)]


def test_messages_are_forwarded_without_a_copy_and_a_crash_changes_no_number() -> None:
    relay = Relay()
    relay.come("m0", "m1")
    relay.forward()
    before = relay.take()
    relay.come("m2", "m3")
    before += relay.take()
    ((identifier,),) = ({name for name, _, _ in said(before)},)
    assert said(before) == [(identifier, n + 1, b"m%d" % n) for n in range(4)]
    assert [one.envelope.message_id for one in before] == [f"urn:m:m{n}" for n in range(4)]
    assert before[0].envelope.headers == (b"<h/>",)
    relay.acknowledge(before[1], (2, 2))

    relay = Relay(relay)
    assert said(relay.take()) == said(before), "what is not known to be acknowledged goes again, as it was"
    relay.acknowledge(before[0], (1, 4))
    assert relay.protocol.outbound.outboxes["next"].records.is_empty
    assert Relay(relay).take(60.0) == []
    assert relay.appended == [("inbox", b"m%d" % n) for n in range(4)]
    assert not [effect for effect in relay.told if isinstance(effect, Submitted)], "nobody here submitted them"


def test_what_a_destination_has_lost_is_counted_over_restarts() -> None:
    relay = Relay()
    relay.come("m0", "m1", "m2", "m3")
    outbox = relay.forward()
    sent = relay.take()
    relay.now += 0.1
    relay.acknowledge(sent[-1], (1, 4))
    assert outbox.lifecycle.retracted.count == 0
    relay.come("m4")
    (later,) = relay.take(0.1)
    later.left_at = relay.now
    relay.now += 0.1
    relay.acknowledge(later, (1, 2), (5, 5))
    (told,) = [one for one in relay.told if isinstance(one, Incident) and one.name == RETRACTED]
    assert told.detail is not None and told.detail["messages"] == "3-4"
    again = Relay(relay)
    for one in (relay, again):
        outbox = one.protocol.outbound.outboxes["next"]
        assert (outbox.lifecycle.retracted.count, outbox.records.waiting) == (2, 0)
    again.come("m5")
    (asked,) = again.take(0.1)
    again.acknowledge(asked, (1, 2), (5, 5))
    (later,) = again.take(0.1)
    again.acknowledge(later, (1, 2), (5, 6))
    assert not [one for one in again.told if isinstance(one, Incident) and one.name == RETRACTED], "it was told before"
    assert outbox.lifecycle.retracted.count == 2


def test_a_loss_is_counted_once_also_where_there_are_too_many_to_name() -> None:
    retracted = Retractions()
    for number in range(MOST_RETRACTED):
        retracted.add("urn:s:a", ((3 * number + 1, 3 * number + 1),))
    for _ in range(2):
        retracted.add("urn:s:a", ((1, 1),))
    retracted.add("urn:s:b", ((1, 1), (5, 6)))
    assert retracted.count == MOST_RETRACTED + 3


def test_what_is_handed_over_in_memory_is_not_read_from_the_store() -> None:
    relay = Relay(window=64)
    relay.forward()
    relay.come("m0")
    relay.acknowledge(relay.take()[0], (1, 1))

    def read(*_asked: object) -> Any:
        raise AssertionError("it is in memory")

    relay.queue.records._read = read
    relay.come(*names(30))
    assert len(relay.take()) == 30


def test_a_passed_record_is_deleted_unread_and_leaves_its_fingerprint() -> None:
    relay = Relay(drops_passed=True)
    relay.forward()

    def read(*_asked: object) -> Any:
        raise AssertionError("it is in memory")

    relay.store.read = read  # type: ignore[method-assign]
    for number in range(1, 6):
        relay.come(f"m{number}")
        relay.acknowledge(relay.take()[0], (1, number))
        assert relay.kept == range(number, number)
        last = [effect for effect in relay.told if isinstance(effect, Delivered)][-1]
        assert relay.queue.description.fingerprint(0, number) == fingerprint_of(last.record)


def test_of_two_forwarders_the_slower_one_says_which_record_goes_last() -> None:
    relay = Relay(drops_passed=True, window=16)
    relay.forward("quick")
    relay.forward("slow")
    relay.come(*names(6))
    sent = relay.take()
    quick, slow = {one.envelope.sequence.identifier: one for one in sent if one.envelope.sequence is not None}.values()
    relay.acknowledge(quick, (1, 6))
    assert relay.kept == range(0, 6)
    relay.acknowledge(slow, (1, 3))
    relay.acknowledge(slow, (1, 6))
    assert relay.kept == range(6, 6)
    delivered = [effect for effect in relay.told if isinstance(effect, Delivered)]
    assert relay.queue.description.fingerprint(0, 6) == fingerprint_of(delivered[-1].record)


def test_a_forwarder_keeps_unacknowledged_records_however_long_it_takes() -> None:
    relay = Relay(retention=RetentionPolicy(DAY, None, DAY))
    relay.come(*names(5))
    relay.forward()
    sent = relay.take()
    relay.take(100 * DAY)
    assert relay.kept == range(5)
    relay.acknowledge(sent[0], (1, 3))
    relay.take(DAY)
    assert relay.kept == range(5), "that 1-3 are acknowledged is not saved yet"
    relay.acknowledge(sent[0], (1, 5))
    relay.take(DAY)
    assert relay.kept == range(5, 5)


def test_trimming_follows_the_floor_of_a_reader_and_of_what_is_forwarded() -> None:
    relay = Relay(retention=RetentionPolicy(60.0, None, 10 * DAY), window=64)
    relay.come(*names(2 * SAVE_EVERY))
    relay.forward()
    sent = relay.take()
    relay.queue.advance("spark", {0: 10}, relay.now)
    relay.acknowledge(sent[0], (1, SAVE_EVERY))
    relay.take(DAY)
    assert relay.kept.start == 10
    relay.queue.advance("spark", {0: 2 * SAVE_EVERY}, relay.now)
    relay.take(DAY)
    assert relay.kept.start == SAVE_EVERY
    relay = Relay(relay)
    relay.take(DAY)
    assert relay.kept.start == SAVE_EVERY
    rest = relay.take(2.0)
    assert rest[0].number == SAVE_EVERY + 1
    relay.acknowledge(rest[0], (1, 2 * SAVE_EVERY))
    relay.take(DAY)
    assert relay.kept == range(2 * SAVE_EVERY, 2 * SAVE_EVERY)


def test_a_queue_that_drops_what_is_handled_keeps_it_until_it_is_forwarded_too() -> None:
    relay = Relay(drops_passed=True, is_handled=True, window=64)
    relay.come(*names(TRIM_EVERY))
    relay.forward()
    sent = relay.take()
    relay.handle(TRIM_EVERY)
    assert relay.kept.start == 0
    relay.acknowledge(sent[0], (1, SAVE_EVERY))
    assert relay.kept.start == SAVE_EVERY


def test_handlers_that_are_away_in_this_run_lose_nothing_to_a_forwarder() -> None:
    relay = Relay(drops_passed=True, is_handled=True, retention=RetentionPolicy())
    relay.come(*names(3))
    relay.handle(1)
    relay = Relay(relay, is_handled=False)
    relay.forward()
    relay.acknowledge(relay.take()[0], (1, 3))
    assert relay.kept.start == 0
    assert relay.queue.deletion.keeps == "7d readers 30d"


def test_two_forwarders_have_a_sequence_each_and_records_wait_for_the_slower() -> None:
    relay = Relay(drops_passed=True)
    relay.come("m0", "m1")
    relay.forward("one")
    (first, _) = relay.take()
    relay.forward("other", start=1)
    (late,) = relay.take()
    assert (late.number, late.envelope.body) == (1, b"m1")
    relay.acknowledge(first, (1, 2))
    assert relay.kept.start == 1
    relay.acknowledge(late, (1, 1))
    assert relay.kept.start == 2
    assert relay.queue.deletion.keeps == "until it is acknowledged"


def test_partitions_are_forwarded_each_by_itself() -> None:
    relay = Relay(count=3, window=64)
    outboxes = [relay.forward(f"next/{partition}", partition) for partition in range(3)]
    for number in range(20):
        relay.inbound = ""
        relay.come(f"m{number}")
    sent = relay.take()
    assert sorted(body for _, _, body in said(sent)) == sorted(b"m%d" % number for number in range(20))
    assert len({identifier for identifier, _, _ in said(sent)}) == len(list(filter(None, relay.queue.records.ends))) > 1
    for one in sent:
        relay.acknowledge(one, (1, one.number))
    assert all(outbox.records.is_empty for outbox in outboxes)
    relay = Relay(relay)
    assert [
        relay.protocol.outbound.outboxes[outbox.key].records.first for outbox in outboxes
    ] == relay.queue.records.ends


def test_a_message_that_a_forwarder_gives_up_stays_in_the_queue_for_others() -> None:
    relay = Relay()
    relay.come("m0", "m1")
    outbox = relay.forward()
    discard(relay.protocol.outbound, outbox, 0, relay.now)
    assert said(relay.take())[0][1:] == (1, b"m1")
    assert relay.kept == range(2)
    assert Relay(relay).protocol.outbound.outboxes["next"].records.first == 1


def test_no_reader_can_move_the_cursor_of_a_forwarder() -> None:
    relay = Relay()
    relay.come("m0")
    outbox = relay.forward()
    for name in (outbox.records.cursor, HANDLER):
        with pytest.raises(ConfigurationError):
            relay.queue.advance(name, {0: 1}, relay.now)
    assert not relay.queue.drop_cursor(outbox.records.cursor, relay.now)
    shown = relay.queue.cursors.shown(relay.queue.cursors[outbox.records.cursor], relay.now, 0.0)
    assert (shown["kind"], shown["lag"], len(relay.queue.cursors)) == ("outbound", 1, 1)


def test_a_sequence_takes_its_forwarders_new_policy_over_at_the_next_start() -> None:
    relay = Relay(window=64)
    relay.come(*names(20))
    narrow = ForwardingPolicy(sending=SourcePolicy(retransmission=STEADY, window=2, initial_window=2, expires=60.0))
    relay.forward("narrow", policy=narrow)
    asked = relay.sent[-1].envelope.control
    assert isinstance(asked, CreateSequence) and asked.expires == 60.0
    relay.forward("wide")
    sent = [one.source for one in relay.take()]
    assert [sent.count(local_id) for local_id in relay.protocol.outbound.sequences.by_local_id] == [2, 20]
    patient = ForwardingPolicy(sending=SourcePolicy(retransmission=RetransmissionPolicy(initial=9.0), window=4))
    relay = Relay(relay)
    outbox = relay.protocol.outbound.forward("narrow", NEXT, CHOICES, relay.queue, 0, policy=patient)
    source = outbox.source
    assert source is not None and source.policy is patient.sending is outbox.policy
    assert source.pace.round_trip.policy is patient.sending.retransmission
    assert relay.protocol.outbound.outboxes["wide"].policy.window == 64


def test_what_is_in_doubt_is_settled_once_it_is_read_if_it_is_not_in_memory() -> None:
    relay = Relay()
    relay.come("m0", "m1")
    outbox = relay.forward()
    first, second = relay.take()
    relay.protocol.failed(first, relay.now, "its answer was lost")
    relay.protocol.failed(second, relay.now, "its answer was lost")
    again, _ = relay.take(STEADY.cap)
    outbox.records.here.release()
    turns = Counter[str]()
    turn = relay.protocol.outbound._give_turn

    def counted(one: Outbox, now: float) -> None:
        turns[one.key] += 1
        assert turns[one.key] < 100, "it has turns for ever, and what it wants is never read"
        turn(one, now)

    relay.protocol.outbound._give_turn = counted  # type: ignore[method-assign]
    assert again.envelope.sequence is not None
    relay.answer(again, fault=sequence_fault(UNKNOWN_SEQUENCE, again.envelope.sequence.identifier))
    assert outbox.lifecycle.stopped == UNKNOWN_SEQUENCE
    assert outbox.doubt is None


def test_messages_of_a_lost_sequence_are_sent_anew_only_if_allowed_twice() -> None:
    relay = Relay()
    relay.come("m0")
    at_least_once = SourcePolicy(retransmission=STEADY, assurance=Assurance.parse("at-least-once"))
    relay.forward("twice", policy=ForwardingPolicy(sending=at_least_once))
    relay.forward("once")
    for sent in relay.take():
        relay.protocol.failed(sent, relay.now, "its answer was lost")
    relay.now += STEADY.cap
    for sent in relay.take():
        assert sent.envelope.sequence is not None
        relay.answer(sent, fault=sequence_fault(UNKNOWN_SEQUENCE, sent.envelope.sequence.identifier))
    assert [one.key for one in relay.told if isinstance(one, Stopped)] == ["once"]
    assert [one.envelope.body for one in relay.take()] == [b"m0"]


@settings(max_examples=examples(50))
@given(st.data())
def test_whatever_happens_all_that_came_arrives_and_nothing_goes_that_somebody_needs(data: st.DataObject) -> None:
    options: dict[str, Any] = {
        "retention": data.draw(st.sampled_from([None, RetentionPolicy(30.0), RetentionPolicy(30.0, None, 60.0)])),
        "drops_passed": data.draw(st.booleans()),
        "is_handled": data.draw(st.booleans()),
    }
    relay = Relay(**options)
    outbox = relay.forward()
    came, handled, has_reader = 0, 0, False
    arrived: dict[str, dict[int, bytes]] = {}
    known: set[bytes] = set()
    for _ in range(data.draw(st.integers(5, 25))):
        step = data.draw(st.sampled_from(["come", "come", "go", "go", "wait", "read", "handle", "crash"]))
        if step == "come":
            count = data.draw(st.sampled_from([1, 3, SAVE_EVERY + 6]))
            relay.come(*(f"m{number}" for number in range(came, came + count)))
            came += count
        elif step == "go":
            for sent in relay.take():
                there = arrived.setdefault(sequence_of(sent), {})
                for _, number, body in said([sent]):
                    assert there.setdefault(number, body) == body, "a number means one message for ever"
                    known.add(body)
                relay.acknowledge(sent, *ranges_of(there))
        elif step == "wait":
            relay.take(data.draw(st.sampled_from([1.0, 40.0, 4000.0])))
        elif step == "read":
            has_reader = True
            relay.queue.advance("spark", {0: data.draw(st.integers(0, came))}, relay.now)
            relay.settle()
        elif step == "handle" and options["is_handled"]:
            handled = data.draw(st.integers(handled, came))
            relay.handle(handled)
        elif step == "crash":
            relay = Relay(relay)
            relay.inbound = ""
            outbox = relay.protocol.outbound.outboxes["next"]
        first = relay.queue.records.firsts[0]
        gone = {b"m%d" % number for number in range(first)}
        assert gone <= known, "deleted before it arrived"
        assert not options["is_handled"] or first <= handled
        assert has_reader or options["retention"] or options["drops_passed"] or first == 0
    for _ in range(1000):
        if outbox.records.is_empty:
            break
        for sent in relay.take() or relay.take(1.0):
            there = arrived.setdefault(sequence_of(sent), {})
            for _, number, body in said([sent]):
                assert there.setdefault(number, body) == body
                known.add(body)
            relay.acknowledge(sent, *ranges_of(there))
    assert known == {b"m%d" % number for number in range(came)}
    assert relay.appended == [("inbox", b"m%d" % number) for number in range(came)]
