"""On which processor a thread runs, where the system says so and lets it be chosen (Linux). Knows no store.

A thread that another one waits for runs best where that one did: what it needs is in that processor's caches, and no
other processor has to be woken for it, which costs as much as a quick disk's sync. Threads that it starts meanwhile
inherit its place, so they begin with :func:`run_anywhere`.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Callable
from typing import Final


def _find() -> Callable[[], int] | None:
    """Who says on which processor his caller runs; None where nobody does, or threads cannot be bound to one."""
    if not hasattr(os, "sched_setaffinity"):
        return None
    try:
        return ctypes.CDLL(None).sched_getcpu
    except (OSError, AttributeError):
        return None


_current: Final = _find()


class Place:
    """Where a thread may run; said by the one who waits for it.

    Args:
        thread: Its native id.
    """

    def __init__(self, thread: int) -> None:
        self._thread = thread
        self._bound_to = -1

    def here(self) -> None:
        """From now on it runs on the processor of whoever calls this."""
        if _current is not None and (processor := _current()) != self._bound_to:
            self._bind({processor})
            self._bound_to = processor

    def anywhere(self) -> None:
        """From now on it runs on any: its caller goes on with other things."""
        if self._bound_to >= 0:
            self._bind(os.sched_getaffinity(0))
            self._bound_to = -1

    def _bind(self, processors: set[int]) -> None:
        with contextlib.suppress(OSError):  # it has ended, or somebody forbids it: then it stays where it is
            os.sched_setaffinity(self._thread, processors)


def run_anywhere() -> None:
    """Let the calling thread run wherever the process may, whoever started it."""
    if _current is not None:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, os.sched_getaffinity(os.getpid()))
