"""The tables of a store in a database, their creation and their upgrades. Independent of batches and protocol.

Names are stored as UTF-8 bytes: a queue's name may have any character, and not every database's text type allows all. A
**key** is the name itself, or the digest of a long name, because index entries have a maximum length; names are looked
up by their keys.

The content of a partition, and the held messages of a Sequence, are records with the number of their **part**.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Float,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    delete,
    insert,
    inspect,
    select,
    text,
    update,
)
from sqlalchemy.dialects import mysql

from holdfast.exceptions import StoreFormatError

SCHEMA = 1
"""The version of the tables that this version of Holdfast reads and writes."""

MIGRATIONS: dict[int, Callable[[Connection], None]] = {}
"""Version -> the function that upgrades to the next version. A killed step is run again and must tolerate that: MariaDB
and MySQL cannot roll back changes to a table."""

SPACE_SHIFT = 40
"""A part's number is its space's number, shifted left by this many bits, plus a number of the part."""
LONGEST_KEY = 200
"""Bytes of a name that is its own key."""
VACUUM = (
    "autovacuum_vacuum_scale_factor = 0",
    "autovacuum_vacuum_threshold = 20000",
    "autovacuum_vacuum_cost_delay = 0",
)
"""PostgreSQL's settings of the tables whose rows are deleted with the messages. By default, the vacuum of a table waits
until a fifth of its rows are dead, and takes pauses that let it fall behind."""
_DIGEST = b"\xff"  # no UTF-8 text contains this byte

_Key = LargeBinary().with_variant(mysql.VARBINARY(255), "mysql", "mariadb")
_Data = LargeBinary().with_variant(mysql.LONGBLOB(), "mysql", "mariadb")

metadata = MetaData()


def _table(name: str, *parts: Column[object] | Index) -> Table:
    return Table(f"holdfast_{name}", metadata, *parts, mysql_engine="InnoDB", mariadb_engine="InnoDB")


def _number(name: str) -> Column[object]:
    return Column(name, BigInteger, nullable=False)


def _key(name: str) -> Column[object]:
    return Column(name, _Key, nullable=False)


def _bytes(name: str) -> Column[object]:
    return Column(name, _Data, nullable=False)


def _in_key(column: Column[object]) -> Column[object]:
    column.primary_key = True
    if isinstance(column.type, Integer):
        column.autoincrement = False
    return column


versions = _table("schema", _in_key(Column("version", Integer, autoincrement=False)))

spaces = _table(
    "spaces",
    _in_key(_key("name")),
    _number("id"),
    _number("epoch"),
    _number("serial"),
    Column("holder", String(200), nullable=False),
    Column("opened_at", Float(53), nullable=False),
    Index("holdfast_spaces_id", "id", unique=True),
)
"""``epoch`` counts the openings, ``serial`` the batches. A batch with an unexpected epoch or serial is refused, so that
two processes never write to one space."""

queues = _table("queues", _in_key(_number("space")), _in_key(_key("name_key")), _bytes("name"), _bytes("state"))

partitions = _table(
    "partitions",
    _in_key(_number("part")),
    _number("space"),
    _bytes("queue"),
    _number("number"),
    _number("first_offset"),
    _number("swept"),
    Index("holdfast_partitions_space", "space"),
)
"""Records below ``first_offset`` are trimmed, and those below ``swept`` are deleted. The end is one after the last
record."""

holds = _table(
    "holds",
    _in_key(_number("part")),
    _number("space"),
    _bytes("sequence"),
    Index("holdfast_holds_space", "space"),
)

records = _table(
    "records",
    _in_key(_number("part")),
    _in_key(_number("position")),
    _number("size"),
    _bytes("data"),
)
"""``position`` is the offset, or the number of a held message. ``size`` is that of the whole record; the pieces hold
the part that exceeds ``data``."""

pieces = _table(
    "pieces",
    _in_key(_number("part")),
    _in_key(_number("position")),
    _in_key(_number("piece")),
    _bytes("data"),
)

contents = _table(
    "contents",
    _in_key(_number("space")),
    _in_key(_key("name")),
    _in_key(_number("piece")),
    _bytes("data"),
)
"""What is too large for a record, such as large attachments. It is written before the record that names it."""

references = _table("references", _in_key(_number("part")), _in_key(_number("position")), _bytes("name"))
"""The records that name a content."""

sequences = _table("sequences", _in_key(_number("space")), _in_key(_key("name_key")), _bytes("name"), _bytes("state"))

homes = _table(
    "homes",
    _in_key(_number("space")),
    _in_key(_key("name_key")),
    _bytes("name"),
    _key("queue_key"),
    _bytes("queue"),
    _number("number"),
    Index("holdfast_homes_partition", "space", "queue_key", "number"),
)

cursors = _table(
    "cursors",
    _in_key(_number("space")),
    _in_key(_key("queue_key")),
    _in_key(_number("number")),
    _in_key(_key("name_key")),
    _bytes("queue"),
    _bytes("name"),
    _bytes("state"),
)


outgoing = _table(
    "outgoing",
    Column("number", BigInteger, primary_key=True, autoincrement=True),
    _number("space"),
    _bytes("data"),
    Index("holdfast_outgoing_space", "space", "number"),
)
"""Records that an application's transactions enqueue for a source. The source moves them into its outbox, where they
get an offset: transactions end in any order, or roll back."""

message_ids = _table(
    "message_ids",
    _in_key(_number("space")),
    _in_key(_key("message_key")),
    _bytes("digest"),
    _number("stored_at"),
    Index("holdfast_message_ids_age", "space", "stored_at"),
)
"""MessageIDs that applications chose for messages of transactions, each with a digest of its message and the
microseconds since 1970-01-01 UTC. They outlive the messages, so that a transaction that is repeated does not store its
message again. Earlier programs of version 1 created tables without this one, and a store works without it."""


def key_of(name: str) -> bytes:
    encoded = name.encode()
    return encoded if len(encoded) <= LONGEST_KEY else _DIGEST + hashlib.sha256(encoded).digest()


def signed(number: int) -> int:
    """Return a number from 0 to 2**64 - 1 as a database's integer, which is signed."""
    return number if number < 1 << 63 else number - (1 << 64)


def unsigned(number: int) -> int:
    """Return the number that was passed to :func:`signed`."""
    return number if number >= 0 else number + (1 << 64)


def found_version(connection: Connection) -> int | None:
    """Return the version of the existing tables, None without tables."""
    if not inspect(connection).has_table(versions.name):
        return None
    found: int | None = connection.scalar(select(versions.c.version))
    return found


def require_known(found: int | None, place: str) -> None:
    """Check that this version of Holdfast may use tables of that version.

    Raises:
        StoreFormatError: They are newer.
    """
    if found is not None and found > SCHEMA:
        raise StoreFormatError(
            f"The tables of the store at {place} have version {found}, but this version of Holdfast writes "
            f"{SCHEMA}. The tables were not changed.",
            remedy="Use the version of Holdfast that wrote it, or a newer one.",
        )


def columns(table: Table) -> list[str]:
    return [column.name for column in table.columns]


def keys(table: Table) -> list[str]:
    return [column.name for column in table.primary_key]


def _tune(connection: Connection) -> None:
    for table in (records, pieces, contents):  # bodies stay uncompressed: compression costs more than it saves
        connection.execute(text(f"ALTER TABLE {table.name} ALTER COLUMN data SET STORAGE EXTERNAL"))
    _vacuum_early(connection, records, pieces, contents, references, outgoing, message_ids)


def _vacuum_early(connection: Connection, *tables: Table) -> None:
    for table in tables:
        has_toast = any(isinstance(column.type, LargeBinary) for column in table.columns)
        settings = [f"{prefix}{one}" for prefix in ("", "toast.")[: 1 + has_toast] for one in VACUUM]
        connection.execute(text(f"ALTER TABLE {table.name} SET ({', '.join(settings)})"))


def prepare(connection: Connection, place: str) -> None:
    """Create the tables, or upgrade them; in the caller's transaction, under the caller's lock.

    Raises:
        StoreFormatError: They are newer; nothing is changed.
    """
    found = found_version(connection)
    require_known(found, place)
    if found is None:
        metadata.create_all(connection)
        if connection.dialect.name == "postgresql":
            _tune(connection)
        connection.execute(delete(versions))
        connection.execute(insert(versions).values(version=SCHEMA))
        return
    while found < SCHEMA:
        MIGRATIONS[found](connection)
        found += 1
        connection.execute(update(versions).values(version=found))


def has_message_ids(connection: Connection) -> bool:
    """Whether the table of MessageIDs exists: an earlier program may have created the tables without it."""
    return inspect(connection).has_table(message_ids.name)


def create_message_ids(connection: Connection) -> None:
    """Create the table of MessageIDs if it is missing; in the caller's transaction, under the caller's lock."""
    if not has_message_ids(connection):
        message_ids.create(connection)
        if connection.dialect.name == "postgresql":
            _vacuum_early(connection, message_ids)
