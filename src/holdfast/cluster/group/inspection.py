"""What operators ask of a cluster on Kafka: its nodes, its topic's durability, drains and moves.

Reads the description of the consumer group and the notes of the nodes, without joining the group.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Final

from confluent_kafka import KafkaError

from holdfast.cluster.group.describer import NOT_YET, GroupDescriber, NotDescribed
from holdfast.cluster.group.members import GroupMember, GroupPicture
from holdfast.cluster.group.notes import Notes, decline_note, drain_note, move_note, release_note, resume_note
from holdfast.cluster.group.pictures import group_of
from holdfast.cluster.group.shared_topic import SharedTopic
from holdfast.cluster.operating.status import (
    ClusterStatus,
    SeenNode,
    SeenPartition,
    partitions_text,
    require_another,
    require_node,
    require_partitions,
    require_taking,
    status_of,
)
from holdfast.exceptions import ConfigurationError, StoreMissing, counted
from holdfast.store.kafka.address import KafkaAddress, read_topic_address
from holdfast.store.kafka.login import KafkaAway
from holdfast.store.kafka.topic import COMMAND_REMEDY, COMMAND_SECONDS, KafkaLog

_LOOKS: Final = 20
"""How often to ask for the group until its assignment is complete. Then the reports of the nodes count instead."""
_PAUSE: Final = 0.1
_ABSENT: Final = frozenset({KafkaError.GROUP_ID_NOT_FOUND, KafkaError.INVALID_GROUP_ID})


@dataclass(frozen=True, slots=True)
class _Seen:
    """A cluster.

    Args:
        log: Its topic, opened.
        shared: The topic of its nodes, opened.
        picture: The group of its nodes.
        notes: What these and operators wrote.
    """

    log: KafkaLog
    shared: SharedTopic
    picture: GroupPicture
    notes: Notes

    def nodes(self) -> dict[str, GroupMember]:
        """Return the nodes by name. A node that was killed stays in the group for a lease, perhaps next to its
        successor."""
        members = sorted(self.picture.members, key=lambda one: one.since)
        return {one.node: one for one in sorted(members, key=lambda one: one.node)}

    def owners(self) -> dict[int, str]:
        """Return the owner of each partition that has one: until its next node serves it, the one that still does."""
        nodes = self.nodes().values()
        serving = {(partition, one.node) for one in nodes for partition in self.notes.report_of(one).serving}
        if not self.picture.is_stable:
            return dict(sorted(serving))
        found = {partition: one.node for one in self.picture.members for partition in one.partitions}
        found |= {partition: pin.node for partition, pin in self.picture.pinned.items() if pin is not None}
        return found | {p: node for p, node in sorted(serving) if (p, found.get(p)) not in serving}

    def moved_to(self, partition: int) -> str | None:
        """Return the node to which a partition was moved; None: no node that is in the cluster."""
        moved = self.notes.moved_to(partition)
        node = self.nodes().get(moved[0]) if moved is not None else None
        return node.node if node is not None and moved == (node.node, node.since) else None


@contextlib.contextmanager
def open_cluster(location: str) -> Iterator[_Seen]:
    """Yield an existing cluster as it is now.

    Args:
        location: The URL of its topic.

    Raises:
        ConfigurationError: The URL is invalid, there is no such cluster, or its topic is not safe.
        StoreAway: Kafka does not answer.
        StoreFailed: It refuses a request.
    """
    address = read_topic_address(location)
    until = time.monotonic() + COMMAND_SECONDS
    name = group_of(address)
    log, shared, describer = KafkaLog(address, until), SharedTopic(address, name, until), GroupDescriber(location)
    try:
        log.open(creates=False)
        shared.open(creates=False)
        picture = described_group(describer, until=max(until, time.monotonic() + COMMAND_SECONDS / 2))
        yield _Seen(log, shared, picture, Notes(shared.content()))
    except StoreMissing:
        raise ConfigurationError(
            f"there is no cluster at {address.shown}",
            remedy="Check the brokers and the topic. The first node that starts creates the cluster.",
        ) from None
    except KafkaAway as error:
        raise log.away(error, COMMAND_REMEDY) from error
    finally:
        log.close()
        shared.close()
        describer.close()


def described_group(describer: GroupDescriber, looks: int = _LOOKS, until: float = math.inf) -> GroupPicture:
    """Return the group, with a complete assignment if it is complete within a few looks.

    Args:
        describer: Describes the group.
        looks: How often to look at most.
        until: When a command gives up, by the monotonic clock.

    Raises:
        KafkaAway: Kafka does not answer.
    """
    for look in range(looks):
        is_last = look == looks - 1
        try:
            picture = describer.describe(until)
        except NotDescribed as error:
            if error.code in _ABSENT:
                return GroupPicture((), is_stable=True)
            if is_last or error.code not in NOT_YET:
                raise
        else:
            if picture.is_stable or not picture.members or is_last:
                break
        time.sleep(_PAUSE)
    return picture


def read_status(location: str) -> ClusterStatus:
    """Return the nodes and partitions of a cluster. Raises as :func:`open_cluster`."""
    with open_cluster(location) as seen:
        return _status(seen, read_topic_address(location))


def _status(seen: _Seen, address: KafkaAddress) -> ClusterStatus:
    now, owners = time.time(), seen.owners()
    nodes = [
        SeenNode(
            one.node,
            one.url,
            seen.notes.is_drained(one.node, one.since),
            None,
            max(0.0, now - one.since),
            seen.notes.report_of(one),
        )
        for one in seen.nodes().values()
    ]
    partitions = [
        SeenPartition(number, owners.get(number), moved_to=seen.moved_to(number))
        for number in range(seen.log.partitions)
    ]
    brokers = f"Kafka with {counted(seen.log.brokers, 'broker')}"
    return status_of(address.shown, seen.log.identity["topic_id"], brokers, nodes, partitions, _warnings(seen.log))


def _warnings(log: KafkaLog) -> Iterator[str]:
    if any(wanted < 2 for _, wanted in log.replicas):
        yield (
            "One broker of Kafka has the data. If its disk is lost, acknowledged messages are lost: give the topic "
            "three replicas."
        )
    behind = [number for number, (in_sync, wanted) in enumerate(log.replicas) if in_sync < wanted]
    waiting = [number for number in behind if log.replicas[number][0] < 2]
    if waiting:
        yield f"Commits wait: too few replicas are in sync for {partitions_text(waiting)}. Start Kafka's other brokers."
    elif behind:
        yield f"Not all replicas are in sync for {partitions_text(behind)}. If one more broker fails, commits may wait."


def drain_node(location: str, node: str) -> None:
    """Let a node give its partitions away, also those that were moved to it; it begins within a second.

    Raises:
        ConfigurationError: The cluster has no such node, or no other node that could take the partitions; otherwise as
            :func:`open_cluster`.
        StoreFailed: Kafka does not confirm that.
    """
    with open_cluster(location) as seen:
        require_another(_status(seen, read_topic_address(location)), node)
        since = seen.nodes()[node].since
        seen.shared.put(*drain_note(node, since))
        for partition in range(seen.log.partitions):
            if seen.notes.moved_to(partition) == (node, since):
                seen.shared.put(*decline_note(partition, node, since))


def resume_node(location: str, node: str) -> None:
    """Let a node that was drained take partitions again; it begins within a second.

    Raises:
        ConfigurationError: The cluster has no such node; otherwise as :func:`open_cluster`.
        StoreFailed: Kafka does not confirm that.
    """
    with open_cluster(location) as seen:
        require_node(_status(seen, read_topic_address(location)), node)
        seen.shared.put(*resume_note(node))


def move_partitions(location: str, partitions: Collection[int], node: str) -> None:
    """Let a node take partitions from their owners, which begin within a second.

    They stay there until :func:`release_partitions`, as long as the node is a member of the cluster and does not drain.
    The group assigns the other partitions as before, so the node then has more than its share.

    Raises:
        ConfigurationError: The cluster has no such node or partition, the node takes no partitions, or a node is of a
            version that does not follow moves; otherwise as :func:`open_cluster`.
        StoreFailed: Kafka does not confirm that for one of the partitions. Those before it were moved.
    """
    with open_cluster(location) as seen:
        status = _status(seen, read_topic_address(location))
        require_taking(status, node)
        require_partitions(status, partitions)
        _require_versions(seen)
        for partition in sorted(partitions):
            seen.shared.put(*move_note(partition, node, seen.nodes()[node].since))


def _require_versions(seen: _Seen) -> None:
    """Refuse to move anything while a node would serve the partition too, because it does not know of moves."""
    if silent := [name for name, one in seen.nodes().items() if not seen.notes.has_report(one)]:
        raise ConfigurationError(
            f"node {silent[0]!r} has not reported yet, so its version is unknown",
            remedy="Nothing was moved. Try again in a few seconds. If it stays so, restart the node.",
        )
    if older := seen.notes.without_moves(seen.nodes().values()):
        raise ConfigurationError(
            f"node {older[0]!r} runs a version of Holdfast that does not follow moves as this one does",
            remedy="Nothing was moved. Upgrade all nodes first, then try again.",
        )


def release_partitions(location: str, partitions: Collection[int]) -> tuple[int, ...]:
    """Let the group place moved partitions again; the nodes begin within a second.

    Returns:
        Those of the partitions that an operator had moved to a node, in order.

    Raises:
        ConfigurationError: The cluster has no such partition; otherwise as :func:`open_cluster`.
        StoreFailed: Kafka does not confirm that for one of the partitions. Those before it were released.
    """
    with open_cluster(location) as seen:
        require_partitions(_status(seen, read_topic_address(location)), partitions)
        moved = tuple(one for one in sorted(set(partitions)) if seen.notes.moved_to(one) is not None)
        for partition in moved:
            seen.shared.put(*release_note(partition))
        return moved
