"""Three cores in a row without sockets: a requester, a broker that forwards, and a service. Any of them may be killed
between two of its events. Time passes only when nothing else is left to happen."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

from holdfast.core.events import BackChannel, Effect, Handle, Incident, ReadWanted, Respond, Transmit
from holdfast.core.faults import creation_refused
from holdfast.core.forwarding.undeliverable import UndeliverableMessages
from holdfast.core.handling.delivery import HandlerSettings
from holdfast.core.handling.handler_cursor import HandlingPolicy
from holdfast.core.messages import ANONYMOUS, CreateSequence, Envelope, Fault
from holdfast.core.origin import Origin, secret_in
from holdfast.core.policy import DestinationPolicy, ForwardingPolicy, SourcePolicy
from holdfast.core.protocol import RMProtocol
from holdfast.core.protocol_settings import Environment, MessageRules, Policies
from holdfast.core.queues.dead_letters import DeadLetters, Letter
from holdfast.core.queues.queue import Queue
from holdfast.core.records import Record
from holdfast.core.retransmission import RetransmissionPolicy
from holdfast.core.sending.outboxes.outbox import Outbox
from holdfast.core.sending.outboxes.peer_answers import RETRACTED
from holdfast.core.versions import Addressing, Versions
from holdfast.endpoint.handling.dead_letters import seal, unseal
from holdfast.store import MemoryStore

STEADY = RetransmissionPolicy(initial=1.0, floor=0.5, cap=8.0, jitter=0.0)
REQUESTER, BROKER, SERVICE = "http://requester/", "http://broker/", "http://service/"

WAYS: dict[str, dict[str, Any]] = {
    "all anonymous": {},
    "the requester offers nothing": {"offers": False},
    "the forwarder offers nothing": {"forwarder_offers": False},
    "nobody offers": {"offers": False, "forwarder_offers": False},
    "the requester listens": {"listens": (True, False)},
    "both listen": {"listens": (True, True)},
    "1.0": {"versions": Versions("1.0")},
    "the forwarder has an address": {"address": BROKER},
    "it has one and offers nothing": {"address": BROKER, "forwarder_offers": False},
    "it has one, in 1.0": {"address": BROKER, "versions": Versions("1.0")},
}
"""How a requester and a service may speak with a broker."""

Answers = Callable[[Envelope], Envelope | None]
"""What a service answers instead of taking a message in; None: it takes it in."""


class Journey(NamedTuple):
    """A request on its way, and who sent it in which of its runs."""

    sender: Party
    run: int
    transmit: Transmit


def void(_value: object) -> None:
    """Drop what a call returned."""


def fault_as_reply(record: Record, fault: Fault, addressing: Addressing) -> Record | None:
    if not record.wants_reply:
        return None
    action = f"urn:fault:{addressing.value}"
    return Record("", 0, action, f"fault {fault.code}: {fault.reason}".encode(), record.received_at)


def echo(record: Record) -> Record | None:
    """What a service replies."""
    if not record.wants_reply:
        return None
    return Record("", 0, "urn:reply", b"re " + record.body, record.received_at)


def grants_nothing(envelope: Envelope) -> Envelope | None:
    """A service refuses to create a Sequence."""
    if not isinstance(envelope.control, CreateSequence):
        return None
    answer = Envelope(envelope.soap, envelope.addressing, envelope.rm, relates_to=envelope.message_id)
    answer.fault = creation_refused("not now")
    return answer


class Party:
    """One of them, whose store outlives it."""

    def __init__(
        self,
        chain: Chain,
        address: str,
        *,
        is_listening: bool = False,
        handler: Callable[[Record], Record | None] | None = None,
        policy: DestinationPolicy | None = None,
        partitions: int = 1,
        drops_passed: bool = False,
        sessions: int = 0,
    ) -> None:
        self.chain = chain
        self.address = address
        self.sessions = sessions
        self.partitions, self.drops_passed = partitions, drops_passed
        self.store = MemoryStore()
        self.local = address if is_listening else ANONYMOUS
        self.handler = handler
        self.policy = policy
        self.answers: Answers = lambda _envelope: None
        self.unsendable: set[bytes] = set()
        """Bodies that it cannot write."""
        self.run = 0
        self.is_up = False
        self.identifiers = 0
        self.pending: deque[Any] = deque()
        self.events = self.reads = 0
        """How many events it has had, and how often it has read its store."""
        self.is_handling = True
        """Whether its handlers get on."""
        self.write: Callable[[Envelope], None] = lambda _envelope: None
        """What it does with each answer that it writes."""
        self.die_at: int | None = None
        self.open: list[Journey] = []
        """Requests that wait for its answer."""
        self.incidents: list[Incident] = []
        self.told: list[Effect] = []
        self.letters = DeadLetters(seal, unseal)
        self.on_start: Callable[[], None] = lambda: None
        self.start()

    def start(self) -> None:
        self.run += 1
        self.is_up = True
        self.pending.clear()
        self.letters = DeadLetters(seal, unseal)
        self.queue = Queue("inbox", self.partitions, drops_passed=self.drops_passed, dead_letters=self.letters)
        self.queue.divide(self.partitions, self.sessions)
        self.queue.deletion.is_handled = self.handler is not None
        settings = HandlerSettings(HandlingPolicy(concurrency=8), lambda _record: None)
        self.protocol = RMProtocol(
            self.queue,
            Environment(self.store.read, self.new_identifier, lambda: 0.0, local=self.local),
            letters=self.letters,
            handling=settings if self.handler is not None else None,
            policies=Policies(
                destination=self.policy or DestinationPolicy(), source=SourcePolicy(retransmission=STEADY)
            ),
            rules=MessageRules(allows=lambda _address: True, tell=fault_as_reply),
        )
        self.protocol.recover(self.store.load(), self.chain.now)
        if not self.queue.description.epoch:
            self.queue.description.begin("e")
        if self.protocol.handling is not None:
            self.protocol.handling.start(self.chain.now)
        self.on_start()
        self.settle()

    @property
    def giving_up(self) -> UndeliverableMessages:
        assert self.protocol.forwarding is not None
        return self.protocol.forwarding.giving_up

    def new_identifier(self) -> str:
        self.identifiers += 1
        return f"urn:{self.address[7:-1]}:{self.identifiers}"

    def kill(self) -> None:
        self.is_up = False
        self.run += 1
        gone, self.open = self.open, []
        for journey in gone:
            self.chain.fail(journey)
        self.chain.events.append(self.start)

    def happen(self, run: int, event: Callable[[], None]) -> None:
        """One event, unless it was of an earlier run."""
        if run != self.run or not self.is_up:
            return
        event()
        self.events += 1
        if self.events == self.die_at:
            self.kill()
        else:
            self.settle()

    def settle(self) -> None:
        while True:
            self.protocol.outbound.pump(self.chain.now)
            effects = self.protocol.take_effects()
            for effect in effects:
                self.perform(effect)
            if self.protocol.wants_commit:
                self.pending.append(self.protocol.take_batch())
                self.chain.later(self, self.durable)
            elif not effects:
                return

    def durable(self) -> None:
        self.store.commit(self.pending.popleft())
        self.protocol.batch_durable(self.chain.now)

    def perform(self, effect: Effect) -> None:
        if isinstance(effect, Transmit) and effect.envelope.body in self.unsendable:
            self.protocol.outbound.exchanges.unsendable(effect, "no envelope can hold it", self.chain.now)
        elif isinstance(effect, Transmit):
            self.chain.carry(Journey(self, self.run, effect))
        elif isinstance(effect, ReadWanted):
            self.chain.later(self, lambda: self.read(effect))
        elif isinstance(effect, Handle) and self.is_handling:
            self.chain.later(self, lambda: self.handle(effect))
        elif isinstance(effect, Respond):
            journey: Any = effect.back_channel
            if journey in self.open:
                self.open.remove(journey)
                answer = None if effect.envelope is None else replace(effect.envelope)
                if answer is not None:
                    self.write(answer)
                self.chain.answer(journey, answer)
        else:
            if isinstance(effect, Incident):
                assert effect.name != RETRACTED, effect  # no destination here forgets what it acknowledged
                self.incidents.append(effect)
            self.told.append(effect)

    def read(self, wanted: ReadWanted) -> None:
        self.reads += 1
        found = self.store.read(wanted.queue, wanted.partition, wanted.start, wanted.end)
        self.protocol.records_read(wanted, found, self.chain.now)

    def handle(self, handle: Handle) -> None:
        assert self.protocol.handling is not None and self.handler is not None
        self.protocol.handling.handled(handle, self.handler(handle.record), self.chain.now)

    def receive(self, journey: Journey) -> None:
        """A request arrives."""
        envelope = journey.transmit.envelope
        answer = self.answers(envelope)
        if answer is not None:
            target = envelope.reply_to
            is_posted = target is not None and not target.is_anonymous and not target.is_none
            self.chain.answer(journey, None if is_posted else answer)
            if target is not None and is_posted:
                self.chain.carry(Journey(self, self.run, Transmit(target.address, answer)))
            return
        self.open.append(journey)
        origin = Origin(secret=secret_in(journey.transmit.to))
        self.protocol.receive(replace(journey.transmit.envelope), BackChannel(journey), self.chain.now, origin=origin)

    @property
    def kept(self) -> list[Record]:
        """What is in its queue, durably."""
        return [record for _, record in self.store.read("inbox", 0, 0, self.queue.records.ends[0])]


class Chain:
    """All three, and the network between them, which loses nothing but what was with somebody who is killed."""

    def __init__(
        self,
        *,
        offers: bool = True,
        forwarder_offers: bool = True,
        listens: tuple[bool, bool] = (False, False),
        address: str = "",
        policy: ForwardingPolicy | None = None,
        handler: Callable[[Record], Record | None] = echo,
        versions: Versions | None = None,
        service_policy: DestinationPolicy | None = None,
        sessions: int = 0,
    ) -> None:
        self.now = 1_000.0
        self.events: deque[Callable[[], None]] = deque()
        self.versions = versions or Versions("1.1")
        self.journeys: list[tuple[float, str, Envelope]] = []
        """Every request that was sent: when, where to, and what."""
        self.handled: list[Record] = []
        self.policy = policy or ForwardingPolicy()
        self.forwarder_choices = [(self.versions, forwarder_offers)]
        self.address = address
        self.parties: dict[str, Party] = {}
        self.handler = handler
        self.service = self.parties[SERVICE] = Party(self, SERVICE, handler=self._handle, policy=service_policy)
        self.broker = self.parties[BROKER] = Party(self, BROKER, is_listening=listens[1], sessions=sessions)
        self.broker.on_start = self._forward
        self._forward()
        self.requester = self.parties[REQUESTER] = Party(self, REQUESTER, is_listening=listens[0])
        self.choices = [(self.versions, offers)]
        self.requester.on_start = self._open
        self._open()
        self.settle()

    def _handle(self, record: Record) -> Record | None:
        self.handled.append(record)
        return self.handler(record)

    def _open(self) -> None:
        self.outbox = self.requester.protocol.outbound.open("out", BROKER, [*self.choices])

    def _forward(self) -> None:
        broker = self.broker if hasattr(self, "broker") else self.parties[BROKER]
        choices = [*self.forwarder_choices]

        def follow(partition: int) -> Outbox:
            return broker.protocol.outbound.forward(
                f"forward/x/{partition}",
                SERVICE,
                choices,
                broker.queue,
                partition,
                policy=self.policy,
                address=self.address,
            )

        self.forwarder: Outbox = follow(0)
        for partition, one in enumerate(broker.queue.partitions):
            if partition >= broker.queue.description.shared and one.end:
                follow(partition)
        if broker.protocol.sessions is not None:
            broker.protocol.sessions.on_begin = lambda partition: void(follow(partition))

    def ask(self, *bodies: str, wants_reply: bool = True, message_id: str | None = None, key: str = "out") -> None:
        """The requester sends."""
        outbox = self.requester.protocol.outbound.open(key, BROKER, [*self.choices])
        for body in bodies:
            record = Record("", 0, "urn:a", body.encode(), self.now, message_id or f"urn:m:{body}")
            record.wants_reply = wants_reply
            self.requester.protocol.submit(outbox, record, self.now)
        self.requester.settle()

    def refuse(self, *bodies: str) -> None:
        """The service answers these with a fault, and takes nothing of them in."""
        refused = {body.encode() for body in bodies}

        def answer(envelope: Envelope) -> Envelope | None:
            if envelope.body not in refused:
                return None
            answer = Envelope(envelope.soap, envelope.addressing, envelope.rm, relates_to=envelope.message_id)
            answer.fault = Fault("Poison", "it cannot be read")
            return answer

        self.service.answers = answer

    @property
    def bodies(self) -> list[str]:
        """What the service has handled."""
        return [record.body.decode() for record in self.handled]

    @property
    def letters(self) -> list[Letter]:
        """The broker's dead letters."""
        store, letters = self.broker.store, self.broker.letters
        found = [store.read(letters.name, 0, first, end) for first, end in letters.ranges()]
        return [unseal(record) for part in found for _, record in part]

    @property
    def replies(self) -> list[tuple[str | None, str]]:
        """What came back: which request it answers, and what it says."""
        return [(record.relates_to, record.body.decode()) for record in self.requester.kept]

    # --- the network ----------------------------------------------------------------------------------------------

    def later(self, party: Party, event: Callable[[], None]) -> None:
        run = party.run
        self.events.append(lambda: party.happen(run, event))

    def carry(self, journey: Journey) -> None:
        self.journeys.append((self.now, journey.transmit.to, replace(journey.transmit.envelope)))
        self.events.append(lambda: self._arrive(journey))

    def _arrive(self, journey: Journey) -> None:
        to = self.parties[journey.transmit.to.partition("?")[0]]
        if to.is_up and not to.protocol.outbound.reading.is_recovering:
            to.happen(to.run, lambda: to.receive(journey))
        else:
            self.fail(journey)

    def answer(self, journey: Journey, envelope: Envelope | None) -> None:
        sender = journey.sender
        self.events.append(
            lambda: sender.happen(journey.run, lambda: sender.protocol.received(journey.transmit, envelope, self.now))
        )

    def fail(self, journey: Journey, *, has_left: bool = True) -> None:
        sender = journey.sender

        def failed() -> None:
            sender.protocol.failed(journey.transmit, self.now, "it is down", has_left=has_left)

        self.events.append(lambda: sender.happen(journey.run, failed))

    def settle(self, until: Callable[[], bool] = lambda: False) -> None:
        """All that happens without time passing."""
        while self.events and not until():
            self.events.popleft()()

    def go(self, seconds: float = 120.0, until: Callable[[], bool] = lambda: False) -> None:
        """All that happens within that time."""
        end = self.now + seconds
        self.settle(until)
        while not until():
            up = [party for party in self.parties.values() if party.is_up]
            due = min((at for party in up if (at := party.protocol.deadline()) is not None), default=end)
            if due > end or (not self.events and due == end):
                self.now = end
                return
            self.now = max(self.now, due)
            for party in up:
                party.happen(party.run, lambda party=party: party.protocol.pump(self.now))  # type: ignore[misc]
            self.settle(until)
