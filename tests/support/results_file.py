"""The results file, from which the conformance and the interoperability matrix in the documentation are made.

``pytest --results FILE`` records the outcome of each test that the conformance page names, and of each test with a live
peer. A run replaces the results of the tests that it ran; the others keep theirs, with the date and commit of their own
run. The controller of pytest-xdist writes the file.
"""

from __future__ import annotations

import datetime
import json
import os
import re
import subprocess
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

Entry = dict[str, Any]
ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "reference" / "conformance.md"


def named_tests() -> set[str]:
    """Return the tests that the conformance page names, as ``file::function``."""
    return set(re.findall(r"`(tests/[\w/]+\.py::\w+)`", PAGE.read_text(encoding="utf-8")))


def add_option(parser: pytest.Parser) -> None:
    """Add ``--results`` to the options of pytest."""
    parser.addoption("--results", metavar="FILE", help="record the outcomes in this file, from which docs are made")


class Recorder:
    """Collects the outcomes of a run, and merges them into the results file.

    Args:
        path: The results file. It need not exist.
        named: The tests to record besides those with a cell.
    """

    def __init__(self, path: Path, named: Iterable[str]) -> None:
        self._path = path
        self._named = frozenset(named)
        self._cases: dict[str, tuple[str, str, list[str]]] = {}
        """Outcome, reason and cells of each case."""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note the worst outcome of the phases of a case."""
        cells = [str(value) for name, value in report.user_properties if name == "cell"]
        if not cells and report.nodeid.partition("[")[0] not in self._named:
            return
        was = self._cases.get(report.nodeid)
        if was is None or was[0] == "passed":
            self._cases[report.nodeid] = report.outcome, _reason(report), cells

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        """Write the file, unless nothing was recorded, or somebody interrupted a test of which other cases had run."""
        if self._cases and exitstatus != pytest.ExitCode.INTERRUPTED:
            before = json.loads(self._path.read_text(encoding="utf-8")) if self._path.exists() else {}
            text = written(merged(before, self._entries(), this_run()))
            self._path.write_text(text, encoding="utf-8")

    def _entries(self) -> dict[str, list[Entry]]:
        """Return the results of each test, one for each of its cells."""
        counts: dict[str, dict[str, Counter[str]]] = {}
        for nodeid, (outcome, reason, cells) in sorted(self._cases.items()):
            by_cell = counts.setdefault(nodeid.partition("[")[0], {})
            for one in cells or [""]:
                by_cell.setdefault(one, Counter())[f"{outcome}: {reason}" if reason else outcome] += 1
        return {
            test: [{"cell": one, **count} if one else dict(count) for one, count in sorted(by_cell.items())]
            for test, by_cell in counts.items()
        }


def _reason(report: pytest.TestReport) -> str:
    """Return why a case was skipped."""
    if report.outcome != "skipped" or not isinstance(report.longrepr, tuple):
        return ""
    return str(report.longrepr[2]).removeprefix("Skipped: ").splitlines()[0]


def this_run() -> dict[str, str]:
    """Return the date and the commit of the current run. A plus sign means that files had been changed."""

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
        return done.stdout.strip()

    changed = git("status", "--porcelain", "--untracked-files=no", "--", "src", "tests")
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    return {"date": today, "commit": git("rev-parse", "--short=8", "HEAD") + ("+" if changed else "")}


def merged(before: dict[str, Any], entries: dict[str, list[Entry]], run: dict[str, str]) -> dict[str, Any]:
    """Return the contents of the results file after a run.

    Runs without a result are dropped, and so are the results of tests that no longer exist.
    """
    runs: dict[str, dict[str, str]] = before.get("runs", {})
    name = next((name for name, one in runs.items() if one == run), None) or str(
        max((int(one) for one in runs), default=0) + 1
    )
    tests = {test: one for test, one in before.get("tests", {}).items() if exists(test)}
    tests |= {test: {"run": name, "results": results} for test, results in entries.items()}
    used = {one["run"] for one in tests.values()}
    return {"runs": {one: known for one, known in {**runs, name: run}.items() if one in used}, "tests": tests}


def exists(test: str) -> bool:
    """Return whether a test is in its file."""
    file, _, function = test.partition("::")
    path = ROOT / file
    return path.is_file() and re.search(rf"def {function}\(", path.read_text(encoding="utf-8")) is not None


def written(contents: dict[str, Any]) -> str:
    """Return the text of the results file, with a line for each result."""
    lines = ["{", f' "runs": {json.dumps(contents["runs"])},', ' "tests": {']
    for index, (test, one) in enumerate(sorted(contents["tests"].items())):
        results = ",\n".join(f"   {json.dumps(result, ensure_ascii=False)}" for result in one["results"])
        comma = "," if index + 1 < len(contents["tests"]) else ""
        lines.append(f'  {json.dumps(test)}: {{"run": "{one["run"]}", "results": [\n{results}]}}{comma}')
    return "\n".join([*lines, " }", "}", ""])


def is_controller() -> bool:
    """Return whether this process writes the file: it is no worker of pytest-xdist."""
    return "PYTEST_XDIST_WORKER" not in os.environ
