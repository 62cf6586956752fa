"""The live WCF client with a user name in its messages: WS-SecureConversation under TLS, with its standard bindings.

``WCF_CLIENT`` names the program; without it all of this is skipped.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from interop_cells import SIX, cell
from processes import Process
from waiting import until
from wcf.destination import contract_app, key_of, text_of
from wcf.https import certificate_in, context_in, lossy_path, tls_before
from wcf.live_client import Ledger, LiveWCFClient, needs_the_client
from wcf.network import LOSS
from wcf.outage import Outage, restart

import holdfast
from holdfast.broker.broker import Broker
from holdfast.broker.config import AdminConfig, BrokerConfig, ForwarderConfig, ListenConfig, SecurityConfig
from holdfast.endpoint.listener_settings import Listeners
from holdfast.endpoint.serve import Service
from holdfast.security.freshness import Freshness
from holdfast.security.users import Users
from holdfast.testing.ports import free_ports

pytestmark = [
    pytest.mark.interop,
    pytest.mark.wcf,
    pytest.mark.timeout(900),
    needs_the_client,
    cell(peer="WCF", role="destination", security="secure conversation", pattern="mixed"),
]

SLOW = 5.0
"""Seconds that a slow service takes: longer than the client's retransmission timeout."""
PASSWORDS = {"alice": "secret"}


class Shop:
    """A destination with the contract of the recordings that demands a user name.

    Args:
        directory: For its store, and its nonces.
        sleep: seconds that a handler takes.
        options: Of the tokens.
    """

    def __init__(self, directory: Path, sleep: float = 0.0, **options: float) -> None:
        self._sleep = sleep
        self.ledger = Ledger()
        self.users: set[str] = set()
        self.trusted: list[str] = []
        shop = self

        class Validator(holdfast.UsernameTokenValidator):
            def inbound(self, context: holdfast.MessageContext) -> None:
                super().inbound(context)
                if "/RST/SCT" in context.envelope.action:
                    shop.trusted.append(context.envelope.action.partition("/RST/")[2])

        users = Validator(PASSWORDS, nonces=directory / "nonces", **options)
        self.app = contract_app(directory / "inbox", self._handled, processors=[users])

    async def _handled(self, message: holdfast.Message) -> None:
        self.users.add(message.user)
        self.ledger.note(key_of(message))
        await asyncio.sleep(self._sleep)

    @property
    def open_sequences(self) -> int:
        return self.app.running.engine.protocol.inbound.sequences.shares.open_count

    @contextlib.asynccontextmanager
    async def served(self, directory: Path) -> AsyncIterator[str]:
        service = Service(self.app, Listeners(port=0, ssl_context=context_in(directory)))
        await service.start()
        try:
            yield service.url
        finally:
            await service.close(0.0)


def client_of(url: str, binding: str, **options: str) -> LiveWCFClient:
    given = {"username": "alice:secret", "trust_any": ""} | options
    return LiveWCFClient(url, binding=binding, **given)


@pytest.mark.parametrize("binding", ["ws", pytest.param("ws2007", marks=pytest.mark.nightly)])
async def test_a_client_with_a_user_name_has_its_session(tmp_path: Path, binding: str) -> None:
    shop = Shop(tmp_path)
    async with shop.served(tmp_path) as url:
        client = client_of(url, binding)
        await client.run("open; notify 1..3; echo 4..6; close")
        await shop.app.handled()
    assert client.failed == []
    assert shop.ledger.numbers == {"wcf": [1, 2, 3, 4, 5, 6]}
    assert shop.users == {"alice"}
    assert shop.trusted == ["SCT", "SCT/Cancel"]
    assert shop.open_sequences == 0


@pytest.mark.nightly
@pytest.mark.parametrize("binding", ["ws", "ws2007"])
@cell(pattern="one-way")
async def test_a_client_with_one_way_operations_only_sends_with_a_user_name(tmp_path: Path, binding: str) -> None:
    shop = Shop(tmp_path)
    async with shop.served(tmp_path) as url:
        client = client_of(url, binding, contract="notify")
        await client.run("open; notify 1..20; close")
        await shop.app.handled()
    assert client.failed == []
    assert shop.ledger.numbers == {"wcf": list(range(1, 21))}


@cell(pattern="no session", setup="a wrong password", versions=[SIX[3]])
async def test_a_client_with_a_wrong_password_reads_that_it_is_refused(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    async with shop.served(tmp_path) as url:
        (line, *_) = await client_of(url, "ws", username="alice:wrong").run("open; close")
    assert (line["failed"], line["exception"]) == ("open", "MessageSecurityException")
    assert "could not be authenticated or authorized" in line["cause"]


@pytest.mark.nightly
@pytest.mark.parametrize("binding", ["ws", "ws2007"])
@cell(setup="the token renewed")
async def test_a_client_renews_its_token_and_keeps_its_session(tmp_path: Path, binding: str) -> None:
    """With a token of ten seconds instead of fifteen hours, and clocks that agree."""
    shop = Shop(tmp_path, session=10, freshness=Freshness(skew=2))
    async with shop.served(tmp_path) as url:
        client = client_of(url, binding)
        await client.run("open; notify 1; sleep 5; echo 2; sleep 6; echo 3; sleep 7; notify 4; sleep 8; echo 5; close")
        await shop.app.handled()
    assert client.failed == []
    assert shop.ledger.numbers == {"wcf": [1, 2, 3, 4, 5]}
    assert shop.trusted.count("SCT/Renew") >= 2
    assert shop.trusted.count("SCT") == 1, "it keeps its token"


@pytest.mark.nightly
@pytest.mark.parametrize("binding", ["ws", "ws2007"])
@cell(service="slow")
async def test_a_client_with_a_user_name_is_answered_by_a_slow_service(tmp_path: Path, binding: str) -> None:
    shop = Shop(tmp_path, sleep=SLOW)
    async with shop.served(tmp_path) as url:
        client = client_of(url, binding)
        await client.run("open; notify 1; echo 2; notify 3; echo 4; close")
        await shop.app.handled()
    assert client.failed == []
    assert shop.ledger.numbers == {"wcf": [1, 2, 3, 4]}


@pytest.mark.nightly
@pytest.mark.parametrize("binding", ["ws", "ws2007"])
@cell(network=LOSS)
async def test_with_a_fifth_of_requests_and_of_answers_lost_no_secured_message_is_lost(
    tmp_path: Path, binding: str
) -> None:
    shop = Shop(tmp_path)
    service = Service(shop.app, Listeners(port=0))
    await service.start()
    try:
        async with lossy_path(service.url, 7, tmp_path) as (url, proxy):
            client = client_of(url, binding)
            await client.run("open; notify 1..15; echo 16..25; close")
            await shop.app.handled()
    finally:
        await service.close(0.0)
    assert client.failed == []
    assert proxy.counts.lost > 5
    assert shop.ledger.numbers == {"wcf": list(range(1, 26))}


@pytest.mark.nightly
@pytest.mark.crash
@pytest.mark.parametrize("binding", ["ws", "ws2007"])
@cell(fault="Holdfast killed")
async def test_no_client_with_a_user_name_notices_that_the_service_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, binding: str
) -> None:
    log = tmp_path / "handled"
    monkeypatch.setenv("WCF_SERVICE_STORE", str(tmp_path / "inbox"))
    monkeypatch.setenv("WCF_SERVICE_LOG", str(log))
    monkeypatch.setenv("WCF_SERVICE_NONCES", str(tmp_path / "nonces"))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    (port,) = free_ports(1)
    arguments = ["serve", "wcf.service:app", "--port", str(port), "--tls-cert", str(certificate_in(tmp_path))]
    service = Process(tmp_path, "service", port, *arguments)
    await service.start()

    def numbers() -> list[str]:
        return log.read_text().splitlines() if log.exists() else []

    try:
        client = client_of(service.url.replace("http:", "https:"), binding)
        running = asyncio.create_task(
            client.run("open; notify 1..5; echo 6..8; sleep 4; notify 9..12; echo 13..15; sleep 4; echo 16..18; close")
        )
        for count in (8, 15):
            await until(lambda count=count: len(numbers()) >= count)  # type: ignore[misc]
            await restart(service)
        await running
        await until(lambda: len({line.split()[1] for line in numbers()}) >= 18)
    finally:
        await service.kill()
    assert client.failed == []
    assert sorted({int(line.split()[-1]) for line in numbers()}) == list(range(1, 19))


@contextlib.asynccontextmanager
async def behind_a_broker(directory: Path, handled: list[str], seconds: float = 0.0) -> AsyncIterator[str]:
    """The address of a broker that demands a user name, before a service whose handlers take some seconds."""

    async def handle(message: holdfast.Message) -> None:
        handled.append(text_of(message))
        await asyncio.sleep(seconds)

    inner = Service(contract_app(":memory:", handle), Listeners(port=0))
    await inner.start()
    (directory / "users").write_text("alice:secret\n")
    config = BrokerConfig(
        store=str(directory / "broker"),
        listen=ListenConfig(port=0),
        admin=AdminConfig(port=0),
        forwarders=(ForwarderConfig("service", "inbox", inner.url),),
        security=SecurityConfig(Users(directory / "users")),
    )
    broker = Broker(config)
    await broker.service.start()
    try:
        yield broker.service.url
    finally:
        await broker.service.close(0.5)
        await inner.close(0.0)


@pytest.mark.nightly
@pytest.mark.parametrize("binding", ["ws", "ws2007"])
@cell(broker="broker")
async def test_through_a_broker_a_client_with_a_user_name_has_its_session(tmp_path: Path, binding: str) -> None:
    handled: list[str] = []
    async with (
        behind_a_broker(tmp_path, handled) as inner,
        tls_before(inner, context_in(tmp_path)) as url,
    ):
        client = client_of(url, binding)
        await client.run("open; notify 1..5; echo 6..10; close")
        wrong = await client_of(url, binding, username="alice:wrong").run("open; close")
        await until(lambda: len(handled) == 10)
    assert client.failed == []
    assert wrong[0]["failed"] == "open"


@pytest.mark.nightly
@pytest.mark.parametrize("binding", ["ws", "ws2007"])
@cell(broker="broker", service="slow")
async def test_through_a_broker_a_slow_service_answers_a_client_with_a_user_name(tmp_path: Path, binding: str) -> None:
    handled: list[str] = []
    async with (
        behind_a_broker(tmp_path, handled, SLOW) as inner,
        tls_before(inner, context_in(tmp_path)) as url,
    ):
        client = client_of(url, binding)
        await client.run("open; notify 1; echo 2; notify 3; echo 4; close")
        await until(lambda: len(handled) == 4)
    assert client.failed == []


@pytest.mark.nightly
@pytest.mark.parametrize("binding", ["ws", "ws2007"])
@cell(broker="broker", network=LOSS)
async def test_through_a_broker_no_secured_message_is_lost_with_a_fifth_of_all_lost(
    tmp_path: Path, binding: str
) -> None:
    handled: list[str] = []
    async with behind_a_broker(tmp_path, handled) as inner, lossy_path(inner, 7, tmp_path) as (url, proxy):
        client = client_of(url, binding)
        await client.run("open; notify 1..15; echo 16..25; close")
        await until(lambda: len(handled) == 25)
    assert client.failed == []
    assert proxy.counts.lost > 5


@pytest.mark.nightly
@pytest.mark.crash
@pytest.mark.parametrize("binding", ["ws", "ws2007"])
@cell(broker="broker", fault="Holdfast killed")
async def test_no_client_with_a_user_name_notices_that_the_broker_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, binding: str
) -> None:
    users = tmp_path / "users"
    users.write_text("alice:secret\n")
    users.chmod(0o600)
    secured = f'[listen.tls]\ncertificate = "{certificate_in(tmp_path)}"\n[security]\nusers = "users"'
    outage = Outage(tmp_path, monkeypatch, secured)
    async with outage.running(outage.service, outage.broker):
        client = client_of(outage.broker.url.replace("http:", "https:"), binding)
        running = asyncio.create_task(
            client.run("open; notify 1..5; echo 6..8; sleep 4; notify 9..12; echo 13..15; sleep 4; echo 16..18; close")
        )
        for count in (8, 15):
            await until(lambda count=count: len(outage.handled()) >= count)  # type: ignore[misc]
            await restart(outage.broker)
        await running
        await until(lambda: len(outage.handled()) >= 18)
        wrong = client_of(outage.broker.url.replace("http:", "https:"), binding, username="alice:wrong")
        await wrong.run("open; close")
    assert client.failed == []
    assert sorted(outage.handled()) == list(range(1, 19))
    assert wrong.failed[0]["exception"] == "MessageSecurityException"
