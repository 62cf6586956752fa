"""Sends a range of records to a reader as blocks, and bounds what all readers together hold in memory.

A reader that stops reading costs one piece in its connection's buffer: the next piece is written once that is empty,
and the next block is read from the store after that. The rest of a block of large records waits in memory among those
of other readers, up to a limit; the one that has waited longest gives way, and is read again when its reader goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection
from dataclasses import dataclass, replace

from holdfast.endpoint.destination.destination import Destination
from holdfast.endpoint.record_blocks import MEDIA_TYPE, encode_block, encode_trailer
from holdfast.exceptions import StoreError
from holdfast.http.exchange import Exchange
from holdfast.store.records import emptied

BLOCK_BYTES = 1 << 18
"""Of the store that are read at a time. That holds the interpreter lock, and the messages that come in meanwhile wait:
with a megabyte, and two readers, five times as long, for a twentieth less processor time a record."""

PIECE_BYTES = 1 << 18
"""Of a block that are in a connection's buffer at a time."""

WAITING_BYTES = 32 << 20
"""Of blocks larger than a piece that wait in memory for their readers, over all of them; one block may be larger."""

READING_AT_A_TIME = 2
"""Blocks that the listener reads at a time, and pages of records, dead letters or outbox messages that it makes."""


class Waiting:
    """Blocks that wait for their readers to go on.

    Args:
        most: Bytes of them. The newest one stays whatever its size, so that one reader at least gets on.
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
        """The reader's block; None if it gave way, or there was none."""
        block = self._blocks.pop(reader, None)
        if block is not None:
            self.bytes -= len(block)
        return block


class _Cut(Exception):
    """What was asked for cannot be sent to its end."""


@dataclass(frozen=True, slots=True, eq=False)
class Range:
    """Records start <= offset < end of a partition, all of them durable.

    Args:
        queue, partition: Where they are.
        start, end: Which.
        without: Fields that are sent empty.
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

    def __init__(self, app: Destination, reading: asyncio.Semaphore) -> None:
        self._app = app
        self._waiting = Waiting()
        self._reading = reading

    async def send(self, exchange: Exchange, wanted: Range) -> None:
        """Answer the exchange with these records.

        Raises:
            StoreError: The store has failed before anything was sent.
        """
        these = await self._read_next(wanted)
        exchange.start(200, MEDIA_TYPE)
        position = wanted.start
        # Whatever ends this before all that was asked for is sent, the missing trailer tells the reader.
        with contextlib.suppress(StoreError, _Cut):
            while these is not None and exchange.wants_content:
                await self._write(exchange, these)
                position = these.end
                these = await self._read_next(replace(wanted, start=position))
        if position == wanted.end:
            exchange.write(encode_trailer(wanted.end - wanted.start))
        exchange.finish()

    async def _read_next(self, wanted: Range) -> Range | None:
        """Read the first block of the records, which waits from then on, and return which it has; None where there are
        none, or they are gone meanwhile.

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
        """Write the block of these records piece by piece; returns when its last one has left."""
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
                del block  # from here on it is in memory only as long as it may wait
                if not is_taken:
                    await exchange.drain()
        finally:
            self._waiting.take(these)

    async def _block(self, exchange: Exchange, these: Range, size: int) -> bytes:
        """The block of these records, of which so many bytes were read before; -1: it was not written to yet."""
        if exchange.closed:
            raise _Cut
        block = self._waiting.take(these)
        if block is None:
            _, block = await self._read(these)
        if size not in (-1, len(block)):
            raise _Cut  # some of the records are gone meanwhile
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
        if not found or found[0][0] != start:
            return 0, b""
        records = [data for _, data in found]
        return len(records), encode_block(start, emptied(records, wanted.without) if wanted.without else records)
