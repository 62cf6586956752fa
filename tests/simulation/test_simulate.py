"""``holdfast simulate``: what it tells, and what it exits with.

Covers cli/running/simulate.py, simulation/narration.py and simulation/nodes/words.py.
"""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from holdfast.cli.running.simulate import simulate
from holdfast.core.rm_destination.destination import RMDestination


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(simulate, arguments)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.output
    return result.exit_code, result.output


def test_one_seed_tells_its_options_and_a_closing_table() -> None:
    code, output = run("--seed", "7", "--loss", "0.3")
    assert code == 0
    assert "seed 7" in output
    assert "lose request 0.3, lose response 0.3" in output
    assert "every invariant checked after each" in output


def test_a_trace_tells_every_step_and_is_the_same_every_time() -> None:
    code, output = run("--seed", "7", "--trace")
    assert code == 0
    assert "source sends #1 CreateSequence" in output
    assert "the storm is over" in output
    assert run("--seed", "7", "--trace") == (code, output)


def test_many_seeds_are_added_up() -> None:
    code, output = run("--runs", "5")
    assert code == 0
    assert output.splitlines()[0].split() == ["runs", "5"]


def test_a_broken_promise_names_its_seed_and_is_not_a_success(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RMDestination, "hold", lambda self, number, size=0: False)
    code, output = run("--runs", "40", "--loss", "0.3")
    assert code == 1
    assert "breaks InOrder" in output
    assert "--loss 0.3 --trace" in output


def test_an_exhaustive_search_says_how_many_states_it_saw() -> None:
    code, output = run("--exhaustive", "--messages", "2", "--losses", "0")
    assert code == 0
    assert "the search is complete" in output
    assert "states" in output


def test_a_search_that_finds_something_tells_the_shortest_schedule(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RMDestination, "hold", lambda self, number, size=0: False)
    code, output = run("--exhaustive", "--messages", "2", "--losses", "0")
    assert code == 1
    assert "steps, the fewest possible" in output
    assert "InOrder: destination queues 2" in output


def test_a_trace_of_many_runs_is_refused() -> None:
    code, output = run("--runs", "2", "--trace")
    assert code == 2
    assert "omit --runs" in output
