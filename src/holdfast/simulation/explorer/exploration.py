"""The exhaustive explorer: the real core of two endpoints over every interleaving, within small bounds.

The search is breadth first, so that the first failure found has the shortest schedule. It visits equivalent states
once. Any packet in flight may arrive next, so every reordering occurs. Losses, duplicates, crashes and early timers
have budgets. A timer also fires without a budget when nothing else can happen. Only the order of times matters: see
:mod:`holdfast.simulation.nodes.fingerprint`. At the end of the search, every state must be able to reach a good end.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from holdfast.simulation.explorer.memory import Memory
from holdfast.simulation.explorer.situation import Action, Bounds, Keys, Situation
from holdfast.simulation.explorer.stage import Stage, begin
from holdfast.simulation.promises.invariant import Invariant, InvariantViolation
from holdfast.simulation.promises.invariants import ALL_INVARIANTS


@dataclass(slots=True)
class Exploration:
    """The result of a search.

    Args:
        states: Number of different states.
        transitions: Number of steps tried.
        depth: Length of the longest of the shortest schedules.
        is_complete: Whether the search met every state within the bounds.
        violation: The broken invariant; None otherwise.
        schedule: The shortest schedule that breaks it.
        trace: The same schedule as text, step by step.
    """

    states: int = 0
    transitions: int = 0
    depth: int = 0
    is_complete: bool = False
    violation: InvariantViolation | None = None
    schedule: list[Action] = field(default_factory=list)
    trace: list[str] = field(default_factory=list)


class Explorer:
    """A breadth-first search of all events within the bounds."""

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
        self._memory = Memory(bounds, self._invariants)
        self._progress = progress
        self._keys = Keys()
        self._numbers: dict[bytes, int] = {}
        self._parents = array("q")
        self._depths = array("H")
        self._actions: list[Action | None] = []
        self._edges: tuple[array[int], array[int]] = (array("I"), array("I"))
        """Every transition: from, to."""
        self._good: list[int] = []
        self._frontier: deque[tuple[int, Situation]] = deque()

    def run(self) -> Exploration:
        """Search until an invariant breaks, the limit is reached, or no state is left."""
        result, most = self.result, self.bounds.most_states
        self._meet(self._memory.begin(), -1, None)
        while self._frontier and result.violation is None:
            if most is not None and result.states >= most:
                return result
            self._expand(*self._frontier.popleft())
        if result.violation is None:
            result.is_complete = True
            self._look_for_dead_ends()
        return result

    @property
    def met(self) -> set[bytes]:
        """The keys of all states met."""
        return set(self._numbers)

    @property
    def ends(self) -> set[bytes]:
        """The keys of the finished states, in which every condition holds and only a crash could follow."""
        good = set(self._good)
        return {key for key, number in self._numbers.items() if number in good}

    def _expand(self, number: int, situation: Situation) -> None:
        actions = list(situation.actions())
        if not any(action[0] != "crash" for action in actions):
            missing = self._memory.missing(situation)
            if missing is not None:
                self._fail(InvariantViolation("Liveness", f"{missing}, and no action is left"), number, None)
                return
            self._good.append(number)
        for action in actions:
            self.result.transitions += 1
            if self._progress is not None and self.result.transitions % 1000 == 0:
                self._progress(self.result.states, self.result.transitions)
            after = situation.copy()
            try:
                after.perform(action)
            except InvariantViolation as violation:
                self._fail(violation, number, action)
                return
            self._meet(after, number, action)

    def _meet(self, situation: Situation, parent: int, action: Action | None) -> None:
        states = len(self._parents)
        number = self._numbers.setdefault(self._keys.of(situation), states)
        if number == states:
            depth = self._depths[parent] + 1 if parent >= 0 else 0
            self._parents.append(parent)
            self._actions.append(action)
            self._depths.append(depth)
            self.result.states = states + 1
            self.result.depth = max(self.result.depth, depth)
            self._frontier.append((number, situation))
        if parent >= 0:
            self._edges[0].append(parent)
            self._edges[1].append(number)

    def _schedule(self, number: int) -> list[Action]:
        schedule: list[Action] = []
        while number >= 0:
            action = self._actions[number]
            if action is not None:
                schedule.append(action)
            number = self._parents[number]
        return schedule[::-1]

    def _fail(self, violation: InvariantViolation, number: int, action: Action | None) -> None:
        self.result.violation = violation
        self.result.schedule = self._schedule(number) + ([action] if action is not None else [])
        self.result.trace = retell(self.bounds, self.result.schedule, self._invariants)
        if action is None:
            self.result.trace.append(str(violation))

    def _look_for_dead_ends(self) -> None:
        """Check that every state can reach a good end; otherwise the endpoints could exchange messages for ever."""
        # Go backwards from the good ends; a state that this does not reach is a dead end.
        before: list[list[int]] = [[] for _ in self._parents]
        for origin, number in zip(*self._edges, strict=True):
            before[number].append(origin)
        reached = bytearray(len(self._parents))
        open_ends = self._good.copy()
        while open_ends:
            number = open_ends.pop()
            if not reached[number]:
                reached[number] = 1
                open_ends += before[number]
        lost = reached.find(0)
        if lost >= 0:
            self._fail(InvariantViolation("Liveness", "no good end can be reached"), lost, None)


def retell(bounds: Bounds, schedule: list[Action], invariants: Iterable[type[Invariant]] = ALL_INVARIANTS) -> list[str]:
    """Run a schedule again with live endpoints; return its trace, which ends with the violation, if any."""
    lines: list[str] = []
    situation = begin(Stage(bounds, invariants, lambda line: lines.append(f"{len(lines) + 1:3}  {line}")))
    try:
        for action in schedule:
            situation.perform(action)
    except InvariantViolation as violation:
        lines.append(str(violation))
    return lines
