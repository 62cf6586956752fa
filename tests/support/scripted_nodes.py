"""Nodes of a cluster as processes, whose membership a test scripts."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from crew import PATIENCE
from databases import PostgreSQL
from node_processes import NodeProcess, config_of

from holdfast.cluster.view import DATABASE
from holdfast.outages import Trouble


class Node(NodeProcess):
    """A node with an agent that the test scripts.

    Args:
        directory: Where it runs.
        name: Its name.
        config: The broker's file.
    """

    def __init__(self, directory: Path, name: str, config: str) -> None:
        script = directory / f"{name}.script"
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(script))
            listener.listen()
            listener.settimeout(PATIENCE)
            child = str(Path(__file__).with_name("node_child.py"))
            super().__init__(directory, name, config, program=[child], environment={"SCRIPT": str(script)})
            try:
                self._agent, _ = listener.accept()
            except TimeoutError:
                self.clean()
                raise AssertionError(self.errors.read_text()) from None
        self._agent.settimeout(PATIENCE)
        self._lines = self._agent.makefile("rb")
        told = self.heard()
        assert told["node"] == name
        self.node_url: str = told["url"]

    def heard(self) -> dict[str, Any]:
        """The next message of its supervisor, or at first of its agent, but for what it reports; empty if there are no
        more."""
        for line in self._lines:
            if "serving" not in (told := json.loads(line)):
                return told  # type: ignore[no-any-return]
        return {}

    def tell(self, message: Mapping[str, Any]) -> None:
        """Let its agent send a message to the supervisor."""
        self._agent.sendall(json.dumps(message).encode() + b"\n")

    def end_agent(self) -> None:
        """Let its agent end."""
        self._lines.close()
        self._agent.close()


class Cluster:
    """Nodes whose partitions the test moves: the agents' part.

    Args:
        directory: Where they run.
        database: The server.
        partitions: How many there are.
        more: Further tables of the broker's file.
    """

    def __init__(self, directory: Path, database: PostgreSQL, partitions: int, more: str = "") -> None:
        self.database, self.store = database, database.new_url()
        self.config = config_of(self.store, partitions, more)
        self.directory = directory
        self.partitions = partitions
        self.nodes: dict[str, Node] = {}
        self.owners: dict[int, str] = {}
        self._epochs = dict.fromkeys(range(partitions), 0)

    def start(self, *names: str) -> None:
        """Start nodes."""
        for name in names:
            self.nodes[name] = Node(self.directory, name, self.config)

    def own(self, owners: Mapping[int, str]) -> None:
        """Give partitions to nodes that nobody serves, and tell everybody."""
        for partition, name in owners.items():
            self._epochs[partition] += 1
            self.owners[partition] = name
        self.tell()

    def tell(
        self,
        trouble: Trouble | None = None,
        cut_off_by: Sequence[str] = (),
        failed: Mapping[str, Mapping[int, str]] | None = None,
        engine: str = DATABASE,
    ) -> None:
        """Send all nodes what they know of the cluster now, or why they know no more, who cannot reach them, and what
        each could not start."""
        urls = {name: node.node_url for name, node in self.nodes.items()}
        for name, node in self.nodes.items():
            mine = {str(one): self._epochs[one] for one, owner in self.owners.items() if owner == name}
            owners = {str(one): owner for one, owner in self.owners.items()}
            view: dict[str, Any] = {
                "node": name,
                "mine": mine,
                "owners": owners,
                "nodes": urls,
                "is_draining": False,
                "trouble": msgspec.to_builtins(trouble),
                "cut_off_by": cut_off_by,
                "engine": engine,
                "failed": {str(one): why for one, why in (failed or {}).get(name, {}).items()},
            }
            node.tell({"view": view})

    def move(self, partition: int, to: str) -> None:
        """Move a partition: its old owner stops it first."""
        old = self.nodes[self.owners.pop(partition)]
        self.tell()
        assert old.heard() == {"stopped": [partition]}
        self.own({partition: to})

    def lose(self, name: str) -> list[int]:
        """Forget a node, and end its sessions, as a claim of its partitions does; the partitions that it had."""
        del self.nodes[name]
        space = self.store.rpartition("=")[2]
        lost = [one for one, owner in self.owners.items() if owner == name]
        for one in lost:
            del self.owners[one]
            application = f"holdfast {space}/worker-{one}" if one else f"holdfast {space}"
            ended = f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = '{application}'"
            self.database.sql(ended)
        return lost

    def __iter__(self) -> Iterator[Node]:
        return iter(self.nodes.values())
