"""The mark: what may have been transmitted is known after a crash, at no write for each message, and a restart reads
the same whatever waits.

Covers core/sending/outboxes/transmission_mark.py.
"""

from __future__ import annotations

import random
from collections import deque
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples import examples
from holdfast.core.events import Effect, Incident, ReadWanted, Stopped, Transmit
from holdfast.core.forwarding.undeliverable import discard
from holdfast.core.handling.delivery import HandlerSettings
from holdfast.core.handling.handler_cursor import HandlingPolicy
from holdfast.core.messages import (
    Acknowledge,
    CreateSequence,
    CreateSequenceResponse,
    Envelope,
    Fault,
    SequenceAcknowledgement,
)
from holdfast.core.origin import Origin
from holdfast.core.policy import SourcePolicy
from holdfast.core.protocol import RMProtocol
from holdfast.core.protocol_settings import Environment, Policies
from holdfast.core.queues.dead_letters import DeadLetters
from holdfast.core.queues.queue import Queue
from holdfast.core.queues.retention import RetentionPolicy
from holdfast.core.records import Batch, Record
from holdfast.core.rm_source.source import RMSource
from holdfast.core.sending.outboxes.outbox import Outbox
from holdfast.core.sending.outboxes.outdated_copy import OUTDATED
from holdfast.core.sending.outboxes.records import SAVE_EVERY
from holdfast.core.versions import Versions
from holdfast.endpoint.handling.dead_letters import seal, unseal
from holdfast.store import MemoryStore

TO = "http://d/"
VERSIONS = Versions("1.1")
WINDOW = 8
AHEAD = 16


class CountingStore(MemoryStore):
    """Counts the records that are read of it."""

    records_read = 0

    def read(
        self, queue: str, partition: int, start: int, end: int, max_bytes: int = 1 << 20
    ) -> list[tuple[int, Record]]:
        found = super().read(queue, partition, start, end, max_bytes)
        self.records_read += len(found)
        return found


class Side:
    """A side whose batches become durable when the test says so, and that sends to a destination of our choosing."""

    def __init__(self, store: CountingStore, ahead: int = AHEAD, window: int = WINDOW, partitions: int = 2) -> None:
        self.store = store
        self.now = 100.0
        self.transmitted: list[Transmit] = []
        self.told: list[Effect] = []
        self.pending: deque[Batch] = deque()
        self.batches: list[Batch] = []
        letters = DeadLetters(seal, unseal)
        queue = Queue("inbox", partitions, RetentionPolicy(), dead_letters=letters)
        queue.deletion.is_handled = True
        chance = random.Random(1)
        self.protocol = RMProtocol(
            queue,
            Environment(store.read, lambda: f"urn:id:{chance.random()}", lambda: 0.0),
            letters=letters,
            handling=HandlerSettings(HandlingPolicy(concurrency=4), lambda _record: None),
            policies=Policies(source=SourcePolicy(initial_window=window, window=window, mark_ahead=ahead)),
        )
        assert self.protocol.handling is not None
        self.handling = self.protocol.handling
        self.protocol.recover(store.load(), self.now)
        if not queue.description.epoch:
            queue.description.begin("epoch")
        self.handling.start(self.now)

    def open(self, key: str = "a") -> Outbox:
        outbox = self.protocol.outbound.open(key, TO, [(VERSIONS, False)])
        self.settle()
        return outbox

    def submit(self, outbox: Outbox, count: int) -> None:
        for _ in range(count):
            number = outbox.records.end + 1
            self.protocol.submit(outbox, Record("", 0, "urn:a", b"%d" % number, 1.0, f"urn:{number}"), self.now)
        self.settle()

    def turn(self, *, until_recovered: bool = False) -> None:
        """Do what is wanted, but for making anything durable."""
        self.protocol.pump(self.now)
        while effects := self.protocol.take_effects():
            for effect in effects:
                if until_recovered and not self.protocol.outbound.reading.is_recovering:
                    return
                if isinstance(effect, ReadWanted):
                    found = self.store.read(effect.queue, effect.partition, effect.start, effect.end)
                    self.protocol.records_read(effect, found, self.now)
                elif isinstance(effect, Transmit):
                    self.transmitted.append(effect)
                else:
                    self.told.append(effect)
            self.protocol.pump(self.now)
        if self.protocol.wants_commit:
            self.pending.append(self.protocol.take_batch())

    def durable(self) -> None:
        batch = self.pending.popleft()
        self.store.commit(batch)
        self.batches.append(batch)
        self.protocol.batch_durable(self.now)

    def settle(self) -> None:
        self.turn()
        while self.pending:
            self.durable()
            self.turn()

    def take(self) -> list[int]:
        """The numbers that were transmitted since the last call. A CreateSequence is granted."""
        taken, self.transmitted = self.transmitted, []
        for sent in taken:
            if isinstance(sent.envelope.control, CreateSequence):
                self.answer(sent, control=CreateSequenceResponse(f"urn:s:{sent.source}"))
        numbers = [sent.number for sent in taken if sent.number]
        return numbers + self.take() if self.transmitted else numbers

    def answer(self, sent: Transmit | None, **fields: Any) -> None:
        envelope = Envelope(VERSIONS.soap, VERSIONS.addressing, VERSIONS.rm, **fields)
        if sent is None:
            self.protocol.receive(envelope, None, self.now, origin=Origin(TO))
        else:
            envelope.relates_to = sent.envelope.message_id
            self.protocol.received(sent, envelope, self.now)
        self.settle()

    def acknowledge(self, outbox: Outbox, *ranges: tuple[int, int], settles: bool = True) -> None:
        acknowledgement = SequenceAcknowledgement(source_of(outbox).identifier or "", ranges)
        envelope = Envelope(VERSIONS.soap, VERSIONS.addressing, VERSIONS.rm, control=Acknowledge())
        envelope.acknowledgements = (acknowledgement,)
        self.protocol.receive(envelope, None, self.now, origin=Origin(TO))
        if settles:
            self.settle()

    def again(self, **options: Any) -> Side:
        """It died, and what was durable is there."""
        return Side(self.store, **options)


def source_of(outbox: Outbox) -> RMSource:
    assert outbox.source is not None
    return outbox.source


def waiting(backlog: int, *, handed_in: int = 0, window: int = WINDOW, ahead: int = AHEAD) -> tuple[Side, Outbox]:
    """So many messages wait, of a Sequence that is granted and has transmitted what its window allows; and so many in
    the queue of what comes in."""
    side = Side(CountingStore(), ahead, window)
    outbox = side.open()
    side.submit(outbox, backlog)
    batch = Batch()
    for offset in range(handed_in):
        batch.appends.append(("inbox", 0, offset, Record("urn:in", offset + 1, "urn:a", b"x", 99.0)))
    side.store.commit(batch)
    assert side.take() == list(range(1, window + 1))
    return side, outbox


def test_a_restart_reads_the_same_before_it_sends_whatever_waits() -> None:
    read = []
    for backlog in (10, 100_000):
        side, _ = waiting(backlog, handed_in=backlog, window=2, ahead=4)
        side.store.records_read = 0
        again = side.again(window=2, ahead=4)
        again.turn(until_recovered=True)
        assert not again.protocol.outbound.reading.is_recovering
        read.append(side.store.records_read)
    assert read[0] == read[1] == 4 + 1, "what is marked, and the newest record of the one partition that has any"


def test_a_restart_reads_ahead_the_same_whatever_waits() -> None:
    read = []
    for backlog in (1_200, 100_000):
        side, _ = waiting(backlog, handed_in=backlog)
        side.store.records_read = 0
        side.again().turn()
        read.append(side.store.records_read)
    assert read[0] == read[1] < 1_200


@pytest.mark.parametrize("ranges", [((1, 3),), ((1, 3), (5, 6)), ((2, 4),)])
def test_after_a_stop_nothing_that_was_acknowledged_waits_or_is_sent_again(ranges: tuple[tuple[int, int], ...]) -> None:
    side, outbox = waiting(20)
    side.acknowledge(outbox, *ranges)
    waits = outbox.records.waiting
    assert waits == 20 - sum(upper - lower + 1 for lower, upper in ranges)
    side.protocol.save_progress(side.now)
    side.settle()
    restarted = side.again()
    assert restarted.protocol.outbound.outboxes["a"].records.waiting == waits
    acknowledged = {number for lower, upper in ranges for number in range(lower, upper + 1)}
    assert not acknowledged & set(restarted.take())


def test_a_stop_writes_nothing_about_sequences_without_news() -> None:
    side, outbox = waiting(20)
    side.protocol.save_progress(side.now)
    assert not side.protocol.wants_commit
    side.acknowledge(outbox, (1, 3))
    side.protocol.save_progress(side.now)
    side.settle()
    side.protocol.save_progress(side.now)
    assert not side.protocol.wants_commit


def test_what_may_have_been_transmitted_is_at_most_a_window_and_what_is_marked_ahead() -> None:
    side, outbox = waiting(5000)
    sent = WINDOW
    for _ in range(300):
        side.acknowledge(outbox, (1, sent))
        sent = side.take()[-1]
        restarted = side.again().protocol.outbound.outboxes["a"]
        assert restarted.records.in_doubt() <= SAVE_EVERY + WINDOW + AHEAD
        assert source_of(restarted).numbers.sent_before >= sent, "nothing that left is beyond it"


def test_the_mark_costs_no_write_of_its_own_while_all_is_acknowledged_in_time() -> None:
    saves = []
    for ahead in (256, 1 << 40):
        side = Side(CountingStore(), ahead=ahead, window=32)
        outbox = side.open()
        side.submit(outbox, 20 * SAVE_EVERY)
        sent = side.take()
        side.batches.clear()
        while not outbox.records.is_empty:
            side.acknowledge(outbox, (1, sent[-1]))
            sent = side.take() or sent
        saves.append(sum(bool(batch.sequences) for batch in side.batches))
    assert saves[0] == saves[1] <= 20


def test_numbers_wait_for_their_mark_to_be_durable_and_go_on_then() -> None:
    side = Side(CountingStore(), ahead=4, window=32)
    outbox = side.open()
    side.submit(outbox, 10)
    (created,) = side.transmitted
    side.transmitted.clear()
    side.protocol.received(
        created,
        Envelope(
            VERSIONS.soap,
            VERSIONS.addressing,
            VERSIONS.rm,
            control=CreateSequenceResponse("urn:s"),
            relates_to=created.envelope.message_id,
        ),
        side.now,
    )
    sent: list[int] = []
    while len(sent) < 10:
        side.turn()
        assert side.take() == [], "its mark is not durable"
        assert side.pending, "and is on its way to the disk"
        side.durable()
        side.turn()
        came = side.take()
        assert len(came) <= 4
        sent += came
    assert sent == list(range(1, 11))


def test_after_a_restart_an_acknowledgement_counts_up_to_the_mark() -> None:
    side, _ = waiting(1000)
    again = side.again()
    again.settle()
    outbox = again.protocol.outbound.outboxes["a"]
    mark = source_of(outbox).numbers.mark
    assert mark < 1000
    older = side.again()
    older.settle()
    again.acknowledge(outbox, (1, mark))
    assert source_of(outbox).acknowledged.covers(mark)
    assert not [one.name for one in again.told if isinstance(one, Incident)]
    outbox = older.protocol.outbound.outboxes["a"]
    older.acknowledge(outbox, (1, mark + 1))
    assert [one.name for one in older.told if isinstance(one, Incident)] == [OUTDATED], "only a lost run sent it"


def test_after_a_restart_what_is_beyond_the_mark_is_given_up_without_the_sequence() -> None:
    side, _ = waiting(1000)
    again = side.again()
    again.settle()
    outbox = again.protocol.outbound.outboxes["a"]
    source = source_of(outbox)
    assert outbox.records.may_have_left(source.numbers.mark - 1) and not outbox.records.may_have_left(
        source.numbers.mark
    )
    discard(again.protocol.outbound, outbox, source.numbers.mark, again.now)
    assert outbox.source is source and not outbox.lifecycle.stopped
    discard(again.protocol.outbound, outbox, source.numbers.mark - 1, again.now)
    again.settle()
    assert outbox.lifecycle.stopped and outbox.source is None, "it may have arrived"


def test_a_state_saved_without_a_mark_puts_every_stored_message_in_doubt() -> None:
    side, _ = waiting(300)
    batch = Batch()
    for name, state in side.store.load().sequences.items():
        batch.sequences[name] = {key: value for key, value in state.items() if key != "mark"}
    side.store.commit(batch)
    again = side.again()
    assert source_of(again.protocol.outbound.outboxes["a"]).numbers.sent_before == 300
    again.settle()
    outbox = again.protocol.outbound.outboxes["a"]
    assert again.take() == list(range(1, WINDOW + 1))
    again.acknowledge(outbox, (1, 290), (292, 300))
    again.submit(outbox, 100)
    sent = again.take()
    assert sent == [291, *range(301, sent[-1] + 1)]
    later = again.again()
    assert source_of(later.protocol.outbound.outboxes["a"]).numbers.sent_before == 300 + AHEAD


def test_a_sequence_that_was_saved_before_it_was_granted_has_transmitted_nothing() -> None:
    side = Side(CountingStore())
    outbox = side.open()
    side.submit(outbox, 100)
    again = side.again()
    assert source_of(again.protocol.outbound.outboxes["a"]).numbers.sent_before == 0
    again.settle()
    assert again.take() == list(range(1, WINDOW + 1))


@settings(max_examples=examples(30), deadline=None)
@given(st.integers(1, 20), st.sampled_from([1, 2, 8, 32]), st.data())
def test_whenever_it_dies_nothing_has_left_that_is_beyond_what_it_then_knows(
    ahead: int, window: int, data: st.DataObject
) -> None:
    side = Side(CountingStore(), ahead, window)
    outbox = side.open()
    side.submit(outbox, 100)
    highest = 0
    arrived: set[int] = set()
    for _ in range(200):
        step = data.draw(st.sampled_from(["turn", "durable", "durable", "crash", "acknowledge"]))
        if step == "durable" and side.pending:
            side.durable()
        elif step == "crash" and highest:
            side = side.again(ahead=ahead, window=window)
            outbox = side.protocol.outbound.outboxes["a"]
            assert source_of(outbox).numbers.sent_before >= highest
            assert outbox.records.in_doubt() <= SAVE_EVERY + window + ahead + 1
        elif step == "acknowledge" and arrived and outbox.source is not None:
            gap = next(number for number in range(1, 200) if number not in arrived)
            if gap > 1:
                side.acknowledge(outbox, (1, gap - 1), settles=False)
        side.turn()
        numbers = side.take()
        arrived.update(numbers)
        highest = max([highest, *numbers])
        if highest == 100:
            break


def test_a_sequence_lost_after_a_restart_leaves_only_marked_messages_in_doubt() -> None:
    side, _ = waiting(1000)
    again = side.again()
    again.settle()
    outbox = again.protocol.outbound.outboxes["a"]
    source = source_of(outbox)
    assert WINDOW < source.numbers.mark < 1000
    again.answer(None, fault=Fault("SequenceTerminated", "gone", is_rm=True, identifier=source.identifier))
    assert [(one.first, one.last) for one in again.told if isinstance(one, Stopped)] == [(0, source.numbers.mark - 1)]
