"""Answers that are too large for memory, from a server that streams them to a client that spools them.

Covers http/client/connection.py.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import pytest
from spooled_pieces import PIECE_BYTES, Pieces

from holdfast.http.client import connection
from holdfast.http.client.client import HTTPClient
from holdfast.http.content_spool import SPOOL_FROM
from holdfast.http.exchange import Exchange
from holdfast.http.outcome import Response, TransportError
from holdfast.http.server.server import HTTPServer

PIECE = bytes(range(250)) * (PIECE_BYTES // 250)


def spooling(headers: Mapping[str, str]) -> Pieces | None:
    return Pieces() if headers.get("content-type") == "large" else None


def answer(exchange: Exchange) -> None:
    """Answer with as many pieces as the target says, of the type that it says; "cut": without the end."""
    kind, count = exchange.request.target.strip("/").split("/")

    async def stream() -> None:
        exchange.start(200, kind.encode())
        for _ in range(int(count)):
            if not exchange.write(PIECE):
                await exchange.drain()
        exchange.finish()

    if kind == "whole":
        exchange.respond(200, PIECE * int(count), b"large")
    else:
        exchange.notes = asyncio.ensure_future(stream())


@asynccontextmanager
async def serving() -> AsyncIterator[tuple[str, HTTPClient]]:
    server = HTTPServer()
    await server.start(answer, "127.0.0.1", 0)
    async with HTTPClient(connections_per_host=1, max_response=2 * SPOOL_FROM) as client:
        client.spooling = spooling
        yield f"http://127.0.0.1:{server.port}", client
    await server.close()


async def ask(client: HTTPClient, url: str) -> Response:
    return await client.fetch("POST", url, b"", {})


async def test_large_answers_are_spooled_and_the_connection_serves_the_next() -> None:
    async with serving() as (url, client):
        for kind, count in (("large", 60), ("whole", 40), ("large", 30), ("whole", 11)):
            response = await ask(client, f"{url}/{kind}/{count}")
            assert isinstance(response.spool, Pieces) and response.body == b""
            response.spool.flush()
            assert response.spool.content == PIECE * count
            assert response.spool.most_waiting < 2 * SPOOL_FROM
        small = await ask(client, f"{url}/large/2")
        assert small.spool is None and small.body == 2 * PIECE
        plain = await ask(client, f"{url}/other/12")
        assert plain.spool is None and plain.body == 12 * PIECE
        assert client.connections == 1


async def test_an_answer_of_another_type_is_not_larger_than_before() -> None:
    async with serving() as (url, client):
        with pytest.raises(TransportError, match="more than 2,097,152 bytes"):
            await ask(client, f"{url}/other/30")
        assert (await ask(client, f"{url}/large/30")).spool is not None


async def test_a_slow_disk_stops_the_peer_and_not_the_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Pieces, "gate", threading.Event())
    async with serving() as (url, client):
        slow = asyncio.ensure_future(ask(client, f"{url}/large/500"))
        other = HTTPClient()
        assert (await ask(other, f"{url}/other/1")).body == PIECE
        await other.close()
        assert not slow.done()
        Pieces.gate.set()
        spool = (await slow).spool
        assert isinstance(spool, Pieces)
        spool.flush()
        assert len(spool.content) == 500 * len(PIECE)
        assert spool.most_waiting < 4 * SPOOL_FROM


async def test_an_answer_without_room_fails_and_may_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Pieces, "most", 5 * len(PIECE))
    async with serving() as (url, client):
        with pytest.raises(TransportError, match="cannot be stored now") as caught:
            await ask(client, f"{url}/large/60")
        assert caught.value.connected
        monkeypatch.setattr(Pieces, "most", 1 << 40)
        assert (await ask(client, f"{url}/large/60")).spool is not None


async def test_a_spooled_answer_has_a_limit_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "MAX_ATTACHMENTS", 30 * len(PIECE))
    async with serving() as (url, client):
        for kind in ("large", "whole"):
            with pytest.raises(TransportError, match="and more than"):
                await ask(client, f"{url}/{kind}/40")
        assert (await ask(client, f"{url}/whole/30")).spool is not None
