"""Messages that an application's transactions put into a store's database, to be sent if they commit.

Knows no protocol rule. The messages get no offset yet: transactions end in any order, or roll back, and an outbox's
offsets are dense. The process that has the space open moves committed messages into its outbox, with the batch that
assigns their offsets.
"""

from __future__ import annotations

from typing import Any, Protocol

from sqlalchemy import Connection, Dialect, Engine, Executable, Insert, insert, select
from sqlalchemy.dialects import mysql, postgresql

from holdfast.core.records import Record
from holdfast.exceptions import ConfigurationError, EnvelopeError
from holdfast.store.address import SQLAddress, read_address
from holdfast.store.records import encode_record
from holdfast.store.sql import schema as schema
from holdfast.store.sql.message_ids import row_of


class DBConnection(Protocol):
    """A connection as PEP 249 describes it, such as Django's ``django.db.connection``."""

    def cursor(self) -> Any: ...


def put(connection: Connection | DBConnection, location: str, record: Record, *, is_chosen: bool) -> None:
    """Put a record into the caller's open transaction, for the source with its store at ``location``.

    Args:
        is_chosen: Whether the application chose the MessageID. Then transactions put the message once, while the store
            remembers it.

    Raises:
        EnvelopeError: The store remembers another message with the MessageID that the application chose.
        ConfigurationError: That store was never opened, or ``connection`` is not a connection to such a database.
        Exception: The database's own error, as for any statement of the caller's.
    """
    _check(connection)
    address = read_address(location)
    spaces = schema.spaces
    try:
        found = _execute(connection, address, select(spaces.c.id).where(spaces.c.name == address.space.encode()))
        row = found.fetchone()
    except Exception as error:
        if type(error).__name__ != "ProgrammingError":  # PEP 249: "table not found"; each driver has its own class
            raise
        raise _missing(address) from error
    if row is None:
        raise _missing(address)
    if is_chosen and _is_stored(connection, address, row[0], record):
        return
    # Inline: without RETURNING, for which PostgreSQL demands SELECT too.
    _execute(connection, address, insert(schema.outgoing).inline().values(space=row[0], data=encode_record(record)))


def _is_stored(connection: Connection | DBConnection, address: SQLAddress, space: int, record: Record) -> bool:
    """Remember a MessageID; or return True if the store remembers it, with this message.

    A concurrent transaction with the same MessageID waits here until the first one ends.
    """
    table, values = schema.message_ids, row_of(space, record)
    is_postgresql = address.database == "postgresql"
    added: Insert
    if is_postgresql:
        # Without a target, which would demand SELECT.
        added = postgresql.insert(table).on_conflict_do_nothing()
    else:
        added = insert(table).prefix_with("IGNORE")
    added = added.inline().values(values).execution_options(preserve_rowcount=True)
    if _execute(connection, address, added).rowcount != 0:
        return False
    found = select(table.c.digest).where(table.c.space == space, table.c.message_key == values[1])
    # In MariaDB, the transaction's snapshot may be older than the row.
    known = _execute(connection, address, found if is_postgresql else found.with_for_update(read=True)).fetchone()
    if known is not None and bytes(known[0]) != values[2]:
        raise EnvelopeError(
            f"another message with the MessageID {record.message_id} was stored before",
            remedy="Use a different MessageID for each message, or none. The same message may be sent again.",
        )
    return known is not None


def _check(connection: object) -> None:
    """Raise ConfigurationError for an object that cannot execute the statements."""
    if isinstance(connection, Connection):
        return
    kind = type(connection)
    name = f"{kind.__module__}.{kind.__name__}"
    if kind.__module__.startswith("sqlalchemy.ext.asyncio"):  # imported, it would require greenlet
        remedy = "Write: await connection.run_sync(lambda c: source.send(…, connection=c))"
    elif isinstance(connection, Engine):
        remedy = "Pass a connection of the engine: with engine.begin() as connection: …"
    elif not callable(getattr(connection, "cursor", None)) or kind.__module__.partition(".")[0] == "sqlite3":
        remedy = "Pass an open SQLAlchemy connection, or one of the database's driver, to the store's database."
    else:
        return
    raise ConfigurationError(f"connection is a {name}, which cannot store a message", remedy=remedy)


def _execute(connection: Connection | DBConnection, address: SQLAddress, statement: Executable) -> Any:
    """Execute a statement; return the object with its rows: SQLAlchemy's result, or the driver's cursor."""
    if isinstance(connection, Connection):
        return connection.execute(statement)
    kind = postgresql.dialect if address.database == "postgresql" else mysql.dialect
    dialect: Dialect = kind(paramstyle="pyformat")  # psycopg's, PyMySQL's, mysqlclient's
    compiled = statement.compile(dialect=dialect)  # type: ignore[attr-defined]
    cursor = connection.cursor()
    cursor.execute(str(compiled), compiled.params)
    return cursor


def _missing(address: SQLAddress) -> ConfigurationError:
    return ConfigurationError(
        f"There is no store at {address.shown} in the database of this connection.",
        remedy="Open the source once, which creates the store; and pass a connection to the store's database.",
    )
