"""Steering: what an operator does to a running side, that it lasts, and what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples import examples
from holdfast.core.events import BackChannel, Incident, Stopped
from holdfast.core.handling.handler_cursor import HandlerCursor, HandlingPolicy
from holdfast.core.messages import Envelope, Sequence, TerminateSequence
from holdfast.core.queues.cursors import HANDLER
from holdfast.core.queues.retention import RetentionPolicy
from holdfast.core.rm_source.source import RMSource
from holdfast.core.sending.outboxes.outbox import Outbox
from holdfast.core.steering import PAUSED, UNCONFIGURED, Loss, NotSteered, Steering
from tests.core.forwarding.test_forwarding import NEW, Relay, names, said


def steer(relay: Relay) -> Steering:
    return Steering(relay.protocol)


def outbox_of(relay: Relay) -> Outbox:
    return relay.protocol.outbound.outboxes["next"]


def source_of(relay: Relay) -> RMSource:
    source = outbox_of(relay).source
    assert source is not None
    return source


def bodies(relay: Relay, seconds: float = 0.0) -> list[bytes]:
    return [body for _, _, body in said(relay.take(seconds))]


# --- outbound -----------------------------------------------------------------------------------------------------


def test_a_suspended_forwarder_sends_nothing_over_a_restart_and_then_continues() -> None:
    relay = Relay()
    relay.come("m0")
    relay.forward()
    (first,) = relay.take()
    steer(relay).suspend(outbox_of(relay), "the partner is being moved")
    relay.settle()
    relay.come("m1")
    assert bodies(relay, 60.0) == [], "not even again"
    relay.acknowledge(first, (1, 1))
    assert outbox_of(relay).records.first == 1, "what is acknowledged is taken in"

    relay = Relay(relay)
    assert outbox_of(relay).lifecycle.suspended == "the partner is being moved"
    assert bodies(relay, 60.0) == []
    steer(relay).resume(outbox_of(relay), relay.now)
    *_, second = said(relay.take())  # the first one, too: that it is acknowledged is saved now and then only
    assert second[1:] == (2, b"m1")
    assert second[0] == said([first])[0][0], "in the same Sequence"
    assert Relay(relay).protocol.outbound.outboxes["next"].lifecycle.suspended is None


def test_a_second_suspension_without_a_reason_keeps_the_first_one() -> None:
    relay = Relay()
    relay.come("m0")
    relay.forward()
    relay.take()
    destination = relay.protocol.inbound.destinations[relay.inbound]
    for reason, kept in (
        ("the disk", "the disk"),
        ("", "the disk"),
        ("the network", "the network"),
        ("", "the network"),
    ):
        steer(relay).suspend(outbox_of(relay), reason)
        steer(relay).suspend_inbound(destination, reason)
        assert (outbox_of(relay).lifecycle.suspended, destination.suspended) == (kept, kept)


@pytest.mark.parametrize("reason", [PAUSED, UNCONFIGURED])
def test_an_operator_who_suspends_a_paused_forwarder_is_the_one_to_resume_it(reason: str) -> None:
    relay = Relay()
    relay.forward()
    steer(relay).suspend(outbox_of(relay), reason)
    steer(relay).suspend(outbox_of(relay), "")
    assert outbox_of(relay).lifecycle.suspended == ""


def test_a_resumed_forwarder_does_not_decide_about_doubtful_messages() -> None:
    relay = Relay()
    relay.come("m0")
    relay.forward()
    with pytest.raises(NotSteered, match="is not suspended"):
        steer(relay).resume(outbox_of(relay), relay.now)
    steer(relay).suspend(outbox_of(relay), "")
    outbox_of(relay).stop("given up", "", relay.now)
    for verb in (
        lambda: steer(relay).suspend(outbox_of(relay), ""),
        lambda: steer(relay).resume(outbox_of(relay), 0.0),
    ):
        with pytest.raises(NotSteered, match="stopped"):
            verb()
    assert outbox_of(relay).lifecycle.stopped == "given up"


def test_a_sequence_closed_by_an_operator_leaves_the_rest_to_the_next() -> None:
    relay = Relay(window=2)
    relay.come(*names(4))
    relay.forward()
    sent = relay.take()
    assert [number for _, number, _ in said(sent)] == [1, 2]
    steer(relay).end_outbound(outbox_of(relay), relay.now)
    relay.settle()
    assert bodies(relay) == [], "nothing new in this one"
    relay.acknowledge(sent[0], (1, 2))
    rest = said(relay.take())
    assert [(number, body) for _, number, body in rest] == [(1, b"m2"), (2, b"m3")]
    assert rest[0][0] != said(sent)[0][0]
    assert [one.name for one in relay.told if isinstance(one, Incident)].count("sequence.terminated") == 1


def test_a_terminated_outbound_sequence_leaves_what_may_have_arrived_to_somebody() -> None:
    relay = Relay()
    relay.come("m0", "m1")
    relay.forward()
    sent = relay.take()
    relay.acknowledge(sent[1], (2, 2))
    steer(relay).end_outbound(outbox_of(relay), relay.now, terminate=True)
    relay.settle()
    (stopped,) = [one for one in relay.told if isinstance(one, Stopped)]
    assert "1 messages" in stopped.reason
    assert bodies(relay, 60.0) == []
    outbox_of(relay).resume(outbox_of(relay).lifecycle.choices, relay.now)
    assert bodies(relay) == [b"m0"], "m1 is known to have arrived"


def test_a_forwarder_goes_back_in_a_new_sequence_from_number_one() -> None:
    relay = Relay(retention=RetentionPolicy())
    relay.come(*names(5))
    relay.forward()
    sent = relay.take()
    relay.acknowledge(sent[0], (1, 4))
    assert outbox_of(relay).records.first == 4
    assert steer(relay).reset(outbox_of(relay), 2, relay.now) == 2
    relay.settle()
    again = said(relay.take())
    assert [(number, body) for _, number, body in again] == [(1, b"m2"), (2, b"m3"), (3, b"m4")]
    assert again[0][0] != said(sent)[0][0], "its numbers are another Sequence's"

    relay = Relay(relay)
    assert outbox_of(relay).records.first == 2
    assert said(relay.take())[:3] == again, "and the same after a crash"


def test_a_forwarder_moved_ahead_discards_what_never_left_in_its_sequence() -> None:
    relay = Relay(window=1)
    relay.come(*names(4))
    relay.forward()
    (first,) = relay.take()
    relay.acknowledge(first, (1, 1))
    steer(relay).suspend(outbox_of(relay), "")
    relay.take()
    relay.acknowledge(first, (1, 2))
    assert steer(relay).reset(outbox_of(relay), 3, relay.now) == 3
    steer(relay).resume(outbox_of(relay), relay.now)
    relay.settle()
    assert bodies(relay) == [b"m3"]
    assert outbox_of(relay).lifecycle.stopped == ""


def test_a_forwarder_moved_past_what_left_stops_if_more_may_have_arrived() -> None:
    relay = Relay()
    relay.come(*names(4))
    relay.forward()
    assert len(relay.take()) == 4
    steer(relay).reset(outbox_of(relay), 2, relay.now)
    relay.settle()
    assert outbox_of(relay).lifecycle.stopped
    assert outbox_of(relay).source is None
    assert bodies(relay, 60.0) == []
    outbox_of(relay).resume(outbox_of(relay).lifecycle.choices, relay.now)
    assert bodies(relay) == [b"m2", b"m3"]


def test_beyond_the_ends_a_forwarder_stands_at_them() -> None:
    relay = Relay()
    relay.come("m0")
    relay.forward()
    relay.take()
    assert steer(relay).reset(outbox_of(relay), 99, relay.now) == 1
    relay.settle()
    relay.come("m1")
    assert bodies(relay) == [b"m1"]


def test_records_are_kept_no_longer_for_a_deleted_suspended_forwarder() -> None:
    relay = Relay(drops_passed=True)
    relay.come("m0", "m1")
    relay.forward()
    relay.forward("other")
    relay.acknowledge(relay.take()[0], (1, 1))
    with pytest.raises(NotSteered, match="is sending"):
        steer(relay).delete(outbox_of(relay), relay.now)
    steer(relay).suspend(outbox_of(relay), "")
    assert steer(relay).delete(outbox_of(relay), relay.now) == 1
    relay.settle()
    assert list(relay.protocol.outbound.outboxes) == ["other"]
    relay.come("m2")
    other = relay.protocol.outbound.outboxes["other"]
    while not other.records.is_empty:
        for sent in relay.take(1.0):
            assert sent.envelope.sequence is not None
            relay.acknowledge(sent, (1, sent.number))
    assert relay.kept == range(3, 3)
    relay = Relay(relay)
    assert list(relay.protocol.outbound.outboxes) == ["other"]
    assert list(relay.queue.cursors) == ["outbound/other"]


# --- inbound ------------------------------------------------------------------------------------------------------


def test_a_suspended_inbound_sequence_accepts_new_messages_only_once_resumed() -> None:
    relay = Relay()
    relay.come("m0")
    destination = relay.protocol.inbound.destinations[relay.inbound]
    steer(relay).suspend_inbound(destination, "too fast")
    relay.settle()
    relay.come("m1")
    assert destination.acknowledged.to_state() == [1, 1]
    assert [one.number for one in relay.told if isinstance(one, Incident) and one.name == "message.not_held"] == [2]

    relay = Relay(relay)
    (destination,) = relay.protocol.inbound.destinations.values()
    assert destination.suspended == "too fast"
    relay.inbound, relay.number = destination.identifier, iter((2, 2))
    relay.come("m1")
    assert destination.acknowledged.to_state() == [1, 1]
    steer(relay).resume_inbound(destination)
    relay.come("m1")
    assert destination.acknowledged.to_state() == [1, 2]
    assert Relay(relay).protocol.inbound.destinations[destination.identifier].suspended is None
    with pytest.raises(NotSteered, match="not suspended"):
        steer(relay).resume_inbound(destination)


def test_what_a_suspended_sequence_has_already_is_acknowledged_when_it_comes_again() -> None:
    relay = Relay()
    relay.come("m0")
    destination = relay.protocol.inbound.destinations[relay.inbound]
    steer(relay).suspend_inbound(destination, "")
    envelope = Envelope(NEW.soap, NEW.addressing, NEW.rm)
    envelope.action, envelope.body, envelope.sequence = "urn:a", b"m0", Sequence(relay.inbound, 1, False)
    relay.protocol.receive(envelope, BackChannel(object()), relay.now)
    relay.settle()
    assert [one.name for one in relay.told if isinstance(one, Incident)][-1] == "message.duplicate_dropped"


def test_a_sequence_that_is_over_is_not_suspended() -> None:
    relay = Relay()
    relay.come("m0")
    envelope = Envelope(NEW.soap, NEW.addressing, NEW.rm)
    envelope.action, envelope.message_id = "urn:end", "urn:m:end"
    envelope.control = TerminateSequence(relay.inbound)
    relay.protocol.receive(envelope, BackChannel(object()), relay.now)
    relay.settle()
    with pytest.raises(NotSteered, match="has ended"):
        steer(relay).suspend_inbound(relay.protocol.inbound.destinations[relay.inbound], "")


# --- cursors and purging ------------------------------------------------------------------------------------------


def test_a_readers_cursor_goes_anywhere_within_what_is_there_and_stays_there() -> None:
    relay = Relay(retention=RetentionPolicy())
    relay.come(*names(5))
    relay.queue.advance("spark", {0: 4}, relay.now)
    relay.settle()
    assert [steer(relay).reset_reader(relay.queue, "spark", 0, at, relay.now) for at in (1, 99, 3)] == [1, 5, 3]
    relay.settle()
    relay = Relay(relay)
    assert relay.queue.cursors["spark"].offsets == {0: 3}
    for name in ("nobody", HANDLER):
        with pytest.raises(NotSteered, match="no reader"):
            steer(relay).reset_reader(relay.queue, name, 0, 0, relay.now)


def test_a_purge_names_who_misses_records_and_deletes_none_still_to_be_sent() -> None:
    relay = Relay(retention=RetentionPolicy())
    relay.come(*names(10))
    relay.queue.advance("spark", {0: 4}, relay.now)
    relay.forward()
    sent = relay.take()
    relay.acknowledge(sent[0], (1, 6))
    losses = steer(relay).would_drop(relay.queue, 0, 8)
    assert losses == [Loss("spark", "reader", 4), Loss("outbound/next", "outbound", 2)]
    assert [one.is_owed for one in losses] == [False, True]
    steer(relay).purge(relay.queue, {0: 8})
    relay.settle()
    assert relay.kept.start <= 6, "the forwarder has the rest still to send"
    (behind,) = steer(relay).forwarders_behind(relay.queue, 0, 8)
    steer(relay).reset(behind, 8, relay.now)
    steer(relay).purge(relay.queue, {0: 8})
    relay.settle()
    assert relay.kept == range(8, 10)
    assert relay.queue.description.fingerprint(0, 8), "a reader can still tell this queue from another"
    assert Relay(relay).kept == range(8, 10)


def test_a_queue_that_keeps_for_ever_can_be_purged() -> None:
    relay = Relay()
    relay.come(*names(3))
    steer(relay).purge(relay.queue, {0: 99})
    relay.settle()
    assert relay.kept == range(3, 3)
    relay.come("m3")
    assert relay.kept == range(3, 4)


def test_a_purge_is_one_event_at_the_documented_level_for_all_partitions() -> None:
    relay = Relay()
    relay.come(*names(3))
    relay.settle()
    protocol = relay.protocol
    protocol.effects.clear()
    steer(relay).purge(relay.queue, dict.fromkeys(range(len(relay.queue.records.ends)), 3))
    (told,) = [one for one in protocol.effects if isinstance(one, Incident)]
    assert (told.name, told.level, told.detail) == (
        "queue.purged",
        "info",
        {"queue": relay.queue.name, "records": 3, "below": {0: 3}},
    )
    relay.settle()
    protocol.effects.clear()
    steer(relay).purge(relay.queue, {0: 3})
    assert not [one for one in protocol.effects if isinstance(one, Incident)]


# --- the handlers' cursor -----------------------------------------------------------------------------------------


def cursor_of(*sequences: str, in_order: bool = True) -> HandlerCursor:
    cursor = HandlerCursor(HandlingPolicy(), in_order)
    for offset, sequence in enumerate(sequences):
        cursor.offer(offset, sequence)
    return cursor


def test_a_cursor_that_is_rewound_offers_all_again_but_what_is_with_a_handler() -> None:
    cursor = cursor_of("a", "a", "b")
    assert cursor.take(0.0) == 0
    cursor.finished(0)
    assert (cursor.take(0.0), cursor.take(0.0)) == (2, 1)
    cursor.finished(2)
    cursor.rewind(0)
    assert (cursor.floor, cursor.next_offset) == (0, 0)
    assert all(cursor.offer(offset, sequence) for offset, sequence in enumerate("aab"))
    assert cursor.take(0.0) == 2
    assert cursor.take(0.0) is None, "1 is with a handler, and its Sequence waits for that"
    cursor.finished(1)
    assert cursor.take(0.0) == 0
    cursor.finished(0)
    cursor.finished(2)
    assert cursor.floor == 3


@settings(max_examples=examples(300))
@given(st.booleans(), st.lists(st.tuples(st.integers(0, 5), st.integers(0, 11)), max_size=60))
def test_whatever_is_moved_a_sequence_is_handed_over_whole_and_in_order(
    in_order: bool, steps: list[tuple[int, int]]
) -> None:
    """With records in memory as :class:`HandlerSchedule` keeps them: what is offered, until it is done with."""
    end, now = 12, 0.0
    sequences = ["abc"[offset % 3] for offset in range(end)]
    cursor = HandlerCursor(HandlingPolicy(attempts=None, ahead=8), in_order)
    owed, running, kept = set(range(end)), [], set()

    def fill() -> None:
        while cursor.next_offset < end and cursor.has_room:
            offset = cursor.next_offset
            kept.add(offset)
            if not cursor.offer(offset, sequences[offset]):
                kept.discard(offset)

    def take() -> None:
        offset = cursor.take(now)
        if offset is not None:
            assert offset in kept, "its record is in memory"
            assert offset not in running
            running.append(offset)
            if in_order:
                assert len({sequences[one] for one in running}) == len(running)

    def finish(which: int) -> None:
        offset = running.pop(which % len(running))
        cursor.finished(offset)
        kept.discard(offset)
        owed.discard(offset)

    for step, number in steps:
        fill()
        if step in (0, 1):
            take()
        elif step == 2 and running:
            finish(number)
        elif step == 3 and running:
            offset = running.pop(number % len(running))
            assert cursor.failed(offset, now)
        elif step == 4 and cursor.skip(number):
            kept.discard(number)
            owed.discard(number)
        elif step == 5:
            now += 100.0
            before = min(number, cursor.floor)
            cursor.rewind(before)
            owed |= set(range(before, end))
    for _ in range(10 * end):
        fill()
        now += 100.0
        take()
        if running:
            finish(0)
    assert not owed
    assert cursor.floor == end
    assert cursor.take(now) is None


@pytest.mark.parametrize("in_order", [True, False])
def test_what_is_skipped_is_done_with_wherever_it_was(in_order: bool) -> None:
    cursor = cursor_of("a", "a", "a", in_order=in_order)
    assert cursor.skip(0)
    assert not cursor.skip(0)
    assert cursor.take(0.0) == 1
    assert not cursor.skip(1), "it is with a handler"
    assert cursor.skip(2)
    assert cursor.skip(4), "not offered yet"
    cursor.finished(1)
    assert (cursor.floor, cursor.take(0.0)) == (3, None)
    assert cursor.offer(3, "a")
    assert not cursor.offer(4, "a")


def test_what_failed_and_is_skipped_is_not_tried_again() -> None:
    cursor = cursor_of("a", "a")
    assert cursor.take(0.0) == 0
    assert cursor.failed(0, 0.0)
    assert cursor.skip(0)
    assert cursor.take(1000.0) == 1
    assert cursor.deadline() is None


def test_without_handlers_nothing_is_handed_over_again() -> None:
    relay = Relay()
    relay.come("m0")
    with pytest.raises(NotSteered, match="has no handlers"):
        steer(relay).replay(relay.queue, 0, 0, relay.now)
