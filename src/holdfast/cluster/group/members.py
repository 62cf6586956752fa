"""What a node knows of the others and of its logs: the members of the group, their pins, what a worker has read, and
which node has made a claim."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A member of the group.

    Args:
        id: The group's name of it; another one each time it joins.
        node, url: The name of the node, and the URL of its cluster listener.
        since: Seconds since 1970-01-01 UTC, when it started.
        mark: Part of a digest of the secret that the nodes share.
        partitions: What it owns; empty while the group assigns partitions again.
    """

    id: str
    node: str
    url: str
    since: float
    mark: str = ""
    partitions: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Pin:
    """A member of the group that a node keeps for a partition which an operator has moved to it.

    Args:
        id: The group's name of it.
        node, since: The node, and when it started.
        partition: The partition, which no other node may act on.
    """

    id: str
    node: str
    since: float
    partition: int


@dataclass(frozen=True, slots=True)
class GroupPicture:
    """The group, as its coordinator describes it.

    Args:
        members: Its members that are nodes.
        is_stable: Whether the assignment is complete.
        pins: Its other members.
    """

    members: tuple[GroupMember, ...]
    is_stable: bool
    pins: tuple[Pin, ...] = ()

    @property
    def pinned(self) -> dict[int, Pin | None]:
        """Return the pin of each partition that has one; None for several, of which none counts."""
        found: dict[int, Pin | None] = {}
        for pin in self.pins:
            found[pin.partition] = None if pin.partition in found else pin
        return found


@dataclass(frozen=True, slots=True)
class LogNote:
    """What the worker of a partition has noted of its log.

    Args:
        epoch: The last claim that it read.
        is_free: Whether no process owns the log by that claim: its owner has resigned, or there was no claim yet.
        own: The last claim of a worker of this node; 0: none.
    """

    epoch: int
    is_free: bool
    own: int = 0


@dataclass(frozen=True, slots=True)
class ReportedClaim:
    """A claim of a log, as the node of the worker that made it reports it.

    Args:
        epoch: Its number.
        node, since: The node, and when it started.
        lease, hold: Seconds, as that node has them.
    """

    epoch: int
    node: str
    since: float
    lease: float
    hold: float
