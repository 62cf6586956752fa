"""Requests of another node reach their worker with their connection, on real sockets.

Covers endpoint/workers/node_listener.py.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest

from holdfast.endpoint.workers.node_listener import NodeListener
from holdfast.endpoint.workers.node_proof import NodeProof
from holdfast.endpoint.workers.placement import Placement, Placements
from holdfast.endpoint.workers.worker_client import MISDIRECTED, WorkerClient
from holdfast.http.exchange import Exchange, HTTPLimits, Request
from holdfast.http.server.binding import bind
from holdfast.testing.ports import free_ports


class Node:
    """Two processes of a node in one: one that accepts connections, and worker 1."""

    def __init__(self) -> None:
        self.asked: list[bytes] = []
        self.given: list[int] = []
        proof = NodeProof("a secret")
        here = Placements()
        here.set(Placement(local=frozenset({1, 2})))
        self.client = WorkerClient((), here, proof, 8)
        self.worker = NodeListener(self.client, here, proof, 1, self._answer, lambda *_: False)
        self.accepting = NodeListener(self.client, here, proof, 9, self._answer, self._give)
        self.there = Placements()
        self.asking = WorkerClient((), self.there, proof, 8)

    async def start(self) -> None:
        port, own = free_ports(2)
        await self.accepting.start(bind("127.0.0.1", port, 8), HTTPLimits())
        await self.worker.start(bind("127.0.0.1", own, 8), HTTPLimits())
        self.there.set(Placement(remote=dict.fromkeys((1, 2, 3), f"http://127.0.0.1:{port}")))

    def _give(self, number: int, connection: socket.socket, request: Request) -> bool:
        self.given.append(number)
        copy = connection.dup()
        copy.setblocking(False)
        self._adopting = asyncio.get_running_loop().create_task(self.worker.adopt(copy, request))
        return True

    def _answer(self, exchange: Exchange) -> None:
        self.asked.append(exchange.request.body)
        assert exchange.request.target == "/message"
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
        await self.client.close()


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    made = Node()
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
