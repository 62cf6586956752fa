"""Three brokers of one cluster, as processes, before a service."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from crew import PATIENCE
from node_processes import NodeProcess, config_of

from holdfast.cluster.operating.engines import engine_of
from holdfast.cluster.operating.status import ClusterStatus
from holdfast.endpoint.journal.files import Segment, rows_of, segments
from holdfast.exceptions import ConfigurationError, StoreAway
from holdfast.pipeline.journal import journal_directories
from holdfast.testing.ports import free_ports

FORWARDER = """
[queues.orders]
[forwarders.next]
queue = "orders"
to = "{url}"
policy.expires = "1h"
"""
"""The default is a little less than a minute. A test may take the engine away for longer."""
JOURNAL = """
[journal]
directory = "journal-NODE"
"""
NAMES = ("a", "b", "c")
MORE = ("d",)
"""Nodes that may join later."""
PARTITIONS = 6

Got = tuple[str, dict[str, list[int]]]
"""The URL of the service, and what it got: Sequence of messages or of calls -> the numbers."""

needs_proc = pytest.mark.skipif(
    not os.path.exists("/proc/net/tcp"), reason="only /proc shows which node has a connection"
)


def store_on(engine: str, request: pytest.FixtureRequest, *, kafkas: int = 1, partitions: int = PARTITIONS) -> str:
    """The URL of a new store for a cluster on this engine; ``kafkas`` is how many brokers Kafka has."""
    if engine != "kafka":
        return str(request.getfixturevalue("servers")(engine).new_url())
    cache = request.getfixturevalue("tmp_path") / "cache" / "NODE"
    return str(request.getfixturevalue("kafka_nodes")(kafkas).new_url(cache, partitions=partitions))


class Brokers:
    """Three brokers of one cluster, with a forwarder to a service or with queues only.

    Args:
        directory: Where they run.
        store: The URL of the database or the topic; in it, NODE stands for the name of a node.
        service: The URL of the service; "" for none.
        more: Further lines of the broker's file.
        partitions: Of the cluster.
    """

    def __init__(
        self,
        directory: Path,
        store: str,
        service: str = "",
        more: str = "",
        partitions: int = PARTITIONS,
    ) -> None:
        self.store = store
        # With a shorter lease, a busy machine loses leases on Kafka.
        lease = 3.0 if store.startswith("kafka:") else 2.0
        self._directory = directory
        tables = FORWARDER.format(url=service) if service else ""
        self._config = config_of(store, partitions, more + tables, lease=lease)
        names = NAMES + MORE
        ports = free_ports(2 * len(names))
        self._ports = dict(zip(names, ports, strict=False))
        self.admins = {name: f"http://127.0.0.1:{port}" for name, port in zip(names, ports[len(names) :], strict=True)}
        self.stores: dict[str, str] = {}
        """URLs of the database for single nodes."""
        self.environments: dict[str, dict[str, str]] = {}
        self.node_ports: dict[str, int] = {}
        """Ports of cluster listeners; others are free ones."""
        self.program: tuple[str, ...] = ("-m", "holdfast.cli.main")
        self.advertised: dict[str, str] = {}
        """URLs that nodes advertise instead of those of their admin listeners."""
        self.nodes: dict[str, NodeProcess] = {}
        self.urls: dict[str, str] = {}

    async def start(self, *names: str) -> None:
        """Start nodes, and wait until they serve."""
        for name in names:
            config = self._config.replace("listen.port = 0", f"listen.port = {self._ports[name]}")
            config = config.replace("admin.port = 0", f"admin.port = {self.admins[name].rpartition(':')[2]}")
            config = config.replace(self.store, self.stores.get(name, self.store))
            config = config.replace("NODE", name)
            config = config.replace("\nport = 0\n", f"\nport = {self.node_ports.get(name, 0)}\n")
            own = {"HOLDFAST_NODE_ADMIN_URL": self.advertised[name]} if name in self.advertised else {}
            own |= self.environments.get(name, {})
            self.nodes[name] = NodeProcess(self._directory, name, config, environment=own, program=self.program)
        for name in names:
            self.urls[name] = await asyncio.to_thread(self.nodes[name].url)
            assert await asyncio.to_thread(self.nodes[name].url) == self.admins[name]

    def group_of(self, name: str) -> int:
        """The process group of a node; 0 while it has none."""
        node = self.nodes.get(name)
        return node.process.pid if node is not None else 0

    def owners(self) -> dict[int, str]:
        """The node of each partition, as the database or Kafka has it."""
        return _owners(engine_of(self.store).read_status(self.store))

    async def wait_for_owners(self, condition: Callable[[dict[int, str]], bool]) -> dict[int, str]:
        """Wait until the owners meet a condition; they."""
        return _owners(await self.wait_for_status(lambda status: condition(_owners(status))))

    async def wait_for_status(self, condition: Callable[[ClusterStatus], bool]) -> ClusterStatus:
        """Wait until what ``holdfast cluster status`` shows meets a condition; that."""
        async with asyncio.timeout(PATIENCE):
            while True:
                with suppress(StoreAway):  # a command gives up after seconds, whatever the machine has to do
                    if condition(status := await asyncio.to_thread(engine_of(self.store).read_status, self.store)):
                        return status
                await asyncio.sleep(0.02)

    def served(self, name: str) -> set[int]:
        """The partitions that a node has served since its start, from its log."""
        lines = self.nodes[name].errors.read_text().splitlines()
        return {
            int(line.rpartition("worker=")[2].split()[0])
            for line in lines
            if "destination.ready" in line and "worker=" in line
        }

    def events(self) -> list[dict[str, Any]]:
        """What the journals of all nodes tell."""
        places = [self._directory / f"journal-{name}" for name in self.nodes]
        return [row for place in places for one in _journals(place) for row in _rows(segments(one))]

    def clean(self) -> None:
        """Leave nothing behind."""
        for node in self.nodes.values():
            node.clean()


def _owners(status: ClusterStatus) -> dict[int, str]:
    return {one.partition: one.owner for one in status.partitions if one.owner is not None}


def _journals(place: Path) -> list[Path]:
    try:
        return journal_directories(place)
    except ConfigurationError:  # the node was killed before it wrote an event
        return []


def _rows(files: list[Segment]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for one in files:
        if one.is_parquet:
            for row in pq.read_table(one.path).to_pylist():
                times = {name: value.timestamp() for name in ("at", "since") if (value := row[name]) is not None}
                found.append(row | times)
        else:
            with one.path.open("rb") as file:
                found += rows_of(file)
    return found
