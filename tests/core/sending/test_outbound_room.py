"""Bytes of messages on their way: bounded for the process and for each destination, and nobody starves."""

from __future__ import annotations

import itertools
from collections import Counter
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from examples import examples
from holdfast.core.events import Acknowledged, Effect, ReadWanted, Transmit
from holdfast.core.messages import (
    Acknowledge,
    CreateSequence,
    CreateSequenceResponse,
    Envelope,
    SequenceAcknowledgement,
)
from holdfast.core.policy import SourcePolicy
from holdfast.core.protocol import RMProtocol
from holdfast.core.protocol_settings import Environment, Policies
from holdfast.core.queues.queue import Queue
from holdfast.core.records import Record
from holdfast.core.retransmission import RetransmissionPolicy
from holdfast.core.sending.outbound_room import MOST_BYTES, MOST_OF_ONE, OutboundRoom
from holdfast.core.sending.outboxes.outbox import Outbox
from holdfast.core.versions import Versions
from holdfast.store import MemoryStore

VERSIONS = Versions("1.1")
QUICK = RetransmissionPolicy(initial=2.0, floor=1.0, cap=2.0, jitter=0.0)
MB = 1 << 20


class Side:
    """The sending half with outboxes to several destinations; a test says which exchange or read ends next."""

    def __init__(self, most: int = MOST_BYTES, most_of_one: int = MOST_OF_ONE, **policy: Any) -> None:
        self.store, self.now = MemoryStore(), 100.0
        self.reads: list[ReadWanted] = []
        self.open: list[Transmit] = []
        """Transmissions whose exchanges have not ended."""
        self.acknowledged: Counter[str] = Counter()
        count = itertools.count(1)
        self.protocol = RMProtocol(
            Queue("replies"),
            Environment(self.store.read, lambda: f"urn:id:{next(count)}", lambda: 0.0),
            policies=Policies(source=SourcePolicy(retransmission=QUICK, **policy)),
        )
        self.protocol.recover(self.store.load(), self.now)
        self.room = self.protocol.outbound.context.room
        self.room.most, self.room.most_of_one = most, most_of_one

    def outbox(self, key: str, to: str) -> Outbox:
        return self.protocol.outbound.open(key, to, [(VERSIONS, False)])

    def submit(self, outbox: Outbox, *bodies: bytes) -> None:
        for body in bodies:
            message_id = f"urn:{outbox.key}:{outbox.records.end}"
            self.protocol.submit(outbox, Record("", 0, "urn:a", body, self.now, message_id), self.now)

    def settle(self) -> None:
        self.protocol.pump(self.now)
        while True:
            for effect in self.protocol.take_effects():
                self._see_to(effect)
            if not self.protocol.wants_commit:
                break
            self.store.commit(self.protocol.take_batch())
            self.protocol.batch_durable(self.now)

    def _see_to(self, effect: Effect) -> None:
        if isinstance(effect, ReadWanted):
            self.reads.append(effect)
        elif isinstance(effect, Acknowledged):
            self.acknowledged[effect.key] += effect.last - effect.first + 1
        elif isinstance(effect, Transmit) and effect.number:
            self.open.append(effect)
        elif isinstance(effect, Transmit) and isinstance(effect.envelope.control, CreateSequence):
            self._answer(effect, control=CreateSequenceResponse(f"urn:s:{effect.source}"))

    def _answer(self, sent: Transmit, **fields: Any) -> None:
        envelope = Envelope(VERSIONS.soap, VERSIONS.addressing, VERSIONS.rm, relates_to=sent.envelope.message_id)
        for name, value in fields.items():
            setattr(envelope, name, value)
        self.protocol.received(sent, envelope, self.now)

    def read(self, which: int = 0) -> None:
        wanted = self.reads.pop(which)
        found = self.store.read(wanted.queue, wanted.partition, wanted.start, wanted.end)
        self.protocol.records_read(wanted, found, self.now)
        self.settle()

    def read_all(self) -> None:
        for _ in range(1_000):
            if not self.reads:
                return
            self.read()
        raise AssertionError("they read for ever")

    def acknowledge(self, sent: Transmit) -> None:
        """The destination has the message, and all before it."""
        self.open.remove(sent)
        assert sent.envelope.sequence is not None
        acknowledgement = SequenceAcknowledgement(sent.envelope.sequence.identifier, ((1, sent.number),))
        self._answer(sent, control=Acknowledge(), acknowledgements=(acknowledgement,))
        self.settle()

    def fail(self, sent: Transmit) -> None:
        """It had no answer in time."""
        self.open.remove(sent)
        self.protocol.failed(sent, self.now, "no answer")
        self.settle()

    @property
    def on_their_way(self) -> Counter[str]:
        """Bytes by destination."""
        found: Counter[str] = Counter()
        for sent in self.open:
            found[sent.to] += len(sent.envelope.body)
        return found

    def check_bounds(self) -> None:
        on_their_way = self.on_their_way
        assert self.room.bytes == sum(on_their_way.values())
        assert self.room.bytes <= self.room.most or sum(1 for sent in self.open if sent.size) == 1
        for to, size in on_their_way.items():
            assert size <= self.room.most_of_one or sum(1 for sent in self.open if sent.to == to and sent.size) == 1


@pytest.mark.nightly
def test_64_outboxes_of_one_address_have_32_megabytes_on_their_way() -> None:
    side = Side()
    body = b"x" * (15 * MB)
    outboxes = [side.outbox(f"k{n}", "http://d/") for n in range(64)]
    for outbox in outboxes:
        side.submit(outbox, body, body)
        side.settle()
        side.read_all()
    sent: Counter[str] = Counter()
    for turn in range(2 * 64):
        assert side.room.bytes == min(2, 2 * 64 - turn) * len(body)
        assert sum(outbox.records.here.bytes for outbox in outboxes) <= 32 * MB + 2 * len(body)
        side.acknowledge(side.open[0])
        side.read_all()
        sent = side.acknowledged
    assert sent == dict.fromkeys((outbox.key for outbox in outboxes), 2)
    assert side.room.bytes == 0


def test_each_outbox_of_a_destination_gets_its_turn() -> None:
    side = Side(most_of_one=10)
    for name in "abc":
        side.submit(side.outbox(name, "http://d/"), *[b"12345678"] * 20)
    side.settle()
    while side.acknowledged.total() < 54:
        (sent,) = side.open
        side.acknowledge(sent)
        side.read_all()
        counts = [side.acknowledged[name] for name in "abc"]
        assert max(counts) - min(counts) <= 2, "the first one was alone when it sent its second message"


def test_a_silent_destination_has_its_share_and_others_go_on() -> None:
    side = Side(most=100, most_of_one=40)
    for n in range(10):
        side.submit(side.outbox(f"silent{n}", "http://silent/"), b"x" * 15)
    quick = side.outbox("quick", "http://quick/")
    side.submit(quick, *[b"x" * 15] * 50)
    side.settle()
    for _ in range(50):
        assert side.on_their_way["http://silent/"] == 30
        side.acknowledge(next(sent for sent in side.open if sent.to == "http://quick/"))
        side.read_all()
    assert side.acknowledged == {"quick": 50}


def test_a_repeat_whose_first_exchange_is_open_needs_room_too() -> None:
    side = Side(most_of_one=40)
    side.submit(side.outbox("a", "http://silent/"), b"x" * 15)
    side.settle()
    for _ in range(100):
        side.now += 1.0
        side.settle()
        assert side.on_their_way["http://silent/"] <= 40
    first, second = side.open
    assert (first.number, second.number) == (1, 1)
    deadline = side.protocol.deadline()
    assert deadline is None or deadline > side.now, "nobody is to look again before there is room"
    side.fail(first)
    assert len(side.open) == 2, "it goes again when there is room"


def test_a_message_that_is_larger_than_the_room_goes_by_itself() -> None:
    side = Side(most=100, most_of_one=40)
    for name in "abcdef":
        side.submit(side.outbox(name, f"http://{name}/"), b"x" * 30, b"x" * 500, b"x" * 30)
    side.settle()
    for _ in range(18):
        side.check_bounds()
        side.acknowledge(side.open[0])
        side.read_all()
    assert side.acknowledged == dict.fromkeys("abcdef", 3)


def test_destinations_get_their_turns_if_only_one_message_has_room() -> None:
    side = Side(most=100, most_of_one=100)
    for name in "abc":
        side.submit(side.outbox(name, f"http://{name}/"), *[b"x" * 60] * 20)
    side.settle()
    while side.acknowledged.total() < 54:
        (sent,) = side.open
        side.acknowledge(sent)
        side.read_all()
        counts = [side.acknowledged[name] for name in "abc"]
        assert max(counts) - min(counts) <= 2


def test_outboxes_that_can_send_nothing_do_not_take_memory_from_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.core.sending.read_ahead_buffer.MOST_OF_ALL", 5_000)
    side = Side(initial_window=1, window=1)
    outboxes = [side.outbox(f"k{n}", f"http://{n}/") for n in range(3)]
    for outbox in outboxes:
        side.submit(outbox, *[b"x"] * 50)
    side.settle()
    side.read_all()
    assert len(side.open) == 3
    for _ in range(150):
        side.acknowledge(side.open[0])
        side.read_all()
    assert side.acknowledged == {"k0": 50, "k1": 50, "k2": 50}


@pytest.mark.parametrize("how", ["closed", "redirected", "suspended"])
def test_an_outbox_that_waits_no_more_lets_the_next_one_send(how: str) -> None:
    side = Side(most_of_one=10)
    outboxes = {name: side.outbox(name, "http://d/") for name in "abc"}
    for outbox in outboxes.values():
        side.submit(outbox, b"12345678")
    side.settle()
    assert [sent.envelope.message_id for sent in side.open] == ["urn:a:0"]
    if how == "closed":
        side.protocol.outbound.registry.close("b", side.now)
    elif how == "redirected":
        side.protocol.outbound.registry.redirect(outboxes["b"], "http://elsewhere/")
    else:
        outboxes["b"].lifecycle.suspend("somebody looks")
    side.acknowledge(side.open[0])
    assert "urn:c:0" in [sent.envelope.message_id for sent in side.open]


@settings(max_examples=examples(200), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.lists(st.integers(1, 120), min_size=1, max_size=6)), min_size=1, max_size=12
    ),
    st.integers(50, 200),
    st.integers(10, 50),
    st.integers(50, 300),
    st.integers(0, 1 << 32),
)
def test_whatever_the_sizes_nobody_starves_while_a_destination_is_silent(
    monkeypatch: Any,
    outboxes: list[tuple[int, list[int]]],
    most: int,
    most_of_one: int,
    most_read: int,
    seed: int,
) -> None:
    """Destination 0 answers nothing. To the others everything arrives, within a number of steps that follows from the
    number of messages."""
    monkeypatch.setattr("holdfast.core.sending.read_ahead_buffer.MOST_OF_ALL", most_read)
    monkeypatch.setattr("holdfast.core.sending.read_ahead_buffer.RECORD_BYTES", 0)
    side = Side(most, most_of_one, initial_window=2)
    random = Random(seed)
    for n, (to, sizes) in enumerate(outboxes):
        side.submit(side.outbox(f"k{n}", f"http://{to}/"), *(b"x" * size for size in sizes))
    side.settle()
    wanted = {f"k{n}": len(sizes) for n, (to, sizes) in enumerate(outboxes) if to}
    most_steps = 40 + 40 * sum(len(sizes) for _, sizes in outboxes)
    for _ in range(most_steps):
        if side.acknowledged == wanted:
            break
        side.check_bounds()
        side.now += 0.1
        overdue = [sent for sent in side.open if sent.to == "http://0/" and side.now - sent.left_at >= 2.0]
        answering = [sent for sent in side.open if sent.to != "http://0/"]
        if overdue:
            side.fail(overdue[0])
        elif side.reads and (not answering or random.random() < 0.6):
            side.read(random.randrange(len(side.reads)))
        elif answering:
            side.acknowledge(random.choice(answering))
        else:
            side.settle()
    assert side.acknowledged == wanted


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 60), st.booleans()), max_size=200))
def test_whoever_waits_is_called_when_there_is_room(steps: list[tuple[int, int, bool]]) -> None:
    """Ten outboxes to three destinations, which try when they are called. When nothing is on its way, none waits."""
    ready: dict[str, None] = {}
    room = OutboundRoom(ready)
    room.most, room.most_of_one = 100, 40
    wanting: dict[str, tuple[str, int]] = {}
    on_their_way: list[tuple[str, int]] = []

    def give_turns() -> None:
        while ready:
            key = next(iter(ready))
            del ready[key]
            room.begin_turn()
            if key in wanting and room.claim(key, *wanting[key]):
                on_their_way.append(wanting.pop(key))
            room.end_turn(key, is_reading=False)

    for which, size, is_end in steps:
        if is_end and on_their_way:
            room.give_back(*on_their_way.pop(which % len(on_their_way)))
        else:
            wanting.setdefault(f"k{which}", (f"d{which % 3}", size))
            ready[f"k{which}"] = None
        give_turns()
        assert room.bytes == sum(size for _, size in on_their_way)
        assert room.bytes <= 100
    while on_their_way:
        room.give_back(*on_their_way.pop())
        give_turns()
    assert not wanting
    assert not room.is_waited_for
    assert not room._shares, "nothing is kept of destinations"
