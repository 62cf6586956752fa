"""SharedClaims: the Identifiers that peers granted to the partitions of a cluster, in its database.

A claim is a row, so it stays while its partition moves, or has no owner. No partition waits for another one. Each
partition writes its own rows only. An owner that was paused, and wakes after another node took its partition over,
deletes none of the new owner's rows: it has a lower epoch, and a release names the Sequence.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from holdfast.cluster.shared_database import DatabaseAway, shared_database
from holdfast.core.sending.identifier_claims import ClaimResult, GrantedIdentifier
from holdfast.endpoint.logs import log

MOST_CLAIMS: Final = 65_536
"""Claims of one partition."""

_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS holdfast_identifiers (
    space text, digest bytea, partition int, local_id text, PRIMARY KEY (space, digest, partition, local_id));
CREATE INDEX IF NOT EXISTS holdfast_identifiers_partition ON holdfast_identifiers (space, partition);
CREATE TABLE IF NOT EXISTS holdfast_identifier_epochs (
    space text, partition int, epoch bigint NOT NULL, PRIMARY KEY (space, partition));
"""
_ENTER: Final = """
INSERT INTO holdfast_identifier_epochs AS e VALUES (:space, :partition, :epoch)
ON CONFLICT (space, partition) DO UPDATE SET epoch = greatest(e.epoch, excluded.epoch)
"""
_IS_OWNER: Final = (
    "EXISTS (SELECT FROM holdfast_identifier_epochs WHERE space = :space AND partition = :partition AND epoch = :epoch)"
)
_LOCK: Final = "SELECT pg_advisory_xact_lock(hashtextextended('holdfast_identifier ' || encode(:digest, 'hex'), 0))"
"""Claims of one Identifier come one after the other."""
_CLAIM: Final = f"""
INSERT INTO holdfast_identifiers SELECT :space, :digest, :partition, :local_id
WHERE {_IS_OWNER} AND NOT EXISTS (
    SELECT FROM holdfast_identifiers WHERE space = :space AND digest = :digest AND partition <> :partition)
ON CONFLICT (space, digest, partition, local_id) DO UPDATE SET local_id = excluded.local_id RETURNING 1
"""
_OURS: Final = "DELETE FROM holdfast_identifiers WHERE space = :space AND partition = :partition"
_RELEASE: Final = f"{_OURS} AND local_id = ANY(:local_ids)"
_FORGET: Final = f"{_OURS} AND {_IS_OWNER}"
_RECOVERED: Final = f"""
INSERT INTO holdfast_identifiers
SELECT :space, digest, :partition, local_id FROM unnest(:digests::bytea[], :local_ids::text[]) AS t (digest, local_id)
WHERE {_IS_OWNER} ON CONFLICT DO NOTHING
"""


class SharedClaims:
    """The claims of one partition. See :class:`~holdfast.core.sending.identifier_claims.IdentifierClaims`.

    Args:
        location: The URL of the cluster's database.
        partition: The number of the partition.
        epoch: Counts its owners.
    """

    def __init__(self, location: str, partition: int, epoch: int) -> None:
        self._db = shared_database(location)
        self._owner = {"partition": partition, "epoch": epoch}
        self._claimed: set[str] = set()
        self._released: set[str] = set()
        self._recovered: list[GrantedIdentifier] | None = None
        """Those that are not announced yet."""

    def announce(self, recovered: Iterable[GrantedIdentifier]) -> None:
        """Replace this partition's claims by those of its recovered Sequences.

        If the database does not answer, the earlier claims stay, and the next claim tries again.
        """
        self._recovered = list(recovered)
        self._claimed = {one.local_id for one in self._recovered}
        self._is_announced()
        self._db.rest()

    def claim(self, granted: GrantedIdentifier) -> ClaimResult:
        """Claim an Identifier, unless another partition does. A repeated claim of the same Sequence succeeds."""
        if granted.local_id in self._claimed:
            return ClaimResult.CLAIMED
        if len(self._claimed) >= MOST_CLAIMS:
            return ClaimResult.FULL
        if not self._is_announced():
            return ClaimResult.UNKNOWN
        digest, local_id = granted.digest, granted.local_id
        try:
            found = self._db.run(_SCHEMA, _LOCK, _CLAIM, digest=digest, local_id=local_id, **self._owner)
        except DatabaseAway as error:
            self._released.add(granted.local_id)  # whether it was claimed or not
            log.warning("identifiers.database_away", why=str(error))
            return ClaimResult.UNKNOWN
        finally:
            self._db.rest()
        if not found:
            return ClaimResult.IN_USE
        self._claimed.add(granted.local_id)
        return ClaimResult.CLAIMED

    def release(self, local_id: str) -> None:
        """Release the claim of a Sequence, if it has one. If the database does not answer, a later call does so."""
        if local_id in self._claimed:
            self._claimed.discard(local_id)
            self._released.add(local_id)
            self._is_announced()
            self._db.rest()

    def _is_announced(self) -> bool:
        """Write what the database does not have yet; return whether it has all."""
        owner, recovered = self._owner, self._recovered
        try:
            if recovered is not None:
                recovered = [one for one in recovered if one.local_id in self._claimed]
                digests, ids = [one.digest for one in recovered], [one.local_id for one in recovered]
                self._db.run(_SCHEMA, _ENTER, _FORGET, _RECOVERED, digests=digests, local_ids=ids, **owner)
                self._recovered = None
            elif self._released:
                self._db.run(_SCHEMA, _RELEASE, local_ids=list(self._released), **owner)
            self._released.clear()
        except DatabaseAway as error:
            log.warning("identifiers.database_away", why=str(error))
            return False
        return True
