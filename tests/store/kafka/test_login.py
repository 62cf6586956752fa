"""TLS and SASL to a real Kafka with an authority of its own: what works, and what is refused, and how."""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from broker_cluster import Brokers
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from crew import wait_until
from node_processes import NodeProcess, config_of

import holdfast
from holdfast.cluster.group.shared_topic import SharedTopic
from holdfast.cluster.group.verification import verify_cluster
from holdfast.core.records import Batch, Record
from holdfast.exceptions import ConfigurationError, StoreAway, StoreFailed
from holdfast.store import open_store
from holdfast.store.kafka.address import read_kafka_address
from holdfast.testing.ports import free_ports

kafka_nodes_of = pytest.importorskip("kafka_nodes", reason="confluent-kafka is not installed")
maven_build = pytest.importorskip("maven_build")
trustme = pytest.importorskip("trustme")
pytestmark = [pytest.mark.nightly, pytest.mark.timeout(600)]
RIGHT: dict[str, Any] = {"security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-512"}
Url = Callable[..., str]


@pytest.fixture(scope="module")
def nodes(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    if reason := maven_build.available():
        pytest.skip(reason)
    authority = trustme.CA()
    pem = kafka_nodes_of.certificate_of(authority)
    with kafka_nodes_of.KafkaNodes(pytestconfig.cache.mkdir("kafka-server"), 1, pem) as found:
        authority.cert_pem.write_to_path(found.directory / "ca.pem")
        trustme.CA().cert_pem.write_to_path(found.directory / "other.pem")
        yield found


@pytest.fixture
def url(nodes: Any, tmp_path: Path) -> Url:
    """The URL of a store in a new topic."""

    def made(
        password: str = kafka_nodes_of.PASSWORD,
        servers: str = "",
        ca: str = "ca.pem",
        without: str = "",
        **options: Any,
    ) -> str:
        query = {"ssl.ca.location": nodes.directory / ca, **RIGHT, **options}
        base = nodes.new_url(tmp_path / "cache")
        kafka_nodes_of.permit(nodes.servers, read_kafka_address(base).topic, without=without)
        base = base.replace(nodes.servers, servers or nodes.secure)
        login = f"{kafka_nodes_of.USER}:{quote(password, safe='')}@"
        return base.replace("://", f"://{login}") + "".join(f"&{name}={value}" for name, value in query.items())

    return made


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-512", "PLAIN"])
def test_a_store_is_kept_over_tls_with_a_user_and_its_password(url: Url, mechanism: str) -> None:
    place = url(**{"sasl.mechanism": mechanism})
    store = open_store(place)
    store.commit(Batch(appends=[("q", 0, 0, Record("urn:s", 1, "urn:a", b"<x/>", 1.0))]))
    store.close()
    store = open_store(place)
    assert [record.body for _, record in store.read("q", 0, 0, 9)] == [b"<x/>"]
    store.close()
    assert kafka_nodes_of.PASSWORD not in repr(store) + store.shown  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("without", "resource"),
    [
        ("GROUP DESCRIBE, GROUP READ", "Describe for the group {0}-nodes"),
        ("TOPIC READ", "for the topic {0}"),
        ("TOPIC WRITE", "Write, Describe, DescribeConfigs and Delete for the topic {0}"),
        ("TOPIC CREATE", "Create"),
        ("TOPIC DESCRIBE_CONFIGS", "for the topic {0}"),
    ],
)
def test_the_error_names_the_permission_that_the_user_lacks(url: Url, without: str, resource: str) -> None:
    place = url(without=without, patience=20)
    with pytest.raises(StoreFailed) as caught:
        open_store(place)
    assert resource.format(read_kafka_address(place).topic) in caught.value.remedy


def forbid_writing(servers: str) -> None:
    """Take from the user every permission to write, to any topic."""
    every = AclBindingFilter(
        ResourceType.TOPIC,
        None,
        ResourcePatternType.ANY,
        f"User:{kafka_nodes_of.USER}",
        None,
        AclOperation.WRITE,
        AclPermissionType.ALLOW,
    )
    admin = AdminClient({"bootstrap.servers": servers})
    for done in admin.delete_acls([every]).values():
        done.result(60)


def test_an_opening_by_a_user_that_may_write_nowhere_ends_with_the_permission(url: Url, nodes: Any) -> None:
    """Kafka then refuses the producer itself, not the write."""
    place = url(patience=20)
    forbid_writing(nodes.servers)
    with pytest.raises(StoreFailed, match="authorization failed") as caught:
        open_store(place)
    assert f"Write for the topic {read_kafka_address(place).topic}" in caught.value.remedy


def test_a_store_whose_user_may_write_no_longer_fails_with_the_permission(url: Url, nodes: Any) -> None:
    place = url(patience=20)
    store = open_store(place)
    try:
        forbid_writing(nodes.servers)
        with pytest.raises(StoreFailed, match="authorization failed") as caught:
            store.commit(Batch(appends=[("q", 0, 0, Record("urn:s", 1, "urn:a", b"<x/>", 1.0))]))
        assert f"for the topic {read_kafka_address(place).topic}" in caught.value.remedy
    finally:
        store.close()


def test_a_running_store_waits_until_its_user_may_write_again(url: Url, nodes: Any) -> None:
    place = url(patience=1)
    topic = read_kafka_address(place).topic
    store = open_store(place)
    store.retry_for(math.inf)
    try:
        for number in range(2):
            forbid_writing(nodes.servers)
            batch = Batch(appends=[("q", 0, number, Record("urn:s", number + 1, "urn:a", b"<x/>", 1.0))])
            committing = threading.Thread(target=store.commit, args=(batch,))
            committing.start()
            wait_until(lambda: store.trouble is not None)
            assert store.trouble is not None and f"for the topic {topic}" in store.trouble.remedy
            committing.join(4)
            assert committing.is_alive()
            kafka_nodes_of.permit(nodes.servers, topic)
            committing.join(120)
            assert (committing.is_alive(), store.trouble) == (False, None)
        assert [offset for offset, _ in store.read("q", 0, 0, 9)] == [0, 1]
    finally:
        store.close()


def test_a_small_topic_names_the_permission_to_write_that_its_user_lost(url: Url, nodes: Any) -> None:
    address = read_kafka_address(url())
    shared = SharedTopic(address, f"{address.topic}-nodes")
    try:
        shared.open(creates=True)
        shared.put("a", b"1")
        forbid_writing(nodes.servers)
        with pytest.raises(StoreFailed, match="authorization failed") as caught:
            shared.put("a", b"2")
        assert f"for the topic {address.topic}-nodes" in caught.value.remedy
        kafka_nodes_of.permit(nodes.servers, address.topic)
        wait_until(lambda: written(shared))
    finally:
        shared.close()


def written(shared: SharedTopic) -> bool:
    with contextlib.suppress(StoreFailed):
        shared.put("a", b"3")
        return True
    return False


WRONG = [
    ({"password": "no"}, "SASL authentication error", "Check the user in the URL, its password"),
    ({"password": "no", "sasl.mechanism": "PLAIN"}, "SASL authentication error", "Check the user in the URL"),
    ({"sasl.mechanism": "SCRAM-SHA-256"}, "Unsupported SASL mechanism", "sasl.mechanism"),
    ({"ca": "other.pem"}, "certificate verify failed", "Check ssl.ca.location in the URL"),
    ({"ca": "none.pem"}, "none.pem", "Check the options of the URL"),
    ({"sasl.mechanism": "GSSAPI"}, "No provider for SASL mechanism", "Check the options of the URL"),
]


@pytest.mark.parametrize(("options", "what", "remedy"), WRONG)
def test_a_kafka_that_does_not_accept_the_client_ends_the_opening(
    url: Url, options: dict[str, Any], what: str, remedy: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        open_store(url(**options))
    assert what in caught.value.message and remedy in caught.value.remedy


def test_a_certificate_for_another_host_is_refused(url: Url, nodes: Any) -> None:
    with pytest.raises(ConfigurationError) as caught:
        open_store(url(servers=nodes.secure.replace("localhost", "127.0.0.1")))
    assert "must name the hosts in the URL" in caught.value.remedy


def test_a_kafka_that_does_not_answer_is_away_with_the_reason(url: Url, nodes: Any) -> None:
    for servers, options, why in [
        (f"localhost:{free_ports(1)[0]}", {}, "Connection refused"),
        (nodes.servers, {}, "PLAINTEXT broker listener"),
        (nodes.secure, {"security.protocol": "PLAINTEXT"}, "another security.protocol than the URL"),
        ("nosuch.invalid:9092", {}, "resolve"),
    ]:
        with pytest.raises(StoreAway, match=why) as caught:
            open_store(url(servers=servers, **options))
        assert "is running and reachable" in caught.value.remedy


async def test_a_cluster_serves_over_tls_and_sasl(url: Url, tmp_path: Path) -> None:
    """All clients of Kafka log in: those of the logs, of the group, and of the topics that the nodes share."""
    for name, content in (("password", kafka_nodes_of.PASSWORD), ("users", "alice:secret\n")):
        (tmp_path / name).write_text(content)
        (tmp_path / name).chmod(0o600)
    place = url(partitions=2)
    cluster = Brokers(tmp_path, without_password(place), "", '[queues.orders]\n[security]\nusers = "users"\n')
    cluster._config = 'store_password_file = "password"\n' + cluster._config.replace("partitions = 6", "partitions = 2")
    user = holdfast.UsernameToken("alice", "secret", digest=True)
    try:
        await cluster.start("a")
        async with holdfast.Source(cluster.urls["a"], ":memory:", processors=[user]) as source:
            for number in range(5):
                await source.send(f"<n>{number}</n>", action="urn:test:note")
            await source.flush(timeout=120)
        found = verify_cluster(place)
        assert (found.problems, found.records) == ((), 5)
    finally:
        cluster.clean()


def without_password(place: str) -> str:
    """The URL as a broker's file has it."""
    return place.replace(f":{quote(kafka_nodes_of.PASSWORD, safe='')}@", "@")


def test_a_node_with_a_wrong_password_ends_and_says_why(url: Url, tmp_path: Path) -> None:
    (tmp_path / "password").write_text("no")
    (tmp_path / "password").chmod(0o600)
    config = 'store_password_file = "password"\n' + config_of(without_password(url()), 1)
    node = NodeProcess(tmp_path, "a", config)
    try:
        assert node.process.wait(120) != 0
        said = node.errors.read_text()
        assert "do not accept each other" in said and "Check the user in the URL, its password" in said
    finally:
        node.clean()
