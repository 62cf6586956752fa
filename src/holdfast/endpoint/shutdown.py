"""The time limit of a stop: a thread ends the process when the stop takes too long, and logs what it waited for.

A stop that abandoned handlers ends the process in the same way, because their threads cannot be ended otherwise."""

from __future__ import annotations

import contextlib
import os
import sys
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
                end_process(self._waits_for(), now - began)


def end_process(waiting_for: str, seconds: float) -> None:
    """End the process with exit code 1, as a kill would, and log why.

    Args:
        waiting_for: What the stop does not wait for any longer.
        seconds: How long the stop has taken.
    """
    log.error(
        "stop.cut_short",
        waiting_for=waiting_for,
        seconds=round(seconds, 1),
        remedy="Start again: acknowledged messages are stored; at most once, those of running handlers are lost",
    )
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(1)


def is_too_long(seconds: float, still: float) -> bool:
    """Whether to end the process now.

    Args:
        seconds: Since the signal.
        still: Seconds since the stop last made progress.
    """
    return seconds >= LONGEST_STOP and (still >= LONGEST_STILL or seconds >= LONGEST_PROGRESS)
