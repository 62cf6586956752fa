"""Apache CXF before a cluster of three brokers, one of which is killed or paused."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest
from balancer import ROUNDS, Balancer
from broker_cluster import NAMES, Brokers, store_on
from interop_cells import cell
from java_contract import BAD, LIVE, PATIENCE, Caller, Operation
from java_peer import NAMESPACE, JavaPeer
from java_stacks import cxf as words
from waiting import until

import holdfast
from holdfast.endpoint.listener_settings import Listeners
from holdfast.endpoint.serve import Service
from holdfast.testing.proxy import Faults, LossyProxy

pytestmark = [
    *LIVE,
    cell(peer="CXF", role="destination", broker="broker"),
    pytest.mark.crash,
    pytest.mark.nightly,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not hasattr(os, "fork"), reason="workers are forked"),
]

RM10, RM11 = holdfast.Versions("1.0", "2004/08", "1.1"), holdfast.Versions("1.1", "2005/08", "1.1")
CLIENTS, COUNT = 4, 40


class Ledger:
    """A service behind the brokers, and the numbers that each client has sent to it."""

    def __init__(self) -> None:
        self.numbers: dict[str, list[int]] = {}
        self.app = holdfast.Destination(":memory:")
        self.app.on(f"{NAMESPACE}/notify")(self._note)
        self.app.on(f"{NAMESPACE}/echo")(self._echo)

    def _note(self, message: holdfast.Message) -> None:
        key, number = (str(message.body.findtext(f"{{{NAMESPACE}}}{name}")) for name in ("key", "number"))
        self.numbers.setdefault(key, []).append(int(number))

    async def _echo(self, message: holdfast.Message) -> bytes:
        self._note(message)
        return message.body_bytes.replace(b"echo", b"echoResponse")

    def of(self, key: str) -> list[int]:
        return self.numbers.get(key, [])


@pytest.mark.parametrize("versions", [RM10, RM11], ids=["rm1.0", "rm1.1"])
@pytest.mark.parametrize("operation", ["notify", "echo"])
@cell(setup="a cluster, four clients", fault="one of three brokers killed or paused")
@pytest.mark.parametrize("trouble", ["killed", "paused"])
async def test_cxf_clients_of_a_cluster_do_not_notice_a_broker_that_is_killed_or_paused(
    cxf: JavaPeer,
    versions: holdfast.Versions,
    operation: Operation,
    trouble: str,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    await call_through(cxf, versions, operation, trouble, tmp_path, store_on("postgresql", request))


@pytest.mark.parametrize("versions", [RM10, RM11], ids=["rm1.0", "rm1.1"])
@pytest.mark.parametrize("operation", ["notify", "echo"])
@cell(setup="a cluster on Kafka, four clients", fault="one of three brokers killed or paused")
@pytest.mark.parametrize("trouble", ["killed", "paused"])
async def test_cxf_clients_of_a_cluster_on_kafka_do_not_notice_it_either(
    cxf: JavaPeer,
    versions: holdfast.Versions,
    operation: Operation,
    trouble: str,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    await call_through(cxf, versions, operation, trouble, tmp_path, store_on("kafka", request, kafkas=3))


@pytest.mark.parametrize("versions", [RM10, RM11], ids=["rm1.0", "rm1.1"])
@cell(setup="a cluster, four clients", pattern="one-way", fault="one of three brokers killed", network=BAD)
async def test_cxf_clients_of_a_lossy_cluster_do_not_notice_that_a_broker_is_killed(
    cxf: JavaPeer, versions: holdfast.Versions, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    await call_through(cxf, versions, "notify", "killed", tmp_path, store_on("postgresql", request), BAD)


async def call_through(
    cxf: JavaPeer,
    versions: holdfast.Versions,
    operation: Operation,
    trouble: str,
    directory: Path,
    store: str,
    faults: Faults = Faults(),  # noqa: B008 # a value, and never changed
) -> None:
    """Let clients call through a cluster while one of its brokers is killed or paused."""
    ledger = Ledger()
    service = Service(ledger.app, Listeners(port=0))
    await service.start()
    brokers = Brokers(directory, store, service.url)
    # An anonymous client whose repeat meets the answer to its request loses that (docs/internals/cxf.md). So it repeats
    # a request only when a broker no longer holds it for the reply; before that, the load balancer does.
    setup = words(versions, interval=32_000 if operation == "echo" else 300)
    keys = [f"k{number}" for number in range(CLIENTS)]
    try:
        await brokers.start(*NAMES)
        async with (
            Balancer(list(brokers.urls.values()), repeats=True, rounds=ROUNDS) as balancer,
            LossyProxy(balancer.url, faults, seed=3) as network,
        ):
            callers = {
                key: Caller(
                    cxf,
                    await cxf.ask("connect", url=network.url, key=key, decoupled=False, **setup),
                    operation,
                )
                for key in keys
            }
            calls = [
                asyncio.create_task(one.call_on(lambda key=key: ledger.of(key), 1, COUNT))  # type: ignore[misc]
                for key, one in callers.items()
            ]
            await until(lambda: sum(map(len, ledger.numbers.values())) >= CLIENTS * 4, PATIENCE)
            node, lost = brokers.nodes["a"], brokers.served("a")
            node.signal(signal.SIGKILL if trouble == "killed" else signal.SIGSTOP)
            await until(lambda: lost <= brokers.served("b") | brokers.served("c"), PATIENCE)
            if trouble == "paused":
                node.signal(signal.SIGCONT)
            await asyncio.gather(*calls)
            for one in callers.values():
                await one.settle()
            await until(lambda: all(len(ledger.of(key)) >= COUNT for key in keys), PATIENCE)
    finally:
        brokers.clean()
        await service.close(0.5)
    assert ledger.numbers == {key: list(range(1, COUNT + 1)) for key in keys}
