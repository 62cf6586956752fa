"""The possible events between two endpoints and their effects: network, disks, timers and crashes.

Every event consists of a few *steps*, each of one endpoint. A situation does not know how endpoints take them. They are
live endpoints (:mod:`holdfast.simulation.explorer.stage`) or endpoints with memorized steps
(:mod:`holdfast.simulation.explorer.memory`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from hashlib import blake2b
from typing import NamedTuple, Protocol

from holdfast.core.events import Transmit
from holdfast.core.messages import Envelope
from holdfast.core.policy import DestinationPolicy, SourcePolicy
from holdfast.core.retransmission import RetransmissionPolicy
from holdfast.core.versions import Versions
from holdfast.simulation.nodes.fingerprint import Form, digest, form_of
from holdfast.simulation.nodes.node import Setup
from holdfast.simulation.options import DESTINATION_ADDRESS, SOURCE_ADDRESS, USUAL_VERSIONS

NEVER = 1e9
"""Seconds: a time beyond the horizon."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits of the search. Packets may always overtake each other: reorderings need no budget.

    Args:
        messages: Messages submitted before any other event.
        late: Further messages, each submitted at any moment, even while or after the Sequence ends.
        losses: Maximum of lost requests and responses.
        duplicates: Maximum of requests that arrive twice.
        crashes: Maximum of crashes of either side, each at any moment and with any number of its pending batches
            durable.
        early: Maximum of timers that fire while a packet or batch is pending. So a packet may be very late.
        requests: Whether each message requests a reply, in an offered Sequence.
        versions: Protocol versions of both sides.
        listener: Whether the source has an address, so that acknowledgements and replies are separate requests.
        most_states: Limit of the states, at which the search stops; None: no limit.
    """

    messages: int = 2
    losses: int = 1
    duplicates: int = 0
    crashes: int = 0
    early: int = 0
    late: int = 0
    requests: bool = False
    versions: Versions = USUAL_VERSIONS
    listener: bool = False
    most_states: int | None = None

    def __str__(self) -> str:
        counted = [
            (self.messages, "request" if self.requests else "message", "s"),
            (self.losses, "loss", "es"),
            (self.duplicates, "duplicate", "s"),
            (self.crashes, "crash", "es"),
            (self.early, "early timer", "s"),
            (self.late, "late submission", "s"),
        ]
        said = [f"{number} {word}{ending if number > 1 else ''}" for number, word, ending in counted if number]
        said.append(f"WS-RM {self.versions.rm.value}")
        return ", ".join([*said, "a source with a listener"] if self.listener else said)


@dataclass(slots=True)
class Budget:
    """The remaining number of each limited event."""

    losses: int
    duplicates: int
    crashes: int
    early: int
    late: int

    def copy(self) -> Budget:
        return Budget(self.losses, self.duplicates, self.crashes, self.early, self.late)


class Kind(IntEnum):
    """Who learns the fate of a packet."""

    USUAL = 0
    """The sender waits for the answer, and learns when the connection breaks."""
    COPY = 1
    """The network made it: its answer returns too, but its loss is not reported."""
    ORPHAN = 2
    """Its sender has crashed since, so the answer has no recipient."""


class Packet:
    """One request in flight, a request that awaits its answer at the receiver, or its response in flight.

    Args:
        sender: Of the request.
        receiver: Of the request.
        kind: Who learns its fate.
        is_response: Whether this is the response.
        envelope: The response; None: an empty 202.
        number: Number in the trace.
    """

    __slots__ = (
        "_answers", "_form", "_kinds", "envelope", "is_response", "kind", "number", "receiver", "sender", "transmit",
    )  # fmt: skip

    def __init__(
        self,
        sender: int,
        receiver: int,
        transmit: Transmit,
        kind: Kind = Kind.USUAL,
        is_response: bool = False,
        envelope: Envelope | None = None,
        number: int = 0,
    ) -> None:
        self.sender = sender
        self.receiver = receiver
        self.transmit = transmit
        self.kind = kind
        self.is_response = is_response
        self.envelope = envelope
        self.number = number
        self._form: Form | None = None
        self._kinds: dict[Kind, Packet] = {kind: self}
        self._answers: dict[int, Packet] = {}

    def of_kind(self, kind: Kind) -> Packet:
        known = self._kinds.get(kind)
        if known is None:
            known = Packet(self.sender, self.receiver, self.transmit, kind, False, None, self.number)
            self._kinds[kind] = known
        return known

    def answered(self, envelope: Envelope | None) -> Packet:
        """Return its response, made once for each envelope."""
        known = self._answers.get(id(envelope))
        if known is None:
            known = Packet(self.sender, self.receiver, self.transmit, self.kind, True, envelope, self.number)
            self._answers[id(envelope)] = known
        return known

    @property
    def form(self) -> Form:
        if self._form is None:
            transmit = self.transmit
            content = (transmit.source, transmit.envelope, self.envelope)
            shape, names, _ = form_of(content)
            self._form = Form(
                digest(
                    (self.sender, self.receiver, transmit.to, transmit.number, self.kind.value, self.is_response, shape)
                ),
                names,
            )
        return self._form

    @property
    def name(self) -> str:
        return f"the answer to #{self.number}" if self.is_response else f"#{self.number}"


class Outcome(NamedTuple):
    """The effects of an endpoint's step.

    Args:
        endpoint: The endpoint afterwards.
        requests: The requests it sent.
        responses: Its answers: the position of the request among the unanswered ones, and the response.
        unanswered: Positions of the requests it has still not answered, in its order from now on.
    """

    endpoint: Endpoint
    requests: tuple[Packet, ...]
    responses: tuple[tuple[int, Envelope | None], ...]
    unanswered: tuple[int, ...]


class Step(NamedTuple):
    """An input of one endpoint.

    Args:
        verb: "durable", "crash", "timer", "submit", "wait", "receive", "conclude" or "fail".
        packet: Received (a request), concluded (a response), or failed (a request).
        survivors: Of a crash: the number of pending batches that become durable.
        seconds: To wait.
    """

    verb: str
    packet: Packet | None = None
    survivors: int = 0
    seconds: float = 0.0


class Endpoint(Protocol):
    """One of the two endpoints, as a situation uses it."""

    @property
    def pending(self) -> int:
        """Number of batches that await its disk."""
        ...

    @property
    def due_in(self) -> float | None:
        """Seconds until its timer fires; None if it has none within the horizon."""
        ...

    @property
    def form(self) -> Form:
        """Its canonical form; its arrivals are positions among its unanswered requests."""
        ...

    def take(self, step: Step, other: Endpoint) -> Outcome:
        """Take a step; the invariants of this endpoint may read ``other``.

        Raises:
            InvariantViolation: the step broke an invariant.
        """
        ...


Action = tuple[str, int, int]
"""One event: a verb, an index (of a packet or an endpoint), and the number of batches that survive a crash."""

DURABLE, TIMER, SUBMIT = Step("durable"), Step("timer"), Step("submit")


@dataclass(slots=True)
class Situation:
    """Two endpoints, the packets between them, and the remaining budget.

    Args:
        endpoints: The source and the destination.
        packets: In flight.
        unanswered: For each endpoint, the requests it has not answered.
        budget: The remaining number of each limited event.
        trace: Called with a line for each event of a packet in flight.
    """

    endpoints: list[Endpoint]
    packets: list[Packet]
    unanswered: list[list[Packet]]
    budget: Budget
    trace: Callable[[str], None] | None = None

    def copy(self) -> Situation:
        """Return an independent copy; immutable endpoints are shared."""
        unanswered = [self.unanswered[0].copy(), self.unanswered[1].copy()]
        return Situation(self.endpoints.copy(), self.packets.copy(), unanswered, self.budget.copy(), self.trace)

    @property
    def is_quiet(self) -> bool:
        """Whether nothing is in flight or pending, so that only a timer can cause an event."""
        return not self.packets and not self.endpoints[0].pending and not self.endpoints[1].pending

    def actions(self) -> Iterator[Action]:
        """Yield every possible event. Of equal packets it uses only one, as each would have the same effects."""
        budget = self.budget
        seen: set[Form] = set()
        for index, packet in enumerate(self.packets):
            if packet.form in seen:
                continue
            seen.add(packet.form)
            yield "deliver", index, 0
            if budget.losses:
                yield "lose", index, 0
            if budget.duplicates and not packet.is_response:
                yield "duplicate", index, 0
        for index, endpoint in enumerate(self.endpoints):
            if endpoint.pending:
                yield "durable", index, 0
            if budget.crashes:
                for survivors in range(endpoint.pending + 1):
                    yield "crash", index, survivors
        if budget.late:
            yield "submit", 0, 0
        if budget.early or self.is_quiet:
            yield from self._timers()

    def _timers(self) -> Iterator[Action]:
        # If nothing else can happen, the timers fire in the order of their times. An early timer (from the budget)
        # stands for a slow packet, so any timer may be the next.
        timers = [(due, index) for index, endpoint in enumerate(self.endpoints) if (due := endpoint.due_in) is not None]
        for _, index in sorted(timers)[:1] if self.is_quiet else timers:
            yield "timer", index, 0

    def perform(self, action: Action) -> None:
        """Perform an event.

        Raises:
            InvariantViolation: it broke an invariant.
        """
        verb, index, survivors = action
        if verb == "deliver":
            self._deliver(self.packets.pop(index))
        elif verb == "durable":
            self._take(index, DURABLE)
        elif verb == "crash":
            self.budget.crashes -= 1
            self._crash(index, survivors)
        elif verb == "timer":
            self._timer(index)
        elif verb == "submit":
            self.budget.late -= 1
            self._take(index, SUBMIT)
        elif verb == "lose":
            self.budget.losses -= 1
            self._note(self.packets[index], "is lost")
            self._break(self.packets.pop(index))
        else:
            self.budget.duplicates -= 1
            self._note(self.packets[index], "is duplicated")
            self._deliver(self.packets[index].of_kind(max(Kind.COPY, self.packets[index].kind)))

    def _note(self, packet: Packet, fate: str) -> None:
        if self.trace is not None:
            self.trace(f"{packet.name} {fate}")

    def _take(self, index: int, step: Step) -> None:
        outcome = self.endpoints[index].take(step, self.endpoints[1 - index])
        self.endpoints[index] = outcome.endpoint
        waiting = self.unanswered[index]
        if step.verb == "receive":
            assert step.packet is not None
            waiting.append(step.packet)
        self.packets += outcome.requests
        for position, envelope in outcome.responses:
            if waiting[position].kind is not Kind.ORPHAN:
                self.packets.append(waiting[position].answered(envelope))
        self.unanswered[index] = [waiting[position] for position in outcome.unanswered]

    def _deliver(self, packet: Packet) -> None:
        if packet.is_response:
            self._take(packet.sender, Step("conclude", packet))
        else:
            self._take(packet.receiver, Step("receive", packet))

    def _break(self, packet: Packet) -> None:
        """Report a broken exchange: the request or its response is lost, or the receiver has crashed."""
        if packet.kind is Kind.USUAL:
            self._take(packet.sender, Step("fail", packet))

    def _timer(self, index: int) -> None:
        due = self.endpoints[index].due_in
        assert due is not None
        if not self.is_quiet:
            self.budget.early -= 1
        # Each endpoint has its own time, so the other one must wait for as long.
        self._take(1 - index, Step("wait", seconds=due))
        self._take(index, TIMER)

    def _crash(self, index: int, survivors: int) -> None:
        """Crash and restart one endpoint.

        All its connections break. The answers to it have no recipient, and the other endpoint learns that its own
        requests will get no answer.
        """
        self.packets = [
            packet if packet.sender != index else packet.of_kind(Kind.ORPHAN)
            for packet in self.packets
            if packet.sender != index or not packet.is_response  # a response returns to the sender
        ]
        others = self.unanswered[1 - index]
        others[:] = [packet if packet.sender != index else packet.of_kind(Kind.ORPHAN) for packet in others]
        broken, self.unanswered[index] = self.unanswered[index], []
        self._take(index, Step("crash", survivors=survivors))
        for packet in sorted(broken, key=lambda packet: packet.form):
            self._break(packet)


class Keys:
    """Compares situations: equivalent situations have equal keys.

    Packets may overtake each other, so their order does not matter. Identifiers are renamed in the order in which they
    are met: first in the endpoints, then in the packets.
    """

    def __init__(self) -> None:
        self._pairs: dict[tuple[Form, Form], _Pair] = {}

    def of(self, situation: Situation) -> bytes:
        """Return 128 bits that are equal for equivalent situations and, in practice, only for those."""
        one, other = situation.endpoints[0].form, situation.endpoints[1].form
        pair = self._pairs.get((one, other))
        if pair is None:
            pair = self._pairs[one, other] = _Pair(one, other)
        budget = situation.budget
        left = (budget.losses, budget.duplicates, budget.crashes, budget.early, budget.late)
        parts = [pair.shape, b"%d %d %d %d %d" % left]
        flying = [pair.known.get(packet) or pair.meet(packet) for packet in situation.packets]
        flying.sort()
        parts += flying
        waiting = [situation.unanswered[0][n] for n in one.arrivals]
        waiting += [situation.unanswered[1][n] for n in other.arrivals]
        parts += [b"|", *[pair.known.get(packet) or pair.meet(packet) for packet in waiting]]
        if pair.strangers:
            # An identifier found only in packets gets its number from the rest of its packet. Equal packets sort in any
            # order, with the same result.
            names = pair.names.copy()
            strangers = [packet.form for packet in situation.packets if packet in pair.strangers]
            strangers.sort(key=lambda form: (form.shape, known(form, pair.names), form.names))
            strangers += [packet.form for packet in waiting if packet in pair.strangers]
            parts += [digest(renamed(form, names)) for form in strangers]
        return blake2b(b"".join(parts), digest_size=16).digest()


class _Pair:
    """Two endpoint states, and the packets met with them."""

    def __init__(self, one: Form, other: Form) -> None:
        self.names: dict[str, int] = {}
        for name in (*one.names, *other.names):
            self.names.setdefault(name, len(self.names))
        self.shape = digest((one.shape, other.shape, [self.names[name] for name in other.names]))
        self.known: dict[Packet, bytes] = {}
        """Packet -> its form, with the numbers of those names that an endpoint knows."""
        self.strangers: set[Packet] = set()
        """Packets with names that neither endpoint knows."""

    def meet(self, packet: Packet) -> bytes:
        """Compute the form of a packet on its first encounter."""
        numbers = known(packet.form, self.names)
        if -1 in numbers:
            self.strangers.add(packet)
        shape = self.known[packet] = digest((packet.form.shape, numbers))
        return shape


def known(form: Form, names: dict[str, int]) -> tuple[int, ...]:
    """Return the numbers of the form's names; -1 for a name without a number."""
    return tuple([names.get(name, -1) for name in form.names])


def renamed(form: Form, names: dict[str, int]) -> tuple[int, ...]:
    """Return the numbers of the form's names; a name without a number gets the next one."""
    return tuple([names.setdefault(name, len(names)) for name in form.names])


def setups(bounds: Bounds) -> tuple[Setup, Setup]:
    """Return the setups of both endpoints.

    Every retransmission delay is the same, and all other times are beyond the horizon.
    """
    destination = DestinationPolicy(
        inactivity_timeout=None,
        remember_terminated=NEVER,
        acknowledgement_interval=NEVER,
        acknowledgement_count=1,
        reply_patience=NEVER,
    )
    window = bounds.messages + bounds.late
    source = SourcePolicy(
        retransmission=RetransmissionPolicy(1.0, 1.0, 1.0, 0.0),
        window=window,
        initial_window=window,
        keep_alive=NEVER,
    )
    choices = ((bounds.versions, bounds.requests),)
    return (
        Setup(SOURCE_ADDRESS if bounds.listener else "", destination, source, choices=choices),
        Setup(DESTINATION_ADDRESS, destination, source),
    )
