"""The exhaustive explorer: the real core of two endpoints over every interleaving, for small bounds.

Breadth first, so that the first failure found has the shortest schedule. States that cannot be told apart are met once.
Any packet in flight may arrive next (every reordering); loss, duplicates, crashes and timers that fire too early have
budgets. A timer also fires, for free, when nothing else can happen. Of time only its order counts: see
:mod:`holdfast.testing.fingerprint`. When all is explored, a good end must be reachable from every state.
"""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace

from holdfast.core.messages import Envelope
from holdfast.core.policy import DestinationPolicy, SourcePolicy
from holdfast.core.retransmission import RetransmissionPolicy
from holdfast.core.versions import Versions
from holdfast.testing.fingerprint import HORIZON, fingerprint
from holdfast.testing.invariants import ALL_INVARIANTS, Invariant, InvariantViolation
from holdfast.testing.liveness import unfinished
from holdfast.testing.node import Arrival, Exchange, Node, Setup
from holdfast.testing.options import DESTINATION_ADDRESS, USUAL_VERSIONS
from holdfast.testing.world import World

NEVER = 1e9
"""Seconds: a time beyond the horizon."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """How far the search goes.

    Args:
        messages: Submitted before anything else happens.
        losses: Requests or responses lost, at most.
        duplicates: Requests that arrive twice, at most.
        crashes: Of either side, at most, each at any moment and with any of the batches on their way durable.
        early: Timers that fire although something is still on its way, at most; so a packet may be late by much.
        requests: Whether each message wants a reply, in an offered Sequence.
        versions: What both speak.
        most_states: The search is given up beyond; None: never.
    """

    messages: int = 2
    losses: int = 1
    duplicates: int = 0
    crashes: int = 0
    early: int = 0
    requests: bool = False
    versions: Versions = USUAL_VERSIONS
    most_states: int | None = None


@dataclass(slots=True)
class Budget:
    """What may still go wrong."""

    losses: int
    duplicates: int
    crashes: int
    early: int


@dataclass(slots=True, eq=False)
class Packet:
    """One request or response in flight."""

    exchange: Exchange
    is_response: bool
    envelope: Envelope | None


Action = tuple[str, int, int]
"""What happens next: a verb, an index (of a packet or an endpoint), and how many batches survive a crash."""


def no_jitter() -> float:
    """The core's jitter, always the same."""
    return 0.0


class Situation:
    """One state of the search: the world, what is in flight, what may still go wrong.

    Args:
        bounds: Of the search.
        invariants: What must hold.
        trace: Called with a line for each thing that happens.
    """

    def __init__(
        self,
        bounds: Bounds,
        invariants: Iterable[type[Invariant]] = ALL_INVARIANTS,
        trace: Callable[[str], None] | None = None,
    ) -> None:
        self.budget = Budget(bounds.losses, bounds.duplicates, bounds.crashes, bounds.early)
        self.packets: list[Packet] = []
        self.open: list[Arrival] = []
        self.world = World(setups(bounds), self, no_jitter, invariants=invariants, trace=trace)
        source, destination = self.world.nodes
        self.world.start(destination)
        self.world.start(source)
        for _ in range(bounds.messages):
            self.world.submit(bounds.requests)
        source.end()
        self.world.settle(source)

    # --- surroundings ---------------------------------------------------------------------------------------------

    def request(self, exchange: Exchange) -> None:
        """See :class:`Surroundings`."""
        self.packets.append(Packet(exchange, False, exchange.transmit.envelope))

    def respond(self, arrival: Arrival, envelope: Envelope | None) -> None:
        """See :class:`Surroundings`."""
        self.open.remove(arrival)
        self.packets.append(Packet(arrival.exchange, True, envelope))

    def batch_taken(self, node: Node) -> None:
        """See :class:`Surroundings`: durable when the search says so."""

    def handler_started(self, node: Node, partition: int, offset: int) -> None:
        """See :class:`Surroundings`: the handler succeeds at once."""
        node.handled(partition, offset, node.record(partition, offset))

    # --- what can happen ------------------------------------------------------------------------------------------

    def actions(self) -> Iterator[Action]:
        """Everything that can happen next."""
        budget, nodes = self.budget, self.world.nodes
        for index, packet in enumerate(self.packets):
            yield "deliver", index, 0
            if budget.losses:
                yield "lose", index, 0
            if budget.duplicates and not packet.is_response:
                yield "duplicate", index, 0
        for node in nodes:
            if node.store.pending:
                yield "durable", node.index, 0
            if budget.crashes:
                for survivors in range(len(node.store.pending) + 1):
                    yield "crash", node.index, survivors
        is_quiet = not self.packets and not any(node.store.pending for node in nodes)
        if is_quiet or budget.early:
            timers = [(deadline, node.index) for node in nodes if (deadline := self._deadline(node)) is not None]
            for _, index in sorted(timers)[:1] if is_quiet else timers:
                yield "timer", index, 0

    def _deadline(self, node: Node) -> float | None:
        deadline = node.deadline()
        return None if deadline is None or deadline > self.world.clock.now + HORIZON else deadline

    def perform(self, action: Action) -> None:
        """Let it happen.

        Raises:
            InvariantViolation: it broke something.
        """
        verb, index, survivors = action
        if verb == "durable":
            node = self.world.nodes[index]
            self.world.note(lambda: f"a batch of {node.name} is durable")
            node.durable()
            self.world.settle(node)
        elif verb == "crash":
            self.budget.crashes -= 1
            self._crash(self.world.nodes[index], survivors)
        elif verb == "timer":
            self._timer(self.world.nodes[index])
        elif verb == "lose":
            self.budget.losses -= 1
            packet = self.packets.pop(index)
            self.world.note(lambda: f"{_name(packet)} is lost")
            self._fail(packet.exchange)
        elif verb == "duplicate":
            self.budget.duplicates -= 1
            self._deliver(self.packets[index])
        else:
            self._deliver(self.packets.pop(index))

    def _timer(self, node: Node) -> None:
        if self.packets or any(other.store.pending for other in self.world.nodes):
            self.budget.early -= 1
        self.world.note(lambda: f"the timer of {node.name} fires")
        deadline = self._deadline(node)
        assert deadline is not None
        self.world.clock.advance_to(deadline)
        self.world.settle(node)

    def _deliver(self, packet: Packet) -> None:
        exchange = packet.exchange
        if packet.is_response:
            node = self.world.nodes[exchange.sender]
            self.world.note(lambda: f"{_name(packet)} arrives at {node.name}")
            exchange.is_answered = True
            node.conclude(exchange, packet.envelope)
        else:
            node = self.world.nodes[exchange.receiver]
            self.world.note(lambda: f"{_name(packet)} arrives at {node.name}")
            arrival = Arrival(exchange, node.run)
            self.open.append(arrival)
            node.receive(arrival)
        self.world.settle(node)

    def _fail(self, exchange: Exchange) -> None:
        node = self.world.nodes[exchange.sender]
        if exchange.run != node.run or exchange.is_answered or exchange.has_failed:
            return
        exchange.has_failed = True
        node.fail(exchange)
        self.world.settle(node)

    def _crash(self, node: Node, survivors: int) -> None:
        self.world.crash(node, survivors)
        broken = [arrival.exchange for arrival in self.open if arrival.exchange.receiver == node.index]
        self.open = [arrival for arrival in self.open if arrival.exchange.receiver != node.index]
        self.packets = [
            packet for packet in self.packets if not packet.is_response or packet.exchange.sender != node.index
        ]
        self.world.start(node)
        for exchange in broken:
            self._fail(exchange)

    @property
    def missing(self) -> str | None:
        """What is not well in the end, None if all is."""
        return unfinished(self.world, may_stop=False)


def _name(packet: Packet) -> str:
    return f"the answer to #{packet.exchange.number}" if packet.is_response else f"#{packet.exchange.number}"


def setups(bounds: Bounds) -> tuple[Setup, Setup]:
    """Both endpoints with every delay of the retransmission alike and every other one beyond the horizon."""
    destination = DestinationPolicy(
        inactivity_timeout=None,
        remember_terminated=NEVER,
        acknowledgement_interval=NEVER,
        reply_patience=NEVER,
    )
    source = SourcePolicy(
        retransmission=RetransmissionPolicy(1.0, 1.0, 1.0, 0.0),
        window=bounds.messages,
        initial_window=bounds.messages,
        keep_alive=NEVER,
    )
    choices = ((bounds.versions, bounds.requests),)
    return (
        Setup("", destination, source, choices=choices),
        Setup(DESTINATION_ADDRESS, destination, replace(source, window=bounds.messages)),
    )


@dataclass(slots=True)
class Exploration:
    """What a search found.

    Args:
        states: Different states met.
        transitions: Steps tried.
        depth: The longest of the shortest schedules.
        is_complete: Whether every state within the bounds was met.
        violation: What was broken, None if nothing was.
        schedule: The shortest schedule that breaks it.
        trace: The same told step by step.
    """

    states: int = 0
    transitions: int = 0
    depth: int = 0
    is_complete: bool = False
    violation: InvariantViolation | None = None
    schedule: list[Action] = field(default_factory=list)
    trace: list[str] = field(default_factory=list)


class Explorer:
    """A breadth-first search through everything that can happen within the bounds.

    Args:
        bounds: How far it goes.
        invariants: What must hold in each state.
        progress: Called now and then with the number of states and transitions so far.
    """

    def __init__(
        self,
        bounds: Bounds,
        *,
        invariants: Iterable[type[Invariant]] = ALL_INVARIANTS,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        self.bounds = bounds
        self.result = Exploration()
        self._invariants = tuple(invariants)
        self._progress = progress
        self._numbers: dict[bytes, int] = {}
        self._parents: list[tuple[int, Action | None, int]] = []
        self._before: list[list[int]] = []
        self._good: list[int] = []

    def run(self) -> Exploration:
        """Search until something breaks, the limit is reached, or nothing is left."""
        result = self.result
        frontier: deque[tuple[int, bytes]] = deque()
        self._meet(Situation(self.bounds, self._invariants), -1, None, frontier)
        while frontier and result.violation is None:
            if self.bounds.most_states is not None and len(self._parents) >= self.bounds.most_states:
                return result
            self._expand(*frontier.popleft(), frontier)
        if result.violation is None:
            result.is_complete = True
            self._look_for_dead_ends()
        return result

    def _expand(self, number: int, saved: bytes, frontier: deque[tuple[int, bytes]]) -> None:
        """Try everything that can happen in one state."""
        situation: Situation = pickle.loads(saved)
        actions = list(situation.actions())
        if not any(action[0] != "crash" for action in actions):
            missing = situation.missing
            if missing is None:
                self._good.append(number)
            else:
                self._fail(InvariantViolation("Liveness", f"{missing}, and nothing more will happen"), number, None)
                return
        for action in actions:
            if action is not actions[0]:
                situation = pickle.loads(saved)
            self.result.transitions += 1
            if self._progress is not None and self.result.transitions % 1000 == 0:
                self._progress(len(self._parents), self.result.transitions)
            try:
                situation.perform(action)
            except InvariantViolation as violation:
                self._fail(violation, number, action)
                return
            self._meet(situation, number, action, frontier)

    def _meet(
        self, situation: Situation, parent: int, action: Action | None, frontier: deque[tuple[int, bytes]]
    ) -> None:
        key = fingerprint(situation)
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self._parents)
            depth = self._parents[parent][2] + 1 if parent >= 0 else 0
            self._parents.append((parent, action, depth))
            self._before.append([])
            self.result.states = number + 1
            self.result.depth = max(self.result.depth, depth)
            frontier.append((number, pickle.dumps(situation, pickle.HIGHEST_PROTOCOL)))
        if parent >= 0:
            self._before[number].append(parent)

    def _schedule(self, number: int) -> list[Action]:
        schedule: list[Action] = []
        while number >= 0:
            parent, action, _ = self._parents[number]
            if action is not None:
                schedule.append(action)
            number = parent
        return schedule[::-1]

    def _fail(self, violation: InvariantViolation, number: int, action: Action | None) -> None:
        self.result.violation = violation
        self.result.schedule = self._schedule(number) + ([action] if action is not None else [])
        self.result.trace = retell(self.bounds, self.result.schedule, self._invariants)
        self.result.trace.append(f"{violation}")

    def _look_for_dead_ends(self) -> None:
        """From every state a good end must be in reach, or endpoints may talk for ever and come to nothing."""
        reached = set(self._good)
        open_ends = list(reached)
        while open_ends:
            for before in self._before[open_ends.pop()]:
                if before not in reached:
                    reached.add(before)
                    open_ends.append(before)
        lost = next((number for number in range(len(self._parents)) if number not in reached), None)
        if lost is not None:
            self._fail(InvariantViolation("Liveness", "no good end can be reached any more"), lost, None)


def retell(bounds: Bounds, schedule: list[Action], invariants: Iterable[type[Invariant]] = ALL_INVARIANTS) -> list[str]:
    """A schedule as a readable trace, by running it again."""
    lines: list[str] = []
    situation = Situation(bounds, invariants, lines.append)
    for action in schedule:
        try:
            situation.perform(action)
        except InvariantViolation:
            break
    return [f"{number:3}  {line}" for number, line in enumerate(lines, 1)]
