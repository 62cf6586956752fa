"""Workers of one broker or nodes of a cluster, and a destination that grants the same Identifier to several of them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from crew import Crew, lives
from databases import PostgreSQL
from scripted_nodes import Cluster
from waiting import until

from holdfast.core.messages import (
    Acknowledge,
    CreateSequence,
    CreateSequenceResponse,
    Envelope,
    SequenceAcknowledgement,
)
from holdfast.core.ranges import AcknowledgementRanges
from holdfast.endpoint.worker import worker_of
from holdfast.http.exchange import Exchange
from holdfast.http.outcome import TransportError
from holdfast.http.server.server import HTTPServer
from holdfast.wire import decode, encode

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="workers are forked")

CONFIG = """
store = "inbox"
partitions = 1
workers = 2
[listen]
port = 0
[admin]
enabled = false
"""
FORWARDER = """
[queues.orders]
[forwarders.next]
queue = "orders"
to = "{url}"
rm = "1.1"
addressing = "2005/08"
soap = "1.2"
offer = false
policy.circuit = {{first = "200ms", cap = "500ms"}}
"""
MESSAGES = 6


class Shop:
    """A destination that grants every Sequence the same Identifier, as one with a counter that restarts does.

    To it, what has the same Identifier is one Sequence: a number that it has is a duplicate, and is acknowledged.
    """

    def __init__(self) -> None:
        self.name = "urn:x"
        """The next Identifier to grant; "" for another one each time."""
        self.asked: Counter[int | None] = Counter()
        """How often each worker sent CreateSequence."""
        self.got: dict[str, dict[int, str]] = {}
        self.lost: list[str] = []
        """What it acknowledges as a duplicate of another message."""
        self.on_asked: Callable[[int | None], None] = lambda _worker: None
        self.url = ""

    def handle(self, exchange: Exchange) -> None:
        envelope = decode(exchange.request.body)
        answer = Envelope(envelope.soap, envelope.addressing, envelope.rm, relates_to=envelope.message_id)
        if isinstance(envelope.control, CreateSequence):
            worker = worker_of(envelope.message_id or "")
            self.asked[worker] += 1
            self.on_asked(worker)
            answer.control = CreateSequenceResponse(self.name or f"urn:y:{self.asked.total()}")
        elif envelope.sequence is not None:
            identifier, number = envelope.sequence.identifier, envelope.sequence.message_number
            body = bytes(envelope.body).decode()
            if self.got.setdefault(identifier, {}).setdefault(number, body) != body:
                self.lost.append(body)
            self.acknowledge(answer, identifier)
        elif envelope.ack_requested:
            self.acknowledge(answer, envelope.ack_requested[0].identifier)
        else:
            exchange.respond(202)
            return
        exchange.respond(200, encode(answer), b"application/soap+xml")

    def acknowledge(self, answer: Envelope, identifier: str) -> None:
        ranges = AcknowledgementRanges((one, one) for one in sorted(self.got.get(identifier, {})))
        answer.control = Acknowledge()
        answer.acknowledgements = (SequenceAcknowledgement(identifier, tuple(ranges)),)

    def bodies(self) -> Counter[str]:
        """What arrived."""
        return Counter(body for some in self.got.values() for body in some.values())


@pytest.fixture
async def shop() -> AsyncIterator[Shop]:
    one, server = Shop(), HTTPServer()
    await server.start(one.handle, "127.0.0.1", 0)
    one.url = f"http://127.0.0.1:{server.port}/"
    yield one
    await server.close(0.5)


@pytest.fixture
def broker(shop: Shop, tmp_path: Path) -> Iterator[Callable[[], Crew]]:
    started: list[Crew] = []

    def start() -> Crew:
        started.append(Crew(tmp_path, broker=CONFIG + FORWARDER.format(url=shop.url)))
        return started[-1]

    yield start
    for one in started:
        one.clean()


async def send(url: str, peer: Any, worker: int, first: int = 1) -> set[str]:
    """Let a worker store six messages; return their bodies."""
    one = peer(url)
    while not one.identifier or worker_of(one.identifier) != worker:
        await one.create()
    bodies = [f"<n>{worker}-{number}</n>" for number in range(first, first + MESSAGES)]
    for number, body in enumerate(bodies, 1):
        while True:
            with contextlib.suppress(TransportError):  # the worker that had the connection may be killed
                assert (await one.message(number, body.encode())).ranges == ((1, number),)
                break
    return set(bodies)


async def test_of_two_workers_that_are_granted_one_identifier_one_uses_it(
    broker: Callable[[], Crew], shop: Shop, peer: Any
) -> None:
    url = await asyncio.to_thread(broker().url)
    both = await asyncio.gather(*(send(url, peer, worker) for worker in (0, 1)))
    await until(lambda: len(shop.got.get("urn:x", ())) == MESSAGES)
    (user,) = (worker for worker in (0, 1) if both[worker] & set(shop.got["urn:x"].values()))
    await until(lambda: shop.lost or shop.asked[1 - user] >= 2)  # refused, it asks again later
    assert shop.lost == []
    assert shop.asked[user] == 1
    shop.name = ""
    await until(lambda: set(shop.bodies()) == both[0] | both[1])
    assert shop.bodies().total() == 2 * MESSAGES and shop.lost == [], "each once"


async def test_an_identifier_stays_in_use_while_its_worker_is_dead_and_after_a_restart(
    broker: Callable[[], Crew], shop: Shop, peer: Any
) -> None:
    server = broker()
    url = await asyncio.to_thread(server.url)
    bodies = await send(url, peer, 0)
    await until(lambda: set(shop.bodies()) == bodies)
    killed = server.pids[0]

    def kill(worker: int | None) -> None:
        if worker == 1 and shop.asked[1] == 1:
            os.kill(killed, signal.SIGKILL)

    shop.on_asked = kill
    bodies |= await send(url, peer, 1)
    await until(lambda: shop.lost or shop.asked[1] >= 2)
    assert killed not in server.pids
    assert shop.lost == []
    assert set(shop.got) == {"urn:x"} and len(shop.bodies()) == MESSAGES, "worker 1 has used no Sequence"

    pids = server.pids
    server.process.kill()
    await asyncio.to_thread(server.process.wait, 60)
    await until(lambda: not any(map(lives, pids)))
    before = shop.asked[1]
    url = await asyncio.to_thread(broker().url)
    await until(lambda: shop.lost or shop.asked[1] >= before + 2)
    assert shop.lost == []
    assert set(shop.got) == {"urn:x"} and len(shop.bodies()) == MESSAGES
    bodies |= await send(url, peer, 0, first=7)
    await until(lambda: len(shop.bodies()) == 2 * MESSAGES)  # worker 0 goes on in its Sequence
    shop.name = ""
    await until(lambda: set(shop.bodies()) == bodies)
    assert shop.bodies().total() == 3 * MESSAGES and shop.lost == [], "each once"
    assert len(shop.got["urn:x"]) == 2 * MESSAGES


@pytest.mark.nightly
async def test_a_node_does_not_use_the_identifier_of_a_partition_that_has_no_owner_now(
    servers: Callable[[str], PostgreSQL], shop: Shop, peer: Any, tmp_path: Path
) -> None:
    made = Cluster(tmp_path, servers("postgresql"), 2, FORWARDER.format(url=shop.url))
    made.start("a", "b")
    a, b = made
    try:
        made.own({0: "a", 1: "b"})
        urls = [await asyncio.to_thread(node.url) for node in made]
        bodies = await send(urls[1], peer, 0)
        await until(lambda: set(shop.bodies()) == bodies)
        await asyncio.to_thread(a.kill)
        made.lose("a")
        made.tell()
        bodies |= await send(urls[1], peer, 1)
        await until(lambda: shop.lost or shop.asked[1] >= 2)
        assert shop.lost == []
        assert set(shop.got) == {"urn:x"} and len(shop.bodies()) == MESSAGES, "partition 1 has used no Sequence"
        made.own({0: "b"})
        bodies |= await send(urls[1], peer, 0, first=7)
        await until(lambda: len(shop.bodies()) == 2 * MESSAGES)  # partition 0 goes on in its Sequence
        before = shop.asked[1]
        await until(lambda: shop.lost or shop.asked[1] >= before + 2)
        shop.name = ""
        await until(lambda: set(shop.bodies()) == bodies)
    finally:
        for node in (a, b):
            node.clean()
    assert shop.bodies().total() == 3 * MESSAGES and shop.lost == [], "each once"
