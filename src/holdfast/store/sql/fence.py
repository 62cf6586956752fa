"""Detection of a space that changed unexpectedly: another process took it over, or the database went back to an older
copy.

A process that finds an older copy writes a mark, so that the next start requires ``--restored``.
"""

from __future__ import annotations

import time

from sqlalchemy import Connection, delete, insert, select

from holdfast.exceptions import StoreFailed, StoreTakenOver
from holdfast.store.records import decode_state, encode_state
from holdfast.store.sql import schema as schema

WENT_BACK = "own/went-back"
"""The mark's name, stored among the names of queues."""


def refusal(connection: Connection, space: int, epoch: int, serial: int, place: str) -> StoreFailed | None:
    """Return why the process that opened the space with ``epoch`` and stored batch ``serial`` may no longer write.

    If the database went back, this marks it, in the caller's transaction.

    Returns:
        The error; None: the space is as the process left it, or has its next batch.
    """
    table = schema.spaces
    row = connection.execute(select(table.c.epoch, table.c.serial).where(table.c.id == space)).one_or_none()
    if row is not None and row.epoch > epoch:
        return StoreTakenOver(
            f"Another process took over the store at {place}, so this one no longer writes to it.",
            remedy="Only one process may have a space open. Stop one of the two, or give each its own: ?space=NAME",
        )
    # The next batch is the one with the lost answer.
    if row is not None and row.epoch == epoch and row.serial in (serial, serial + 1):
        return None
    found = row.serial if row is not None else 0
    if row is not None:
        _mark(connection, space, {"at": time.time(), "stored": serial, "found": found})
    return StoreFailed(
        f"The database of the store at {place} went back to an older copy: batch {serial} was durable, but the "
        f"database has only batch {found}. Messages acknowledged in between are missing.",
        remedy="Find out whether a copy was restored, or a standby was promoted that had not received everything. "
        "Restore the newest copy if there is one. Otherwise, start once with --restored.",
    )


def _mark(connection: Connection, space: int, state: dict[str, float]) -> None:
    forget(connection, space)
    name = {"name_key": schema.key_of(WENT_BACK), "name": WENT_BACK.encode()}
    connection.execute(insert(schema.queues).values(space=space, state=encode_state(state), **name))


def forget(connection: Connection, space: int) -> None:
    table = schema.queues
    connection.execute(delete(table).where(table.c.space == space, table.c.name_key == schema.key_of(WENT_BACK)))


def mark_of(connection: Connection, space: int) -> str:
    """Return the text of the mark; "" without one."""
    table = schema.queues
    state = connection.scalar(
        select(table.c.state).where(table.c.space == space, table.c.name_key == schema.key_of(WENT_BACK))
    )
    if state is None:
        return ""
    told = decode_state(bytes(state))
    when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(told["at"]))
    return f"on {when} it had batch {told['found']}, although batch {told['stored']} had been durable"
