"""Rows that a writer publishes at a broker, for the address of a forwarder: the service has each once, whoever dies."""

from __future__ import annotations

import asyncio
import random
import shutil
import struct
import uuid
from collections import defaultdict
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from processes import broker, kept, service

from holdfast import Destination, Message
from holdfast.broker.broker import Broker
from holdfast.broker.config import AdminConfig, BrokerConfig, ForwarderConfig, ListenConfig, QueueConfig
from holdfast.client.data_plane import DataPlane
from holdfast.core.policy import StagingPolicy
from holdfast.core.staged_blocks import unpack
from holdfast.endpoint.listener_settings import Listeners
from holdfast.endpoint.serve import Service

ACTION = "urn:test:note"
KEYS = "abcde"


def framed(rows: list[list[Any]]) -> bytes:
    encoded = [msgspec.msgpack.encode(one) for one in rows]
    return b"".join(struct.pack(">I", len(one)) + one for one in encoded) + struct.pack(">IQ", 2**32 - 1, len(rows))


def row(body: str, key: str, to: str | None, queue: str | None = None) -> list[Any]:
    return [key, queue, to, ACTION, None, body.encode(), None, None, None]


class Writer:
    """A query that gives up nothing: a part whose answer is lost is staged again, a publication is asked for again."""

    def __init__(self, session: aiohttp.ClientSession, admin: str, to: str) -> None:
        self._session, self._admin, self._to = session, admin, to
        self.again = 0

    async def _ask(self, method: str, path: str, **content: Any) -> Any:
        """The answer; None if there is none, and nobody knows whether it was done."""
        try:
            async with self._session.request(method, f"{self._admin}/sinks/alerts{path}", **content) as answer:
                told = await answer.json()
        except (aiohttp.ClientError, OSError):
            self.again += 1
            await asyncio.sleep(0.05)
            return None
        assert answer.status in (200, 503), told
        return told if answer.status == 200 else None

    async def task(self, batch: int, bodies: list[tuple[str, str]]) -> str:
        """Stage a part; its token."""
        data = framed([row(body, key, self._to) for key, body in bodies])
        while True:
            token = uuid.uuid4().hex
            told = await self._ask("POST", f"/parts?query=q&batch={batch}&token={token}", data=data)
            if told is not None:
                return token

    async def write(self, batch: int, tasks: list[list[tuple[str, str]]]) -> None:
        """A batch, until it is published."""
        tokens = await asyncio.gather(*(self.task(batch, bodies) for bodies in tasks))
        asked = {"query": "q", "tokens": tokens, "rows": sum(map(len, tasks))}
        while await self._ask("POST", f"/batches/{batch}", json=asked) is None:
            pass

    async def moved(self) -> None:
        while (told := await self._ask("GET", "")) is None or told["moving"]:
            await asyncio.sleep(0.05)


@pytest.mark.nightly
@pytest.mark.crash
@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_rows_arrive_once_and_in_order_of_each_key_through_kills_of_both_ends(
    tmp_path: Path,
) -> None:
    behind = service(tmp_path)
    middle = broker(tmp_path, behind.url)
    admin = next(line for line in (tmp_path / "broker.toml").read_text().splitlines() if line.startswith("admin.port"))
    draw, sent = random.Random(3), defaultdict[str, list[str]](list)

    async def kill_now_and_then() -> None:
        for victim in (middle, behind, middle):
            await asyncio.sleep(draw.uniform(0.05, 0.3))
            await victim.kill()
            await victim.start()

    await behind.start()
    await middle.start()
    try:
        async with aiohttp.ClientSession() as session:
            writer = Writer(session, f"http://127.0.0.1:{admin.split()[-1]}", behind.url)
            killing = asyncio.ensure_future(kill_now_and_then())
            batch = 0
            while not killing.done():
                tasks = []
                for task in range(2):
                    bodies = [(key, f"<n>{batch}-{task}-{n}</n>") for n in range(20) for key in KEYS]
                    for key, body in bodies:
                        sent[key].append(f"{body}{key}")
                    tasks.append([(key, body.replace("</n>", f"</n><!--{key}-->")) for key, body in bodies])
                await writer.write(batch, tasks)
                batch += 1
            await killing
            for one in (middle, behind):
                await one.kill()
                await one.start()
            await writer.moved()
            assert writer.again > 0
        async with asyncio.timeout(300):
            while sum(map(len, kept(tmp_path / "service"))) < sum(map(len, sent.values())):
                await asyncio.sleep(0.5)
        assert await middle.end() == 0
    finally:
        await middle.kill()
        await behind.kill()
    found = defaultdict[str, list[str]](list)
    for partition in kept(tmp_path / "service"):
        for record in partition:
            body, key = record.body.decode().removesuffix("-->").split("<!--")
            found[key].append(f"{body}{key}")
    assert found == sent


class Served:
    """A broker in this process."""

    def __init__(self, running: Broker, session: aiohttp.ClientSession) -> None:
        self.broker, self.session = running, session

    async def stage(self, token: str, *rows: list[Any]) -> tuple[int, Any]:
        url = f"{self.broker.service.admin_url}/sinks/s/parts?query=q&batch=0&token={token}"
        async with self.session.post(url, data=framed(list(rows))) as answer:
            return answer.status, await answer.json()

    def queue_of(self, token: str) -> list[str]:
        part = self.broker.destination.running.engine.protocol.staging.sink("s").parts[token]
        found = self.broker.destination.running.store.read(part.queue.name, 0, 0, 10)
        return [queue for _, record in found for queue, _ in unpack(record.body).entries]


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    forwarders = [("alone", "alerts", "http://a.example/rm"), ("one", "both", "http://b.example/rm")]
    forwarders.append(("two", "both", "http://c.example/rm"))
    config = BrokerConfig(
        store=":memory:",
        listen=ListenConfig(port=0),
        admin=AdminConfig(port=0),
        queues=tuple(map(QueueConfig, ("inbox", "alerts", "both"))),
        forwarders=tuple(ForwarderConfig(name, queue=queue, to=to, paused=True) for name, queue, to in forwarders),
        sinks=StagingPolicy(max_bytes=10_000),
    )
    running = Broker(config)
    await running.service.start()
    async with aiohttp.ClientSession() as session:
        yield Served(running, session)
    await running.service.close(0.0)


async def test_a_restored_broker_forwards_each_row_of_its_store_once(
    tmp_path: Path,
) -> None:
    app = Destination(":memory:", partitions=1)
    arrived: list[str] = []

    @app.on(ACTION)
    async def note(message: Message) -> None:
        arrived.append(message.body.text or "")

    behind = Service(app, Listeners(port=0))
    await behind.start()
    config = BrokerConfig(
        store=str(tmp_path / "broker"),
        partitions=1,
        listen=ListenConfig(port=0),
        admin=AdminConfig(port=0),
        queues=(QueueConfig("alerts"),),
        forwarders=(ForwarderConfig("all", queue="alerts", to=behind.url),),
    )
    held = replace(config, forwarders=(ForwarderConfig("all", queue="alerts", to=behind.url, paused=True),))

    async def write(batch: int, *bodies: str, told: BrokerConfig = config, restored: bool = False) -> None:
        """A batch through a broker that runs for it."""
        running = Broker(told, restored=restored)
        await running.service.start()
        async with aiohttp.ClientSession() as session:
            writer = Writer(session, str(running.service.admin_url), behind.url)
            await writer.write(batch, [[("k", f"<n>{body}</n>") for body in bodies]])
            await writer.moved()
        outboxes = running.destination.running.engine.protocol.outbound.outboxes
        async with asyncio.timeout(60):
            while told is config and any(one.records.waiting for one in outboxes.values()):
                await asyncio.sleep(0.01)
        await running.service.close(5.0)

    await write(0, "sent")
    await write(1, "in the copy, and sent since", told=held)
    shutil.copytree(tmp_path / "broker", tmp_path / "copy")
    await write(2, *(f"lost {number}" for number in range(5)))
    shutil.rmtree(tmp_path / "broker")
    (tmp_path / "copy").rename(tmp_path / "broker")
    await write(2, *(f"new {number}" for number in range(9)), restored=True)
    await write(3, "last")
    await app.handled()
    await behind.close(0.0)
    assert arrived == [
        "sent",
        "in the copy, and sent since",
        *(f"lost {number}" for number in range(5)),
        *(f"new {number}" for number in range(9)),
        "last",
    ]


async def test_an_address_stands_for_the_queue_of_the_forwarder_that_alone_reads_it(served: Served) -> None:
    assert (await served.stage("t", row("<a/>", "k", "http://a.example/rm")))[0] == 200
    assert served.queue_of("t") == ["alerts"]
    for address in ("http://b.example/rm", "http://c.example/rm", "http://evil.example/"):
        status, told = await served.stage("u", row("<a/>", "k", address))
        assert (status, told["column"]) == (422, "to")
        assert "rows may be sent to: http://a.example/rm" in told["error"]


async def test_a_client_finds_missing_queues_and_addresses_before_it_sends(served: Served) -> None:
    plane = DataPlane(str(served.broker.service.admin_url))
    asked = [("alerts", ""), ("", "http://b.example/rm"), ("", ""), ("alert", ""), ("", "http://a.example/rmm")]
    found = [await asyncio.to_thread(plane.missing, queue, to) for queue, to in asked]
    plane.close()
    assert found[:3] == [None] * 3
    assert [one.remedy for one in found[3:] if one] == ["Did you mean 'alerts'?", "Did you mean 'http://a.example/rm'?"]


async def test_the_file_says_how_much_may_be_staged(served: Served) -> None:
    status, told = await served.stage("t", row(f"<a>{'x' * 10_000}</a>", "k", None, "inbox"))
    assert (status, "sinks.max_bytes" in told["remedy"]) == (507, True)
