"""SourceTokens: the tokens of a source, with their keys, and what each of them is for.

They outlive a restart of the process: a Sequence belongs to the token under which it was created.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from holdfast.security.conversation.token_requests import Granted
from holdfast.security.database import open_database


@dataclass(frozen=True, slots=True)
class SourceToken:
    """A token of a source.

    Args:
        trust: The namespace of WS-Trust in which it was issued.
        identifier: Its name.
        instance: Which of its keys; "" for the first.
        life: Seconds for which this key was granted.
        until: When it expires, in seconds since 1970, by the clock of this host.
    """

    trust: str
    identifier: str
    instance: str
    key: bytes
    life: float
    until: float


_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS holdfast_source_tokens (
    space text, identifier text, trust text, instance text, key bytea, life double precision, until double precision,
    PRIMARY KEY (space, identifier));
CREATE TABLE IF NOT EXISTS holdfast_source_uses (
    space text, usage text, identifier text, PRIMARY KEY (space, usage));
CREATE INDEX IF NOT EXISTS holdfast_source_uses_token ON holdfast_source_uses (space, identifier);
"""
_FIND: Final = """
SELECT t.trust, t.identifier, t.instance, t.key, t.life, t.until
FROM holdfast_source_uses u JOIN holdfast_source_tokens t ON t.space = u.space AND t.identifier = u.identifier
WHERE u.space = :space AND u.usage = :usage AND t.until > :now
"""
_FORGET_USES: Final = """
DELETE FROM holdfast_source_uses WHERE space = :space AND identifier IN (
    SELECT identifier FROM holdfast_source_tokens WHERE space = :space AND until <= :now)
"""
_FORGET_TOKENS: Final = "DELETE FROM holdfast_source_tokens WHERE space = :space AND until <= :now"
_KEEP: Final = """
INSERT INTO holdfast_source_tokens VALUES (:space, :identifier, :trust, :instance, :key, :life, :until)
ON CONFLICT (space, identifier) DO UPDATE SET trust = excluded.trust, instance = excluded.instance, key = excluded.key,
    life = excluded.life, until = excluded.until
"""
_USE: Final = """
INSERT INTO holdfast_source_uses VALUES (:space, :usage, :identifier)
ON CONFLICT (space, usage) DO UPDATE SET identifier = excluded.identifier
"""
_DROP_USES: Final = "DELETE FROM holdfast_source_uses WHERE space = :space AND identifier = :identifier"
_DROP_TOKEN: Final = "DELETE FROM holdfast_source_tokens WHERE space = :space AND identifier = :identifier"


class SourceTokens:
    """Remembers tokens until they expire or are forgotten. Each may be for several things.

    Args:
        path: A file, created if absent; the URL of a PostgreSQL database; or None: memory, which a restart clears.

    Raises:
        ConfigurationError: It cannot be opened.
    """

    def __init__(self, path: str | Path | None = None) -> None:
        self._db = open_database(path, "tokens", "The database of tokens= does not answer.")

    def find(self, use: str, now: float) -> SourceToken | None:
        """Return the token for a use, None without one or after it has expired."""
        rows = self._db.run(_SCHEMA, _FIND, usage=use, now=now)
        if not rows:
            return None
        trust, identifier, instance, key, life, until = rows[0]
        return SourceToken(trust, identifier, instance, key, life, until)

    def keep(self, trust: str, granted: Granted, now: float) -> None:
        """Remember a token, or its new key, durably; forget those that have expired."""
        one = granted
        self._db.run(
            _SCHEMA,
            *(_FORGET_USES, _FORGET_TOKENS, _KEEP),
            now=now,
            trust=trust,
            identifier=one.identifier,
            instance=one.instance,
            key=one.key,
            life=one.life,
            until=now + one.life,
        )

    def use(self, use: str, identifier: str) -> None:
        """Remember what a token is for, durably."""
        self._db.run(_SCHEMA, _USE, usage=use, identifier=identifier)

    def forget(self, identifier: str) -> None:
        self._db.run(_SCHEMA, _DROP_USES, _DROP_TOKEN, identifier=identifier)
