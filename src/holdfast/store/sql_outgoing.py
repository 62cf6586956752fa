"""Messages that transactions of others put into a store's database, to leave if those commit. Knows no protocol rule.

They get no offset yet: transactions end in any order, or are undone, and an outbox's offsets are dense. Whoever has the
space open takes what is committed into its outbox, by the batch that gives it an offset.
"""

from __future__ import annotations

from sqlalchemy import Connection, insert, select
from sqlalchemy.exc import ProgrammingError

from holdfast.core.records import Record
from holdfast.exceptions import ConfigurationError
from holdfast.store import sql_schema as schema
from holdfast.store.address import SQLAddress, read_address
from holdfast.store.records import encode_record


def put(connection: Connection, location: str, record: Record) -> None:
    """Put a record into the caller's open transaction, for the source whose store is at ``location``.

    Raises:
        ConfigurationError: That store was never opened.
        SQLAlchemyError: The database says no, as to any statement of the caller's.
    """
    address = read_address(location)
    spaces = schema.spaces
    try:
        found = connection.scalar(select(spaces.c.id).where(spaces.c.name == address.space.encode()))
    except ProgrammingError as error:
        raise _missing(address) from error
    if found is None:
        raise _missing(address)
    connection.execute(insert(schema.outgoing).values(space=found, data=encode_record(record)))


def _missing(address: SQLAddress) -> ConfigurationError:
    return ConfigurationError(
        f"There is no store at {address.shown} in the database of this connection.",
        remedy="Open the source once, which makes it; and give a connection to the database that its store is in.",
    )
