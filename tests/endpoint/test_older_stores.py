"""Stores that an older version wrote are opened by this one, and everything in them continues."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from older import ClockOfThen, unpack

from holdfast import Destination, Message, Source, SourceHTTP, Versions
from holdfast.broker.broker import Broker
from holdfast.broker.config import AdminConfig, BrokerConfig, ForwarderConfig, ListenConfig, ProxyConfig
from holdfast.endpoint.engine.clock import Clock
from holdfast.store.rocksdb.store import RocksDBStore

ACTION, PRICE = "urn:test:submit", "urn:test:price"
TO = "http://orders.example/rm"


@pytest.fixture
def facts(tmp_path: Path) -> dict[str, Any]:
    return unpack("stores", tmp_path)


@pytest.fixture
def clock(facts: dict[str, Any]) -> Clock:
    return ClockOfThen(facts["written_at"] + 1)


async def until(condition: Any) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.02)


def bodies(directory: Path) -> list[bytes]:
    """Bodies of the queue, in its order."""
    store = RocksDBStore(directory)
    start, end = store.load().bounds["inbox", 0]
    found = [record.body for _, record in store.read("inbox", 0, start, end)]
    store.close()
    return found


@pytest.mark.parametrize("rm", ["1.0", "1.1"])
async def test_a_destination_closes_the_gap_and_repeats_the_stored_reply(
    serve: Any, peer: Any, tmp_path: Path, facts: Any, clock: Clock, rm: str
) -> None:
    handled: list[bytes] = []
    app = Destination(tmp_path / "inbox", partitions=2)
    app.settings.clock = clock

    @app.on(ACTION)
    async def submit(message: Message) -> None:
        if message.sequence == facts[rm]:
            handled.append(message.body_bytes)

    @app.on(PRICE)
    async def price(message: Message) -> str:
        return "<price>second</price>"

    service = await serve(app)
    source = peer(service.url, Versions(rm))
    source.identifier = facts[rm]
    assert (await source.message(4, b"<n>4</n>")).ranges == ((1, 4), (6, 7))
    assert (await source.message(5, b"<n>5</n>")).ranges == ((1, 7),)
    await until(lambda: len(handled) >= 4)
    assert handled == [b"<n>4</n>", b"<n>5</n>", b"<n>6</n>", b"<n>7</n>"]
    assert app.running.dead_letters.count == 2, "number 3 of either Sequence"

    requester = peer(service.url, Versions(rm))
    requester.identifier = facts[f"request {rm}"]
    answer = await requester.request(1, b"<ask/>", PRICE, message_id=f"urn:test:request:{rm}")
    assert b"<price>first</price>" in answer.body


async def test_a_source_sends_what_its_outbox_holds_under_the_same_numbers(
    serve: Any, tmp_path: Path, clock: Clock
) -> None:
    app = Destination(tmp_path / "outbox-shop", partitions=1)
    app.settings.clock = clock
    service = await serve(app)
    proxied = SourceHTTP(proxy=service.url.rstrip("/"))
    source = Source(TO, tmp_path / "outbox", http=proxied, versions=Versions("1.1"))
    source.clock = clock
    async with source:
        await source.flush(60)
        assert not source.incidents
    await service.close(1)
    assert bodies(tmp_path / "outbox-shop") == [f"<n>{number}</n>".encode() for number in range(1, 8)]


async def test_a_broker_forwards_what_its_queue_holds_under_the_same_numbers(
    serve: Any, tmp_path: Path, clock: Clock
) -> None:
    app = Destination(tmp_path / "broker-shop", partitions=1)
    app.settings.clock = clock
    service = await serve(app)
    proxy = ProxyConfig(service.url.rstrip("/"))
    broker = Broker(
        BrokerConfig(
            store=str(tmp_path / "broker"),
            listen=ListenConfig(port=0),
            admin=AdminConfig(port=0),
            partitions=1,
            forwarders=(ForwarderConfig("shop", "inbox", TO, rm="1.1", proxy=proxy),),
        )
    )
    broker.destination.settings.clock = clock
    await broker.service.start()
    try:
        await until(lambda: app.running.queues["inbox"].records.ends == [7])
    finally:
        await broker.service.close(1)
    await service.close(1)
    assert bodies(tmp_path / "broker-shop") == [f"<n>{number}</n>".encode() for number in range(1, 8)]
