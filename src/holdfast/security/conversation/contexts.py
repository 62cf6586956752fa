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


_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS holdfast_contexts (
    space text, identifier text, instance text, owner text, key bytea, until double precision, proof bytea,
    PRIMARY KEY (space, identifier, instance));
CREATE INDEX IF NOT EXISTS holdfast_contexts_owner ON holdfast_contexts (space, owner);
"""
_FORGET: Final = "DELETE FROM holdfast_contexts WHERE space = :space AND until < :expired"
_COUNT: Final = "SELECT count(*), count(CASE WHEN owner = :user THEN 1 END) FROM holdfast_contexts WHERE space = :space"
_ADD: Final = "INSERT INTO holdfast_contexts VALUES (:space, :identifier, :instance, :user, :key, :until, :proof)"
_DROP_OLD: Final = """
DELETE FROM holdfast_contexts WHERE space = :space AND identifier = :identifier AND instance NOT IN (
    SELECT instance FROM holdfast_contexts WHERE space = :space AND identifier = :identifier
    ORDER BY until DESC LIMIT :keys)
"""
"""The newest keys are the ones that expire last."""
_FIND: Final = """
SELECT identifier, instance, owner, key, until, proof FROM holdfast_contexts
WHERE space = :space AND identifier = :identifier AND instance = :instance
"""
_CANCEL: Final = "DELETE FROM holdfast_contexts WHERE space = :space AND identifier = :identifier"


class SecurityContexts:
    """Remembers the tokens until they expire or are cancelled. Several processes may share the place.

    Args:
        path: A file, created if absent; the URL of a PostgreSQL database; or None: memory, which a restart clears.
        most: Maximum number remembered.
        most_of_user: Maximum number remembered for one user.

    Raises:
        ConfigurationError: It cannot be opened.
    """

    def __init__(self, path: str | Path | None = None, most: int = MOST, most_of_user: int = MOST_OF_USER) -> None:
        self._most = most
        self._most_of_user = most_of_user
        self._db = open_database(path)

    def has_room(self, user: str, expired: float) -> bool:
        """Return whether a user can have another token. Those that expired before a time are forgotten."""
        ((total, of_user),) = self._db.run(_SCHEMA, _FORGET, _COUNT, user=user, expired=expired)
        return bool(total < self._most and of_user < self._most_of_user)

    def add(self, context: SecurityContext) -> None:
        """Remember a token, or another key of one; durable when it returns."""
        one = context
        names = {"identifier": one.identifier, "instance": one.instance, "user": one.user, "keys": KEYS}
        self._db.run(_SCHEMA, _ADD, _DROP_OLD, **names, key=one.key, until=one.until, proof=one.password_proof)

    def find(self, identifier: str, instance: str) -> SecurityContext | None:
        """Return a token with one of its keys, None if it is unknown. Check whether it has expired."""
        rows = self._db.run(_SCHEMA, _FIND, identifier=identifier, instance=instance)
        return SecurityContext(*rows[0]) if rows else None

    def cancel(self, identifier: str) -> None:
        """Forget a token with all its keys."""
        self._db.run(_SCHEMA, _CANCEL, identifier=identifier)
