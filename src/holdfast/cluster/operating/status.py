"""ClusterStatus: a cluster as operators see it, from its nodes, their reports, and the owners of its partitions.

What the engine of the cluster shows of them is read elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from holdfast.cluster.rows import Report
from holdfast.exceptions import ConfigurationError, clause


@dataclass(frozen=True, slots=True)
class SeenNode:
    """A node, as an engine shows it.

    Args:
        name, url: Its name, and the URL of its cluster listener.
        is_draining: Whether it gives its partitions away.
        lease_seconds: Seconds until its lease ends; None if the engine does not tell.
        age: Seconds since it joined.
        report: What it reports.
    """

    name: str
    url: str
    is_draining: bool
    lease_seconds: float | None
    age: float
    report: Report


@dataclass(frozen=True, slots=True)
class SeenPartition:
    """A partition, as an engine shows it.

    Args:
        partition: Its number.
        owner: The node that owns it; None: no node of the cluster.
        epoch: How often it was claimed; None if the engine does not tell.
        age: Seconds since the last claim; None: it was never claimed, or the engine does not tell.
        moved_to: The node that an operator moved it to; None: no node that is in the cluster.
    """

    partition: int
    owner: str | None
    epoch: int | None = None
    age: float | None = None
    moved_to: str | None = None


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """A node.

    Args:
        name, url: Its name, and the URL of its cluster listener.
        state: "live"; "draining"; "expired": its lease has ended; "unreachable": another node cannot reach it;
            "failing": it could not serve a partition, and left it to others; "short": its disk has no room.
        partitions: The partitions that it owns.
        serving: Those of them with a process that accepts requests.
        lease_seconds: Seconds until its lease ends; negative: since it ended; None: unknown, as on Kafka.
        age: Seconds since it joined.
        failed: Partition that it could not serve a moment ago, and leaves to others for a while -> why.
    """

    name: str
    url: str
    state: str
    partitions: tuple[int, ...]
    serving: tuple[int, ...]
    lease_seconds: float | None
    age: float
    failed: Mapping[int, str]


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """A partition.

    Args:
        partition: Its number.
        owner: The node that owns it; None: no node.
        epoch: How often it was claimed; None: unknown, as on Kafka.
        age: Seconds since the last claim; None: it was never claimed, or unknown.
        state: "serving"; "starting": its owner starts the process for it; "unreachable": other nodes cannot reach its
            owner, or the owner's lease has ended; "cannot start": no node owns it, and one that tried could not start
            the process; "free": no node owns it.
        why: More about the state; "" if there is nothing to say.
        moved_to: The node to which an operator moved the partition, and which keeps it while it can serve it; None: the
            nodes may move it.
    """

    partition: int
    owner: str | None
    epoch: int | None
    age: float | None
    state: str
    why: str
    moved_to: str | None


DISK_REMEDY: Final = "Free space there. The node then takes part again on its own."


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """A cluster at one moment.

    Args:
        place: Its database or its topic, for people.
        cluster: Its identity.
        server: The database and its version, or Kafka.
        nodes, partitions: All of them, in order.
        problems: A database that went back to an older copy, the partitions that are not served and why, nodes whose
            leases have ended, and nodes that failed or cannot be reached, although others serve for them; each as a
            sentence.
        warnings: What may lose or delay messages later, each as a sentence.
    """

    place: str
    cluster: str
    server: str
    nodes: tuple[NodeStatus, ...]
    partitions: tuple[PartitionStatus, ...]
    problems: tuple[str, ...]
    warnings: tuple[str, ...]


def status_of(
    place: str,
    cluster: str,
    server: str,
    nodes: Sequence[SeenNode],
    partitions: Sequence[SeenPartition],
    warnings: Iterable[str],
    problems: Iterable[str] = (),
) -> ClusterStatus:
    """Return the status of a cluster.

    Args:
        place, cluster, server: As in :class:`ClusterStatus`.
        nodes, partitions: All of them, in order.
        warnings: What the engine may lose or delay later, each as a sentence.
        problems: What is wrong with the engine's data, each as a sentence.
    """
    owned: dict[str | None, list[int]] = {}
    for one in partitions:
        owned.setdefault(one.owner, []).append(one.partition)
    reports = {one.name: one.report for one in nodes}
    found = tuple(
        NodeStatus(
            one.name,
            one.url,
            _state(one, reports),
            tuple(owned.get(one.name, ())),
            tuple(number for number in owned.get(one.name, ()) if number in one.report.serving),
            one.lease_seconds,
            one.age,
            one.report.failed,
        )
        for one in nodes
    )
    by_name: dict[str | None, NodeStatus] = {one.name: one for one in found}
    states = tuple(
        PartitionStatus(
            one.partition,
            one.owner,
            one.epoch,
            one.age,
            *_partition_state(one.partition, by_name.get(one.owner), reports),
            one.moved_to if one.moved_to in by_name and by_name[one.moved_to].state != "draining" else None,
        )
        for one in partitions
    )
    problems = (*problems, *_problems(found, reports, states), *_reported(found, reports, states))
    warnings = (*warnings, *_short(found, reports), *_clocks(server, reports), *_disagreements(reports))
    return ClusterStatus(place, cluster, server, found, states, problems, warnings)


def _short(nodes: Iterable[NodeStatus], reports: Mapping[str, Report]) -> Iterator[str]:
    """Yield the nodes without disk room for partitions that have left all of them to other nodes."""
    for one in nodes:
        if (why := reports[one.name].short) and not one.partitions:
            yield f"Node {one.name} leaves its partitions to others, because {clause(why)}. {DISK_REMEDY}"


def _clocks(server: str, reports: Mapping[str, Report]) -> Iterator[str]:
    """Yield the nodes with clocks that differ from that of the database or of Kafka."""
    for node, report in reports.items():
        if report.clock_ahead:
            way = "ahead of" if report.clock_ahead > 0 else "behind"
            yield (
                f"The clock of node {node} is {abs(report.clock_ahead):,} s {way} that of {server.partition(' ')[0]}. "
                "Synchronize the clocks. The processes of the node use the latter; if it was wrong, restart all nodes."
            )


def _disagreements(reports: Mapping[str, Report]) -> Iterator[str]:
    """Yield the tables of the configuration in which nodes differ."""
    alike: dict[str, dict[str, list[str]]] = {}
    for node, report in reports.items():
        for table, digest in report.tables.items():
            alike.setdefault(table, {}).setdefault(digest, []).append(node)
    same: dict[str, list[str]] = {}
    for table, groups in sorted(alike.items()):
        if len(groups) > 1:
            nodes = " than on ".join(map(_nodes, sorted(groups.values(), key=len)))
            same.setdefault(nodes, []).append(table)
    for nodes, tables in same.items():
        yield (
            f"The configuration is different on {nodes}: {', '.join(tables)}. Give all nodes the same file, and "
            "restart or reload those with another one."
        )


def require_node(status: ClusterStatus, node: str) -> None:
    """Check that a cluster has a node.

    Raises:
        ConfigurationError: It has no such node.
    """
    if all(one.name != node for one in status.nodes):
        names = ", ".join(one.name for one in status.nodes) or "none"
        raise ConfigurationError(
            f"the cluster has no node {node!r}",
            remedy=f"Its nodes: {names}. A node that was stopped, or did not answer for a lease, has left, and the "
            "others take its partitions. It joins again on its own when it runs.",
        )


def require_taking(status: ClusterStatus, node: str) -> None:
    """Check that a cluster has a node that takes partitions.

    Raises:
        ConfigurationError: It has no such node, or the node drains, or its lease has ended.
    """
    require_node(status, node)
    state = next(one.state for one in status.nodes if one.name == node)
    if why := _not_taking(state):
        remedies = {"draining": "Let it take partitions again with holdfast cluster resume.", "short": DISK_REMEDY}
        raise ConfigurationError(
            f"node {node!r} takes no partitions: {why}", remedy=remedies.get(state, "Start it, or choose another node.")
        )


def _not_taking(state: str) -> str:
    """Return why a node in a state takes no partitions; "": it takes some."""
    whys = {"draining": "it is draining", "expired": "its lease has ended", "short": "its disk has no room for them"}
    return whys.get(state, "")


def why_not_moved(status: ClusterStatus, partitions: Collection[int], node: str) -> str:
    """Return why a node will not serve all the partitions that were moved to it; "": it serves them, or may soon do so.

    Args:
        status: The cluster, after they were moved.
        partitions: The partitions.
        node: The node.
    """
    found = next((one for one in status.nodes if one.name == node), None)
    missing = [one for one in status.partitions if one.partition in partitions and one.moved_to != node]
    missing = [one for one in missing if found is None or one.partition not in found.serving]
    if found is None:
        return f"{node} is no longer in the cluster"
    if found.state != "expired" and (why := _not_taking(found.state)):  # a lease can be renewed
        return f"{node} takes no partitions: {why}"
    elsewhere: dict[str | None, list[int]] = {}
    for one in missing:
        elsewhere.setdefault(one.moved_to, []).append(one.partition)
    return "; ".join(
        f"{partitions_text(numbers)} {'was' if len(numbers) == 1 else 'were'} "
        + (f"moved to {other} meanwhile" if other is not None else f"released meanwhile, or {node} was restarted")
        for other, numbers in elsewhere.items()
    )


def require_another(status: ClusterStatus, node: str) -> None:
    """Check that a cluster has a node, and another one that could take its partitions.

    Raises:
        ConfigurationError: It does not.
    """
    require_node(status, node)
    others = [one for one in status.nodes if one.name != node]
    if not any(one.state == "live" for one in others):
        drained = [one.name for one in others if one.state == "draining"]
        ill = [f"{one.name} ({one.state})" for one in others if one.state != "draining"]
        remedy = "Start another node first."
        if drained:
            remedy = f"Let {drained[0]} take partitions again: holdfast cluster resume CLUSTER {drained[0]}"
        elif ill:
            remedy = f"Repair another node first: {', '.join(ill)}. To see why: holdfast cluster status CLUSTER"
        raise ConfigurationError(f"no other live node could take the partitions of {node!r}", remedy=remedy)


def require_partitions(status: ClusterStatus, partitions: Collection[int]) -> None:
    """Check that a cluster has these partitions.

    Raises:
        ConfigurationError: It lacks one of them.
    """
    if strange := sorted(set(partitions).difference(range(len(status.partitions)))):
        raise ConfigurationError(
            f"the cluster has no cluster partition {strange[0]}",
            remedy=f"It has {len(status.partitions)}, numbered from 0.",
        )


def _state(node: SeenNode, reports: Mapping[str, Report]) -> str:
    if node.lease_seconds is not None and node.lease_seconds <= 0:
        return "expired"
    if node.is_draining:
        return "draining"
    if any(node.name in report.unreachable for report in reports.values()):
        return "unreachable"
    return "failing" if node.report.failed else "short" if node.report.short else "live"


def _partition_state(number: int, owner: NodeStatus | None, reports: Mapping[str, Report]) -> tuple[str, str]:
    whys: dict[str, list[str]] = {}
    for name, one in reports.items():
        if number in one.failed:
            whys.setdefault(one.failed[number], []).append(name)
    failed = "; ".join(f"at {_nodes(names)}: {why}" for why, names in whys.items())
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


def partitions_text(numbers: Collection[int]) -> str:
    return f"cluster {'partition' if len(numbers) == 1 else 'partitions'} {', '.join(map(str, numbers))}"


_NUMBER: Final = re.compile(r"[0-9]+")
"""Reasons that differ only in numbers, such as that of the partition, appear once."""


def _problems(
    nodes: tuple[NodeStatus, ...], reports: Mapping[str, Report], partitions: tuple[PartitionStatus, ...]
) -> tuple[str, ...]:
    found = [f"The lease of node {one.name} has ended; it does not answer." for one in nodes if one.state == "expired"]
    alike: dict[tuple[str, str | None, str], list[int]] = {}
    for one in partitions:
        if one.state != "serving" and not (one.state == "unreachable" and one.why.startswith("the lease")):
            alike.setdefault((one.state, one.owner, _NUMBER.sub("#", one.why)), []).append(one.partition)
    for (state, owner, _), numbers in alike.items():
        which, why = partitions_text(numbers), partitions[numbers[0]].why
        because = f": {clause(why)}." if why else "."
        if state == "free":
            found.append(f"No node owns {which}.")
        elif state == "cannot start":
            found.append(f"No node serves {which}; the process could not be started {because.removeprefix(': ')}")
        elif state == "starting":
            found.append(f"Node {owner} is starting {which}{because}")
        else:
            found.append(f"Node {owner} has {which}, but cannot be reached{because.removeprefix(':')}")
    for node in nodes:
        if (why := reports[node.name].short) and node.partitions:
            which = partitions_text(node.partitions)
            found.append(f"Node {node.name} may accept no new messages for {which}: {clause(why)}. {DISK_REMEDY}")
    return tuple(found)


def _reported(
    nodes: tuple[NodeStatus, ...], reports: Mapping[str, Report], partitions: tuple[PartitionStatus, ...]
) -> Iterator[str]:
    """Yield what nodes could not do, although other nodes do it."""
    told = {one.partition for one in partitions if one.state == "cannot start"}
    for one in nodes:
        failed, alike = reports[one.name].failed, dict[str, list[int]]()
        for number, why in failed.items():
            if number in told or number in one.partitions:  # as a problem of the partition
                continue
            alike.setdefault(_NUMBER.sub("#", why), []).append(number)
        for numbers in alike.values():
            what, which = partitions_text(numbers), "it" if len(numbers) == 1 else "them"
            yield f"Node {one.name} could not start {what}, and leaves {which} to others: {failed[numbers[0]]}"
    for one in nodes:
        away = {
            name: report.unreachable[one.name] for name, report in reports.items() if one.name in report.unreachable
        }
        if away and not one.partitions:  # else it is a problem
            why = next(iter(away.values()))
            yield f"Node {one.name} gets no partitions, because {_nodes(away)} cannot reach {one.url}: {why}"
