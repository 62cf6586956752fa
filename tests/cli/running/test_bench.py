"""``holdfast bench``: the table and JSON say the same; what is missing is told before anything is measured."""

from __future__ import annotations

import json
from typing import Any

import pytest

from holdfast.bench import paper, plots


def test_the_table_names_every_row_and_what_is_slower(run: Any) -> None:
    result = run("bench", "paper", "--runs", "2", "--directory", ".")
    assert result.code == 0
    for name in paper.PAPER:
        assert name in result.out
    assert "Holdfast has no WS-Eventing" in result.out


def test_json_has_the_paper_s_figures_beside_ours(run: Any) -> None:
    result = run("bench", "paper", "--runs", "3", "--json")
    told = json.loads(result.out)
    assert told["runs"] == 3
    row = next(row for row in told["rows"] if row["operation"] == "Create a TerminateSequence")
    assert row["paper"]["mean"] == 20.95
    assert set(row["here"]) == {"mean", "deviation", "error", "outliers", "smallest", "largest"}
    assert row["times_as_fast"] == pytest.approx(20.95 / row["here"]["mean"], rel=0.001)


def test_plots_without_matplotlib_are_refused_before_anything_is_measured(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plots.importlib.util, "find_spec", lambda _name: None)
    monkeypatch.setattr(paper, "measure", lambda *_: pytest.fail("it was measured"))
    result = run("bench", "paper", "--plots", "figures")
    assert result.code == 1
    assert "pip install 'holdfast[bench]'" in result.err
