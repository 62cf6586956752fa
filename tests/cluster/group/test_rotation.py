"""A new password of a cluster on a real Kafka with TLS and SASL, whose brokers restart one after the other."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import urlopen

import pytest
from broker_cluster import Brokers
from crew import PATIENCE

import holdfast
from holdfast.store.kafka.address import read_kafka_address

kafka_nodes_of = pytest.importorskip("kafka_nodes", reason="confluent-kafka is not installed")
maven_build = pytest.importorskip("maven_build")
trustme = pytest.importorskip("trustme")
pytestmark = [pytest.mark.nightly, pytest.mark.timeout(900)]
NEW = "n3w/pass @ word"
LEASE = 20.0


@pytest.fixture
def kafka(pytestconfig: pytest.Config) -> Iterator[Any]:
    """Three brokers, so that the restart of one is no outage."""
    if reason := maven_build.available():
        pytest.skip(reason)
    authority = trustme.CA()
    pem = kafka_nodes_of.certificate_of(authority)
    with kafka_nodes_of.KafkaNodes(pytestconfig.cache.mkdir("kafka-server"), 3, pem) as found:
        authority.cert_pem.write_to_path(found.directory / "ca.pem")
        yield found


@pytest.fixture
def cluster(kafka: Any, tmp_path: Path) -> Iterator[Brokers]:
    """Two nodes that read the password from a file."""
    write_password(tmp_path, kafka_nodes_of.PASSWORD)
    options = {
        "ssl.ca.location": kafka.directory / "ca.pem",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
    }
    place = kafka.new_url(tmp_path / "NODE", partitions=2)
    kafka_nodes_of.permit(kafka.servers, read_kafka_address(place).topic)
    place = place.replace(kafka.servers, f"holdfast@{kafka.secure}")
    place += "".join(f"&{name}={value}" for name, value in options.items())
    made = Brokers(tmp_path, place, more="[queues.orders]\n", partitions=2)
    # The group gets another coordinator at a restart, which takes seconds on a busy machine.
    made._config = 'store_password_file = "password"\n' + made._config.replace("lease = 3.0", f"lease = {LEASE}")
    yield made
    made.clean()


def write_password(directory: Path, password: str) -> None:
    (directory / "password").write_text(f"{password}\n")
    (directory / "password").chmod(0o600)


def asked(url: str) -> str:
    try:
        with urlopen(url, timeout=PATIENCE) as answer:
            return str(answer.read().decode())
    except HTTPError as error:
        return error.read().decode()


async def until(cluster: Brokers, path: str, *words: str) -> None:
    """Wait until all nodes answer a request with these words."""
    async with asyncio.timeout(PATIENCE):
        for name in cluster.nodes:
            text = ""
            while not all(word in text for word in words):
                await asyncio.sleep(0.1)
                text = await asyncio.to_thread(asked, cluster.admins[name] + path)


async def send(source: holdfast.Source, numbers: range) -> None:
    for number in numbers:
        await source.send(f"<n>{number}</n>", action="urn:test:note")
    await source.flush(timeout=PATIENCE)


def logs(cluster: Brokers) -> str:
    text = "".join(one.errors.read_text() for one in cluster.nodes.values())
    assert quote(NEW, safe="") not in text and NEW not in text and kafka_nodes_of.PASSWORD not in text
    return text


async def test_a_password_that_is_changed_in_time_costs_no_lease(kafka: Any, cluster: Brokers, tmp_path: Path) -> None:
    await cluster.start("a", "b")
    await until(cluster, "/readyz", "serving")
    async with holdfast.Source(cluster.urls["a"], ":memory:") as source:
        await send(source, range(3))
        kafka.alter_password(NEW)
        write_password(tmp_path, NEW)
        await asyncio.to_thread(kafka.restart_in_turn)
        await send(source, range(3, 6))
    await until(cluster, "/readyz", "serving")
    text = logs(cluster)
    assert "cluster.lease_lost" not in text
    assert "refused login" not in text


async def test_nodes_name_a_refused_login_and_serve_again_with_the_new_password(
    kafka: Any, cluster: Brokers, tmp_path: Path
) -> None:
    await cluster.start("a", "b")
    await until(cluster, "/readyz", "serving")
    async with holdfast.Source(cluster.urls["a"], ":memory:") as source:
        await send(source, range(3))
        kafka.alter_password(NEW)
        await asyncio.to_thread(kafka.restart_in_turn)
        await until(cluster, "/readyz", "refused login", "store_password_file", "continues on its own")
        await until(cluster, "/healthz", "refused login", "store_password_file")
        for name in cluster.nodes:
            text = cluster.nodes[name].errors.read_text()
            refused = [one for one in text.splitlines() if "cluster.kafka_away" in one and "refused login" in one]
            # Once in each outage, whatever many attempts say.
            assert 1 <= len(refused) <= 1 + text.count("event='cluster.kafka_back'")
            assert all("its password" in one for one in refused)
        write_password(tmp_path, NEW)
        await until(cluster, "/readyz", "serving")
        await send(source, range(3, 6))
    logs(cluster)
