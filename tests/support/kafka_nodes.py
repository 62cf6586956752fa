"""Private Kafka clusters for tests, from the jars that Maven brings: nodes that the tests may kill, pause and start."""

from __future__ import annotations

import base64
import itertools
import os
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from maven_build import fetch
from quick_spark import FLAGS

from holdfast.testing.ports import free_ports

POM = Path(__file__).parents[1] / "pipeline" / "kafka" / "server" / "pom.xml"
PATIENCE = 240.0
_JAVA = (
    "java",
    "-Xmx384m",
    *FLAGS,
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
)
_PROPERTIES = """\
process.roles=broker,controller
node.id={node}
controller.quorum.voters={voters}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
inter.broker.listener.name=PLAINTEXT
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
log.dirs={directory}/log
auto.create.topics.enable=true
offsets.topic.replication.factor={nodes}
default.replication.factor={nodes}
offsets.topic.num.partitions=1
transaction.state.log.replication.factor={nodes}
transaction.state.log.min.isr={in_sync}
transaction.state.log.num.partitions=1
share.coordinator.state.topic.replication.factor={nodes}
share.coordinator.state.topic.min.isr={in_sync}
share.coordinator.state.topic.num.partitions=1
group.initial.rebalance.delay.ms=0
group.consumer.min.session.timeout.ms=1000
group.consumer.min.heartbeat.interval.ms=200
group.min.session.timeout.ms=1000
log.cleaner.dedupe.buffer.size=16777216
num.network.threads=2
num.io.threads=4
broker.session.timeout.ms=3000
broker.heartbeat.interval.ms=500
controller.quorum.fetch.timeout.ms=1000
controller.quorum.election.timeout.ms=500
controller.quorum.election.backoff.max.ms=500
"""
_SECURE = """\
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS
ssl.keystore.type=PEM
ssl.keystore.location={directory}/broker.pem
sasl.enabled.mechanisms=SCRAM-SHA-512,PLAIN
listener.name.secure.scram-sha-512.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;
listener.name.secure.plain.sasl.jaas.config=\
org.apache.kafka.common.security.plain.PlainLoginModule required user_{user}="{password}";
"""
USER, PASSWORD = "holdfast", "s3cret/@ word"
STORE = ("READ", "WRITE", "DESCRIBE", "DESCRIBE_CONFIGS", "DELETE", "CREATE")
SHARED = ("READ", "WRITE", "DESCRIBE", "DESCRIBE_CONFIGS", "CREATE")
"""What docs/how-to/kafka-store.md says that the user needs for the topic of a store, and for those of a cluster."""


def permit(servers: str, topic: str, *, without: str = "") -> None:
    """Let the user do what the documentation says, and no more."""
    topics = {
        topic: STORE,
        **dict.fromkeys([f"{topic}-{name}" for name in ("nodes", "identifiers", "security")], SHARED),
    }
    wanted = [("TOPIC", name, operation) for name, operations in topics.items() for operation in operations]
    wanted += [("GROUP", f"{topic}-nodes", operation) for operation in ("READ", "DESCRIBE")]
    bindings = [
        AclBinding(
            ResourceType[kind],
            name,
            ResourcePatternType.LITERAL,
            f"User:{USER}",
            "*",
            AclOperation[operation],
            AclPermissionType.ALLOW,
        )
        for kind, name, operation in wanted
        if f"{kind} {operation}" not in without.split(", ")
    ]
    admin = AdminClient({"bootstrap.servers": servers})
    for done in admin.create_acls(bindings).values():
        done.result(60)


def certificate_of(authority: Any) -> bytes:
    """A new certificate of an authority of trustme's for ``localhost``, with its key, in the form that Kafka reads."""
    issued = authority.issue_cert("localhost")
    key = load_pem_private_key(issued.private_key_pem.bytes(), None)
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return pem + b"".join(one.bytes() for one in issued.cert_chain_pems)


class KafkaNodes:
    """A Kafka cluster, from ``with`` to its end.

    Args:
        cache_dir: Where what Maven brings is kept.
        nodes: How many nodes; each is a broker and a controller.
        certificate: Key and certificate in PEM for ``localhost``: then each node has a second listener, with TLS, on
            which clients log in with SASL. Their user may do nothing until the test permits it.
        ways: Two ports for each node: that of one more listener, and the one that it advertises, of a proxy before it.
            Then :attr:`servers` are the proxies.

    Attributes:
        servers: The addresses without TLS.
        secure: Those with TLS and SASL.
    """

    def __init__(
        self, cache_dir: Path, nodes: int = 1, certificate: bytes = b"", ways: Sequence[tuple[int, int]] = ()
    ) -> None:
        self._jars = fetch(cache_dir, POM)
        self.directory = Path(tempfile.mkdtemp(prefix="holdfast-kafka-"))
        ports = free_ports(3 * nodes)
        self.ports, controllers, secure = ports[:nodes], ports[nodes : 2 * nodes], ports[2 * nodes :]
        self.secure = ",".join(f"localhost:{port}" for port in secure)
        self._has_users = bool(certificate)
        self.servers = ",".join(f"127.0.0.1:{port}" for port in [advertised for _, advertised in ways] or self.ports)
        self.processes: list[subprocess.Popen[bytes] | None] = [None] * nodes
        self._topics = itertools.count(1)
        voters = ",".join(f"{node + 1}@127.0.0.1:{port}" for node, port in enumerate(controllers))
        for node in range(nodes):
            place = self.directory / str(node)
            (place / "log").mkdir(parents=True)
            text = _PROPERTIES.format(
                node=node + 1,
                voters=voters,
                port=self.ports[node],
                controller=controllers[node],
                directory=place,
                nodes=nodes,
                in_sync=min(nodes, 2),
            )
            if certificate:
                listener = f"SECURE://localhost:{secure[node]}"
                for name in ("listeners", "advertised.listeners"):
                    text = text.replace(f"\n{name}=", f"\n{name}={listener},")
                text = text.replace("PLAINTEXT:PLAINTEXT\n", "PLAINTEXT:PLAINTEXT,SECURE:SASL_SSL\n")
                text += _SECURE.format(directory=place, user=USER, password=PASSWORD)
                (place / "broker.pem").write_bytes(certificate)
            if ways:
                for name, port in zip(("listeners", "advertised.listeners"), ways[node], strict=True):
                    text = text.replace(f"\n{name}=", f"\n{name}=WAY://127.0.0.1:{port},")
                text = text.replace("PLAINTEXT:PLAINTEXT\n", "PLAINTEXT:PLAINTEXT,WAY:PLAINTEXT\n")
            (place / "server.properties").write_text(text)

    def __enter__(self) -> Self:
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        numbers = range(len(self.processes))
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda node: self._format(node, cluster), numbers))
        try:
            for node in numbers:
                self.start(node)
            self.wait()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for node in range(len(self.processes)):
            self.kill(node)
        shutil.rmtree(self.directory, ignore_errors=True)

    def _command(self, node: int, *arguments: str) -> list[str]:
        file = self.directory / str(node) / "server.properties"
        return [*_JAVA, "-cp", f"{self._jars}/*", *arguments, str(file)]

    def _format(self, node: int, cluster: str) -> None:
        users = ["--add-scram", f"SCRAM-SHA-512=[name={USER},password={PASSWORD}]"] if self._has_users else []
        identity = f"--cluster-id={cluster}"  # in one argument, because it may begin with a hyphen
        format_it = ["kafka.tools.StorageTool", "format", identity, "--ignore-formatted", *users, "-c"]
        command = self._command(node, *format_it)
        subprocess.run(command, check=True, capture_output=True)

    def start(self, node: int) -> None:
        """Start a node; see :meth:`wait`."""
        with (self.directory / str(node) / "out").open("ab") as out:
            self.processes[node] = subprocess.Popen(self._command(node, "kafka.Kafka"), stdout=out, stderr=out)

    def wait(self) -> None:
        """Wait until the cluster knows all nodes that were started."""
        count = sum(one is not None for one in self.processes)
        quiet: dict[str, Any] = {"log_level": 0, "error_cb": lambda _error: None}
        admin = AdminClient({"bootstrap.servers": self.servers, **quiet})
        until = time.monotonic() + PATIENCE
        while True:
            try:
                if len(admin.list_topics(timeout=2).brokers) == count:
                    return
            except Exception as error:  # not yet
                why = str(error)
            else:
                why = "not all nodes are there"
            dead = [node for node, one in enumerate(self.processes) if one is not None and one.poll() is not None]
            if dead or time.monotonic() > until:
                raise RuntimeError(why + (self.directory / str((dead or [0])[0]) / "out").read_text()[-3000:])
            time.sleep(0.05)

    def kill(self, node: int) -> None:
        """Kill a node."""
        process, self.processes[node] = self.processes[node], None
        if process is not None:
            process.kill()
            process.wait()

    def end(self, node: int) -> None:
        """Let a node end in order, as for an upgrade."""
        process, self.processes[node] = self.processes[node], None
        assert process is not None
        process.terminate()
        process.wait(PATIENCE)

    def pause(self, node: int, *, on: bool = True) -> None:
        """Stop a node's process, or let it continue."""
        process = self.processes[node]
        assert process is not None
        os.kill(process.pid, signal.SIGSTOP if on else signal.SIGCONT)

    def alter_password(self, password: str) -> None:
        """Give the user another password for SCRAM-SHA-512."""
        mechanism = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        altered = UserScramCredentialUpsertion(USER, mechanism, password.encode())
        admin = AdminClient({"bootstrap.servers": self.servers})
        admin.alter_user_scram_credentials([altered])[USER].result(PATIENCE)

    def restart_in_turn(self) -> None:
        """Restart one node after the other, each when the cluster knows all of them."""
        for node in range(len(self.processes)):
            self.end(node)
            self.start(node)
            self.wait()
            self.wait_in_sync()

    def wait_in_sync(self) -> None:
        """Wait until all replicas of all topics are in sync."""
        admin, until = AdminClient({"bootstrap.servers": self.servers}), time.monotonic() + PATIENCE
        while any(
            len(one.isrs) < len(one.replicas)
            for topic in admin.list_topics(timeout=PATIENCE).topics.values()
            for one in topic.partitions.values()
        ):
            if time.monotonic() > until:
                raise RuntimeError("not all replicas are in sync")
            time.sleep(0.1)

    def new_url(self, cache: Path, **options: object) -> str:
        """The URL of a store in a new topic, with a cache under a directory."""
        replicas = min(3, len(self.processes))
        given = {"cache": cache, "replicas": replicas, "partitions": 1, **options}
        query = "&".join(f"{name}={value}" for name, value in given.items())
        return f"kafka://{self.servers}/holdfast-{next(self._topics)}?{query}"
