"""The process's heap: gives back to the system what the C library keeps of it. Knows nothing of what was in it."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable
from functools import cache

MOST_ARENAS = 2
"""Heaps that the threads of the process share: each keeps what large buffers took, for the next ones."""

_M_ARENA_MAX = -8


@cache
def share_arenas() -> None:
    """Let the C library (glibc) give threads that begin from now on no heap of their own beyond a few.

    Left alone it makes eight for each core: sixty readers of large records left 200 MB in those of the threads that
    had read for them. Pages of their own for large buffers (M_MMAP_THRESHOLD) would cost four times the system's time.
    """
    with contextlib.suppress(AttributeError, OSError, TypeError):  # musl, macOS; Windows
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, MOST_ARENAS)


def give_back() -> None:
    """Let the C library return its free memory to the system, where it can be asked to (glibc); takes milliseconds.

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
