"""How many syncs a message waits for, one after the other: each on the disk of one party, and none of them for what
nobody waits for. docs/internals/performance.md has the table."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from waiting import until

import holdfast
from holdfast.broker.broker import Broker
from holdfast.broker.config import AdminConfig, BrokerConfig, ForwarderConfig, ListenConfig
from holdfast.core.records import Batch
from holdfast.core.versions import Versions
from holdfast.endpoint.engine import commits
from holdfast.endpoint.sending.sender import Way
from holdfast.simulation.nodes.network import Network, NetworkFaults
from holdfast.store import MemoryStore
from holdfast.testing.pair import MemoryTransport, VirtualClock

ACTION = "urn:test:price"
CALLS = 8

VERSIONS = pytest.mark.parametrize("rm", ["1.0", "1.1"])


class Counted:
    """A client, a broker and a service, and what each has committed."""

    def __init__(self, *engines: Any) -> None:
        self._engines = engines
        self._before = self._now()

    def _now(self) -> list[int]:
        return [one.commits.batches for one in self._engines]

    def since(self) -> list[int]:
        """Commits of each since the last call."""
        before, self._before = self._before, self._now()
        return [now - one for now, one in zip(self._before, before, strict=True)]


def _app(handled: Callable[[str], object], store: Any = ":memory:") -> holdfast.Destination:
    app = holdfast.Destination(store, partitions=1)

    @app.on(ACTION)
    async def price(message: holdfast.Message) -> str:
        handled(str(message.body.text))
        return f"<r>{message.body.text}</r>"

    @app.on("urn:test:note")
    async def note(message: holdfast.Message) -> None:
        handled(str(message.body.text))

    return app


@VERSIONS
async def test_a_call_waits_for_six_syncs_and_a_one_way_message_for_three(
    rm: str, run_broker: Any, run_service: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commits, "PUT_OFF", 600.0)
    handled: list[str] = []
    service = await run_service(_app(handled.append))
    forwarder = ForwarderConfig("partner", "inbox", service.url, rm=rm)
    broker = await run_broker(partitions=1, forwarders=(forwarder,))
    async with holdfast.Source(broker.service.url, ":memory:", versions=Versions(rm), offer=True) as source:
        assert (await source.request("<q>warm</q>", action=ACTION)).body.text == "warm"
        counted = Counted(source._running.engine, broker.destination.running.engine, service.app.running.engine)
        for number in range(CALLS):
            assert (await source.request(f"<q>{number}</q>", action=ACTION)).body.text == str(number)
        assert counted.since() == [2 * CALLS] * 3
        for number in range(CALLS):
            sent = await source.send(f"<q>n{number}</q>", action="urn:test:note")
            await sent.acknowledged(60)
            await until(lambda number=number: f"n{number}" in handled, None)
        assert counted.since() == [CALLS] * 3


# --- a disk in virtual time: delays are counted, not milliseconds ----------------------------------------------------

DELAY = 0.03
"""Virtual seconds of each commit: less than a batch is put off that nobody waits for."""
SERVICE, BROKER = "http://service.test/", "http://broker.test/"


class SlowDisk(MemoryStore):
    """A store whose every commit takes :data:`DELAY`."""

    def __init__(self, clock: VirtualClock, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self.is_writing = False
        self._clock, self._loop = clock, loop

    def commit(self, batch: Batch) -> None:
        written = threading.Event()
        self._loop.call_soon_threadsafe(self._begin, written)
        written.wait()
        super().commit(batch)

    def _begin(self, written: threading.Event) -> None:
        self.is_writing = True
        self._clock.call_at(self._clock() + DELAY, lambda: self._end(written))

    def _end(self, written: threading.Event) -> None:
        self.is_writing = False
        written.set()


class Slow:
    """A client, a broker and a service, each with a slow disk of its own, on a network that takes no time."""

    def __init__(self, rm: str) -> None:
        self.rm = rm
        self.clock = VirtualClock()
        self._handled: dict[str, asyncio.Future[float]] = {}

    def handled(self, text: str) -> asyncio.Future[float]:
        """When the service's handler gets that."""
        return self._handled.setdefault(text, asyncio.get_running_loop().create_future())

    def _disk(self) -> SlowDisk:
        return SlowDisk(self.clock, asyncio.get_running_loop())

    def _way_to(self, app: holdfast.Destination) -> MemoryTransport:
        return MemoryTransport(app, Network(NetworkFaults(latency=0.0), random.Random(0)), self.clock)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[holdfast.Source]:
        """The client's source."""
        disks = [self._disk() for _ in range(3)]
        service = _app(lambda text: self.handled(text).set_result(self.clock()), disks[0])
        forwarder = ForwarderConfig("partner", "inbox", SERVICE, rm=self.rm)
        listen, admin = ListenConfig(port=0), AdminConfig(port=0)
        config = BrokerConfig(":memory:", listen=listen, admin=admin, partitions=1, forwarders=(forwarder,))
        broker = Broker(config).destination
        broker.settings.location = disks[1]
        service.settings.clock = broker.settings.clock = self.clock
        client = holdfast.Source(
            BROKER,
            disks[2],
            versions=Versions(self.rm),
            offer=True,
            http=holdfast.SourceHTTP(transport=self._way_to(broker)),
        )
        client.clock = self.clock
        moving = asyncio.ensure_future(self.clock.run())
        try:
            await service.start()
            await broker.start()
            # Time stands still for whoever is busy, and passes for a disk that writes.
            self.clock.busy += [
                lambda: service.running.is_committing and not disks[0].is_writing,
                lambda: broker.running.is_committing and not disks[1].is_writing,
                lambda: client._is_busy and not disks[2].is_writing,
            ]
            self.clock.handling.append(lambda: service.running.is_busy and not disks[0].is_writing)
            broker.running.sender.use(SERVICE, Way(self._way_to(service)))
            async with client:
                yield client
        finally:
            await broker.close(0.0)
            await service.close(0.0)
            moving.cancel()
            await asyncio.gather(moving, return_exceptions=True)

    @staticmethod
    def delays(begun: float, ended: float) -> float:
        """How many commits of a disk fit into that time."""
        return round((ended - begun) / DELAY, 3)


PAUSES = {"one after the other": 0.0, "now and then": 1.0}


@VERSIONS
@pytest.mark.parametrize("pause", PAUSES.values(), ids=PAUSES)
async def test_a_call_takes_as_long_as_six_syncs(rm: str, pause: float) -> None:
    """A batch that nobody waits for may be at the disk when a message comes, but not in the way of each one."""
    slow = Slow(rm)
    async with slow.running() as source:
        assert (await source.request("<q>warm</q>", action=ACTION)).body.text == "warm"
        taken = []
        for number in range(CALLS):
            await slow.clock.sleep(pause)
            begun = slow.clock()
            assert (await source.request(f"<q>{number}</q>", action=ACTION)).body.text == str(number)
            taken.append(slow.delays(begun, slow.clock()))
    assert all(6 <= delays < 7 for delays in taken), taken


@VERSIONS
async def test_a_one_way_message_takes_as_long_as_three_syncs(rm: str) -> None:
    slow = Slow(rm)
    async with slow.running() as source:
        assert (await source.request("<q>warm</q>", action=ACTION)).body.text == "warm"
        taken = []
        for number in range(CALLS):
            await slow.clock.sleep(1.0)
            begun = slow.clock()
            await source.send(f"<q>n{number}</q>", action="urn:test:note")
            taken.append(slow.delays(begun, await slow.handled(f"n{number}")))
    assert all(3 <= delays < 4 for delays in taken), taken
