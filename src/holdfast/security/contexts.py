"""Security contexts: the tokens that were issued, and their keys.

They outlive a restart of the process: without them every session would end with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from holdfast.security.database import open_database

MOST: Final = 100_000
"""Maximum number of tokens that count."""
MOST_OF_USER: Final = 10_000
"""Maximum number of tokens of one user. A WCF client has one for each open channel."""
KEYS: Final = 2
"""Maximum number of keys of one token: its client uses the old one until it has the new one."""


@dataclass(frozen=True, slots=True)
class SecurityContext:
    """A token of WS-SecureConversation, with one of its keys.

    Args:
        identifier: Its name, an unguessable URI.
        instance: Which of its keys: "" for the first, else the name that a renewal gave it.
        user: Who proved a password for it.
        key: The key that client and server share.
        until: When it expires, in seconds since 1970.
        password_proof: Proves that the user's password is still the same; b"" if that cannot be checked.
    """

    identifier: str
    instance: str
    user: str
    key: bytes
    until: float
    password_proof: bytes = b""


class SecurityContexts:
    """Remembers the tokens until they expire or are cancelled. Several processes may share the file.

    Args:
        path: The file, created if absent; None: memory, which a restart clears.
        most: Maximum number remembered.
        most_of_user: Maximum number remembered for one user.

    Raises:
        ConfigurationError: The file cannot be opened.
    """

    def __init__(self, path: str | Path | None = None, most: int = MOST, most_of_user: int = MOST_OF_USER) -> None:
        self._most = most
        self._most_of_user = most_of_user
        self._db = open_database(path)
        # A client that has its token must find it here, also after a power failure.
        self._db.execute("PRAGMA synchronous=FULL")
        self._db.execute(
            "CREATE TABLE IF NOT EXISTS contexts (identifier TEXT, instance TEXT, user TEXT, key BLOB, until REAL, "
            "proof BLOB, PRIMARY KEY (identifier, instance)) WITHOUT ROWID"
        )
        self._db.execute("CREATE INDEX IF NOT EXISTS contexts_user ON contexts (user)")

    def has_room(self, user: str, now: float) -> bool:
        """Return whether a user can have another token. Expired ones are forgotten."""
        self._db.execute("DELETE FROM contexts WHERE until < ?", (now,))
        total = self._db.execute("SELECT count(*) FROM contexts").fetchone()[0]
        of_user = self._db.execute("SELECT count(*) FROM contexts WHERE user = ?", (user,)).fetchone()[0]
        return bool(total < self._most and of_user < self._most_of_user)

    def add(self, context: SecurityContext) -> None:
        """Remember a token, or another key of one; durable when it returns."""
        one = context
        values = (one.identifier, one.instance, one.user, one.key, one.until, one.password_proof)
        self._db.execute("INSERT INTO contexts VALUES (?, ?, ?, ?, ?, ?)", values)
        # The newest keys are the ones that expire last.
        self._db.execute(
            "DELETE FROM contexts WHERE identifier = ? AND instance NOT IN "
            "(SELECT instance FROM contexts WHERE identifier = ? ORDER BY until DESC LIMIT ?)",
            (one.identifier, one.identifier, KEYS),
        )

    def find(self, identifier: str, instance: str) -> SecurityContext | None:
        """Return a token with one of its keys, None if it is unknown. Check whether it has expired."""
        row = self._db.execute(
            "SELECT * FROM contexts WHERE identifier = ? AND instance = ?", (identifier, instance)
        ).fetchone()
        return None if row is None else SecurityContext(*row)

    def cancel(self, identifier: str) -> None:
        """Forget a token with all its keys."""
        self._db.execute("DELETE FROM contexts WHERE identifier = ?", (identifier,))
