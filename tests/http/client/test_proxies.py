"""Proxies: a request through one, a tunnel through one, and which one the environment names."""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trustme

from holdfast import ConfigurationError
from holdfast.http.client.client import HTTPClient
from holdfast.http.client.proxies import Proxy
from holdfast.http.outcome import TransportError
from holdfast.http.server.server import Exchange, HTTPServer


class Tunnels:
    """A proxy that opens every tunnel it is asked for, and notes the heads of the requests it got."""

    def __init__(self, answer: bytes = b"HTTP/1.1 200 Connection established\r\n\r\n") -> None:
        self.heads: list[str] = []
        self._answer = answer
        self._copies: list[asyncio.Task[None]] = []

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        self.heads.append(head)
        writer.write(self._answer)
        if not self._answer.startswith(b"HTTP/1.1 200"):
            writer.close()
            return
        host, _, port = head.split(" ")[1].rpartition(":")
        far_reader, far_writer = await asyncio.open_connection(host, int(port))
        self._copies = [
            asyncio.ensure_future(_copy(reader, far_writer)),
            asyncio.ensure_future(_copy(far_reader, writer)),
        ]


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
    except OSError:
        pass  # one side aborted: so does the other
    writer.close()


@asynccontextmanager
async def tunnelling(tunnels: Tunnels) -> AsyncIterator[str]:
    server = await asyncio.start_server(tunnels, "127.0.0.1", 0)
    yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    server.close()


async def test_a_plain_request_names_its_place_to_the_proxy() -> None:
    heads: list[list[str]] = []

    async def proxy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(2):
            heads.append((await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n"))
            await reader.readexactly(1)
            writer.write(b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(proxy, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with HTTPClient(proxy=f"http://me:p%40ss@127.0.0.1:{port}") as client:
        for _ in range(2):
            await client.fetch("POST", "http://partner.example:8080/rm?a=1", b"x", {})
    server.close()
    word = base64.b64encode(b"me:p@ss").decode()
    for head in heads:
        assert head[0] == "POST http://partner.example:8080/rm?a=1 HTTP/1.1"
        assert {"Host: partner.example:8080", f"Proxy-Authorization: Basic {word}"} <= set(head)
    assert len(heads) == 2


async def test_tls_goes_through_a_tunnel_from_end_to_end() -> None:
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    trust = ssl.create_default_context()
    authority.configure_trust(trust)
    asked: list[dict[bytes, bytes]] = []

    def handler(exchange: Exchange) -> None:
        asked.append(dict(exchange.request.headers))
        exchange.respond(200, b"whole" * 100_000)

    server = HTTPServer()
    await server.start(handler, "127.0.0.1", 0, ssl_context=context)
    tunnels = Tunnels()
    async with tunnelling(tunnels) as proxy, HTTPClient(proxy=proxy, ssl_context=trust) as client:
        for _ in range(2):
            answer = await client.fetch("POST", f"https://127.0.0.1:{server.port}/", b"x" * 100_000, {})
            assert answer.body == b"whole" * 100_000
    await server.close()
    assert len(tunnels.heads) == 1, "the tunnel was kept"
    assert tunnels.heads[0].startswith(f"CONNECT 127.0.0.1:{server_port(asked)} HTTP/1.1\r\n")
    assert b"proxy-authorization" not in asked[0]


def server_port(asked: list[dict[bytes, bytes]]) -> str:
    return asked[0][b"host"].decode().rpartition(":")[2]


async def test_a_tunnel_trusts_no_more_than_a_connection_does() -> None:
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    server = HTTPServer()
    await server.start(lambda exchange: exchange.respond(202), "127.0.0.1", 0, ssl_context=context)
    async with tunnelling(Tunnels()) as proxy, HTTPClient(proxy=proxy) as client:
        with pytest.raises(TransportError, match="no trusted TLS connection") as caught:
            await client.fetch("POST", f"https://127.0.0.1:{server.port}/", b"x", {})
    await server.close()
    assert caught.value.connected is False


@pytest.mark.parametrize(
    "answer",
    [b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n", b"nonsense\r\n\r\n", b"HTTP/1.1 200", b"x" * 100_000],
    ids=["refused", "no HTTP", "cut off", "without end"],
)
async def test_a_tunnel_that_is_not_opened_was_surely_not_sent_through(answer: bytes) -> None:
    tunnels = Tunnels(answer)
    tunnels_close = answer.startswith(b"HTTP/1.1 200")

    async def cut(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    server = await asyncio.start_server(cut if tunnels_close else tunnels, "127.0.0.1", 0)
    proxy = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with HTTPClient(proxy=proxy) as client:
        with pytest.raises(TransportError, match="the proxy") as caught:
            await client.fetch("POST", "https://partner.example/", b"x", {})
    server.close()
    assert caught.value.connected is False


@pytest.mark.parametrize("text", ["https://proxy.example", "socks5://proxy.example", "http://", "http://a:b", ""])
def test_an_invalid_proxy_is_reported(text: str) -> None:
    with pytest.raises(ConfigurationError, match="prox") as caught:
        Proxy.parse(text)
    assert caught.value.remedy


@pytest.mark.parametrize("url", ["http://partner.example/", "https://partner.example/"])
async def test_a_proxy_that_is_away_is_named_and_not_what_is_behind_it(url: str) -> None:
    server = await asyncio.start_server(lambda _reader, _writer: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    async with HTTPClient(proxy=f"http://127.0.0.1:{port}") as client:
        with pytest.raises(
            TransportError, match=f"the proxy 127.0.0.1:{port} cannot be reached: Connection refused"
        ) as caught:
            await client.fetch("POST", url, b"x", {})
    assert caught.value.connected is False
