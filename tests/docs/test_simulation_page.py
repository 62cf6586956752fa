"""The page about the simulator names every invariant of the code, in the order of the code, and no other."""

from __future__ import annotations

import re
from pathlib import Path

from holdfast.simulation.promises.invariant import Invariant
from holdfast.simulation.promises.invariants import ALL_INVARIANTS
from holdfast.simulation.promises.refusals import RefusedInOnePlace, RequeuedInOneBatch
from holdfast.simulation.promises.routed_invariants import ROUTED_INVARIANTS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "internals" / "simulation.md").read_text(encoding="utf-8")
SOURCES = sorted((ROOT / "src" / "holdfast" / "simulation").rglob("*.py"))
ROW = re.compile(r"^\| `(\w+)` \|", re.MULTILINE)
RAISED = re.compile(r'InvariantViolation\(\s*"(\w+)"')
NAMED = re.compile(r'^(?:INVARIANT|OPEN|ANSWER) = "(\w+)"', re.MULTILINE)


def names(invariants: tuple[type[Invariant], ...]) -> list[str]:
    return [invariant.__name__ for invariant in invariants]


def test_the_tables_have_the_invariants_of_the_code_in_its_order() -> None:
    rows = ROW.findall(PAGE)
    for invariants in (names(ALL_INVARIANTS), names(ROUTED_INVARIANTS)):
        assert [row for row in rows if row in invariants] == invariants


def test_the_tables_have_whatever_else_a_run_can_break_and_nothing_else() -> None:
    texts = [file.read_text(encoding="utf-8") for file in SOURCES]
    raised = {name for text in texts for pattern in (RAISED, NAMED) for name in pattern.findall(text)}
    classes = {*names(ALL_INVARIANTS), *names(ROUTED_INVARIANTS), *names((RefusedInOnePlace, RequeuedInOneBatch))}
    shipped = {one.__name__ for one in Invariant.__subclasses__() if one.__module__.startswith("holdfast.")}
    assert classes == shipped
    rows = ROW.findall(PAGE)
    assert len(rows) == len(set(rows))
    assert set(rows) == raised | classes


def test_the_number_of_seeds_on_the_page_is_that_of_the_test() -> None:
    test = (ROOT / "tests" / "simulation" / "test_simulator.py").read_text(encoding="utf-8")
    found = re.search(r"^SEARCHED = ([\d_]+)$", test, re.MULTILINE)
    assert found is not None and "first_failure(range(SEARCHED))" in test
    assert f"within {int(found[1]):,} seeds" in PAGE.replace("\n", " ")
