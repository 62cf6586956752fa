"""Everything that can happen to forwarders, mixed at random, against a model as plain as a promise: each forwarder
brings each message to its service once, or has one letter of it; each requester gets one reply.

Covers core/sending/outboxes/records.py.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable
from functools import partial

import pytest

from holdfast.core.forwarding.undeliverable import discard
from holdfast.core.messages import Envelope, Fault
from holdfast.core.policy import (
    Assurance,
    CircuitPolicy,
    DestinationPolicy,
    ForwardingPolicy,
    OnRefused,
    SourcePolicy,
)
from holdfast.core.queues.dead_letters import Letter
from holdfast.core.sending.outboxes.outbox import Outbox
from holdfast.core.steering import NotSteered, Steering
from holdfast.core.versions import Versions
from tests.support.chain import BROKER, REQUESTER, SERVICE, STEADY, Chain, Journey, Party, echo

OTHER = "http://other/"
PLACES = {"x": SERVICE, "y": OTHER}
PARTITIONS = 3
AS_IT_COMES = Assurance.parse("exactly-once")
SERVICES = (
    DestinationPolicy(assurance=AS_IT_COMES),
    DestinationPolicy(assurance=AS_IT_COMES, buffer=2),
    DestinationPolicy(),
    DestinationPolicy(buffer=1),
)


class Mixed(Chain):
    """A requester, a broker with two forwarders of three partitions each, and the services that these send to."""

    def __init__(self, seed: int) -> None:
        chance = self.chance = random.Random(seed)
        self.now = 1_000.0
        self.events: deque[Callable[[], None]] = deque()
        self.journeys = []
        self.versions = Versions(chance.choice(("1.1", "1.0")))
        self.has_requests = chance.random() < 0.5
        self.forwarder_choices = [(self.versions, chance.random() < 0.5)]
        self.choices = [(self.versions, chance.random() < 0.5)]
        window = chance.choice((1, 2, 8, 32))
        self.sending = SourcePolicy(
            retransmission=STEADY,
            assurance=AS_IT_COMES,
            window=window,
            initial_window=window,
            mark_ahead=chance.choice((2, 8, 256)),
            max_message_number=chance.choice((3, 9, 2**40)),
        )
        self.expires: dict[str, float | None] = {"x": None, "y": None}
        self.may_expire = chance.random() < 0.5
        self.drops = chance.random() < 0.5
        self.poison: dict[str, set[bytes]] = {SERVICE: set(), OTHER: set()}
        self.loss = chance.choice((0.0, 0.0, 0.1, 0.3))
        self.given_up: set[str] = set()
        self.away: set[Party] = set()
        self.asked: list[str] = []
        self.wanted: set[str] = set()
        self.parties = {}
        # Requests behind a refused one are held by who keeps order, and then somebody must decide.
        services = SERVICES[:2] if self.has_requests else SERVICES
        for to in PLACES.values():
            one = self.parties[to] = Party(self, to, handler=echo, policy=chance.choice(services))
            one.answers = partial(self._refuse, to)
        self.service = self.parties[SERVICE]
        self.broker = self.parties[BROKER] = Party(
            self, BROKER, is_listening=chance.random() < 0.3, partitions=PARTITIONS, drops_passed=self.drops
        )
        self.broker.on_start = self._forward
        self._forward()
        self.requester = self.parties[REQUESTER] = Party(self, REQUESTER, is_listening=chance.random() < 0.3)
        self.requester.on_start = self._open
        self._open()

    def _open(self) -> None:
        for key in "abcd":
            self.requester.protocol.outbound.open(key, BROKER, [*self.choices])

    def _forward(self) -> None:
        self.forwarders: list[Outbox] = []
        for name, to in PLACES.items():
            policy = ForwardingPolicy(
                sending=self.sending,
                refusals=2,
                patience=3.0,
                on_refused=OnRefused.DEAD_LETTER,
                circuit=CircuitPolicy(failures=3, first=1.0, cap=8.0, jitter=0.0),
                expires=self.expires[name],
            )
            self.forwarders += [
                self.broker.protocol.outbound.forward(
                    f"forward/{name}/{partition}",
                    to,
                    [*self.forwarder_choices],
                    self.broker.queue,
                    partition,
                    policy=policy,
                )
                for partition in range(PARTITIONS)
            ]

    def _refuse(self, to: str, envelope: Envelope) -> Envelope | None:
        if envelope.body not in self.poison[to]:
            return None
        answer = Envelope(envelope.soap, envelope.addressing, envelope.rm, relates_to=envelope.message_id)
        answer.fault = Fault("Poison", "it cannot be read")
        return answer

    # --- what happens ---------------------------------------------------------------------------------------------

    def happen(self) -> None:
        """One thing, at random, and a little of what follows."""
        chance = self.chance
        what = chance.choices(
            (
                self.more,
                self.poisoned,
                self.cured,
                self.go_down,
                self.killed,
                self.held_back,
                self.let_go,
                self.reloaded,
                self.purged,
                self.requeued,
                self.ended,
                self.paused,
                self.discarded,
                lambda: None,
            ),
            (8, 2, 1, 2, 3, 2, 2, 1, 1, 1, 1, 1, 1, 6),
        )[0]
        what()
        for party in self.parties.values():
            if party.is_up:
                party.happen(party.run, lambda: None)
        if chance.random() < 0.5:
            for _ in range(chance.randint(1, 30)):
                if self.events:
                    self.events.popleft()()
        else:
            self.go(chance.choice((0.1, 2.0, 20.0)))

    def more(self) -> None:
        for _ in range(self.chance.randint(1, 6)):
            body = f"m{len(self.asked)}"
            self.asked.append(body)
            wants_reply = self.has_requests and self.chance.random() < 0.5
            if wants_reply:
                self.wanted.add(body)
            if not self.requester.is_up:
                self.settle()
            self.ask(body, wants_reply=wants_reply, key=self.chance.choice("abcd"))
        self.go(0.0, until=lambda: not self.requester.pending)  # it is told so only once it is durable

    def poisoned(self) -> None:
        near = self.asked[-6:] + [f"m{len(self.asked) + ahead}" for ahead in range(6)]
        self.poison[self.chance.choice((SERVICE, OTHER))].add(self.chance.choice(near).encode())

    def cured(self) -> None:
        for poison in self.poison.values():
            poison.clear()

    def go_down(self) -> None:
        one = self.parties[self.chance.choice((SERVICE, OTHER))]
        if one.is_up:
            one.is_up = False
            one.run += 1
            gone, one.open = one.open, []
            for journey in gone:
                self.fail(journey)
            self.away.add(one)
        elif one in self.away:
            self.away.discard(one)
            one.start()

    def killed(self) -> None:
        one = self.parties[self.chance.choice((BROKER, BROKER, SERVICE, OTHER, REQUESTER))]
        if one.is_up:
            one.kill()

    @property
    def steering(self) -> Steering:
        return Steering(self.broker.protocol)

    def held_back(self) -> None:
        outbox = self.chance.choice(self.forwarders)
        if self.broker.is_up and outbox.lifecycle.suspended is None:
            self.steering.suspend(outbox, "somebody said so")

    def let_go(self) -> None:
        for outbox in self.forwarders:
            if self.broker.is_up and outbox.lifecycle.suspended is not None:
                self.steering.resume(outbox, self.now)

    def reloaded(self) -> None:
        if self.may_expire:
            self.expires[self.chance.choice("xy")] = self.chance.choice((None, 5.0, 60.0))
        if self.broker.is_up:
            self._forward()

    def purged(self) -> None:
        if self.broker.is_up:
            partition = self.chance.randrange(PARTITIONS)
            self.steering.purge(self.broker.queue, {partition: self.broker.queue.records.ends[partition]})

    def requeued(self) -> None:
        if self.broker.is_up:
            self.broker.giving_up.requeue()

    def ended(self) -> None:
        outbox = self.chance.choice(self.forwarders)
        if self.broker.is_up:
            try:
                self.steering.end_outbound(outbox, self.now)
            except NotSteered:
                assert outbox.source is None or outbox.source.identifier is None

    def paused(self) -> None:
        if self.broker.is_up:
            self.broker.protocol.outbound.pause(
                self.chance.choice((SERVICE, OTHER)), self.chance.choice((1.0, 30.0)), self.now
            )

    def discarded(self) -> None:
        """Somebody gives up a message that was never sent."""
        outbox = self.chance.choice(self.forwarders)
        if not self.broker.is_up or outbox.key.startswith("forward/x") or self.has_requests:
            return
        found = [
            offset
            for offset in range(outbox.records.first, outbox.records.durable_end)
            if not outbox.records.is_acknowledged(offset) and not outbox.records.may_have_left(offset)
        ]
        if found and outbox.source is not None:
            offset = self.chance.choice(found)
            record = self.broker.queue.records.look(outbox.records.partition, offset)
            assert record is not None
            self.given_up.add(record.body.decode())
            discard(self.broker.protocol.outbound, outbox, offset, self.now)

    def answer(self, journey: Journey, envelope: Envelope | None) -> None:
        if self.chance.random() < self.loss:
            self.fail(journey)
        else:
            super().answer(journey, envelope)

    def _arrive(self, journey: Journey) -> None:
        if self.chance.random() < self.loss:
            self.fail(journey)
        else:
            super()._arrive(journey)

    # --- what must hold -------------------------------------------------------------------------------------------

    def heal(self) -> None:
        self.cured()
        self.loss = 0.0
        for party in self.away:
            party.start()
        self.settle()
        self.let_go()
        self.broker.happen(self.broker.run, lambda: None)
        self.go(900.0)

    def check(self) -> None:
        letters = Counter((letter_of(one), one.record.body.decode()) for one in self.letters)
        for name, to in PLACES.items():
            arrived = Counter(record.body.decode() for record in self.parties[to].kept)
            for body in self.asked:
                times = arrived[body] + letters[name, body]
                assert times == 1 or (times == 0 and name == "y" and body in self.given_up), (name, body, times)
        for outbox in self.forwarders:
            assert outbox.records.is_empty and not outbox.lifecycle.stopped and outbox.records.waiting == 0, (
                outbox.key,
                outbox.lifecycle.stopped,
            )
        replies = Counter(to for to, _ in self.replies)
        assert replies == Counter(f"urn:m:{body}" for body in self.wanted)


def letter_of(letter: Letter) -> str:
    """Which forwarder gave it up."""
    assert letter.origin is not None
    return letter.origin.forwarder.split("/")[1]


def play(seed: int) -> None:
    mixed = Mixed(seed)
    for _ in range(mixed.chance.randint(5, 40)):
        mixed.happen()
    mixed.heal()
    mixed.check()


@pytest.mark.parametrize(
    "first", [0, *(pytest.param(first, marks=pytest.mark.nightly) for first in range(20, 120, 20))]
)
def test_each_message_arrives_once_or_is_a_letter_whatever_is_mixed(first: int) -> None:
    for seed in range(first, first + 20):
        try:
            play(seed)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}") from error


def two(policy: ForwardingPolicy) -> tuple[Chain, Outbox]:
    """A chain whose broker has a second forwarder of the same queue, to another service."""
    chain = Chain(policy=policy)
    chain.parties[OTHER] = Party(chain, OTHER, handler=echo, policy=SERVICES[0])

    def forward() -> None:
        chain._forward()
        chain.broker.protocol.outbound.forward(
            "forward/y/0", OTHER, [*chain.forwarder_choices], chain.broker.queue, 0, policy=policy
        )

    chain.broker.on_start = forward
    forward()
    return chain, chain.broker.protocol.outbound.outboxes["forward/y/0"]


HASTY = ForwardingPolicy(
    sending=SourcePolicy(retransmission=STEADY, assurance=AS_IT_COMES),
    refusals=2,
    patience=3.0,
    circuit=CircuitPolicy(failures=3, first=1.0, cap=8.0, jitter=0.0),
)


def ask_for_letters(broker: Party) -> None:
    """Somebody wants every letter sent once more."""

    def ask() -> None:
        broker.giving_up.requeue()

    broker.happen(broker.run, ask)


def test_a_retried_dead_letter_goes_only_to_the_forwarder_that_gave_it_up() -> None:
    step = 0
    while True:
        step += 1
        chain, _ = two(HASTY)
        chain.refuse("m1")
        chain.ask("m0", "m1", "m2", wants_reply=False)
        chain.go(100.0)
        assert [one.record.body for one in chain.letters] == [b"m1"]
        chain.refuse()
        chain.broker.die_at = chain.broker.events + step
        ask_for_letters(chain.broker)
        chain.go(100.0)
        if chain.letters:  # that it was asked for was not durable
            ask_for_letters(chain.broker)
            chain.go(100.0)
        chain.broker.kill()
        chain.ask("m3", wants_reply=False)
        chain.go(100.0)
        for party in (chain.service, chain.parties[OTHER]):
            assert sorted(record.body for record in party.kept) == [b"m0", b"m1", b"m2", b"m3"], (party.address, step)
        assert all(one.records.waiting == 0 for one in chain.broker.protocol.outbound.outboxes.values())
        if chain.broker.run == 3:
            break
    assert step > 5


@pytest.mark.parametrize("policy", SERVICES)
def test_losses_after_a_permanently_refused_message_are_retransmitted(
    policy: DestinationPolicy,
) -> None:
    chain = Chain(
        policy=ForwardingPolicy(sending=HASTY.sending, refusals=2, patience=3.0, on_refused=OnRefused.DEAD_LETTER)
    )
    chain.service.policy = policy
    chain.service.kill()
    chain.refuse("m4")
    chain.ask("m0", wants_reply=False)
    chain.go(1.0)
    chain.service.is_up = False
    chain.ask(*(f"m{number}" for number in range(1, 12)), wants_reply=False)
    chain.go(5.0)
    chain.service.is_up = True
    chain.go(300.0)
    assert sorted(chain.bodies) == sorted(f"m{number}" for number in range(12) if number != 4)
    assert len(chain.letters) == 1 and chain.forwarder.records.is_empty


def test_what_has_arrived_behind_a_gap_does_not_expire() -> None:
    expiring = ForwardingPolicy(sending=HASTY.sending, refusals=2, patience=3.0, expires=60.0)
    chain = Chain(policy=expiring, service_policy=SERVICES[0])
    chain.refuse("m1")
    chain.ask("m0", "m1", "m2", "m3", wants_reply=False)
    chain.go(1.0)
    assert sorted(chain.bodies) == ["m0", "m2", "m3"]
    outbox = chain.forwarder
    outbox.records.leave_out(2, 3)
    Steering(chain.broker.protocol).suspend(outbox, "somebody said so")
    outbox.records.leave_out_arrived()
    assert outbox.source is not None
    outbox.drop(chain.now)
    for offset, record in chain.broker.store.read("inbox", 0, 0, 4):
        outbox.records.here.put(offset, record)
    chain.go(200.0)
    assert [one.record.body for one in chain.letters] == [b"m1"], "what was delivered is no letter"


def test_a_forwarder_deleted_while_it_reads_delays_no_other() -> None:
    mixed = Mixed(1)
    mixed.settle()
    for to in PLACES.values():
        mixed.parties[to].is_up = False
    for number in range(60):
        mixed.ask(f"m{number}", wants_reply=False, key="abcd"[number % 4])
    mixed.go(300.0)
    outbound = mixed.broker.protocol.outbound
    waiting = [one for one in mixed.forwarders if one.to == SERVICE and one.records.waiting]
    assert len(waiting) > 1
    for outbox in waiting[:-1]:
        outbox.records.here.release()
        outbox.records.front = outbox.records.first
        outbound.reading.ask(outbox)
        mixed.steering.suspend(outbox, "it goes")
        mixed.steering.delete(outbox, mixed.now)
    mixed.parties[SERVICE].start()
    mixed.settle()
    mixed.go(300.0)
    assert waiting[-1].records.is_empty


def test_a_forwarder_without_expiring_messages_reads_nothing_for_expiry() -> None:
    chain = Chain(policy=ForwardingPolicy(sending=HASTY.sending, expires=600.0))
    chain.ask("m0", wants_reply=False)
    chain.go(0.0, until=lambda: chain.forwarder.records.front is not None)
    chain.policy = HASTY
    chain._forward()
    chain.go(10.0)
    chain.ask(*(f"m{number}" for number in range(1, 300)), wants_reply=False)
    chain.go(60.0)
    assert len(chain.bodies) == 300 and chain.broker.reads < 300


@pytest.mark.parametrize("wants_reply", [True, False])
def test_a_refused_message_that_had_arrived_is_no_dead_letter(wants_reply: bool) -> None:
    policy = ForwardingPolicy(sending=HASTY.sending, refusals=2, patience=3.0)
    chain = Chain(policy=policy, service_policy=SERVICES[0])
    chain.ask("m0", wants_reply=False)
    chain.go(1.0)
    chain.ask("m1", wants_reply=wants_reply)
    chain.go(0.0, until=lambda: [record.body for record in chain.service.kept] == [b"m0", b"m1"])
    chain.refuse("m1")
    gone, chain.service.open = chain.service.open, []
    for journey in gone:
        chain.fail(journey)  # it has it, and its answer is lost
    chain.go(30.0)
    chain.refuse()
    chain.go(600.0)
    assert chain.letters == [] and chain.forwarder.records.is_empty and not chain.forwarder.lifecycle.stopped
    assert [record.body for record in chain.service.kept] == [b"m0", b"m1"]
    assert chain.replies == ([("urn:m:m1", "re m1")] if wants_reply else [])
