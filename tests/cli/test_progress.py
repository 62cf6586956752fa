"""Progress: a moving line on a terminal, now and then a new one in a log, and the last word in both."""

from __future__ import annotations

import asyncio
import io
import os
import pty
import sys

import pytest

from holdfast.cli import progress as shown
from holdfast.cli.progress import Shown, progress


async def test_a_log_gets_a_line_when_there_is_news_and_one_at_the_end(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(shown, "LOG_INTERVAL", 0.0)
    looks = 0

    def look() -> Shown:
        nonlocal looks
        looks += 1
        return Shown("1 stored" if looks < 20 else "2 stored")

    async with progress(look):
        while looks < 40:
            await asyncio.sleep(0)
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(" ", 1)[-1] for line in lines[:-1]] == ["1 stored", "2 stored"]
    assert lines[-1] == "2 stored"


async def test_a_terminal_gets_a_bar_that_is_gone_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shown, "TERMINAL_INTERVAL", 0.0)
    monkeypatch.setenv("TERM", "xterm")
    primary, secondary = pty.openpty()
    terminal = io.TextIOWrapper(os.fdopen(secondary, "wb"), write_through=True)
    monkeypatch.setattr(sys, "stderr", terminal)
    looks = 0

    def look() -> Shown:
        nonlocal looks
        looks += 1
        return Shown(f"{looks} stored", looks, 50)

    async with progress(look):
        while looks < 50:
            await asyncio.sleep(0)
    last = f"{looks} stored"
    monkeypatch.undo()
    terminal.close()
    written = b""
    while True:
        try:
            piece = os.read(primary, 65536)
        except OSError:
            break
        if not piece:
            break
        written += piece
    os.close(primary)
    text = written.decode()
    assert "\x1b[2K" in text, "the bar's line is erased"
    assert text.rstrip().endswith(last)


async def test_an_error_inside_comes_through_after_the_last_word(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(LookupError):
        async with progress(lambda: Shown("so far")):
            raise LookupError
    assert capsys.readouterr().err == "so far\n"
