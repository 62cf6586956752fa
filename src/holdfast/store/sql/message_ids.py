"""MessageIDs that applications chose, remembered with digests of their messages: those of transactions, and those that
the source itself sent. Thus a repeated transaction does not store its message again.

The digests outlive the messages, which the store deletes once they are acknowledged. Knows no protocol rule.
"""

from __future__ import annotations

from hashlib import sha256

from sqlalchemy import Connection, delete, select

from holdfast.core.records import Record, own_bytes
from holdfast.store.sql import schema as schema

REMEMBERED = 10_000
"""MessageIDs that a space remembers at least: the newest ones."""


def row_of(space: int, record: Record) -> tuple[int, bytes, bytes, int]:
    """Return the row of ``holdfast_message_ids`` of a message with a MessageID."""
    digest = sha256(b"%d" % record.wants_reply)
    for part in (record.action.encode(), record.headers, record.body, own_bytes(record.attachments)):
        # With its length, or bytes could move from one part to the next unnoticed.
        digest.update(len(part).to_bytes(8))
        digest.update(part)
    return space, schema.key_of(record.message_id or ""), digest.digest(), int(record.received_at * 1e6)


def forget_old(connection: Connection, space: int) -> None:
    """Forget all but the newest MessageIDs of a space."""
    table = schema.message_ids
    newest = select(table.c.stored_at).where(table.c.space == space).order_by(table.c.stored_at.desc())
    last = connection.scalar(newest.offset(REMEMBERED - 1).limit(1))
    if last is not None:
        connection.execute(delete(table).where(table.c.space == space, table.c.stored_at < last))
