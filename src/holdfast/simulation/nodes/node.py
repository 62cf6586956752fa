"""One simulated endpoint: the real core, a store that can crash, and a model of the application above them.

It acts as a shell, but has no socket and no clock. It passes the core's effects to its :class:`Surroundings`,
which decide when, and whether, each effect happens.
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
from holdfast.core.forwarding.undeliverable import UndeliverableMessages
from holdfast.core.handling.delivery import HandlerSchedule, HandlerSettings
from holdfast.core.handling.handler_cursor import HandlingPolicy
from holdfast.core.messages import ANONYMOUS, MC_ANONYMOUS, Acknowledge, Envelope, Fault, Routed
from holdfast.core.origin import CERTIFIED, Origin, secret_in
from holdfast.core.policy import DestinationPolicy, ForwardingPolicy, SourcePolicy, StagingPolicy
from holdfast.core.protocol import RMProtocol
from holdfast.core.protocol_settings import Environment, MessageRules, Policies
from holdfast.core.queues.dead_letters import DeadLetters
from holdfast.core.queues.queue import Queue
from holdfast.core.queues.queue_records import ReadRecords
from holdfast.core.queues.retention import RetentionPolicy
from holdfast.core.records import Batch, Record
from holdfast.core.sending.outboxes.outbox import Outbox
from holdfast.core.versions import Addressing, Versions
from holdfast.endpoint.handling.dead_letters import seal, unseal
from holdfast.simulation.nodes.routed_queues import route_of, service_address
from holdfast.simulation.nodes.store import SimStore

if TYPE_CHECKING:
    from holdfast.simulation.world import World

INBOX = "inbox"
REFUSED = Fault("Refused", "The service refuses this message.")
USUAL_HANDLING = HandlingPolicy()
STRANGER = -1
"""Sender number of a forged message; no endpoint of the world has it."""
USUAL_RETENTION = RetentionPolicy()
USUAL_STAGING = StagingPolicy()
OUTBOX = "orders"
"""Key of the outbox that the source's application fills."""
SECOND = -2
"""Receiver number of the second destination in a journey (see :mod:`holdfast.simulation.twin`)."""
SECOND_ADDRESS = "http://second.test/"
SECOND_OUTBOX = "orders for the second destination"
"""Key of the outbox that sends to the second destination."""
FORWARD = "forward/"
"""Prefix of a forwarder's outbox key. The partition's number follows; for a further queue, the queue's name and a slash
come before the number."""


@dataclass(slots=True, eq=False)
class Journey:
    """One request in transit: sender, content, receiver, and result.

    ``run`` is the run of the sender that waits for the answer.
    """

    sender: int
    run: int
    transmit: Transmit
    receiver: int
    number: int
    is_answered: bool = False
    has_failed: bool = False


@dataclass(slots=True, eq=False)
class Arrival:
    """One arrival of a request, used as the handle that the core answers; ``run`` is the receiver's."""

    journey: Journey
    run: int
    response_delay: float | None = 0.0
    """Seconds until the response reaches the sender; None: it is lost. Only for drivers with time."""


class Surroundings(Protocol):
    """The decisions of a driver: when messages travel and batches become durable."""

    def request(self, journey: Journey) -> None:
        """Carry a request of an endpoint."""
        ...

    def respond(self, arrival: Arrival, envelope: Envelope | None) -> None:
        """Carry an endpoint's response to a request; None is an empty 202."""
        ...

    def batch_taken(self, node: Node) -> None:
        """Take note that a batch of the endpoint awaits the disk."""
        ...

    def read_wanted(self, node: Node, wanted: ReadWanted) -> None:
        """Schedule a read of the store; call :meth:`Node.read` in the order of the requests."""
        ...

    def handler_started(self, node: Node, handle: Handle) -> None:
        """Schedule the end of a handler: call :meth:`Node.handled` or :meth:`Node.handler_failed`."""
        ...


def reply_to(record: Record) -> Record | None:
    """Return the reply to a request, handled or not: requests are m0, m1 ..., replies r0, r1 ..."""
    if not record.wants_reply:
        return None
    body = b"r" + record.body[1:]
    return Record("", 0, "urn:reply", body, record.received_at, "urn:reply:" + body.decode())


def always(_value: str) -> bool:
    """Allow every address and accept every action."""
    return True


@dataclass(frozen=True, slots=True)
class Setup:
    """How one endpoint is built; the same after every restart.

    Args:
        address: Its address; "" for a source without a listener, ``MC_ANONYMOUS`` for one that polls.
        destination_policy, source_policy: Policies for the core.
        handling: How the handler is called.
        choices: The versions that its outbox tries with CreateSequence, in order.
        partitions: Partitions of its queue.
        sessions: Additional partitions, for sessions.
        batches: Batches that may await the disk at once.
        retention: How long its queue keeps records; None: for ever.
        alone: Whether each handling commits its own batch.
        trims: Whether records that the handler has finished are deleted.
        asked_only: Whether it acknowledges a message only on request and otherwise answers with an empty 202, as Metro
            does for a retransmission.
        hides_limit: Whether its MessageNumberRollover omits MaxMessageNumber, as CXF's does.
        certified: Whether every sender presents its own client certificate.
        forwarding: When a broker makes a message a dead letter; None: the default.
        forwards: Whether it is a broker, which has no handlers and forwards its messages to the last endpoint.
        polls: Whether a broker polls the services behind it.
        routed: Names of its further queues: see :mod:`holdfast.simulation.nodes.routed_queues`.
        routed_retention: How long further queues keep records; a broker's also keep every record not yet forwarded.
        block_bytes: Bytes of held messages released in one batch; None: the core's default.
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
    retention: RetentionPolicy | None = None
    alone: bool = False
    trims: bool = False
    asked_only: bool = False
    hides_limit: bool = False
    certified: bool = False
    forwarding: ForwardingPolicy | None = None
    forwards: bool = False
    polls: bool = False
    routed: tuple[str, ...] = ()
    routed_retention: RetentionPolicy = USUAL_RETENTION
    block_bytes: int | None = None
    staging: StagingPolicy = USUAL_STAGING


def _tell(request: Record, _fault: Fault, _addressing: Addressing) -> Record | None:
    return reply_to(request)


class Node:
    """One endpoint.

    Args:
        index: 0 for the source; the highest for the destination; a broker may be between them.
        name: Name in the trace.
        setup: How it is built.
        world: The world it belongs to.
        build: Makes the protocol; tests plant bugs through it.
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
        """Reads in progress."""
        self.outbox: Outbox | None = None
        self.end_wanted = False

    # --- life -----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start with the state in the store."""
        now = self.world.clock.local(self.index)
        self.run += 1
        self.is_up = True
        self.reading = 0
        snapshot = self.store.load()
        self.protocol = self.make_protocol(self.store.read, self.new_identifier)
        self.protocol.recover(snapshot, now)
        for queue in self.protocol.inbound.queues.values():
            if not queue.description.epoch:
                queue.description.begin(f"epoch of {self.name}")
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
        inbound, polls = self.protocol.inbound, self.setup.polls
        forwarders = [(FORWARD, inbound.queue, self.world.nodes[-1].setup.address, [*self.setup.choices])]
        for name in self.setup.routed:
            choices = [(versions, False) for versions, _ in self.setup.choices]
            forwarders.append((f"{FORWARD}{name}/", inbound.queues[name], service_address(name), choices))

        def follow(partition: int) -> None:
            for prefix, queue, to, choices in forwarders:
                key, policy, address = f"{prefix}{partition}", self.setup.forwarding, MC_ANONYMOUS if polls else ""
                self.protocol.outbound.forward(key, to, choices, queue, partition, policy=policy, address=address)

        for partition, one in enumerate(inbound.queue.partitions):
            if partition < inbound.queue.description.shared or one.end:
                follow(partition)
        if self.protocol.sessions is not None:
            self.protocol.sessions.on_begin = follow

    def make_protocol(self, read: ReadRecords, new_identifier: Callable[[], str]) -> RMProtocol:
        """Make its core, before recovery."""
        letters = DeadLetters(seal, unseal)
        setup = self.setup
        if setup.forwards:
            queue = Queue(INBOX, drops_passed=setup.trims, dead_letters=letters)
            queue.divide(setup.partitions, setup.sessions)
            return self._build(queue, letters, read, new_identifier, None)
        queue = Queue(INBOX, setup.partitions, setup.retention, drops_passed=setup.trims, dead_letters=letters)
        queue.deletion.is_handled = True
        return self._build(queue, letters, read, new_identifier, HandlerSettings(setup.handling, reply_to))

    def _build(
        self,
        queue: Queue,
        letters: DeadLetters,
        read: ReadRecords,
        new_identifier: Callable[[], str],
        handling: HandlerSettings | None,
    ) -> RMProtocol:
        setup = self.setup
        protocol = self.build(
            queue,
            Environment(read, new_identifier, self.world.jitter, setup.address or ANONYMOUS),
            further=[self._further(name) for name in setup.routed],
            policies=Policies(setup.destination_policy, setup.source_policy, staging=setup.staging),
            rules=MessageRules(allows=always, tell=_tell) if setup.forwards else MessageRules(allows=always),
            letters=letters,
            handling=handling,
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
    def handling(self) -> HandlerSchedule:
        assert self.protocol.handling is not None
        return self.protocol.handling

    @property
    def giving_up(self) -> UndeliverableMessages:
        """The part of a broker that makes dead letters and requeues them."""
        assert self.protocol.forwarding is not None
        return self.protocol.forwarding.giving_up

    def crash(self, survivors: int) -> None:
        """Die; the oldest ``survivors`` of the batches that await the disk become durable."""
        self.is_up = False
        self.store.crash(survivors)

    def new_identifier(self) -> str:
        """Return an Identifier that no run of this endpoint has used."""
        self.identifiers += 1
        return f"urn:{self.name}:{self.identifiers}"

    # --- inputs ---------------------------------------------------------------------------------------------------

    @property
    def is_listening(self) -> bool:
        """Whether it accepts requests: only after it has read what an earlier run may have sent."""
        return self.is_up and not self.protocol.outbound.reading.is_recovering

    @property
    def now(self) -> float:
        """The time its clock shows."""
        return self.world.clock.local(self.index)

    def submit(self, record: Record) -> None:
        """Submit a message of the application."""
        assert self.outbox is not None
        self.protocol.submit(self.outbox, record, self.now)

    def end(self) -> None:
        """End the outbox: the application has sent its last message."""
        self.end_wanted = True
        if self.is_up:
            assert self.outbox is not None
            self.outbox.want_end(self.now)

    def receive(self, arrival: Arrival) -> None:
        journey = arrival.journey
        envelope = replace(journey.transmit.envelope)
        service = self.world.service
        if service is not None and self is self.world.nodes[-1] and service.refuses(envelope.body, journey.number):
            self.world.count("messages refused")
            if envelope.rm is None or envelope.rm.can.creates:
                self.protocol.refuse(envelope, replace(REFUSED), BackChannel(arrival))
                return
            envelope.routed = replace(REFUSED)  # by the application: reliable messaging knows the Sequence then
        elif self.setup.routed and envelope.sequence is not None:
            envelope.routed = Routed((INBOX, *self.route_of(envelope.body)))
        self.protocol.receive(envelope, BackChannel(arrival), self.now, origin=self.origin_of(journey))

    def route_of(self, body: bytes) -> tuple[str, ...]:
        """Return the further queues of a message. A broker routes only one-way messages there: one service replies."""
        if self.setup.forwards and (not body.startswith(b"m") or body in self.world.ledger.wants_reply):
            return ()
        return route_of(body, self.setup.routed)

    def origin_of(self, journey: Journey) -> Origin:
        """Return the origin of a request, as its transport would report it."""
        party = f"{CERTIFIED}{journey.sender}" if self.setup.certified else ""
        return Origin(secret=secret_in(journey.transmit.to), party=party)

    def conclude(self, journey: Journey, envelope: Envelope | None) -> None:
        """Receive the answer to a request."""
        self.protocol.received(journey.transmit, None if envelope is None else replace(envelope), self.now)

    def fail(self, journey: Journey) -> None:
        """Report a failed request to the core."""
        self.protocol.failed(journey.transmit, self.now, "it was lost")

    def pump(self) -> None:
        """Run the core's timer."""
        self.protocol.pump(self.now)

    def durable(self) -> None:
        self.store.make_durable()
        self.protocol.batch_durable(self.now)

    def read(self, wanted: ReadWanted) -> None:
        """Complete a read of the store."""
        self.reading -= 1
        found = self.store.read(wanted.queue, wanted.partition, wanted.start, wanted.end)
        self.protocol.records_read(wanted, found, self.now)

    def handled(self, handle: Handle) -> None:
        """Finish a handling: save the reply, if the sender awaits one, together with the handler's progress."""
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
        """Report a failed handling: the core retries the record, or makes it a dead letter and sends the requester a
        fault."""
        self.world.handler_failed(self, handle)
        self.handling.handling_failed(handle, "it failed", "it failed", self.now)
        self._trim(handle)

    def _trim(self, handle: Handle) -> None:
        """Delete handled records immediately, which the core does only occasionally."""
        if self.setup.trims and handle.queue == INBOX:
            self.protocol.inbound.queue.deletion.trim(handle.partition)

    # --- outputs --------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Perform the core's effects, as required after every input."""
        world = self.world
        self.protocol.outbound.pump(self.now)
        # An effect or a due timer may cause further effects, so repeat until neither is left.
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
        """Return the envelope to send in reply, reduced as ``asked_only`` and ``hides_limit`` require."""
        if envelope is None:
            return None
        if self.setup.hides_limit and envelope.fault is not None:
            envelope.fault.max_message_number = None
        is_asked = arrival is None or arrival.journey.transmit.envelope.ack_requested
        if self.setup.asked_only and isinstance(envelope.control, Acknowledge) and not is_asked:
            return None
        return envelope

    def deadline(self) -> float | None:
        """Return the true time of its next timer; None if it has none or is down."""
        if not self.is_up:
            return None
        local = self.protocol.deadline()
        return None if local is None else self.world.clock.true_time(self.index, local)


def saved_sequences(batch: Batch, role: str) -> dict[str, dict[str, object]]:
    return {name: state for name, state in batch.sequences.items() if state is not None and state["role"] == role}
