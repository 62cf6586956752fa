"""``application/vnd.holdfast.record-blocks``: how a range of records travels from a server to its readers.

A stream of blocks. Each consists of a head (the first record's offset in 8 bytes, the number of records in 4, their
total bytes in 4), the length of each record in 4 bytes, and the records as the store has them, one after the other. The
last block has the offset 2**64 - 1 and no record, and in its 8 bytes the number of records before it: a stream without
it was cut off. All numbers are unsigned, big-endian.

So neither end does work for each single record. Owns the format; the content of a record is the store's.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

MEDIA_TYPE: Final = b"application/vnd.holdfast.record-blocks"
HEAD: Final = struct.Struct(">QII")
COUNT: Final = struct.Struct(">Q")
LENGTH_BYTES: Final = 4
TRAILER_OFFSET: Final = 2**64 - 1
MAX_BLOCK: Final = 1 << 30
"""Maximum bytes of a block's lengths and records. A longer claimed length is garbage, and the reader rejects it."""


def encode_block(first: int, records: Sequence[bytes]) -> bytes:
    """Encode a block of consecutive records, with the first one at offset ``first``."""
    lengths = [len(record) for record in records]
    count = len(lengths)
    return b"".join([HEAD.pack(first, count, sum(lengths)), struct.pack(f">{count}I", *lengths), *records])


def encode_trailer(count: int) -> bytes:
    """Encode the block that ends a stream of ``count`` records."""
    return HEAD.pack(TRAILER_OFFSET, 0, COUNT.size) + COUNT.pack(count)
