"""Two endpoints, or three, what is true about them, and who watches. Time and chance are for a driver to decide."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from holdfast.core.events import Acknowledged, Delivered, Ended, Handle, Incident, Stopped, Submitted, Transmit
from holdfast.core.messages import Envelope, SequenceAcknowledgement
from holdfast.core.protocol import RMProtocol
from holdfast.core.records import Batch, Record
from holdfast.core.sending.outboxes.retraction import RETRACTED
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
from holdfast.simulation.promises.invariants import ALL_INVARIANTS, Invariant, InvariantViolation

if TYPE_CHECKING:
    from holdfast.simulation.promises.refusals import RefusingService

SOURCE = 0


class Watch:
    """The invariants that watch one endpoint, by the moments that they look at.

    Args:
        kinds: Each is made anew.
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
    """A source, a destination, a broker between them if there are three, and everything that watches them.

    Args:
        setups: How each is built.
        surroundings: What happens to what they send and save.
        jitter: Given to the core.
        invariants: What must hold; each is made anew for each endpoint of this world.
        build: Makes each endpoint's protocol; a planted bug comes in here.
        trace: Called with a line for each thing that happens; None: nobody reads it.
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
        """Decides what the destination refuses; None: it refuses nothing."""
        self.second: World | None = None
        """The world of a second destination of the source; None: there is none."""
        self.others: dict[str, tuple[int, World]] = {}
        """Address -> the number and the world of an endpoint that has a world of its own."""
        self.services: dict[str, World] = {}
        """A broker's further queue -> the world of the service that gets its messages."""
        self.broker: tuple[str, DurableState] | None = None
        """For the world of such a service: the queue, and the disk of the broker."""
        self.journeys = 0
        """Requests that were sent so far."""
        names = ("source", "broker", "destination") if count > 2 else ("source", "destination")
        self.nodes = tuple(
            Node(index, name, setup, self, build) for index, (name, setup) in enumerate(zip(names, setups, strict=True))
        )

    # --- told by the driver ---------------------------------------------------------------------------------------

    def start(self, node: Node) -> None:
        """An endpoint comes up."""
        self.note(lambda: f"{node.name} starts")
        self.ledger.disks[node.index].outcomes.clear()
        node.start()
        self.settle(node)

    def crash(self, node: Node, survivors: int) -> None:
        """An endpoint dies."""
        self.count("crashes")
        self.note(
            lambda: f"{node.name} crashes; of {len(node.store.pending)} batches on their way {survivors} are durable"
        )
        node.crash(survivors)
        self.check(node)

    def settle(self, node: Node) -> None:
        """An endpoint had an input: take its outputs, then look whether everything still holds."""
        if node.is_up:
            node.settle()
        self.check(node)

    def submit(self, wants_reply: bool) -> None:
        """The source's application sends its next message."""
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
        """Look whether everything holds at an endpoint that something happened to; the other one is as it was."""
        if node.is_up:
            for invariant in self.watches[node.index].after:
                invariant.after(self, node)

    def note(self, line: Callable[[], str]) -> None:
        """A line of the trace."""
        if self.trace is not None:
            self.trace(line())

    def count(self, what: str) -> None:
        """One more of something, for the closing table."""
        self.counts[what] = self.counts.get(what, 0) + 1

    # --- told by the endpoints ------------------------------------------------------------------------------------

    def transmit(self, node: Node, transmit: Transmit) -> None:
        """An endpoint sends a request."""
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
        """An endpoint answers a request."""
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
        """A batch is on the disk (whether or not the endpoint lives to know)."""
        self.ledger.disks[node.index].apply(batch)
        self.count("batches")
        for invariant in self.watches[node.index].stored:
            invariant.stored(self, node, batch)

    def pumped(self, node: Node) -> None:
        """An endpoint's timer fired, and it has done what was due."""
        for invariant in self.watches[node.index].pumped:
            invariant.pumped(self, node)

    def handed_over(self, node: Node, handle: Handle) -> None:
        """A record is given to the handler."""
        for invariant in self.watches[node.index].handed_over:
            invariant.handed_over(self, node, handle)
        self.count("handed over" if handle.queue == INBOX else "dead letters retried")

    def handler_succeeded(self, node: Node, handle: Handle) -> None:
        """A handler is done with what it was given."""
        self.ledger.disks[node.index].outcomes[handle.queue, handle.partition, handle.offset] = -1

    def handler_failed(self, node: Node, handle: Handle) -> None:
        """A handler has failed at what it was given."""
        where = (handle.queue, handle.partition, handle.offset)
        outcomes = self.ledger.disks[node.index].outcomes
        outcomes[where] = outcomes.get(where, 0) + 1

    def delivered(self, node: Node, effect: Delivered) -> None:
        """A record is in an inbound queue."""
        self.note(lambda: f"{node.name} has a record at offset {effect.offset} for its application")

    def acknowledged(self, node: Node, effect: Acknowledged) -> None:
        """An endpoint tells its application that messages have arrived."""
        self.note(lambda: f"{node.name} knows that offsets {effect.first}-{effect.last} of {effect.key} arrived")
        world = self.second if effect.key == SECOND_OUTBOX else self
        if world is None or (world is self and effect.key != OUTBOX and not effect.key.startswith(FORWARD)):
            return
        records = self.ledger.disks[node.index].sent_under(effect.key)
        for offset in range(effect.first, effect.last + 1):
            if offset >= len(records):
                raise InvariantViolation(
                    "NothingUnacknowledgedDropped", f"{node.name} reports offset {offset}: no such"
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
        """An outbox has nothing more to send and its Sequence is over."""
        self.note(lambda: f"{node.name} has ended {effect.key}")
        if effect.key == OUTBOX:
            self.has_ended = True

    def stopped(self, node: Node, effect: Stopped) -> None:
        """An application is told that an outbox sends nothing more."""
        self.note(lambda: f"{node.name} has stopped {effect.key}: {effect.code}, {effect.reason}")
        self.count(f"stopped: {effect.code}")
        if effect.key.startswith(FORWARD):
            records = self.ledger.disks[node.index].sent_under(effect.key)
            self.ledger.words[SOURCE].in_doubt.update(one.body for one in records[effect.first : effect.last + 1])
        if effect.key == OUTBOX:
            self.is_stopped = True
            self.ledger.words[node.index].stopped.append(effect.code)
            self.ledger.doubt(effect.first, effect.last)

    def told(self, node: Node, effect: Submitted | Incident) -> None:
        """Something for an application or an operator."""
        if isinstance(effect, Incident):
            self.note(
                lambda: f"{node.name}: {effect.name} {effect.identifier} {effect.number or ''} {effect.detail or ''}"
            )
            self.count(effect.name)
            if effect.name == LEFT_BEHIND:
                self._left_behind(effect)
            if effect.name == RETRACTED:  # no destination here forgets what it acknowledged
                raise InvariantViolation("NoFalseAccusation", str(effect.detail))

    def _left_behind(self, effect: Incident) -> None:
        detail = effect.detail or {}
        key, told = (detail["queue"], detail["partition"], detail["cursor"]), self.ledger.left_behind
        told[key] = told.get(key, 0) + detail["records"]


def overrides(invariant: Invariant, hook: str) -> bool:
    """Whether an invariant looks at that moment at all."""
    return getattr(type(invariant), hook) is not getattr(Invariant, hook)
