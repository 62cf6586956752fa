"""Readers: who waits for a queue to grow, and a cursor that is durable when it is told where it stands."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest

from holdfast import Destination
from holdfast.core.records import Record


@pytest.fixture
async def app(tmp_path: Path) -> AsyncIterator[Destination]:
    """A destination of two partitions, without handlers."""
    one = Destination(tmp_path / "inbox", partitions=2)
    await one.start()
    yield one
    await one.close()


async def deliver(app: Destination, partition: int, count: int) -> None:
    inbound = app.engine.protocol.inbound
    for number in range(count):
        record = Record("urn:s", number, "urn:a", b"<a/>", app.engine.clock())
        offset = app.queue.append(partition, record)
        inbound.commit.then(partial(inbound.delivered, [(app.queue, partition, offset, record)]))
    app.engine.touch()
    await app.engine.settled()


async def test_a_cursor_is_durable_when_it_is_told_where_it_stands(app: Destination, tmp_path: Path) -> None:
    await deliver(app, 0, 5)
    assert await app.readers[app.queue.name].advance("spark", {0: 3}) == {0: 3, 1: 0}
    stored = app.store.load().cursors
    assert {partition: state["offset"] for (_, partition, _), state in stored.items()} == {0: 3, 1: 0}
    assert await app.readers[app.queue.name].drop("spark")
    assert not await app.readers[app.queue.name].drop("spark")
    assert app.store.load().cursors == {}


async def test_waiting_ends_with_a_record_beyond_or_with_the_time(app: Destination) -> None:
    await app.readers[app.queue.name].wait_beyond({0: 0, 1: 0}, 0.0)
    waiting = asyncio.ensure_future(app.readers[app.queue.name].wait_beyond({0: 0, 1: 0}, 60.0))
    await asyncio.sleep(0)
    assert not waiting.done()
    await deliver(app, 1, 1)
    async with asyncio.timeout(60):
        await waiting
        await app.readers[app.queue.name].wait_beyond({0: 0, 1: 0}, 60.0)
        await app.readers[app.queue.name].wait_beyond({}, 60.0)
