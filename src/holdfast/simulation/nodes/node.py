"""One simulated endpoint: the real core, a store that can crash, and a model of the application above them.

It plays the part of a shell without a socket or a clock of its own: what the core wants done goes to its
:class:`Surroundings`, which decide when, and whether, it happens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Protocol

from holdfast.core.events import (
    Acknowledged,
    BackChannel,
    Delivered,
    Effect,
    Ended,
    Handle,
    Incident,
    ReadWanted,
    Respond,
    Stopped,
    Submitted,
    Transmit,
)
from holdfast.core.forwarding.forwarded_requests import Forwarding
from holdfast.core.forwarding.undeliverable import GivingUp
from holdfast.core.handling.delivery import Handling
from holdfast.core.handling.handler_cursor import HandlingPolicy
from holdfast.core.messages import Acknowledge, Envelope, Fault, Routed
from holdfast.core.origin import CERTIFIED, Origin, secret_in
from holdfast.core.policy import DestinationPolicy, ForwardingPolicy, SourcePolicy, StagingPolicy
from holdfast.core.protocol import RMProtocol
from holdfast.core.queues.dead_letters import DeadLetters
from holdfast.core.queues.queue import Queue, ReadRecords
from holdfast.core.queues.retention import RetentionPolicy
from holdfast.core.records import Batch, Record
from holdfast.core.sending.outboxes.outbox import Outbox
from holdfast.core.versions import Versions
from holdfast.endpoint.destination.dead_letters import seal, unseal
from holdfast.simulation.nodes.routed_queues import route_of, service_address
from holdfast.simulation.nodes.store import SimStore

if TYPE_CHECKING:
    from holdfast.simulation.world import World

INBOX = "inbox"
REFUSED = Fault("Refused", "The service refuses this message.")
USUAL_HANDLING = HandlingPolicy()
STRANGER = -1
"""Stands for the sender of a forged message, which is no endpoint of the world."""
USUAL_RETENTION = RetentionPolicy()
USUAL_STAGING = StagingPolicy()
OUTBOX = "orders"
"""The key of the one outbox that the source's application fills."""
SECOND = -2
"""Stands for the second destination in a journey (see :mod:`holdfast.simulation.twin`)."""
SECOND_ADDRESS = "http://second.test/"
SECOND_OUTBOX = "orders for the second destination"
"""The key of the outbox that leads to it."""
FORWARD = "forward/"
"""Before the number of a partition: the key of the outbox that forwards that partition of a broker's first queue. For a
further queue, the queue's name and a slash are before the number."""


@dataclass(slots=True, eq=False)
class Journey:
    """One request on its way: who sent what, which run of the sender waits for the answer, and how it ended."""

    sender: int
    run: int
    transmit: Transmit
    receiver: int
    number: int
    is_answered: bool = False
    has_failed: bool = False


@dataclass(slots=True, eq=False)
class Arrival:
    """One arrival of a request, the handle that the core answers; ``run`` is the receiver's."""

    journey: Journey
    run: int
    response_delay: float | None = 0.0
    """Seconds until its response is back at the sender; None: it is lost. For a driver that knows time."""


class Surroundings(Protocol):
    """What a driver of the world decides: when things travel and become durable."""

    def request(self, journey: Journey) -> None:
        """An endpoint sends a request."""
        ...

    def respond(self, arrival: Arrival, envelope: Envelope | None) -> None:
        """An endpoint answers one; None: with an empty 202."""
        ...

    def batch_taken(self, node: Node) -> None:
        """A batch of the endpoint is on its way to the disk."""
        ...

    def read_wanted(self, node: Node, wanted: ReadWanted) -> None:
        """An endpoint wants to read its store; :meth:`Node.read` is to follow, at once or in the order of asking."""
        ...

    def handler_started(self, node: Node, handle: Handle) -> None:
        """A record was given to the handler; :meth:`Node.handled` or :meth:`Node.handler_failed` is to follow."""
        ...


def reply_to(record: Record) -> Record | None:
    """What a request is answered with, be it handled or given up: requests are m0, m1 ..., replies r0, r1 ..."""
    if not record.wants_reply:
        return None
    body = b"r" + record.body[1:]
    return Record("", 0, "urn:reply", body, record.received_at, "urn:reply:" + body.decode())


def always(_value: str) -> bool:
    """Allow every address, accept every action."""
    return True


@dataclass(frozen=True, slots=True)
class Setup:
    """How one endpoint is built, the same after every restart.

    Args:
        address: Where it is reached; "" for a source without a listener.
        destination_policy, source_policy: What the core is given.
        handling: How the handler is called.
        choices: What its outbox tries with CreateSequence.
        partitions: Of its queue.
        sessions: Further ones, for sessions.
        batches: How many batches may be on their way to the disk at once.
        concurrency: How many handlers run at a time.
        retention: How long its queue keeps records; None: for ever.
        alone: Whether what follows from each handling is made durable by itself.
        trims: Whether records that the handler is done with are deleted.
        asked_only: Whether it acknowledges a message only if asked to, and answers with nothing otherwise, as Metro
            does with one that is sent again.
        hides_limit: Whether its MessageNumberRollover names no MaxMessageNumber, as CXF's does.
        certified: Whether every sender shows a client certificate of its own.
        forwarding: When a broker gives a message up; None: the default.
        forwards: Whether it is a broker: without handlers, it sends on to the last endpoint what it receives.
        routed: The names of its further queues: see :mod:`holdfast.simulation.nodes.routed_queues`.
        routed_retention: How long these keep records; those of a broker keep what is not forwarded yet.
        block_bytes: Bytes of held messages that it releases in one batch; None: as the core does.
        staging: Limits of its sinks.
    """

    address: str
    destination_policy: DestinationPolicy
    source_policy: SourcePolicy
    handling: HandlingPolicy = USUAL_HANDLING
    choices: tuple[tuple[Versions, bool], ...] = ()
    partitions: int = 1
    sessions: int = 0
    batches: int = 1
    concurrency: int = 32
    retention: RetentionPolicy | None = None
    alone: bool = False
    trims: bool = False
    asked_only: bool = False
    hides_limit: bool = False
    certified: bool = False
    forwarding: ForwardingPolicy | None = None
    forwards: bool = False
    routed: tuple[str, ...] = ()
    routed_retention: RetentionPolicy = USUAL_RETENTION
    block_bytes: int | None = None
    staging: StagingPolicy = USUAL_STAGING


class Node:
    """One endpoint.

    Args:
        index: 0 for the source; the last one is the destination, and a broker may be between them.
        name: For people.
        setup: How it is built.
        world: What it lives in.
        build: Makes the protocol; a planted bug comes in here.
    """

    def __init__(
        self, index: int, name: str, setup: Setup, world: World, build: Callable[..., RMProtocol] = RMProtocol
    ) -> None:
        self.index = index
        self.name = name
        self.setup = setup
        self.world = world
        self.build = build
        self.store = SimStore(partial(world.batch_durable, self))
        self.run = 0
        self.is_up = False
        self.identifiers = 0
        self.protocol: RMProtocol
        self.reading = 0
        """Reads that are under way."""
        self.outbox: Outbox | None = None
        self.end_wanted = False

    # --- life -----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Come up with whatever the store holds."""
        now = self.world.clock.local(self.index)
        self.run += 1
        self.is_up = True
        self.reading = 0
        snapshot = self.store.load()
        self.protocol = self.make_protocol(self.store.read, self.new_identifier)
        self.protocol.recover(snapshot, now)
        for queue in self.protocol.inbound.queues.values():
            if not queue.epoch:
                queue.begin(f"epoch of {self.name}")
        if self.protocol.handling is not None:
            self.protocol.handling.start(now)
        if self.setup.forwards:
            self._forward()
            self.giving_up.requeue_next(now)
        elif self.setup.choices:
            self.outbox = self.protocol.outbound.open(OUTBOX, self.world.nodes[1].setup.address, [*self.setup.choices])
            if self.end_wanted:
                self.outbox.want_end(now)

    def _forward(self) -> None:
        inbound = self.protocol.inbound
        forwarders = [(FORWARD, inbound.queue, self.world.nodes[-1].setup.address, [*self.setup.choices])]
        for name in self.setup.routed:
            choices = [(versions, False) for versions, _ in self.setup.choices]
            forwarders.append((f"{FORWARD}{name}/", inbound.queues[name], service_address(name), choices))

        def follow(partition: int) -> None:
            for prefix, queue, to, choices in forwarders:
                key, policy = f"{prefix}{partition}", self.setup.forwarding
                self.protocol.outbound.forward(key, to, choices, queue, partition, policy=policy)

        for partition, one in enumerate(inbound.queue.partitions):
            if partition < inbound.queue.shared or one.end:
                follow(partition)
        if self.protocol.sessions is not None:
            self.protocol.sessions.on_begin = follow

    def make_protocol(self, read: ReadRecords, new_identifier: Callable[[], str]) -> RMProtocol:
        """Its core, as it is before it has recovered."""
        letters = DeadLetters()
        setup = self.setup
        if setup.forwards:
            queue = Queue(INBOX, drops_passed=setup.trims, dead_letters=letters)
            queue.divide(setup.partitions, setup.sessions)
            forwarding = Forwarding(letters, seal=seal, unseal=unseal, tell=lambda request, *_fault: reply_to(request))
            return self._build(queue, read, new_identifier, None, forwarding)
        queue = Queue(INBOX, setup.partitions, setup.retention, drops_passed=setup.trims, dead_letters=letters)
        queue.is_handled = True
        handling = Handling(
            queue,
            letters,
            self.setup.handling,
            self.setup.concurrency,
            seal=seal,
            unseal=unseal,
            set_aside=reply_to,
        )
        return self._build(queue, read, new_identifier, handling)

    def _build(
        self,
        queue: Queue,
        read: ReadRecords,
        new_identifier: Callable[[], str],
        handling: Handling | None,
        forwarding: Forwarding | None = None,
    ) -> RMProtocol:
        setup = self.setup
        protocol = self.build(
            queue,
            read,
            new_identifier,
            self.world.jitter,
            further=[self._further(name) for name in setup.routed],
            staging_policy=setup.staging,
            destination_policy=self.setup.destination_policy,
            source_policy=self.setup.source_policy,
            allows=always,
            accepts=always,
            replies=always,
            handling=handling,
            forwarding=forwarding,
            **({"local": self.setup.address} if self.setup.address else {}),
        )
        if setup.block_bytes is not None:
            protocol.inbound.held.block_bytes = setup.block_bytes
        return protocol

    def _further(self, name: str) -> Queue:
        setup = self.setup
        if not setup.forwards:
            return Queue(name, setup.partitions, setup.routed_retention)
        queue = Queue(name, drops_passed=True)
        queue.divide(setup.partitions, setup.sessions)
        return queue

    @property
    def handling(self) -> Handling:
        """Its handlers."""
        assert self.protocol.handling is not None
        return self.protocol.handling

    @property
    def giving_up(self) -> GivingUp:
        """What a broker gives up, and requeues."""
        giving_up = self.protocol.outbound.context.forwarders.giving_up
        assert isinstance(giving_up, GivingUp)
        return giving_up

    def crash(self, survivors: int) -> None:
        """Die. Of the batches on their way to the disk, the oldest ``survivors`` made it."""
        self.is_up = False
        self.store.crash(survivors)

    def new_identifier(self) -> str:
        """An Identifier never used before, not even by an earlier run."""
        self.identifiers += 1
        return f"urn:{self.name}:{self.identifiers}"

    # --- inputs ---------------------------------------------------------------------------------------------------

    @property
    def is_listening(self) -> bool:
        """Whether it takes in what comes: not before it has read what an earlier run may have sent."""
        return self.is_up and not self.protocol.outbound.reading.is_recovering

    @property
    def now(self) -> float:
        """What its clock shows."""
        return self.world.clock.local(self.index)

    def submit(self, record: Record) -> None:
        """The application sends a message."""
        assert self.outbox is not None
        self.protocol.submit(self.outbox, record, self.now)

    def end(self) -> None:
        """The application has nothing more to send."""
        self.end_wanted = True
        if self.is_up:
            assert self.outbox is not None
            self.outbox.want_end(self.now)

    def receive(self, arrival: Arrival) -> None:
        """A request arrives."""
        journey = arrival.journey
        envelope = replace(journey.transmit.envelope)
        service = self.world.service
        if service is not None and self is self.world.nodes[-1] and service.refuses(envelope.body, journey.number):
            self.world.count("messages refused")
            self.protocol.refuse(envelope, replace(REFUSED), BackChannel(arrival))
            return
        if self.setup.routed and envelope.sequence is not None:
            envelope.routed = Routed((INBOX, *self.route_of(envelope.body)))
        self.protocol.receive(envelope, BackChannel(arrival), self.now, origin=self.origin_of(journey))

    def route_of(self, body: bytes) -> tuple[str, ...]:
        """Return the further queues of a message. Those of a broker get one-way messages only: one service replies."""
        if self.setup.forwards and (not body.startswith(b"m") or body in self.world.ledger.wants_reply):
            return ()
        return route_of(body, self.setup.routed)

    def origin_of(self, journey: Journey) -> Origin:
        """Where a request came from, as its transport tells."""
        party = f"{CERTIFIED}{journey.sender}" if self.setup.certified else ""
        return Origin(secret=secret_in(journey.transmit.to), party=party)

    def conclude(self, journey: Journey, envelope: Envelope | None) -> None:
        """The answer to a request arrives."""
        self.protocol.received(journey.transmit, None if envelope is None else replace(envelope), self.now)

    def fail(self, journey: Journey) -> None:
        """A request failed."""
        self.protocol.failed(journey.transmit, self.now, "it was lost")

    def pump(self) -> None:
        """Its timer fires."""
        self.protocol.pump(self.now)

    def durable(self) -> None:
        """Its oldest batch reached the disk, and it is told."""
        self.store.make_durable()
        self.protocol.batch_durable(self.now)

    def read(self, wanted: ReadWanted) -> None:
        """What it wanted to read is there."""
        self.reading -= 1
        found = self.store.read(wanted.queue, wanted.partition, wanted.start, wanted.end)
        self.protocol.records_read(wanted, found, self.now)

    def handled(self, handle: Handle) -> None:
        """The handler succeeded: its answer, if one is awaited, and that it is done are saved together."""
        self.world.handler_succeeded(self, handle)
        reply = reply_to(handle.record)
        if self.setup.alone:
            for batch in self.handling.handled_alone(handle, reply, self.now):
                if batch is not None:
                    self._take(batch)
        else:
            self.handling.handled(handle, reply, self.now)
        self._trim(handle)

    def handler_failed(self, handle: Handle) -> None:
        """The handler failed: it is due again, or given up, which a requester is told of."""
        self.world.handler_failed(self, handle)
        self.handling.handling_failed(handle, "it failed", "it failed", self.now)
        self._trim(handle)

    def _trim(self, handle: Handle) -> None:
        """At once, and not only now and then, what is handled goes."""
        if self.setup.trims and handle.queue == INBOX:
            self.protocol.inbound.queue.trim(handle.partition)

    # --- outputs --------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """After every input: do what the core wants done."""
        world = self.world
        self.protocol.outbound.pump(self.now)
        while True:
            for effect in self.protocol.take_effects():
                self._perform(effect)
            while self.protocol.wants_commit and len(self.store.pending) < self.setup.batches:
                self._take(self.protocol.take_batch())
            deadline = self.protocol.deadline()
            if deadline is None or deadline > self.now:
                if not self.protocol.effects:
                    return
                continue
            self.pump()
            world.pumped(self)

    def _take(self, batch: Batch) -> None:
        self.store.take(batch)
        self.world.surroundings.batch_taken(self)

    def _perform(self, effect: Effect) -> None:
        world = self.world
        if isinstance(effect, Respond):
            arrival = effect.back_channel
            assert isinstance(arrival, Arrival), arrival
            world.respond(self, arrival, self._said(effect.envelope, arrival))
        elif isinstance(effect, Transmit):
            self._said(effect.envelope, None)
            world.transmit(self, effect)
        elif isinstance(effect, ReadWanted):
            self.reading += 1
            world.surroundings.read_wanted(self, effect)
        elif isinstance(effect, Delivered):
            world.delivered(self, effect)
        elif isinstance(effect, Handle):
            world.handed_over(self, effect)
            world.surroundings.handler_started(self, effect)
        elif isinstance(effect, Acknowledged):
            world.acknowledged(self, effect)
        elif isinstance(effect, Ended):
            world.ended(self, effect)
        elif isinstance(effect, Stopped):
            world.stopped(self, effect)
        elif isinstance(effect, Submitted | Incident):
            world.told(self, effect)

    def _said(self, envelope: Envelope | None, arrival: Arrival | None) -> Envelope | None:
        """What it says where the core would say this: less than that, if it is set up so."""
        if envelope is None:
            return None
        if self.setup.hides_limit and envelope.fault is not None:
            envelope.fault.max_message_number = None
        is_asked = arrival is None or arrival.journey.transmit.envelope.ack_requested
        if self.setup.asked_only and isinstance(envelope.control, Acknowledge) and not is_asked:
            return None
        return envelope

    def deadline(self) -> float | None:
        """When it wants attention next, in true time; None: never by itself, or it is down."""
        if not self.is_up:
            return None
        local = self.protocol.deadline()
        return None if local is None else self.world.clock.true_time(self.index, local)


def saved_sequences(batch: Batch, role: str) -> dict[str, dict[str, object]]:
    """The states of Sequences of one role that a batch saves."""
    return {name: state for name, state in batch.sequences.items() if state is not None and state["role"] == role}
