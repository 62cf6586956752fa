"""The HTTP server over real sockets: framing, order, limits, timeouts, TLS and an orderly end.

Covers http/exchange.py, http/head_memory.py, http/server/connection.py, http/server/handshakes.py,
http/server/open_connections.py, http/server/request_head.py and
http/server/server_exchange.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trustme

from holdfast.exceptions import ConfigurationError
from holdfast.http.head_memory import MAX_HEAD_BYTES, KnownHeads
from holdfast.http.server.connection import BODY, HEADER, NEW
from holdfast.http.server.descriptors import overflow
from holdfast.http.server.refusals import NEEDS_TLS
from holdfast.http.server.server import (
    Exchange,
    Handler,
    HTTPLimits,
    HTTPServer,
    event_loop_factory,
)

HOST = b"Host: here\r\n"
LOOPS = [None, event_loop_factory()] if event_loop_factory() is not None else [None]


def echo(exchange: Exchange) -> None:
    request = exchange.request
    exchange.respond(200, request.method.encode() + b" " + request.target.encode() + b" " + request.body)


def post(body: bytes, *headers: bytes, target: bytes = b"/rm", version: bytes = b"1.1") -> bytes:
    lines = b"".join(header + b"\r\n" for header in headers)
    return b"POST %b HTTP/%b\r\n%bContent-Length: %d\r\n%b\r\n%b" % (target, version, HOST, len(body), lines, body)


class Peer:
    """A client that writes exactly the bytes it is told to."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def answer(self) -> tuple[int, dict[str, str], bytes]:
        """The next answer: status, headers by lower-case name, content."""
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode()
        status_line, *lines = head.strip().split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        body = b""
        if headers.get("transfer-encoding") == "chunked":
            while size := int(await self.reader.readline(), 16):
                body += await self.reader.readexactly(size)
                await self.reader.readexactly(2)
            await self.reader.readexactly(2)
        elif "content-length" in headers:
            body = await self.reader.readexactly(int(headers["content-length"]))
        return int(status_line.split()[1]), headers, body

    async def ended(self) -> bool:
        """Whether the server closes the connection without a word more."""
        try:
            return await self.reader.read(1) == b""
        except ConnectionError:
            return True


@asynccontextmanager
async def serving(handler: Handler = echo, **settings: Any) -> AsyncIterator[HTTPServer]:
    context = settings.pop("ssl_context", None)
    server = HTTPServer()
    await server.start(handler, "127.0.0.1", 0, ssl_context=context, limits=HTTPLimits(**settings))
    try:
        yield server
    finally:
        await server.close()
        assert server.buffered == 0


@asynccontextmanager
async def connected(server: HTTPServer, **options: Any) -> AsyncIterator[Peer]:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port, **options)
    try:
        yield Peer(reader, writer)
    finally:
        writer.close()


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop run until something has come about; pytest's timeout ends a wait in vain."""
    while not condition():
        await asyncio.sleep(0.001)


class Later:
    """The running loop, as a server sees it whose clock is ahead."""

    def __init__(self, seconds: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._seconds = seconds

    def time(self) -> float:
        return self._loop.time() + self._seconds

    def call_later(self, seconds: float, *call: Any) -> asyncio.TimerHandle:
        return self._loop.call_later(seconds, *call)


def let_pass(server: HTTPServer, seconds: float) -> None:
    """Put a server's clock so far ahead of the loop's: with limits that are out of reach otherwise, nothing can be too
    slow only because this machine is."""
    assert server._sweeper is not None
    server._sweeper.cancel()
    server._sweep(Later(seconds))  # type: ignore[arg-type]


def on_every_loop(test: Callable[..., Awaitable[None]]) -> Callable[[Any], None]:
    @pytest.mark.parametrize("loop_factory", LOOPS, ids=["asyncio", "uvloop"][: len(LOOPS)])
    def run(loop_factory: Any) -> None:
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            runner.run(asyncio.wait_for(test(), 60))  # type: ignore[arg-type]

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


# --- framing ----------------------------------------------------------------------------------------------------------


@on_every_loop
async def test_a_request_is_handed_over_whole_and_its_answer_carries_the_standing_headers() -> None:
    seen = []

    def handler(exchange: Exchange) -> None:
        seen.append(exchange.request)
        exchange.respond(200, b"<a/>", b"application/soap+xml", [(b"X-More", b"1")])

    async with serving(handler) as server, connected(server) as peer:
        peer.send(post(b"<e/>", b"X-A: 1", b"x-a: 2", target=b"/rm?q=%20"))
        status, headers, body = await peer.answer()
        assert (status, body) == (200, b"<a/>")
        assert headers["content-type"] == "application/soap+xml"
        assert headers["server"] == "holdfast"
        assert headers["x-more"] == "1"
        assert headers["date"].endswith("GMT")
        assert "connection" not in headers
        (request,) = seen
        assert (request.method, request.target, request.body) == ("POST", "/rm?q=%20", b"<e/>")
        assert request.headers[b"x-a"] == b"1, 2"
        assert request.peer is not None
        assert request.peer.startswith("127.0.0.1:")
        assert request.secure is False
        assert server.counters.requests == server.counters.connections == 1


@on_every_loop
async def test_a_head_seen_before_is_found_again_and_means_the_same() -> None:
    seen = []

    def handler(exchange: Exchange) -> None:
        seen.append(exchange.request)
        echo(exchange)

    async with serving(handler) as server:
        for body in (b"<a/>", b"<b/>", b"<c/>"):
            async with connected(server) as peer:
                peer.send(post(body, b"X-A: 1", target=b"/rm?q=%20"))
                assert (await peer.answer())[2] == b"POST /rm?q=%20 " + body
        first, second, third = seen
        assert (second.method, second.target, second.headers) == (first.method, first.target, first.headers)
        assert second.headers is third.headers
        assert len(server.known_heads.found) == 1
        assert server.counters.requests == 3


@on_every_loop
async def test_a_known_head_whose_content_comes_later_or_with_another_request_is_parsed() -> None:
    async with serving() as server, connected(server) as peer:
        request = post(b"<a/>")
        for pieces in ([request], [request[:-2], request[-2:]], [request + request], [request[:9], request[9:]]):
            for piece in pieces:
                peer.send(piece)
                await asyncio.sleep(0.005)
            for _ in range(b"".join(pieces).count(b"POST")):
                assert (await peer.answer())[2] == b"POST /rm <a/>"
        assert len(server.known_heads.found) == 1


async def test_known_heads_are_bounded_and_only_those_that_say_their_length() -> None:
    async with serving() as server:
        for number in range(KnownHeads.most + 2):
            async with connected(server) as peer:
                peer.send(post(b"x", b"X-Trace: %d" % number))
                await peer.answer()
        assert len(server.known_heads.found) == 2
        for headers in ([b"Connection: close"], [b"X: " + b"y" * MAX_HEAD_BYTES], [b"Expect: 100-continue"]):
            async with connected(server) as peer:
                peer.send(post(b"x", *headers))
                await peer.answer()
        async with connected(server) as peer:
            peer.send(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n")
            await peer.answer()
        assert len(server.known_heads.found) == 2


@on_every_loop
async def test_a_known_head_is_held_to_the_room_there_is_for_contents() -> None:
    held: list[Exchange] = []

    def handler(exchange: Exchange) -> None:
        if exchange.request.body == b"hold":
            held.append(exchange)
        else:
            echo(exchange)

    async with (
        serving(handler, max_body=6, max_buffered=6) as server,
        connected(server) as first,
        connected(server) as second,
    ):
        second.send(post(b"1234"))
        assert (await second.answer())[0] == 200
        first.send(post(b"hold"))
        await until(lambda: bool(held))
        second.send(post(b"1234"))
        assert (await second.answer())[0] == 503
        held[0].respond(200)
        assert (await first.answer())[0] == 200


@on_every_loop
async def test_a_request_delivered_byte_by_byte_is_the_same_request() -> None:
    chunked = (
        b"POST /c HTTP/1.1\r\nHost: here\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"3;x=y\r\nabc\r\n2\r\nde\r\n0\r\nX: y\r\n\r\n"
    )
    async with serving() as server, connected(server) as peer:
        for request, expected in ((post(b"hello"), b"POST /rm hello"), (chunked, b"POST /c abcde")):
            for position in range(len(request)):
                peer.send(request[position : position + 1])
                await peer.writer.drain()
                await asyncio.sleep(0)
            assert (await peer.answer())[2] == expected


@on_every_loop
async def test_trailers_do_not_become_headers() -> None:
    seen = []

    def handler(exchange: Exchange) -> None:
        seen.append(exchange.request.headers)
        exchange.respond(202)

    async with serving(handler) as server, connected(server) as peer:
        peer.send(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX-Evil: 1\r\n\r\n")
        status, headers, _ = await peer.answer()
        assert (status, headers["content-length"]) == (202, "0")
        assert seen == [{b"host": b"a", b"transfer-encoding": b"chunked"}]


@on_every_loop
async def test_pipelined_requests_are_answered_in_order_one_at_a_time() -> None:
    waiting: list[Exchange] = []
    async with serving(waiting.append) as server, connected(server) as peer:
        peer.send(b"".join(post(b"%d" % number) for number in range(5)))
        for number in range(5):
            await until(lambda: len(waiting) == 1)
            exchange = waiting.pop()
            assert exchange.request.body == b"%d" % number
            exchange.respond(200, b"answer %d" % number)
            assert (await peer.answer())[2] == b"answer %d" % number


@on_every_loop
async def test_what_a_pipelining_peer_sends_later_waits_in_its_socket() -> None:
    waiting: list[Exchange] = []
    async with serving(waiting.append) as server, connected(server) as peer:
        peer.send(post(b"first"))
        await until(lambda: len(waiting) == 1)
        for number in range(3):
            peer.send(post(b"%d" % number))
            await peer.writer.drain()
        waiting.pop().respond(200, b"first")
        for number in range(3):
            await until(lambda: len(waiting) == 1)
            assert waiting[0].request.body == b"%d" % number
            waiting.pop().respond(200, b"%d" % number)
        assert [(await peer.answer())[2] for _ in range(4)] == [b"first", b"0", b"1", b"2"]


@on_every_loop
async def test_an_offer_to_upgrade_to_http2_is_ignored_and_the_content_still_read() -> None:
    offer = (b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"HTTP2-Settings: AAEAAEAAAAIAAAAB")
    async with serving() as server, connected(server) as peer:
        whole = post(b"abc", *offer)
        peer.send(whole + whole)
        assert [(await peer.answer())[2] for _ in range(2)] == [b"POST /rm abc"] * 2
        peer.send(whole[:-2])
        await peer.writer.drain()
        peer.send(whole[-2:])
        assert (await peer.answer())[2] == b"POST /rm abc"
        peer.send(b"GET /w HTTP/1.1\r\n" + HOST + b"\r\n".join(offer) + b"\r\n\r\n" + post(b"z"))
        assert [(await peer.answer())[2] for _ in range(2)] == [b"GET /w ", b"POST /rm z"]
        chunked = b"POST /c HTTP/1.1\r\n" + HOST + b"\r\n".join(offer) + b"\r\nTransfer-Encoding: chunked\r\n\r\n"
        peer.send(chunked + b"3\r\nabc\r\n0\r\n\r\n")
        assert (await peer.answer())[2] == b"POST /c abc"


@on_every_loop
async def test_expect_100_continue_gets_its_go_ahead_before_the_content() -> None:
    async with serving() as server, connected(server) as peer:
        request = post(b"abc", b"Expect: 100-continue")
        peer.send(request[:-3])
        assert await peer.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        peer.send(b"abc")
        assert (await peer.answer())[2] == b"POST /rm abc"
        peer.send(request)  # one that does not wait needs no go-ahead
        assert (await peer.answer())[0] == 200


@on_every_loop
async def test_a_go_ahead_waits_for_the_answer_before_it() -> None:
    waiting: list[Exchange] = []
    async with serving(waiting.append) as server, connected(server) as peer:
        peer.send(post(b"one") + post(b"two", b"Expect: 100-continue")[:-3])
        await until(lambda: len(waiting) == 1)
        waiting.pop().respond(200, b"first")
        assert (await peer.answer())[2] == b"first"
        assert await peer.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"


@on_every_loop
async def test_http_1_0_is_answered_and_closed_unless_it_asks_to_stay() -> None:
    async with serving() as server:
        async with connected(server) as peer:
            peer.send(b"GET /old HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
            assert (await peer.answer())[1]["connection"] == "keep-alive"
            peer.send(b"GET /old HTTP/1.0\r\n\r\n")
            _, headers, body = await peer.answer()
            assert headers["connection"] == "close"
            assert body == b"GET /old "
            assert await peer.ended()
        async with connected(server) as peer:
            peer.send(post(b"x", b"Connection: close"))
            assert (await peer.answer())[1]["connection"] == "close"
            assert await peer.ended()


@on_every_loop
async def test_the_absolute_form_is_reduced_to_its_path() -> None:
    async with serving() as server, connected(server) as peer:
        peer.send(post(b"", target=b"http://here:1/rm?x=1") + post(b"", target=b"http://here"))
        assert [(await peer.answer())[2] for _ in range(2)] == [b"POST /rm?x=1 ", b"POST / "]


@on_every_loop
async def test_head_and_204_have_no_content() -> None:
    def handler(exchange: Exchange) -> None:
        exchange.respond(200 if exchange.request.method == "HEAD" else 204, b"content")

    async with serving(handler) as server, connected(server) as peer:
        peer.send(b"HEAD / HTTP/1.1\r\nHost: a\r\n\r\n" + post(b"x"))
        head = (await peer.reader.readuntil(b"\r\n\r\n")).lower()
        assert b"content-length: 7" in head
        status, headers, body = await peer.answer()
        assert (status, body) == (204, b"")
        assert "content-length" not in headers


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_bytes", "status", "reason"),
    [
        (b"nonsense\r\n\r\n", 400, "malformed"),
        (b"GET / HTTP/1.1\r\nHost: a\r\nBad Header\r\n\r\n", 400, "malformed"),
        (b"GET / HTTP/1.1\r\n\r\n", 400, "malformed"),
        (b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400, "malformed"),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n", 400, "malformed"),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabc", 400, "malformed"),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n", 400, "malformed"),
        (b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", 501, "encoding"),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Encoding: gzip\r\nContent-Length: 1\r\n\r\nx", 415, "encoding"),
        (b"POST / HTTP/1.1\r\nHost: a\r\nExpect: magic\r\nContent-Length: 1\r\n\r\n", 417, "expectation"),
        (b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n", 405, "method"),
        (b"GET / HTTP/0.9\r\nHost: a\r\n\r\n", 505, "version"),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1001\r\n\r\n", 413, "body_size"),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1001\r\nExpect: 100-continue\r\n\r\n", 413, "body_size"),
        (
            b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3e8\r\n" + b"x" * 1000 + b"\r\n1\r\ny",
            413,
            "body_size",
        ),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"y" * 2000 + b"\r\n\r\n", 431, "header_size"),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"y" * 2000, 431, "header_size"),
        (b"GET /" + b"y" * 2000, 431, "header_size"),
        (
            b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX: " + b"y" * 2000,
            431,
            "header_size",
        ),
    ],
)
async def test_a_request_that_is_not_handed_over_is_told_why_and_the_connection_closed(
    request_bytes: bytes, status: int, reason: str
) -> None:
    def handler(exchange: Exchange) -> None:
        raise AssertionError("it was handed over")

    async with serving(handler, max_body=1000, max_header_bytes=1000, linger_timeout=0.02) as server:
        async with connected(server) as peer:
            peer.send(request_bytes)
            got, headers, body = await peer.answer()
            assert got == status
            assert headers["connection"] == "close"
            assert body.endswith(b"\n")
            assert await peer.ended()
        assert server.counters.refused == {reason: 1}
        assert server.counters.rejected == 1


@on_every_loop
async def test_a_refusal_waits_its_turn_behind_an_answer_that_is_due() -> None:
    waiting: list[Exchange] = []
    async with serving(waiting.append) as server, connected(server) as peer:
        peer.send(post(b"good") + b"bad\r\n\r\n")
        await until(lambda: len(waiting) == 1)
        waiting.pop().respond(200, b"fine")
        assert (await peer.answer())[0] == 200
        assert (await peer.answer())[0] == 400


@on_every_loop
async def test_a_huge_content_is_refused_without_being_held() -> None:
    async with serving(max_body=1000, linger_timeout=60) as server, connected(server) as peer:
        peer.send(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n")
        for _ in range(300):  # it goes on sending, and is still told
            peer.send(b"10000\r\n" + b"x" * 65536 + b"\r\n")
            await peer.writer.drain()
            assert server.buffered <= 1000 + 300_000  # what one read of the socket can bring
        assert (await peer.answer())[0] == 413
        assert server.buffered == 0


@on_every_loop
async def test_all_contents_together_are_bounded() -> None:
    waiting: list[Exchange] = []
    async with serving(waiting.append, max_body=1000, max_buffered=1000) as server:
        async with connected(server) as first, connected(server) as second:
            first.send(post(b"x" * 900))
            await until(lambda: len(waiting) == 1)
            second.send(post(b"x" * 200))
            status, headers, _ = await second.answer()
            assert status == 503 and headers["retry-after"] in ("1", "2", "3")
            waiting.pop().respond(202)
            assert (await first.answer())[0] == 202
            first.send(post(b"x" * 900))  # there is room again
            await until(lambda: len(waiting) == 1)
            assert server.buffered == 900


@on_every_loop
async def test_too_many_connections_are_told_to_come_back() -> None:
    waiting: list[Exchange] = []
    async with serving(waiting.append, max_connections=2) as server:
        async with connected(server) as first, connected(server) as second:
            for peer in (first, second):
                peer.send(post(b"x"))
            await until(lambda: len(waiting) == 2)
            async with connected(server) as third:
                status, headers, _ = await third.answer()
                assert (status, headers["connection"]) == (503, "close")
                assert headers["retry-after"] in ("1", "2", "3")
                assert await third.ended()
            waiting[0].respond(200)
            assert (await first.answer())[0] == 200
        server.handler = echo
        await until(lambda: not server.connections)
        async with connected(server) as fourth:
            fourth.send(post(b"x"))
            assert (await fourth.answer())[0] == 200
        assert server.counters.refused == {"connections": 1}


@pytest.mark.parametrize("first_data", [b"", b"POST /", post(b"x")], ids=["silent", "begun", "answered"])
@pytest.mark.parametrize("loop_factory", LOOPS, ids=["asyncio", "uvloop"][: len(LOOPS)])
def test_idle_connections_make_room_for_new_ones(loop_factory: Any, first_data: bytes) -> None:
    async def main() -> None:
        async with serving(max_connections=2) as server, connected(server) as first, connected(server) as second:
            for peer in (first, second):
                peer.send(first_data)
            if first_data.endswith(b"x"):
                assert (await first.answer())[0], (await second.answer())[0] == (200, 200)
            await until(lambda: len(server.connections) == 2)
            async with connected(server) as third:
                third.send(post(b"new"))
                assert (await third.answer())[2].endswith(b"new")
            assert server.counters.timeouts == {"room": 1}
            assert server.counters.refused == {}

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(asyncio.wait_for(main(), 60))


@on_every_loop
async def test_one_that_never_brought_a_request_makes_room_before_one_that_did() -> None:
    async with serving(max_connections=2) as server, connected(server) as used:
        used.send(post(b"x"))
        assert (await used.answer())[0] == 200
        for _ in range(5):
            async with connected(server) as other:
                other.send(b"POST")
                await until(lambda: len(server.connections) == 2)
                used.send(post(b"again"))
                assert (await used.answer())[0] == 200


@on_every_loop
async def test_a_flood_of_refused_connections_is_cut_off() -> None:
    async with serving(lambda exchange: None, max_connections=1) as server, connected(server) as busy:
        busy.send(post(b"x"))
        await until(lambda: server.counters.requests == 1)
        peers = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(40)]
        await until(lambda: server.counters.connections == 41)
        await until(lambda: len(server.connections) <= 1 + overflow(1))
        for _, writer in peers:
            writer.close()


@on_every_loop
async def test_too_many_requests_sent_ahead_are_refused_after_those_that_fit() -> None:
    async with serving(max_pipelined=3) as server, connected(server) as peer:
        peer.send(post(b"x") * 10)
        answers = []
        for _ in range(4):
            answers.append((await peer.answer())[0])  # noqa: PERF401 - one after the other
        assert answers == [200, 200, 200, 503]


# --- time -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("start", "phase", "reason"),
    [(b"", NEW, "header"), (b"GET / HT", HEADER, "header"), (post(b"abc")[:-1], BODY, "body")],
    ids=["nothing", "half a head", "half a content"],
)
async def test_a_peer_that_is_too_slow_is_closed(start: bytes, phase: int, reason: str) -> None:
    async with serving(header_timeout=100, body_timeout=100, linger_timeout=0.02) as server:
        async with connected(server) as peer:
            peer.send(start)
            await until(lambda: [connection._phase for connection in server.connections] == [phase])
            let_pass(server, 99)
            assert server.counters.timeouts == {}
            let_pass(server, 200)
            if start:
                assert (await peer.answer())[0] == 408
            assert await peer.ended()
        assert server.counters.timeouts == {reason: 1}


async def test_a_slowloris_that_keeps_sending_is_closed_while_others_are_served() -> None:
    async with serving(header_timeout=100, keep_alive_timeout=1000, linger_timeout=0.02) as server:
        async with connected(server) as slow, connected(server) as other:
            slow.send(b"GET / HTTP/1.1\r\n")
            for passed in (0, 50, 90, 200):
                slow.send(b"X: y\r\n")
                other.send(post(b"x"))
                assert (await other.answer())[0] == 200
                assert server.counters.timeouts == {}
                let_pass(server, passed)
            assert (await slow.answer())[0] == 408
        assert server.counters.timeouts == {"header": 1}


async def test_an_idle_connection_is_closed_without_a_word() -> None:
    async with serving(keep_alive_timeout=0.02) as server, connected(server) as peer:
        peer.send(post(b"x"))
        assert (await peer.answer())[0] == 200
        assert await peer.ended()
        assert server.counters.timeouts == {"keep_alive": 1}


@on_every_loop
async def test_a_peer_that_reads_nothing_is_closed() -> None:
    gone: list[bool] = []

    def handler(exchange: Exchange) -> None:
        exchange.on_close = lambda: gone.append(True)
        exchange.start(200)
        for _ in range(32):  # more than the system's buffers take, which grow
            exchange.write(b"x" * (1 << 20))

    async with serving(handler, write_timeout=0.05) as server, connected(server) as peer:
        peer.send(post(b"x"))
        await until(lambda: gone == [True])
        assert server.counters.timeouts == {"write": 1}


@on_every_loop
async def test_a_handler_that_takes_too_long_is_answered_for() -> None:
    waiting: list[Exchange] = []
    told: list[bool] = []

    def handler(exchange: Exchange) -> None:
        waiting.append(exchange)
        exchange.on_close = lambda: told.append(True)

    async with serving(handler, response_timeout=0.02) as server, connected(server) as peer:
        peer.send(post(b"x"))
        status, headers, _ = await peer.answer()
        assert (status, headers["connection"]) == (503, "close")
        assert await peer.ended()
        assert told == [True]
        waiting[0].respond(200)  # too late, and harmless
        assert server.counters.timeouts == {"response": 1}


# --- answering --------------------------------------------------------------------------------------------------------


@on_every_loop
async def test_an_answer_may_come_later_and_only_once() -> None:
    waiting: list[Exchange] = []
    async with serving(waiting.append) as server, connected(server) as peer:
        peer.send(post(b"x"))
        await until(lambda: len(waiting) == 1)
        with pytest.raises(ValueError, match="line break"):
            waiting[0].respond(200, headers=[(b"X", b"a\r\nEvil: 1")])
        waiting[0].respond(202)
        with pytest.raises(RuntimeError, match="already been answered"):
            waiting[0].respond(202)
        assert (await peer.answer())[0] == 202


@on_every_loop
async def test_a_peer_that_leaves_before_the_answer_is_reported_once() -> None:
    waiting: list[Exchange] = []
    gone: list[bool] = []

    def handler(exchange: Exchange) -> None:
        waiting.append(exchange)
        exchange.on_close = lambda: gone.append(True)

    async with serving(handler) as server:
        async with connected(server) as peer:
            peer.send(post(b"x"))
            await until(lambda: len(waiting) == 1)
            assert not waiting[0].closed
        await until(lambda: gone == [True])
        assert waiting[0].closed
        waiting[0].respond(200, b"too late")
        waiting[0].start(200)
        assert waiting[0].write(b"x")
        await waiting[0].drain()
        waiting[0].finish()
        assert gone == [True]


@on_every_loop
async def test_on_close_is_not_called_after_the_answer() -> None:
    gone: list[bool] = []

    def handler(exchange: Exchange) -> None:
        exchange.on_close = lambda: gone.append(True)
        exchange.respond(200)

    async with serving(handler) as server:
        async with connected(server) as peer:
            peer.send(post(b"x"))
            assert (await peer.answer())[0] == 200
        await until(lambda: not server.connections)
        assert gone == []


@on_every_loop
async def test_a_handler_that_raises_is_a_500_and_the_server_goes_on() -> None:
    def handler(exchange: Exchange) -> None:
        if exchange.request.body == b"cut":
            exchange.start(200)
            exchange.write(b"x")
        raise ZeroDivisionError

    async with serving(handler) as server:
        async with connected(server) as peer:
            peer.send(post(b"x"))
            status, headers, body = await peer.answer()
            assert (status, headers["connection"], body) == (500, "close", b"internal error\n")
        async with connected(server) as peer:
            peer.send(post(b"cut"))
            with pytest.raises((asyncio.IncompleteReadError, ConnectionError, ValueError)):
                await peer.answer()
        assert server.counters.failures == 2


@on_every_loop
async def test_an_answer_in_pieces_is_chunked_and_the_connection_stays() -> None:
    def handler(exchange: Exchange) -> None:
        exchange.start(200, b"application/x-ndjson", [(b"X-A", b"b")])
        with pytest.raises(RuntimeError):
            exchange.respond(200)
        for piece in (b"one\n", b"", b"two\n"):
            assert exchange.write(piece)
        exchange.finish()
        with pytest.raises(RuntimeError):
            exchange.write(b"more")

    async with serving(handler) as server, connected(server) as peer:
        peer.send(post(b"x") * 2)
        for _ in range(2):
            status, headers, body = await peer.answer()
            assert (status, headers["x-a"], body) == (200, "b", b"one\ntwo\n")
        peer.send(b"GET / HTTP/1.0\r\n\r\n")
        _, headers, _ = await peer.answer()
        assert "transfer-encoding" not in headers
        assert await peer.reader.read() == b"one\ntwo\n"


@on_every_loop
async def test_a_writer_of_pieces_can_wait_for_a_slow_reader() -> None:
    pieces, size = 200, 65536
    tasks: list[asyncio.Task[int]] = []

    async def stream(exchange: Exchange) -> int:
        waits = 0
        exchange.start(200)
        for _ in range(pieces):
            if not exchange.write(b"x" * size):
                waits += 1
                await exchange.drain()
        exchange.finish()
        return waits

    def handler(exchange: Exchange) -> None:
        tasks.append(asyncio.ensure_future(stream(exchange)))

    async with serving(handler) as server, connected(server) as peer:
        peer.send(post(b"x"))
        assert len((await peer.answer())[2]) == pieces * size
        assert await tasks[0] > 0


@on_every_loop
async def test_a_large_answer_holds_back_the_next_until_it_is_read() -> None:
    large = b"x" * 8_000_000  # two of them fill any socket buffer

    def handler(exchange: Exchange) -> None:
        exchange.respond(200, large)

    async with serving(handler) as server, connected(server) as peer:
        peer.send(post(b"x") * 3)
        await until(lambda: any(connection.write_paused for connection in server.connections))
        assert server.counters.requests < 3
        for _ in range(3):
            assert (await peer.answer())[2] == large
        assert server.counters.requests == 3


@on_every_loop
async def test_pieces_go_out_in_the_right_order_of_calls_only() -> None:
    waiting: list[Exchange] = []
    async with serving(waiting.append) as server, connected(server) as peer:
        peer.send(post(b"x"))
        await until(lambda: len(waiting) == 1)
        with pytest.raises(RuntimeError, match="in pieces"):
            waiting[0].finish()
        waiting[0].start(299, b"text/plain")  # a status without a phrase of its own
        with pytest.raises(RuntimeError, match="already been answered"):
            waiting[0].start(200)
        waiting[0].finish()
        status, headers, body = await peer.answer()
        assert (status, headers["content-type"], body) == (299, "text/plain", b"")


@on_every_loop
async def test_an_answer_in_pieces_may_take_longer_than_its_beginning() -> None:
    waiting: list[Exchange] = []

    def handler(exchange: Exchange) -> None:
        exchange.start(200)
        waiting.append(exchange)

    async with serving(handler, response_timeout=0.02) as server, connected(server) as peer:
        peer.send(post(b"x"))
        await until(lambda: len(waiting) == 1)
        await asyncio.sleep(0.06)
        waiting[0].write(b"late")
        waiting[0].finish()
        assert (await peer.answer())[2] == b"late"


@on_every_loop
async def test_heads_kept_for_reuse_are_bounded() -> None:
    def handler(exchange: Exchange) -> None:
        exchange.respond(200, b"", b"multipart/related; boundary=" + exchange.request.body)

    async with serving(handler) as server, connected(server) as peer:
        for number in range(600):
            peer.send(post(b"%d" % number))
            assert (await peer.answer())[1]["content-type"].endswith(f"={number}")
        assert len(server.heads) <= 256


# --- the end ----------------------------------------------------------------------------------------------------------


@on_every_loop
async def test_closing_answers_what_is_in_progress_and_closes_idle_connections_at_once() -> None:
    waiting: list[Exchange] = []
    async with serving(waiting.append) as server:
        async with connected(server) as busy, connected(server) as idle, connected(server) as receiving:
            busy.send(post(b"x"))
            await until(lambda: len(waiting) == 1)
            receiving.send(post(b"half")[:-2])
            idle.send(post(b"y"))
            await until(lambda: len(waiting) == 2)
            waiting.pop().respond(200)
            assert (await idle.answer())[0] == 200
            port = server.port
            closing = asyncio.ensure_future(server.close(grace=60))
            assert await idle.ended()
            with pytest.raises(OSError):
                await asyncio.open_connection("127.0.0.1", port)
            receiving.send(b"lf")
            await until(lambda: len(waiting) == 2)
            assert not closing.done()
            for exchange in waiting:
                exchange.respond(200, exchange.request.body)
            for peer, body in ((busy, b"x"), (receiving, b"half")):
                _, headers, got = await peer.answer()
                assert (headers["connection"], got) == ("close", body)
                assert await peer.ended()
            await closing
            assert server.sockets == ()


@on_every_loop
async def test_a_connection_that_is_taken_in_the_moment_of_closing_is_closed_too() -> None:
    async with serving() as server:
        with socket.create_connection(("127.0.0.1", server.port)) as late:
            late.setblocking(False)
            late.sendall(post(b"late"))
            # After these two rounds of asyncio's loop it is taken, and its transport is still to be made.
            for _ in range(2):
                await asyncio.sleep(0)
            await server.close()
            with contextlib.suppress(ConnectionError):  # however it ends, it ends
                while await asyncio.get_running_loop().sock_recv(late, 1000):
                    pass


@on_every_loop
async def test_what_was_sent_ahead_of_the_last_answer_is_not_handed_over() -> None:
    waiting: list[Exchange] = []
    async with serving(waiting.append) as server, connected(server) as peer:
        peer.send(post(b"last") + post(b"ahead"))
        await until(lambda: len(waiting) == 1)
        closing = asyncio.ensure_future(server.close(grace=60))
        await asyncio.sleep(0)
        waiting[0].respond(202)
        assert (await peer.answer())[1]["connection"] == "close"
        assert await peer.ended()
        await closing
        assert len(waiting) == 1


@on_every_loop
async def test_a_peer_that_goes_takes_what_it_sent_ahead_with_it() -> None:
    waiting: list[Exchange] = []
    async with serving(waiting.append) as server:
        async with connected(server) as peer:
            peer.send(post(b"first") + post(b"ahead") + post(b"half")[:-1])
            await until(lambda: len(waiting) == 1)
            assert server.buffered == len(b"firstaheadhal")
        await until(lambda: not server.connections)
        assert len(waiting) == 1
        assert server.buffered == 0


@on_every_loop
async def test_what_is_not_answered_within_the_grace_is_closed() -> None:
    waiting: list[Exchange] = []
    async with serving(waiting.append) as server, connected(server) as peer:
        peer.send(post(b"x"))
        await until(lambda: len(waiting) == 1)
        await server.close(grace=0.02)
        assert waiting[0].closed
        assert await peer.ended()
        assert not server.connections


async def test_a_server_starts_once_and_says_where() -> None:
    server = HTTPServer()
    with pytest.raises(RuntimeError, match="not listening"):
        _ = server.port
    await server.close()
    await server.start(echo, "127.0.0.1", 0)
    with pytest.raises(RuntimeError, match="already been started"):
        await server.start(echo, "127.0.0.1", 0)
    assert server.port > 0
    await server.close()


@pytest.mark.parametrize("setting", ["max_body", "header_timeout"])
def test_a_limit_of_zero_is_refused(setting: str) -> None:
    with pytest.raises(ConfigurationError, match=setting):
        HTTPLimits(**{setting: 0})


# --- TLS --------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.mark.parametrize("loop_factory", LOOPS, ids=["asyncio", "uvloop"][: len(LOOPS)])
def test_tls(authority: trustme.CA, loop_factory: Any) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    trust = ssl.create_default_context()
    authority.configure_trust(trust)

    async def main() -> None:
        secure: list[bool] = []

        def handler(exchange: Exchange) -> None:
            secure.append(exchange.request.secure)
            exchange.respond(200, exchange.request.body)

        async with serving(handler, ssl_context=context, max_body=100_000, linger_timeout=100) as server:
            async with connected(server) as plain:
                plain.send(post(b"not TLS"))
                status, _, content = await plain.answer()
                assert (status, content.strip()) == (400, NEEDS_TLS.text.encode())
                assert await plain.ended()
            async with connected(server, ssl=trust) as peer:
                peer.send(post(b"x" * 100_000) + post(b"y"))
                assert (await peer.answer())[2] == b"x" * 100_000
                assert (await peer.answer())[2] == b"y"
                peer.send(post(b"x" * 100_001))
                assert (await peer.answer())[0] == 413
                let_pass(server, 200)
                assert await peer.ended()
            assert secure == [True, True]

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(asyncio.wait_for(main(), 60))


@pytest.mark.parametrize("loop_factory", LOOPS, ids=["asyncio", "uvloop"][: len(LOOPS)])
def test_connections_that_never_shake_hands_count_and_make_room(authority: trustme.CA, loop_factory: Any) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    trust = ssl.create_default_context()
    authority.configure_trust(trust)

    async def main() -> None:
        async with serving(ssl_context=context, max_connections=3) as server:
            silent = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(30)]
            await until(lambda: server.counters.timeouts["room"] == 27)
            assert len(server.connections) == 3
            async with connected(server, ssl=trust) as peer:
                peer.send(post(b"x"))
                assert (await peer.answer())[2].endswith(b"x")
                assert len(server.connections) == 3
            for _, writer in silent:
                writer.close()
            await until(lambda: not server.connections)

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(asyncio.wait_for(main(), 60))
