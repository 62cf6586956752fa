"""Readers: who waits for a queue to grow, and a cursor that is durable when it is told where it stands."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest

from holdfast import Destination
from holdfast.core.records import Record
from holdfast.endpoint.destination.readers import Readers


@pytest.fixture
async def app(tmp_path: Path) -> AsyncIterator[Destination]:
    """A destination of two partitions, without handlers."""
    one = Destination(tmp_path / "inbox", partitions=2)
    await one.start()
    yield one
    await one.close()


async def deliver(app: Destination, partition: int, count: int) -> None:
    inbound = app.running.engine.protocol.inbound
    for number in range(count):
        record = Record("urn:s", number, "urn:a", b"<a/>", app.running.engine.clock())
        offset = app.running.queue.records.append(partition, record)
        inbound.commit.then(partial(inbound.delivered, [(app.running.queue, partition, offset, record, True)]))
    app.running.engine.touch()
    await app.running.engine.settled()


async def test_a_cursor_is_durable_when_it_is_told_where_it_stands(app: Destination, tmp_path: Path) -> None:
    await deliver(app, 0, 5)
    assert await app.running.readers[app.running.queue.name].advance("spark", {0: 3}) == {0: 3, 1: 0}
    stored = app.running.store.load().cursors
    assert {partition: state["offset"] for (_, partition, _), state in stored.items()} == {0: 3, 1: 0}
    assert await app.running.readers[app.running.queue.name].drop("spark")
    assert not await app.running.readers[app.running.queue.name].drop("spark")
    assert app.running.store.load().cursors == {}


async def test_waiting_ends_with_a_record_beyond_or_with_the_time(app: Destination) -> None:
    readers = [app.running.readers[app.running.queue.name]]

    def are_two() -> bool:
        return sum(app.running.queue.records.ends) == 2

    await Readers.wait(readers, are_two, 0.0)
    waiting = [asyncio.ensure_future(Readers.wait(readers, are_two, 60.0)) for _ in range(2)]
    await asyncio.sleep(0)
    await deliver(app, 1, 1)
    assert not any(one.done() for one in waiting)
    await deliver(app, 0, 1)
    async with asyncio.timeout(60):
        await asyncio.gather(*waiting)
        await Readers.wait(readers, are_two, 60.0)
    assert not readers[0]._waiting


async def test_waiting_for_several_queues_ends_with_a_record_of_any(tmp_path: Path) -> None:
    app = Destination(tmp_path / "inbox", partitions=2, queues={"inbox": None, "other": None})
    await app.start()
    readers = list(app.running.readers.values())
    waiting = asyncio.ensure_future(Readers.wait(readers, lambda: sum(app.running.queue.records.ends) > 0, 60.0))
    await asyncio.sleep(0)
    await deliver(app, 0, 1)
    async with asyncio.timeout(60):
        await waiting
    await app.close()
