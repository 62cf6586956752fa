"""The room for large answers: bounded over all origins and for each, and given back with the answer."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from holdfast.http.client import answer_room
from holdfast.http.client.answer_room import AnswerRoom, Claim, room_of
from holdfast.http.client.client import HTTPClient
from holdfast.http.outcome import Response
from holdfast.http.server.server import Exchange, Handler, HTTPServer


@asynccontextmanager
async def serving(handler: Handler) -> AsyncIterator[str]:
    server = HTTPServer()
    await server.start(handler, "127.0.0.1", 0)
    yield f"http://127.0.0.1:{server.port}/"
    await server.close()


def claim(room: AnswerRoom, origin: str, size: int, granted: list[str]) -> Claim:
    made = room.claim(origin, size, lambda: granted.append(origin))
    if made.is_granted:
        granted.append(origin)
    return made


async def test_an_origin_beyond_its_share_waits_and_others_go_on() -> None:
    room, granted = AnswerRoom(asyncio.get_running_loop(), most=100, most_of_one=40), []
    first = claim(room, "a", 30, granted)
    second = claim(room, "a", 30, granted)
    other = claim(room, "b", 30, granted)
    assert granted == ["a", "b"] and room.bytes == 60
    first.end()
    assert granted == ["a", "b", "a"] and second.is_granted
    second.end()
    other.end()
    assert room.bytes == 0


async def test_all_origins_together_have_a_limit_and_the_first_that_waits_is_next() -> None:
    room, granted = AnswerRoom(asyncio.get_running_loop(), most=50, most_of_one=40), []
    claims = [claim(room, one, 25, granted) for one in "abcd"]
    assert granted == ["a", "b"]
    claims[1].end()
    assert granted == ["a", "b", "c"]
    claims[3].end()
    claims[0].end()
    assert granted == ["a", "b", "c"] and room.bytes == 25, "one that is over waits no more"


async def test_an_answer_larger_than_all_the_room_goes_alone() -> None:
    room, granted = AnswerRoom(asyncio.get_running_loop(), most=50, most_of_one=40), []
    large = claim(room, "a", 500, granted)
    claim(room, "b", 10, granted)
    assert granted == ["a"]
    large.end()
    assert granted == ["a", "b"]


async def test_a_claim_that_nobody_has_any_more_is_given_back() -> None:
    room, granted = AnswerRoom(asyncio.get_running_loop(), most=50), []
    made = claim(room, "a", 50, granted)
    del made
    gc.collect()
    await asyncio.sleep(0)
    assert room.bytes == 0


@pytest.mark.parametrize("is_declared", [True, False])
async def test_large_answers_come_one_after_the_other_as_there_is_room(
    is_declared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = 600_000
    room = room_of(asyncio.get_running_loop())
    monkeypatch.setattr(room, "_most_of_one", size)
    most = 0

    def handler(exchange: Exchange) -> None:
        if is_declared:
            exchange.respond(200, b"x" * size)
        else:
            exchange.start(200)
            exchange.write(b"x" * size)
            exchange.finish()

    async with serving(handler) as url, HTTPClient(max_response=size) as client:

        async def fetch() -> None:
            nonlocal most
            response = await client.fetch("POST", url, b"<x/>", {})
            most = max(most, room.bytes)
            assert len(response.body) == size
            await asyncio.sleep(0.001)

        async with asyncio.timeout(60):
            await asyncio.gather(*(fetch() for _ in range(12)))
        assert most == size
        gc.collect()
        await asyncio.sleep(0)
        assert room.bytes == 0


async def test_answers_that_are_cut_or_never_end_give_their_room_back() -> None:
    room = room_of(asyncio.get_running_loop())

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n" + b"x" * 300_000)
        await writer.drain()
        if b"cut" in await reader.read(10):
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    async with HTTPClient(total_timeout=0.5) as client:
        outcomes = await asyncio.gather(
            *(client.fetch("POST", url, body, {}) for body in (b"cut", b"wait", b"wait")), return_exceptions=True
        )
    assert not any(isinstance(one, Response) for one in outcomes)
    assert room.bytes == 0
    server.close()


async def test_a_small_answer_needs_no_room() -> None:
    room = room_of(asyncio.get_running_loop())
    before = room.claim("elsewhere", answer_room.MOST_BYTES, lambda: None)
    async with serving(lambda exchange: exchange.respond(200, b"x" * 60_000)) as url, HTTPClient() as client:
        assert len((await client.fetch("POST", url, b"", {})).body) == 60_000
    before.end()
