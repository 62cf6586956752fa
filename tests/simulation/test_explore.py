"""The explorer: every interleaving within small bounds, and the shortest schedule that shows a planted bug.

Covers simulation/explorer/exploration.py.
"""

from __future__ import annotations

from typing import Any

import planted_bugs
import pytest

from holdfast.core.events import Respond
from holdfast.core.messages import EndpointReference, Envelope
from holdfast.core.receiving.answers import AnswerSender
from holdfast.core.versions import Versions
from holdfast.simulation.explorer.exploration import Explorer, retell
from holdfast.simulation.explorer.situation import Bounds, Keys
from holdfast.simulation.explorer.stage import Stage, begin
from holdfast.simulation.nodes.node import Node
from holdfast.simulation.promises.invariant import Invariant
from holdfast.simulation.world import World

WS_RM_1_0 = Versions("1.0")
WS_RM_2003_03, WS_RM_2004_03 = Versions("2003/03"), Versions("2004/03")


def deep(bounds: Bounds, least: int) -> Any:
    return pytest.param(bounds, least, marks=pytest.mark.nightly)


# Reordering has no budget: in every one of these searches any packet in flight may arrive next.
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("bounds", "least"),
    [
        (Bounds(messages=1, losses=2, crashes=1), 2_000),
        (Bounds(messages=2, losses=0, duplicates=1), 2_000),
        deep(Bounds(messages=1, losses=0, duplicates=1, early=1), 3_000),
        deep(Bounds(messages=1, losses=1, crashes=1, requests=True, versions=WS_RM_1_0), 1_000),
        deep(Bounds(messages=3, losses=0), 1_000),
        deep(Bounds(messages=1, losses=1, listener=True), 3_000),
        deep(Bounds(messages=1, losses=1, late=1), 1_000),
        deep(Bounds(messages=1, losses=1, crashes=1, requests=True, versions=WS_RM_2003_03), 500),
        # What is above, with more of it at a time.
        deep(Bounds(messages=2, losses=0, crashes=1, versions=WS_RM_1_0), 3_000),
        deep(Bounds(messages=2, losses=2, crashes=1), 8_000),
        deep(Bounds(messages=3, losses=0, duplicates=1), 25_000),
        deep(Bounds(messages=2, losses=1, duplicates=1), 5_000),
        deep(Bounds(messages=3, losses=1), 3_000),
        deep(Bounds(messages=1, losses=0, crashes=2), 3_000),
        deep(Bounds(messages=2, losses=1, crashes=1, requests=True), 6_000),
        deep(Bounds(messages=2, losses=1, crashes=1, versions=WS_RM_1_0), 5_000),
        deep(Bounds(messages=1, losses=0, crashes=1, late=1), 5_000),
        deep(Bounds(messages=2, losses=1, duplicates=1, versions=WS_RM_2003_03), 2_000),
        deep(Bounds(messages=2, losses=1, crashes=1, versions=WS_RM_2003_03), 3_000),
        deep(Bounds(messages=2, losses=1, duplicates=1, versions=WS_RM_2004_03), 7_000),
    ],
    ids=str,
)
def test_every_interleaving_within_the_bounds_keeps_every_promise(bounds: Bounds, least: int) -> None:
    result = Explorer(bounds).run()
    assert result.violation is None, "\n".join(result.trace)
    assert result.is_complete
    assert result.states >= least
    print(f"{bounds}: {result.states} states, {result.transitions} transitions, {result.depth} deep")


@pytest.mark.parametrize(
    ("name", "bounds", "invariant", "steps"),
    [
        ("acknowledge_before_store", Bounds(messages=2, losses=0), "AcknowledgedIsStored", 12),
        ("save_all_but_the_newest_number", Bounds(messages=1, losses=0), "AcceptedIsCounted", 10),
        ("deliver_a_held_message_early", Bounds(messages=2, losses=0), "InOrder", 12),
        ("never_acknowledge_a_duplicate", Bounds(messages=1, losses=1), "Liveness", 14),
        ("acknowledge_a_request_without_its_reply", Bounds(messages=1, losses=0, requests=True), "", 14),
    ],
)
def test_a_planted_bug_yields_its_shortest_schedule_as_a_readable_trace(
    name: str, bounds: Bounds, invariant: str, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    getattr(planted_bugs, name)(monkeypatch)
    result = Explorer(bounds).run()
    assert result.violation is not None
    assert invariant in result.violation.invariant
    assert len(result.schedule) <= steps
    assert any("the source's application submits m0" in line for line in result.trace)
    # The trace is told by living endpoints, which remember nothing of the search: they break the same promise.
    assert result.trace[-1] == str(result.violation)


@pytest.mark.nightly  # the other planted bugs are found sooner
def test_a_bug_that_only_a_crash_and_a_loss_together_show_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    planted_bugs.forget_after_a_crash_what_could_not_be_delivered(monkeypatch)
    for bounds in (Bounds(messages=1, losses=2), Bounds(messages=1, losses=0, crashes=1)):
        assert Explorer(bounds).run().violation is None, "the loss alone and the crash alone show nothing"
    result = Explorer(Bounds(messages=1, losses=1, crashes=1)).run()
    assert result.violation is not None
    assert result.violation.invariant == "Liveness"
    verbs = [verb for verb, _, _ in result.schedule]
    assert verbs.index("crash") < verbs.index("lose")
    assert any("source crashes" in line for line in result.trace)
    assert any("is lost" in line for line in result.trace)


def test_an_exchange_that_is_answered_twice_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(self: AnswerSender, target: EndpointReference | None, back_channel: Any, response: Envelope) -> None:
        self._effects += [Respond(back_channel, response), Respond(back_channel, response)]

    monkeypatch.setattr(AnswerSender, "answer", answer)
    result = Explorer(Bounds(messages=1, losses=0)).run()
    assert result.violation is not None
    assert result.violation.invariant == "AnsweredOnce"


def test_a_schedule_retold_ends_in_the_same_state() -> None:
    bounds, keys = Bounds(messages=2, losses=1, crashes=1), Keys()
    one, other = begin(Stage(bounds)), begin(Stage(bounds))
    schedule = []
    for _ in range(15):
        action = list(one.actions())[-1]
        schedule.append(action)
        one.perform(action)
        other.perform(action)
        assert keys.of(one) == keys.of(other)
    assert len(retell(bounds, schedule)) > len(schedule)


def test_a_search_can_be_ended_early_and_says_so() -> None:
    result = Explorer(Bounds(messages=2, losses=1, most_states=50)).run()
    assert not result.is_complete
    assert result.violation is None
    assert 50 <= result.states < 80


class LooksAcross(Invariant):
    """One that asks of the other endpoint what is not to be asked."""

    def after(self, world: World, node: Node) -> None:
        assert world.ledger.disks[1 - node.index].records is not None


def test_what_an_invariant_may_not_ask_of_the_other_endpoint_is_not_there() -> None:
    with pytest.raises(AttributeError, match="records"):
        Explorer(Bounds(messages=1, losses=0), invariants=[LooksAcross]).run()
