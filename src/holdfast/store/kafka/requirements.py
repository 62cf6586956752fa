"""What a topic must be so that confirmed records are durable and the log is complete, and what its user must be
permitted. Decides; asks no Kafka."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from confluent_kafka import KafkaError

from holdfast.exceptions import ConfigurationError, clause, counted
from holdfast.store.kafka.address import KafkaAddress

RECORD_BYTES: Final = 8 << 20
"""Maximum bytes of a record in a new topic."""
FEWEST_RECORD_BYTES: Final = 64 << 10
"""Maximum bytes of a record that a topic must allow at least."""
BATCH_BYTES: Final = 256
"""Bytes that Kafka adds to a record: never more."""

PERMISSIONS: Final = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "Permit the user Read, Write, Describe, DescribeConfigs and Delete for the "
    "topic {0}, and Create if it does not exist.",
    KafkaError.GROUP_AUTHORIZATION_FAILED: "Permit the user Describe for the group {1}, and Read if the topic "
    "belongs to a cluster of brokers.",
    # Also the answer to a writer that may write to no topic (KIP-679).
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: "Permit the user Write for the topic {0}. If the topic does not exist, "
    "permit Create for the cluster, or create the topic.",
}
"""What to permit the user of a topic, {0}, and of a group, {1}, because of an error."""

_ALWAYS: Final = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "unclean.leader.election.enable": "false",
}
_COMPACTED: Final = {**_ALWAYS, "cleanup.policy": "compact", "message.timestamp.type": "LogAppendTime"}
_WHY: Final = {
    "cleanup.policy": "Kafka would drop records that the log needs",
    "retention.ms": "Kafka would delete messages before they are read",
    "retention.bytes": "Kafka would delete messages before they are read",
    "message.timestamp.type": "the nodes need the time of one clock",
    "unclean.leader.election.enable": "Kafka would drop confirmed records when it elects a broker that lacks them",
}


def settings_of(replicas: int) -> dict[str, str]:
    """Return the settings of a new topic."""
    return {
        **_ALWAYS,
        "min.insync.replicas": str(least_in_sync(replicas)),
        "max.message.bytes": str(RECORD_BYTES),
        # Kafka frees the disk by whole segments.
        "segment.bytes": str(64 << 20),
    }


def settings_of_compacted(replicas: int) -> dict[str, str]:
    """Return the settings of a new topic in which a key has the value that was written last."""
    return {
        **_COMPACTED,
        "min.insync.replicas": str(least_in_sync(replicas)),
        "segment.bytes": str(16 << 20),
        # Each process reads the whole topic when it starts, so few old values should remain.
        "min.cleanable.dirty.ratio": "0.1",
    }


def least_in_sync(replicas: int) -> int:
    """Return how many brokers must have a record before it is confirmed: two, unless the user wants one replica."""
    return min(2, replicas)


def require_compacted(found: Mapping[str, str], replicas: int, address: KafkaAddress) -> int:
    """Check a topic in which a key has the value that was written last. Arguments, result and errors are those of
    :func:`require_safe`."""
    return _require(found, _COMPACTED, replicas, address)


def require_safe(found: Mapping[str, str], replicas: int, address: KafkaAddress) -> int:
    """Check that a topic's settings keep what is confirmed.

    Args:
        found: All settings of the topic.
        replicas: The fewest replicas of a partition.
        address: The topic, and the replicas that it must have.

    Returns:
        Maximum bytes of a record's value.

    Raises:
        ConfigurationError: They do not; it names everything that is wrong.
    """
    return _require(found, _ALWAYS, replicas, address)


def _require(found: Mapping[str, str], needed: Mapping[str, str], replicas: int, address: KafkaAddress) -> int:
    wanted, most, least = address.replicas, int(found.get("max.message.bytes", "0")), least_in_sync(address.replicas)
    wrong = {
        name: (value, f"{name} is {found.get(name)!r}: {_WHY[name]}")
        for name, value in needed.items()
        if found.get(name) != value
    }
    if int(found.get("min.insync.replicas", "1")) < least:
        why = f"min.insync.replicas is {found.get('min.insync.replicas')}: Kafka would confirm what only one broker has"
        wrong["min.insync.replicas"] = (str(least), why)
    if most < FEWEST_RECORD_BYTES:
        wrong["max.message.bytes"] = (str(RECORD_BYTES), f"max.message.bytes is {most}, which is too little")
    whys = [why for _, why in wrong.values()]
    remedies = [_command({name: value for name, (value, _) in wrong.items()}, address)] if wrong else []
    if replicas < wanted:
        whys.append(
            f"it has {counted(replicas, 'replica')}, and {wanted} are required: a confirmed message could be lost with "
            "one disk"
        )
        remedies.append(f"Add replicas with kafka-reassign-partitions, or accept that: replicas={replicas} in the URL.")
    if whys:
        raise ConfigurationError(
            f"The topic {address.topic!r} of {address.shown} is not safe: {clause('; '.join(whys))}.",
            remedy=" ".join(remedies),
        )
    return min(most, RECORD_BYTES) - BATCH_BYTES


def _command(settings: Mapping[str, str], address: KafkaAddress) -> str:
    login = " --command-config FILE" if address.options else ""
    given = ",".join(f"{name}={value}" for name, value in settings.items())
    return (
        f"Set {'it' if len(settings) == 1 else 'them'}: kafka-configs --bootstrap-server {address.servers}{login} "
        f"--alter --entity-type topics --entity-name {address.topic} --add-config {given}"
        + (" (FILE has the settings of Kafka's client for TLS and SASL)." if login else "")
    )
