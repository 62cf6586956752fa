"""One of several processes behind one address: its number, its Identifiers, its store, its share of the limits.

Owns the differences between workers. Knows no process and no socket. A worker's store is complete on its own; worker 0
has the store of a server without workers, so such a server may become one of several, and their number may grow.
"""

from __future__ import annotations

import contextlib
import re
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from holdfast.cluster.trust import PartitionTrust
from holdfast.core.policy import DestinationPolicy
from holdfast.core.sending.identifier_claims import IdentifierClaims
from holdfast.core.states.inbound import DestinationState
from holdfast.exceptions import ConfigurationError, StoreMissing
from holdfast.http.exchange import HTTPLimits
from holdfast.store import IN_MEMORY, Store, is_remote, is_sql, open_store, shown, store_exists
from holdfast.store.address import read_address, store_of_part

MOST: Final = 64
"""Workers of one server; an Identifier has room for 4096."""

_OURS = re.compile(r"urn:uuid:[0-9a-f]{8}-[0-9a-f]{4}-8([0-9a-f]{3})-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
_DIRECTORY = re.compile(r"worker-([1-9][0-9]*)")


@dataclass(frozen=True, slots=True)
class Worker:
    """Which of several processes this is.

    Args:
        number: From 0.
        epochs: Queue -> epoch for a new store, so that readers that read the queues of all workers as one continue
            when workers are added.
        is_restart: Whether this worker ran before, since its server was started.
        partitions: How many shared partitions worker 0 has, and how many for sessions; None in worker 0.
        claims: Makes the table of the Identifiers that other workers use, of the number of the store's opening; None
            for a single worker.
        trust: Until when this process may act; None: always. At any other time, another node may have taken over its
            work: it accepts nothing, sends nothing, and answers 503.
    """

    number: int
    count: int
    epochs: Mapping[str, str] = field(default_factory=dict)
    is_restart: bool = False
    partitions: tuple[int, int] | None = None
    claims: Callable[[int], IdentifierClaims] | None = None
    trust: PartitionTrust | None = None

    @property
    def may_act(self) -> bool:
        """Whether no other node may have taken over its work."""
        return self.trust is None or self.trust.is_trusted()

    @property
    def is_gateway(self) -> bool:
        """Whether this process has no Sequences of its own, and only passes requests to the workers: the one process
        that a node of a cluster always has."""
        return self.number >= self.count

    def new_identifier(self) -> str:
        """Return a new URI that names its worker and cannot be guessed: a UUID of version 8 (RFC 9562) with this
        worker's number in its third part and 110 random bits."""
        return identifier_of(self.number, uuid.uuid4().int)

    def store_of(self, location: str | Path | Store) -> str | Path:
        """Return the location of this worker's store.

        Raises:
            ConfigurationError: There can be only one such store.
        """
        if not isinstance(location, str | Path):
            raise ConfigurationError(
                "workers cannot share an open store",
                remedy="Give the Destination the location of its store: each worker opens its own.",
            )
        return _place(location, self.number)

    def share_of(self, policy: DestinationPolicy) -> DestinationPolicy:
        return replace(
            policy,
            max_sequences=_part(policy.max_sequences, self.count),
            max_party_sequences=_part(policy.max_party_sequences, self.count),
            max_remembered=_part(policy.max_remembered, self.count),
            max_party_buffer_bytes=_part(policy.max_party_buffer_bytes, self.count),
            max_buffer_bytes=_part(policy.max_buffer_bytes, self.count),
        )

    def share_of_limits(self, limits: HTTPLimits) -> HTTPLimits:
        return replace(
            limits,
            max_connections=max(8, _part(limits.max_connections, self.count)),
            # Room for one message of the largest size, however many workers there are.
            max_buffered=max(limits.max_body, _part(limits.max_buffered, self.count)),
            max_unsent=_part(limits.max_unsent, self.count),
        )


def identifier_of(number: int, variant: int) -> str:
    """Return an Identifier that names its worker.

    Args:
        variant: The bits of a UUID of version 4, which become its random bits.
    """
    return uuid.UUID(int=variant & ~(0xFFFF << 64) | (0x8000 | number) << 64).urn


def worker_of(identifier: str) -> int | None:
    """Return the number of the worker that created an Identifier; None if no worker did."""
    found = _OURS.fullmatch(identifier)
    return int(found[1], 16) if found is not None else None


def check_stores(location: str | Path | Store, count: int, *, is_node: bool = False) -> None:
    """Check that every existing worker store has a worker, unless it has no messages and no Sequence can bring any.

    Args:
        location: Of worker 0's store.
        count: How many workers there are; 1 where there is no such thing.
        is_node: Whether this is a node of a cluster.

    Raises:
        ConfigurationError: No worker would serve the Sequences and messages in the store of a further worker; or it
            belongs to a cluster, and this is no node.
    """
    if not isinstance(location, str | Path) or location == IN_MEMORY:
        return
    last = _last_store(location, count - 1)  # first, since its errors are those of a store
    if not is_node:
        check_no_cluster(location)
    for number in range(last, count - 1, -1):
        if _is_empty(_place(location, number)):  # a server was started with too many workers, perhaps by accident
            continue
        only = "only worker 0 is" if count == 1 else f"only workers 0 to {count - 1} are"
        raise ConfigurationError(
            f"{shown(_place(location, number))} is the store of a worker, but {only} configured: no worker would serve "
            "its Sequences and messages",
            remedy=f"Start it with --workers {number + 1} until that store has no open inbound Sequences (holdfast "
            "sequences; to end one: holdfast sequences close ID --yes) and no messages (holdfast queues). Then start "
            "it with fewer.",
        )


def _is_empty(location: str | Path) -> bool:
    """Whether a store has no messages, and no open Sequence but those of its forwarders, which have sent everything,
    and those offered for replies to it."""
    try:
        store = open_store(location, read_only=True)
    except StoreMissing:
        return True
    with contextlib.closing(store):
        content = store.load()
    if content.held or any(first < end for first, end in content.bounds.values()):
        return False
    states = content.sequences.values()
    # A forwarder keeps its Sequence, so it would never leave the store.
    offered = {state.get("offer") for state in states if state["role"] == "source"}
    return all(
        state["role"] == "source" or state["state"] == DestinationState.TERMINATED.value or name in offered
        for name, state in content.sequences.items()
    )


def check_no_cluster(location: str | Path) -> None:
    """Check that a store does not belong to a cluster.

    Raises:
        ConfigurationError: It does.
        StoreError: The database of the location does not answer.
    """
    partitions = _cluster_partitions(location)
    if partitions is not None:
        raise ConfigurationError(
            f"{shown(location)} belongs to a cluster of {partitions} cluster partitions: only its nodes may open it",
            remedy="Start a broker with [cluster] in its file, or use another space of the database.",
        )


def stored_workers(location: str | Path) -> tuple[int, bool]:
    """Return how many workers have stores below a location, and whether they are the partitions of a cluster: then some
    of the stores may be missing.

    Raises:
        StoreError: The database of the location does not answer.
    """
    partitions = _cluster_partitions(location)
    return (partitions, True) if partitions is not None else (_last_store(location, 0) + 1, False)


def _cluster_partitions(location: str | Path) -> int | None:
    """Return how many partitions the cluster at a location has; None if it belongs to no cluster."""
    if not is_sql(location) or read_address(str(location)).database != "postgresql":
        return None
    from holdfast.cluster.inspection import partitions_of

    return partitions_of(str(location))


def _last_store(location: str | Path, least: int) -> int:
    if is_remote(location):
        store_exists(location)  # first, so that an error names the store that the user named
        last = least
        while store_exists(_place(location, last + 1)):
            last += 1
        return last
    inside = Path(location).iterdir() if Path(location).is_dir() else iter(())
    return max((int(found[1]) for one in inside if (found := _DIRECTORY.fullmatch(one.name))), default=least)


def _place(location: str | Path, number: int) -> str | Path:
    if is_remote(location):
        return store_of_part(str(location), number)
    return location if location == IN_MEMORY or number == 0 else Path(location) / f"worker-{number}"


def _part(most: int, count: int) -> int:
    # Rounded up: a share of nothing would refuse everything.
    return -(-most // count)
