"""What readers that stop reading leave in memory: one piece each, and blocks up to a limit over all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.core.records import Batch, Record
from holdfast.endpoint.admin.data_plane import record_stream
from holdfast.endpoint.admin.data_plane.record_stream import READING_AT_A_TIME, Range, RecordStream, WaitingBlocks
from holdfast.endpoint.record_blocks import HEAD, TRAILER_OFFSET, encode_block, encode_trailer
from holdfast.http.exchange import Exchange, Request
from holdfast.store import MemoryStore

pytestmark = pytest.mark.usefixtures("small")


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_stream, "BLOCK_BYTES", 1000)
    monkeypatch.setattr(record_stream, "PIECE_BYTES", 1000)


class Reader(Exchange):
    """A reader that takes what is written only when it is let."""

    def __init__(self) -> None:
        self.request = Request("GET", "/", {}, b"", None, False)
        self.unread = b""
        self.most_unread = 0
        self.got = b""
        self.is_over = False
        self._go = asyncio.Event()

    def respond(self, status: int, body: bytes = b"", content_type: Any = None, headers: Sequence[Any] = ()) -> None:
        raise AssertionError("an answer in pieces is wanted")

    def start(self, status: int, content_type: Any = None, headers: Sequence[Any] = ()) -> None:
        assert status == 200

    def write(self, data: bytes) -> bool:
        self.unread += data
        self.most_unread = max(self.most_unread, len(self.unread))
        return False

    async def drain(self) -> None:
        while self.unread and not self.closed:
            self._go.clear()
            await self._go.wait()

    def finish(self) -> None:
        self.is_over = True

    def read(self) -> None:
        self.got += self.unread
        self.unread = b""
        self._go.set()


def made(*sizes: int) -> tuple[RecordStream, MemoryStore]:
    store = MemoryStore()
    records = [Record("urn:s", number, "urn:a", b"x" * size, 1.0) for number, size in enumerate(sizes, 1)]
    store.commit(Batch(appends=[("inbox", 0, offset, record) for offset, record in enumerate(records)]))
    app: Any = SimpleNamespace(store=store, engine=None)
    return RecordStream(app, asyncio.Semaphore(READING_AT_A_TIME)), store


def expected(store: MemoryStore, start: int, end: int) -> bytes:
    """Blocks are cut where a record makes them as large as they may be."""
    blocks, at = b"", start
    while at < end:
        found = store.read_encoded("inbox", 0, at, end, 1000)
        blocks += encode_block(at, [data for _, data in found])
        at = found[-1][0] + 1
    return blocks + encode_trailer(end - start)


async def read_all(stream: RecordStream, reader: Reader, wanted: Range) -> None:
    sending = asyncio.ensure_future(stream.send(reader, wanted))
    async with asyncio.timeout(60):
        while not sending.done():
            reader.read()
            await asyncio.sleep(0)
    await sending
    reader.read()


async def test_a_reader_gets_large_and_small_records_whole_piece_by_piece() -> None:
    stream, store = made(10, 7_500, 10, 10, 999, 3_000, 0)
    reader = Reader()
    await read_all(stream, reader, Range("inbox", 0, 1, 7))
    assert reader.got == expected(store, 1, 7) and reader.is_over
    assert reader.most_unread <= 1000 + 200, "the next piece is written when the last one has left"


async def test_readers_that_stop_cost_one_piece_each_and_blocks_up_to_the_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stream, store = made(*[9_000] * 3)
    stream._waiting = waiting = WaitingBlocks(20_000)
    readers = [Reader() for _ in range(12)]
    sending = [asyncio.ensure_future(stream.send(one, Range("inbox", 0, 0, 3))) for one in readers]
    async with asyncio.timeout(60):
        while not all(one.unread for one in readers):
            await asyncio.sleep(0.001)
    assert all(len(one.unread) == 1000 for one in readers)
    assert 0 < waiting.bytes <= 20_000
    async with asyncio.timeout(60):
        while not all(one.done() for one in sending):
            for reader in readers:
                reader.read()
            await asyncio.sleep(0)
    for reader in readers:
        reader.read()
        assert reader.got == expected(store, 0, 3), "what gave way was read again"
    assert waiting.bytes == 0


async def test_a_reader_that_goes_away_leaves_nothing_in_memory() -> None:
    stream, _ = made(9_000)
    reader = Reader()
    sending = asyncio.ensure_future(stream.send(reader, Range("inbox", 0, 0, 1)))
    async with asyncio.timeout(60):
        while not reader.unread:
            await asyncio.sleep(0.001)
    assert stream._waiting.bytes > 9_000
    reader.closed = True
    reader.read()
    await sending
    assert stream._waiting.bytes == 0


async def test_records_deleted_while_a_reader_waits_end_the_stream_without_a_trailer() -> None:
    stream, store = made(9_000, 10)
    stream._waiting = WaitingBlocks(1)
    first, second = Reader(), Reader()
    sending = [asyncio.ensure_future(stream.send(one, Range("inbox", 0, 0, 2))) for one in (first, second)]
    async with asyncio.timeout(60):
        while not (first.unread and second.unread):
            await asyncio.sleep(0.001)
    store.commit(Batch(trims={("inbox", 0): 2}))
    async with asyncio.timeout(60):
        while not all(one.done() for one in sending):
            first.read()
            second.read()
            await asyncio.sleep(0)
    assert all(one.is_over for one in (first, second))
    assert not any(HEAD.pack(TRAILER_OFFSET, 0, 8) in one.got for one in (first, second))


async def test_the_newest_block_waits_whatever_its_size_and_the_oldest_gives_way() -> None:
    waiting = WaitingBlocks(10)
    waiting.put("a", b"x" * 6)
    waiting.put("b", b"x" * 4)
    waiting.put("c", b"x" * 50)
    assert (waiting.take("a"), waiting.take("b"), waiting.bytes) == (None, None, 50)
    assert waiting.take("c") == b"x" * 50 and waiting.bytes == 0
