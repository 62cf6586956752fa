"""A broker whose PostgreSQL server stops answering or is killed: what its probes, metrics and SIGTERM promise."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from crew import Crew
from databases import Server

import holdfast
from holdfast import Destination

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.crash,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="workers are forked"),
]

CONFIG = """
store = "{store}"
partitions = 2
[listen]
port = 0
[admin]
port = 0
[queues.orders]
[forwarders.next]
queue = "orders"
to = "{to}"
timeout = "2s"
policy.sending.retransmission = {{initial = "200ms", floor = "50ms", cap = "400ms"}}
policy.circuit = {{first = "200ms", cap = "1s"}}
"""
ANSWER = aiohttp.ClientTimeout(total=20)
"""A probe that the store held up would never answer: the database stays away until the test brings it back."""


@pytest.fixture
def postgresql(servers: Callable[[str], Server]) -> Server:
    return servers("postgresql")


class Probes:
    """Asks a broker's admin listener."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session, self._url = session, url

    async def ask(self, path: str) -> tuple[int, str]:
        async with self._session.get(self._url + path, timeout=ANSWER) as answer:
            return answer.status, await answer.text()

    async def become(self, path: str, status: int) -> str:
        """Ask until the answer has that status, for a minute; what it says."""
        async with asyncio.timeout(60):
            while (found := await self.ask(path))[0] != status:
                await asyncio.sleep(0.1)
        return found[1]


class Traffic:
    """Messages through the broker to a service, from several Sequences so that each worker has some."""

    def __init__(self, broker: str, names: int = 6) -> None:
        self.sources = [holdfast.Source(broker, ":memory:") for _ in range(names)]
        self.sent = 0
        self._sending: asyncio.Task[None] | None = None

    async def send(self, count: int) -> None:
        """Send so many in each Sequence; the broker acknowledges them when it can."""
        for number in range(self.sent, self.sent + count):
            for name, source in enumerate(self.sources):
                await source.send(f"<n>{name}-{number}</n>", action="urn:test:submit")
        self.sent += count

    async def acknowledged(self) -> None:
        await asyncio.gather(*(source.flush(120) for source in self.sources))

    async def __aenter__(self) -> Traffic:
        for source in self.sources:
            await source.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await asyncio.gather(*(source.__aexit__(*error) for source in self.sources))


@pytest.fixture
async def got(run_service: Any) -> tuple[str, list[str]]:
    """A service behind the broker: its address, and what it got."""
    got: list[str] = []
    app = Destination(":memory:")

    @app.on("urn:test:submit")
    async def submit(message: holdfast.Message) -> None:
        got.append(str(message.body.text))

    return (await run_service(app)).url, got


@pytest.fixture(params=[1, 2], ids=["one process", "two workers"])
def workers(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture(params=["stopped", "killed"])
def away(request: pytest.FixtureRequest, postgresql: Server) -> Callable[[], None]:
    """Takes the database away."""
    return postgresql.pause if request.param == "stopped" else postgresql.kill


@pytest.fixture
async def crew(
    workers: int, postgresql: Server, got: tuple[str, list[str]], tmp_path: Path
) -> AsyncIterator[tuple[Crew, str, str]]:
    """A broker, and where it listens for messages and for operators. The database is back afterwards."""
    config = CONFIG.format(store=postgresql.new_url(), to=got[0])
    server = Crew(tmp_path, "--workers", str(workers), broker=config)
    try:
        url = await asyncio.to_thread(server.url)
        yield server, url, await asyncio.to_thread(server.url)
    finally:
        server.clean()
        back(postgresql)


def back(database: Server) -> None:
    """Bring it back, whichever way it went."""
    assert database.process is not None
    if database.process.poll() is None:
        database.resume()
    else:
        database.start()


async def test_while_the_database_is_away_probes_answer_and_the_broker_then_recovers(
    crew: tuple[Crew, str, str], got: tuple[str, list[str]], away: Callable[[], None], postgresql: Server, workers: int
) -> None:
    server, url, admin = crew
    async with aiohttp.ClientSession() as session, Traffic(url) as traffic:
        probes = Probes(session, admin.rstrip("/"))
        await traffic.send(20)
        await traffic.acknowledged()
        before = await asyncio.to_thread(lambda: server.pids)
        away()
        await traffic.send(20)  # what the sources keep until the broker takes it
        refused = json.loads(await probes.become("/readyz", 503))
        assert refused["error"] and refused["remedy"]
        status, told = await probes.ask("/healthz")
        assert (status, json.loads(told)["status"]) == (200, "ok")
        assert json.loads(told)["trouble"]
        status, metrics = await probes.ask("/metrics")
        assert status == 200
        for worker in range(workers):
            label = f'worker="{worker}"' if workers > 1 else ""
            assert [
                line for line in metrics.splitlines() if "holdfast_messages_accepted_total" in line and label in line
            ]
        back(postgresql)  # in this thread: the server ends with the one that starts it
        assert json.loads(await probes.become("/readyz", 200)) == {"status": "ready"}
        assert "trouble" not in json.loads((await probes.ask("/healthz"))[1])
        await traffic.acknowledged()
        assert await asyncio.to_thread(lambda: server.pids) == before  # nobody had to start anything again
        async with asyncio.timeout(120):
            while len(got[1]) < 6 * 40:
                await asyncio.sleep(0.05)
    assert sorted(got[1]) == sorted(f"{name}-{number}" for name in range(6) for number in range(40))
    assert await asyncio.to_thread(server.end) == 0


async def test_sigterm_ends_a_broker_whose_database_is_away_before_kubernetes_kills_it(
    crew: tuple[Crew, str, str], away: Callable[[], None], workers: int
) -> None:
    server, url, admin = crew
    async with aiohttp.ClientSession() as session, Traffic(url) as traffic:
        await traffic.send(5)
        await traffic.acknowledged()
        away()
        await traffic.send(5)
        await Probes(session, admin.rstrip("/")).become("/readyz", 503)
        assert await asyncio.to_thread(server.end) == 1  # while the database is still away
        log = server.errors.read_text()
        assert "stop.cut_short" in log
        assert "a commit has been in progress for" in log
        for source in traffic.sources:
            await source.close(0.0)  # nobody is there to end them
