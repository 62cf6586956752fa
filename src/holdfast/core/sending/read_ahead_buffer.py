"""Here: those records of an outbox that are in memory. Never many, in number and in bytes."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.core.records import Record

MOST_BYTES = 4 << 20
"""Of bodies that an outbox has in memory before it reads no further ahead; one read more, at most."""


class Here(dict[int, Record]):
    """Offset -> record, and how many bytes their bodies have. Change it by its own verbs only."""

    __slots__ = ("bytes",)

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    @property
    def is_full(self) -> bool:
        """Whether there are bytes enough."""
        return self.bytes >= MOST_BYTES

    def put(self, offset: int, record: Record) -> None:
        """A record is in memory from now on."""
        if offset not in self:
            self[offset] = record
            self.bytes += len(record.body)

    def drop(self, offset: int) -> None:
        """A record needs not be in memory."""
        record = self.pop(offset, None)
        if record is not None:
            self.bytes -= len(record.body)

    def keep(self, offsets: Iterable[int], most: int) -> None:
        """Drop all but the first ``most`` of those offsets, and of these all for which there are not the bytes."""
        kept: dict[int, Record] = {}
        room = MOST_BYTES
        for offset in offsets:
            record = self[offset]
            room -= len(record.body)
            if len(kept) >= most or room < 0:
                break
            kept[offset] = record
        self.clear()
        self.update(kept)
        self.bytes = sum(len(record.body) for record in kept.values())
