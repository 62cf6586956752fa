"""Outbox records held in memory, bounded in number and in bytes, for each outbox and for all of them."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.core.records import Record

MOST_BYTES = 4 << 20
"""Of an outbox's records in memory; above it the outbox reads no further ahead. One more read may follow."""

MOST_OF_ALL = 32 << 20
"""Of the records of all outboxes in memory, and one record more. Beyond it, the outbox that read longest ago drops its
records, and reads them again when it needs them."""

RECORD_BYTES = 1_000
"""Approximate bytes of a record besides its body and headers."""


def size_of(record: Record) -> int:
    """Return the bytes of memory that a record takes."""
    return record.size + RECORD_BYTES


class Buffers:
    """The records of all outboxes in memory, which share one bound."""

    __slots__ = ("_by_age", "bytes")

    def __init__(self) -> None:
        self.bytes = 0
        self._by_age: dict[str, Here] = {}
        """Key of an outbox -> its records, the outbox that read longest ago first."""

    def has_records(self, here: Here) -> None:
        """Note that an outbox has records in memory again."""
        self._by_age.setdefault(here.key, here)

    def has_read(self, here: Here) -> None:
        """Let other outboxes drop their records, after one has read and together they exceed the bound."""
        # Not in the order while others make room, so it never drops what it has just read.
        self._by_age.pop(here.key, None)
        while self.bytes > MOST_OF_ALL and self._by_age:
            next(iter(self._by_age.values())).release()
        self._by_age[here.key] = here

    def forget(self, here: Here) -> None:
        """Note that an outbox has no records in memory."""
        self._by_age.pop(here.key, None)


class Here(dict[int, Record]):
    """Offset -> record of one outbox. Change it only through its methods, which count the bytes."""

    __slots__ = ("_buffers", "bytes", "key")

    def __init__(self, key: str, buffers: Buffers) -> None:
        super().__init__()
        self.key = key
        self.bytes = 0
        self._buffers = buffers

    @property
    def is_full(self) -> bool:
        """Whether the outbox reads no further ahead."""
        return self.bytes >= MOST_BYTES or self._buffers.bytes >= MOST_OF_ALL

    def put(self, offset: int, record: Record) -> None:
        if offset not in self:
            if not self:
                self._buffers.has_records(self)
            self[offset] = record
            self._count(size_of(record))

    def drop(self, offset: int) -> None:
        record = self.pop(offset, None)
        if record is not None:
            self._count(-size_of(record))

    def _count(self, size: int) -> None:
        self.bytes += size
        self._buffers.bytes += size

    def keep(self, offsets: Iterable[int], most: int) -> None:
        """Keep only the first ``most`` of the given offsets, and of these only as many as the bytes permit."""
        kept: dict[int, Record] = {}
        room = MOST_BYTES
        for offset in offsets:
            record = self[offset]
            room -= size_of(record)
            if len(kept) >= most or room < 0:
                break
            kept[offset] = record
        self.clear()
        self.update(kept)
        self._count(sum(size_of(record) for record in kept.values()) - self.bytes)

    def has_read(self) -> None:
        """Let other outboxes make room for the records that this one has read."""
        self._buffers.has_read(self)

    def release(self) -> None:
        """Drop every record. The outbox reads it again when it needs it."""
        self.clear()
        self._count(-self.bytes)
        self._buffers.forget(self)
