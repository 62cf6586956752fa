"""Blocks: rows as they are staged, many in one record. Knows where each row of a block goes, and not what it says.

A row is an encoded record without what only its publication decides: its Sequence, its number, when it got into its
queue, and its MessageID if it has none. The store's layer encodes rows, and fills in the rest when they move; here they
are octets. So what is staged is written and read a block at a time, and a row that moves is not decoded.

A block is a head, the names of the queues that its rows are for, an entry for each row, and the rows; and before all of
that its checksum. One changed bit could create invalid rows, in queues with readers that cannot skip them, or lose
rows. So a block must be intact before any of its rows moves.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from zlib import crc32

from holdfast.exceptions import StoreDamaged, StoreFormatError

MOST_ROWS = 1000
"""In a block: they move together, which takes some milliseconds."""
MOST_BYTES = 1 << 20
"""In a block, unless one row is larger: so much is in one commit, which messages that come meanwhile wait for."""
ROW_BYTES = 128
"""Bytes that count for a row in addition to its body and its headers."""

_VERSION = 1
_CHECKSUM = struct.Struct("<I")
_HEAD = struct.Struct("<BHIQd")
"""Version, names, rows, what the rows count, when they came."""
_NAME = struct.Struct("<H")
_ENTRY = struct.Struct("<HIII")
"""Index of the name, hash of the key, insert position of the MessageID (0: the row has one), and length of the row."""

EncodedRow = tuple[str, int, int, int, int, tuple[bytes, ...]]
"""The queue that a row is for, the hash of its key, what it counts, where in its octets the MessageID goes that is made
for it (0: it has its own), how many octets it has, and these, in pieces."""
Place = tuple[int, int, int]
"""Start of a row in a block, position of its MessageID (0: none), and end of the row."""


@dataclass(frozen=True, slots=True)
class Block:
    """Some rows of a part.

    Args:
        rows: How many.
        size: What they count.
        data: All of it, as it is stored.
    """

    rows: int
    size: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Rows:
    """Contents of a block.

    Args:
        size: Bytes that count for its rows.
        received_at: When they arrived, seconds since 1970-01-01 UTC.
        entries: The queue of each row, and the hash of its key.
        places: The position of each row.
    """

    size: int
    received_at: float
    entries: list[tuple[str, int]]
    places: list[Place]


@dataclass(slots=True)
class Run:
    """Rows of a block that go into one partition, one after the other.

    Args:
        queue, partition: Where they go.
        offset: That of the first.
        sink: Name of the sink that they come from.
        sequence: What their records name as their Sequence.
        message_ids: What the MessageIDs begin with that are made for those without one; the number follows.
        received_at, now: Seconds since 1970-01-01 UTC: when they came, and their ``released_at``.
        numbers: The message number of each.
        places: Where each of them is in the block.
    """

    queue: str
    partition: int
    offset: int
    sink: str
    sequence: str
    message_ids: str
    received_at: float
    now: float
    block: bytes
    numbers: list[int]
    places: list[Place]

    @property
    def bytes(self) -> int:
        """Approximate bytes of the rows."""
        return sum([end - begin for begin, _, end in self.places])


def pack(rows: Iterable[EncodedRow], received_at: float) -> Block:
    names: dict[str, int] = {}
    entries: list[bytes] = []
    pieces: list[bytes] = []
    size = 0
    for queue, key_hash, counts, gap, length, octets in rows:
        size += counts
        entries.append(_ENTRY.pack(names.setdefault(queue, len(names)), key_hash, gap, length))
        pieces += octets
    head = [_HEAD.pack(_VERSION, len(names), len(entries), size, received_at)]
    for encoded in map(str.encode, names):
        head += (_NAME.pack(len(encoded)), encoded)
    content = b"".join((*head, *entries, *pieces))
    # The checksum covers the head too: a changed length would shift every row behind it.
    return Block(len(entries), size, _CHECKSUM.pack(crc32(content)) + content)


def blocks_of(rows: Iterable[EncodedRow], received_at: float) -> Iterator[Block]:
    """Yield the rows in blocks of the maximum size; without rows, yield one empty block."""
    some: list[EncodedRow] = []
    size, is_first = 0, True
    for row in rows:
        some.append(row)
        size += row[2]
        if size >= MOST_BYTES or len(some) >= MOST_ROWS:
            yield pack(some, received_at)
            some, size, is_first = [], 0, False
    # An empty part has one empty block, so it exists and can be published.
    if some or is_first:
        yield pack(some, received_at)


def unpack(data: bytes) -> Rows:
    """Decode a block that :func:`pack` wrote.

    Raises:
        StoreDamaged: the data was altered or truncated.
        StoreFormatError: a newer version wrote it.
    """
    at = _CHECKSUM.size
    if len(data) < at + _HEAD.size or _CHECKSUM.unpack_from(data)[0] != crc32(memoryview(data)[at:]):
        raise StoreDamaged(f"{len(data):,} bytes of staged rows are damaged", remedy="Restore the store from a copy.")
    version, count, rows, size, received_at = _HEAD.unpack_from(data, at)
    if version != _VERSION:
        raise StoreFormatError(
            f"staged rows have format {version}, but this version reads {_VERSION}",
            remedy="Use the version of Holdfast that wrote them, or a newer one.",
        )
    at += _HEAD.size
    names: list[str] = []
    for _ in range(count):
        (length,) = _NAME.unpack_from(data, at)
        at += _NAME.size
        names.append(data[at : at + length].decode())
        at += length
    begin = at + rows * _ENTRY.size
    entries: list[tuple[str, int]] = []
    places: list[Place] = []
    for name, key_hash, gap, length in _ENTRY.iter_unpack(memoryview(data)[at:begin]):
        entries.append((names[name], key_hash))
        # Positions in the block: a row is copied out of it, and never decoded here.
        places.append((begin, gap and begin + gap, begin + length))
        begin += length
    return Rows(size, received_at, entries, places)
