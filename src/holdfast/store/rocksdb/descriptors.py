"""The number of file descriptors that a store uses, so that the process can reserve them.

A store that cannot open its next log fails, and the endpoint then accepts no messages. So the store gets its
descriptors first.
"""

from __future__ import annotations

from typing import Final

MOST_TABLES: Final = 256
"""Maximum number of table files kept open; each read opens any other table again."""
FEWEST_TABLES: Final = 32
OTHER_FILES: Final = 48
"""Logs, the manifest, and files written while tables are merged."""


def open_tables(limit: int) -> int:
    """Return how many table files to keep open in a process that may have ``limit`` descriptors."""
    return max(FEWEST_TABLES, min(MOST_TABLES, limit // 4))


def store_needs(limit: int) -> int:
    """Return how many descriptors a store may use in a process that may have ``limit``."""
    return open_tables(limit) + OTHER_FILES


def soft_limit() -> int:
    """Return how many descriptors this process may have at present."""
    try:
        import resource
    except ImportError:  # not a POSIX system: it has no such limit
        return 1 << 20
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return 1 << 20 if soft == resource.RLIM_INFINITY else soft
