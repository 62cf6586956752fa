"""The framing of ``application/vnd.holdfast.records``: how a range of records travels from a server.

Each record is an 8-byte offset, a 4-byte length (both big-endian, unsigned) and that many bytes. The last frame has
offset 2**64-1 and the number of records as its 8 bytes; a stream without it was cut off. Knows nothing of the
network, nor of what is in a record.
"""

from __future__ import annotations

import struct

from holdfast.pipeline.errors import IncompleteRead

HEADER = struct.Struct(">QI")
COUNT = struct.Struct(">Q")
TRAILER_OFFSET = 2**64 - 1
MAX_RECORD = 1 << 30
"""A longer frame is taken for garbage, not waited for."""


def encode_frame(offset: int, record: bytes) -> bytes:
    """One record's frame."""
    return HEADER.pack(offset, len(record)) + record


def encode_trailer(count: int) -> bytes:
    """The frame that ends a stream of ``count`` records."""
    return encode_frame(TRAILER_OFFSET, COUNT.pack(count))


class FrameParser:
    """Takes the bytes of one answer in any pieces, gives its records, and holds the answer to what was asked.

    Args:
        start, end: The range asked for: exactly these offsets must come, one after the other.
        what: The queue and partition, for messages.
    """

    def __init__(self, start: int, end: int, what: str) -> None:
        self._what = what
        self._start = start
        self._end = end
        self._buffer = bytearray()
        self.next = start
        self.complete = False

    def feed(self, data: bytes) -> list[tuple[int, bytes]]:
        """The records that are whole now, as (offset, encoded record).

        Raises:
            IncompleteRead: Another offset than the next one, bytes after the trailer, a trailer too early or with
                another count: what the server sends is not what was asked for.
        """
        buffer = self._buffer
        buffer += data
        records: list[tuple[int, bytes]] = []
        at = 0
        while len(buffer) - at >= HEADER.size:
            offset, length = HEADER.unpack_from(buffer, at)
            if offset != self.next or self.next >= self._end or self.complete:
                self._check_trailer(offset, length)
            elif length > MAX_RECORD:
                raise self._wrong(f"a record of {length} bytes")
            stop = at + HEADER.size + length
            if len(buffer) < stop:
                break
            body = bytes(buffer[at + HEADER.size : stop])
            at = stop
            if offset == TRAILER_OFFSET:
                self._finish(body)
            else:
                records.append((offset, body))
                self.next = offset + 1
        del buffer[:at]
        if self.complete and buffer:
            raise self._wrong("bytes after the trailer")
        return records

    def _check_trailer(self, offset: int, length: int) -> None:
        if self.complete:
            raise self._wrong("a frame after the trailer")
        if offset != TRAILER_OFFSET:
            due = self.next if self.next < self._end else "the trailer"
            raise self._wrong(f"offset {offset} where {due} was due")
        if length != COUNT.size:
            raise self._wrong(f"a trailer of {length} bytes")

    def _finish(self, body: bytes) -> None:
        (count,) = COUNT.unpack(body)
        if count != self.next - self._start or self.next != self._end:
            raise self._wrong(f"a trailer that counts {count} records, after {self.next - self._start} of them")
        self.complete = True

    def _wrong(self, found: str) -> IncompleteRead:
        return IncompleteRead(
            f"{self._what}: asked for the records {self._start} to {self._end}, the server sent {found}",
            remedy="no wrong row was passed on; check the server's log, and that broker names a Holdfast server",
        )
