"""Progress on standard error: a line that moves on a terminal, a new line every few seconds elsewhere."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

LOG_INTERVAL = 5.0
TERMINAL_INTERVAL = 0.1


@dataclass(frozen=True, slots=True)
class Shown:
    """The visible progress.

    Args:
        text: The progress in words; "" before there is any.
        done, total: The progress as a bar; total None: unknown.
    """

    text: str
    done: int = 0
    total: int | None = None


@contextlib.asynccontextmanager
async def progress(look: Callable[[], Shown]) -> AsyncIterator[None]:
    """Show what ``look`` tells while the block runs, and once more at its end."""
    show = _on_terminal if sys.stderr.isatty() else _in_log
    task = asyncio.ensure_future(show(look))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        if text := look().text:
            print(text, file=sys.stderr, flush=True)


async def _in_log(look: Callable[[], Shown]) -> None:
    told = ""
    while True:
        await asyncio.sleep(LOG_INTERVAL)
        text = look().text
        if text != told:
            told = text
            print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


async def _on_terminal(look: Callable[[], Shown]) -> None:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(24), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        shown = look()
        task = bar.add_task(shown.text, total=shown.total, completed=shown.done)
        while True:
            await asyncio.sleep(TERMINAL_INTERVAL)
            shown = look()
            bar.update(task, description=shown.text, total=shown.total, completed=shown.done)
