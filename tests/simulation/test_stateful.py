"""Two endpoints under Hypothesis's control: it looks for the sequence of steps that breaks a promise, and shrinks it.

The same world and invariants as the explorer's, with longer stories: messages are submitted in between, time goes on,
and nothing has a budget.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from examples import examples
from holdfast.core.versions import ALL_VERSIONS, Versions
from holdfast.simulation.explorer.situation import Bounds
from holdfast.simulation.explorer.stage import Stage, begin
from holdfast.simulation.promises.invariant import InvariantViolation

ENDPOINT = st.sampled_from([0, 1])
MOST_MESSAGES = 6


class PairOfEndpoints(RuleBasedStateMachine):
    """Every rule is one thing that can happen; every invariant is checked inside, after each."""

    @initialize(versions=st.sampled_from(ALL_VERSIONS), requests=st.booleans())
    def start(self, versions: Versions, requests: bool) -> None:
        self.requests = requests
        self.stage = Stage(Bounds(messages=3, losses=10**6, versions=versions, requests=requests))
        self.situation = begin(self.stage)

    @precondition(lambda self: self.stage.world.submitted < MOST_MESSAGES)
    @rule()
    def submit(self) -> None:
        world = self.stage.world
        world.submit(self.requests)
        world.settle(world.nodes[0])
        self.situation.packets += self.stage.sent()

    @precondition(lambda self: self.situation.packets)
    @rule(data=st.data())
    def deliver_a_packet(self, data: st.DataObject) -> None:
        self.situation.perform(("deliver", self._packet(data), 0))

    @precondition(lambda self: self.situation.packets)
    @rule(data=st.data())
    def drop_a_packet(self, data: st.DataObject) -> None:
        self.situation.perform(("lose", self._packet(data), 0))

    @precondition(lambda self: any(not packet.is_response for packet in self.situation.packets))
    @rule(data=st.data())
    def duplicate_a_request(self, data: st.DataObject) -> None:
        requests = [index for index, packet in enumerate(self.situation.packets) if not packet.is_response]
        self.situation.perform(("duplicate", data.draw(st.sampled_from(requests)), 0))

    @rule(endpoint=ENDPOINT)
    def make_a_batch_durable(self, endpoint: int) -> None:
        if self.situation.endpoints[endpoint].pending:
            self.situation.perform(("durable", endpoint, 0))

    @rule(endpoint=ENDPOINT, data=st.data())
    def crash(self, endpoint: int, data: st.DataObject) -> None:
        pending = self.situation.endpoints[endpoint].pending
        self.situation.perform(("crash", endpoint, data.draw(st.integers(0, pending))))

    @rule(endpoint=ENDPOINT)
    def let_a_timer_fire(self, endpoint: int) -> None:
        if ("timer", endpoint, 0) in list(self._timers()):
            self.situation.perform(("timer", endpoint, 0))

    def teardown(self) -> None:
        """No more faults: everything must arrive and end."""
        situation = getattr(self, "situation", None)
        if situation is None:
            return
        budget = situation.budget
        budget.losses = budget.duplicates = budget.crashes = budget.early = 0
        world = self.stage.world
        world.has_ended = False  # what was submitted after an end has an end of its own
        world.nodes[0].end()
        world.settle(world.nodes[0])
        situation.packets += self.stage.sent()
        for _ in range(3000):
            action = next(situation.actions(), None)
            if action is None:
                break
            situation.perform(action)
        if self.stage.missing is not None:
            raise InvariantViolation("Liveness", self.stage.missing)

    def _packet(self, data: st.DataObject) -> int:
        return data.draw(st.integers(0, len(self.situation.packets) - 1))

    def _timers(self) -> list[tuple[str, int, int]]:
        self.situation.budget.early = 10**6
        return [action for action in self.situation.actions() if action[0] == "timer"]


TestPairOfEndpoints = PairOfEndpoints.TestCase
TestPairOfEndpoints.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)
