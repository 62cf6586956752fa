"""Which engine a cluster is on, and who reads the nodes and partitions there."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from holdfast.cluster.operating.status import ClusterStatus
from holdfast.cluster.operating.verification import Verification
from holdfast.store.address import is_kafka


class Engine(Protocol):
    """What operators ask of a cluster, which its URL names. See :mod:`holdfast.cluster.inspection`."""

    def read_status(self, location: str) -> ClusterStatus:
        """Return its nodes and partitions."""
        ...

    def drain_node(self, location: str, node: str) -> None:
        """Let a node give its partitions away."""
        ...

    def resume_node(self, location: str, node: str) -> None:
        """Let a node that was drained take partitions again."""
        ...

    def move_partitions(self, location: str, partitions: Collection[int], node: str) -> None:
        """Let a node take partitions from their owners."""
        ...

    def release_partitions(self, location: str, partitions: Collection[int]) -> tuple[int, ...]:
        """Let the nodes share moved partitions again. Return those that were moved."""
        ...


class Verify(Protocol):
    """Checks the rules that what is stored of a cluster must keep. See :mod:`holdfast.cluster.verification`."""

    def __call__(
        self, location: str, before: Verification | None = None, *, reads_all: bool = False
    ) -> Verification: ...


def verifier_of(location: str) -> Verify:
    """Return the check of the cluster at a location."""
    if is_kafka(location):
        from holdfast.cluster.group.verification import verify_cluster as on_kafka

        return on_kafka
    from holdfast.cluster.verification import verify_cluster as on_postgresql

    return on_postgresql


def engine_of(location: str) -> Engine:
    if is_kafka(location):
        from holdfast.cluster.group import inspection as on_kafka

        return on_kafka
    from holdfast.cluster import inspection as on_postgresql

    return on_postgresql
