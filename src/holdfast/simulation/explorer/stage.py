"""Two live endpoints on a stage, which takes the steps that a situation requests and returns their effects.

The stage is the :class:`~holdfast.simulation.nodes.node.Surroundings` of its world. It delays nothing and makes no
decisions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from holdfast.core.events import Handle, ReadWanted
from holdfast.core.messages import Envelope
from holdfast.simulation.explorer.situation import Bounds, Budget, Endpoint, Outcome, Packet, Situation, Step, setups
from holdfast.simulation.nodes.fingerprint import HORIZON, Form, form_of_endpoint
from holdfast.simulation.nodes.node import Arrival, Journey, Node
from holdfast.simulation.promises.invariant import Invariant, InvariantViolation
from holdfast.simulation.promises.invariants import ALL_INVARIANTS
from holdfast.simulation.promises.liveness import unfinished
from holdfast.simulation.world import World


def no_jitter() -> float:
    """Return a constant jitter for the core."""
    return 0.0


class Stage:
    """A world in which nothing happens except the steps that a search requests."""

    def __init__(
        self,
        bounds: Bounds,
        invariants: Iterable[type[Invariant]] = ALL_INVARIANTS,
        trace: Callable[[str], None] | None = None,
    ) -> None:
        self.bounds = bounds
        self.world = World(setups(bounds), self, no_jitter, invariants=invariants, trace=trace)
        self.arrivals: list[list[Arrival]] = [[], []]
        """For each endpoint, the requests it has not answered."""
        self._sent: list[Journey] = []
        self._answered: list[tuple[Arrival, Envelope | None]] = []

    def begin(self) -> tuple[Packet, ...]:
        """Start both endpoints and submit all messages of the source's application; return the packets."""
        source, destination = self.world.nodes
        for node in (destination, source):
            self.world.start(node)
            while node.store.pending:  # a first start saves state; a crash before that leaves no trace
                node.durable()
                self.world.settle(node)
        for _ in range(self.bounds.messages):
            self.world.submit(self.bounds.requests)
        source.end()
        self.world.settle(source)
        return self.sent()

    # --- surroundings ---------------------------------------------------------------------------------------------

    def request(self, journey: Journey) -> None:
        """See :class:`Surroundings`."""
        self._sent.append(journey)

    def respond(self, arrival: Arrival, envelope: Envelope | None) -> None:
        """See :class:`Surroundings`."""
        journey = arrival.journey
        if arrival not in self.arrivals[journey.receiver] or any(known is arrival for known, _ in self._answered):
            raise InvariantViolation("AnsweredOnce", f"#{journey.number} is answered a second time")
        self._answered.append((arrival, envelope))

    def batch_taken(self, node: Node) -> None:
        """See :class:`Surroundings`. The search decides when the batch becomes durable."""

    def read_wanted(self, node: Node, wanted: ReadWanted) -> None:
        """See :class:`Surroundings`. The stage reads immediately, which keeps the search small."""
        node.read(wanted)

    def handler_started(self, node: Node, handle: Handle) -> None:
        """See :class:`Surroundings`. The handler succeeds immediately."""
        node.handled(handle)

    # --- steps ----------------------------------------------------------------------------------------------------

    def take(
        self, index: int, step: Step
    ) -> tuple[tuple[Packet, ...], tuple[tuple[int, Envelope | None], ...], tuple[int, ...]]:
        """Let an endpoint take a step.

        Returns:
            The packets it sent; its answers; and the requests it has still not answered. Answers and requests are
            positions among its unanswered requests before the step, with a request received in this step last.

        Raises:
            InvariantViolation: the step broke an invariant.
        """
        node, world = self.world.nodes[index], self.world
        if step.verb == "durable":
            world.note(lambda: f"a batch of {node.name} is durable")
            node.durable()
            world.settle(node)
        elif step.verb == "crash":
            self.arrivals[index].clear()
            world.crash(node, step.survivors)
            world.start(node)
        elif step.verb == "timer":
            world.note(lambda: f"the timer of {node.name} fires")
            world.clock.advance_to(node.deadline() or world.clock.now)
            world.settle(node)
        elif step.verb == "submit":
            world.has_ended = False
            world.submit(self.bounds.requests)
            node.end()
            world.settle(node)
        elif step.verb == "wait":
            world.clock.advance_to(world.clock.now + step.seconds)
        else:
            assert step.packet is not None
            self._take_packet(node, step.verb, step.packet)
        positions = {id(arrival): position for position, arrival in enumerate(self.arrivals[index])}
        answered = tuple((positions[id(arrival)], envelope) for arrival, envelope in self._answered)
        over = {position for position, _ in answered}
        unanswered = tuple(position for position in positions.values() if position not in over)
        self.arrivals[index] = [self.arrivals[index][position] for position in unanswered]
        self._answered.clear()
        return self.sent(), answered, unanswered

    def _take_packet(self, node: Node, verb: str, packet: Packet) -> None:
        world = self.world
        journey = Journey(packet.sender, 0, packet.transmit, packet.receiver, packet.number)
        if verb == "receive":
            world.note(lambda: f"{packet.name} arrives at {node.name}")
            arrival = Arrival(journey, node.run)
            self.arrivals[node.index].append(arrival)
            node.receive(arrival)
        elif verb == "conclude":
            world.note(lambda: f"{packet.name} arrives at {node.name}")
            node.conclude(journey, packet.envelope)
        else:
            world.note(lambda: f"{packet.name} has failed, as {node.name} sees it")
            node.fail(journey)
        world.settle(node)

    def sent(self) -> tuple[Packet, ...]:
        """Return the packets sent since the last call."""
        sent = tuple(Packet(e.sender, e.receiver, e.transmit, number=e.number) for e in self._sent)
        self._sent.clear()
        return sent

    def due_in(self, index: int) -> float | None:
        """Return the seconds until the endpoint's timer fires; None if it has none within the horizon."""
        deadline = self.world.nodes[index].deadline()
        since = None if deadline is None else deadline - self.world.clock.now
        return None if since is None or since > HORIZON else max(0.0, since)

    def form(self, index: int) -> Form:
        return form_of_endpoint(self.world, self.world.nodes[index], self.arrivals[index])

    @property
    def missing(self) -> str | None:
        """Describe what is unfinished; None if everything is finished."""
        return unfinished(self.world, may_stop=False)


class LiveEndpoint:
    """One endpoint of a stage, for a situation.

    Args:
        stage: The stage it is on.
        index: 0 for the source, 1 for the destination.
    """

    def __init__(self, stage: Stage, index: int) -> None:
        self._stage = stage
        self._index = index

    @property
    def pending(self) -> int:
        """See :class:`Endpoint`."""
        return len(self._stage.world.nodes[self._index].store.pending)

    @property
    def due_in(self) -> float | None:
        """See :class:`Endpoint`."""
        return self._stage.due_in(self._index)

    @property
    def form(self) -> Form:
        """See :class:`Endpoint`."""
        return self._stage.form(self._index)

    def take(self, step: Step, other: Endpoint) -> Outcome:
        """See :class:`Endpoint`. Both endpoints share one clock, so one "wait" step moves the time of both."""
        return Outcome(self, *self._stage.take(self._index, step))


def begin(stage: Stage) -> Situation:
    """Return the first situation of a search, with live endpoints."""
    bounds = stage.bounds
    packets = list(stage.begin())
    budget = Budget(bounds.losses, bounds.duplicates, bounds.crashes, bounds.early, bounds.late)
    return Situation([LiveEndpoint(stage, 0), LiveEndpoint(stage, 1)], packets, [[], []], budget, stage.world.trace)
