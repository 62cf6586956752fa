"""The programs of the guides on peers, run as they stand: those that serve .NET clients with the live WCF client, those
that send against a destination that speaks the peer's versions."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from guides import blocks
from processes import Process
from signers import authority, issue
from waiting import until
from wcf.https import certificate_in, context_in
from wcf.live_client import LiveWCFClient, needs_the_client
from wcf.orders import Orders

import holdfast
from holdfast.endpoint.listener_settings import Listeners
from holdfast.endpoint.serve import Service
from holdfast.testing.ports import free_ports

pytestmark = [pytest.mark.interop, pytest.mark.nightly, pytest.mark.timeout(300)]

ROOT = Path(__file__).resolve().parent.parent.parent
GUIDES = ROOT / "docs" / "how-to"


def program(guide: str, starts: str, **replaced: str) -> str:
    """The first program of a guide that contains a text, with other addresses."""
    found = re.findall(r"^```python\n(.*?)^```", (GUIDES / guide).read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    text = next(one for one in found if starts in one)
    for old, new in replaced.items():
        assert old in text or old.startswith("_"), f"{guide} has no {old}"
        text = text.replace(old, new)
    return text


def at(guide: str, starts: str, address: str, url: str) -> str:
    return program(guide, starts, **{address: url})


def environment() -> dict[str, str]:
    paths = [str(ROOT / "src"), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1"}


async def output_of(text: str, place: Path, **variables: str) -> str:
    """Run a program to its end, with further environment variables, and return what it prints."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", text, cwd=place, env=environment() | variables, stdout=asyncio.subprocess.PIPE
    )
    said, _ = await asyncio.wait_for(process.communicate(), 120)
    assert process.returncode == 0
    return said.decode()


@asynccontextmanager
async def served(text: str, place: Path, *options: str) -> AsyncIterator[tuple[str, asyncio.StreamReader]]:
    """Run ``holdfast serve`` with a program, as the guides do; gives its URL and what it prints."""
    (place / "orders.py").write_text(text, encoding="utf-8")
    arguments = ["-m", "holdfast", "serve", "orders:app", "--port", "0", *options]
    process = await asyncio.create_subprocess_exec(
        sys.executable, *arguments, cwd=place, env=environment(), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        line = await asyncio.wait_for(process.stdout.readline(), 120)
        yield line.decode().rpartition(" ")[2].strip(), process.stdout
    finally:
        process.terminate()
        await asyncio.wait_for(process.wait(), 120)


async def test_the_guide_on_wcf_calls_a_service(tmp_path: Path) -> None:
    orders = Orders()
    service = Service(orders.app, Listeners(port=0))
    await service.start()
    try:
        said = await output_of(at("wcf.md", "ECHO", "https://partner.example/Orders.svc", service.url), tmp_path)
    finally:
        await service.close(0.0)
    assert said == "12.50\n"
    assert list(orders.called.values()) == [["submit 1", "price 2"]]


@needs_the_client
@pytest.mark.parametrize("binding", ["ws", "ws2007"])
async def test_the_guide_on_wcf_serves_a_net_client(tmp_path: Path, binding: str) -> None:
    async with served(program("wcf.md", "IOrders/Cancel"), tmp_path) as (url, printed):
        client = LiveWCFClient(url, contract="orders", binding=binding)
        await client.run("open; submit 7 bread; price bread; cancel 7; close")
        assert await asyncio.wait_for(printed.readline(), 240) == b"None\n"  # the id is inside the order
    (refused,) = client.failed
    assert (refused["failed"], refused["typed"]) == ("cancel 7", True)


async def test_the_guide_on_user_names_sends_to_the_one_that_checks(tmp_path: Path) -> None:
    async with served(program("user-names.md", "message.user"), tmp_path) as (url, printed):
        sender = at("user-names.md", "alice = ", "https://partner.example/orders", url)
        await output_of(sender, tmp_path)
        assert await asyncio.wait_for(printed.readline(), 240) == b"alice {urn:shop}order\n"


@pytest.mark.parametrize("rm", ["1.1", "1.0"])
async def test_the_guide_on_user_names_calls_a_service_as_wcf_demands(tmp_path: Path, rm: str) -> None:
    certificate = certificate_in(tmp_path)
    serves = program("user-names.md", "message.user")
    async with served(serves, tmp_path, "--tls-cert", str(certificate)) as (url, printed):
        address = url.replace("localhost", "127.0.0.1")
        sender = at("user-names.md", "alice = holdfast.SecureConversation", "https://partner.example/orders", address)
        assert 'Versions("1.1"' in sender
        sender = sender.replace('Versions("1.1"', f'Versions("{rm}"')
        await output_of(sender, tmp_path, SSL_CERT_FILE=str(tmp_path / "ca.pem"))
        assert await asyncio.wait_for(printed.readline(), 240) == b"alice {urn:shop}order\n"
    assert list(tmp_path.glob("tokens.db*")), "the source had a token"


@needs_the_client
async def test_the_guide_on_user_names_serves_a_net_client(tmp_path: Path) -> None:
    text = program("user-names.md", "UsernameTokenValidator")
    text = text[: text.index("@app")] if "@app" in text else text
    text += "\n\n@app.on()\ndef any(message: holdfast.Message) -> None:\n    print(message.user, flush=True)\n"
    certificate = certificate_in(tmp_path)
    async with served(text, tmp_path, "--tls-cert", str(certificate)) as (url, printed):
        client = LiveWCFClient(
            url.replace("localhost", "127.0.0.1"),
            binding="ws",
            contract="orders",
            username="alice:secret",
            trust_any="",
        )
        await client.run("open; submit 7 bread; close")
        assert await asyncio.wait_for(printed.readline(), 240) == b"alice\n"
    assert client.failed == []


async def test_the_guide_on_cxf_sends_in_its_versions(tmp_path: Path) -> None:
    app = holdfast.Destination(":memory:")
    got: list[tuple[str, str]] = []
    app.on("urn:orders/Submit")(lambda message: got.append((str(message.body.tag), message.soap)))
    service = Service(app, Listeners(port=0))
    await service.start()
    try:
        url = service.url
        await output_of(at("cxf.md", "sent.acknowledged", "http://partner.example/services/orders", url), tmp_path)
        await app.handled()
    finally:
        await service.close(0.0)
    assert got == [("{urn:orders}order", "1.1")]


async def test_the_guide_on_callbacks_prints_what_the_service_sends(tmp_path: Path) -> None:
    app = holdfast.Destination(":memory:", http=holdfast.DestinationHTTP(allow_addresses=["http://localhost"]))
    app.on("urn:exchange/Subscribe")(lambda message: None)
    service = Service(app, Listeners(port=0))
    await service.start()
    text = at("callbacks.md", "@source.on", "http://localhost:8080/", service.url)
    text = text.replace('"127.0.0.1", 8090', '"127.0.0.1", 0').replace(', address="http://localhost:8090/"', "")
    tell = "        print(source._running.calls.local, flush=True)\n"
    text = text.replace("        await asyncio.Event", f"{tell}        await asyncio.Event")
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", text, cwd=tmp_path, env=environment(), stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        listener = (await asyncio.wait_for(process.stdout.readline(), 240)).decode().strip()
        async with holdfast.Source(listener, ":memory:") as exchange:
            await exchange.send("<Quote xmlns='urn:exchange'>42</Quote>", action="urn:exchange/Quote")
            assert await asyncio.wait_for(process.stdout.readline(), 240) == b"42\n"
    finally:
        process.kill()
        await process.wait()
        await service.close(0.0)


@pytest.mark.parametrize("senders", ["signed", "local"])
async def test_the_guide_on_certificates_forwards_to_a_gateway_that_demands_signatures(
    tmp_path: Path, senders: str
) -> None:
    """The gateway is a destination that demands signed and encrypted messages over https."""
    issuer, names = authority(), ("broker", "gateway", "alice")
    (tmp_path / "authority.pem").write_bytes(issuer.pem)
    for name in names:
        files = issue(f"CN={name},O=Example", issuer if name == "alice" else None).files(tmp_path)
        files.certificate.rename(tmp_path / f"{name}.pem")
        files.key.rename(tmp_path / f"{name}.key")
    demands = {"suite": "Basic256Sha256", "encrypt": holdfast.Encryption()}
    own, trusted = (tmp_path / "gateway.pem", tmp_path / "gateway.key"), tmp_path / "broker.pem"
    app = holdfast.Destination(":memory:", processors=[holdfast.X509(*own, trusted=trusted, **demands)])
    got: list[tuple[str, str]] = []
    app.on("urn:shop/Order")(lambda message: got.append((message.user, str(message.body.tag))))
    context = context_in(tmp_path)
    gateway = Service(app, Listeners(port=0, ssl_context=context))
    await gateway.start()
    (port,) = free_ports(1)
    broker = Process(tmp_path, "broker", port, "broker", "--config", "broker.toml")
    (tmp_path / "broker.toml").write_text(gateway_configuration(gateway.url, broker.url, port, senders))
    proofs = []
    if senders == "signed":
        proofs = [holdfast.X509(tmp_path / "alice.pem", tmp_path / "alice.key", trusted=tmp_path / "broker.pem")]
    try:
        await broker.start()
        async with holdfast.Source(broker.url, ":memory:", processors=proofs) as source:
            await source.send("<order xmlns='urn:shop'/>", action="urn:shop/Order")
            await source.flush(120)
        await until(lambda: len(got) == 1)
    finally:
        await broker.kill()
        await gateway.close(0.0)
    assert got == [("CN=broker,O=Example", "{urn:shop}order")]


def gateway_configuration(gateway: str, broker: str, port: int, senders: str) -> str:
    """The guide's configuration, with other addresses; for local senders without what checks signatures, as it says."""
    (text,) = (one for one in blocks("certificates.md", "toml") if "[forwarders.gateway]" in one)
    for old, new in {"https://gateway.example/orders": gateway, "https://broker.example/rm": broker}.items():
        assert old in text
        text = text.replace(old, new)
    if senders == "local":
        text = re.sub(r"^\[security\.signature\].*?\n\n", "", text, flags=re.MULTILINE | re.DOTALL)
        text = re.sub(r'^user = "CN=alice.*\n', "", text, flags=re.MULTILINE)
        text = text.replace('[[routes]]\nqueues = "other"\n', "")
        assert "alice" not in text
    return f'listen.port = {port}\nadmin.enabled = false\n{text}\n[forwarders.gateway.tls]\nca = "ca.pem"\n'
