"""A store found damaged while it is served: health says so, requests are refused, and nothing is guessed."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from waiting import until

from holdfast import Destination, Message, Source
from holdfast.core.records import Batch, Record
from holdfast.endpoint.engine import store_watch
from holdfast.endpoint.engine.opening import open_off_loop
from holdfast.exceptions import StoreDamaged, StoreFailed
from holdfast.outages import Trouble
from holdfast.store import MemoryStore
from holdfast.store.rocksdb.store import RocksDBStore

COUNT = 300
SPOILT = 200


def body(number: int) -> str:
    return random.Random(number).randbytes(200).hex()


def spoil(path: Path, number: int) -> None:
    """Flip one bit in the table that holds the body of message ``number``."""
    content = body(number).encode()
    for table in (path / "db").glob("*.sst"):
        data = bytearray(table.read_bytes())
        # Where it is compressed, only some of it is there as it was.
        places = (data.find(content[start : start + 12]) for start in range(100, 300))
        if (place := next((found for found in places if found >= 0), None)) is not None:
            data[place] ^= 1
            table.write_bytes(data)
            return
    raise AssertionError("the message is in no table")


async def damaged_inbox(path: Path, serve: Callable[..., Awaitable[Any]], handled: int = 0) -> None:
    """A destination's store with all its messages in a table, one of them spoilt."""
    service = await serve(Destination(path, partitions=1))
    async with Source(service.url, ":memory:") as source:
        for number in range(COUNT):
            await source.send(f"<n>{body(number)}</n>", action="urn:test:submit")
        await source.flush(60)
    await service.close(1.0)
    store = RocksDBStore(path)
    store._db.flush()
    store.close()
    spoil(path, SPOILT)


async def test_a_damaged_record_is_named_by_health_and_ends_acceptance(
    serve: Callable[..., Awaitable[Any]], peer: Any, tmp_path: Path
) -> None:
    await damaged_inbox(tmp_path / "inbox", serve)
    service = await serve(Destination(tmp_path / "inbox", partitions=1))
    async with aiohttp.ClientSession() as session:

        async def ask(path: str) -> tuple[int, bytes]:
            async with session.get(service.admin_url + path) as answer:
                return answer.status, await answer.read()

        assert (await ask("/healthz"))[0] == 200
        status, whole = await ask("/queues/inbox/0/records?from=0&to=100")
        assert status == 200, "what is whole is given"
        assert len(whole) > 100 * 400
        status, said = await ask(f"/queues/inbox/0/records?from=0&to={COUNT}")
        assert status == 503
        assert b"is damaged" in said
        assert b"holdfast store check" in said
        status, said = await ask("/readyz")
        assert status == 503
        assert b"is damaged" in said
        status, said = await ask("/healthz")
        assert status == 200, "a restart would not help"
        assert b"is damaged" in said
        body = {"epoch": service.app.running.queue.description.epoch, "offsets": {"0": 10}}
        async with session.put(f"{service.admin_url}/queues/inbox/cursors/r", json=body) as answer:
            assert answer.status == 503
    one = peer(service.url)
    assert (await one.create()).status == 503


async def test_a_destination_with_a_damaged_backlog_delivers_the_rest_or_stays_down(
    serve: Callable[..., Awaitable[Any]], tmp_path: Path
) -> None:
    await damaged_inbox(tmp_path / "inbox", serve)
    app = Destination(tmp_path / "inbox", partitions=1)
    got: list[str] = []

    @app.on()
    async def take(message: Message) -> None:
        got.append(message.text)

    with pytest.raises(StoreDamaged, match="is damaged") as caught:
        await app.start()
    assert "holdfast store check" in caught.value.remedy
    store = await open_off_loop(tmp_path / "inbox")  # it was given back
    store.close()


async def test_a_source_with_a_damaged_outbox_says_so_and_sends_no_substitute(
    serve: Callable[..., Awaitable[Any]], tmp_path: Path
) -> None:
    app = Destination(":memory:", partitions=1)
    service = await serve(app)
    store = RocksDBStore(tmp_path / "outbox")
    store.close()
    source = Source("http://127.0.0.1:1/", tmp_path / "outbox")
    await source.open()
    for number in range(COUNT):
        await source.send(f"<n>{body(number)}</n>", action="urn:test:submit")
    await source.close(0.0)
    store = RocksDBStore(tmp_path / "outbox")
    store._db.flush()
    store.close()
    spoil(tmp_path / "outbox", 5)
    source = Source("http://127.0.0.1:1/", tmp_path / "outbox")
    with pytest.raises(StoreDamaged, match="is damaged"):
        async with source:
            await source.flush(60)
    assert app.running.accepted == 0
    assert service.url


async def test_a_gap_in_what_a_store_gives_ends_the_answer_without_its_trailer(tmp_path: Path) -> None:
    store = RocksDBStore(tmp_path / "store")
    record = Record("urn:s", 1, "urn:a", b"<x/>", 0.0)
    store.commit(Batch(appends=[("q", 0, n, record) for n in range(10)]))
    prefix = store.content.partitions["q", 0].records
    store._db.delete(prefix + (4).to_bytes(8, "big"))
    assert len(store.read("q", 0, 0, 4)) == 4
    for start, end in ((0, 10), (4, 5), (4, 10)):
        with pytest.raises(StoreDamaged, match="offset 4 of partition 0 of 'q' is missing"):
            store.read("q", 0, start, end)
    assert len(store.read("q", 0, 5, 10)) == 5
    store.close()


class HangingStore(MemoryStore):
    """Its disk does not answer until it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.answers = threading.Event()
        self.answers.set()

    def commit(self, batch: Batch) -> None:
        assert self.answers.wait(60)
        super().commit(batch)


async def health(service: Any, path: str = "readyz") -> tuple[int, str]:
    async with aiohttp.ClientSession() as session, session.get(f"{service.admin_url}/{path}") as answer:
        return answer.status, await answer.text()


async def test_a_hanging_sync_shows_in_health_and_log_until_the_disk_answers(
    serve: Any, peer: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(store_watch, "HANGING_SECONDS", 0.05)
    monkeypatch.setattr(store_watch, "_WATCH_SECONDS", 0.01)
    store = HangingStore()
    service = await serve(Destination(store, partitions=1))
    assert (await health(service))[0] == 200
    store.answers.clear()
    creating = asyncio.ensure_future(peer(service.url).create())
    await until(lambda: "store.hanging" in caplog.text)
    status, said = await health(service)
    assert status == 503
    assert "has not answered" in said
    status, said = await health(service, "healthz")
    assert status == 200 and "has not answered" in said, "a restart would not help"
    store.answers.set()
    assert (await creating).status == 200
    await until(lambda: "store.available" in caplog.text)
    assert (await health(service))[0] == 200


async def test_while_the_reserve_is_in_use_records_are_read_but_not_accepted(serve: Any, peer: Any) -> None:
    store = MemoryStore()
    service = await serve(Destination(store, partitions=1))
    one = peer(service.url)
    await one.create()
    await one.message(1)
    store.trouble = Trouble("The disk was full.", "Free space there.")
    assert (await one.message(2)).status == 503
    status, said = await health(service)
    assert status == 503
    assert "The disk was full" in said
    async with aiohttp.ClientSession() as session:
        async with session.get(f"{service.admin_url}/queues/inbox/0/records?from=0&to=1") as answer:
            assert answer.status == 200
        body = {"epoch": service.app.running.queue.description.epoch, "offsets": {"0": 1}}
        async with session.put(f"{service.admin_url}/queues/inbox/cursors/r", json=body) as answer:
            assert answer.status == 200, "what is read may be given up"
    store.trouble = None
    assert (await one.message(2)).status in (200, 202)


async def test_while_the_reserve_is_in_use_a_source_only_sends_what_it_has(serve: Any) -> None:
    app = Destination(":memory:", partitions=1)
    service = await serve(app)
    store = MemoryStore()
    async with Source(service.url, store) as source:
        sent = await source.send("<n>1</n>", action="urn:test:submit")
        store.trouble = Trouble("The disk was full.", "Free space there.")
        with pytest.raises(StoreFailed, match=r"is not stored\. The disk was full") as caught:
            await source.send("<n>2</n>", action="urn:test:submit")
        assert "Free space" in caught.value.remedy
        await sent.acknowledged(60)
    assert app.running.accepted == 1
