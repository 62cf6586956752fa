"""Which batches were durable for certain, judged from a damaged write-ahead log. Knows the log's bytes, no batch.

A batch is written only after the one before it was synced. So every batch carries a stamp: its serial, and the serial
up to which everything was durable when it was written. A log may be damaged at its end because the machine went down
before a sync was through; then nobody was told that those batches are stored, and dropping them is right. It may also
be damaged in what was stored already, and then stamps behind the damage say so: their bytes are found without reading
the log by its own rules, which end at the damage.

A log that is cut off cleanly has nothing behind the cut. So now and then, and when the store is closed, a note beside
the engine says up to which serial everything is durable.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import re
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

from holdfast.exceptions import StoreDamaged
from holdfast.store import directory

STAMP = b"!holdfast-durable"
"""The key of the newest stamp in the store."""

_pair = struct.Struct(">QQ")
_fragment = struct.Struct("<IHB")  # checksum, length, kind: what each piece of a record in a log begins with
_BLOCK = 32 << 10
_BEGINNINGS = (1, 2)  # a whole record, or its first piece
_STAMPED = 12 + 2 + len(STAMP) + 1 + _pair.size  # of a batch: its header, then its first change, the stamp
_in_log = re.compile(re.escape(STAMP + bytes((_pair.size,))) + b"(.{%d})" % _pair.size, re.DOTALL)


def encode_stamp(serial: int, durable: int) -> bytes:
    """The stamp of batch ``serial``, written when every batch up to ``durable`` was durable."""
    return _pair.pack(serial, durable)


def stamp(data: bytes | None) -> tuple[int, int]:
    """What :func:`encode_stamp` was given; noughts if there is no stamp."""
    serial, durable = _pair.unpack(data) if data else (0, 0)
    return serial, durable


def stamped_serial(data: bytes | None) -> int:
    """The serial in a store's newest stamp, 0 if it has none."""
    return stamp(data)[0]


def logs(engine: Path) -> list[Path]:
    """The logs in the engine's directory, oldest first."""
    return sorted(engine.glob("*.log"), key=lambda log: (len(log.name), log.name))


def proven_durable(engine: Path) -> int:
    """The highest serial that the logs in ``engine`` prove to have been durable, 0 if they prove none.

    It may be too low by a batch or two (a stamp that lies across two of the log's blocks is not found), and too high
    only if a stamp itself is damaged, and then the store is refused rather than cut.
    """
    highest = 0
    for path in logs(engine):
        with _mapped(path) as data:
            for found in _in_log.finditer(data):
                highest = max(highest, _pair.unpack(found[1])[1])
    return highest


def log_serials(path: Path) -> tuple[int, int]:
    """The serials of the first and of the last batch in one log, damaged or not; noughts if there are none."""
    with _mapped(path) as data:
        blocks = range(0, len(data), _BLOCK)
        first = next((serials[0] for start in blocks if (serials := _serials(data, start))), 0)
        last = next((serials[-1] for start in reversed(blocks) if (serials := _serials(data, start))), 0)
    return first, last


def _serials(data: bytes | mmap.mmap, start: int) -> list[int]:
    """The serials of the batches that begin in one block of a log: RocksDB's format, whose records may be split over
    blocks, but never their headers (https://github.com/facebook/rocksdb/wiki/Write-Ahead-Log-File-Format)."""
    found = []
    at, end = start, min(start + _BLOCK, len(data))
    while at + _fragment.size <= end:
        _, length, kind = _fragment.unpack_from(data, at)
        if not kind:
            break
        at += _fragment.size
        if kind in _BEGINNINGS:
            head = data[at : at + min(length, _STAMPED)]
            if len(head) < _STAMPED:
                rest = start + _BLOCK + _fragment.size
                head += data[rest : rest + _STAMPED - len(head)]
            if stamped := _in_log.search(head):
                found.append(int(_pair.unpack(stamped[1])[0]))
        at += length
    return found


@contextlib.contextmanager
def _mapped(path: Path) -> Iterator[bytes | mmap.mmap]:
    with path.open("rb") as file:
        if not os.fstat(file.fileno()).st_size:
            yield b""  # nothing can be mapped of an empty file
            return
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            yield data


def note(store: Path, serial: int) -> None:
    """Note that every batch up to ``serial`` is durable.

    Raises:
        OSError: It cannot be written; the older note stays.
    """
    draft = store / f"{directory.NOTE}.new"
    with draft.open("w", encoding="ascii") as file:
        file.write(f"{serial} {zlib.crc32(str(serial).encode()):08x}\n")
        file.flush()
        os.fsync(file.fileno())
    draft.replace(store / directory.NOTE)


def forget_note(store: Path) -> None:
    """Take the note away, before a store is cut back on purpose."""
    (store / directory.NOTE).unlink(missing_ok=True)


def noted_serial(store: Path) -> int:
    """The serial in the store's note, 0 if it has none.

    Raises:
        StoreDamaged: The note is not as it was written.
    """
    try:
        text = (store / directory.NOTE).read_bytes()
    except FileNotFoundError:
        return 0
    serial, _, checksum = text.strip().partition(b" ")
    if not serial.isdigit() or checksum != b"%08x" % zlib.crc32(serial):
        raise StoreDamaged(
            f"The store at {store} is damaged: its file {directory.NOTE!r} is not as it was written.",
            remedy=f"Run: holdfast store check {store}; if nothing else is wrong, remove that file.",
        )
    return int(serial)
