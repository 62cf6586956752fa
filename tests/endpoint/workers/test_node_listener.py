"""Requests of another node reach their worker with their connection, on real sockets.

Covers endpoint/workers/node_listener.py.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from holdfast.endpoint.workers import node_listener
from holdfast.endpoint.workers.frames.session import FramedExchange
from holdfast.endpoint.workers.frames.streams import MISDIRECTED, MOST_FRAMED
from holdfast.endpoint.workers.node_listener import NodeListener
from holdfast.endpoint.workers.node_proof import NodeProof
from holdfast.endpoint.workers.placement import Placement, Placements
from holdfast.endpoint.workers.request_freshness import RequestFreshness
from holdfast.endpoint.workers.worker_client import STALE, WorkerClient
from holdfast.http.client.client import HTTPClient
from holdfast.http.exchange import Exchange, HTTPLimits, Request
from holdfast.http.outcome import Outcome, Response, TransportError
from holdfast.http.server.binding import bind
from holdfast.http.server.server import HTTPServer
from holdfast.testing.ports import free_ports


class Node:
    """Two processes of a node in one: one that accepts connections, and worker 1."""

    def __init__(self, directory: Path) -> None:
        self.asked: list[bytes] = []
        self.framed: list[bytes] = []
        self.given: list[int] = []
        proof = NodeProof("a secret")
        here = Placements()
        here.set(Placement(local=frozenset({1, 2})))
        self.inbox, self.stored, self._socket = HTTPServer(), list[bytes](), socket.socket(socket.AF_UNIX)
        self._socket.bind(str(directory / "worker"))
        paths = ("nowhere", str(directory / "worker"), "nowhere")
        self.client = WorkerClient(paths, here, proof, 8)
        self.worker = NodeListener(
            self.client, here, proof, 1, self._answer, lambda *_: False, RequestFreshness(lambda: "w"), self._answer
        )
        self.accepting = NodeListener(
            self.client, here, proof, 9, self._answer, self._give, RequestFreshness(lambda: "a"), self._answer
        )
        self.there = Placements()
        self.asking = WorkerClient(paths, self.there, proof, 8)

    async def start(self) -> None:
        port, own = free_ports(2)
        await self.accepting.start(bind("127.0.0.1", port, 8), HTTPLimits())
        await self.worker.start(bind("127.0.0.1", own, 8), HTTPLimits())
        self.there.set(Placement(remote=dict.fromkeys((1, 2, 3), f"http://127.0.0.1:{port}")))

    async def open_socket(self) -> None:
        """Let worker 1 take requests at its socket."""
        await self.inbox.start(self._store, None, 0, sockets=[self._socket])

    def _give(self, number: int, connection: socket.socket, request: Request) -> bool:
        self.given.append(number)
        copy = connection.dup()
        copy.setblocking(False)
        self._adopting = asyncio.get_running_loop().create_task(self.worker.adopt(copy, request))
        return True

    def _store(self, exchange: Exchange) -> None:
        """Be the socket of worker 1."""
        self.stored.append(exchange.request.body)
        exchange.respond(200, exchange.request.target.encode() + exchange.request.body)

    def _answer(self, exchange: Exchange) -> None:
        self.asked.append(exchange.request.body)
        assert exchange.request.target == "/message"
        if isinstance(exchange, FramedExchange):
            self.framed.append(exchange.request.body)
        if exchange.request.body == b"pieces":
            exchange.start(202, b"text/plain", ((b"X-One", b"1"),))
            assert exchange.write(b"pie")
            assert exchange.write(b"ces")
            exchange.finish()
            return
        exchange.respond(200, b"got " + exchange.request.body, b"text/plain")

    async def close(self) -> None:
        await self.asking.close()
        for one in (self.accepting, self.worker):
            await one.close()
        await self.inbox.close()
        self._socket.close()
        await self.client.close()


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    made = Node(tmp_path)
    await made.start()
    yield made
    await made.close()


async def test_the_first_request_of_a_connection_takes_it_to_its_worker(node: Node) -> None:
    for number in range(5):
        answer = await node.asking.fetch(1, "POST", "message", b"%d" % number)
        assert (answer.status, answer.body, answer.content_type) == (200, b"got %d" % number, "text/plain")
    assert node.given == [1]
    assert node.asked == [b"0", b"1", b"2", b"3", b"4"]


async def test_an_answer_in_pieces_is_sealed_as_a_whole(node: Node) -> None:
    answer = await node.asking.fetch(1, "POST", "message", b"pieces")
    assert (answer.status, answer.body, answer.headers["x-one"]) == (202, b"pieces", "1")


async def test_a_worker_that_is_not_here_or_that_does_not_answer_is_asked_elsewhere(node: Node) -> None:
    assert (await node.asking.fetch(3, "POST", "message", b"x")).status == MISDIRECTED
    answer = await node.asking.fetch(1, "GET", "knows/urn:x")  # which only its Unix socket answers, and there is none
    assert (answer.status, node.given, node.asked) == (MISDIRECTED, [], [])


async def test_connections_of_one_worker_carry_no_requests_for_another(node: Node) -> None:
    assert (await node.asking.fetch(1, "POST", "message", b"one")).status == 200
    # The connection comes to the process of worker 1 here, which asks the socket of worker 2, and there is none.
    assert (await node.asking.fetch(2, "POST", "message", b"two")).status == MISDIRECTED
    assert (await node.asking.fetch(1, "POST", "message", b"three")).status == 200
    assert node.given == [1, 2]
    assert node.asked == [b"one", b"three"]


async def test_messages_share_a_connection_and_large_ones_have_their_own(node: Node) -> None:
    large = b"l" * (MOST_FRAMED + 1)
    bodies = [b"%d" % number for number in range(50)] + [large]
    answers = await asyncio.gather(*(node.asking.fetch(1, "POST", "message", body) for body in bodies))
    assert [answer.body for answer in answers] == [b"got " + body for body in bodies]
    assert (node.given, sorted(node.framed)) == ([1, 1], sorted(bodies[:-1]))


async def test_a_node_without_frames_gets_each_message_alone(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_listener, "FRAMES", "what an older version does not know")
    answers = await asyncio.gather(*(node.asking.fetch(1, "POST", "message", b"%d" % one) for one in range(5)))
    assert sorted(answer.body for answer in answers) == [b"got %d" % one for one in range(5)]
    assert not node.framed


async def test_a_recorded_request_begins_no_frames(node: Node) -> None:
    proof, url = NodeProof("a secret"), node.there.now.remote[1]

    async def ask(stamp: str, by: NodeProof = proof) -> Response:
        async with HTTPClient() as http:  # on a connection of its own
            headers = by.headers(stamp, "POST", "/-/frames/1", b"")
            response = await http.fetch("POST", f"{url}/-/frames/1", b"", headers)
            answer = proof.open(stamp, response, url)
            return answer if isinstance(answer, Response) else response

    answer = await ask(".attacker.1")
    assert answer.status == STALE, "it does not know the challenge"
    stamp = f"{answer.body.decode()}.attacker.2"
    assert (await ask(stamp)).status == 200
    assert (await ask(stamp)).status == STALE
    assert (await ask(f"{answer.body.decode()}.attacker.3", NodeProof("of another cluster"))).status == 403


class Large:
    """A content of three megabytes that is read piece by piece."""

    piece = bytes(range(256)) * 1024
    size = 12 * len(piece)

    def __iter__(self) -> Iterator[bytes]:
        for _ in range(12):
            yield self.piece


async def ask_large(node: Node, number: int) -> Outcome:
    told: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
    node.asking.request_large(number, "POST", "spooled", Large(), {}, told.set_result)
    return await told


async def test_a_large_message_reaches_the_socket_of_its_worker_on_a_sealed_connection(node: Node) -> None:
    await node.open_socket()
    for _ in range(2):
        answer = await ask_large(node, 1)
        assert isinstance(answer, Response)
        assert (answer.status, answer.body) == (200, b"/spooled" + 12 * Large.piece)
    assert node.stored == [12 * Large.piece] * 2
    assert not node.asked and node.given == [1]  # one connection, which comes to the process of the worker


async def test_a_large_message_for_a_worker_that_is_not_here_fails(node: Node) -> None:
    for number in (2, 3):  # one has no socket, and one is at another node
        answer = await ask_large(node, number)
        assert isinstance(answer, TransportError) and not answer.connected, answer


async def test_a_node_without_sealed_connections_gets_no_large_message(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_listener, "SEALED", "what an older version does not know")
    await node.open_socket()
    answer = await ask_large(node, 1)
    assert isinstance(answer, TransportError) and not node.stored


async def test_a_recorded_request_begins_no_sealed_connection(node: Node) -> None:
    await node.open_socket()
    proof, url = NodeProof("a secret"), node.there.now.remote[1]
    statuses = []
    challenge = ""
    for number in (1, 2, 2):
        stamp = f"{challenge}.attacker.{number}"
        headers = proof.headers(stamp, "POST", "/-/sealed/1", b"")
        async with HTTPClient() as http:  # on a connection of its own
            response = await http.fetch("POST", f"{url}/-/sealed/1", b"", headers)
        answer = proof.open(stamp, response, url)
        assert isinstance(answer, Response)
        challenge = answer.body.decode() or challenge
        statuses.append(answer.status)
    assert statuses == [STALE, 200, STALE]


async def test_so_many_sealed_connections_and_no_more(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    await node.open_socket()
    monkeypatch.setattr(node_listener, "MOST_PIPES", 0)
    assert isinstance(await ask_large(node, 1), TransportError)
