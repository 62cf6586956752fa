"""SharedClaims: the Identifiers that peers granted to the partitions of a cluster, in its shared tables.

A claim is a row, so it stays while its partition moves, or has no owner. No partition waits for another one. Each
partition writes its own rows only. An owner that was paused, and wakes after another node took its partition over,
deletes none of the new owner's rows: it has a lower epoch, and a release names the Sequence. The epoch is that of the
partition's store, which all nodes share. A node cannot count the owners: on Kafka it sees only its own turns.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any, Final

from holdfast.cluster.shared.engines import shared_tables
from holdfast.cluster.shared.tables import TablesAway
from holdfast.core.sending.identifier_claims import ClaimResult, GrantedIdentifier
from holdfast.endpoint.logs import log
from holdfast.outages import Outage
from holdfast.store.address import is_kafka

MOST_CLAIMS: Final = 65_536
"""Claims of one partition."""
_ROWS_AT_ONCE: Final = 500

_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS holdfast_identifiers (
    space text, digest bytea, partition int, local_id text, PRIMARY KEY (space, digest, partition, local_id));
CREATE INDEX IF NOT EXISTS holdfast_identifiers_partition ON holdfast_identifiers (space, partition);
CREATE TABLE IF NOT EXISTS holdfast_identifier_owners (
    space text, partition int, epoch bigint NOT NULL, PRIMARY KEY (space, partition));
"""
_ENTER: Final = """
INSERT INTO holdfast_identifier_owners VALUES (:space, :partition, :epoch)
ON CONFLICT (space, partition) DO UPDATE SET epoch = excluded.epoch
WHERE holdfast_identifier_owners.epoch < excluded.epoch
"""
_IS_OWNER: Final = """
EXISTS (SELECT 1 FROM holdfast_identifier_owners WHERE space = :space AND partition = :partition AND epoch = :epoch)
"""
_CLAIM: Final = f"""
INSERT INTO holdfast_identifiers SELECT :space, :digest, :partition, :local_id WHERE {_IS_OWNER}
ON CONFLICT DO NOTHING RETURNING 1
"""
_OTHERS: Final = """
SELECT 1 FROM holdfast_identifiers WHERE space = :space AND digest = :digest AND partition <> :partition LIMIT 1
"""
_OURS: Final = "DELETE FROM holdfast_identifiers WHERE space = :space AND partition = :partition"
_RELEASE: Final = f"{_OURS} AND local_id = :local_id"
_FORGET: Final = f"{_OURS} AND {_IS_OWNER}"


class SharedClaims:
    """The claims of one partition. See :class:`~holdfast.core.sending.identifier_claims.IdentifierClaims`.

    Args:
        location: The URL of the cluster's database or log.
        epoch: The number of this opening of the partition's store.
    """

    def __init__(self, location: str, partition: int, epoch: int) -> None:
        self._tables = shared_tables(location, "identifiers")
        self._owner = {"partition": partition, "epoch": epoch}
        self._claimed: set[str] = set()
        self._released: set[str] = set()
        self._engine = "Kafka" if is_kafka(location) else "PostgreSQL"
        self._outage = Outage(time.monotonic)
        self._recovered: list[GrantedIdentifier] | None = None
        """Those that are not announced yet."""

    def announce(self, recovered: Iterable[GrantedIdentifier]) -> None:
        """Replace this partition's claims by those of its recovered Sequences, at the next call that needs the tables.

        Until then the earlier claims stay. Most partitions have no forwarder, and never need the tables.
        """
        self._recovered = list(recovered)
        self._claimed = {one.local_id for one in self._recovered}

    def claim(self, granted: GrantedIdentifier) -> ClaimResult:
        """Claim an Identifier, unless another partition does. A repeated claim of the same Sequence succeeds.

        If partitions claim an Identifier at the same moment, perhaps none of them gets it.
        """
        if granted.local_id in self._claimed:
            return ClaimResult.CLAIMED
        if len(self._claimed) >= MOST_CLAIMS:
            return ClaimResult.FULL
        try:
            return self._claim(granted)
        finally:
            self._tables.rest()

    def _claim(self, granted: GrantedIdentifier) -> ClaimResult:
        if not self._is_announced():
            return ClaimResult.UNKNOWN
        digest, local_id = granted.digest, granted.local_id
        self._released.add(local_id)  # until it is known that it counts
        try:
            # Look only when our row is durable: of two that claim at once, at least one sees the other's row.
            is_ours = self._run(_CLAIM, digest=digest, local_id=local_id) and not self._run(_OTHERS, digest=digest)
        except TablesAway as error:
            self._report_away(error)
            return ClaimResult.UNKNOWN
        # Only now: tables without the permission to write still release what they do not have.
        if (seconds := self._outage.end()) is not None:
            log.info("identifiers.tables_back", engine=self._engine, seconds=seconds)
        if not is_ours:
            self._is_announced()
            return ClaimResult.IN_USE
        self._released.discard(local_id)
        self._claimed.add(local_id)
        return ClaimResult.CLAIMED

    def release(self, local_id: str) -> None:
        """Release the claim of a Sequence, if it has one. If the tables do not answer, a later call does so."""
        if local_id in self._claimed:
            self._claimed.discard(local_id)
            self._released.add(local_id)
            self._is_announced()
            self._tables.rest()

    def _is_announced(self) -> bool:
        """Write what the tables do not have yet; return whether they have all."""
        try:
            if self._recovered is not None:
                self._replace([one for one in self._recovered if one.local_id in self._claimed])
                self._recovered = None
                self._released.clear()
            for local_id in list(self._released):
                self._run(_RELEASE, local_id=local_id)
                self._released.discard(local_id)
        except TablesAway as error:
            self._report_away(error)
            return False
        return True

    def _replace(self, recovered: list[GrantedIdentifier]) -> None:
        statements, values = [_ENTER, _FORGET], dict[str, Any]()
        for start in range(0, len(recovered), _ROWS_AT_ONCE):
            rows = []
            for number, one in enumerate(recovered[start : start + _ROWS_AT_ONCE], start):
                rows.append(f"(:digest{number}, :id{number})")
                values |= {f"digest{number}": one.digest, f"id{number}": one.local_id}
            # PostgreSQL and SQLite both name the columns of VALUES so.
            statements.append(
                "INSERT INTO holdfast_identifiers SELECT :space, column1, :partition, column2 "
                f"FROM (VALUES {', '.join(rows)}) AS recovered WHERE {_IS_OWNER} ON CONFLICT DO NOTHING"
            )
        self._run(*statements, **values)

    def _run(self, *statements: str, **values: Any) -> list[tuple[Any, ...]]:
        return self._tables.run(_SCHEMA, *statements, **self._owner, **values)

    def _report_away(self, why: TablesAway) -> None:
        """Log once that the tables do not answer, until they do: forwarders ask again and again."""
        if self._outage.go_on(why.trouble):
            remedy = why.remedy or f"Check {self._engine}. Forwarders continue when it answers."
            log.warning("identifiers.tables_away", engine=self._engine, why=str(why), remedy=remedy)
