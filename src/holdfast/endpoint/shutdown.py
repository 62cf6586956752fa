"""The time limit of a stop: a thread ends the process when the stop takes too long, and logs what it waited for."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Hashable
from time import monotonic
from typing import Final

from holdfast.endpoint.logs import log

LONGEST_STOP = 25.0
"""Seconds that a stop without progress may take, from the signal on. Kubernetes kills the process after 30."""
LONGEST_PROGRESS = 28.5
"""Seconds that a stop with progress may take."""
LONGEST_STILL = 3.0
"""Seconds without a change after which a stop makes no progress."""
_LOOK_SECONDS: Final = 0.1


class Shutdown:
    """Ends the process with exit code 1 when its stop takes too long.

    A separate thread watches the stop, because whatever delays the stop may hold up the event loop too.

    Args:
        progress: Called in that thread. Any change of what it returns is progress.
        waits_for: Called in that thread: what the stop waits for, in words.
    """

    def __init__(self, progress: Callable[[], Hashable], waits_for: Callable[[], str]) -> None:
        self._progress = progress
        self._waits_for = waits_for
        self._done = threading.Event()
        self.thread = threading.Thread(target=self._watch, name="holdfast-shutdown", daemon=True)

    def begin(self) -> None:
        """Start to count: the signal came."""
        self.thread.start()

    def done(self) -> None:
        """End the watch: the stop is complete."""
        self._done.set()

    def _watch(self) -> None:
        began = changed = monotonic()
        seen = self._progress()
        while not self._done.wait(_LOOK_SECONDS):
            now = monotonic()
            if (found := self._progress()) != seen:
                seen, changed = found, now
            if is_too_long(now - began, now - changed):
                log.error(
                    "stop.cut_short",
                    waiting_for=self._waits_for(),
                    seconds=round(now - began, 1),
                    remedy="Every acknowledged message is stored: start again",
                )
                os._exit(1)


def is_too_long(seconds: float, still: float) -> bool:
    """Whether to end the process now.

    Args:
        seconds: Since the signal.
        still: Seconds since the stop last made progress.
    """
    return seconds >= LONGEST_STOP and (still >= LONGEST_STILL or seconds >= LONGEST_PROGRESS)
