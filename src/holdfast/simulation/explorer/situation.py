"""What can happen next between two endpoints, and what it leads to: the network, the disks and whoever kills a process.

Everything that happens is a few *steps*, each of one endpoint alone. Who takes them is not known here: living endpoints
(:mod:`holdfast.simulation.explorer.stage`), or ones whose steps are remembered
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
    """How far the search goes. Packets may always overtake each other: reorderings need no budget.

    Args:
        messages: Submitted before anything else happens.
        late: More messages, each submitted at any moment, also while the Sequence is being ended or when it has ended.
        losses: Requests or responses lost, at most.
        duplicates: Requests that arrive twice, at most.
        crashes: Of either side, at most, each at any moment and with any of the batches on their way durable.
        early: Timers that fire although something is still on its way, at most; so a packet may be late by much.
        requests: Whether each message wants a reply, in an offered Sequence.
        versions: What both speak.
        listener: Whether the source can be reached, so that acknowledgements and replies are requests of their own.
        most_states: The search is given up beyond; None: never.
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
    """What may still happen, besides what needs no budget."""

    losses: int
    duplicates: int
    crashes: int
    early: int
    late: int

    def copy(self) -> Budget:
        """Another one."""
        return Budget(self.losses, self.duplicates, self.crashes, self.early, self.late)


class Kind(IntEnum):
    """Who hears of a packet's fate."""

    USUAL = 0
    """The sender waits for the answer, and learns when the connection breaks."""
    COPY = 1
    """Made by the network: its answer comes back too, its end is nobody's business."""
    ORPHAN = 2
    """Its sender has died since: no answer comes back to a process that is gone."""


class Packet:
    """One request in flight, or waiting at its receiver for an answer, or its response in flight.

    Args:
        sender: Of the request.
        receiver: Of the request.
        transmit: The request.
        kind: Who hears of its fate.
        is_response: Whether this is the response.
        envelope: The response; None: an empty 202.
        number: For people.
    """

    __slots__ = (
        "_answers",
        "_form",
        "_kinds",
        "envelope",
        "is_response",
        "kind",
        "number",
        "receiver",
        "sender",
        "transmit",
    )

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
        """The same, of another kind; made once."""
        known = self._kinds.get(kind)
        if known is None:
            known = Packet(self.sender, self.receiver, self.transmit, kind, False, None, self.number)
            self._kinds[kind] = known
        return known

    def answered(self, envelope: Envelope | None) -> Packet:
        """Its response; made once for an envelope."""
        known = self._answers.get(id(envelope))
        if known is None:
            known = Packet(self.sender, self.receiver, self.transmit, self.kind, True, envelope, self.number)
            self._answers[id(envelope)] = known
        return known

    @property
    def form(self) -> Form:
        """All that counts in it."""
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
        """What people call it."""
        return f"the answer to #{self.number}" if self.is_response else f"#{self.number}"


class Outcome(NamedTuple):
    """What a step of an endpoint led to.

    Args:
        endpoint: The endpoint afterwards.
        requests: What it sent.
        responses: What it answered: the position of the request among those it had not answered, and with what.
        unanswered: Positions of the requests that it has still not answered, in its own order from now on.
    """

    endpoint: Endpoint
    requests: tuple[Packet, ...]
    responses: tuple[tuple[int, Envelope | None], ...]
    unanswered: tuple[int, ...]


class Step(NamedTuple):
    """Something that happens to one endpoint.

    Args:
        verb: "durable", "crash", "timer", "submit", "wait", "receive", "conclude" or "fail".
        packet: Received (a request), concluded (a response), or failed (a request).
        survivors: Of a crash: how many batches on their way are durable.
        seconds: To wait.
    """

    verb: str
    packet: Packet | None = None
    survivors: int = 0
    seconds: float = 0.0


class Endpoint(Protocol):
    """One of the two, as a situation sees it."""

    @property
    def pending(self) -> int:
        """How many batches are on their way to its disk."""
        ...

    @property
    def due_in(self) -> float | None:
        """Seconds until its timer fires, None if that is never, or beyond the horizon."""
        ...

    @property
    def form(self) -> Form:
        """All that counts in it; its arrivals are positions among the requests it has not answered."""
        ...

    def take(self, step: Step, other: Endpoint) -> Outcome:
        """Let something happen to it; the other one is there to be looked at by what watches this one.

        Raises:
            InvariantViolation: it broke something.
        """
        ...


Action = tuple[str, int, int]
"""What happens next: a verb, an index (of a packet or an endpoint), and how many batches survive a crash."""

DURABLE, TIMER, SUBMIT = Step("durable"), Step("timer"), Step("submit")


@dataclass(slots=True)
class Situation:
    """Two endpoints, what is on its way between them, and what may still happen.

    Args:
        endpoints: The source and the destination.
        packets: In flight.
        unanswered: Of each endpoint, the requests it has not answered.
        budget: What may still happen.
        trace: Called with a line for what happens to packets on their way.
    """

    endpoints: list[Endpoint]
    packets: list[Packet]
    unanswered: list[list[Packet]]
    budget: Budget
    trace: Callable[[str], None] | None = None

    def copy(self) -> Situation:
        """Another one that goes its own way, as far as its endpoints do."""
        unanswered = [self.unanswered[0].copy(), self.unanswered[1].copy()]
        return Situation(self.endpoints.copy(), self.packets.copy(), unanswered, self.budget.copy(), self.trace)

    @property
    def is_quiet(self) -> bool:
        """Whether nothing is on its way, so that only a timer can bring more."""
        return not self.packets and not self.endpoints[0].pending and not self.endpoints[1].pending

    def actions(self) -> Iterator[Action]:
        """Everything that can happen next. Of packets that are alike only one: whichever it is, the same follows."""
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
        timers = [(due, index) for index, endpoint in enumerate(self.endpoints) if (due := endpoint.due_in) is not None]
        for _, index in sorted(timers)[:1] if self.is_quiet else timers:
            yield "timer", index, 0

    def perform(self, action: Action) -> None:
        """Let it happen.

        Raises:
            InvariantViolation: it broke something.
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
            self._note(self.packets[index], "is doubled")
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
        """A request is lost, or its response, or whoever was to answer it has died."""
        if packet.kind is Kind.USUAL:
            self._take(packet.sender, Step("fail", packet))

    def _timer(self, index: int) -> None:
        due = self.endpoints[index].due_in
        assert due is not None
        if not self.is_quiet:
            self.budget.early -= 1
        self._take(1 - index, Step("wait", seconds=due))
        self._take(index, TIMER)

    def _crash(self, index: int, survivors: int) -> None:
        """One dies and starts again. Every connection of it breaks, so the answers on their way to it reach nobody, and
        who waits for one from it learns that none will come."""
        self.packets = [
            packet if packet.sender != index else packet.of_kind(Kind.ORPHAN)
            for packet in self.packets
            if packet.sender != index or not packet.is_response  # a response goes back to the sender
        ]
        others = self.unanswered[1 - index]
        others[:] = [packet if packet.sender != index else packet.of_kind(Kind.ORPHAN) for packet in others]
        broken, self.unanswered[index] = self.unanswered[index], []
        self._take(index, Step("crash", survivors=survivors))
        for packet in sorted(broken, key=lambda packet: packet.form):
            self._break(packet)


class Keys:
    """Tells situations apart: equal keys for those that cannot be told apart from within.

    Packets may overtake each other, so their order does not count. Identifiers are renamed in the order in which they
    are met: first in the endpoints, then in the packets.
    """

    def __init__(self) -> None:
        self._pairs: dict[tuple[Form, Form], _Pair] = {}

    def of(self, situation: Situation) -> bytes:
        """The same bytes for situations that cannot be told apart, other bytes for others (as far as 128 bits can)."""
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
            # What only packets name is named after what else is in them: who comes first there is the same for equals.
            names = pair.names.copy()
            strangers = [packet.form for packet in situation.packets if packet in pair.strangers]
            strangers.sort(key=lambda form: (form.shape, known(form, pair.names), form.names))
            strangers += [packet.form for packet in waiting if packet in pair.strangers]
            parts += [digest(renamed(form, names)) for form in strangers]
        return blake2b(b"".join(parts), digest_size=16).digest()


class _Pair:
    """Two endpoints together, and the packets seen with them.

    Args:
        one, other: Their forms.
    """

    def __init__(self, one: Form, other: Form) -> None:
        self.names: dict[str, int] = {}
        for name in (*one.names, *other.names):
            self.names.setdefault(name, len(self.names))
        self.shape = digest((one.shape, other.shape, [self.names[name] for name in other.names]))
        self.known: dict[Packet, bytes] = {}
        """A packet -> its form, as far as the endpoints know the names in it."""
        self.strangers: set[Packet] = set()
        """Packets with names that neither endpoint knows."""

    def meet(self, packet: Packet) -> bytes:
        """A packet that was not seen with them before."""
        numbers = known(packet.form, self.names)
        if -1 in numbers:
            self.strangers.add(packet)
        shape = self.known[packet] = digest((packet.form.shape, numbers))
        return shape


def known(form: Form, names: dict[str, int]) -> tuple[int, ...]:
    """The numbers of its names; -1 for one that has none yet."""
    return tuple([names.get(name, -1) for name in form.names])


def renamed(form: Form, names: dict[str, int]) -> tuple[int, ...]:
    """The numbers of its names; one that has none yet gets the next."""
    return tuple([names.setdefault(name, len(names)) for name in form.names])


def setups(bounds: Bounds) -> tuple[Setup, Setup]:
    """Both endpoints with every delay of the retransmission alike and every other one beyond the horizon."""
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
