"""What operators ask of a cluster on PostgreSQL: its nodes, its database's durability, drains and moves.

Reads the rows without joining the cluster, so it works while all nodes are down.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from typing import Any, Final

import psycopg

from holdfast.cluster import tables
from holdfast.cluster.lease_database import TWO_CLUSTERS, conninfo_of, is_outage
from holdfast.cluster.operating.status import (
    ClusterStatus,
    SeenNode,
    SeenPartition,
    require_another,
    require_node,
    require_partitions,
    require_taking,
    status_of,
)
from holdfast.cluster.rows import Report
from holdfast.cluster.server_warnings import read_problem, read_warnings
from holdfast.exceptions import ConfigurationError, StoreAway, StoreError, StoreFailed, clause
from holdfast.store.address import read_address
from holdfast.store.sql.dialects import is_refusal, postgresql_remedy

SILENCE: Final = 10.0
"""Seconds after which the database counts as unreachable."""

_NODES = """
SELECT name, url, is_draining, extract(epoch FROM expires_at - clock_timestamp())::float8,
    extract(epoch FROM clock_timestamp() - joined_at)::float8, report
FROM holdfast_node WHERE space = %(space)s ORDER BY name
"""
_OWNERSHIP = """
SELECT o.partition, n.name, o.epoch, extract(epoch FROM clock_timestamp() - o.claimed_at)::float8, w.name
FROM holdfast_ownership o LEFT JOIN holdfast_node n
    ON n.space = o.space AND n.name = o.owner AND n.incarnation = o.incarnation
LEFT JOIN holdfast_node w ON w.space = o.space AND w.incarnation = o.wanted
WHERE o.space = %(space)s ORDER BY o.partition
"""


@contextlib.contextmanager
def open_cluster(location: str) -> Iterator[tuple[psycopg.Connection[tuple[Any, ...]], dict[str, Any], str]]:
    """Yield a connection to the database of an existing cluster, the values of its statements, and its place.

    Args:
        location: The URL of the database; its space names the cluster.

    Raises:
        ConfigurationError: The URL is invalid, or there is no such cluster.
        StoreAway: The database does not answer.
        StoreError: The database has another cluster's rows too, or was not restored as a whole.
    """
    address = read_address(location)
    try:
        with psycopg.connect(conninfo_of(location, SILENCE, "holdfast cluster"), autocommit=True) as connection:
            values = {"space": address.space}
            are_there = connection.execute(tables.ARE_THERE.encode()).fetchone() == (True,)
            rows = connection.execute(tables.CLUSTER.encode(), values).fetchall() if are_there else []
            if not rows:
                raise ConfigurationError(
                    f"there is no cluster at {address.shown}",
                    remedy="Check the database and the space. The first node that starts creates the cluster.",
                )
            if len(rows) > 1:
                raise StoreError(f"The cluster at {address.shown} has {len(rows)} identities.", remedy=TWO_CLUSTERS)
            yield connection, values, address.shown
    except psycopg.Error as error:
        said = " ".join(str(error).split())
        remedy = postgresql_remedy(error.sqlstate or "", said)
        if not error.sqlstate and is_refusal(said):
            raise StoreFailed(
                f"The database at {address.shown} refuses the connection: {clause(said)}.",
                remedy=remedy or "Correct the URL.",
            ) from error
        if is_outage(error):
            raise StoreAway(
                f"The database at {address.shown} does not answer: {clause(said)}.",
                remedy=remedy or "Check that the database is running and reachable.",
                patience=address.patience,
            ) from error
        raise StoreError(
            f"The tables of the cluster at {address.shown} are not what this version of Holdfast expects: "
            f"{clause(said)}.",
            remedy="Use the version of Holdfast that the nodes have. If the database was restored, check that it was "
            "restored as a whole.",
        ) from error


def partitions_of(location: str) -> int | None:
    """Return how many partitions the cluster at a location has; None if there is no cluster.

    Raises:
        StoreError, StoreAway: As :func:`open_cluster`.
    """
    try:
        with open_cluster(location) as (connection, values, _):
            row = connection.execute(tables.CLUSTER.encode(), values).fetchone()
    except ConfigurationError:
        return None
    return row[1] if row is not None else None


def read_status(location: str) -> ClusterStatus:
    """Return the nodes and partitions of a cluster. Raises as :func:`open_cluster`."""
    with open_cluster(location) as (connection, values, place):
        with connection.transaction():
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
            cluster = connection.execute(tables.CLUSTER.encode(), values).fetchone()
            lost = connection.execute(tables.WENT_BACK.encode(), values).fetchone()
            nodes = connection.execute(_NODES.encode(), values).fetchall()
            ownership = connection.execute(_OWNERSHIP.encode(), values).fetchall()
        assert cluster is not None
        warnings = read_warnings(connection, cluster[1])
        problem = read_problem(connection)
        version = connection.info.parameter_status("server_version")
    return status_of(
        place,
        cluster[0],
        f"PostgreSQL {version}",
        [
            SeenNode(name, url, draining, lease, age, Report.from_json(report))
            for name, url, draining, lease, age, report in nodes
        ],
        [SeenPartition(*row) for row in ownership],
        warnings,
        (*([problem] if problem else []), *_older_copy(lost[0] if lost is not None else "")),
    )


def drain_node(location: str, node: str) -> None:
    """Let a node give its partitions away; it begins at its next look, within a second.

    Raises:
        ConfigurationError: The cluster has no such node, or no other node that could take the partitions; otherwise as
            :func:`open_cluster`.
    """
    require_another(read_status(location), node)
    with open_cluster(location) as (connection, values, _):
        connection.execute(tables.DRAIN_OTHER.encode(), values | {"node": node})
        connection.execute(tables.UNMOVE_ALL.encode(), values | {"node": node})
        connection.execute(tables.NOTIFY.encode(), values)


def resume_node(location: str, node: str) -> None:
    """Let a node that was drained take partitions again; it begins at its next look, within a second.

    Raises:
        ConfigurationError: The cluster has no such node; otherwise as :func:`open_cluster`.
    """
    require_node(read_status(location), node)
    with open_cluster(location) as (connection, values, _):
        connection.execute(tables.RESUME_OTHER.encode(), values | {"node": node})
        connection.execute(tables.NOTIFY.encode(), values)


def move_partitions(location: str, partitions: Collection[int], node: str) -> None:
    """Let a node take partitions from their owners, which begin at their next look, within a second.

    They stay there until :func:`release_partitions`, as long as the node is a member of the cluster and does not drain.
    The nodes move other partitions to keep their shares equal.

    Raises:
        ConfigurationError: The cluster has no such node or partition, or the node takes no partitions; otherwise as
            :func:`open_cluster`.
    """
    status = read_status(location)
    require_taking(status, node)
    require_partitions(status, partitions)
    with open_cluster(location) as (connection, values, _):
        connection.execute(tables.MOVE.encode(), values | {"node": node, "partitions": sorted(partitions)})
        connection.execute(tables.NOTIFY.encode(), values)


def release_partitions(location: str, partitions: Collection[int]) -> tuple[int, ...]:
    """Let the nodes share moved partitions again; they begin at their next look, within a second.

    Returns:
        Those of the partitions that an operator had moved to a node, in order.

    Raises:
        ConfigurationError: The cluster has no such partition; otherwise as :func:`open_cluster`.
    """
    require_partitions(read_status(location), partitions)
    with open_cluster(location) as (connection, values, _):
        rows = connection.execute(tables.UNMOVE.encode(), values | {"partitions": sorted(partitions)}).fetchall()
        connection.execute(tables.NOTIFY.encode(), values)
    return tuple(sorted(partition for (partition,) in rows))


def _older_copy(lost: str) -> tuple[str, ...]:
    if not lost:
        return ()
    return (
        f"The database went back to an older copy, as found by {lost}. Restore the newest copy if there is one. "
        "Otherwise start each node once with --restored.",
    )
