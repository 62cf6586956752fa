"""The file in which a validator remembers: nonces, and security sessions with their keys."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

from holdfast.exceptions import ConfigurationError


def open_database(path: str | Path | None) -> sqlite3.Connection:
    """Open a file that several processes may share, created if absent; None: memory.

    Raises:
        ConfigurationError: It cannot be opened.
    """
    try:
        if path is not None:
            # SQLite gives its other files the permissions of this one.
            os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        # One thread at a time processes messages, but not always the thread that opened the file: see sync.Source.
        db = sqlite3.connect(path or ":memory:", isolation_level=None, check_same_thread=False, timeout=5.0)
        db.execute("PRAGMA journal_mode=WAL")
        return db
    except (sqlite3.Error, OSError) as error:
        raise ConfigurationError(
            f"nonces={str(path)!r} cannot be opened: {error}",
            remedy="Give the path of a file in a directory that exists and that this process may write to.",
        ) from None
