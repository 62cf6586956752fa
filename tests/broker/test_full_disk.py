"""A broker whose disk is full: it refuses what is new, sends on what it has, and accepts again when there is space."""

from __future__ import annotations

import asyncio

import httpx
from waiting import until

import holdfast
from holdfast import Destination
from holdfast.broker.config import ForwarderConfig
from holdfast.core.policy import SourcePolicy
from holdfast.core.retransmission import RetransmissionPolicy
from holdfast.outages import Trouble
from holdfast.store.rocksdb import keeper
from holdfast.store.rocksdb.reserve import Reserve
from holdfast.testing.ports import free_ports

ACTION = "urn:test:submit"
SOON = SourcePolicy(retransmission=RetransmissionPolicy(initial=0.2, floor=0.1, cap=0.2, max_retry_after=0.1))


async def test_what_is_stored_is_sent_on_and_nothing_new_is_taken_until_there_is_space(run_broker, run_service):
    got: list[bytes] = []
    app = Destination(":memory:")

    @app.on(ACTION)
    async def submit(message: holdfast.Message) -> None:
        got.append(message.body_bytes)

    (port,) = free_ports(1)
    broker = await run_broker(forwarders=(ForwarderConfig("next", "inbox", f"http://127.0.0.1:{port}/"),))
    store = broker.destination.running.store
    bodies = [b"<n>%d</n>" % number for number in range(20)]
    async with holdfast.Source(broker.service.url, ":memory:", policy=SOON) as source:
        for body in bodies:
            await (await source.send(body, action=ACTION)).acknowledged(60)
        store.trouble = Trouble("The disk was full.", "Free space there.")
        late = await source.send(b"<late/>", action=ACTION)
        await run_service(app, port)
        await until(lambda: got == bodies)
        queue = broker.destination.running.queue
        await until(lambda: all(one.first == one.durable_end for one in queue.partitions))
        assert source.progress.outstanding == 1, "the source keeps what was refused"
        store.trouble = None
        await late.acknowledged(60)
        await until(lambda: got == [*bodies, b"<late/>"])


async def test_an_idle_broker_is_not_ready_while_another_program_fills_its_disk(run_broker, monkeypatch):
    free = 1 << 50
    monkeypatch.setattr(Reserve, "free", lambda self: free)
    monkeypatch.setattr(keeper, "LOOK_AGAIN_SECONDS", 0.05)
    broker = await run_broker()
    async with httpx.AsyncClient() as client:

        async def ready() -> httpx.Response:
            return await client.get(f"{broker.service.admin_url}/readyz")

        assert (await ready()).status_code == 200
        free = 0
        async with asyncio.timeout(240):
            while (answer := await ready()).status_code == 200:
                await asyncio.sleep(0.02)
        assert answer.status_code == 503 and "nearly full" in answer.json()["error"]
        free = 1 << 50
        async with asyncio.timeout(240):
            while (await ready()).status_code == 503:
                await asyncio.sleep(0.02)
