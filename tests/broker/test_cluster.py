"""Three brokers as one cluster on a real database or Kafka: clients see no error, whichever broker is killed."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from balancer import Balancer
from broker_cluster import NAMES, PARTITIONS, Brokers
from databases import Server
from waiting import until

import holdfast
from holdfast import Destination

pytestmark = [
    pytest.mark.crash,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not hasattr(os, "fork"), reason="workers are forked"),
]


class Clients:
    """Clients that send and call, one after the other in each Sequence."""

    def __init__(self, url: str, count: int) -> None:
        self._url, self._count = url, count
        self.done = 0

    async def run(self, messages: int) -> list[list[str]]:
        """Send so many messages in each Sequence, and make as many calls in others; the replies."""
        sending = [self._send(name, messages) for name in range(self._count)]
        asking = [self._ask(name, messages) for name in range(self._count)]
        await asyncio.gather(*sending)
        return await asyncio.gather(*asking)

    async def _send(self, name: int, messages: int) -> None:
        async with holdfast.Source(self._url, ":memory:") as source:
            for number in range(messages):
                await (await source.send(f"<n>{name}-{number}</n>", action="urn:test:submit")).acknowledged(120)
                self.done += 1

    async def _ask(self, name: int, messages: int) -> list[str]:
        async with holdfast.Source(self._url, ":memory:", offer=bool(name % 2)) as source:
            replies = []
            for number in range(messages):
                reply = await source.request(f"<n>{name}-{number}</n>", action="urn:test:ask", timeout=120)
                replies.append(str(reply.body.text))
                self.done += 1
            return replies


@pytest.fixture
async def got(run_service: Any) -> tuple[str, dict[str, list[int]]]:
    """A service behind the brokers: its address, and what it got in each Sequence of messages and of calls."""
    got: dict[str, list[int]] = {}
    app = Destination(":memory:")

    def note(kind: str, message: holdfast.Message) -> None:
        name, number = str(message.body.text).split("-")
        got.setdefault(kind + name, []).append(int(number))

    @app.on("urn:test:submit")
    async def submit(message: holdfast.Message) -> None:
        note("submit ", message)

    @app.on("urn:test:ask")
    async def ask(message: holdfast.Message) -> str:
        note("ask ", message)
        return f"<r>{message.body.text}</r>"

    return (await run_service(app)).url, got


@pytest.fixture(params=["postgresql", pytest.param("kafka", marks=pytest.mark.nightly)])
async def brokers(
    request: pytest.FixtureRequest,
    servers: Callable[[str], Server],
    kafka_nodes: Callable[[int], Any],
    got: tuple[str, dict[str, list[int]]],
    tmp_path: Path,
) -> AsyncIterator[Brokers]:
    if request.param == "kafka":
        url = kafka_nodes(1).new_url(tmp_path / "cache" / "NODE", partitions=PARTITIONS)
        made = Brokers(tmp_path, url, got[0], lease=3.0)
    else:
        made = Brokers(tmp_path, servers(request.param).new_url(), got[0])
    try:
        await made.start(*NAMES)
        yield made
    finally:
        made.clean()


async def run(
    made: Brokers, got: dict[str, list[int]], trouble: Callable[[Callable[[], int]], Any], messages: int
) -> None:
    """Let clients send and call while there is trouble, and check what everybody got."""
    async with Balancer(list(made.urls.values())) as balancer:
        clients = Clients(balancer.url, 4)
        running = asyncio.create_task(clients.run(messages))
        await until(lambda: clients.done >= 20 or running.done())
        await trouble(lambda: clients.done)
        replies = await running
    assert replies == [[f"{name}-{number}" for number in range(messages)] for name in range(4)]
    await until(lambda: all(len(got.get(f"submit {name}", ())) >= messages for name in range(4)))
    expected = list(range(messages))
    assert got == {f"{kind} {name}": expected for kind in ("submit", "ask") for name in range(4)}


async def test_clients_of_any_broker_do_not_notice_that_one_is_killed(
    brokers: Brokers, got: tuple[str, dict[str, list[int]]]
) -> None:
    async def trouble(done: Callable[[], int]) -> None:
        await asyncio.to_thread(brokers.nodes["a"].kill)

    await run(brokers, got[1], trouble, 40)
    assert [await asyncio.to_thread(brokers.nodes[name].end) for name in "bc"] == [0, 0]


@pytest.mark.nightly
async def test_clients_do_not_notice_a_broker_that_is_paused_beyond_its_lease_and_wakes(
    brokers: Brokers, got: tuple[str, dict[str, list[int]]]
) -> None:
    async def trouble(done: Callable[[], int]) -> None:
        a = brokers.nodes["a"]
        lost = brokers.served("a")
        a.signal(signal.SIGSTOP)
        await until(lambda: lost <= brokers.served("b") | brokers.served("c"))
        seen = done()
        await until(lambda: done() >= seen + 20)
        a.signal(signal.SIGCONT)
        seen = done()
        await until(lambda: done() >= seen + 20)

    await run(brokers, got[1], trouble, 200)
    assert [await asyncio.to_thread(brokers.nodes[name].end) for name in NAMES] == [0, 0, 0]


@pytest.mark.nightly
async def test_clients_do_not_notice_brokers_that_are_killed_in_turn_and_started_again(
    brokers: Brokers, got: tuple[str, dict[str, list[int]]]
) -> None:
    async def trouble(done: Callable[[], int]) -> None:
        for name in (*NAMES, *NAMES):
            await asyncio.to_thread(brokers.nodes[name].kill)
            seen = done()
            await until(lambda seen=seen: done() >= seen + 40)
            await brokers.start(name)

    await run(brokers, got[1], trouble, 300)
    assert [await asyncio.to_thread(brokers.nodes[name].end) for name in NAMES] == [0, 0, 0]


@pytest.mark.nightly
async def test_clients_do_not_notice_a_rolling_restart(brokers: Brokers, got: tuple[str, dict[str, list[int]]]) -> None:
    async def trouble(done: Callable[[], int]) -> None:
        for name in NAMES:
            assert await asyncio.to_thread(brokers.nodes[name].end) == 0
            await brokers.start(name)
            seen = done()
            await until(lambda seen=seen: done() >= seen + 20)

    await run(brokers, got[1], trouble, 200)
