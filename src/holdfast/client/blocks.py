"""Read ``application/vnd.holdfast.record-blocks``, and check it against the request.

:mod:`holdfast.endpoint.record_blocks` defines the format. Knows nothing of the network or the content of records.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Iterator, Sequence

from holdfast.client.errors import IncompleteRead
from holdfast.endpoint.record_blocks import COUNT, HEAD, LENGTH_BYTES, MAX_BLOCK, TRAILER_OFFSET


class Block:
    """Records that follow each other; iterated over, it gives each as (offset, encoded).

    Args:
        first: The offset of the first one.
        lengths: Of each, in bytes.
        content: Where they lie, without a byte between them, up to its end.

    Attributes:
        begin: Where in ``content`` the first one begins: 4 bytes or more are before it.
    """

    __slots__ = ("first", "lengths", "content", "begin")

    def __init__(self, first: int, lengths: array[int], content: bytes) -> None:
        self.first = first
        self.lengths = lengths
        self.content = content
        self.begin = len(content) - sum(lengths)

    def __len__(self) -> int:
        return len(self.lengths)

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        at = self.begin
        for offset, length in enumerate(self.lengths, self.first):
            yield offset, self.content[at : at + length]
            at += length


def joined(blocks: Sequence[Block]) -> Block:
    if len(blocks) == 1:
        return blocks[0]
    lengths = array("I")
    for block in blocks:
        lengths += block.lengths
    # As after a response, bytes precede the first record: see Block.begin.
    parts = [memoryview(block.content)[block.begin :] for block in blocks]
    return Block(blocks[0].first, lengths, b"".join([bytes(LENGTH_BYTES), *parts]))


class BlockReader:
    """The blocks of one response: exactly the requested records, or an error.

    Args:
        read: Returns as many bytes of the response as requested; fewer only at its end.
        start, end: The requested range.
        what: The queue and partition, for messages.

    Attributes:
        next: The offset after the last returned record.

    Raises:
        EOFError: The response was cut off.
        IncompleteRead: Another offset than the next one, records beyond the range, bytes after the trailer, or
            contradictory lengths or counts: the response does not match the request.
    """

    def __init__(self, read: Callable[[int], bytes], start: int, end: int, what: str) -> None:
        self._read = read
        self._what = what
        self._start = start
        self._end = end
        self.next = start

    def __iter__(self) -> Iterator[Block]:
        while True:
            first, count, size = HEAD.unpack(self._exactly(HEAD.size))
            if first == TRAILER_OFFSET:
                break
            yield self._block(first, count, size)
        if (count, size) != (0, COUNT.size):
            raise self._wrong(f"a trailer of {count} records and {size} bytes")
        (told,) = COUNT.unpack(self._exactly(COUNT.size))
        if told != self.next - self._start or self.next != self._end:
            raise self._wrong(f"a trailer for {told} records after {self.next - self._start}")
        if self._read(1):
            raise self._wrong("data after the trailer")

    def _block(self, first: int, count: int, size: int) -> Block:
        if first != self.next or self.next == self._end:
            due = self.next if self.next < self._end else "the trailer"
            raise self._wrong(f"offset {first} instead of {due}")
        if not 0 < count <= self._end - first:
            raise self._wrong(f"a block of {count} records with {self._end - first} remaining")
        if count * LENGTH_BYTES + size > MAX_BLOCK:
            raise self._wrong(f"a block of {size} bytes")
        content = self._exactly(count * LENGTH_BYTES + size)
        lengths = array("I", content[: count * LENGTH_BYTES])
        if sys.byteorder == "little":
            lengths.byteswap()
        block = Block(first, lengths, content)
        if block.begin != count * LENGTH_BYTES:
            raise self._wrong(f"a block of {size} bytes with {sum(lengths)} in its records")
        self.next = first + count
        return block

    def _exactly(self, size: int) -> bytes:
        data = self._read(size)
        if len(data) != size:
            raise EOFError
        return data

    def _wrong(self, found: str) -> IncompleteRead:
        return IncompleteRead(
            f"{self._what}: the client requested the records {self._start} to {self._end}, but the server sent {found}",
            remedy="No wrong row was returned; check the server's log, and that broker names a Holdfast server",
        )
