"""The pytest plugin: found without configuration, light, and its fixture is the pair in the test's own directory."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from importlib.metadata import entry_points
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "how-to" / "test-your-code.md"


def run_pytest(directory: Path, program: str) -> str:
    """Run a program of a user's as pytest would, in a directory without any configuration."""
    (directory / "test_mine.py").write_text(program)
    # An installation from before there was the plugin does not announce it.
    is_announced = any(one.value == "holdfast.pytest_plugin" for one in entry_points(group="pytest11"))
    named = [] if is_announced else ["-p", "holdfast.pytest_plugin"]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:cov", *named, "test_mine.py"]
    path = f"{ROOT / 'src'}"
    done = subprocess.run(
        command, cwd=directory, env={"PYTHONPATH": path, "PATH": ""}, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_pytest_finds_it_by_itself() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["entry-points"]["pytest11"] == {"holdfast": "holdfast.pytest_plugin"}


def test_loading_it_loads_nothing_else_of_holdfast() -> None:
    program = (
        "import sys, pytest; before = set(sys.modules); import holdfast.pytest_plugin; "
        "print(sorted({name.partition('.')[0] for name in set(sys.modules) - before}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env={"PYTHONPATH": str(ROOT / "src")}, capture_output=True, text=True
    )
    assert done.stdout == "['holdfast']\n", done.stdout + done.stderr


def test_the_programs_of_the_page_on_testing_run_as_they_are(tmp_path: Path) -> None:
    programs = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert len(programs) >= 2
    out = run_pytest(tmp_path, "\n\n".join(programs))
    assert re.search(rf"\b{sum(one.count('def test_') for one in programs)} passed\b", out), out


PAIRS = """
import holdfast, pytest

def destination(seen):
    app = holdfast.Destination()
    app.on("urn:a")(lambda message: seen.append(message.body.text))
    return app

def test_blocking(holdfast_pair, tmp_path):
    for number in range(2):
        seen = []
        with holdfast_pair(destination(seen)) as source:
            source.send(f"<n>{number}</n>", action="urn:a")
        assert seen == [str(number)]
    assert {one.name for one in (tmp_path / "holdfast").iterdir()} == {"source", "destination"}

@pytest.mark.asyncio
async def test_asynchronous(holdfast_pair):
    seen = []
    async with holdfast_pair(destination(seen)) as source:
        await source.send("<n>1</n>", action="urn:a")
    assert seen == ["1"]

def test_two_at_a_time(holdfast_pair, tmp_path):
    first, second = [], []
    with holdfast_pair(destination(first)) as one:
        with holdfast_pair(destination(second)) as other:
            other.send("<n>2</n>", action="urn:a")
        one.send("<n>1</n>", action="urn:a")
    with holdfast_pair(destination(first)) as again:
        assert again.next_offset() == 1
    assert (first, second) == (["1"], ["2"])
    assert {one.name for one in tmp_path.iterdir()} == {"holdfast", "holdfast-2"}

def test_options(holdfast_pair, tmp_path):
    with holdfast_pair(destination([]), store=tmp_path / "mine", assurance="at-least-once", patience=60):
        assert (tmp_path / "mine" / "source").is_dir()
"""


def test_the_fixture_gives_each_source_its_directory_and_takes_every_option(tmp_path: Path) -> None:
    pytest.importorskip("pytest_asyncio")
    assert "4 passed" in run_pytest(tmp_path, PAIRS)
