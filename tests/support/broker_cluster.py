"""Three brokers of one cluster, as processes, before a service."""

from __future__ import annotations

import asyncio
from pathlib import Path

from node_processes import NodeProcess, config_of

from holdfast.testing.ports import free_ports

FORWARDER = """
[queues.orders]
[forwarders.next]
queue = "orders"
to = "{url}"
"""
NAMES = ("a", "b", "c")
PARTITIONS = 6


class Brokers:
    """Three brokers of one cluster, before a service, behind a load balancer without stickiness.

    Args:
        directory: Where they run.
        store: The URL of the database.
        service: The URL of the service.
    """

    def __init__(self, directory: Path, store: str, service: str) -> None:
        self._directory = directory
        self._config = config_of(store, PARTITIONS, FORWARDER.format(url=service), lease=2.0)
        self._ports = dict(zip(NAMES, free_ports(len(NAMES)), strict=True))
        self.nodes: dict[str, NodeProcess] = {}
        self.urls: dict[str, str] = {}

    async def start(self, *names: str) -> None:
        """Start nodes, and wait until they serve."""
        for name in names:
            config = self._config.replace("listen.port = 0", f"listen.port = {self._ports[name]}")
            self.nodes[name] = NodeProcess(self._directory, name, config)
        for name in names:
            self.urls[name] = await asyncio.to_thread(self.nodes[name].url)

    def served(self, name: str) -> set[int]:
        """The partitions that a node has served since its start, from its log."""
        lines = self.nodes[name].errors.read_text().splitlines()
        return {
            int(line.rpartition("worker=")[2].split()[0])
            for line in lines
            if "destination.ready" in line and "worker=" in line
        }

    def clean(self) -> None:
        """Leave nothing behind."""
        for node in self.nodes.values():
            node.clean()
