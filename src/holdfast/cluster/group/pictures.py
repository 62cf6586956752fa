"""How a node describes itself in a consumer group, and how the description of a group is read."""

from __future__ import annotations

from typing import Any, Final

from confluent_kafka import ConsumerGroupState

from holdfast.cluster.group.members import GroupMember, GroupPicture, Pin
from holdfast.cluster.shared.tables import Part
from holdfast.store.kafka.address import KafkaAddress

_MARK: Final = "holdfast-node"
_PIN: Final = "holdfast-pin"


def group_of(address: KafkaAddress) -> str:
    """Return the name of the group of a cluster's nodes."""
    return address.group


def topic_of(address: KafkaAddress, part: Part) -> str:
    """Return the name of the topic of shared tables."""
    return f"{address.topic}-{part}"


def client_id(node: str, url: str, since: float, mark: str) -> str:
    """Return the client id of a node's consumer, which the other members read."""
    return " ".join((_MARK, node, url, f"{since:.6f}", mark))


def member_of(identifier: str, client: str, partitions: frozenset[int]) -> GroupMember | None:
    """Return the member with a client id; None if it is no node."""
    words = client.split(" ")
    if len(words) != 5 or words[0] != _MARK:
        return None
    _, node, url, since, mark = words
    try:
        return GroupMember(identifier, node, url, float(since), mark, partitions)
    except ValueError:
        return None


def pin_client_id(node: str, since: float, partition: int) -> str:
    """Return the client id of the consumer that a node keeps for a partition moved to it."""
    return " ".join((_PIN, node, f"{since:.6f}", str(partition)))


def pin_of(identifier: str, client: str) -> Pin | None:
    """Return the pin with a client id; None if the client is not a pin."""
    words = client.split(" ")
    if len(words) != 4 or words[0] != _PIN:
        return None
    try:
        return Pin(identifier, words[1], float(words[2]), int(words[3]))
    except ValueError:
        return None


def picture_of(described: Any, topic: str) -> GroupPicture:
    """Return the picture of a group that Kafka's client described."""
    members = []
    for one in described.members:
        places = one.assignment.topic_partitions if one.assignment is not None else []
        owned = frozenset(place.partition for place in places if place.topic == topic)
        member = member_of(one.member_id, one.client_id, owned)
        if member is not None:
            members.append(member)
    pins = (pin_of(one.member_id, one.client_id) for one in described.members)
    is_stable = described.state == ConsumerGroupState.STABLE
    return GroupPicture(tuple(members), is_stable, tuple(pin for pin in pins if pin is not None))
