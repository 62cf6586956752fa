"""The page that says where each rule is names code and tests that exist."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "holdfast"
PAGE = (ROOT / "docs" / "internals" / "where.md").read_text(encoding="utf-8")
CODE = re.compile(r"`([\w/]+\.py):\s+([\w.]+)`")
TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
RULES = re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:]
MOST_FILES = 2


def scope(node: ast.AST) -> dict[str, ast.AST]:
    """The names that a module or class defines itself."""
    found: dict[str, ast.AST] = {}
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found[child.name] = child
    return found


@cache
def module(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


def defines(file: Path, name: str) -> bool:
    """Whether the file defines a function, class or method of that dotted name."""
    node: ast.AST = module(file)
    for part in name.split("."):
        names = scope(node)
        if part not in names:
            return False
        node = names[part]
    return True


@pytest.mark.parametrize(("file", "name"), CODE.findall(PAGE))
def test_each_name_of_the_page_is_in_the_code(file: str, name: str) -> None:
    path = PACKAGE / file
    assert path.is_file(), f"{file} does not exist"
    assert defines(path, name), f"{file} does not define {name}"


@pytest.mark.parametrize(("file", "name"), TEST.findall(PAGE))
def test_each_test_of_the_page_exists(file: str, name: str) -> None:
    assert name.startswith("test_")
    assert defines(ROOT / file, name), f"{file} has no test {name}"


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.split("\n")[0])
def test_each_rule_names_one_or_two_files_and_a_test(rule: str) -> None:
    assert 1 <= len({file for file, _ in CODE.findall(rule)}) <= MOST_FILES
    assert TEST.findall(rule)


def test_no_name_is_written_in_another_form() -> None:
    """A path that the patterns above do not match would not be checked."""
    written = set(re.findall(r"`([^`]*\.py[^`]*)`", PAGE)) - {"tests/docs/test_where.py"}
    checked = {f"{file}: {name}" for file, name in CODE.findall(PAGE)}
    checked |= {f"{file}::{name}" for file, name in TEST.findall(PAGE)}
    assert {" ".join(one.split()) for one in written} == checked
