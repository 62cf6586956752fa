"""The matrices of the documentation: what a test declares, what a run records, and what the pages say of it."""

from __future__ import annotations

import json
import runpy
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import interop_cells
import pytest
import results_file
from results_file import ROOT, Recorder, merged

from holdfast.testing.proxy import Faults

RESULTS: dict[str, Any] = runpy.run_path(str(ROOT / "docs" / "results.py"))
HERE = "tests/docs/test_results.py"
THIS = f"{HERE}::test_a_run_replaces_the_results_of_its_tests_and_keeps_the_others"
OTHER = f"{HERE}::test_an_incomplete_or_unknown_cell_is_refused"
RUN = {"date": "2026-01-01", "commit": "abcdef12"}
COMPLETE = {"peer": "CXF", "role": "source", "pattern": "one-way", "versions": [("1.0", "2004/08", "1.1")]}


class Item:
    """As much of a test as its cells depend on."""

    def __init__(self, *markers: dict[str, Any], **parameters: Any) -> None:
        self._markers = [pytest.mark.cell(**one).mark for one in markers]
        self.callspec = type("CallSpec", (), {"params": parameters})()

    def iter_markers(self, _: str) -> list[pytest.Mark]:
        """Nearest first, as pytest has them."""
        return self._markers


def cells(*markers: dict[str, Any], **parameters: Any) -> list[str]:
    item: Any = Item(*markers, **parameters)
    return interop_cells.cells_of(item)


def test_a_cell_is_what_the_parameters_and_the_markers_say_the_nearest_last() -> None:
    found = cells({"fault": "Holdfast killed"}, {**COMPLETE, "fault": "none"}, decoupled=True, sleep=1.5)
    assert found == [
        "CXF | source |  | listener | slow | none | one-way | Holdfast killed | clean | 1.0 | 2004/08 | 1.1"
    ]
    found = cells({"peer": "WCF", "role": "destination"}, binding="ws2007", operation="echo", brokered=True)
    assert found == ["WCF | destination | broker |  |  | none | request/reply |  | clean | 1.1 | 2005/08 | 1.2"]
    lossy = Faults(lose_request=0.2, lose_response=0.2, double=0.1)
    (found,) = cells(COMPLETE, faults=lossy)
    assert "| 20 % of requests and answers lost, 10 % of requests doubled |" in found


def test_a_test_that_proves_several_cells_has_each_of_them() -> None:
    several = {"pattern": ("one-way", "mixed"), "versions": interop_cells.SIX}
    assert len(set(cells(several, COMPLETE))) == 12
    assert cells({"role": "none"}) == []


@pytest.mark.parametrize(
    "wrong", [{"peer": "Axis"}, {"patern": "one-way"}, {"pattern": "a | b"}, {"versions": [("1.1", "2004", "1.1")]}]
)
def test_an_incomplete_or_unknown_cell_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="cell"):
        cells(wrong, COMPLETE)
    with pytest.raises(ValueError, match="cell"):
        cells({"peer": "CXF", "role": "source"})


def report(test: str, when: str, outcome: str, *of_cells: str, reason: Any = None) -> Any:
    properties = [("cell", one) for one in of_cells]
    return pytest.TestReport(test, (HERE, 1, ""), {}, outcome, reason, when, user_properties=properties)  # type: ignore[arg-type]


def test_a_run_records_the_worst_outcome_of_each_case_of_its_tests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results_file, "this_run", lambda: RUN)
    recorder = Recorder(tmp_path / "results.json", {THIS})
    for case, outcome in (("[1]", "passed"), ("[2]", "failed")):
        for when in ("setup", "call", "teardown"):
            recorder.pytest_runtest_logreport(report(THIS + case, when, outcome if when == "call" else "passed"))
    skipped = report(OTHER, "setup", "skipped", "a | b", reason=("file", 1, "Skipped: no JDK"))
    recorder.pytest_runtest_logreport(skipped)
    recorder.pytest_runtest_logreport(report(f"{HERE}::test_that_no_page_needs", "call", "passed"))
    recorder.pytest_sessionfinish(pytest.ExitCode.TESTS_FAILED)
    contents = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))
    assert contents["runs"] == {"1": RUN}
    assert contents["tests"] == {
        THIS: {"run": "1", "results": [{"passed": 1, "failed": 1}]},
        OTHER: {"run": "1", "results": [{"cell": "a | b", "skipped: no JDK": 1}]},
    }


def test_an_interrupted_run_records_nothing_since_cases_of_a_test_may_be_missing(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "results.json", {THIS})
    recorder.pytest_runtest_logreport(report(THIS + "[1]", "call", "passed"))
    recorder.pytest_sessionfinish(pytest.ExitCode.INTERRUPTED)
    assert not (tmp_path / "results.json").exists()


def test_a_run_replaces_the_results_of_its_tests_and_keeps_the_others() -> None:
    before = {"runs": {"1": RUN}, "tests": {}}
    before["tests"] = {one: {"run": "1", "results": [{"failed": 1}]} for one in (THIS, OTHER, f"{HERE}::test_gone")}
    later = RUN | {"commit": "12345678"}
    after = merged(before, {THIS: [{"passed": 1}]}, later)
    assert after["runs"] == {"1": RUN, "2": later}
    assert after["tests"] == {
        THIS: {"run": "2", "results": [{"passed": 1}]},
        OTHER: {"run": "1", "results": [{"failed": 1}]},
    }
    assert merged(after, {OTHER: [{"passed": 1}]}, later)["runs"] == {"2": later}


@pytest.mark.parametrize(
    ("outcomes", "text"),
    [
        ({}, "not run"),
        ({"passed": 3}, "passed"),
        ({"failed": 2}, "failed"),
        ({"passed": 3, "failed": 1}, "1 of 4 failed"),
        ({"skipped: no JDK": 2}, "skipped: no JDK"),
        ({"passed": 1, "skipped: no JDK": 2}, "passed; 2 skipped: no JDK"),
    ],
)
def test_a_cell_says_whether_all_passed_and_what_did_not(outcomes: dict[str, int], text: str) -> None:
    assert RESULTS["said"](Counter(outcomes)) == text


def test_a_rule_has_the_results_of_the_roles_that_its_tests_are_made_for() -> None:
    source, both = "`tests/core/rm_source/test_x.py::test_x`", "`tests/wire/test_x.py::test_x`"
    assert RESULTS["conformance_row"](["rule", "–", "`code`", f"{source}, {both}"])[2:4] == ["not run", "—"]
    row = RESULTS["conformance_row"](["rule", "–", "`code`", both])
    assert row == ["rule", "–", "not run", "not run", "`code`", both]
    assert RESULTS["conformance_row"](row) == row


def test_every_recorded_cell_has_its_place_in_a_table() -> None:
    contents = json.loads((ROOT / "docs" / "reference" / "results.json").read_text(encoding="utf-8"))
    results = [one for test in contents["tests"].values() for one in test["results"]]
    peers = {*RESULTS["PEERS"], "Holdfast"}
    assert {one["cell"].split(" | ")[0] for one in results if "cell" in one} <= peers
    assert set(interop_cells.VALUES["peer"]) == peers
    assert RESULTS["FIELDS"] == interop_cells.FIELDS[:-3]
    assert list(interop_cells.SIX) == RESULTS["SIX"]


def test_each_run_names_a_commit_of_this_history() -> None:
    """A run is recorded on a branch whose commits may get other names before they are here."""

    def git(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)

    if git("rev-parse", "--is-shallow-repository").stdout.strip() != "false":
        pytest.skip("there is no history here, or only a part of it")
    runs = json.loads((ROOT / "docs" / "reference" / "results.json").read_text())["runs"]
    commits = {number: run["commit"].rstrip("+") for number, run in runs.items()}
    lost = {n: one for n, one in commits.items() if git("merge-base", "--is-ancestor", one, "HEAD").returncode}
    assert not lost
