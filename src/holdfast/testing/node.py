"""One simulated endpoint: the real core, a store that can crash, and a model of the application above them.

It plays the part of a shell without a socket or a clock of its own: what the core wants done goes to its
:class:`Surroundings`, which decide when, and whether, it happens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Protocol

from holdfast.core.cursor import HandlerCursor, HandlingPolicy
from holdfast.core.events import (
    Acknowledged,
    BackChannel,
    Delivered,
    Effect,
    Ended,
    Incident,
    ReadWanted,
    Respond,
    Stopped,
    Submitted,
    Transmit,
)
from holdfast.core.messages import Acknowledge, Envelope
from holdfast.core.outbox import Outbox, ReadRecords
from holdfast.core.policy import Delivery, DestinationPolicy, SourcePolicy
from holdfast.core.protocol import RMProtocol
from holdfast.core.queues import HANDLER, Queue
from holdfast.core.records import Batch, Record
from holdfast.core.versions import Versions
from holdfast.testing.store import SimStore

if TYPE_CHECKING:
    from holdfast.testing.world import World

INBOX = "inbox"
USUAL_HANDLING = HandlingPolicy()
OUTBOX = "orders"
"""The key of the one outbox that the source's application fills."""


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

    def handler_started(self, node: Node, partition: int, offset: int) -> None:
        """A record was given to the handler; :meth:`Node.handled` or :meth:`Node.handler_failed` is to follow."""
        ...


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
        batches: How many batches may be on their way to the disk at once.
        trims: Whether records that the handler is done with are deleted.
        asked_only: Whether it acknowledges a message only if asked to, and answers with nothing otherwise, as Metro
            does with one that is sent again.
        hides_limit: Whether its MessageNumberRollover names no MaxMessageNumber, as CXF's does.
    """

    address: str
    destination_policy: DestinationPolicy
    source_policy: SourcePolicy
    handling: HandlingPolicy = USUAL_HANDLING
    choices: tuple[tuple[Versions, bool], ...] = ()
    partitions: int = 1
    batches: int = 1
    trims: bool = False
    asked_only: bool = False
    hides_limit: bool = False


class Node:
    """One endpoint.

    Args:
        index: 0 for the source, 1 for the destination.
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
        self.cursors: list[HandlerCursor] = []
        self.ends: list[int] = []
        self.reading = 0
        """Reads that are under way."""
        self._running: set[tuple[int, int]] = set()
        """What a handler that is called at most once is at: partition and offset."""
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
        self._recover_cursors()
        if self.setup.choices:
            self.outbox = self.protocol.outbound.open(OUTBOX, self.world.nodes[1].setup.address, [*self.setup.choices])
            if self.end_wanted:
                self.protocol.outbound.want_end(self.outbox, now)

    def make_protocol(self, read: ReadRecords, new_identifier: Callable[[], str]) -> RMProtocol:
        """Its core, as it is before it has recovered."""
        queue = Queue(INBOX, self.setup.partitions, drops_handled=self.setup.trims)
        queue.is_handled = True
        return self.build(
            queue,
            read,
            new_identifier,
            self.world.jitter,
            destination_policy=self.setup.destination_policy,
            source_policy=self.setup.source_policy,
            allows=always,
            accepts=always,
            replies=always,
            **({"local": self.setup.address} if self.setup.address else {}),
        )

    def _recover_cursors(self) -> None:
        queue = self.protocol.inbound.queue
        in_order = self.setup.destination_policy.assurance.in_order
        states = [queue.handled(one, at_most_once=self._is_at_most_once) for one in range(self.setup.partitions)]
        self.cursors = [HandlerCursor(self.setup.handling, in_order, state) for state in states]
        self.ends = queue.ends
        self._running = set()
        if self._is_at_most_once:
            self._answer_lost(queue.firsts)

    @property
    def _is_at_most_once(self) -> bool:
        return self.setup.destination_policy.assurance.delivery is Delivery.AT_MOST_ONCE

    def _answer_lost(self, firsts: list[int]) -> None:
        """Requests that were being handled at the crash are answered, and not handled again."""
        for destination in self.protocol.inbound.destinations.values():
            for number in sorted(destination.unanswered - destination.held):
                for partition, cursor in enumerate(self.cursors):
                    for offset in range(firsts[partition], self.ends[partition]):
                        record = self.record(partition, offset)
                        is_it = (record.sequence, record.message_number) == (destination.identifier, number)
                        if is_it and cursor.is_done(offset):
                            self.protocol.reply(record, self._reply(record), self.now)

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
            self.protocol.outbound.want_end(self.outbox, self.now)

    def receive(self, arrival: Arrival) -> None:
        """A request arrives."""
        self.protocol.receive(replace(arrival.journey.transmit.envelope), BackChannel(arrival), self.now)

    def conclude(self, journey: Journey, envelope: Envelope | None) -> None:
        """The answer to a request arrives."""
        self.protocol.received(journey.transmit, None if envelope is None else replace(envelope), self.now)

    def fail(self, journey: Journey) -> None:
        """A request failed."""
        self.protocol.failed(journey.transmit, self.now)

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

    def handled(self, partition: int, offset: int, record: Record) -> None:
        """The handler succeeded: its answer, if one is awaited, and that it is done are saved together."""
        self._done(partition, offset, record, self._reply(record))

    def _reply(self, record: Record) -> Record | None:
        if not record.wants_reply:
            return None
        body = b"r" + record.body[1:]
        return Record("", 0, "urn:reply", body, self.now, "urn:reply:" + body.decode())

    def handler_failed(self, partition: int, offset: int, record: Record) -> None:
        """The handler failed: it is due again, or (at most once: at once) done with, which a requester is told of."""
        if self._is_at_most_once or not self.cursors[partition].failed(offset, self.now):
            self.handled(partition, offset, record)

    def _done(self, partition: int, offset: int, record: Record, reply: Record | None) -> None:
        cursor = self.cursors[partition]
        cursor.finished(offset)
        self._running.discard((partition, offset))
        self.protocol.reply(record, reply, self.now)
        self._save_cursor(partition)
        if self.setup.trims:
            self.protocol.inbound.queue.trim(partition)

    def _save_cursor(self, partition: int) -> None:
        cursor = self.cursors[partition]
        running = (offset for where, offset in self._running if where == partition)
        floor = min(cursor.floor, min(running, default=cursor.floor))
        self.protocol.inbound.queue.move_cursor(HANDLER, partition, floor, self.now, cursor.to_state())

    # --- outputs --------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """After every input: do what the core wants done."""
        world = self.world
        self.protocol.outbound.pump(self.now)
        while True:
            for effect in self.protocol.take_effects():
                self._perform(effect)
            self._hand_over()
            while self.protocol.wants_commit and len(self.store.pending) < self.setup.batches:
                self.store.take(self.protocol.take_batch())
                world.surroundings.batch_taken(self)
            deadline = self.protocol.deadline()
            if deadline is None or deadline > self.now:
                if not self.protocol.effects:
                    return
                continue
            self.pump()
            world.pumped(self)

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
            self.ends[effect.partition] = max(self.ends[effect.partition], effect.offset + 1)
            world.delivered(self, effect)
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

    def _hand_over(self) -> None:
        """Give the handler what is its turn."""
        for partition, cursor in enumerate(self.cursors):
            end = self.ends[partition]
            while cursor.next_offset < end and cursor.has_room:
                offset = cursor.next_offset
                cursor.offer(offset, self.record(partition, offset).sequence if not cursor.is_done(offset) else "")
            while (taken := cursor.take(self.now)) is not None:
                if self._is_at_most_once:
                    # Marked before it is called, as the dispatcher does: what is lost then is not handled again.
                    self._running.add((partition, taken))
                    cursor.give_up_on(taken)
                    self._save_cursor(partition)
                    self.protocol.commit.then(partial(self._start_handler, partition, taken))
                else:
                    self._start_handler(partition, taken, self.now)

    def _start_handler(self, partition: int, offset: int, _now: float) -> None:
        self.world.handed_over(self, partition, offset)
        self.world.surroundings.handler_started(self, partition, offset)

    def record(self, partition: int, offset: int) -> Record:
        """A durable record of its queue."""
        return self.store.read(INBOX, partition, offset, offset + 1)[0][1]

    def deadline(self) -> float | None:
        """When it wants attention next, in true time; None: never by itself, or it is down."""
        if not self.is_up:
            return None
        times = [cursor.deadline() for cursor in self.cursors]
        times.append(self.protocol.deadline())
        local = min((time for time in times if time is not None), default=None)
        return None if local is None else self.world.clock.true_time(self.index, local)


def saved_sequences(batch: Batch, role: str) -> dict[str, dict[str, object]]:
    """The states of Sequences of one role that a batch saves."""
    return {name: state for name, state in batch.sequences.items() if state is not None and state["role"] == role}
