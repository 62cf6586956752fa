"""Contents too large for memory, from a client that streams them to a server that spools them.

Covers http/content_spool.py.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager

import pytest
from spooled_pieces import PIECE_BYTES, Pieces
from waiting import until

from holdfast.http.client.client import HTTPClient
from holdfast.http.client.connection import Call
from holdfast.http.content_spool import SPOOL_FROM
from holdfast.http.exchange import Exchange, HTTPLimits
from holdfast.http.outcome import Response, TransportError
from holdfast.http.server.server import HTTPServer

LARGE = {"Content-Type": "large"}


class Content:
    """What the client sends: ``count`` pieces; ``breaks`` says after which one it cannot be read."""

    def __init__(self, count: int, breaks: int = -1) -> None:
        self.size = count * PIECE_BYTES
        self._count, self._breaks = count, breaks
        self.sent = 0

    def __iter__(self) -> Iterator[bytes]:
        for number in range(self._count):
            if number == self._breaks:
                raise OSError("the disk broke")
            self.sent += 1
            yield number.to_bytes(4, "big") * (PIECE_BYTES // 4)


class Served:
    """A server whose requests of the type ``large`` are spooled."""

    def __init__(self) -> None:
        self.url = ""
        self.most = 1 << 40
        self.opens_gate = True
        self.drops_up_to = 0
        self.spools: list[Pieces] = []
        self.exchanges: list[Exchange] = []

    def spooling(self, _target: str, headers: Mapping[bytes, bytes]) -> Pieces | None:
        if headers.get(b"content-type") != b"large":
            return None
        self.spools.append(spool := Pieces())
        spool.most, spool.gate, spool.drops_up_to = self.most, threading.Event(), self.drops_up_to
        if self.opens_gate:
            spool.gate.set()
        return spool

    def handle(self, exchange: Exchange) -> None:
        self.exchanges.append(exchange)
        if exchange.request.spool is not None:
            self.spools[-1].gate.set()
            self.spools[-1].flush()
        exchange.respond(200, b"%d" % len(exchange.request.body))


@asynccontextmanager
async def serving(limits: HTTPLimits | None = None) -> AsyncIterator[tuple[Served, HTTPClient, HTTPServer]]:
    served, server = Served(), HTTPServer()
    server.spooling = served.spooling
    await server.start(served.handle, "127.0.0.1", 0, limits=limits)
    served.url = f"http://127.0.0.1:{server.port}/"
    async with HTTPClient() as client:
        yield served, client, server
    await server.close()


async def send(client: HTTPClient, url: str, content: Content | bytes, headers: dict[str, str]) -> Response:
    answer: asyncio.Future[Response | TransportError] = asyncio.get_running_loop().create_future()
    client.request("POST", url, content, headers, answer.set_result)
    outcome = await answer
    if isinstance(outcome, TransportError):
        raise outcome
    return outcome


async def test_a_large_content_arrives_whole_and_the_connection_serves_the_next() -> None:
    async with serving() as (served, client, server):
        for count in (40, 30):
            content = Content(count)
            assert (await send(client, served.url, content, LARGE)).body == b"0"
            assert bytes(served.spools[-1].content) == b"".join(Content(count))
        assert server.counters.connections == 1 and server.buffered == 0
        small = b"x" * (SPOOL_FROM - 1)
        assert (await send(client, served.url, small, LARGE)).body == b"%d" % len(small)
        assert served.exchanges[-1].request.spool is None
        assert (await send(client, served.url, Content(40), {})).body == b"4000000"
        assert server.buffered == 0


async def test_a_slow_disk_stops_the_peer_and_not_the_server() -> None:
    async with serving() as (served, client, _):
        served.opens_gate = False
        content = Content(600)
        sending = asyncio.ensure_future(send(client, served.url, content, LARGE))
        await until(lambda: bool(served.spools) and bool(served.spools[0].waiting))
        assert (await send(client, served.url, b"small", {})).body == b"5"
        spool = served.spools[0]
        sent = -1
        while sent != content.sent:  # the buffers of the system are full
            sent = content.sent
            assert (await send(client, served.url, b"small", {})).status == 200
        assert content.sent < 600 and not spool.content
        spool.gate.set()
        assert (await sending).status == 200
        assert bytes(spool.content) == b"".join(Content(600))
        assert spool.most_waiting < 2 * SPOOL_FROM


async def test_a_spool_without_room_is_answered_503_before_the_end() -> None:
    async with serving() as (served, client, server):
        served.most = 3_000_000
        content = Content(2_000)
        answer = await send(client, served.url, content, LARGE)
        assert answer.status == 503 and 10 <= int(answer.headers["retry-after"]) <= 20
        assert content.sent < 2_000 and server.counters.refused["space"] == 1
        assert server.buffered == 0


async def test_the_limit_of_attachments_is_its_own_declared_or_not() -> None:
    limits = HTTPLimits(max_body=100_000, max_attachments=2_000_000)
    async with serving(limits) as (served, client, server):
        assert (await send(client, served.url, Content(20), LARGE)).status == 200
        assert (await send(client, served.url, Content(2), {})).status == 413
        assert (await send(client, served.url, Content(21), LARGE)).status == 413
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Type: large\r\nTransfer-Encoding: chunked\r\n\r\n")
        for _ in range(21):
            writer.write(b"%x\r\n%b\r\n" % (PIECE_BYTES, bytes(PIECE_BYTES)))
        assert b" 413 " in await reader.readline()
        writer.close()


async def test_a_content_beyond_the_limits_is_received_and_dropped_if_its_spool_says_so() -> None:
    limits = HTTPLimits(max_body=100_000, max_attachments=2_000_000)
    async with serving(limits) as (served, client, server):
        served.drops_up_to = 3_000_000
        for count in (20, 21, 30):
            assert (await send(client, served.url, Content(count), LARGE)).status == 200
            assert served.spools[-1].is_dropped == (count > 20)
        assert (await send(client, served.url, Content(31), LARGE)).status == 413
        await until(lambda: server.buffered == 0)


async def test_a_content_that_cannot_be_read_on_fails_the_request() -> None:
    async with serving() as (served, client, server):
        with pytest.raises(TransportError, match="cannot be read: the disk broke"):
            await send(client, served.url, Content(40, breaks=20), LARGE)
        await until(lambda: not server.connections)
        assert not served.exchanges and server.buffered == 0


async def test_an_answer_before_the_end_of_the_content_ends_the_connection() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n")

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with HTTPClient() as client:
        content = Content(2_000)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        assert (await send(client, url, content, LARGE)).status == 413
        assert content.sent < 2_000 and client.connections == 0
    server.close()


def test_a_written_piece_moves_the_deadline_of_its_request() -> None:
    call = Call("http://h/", b"", Content(1), lambda _outcome: None, 10.0, 5.0)
    call.moved(20.0)
    assert call.deadline == 25.0
