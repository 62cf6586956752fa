"""Two or three endpoints, the ledger of their world, and the invariants. A driver decides time and chance."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from holdfast.core.events import Acknowledged, Delivered, Ended, Handle, Incident, Stopped, Submitted, Transmit
from holdfast.core.messages import Envelope, SequenceAcknowledgement
from holdfast.core.protocol import RMProtocol
from holdfast.core.records import Batch, Record
from holdfast.core.sending.outboxes.outdated_copy import OUTDATED
from holdfast.core.sending.outboxes.peer_answers import RETRACTED
from holdfast.simulation.nodes.clock import SimClock
from holdfast.simulation.nodes.ledger import DurableState, Ledger, Words
from holdfast.simulation.nodes.node import (
    FORWARD,
    INBOX,
    OUTBOX,
    SECOND,
    SECOND_OUTBOX,
    STRANGER,
    Arrival,
    Journey,
    Node,
    Setup,
    Surroundings,
)
from holdfast.simulation.nodes.routed_queues import LEFT_BEHIND, is_routed
from holdfast.simulation.nodes.words import describe
from holdfast.simulation.promises.invariant import Invariant, InvariantViolation
from holdfast.simulation.promises.invariants import ALL_INVARIANTS

if TYPE_CHECKING:
    from holdfast.simulation.promises.refusals import RefusingService

SOURCE = 0


class Watch:
    """The invariants of one endpoint, grouped by the hooks they override.

    Args:
        kinds: The classes of the invariants; each gets a new instance.
    """

    __slots__ = ("after", "handed_over", "leaving", "pumped", "reported", "said", "sent", "stored")

    def __init__(self, kinds: Iterable[type[Invariant]]) -> None:
        invariants = [kind() for kind in kinds]
        for moment in self.__slots__:
            setattr(self, moment, [invariant for invariant in invariants if overrides(invariant, moment)])

    after: list[Invariant]
    handed_over: list[Invariant]
    leaving: list[Invariant]
    pumped: list[Invariant]
    reported: list[Invariant]
    said: list[Invariant]
    sent: list[Invariant]
    stored: list[Invariant]


class World:
    """A source, a destination, an optional broker between them, and the invariants that watch them.

    Args:
        setups: The setup of each endpoint.
        surroundings: Decides when messages travel and batches become durable.
        jitter: The core's source of randomness.
        invariants: Invariants to check; each endpoint gets new instances.
        build: Makes each endpoint's protocol; tests plant bugs through it.
        trace: Called with a line for each event; None: no trace.
    """

    def __init__(
        self,
        setups: tuple[Setup, ...],
        surroundings: Surroundings,
        jitter: Callable[[], float],
        *,
        invariants: Iterable[type[Invariant]] = ALL_INVARIANTS,
        build: Callable[..., RMProtocol] = RMProtocol,
        trace: Callable[[str], None] | None = None,
    ) -> None:
        count = len(setups)
        self.clock = SimClock(count)
        self.ledger = Ledger([DurableState() for _ in setups], [Words() for _ in setups])
        self.surroundings = surroundings
        self.jitter = jitter
        self.trace = trace
        kinds = tuple(invariants)
        self.watches = [Watch(kinds) for _ in setups]
        self.counts: dict[str, int] = {}
        self.has_ended = False
        self.is_stopped = False
        self.submitted = 0
        self.service: RefusingService | None = None
        """Decides which messages the destination refuses; None: it refuses none."""
        self.second: World | None = None
        """The world of the source's second destination; None: it has only one."""
        self.others: dict[str, tuple[int, World]] = {}
        """Address -> the number and the world of an endpoint in a separate world."""
        self.services: dict[str, World] = {}
        """A broker's further queue -> the world of the service that gets its messages."""
        self.broker: tuple[str, DurableState] | None = None
        """In the world of such a service: the queue, and the broker's disk."""
        self.journeys = 0
        """Number of requests sent so far."""
        names = ("source", "broker", "destination") if count > 2 else ("source", "destination")
        self.nodes = tuple(
            Node(index, name, setup, self, build) for index, (name, setup) in enumerate(zip(names, setups, strict=True))
        )

    # --- told by the driver ---------------------------------------------------------------------------------------
    # --- called by the driver -------------------------------------------------------------------------------------
    def start(self, node: Node) -> None:
        self.note(lambda: f"{node.name} starts")
        self.ledger.disks[node.index].outcomes.clear()
        node.start()
        self.settle(node)

    def crash(self, node: Node, survivors: int) -> None:
        self.count("crashes")
        self.note(lambda: f"{node.name} crashes; {survivors} of {len(node.store.pending)} pending batches are durable")
        node.crash(survivors)
        self.check(node)

    def settle(self, node: Node) -> None:
        """Perform an endpoint's effects after an input, then check the invariants."""
        if node.is_up:
            node.settle()
        self.check(node)

    def submit(self, wants_reply: bool) -> None:
        """Submit the next message of the source's application."""
        number = self.submitted
        self.submitted += 1
        body = b"m%d" % number
        if wants_reply:
            self.ledger.wants_reply.add(body)
        source = self.nodes[SOURCE]
        self.note(lambda: f"the source's application submits {body.decode()}{', a request' if wants_reply else ''}")
        record = Record(OUTBOX, 0, "urn:request", body, source.now, f"urn:message:{number}", wants_reply=wants_reply)
        source.submit(record)

    def check(self, node: Node) -> None:
        """Check the invariants of the endpoint that changed; the others are unchanged."""
        if node.is_up:
            for invariant in self.watches[node.index].after:
                invariant.after(self, node)

    def note(self, line: Callable[[], str]) -> None:
        if self.trace is not None:
            self.trace(line())

    def count(self, what: str) -> None:
        """Count an occurrence for the closing table."""
        self.counts[what] = self.counts.get(what, 0) + 1

    # --- told by the endpoints ------------------------------------------------------------------------------------

    def transmit(self, node: Node, transmit: Transmit) -> None:
        """Carry a request of an endpoint."""
        address, sequence = transmit.to.partition("?")[0], transmit.envelope.sequence
        receiver, other = self.others.get(address, (None, None))
        if other is not None and sequence is not None:
            if any(name == sequence.identifier for name, _ in self.ledger.words[SOURCE].bodies):
                self.count("messages in a Sequence with the Identifier of another")
            if receiver != SECOND:
                self.count("messages to services of further queues")
            other.ledger.words[SOURCE].transmitted(transmit.envelope)
        if receiver != SECOND:
            self._leaving(node, transmit.envelope)
        if receiver is None:
            receiver = next(one.index for one in self.nodes if one.setup.address == address)
        self.journeys += 1
        journey = Journey(node.index, node.run, transmit, receiver, self.journeys)
        self.note(lambda: f"{node.name} sends #{journey.number} {describe(transmit.envelope)}")
        self.count("requests")
        if transmit.number:
            self.count("messages transmitted")
        self.surroundings.request(journey)

    def respond(self, node: Node, arrival: Arrival, envelope: Envelope | None) -> None:
        """Carry an endpoint's answer to a request."""
        if envelope is not None and arrival.journey.sender != STRANGER:
            self._leaving(node, envelope)
        self.note(lambda: f"{node.name} answers #{arrival.journey.number} {describe(envelope)}")
        self.surroundings.respond(arrival, envelope)

    def _leaving(self, node: Node, envelope: Envelope) -> None:
        for invariant in self.watches[node.index].leaving:
            invariant.leaving(self, node, envelope)
        for acknowledgement in envelope.acknowledgements:
            self._say(node, acknowledgement, envelope)
        if envelope.sequence is not None:
            for invariant in self.watches[node.index].sent:
                invariant.sent(self, node, envelope)
            self.ledger.words[node.index].transmitted(envelope)

    def _say(self, node: Node, acknowledgement: SequenceAcknowledgement, envelope: Envelope) -> None:
        for invariant in self.watches[node.index].said:
            invariant.said(self, node, acknowledgement, envelope)
        self.ledger.words[node.index].acknowledged(acknowledgement)

    def batch_durable(self, node: Node, batch: Batch) -> None:
        """Record a durable batch, even if the endpoint crashes before it learns of it."""
        self.ledger.disks[node.index].apply(batch)
        self.count("batches")
        for invariant in self.watches[node.index].stored:
            invariant.stored(self, node, batch)

    def pumped(self, node: Node) -> None:
        """Check the invariants after an endpoint's timer fired and its due work is done."""
        for invariant in self.watches[node.index].pumped:
            invariant.pumped(self, node)

    def handed_over(self, node: Node, handle: Handle) -> None:
        """Check the invariants before the handler gets a record."""
        for invariant in self.watches[node.index].handed_over:
            invariant.handed_over(self, node, handle)
        self.count("handed over" if handle.queue == INBOX else "dead letters retried")

    def handler_succeeded(self, node: Node, handle: Handle) -> None:
        """Record a success of the handler."""
        self.ledger.disks[node.index].outcomes[handle.queue, handle.partition, handle.offset] = -1

    def handler_failed(self, node: Node, handle: Handle) -> None:
        """Record a failure of the handler."""
        where = (handle.queue, handle.partition, handle.offset)
        outcomes = self.ledger.disks[node.index].outcomes
        outcomes[where] = outcomes.get(where, 0) + 1

    def delivered(self, node: Node, effect: Delivered) -> None:
        """Trace a record that entered an inbound queue."""
        self.note(lambda: f"{node.name} delivers the record at offset {effect.offset} to its application")

    def acknowledged(self, node: Node, effect: Acknowledged) -> None:
        """Check a report that messages have arrived."""
        self.note(lambda: f"{node.name} learns that offsets {effect.first}-{effect.last} of {effect.key} arrived")
        world = self.second if effect.key == SECOND_OUTBOX else self
        if world is None or (world is self and effect.key != OUTBOX and not effect.key.startswith(FORWARD)):
            return
        records = self.ledger.disks[node.index].sent_under(effect.key)
        for offset in range(effect.first, effect.last + 1):
            if offset >= len(records):
                raise InvariantViolation(
                    "NothingUnacknowledgedDropped", f"{node.name} reports offset {offset}, which does not exist"
                )
            if is_routed(effect.key.removeprefix(FORWARD)):
                self._reached(node, effect.key, records[offset].body)
                continue
            for invariant in self.watches[node.index].reported:
                invariant.reported(world, node, records[offset].body)

    def _reached(self, node: Node, key: str, body: bytes) -> None:
        service = self.services[key.removeprefix(FORWARD).partition("/")[0]]
        if not service.ledger.has_arrived(1, body):
            raise InvariantViolation(
                "NothingUnacknowledgedDropped", f"{node.name} reports {body.decode()} of {key}: it has not arrived"
            )

    def ended(self, node: Node, effect: Ended) -> None:
        """Record that an outbox has sent all its messages and its Sequence has ended."""
        self.note(lambda: f"{node.name} ends {effect.key}")
        if effect.key == OUTBOX:
            self.has_ended = True

    def stopped(self, node: Node, effect: Stopped) -> None:
        """Record a report that an outbox has stopped."""
        self.note(lambda: f"{node.name} stops {effect.key}: {effect.code}, {effect.reason}")
        self.count(f"stopped: {effect.code}")
        if effect.key.startswith(FORWARD):
            records = self.ledger.disks[node.index].sent_under(effect.key)
            self.ledger.words[SOURCE].in_doubt.update(one.body for one in records[effect.first : effect.last + 1])
        if effect.key == OUTBOX:
            self.is_stopped = True
            self.ledger.words[node.index].stopped.append(effect.code)
            self.ledger.doubt(effect.first, effect.last)

    def told(self, node: Node, effect: Submitted | Incident) -> None:
        """Trace and count an incident; some incidents are violations."""
        if isinstance(effect, Incident):
            self.note(
                lambda: f"{node.name}: {effect.name} {effect.identifier} {effect.number or ''} {effect.detail or ''}"
            )
            self.count(effect.name)
            if effect.name == LEFT_BEHIND:
                self._left_behind(effect)
            # Every destination here remembers its acknowledgements, and no store is set back.
            if effect.name in (RETRACTED, OUTDATED):
                raise InvariantViolation("NoFalseAccusation", str(effect.detail))

    def _left_behind(self, effect: Incident) -> None:
        detail = effect.detail or {}
        key, told = (detail["queue"], detail["partition"], detail["cursor"]), self.ledger.left_behind
        told[key] = told.get(key, 0) + detail["records"]


def overrides(invariant: Invariant, hook: str) -> bool:
    return getattr(type(invariant), hook) is not getattr(Invariant, hook)
