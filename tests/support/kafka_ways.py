"""A Kafka cluster of three brokers, and the network between it and the nodes of a cluster of ours."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

from broker_cluster import NAMES
from confluent_kafka.admin import AdminClient
from kafka_nodes import KafkaNodes
from packet_loss import PacketLoss

from holdfast.testing.ports import free_ports

BROKERS = ("kafka1", "kafka2", "kafka3")


class KafkaWays:
    """Kafka, from ``with`` to its end.

    Args:
        cache_dir: See :class:`KafkaNodes`.

    Attributes:
        kafka: Its brokers.
        network: The network. Its names are those of :data:`BROKERS` and of the nodes. Set its ``group_of``.
    """

    def __init__(self, cache_dir: Path) -> None:
        listeners = dict(zip(BROKERS, free_ports(len(BROKERS)), strict=True))
        self.network = PacketLoss(listeners, lambda _: 0, NAMES)
        ways = [(port, urlsplit(self.network.urls[name]).port or 0) for name, port in listeners.items()]
        self.kafka = KafkaNodes(cache_dir, len(BROKERS), ways=ways)
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self._stack.callback(self.network.close)
        self._stack.enter_context(self.kafka)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def cut_off(self, node: str, *brokers: str) -> None:
        """Lose all packets between a node and some brokers, and no others."""
        self.network.lose(*((node, one) for one in brokers), *((one, node) for one in brokers))

    def coordinator(self, group: str) -> str:
        """The broker that coordinates a consumer group."""
        admin = AdminClient({"bootstrap.servers": self.kafka.servers})
        described = admin.describe_consumer_groups([group])[group].result(60)
        return BROKERS[described.coordinator.id - 1]
