"""Records through the data plane: out of each kind of store, cut anywhere, and read as slowly as somebody likes."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from databases import Server

from holdfast import Destination
from holdfast.client.data_plane import DataPlane, Patience, read_range
from holdfast.client.offsets import Range
from holdfast.core.records import Batch, Record
from holdfast.endpoint.admin.data_plane import record_stream
from holdfast.store import MemoryStore, Store, open_store
from holdfast.store.records import decode_record


def record(number: int, size: int) -> Record:
    return Record("urn:s", number + 1, "urn:a", b"<m>%b</m>" % (b"x" * size), 1.7e9 + number, transport=b"t")


def fill(store: Store, sizes: list[int]) -> None:
    """Append a record of each size."""
    for begin in range(0, len(sizes), 50):
        some = enumerate(sizes[begin : begin + 50], begin)
        store.commit(Batch(appends=[("inbox", 0, offset, record(offset, size)) for offset, size in some]))


@pytest.mark.parametrize("kind", ["memory", "rocksdb", "postgresql", "mariadb"])
async def test_any_range_of_any_store_comes_whole_and_in_order_with_or_without_bodies(
    kind: str, serve: Any, tmp_path: Path, servers: Callable[[str], Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_stream, "BLOCK_BYTES", 3000)
    places = {"memory": ":memory:", "rocksdb": str(tmp_path / "store")}
    store = open_store(places.get(kind) or servers(kind).new_url())
    chance = random.Random(7)
    sizes = [chance.choice([0, 10, 500, 5000]) for _ in range(120)]
    fill(store, sizes)
    service = await serve(Destination(store, partitions=1))

    def read(begin: int, end: int, without: list[str]) -> list[tuple[int, Record]]:
        plane = DataPlane(service.admin_url)
        epoch = plane.ends("inbox").epoch
        blocks = read_range(plane, "inbox", epoch, Range(0, begin, end), Patience(0), (), without)
        found = [(offset, decode_record(data)) for block in blocks for offset, data in block]
        plane.close()
        return found

    for begin, end in [(0, 120), (0, 0), (119, 120), *(sorted(chance.sample(range(121), 2)) for _ in range(5))]:
        expected = [(one, record(one, sizes[one])) for one in range(begin, end)]
        assert await asyncio.to_thread(read, begin, end, []) == expected
        for _, one in expected:
            one.body = one.transport = b""
        assert await asyncio.to_thread(read, begin, end, ["body", "transport"]) == expected


async def test_head_of_records_is_answered_without_content_and_reads_one_block(serve: Any) -> None:
    store = MemoryStore()
    fill(store, [100_000] * 40)
    service = await serve(Destination(store, partitions=1))
    async with httpx.AsyncClient(base_url=service.admin_url) as client:
        for path in ("/readyz", "/metrics", "/queues/inbox/0/records?from=0&to=40", "/queues"):
            head, get = await client.head(path), await client.get(path)
            assert (head.status_code, head.content) == (200, b""), path
            assert head.headers["content-type"] == get.headers["content-type"], path
        assert (await client.head("/cursors/none")).status_code in (404, 405)


async def test_of_what_nobody_takes_the_server_reads_no_more_than_it_can_send(serve: Any) -> None:
    """However long the range is: what is read and not sent is a block or two."""
    store = MemoryStore()
    fill(store, [100_000] * 400)
    reads = 0

    def read_encoded(*asked: Any) -> list[tuple[int, bytes]]:
        nonlocal reads
        reads += 1
        return MemoryStore.read_encoded(store, *asked)

    store.read_encoded = read_encoded  # type: ignore[method-assign]
    service = await serve(Destination(store, partitions=1))
    host, _, port = service.admin_url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=1 << 16)
    reads = 0
    writer.write(b"GET /queues/inbox/0/records?from=0&to=400 HTTP/1.1\r\nHost: x\r\n\r\n")
    await reader.readuntil(b"\r\n\r\n")
    before = -1
    while before != reads:  # until it reads no more, though there is more
        before = reads
        await asyncio.sleep(0.3)
    assert 1 <= reads < 100, "400 records of 100 kB are 134 blocks"
    received = 0
    while received < 400 * 100_000:
        received += len(await reader.read(1 << 20))
    assert reads >= 134
    writer.close()
