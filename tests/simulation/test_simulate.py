"""``holdfast simulate``: what it tells, and what it exits with.

Covers cli/running/simulate.py, simulation/narration.py and simulation/nodes/words.py.
"""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from holdfast.cli.running.simulate import OF_GRID, OF_RUNS, OF_SEARCH, simulate
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


def test_a_search_that_stops_early_says_so_and_has_its_own_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    code, output = run("--exhaustive", "--most-states", "5")
    assert code == 3
    assert "the search stopped early, after" in output
    assert "Raise or omit --most-states" in output
    monkeypatch.setattr(RMDestination, "hold", lambda self, number, size=0: False)
    assert run("--exhaustive", "--losses", "0", "--most-states", "100000")[0] == 1


VALUES = {
    "loss": ["0.5"],
    "rm": ["1.2"],
    "grid": ["loss=0"],
    "out": ["out"],
    "html": ["page.html"],
    "master": ["local"],
}
MODES = {
    (): {*OF_RUNS},
    ("--exhaustive",): {"exhaustive", *OF_SEARCH},
    ("--grid", "loss=0", "--out", "o"): {"grid", "seed", *OF_GRID},
}


@pytest.mark.parametrize("mode", MODES, ids=" ".join)
@pytest.mark.parametrize("option", [one for one in simulate.params if one.name not in ("exhaustive", "grid")], ids=str)
def test_an_option_of_another_mode_is_refused(
    mode: tuple[str, ...], option: click.Option, monkeypatch: pytest.MonkeyPatch
) -> None:
    if option.name in MODES[mode]:
        return
    given = [] if option.is_flag else VALUES.get(str(option.name), ["2"])
    code, output = run(*mode, option.opts[0], *given)
    assert code == 2
    assert f"{option.opts[0]} has no effect with" in output


def test_a_network_that_loses_everything_is_refused() -> None:
    code, output = run("--loss", "1")
    assert (code, "0<=x<1" in output) == (2, True)


def test_a_trace_of_many_runs_is_refused() -> None:
    code, output = run("--runs", "2", "--trace")
    assert code == 2
    assert "omit --runs" in output
