"""The processor of a thread, where the system reports it and lets a program choose it (Linux). Independent of stores.

If one thread waits for another, the other runs best on the same processor. The data is in that processor's caches, and
the system need not wake another processor, which costs as much as a quick disk's sync. Threads that it starts meanwhile
inherit its processor, so they begin with :func:`run_anywhere`.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Callable
from typing import Final


def _find() -> Callable[[], int] | None:
    """Return a function that reports its caller's processor; None if the system has none, or cannot bind threads."""
    if not hasattr(os, "sched_setaffinity"):
        return None
    try:
        return ctypes.CDLL(None).sched_getcpu
    except (OSError, AttributeError):
        return None


_current: Final = _find()


class Place:
    """The processor of a thread, chosen by the thread that waits for it."""

    def __init__(self, thread: int) -> None:
        self._thread = thread
        self._bound_to = -1

    def here(self) -> None:
        """Run the thread on the caller's processor from now on."""
        if _current is not None and (processor := _current()) != self._bound_to:
            self._bind({processor})
            self._bound_to = processor

    def anywhere(self) -> None:
        """Run the thread on any processor from now on: its caller continues with other work."""
        if self._bound_to >= 0:
            self._bind(os.sched_getaffinity(0))
            self._bound_to = -1

    def _bind(self, processors: set[int]) -> None:
        with contextlib.suppress(OSError):  # it has ended, or binding is not permitted: then nothing changes
            os.sched_setaffinity(self._thread, processors)


def run_anywhere() -> None:
    """Let the calling thread run on every processor of the process, whichever thread started it."""
    if _current is not None:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, os.sched_getaffinity(os.getpid()))
