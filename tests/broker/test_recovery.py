"""A broker, and what stands around it, killed with SIGKILL and stopped under load: nothing is lost or doubled.

HOLDFAST_RECOVERY_KILLS is how many kills each seed has, HOLDFAST_RECOVERY_SEEDS how many seeds: more for a long search.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from processes import Load, Process, broker, check_exact, kept, service
from waiting import until

from holdfast import RetransmissionPolicy, Source, SourcePolicy
from holdfast.testing.proxy import Faults, LossyProxy

pytestmark = [pytest.mark.crash, pytest.mark.slow, pytest.mark.timeout(900)]

KILLS = int(os.environ.get("HOLDFAST_RECOVERY_KILLS", "2"))
SEEDS = range(1, 1 + int(os.environ.get("HOLDFAST_RECOVERY_SEEDS", "1")))
BAD = Faults(lose_request=0.05, lose_response=0.05, double=0.1, delay=0.2, max_delay=0.02)
QUICK = SourcePolicy(retransmission=RetransmissionPolicy(initial=0.2, floor=0.05, cap=0.4))


class Chain:
    """A source in this process, a broker and a service, with networks between them."""

    def __init__(self, directory: Path, broker: Process, service: Process) -> None:
        self.directory, self.broker, self.service = directory, broker, service

    def in_service(self) -> int:
        """How many messages the service has on its disk."""
        if not (self.directory / "service").exists():
            return 0
        return sum(map(len, kept(self.directory / "service")))

    async def arrived(self, load: Load) -> None:
        """Wait until the service has all that was sent, and see that it is exact; and that no more comes."""
        count = load.sent.total()
        async with asyncio.timeout(300):
            while self.in_service() < count:
                await asyncio.sleep(0.5)  # each look reads the whole store
        assert await self.broker.end() == 0
        await self.service.kill()
        assert check_exact(kept(self.directory / "service"), load.sent) == []


@contextlib.asynccontextmanager
async def chain(directory: Path, faults: Faults, seed: int) -> AsyncIterator[tuple[Chain, str]]:
    """The processes, not started yet, and where a source sends to."""
    behind = service(directory)
    async with LossyProxy(behind.url, faults, seed=seed) as second:
        middle = broker(directory, second.url)
        async with LossyProxy(middle.url, faults, seed=seed + 1) as first:
            try:
                yield Chain(directory, middle, behind), first.url
            finally:
                await middle.kill()
                await behind.kill()


@contextlib.asynccontextmanager
async def loaded(url: str, directory: Path) -> AsyncIterator[Load]:
    """A load that is on within the block, and all of it acknowledged behind it."""
    async with Source(url, directory / "outbox", policy=QUICK, offer=False) as source:
        load = Load(source)
        running = asyncio.ensure_future(load.run())
        try:
            yield load
            load.stop()
            await running
        finally:
            running.cancel()


@pytest.mark.parametrize("seed", SEEDS)
async def test_killed_at_any_moment_it_loses_and_doubles_nothing_and_keeps_the_order(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    async with chain(tmp_path, BAD, seed) as (running, url):
        await running.broker.start()
        await running.service.start()
        async with loaded(url, tmp_path) as load:
            for _ in range(KILLS):
                await load.more(draw.randint(1, 120))
                victim = draw.choice((running.broker, running.broker, running.service))
                await asyncio.sleep(draw.uniform(0, 0.05))
                await victim.kill()
                if draw.random() < 0.3:  # once more while it starts, perhaps while it recovers
                    await victim.start(wait=False)
                    await asyncio.sleep(draw.uniform(0.3, 1.5))
                    await victim.kill()
                await victim.start()
        await running.arrived(load)


@pytest.mark.nightly
async def test_a_broker_killed_while_its_service_is_down_forwards_the_backlog_once(tmp_path: Path) -> None:
    async with chain(tmp_path, Faults(), 0) as (running, url):
        await running.broker.start()
        async with loaded(url, tmp_path) as load:
            for _ in range(3):
                await load.more(300)
                await running.broker.kill()
                await running.broker.start()
        assert sum(map(len, kept(tmp_path / "broker"))) == load.sent.total()
        await running.service.start()
        async with asyncio.timeout(300):
            while sum(map(len, kept(tmp_path / "broker"))):  # what the service has is deleted, once the broker knows
                await asyncio.sleep(0.5)
        await running.arrived(load)


async def test_a_stopped_service_delays_no_sender_and_gets_each_message_once(tmp_path: Path) -> None:
    async with chain(tmp_path, Faults(), 0) as (running, url):
        await running.broker.start()
        await running.service.start()
        async with loaded(url, tmp_path) as load:
            await until(lambda: running.in_service() > 0)
            running.service.signal(signal.SIGSTOP)
            began = asyncio.get_running_loop().time()
            await load.more(300)
            while asyncio.get_running_loop().time() < began + 3.0:  # longer than the forwarder's exchanges last
                await asyncio.sleep(0.1)
            assert running.in_service() < load.acknowledged
            running.service.signal(signal.SIGCONT)
        await running.arrived(load)


@pytest.mark.nightly
async def test_a_stopped_broker_that_goes_on_has_lost_and_doubled_nothing(tmp_path: Path) -> None:
    async with chain(tmp_path, Faults(), 0) as (running, url):
        await running.broker.start()
        await running.service.start()
        async with loaded(url, tmp_path) as load:
            for _ in range(2):
                await load.more(100)
                running.broker.signal(signal.SIGSTOP)
                await asyncio.sleep(1.5)
                running.broker.signal(signal.SIGCONT)
            await load.more(100)
        await running.arrived(load)
