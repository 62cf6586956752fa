"""The encoding of staged rows: a record as the store encodes it, without the fields that its publication sets.

A row in a block is what :func:`~holdfast.store.records.encode_record` writes between the message number and
``released_at``. The resulting record is like any other, except that its number always has eight bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from zlib import crc32

import msgspec

from holdfast.core.records import Batch, Record
from holdfast.core.staged_blocks import ROW_BYTES, Block, EncodedRow, Run, blocks_of
from holdfast.store.records import RECORD_BEGINNING, decode_record

_encode = msgspec.msgpack.Encoder().encode
_TIME_BYTES = len(_encode(0.0))
_UINT64 = b"\xcf"
_DIGITS = 12
_SOAP = "1.2"
_ALONE = _encode((None, None, None, None, _SOAP, b"", False))[1:]
"""The end of a row with only an action and a body, from the MessageID on."""
_NO_TRANSPORT = _encode(b"")


class RowEncoder:
    """Encodes rows that arrived together.

    Args:
        received_at: Seconds since 1970-01-01 UTC.
    """

    def __init__(self, received_at: float) -> None:
        self.received_at = received_at
        self._received = _encode(received_at)
        self._alone = self._received + _ALONE
        self._fronts: dict[tuple[str, int], bytes] = {}
        """Action and length of the body -> the bytes before the body."""

    def encode(
        self,
        queue: str,
        key: str,
        action: str,
        body: bytes,
        headers: bytes = b"",
        message_id: str | None = None,
        to: str | None = None,
        reply_to: str | None = None,
        relates_to: str | None = None,
    ) -> EncodedRow:
        """Encode a row for that queue.

        Rows with the same key stay in order; the other arguments are those of a record.
        """
        octets = len(body)
        front = self._fronts.get((action, octets))
        if front is None:
            front = self._fronts[action, octets] = _encode(action) + _bytes_head(octets)
        if message_id is to is reply_to is relates_to is None and not headers:
            back = self._alone
        else:
            back = self._received + _encode((message_id, to, reply_to, relates_to, _SOAP, headers, False))[1:]
        before = len(front) + octets
        return (
            queue,
            crc32(key.encode()),
            octets + len(headers) + ROW_BYTES,
            before + _TIME_BYTES if message_id is None else 0,
            before + len(back),
            (front, body, back),
        )


def _bytes_head(length: int) -> bytes:
    if length < 1 << 8:
        return b"\xc4" + length.to_bytes(1, "big")
    return b"\xc5" + length.to_bytes(2, "big") if length < 1 << 16 else b"\xc6" + length.to_bytes(4, "big")


def blocks_of_records(rows: Iterable[tuple[str, Record]], received_at: float) -> Iterator[Block]:
    """Encode rows given as records, each with its queue; ``sequence`` of a record is its key."""
    encode = RowEncoder(received_at).encode
    return blocks_of(
        (
            encode(
                queue,
                record.sequence,
                record.action,
                record.body,
                record.headers,
                record.message_id,
                record.to,
                record.reply_to,
                record.relates_to,
            )
            for queue, record in rows
        ),
        received_at,
    )


def fill(run: Run) -> list[bytes]:
    """Return the encoded records of rows that move into their queue."""
    head: bytes = RECORD_BEGINNING + _encode(run.sequence) + _UINT64
    tail: bytes = _encode(run.now) + _NO_TRANSPORT
    made = _encode(run.message_ids + "0" * _DIGITS)[:-_DIGITS]
    block, join = run.block, b"".join
    return [
        join((head, number.to_bytes(8, "big"), block[begin:gap], made, b"%012x" % number, block[gap + 1 : end], tail))
        if gap
        else join((head, number.to_bytes(8, "big"), block[begin:end], tail))
        for number, (begin, gap, end) in zip(run.numbers, run.places, strict=True)
    ]


def appended(batch: Batch) -> Iterator[tuple[str, int, int, Record]]:
    """Yield every record that a batch appends to queues, as ``(queue, partition, offset, record)``.

    For callers that inspect batches and need not be fast.
    """
    yield from batch.appends
    for run in batch.runs:
        for offset, data in enumerate(fill(run), run.offset):
            yield run.queue, run.partition, offset, decode_record(data)
