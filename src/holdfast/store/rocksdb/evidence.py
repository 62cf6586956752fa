"""Proof of which batches were durable, read from a damaged write-ahead log, without decoding the batches.

The store writes a batch only after the previous one is synced. So every batch carries a stamp: its serial, and the
serial up to which everything was durable when it was written. A log may be damaged at its end because the machine
failed before a sync completed. Then no batch there was acknowledged, and it is right to drop them. If the damage is in
batches that were durable, stamps after the damage show it (``log_format``).

A cleanly truncated log has nothing after the cut. So occasionally, and when the store is closed, the store writes a
note next to the engine with the serial up to which everything is durable.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

from holdfast.exceptions import StoreDamaged
from holdfast.store import directory
from holdfast.store.rocksdb import log_format

STAMP = b"!holdfast-durable"
"""The key of the newest stamp in the store."""

_pair = struct.Struct(">QQ")
BATCH_HEADER = 12  # sequence number and count of changes
_MARK = bytes((1, len(STAMP))) + STAMP
"""The start of each batch in a log, after its header: its first change, which puts the stamp."""
_STAMP_AT = BATCH_HEADER + len(_MARK) + 1


def encode_stamp(serial: int, durable: int) -> bytes:
    """Return the stamp of batch ``serial``, written when every batch up to ``durable`` was durable."""
    return _pair.pack(serial, durable)


def stamp(data: bytes | None) -> tuple[int, int]:
    """Return the arguments that :func:`encode_stamp` received; zeros if there is no stamp."""
    serial, durable = _pair.unpack(data) if data else (0, 0)
    return serial, durable


def stamped_serial(data: bytes | None) -> int:
    """Return the serial in a store's newest stamp, 0 without one."""
    return stamp(data)[0]


def logs(engine: Path) -> list[Path]:
    """Return the logs in the engine's directory, oldest first."""
    return sorted(engine.glob("*.log"), key=lambda log: (len(log.name), log.name))


def proven_durable(engine: Path) -> int:
    """Return the highest serial that the logs in ``engine`` prove to have been durable, 0 without proof.

    Only a whole record with a correct checksum is proof. In the raw bytes of a log, a block's header may split a stamp,
    or a torn write may have left it.
    """
    return max((_last_stamp(path)[1] for path in logs(engine)), default=0)


def log_serials(path: Path) -> tuple[int, int]:
    """Return the serials of the first and the last whole batch in a log, damaged or not; zeros without a batch."""
    with log_format.mapped(path) as data:
        first = next((found[0] for batch in batches(data) if (found := stamp_of(batch))), 0)
    return first, _last_stamp(path)[0]


def batches(data: log_format.Bytes) -> Iterator[bytes]:
    """Yield the whole batches in a log, damaged or not, as RocksDB wrote them."""
    return log_format.records(data, mark=_MARK, mark_at=BATCH_HEADER)


def usable_logs(engine: Path, known: int) -> Iterator[tuple[Path, int]]:
    """Yield the logs that continue from batch ``known`` without a gap, and how many bytes of each precede any damage.

    RocksDB itself would read a log after a gap, and so silently lose the batches in the gap.
    """
    for log in logs(engine):
        with log_format.mapped(log) as data:
            length = log_format.whole_length(data)
            stamps = [found for batch in log_format.records(data[:length]) if (found := stamp_of(batch))]
        # After a gap, the later batches assume what is missing.
        if stamps and stamps[0][0] > known + 1:
            return
        if stamps:
            known = max(known, stamps[-1][0])
        yield log, length


def stamp_of(batch: bytes) -> tuple[int, int] | None:
    """Return the stamp of a batch from a log; None for the engine's own writes."""
    if not batch.startswith(_MARK, BATCH_HEADER) or batch[_STAMP_AT - 1 : _STAMP_AT] != bytes((_pair.size,)):
        return None
    return stamp(batch[_STAMP_AT : _STAMP_AT + _pair.size])


def _last_stamp(path: Path) -> tuple[int, int]:
    """Return the last stamp of a log, which is the highest, because stamps grow."""
    with log_format.mapped(path) as data:
        newest = log_format.last_records(data, mark=_MARK, mark_at=BATCH_HEADER)
        return next((found for batch in newest if (found := stamp_of(batch))), (0, 0))


def note(store: Path, serial: int) -> None:
    """Write a note that every batch up to ``serial`` is durable.

    Raises:
        OSError: It cannot be written; the older note stays.
    """
    draft = store / f"{directory.NOTE}.new"
    with draft.open("w", encoding="ascii") as file:
        file.write(f"{serial} {zlib.crc32(str(serial).encode()):08x}\n")
        # The bytes before the name: a note that was cut short would look like damage.
        file.flush()
        os.fsync(file.fileno())
    draft.replace(store / directory.NOTE)


def forget_note(store: Path) -> None:
    """Delete the note, before a store is deliberately truncated."""
    (store / directory.NOTE).unlink(missing_ok=True)


def noted_serial(store: Path) -> int:
    """Return the serial in the store's note, 0 without a note.

    Raises:
        StoreDamaged: The note was changed or truncated.
    """
    try:
        text = (store / directory.NOTE).read_bytes()
    except FileNotFoundError:
        return 0
    serial, _, checksum = text.strip().partition(b" ")
    if not serial.isdigit() or checksum != b"%08x" % zlib.crc32(serial):
        raise StoreDamaged(
            f"The store at {store} is damaged: its file {directory.NOTE!r} was changed or cut short.",
            remedy=f"Run: holdfast store check {store}; if it reports nothing else, remove that file.",
        )
    return int(serial)
