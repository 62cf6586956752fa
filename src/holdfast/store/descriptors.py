"""How many file descriptors a store uses, so that the rest of the process can reserve them.

A store that cannot open its next log fails, and the endpoint then accepts nothing: so the store comes first.
"""

from __future__ import annotations

from typing import Final

MOST_TABLES: Final = 256
"""Table files kept open; others are opened again for each read."""
FEWEST_TABLES: Final = 32
OTHER_FILES: Final = 48
"""Logs, the manifest, and what is written while tables are merged."""


def open_tables(limit: int) -> int:
    """Table files to keep open where a process may have ``limit`` descriptors."""
    return max(FEWEST_TABLES, min(MOST_TABLES, limit // 4))


def store_needs(limit: int) -> int:
    """Descriptors that a store may take where a process may have ``limit``."""
    return open_tables(limit) + OTHER_FILES


def soft_limit() -> int:
    """Descriptors that this process may have at present."""
    try:
        import resource
    except ImportError:  # not a POSIX system: there is no such limit
        return 1 << 20
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return 1 << 20 if soft == resource.RLIM_INFINITY else soft
