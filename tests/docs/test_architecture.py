"""The drawing of the rooms agrees with the import contracts, and with the imports of the code."""

from __future__ import annotations

import ast
import re
import tomllib
from functools import cache
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "holdfast"
PAGE = (ROOT / "docs" / "internals" / "architecture.md").read_text(encoding="utf-8")
DRAWING = re.compile(r"```mermaid\nflowchart TD\n(.*?)```", re.DOTALL)
ROW = re.compile(r"^\| `(\w+)` \|", re.MULTILINE)

Edges = dict[str, set[str]]


@cache
def layers() -> list[set[str]]:
    """The rooms of the contract of the whole package, from the top."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    (contract,) = [one for one in contracts if one.get("containers") == ["holdfast"]]
    return [set(re.findall(r"\w+", layer)) for layer in contract["layers"]]


def rooms() -> set[str]:
    return set().union(*layers())


@cache
def drawn() -> Edges:
    found = DRAWING.search(PAGE)
    assert found is not None
    edges: Edges = {}
    for line in found[1].strip().splitlines():
        groups = [re.findall(r"\w+", group) for group in line.split("-->")]
        for left, right in pairwise(groups):
            for room in left:
                edges.setdefault(room, set()).update(right)
    return edges


@cache
def imported() -> Edges:
    """Which room imports which, as the code says."""
    edges: Edges = {}
    for file in PACKAGE.rglob("*.py"):
        room = file.relative_to(PACKAGE).parts[0].removesuffix(".py")
        if room in rooms():
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                edges.setdefault(room, set()).update(rooms_in(node) - {room})
    return edges


def rooms_in(node: ast.AST) -> set[str]:
    names: list[str] = []
    if isinstance(node, ast.ImportFrom) and node.module == "holdfast":
        names = [f"holdfast.{one.name}" for one in node.names]
    elif isinstance(node, ast.ImportFrom):
        names = [node.module or ""]
    elif isinstance(node, ast.Import):
        names = [one.name for one in node.names]
    parts = [name.split(".") for name in names]
    return {part[1] for part in parts if part[0] == "holdfast" and len(part) > 1} & rooms()


def below(room: str) -> set[str]:
    """The rooms that the arrows of one lead to."""
    found: set[str] = set()
    waiting = [room]
    while waiting:
        for other in drawn().get(waiting.pop(), set()) - found:
            found.add(other)
            waiting.append(other)
    return found


def test_the_drawing_and_the_table_have_the_rooms_of_the_contract() -> None:
    assert set(drawn()) | set().union(*drawn().values()) == rooms()
    assert sorted(ROW.findall(PAGE)) == sorted(rooms())


def test_each_arrow_points_to_a_lower_layer() -> None:
    depth = {room: index for index, layer in enumerate(layers()) for room in layer}
    upwards = [(room, other) for room, others in drawn().items() for other in others if depth[room] >= depth[other]]
    assert upwards == []


def test_each_arrow_is_an_import_of_the_code() -> None:
    missing = {room: others - imported().get(room, set()) for room, others in drawn().items()}
    assert not any(missing.values()), missing


def test_each_import_of_the_code_follows_the_arrows() -> None:
    hidden = {room: others - below(room) for room, others in imported().items()}
    assert not any(hidden.values()), hidden
