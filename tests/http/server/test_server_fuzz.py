"""Whatever bytes a peer sends, in whatever pieces: the server stays up, forgets the peer, and serves the others."""

from __future__ import annotations

import asyncio
import itertools
import logging
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples import examples
from holdfast.http.head_memory import KnownHeads
from holdfast.http.server.connection import Connection
from holdfast.http.server.server import Exchange, HTTPLimits, HTTPServer, Request

LIMITS = HTTPLimits(max_body=2000, max_header_bytes=1000, max_pipelined=4, max_buffered=10_000)

SEEDS = [
    b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
    b"POST /rm HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello",
    b"POST /rm HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3;e=1\r\nabc\r\n0\r\nT: 1\r\n\r\n",
    b"POST /rm HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\nx",
    b"POST /rm HTTP/1.1\r\nHost: a\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: A\r\n"
    b"Content-Length: 3\r\n\r\nabc",
    b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
]


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """Good requests one after the other, with bytes replaced, removed, doubled and inserted."""
    data = bytearray(b"".join(draw(st.lists(st.sampled_from(SEEDS), min_size=1, max_size=6))))
    for _ in range(draw(st.integers(0, 4))):
        position = draw(st.integers(0, len(data)))
        length = draw(st.integers(0, 12))
        fragments = st.sampled_from([b"\r\n", b"\0", b":", b" ", b"\r\nContent-Length: 7", b"9" * 20, b"-1"])
        data[position : position + length] = draw(
            st.one_of(st.binary(max_size=8), fragments, st.just(bytes(data[position : position + 2 * length])))
        )
    return bytes(data)


class Wire(asyncio.Transport):
    """The transport's half of a connection, in memory: what was written, and whether it was closed."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.closed = False
        self.paused = False

    def write(self, data: Any) -> None:
        assert not self.closed
        self.written += data

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None: ...

    def close(self) -> None:
        self.closed = True

    abort = close

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False


def talk(
    pieces: list[bytes], *, at_once: bool, known: KnownHeads | None = None
) -> tuple[bytes, list[tuple[str, str, bytes]], HTTPServer]:
    """Give a connection these pieces as a socket would; answer every exchange at once, or after the last piece."""
    server = HTTPServer()
    server.limits = LIMITS
    server.known_heads = known or KnownHeads()
    requests: list[Request] = []
    waiting: list[Exchange] = []

    def handler(exchange: Exchange) -> None:
        requests.append(exchange.request)
        waiting.append(exchange)
        if at_once:
            answer_all()

    def answer_all() -> None:
        while waiting:
            waiting.pop().respond(200, b"ok")

    server.handler = handler
    wire = Wire()
    connection = Connection(server)
    connection.connection_made(wire)
    for piece in pieces:
        while wire.paused and waiting:
            answer_all()
        if wire.closed:
            break
        connection.data_received(piece)
    answer_all()
    connection.connection_lost(None)
    assert server.buffered == 0
    assert not server.connections
    return wire.written, [(request.method, request.target, request.body) for request in requests], server


@settings(max_examples=examples(150))
@given(data=st.one_of(mutated(), st.binary(max_size=200)), at_once=st.booleans())
def test_no_bytes_break_a_connection_and_every_answer_is_whole(data: bytes, at_once: bool) -> None:
    written, requests, server = talk([data], at_once=at_once)
    answers = written.count(b"HTTP/1.1 200 OK\r\n")
    assert answers == len(requests) == server.counters.requests
    assert server.counters.rejected <= 1
    statuses = re.findall(rb"HTTP/1\.1 \d{3} ", written)
    assert len(statuses) == answers + server.counters.rejected + written.count(b"100 Continue")
    assert server.counters.failures == 0


@settings(max_examples=examples(150))
@given(data=mutated(), cuts=st.lists(st.integers(0, 600), max_size=8), at_once=st.booleans())
def test_how_the_bytes_are_cut_does_not_change_what_is_understood(data: bytes, cuts: list[int], at_once: bool) -> None:
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    pieces = [data[start:end] for start, end in itertools.pairwise(edges) if end > start]
    _, whole, _ = talk([data], at_once=True)
    _, cut, _ = talk(pieces, at_once=at_once)
    # A connection that sends too far ahead is refused the more, the more of it comes in one piece.
    shorter = min(len(whole), len(cut))
    assert whole[:shorter] == cut[:shorter]
    _, single, _ = talk([data[at : at + 1] for at in range(len(data))], at_once=True)
    assert single[: len(whole)] == whole


@settings(max_examples=examples(150))
@given(
    data=mutated(),
    cuts=st.lists(st.one_of(st.integers(0, 600), st.sampled_from(range(0, 600, len(SEEDS[1])))), max_size=8),
    at_once=st.booleans(),
    before=st.lists(st.one_of(st.sampled_from(SEEDS), mutated()), min_size=1, max_size=6),
)
def test_heads_seen_before_do_not_change_what_is_understood(
    data: bytes, cuts: list[int], at_once: bool, before: list[bytes]
) -> None:
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    pieces = [data[start:end] for start, end in itertools.pairwise(edges) if end > start]
    known = KnownHeads()
    for earlier in before:
        talk([earlier], at_once=True, known=known)
    written, requests, server = talk(pieces, at_once=at_once)
    written_again, requests_again, server_again = talk(pieces, at_once=at_once, known=known)
    assert (written_again, requests_again) == (written, requests)
    assert server_again.counters == server.counters


@pytest.mark.parametrize("count", [30])
async def test_hostile_peers_do_not_keep_others_from_being_served(count: int, caplog: pytest.LogCaptureFixture) -> None:
    def handler(exchange: Exchange) -> None:
        exchange.respond(200, exchange.request.body)

    server = HTTPServer()
    await server.start(handler, "127.0.0.1", 0, limits=LIMITS)
    good_reader, good_writer = await asyncio.open_connection("127.0.0.1", server.port)

    async def attack(number: int) -> None:
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        seed = bytearray(SEEDS[number % len(SEEDS)] * 3)
        seed[number * 7 % len(seed)] ^= 0xFF
        writer.write(seed + b"\xff\0" * 100)
        await asyncio.sleep(0)
        writer.close()

    with caplog.at_level(logging.WARNING):
        for number in range(count):
            await attack(number)
            good_writer.write(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi")
            head = await good_reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200 OK")
            assert await good_reader.readexactly(2) == b"hi"
    good_writer.close()
    await server.close(grace=60)
    assert server.buffered == 0
    assert caplog.records == []
