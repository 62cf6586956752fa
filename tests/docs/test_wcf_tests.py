"""The table of what runs with Microsoft's WCF client says what pytest collects."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
TABLE: dict[str, Any] = runpy.run_path(str(ROOT / "docs" / "wcf_tests.py"))
FILES: list[str] = list(TABLE["CONDITIONS"])
PROFILE = re.compile(r"rm1[01]-wsa200[45]-soap1[12]")


@cache
def collected(suite: str) -> dict[tuple[str, str], set[str]]:
    """The parameters of each test of these files in a suite, by file and test."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", "-m", suite]
    files = [f"tests/interop/{file}.py" for file in FILES]
    done = subprocess.run([*command, *files], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[tuple[str, str], set[str]] = defaultdict(set)
    for file, test, parameters in re.findall(r"/(\w+)\.py::(\w+)(?:\[(.*)\])?$", done.stdout, re.MULTILINE):
        found[file, test].add(parameters)
    return found


def profiles(parameters: set[str]) -> set[str]:
    return {found[0] for one in parameters if (found := PROFILE.search(one)) is not None}


@pytest.mark.parametrize("file", FILES)
def test_the_table_has_each_test_with_the_wcf_client_in_its_versions_and_suite(file: str) -> None:
    everything, default = collected("nightly or not nightly"), collected("not nightly")
    tests = TABLE["Tests"](file)
    assert {test for name, test in everything if name == file} == set(tests.names)
    for test in tests.names:
        suites = tests.suites(test)
        runs_by_default = {version for version, suite in suites.items() if suite == "default"}
        if profiles(everything[file, test]):
            assert set(suites) == profiles(everything[file, test]), test
            assert runs_by_default == profiles(default[file, test]), test
        else:
            assert runs_by_default == (set(suites) if (file, test) in default else set()), test


def test_every_condition_of_the_grid_has_every_version_and_each_kind_of_session() -> None:
    usual = {
        "clean",
        "20 % of requests and of answers lost",
        "every request served twice",
        "the client aborts its session",
    }
    usual |= {"operations that take 1, 8 and 25 s", "the service killed twice (kill -9)"}
    usual |= {"broker: clean", "broker: killed twice (kill -9)"}
    usual |= {"broker: the service killed twice, then unavailable for 40 s", "broker: the client aborts its session"}
    versions = dict.fromkeys(TABLE["combinations"](), "default")
    of_all = {
        condition
        for condition, contracts, suites in TABLE["rows"]()
        if (contracts, suites) == (["one-way", "two-way", "mixed"], versions)
    }
    assert len(versions) == 6 and of_all == usual
