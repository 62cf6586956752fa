"""Reads what a space contains, without its records: partitions, held numbers and saved states."""

from __future__ import annotations

from sqlalchemy import Connection, func, select

from holdfast.core.records import Snapshot
from holdfast.store.content import UNKNOWN_RECORD_BYTES, Content, Partition
from holdfast.store.plan import Where
from holdfast.store.records import decode_state
from holdfast.store.sql import schema as schema
from holdfast.store.sql.fence import WENT_BACK
from holdfast.store.sql.schema import unsigned


def find_content(connection: Connection, space: int, serial: int) -> tuple[dict[Where | str, int], Content[int]]:
    """Return the part of each partition and of each Sequence's held messages, and the content.

    Args:
        connection: Sees one snapshot of the database.
        serial: The number of its last batch.
    """
    parts: dict[Where | str, int] = {}
    content: Content[int] = Content(parts.__getitem__)
    content.serial = serial
    table, records = schema.partitions, schema.records
    last = select(func.max(records.c.position)).where(records.c.part == table.c.part).scalar_subquery()
    columns = (table.c.part, table.c.queue, table.c.number, table.c.first_offset, table.c.swept, last)
    for part, queue, number, first, swept, position in connection.execute(
        select(*columns).where(table.c.space == space)
    ):
        where = (bytes(queue).decode(), unsigned(number))
        parts[where] = part
        end = first if position is None else max(first, position + 1)
        content.put(where, Partition(part, first, end, swept))
        content.garbage += (first - swept) * UNKNOWN_RECORD_BYTES
    for part, sequence in connection.execute(
        select(schema.holds.c.part, schema.holds.c.sequence).where(schema.holds.c.space == space)
    ):
        parts[bytes(sequence).decode()] = part
    held = select(schema.holds.c.sequence, records.c.position).join_from(
        schema.holds, records, schema.holds.c.part == records.c.part
    )
    for sequence, number in connection.execute(held.where(schema.holds.c.space == space)):
        content.held.setdefault(bytes(sequence).decode(), set()).add(unsigned(number))
    _find_references(connection, space, parts, content)
    cursors, homes = schema.cursors, schema.homes
    for queue, number, name in connection.execute(
        select(cursors.c.queue, cursors.c.number, cursors.c.name).where(cursors.c.space == space)
    ):
        content.cursors.setdefault((bytes(queue).decode(), unsigned(number)), set()).add(bytes(name).decode())
    for name, queue, number in connection.execute(
        select(homes.c.name, homes.c.queue, homes.c.number).where(homes.c.space == space)
    ):
        content.homes[bytes(name).decode()] = (bytes(queue).decode(), unsigned(number))
    return parts, content


def _find_references(connection: Connection, space: int, parts: dict[Where | str, int], content: Content[int]) -> None:
    table = schema.references
    first = space << schema.SPACE_SHIFT
    wheres = {part: where for where, part in parts.items()}
    for part, position, name in connection.execute(
        select(table.c.part, table.c.position, table.c.name).where(
            table.c.part >= first, table.c.part < first + (1 << schema.SPACE_SHIFT)
        )
    ):
        if (where := wheres.get(part)) is not None:
            content.refer((where, unsigned(position)), bytes(name))


def snapshot_of(connection: Connection, space: int, content: Content[int]) -> Snapshot:
    snapshot = Snapshot(
        bounds={where: (one.first, one.end) for where, one in content.partitions.items()},
        held={sequence: sorted(numbers) for sequence, numbers in content.held.items()},
        homes=dict(content.homes),
    )
    table = schema.queues
    for name, state in connection.execute(select(table.c.name, table.c.state).where(table.c.space == space)):
        snapshot.queues[bytes(name).decode()] = decode_state(bytes(state))
    snapshot.queues.pop(WENT_BACK, None)
    table = schema.sequences
    for name, state in connection.execute(select(table.c.name, table.c.state).where(table.c.space == space)):
        snapshot.sequences[bytes(name).decode()] = decode_state(bytes(state))
    table = schema.cursors
    for queue, number, name, state in connection.execute(
        select(table.c.queue, table.c.number, table.c.name, table.c.state).where(table.c.space == space)
    ):
        key = (bytes(queue).decode(), unsigned(number), bytes(name).decode())
        snapshot.cursors[key] = decode_state(bytes(state))
    return snapshot
