"""The format of RocksDB's logs and MANIFESTs, to find the whole records in a damaged file.

A file consists of blocks of 32 KB. A record is in one piece, or is split at the end of a block. Each piece has a header
with a separate checksum, and no header crosses the end of a block
(https://github.com/facebook/rocksdb/wiki/Write-Ahead-Log-File-Format). RocksDB stops at the first damage. This module
reads further, to find the records after it.

The checksum is CRC-32C, which the standard library lacks. A start verifies only a few records of a log, so the thirty
lines here are fast enough, and save every installation one more compiled dependency.
"""

from __future__ import annotations

import contextlib
import functools
import mmap
import os
import struct
import sys
from array import array
from collections.abc import Iterator
from pathlib import Path

BLOCK = 32 << 10

Bytes = bytes | mmap.mmap

_header = struct.Struct("<IHB")  # checksum, length, kind
_KIND_AT = 6
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_RECYCLABLE = range(5, 9)  # the same four; the number of the log follows the header
_LOG_NUMBER = 4
_MASK_DELTA = 0xA282EAD8
_POLYNOMIAL = 0x82F63B78


@contextlib.contextmanager
def mapped(path: Path) -> Iterator[Bytes]:
    with path.open("rb") as file:
        if not os.fstat(file.fileno()).st_size:
            yield b""  # an empty file cannot be mapped
            return
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            yield data


def records(
    data: Bytes, start: int = 0, stop: int | None = None, *, mark: bytes = b"", mark_at: int = 0
) -> Iterator[bytes]:
    """Yield the whole records that begin from ``start`` up to ``stop``, and skip damaged ones.

    Args:
        start: Where to begin; the beginning of a block.
        stop: No record that begins here or later is read; None: the end of the file.
        mark: Bytes that records contain. With them, records are found in the same block as a damage before them.
    """
    stop = len(data) if stop is None else stop
    parts: list[bytes] = []
    begin = start
    for at, kind, piece, _ in _pieces(data, start, mark, mark_at):
        if not parts and at >= stop:
            return
        if kind in (_FULL, _FIRST):
            if at >= stop:
                return
            begin, parts = at, [piece]
        elif kind in (_MIDDLE, _LAST):
            if parts:
                parts.append(piece)
        else:
            parts = []
        if kind in (_FULL, _LAST) and parts:
            # A record that begins before the stop is read to its end, also beyond it.
            if begin < stop:
                yield b"".join(parts)
            parts = []


def last_records(data: Bytes, *, mark: bytes, mark_at: int) -> Iterator[bytes]:
    """Yield the whole records from the last to the first. Arguments as for :func:`records`."""
    for start in reversed(range(0, len(data), BLOCK)):
        yield from reversed(list(records(data, start, start + BLOCK, mark=mark, mark_at=mark_at)))


def is_whole(data: Bytes) -> bool:
    """Whether every byte belongs to a whole record or to the padding of a block."""
    return not any(data[whole_length(data) :])


def whole_length(data: Bytes) -> int:
    """Return the end of the last whole record before the first damage."""
    is_split, end = False, 0
    for _, kind, _, following in _pieces(data, 0, b"", 0):
        if kind == _DAMAGE or (kind in (_MIDDLE, _LAST)) is not is_split:
            break
        is_split = kind in (_FIRST, _MIDDLE)
        if not is_split:
            end = following
    return end


_DAMAGE = 0


def _pieces(data: Bytes, at: int, mark: bytes, mark_at: int) -> Iterator[tuple[int, int, bytes, int]]:
    """Yield each piece's start, kind, bytes and end; kind ``_DAMAGE`` for an unreadable part."""
    while at < len(data):
        end = min(at - at % BLOCK + BLOCK, len(data))
        left = end - at
        # RocksDB fills the rest of a block with zeros where no header fits.
        if left < _header.size + _LOG_NUMBER and not any(data[at:end]):
            at = end  # too short for a header
            continue
        if left < _header.size:
            yield at, _DAMAGE, b"", at
            at = end
            continue
        found = _piece(data, at, end)
        if found is not None:
            kind, piece, following = found
            if kind:
                yield at, kind, piece, following
            at = following
            continue
        yield at, _DAMAGE, b"", at
        at = _next_header(data, at, end, mark, mark_at)


def _piece(data: Bytes, at: int, end: int) -> tuple[int, bytes, int] | None:
    """Return the kind, bytes and end of the piece at ``at``; kind 0 for padding and other ignored pieces; None if
    damaged."""
    checksum, length, kind = _header.unpack_from(data, at)
    begin = at + _header.size
    if kind in _RECYCLABLE:
        begin += _LOG_NUMBER
    following = begin + length
    if not kind or following > end or _masked(crc32c(data[at + _KIND_AT : following])) != checksum:
        return None
    if kind in _RECYCLABLE:
        kind -= _RECYCLABLE.start - _FULL
    return (kind if kind <= _LAST else 0), data[begin:following], following


def _next_header(data: Bytes, at: int, end: int, mark: bytes, mark_at: int) -> int:
    """Return where to continue in a damaged block: after the damage at ``at``, if its length is right, or before a
    mark."""
    _, length, kind = _header.unpack_from(data, at)
    behind: int = at + _header.size + length + (_LOG_NUMBER if kind in _RECYCLABLE else 0)
    # Trust the length only if an intact piece follows: a damaged length would skip intact records.
    if kind and behind + _header.size <= end and _piece(data, behind, end) is not None:
        return behind
    if mark:
        # Each batch begins with the mark, so the next intact one in the block can be found by it.
        before = _header.size + mark_at
        if (found := data.find(mark, at + 1 + before, end)) >= 0:
            return found - before
    return end


def _masked(checksum: int) -> int:
    return (((checksum >> 15) | (checksum << 17)) + _MASK_DELTA) & 0xFFFFFFFF


def crc32c(data: bytes) -> int:
    """Return the CRC-32C (Castagnoli) of ``data``, computed two bytes at a time."""
    table = _table()
    crc: int = 0xFFFFFFFF
    even = len(data) & ~1
    words = array("H", data[:even])
    if sys.byteorder == "big":
        words.byteswap()
    # Two bytes at a time halve the steps of a Python loop, for a table of 65,536 entries.
    for word in words:
        crc = table[(crc ^ word) & 0xFFFF] ^ (crc >> 16)
    if even < len(data):
        crc = _step((crc ^ data[even]) & 0xFF) ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


@functools.cache
def _step(value: int) -> int:
    for _ in range(8):
        value = (value >> 1) ^ _POLYNOMIAL if value & 1 else value >> 1
    return value


@functools.cache
def _table() -> list[int]:
    single = [_step(value) for value in range(256)]
    table = []
    for word in range(1 << 16):
        low = single[word & 0xFF] ^ (word >> 8)
        table.append(single[low & 0xFF] ^ (low >> 8))
    return table
