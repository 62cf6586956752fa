"""Which batches were durable for certain, judged from a damaged write-ahead log. Knows the log's bytes, no batch.

A batch is written only after the one before it was synced. So every batch carries a stamp: its serial, and the serial
up to which everything was durable when it was written. A log may be damaged at its end because the machine went down
before a sync was through; then nobody was told that those batches are stored, and dropping them is right. It may also
be damaged in what was stored already, and then stamps behind the damage say so: their bytes are found without reading
the log by its own rules, which end at the damage.
"""

from __future__ import annotations

import mmap
import re
import struct
from pathlib import Path

STAMP = b"!holdfast-durable"
"""The key of the newest stamp in the store."""

_pair = struct.Struct(">QQ")
_in_log = re.compile(re.escape(STAMP + bytes((_pair.size,))) + b"(.{%d})" % _pair.size, re.DOTALL)


def encode_stamp(serial: int, durable: int) -> bytes:
    """The stamp of batch ``serial``, written when every batch up to ``durable`` was durable."""
    return _pair.pack(serial, durable)


def stamped_serial(stamp: bytes | None) -> int:
    """The serial in a store's newest stamp, 0 if it has none."""
    return int(_pair.unpack(stamp)[0]) if stamp else 0


def proven_durable(directory: Path) -> int:
    """The highest serial that the logs in ``directory`` prove to have been durable, 0 if they prove none.

    It may be too low by a batch or two (a stamp that lies across two of the log's blocks is not found), and too high
    only if a stamp itself is damaged, and then the store is refused rather than cut.
    """
    highest = 0
    for path in directory.glob("*.log"):
        if not path.stat().st_size:
            continue  # nothing can be mapped of an empty file
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as log:
            for found in _in_log.finditer(log):
                highest = max(highest, _pair.unpack(found[1])[1])
    return highest
