"""The process's heap: gives back to the system what the C library keeps of it. Knows nothing of what was in it."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
from collections.abc import Callable, Iterable
from functools import cache

from holdfast.core.records import Record

MOST_ARENAS = 2
"""Heaps that the threads of the process share: each keeps what large buffers took, for the next ones."""

LARGE = 1024 * 1024
"""Bytes of an envelope or a record from which it counts as large."""

SETTLED = 2.0
"""Seconds without large envelopes and records after which the process returns memory: by then they are stored."""

_M_ARENA_MAX = -8


class Heap:
    """Returns memory to the system once large envelopes and records are no longer in use. Use it in one event loop."""

    def __init__(self) -> None:
        self._last = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def used(self) -> None:
        """Note that large buffers are in use, or were a moment ago."""
        loop = asyncio.get_running_loop()
        self._last = loop.time()
        if self._timer is None:
            self._timer = loop.call_later(SETTLED, self._look)

    def saw(self, records: Iterable[tuple[int, Record]]) -> None:
        """Note the records that were read, if one of them is large."""
        if any(len(record.body) + len(record.attachments) >= LARGE for _, record in records):
            self.used()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        left = self._last + SETTLED - loop.time()
        if left > 0:
            self._timer = loop.call_later(left, self._look)
            return
        self._timer = None
        # In a thread, which leaves the interpreter lock to the loop meanwhile.
        loop.run_in_executor(None, give_back)


@cache
def share_arenas() -> None:
    """Limit the number of heaps that the C library (glibc) creates for threads that start from now on.

    Left alone it makes eight for each core: sixty readers of large records left 200 MB in those of the threads that
    had read for them. Pages of their own for large buffers (M_MMAP_THRESHOLD) would cost four times the system's time.
    """
    with contextlib.suppress(AttributeError, OSError, TypeError):  # musl, macOS; Windows
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, MOST_ARENAS)


def give_back() -> None:
    """Return free memory of the C library to the system, if it is glibc. Takes milliseconds.

    Left alone glibc keeps what large buffers took: it learns from the first ones that such are used again.
    """
    trim = _trim()
    if trim is not None:
        trim(0)


@cache
def _trim() -> Callable[[int], int] | None:
    try:
        trim: Callable[[int], int] = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):  # musl, macOS; Windows
        return None
    return trim
