"""Identifier claims: which worker of a server uses an Identifier that a peer granted.

Each worker has its own protocol and its own store, and does not see the Sequences of the others. The workers share a
table of claims. A grant is used only if no other worker claims the same Identifier of the same peer (WS-RM 3.4).
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from functools import partial
from hashlib import blake2b
from typing import NamedTuple, Protocol

from holdfast.core.commit import GroupCommit
from holdfast.core.rm_source.source import RMSource

DIGEST_BYTES = 16


class ClaimResult(Enum):
    CLAIMED = "claimed"
    IN_USE = "another worker uses it"
    FULL = "the table has no room"
    UNKNOWN = "unknown, because a worker has not started yet or blocks the table"


class GrantedIdentifier(NamedTuple):
    local_id: str
    to: str
    identifier: str

    @property
    def digest(self) -> bytes:
        """Stands for the address and the Identifier in a table of claims."""
        # repr keeps the border between the two, so that no other pair gives the same bytes.
        return blake2b(repr((self.to, self.identifier)).encode(), digest_size=DIGEST_BYTES).digest()


class IdentifierClaims(Protocol):
    """The table of claims, as one worker sees it. A claim outlives a killed worker."""

    def announce(self, recovered: Iterable[GrantedIdentifier]) -> None:
        """Replace this worker's claims by those of its recovered Sequences."""
        ...

    def claim(self, granted: GrantedIdentifier) -> ClaimResult:
        """Claim an Identifier, unless another worker does. A repeated claim of the same Sequence succeeds."""
        ...

    def release(self, local_id: str) -> None: ...


def claim_grant(
    claims: IdentifierClaims | None, source: RMSource, to: str | None, identifier: str
) -> tuple[ClaimResult, str]:
    """Claim a granted Identifier.

    Args:
        claims: The table; None in a server of one process.

    Returns:
        The result, and why the Sequence cannot be used, "" if it can.
    """
    # WS-RM 3.4: an Identifier is unique
    if claims is None or to is None:
        return ClaimResult.CLAIMED, ""
    result = claims.claim(GrantedIdentifier(source.local_id, to, identifier))
    if result is ClaimResult.IN_USE:
        return result, (
            f"the destination granted the Identifier {identifier}, which an open Sequence of another worker has. "
            "Its Identifiers must be unique: look for two destinations behind this address, or a counter that restarted"
        )
    if result is ClaimResult.FULL:
        return result, "this worker has as many open Sequences to destinations as it can compare with other workers"
    return result, ""


def release_claim(claims: IdentifierClaims | None, source: RMSource, commit: GroupCommit) -> None:
    """Release the claim of a Sequence once the open batch, which deletes the Sequence, is durable.

    Before that, a crash would bring the Sequence back while another worker uses its Identifier.
    """
    if claims is not None and source.identifier is not None:
        # No caller waits for it, so it needs no commit at once.
        commit.then(partial(_release, claims, source.local_id), is_waited_for=False)


def _release(claims: IdentifierClaims, local_id: str, now: float) -> None:
    claims.release(local_id)
