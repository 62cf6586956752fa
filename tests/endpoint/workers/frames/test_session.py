"""A connection of another node: which requests it brings, and when it reads no more.

Covers endpoint/workers/frames/session.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from written import Written

from holdfast.endpoint.logs import LineLimit
from holdfast.endpoint.workers.frames import session as module
from holdfast.endpoint.workers.frames.packets import FrameReader, FrameWriter, decode_answer
from holdfast.endpoint.workers.frames.session import NodeSession
from holdfast.http.exchange import Exchange

KEYS = (b"q" * 32, b"a" * 32)


class Node:
    """A session, its transport, and what the other node writes and reads."""

    def __init__(self, take: Callable[[Exchange], None] | None = None) -> None:
        self.asked: list[Exchange] = []
        self.ended = 0
        self.transport = Written()
        self.session = NodeSession(KEYS, "10.0.0.1:5", take or self.asked.append, self._end, LineLimit())
        self.session.connection_made(self.transport)
        self._writer, self._reader = FrameWriter(KEYS[0]), FrameReader(KEYS[1], 1 << 20)
        self._count = 0

    def _end(self, session: NodeSession) -> None:
        self.ended += 1

    def send(self, *contents: bytes) -> bytes:
        """Send a packet with requests that have the numbers of those before, and 1 more each."""
        frames = [(self._count + number, content) for number, content in enumerate(contents, 1)]
        self._count += len(contents)
        packet = self._writer.pack(frames)
        self.session.data_received(packet)
        return packet

    async def heard(self) -> list[tuple[int, int, bytes]]:
        """The answers, in the order in which they were sent: number, status, content."""
        await asyncio.sleep(0)  # the answers of one turn of the loop go together
        found = [frame for data in self.transport.taken() for frame in self._reader.feed(data)]
        answers = [(number, decode_answer(content)) for number, content in found]
        return [(number, answer.status, answer.body) for number, answer in answers]


async def test_answers_go_back_in_their_order_and_together() -> None:
    node = Node()
    node.send(b"one", b"two", b"three")
    one, two, three = node.asked
    assert [exchange.request.body for exchange in node.asked] == [b"one", b"two", b"three"]
    assert {exchange.request.peer for exchange in node.asked} == {"10.0.0.1:5"}
    three.respond(200, b"3")
    one.respond(503, b"1")
    one.respond(200, b"a second answer does not count")
    assert await node.heard() == [(3, 200, b"3"), (1, 503, b"1")]
    two.start(202, b"text/plain")
    two.write(b"in ")
    two.write(b"pieces")
    two.finish()
    assert await node.heard() == [(2, 202, b"in pieces")]
    assert node.transport.writes == 2


async def test_an_empty_packet_is_answered_by_another() -> None:
    node = Node()
    node.send()
    await asyncio.sleep(0)
    assert FrameReader(KEYS[1], 1 << 20).feed(*node.transport.taken()) == []


async def test_a_packet_that_comes_again_or_too_late_ends_the_session(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node()
    packet = node.send(b"one")
    node.session.data_received(packet)
    assert node.transport.is_aborted and len(node.asked) == 1
    monkeypatch.setattr(module, "ACCEPTING", -1.0)
    late = Node()
    late.send(b"one")
    assert late.transport.is_aborted and late.asked == []


async def test_too_many_open_requests_pause_the_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_BYTES", 10)
    node = Node()
    node.send(b"1234", b"5")
    assert not node.transport.is_paused
    node.send(b"10", b"more than there is room for")
    assert node.transport.is_paused
    node.asked[-1].respond(200)
    assert not node.transport.is_paused
    node.session.pause_writing()  # the other node does not read
    assert node.transport.is_paused
    node.session.resume_writing()
    assert not node.transport.is_paused
    monkeypatch.setattr(module, "MOST_OPEN", 0)
    node.send(b"1")
    assert node.transport.is_paused


async def test_a_handler_that_fails_answers_500() -> None:
    def fail(exchange: Exchange) -> None:
        raise RuntimeError("a mistake")

    node = Node(fail)
    node.send(b"one")
    assert await node.heard() == [(1, 500, b"")]


async def test_at_its_end_it_closes_after_the_last_answer() -> None:
    node = Node()
    node.send(b"one")
    node.session.end()
    assert node.transport.is_paused and not node.transport.is_closing()
    node.asked[0].respond(200, b"1")
    assert await node.heard() == [(1, 200, b"1")]
    assert node.transport.is_closing()
    idle = Node()
    idle.session.end()
    assert idle.transport.is_closing()


async def test_a_lost_connection_closes_its_exchanges() -> None:
    node, closed = Node(), list[str]()
    node.send(b"one", b"two")
    for exchange in node.asked:
        exchange.on_close = lambda: closed.append("closed")
    node.asked[0].respond(200)
    node.session.abort()
    node.session.connection_lost(None)
    assert (node.ended, closed, node.asked[1].closed) == (1, ["closed"], True)
    node.asked[1].respond(200)  # it reaches nobody
    await asyncio.sleep(0)
    assert node.transport.writes == 0
