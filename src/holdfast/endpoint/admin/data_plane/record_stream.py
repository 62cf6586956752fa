"""Sends a range of records to a reader as blocks, and bounds the memory that all readers use together.

A reader that stops reading costs one piece in its connection's buffer: the stream writes the next piece once that
buffer is empty, and then reads the next block from the store. The rest of a block of large records waits in memory
with those of other readers, up to a limit; the block that has waited longest is dropped, and read again when its
reader resumes.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection
from dataclasses import dataclass, replace

from holdfast.core.records import content_name, hold_of
from holdfast.endpoint.admin.inspected import Inspected
from holdfast.endpoint.record_blocks import MEDIA_TYPE, encode_block, encode_trailer
from holdfast.exceptions import StoreDamaged, StoreError
from holdfast.http.exchange import Exchange
from holdfast.store.records import emptied

BLOCK_BYTES = 1 << 18
"""Of the store that are read at a time. That holds the interpreter lock, and the messages that come in meanwhile wait:
with a megabyte, and two readers, five times as long, for a twentieth less processor time a record."""

PIECE_BYTES = 1 << 18
"""Of a block that are in a connection's buffer at a time."""

WAITING_BYTES = 32 << 20
"""Of blocks larger than a piece that wait in memory for their readers, over all of them; one block may be larger."""

CONTENT_BYTES = 1 << 20
"""Of the attachments that a record has in the store, in one answer."""

READING_AT_A_TIME = 2
"""Blocks that the listener reads at a time, and pages of records, dead letters or outbox messages that it makes."""


class WaitingBlocks:
    """Blocks that wait for their readers to resume.

    Args:
        most: Maximum total bytes. The newest block stays whatever its size, so that at least one reader progresses.
    """

    def __init__(self, most: int = WAITING_BYTES) -> None:
        self.bytes = 0
        self._most = most
        self._blocks: dict[object, bytes] = {}

    def put(self, reader: object, block: bytes) -> None:
        """Keep the reader's block; the oldest ones give way."""
        self._blocks[reader] = block
        self.bytes += len(block)
        while self.bytes > self._most and len(self._blocks) > 1:
            self.take(next(iter(self._blocks)))

    def take(self, reader: object) -> bytes | None:
        """Remove and return the reader's block; None if it was dropped or there was no such block."""
        block = self._blocks.pop(reader, None)
        if block is not None:
            self.bytes -= len(block)
        return block


class _Cut(Exception):
    """The requested records cannot be sent to their end."""


@dataclass(frozen=True, slots=True, eq=False)
class Range:
    """Records start <= offset < end of a partition, all of them durable.

    Args:
        without: Fields to send empty.
    """

    queue: str
    partition: int
    start: int
    end: int
    without: Collection[str] = ()


class RecordStream:
    """Sends records of one endpoint's store.

    Args:
        app: The endpoint, started before anything is sent.
        reading: Admits ``READING_AT_A_TIME`` reads, together with others of the listener.
    """

    def __init__(self, app: Inspected, reading: asyncio.Semaphore) -> None:
        self._app = app
        self._waiting = WaitingBlocks()
        self._reading = reading

    async def send(self, exchange: Exchange, wanted: Range) -> None:
        """Answer the exchange with these records.

        Raises:
            StoreError: The store has failed before anything was sent.
        """
        these = await self._read_next(wanted)
        exchange.start(200, MEDIA_TYPE)
        position = wanted.start
        # If anything ends the stream before the last requested record, the missing trailer shows it to the reader.
        with contextlib.suppress(StoreError, _Cut):
            while these is not None and exchange.wants_content:
                await self._write(exchange, these)
                position = these.end
                these = await self._read_next(replace(wanted, start=position))
        if position == wanted.end:
            exchange.write(encode_trailer(wanted.end - wanted.start))
        exchange.finish()

    async def _read_next(self, wanted: Range) -> Range | None:
        """Read the first block of the records, store it among the waiting blocks and return its range.

        Returns None if there are no such records, or they were deleted meanwhile.

        Raises:
            StoreError: The store cannot be read: it has failed.
        """
        count, block = await self._read(wanted)
        if not count:
            return None
        these = replace(wanted, end=wanted.start + count)
        self._waiting.put(these, block)
        return these

    async def _write(self, exchange: Exchange, these: Range) -> None:
        sent, size = 0, -1
        try:
            while sent < size or size < 0:
                block = await self._block(exchange, these, size)
                size, is_taken = len(block), True
                while is_taken and sent < size:
                    is_taken = exchange.write(block if size <= PIECE_BYTES else block[sent : sent + PIECE_BYTES])
                    sent += PIECE_BYTES
                if sent < size:
                    self._waiting.put(these, block)
                del block  # from here on, only the waiting blocks may keep it in memory
                if not is_taken:
                    await exchange.drain()
        finally:
            self._waiting.take(these)

    async def _block(self, exchange: Exchange, these: Range, size: int) -> bytes:
        """Return the block of these records; ``size`` is its earlier size in bytes, -1 before the first write."""
        if exchange.closed:
            raise _Cut
        block = self._waiting.take(these)
        if block is None:
            _, block = await self._read(these)
        if size not in (-1, len(block)):
            raise _Cut  # some of the records were deleted meanwhile
        return block

    async def _read(self, wanted: Range) -> tuple[int, bytes]:
        if wanted.start == wanted.end:
            return 0, b""
        async with self._reading:
            try:
                return await asyncio.to_thread(self._read_now, wanted)
            except StoreError as error:
                self._app.engine.fail(error)
                raise

    def _read_now(self, wanted: Range) -> tuple[int, bytes]:
        start = wanted.start
        found = self._app.store.read_encoded(wanted.queue, wanted.partition, start, wanted.end, BLOCK_BYTES)
        # A range is answered from its first record on: what was deleted meanwhile must not look read.
        if not found or found[0][0] != start:
            return 0, b""
        records = [data for _, data in found]
        return len(records), encode_block(start, emptied(records, wanted.without) if wanted.without else records)

    async def content(self, queue: str, partition: int, offset: int, start: int) -> bytes | None:
        """Return a piece of the attachments that a record has in the store, from byte ``start``: at most CONTENT_BYTES.

        None: The record was deleted, or has no attachments in the store.

        Raises:
            StoreError: The store cannot be read.
        """
        async with self._reading:
            try:
                return await asyncio.to_thread(self._content_now, queue, partition, offset, start)
            except StoreDamaged:
                raise  # attachments alone: the records are readable
            except StoreError as error:
                self._app.engine.fail(error)
                raise

    def _content_now(self, queue: str, partition: int, offset: int, start: int) -> bytes | None:
        found = self._app.store.read(queue, partition, offset, offset + 1)
        if not found or not content_name(found[0][1].attachments):
            return None
        with hold_of(found[0][1].attachments).open() as file:
            file.seek(start)
            return file.read(CONTENT_BYTES)
