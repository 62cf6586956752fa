"""Cursors of readers outside, and what may be trimmed because of them. The admin listener's tests go further."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from holdfast import Destination
from holdfast.core.records import Record
from holdfast.endpoint.readers import TRIM_EVERY, Readers


@pytest.fixture
async def app() -> AsyncIterator[Destination]:
    """A destination of two partitions, without handlers."""
    one = Destination(":memory:", partitions=2)
    await one.start()
    yield one
    await one.close()


def deliver(app: Destination, partition: int, count: int) -> None:
    batch = app.engine.protocol.commit.batch
    for _ in range(count):
        offset = app.readers.ends[partition]
        batch.appends.append((app.queue.name, partition, offset, Record("urn:s", offset + 1, "urn:a", b"<a/>", 0.0)))
        app.readers.delivered(partition, offset)
    app.engine.touch()


async def test_without_a_cursor_everything_is_kept(app: Destination) -> None:
    deliver(app, 0, 3 * TRIM_EVERY)
    await app.engine.settled()
    assert app.readers.first == [0, 0]


async def test_the_slowest_cursor_decides_what_is_trimmed(app: Destination) -> None:
    deliver(app, 0, TRIM_EVERY + 10)
    app.readers.advance("fast", {0: TRIM_EVERY + 10})
    assert app.readers.first == [TRIM_EVERY + 10, 0]
    deliver(app, 0, 2 * TRIM_EVERY)
    app.readers.advance("slow", {})
    app.readers.advance("fast", {0: 10**6})
    assert app.readers.first[0] == TRIM_EVERY + 10
    app.readers.advance("slow", {0: 2 * TRIM_EVERY + 10})
    await app.engine.settled()
    assert app.readers.first[0] == 2 * TRIM_EVERY + 10
    assert app.store.read(app.queue.name, 0, 0, 10**6)[0][0] == 2 * TRIM_EVERY + 10


async def test_dropping_the_slowest_cursor_lets_go_of_what_it_held(app: Destination) -> None:
    deliver(app, 1, 4)
    app.readers.advance("slow", {})
    app.readers.advance("fast", {1: 4})
    assert app.readers.first == [0, 0]
    assert app.readers.drop("slow")
    assert app.readers.first == [0, 4]
    assert not app.readers.drop("slow")


async def test_cursors_are_durable_with_their_offsets(app: Destination) -> None:
    deliver(app, 0, 5)
    app.readers.advance("spark", {0: 3})
    await app.engine.settled()
    again = Readers(app.engine, app.queue.name, None)
    again.start(app.store.load(), 2)
    assert again.cursors == {"spark": {0: 3, 1: 0}}
    assert again.ends == [5, 0]


async def test_waiting_ends_with_a_record_beyond_or_with_the_time(app: Destination) -> None:
    await app.readers.wait_beyond({0: 0, 1: 0}, 0.0)
    waiting = asyncio.ensure_future(app.readers.wait_beyond({0: 0, 1: 0}, 60.0))
    await asyncio.sleep(0)
    assert not waiting.done()
    deliver(app, 1, 1)
    async with asyncio.timeout(60):
        await waiting
        await app.readers.wait_beyond({0: 0, 1: 0}, 60.0)
        await app.readers.wait_beyond({}, 60.0)
