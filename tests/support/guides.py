"""Programs and commands of the how-to guides, run as they stand."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import IO

ROOT = Path(__file__).resolve().parent.parent.parent
GUIDES = ROOT / "docs" / "how-to"
BLOCK = re.compile(r"^( *)```(\w+)\n(.*?)^\1```", re.MULTILINE | re.DOTALL)


def blocks(guide: str, language: str) -> list[str]:
    """The blocks of a guide in a language, without their indents in the steps of a list."""
    found = BLOCK.findall((GUIDES / guide).read_text(encoding="utf-8"))
    return [dedent(text) for _, one, text in found if one == language]


def environment() -> dict[str, str]:
    paths = [str(ROOT / "src"), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1", "PYTHONUTF8": "1"}


def done(place: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python in a directory to its end."""
    return subprocess.run(
        [sys.executable, *arguments], cwd=place, env=environment(), capture_output=True, text=True, timeout=240
    )


def run(place: Path, *arguments: str) -> str:
    """Run Python in a directory, and return what it prints."""
    ended = done(place, *arguments)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@contextlib.contextmanager
def served(place: Path, command: str) -> Iterator[tuple[str, IO[str]]]:
    """Run a guide's ``holdfast serve`` in a directory, at a free port; its URL, and what it prints after that."""
    process = subprocess.Popen(
        [sys.executable, "-m", "holdfast", *command.replace("8080", "0").split()[1:]],
        cwd=place,
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        yield process.stdout.readline().rpartition(" ")[2].strip(), process.stdout
    finally:
        process.terminate()
        process.communicate(timeout=60)
