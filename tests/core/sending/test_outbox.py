"""An outbox whose records are read late: meanwhile all goes on, and nothing is sent twice, left out or out of order.

Covers core/rm_source/request_index.py.
"""

from __future__ import annotations

import itertools
import sys
from collections import deque
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sending import NEW as VERSIONS
from sending import Sending as HalfOfSending

from examples import examples
from holdfast.core.events import Acknowledged, ReadWanted, Stopped, Transmit
from holdfast.core.messages import (
    Fault,
)
from holdfast.core.records import Record
from holdfast.core.retransmission import RetransmissionPolicy
from holdfast.core.sending.outboxes.outbox import Outbox
from holdfast.core.sending.outboxes.records import READ_AHEAD
from holdfast.store import MemoryStore


def anybody(_outbox: Outbox) -> bool:
    return True


STEADY = RetransmissionPolicy(initial=10.0, floor=10.0, cap=10.0, jitter=0.0)


class Sending(HalfOfSending):
    """A sending half whose reads are answered when the test says so."""

    def __init__(self, store: MemoryStore | None = None, window: int = 32, now: float = 100.0) -> None:
        self.reads: deque[ReadWanted] = deque()
        super().__init__(store, now=now, retransmission=STEADY, initial_window=window, window=window)
        self.choices = [(VERSIONS, False)]

    def open(self, key: str = "a") -> Outbox:
        outbox = super().open(key)
        self.settle()
        return outbox

    def submit(self, outbox: Outbox, count: int, *, asks: bool = False) -> None:
        for _ in range(count):
            body = f"{outbox.records.end + 1}"
            record = Record("", 0, "urn:a", body.encode(), self.now, f"urn:{outbox.key}:{body}", wants_reply=asks)
            self.protocol.submit(outbox, record, self.now)
        self.settle()

    def _see_to_effects(self) -> None:
        for effect in self.protocol.take_effects():
            if isinstance(effect, ReadWanted):
                self.reads.append(effect)
            else:
                (self.transmitted if isinstance(effect, Transmit) else self.told).append(effect)

    def read(self) -> None:
        """The oldest read is answered."""
        wanted = self.reads.popleft()
        found = self.store.read(wanted.queue, wanted.partition, wanted.start, wanted.end)
        self.protocol.records_read(wanted, found, self.now)
        self.settle()

    def read_all(self) -> None:
        while self.reads:
            self.read()

    take = HalfOfSending.take_granting
    acknowledge = HalfOfSending.post_acknowledgement

    @property
    def acknowledged(self) -> list[int]:
        ranges = [(one.first, one.last) for one in self.told if isinstance(one, Acknowledged)]
        return [offset for first, last in ranges for offset in range(first, last + 1)]


def bodies(sent: list[Transmit]) -> list[int]:
    return [int(one.envelope.body or b"0") for one in sent]


def backlog(count: int, window: int = 32, *, asks: bool = False) -> tuple[Sending, Outbox]:
    """So many messages wait in the store, and no Sequence is open yet."""
    before = Sending()
    before.submit(before.open(), count, asks=asks)
    sending = Sending(before.store, window)
    return sending, sending.open()


def sent_before(count: int, window: int = 32, *, asks: bool = False) -> tuple[Sending, Outbox]:
    """An earlier run has transmitted some, and died before anything was acknowledged."""
    before = Sending(window=window)
    outbox = before.open()
    before.submit(outbox, count, asks=asks)
    sent = len(before.take())
    while before.reads:
        before.read()
        sent += len(before.take())
    assert sent == min(count, window)
    sending = Sending(before.store, window, before.now + 1.0)
    return sending, sending.open()


@settings(max_examples=examples(100), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.integers(1, 150), min_size=1, max_size=40), *[st.integers(1, 120)] * 2, st.integers(1, 4))
def test_whatever_their_sizes_messages_are_read_some_times_each_and_all_go_out(
    monkeypatch: Any, sizes: list[int], most: int, at_once: int, window: int
) -> None:
    """What is in memory and what a read gives are bounded in bytes: neither may make the other in vain, for ever."""
    monkeypatch.setattr("holdfast.core.sending.read_ahead_buffer.MOST_BYTES", most)
    monkeypatch.setattr("holdfast.core.sending.read_ahead_buffer.RECORD_BYTES", 0)
    store = MemoryStore()
    before = Sending(store)
    outbox = before.open()
    for size in sizes:
        before.protocol.submit(outbox, Record("", 0, "urn:a", b"x" * size, 100.0), 100.0)
    before.settle()
    reads = 0

    def read(queue: str, partition: int, start: int, end: int) -> list[tuple[int, Record]]:
        nonlocal reads
        reads += 1
        assert reads <= 10 * len(sizes), "it reads for ever"
        return MemoryStore.read(store, queue, partition, start, end, max_bytes=at_once)

    monkeypatch.setattr(store, "read", read)
    sending = Sending(store, window)
    outbox = sending.open()
    gone: list[int] = []
    while len(gone) < len(sizes):
        gone += [one.number for one in sending.take()]
        sending.read_all()  # also while the window is full
        gone += [one.number for one in sending.take()]
        if gone:
            sending.acknowledge(outbox, (1, len(gone)))
    assert gone == list(range(1, len(sizes) + 1))
    sending.read_all()


def test_nothing_is_sent_of_what_is_not_read_and_all_of_it_in_order_when_it_is() -> None:
    sending, outbox = backlog(200)
    assert sending.take() == []
    sent: list[int] = []
    while sending.reads:
        sending.read()
        while came := bodies(sending.take()):
            sent += came
            sending.acknowledge(outbox, (1, sent[-1]))
    assert sent == list(range(1, 201))
    assert sending.acknowledged == list(range(200))


def test_an_outbox_is_idle_while_it_has_nothing_to_send_to_begin_or_to_end() -> None:
    sending = Sending(window=1)
    outbox, outbound = sending.open(), sending.protocol.outbound

    def is_idle() -> bool:
        outbox.ready()
        return outbound.is_idle

    sending.submit(outbox, 1)
    assert not is_idle(), "a Sequence is to begin"
    sending.take()
    assert is_idle(), "its only message is on its way"
    sending.submit(outbox, 1)
    assert not is_idle(), "one waits for the window"
    sending.acknowledge(outbox, (1, 1))
    assert is_idle() and len(sending.take()) == 1
    outbox.want_end(sending.now)
    assert not is_idle(), "the Sequence is to end"
    sending.acknowledge(outbox, (1, 2))
    outbound.registry.close(outbox.key, sending.now)
    assert outbound.is_idle


def test_a_backlog_costs_one_read_for_many_messages_before_they_are_needed() -> None:
    sending, outbox = backlog(20 * READ_AHEAD)
    sending.take()
    reads, sent = 0, 0
    while sending.reads:
        sending.read()
        reads += 1
        while not sending.reads and (came := bodies(sending.take())):
            sent = came[-1]
            sending.acknowledge(outbox, (1, sent))
        if sending.reads and sent < 20 * READ_AHEAD:
            source = outbox.source
            assert source is not None
            assert outbox.records.record(source.numbers.start + source.numbers.next - 1) is not None, (
                "one is still to go out meanwhile"
            )
    sent = max([sent, *bodies(sending.take())])
    assert sent == 20 * READ_AHEAD
    assert reads == 20


def test_what_is_submitted_faster_than_it_is_sent_costs_no_more_reads() -> None:
    sending = Sending()
    outbox = sending.open()
    reads = 0
    sending.submit(outbox, 200)
    sent = len(sending.take())
    sending.acknowledge(outbox, (1, sent))
    for _ in range(100):
        sending.submit(outbox, 32)
        if sending.reads:
            sending.read()
            reads += 1
        for one in bodies(sending.take()):
            assert one == sent + 1
            sent = one
        sending.acknowledge(outbox, (1, sent))
    assert sent >= 3200
    assert reads <= 3200 // READ_AHEAD + 2


def test_memory_holds_three_times_what_is_read_at_once_whatever_waits() -> None:
    sending, outbox = backlog(1000, window=500)
    most = 0
    sending.take()
    while sending.reads:
        sending.read()
        sending.take()
        most = max(most, len(outbox.records.here))
    assert READ_AHEAD <= most <= 3 * READ_AHEAD


def test_what_is_no_longer_in_memory_stays_due_until_it_is_read() -> None:
    sending, outbox = backlog(300, window=300)
    sent = bodies(sending.take())
    while sending.reads:
        sending.read()
        sent += bodies(sending.take())
    assert sent == list(range(1, 301))
    sending.acknowledge(outbox, (1, 10))
    sending.now += 11.0
    again = sending.take()
    assert again and all(one.attempt == 2 for one in again)
    here = set(bodies(again))
    assert sending.reads, "the others are asked for"
    due = sending.protocol.deadline()
    assert due is None or due > sending.now, "nobody is to look again before they come"
    assert sending.take() == []
    came = list(here)
    while sending.reads:
        sending.read()
        came += bodies(sending.take())
    assert sorted(came) == list(range(11, 11 + len(came))), "each of those that may go, once"
    assert len(came) == 150, "as many as the window lets go that the loss has halved"


def test_an_acknowledgement_during_a_read_spares_the_retransmission() -> None:
    sending, outbox = backlog(300, window=300)
    sending.take()
    while sending.reads:
        sending.read()
        sending.take()
    sending.now += 11.0
    sending.take()
    assert sending.reads
    sending.acknowledge(outbox, (1, 300))
    sending.transmitted.clear()
    sending.read_all()
    assert sending.take() == []
    assert sending.acknowledged == list(range(300))


def test_a_fault_that_ends_the_sequence_while_a_read_is_under_way_harms_nothing() -> None:
    sending, outbox = backlog(200)
    sending.take()
    sending.read()
    sending.take()
    sending.acknowledge(outbox, (1, 32))
    assert outbox.source is not None and sending.reads
    for one in sending.take():
        sending.protocol.failed(one, sending.now, "its answer was lost")
    fault = Fault("SequenceTerminated", "gone", is_rm=True, identifier=outbox.source.identifier)
    sending.answer(None, fault=fault)
    assert [one.key for one in sending.told if isinstance(one, Stopped)] == ["a"]
    sending.transmitted.clear()
    sending.read_all()
    assert sending.take() == []
    outbox.resume([(VERSIONS, False)], sending.now)
    sent = bodies(sending.take())
    while sending.reads:
        sending.read()
        sent += bodies(sending.take())
    assert sent == list(range(33, 65)), "it goes on where it was, in another Sequence"


def test_after_a_restart_nothing_is_sent_before_the_earlier_run_is_known() -> None:
    sending, _ = sent_before(10, asks=True)
    assert sending.protocol.outbound.reading.is_recovering
    assert sending.take() == []
    assert sending.protocol.deadline() is None
    sending.read_all()
    assert not sending.protocol.outbound.reading.is_recovering
    assert bodies(sending.take()) == list(range(1, 11)), "what is read for that need not be read again"


@pytest.mark.parametrize("numbers", [(1,), (10,), (150,), (200, 3)])
def test_a_reply_finds_a_request_that_only_an_earlier_run_has_sent(numbers: tuple[int, ...]) -> None:
    sending, outbox = sent_before(200, window=200, asks=True)
    sending.read_all()
    for number in numbers:
        assert sending.protocol.outbound.request_of(f"urn:a:{number}", anybody) == (outbox, number)
        outbox.receive_reply(number)
        assert sending.protocol.outbound.request_of(f"urn:a:{number}", anybody) is None, (
            "its reply is on its way to the store"
        )
    sending.settle()
    assert sending.acknowledged == [number - 1 for number in numbers]
    assert sending.protocol.outbound.request_of("urn:a:201", anybody) is None


def test_an_acknowledgement_right_after_a_restart_does_not_stand_for_a_reply() -> None:
    sending, outbox = sent_before(100, window=100, asks=True)
    sending.read_all()
    sending.acknowledge(outbox, (1, 100))
    assert sending.acknowledged == []
    assert outbox.source is not None and len(outbox.source.waiting.unreplied) == 100
    for number in range(1, 101):
        found = sending.protocol.outbound.request_of(f"urn:a:{number}", anybody)
        assert found == (outbox, number)
        found[0].receive_reply(found[1])
    sending.settle()
    assert sending.acknowledged == list(range(100))
    assert len(sending.protocol.outbound.context.requests) == 0, "nothing of them is kept"


def test_requests_of_a_sequence_that_is_given_up_are_forgotten() -> None:
    sending, outbox = sent_before(100, window=50, asks=True)
    sending.read_all()
    sending.take()
    assert outbox.source is not None
    fault = Fault("SequenceTerminated", "gone", is_rm=True, identifier=outbox.source.identifier)
    sending.answer(None, fault=fault)
    assert outbox.source is None
    assert len(sending.protocol.outbound.context.requests) == 0


def test_finding_a_request_costs_the_same_however_many_outboxes_there_are() -> None:
    calls = []
    for count in (10, 500):
        sending = Sending()
        for number in range(count):
            sending.submit(sending.open(f"k{number}"), 1, asks=True)
        sending.take()
        counted = 0

        def count_calls(_frame: object, event: str, _argument: object) -> None:
            nonlocal counted
            counted += event in ("call", "c_call")

        sys.setprofile(count_calls)
        found = sending.protocol.outbound.request_of(f"urn:k{count - 1}:1", anybody)
        missing = sending.protocol.outbound.request_of("urn:nobody", anybody)
        sys.setprofile(None)
        assert found is not None and found[0].key == f"k{count - 1}" and missing is None
        calls.append(counted)
    assert calls[0] == calls[1]


@settings(max_examples=examples(30), deadline=None)
@given(st.integers(1, 300), st.sampled_from([1, 8, 32, 100, 200]), st.data())
def test_whenever_reads_come_every_message_arrives_and_new_ones_leave_in_order(
    count: int, window: int, data: st.DataObject
) -> None:
    sending, outbox = sent_before(count, window) if data.draw(st.booleans()) else backlog(count, window)
    arrived: set[int] = set()
    highest = steps = 0
    while not outbox.records.is_empty:
        steps += 1
        if sending.reads and data.draw(st.booleans()):
            sending.read()
        elif steps % 3 == 0:
            sending.now += data.draw(st.sampled_from([0.0, 0.1, 11.0]))
        for sent in sending.take():
            number = int(sent.envelope.body or b"0")
            assert number <= highest + 1, "a new one leaves after those before it"
            assert (sent.attempt == 1) == (number > highest), "nothing leaves for the first time twice"
            highest = max(highest, number)
            if steps > 200 or data.draw(st.integers(0, 4)):
                arrived.add(number)
        if outbox.source is not None and outbox.source.identifier is not None and arrived:
            first_gap = next(number for number in itertools.count(1) if number not in arrived)
            if first_gap > 1:
                sending.acknowledge(outbox, (1, first_gap - 1))
        if steps > 200:
            sending.read_all()
            sending.now += 11.0
        assert steps < 2000
    assert sending.acknowledged == list(range(count))
