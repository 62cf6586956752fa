"""Holdfast's destination of several processes in front of .NET clients, which must not notice.

The clients are scripted ones, and Microsoft's. ``WCF_CLIENT`` names that program; without it, its test is skipped.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from crew import Crew
from interop_cells import cell
from wcf.grids import each_version
from wcf.live_client import LiveWCFClient, needs_the_client, versions_of
from wcf.scripted_client import ScriptedWCFClient
from wcf.wire import COMBINATIONS, Profile

from holdfast.endpoint.worker import worker_of

pytestmark = [pytest.mark.interop, pytest.mark.skipif(not hasattr(os, "fork"), reason="workers are forked")]

MODULE = f"""
import os, pathlib, sys, time
while pathlib.Path("wait").exists():
    time.sleep(0.01)
sys.path.insert(0, {str(Path(__file__).parent)!r})
from wcf.destination import contract_app, text_of
def write(message) -> None:
    os.write(1, f"{{message.sequence}} {{text_of(message)}}\\n".encode())  # whole: several processes write
app = contract_app("inbox", write)
"""
CLIENTS, MESSAGES = 6, 6


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Crew, str]]:
    """One server for all tests that leave it as it is, and its URL."""
    crew = Crew(tmp_path_factory.mktemp("crew"), "--port", "0", "--workers", "2", module=MODULE)
    yield crew, crew.url()
    crew.clean()


@pytest.fixture
def crew(tmp_path: Path) -> Iterator[Crew]:
    """A server of a test's own."""
    crew = Crew(tmp_path, "--port", "0", "--workers", "2", module=MODULE)
    yield crew
    crew.clean()


async def converse(client: ScriptedWCFClient, contract: str, number: int) -> None:
    for one in range(MESSAGES):
        if contract == "oneway" or (contract == "mixed" and one % 2):
            await client.notify("wcf", one, f"{number}-{one}")
        else:
            assert await client.echo("wcf", one, f"{number}-{one}") == f"{number}-{one}"


@pytest.mark.parametrize("profile", COMBINATIONS, ids=str)
async def test_sessions_of_every_kind_are_served_without_a_repeat(served: tuple[Crew, str], profile: Profile) -> None:
    crew, url = served
    workers = set()

    async def session(number: int, contract: str) -> None:
        binding = "oneway" if contract == "oneway" else "twoway"
        async with ScriptedWCFClient(url, profile, binding, time_scale=1000) as client:
            await converse(client, contract, number)
        assert client.slow_close == []
        assert len(client.transcript) == 1 + MESSAGES + 2
        workers.add(worker_of(client.identifier))

    contracts = ["oneway", "twoway", "mixed"]
    await asyncio.gather(*(session(number, contracts[number % 3]) for number in range(4 * CLIENTS)))
    assert workers == {0, 1}
    handled = [await asyncio.to_thread(crew.line) for _ in range(4 * CLIENTS * MESSAGES)]
    by_sequence: dict[str, list[str]] = {}
    for line in handled:
        sequence, text = line.split()
        by_sequence.setdefault(sequence, []).append(text)
    for texts in by_sequence.values():
        number = texts[0].split("-")[0]
        assert texts == [f"{number}-{one}" for one in range(MESSAGES)]
    assert len(by_sequence) == 4 * CLIENTS


async def test_sessions_survive_workers_that_are_killed(crew: Crew) -> None:
    url = await asyncio.to_thread(crew.url)
    profile = Profile("1.1", "2005/08", "1.2")

    async def session(number: int) -> None:
        async with ScriptedWCFClient(url, profile, "twoway", time_scale=0.2) as client:
            await converse(client, "mixed", number)

    sessions = asyncio.gather(*(session(number) for number in range(CLIENTS)))
    chance = random.Random(3)
    for _ in range(3):
        await asyncio.to_thread(crew.kill, chance.randrange(2))
    await sessions
    await asyncio.to_thread(crew.end)
    assert crew.process.stdout is not None
    told = {line.split()[1] for line in crew.process.stdout.read().splitlines()}
    # Of a handler that was running when its process was killed: it is called again.
    assert told == {f"{number}-{one}" for number in range(CLIENTS) for one in range(MESSAGES)}


@pytest.mark.wcf
@pytest.mark.nightly
@needs_the_client
@each_version
@cell(peer="WCF", role="destination", pattern="request/reply", setup="two workers, six clients", fault="a worker away")
async def test_new_clients_do_not_notice_a_worker_that_does_not_start(
    crew: Crew, profile: Profile, tmp_path: Path
) -> None:
    """Half of them offer a Sequence that selects it."""
    url = await asyncio.to_thread(crew.url)
    (tmp_path / "wait").touch()
    await asyncio.to_thread(crew.kill, 1)
    clients = [LiveWCFClient(url, **versions_of(profile)) for _ in range(CLIENTS)]
    said = await asyncio.gather(*(one.run("open; echo 1..3; close") for one in clients))
    assert [one.failed for one in clients] == [[]] * CLIENTS, said
