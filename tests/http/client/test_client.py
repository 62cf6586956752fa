"""The HTTP client against real sockets: what it brings back, and what each failure says was sent.

Covers http/client/connection.py, http/client/pool.py and http/reasons.py.
"""

from __future__ import annotations

import asyncio
import datetime
import re
import socket
import ssl
import struct
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
import trustme
from hypothesis import given, settings
from hypothesis import strategies as st
from waiting import until

from examples import examples
from holdfast.http.client.answer_room import AnswerRoom
from holdfast.http.client.client import HTTPClient
from holdfast.http.client.connection import MAX_HEAD_BYTES, REDIRECTS, Call, ClientConnection, OriginAnswers
from holdfast.http.client.pool import Pool
from holdfast.http.head_memory import KnownAnswers
from holdfast.http.outcome import Outcome, Response, TransportError
from holdfast.http.server.server import Exchange, Handler, HTTPServer
from holdfast.http.urls import Origin


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


async def post(client: HTTPClient, url: str, body: bytes, headers: dict[str, str]) -> Response:
    return await client.fetch("POST", url, body, headers)


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
            answer = await post(client, url, b"<e/>", headers)
        assert (answer.status, answer.body) == (500, b"<fault/>")
        assert answer.content_type == "text/xml; charset=utf-8"
        assert answer.headers["x-more"] == "1"
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
                await post(client, f"http://127.0.0.1:{port}/", b"", {})
    assert caught.value.connected is False
    assert caught.value.status == 0


@pytest.mark.parametrize("url", ["not a url", "ftp://127.0.0.1/", "http://"])
async def test_a_url_that_is_none_was_surely_not_sent(url: str) -> None:
    async with HTTPClient() as client:
        with pytest.raises(TransportError) as caught:
            await post(client, url, b"", {})
    assert caught.value.connected is False


async def test_a_connection_closed_without_an_answer_may_have_been_sent() -> None:
    async with scripted(lambda writer: writer.close()) as url, HTTPClient() as client:
        with pytest.raises(TransportError, match="without a response") as caught:
            await post(client, url, b"x", {})
    assert caught.value.connected is True


async def test_an_answer_that_does_not_come_in_time_may_have_been_sent() -> None:
    # Seconds not for the server, which never answers, but for connecting to it.
    async with serving(lambda exchange: None) as url, HTTPClient(total_timeout=3) as client:
        with pytest.raises(TransportError, match="did not respond in time") as caught:
            await post(client, url, b"x", {})
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
                await post(client, f"https://127.0.0.1:{port}/", b"", {})
    assert caught.value.connected is False


async def test_a_redirect_is_an_error_that_names_the_place() -> None:
    def handler(exchange: Exchange) -> None:
        exchange.respond(308, headers=[(b"Location", b"https://there.example/")])

    async with serving(handler) as url, HTTPClient() as client:
        with pytest.raises(TransportError, match=r"moved to https://there\.example/") as caught:
            await post(client, url, b"x", {})
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
        with pytest.raises(TransportError, match="more than 1,000 bytes") as caught:
            await post(client, url, b"x", {})
    assert caught.value.connected is True
    assert caught.value.status == 200


async def test_an_answer_of_just_the_limit_is_read() -> None:
    def handler(exchange: Exchange) -> None:
        exchange.respond(200, b"x" * 1000)

    async with serving(handler) as url, HTTPClient(max_response=1000) as client:
        assert len((await post(client, url, b"x", {})).body) == 1000


async def test_an_encoded_answer_is_refused_rather_than_inflated() -> None:
    answer = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc"
    async with scripted(raw(answer)) as url, HTTPClient() as client:
        with pytest.raises(TransportError, match="content encoding gzip"):
            await post(client, url, b"x", {})


@pytest.mark.parametrize(
    "answer",
    [
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Le",
        b"HTTP/1.1 100 Continue\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabc",
    ],
    ids=["no HTTP", "cut off", "cut within chunks", "cut in the head", "only 100", "101", "two lengths"],
)
async def test_half_an_answer_is_none(answer: bytes) -> None:
    async with scripted(raw(answer)) as url, HTTPClient() as client:
        with pytest.raises(TransportError) as caught:
            await post(client, url, b"x", {})
    assert caught.value.connected is True


async def test_a_header_cannot_smuggle_a_line() -> None:
    async with serving(lambda exchange: exchange.respond(202)) as url, HTTPClient() as client:
        with pytest.raises(TransportError):
            await post(client, url, b"x", {"X": "1\r\nY: 2"})


async def test_connections_per_host_are_bounded() -> None:
    waiting: list[Exchange] = []
    async with serving(waiting.append) as url, HTTPClient(connections_per_host=2) as client:
        posts = [asyncio.ensure_future(post(client, url, b"%d" % number, {})) for number in range(5)]
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
            assert (await post(client, url, b"x", {})).status == 202
        async with HTTPClient() as client:
            with pytest.raises(TransportError, match="no trusted TLS connection") as caught:
                await post(client, url, b"x", {})
            assert caught.value.connected is False


async def test_what_is_wrong_with_tls_is_told_with_what_to_do() -> None:
    authority = trustme.CA()
    names = {"good": {}, "expired": {"not_after": datetime.datetime(2020, 1, 1)}}
    trust = ssl.create_default_context()
    authority.configure_trust(trust)
    contexts = {}
    for name, options in names.items():
        contexts[name] = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert("127.0.0.1", **options).configure_cert(contexts[name])
    wants = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(wants)
    authority.configure_trust(wants)
    wants.verify_mode = ssl.CERT_REQUIRED
    cases = [
        (contexts["good"], "https", ssl.create_default_context(), "trust its authority: --ca"),
        (contexts["expired"], "https", trust, "has expired; its operator must renew it"),
        (wants, "https", trust, "it may require a client certificate"),
        (None, "https", trust, "it may use http, not https"),
    ]
    for context, scheme, trusted, what in cases:
        async with serving(lambda exchange: exchange.respond(202), context) as url:
            async with HTTPClient(ssl_context=trusted) as client:
                with pytest.raises(TransportError, match=what):
                    await post(client, f"{scheme}:{url.partition(':')[2]}", b"x", {})


@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize("how", ["at once", "with bytes unread", "in its order"])
async def test_however_a_peer_ends_its_first_connection_the_hint_is_the_same(scheme: str, how: str) -> None:
    async def end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if how == "in its order":
            await reader.read(65536)
        elif how == "with bytes unread":  # the system answers with a reset
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            await reader.read(10)
        writer.transport.abort()

    server = await asyncio.start_server(end, "127.0.0.1", 0)
    url = f"{scheme}://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    async with HTTPClient() as client:
        with pytest.raises(TransportError) as caught:
            await post(client, url, b"x", {})
    server.close()
    why, _, hint = str(caught.value).partition("; it may ")
    assert hint == ("use https, not http" if scheme == "http" else "require a client certificate")
    assert re.search(r"closed the connection|Connection reset by peer|Broken pipe", why)


async def test_a_peer_that_has_answered_before_is_not_said_to_speak_something_else() -> None:
    async def answer_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        asked += 1
        await reader.read(65536)
        if asked == 1:
            writer.write(b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            await writer.drain()
        writer.close()

    asked = 0
    server = await asyncio.start_server(answer_once, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    async with HTTPClient() as client:
        await post(client, url, b"x", {})
        with pytest.raises(TransportError, match="without a response") as caught:
            await post(client, url, b"x", {})
    server.close()
    assert "https" not in str(caught.value)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3], ids=str)
@pytest.mark.parametrize("seen", ["as soon as it is made", "afterwards"])
async def test_a_server_that_wants_a_certificate_is_told_whenever_its_alert_is_seen(
    version: ssl.TLSVersion, seen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority, trust = trustme.CA(), ssl.create_default_context()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.maximum_version, context.verify_mode = version, ssl.CERT_REQUIRED
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.configure_trust(trust)

    def serve() -> None:
        connection, _ = listener.accept()
        with connection, pytest.raises(ssl.SSLError):
            context.wrap_socket(connection, server_side=True)

    opened = Pool._open

    async def opened_late(pool: Pool) -> ClientConnection:
        connection = await opened(pool)
        await until(connection.transport.is_closing)
        return connection

    if seen == "as soon as it is made":
        monkeypatch.setattr(Pool, "_open", opened_late)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        async with HTTPClient(ssl_context=trust) as client:
            with pytest.raises(TransportError, match="; it may require a client certificate") as caught:
                await post(client, f"https://127.0.0.1:{listener.getsockname()[1]}/", b"x", {})
        thread.join()
    assert "not permitted" not in str(caught.value), "OpenSSL's numbers are not the system's"


async def test_a_closed_client_sends_nothing() -> None:
    client = HTTPClient()
    await client.close()
    with pytest.raises(TransportError, match="closed") as caught:
        await post(client, "http://127.0.0.1:1/", b"", {})
    assert caught.value.connected is False


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\n\r\nabc",
        b"HTTP/1.0 200 OK\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n2;x=1\r\nbc\r\n0\r\nContent-Type: no\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc",
    ],
    ids=["length", "to the end", "1.0", "chunks and a trailer", "after 100 and 103"],
)
async def test_an_answer_is_read_however_it_is_framed(answer: bytes) -> None:
    async with scripted(raw(answer)) as url, HTTPClient() as client:
        response = await post(client, url, b"x", {})
    assert (response.status, response.body) == (200, b"abc")
    assert "content-type" not in response.headers
    assert "link" not in response.headers


@pytest.mark.parametrize("piece", [1, 3, 7])
async def test_an_answer_may_come_in_any_pieces(piece: int) -> None:
    answer = (
        b"HTTP/1.1 200 OK\r\nX-A: 1\r\nX-A: 2\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n4\r\ndefg\r\n0\r\n\r\n"
    )
    told: list[Outcome] = []
    connection, wire = connected(told)
    for start in range(0, len(answer), piece):
        connection.data_received(answer[start : start + piece])
    (response,) = told
    assert isinstance(response, Response)
    assert (response.body, response.headers["x-a"]) == (b"abcdefg", "1, 2")
    assert not wire.is_aborted


class Wire(asyncio.Transport):
    """The transport's half of a connection, in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.unsent = 0
        self.is_aborted = False

    def write(self, data: Any) -> None:
        self.written += data

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def abort(self) -> None:
        self.is_aborted = True


def connected(told: list[Outcome], answers: KnownAnswers | None = None) -> tuple[ClientConnection, Wire]:
    """A connection with one request in progress."""
    shared = OriginAnswers(Origin(False, "a", 80), 1000, AnswerRoom(None))  # type: ignore[arg-type] # nothing waits
    shared.answers = answers or shared.answers
    connection, wire = ClientConnection(shared, lambda one: None, lambda one: None), Wire()
    connection.connection_made(wire)
    ask(connection, told)
    return connection, wire


def ask(connection: ClientConnection, told: list[Outcome]) -> None:
    connection.send(Call("http://a/", b"POST / HTTP/1.1\r\n\r\n", b"x", told.append, 0.0))


async def test_a_second_answer_to_one_request_closes_the_connection() -> None:
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n"
    told: list[Outcome] = []
    connection, wire = connected(told)
    connection.data_received(answer + b"a" + answer + b"b")
    (response,) = told
    assert isinstance(response, Response)
    assert response.body == b"a"
    assert wire.is_aborted, "what comes next cannot be told from an answer to the next request"


async def test_what_comes_unasked_closes_the_connection() -> None:
    told: list[Outcome] = []
    connection, wire = connected(told)
    connection.data_received(b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n")
    assert not wire.is_aborted
    connection.data_received(b"H")
    assert wire.is_aborted
    assert len(told) == 1


async def test_an_answer_before_the_request_is_written_closes_the_connection() -> None:
    told: list[Outcome] = []
    connection, wire = connected(told)
    wire.unsent = 100
    connection.data_received(b"HTTP/1.1 413 No\r\nContent-Length: 0\r\n\r\n")
    (response,) = told
    assert isinstance(response, Response)
    assert response.status == 413
    assert wire.is_aborted


@pytest.mark.parametrize(
    "endless",
    [b"X: " + b"y" * 1000, b"X: y\r\n" * 200, b"\r\n3;" + b"e" * 1000],
    ids=["one header", "many headers", "a chunk's extension"],
)
async def test_a_head_without_end_is_not_kept(endless: bytes) -> None:
    told: list[Outcome] = []
    connection, wire = connected(told)
    connection.data_received(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n")
    for _ in range(2 * MAX_HEAD_BYTES // 1000):
        connection.data_received(endless)
        if told:
            break
    (outcome,) = told
    assert isinstance(outcome, TransportError)
    assert wire.is_aborted


@given(
    st.lists(
        st.one_of(
            st.sampled_from(
                [
                    b"HTTP/1.1 200 OK\r\n",
                    b"HTTP/1.1 100 Continue\r\n",
                    b"HTTP/1.0 204 No\r\n",
                    b"\r\n",
                    b"abc",
                    b"Content-Length: 3\r\n",
                    b"Content-Length: 99999999999999999999\r\n",
                    b"Content-Length: -1\r\n",
                    b"Transfer-Encoding: chunked\r\n",
                    b"3\r\nabc\r\n",
                    b"0\r\n\r\n",
                    b"Connection: close\r\n",
                    b"Location: x\r\n",
                    b"Content-Encoding: gzip\r\n",
                    b"Upgrade: h2c\r\nConnection: upgrade\r\n",
                    b"X: \xff\r\n",
                    b": y\r\n",
                ]
            ),
            st.binary(max_size=12),
        ),
        max_size=12,
    ),
    st.integers(1, 40),
)
def test_whatever_comes_is_one_outcome_or_none_yet(pieces: list[bytes], size: int) -> None:
    told: list[Outcome] = []
    connection, wire = connected(told)
    data = b"".join(pieces)
    for start in range(0, len(data), size):
        if not wire.is_aborted:
            connection.data_received(data[start : start + size])
    assert len(told) <= 1
    connection.connection_lost(None)
    (outcome,) = told
    if isinstance(outcome, TransportError):
        assert wire.is_aborted or b"closed the connection" in str(outcome).encode()
    else:
        assert outcome.status >= 200 and outcome.status not in REDIRECTS
        assert len(outcome.body) <= 1000


HEADS = [
    b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nX: y\r\nx: z\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nConnection: close\r\n\r\n",
    b"HTTP/1.0 200 OK\r\nContent-Length: 3\r\n\r\n",
    b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n",
    b"HTTP/1.1 204 No Content\r\nContent-Length: 3\r\n\r\n",
    b"HTTP/1.1 301 Moved\r\nContent-Length: 3\r\nLocation: /b\r\n\r\n",
    b"HTTP/1.1 500 No\r\nContent-Length: 3\r\nContent-Encoding: gzip\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\n",
    b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n",
    b"HTTP/1.1 200 OK\r\n\r\n",
]
BODIES = [b"", b"abc", b"ab", b"abcd", b"abc\r\n0\r\n\r\n", b"abcHTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc"]


@settings(max_examples=examples(400))
@given(st.lists(st.tuples(st.sampled_from(HEADS), st.sampled_from(BODIES), st.integers(0, 80)), min_size=1, max_size=6))
def test_an_answer_whose_head_was_seen_before_is_read_as_the_parser_reads_it(
    answers: list[tuple[bytes, bytes, int]],
) -> None:
    class Forgetful(KnownAnswers):
        def learn(self, data: bytes, response: Response) -> None:
            pass

    def outcomes(known: KnownAnswers) -> list[object]:
        told: list[Outcome] = []
        seen: list[object] = []
        connection, wire = connected(told, known)
        for head, body, split in answers:
            data = head + body
            for piece in (data[:split], data[split:]):
                if piece and not wire.is_aborted:
                    connection.data_received(piece)
            seen += [(len(told), wire.is_aborted)]
            if wire.is_aborted:
                connection.connection_lost(None)
                connection, wire = connected(told, known)
            elif connection.call is None:
                ask(connection, told)
        return seen + [str(one) if isinstance(one, TransportError) else one for one in told]

    assert outcomes(KnownAnswers()) == outcomes(Forgetful())


async def test_the_second_answer_of_a_kind_is_not_parsed_and_what_is_remembered_is_bounded() -> None:
    known = KnownAnswers()
    told: list[Outcome] = []
    connection, _ = connected(told, known)
    connection.data_received(HEADS[0] + b"abc")
    ask(connection, told)
    connection._parser = None
    connection.data_received(HEADS[0] + b"xyz")
    assert [outcome.body for outcome in told if isinstance(outcome, Response)] == [b"abc", b"xyz"]
    for number in range(2 * KnownAnswers.most):
        connection, _ = connected(told, known)
        connection.data_received(b"HTTP/1.1 200 OK\r\nX: %d\r\nContent-Length: 3\r\n\r\nabc" % number)
    connection, _ = connected(told, known)
    connection.data_received(b"HTTP/1.1 200 OK\r\nX: " + b"y" * 3000 + b"\r\nContent-Length: 3\r\n\r\nabc")
    assert 0 < len(known.found) <= KnownAnswers.most
    assert max(map(len, known.found)) <= 2048


async def test_a_large_body_goes_out_whole() -> None:
    seen: list[int] = []

    def handler(exchange: Exchange) -> None:
        seen.append(len(exchange.request.body))
        exchange.respond(202)

    async with serving(handler) as url, HTTPClient() as client:
        for size in (0, 1, 64 * 1024 - 1, 64 * 1024, 5_000_000):
            await post(client, url, b"x" * size, {})
    assert seen == [0, 1, 64 * 1024 - 1, 64 * 1024, 5_000_000]


async def test_an_idle_connection_is_closed_and_the_next_request_makes_another() -> None:
    peers: list[str | None] = []

    def handler(exchange: Exchange) -> None:
        peers.append(exchange.request.peer)
        exchange.respond(202)

    async with serving(handler) as url, HTTPClient(keep_alive=0.01) as client:
        await post(client, url, b"x", {})
        while client.connections:
            await asyncio.sleep(0.005)
        await post(client, url, b"x", {})
    assert peers[0] != peers[1]


async def test_a_connection_that_the_peer_closes_is_not_used_again() -> None:
    def handler(exchange: Exchange) -> None:
        exchange.respond(202, headers=[(b"Connection", b"close")])

    async with serving(handler) as url, HTTPClient() as client:
        for _ in range(3):
            assert (await post(client, url, b"x", {})).status == 202


async def test_who_waits_for_a_connection_hears_that_there_is_none() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/"
        async with HTTPClient(connections_per_host=2) as client:
            posts = [asyncio.ensure_future(post(client, url, b"", {})) for _ in range(20)]
            outcomes = await asyncio.gather(*posts, return_exceptions=True)
    assert {outcome.connected for outcome in outcomes if isinstance(outcome, TransportError)} == {False}
    assert len(outcomes) == 20


async def test_closing_the_client_ends_what_is_under_way() -> None:
    async with serving(lambda exchange: None) as url:
        client = HTTPClient(connections_per_host=1)
        posts = [asyncio.ensure_future(post(client, url, b"x", {})) for _ in range(3)]
        while not client.connections:
            await asyncio.sleep(0.001)
        await client.close()
        outcomes = await asyncio.gather(*posts, return_exceptions=True)
    assert [isinstance(outcome, TransportError) for outcome in outcomes] == [True] * 3


async def test_an_error_in_who_is_told_leaves_the_connection_as_it_should_be() -> None:
    def broken(_outcome: Outcome) -> None:
        raise RuntimeError("a mistake of the caller's")

    raised: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: raised.append(context))
    async with serving(lambda exchange: exchange.respond(202)) as url, HTTPClient(connections_per_host=1) as client:
        client.request("POST", url, b"x", {}, broken)
        while not raised:
            await asyncio.sleep(0.001)
        assert (await post(client, url, b"x", {})).status == 202


async def test_connections_to_all_hosts_together_are_bounded_and_idle_ones_make_room() -> None:
    waiting: list[Exchange] = []
    async with AsyncExitStack() as stack:
        urls = [await stack.enter_async_context(serving(waiting.append)) for _ in range(4)]
        client = await stack.enter_async_context(HTTPClient(max_connections=2, keep_alive=0.1))
        posts = [asyncio.ensure_future(post(client, url, b"x", {})) for url in urls * 2]
        for _ in posts:
            while not waiting:
                assert client.connections <= 2
                await asyncio.sleep(0.001)
            waiting.pop().respond(202)
        assert {answer.status for answer in await asyncio.gather(*posts)} == {202}
