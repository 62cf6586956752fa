"""Sessions through a broker, over real sockets: one slow client holds up no other, and the service never mixes two."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from waiting import until

import holdfast
from holdfast import Destination, HandlingPolicy, SourcePolicy
from holdfast.broker.config import BrokerConfig, ForwarderConfig
from holdfast.exceptions import ConfigurationError

ASK = "urn:test:ask"


class Service:
    """A service that keeps one client waiting, and remembers what came in which Sequence."""

    def __init__(self) -> None:
        self.may_answer = asyncio.Event()
        self.is_asked = asyncio.Event()
        self.clients: dict[str, set[str]] = defaultdict(set)
        self.app = Destination(":memory:", assurance="exactly-once", handling=HandlingPolicy(concurrency=64))

        @self.app.on(ASK)
        async def answer(message: holdfast.Message) -> str:
            client = str(message.body.text)
            self.clients[message.sequence].add(client)
            if client == "slow":
                self.is_asked.set()
                await self.may_answer.wait()
            return f"<re>{client}</re>"

    @property
    def open(self) -> int:
        """Inbound Sequences that have not ended."""
        return sum(not one.is_over for one in self.app.running.engine.protocol.inbound.destinations.values())


async def test_a_slow_session_delays_no_other_and_each_ends_with_its_client(run_broker, run_service):
    service = Service()
    url = (await run_service(service.app)).url
    broker = await run_broker(forwarders=(ForwarderConfig("next", "inbox", url),), sessions=8)

    async def ask(client: str, times: int) -> None:
        async with holdfast.Source(broker.service.url, ":memory:", policy=SourcePolicy(window=1)) as source:
            for _ in range(times):
                reply = await source.request(f"<say>{client}</say>", action=ASK, timeout=240)
                assert reply.body.text == client
                reply.done()

    slow = asyncio.create_task(ask("slow", 1))
    await asyncio.wait_for(service.is_asked.wait(), 240)
    await asyncio.gather(*(ask(f"quick {number}", 5) for number in range(7)))
    assert not slow.done()
    service.may_answer.set()
    await slow
    assert sorted(map(sorted, service.clients.values())) == [*([f"quick {number}"] for number in range(7)), ["slow"]]
    await until(lambda: service.open == 0)
    queue = broker.destination.running.queue
    assert [one.end for one in queue.partitions[: queue.description.shared]] == [0, 0]
    outboxes = broker.destination.running.engine.protocol.outbound.outboxes
    assert len([one for one in outboxes.values() if one.forwarding]) <= 2 + 8


def config(tmp_path: Path, **told: Any) -> dict[str, Any]:
    return {"store": str(tmp_path / "kept"), "partitions": None, "sessions": None} | told


async def close(broker: Any) -> None:
    await broker.service.close(0.5)


async def test_a_store_keeps_its_partitions_until_the_file_asks_for_more_sessions(run_broker, tmp_path):
    def divided(broker: Any) -> tuple[int, int]:
        return (
            broker.destination.running.queue.description.shared,
            broker.destination.running.queue.description.sessions,
        )

    broker = await run_broker(**config(tmp_path, partitions=4, sessions=0))
    await close(broker)
    for told, expected in (({}, (4, 0)), ({"sessions": 8}, (4, 8)), ({}, (4, 8)), ({"sessions": 9}, (4, 9))):
        broker = await run_broker(**config(tmp_path, **told))
        assert divided(broker) == expected
        await close(broker)
    for told, what in (({"partitions": 64}, "4 partitions, not 64"), ({"sessions": 8}, "9 partitions for sessions")):
        with pytest.raises(ConfigurationError, match=what):
            await run_broker(**config(tmp_path, **told))
    assert BrokerConfig().partitions is None
    new = await run_broker(**config(tmp_path, store=":memory:"))
    assert divided(new) == (64, 64)
