"""Standard streams that are closed, or full: an exit code of 1 and one line, never a traceback or an abort."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import product
from pathlib import Path
from typing import Any

import pytest

import holdfast

SOURCE = str(Path(holdfast.__file__).parents[1])
WRITING = {
    "help": ["--help"],
    "version": ["--version"],
    "help of a command": ["send", "--help"],
    "queues": ["queues", "{store}"],
    "queues as JSON": ["queues", "{store}", "--json"],
    "an error as JSON": ["queues", "nowhere/", "--json"],
    "broker check": ["broker", "check", "{config}"],
    "send as JSON": ["send", "--to", "{url}", "--json", "{body}"],
    "send a request": ["send", "--to", "{url}", "--action", "urn:price", "--request", "{body}"],
    "receive": ["receive", "--port", "0", "--store", "received"],
}
"""Commands that write to standard output."""
REDIRECTIONS = (">&-", ">/dev/full")


@pytest.fixture
def values(served: Any, tmp_path: Path) -> dict[str, str]:
    """What the commands name."""
    (tmp_path / "body.xml").write_text("<a/>")
    (tmp_path / "broker.toml").write_text('store = "queues"\n')
    return {
        "store": str(tmp_path / "served"),
        "config": str(tmp_path / "broker.toml"),
        "body": str(tmp_path / "body.xml"),
        "url": served.url,
    }


def shell(command: list[str], values: dict[str, str], redirection: str, directory: Path, **more: str) -> Any:
    words = [sys.executable, "-m", "holdfast", *(word.format_map(values) for word in command)]
    environment = os.environ | {"PYTHONPATH": SOURCE} | more
    script = ["sh", "-c", f'exec "$@" {redirection}', "sh", *words]
    return subprocess.run(script, cwd=directory, env=environment, capture_output=True, text=True, timeout=120)


# By default each command runs once, and its neighbours with another state of the output, or another kind of buffer.
# Each run takes half a second of processor time.
@pytest.mark.parametrize("has_all", [False, pytest.param(True, marks=pytest.mark.nightly)], ids=["some", "all"])
@pytest.mark.parametrize("redirection", REDIRECTIONS)
def test_a_command_that_cannot_write_its_output_says_so_in_one_line(
    values: dict[str, str], tmp_path: Path, redirection: str, has_all: bool
) -> None:
    for (at, (name, command)), unbuffered in product(enumerate(WRITING.items()), "01"):
        if not has_all and at % 4 != 2 * REDIRECTIONS.index(redirection) + int(unbuffered):
            continue
        result = shell(command, values, redirection, tmp_path, PYTHONUNBUFFERED=unbuffered.strip("0"))
        assert result.returncode == 1, (name, result)
        said = [line for line in result.stderr.splitlines() if line.startswith("holdfast: cannot write to standard ")]
        assert len(said) == 1, (name, result.stderr)
        assert "Traceback" not in result.stderr and "Exception ignored" not in result.stderr, (name, result.stderr)


@pytest.mark.every(5)
@pytest.mark.parametrize("closed", ["<&-", "2>&-", "2>/dev/full", "<&- 2>&-"])
@pytest.mark.parametrize("name", ["version", "queues", "send as JSON"])
def test_a_closed_input_or_error_stream_does_not_disturb_a_command(
    values: dict[str, str], tmp_path: Path, closed: str, name: str
) -> None:
    result = shell(WRITING[name], values, closed, tmp_path)
    assert result.returncode == 0, result
    assert result.stdout


def test_a_command_without_output_needs_no_standard_stream(values: dict[str, str], tmp_path: Path) -> None:
    result = shell(["send", "--to", "{url}", "{body}"], values, "<&- >&- 2>&-", tmp_path)
    assert result.returncode == 0
