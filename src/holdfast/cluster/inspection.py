"""What operators ask of a cluster: its nodes and partitions, the durability of its database, and a node's drain.

Reads the rows without joining the cluster, so it works while all nodes are down.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import psycopg

from holdfast.cluster import tables
from holdfast.cluster.lease_database import TWO_CLUSTERS, conninfo_of, is_outage
from holdfast.cluster.rows import Report
from holdfast.exceptions import ConfigurationError, StoreAway, StoreError
from holdfast.store.address import read_address

SILENCE: Final = 10.0
"""Seconds after which the database counts as unreachable."""
OLD_TRANSACTIONS: Final = 500_000_000
"""Age of the oldest unfrozen transaction above which the database needs a vacuum soon."""

_NODES = """
SELECT name, url, is_draining, extract(epoch FROM expires_at - clock_timestamp())::float8,
    extract(epoch FROM clock_timestamp() - joined_at)::float8, report
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
        state: "live"; "draining"; "expired": its lease has ended; "unreachable": another node cannot reach it;
            "failing": it could not serve a partition, and left it to others.
        partitions: The partitions that it owns.
        serving: Those of them whose processes accept requests.
        lease_seconds: Seconds until its lease ends; negative: since it ended.
        age: Seconds since it joined.
    """

    name: str
    url: str
    state: str
    partitions: tuple[int, ...]
    serving: tuple[int, ...]
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
        state: "serving"; "starting": its owner starts the process for it; "unreachable": other nodes cannot reach its
            owner, or the owner's lease has ended; "cannot start": no node owns it, and one that tried could not start
            the process; "free": no node owns it.
        why: More about the state; "" if there is nothing to say.
    """

    partition: int
    owner: str | None
    epoch: int
    age: float | None
    state: str
    why: str


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """A cluster at one moment.

    Args:
        place: Its database, for people.
        cluster: Its identity.
        server: The version of the database.
        nodes, partitions: All of them, in order.
        problems: The partitions that are not served and why, and nodes whose leases have ended, each as a sentence.
        warnings: What may lose or delay messages later, and what nodes could not do, each as a sentence.
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
        if is_outage(error):
            raise StoreAway(
                f"The database of the cluster at {address.shown} does not answer: {said}.",
                remedy="Check the database.",
                patience=address.patience,
            ) from error
        raise StoreError(
            f"The tables of the cluster at {address.shown} are not what this version of Holdfast expects: {said}.",
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
            nodes = connection.execute(_NODES.encode(), values).fetchall()
            ownership = connection.execute(_OWNERSHIP.encode(), values).fetchall()
        server = connection.execute(_SERVER.encode()).fetchone()
    assert cluster is not None and server is not None
    owned: dict[str, list[int]] = {}
    for partition, live, _, _, _ in ownership:
        owned.setdefault(live, []).append(partition)
    reports = {name: Report.from_json(report) for name, *_, report in nodes}
    found = tuple(
        NodeStatus(
            name,
            url,
            _state(name, lease, draining, reports),
            tuple(owned.get(name, ())),
            tuple(one for one in owned.get(name, ()) if one in reports[name].serving),
            lease,
            age,
        )
        for name, url, draining, lease, age, _ in nodes
    )
    by_name = {one.name: one for one in found}
    partitions = tuple(
        PartitionStatus(number, live, epoch, age, *_partition_state(number, by_name.get(live), reports))
        for number, live, _, epoch, age in ownership
    )
    warnings = (*_reported(found, reports), *_warnings(*server[1:]))
    return ClusterStatus(place, cluster[0], server[0], found, partitions, _problems(found, partitions), warnings)


def drain_node(location: str, node: str) -> None:
    """Let a node give its partitions away; it begins at its next look, within a second.

    Raises:
        ConfigurationError: The cluster has no such node, or no other node that could take the partitions; otherwise as
            :func:`open_cluster`.
    """
    status = read_status(location)
    _require_node(status, node)
    if not any(one.state == "live" and one.name != node for one in status.nodes):
        raise ConfigurationError(
            f"no other live node could take the partitions of {node!r}", remedy="Start another node first."
        )
    with open_cluster(location) as (connection, values, _):
        connection.execute(tables.DRAIN_OTHER.encode(), values | {"node": node})
        connection.execute(tables.NOTIFY.encode(), values)


def resume_node(location: str, node: str) -> None:
    """Let a node that was drained take partitions again; it begins at its next look, within a second.

    Raises:
        ConfigurationError: The cluster has no such node; otherwise as :func:`open_cluster`.
    """
    _require_node(read_status(location), node)
    with open_cluster(location) as (connection, values, _):
        connection.execute(tables.RESUME_OTHER.encode(), values | {"node": node})
        connection.execute(tables.NOTIFY.encode(), values)


def move_partitions(location: str, partitions: Collection[int], node: str) -> None:
    """Let a node take partitions from their owners, which begin at their next look, within a second.

    They stay there as long as the node is a member of the cluster and does not drain. The nodes move other partitions
    to keep their shares equal.

    Raises:
        ConfigurationError: The cluster has no such node or partition, or the node takes no partitions; otherwise as
            :func:`open_cluster`.
    """
    status = read_status(location)
    _require_node(status, node)
    state = next(one.state for one in status.nodes if one.name == node)
    if state in ("draining", "expired"):
        raise ConfigurationError(
            f"node {node!r} takes no partitions: it is {state}",
            remedy="Let it take partitions again with holdfast cluster resume."
            if state == "draining"
            else "Start it, or choose another node.",
        )
    if strange := sorted(set(partitions).difference(range(len(status.partitions)))):
        raise ConfigurationError(
            f"the cluster has no cluster partition {strange[0]}",
            remedy=f"It has {len(status.partitions)}, numbered from 0.",
        )
    with open_cluster(location) as (connection, values, _):
        connection.execute(tables.MOVE.encode(), values | {"node": node, "partitions": sorted(partitions)})
        connection.execute(tables.NOTIFY.encode(), values)


def _require_node(status: ClusterStatus, node: str) -> None:
    if all(one.name != node for one in status.nodes):
        names = ", ".join(one.name for one in status.nodes) or "none"
        raise ConfigurationError(f"the cluster has no node {node!r}", remedy=f"Its nodes: {names}.")


def _state(name: str, lease: float, is_draining: bool, reports: Mapping[str, Report]) -> str:
    if lease <= 0:
        return "expired"
    if is_draining:
        return "draining"
    if any(name in report.unreachable for report in reports.values()):
        return "unreachable"
    return "failing" if reports[name].failed else "live"


def _partition_state(number: int, owner: NodeStatus | None, reports: Mapping[str, Report]) -> tuple[str, str]:
    """Return the state of a partition, and why it is in that state."""
    failed = "; ".join(f"at node {name}: {one.failed[number]}" for name, one in reports.items() if number in one.failed)
    if owner is None:
        return ("cannot start", failed) if failed else ("free", "")
    if owner.state == "expired":
        return "unreachable", f"the lease of node {owner.name} has ended"
    if number not in owner.serving:
        return "starting", f"it could not be started before, {failed}" if failed else ""
    away = {name: one.unreachable[owner.name] for name, one in reports.items() if owner.name in one.unreachable}
    return ("unreachable", f"from {_nodes(away)}: {next(iter(away.values()))}") if away else ("serving", "")


def _nodes(names: Iterable[str]) -> str:
    several = list(names)
    return f"{'node' if len(several) == 1 else 'nodes'} {', '.join(several)}"


def _problems(nodes: tuple[NodeStatus, ...], partitions: tuple[PartitionStatus, ...]) -> tuple[str, ...]:
    found = [f"The lease of node {one.name} has ended; it does not answer." for one in nodes if one.state == "expired"]
    alike: dict[tuple[str, str | None, str], list[str]] = {}
    for one in partitions:
        if one.state != "serving" and not (one.state == "unreachable" and one.why.startswith("the lease")):
            alike.setdefault((one.state, one.owner, one.why), []).append(str(one.partition))
    for (state, owner, why), numbers in alike.items():
        which = f"cluster {'partition' if len(numbers) == 1 else 'partitions'} {', '.join(numbers)}"
        because = f": {why.rstrip('.')}." if why else "."
        if state == "free":
            found.append(f"No node owns {which}.")
        elif state == "cannot start":
            found.append(f"No node serves {which}; the process could not be started {because.removeprefix(': ')}")
        elif state == "starting":
            found.append(f"Node {owner} is starting {which}{because}")
        else:
            found.append(f"Node {owner} has {which}, but cannot be reached{because.removeprefix(':')}")
    return tuple(found)


def _reported(nodes: tuple[NodeStatus, ...], reports: Mapping[str, Report]) -> Iterator[str]:
    """Yield what nodes could not do, although every partition may be served."""
    for one in nodes:
        for number, why in reports[one.name].failed.items():
            yield f"Node {one.name} could not start cluster partition {number}, and leaves it to others: {why}"
    for one in nodes:
        away = {
            name: report.unreachable[one.name] for name, report in reports.items() if one.name in report.unreachable
        }
        if away and not one.partitions:  # else it is a problem
            why = next(iter(away.values()))
            yield f"Node {one.name} gets no partitions, because {_nodes(away)} cannot reach {one.url}: {why}"


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
