"""Nonces: the ones seen lately. A token cannot be used twice, not even after a restart."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Final

from holdfast.security.database import open_database

MOST: Final = 1_000_000
"""Maximum number of nonces remembered: those of 3,000 messages a second for five minutes."""
_FORGET_EVERY: Final = 10.0
"""Seconds between two deletions of expired nonces."""


class Nonces:
    """Remembers nonces until they expire. Several processes may share a file.

    Args:
        path: A file for them, created if absent; None: memory, which a restart clears.
        most: Maximum number remembered. A full memory refuses every token, as it must not forget early.

    Raises:
        ConfigurationError: The file cannot be opened.
    """

    def __init__(self, path: str | Path | None = None, most: int = MOST) -> None:
        self._most = most
        self._forgot_at = 0.0
        self._lock = threading.Lock()
        self._db = open_database(path)
        # A power failure may lose the last seconds, the end of the process nothing.
        self._db.execute("PRAGMA synchronous=NORMAL")
        self._db.execute("CREATE TABLE IF NOT EXISTS nonces (nonce BLOB PRIMARY KEY, until REAL) WITHOUT ROWID")
        self._db.execute("CREATE INDEX IF NOT EXISTS nonces_until ON nonces (until)")
        self._count: int = self._db.execute("SELECT count(*) FROM nonces").fetchone()[0]

    @property
    def is_full(self) -> bool:
        """Whether there is no room for another nonce."""
        return self._count >= self._most

    def is_new(self, nonce: bytes, until: float, now: float) -> bool:
        """Remember a nonce until a time; return False if it is known, or there is no room for it."""
        with self._lock:
            if now - self._forgot_at >= _FORGET_EVERY:
                self._forgot_at = now
                self._db.execute("DELETE FROM nonces WHERE until < ?", (now,))
                self._count = self._db.execute("SELECT count(*) FROM nonces").fetchone()[0]
            if self.is_full:
                return False
            added = self._db.execute("INSERT OR IGNORE INTO nonces VALUES (?, ?)", (nonce, until)).rowcount == 1
            self._count += added
            return added

    def knows(self, nonce: bytes) -> bool:
        """Return whether a nonce is remembered."""
        with self._lock:
            return self._db.execute("SELECT 1 FROM nonces WHERE nonce = ?", (nonce,)).fetchone() is not None
