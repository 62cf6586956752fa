"""The HTTP client against real sockets: what it brings back, and what each failure says was sent."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
import trustme

from holdfast.endpoint.http_client import HTTPClient, TransportError
from holdfast.endpoint.http_server import Exchange, Handler, HTTPServer


@asynccontextmanager
async def serving(handler: Handler, context: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    server = HTTPServer()
    await server.start(handler, "127.0.0.1", 0, ssl_context=context)
    yield f"{'https' if context else 'http'}://127.0.0.1:{server.port}/rm"
    await server.close()


@asynccontextmanager
async def scripted(say: Callable[[asyncio.StreamWriter], None]) -> AsyncIterator[str]:
    """A server that reads a request's head and then does exactly what it is told to."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        say(writer)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    server.close()


def raw(answer: bytes) -> Callable[[asyncio.StreamWriter], None]:
    def say(writer: asyncio.StreamWriter) -> None:
        writer.write(answer)
        writer.close()

    return say


async def test_a_post_brings_back_the_answer_whatever_its_status() -> None:
    seen = []

    def handler(exchange: Exchange) -> None:
        seen.append(exchange.request)
        exchange.respond(500, b"<fault/>", b"text/xml; charset=utf-8", [(b"X-More", b"1")])

    async with serving(handler) as url, HTTPClient() as client:
        headers = {"Content-Type": "text/xml", "SOAPAction": '"urn:a"', "Authorization": "Bearer t"}
        for _ in range(2):
            answer = await client.post(url, b"<e/>", headers)
        assert (answer.status, answer.body) == (500, b"<fault/>")
        assert answer.content_type == "text/xml; charset=utf-8"
        assert answer.headers["x-MORE"] == "1"
    first, second = seen
    assert first.body == b"<e/>"
    assert first.headers[b"authorization"] == b"Bearer t"
    assert first.headers[b"user-agent"] == b"holdfast"
    assert first.headers[b"accept-encoding"] == b"identity"
    assert first.peer == second.peer, "the connection was kept"


async def test_a_refused_connection_was_surely_not_sent() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))  # bound and not listening: nobody else can take the port meanwhile
        port = listener.getsockname()[1]
        async with HTTPClient() as client:
            with pytest.raises(TransportError, match="cannot connect") as caught:
                await client.post(f"http://127.0.0.1:{port}/", b"", {})
    assert caught.value.connected is False
    assert caught.value.status == 0


@pytest.mark.parametrize("url", ["not a url", "ftp://127.0.0.1/", "http://"])
async def test_a_url_that_is_none_was_surely_not_sent(url: str) -> None:
    async with HTTPClient() as client:
        with pytest.raises(TransportError) as caught:
            await client.post(url, b"", {})
    assert caught.value.connected is False


async def test_a_connection_closed_without_an_answer_may_have_been_sent() -> None:
    async with scripted(lambda writer: writer.close()) as url, HTTPClient() as client:
        with pytest.raises(TransportError, match="without an answer") as caught:
            await client.post(url, b"x", {})
    assert caught.value.connected is True


async def test_an_answer_that_does_not_come_in_time_may_have_been_sent() -> None:
    # Seconds not for the server, which never answers, but for connecting to it.
    async with serving(lambda exchange: None) as url, HTTPClient(total_timeout=3) as client:
        with pytest.raises(TransportError, match="did not answer in time") as caught:
            await client.post(url, b"x", {})
    assert caught.value.connected is True


async def test_a_peer_that_takes_no_connection_in_time_was_surely_not_sent_to() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        port = listener.getsockname()[1]
        context = ssl.create_default_context()
        # It is connected to by the kernel, but never says a word of the TLS handshake.
        async with HTTPClient(connect_timeout=0.05, ssl_context=context) as client:
            with pytest.raises(TransportError, match="took too long") as caught:
                await client.post(f"https://127.0.0.1:{port}/", b"", {})
    assert caught.value.connected is False


async def test_a_redirect_is_an_error_that_names_the_place() -> None:
    def handler(exchange: Exchange) -> None:
        exchange.respond(308, headers=[(b"Location", b"https://there.example/")])

    async with serving(handler) as url, HTTPClient() as client:
        with pytest.raises(TransportError, match=r"moved to https://there\.example/") as caught:
            await client.post(url, b"x", {})
    assert caught.value.status == 308
    assert "https://there.example/" in caught.value.remedy


@pytest.mark.parametrize("declared", [True, False])
async def test_an_answer_that_is_too_large_is_not_read(declared: bool) -> None:
    def handler(exchange: Exchange) -> None:
        if declared:
            exchange.respond(200, b"x" * 1001)
        else:
            exchange.start(200)
            exchange.write(b"x" * 1001)
            exchange.finish()

    async with serving(handler) as url, HTTPClient(max_response=1000) as client:
        with pytest.raises(TransportError, match="more than 1000 bytes") as caught:
            await client.post(url, b"x", {})
    assert caught.value.connected is True
    assert caught.value.status == 200


async def test_an_answer_of_just_the_limit_is_read() -> None:
    def handler(exchange: Exchange) -> None:
        exchange.respond(200, b"x" * 1000)

    async with serving(handler) as url, HTTPClient(max_response=1000) as client:
        assert len((await client.post(url, b"x", {})).body) == 1000


async def test_an_encoded_answer_is_refused_rather_than_inflated() -> None:
    answer = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc"
    async with scripted(raw(answer)) as url, HTTPClient() as client:
        with pytest.raises(TransportError, match="content encoding gzip"):
            await client.post(url, b"x", {})


@pytest.mark.parametrize(
    "answer", [b"nonsense\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc"], ids=["no HTTP", "cut off"]
)
async def test_half_an_answer_is_none(answer: bytes) -> None:
    async with scripted(raw(answer)) as url, HTTPClient() as client:
        with pytest.raises(TransportError) as caught:
            await client.post(url, b"x", {})
    assert caught.value.connected is True


async def test_a_header_cannot_smuggle_a_line() -> None:
    async with serving(lambda exchange: exchange.respond(202)) as url, HTTPClient() as client:
        with pytest.raises(TransportError):
            await client.post(url, b"x", {"X": "1\r\nY: 2"})


async def test_connections_per_host_are_bounded() -> None:
    waiting: list[Exchange] = []
    async with serving(waiting.append) as url, HTTPClient(connections_per_host=2) as client:
        posts = [asyncio.ensure_future(client.post(url, b"%d" % number, {})) for number in range(5)]
        answered = 0
        while answered < 5:
            while not waiting:
                await asyncio.sleep(0.001)
            assert len(waiting) <= 2
            waiting.pop(0).respond(202)
            answered += 1
        assert {answer.status for answer in await asyncio.gather(*posts)} == {202}


async def test_tls_is_checked_against_what_is_trusted() -> None:
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    trust = ssl.create_default_context()
    authority.configure_trust(trust)
    async with serving(lambda exchange: exchange.respond(202), context) as url:
        async with HTTPClient(ssl_context=trust) as client:
            assert (await client.post(url, b"x", {})).status == 202
        async with HTTPClient() as client:
            with pytest.raises(TransportError, match="no trusted TLS connection") as caught:
                await client.post(url, b"x", {})
            assert caught.value.connected is False


async def test_a_closed_client_sends_nothing() -> None:
    client = HTTPClient()
    await client.close()
    with pytest.raises(TransportError, match="closed") as caught:
        await client.post("http://127.0.0.1:1/", b"", {})
    assert caught.value.connected is False
