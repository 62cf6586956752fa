"""MessageIDs that applications chose for messages of transactions, remembered with digests of these messages. Thus a
repeated transaction does not store its message again.

The digests outlive the messages, which the store deletes once they are acknowledged. Knows no protocol rule. Only
transactions of applications add rows: a batch of the source that did would wait for them.
"""

from __future__ import annotations

from hashlib import sha256

from sqlalchemy import Connection, Engine, delete, select

from holdfast.core.records import Record, own_bytes
from holdfast.store.sql import schema as schema
from holdfast.store.sql.dialects import SCHEMA_LOCK, Dialect

REMEMBERED = 10_000
"""MessageIDs that a space remembers at least: the newest ones."""


def row_of(space: int, record: Record) -> tuple[int, bytes, bytes, int]:
    """Return the row of ``holdfast_message_ids`` of a message with a MessageID."""
    digest = sha256(b"%d" % record.wants_reply)
    content = (record.headers, record.body, own_bytes(record.attachments))
    for part in (record.sequence.encode(), record.action.encode(), *content):
        # With its length, or bytes could move from one part to the next unnoticed.
        digest.update(len(part).to_bytes(8))
        digest.update(part)
    return space, schema.key_of(record.message_id or ""), digest.digest(), int(record.received_at * 1e6)


def keep(engine: Engine, dialect: Dialect, space: int) -> None:
    """Create the table if it is missing, and forget all but the newest MessageIDs of a space.

    It opens its own connection, and waits for no other transaction longer than a second.

    Raises:
        SQLAlchemyError: The user lacks a right, or a transaction of an application locks a row.
    """
    with engine.connect() as connection:
        # Outside the pool: its timeouts are for nothing else.
        connection.detach()
        dialect.limit_lock_waits(connection)
        if not schema.has_message_ids(connection) and dialect.lock(connection, SCHEMA_LOCK, 1.0):
            schema.create_message_ids(connection)
            connection.commit()
        _forget_old(connection, space)
        connection.commit()


def _forget_old(connection: Connection, space: int) -> None:
    table = schema.message_ids
    newest = select(table.c.stored_at).where(table.c.space == space).order_by(table.c.stored_at.desc())
    last = connection.scalar(newest.offset(REMEMBERED - 1).limit(1))
    if last is not None:
        connection.execute(delete(table).where(table.c.space == space, table.c.stored_at < last))
