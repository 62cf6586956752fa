"""The file in which a validator remembers: nonces, and security sessions with their keys."""

from __future__ import annotations

import os
import sqlite3
import time
from pathlib import Path
from typing import Final

from holdfast.exceptions import ConfigurationError

_PATIENCE: Final = 5.0
"""Seconds to wait for other processes that use the file."""


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
        db = sqlite3.connect(path or ":memory:", isolation_level=None, check_same_thread=False, timeout=_PATIENCE)
        _write_ahead(db)
        return db
    except (sqlite3.Error, OSError) as error:
        raise ConfigurationError(
            f"nonces={str(path)!r} cannot be opened: {error}",
            remedy="Give the path of a file in a directory that exists and that this process may write to.",
        ) from None


def _write_ahead(db: sqlite3.Connection) -> None:
    """Switch to write-ahead logging. If another process does so at this moment, SQLite fails at once: try again."""
    until = time.monotonic() + _PATIENCE
    while True:
        try:
            db.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError:
            if time.monotonic() > until:
                raise
            time.sleep(0.01)
