"""A spool for contents too large for memory, whose disk a test can slow down or fill."""

from __future__ import annotations

import threading

from holdfast.http.content_spool import SPOOL_FROM

PIECE_BYTES = 100_000


class Pieces:
    """The spool: it writes only while ``gate`` is open, and has room for ``most`` bytes."""

    gate = threading.Event()
    gate.set()
    most = 1 << 40
    begins_at = SPOOL_FROM
    drops_up_to = 0
    is_dropped = False

    def __init__(self) -> None:
        self.content = bytearray()
        self.waiting: list[bytes] = []
        self.most_waiting = 0
        self.is_full = False

    def add(self, data: bytes) -> None:
        self.waiting.append(data)
        self.most_waiting = max(self.most_waiting, sum(map(len, self.waiting)))

    def drop(self) -> None:
        self.is_dropped = True

    @property
    def wants_flush(self) -> bool:
        return sum(map(len, self.waiting)) >= 2 * PIECE_BYTES

    def flush(self) -> None:
        assert self.gate.wait(60)
        data, self.waiting = b"".join(self.waiting), []
        self.content += data
        self.is_full = len(self.content) > self.most
