"""The import contracts, broken on purpose in a copy: every package and module has a layer, and no import points up."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The package, to be spoilt."""
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    package = tmp_path / "src" / "holdfast"
    shutil.copytree(ROOT / "src" / "holdfast", package, ignore=shutil.ignore_patterns("__pycache__"))
    return package


def lint(copy: Path) -> tuple[int, str]:
    """The exit code of import-linter, and what it says."""
    source = copy.parent
    told = subprocess.run(
        [sys.executable, "-P", "-c", "from importlinter.cli import lint_imports_command as c; c()", "--no-cache"],
        cwd=source.parent,
        env={**os.environ, "PYTHONPATH": str(source), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    return told.returncode, told.stdout + told.stderr


def test_the_copy_keeps_the_contracts(copy: Path) -> None:
    code, told = lint(copy)
    assert (code, "0 broken" in told) == (0, True), told


# Each process of import-linter takes a second of processor time, and reports every defect. So one copy has all defects
# of a kind, and the test looks for each of them.


def test_a_new_package_or_module_without_a_layer_is_refused(copy: Path) -> None:
    names = ["crowd/__init__.py", "helpers.py"]
    for name in names:
        (copy / name).parent.mkdir(exist_ok=True)
        (copy / name).write_text("", encoding="utf-8")
    code, told = lint(copy)
    assert code == 1, told
    for name in names:
        assert f"holdfast.{name.partition('/')[0].removesuffix('.py')}" in told


def test_each_import_that_points_up_or_aside_is_refused(copy: Path) -> None:
    imports = [
        ("core", "holdfast.wire"),
        ("store", "holdfast.wire"),
        ("http", "holdfast.core"),
        ("endpoint", "holdfast.sync"),
        ("endpoint", "holdfast.broker"),
        ("endpoint", "holdfast.testing"),
        ("cli", "holdfast.testing"),
        ("simulation", "holdfast.testing"),
        ("simulation/promises", "holdfast.simulation.simulator"),
        ("core", "time"),
        ("core/sending", "holdfast.core.receiving"),
    ]
    for number, (room, imported) in enumerate(imports):
        (copy / room / f"added{number}.py").write_text(f"import {imported}\n", encoding="utf-8")
    code, told = lint(copy)
    assert code == 1, told
    lacking = [
        (room, imported)
        for number, (room, imported) in enumerate(imports)
        if f"holdfast.{room.replace('/', '.')}.added{number} -> {imported}" not in told
    ]
    assert not lacking, told
