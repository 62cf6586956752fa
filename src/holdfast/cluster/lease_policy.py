"""LeasePolicy: how long a node's lease lasts, and all times that follow from it. Also the names of a node."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

from holdfast.settings import Unit, Within, check_settings

PARTITIONS: Final = 24
"""Default number of partitions of a new cluster."""
MOST_PARTITIONS: Final = 64
MOST_NODES: Final = 64
LONGEST_LEASE: Final = 120.0
"""Seconds."""
LONGEST_NAME: Final = 100
"""Characters of a node's name."""


@dataclass(frozen=True, slots=True)
class LeasePolicy:
    """When a node counts as dead, and when it stops on its own.

    A node that stops answering loses its partitions after ``lease``. If its connection to the database ends, for
    example because its process was killed, it loses them within a second.

    Args:
        lease: How long a node's lease lasts without renewal. A shorter lease frees the partitions of a paused or
            unreachable node earlier, but a database that answers slowly for that long then moves partitions too.

    Raises:
        ConfigurationError: for an invalid number.
    """

    lease: Annotated[float, Unit.SECONDS, Within(1, LONGEST_LEASE)] = 6.0

    def __post_init__(self) -> None:
        check_settings(self)

    @property
    def renewal(self) -> float:
        """Seconds between renewals. An interval equal to the lease loses healthy leases."""
        return self.lease / 6

    @property
    def poll(self) -> float:
        """Seconds between two reads of the cluster's rows."""
        return min(0.5, self.lease / 6)

    @property
    def trust(self) -> float:
        """Seconds for which a node acts after it *sent* a renewal that succeeded: less than the lease."""
        return 0.7 * self.lease

    @property
    def hold(self) -> float:
        """Seconds for which a node of a consumer group acts after it asked for the group and was in it. The next owner
        waits as long after it has found that node gone."""
        return min(max(0.5, self.lease / 12), self.keep)

    @property
    def keep(self) -> float:
        """Seconds for which a node of a consumer group may keep a partition after it last asked and was the owner, as
        long as it stays in the group. The next owner waits as long for a node that is still there."""
        return 0.3 * self.lease

    @property
    def silence(self) -> float:
        """Seconds after which a connection without an answer ends, on both sides: more than the trust, so that the
        server does not release a trusted node's lock, and less than the lease."""
        return 0.85 * self.lease
