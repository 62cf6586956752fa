"""The process's heap: gives back to the system what the C library keeps of it. Knows nothing of what was in it."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache


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
