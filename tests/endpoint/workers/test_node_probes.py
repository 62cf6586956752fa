"""Which nodes of a cluster cannot be reached: decided from the answers to probes of real listeners."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Mapping

import pytest
import trustme
from waiting import until

from holdfast.endpoint.workers import node_probes
from holdfast.endpoint.workers.node_listener import NodeListener
from holdfast.endpoint.workers.node_probes import ATTEMPTS, NodeProbes
from holdfast.endpoint.workers.node_proof import NodeProof
from holdfast.endpoint.workers.placement import Placement, Placements
from holdfast.endpoint.workers.request_freshness import RequestFreshness
from holdfast.endpoint.workers.worker_client import WorkerClient
from holdfast.http.exchange import Handler, HTTPLimits
from holdfast.http.server.binding import bind
from holdfast.testing.ports import free_ports


class Nodes:
    """One node that looks, and listeners of others."""

    def __init__(self) -> None:
        self.told: list[dict[str, str]] = []
        self.placements = Placements()
        self.workers = WorkerClient((), self.placements, NodeProof("a secret"), 8)
        self.probes = NodeProbes(self.workers, self.placements, self._tell)
        self._listeners: list[NodeListener] = []

    def _tell(self, nodes: Mapping[str, str]) -> None:
        self.told.append(dict(nodes))

    async def listen(self, port: int, secret: str = "a secret", tls: ssl.SSLContext | None = None) -> None:
        proof = NodeProof(secret)
        workers = WorkerClient((), Placements(), proof, 8)
        take: Handler = lambda _exchange: None  # noqa: E731
        freshness = RequestFreshness(lambda: "challenge")
        listener = NodeListener(workers, Placements(), proof, 0, take, lambda *_: False, freshness, take)
        await listener.start(bind("127.0.0.1", port, 8), HTTPLimits(), tls)
        self._listeners.append(listener)

    def renew(self, tls: ssl.SSLContext) -> None:
        for one in self._listeners:
            one.use(HTTPLimits(), tls)

    async def look(self, count: int) -> None:
        for _ in range(count):
            await self.probes.look()

    async def close(self) -> None:
        await self.probes.close()
        for one in self._listeners:
            await one.close()
        await self.workers.close()


@pytest.fixture
async def nodes() -> AsyncIterator[Nodes]:
    made = Nodes()
    yield made
    await made.close()


async def test_a_node_is_unreachable_after_several_attempts_and_reachable_after_one(nodes: Nodes) -> None:
    here, gone, strange = free_ports(3)
    await nodes.listen(here)
    await nodes.listen(strange, "another secret")
    urls = {"b": here, "c": gone, "d": strange}
    nodes.placements.set(Placement(nodes={name: f"http://127.0.0.1:{port}" for name, port in urls.items()}))
    await nodes.look(ATTEMPTS - 1)
    assert nodes.told == []
    await nodes.look(3)
    (told,) = nodes.told
    assert told.keys() == {"c", "d"}
    assert "refused" in told["c"] and "without the proof" in told["d"]
    await nodes.listen(gone)
    await nodes.look(1)
    assert [one.keys() for one in nodes.told[1:]] == [{"d"}]


async def test_a_node_that_is_no_longer_in_the_cluster_is_forgotten(nodes: Nodes) -> None:
    (gone,) = free_ports(1)
    nodes.placements.set(Placement(nodes={"b": f"http://127.0.0.1:{gone}"}))
    await nodes.look(ATTEMPTS)
    nodes.placements.set(Placement())
    await nodes.look(1)
    assert [set(one) for one in nodes.told] == [{"b"}, set()]


async def test_the_reason_for_an_untrusted_node_names_the_setting_of_the_cluster() -> None:
    accepting, asking = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context()
    trustme.CA().issue_cert("127.0.0.1").configure_cert(accepting)
    nodes = Nodes()
    (port,) = free_ports(1)
    await nodes.listen(port, tls=accepting)
    client = WorkerClient((), Placements(), NodeProof("a secret", is_encrypted=True), 8, asking)
    told = await client.probe(f"https://127.0.0.1:{port}")
    assert told.endswith("trust its authority: ca in [cluster] tls")
    await client.close()
    await nodes.close()


async def test_a_new_certificate_and_authority_count_for_new_connections() -> None:
    old, new = trustme.CA(), trustme.CA()
    accepting = [ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER) for _ in range(2)]
    asking = [ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) for _ in range(2)]
    for authority, server, client in zip((old, new), accepting, asking, strict=True):
        authority.issue_cert("127.0.0.1").configure_cert(server)
        authority.configure_trust(client)
    nodes = Nodes()
    (port,) = free_ports(1)
    await nodes.listen(port, tls=accepting[0])
    client = WorkerClient((), Placements(), NodeProof("a secret"), 8, asking[0])
    url = f"https://127.0.0.1:{port}"
    assert await client.probe(url) == ""
    nodes.renew(accepting[1])
    fresh = WorkerClient((), Placements(), NodeProof("a secret"), 8, asking[0])
    assert "trust its authority" in await fresh.probe(url)
    fresh.use(asking[1])
    assert await fresh.probe(url) == ""
    await fresh.close()
    await client.close()
    await nodes.close()


async def test_an_unexpected_error_does_not_end_the_probes(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(node_probes, "INTERVAL", 0.001)
    looks = iter(range(3))

    async def look() -> None:
        if next(looks, None) is not None:
            raise ZeroDivisionError

    nodes.probes.look = look  # type: ignore[method-assign]
    nodes.probes.start()
    await until(lambda: next(looks, None) is None)
    await nodes.probes.close()
    assert "cluster.probes_failed" in caplog.text
