"""The explorer: every interleaving within small bounds, and the shortest schedule that shows a planted bug."""

from __future__ import annotations

import importlib.util
import pickle
import sys
from pathlib import Path
from types import ModuleType

import pytest

from holdfast.core.versions import Versions
from holdfast.testing.explore import Bounds, Explorer, Situation, retell
from holdfast.testing.fingerprint import fingerprint


def load_mutants() -> ModuleType:
    name = "holdfast_planted_bugs"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name("mutants.py"))
        assert spec is not None and spec.loader is not None
        sys.modules[name] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules[name]


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("bounds", "least"),
    [
        (Bounds(messages=2, losses=1), 300),
        (Bounds(messages=1, losses=1, requests=True), 100),
        (Bounds(messages=1, losses=1, versions=Versions("1.0")), 90),
        (Bounds(messages=1, losses=1, requests=True, versions=Versions("1.0")), 100),
        (Bounds(messages=1, losses=0, early=1), 300),
        (Bounds(messages=1, losses=0, duplicates=1), 200),
        (Bounds(messages=1, losses=1, crashes=1), 2_000),
        (Bounds(messages=1, losses=0, crashes=1, requests=True), 900),
        (Bounds(messages=1, losses=0, crashes=1, versions=Versions("1.0")), 700),
        (Bounds(messages=3, losses=0), 400),
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
        ("save_all_but_the_newest_number", Bounds(messages=1, losses=0), "AcknowledgedIsRemembered", 10),
        ("deliver_a_held_message_early", Bounds(messages=2, losses=0), "InOrder", 12),
        ("never_acknowledge_a_duplicate", Bounds(messages=1, losses=1), "Liveness", 14),
        ("acknowledge_a_request_without_its_reply", Bounds(messages=1, losses=0, requests=True), "", 14),
    ],
)
def test_a_planted_bug_yields_its_shortest_schedule_as_a_readable_trace(
    name: str, bounds: Bounds, invariant: str, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    getattr(load_mutants(), name)(monkeypatch)
    result = Explorer(bounds).run()
    assert result.violation is not None
    assert invariant in result.violation.invariant
    assert len(result.schedule) <= steps
    assert result.trace[-1] == str(result.violation)
    assert any("the source's application submits m0" in line for line in result.trace)


def test_a_schedule_retold_ends_in_the_same_state() -> None:
    bounds = Bounds(messages=2, losses=1)
    one, other = Situation(bounds), Situation(bounds)
    schedule = []
    for _ in range(15):
        action = list(one.actions())[-1]
        schedule.append(action)
        one.perform(action)
        other.perform(action)
        assert fingerprint(one) == fingerprint(other)
    assert len(retell(bounds, schedule)) > len(schedule)


def test_a_copy_of_a_state_is_the_same_state_and_lives_its_own_life() -> None:
    situation = Situation(Bounds(messages=2, losses=1))
    for _ in range(6):
        situation.perform(next(situation.actions()))
    copy: Situation = pickle.loads(pickle.dumps(situation))
    assert fingerprint(copy) == fingerprint(situation)
    copy.perform(next(copy.actions()))
    assert fingerprint(copy) != fingerprint(situation)


def test_states_that_differ_in_their_identifiers_and_clocks_only_are_the_same() -> None:
    one, other = Situation(Bounds()), Situation(Bounds())
    other.world.nodes[1].identifiers += 5  # what it grants next has another name
    for situation in (one, other):
        for _ in range(6):
            situation.perform(next(situation.actions()))
    assert fingerprint(one) == fingerprint(other)


def test_states_that_differ_in_what_may_still_go_wrong_are_different() -> None:
    assert fingerprint(Situation(Bounds(losses=1))) != fingerprint(Situation(Bounds(losses=2)))


def test_a_search_can_be_ended_early_and_says_so() -> None:
    result = Explorer(Bounds(messages=2, losses=1, most_states=50)).run()
    assert not result.is_complete
    assert result.violation is None
    assert 50 <= result.states < 80
