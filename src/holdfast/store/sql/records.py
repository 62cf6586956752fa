"""Reads the stored records: of partitions, held ones, and those that applications enqueued."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from sqlalchemy import Connection, Engine, func, select

from holdfast.core.records import Record
from holdfast.store.content import Partition
from holdfast.store.plan import Where
from holdfast.store.records import decode_record
from holdfast.store.sql import schema as schema
from holdfast.store.sql.changes import PIECE_BYTES, EnqueuedRecord
from holdfast.store.sql.schema import signed

_SIZES_AT_ONCE = 2000
_RECORD = [one.name for one in fields(Record)]


class StoredRecords:
    """The records of one space, read on connections of their own.

    Args:
        engine: Its connections are only for reading, each statement by itself.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def dense(self, one: Partition[int], start: int, end: int, max_bytes: int) -> list[tuple[int, bytes]] | None:
        """Return the records of a partition in the range, up to ``max_bytes``; None if one of them is missing."""
        start, end = max(start, one.first), min(end, one.end)
        found: list[tuple[int, bytes]] = []
        size = 0
        if start >= end:
            return found
        with self._engine.connect() as connection:
            while start < end:
                until = _until(connection, one.records, start, end, max_bytes - size)
                some = _records(connection, one.records, start, until)
                if [offset for offset, _ in some] != list(range(start, until)):
                    return None
                found += some
                size += sum(len(data) for _, data in some)
                start = until
                if size >= max_bytes:
                    break
        return found

    def held(self, parts: dict[Where | str, int], held: list[tuple[str, int]]) -> list[bytes | None]:
        """Return held messages, encoded; None for each one that is missing.

        Args:
            parts: Identifier of a Sequence -> the part of its held messages.
        """
        by_part: dict[int, list[int]] = {}
        for sequence, number in held:
            by_part.setdefault(parts[sequence], []).append(signed(number))
        found: dict[tuple[int, int], bytes] = {}
        with self._engine.connect() as connection:
            for part, positions in by_part.items():
                table = schema.records
                rows = connection.execute(
                    select(table.c.position, table.c.size, table.c.data).where(
                        table.c.part == part, table.c.position.in_(positions)
                    )
                )
                for position, size, data in rows.all():
                    found[part, position] = _whole(connection, part, position, size, data)
        return [found.get((parts[sequence], signed(number))) for sequence, number in held]

    def enqueued(self, space: int, limit: int, max_bytes: int) -> list[EnqueuedRecord]:
        """Return records that other transactions have enqueued for a source; the oldest first."""
        table = schema.outgoing
        sizes = select(table.c.number, func.octet_length(table.c.data)).where(table.c.space == space)
        with self._engine.connect() as connection:
            numbers: list[int] = []
            for number, size in connection.execute(sizes.order_by(table.c.number).limit(limit)).all():
                numbers.append(number)
                max_bytes -= size
                if max_bytes <= 0:
                    break
            if not numbers:
                return []
            # By number, because a transaction that ends meanwhile may have a lower number.
            asked = select(table.c.number, table.c.data).where(table.c.number.in_(numbers)).order_by(table.c.number)
            rows = connection.execute(asked).all()
        return [EnqueuedRecord(**_fields(decode_record(bytes(data))), enqueued=number) for number, data in rows]

    def count_enqueued(self, space: int) -> int:
        """Return how many records other transactions have enqueued for a source."""
        table = schema.outgoing
        with self._engine.connect() as connection:
            return connection.scalar(select(func.count()).where(table.c.space == space)) or 0

    def close(self) -> None:
        """Close its idle connections. A later read opens another one."""
        self._engine.dispose()


def _fields(record: Record) -> dict[str, Any]:
    return {name: getattr(record, name) for name in _RECORD}


def _until(connection: Connection, part: int, start: int, end: int, max_bytes: int) -> int:
    """Return the position after the record that reaches this many bytes."""
    if end == start + 1:
        return end
    table = schema.records
    sizes = connection.scalars(
        select(table.c.size)
        .where(table.c.part == part, table.c.position >= start, table.c.position < end)
        .order_by(table.c.position)
        .limit(_SIZES_AT_ONCE)
    )
    until = start
    for size in sizes:
        until += 1
        max_bytes -= size
        if max_bytes <= 0:
            break
    return max(until, start + 1)


def _records(connection: Connection, part: int, start: int, end: int) -> list[tuple[int, bytes]]:
    table = schema.records
    rows = connection.execute(
        select(table.c.position, table.c.size, table.c.data)
        .where(table.c.part == part, table.c.position >= start, table.c.position < end)
        .order_by(table.c.position)
    ).all()
    return [(position, _whole(connection, part, position, size, data)) for position, size, data in rows]


def _whole(connection: Connection, part: int, position: int, size: int, data: Any) -> bytes:
    """Return a record with all its pieces; empty if one of them is missing."""
    if size <= PIECE_BYTES:
        return bytes(data)
    table = schema.pieces
    count = (size - 1) // PIECE_BYTES
    rows = connection.scalars(
        select(table.c.data)
        .where(table.c.part == part, table.c.position == position, table.c.piece <= count)
        .order_by(table.c.piece)
    )
    return b"".join([bytes(data), *map(bytes, rows)])
