"""Waiting for what another task or process brings about."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any


async def until(condition: Callable[[], Any], patience: float | None = 240.0) -> None:
    """Let the loop run until ``condition`` holds.

    Args:
        condition: Looked at every few milliseconds.
        patience: Seconds; None: for as long as pytest gives the test.

    Raises:
        TimeoutError: it does not hold by then.
    """
    async with asyncio.timeout(patience):
        while not condition():
            await asyncio.sleep(0.005)
