"""Brokers and services that run for a test, each behind a real socket."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from broker_cluster import NAMES, Brokers, Got, store_on
from cluster_clients import Callers, holdfast_callers
from interop_cells import cell
from java_contract import class_path
from java_peer import NAMESPACE, JavaPeer
from packet_loss import PacketLoss
from peer_callers import HAS_CXF, PEER_MARKS, peer_callers
from wcf.destination import key_of

import holdfast
from holdfast import Destination
from holdfast.broker.broker import Broker
from holdfast.broker.config import AdminConfig, BrokerConfig, ListenConfig
from holdfast.broker.config_file import read_config
from holdfast.endpoint.listener_settings import Listeners
from holdfast.endpoint.serve import Service
from holdfast.testing.ports import free_ports

RunBroker = Callable[..., Awaitable[Broker]]
RunService = Callable[..., Awaitable[Service]]
Start = Callable[[str], Awaitable[Broker]]


@pytest.fixture
async def run_broker(tmp_path: Any) -> AsyncIterator[RunBroker]:
    """Runs brokers until the test is over; what it is given is :class:`BrokerConfig`'s."""
    brokers = []

    async def run(**told: Any) -> Broker:
        told = {
            "store": str(tmp_path / "broker"),
            "listen": ListenConfig(port=0),
            "admin": AdminConfig(port=0),
            "partitions": 2,
        } | told
        broker = Broker(BrokerConfig(**told))
        brokers.append(broker)
        await broker.service.start()
        return broker

    yield run
    for broker in brokers:
        await broker.service.close(0.5)


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Start]:
    """Starts brokers by the text of ``broker.toml`` until the test is over; the file may then be written again."""
    brokers: list[Broker] = []

    async def run(text: str) -> Broker:
        file = tmp_path / "broker.toml"
        file.write_text(text)
        broker = Broker(read_config(file), read_again=lambda config: read_config(file, running=config))
        brokers.append(broker)
        await broker.service.start()
        return broker

    yield run
    for broker in brokers:
        await broker.service.close(0.5)


@pytest.fixture
async def run_service(tmp_path: Path) -> AsyncIterator[RunService]:
    """Runs services until the test is over, and so before ``tmp_path`` with their stores is removed."""
    services = []

    async def run(app: Destination, port: int = 0) -> Service:
        service = Service(app, Listeners(port=port))
        services.append(service)
        await service.start()
        return service

    yield run
    for service in services:
        await service.close(0.5)


@pytest.fixture
async def got(run_service: RunService) -> Got:
    """A service behind the brokers: its address, and what it got in each Sequence of messages and of calls.

    For other stacks, it has the contract of the interop tests too.
    """
    got: dict[str, list[int]] = {}
    app = Destination(":memory:")

    def note(kind: str, message: holdfast.Message) -> None:
        name, number = str(message.body.text).split("-")
        got.setdefault(kind + name, []).append(int(number))

    @app.on("urn:test:submit")
    async def submit(message: holdfast.Message) -> None:
        note("submit ", message)

    @app.on("urn:test:ask")
    async def ask(message: holdfast.Message) -> str:
        note("ask ", message)
        return f"<r>{message.body.text}</r>"

    def note_contract(message: holdfast.Message) -> None:
        key, number = key_of(message).split()
        got.setdefault(key, []).append(int(number))

    async def echo(message: holdfast.Message) -> bytes:
        note_contract(message)
        return message.body_bytes.replace(b"echo", b"echoResponse")

    for action in ("notify", "Notify"):  # CXF's, WCF's
        app.on(f"{NAMESPACE}/{action}")(note_contract)
    for action in ("echo", "Echo"):
        app.on(f"{NAMESPACE}/{action}")(echo)

    return (await run_service(app)).url, got


@pytest.fixture
def names() -> int:
    """How many of Holdfast's own clients send, and how many call."""
    return 4


@pytest.fixture(params=[pytest.param("holdfast", marks=cell(role="none")), pytest.param("peers", marks=PEER_MARKS)])
def callers(request: pytest.FixtureRequest, got: Got, names: int, tmp_path: Path) -> Iterator[Callers]:
    """Those who call a cluster."""
    if request.param == "holdfast":
        yield holdfast_callers(names)
        return
    with ExitStack() as stack:
        cxf = JavaPeer(class_path(request.config, "cxf"), tmp_path / "cxf.errors") if HAS_CXF else None
        yield peer_callers(stack.enter_context(cxf) if cxf else None, got[1])


@pytest.fixture(params=["postgresql", pytest.param("kafka", marks=pytest.mark.nightly)])
def engine(request: pytest.FixtureRequest) -> str:
    """What the nodes of a cluster share."""
    return str(request.param)


@pytest.fixture
def more() -> str:
    """Further lines of the file of a cluster's nodes."""
    return ""


@pytest.fixture
def service(got: tuple[str, dict[str, list[int]]]) -> str:
    """Where the forwarders of a cluster send to."""
    return got[0]


@pytest.fixture
async def idle(
    request: pytest.FixtureRequest, engine: str, more: str, service: str, tmp_path: Path
) -> AsyncIterator[Brokers]:
    """Three brokers that are not started yet."""
    made = Brokers(tmp_path, store_on(engine, request), service, more)
    try:
        yield made
    finally:
        made.clean()


@pytest.fixture
async def brokers(idle: Brokers) -> Brokers:
    """Three brokers of one cluster before that service."""
    await idle.start(*NAMES)
    return idle


@pytest.fixture
def network(idle: Brokers) -> Iterator[PacketLoss]:
    """The network between the nodes."""
    idle.node_ports = dict(zip(NAMES, free_ports(3), strict=True))
    made = PacketLoss(idle.node_ports, idle.group_of)
    idle.environments = {name: {"HOLDFAST_NODE_URL": url} for name, url in made.urls.items()}
    yield made
    made.close()
