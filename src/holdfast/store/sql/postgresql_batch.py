"""The statement that writes a batch to PostgreSQL, and how it is sent: with libpq itself, in binary.

All writes of a batch are one statement, so one exchange with the server and one transaction. The types are known from
the tables, so the values need neither SQLAlchemy nor the adaptation of psycopg, which cost more than the exchange.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from functools import cache, lru_cache
from itertools import chain
from typing import Any, Final

from psycopg import Connection, errors, pq
from sqlalchemy import Integer, LargeBinary, Table
from sqlalchemy.exc import DBAPIError

from holdfast.store.sql.changes import Kind, Row, Write
from holdfast.store.sql.schema import columns, keys

PREPARED_AT: Final = 3
"""How often a connection sends a statement before it prepares it, which takes an exchange."""
MOST_PREPARED: Final = 100
"""Prepared statements of a connection. Other statements are parsed each time."""

Shape = tuple[tuple[Kind, Table, int, bool], ...]
"""Kind, table, number of columns, and whether it has only one row, for each write."""

_FENCE: Final = (
    "fence AS (UPDATE holdfast_spaces SET serial = serial + 1 "
    "WHERE id = %s::bigint AND epoch = %s::bigint AND serial = %s::bigint RETURNING 1)"
)
_WAIT: Final = "SyncRepWaitForLSN"
"""The function of PostgreSQL in which a commit waits for its standby. Its only notices report an ended wait."""
_BIGINT, _BYTEA = 20, 17  # the numbers of these types
_pack = struct.Struct(">q").pack
_pack_length = struct.Struct(">i").pack


def is_unconfirmed(notice: errors.Diagnostic) -> bool:
    """Whether a commit returns although the synchronous standby has not confirmed it.

    The words of this notice are in the language of the server, which only an administrator may set (``lc_messages``),
    and its SQLSTATE is that of any warning. So the name of the function that reports it tells.
    """
    return notice.source_function == _WAIT


class BatchSender:
    """Sends batches over one connection after the other.

    Attributes:
        is_unconfirmed: A commit returned although the synchronous standby has not confirmed it. The caller must
            ask the database what became of the batch before it acknowledges anything.
    """

    def __init__(self) -> None:
        self.is_unconfirmed = False
        self._connection: pq.abc.PGconn | None = None
        self._uses: dict[bytes, int] = {}
        self._prepared: dict[bytes, bytes] = {}

    def watch(self, connection: Connection[Any]) -> None:
        """Note what the server says about commits of a new connection."""
        connection.add_notice_handler(self._noticed)

    def _noticed(self, notice: errors.Diagnostic) -> None:
        self.is_unconfirmed |= is_unconfirmed(notice)

    def send(
        self, connection: Connection[Any], fence: tuple[int, int, int], writes: Sequence[Write], *, prepares: bool
    ) -> None:
        """Write a batch.

        Args:
            connection: An idle connection, or one with an open transaction.
            fence: Space, epoch, and the serial before the batch.
            prepares: Whether only batches use this connection, so that it may prepare their statements.

        Raises:
            DBAPIError: The database returned an error, or nothing; or the standby may not have the batch.
        """
        shape = tuple([(one.kind, one.table, len(one.rows[0]), len(one.rows) == 1) for one in writes])
        statement = _statement(shape)
        values = [_pack(number) for number in fence]
        for write, (_, table, width, is_one) in zip(writes, shape, strict=True):
            kinds = _types(table)[:width]
            values += _one(write.rows[0], kinds) if is_one else _many(write.rows, kinds)
        pgconn = connection.pgconn
        try:
            result = self._execute(pgconn, statement, values, prepares=prepares)
        except errors.Error as error:
            raise _wrapped(error, pgconn) from error
        if result.status != pq.ExecStatus.TUPLES_OK:
            refused = errors.error_from_result(result, encoding=connection.info.encoding)
            raise _wrapped(refused, pgconn) from refused
        if self.is_unconfirmed:
            lost = errors.OperationalError("the wait for the synchronous standby was cancelled")
            raise DBAPIError("", None, lost, hide_parameters=True, connection_invalidated=True)

    def _execute(
        self, pgconn: pq.abc.PGconn, statement: bytes, values: Sequence[bytes], *, prepares: bool
    ) -> pq.abc.PGresult:
        formats = [pq.Format.BINARY] * len(values)
        # A pooler may send each statement over another connection.
        if not prepares:
            return pgconn.exec_params(statement, values, None, formats)
        # Prepared statements end with their connection.
        if pgconn is not self._connection:
            self._connection, self._uses, self._prepared = pgconn, {}, {}
        name = self._prepared.get(statement)
        if name is None:
            uses = self._uses[statement] = self._uses.get(statement, 0) + 1
            if uses < PREPARED_AT or len(self._prepared) >= MOST_PREPARED:
                # Shapes that never repeat must not fill the memory.
                if len(self._uses) > 10 * MOST_PREPARED:
                    self._uses.clear()
                return pgconn.exec_params(statement, values, None, formats)
            name = b"holdfast_%d" % len(self._prepared)
            prepared = pgconn.prepare(name, statement)
            if prepared.status != pq.ExecStatus.COMMAND_OK:
                return prepared
            self._prepared[statement] = name
        return pgconn.exec_prepared(name, values, formats)


def _wrapped(error: errors.Error, pgconn: pq.abc.PGconn) -> DBAPIError:
    is_lost = pgconn.status != pq.ConnStatus.OK
    return DBAPIError("", None, error, hide_parameters=True, connection_invalidated=is_lost)


@lru_cache(maxsize=1024)
def _statement(shape: Shape) -> bytes:
    parts = [_FENCE]
    for number, (kind, table, width, is_one) in enumerate(shape):
        parts.append(f"w{number} AS ({_write(kind, table, width, is_one=is_one)})")
    # One statement is one exchange and one transaction. The division fails, and undoes the writes, if the fence matched
    # no row.
    first, *others = f"WITH {', '.join(parts)} SELECT 1 / (SELECT count(*) FROM fence)".split("%s")
    return "".join([first, *(f"${number}{rest}" for number, rest in enumerate(others, 1))]).encode()


@cache
def _write(kind: Kind, table: Table, width: int, *, is_one: bool) -> str:
    """Return the statement for one row, or for any number of rows as one array for each column."""
    names = columns(table)[:width]
    kinds = _types(table)
    if is_one:
        source = f"(SELECT {', '.join([f'%s::{one}' for one in kinds[:width]])})"
    else:
        # Arrays: the text of the statement, and so its plan, is the same for any number of rows.
        source = f"unnest({', '.join([f'%s::{one}[]' for one in kinds[:width]])})"
    if kind in ("insert", "put"):
        statement = f"INSERT INTO {table.name} ({', '.join(names)}) SELECT * FROM {source} AS k"
        if kind == "put":
            key = keys(table)
            others = ", ".join([f"{name} = excluded.{name}" for name in names if name not in key])
            statement += f" ON CONFLICT ({', '.join(key)}) DO UPDATE SET {others}"
        return statement
    comparisons = ["="] * width if kind == "delete" else ["=", "<"]
    matches = " AND ".join([f"t.{name} {how} k.{name}" for name, how in zip(names, comparisons, strict=True)])
    return f"DELETE FROM {table.name} AS t USING {source} AS k({', '.join(names)}) WHERE {matches}"


@cache
def _types(table: Table) -> tuple[str, ...]:
    return tuple([_type(column.type) for column in table.columns])


def _type(kind: object) -> str:
    if isinstance(kind, LargeBinary):
        return "bytea"
    assert isinstance(kind, Integer), kind
    return "bigint"


def _one(row: Row, kinds: Iterable[str]) -> list[bytes]:
    return [_pack(value) if kind == "bigint" else value for value, kind in zip(row, kinds, strict=True)]


def _many(rows: Sequence[Row], kinds: Iterable[str]) -> list[bytes]:
    """Return an array of each column, in the binary format of PostgreSQL: head, then length and value of each."""
    arrays = []
    count = len(rows)
    for column, kind in zip(zip(*rows, strict=True), kinds, strict=True):
        if kind == "bigint":
            values = chain.from_iterable([(8, value) for value in column])
            arrays.append(struct.pack(f">5i{'iq' * count}", 1, 0, _BIGINT, count, 1, *values))
        else:
            pieces = [struct.pack(">5i", 1, 0, _BYTEA, count, 1)]
            for value in column:
                pieces += _pack_length(len(value)), value
            arrays.append(b"".join(pieces))
    return arrays
