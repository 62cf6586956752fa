"""What peers of a server can make it hold: unfinished headers, many fields, answers that they do not read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from waiting import until

from holdfast.http.client.client import HTTPClient
from holdfast.http.outcome import Response
from holdfast.http.server.connection import MAX_FIELDS
from holdfast.http.server.server import Exchange, Handler, HTTPLimits, HTTPServer


@asynccontextmanager
async def serving(handler: Handler, **settings: Any) -> AsyncIterator[HTTPServer]:
    server = HTTPServer()
    await server.start(handler, "127.0.0.1", 0, limits=HTTPLimits(**settings))
    try:
        yield server
    finally:
        await server.close()
        assert (server.buffered, server._unsent_bytes, server._unsent, server.large) == (0, 0, {}, {})


def ok(exchange: Exchange) -> None:
    exchange.respond(200, b"ok")


async def connect(
    stack: AsyncExitStack, server: HTTPServer, **options: Any
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port, **options)
    stack.callback(lambda: (reader, writer.transport.abort()))  # without its reader a connection is closed
    return reader, writer


async def test_unfinished_headers_of_all_connections_count_as_what_is_held() -> None:
    async with serving(ok, max_body=100, max_buffered=10_000) as server, AsyncExitStack() as stack:
        peers = [await connect(stack, server) for _ in range(4)]
        for _, writer in peers[:3]:
            writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nA: " + b"a" * 3_000)
        await until(lambda: server.buffered > 9_000)
        peers[3][1].write(b"POST / HTTP/1.1\r\nHost: x\r\nA: " + b"a" * 3_000)
        assert b" 503 " in await peers[3][0].readline()
        for reader, writer in peers[:3]:
            writer.write(b"\r\nContent-Length: 0\r\n\r\n")
            assert b" 200 " in await reader.readline()
        assert server.buffered == 0
        assert server.counters.refused["memory"] == 1


async def test_a_header_section_that_is_cut_off_is_held_no_longer() -> None:
    async with serving(ok) as server, AsyncExitStack() as stack:
        _, writer = await connect(stack, server)
        writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nA: " + b"a" * 3_000)
        await until(lambda: server.buffered > 3_000)
        writer.close()
        await until(lambda: server.buffered == 0)


async def test_more_header_fields_than_may_be_are_refused() -> None:
    async with serving(ok) as server, AsyncExitStack() as stack:
        for count, status in ((MAX_FIELDS - 2, b" 200 "), (MAX_FIELDS, b" 431 ")):
            reader, writer = await connect(stack, server)
            fields = b"".join(b"a%d: b\r\n" % number for number in range(count))
            writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n" + fields + b"\r\n")
            assert status in await reader.readline()


async def test_an_answer_with_more_header_fields_than_may_be_is_none() -> None:
    def many(exchange: Exchange) -> None:
        exchange.respond(200, b"ok", headers=[(b"a%d" % number, b"b") for number in range(int(exchange.request.body))])

    async with serving(many) as server, HTTPClient() as client:
        url = f"http://127.0.0.1:{server.port}/"
        assert (await client.fetch("POST", url, b"%d" % (MAX_FIELDS - 10), {})).body == b"ok"
        outcomes = await asyncio.gather(client.fetch("POST", url, b"%d" % (MAX_FIELDS + 1), {}), return_exceptions=True)
        assert not isinstance(outcomes[0], Response) and "header fields" in str(outcomes[0])


async def test_of_answers_that_are_not_read_those_that_wait_longest_give_way() -> None:
    size = 20 << 20  # far more than the system's own buffers take

    def large(exchange: Exchange) -> None:
        exchange.respond(200, b"x" * size)

    async with serving(large, max_unsent=40 << 20) as server, AsyncExitStack() as stack:
        peers = [await connect(stack, server) for _ in range(6)]
        for count, (reader, writer) in enumerate(peers, 1):
            reader._transport.pause_reading()  # type: ignore[attr-defined]
            writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            await until(lambda count=count: server.counters.requests == count)  # type: ignore[misc]
            assert server._unsent_bytes <= 40 << 20
        assert server.counters.timeouts["unsent"] >= 3
        last = peers[-1][0]
        last._transport.resume_reading()  # type: ignore[attr-defined]
        await last.readuntil(b"\r\n\r\n")
        assert len(await last.readexactly(size)) == size, "the newest is sent whole"


async def test_an_answer_larger_than_all_that_may_be_unread_is_sent_if_it_is_read() -> None:
    async with (
        serving(lambda exchange: exchange.respond(200, b"x" * (8 << 20)), max_unsent=1 << 20) as server,
        HTTPClient() as client,
    ):
        assert len((await client.fetch("POST", f"http://127.0.0.1:{server.port}/", b"", {})).body) == 8 << 20


async def test_one_address_holds_half_of_the_large_contents_and_another_one_the_rest() -> None:
    size, waiting = 100_000, list[Exchange]()
    head = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % size
    async with serving(waiting.append, max_body=size, max_buffered=6 * size) as server, AsyncExitStack() as stack:
        for count in range(1, 4):
            _, writer = await connect(stack, server)
            writer.write(head + b"x" * (size if count < 3 else size - 1))
            await until(lambda count=count: server.buffered >= count * size - 1)  # type: ignore[misc]
        reader, writer = await connect(stack, server)
        writer.write(head + b"x" * size)
        assert b" 503 " in await reader.readline(), "whole ones and unfinished ones count"
        small = await connect(stack, server)
        small[1].write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n" + b"x" * 1_000)
        await until(lambda: len(waiting) == 3)
        _, other = await connect(stack, server, local_addr=("127.0.0.2", 0))
        other.write(head + b"x" * size)
        await until(lambda: len(waiting) == 4)
        for exchange in waiting:
            exchange.respond(200)
        again = await connect(stack, server)
        again[1].write(head + b"x" * size)
        await until(lambda: len(waiting) == 5)
        waiting[-1].respond(200)


async def test_a_single_content_may_be_more_than_half() -> None:
    async with serving(ok, max_body=500_000, max_buffered=600_000) as server, HTTPClient() as client:
        assert (await client.fetch("POST", f"http://127.0.0.1:{server.port}/", b"x" * 500_000, {})).body == b"ok"
