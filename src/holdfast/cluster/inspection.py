"""What operators ask of a cluster: its nodes and partitions, the durability of its database, and a node's drain.

Reads the rows without joining the cluster, so it works while all nodes are down.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import psycopg

from holdfast.cluster import tables
from holdfast.cluster.lease_database import conninfo_of
from holdfast.exceptions import ConfigurationError, StoreAway
from holdfast.store.address import read_address

SILENCE: Final = 10.0
"""Seconds after which the database counts as unreachable."""
OLD_TRANSACTIONS: Final = 500_000_000
"""Age of the oldest unfrozen transaction above which the database needs a vacuum soon."""

_NODES = """
SELECT name, url, incarnation, is_draining, extract(epoch FROM expires_at - clock_timestamp())::float8,
    extract(epoch FROM clock_timestamp() - joined_at)::float8
FROM holdfast_node WHERE space = %(space)s ORDER BY name
"""
_OWNERSHIP = """
SELECT o.partition, n.name, o.owner, o.epoch, extract(epoch FROM clock_timestamp() - o.claimed_at)::float8
FROM holdfast_ownership o LEFT JOIN holdfast_node n
    ON n.space = o.space AND n.name = o.owner AND n.incarnation = o.incarnation
WHERE o.space = %(space)s ORDER BY o.partition
"""
_SERVER = """
SELECT current_setting('server_version'), current_setting('fsync'), current_setting('full_page_writes'),
    current_setting('synchronous_standby_names'),
    (SELECT count(*) FROM pg_stat_replication WHERE sync_state IN ('sync', 'quorum') AND state = 'streaming'),
    (SELECT count(*) FROM pg_stat_replication WHERE state IS NULL),
    (SELECT age(datfrozenxid) FROM pg_database WHERE datname = current_database())
"""


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """A node.

    Args:
        name, url: Its name, and the URL of its cluster listener.
        state: "live", "draining" or "expired".
        partitions: The partitions that it owns.
        lease_seconds: Seconds until its lease ends; negative: since it ended.
        age: Seconds since it joined.
    """

    name: str
    url: str
    state: str
    partitions: tuple[int, ...]
    lease_seconds: float
    age: float


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """A partition.

    Args:
        partition: Its number.
        owner: The node that owns it; None: no node.
        epoch: How often it was claimed.
        age: Seconds since the last claim; None: it was never claimed.
    """

    partition: int
    owner: str | None
    epoch: int
    age: float | None


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """A cluster at one moment.

    Args:
        place: Its database, for people.
        cluster: Its identity.
        server: The version of the database.
        nodes, partitions: All of them, in order.
        problems: What keeps partitions from being served, each as a sentence.
        warnings: What may lose or delay messages later, each as a sentence.
    """

    place: str
    cluster: str
    server: str
    nodes: tuple[NodeStatus, ...]
    partitions: tuple[PartitionStatus, ...]
    problems: tuple[str, ...]
    warnings: tuple[str, ...]


@contextlib.contextmanager
def open_cluster(location: str) -> Iterator[tuple[psycopg.Connection[tuple[Any, ...]], dict[str, Any], str]]:
    """Yield a connection to the database of an existing cluster, the values of its statements, and its place.

    Args:
        location: The URL of the database; its space names the cluster.

    Raises:
        ConfigurationError: The URL is invalid, or there is no such cluster.
        StoreAway: The database does not answer.
    """
    address = read_address(location)
    try:
        with psycopg.connect(conninfo_of(location, SILENCE, "holdfast cluster"), autocommit=True) as connection:
            values = {"space": address.space}
            are_there = connection.execute(tables.ARE_THERE.encode()).fetchone() == (True,)
            if not are_there or connection.execute(tables.CLUSTER.encode(), values).fetchone() is None:
                raise ConfigurationError(
                    f"there is no cluster at {address.shown}",
                    remedy="Check the database and the space. The first node that starts creates the cluster.",
                )
            yield connection, values, address.shown
    except psycopg.OperationalError as error:
        said = " ".join(str(error).split())
        raise StoreAway(
            f"The database of the cluster at {address.shown} does not answer: {said}.", remedy="Check the database."
        ) from error


def read_status(location: str) -> ClusterStatus:
    """Return the nodes and partitions of a cluster. Raises as :func:`open_cluster`."""
    with open_cluster(location) as (connection, values, place):
        with connection.transaction():
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
            cluster = connection.execute(tables.CLUSTER.encode(), values).fetchone()
            nodes = connection.execute(_NODES.encode(), values).fetchall()
            ownership = connection.execute(_OWNERSHIP.encode(), values).fetchall()
        server = connection.execute(_SERVER.encode()).fetchone()
    assert cluster is not None and server is not None
    owned: dict[str, list[int]] = {}
    for partition, live, _, _, _ in ownership:
        owned.setdefault(live, []).append(partition)
    found = tuple(
        NodeStatus(name, url, _state(lease, draining), tuple(owned.get(name, ())), lease, age)
        for name, url, _, draining, lease, age in nodes
    )
    partitions = tuple(PartitionStatus(number, live, epoch, age) for number, live, _, epoch, age in ownership)
    return ClusterStatus(
        place, cluster[0], server[0], found, partitions, _problems(found, partitions), _warnings(*server[1:])
    )


def drain_node(location: str, node: str) -> None:
    """Let a node give its partitions away; it begins at its next look, within a second.

    Raises:
        ConfigurationError: The cluster has no such node, or no other node that could take the partitions; otherwise as
            :func:`open_cluster`.
    """
    status = read_status(location)
    if all(one.name != node for one in status.nodes):
        names = ", ".join(one.name for one in status.nodes) or "none"
        raise ConfigurationError(f"the cluster has no node {node!r}", remedy=f"Its nodes: {names}.")
    if not any(one.state == "live" and one.name != node for one in status.nodes):
        raise ConfigurationError(
            f"no other live node could take the partitions of {node!r}", remedy="Start another node first."
        )
    with open_cluster(location) as (connection, values, _):
        connection.execute(tables.DRAIN_OTHER.encode(), values | {"node": node})
        connection.execute(tables.NOTIFY.encode(), values)


def _state(lease: float, is_draining: bool) -> str:
    if lease <= 0:
        return "expired"
    return "draining" if is_draining else "live"


def _problems(nodes: tuple[NodeStatus, ...], partitions: tuple[PartitionStatus, ...]) -> tuple[str, ...]:
    found = [f"The lease of node {one.name} has ended; it does not answer." for one in nodes if one.state == "expired"]
    free = [str(one.partition) for one in partitions if one.owner is None]
    if free:
        found.append(f"No node owns {'partition' if len(free) == 1 else 'partitions'} {', '.join(free)}.")
    return tuple(found)


def _warnings(fsync: str, full_pages: str, names: str, standbys: int, hidden: int, age: int) -> tuple[str, ...]:
    found = [
        f"A crash of the server can lose acknowledged messages: its {name} is off."
        for name, value in (("fsync", fsync), ("full_page_writes", full_pages))
        if value != "on"
    ]
    if not names:
        found.append(
            "One server has the data. If its disk is lost, acknowledged messages are lost: set "
            "synchronous_standby_names."
        )
    elif not standbys and not hidden:
        found.append("No synchronous standby is connected: commits wait, and nodes stop when their leases end.")
    elif not standbys:
        found.append("Whether a synchronous standby is connected is unknown: grant pg_monitor to the user.")
    if age > OLD_TRANSACTIONS:
        found.append(f"The oldest transaction is {age:,} transactions old. Check that autovacuum can finish.")
    return tuple(found)
