"""A real Kafka of one node for a test, built through Maven, and a client of it that makes, fills and reads topics."""

from __future__ import annotations

import base64
import socket
import subprocess
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from maven_build import build, fetch
from quick_spark import FLAGS

from holdfast.testing.ports import free_ports

PROJECTS = Path(__file__).parents[1] / "pipeline" / "kafka"
_JAVA = (
    "java",
    "-Xmx384m",
    *FLAGS,
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
)
_PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
inter.broker.listener.name=PLAINTEXT
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
log.dirs={directory}/log
auto.create.topics.enable=false
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
offsets.topic.num.partitions=1
transaction.state.log.num.partitions=1
share.coordinator.state.topic.num.partitions=1
log.cleaner.dedupe.buffer.size=16777216
"""


@dataclass(frozen=True)
class Record:
    """A record of a topic."""

    partition: int
    offset: int
    key: str | None
    value: str | None
    headers: Mapping[str, str]


def connector_jars(cache_dir: Path) -> str:
    """The jars of Spark's Kafka connector, as the option ``--jars`` takes them."""
    return ",".join(map(str, sorted(fetch(cache_dir, PROJECTS / "connector" / "pom.xml").glob("*.jar"))))


class KafkaServer:
    """A Kafka node and its client, from ``with`` to its end.

    Args:
        cache_dir: Where what Maven brings is kept.
        directory: Its own, for its log.
    """

    def __init__(self, cache_dir: Path, directory: Path) -> None:
        self._class_path = build(cache_dir, PROJECTS / "server")
        self._directory = directory
        port, controller = free_ports(2)
        self.address = f"127.0.0.1:{port}"
        (directory / "log").mkdir(parents=True)
        self._file = directory / "server.properties"
        self._file.write_text(_PROPERTIES.format(port=port, controller=controller, directory=directory))

    def __enter__(self) -> Self:
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        with (self._directory / "out").open("w") as out:
            run = [*_JAVA, "-cp", self._class_path]
            tool = [*run, "kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(self._file)]
            subprocess.run(tool, stdout=out, stderr=out, check=True)
            self._server = subprocess.Popen([*run, "kafka.Kafka", str(self._file)], stdout=out, stderr=out)
            self._client = subprocess.Popen(
                [*run, "peer.Main", self.address], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=out, text=True
            )
        return self

    def __exit__(self, *_: object) -> None:
        for process in (self._client, self._server):
            process.kill()
            process.wait()

    def create(self, topic: str, partitions: int) -> None:
        """Make a topic. The first waits until the node has started."""
        until = time.monotonic() + 60
        while not self._answers():
            if self._server.poll() is not None or time.monotonic() > until:
                raise RuntimeError((self._directory / "out").read_text()[-4000:])
            time.sleep(0.1)
        self._ask("create", topic, str(partitions))

    def send(self, topic: str, partition: int, value: str | None, key: str | None = None, **headers: str) -> None:
        """Append a record, and wait until Kafka has it."""
        told = [text for name, one in headers.items() for text in (name, _field(one))]
        self._ask("send", topic, str(partition), _field(key), _field(value), *told)

    def records(self, topic: str) -> list[Record]:
        """All that a topic holds, each partition in its order."""
        found = []
        for line in self._ask("dump", topic):
            partition, offset, key, value, *headers = line.split("\t")
            named = {name: _text(one) or "" for name, one in zip(headers[::2], headers[1::2], strict=True)}
            found.append(Record(int(partition), int(offset), _text(key), _text(value), named))
        return sorted(found, key=lambda one: (one.partition, one.offset))

    def _answers(self) -> bool:
        host, _, port = self.address.rpartition(":")
        try:
            socket.create_connection((host, int(port)), 1).close()
        except OSError:
            return False
        return True

    def _ask(self, *fields: str) -> list[str]:
        assert self._client.stdin is not None and self._client.stdout is not None
        self._client.stdin.write("\t".join(fields) + "\n")
        self._client.stdin.flush()
        lines = []
        for line in self._client.stdout:
            if line == "end\n":
                return lines
            lines.append(line.rstrip("\n"))
        raise RuntimeError((self._directory / "out").read_text()[-4000:])


def _field(text: str | None) -> str:
    return "-" if text is None else base64.b64encode(text.encode()).decode()


def _text(field: str) -> str | None:
    return None if field == "-" else base64.b64decode(field).decode()
