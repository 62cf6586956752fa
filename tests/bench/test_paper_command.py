"""``python -m bench.paper``: the table and JSON say the same; what is missing is told before anything is measured."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner, Result

from bench.paper import plots, table
from bench.paper.__main__ import paper


def run(*words: str) -> Result:
    return CliRunner().invoke(paper, words)


def test_the_table_names_every_row_and_what_is_slower() -> None:
    result = run("--runs", "2", "--directory", ".")
    assert result.exit_code == 0
    for name in table.PAPER:
        assert name in result.stdout
    assert "Holdfast has no WS-Eventing" in result.stdout


def test_json_has_the_paper_s_figures_beside_ours() -> None:
    result = run("--runs", "3", "--json")
    told = json.loads(result.stdout)
    assert told["runs"] == 3
    row = next(row for row in told["rows"] if row["operation"] == "Create a TerminateSequence")
    assert row["paper"]["mean"] == 20.95
    assert set(row["here"]) == {"mean", "deviation", "error", "outliers", "smallest", "largest"}
    assert row["times_as_fast"] == pytest.approx(20.95 / row["here"]["mean"], rel=0.001)


def test_plots_without_matplotlib_are_refused_before_anything_is_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(plots.importlib.util, "find_spec", lambda _name: None)
    monkeypatch.setattr(table, "measure", lambda *_: pytest.fail("it was measured"))
    result = run("--plots", "figures")
    assert result.exit_code == 1
    assert "pip install 'holdfast[bench]'" in result.stderr
