"""Nonces: the ones seen lately. A token cannot be used twice, not even after a restart or at another node."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path
from typing import Final, Protocol

from holdfast.security.database import FileDatabase, open_database
from holdfast.store.address import is_sql

MOST: Final = 1_000_000
"""Maximum number of nonces remembered: those of 3,000 messages a second for five minutes."""
MOST_SHARED: Final = 250_000
"""Maximum number of nonces that one process adds to a shared database before they expire."""
_FORGET_EVERY: Final = 10.0
"""Seconds between two deletions of expired nonces."""


class Nonces(Protocol):
    """Remembers nonces until they expire."""

    @property
    def is_full(self) -> bool:
        """Whether there is no room for another nonce."""
        ...

    def is_new(self, nonce: bytes, until: float, now: float) -> bool:
        """Remember a nonce until a time; return False if it is known, or there is no room for it.

        Raises:
            MessageFlowError: The database does not answer.
        """
        ...

    def knows(self, nonce: bytes) -> bool:
        """Return whether a nonce is remembered.

        Raises:
            MessageFlowError: The database does not answer.
        """
        ...


def open_nonces(place: str | Path | None) -> Nonces:
    """Return the memory in a file, created if absent; at the URL of a PostgreSQL database; or in memory (None), which a
    restart clears. Several processes may share it.

    Raises:
        ConfigurationError: It cannot be opened.
    """
    return SharedNonces(str(place)) if is_sql(place) else FileNonces(place)


class FileNonces:
    """Nonces in a file.

    Args:
        path: The file; None: memory.
        most: Maximum number remembered. A full memory refuses every token, as it must not forget early.

    Raises:
        ConfigurationError: The file cannot be opened.
    """

    def __init__(self, path: str | Path | None = None, most: int = MOST) -> None:
        self._most = most
        self._forgot_at = 0.0
        self._lock = threading.Lock()
        self._db = FileDatabase(path).connection
        # A power failure may lose the last seconds, the end of the process nothing.
        self._db.execute("PRAGMA synchronous=NORMAL")
        self._db.execute("CREATE TABLE IF NOT EXISTS nonces (nonce BLOB PRIMARY KEY, until REAL) WITHOUT ROWID")
        self._db.execute("CREATE INDEX IF NOT EXISTS nonces_until ON nonces (until)")
        self._count: int = self._db.execute("SELECT count(*) FROM nonces").fetchone()[0]

    @property
    def is_full(self) -> bool:
        """See :class:`Nonces`."""
        return self._count >= self._most

    def is_new(self, nonce: bytes, until: float, now: float) -> bool:
        """See :class:`Nonces`."""
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
        """See :class:`Nonces`."""
        with self._lock:
            return self._db.execute("SELECT 1 FROM nonces WHERE nonce = ?", (nonce,)).fetchone() is not None


_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS holdfast_nonces (
    space text, nonce bytea, until double precision NOT NULL, PRIMARY KEY (space, nonce));
CREATE INDEX IF NOT EXISTS holdfast_nonces_until ON holdfast_nonces (space, until);
"""
_KEPT: Final = "extract(epoch FROM now()) - 660"
_TAKEN: Final = "extract(epoch FROM now()) - 600"
"""A nonce is deleted eleven minutes after it expired, and one that expired ten minutes ago is never new. Both by the
clock of the database: so a node whose clock is wrong accepts no token twice."""
_ADD: Final = f"""
WITH expired AS (
    SELECT nonce FROM holdfast_nonces WHERE space = :space AND until < {_KEPT}
    ORDER BY until LIMIT 2 FOR UPDATE SKIP LOCKED),
gone AS (DELETE FROM holdfast_nonces n USING expired e WHERE n.space = :space AND n.nonce = e.nonce)
INSERT INTO holdfast_nonces
SELECT :space, :nonce, :until WHERE :until >= {_TAKEN} AND set_config('synchronous_commit', 'off', true) = 'off'
ON CONFLICT DO NOTHING RETURNING 1
"""
"""Each nonce deletes two that have expired, so no call takes long. The commit does not wait for the disk: if the server
crashes, it may lose the last second."""
_KNOWS: Final = "SELECT 1 FROM holdfast_nonces WHERE space = :space AND nonce = :nonce"


class SharedNonces:
    """Nonces in a database that several hosts share.

    Args:
        location: The URL of the database.
        most: Maximum number that this process adds before they expire.

    Raises:
        ConfigurationError: The location is not a URL of PostgreSQL.
    """

    def __init__(self, location: str, most: int = MOST_SHARED) -> None:
        self._most = most
        self._db = open_database(location)
        self._lock = threading.Lock()
        self._added: Counter[int] = Counter()
        """Number of the interval in which nonces expire -> how many of this process do."""

    @property
    def is_full(self) -> bool:
        """See :class:`Nonces`."""
        return self._added.total() >= self._most

    def is_new(self, nonce: bytes, until: float, now: float) -> bool:
        """See :class:`Nonces`."""
        with self._lock:
            for expired in [one for one in self._added if (one + 1) * _FORGET_EVERY < now]:
                del self._added[expired]
            if self.is_full:
                return False
            added = bool(self._db.run(_SCHEMA, _ADD, nonce=nonce, until=until))
            self._added[int(until // _FORGET_EVERY)] += added
            return added

    def knows(self, nonce: bytes) -> bool:
        """See :class:`Nonces`."""
        return bool(self._db.run(_SCHEMA, _KNOWS, nonce=nonce))
