"""Connections that one server gives to another, as one process gives them to another."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from holdfast.http.exchange import Exchange, HTTPLimits, Request
from holdfast.http.server.server import HTTPServer, event_loop_factory

LOOPS = [asyncio.new_event_loop] + ([factory] if (factory := event_loop_factory()) is not None else [])
on_every_loop = pytest.mark.parametrize("loop_factory", LOOPS, ids=["asyncio", "uvloop"][: len(LOOPS)])
REQUEST = b"POST /%d HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbody"


def run(loop_factory: Any, test: Any) -> None:
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(asyncio.wait_for(test, 60))


class Owner:
    """Who gets connections: a server that says which request it answers, and whether it was passed on."""

    def __init__(self) -> None:
        self.server = HTTPServer()
        self.tasks: set[asyncio.Task[None]] = set()

    def answer(self, exchange: Exchange) -> None:
        told = f"{exchange.request.target} {exchange.request.body.decode()} {exchange.is_passed_on}"
        exchange.respond(200, told.encode())

    def take(self, connection: socket.socket, request: Request | None = None) -> bool:
        copy = connection.dup()
        copy.setblocking(False)
        self.tasks.add(asyncio.get_running_loop().create_task(self.server.adopt(copy, request)))
        return True


@asynccontextmanager
async def owner_and(
    handler: Callable[[Owner, Exchange], None], **limits: Any
) -> AsyncIterator[tuple[Owner, HTTPServer]]:
    owner, first = Owner(), HTTPServer()
    await owner.server.start(owner.answer, "127.0.0.1", 0)
    await first.start(lambda exchange: handler(owner, exchange), "127.0.0.1", 0, limits=HTTPLimits(**limits))
    try:
        yield owner, first
    finally:
        for server in (first, owner.server):
            await server.close()
            assert server.buffered == 0


async def answer_of(reader: asyncio.StreamReader) -> str:
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
    return (await reader.readexactly(length)).decode()


def give(owner: Owner, exchange: Exchange) -> None:
    if not exchange.give_away(owner.take):
        exchange.respond(200, b"kept")


@on_every_loop
def test_a_connection_goes_with_its_request_and_what_follows_comes_to_who_has_it(loop_factory: Any) -> None:
    async def test() -> None:
        async with owner_and(give) as (owner, first):
            reader, writer = await asyncio.open_connection("127.0.0.1", first.port)
            writer.write(REQUEST % 1)
            assert await answer_of(reader) == "/1 body True"
            assert not first.connections
            assert first.counters.given == 1
            writer.write(REQUEST % 2)
            assert await answer_of(reader) == "/2 body False"
            assert owner.server.counters.requests == 2
            writer.close()

    run(loop_factory, test())


@on_every_loop
def test_a_connection_with_more_under_way_is_kept(loop_factory: Any) -> None:
    async def test() -> None:
        async with owner_and(give) as (_, first):
            reader, writer = await asyncio.open_connection("127.0.0.1", first.port)
            writer.write(REQUEST % 1 + REQUEST % 2)
            assert await answer_of(reader) == "kept"
            assert await answer_of(reader) in ("kept", "/2 body True")  # the last one has nothing behind it
            writer.close()

    run(loop_factory, test())


@on_every_loop
def test_a_connection_that_no_worker_takes_stays_where_it_is(loop_factory: Any) -> None:
    async def test() -> None:
        def offer(owner: Owner, exchange: Exchange) -> None:
            assert not exchange.give_away(lambda _connection, _request: False)
            exchange.respond(200, b"kept")

        async with owner_and(offer) as (_, first):
            reader, writer = await asyncio.open_connection("127.0.0.1", first.port)
            for number in range(3):
                writer.write(REQUEST % number)
                assert await answer_of(reader) == "kept"
            assert first.counters.given == 0
            writer.close()

    run(loop_factory, test())


@on_every_loop
def test_a_connection_that_was_given_is_not_given_again(loop_factory: Any) -> None:
    async def test() -> None:
        async with owner_and(give) as (owner, first):
            owner.server.handler = lambda exchange: give(owner, exchange)
            reader, writer = await asyncio.open_connection("127.0.0.1", first.port)
            for number in range(3):
                writer.write(REQUEST % number)
                assert await answer_of(reader) == "kept"
            writer.close()

    run(loop_factory, test())


@on_every_loop
def test_a_full_server_gives_a_new_connection_before_it_brings_anything(loop_factory: Any) -> None:
    async def test() -> None:
        waiting: list[Exchange] = []
        async with owner_and(lambda _owner, exchange: waiting.append(exchange), max_connections=1) as (owner, first):
            first.give = owner.take
            reader, writer = await asyncio.open_connection("127.0.0.1", first.port)
            writer.write(REQUEST % 1)
            while not waiting:
                await asyncio.sleep(0.001)
            other_reader, other = await asyncio.open_connection("127.0.0.1", first.port)
            other.write(REQUEST % 2)
            assert await answer_of(other_reader) == "/2 body False"
            waiting[0].respond(200, b"first")
            assert await answer_of(reader) == "first"
            writer.close()
            other.close()

    run(loop_factory, test())


@on_every_loop
def test_a_handlers_use_of_a_request_does_not_change_the_buffered_bytes(loop_factory: Any) -> None:
    async def test() -> None:
        def change(_owner: Owner, exchange: Exchange) -> None:
            exchange.request = Request("POST", "/", {}, b"", None, False)
            exchange.respond(200, b"done")

        async with owner_and(change) as (_, first):
            reader, writer = await asyncio.open_connection("127.0.0.1", first.port)
            for number in range(3):
                writer.write(REQUEST % number)
                assert await answer_of(reader) == "done"
                assert first.buffered == 0
            writer.close()

    run(loop_factory, test())
