"""The rows of a cluster, and the requests that change them: what membership decides on, and what it asks for.

Each request is one exchange with the database that happens as a whole or not at all.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from holdfast.cluster.shares import cut_off_among, cut_off_by
from holdfast.exceptions import HoldfastError
from holdfast.outages import Away


class ClusterRefused(HoldfastError):
    """The node cannot be part of this cluster, or not with these settings. Nothing was changed."""


class NoAnswer(Away):
    """A request has no answer: the connection ended, or the database did not answer in time. The outcome of the request
    is unknown, and the session with its lock is lost."""


@dataclass(frozen=True, slots=True)
class Report:
    """What a node reports about itself in its row.

    Args:
        serving: Its partitions with workers that accept requests.
        failed: Partition that it could not serve and now leaves to others -> why.
        unreachable: Node that it cannot reach -> why.
        tables: Table of its configuration that all nodes should have alike -> keyed digest of it.
        short: Why its disk has no room for partitions; "": it has room.
        clock_ahead: Seconds that its clock is ahead of that of the database or of Kafka, negative if behind; 0: few.
        prepared: The partitions of other nodes that it could serve at once.
        ending: The partitions that it has lost, with workers that have not ended yet.
        lease, hold: Seconds, as its LeasePolicy has them. Only on Kafka; 0: an earlier version does not report them.
        claims: Partition -> the last claim of one of its workers in the log of that partition.
    """

    serving: tuple[int, ...] = ()
    failed: Mapping[int, str] = field(default_factory=dict)
    unreachable: Mapping[str, str] = field(default_factory=dict)
    tables: Mapping[str, str] = field(default_factory=dict)
    short: str = ""
    clock_ahead: int = 0
    prepared: tuple[int, ...] = ()
    ending: tuple[int, ...] = ()
    lease: float = 0.0
    hold: float = 0.0
    claims: Mapping[int, int] = field(default_factory=dict)

    def to_json(self) -> str:
        """Return the report as JSON text, in which keys of objects are text."""
        return json.dumps(msgspec.to_builtins(self, str_keys=True))

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Report:
        """Return the report with these JSON values; each may be missing, and there may be others.

        Raises:
            msgspec.ValidationError: A value is not of its type.
        """
        return msgspec.convert(values, cls, str_keys=True)


def different_tables(one: Mapping[str, str], other: Mapping[str, str]) -> tuple[str, ...]:
    """Return the tables in which two nodes differ, of those whose digests both report."""
    return tuple(sorted(name for name in one.keys() & other.keys() if one[name] != other[name]))


@dataclass(frozen=True, slots=True)
class NodeRow:
    """A node of the cluster. It has a row until it leaves, or until another node declares it dead by deleting the row.

    Args:
        name: Its name.
        incarnation: The number of its current membership: no two memberships of the cluster have the same.
        url: Of its cluster listener.
        lease_end: When its lease ends, by the clock of the database. Only for comparison: a renewal changes it.
        is_expired: Whether its lease has ended without renewal.
        has_lock: Whether a session has the lock of the name.
        is_draining: Whether it gives its partitions away.
        failed: Partitions that it reports as failed.
        unreachable: Nodes that it reports as unreachable.
        tables: The digests of its configuration that it reports.
    """

    name: str
    incarnation: int
    url: str
    lease_end: int
    is_expired: bool
    has_lock: bool
    is_draining: bool
    failed: tuple[int, ...] = ()
    unreachable: tuple[str, ...] = ()
    tables: Mapping[str, str] = field(default_factory=dict)

    @property
    def may_own(self) -> bool:
        """Whether partitions should go to it."""
        return not (self.is_expired or self.is_draining)


@dataclass(frozen=True, slots=True)
class OwnershipRow:
    """The owner of a partition.

    Args:
        partition: Its number.
        owner: Name of the node; "" for none.
        incarnation: The owner's incarnation at its claim.
        epoch: The number of claims so far.
        wanted: The incarnation of the node that an operator has moved it to; 0 for none.
    """

    partition: int
    owner: str
    incarnation: int
    epoch: int
    wanted: int = 0


@dataclass(frozen=True, slots=True)
class Picture:
    """All rows at one moment.

    Args:
        is_member: Whether the node that looked still has its row.
        may_declare: Whether the node may declare others dead: not shortly after the server started or was promoted,
            because then no node could renew its lease, and all locks are gone.
        nodes: All nodes.
        ownership: All partitions, in order.
        clocks: What :meth:`~holdfast.cluster.trust.ClockCheck.compare` compares.
    """

    is_member: bool
    may_declare: bool
    nodes: tuple[NodeRow, ...]
    ownership: tuple[OwnershipRow, ...]
    clocks: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0)

    @property
    def cut_off(self) -> frozenset[str]:
        """The nodes that most of the other nodes cannot reach."""
        return cut_off_among(self._unreachable)

    def cut_off_by(self, node: str) -> tuple[str, ...]:
        """Return the nodes that cannot reach a node, if they are most of the others; otherwise none."""
        return cut_off_by(node, self._unreachable)

    @property
    def _unreachable(self) -> Mapping[str, tuple[str, ...]]:
        return {one.name: one.unreachable for one in self.nodes if not one.is_expired}

    def live_owner(self, row: OwnershipRow) -> NodeRow | None:
        """Return the node that owns a partition; None if the membership in which it claimed it has ended."""
        for node in self.nodes:
            if node.name == row.owner and node.incarnation == row.incarnation:
                return node
        return None

    def wanted_owner(self, row: OwnershipRow) -> NodeRow | None:
        """Return the node that an operator has moved a partition to; None if there is no such node, or if it cannot
        serve the partition now."""
        for node in self.nodes:
            if node.incarnation == row.wanted:
                can_serve = node.may_own and row.partition not in node.failed and node.name not in self.cut_off
                return node if can_serve else None
        return None


@dataclass(frozen=True, slots=True)
class Enter:
    """Check the database and the cluster, and take the lock of the node's name. Answer: :class:`Entered`.

    Raises:
        ClusterRefused: this node cannot be in this cluster.
    """


@dataclass(frozen=True, slots=True)
class Entered:
    """The answer to :class:`Enter`.

    Args:
        is_locked: Whether this session has the lock of the name; if not, another session has it.
        has_row: Whether the name has a row of an earlier incarnation.
    """

    is_locked: bool
    has_row: bool


@dataclass(frozen=True, slots=True)
class Join:
    """Begin a new incarnation, under the lock. Answer: its number, which no other membership had or will have.

    What earlier incarnations of the name claimed is free from then on.
    """

    is_draining: bool


@dataclass(frozen=True, slots=True)
class Look:
    """Read all rows and, if ``renews``, renew the lease first. Answer: :class:`Picture`.

    A lease can be renewed after its end, as long as no node has declared this one dead: its partitions are still its
    own then.
    """

    incarnation: int
    renews: bool


@dataclass(frozen=True, slots=True)
class Declare:
    """Declare another node dead, if its lease has ended or, with ``unrenewed``, if no session has its lock and it has
    not renewed the lease that ends then. Answer: whether that was so."""

    name: str
    incarnation: int
    unrenewed: int | None = None


@dataclass(frozen=True, slots=True)
class Claim:
    """Claim at most ``most`` of some partitions, in order of preference, as far as they are free. End the sessions that
    still have their stores open. Answer: partition -> epoch.

    A partition is free if it has no owner, or if no node has a row with the owner's name and incarnation.

    Args:
        incarnation, partitions, most: The node's incarnation, the partitions, and how many it may claim.
        wishes: For each partition, the incarnation of the node to which an operator had moved it when this node looked;
            it no longer counts if this node claims the partition. What an operator wants since then counts.
    """

    incarnation: int
    partitions: tuple[int, ...]
    most: int
    wishes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Release:
    """Give up claims: partition -> epoch. Answer: None."""

    incarnation: int
    claims: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Drain:
    """Record that this node gives its partitions away. Answer: None."""

    incarnation: int


@dataclass(frozen=True, slots=True)
class Tell:
    """Record the report of this node. Answer: None."""

    incarnation: int
    report: Report


@dataclass(frozen=True, slots=True)
class Leave:
    """Delete the row of this node, which owns nothing. Answer: None."""

    incarnation: int


Request = Enter | Join | Look | Declare | Claim | Release | Drain | Tell | Leave
Answer = Entered | Picture | Mapping[int, int] | int | bool | None


def space_of(space: str, partition: int) -> str:
    """Return the space of a partition's store, as ``store_of_part`` names it."""
    return space if partition == 0 else f"{space}/worker-{partition}"


def spaces_of(space: str, partitions: int) -> set[str]:
    """Return the spaces of all stores of a cluster."""
    return {space_of(space, partition) for partition in range(partitions)}
