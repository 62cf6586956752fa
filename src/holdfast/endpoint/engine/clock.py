"""The clock of an endpoint."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol


class Clock:
    """Seconds since 1970 that never go back and never jump while the process runs, whatever the wall clock does.

    Tests put one of their own in its place (``holdfast.testing.pair``).

    Args:
        offset: Seconds from ``time.monotonic()`` to the time; None: the wall clock is right now.
    """

    def __init__(self, offset: float | None = None) -> None:
        self._offset = time.time() - time.monotonic() if offset is None else offset

    def __call__(self) -> float:
        return time.monotonic() + self._offset

    def call_at(self, when: float, callback: Callable[[], None]) -> Cancellable:
        """Make the call in the running loop when it is ``when``, or soon if that is past."""
        # The loop's clock and ours tick alike: both are the machine's monotonic one.
        return asyncio.get_running_loop().call_later(max(0.0, when - self()), callback)


class Cancellable(Protocol):
    """A scheduled call that can be cancelled."""

    def cancel(self) -> None:
        """Call it off."""
        ...
