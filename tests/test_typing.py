"""The public names are typed so that a user's type checker finds mistakes, and nothing else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import holdfast
from holdfast.zeep import AsyncTransport, Transport
from typing import Any

app = holdfast.Destination()


@app.on("urn:a")
async def submit(message: holdfast.Message) -> None: ...


@app.on("urn:b")
def price(message: holdfast.Message, connection: Any) -> str:
    return "<price/>"


@app.on("urn:c")
def number(message: holdfast.Message) -> int:  # wrong: no body
    return 1


@app.on("urn:d")
def pair(message: holdfast.Message, other: str) -> None: ...  # wrong: an argument that nobody gives


@app.on("urn:e")
def of_text(message: str) -> None: ...  # wrong: it takes a message


async def main() -> None:
    await holdfast.Source.from_wsdl("service.wsdl", timeout=5.0, headers={"a": "b"})
    await holdfast.Source.from_wsdl("service.wsdl", timeuot=5.0)  # wrong: a name
    holdfast.sync.Source.from_wsdl("service.wsdl", timeout="5")  # wrong: a type


async def of_zeep(blocking: Transport, waiting: AsyncTransport) -> None:
    with waiting.call() as awaited:
        if awaited.sent is not None:
            await awaited.sent.acknowledged(60)
    with blocking.call() as call:
        if call.sent is not None:
            call.sent.acknowledged(60)
            await call.sent.acknowledged(60)  # wrong: it blocks
"""


@pytest.mark.nightly
def test_a_type_checker_finds_the_wrong_lines_of_a_program_and_no_other(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-color-output", f"--cache-dir={tmp_path / 'cache'}", program],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    errors = [line for line in checked.stdout.splitlines() if ": error:" in line]
    found = {int(line.split(":")[1]) for line in errors if "Unused" not in line}
    lines = PROGRAM.splitlines()
    wrong = {number for number, line in enumerate(lines, 1) if "# wrong" in line}
    # A decorated function's error stands at its decorator.
    assert {number if "# wrong" in lines[number - 1] else number + 1 for number in found} == wrong, checked.stdout
