"""Handling: whose turn it is, what waits for memory or for the store, what is saved, and what a restart finds."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples import examples
from holdfast.core.events import Effect, Handle, Incident, ReadWanted, Respond
from holdfast.core.handling.delivery import HandlerSettings
from holdfast.core.handling.handler_cursor import HandlingPolicy
from holdfast.core.handling.running_handlers import REPORT_AFTER
from holdfast.core.messages import ANONYMOUS_EPR, CreateSequence, CreateSequenceResponse, Envelope, Offer, Sequence
from holdfast.core.policy import Assurance, Delivery, DestinationPolicy
from holdfast.core.protocol import RMProtocol
from holdfast.core.protocol_settings import Environment, Policies
from holdfast.core.queues.cursors import HANDLER
from holdfast.core.queues.dead_letters import LETTERS, DeadLetters
from holdfast.core.queues.description import DEAD_LETTERS
from holdfast.core.queues.queue import Queue
from holdfast.core.records import Batch, Record, Snapshot
from holdfast.core.versions import RM, SOAP, Addressing
from holdfast.endpoint.handling.dead_letters import seal, unseal
from holdfast.store import MemoryStore, Store, open_store

ONCE = DestinationPolicy(assurance=Assurance(Delivery.AT_MOST_ONCE, True))


def set_aside(record: Record) -> Record | None:
    return Record("", 0, "urn:fault", b"<fault/>", 0.0) if record.wants_reply else None


class Home:
    """A destination with handlers, a store, and nobody who hurries."""

    def __init__(
        self,
        store: MemoryStore | None = None,
        *,
        policy: DestinationPolicy | None = None,
        handling: HandlingPolicy | None = None,
        partitions: int = 1,
    ) -> None:
        self.store = store or MemoryStore()
        self.options = {"policy": policy, "handling": handling, "partitions": partitions}
        self.now = 1_000_000_000.0
        self.made = 0
        letters = DeadLetters(seal, unseal)
        queue = Queue("inbox", partitions, drops_passed=True, dead_letters=letters)
        queue.deletion.is_handled = True
        self.protocol = RMProtocol(
            queue,
            Environment(self.store.read, self.new_identifier, float),
            letters=letters,
            handling=HandlerSettings(handling or HandlingPolicy(concurrency=4), set_aside),
            policies=Policies(destination=policy or DestinationPolicy()),
        )
        assert self.protocol.handling is not None
        self.handling = self.protocol.handling
        self.handles: list[Handle] = []
        self.reads: list[ReadWanted] = []
        self.told: list[Effect] = []
        self.written: list[Batch] = []
        """Every batch, in its order."""
        self.reads_at_once = True
        self.bytes_a_read = 1 << 20
        self.protocol.recover(self.store.load(), self.now)
        self.handling.start(self.now)
        self.settle()

    def new_identifier(self) -> str:
        self.made += 1
        return f"urn:made:{id(self)}:{self.made}"

    def restart(self) -> Home:
        return Home(self.store, **self.options)  # type: ignore[arg-type]

    def settle(self, *, commit: bool = True) -> None:
        while True:
            for effect in self.protocol.take_effects():
                if isinstance(effect, Handle):
                    self.handles.append(effect)
                elif isinstance(effect, ReadWanted):
                    self.reads.append(effect)
                else:
                    self.told.append(effect)
            if self.reads_at_once and self.reads:
                self.answer_read()
            elif commit and self.protocol.wants_commit:
                self.write(self.protocol.take_batch())
            elif not self.protocol.effects:
                return

    def write(self, batch: Batch) -> None:
        """A batch becomes durable, and it is told."""
        self.written.append(batch)
        self.store.commit(batch)
        self.protocol.batch_durable(self.now)

    def answer_read(self) -> None:
        wanted = self.reads.pop(0)
        found = self.store.read(wanted.queue, wanted.partition, wanted.start, wanted.end, self.bytes_a_read)
        self.protocol.records_read(wanted, found, self.now)

    def create(self, *, offers: bool = False) -> str:
        create = CreateSequence(ANONYMOUS_EPR, offer=Offer(self.new_identifier()) if offers else None)
        envelope = self.envelope(control=create, message_id=self.new_identifier())
        self.protocol.receive(envelope, object(), self.now)
        self.settle()
        answer = [one.envelope for one in self.told if isinstance(one, Respond)][-1]
        assert answer is not None and isinstance(answer.control, CreateSequenceResponse)
        return answer.control.identifier

    @staticmethod
    def envelope(**fields: object) -> Envelope:
        return Envelope(SOAP.V1_2, Addressing.V2005_08, RM.V1_1, **fields)  # type: ignore[arg-type]

    def send(self, identifier: str, *numbers: int, wants_reply: bool = False, commit: bool = True) -> None:
        for number in numbers:
            envelope = self.envelope(
                action="urn:a",
                body=b"<m%d/>" % number,
                sequence=Sequence(identifier, number),
                message_id=f"urn:m{number}",
            )
            if wants_reply:
                envelope.reply_to = ANONYMOUS_EPR
            self.protocol.receive(envelope, object(), self.now)
        self.settle(commit=commit)

    def take(self) -> list[Handle]:
        taken, self.handles = self.handles, []
        return taken

    def succeed(self, handle: Handle, reply: bytes | None = None) -> None:
        answer = None if reply is None else Record("", 0, "urn:reply", reply, self.now)
        self.handling.handled(handle, answer, self.now)
        self.settle()

    def fail(self, handle: Handle) -> None:
        self.handling.handling_failed(handle, "no", "no, no", self.now)
        self.settle()

    def names(self) -> list[str]:
        return [one.name for one in self.told if isinstance(one, Incident)]


def offsets(handles: list[Handle]) -> list[int]:
    return [one.offset for one in handles]


def test_in_order_the_next_of_a_sequence_is_handed_over_when_the_one_before_is_done() -> None:
    home = Home()
    home.send(home.create(), 1, 2, 3)
    for offset in range(3):
        (handle,) = home.take()
        assert (handle.offset, handle.record.body, handle.attempt) == (offset, b"<m%d/>" % (offset + 1), 1)
        home.succeed(handle)
    assert home.handling.is_done and home.handling.succeeded == 3


def test_no_more_run_at_a_time_than_may_and_partitions_take_turns() -> None:
    home = Home(
        policy=DestinationPolicy(assurance=Assurance(in_order=False)),
        handling=HandlingPolicy(concurrency=1),
        partitions=2,
    )
    by_partition: dict[int, str] = {}
    while len(by_partition) < 2:
        identifier = home.create()
        by_partition[home.protocol.inbound.destinations[identifier].partition] = identifier
    home.send(by_partition[0], *range(1, 6))
    home.send(by_partition[1], *range(1, 6))
    seen = []
    while handles := home.take():
        (handle,) = handles
        seen.append(handle.partition)
        home.succeed(handle)
    assert sorted(seen) == [0] * 5 + [1] * 5
    assert seen[:2] != [0, 0] or seen[2] == 1, "the second does not wait until the first has nothing more"
    assert seen.index(1) <= 2


def test_a_failure_is_retried_when_due_and_then_a_dead_letter_in_one_batch() -> None:
    home = Home(handling=HandlingPolicy(attempts=2, backoff=1.0))
    home.send(home.create(), 1)
    (handle,) = home.take()
    home.fail(handle)
    assert home.take() == [] and home.protocol.deadline() == home.now + 1.0
    home.now += 1.0
    home.protocol.pump(home.now)
    home.settle(commit=False)
    (handle,) = home.take()
    assert handle.attempt == 2
    home.handling.handling_failed(handle, "no", "no, no", home.now)
    batch = home.protocol.commit.batch
    assert [queue for queue, *_ in batch.appends] == [DEAD_LETTERS]
    assert batch.cursors["inbox", 0, HANDLER] == {"done": [1, 1]}
    home.settle()
    assert home.names()[-2:] == ["handler.failed", "dead_letter.added"]
    assert (home.handling.failed, home.handling.dead, home.handling.is_done) == (2, 1, True)


def test_a_retry_that_is_due_while_all_hands_are_full_is_not_due_again_and_again() -> None:
    home = Home(
        policy=DestinationPolicy(assurance=Assurance(in_order=False)),
        handling=HandlingPolicy(backoff=1.0, concurrency=1),
    )
    home.send(home.create(), 1, 2)
    (first,) = home.take()
    home.fail(first)
    (second,) = home.take()
    home.now += 5.0
    home.protocol.pump(home.now)
    assert home.handling.deadline() == home.now - 5.0 + REPORT_AFTER, "only the report on handlers that hang is due"
    assert home.take() == []
    home.succeed(second)
    assert offsets(home.take()) == [0]


@pytest.mark.parametrize("policy", [DestinationPolicy(), ONCE], ids=["exactly-once", "at-most-once"])
def test_handlers_that_all_hang_are_reported_and_so_is_their_end(policy: DestinationPolicy) -> None:
    home = Home(policy=policy, handling=HandlingPolicy(attempts=1, concurrency=2))
    first, second, other = home.create(), home.create(), home.create()
    home.send(first, 1, 2)
    home.now += 10.0
    home.send(second, 1)
    home.send(other, 1)
    hung, late = home.take()
    home.now = home.handling.deadline() or 0.0
    home.protocol.pump(home.now)
    home.settle()
    (told,) = [one for one in home.told if isinstance(one, Incident) and one.name == "handlers.stuck"]
    assert (told.identifier, told.number) == (first, 1), "the oldest one"
    assert told.detail is not None
    assert (told.detail["running"], told.detail["action"], told.detail["seconds"]) == (2, "urn:a", REPORT_AFTER + 10)
    home.fail(late)
    assert home.names().count("handlers.free") == 1
    (next_one,) = home.take()
    home.succeed(hung)
    home.succeed(next_one)
    (last,) = home.take()
    assert home.handling.deadline() is None
    assert (len(home.handling.started), home.handling.started.oldest(home.now)) == (1, 0.0)
    home.succeed(last)
    assert (len(home.handling.started), home.handling.running) == (0, 0)
    assert home.names().count("handlers.stuck") == home.names().count("handlers.free") == 1


def test_what_was_not_handled_is_read_after_a_restart() -> None:
    home = Home()
    home.send(home.create(), 1, 2, 3)
    again = home.restart()
    for number in (1, 2, 3):
        (handle,) = again.take()
        assert handle.record.body == b"<m%d/>" % number
        again.succeed(handle)
    assert again.handling.is_done


def test_a_record_that_left_the_hold_is_read_alone() -> None:
    home = Home(policy=DestinationPolicy(assurance=Assurance(in_order=True)))
    identifier = home.create()
    home.reads_at_once = False
    home.send(identifier, 2)  # held
    home.send(identifier, 1)  # releases it
    (handle,) = home.take()
    (wanted,) = home.reads
    assert (wanted.start, wanted.end) == (1, 2)
    home.send(identifier, 3, 4)
    assert home.reads == [wanted], "one at a time"
    home.answer_read()
    home.settle()
    assert home.reads == [], "3 and 4 were in memory"
    for expected in (b"<m1/>", b"<m2/>", b"<m3/>", b"<m4/>"):
        assert handle.record.body == expected
        home.succeed(handle)
        handle = home.take()[0] if expected != b"<m4/>" else handle
    assert home.handling.is_done


def test_bodies_beyond_the_room_are_read_when_there_is_room_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.core.handling.delivery.MAX_HELD_BYTES", 10)
    home = Home(
        policy=DestinationPolicy(assurance=Assurance(in_order=False)),
        handling=HandlingPolicy(concurrency=100),
        partitions=2,
    )
    home.bytes_a_read = 1
    first, second = home.create(), home.create()
    for number in range(1, 9):
        home.send(first, number)
        home.send(second, number)
    seen = 0
    while handles := home.take():
        assert home.handling._held_bytes <= 10 + 2 * 5, "one read of each partition more, at most"
        for handle in handles:
            seen += 1
            home.succeed(handle)
    assert seen == 16 and home.handling._held_bytes == 0


def test_what_several_partitions_read_at_once_is_kept_up_to_the_limit_and_one_record(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    unordered = DestinationPolicy(assurance=Assurance(in_order=False))
    before = Home(policy=unordered, handling=HandlingPolicy(concurrency=1), partitions=8)
    identifiers = [before.create() for _ in range(24)]
    for identifier in identifiers:
        before.send(identifier, *range(1, 9))
    monkeypatch.setattr("holdfast.core.handling.delivery.MAX_HELD_BYTES", 22)
    home, seen = before.restart(), 0
    while handles := home.take():
        assert home.handling._held_bytes < 22 + 5, "eight partitions had asked when there was room"
        for handle in handles:
            seen += 1
            home.succeed(handle)
    assert seen == 24 * 8 and home.handling.is_done and home.handling._held_bytes == 0


def test_at_most_once_the_mark_is_durable_before_the_handler_is_called() -> None:
    home = Home(policy=ONCE)
    identifier = home.create()
    home.send(identifier, 1, commit=False)
    home.write(home.protocol.take_batch())
    home.settle(commit=False)
    assert home.take() == []
    batch = home.protocol.take_batch()
    assert batch.cursors["inbox", 0, HANDLER] == {"done": [1, 1], "floor": 0}
    home.store.commit(batch)
    assert home.restart().take() == [], "lost, which this assurance allows"
    home.protocol.batch_durable(home.now)
    home.settle()
    assert offsets(home.take()) == [0]


@pytest.mark.parametrize("late", [True, False])
def test_at_most_once_an_interrupted_request_is_answered_and_not_handled_again(
    late: bool,
) -> None:
    home = Home(policy=ONCE)
    identifier = home.create()
    home.send(identifier, 1, 2, wants_reply=True)
    assert offsets(home.take()) == [0]
    again = home.restart()
    assert "message.lost" in again.names()
    destination = again.protocol.inbound.destinations[identifier]
    assert (destination.replies.awaiting, list(destination.replies.numbers)) == ({2}, [1])
    (handle,) = again.take()
    assert handle.offset == 1, "the next one is handled"
    again.succeed(handle, b"<done/>")
    assert again.handling.is_done
    if late:
        assert again.restart().names().count("message.lost") == 0


def test_at_most_once_what_is_still_to_be_answered_is_not_deleted_before() -> None:
    home = Home(policy=ONCE)
    identifier = home.create()
    home.send(identifier, 1, wants_reply=True)
    home.take()
    again = home.restart()
    queue = again.protocol.inbound.queue
    assert queue.cursors[HANDLER].offsets == {0: 1}, "looked at, and answered"
    assert home.protocol.inbound.queue.cursors[HANDLER].offsets == {0: 0}


def test_a_retried_dead_letter_is_handed_over_once_that_is_durable() -> None:
    home = Home(handling=HandlingPolicy(attempts=1))
    home.send(home.create(), 1, wants_reply=True)
    home.fail(home.take()[0])
    assert home.handling.letters.count == 1
    assert home.handling.retry() == 1
    home.settle(commit=False)
    assert home.take() == []
    home.settle()
    (handle,) = home.take()
    assert (handle.queue, handle.offset, handle.attempt, handle.record.wants_reply) == (DEAD_LETTERS, 0, 2, False)
    assert handle.record.body == b"<m1/>"
    home.fail(handle)
    assert (home.handling.letters.count, home.handling.letters.asked) == (1, 0), "another takes its place"
    home.handling.retry()
    home.settle()
    (handle,) = home.take()
    assert (handle.offset, handle.attempt) == (1, 3)
    home.succeed(handle)
    assert home.handling.letters.count == 0
    assert home.names()[-3:] == ["dead_letter.added", "dead_letter.failed_again", "dead_letter.handled"]


def test_a_letter_that_is_given_up_while_it_is_read_is_not_handed_over() -> None:
    home = Home(handling=HandlingPolicy(attempts=1))
    home.send(home.create(), 1)
    home.fail(home.take()[0])
    home.reads_at_once = False
    home.handling.retry()
    home.settle()
    home.handling.letters.discard(0)
    home.settle()
    home.answer_read()
    home.settle()
    assert home.take() == [] and home.handling.is_done


def test_whoever_waits_until_all_is_done_is_told_once() -> None:
    home = Home()
    home.send(home.create(), 1)
    told: list[int] = []
    home.handling.when_done(lambda: told.append(1))
    assert told == []
    home.succeed(home.take()[0])
    assert told == [1]
    home.send(home.create(), 1)
    home.succeed(home.take()[0])
    assert told == [1]


def test_once_stopped_nothing_more_is_handed_over() -> None:
    home = Home()
    home.send(home.create(), 1, 2)
    (handle,) = home.take()
    home.handling.stop()
    home.succeed(handle)
    assert home.take() == []
    assert offsets(home.restart().take()) == [1]


# --- one handling by itself ---------------------------------------------------------------------------------------


def test_a_batch_taken_alone_holds_one_handlers_changes_after_the_open_ones() -> None:
    home = Home()
    identifier = home.create()
    home.send(identifier, 1, wants_reply=True)
    home.send(identifier, 2, wants_reply=True, commit=False)
    (handle,) = home.take()
    answer = Record("", 0, "urn:reply", b"<done/>", home.now)
    before, alone = home.handling.handled_alone(handle, answer, home.now)
    assert before is not None and [record.body for *_, record in before.appends] == [b"<m2/>"]
    ((queue, _, _, record),) = alone.appends
    assert (queue.startswith("replies/"), record.body) == (True, b"<done/>")
    assert alone.cursors == {("inbox", 0, HANDLER): {"done": [1, 1]}}
    assert identifier in alone.sequences and not (alone.holds or alone.releases or alone.drops or alone.trims)
    home.settle(commit=False)
    assert home.take() == [], "what follows in its Sequence waits until it is durable"
    for batch in (before, alone):
        home.write(batch)
    home.settle()
    assert offsets(home.take()) == [1]
    assert home.handling.succeeded == 1


def test_taken_alone_with_nothing_open_there_is_nothing_before() -> None:
    home = Home()
    home.send(home.create(), 1)
    before, alone = home.handling.handled_alone(home.take()[0], None, home.now)
    assert before is None
    assert not alone.appends and alone.cursors == {("inbox", 0, HANDLER): {"done": [1, 1]}}
    home.store.commit(alone)
    assert home.restart().take() == []


def test_a_letter_may_be_handled_alone_too() -> None:
    home = Home(handling=HandlingPolicy(attempts=1))
    home.send(home.create(), 1)
    home.fail(home.take()[0])
    home.handling.retry()
    home.settle()
    before, alone = home.handling.handled_alone(home.take()[0], None, home.now)
    assert before is None and list(alone.cursors) == [(DEAD_LETTERS, 0, LETTERS)]
    assert home.restart().handling.letters.count == 1, "until it is durable"
    home.write(alone)
    home.settle()
    assert home.handling.is_done and home.restart().handling.letters.count == 0


@dataclass
class Effects:
    """What of one handling a store holds."""

    is_done: bool
    is_answered: bool
    has_reply: bool


def effects_of(store: Store, snapshot: Snapshot, identifier: str, number: int) -> Effects:
    """Of the request with that number, which is the record at the offset below."""
    done = snapshot.cursors["inbox", 0, HANDLER]["done"]
    state = snapshot.sequences[identifier]
    replies = [
        record.message_number
        for (queue, partition), (first, end) in snapshot.bounds.items()
        if queue.startswith("replies/")
        for _, record in store.read(queue, partition, first, end)
    ]
    is_done = any(lower <= number <= upper for lower, upper in zip(done[0::2], done[1::2], strict=True))
    return Effects(is_done, number not in state["awaiting"], number in replies)


steps = st.lists(
    st.sampled_from(["receive", "receive", "write", "alone", "alone", "together"]), min_size=4, max_size=24
)


def let_happen(home: Home, identifier: str, kinds: list[str]) -> int:
    """Requests that come, and handlers that are done with them, alone or together; how many requests came."""
    waiting: list[Handle] = []
    requests = 0
    for kind in kinds:
        if kind == "receive":
            requests += 1
            home.send(identifier, requests, wants_reply=True, commit=False)
        elif kind in ("alone", "together") and waiting:
            handle = waiting.pop(0)
            answer = Record("", 0, "urn:reply", b"<r/>", home.now)
            if kind == "together":
                home.handling.handled(handle, answer, home.now)
            else:
                before, alone = home.handling.handled_alone(handle, answer, home.now)
                for batch in (alone,) if before is None else (before, alone):
                    home.write(batch)
        elif home.protocol.wants_commit:
            home.write(home.protocol.take_batch())
        home.settle(commit=False)
        waiting += home.take()
    return requests


@pytest.mark.parametrize("kind", ["memory", "rocksdb"])
def test_whatever_a_crash_leaves_of_a_handling_is_all_of_it_or_nothing(kind: str, tmp_path: Path) -> None:
    paths = itertools.count()

    @settings(max_examples=examples(100) if kind == "memory" else 15)
    @given(kinds=steps, survive=st.integers(0, 40), in_order=st.booleans(), offers=st.booleans())
    def run(kinds: list[str], survive: int, in_order: bool, offers: bool) -> None:
        policy = DestinationPolicy(assurance=Assurance(in_order=in_order))
        home = Home(policy=policy)
        identifier = home.create(offers=offers)
        before = len(home.written)
        requests = let_happen(home, identifier, ["receive", "write", *kinds])
        # What a crash leaves of that is its beginning.
        path = tmp_path / str(next(paths))
        store: Store = MemoryStore() if kind == "memory" else open_store(path)
        store.load()
        for batch in home.written[: before + survive]:
            store.commit(batch)
        if kind == "rocksdb":
            store.close()
            store = open_store(path)
        snapshot = store.load()
        arrived = snapshot.bounds.get(("inbox", 0), (0, 0))[1]
        for number in range(1, requests + 1):
            if number <= arrived:
                found = effects_of(store, snapshot, identifier, number)
                assert found.is_done == found.is_answered == found.has_reply, (number, found)
        store.close()

    run()
