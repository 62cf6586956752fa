"""SourceTokens: the tokens of a source, with their keys, and what each of them is for.

They outlive a restart of the process: a Sequence belongs to the token under which it was created.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from holdfast.security.conversation.token_requests import Granted
from holdfast.security.database import open_database


@dataclass(frozen=True, slots=True)
class SourceToken:
    """A token of a source.

    Args:
        trust: The namespace of WS-Trust in which it was issued.
        identifier: Its name.
        instance: Which of its keys; "" for the first.
        key: The key.
        life: Seconds for which this key was granted.
        until: When it expires, in seconds since 1970, by the clock of this host.
    """

    trust: str
    identifier: str
    instance: str
    key: bytes
    life: float
    until: float


class SourceTokens:
    """Remembers tokens until they expire or are forgotten. Each may be for several things.

    Args:
        path: The file, created if absent; None: memory, which a restart clears.

    Raises:
        ConfigurationError: The file cannot be opened.
    """

    def __init__(self, path: str | Path | None = None) -> None:
        self._db = open_database(path)
        # The service counts this token for a Sequence from now on, also after a power failure here.
        self._db.execute("PRAGMA synchronous=FULL")
        self._db.execute(
            "CREATE TABLE IF NOT EXISTS source_tokens (identifier TEXT PRIMARY KEY, trust TEXT, instance TEXT, "
            "key BLOB, life REAL, until REAL) WITHOUT ROWID"
        )
        self._db.execute("CREATE TABLE IF NOT EXISTS source_uses (use TEXT PRIMARY KEY, identifier TEXT) WITHOUT ROWID")
        self._db.execute("CREATE INDEX IF NOT EXISTS source_uses_token ON source_uses (identifier)")

    def find(self, use: str, now: float) -> SourceToken | None:
        """Return the token for a use, None without one or after it has expired."""
        row = self._db.execute(
            "SELECT trust, identifier, instance, key, life, until FROM source_uses JOIN source_tokens "
            "USING (identifier) WHERE use = ? AND until > ?",
            (use, now),
        ).fetchone()
        return None if row is None else SourceToken(*row)

    def keep(self, trust: str, granted: Granted, now: float) -> None:
        """Remember a token, or its new key, durably; forget those that have expired."""
        expired = "SELECT identifier FROM source_tokens WHERE until <= ?"
        self._db.execute("BEGIN IMMEDIATE")
        self._db.execute(f"DELETE FROM source_uses WHERE identifier IN ({expired})", (now,))
        self._db.execute("DELETE FROM source_tokens WHERE until <= ?", (now,))
        self._db.execute(
            "INSERT OR REPLACE INTO source_tokens VALUES (?, ?, ?, ?, ?, ?)",
            (granted.identifier, trust, granted.instance, granted.key, granted.life, now + granted.life),
        )
        self._db.execute("COMMIT")

    def use(self, use: str, identifier: str) -> None:
        """Remember what a token is for, durably."""
        self._db.execute("INSERT OR REPLACE INTO source_uses VALUES (?, ?)", (use, identifier))

    def forget(self, identifier: str) -> None:
        """Forget a token with all its uses."""
        self._db.execute("DELETE FROM source_uses WHERE identifier = ?", (identifier,))
        self._db.execute("DELETE FROM source_tokens WHERE identifier = ?", (identifier,))
