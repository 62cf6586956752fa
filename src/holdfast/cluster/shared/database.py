"""SharedDatabase: shared tables in the database of a cluster, besides those of the leases.

The calls wait for the database, in the thread of the caller: for a moment, and never longer than ``PATIENCE``. After a
failure, calls fail at once for a while, so that a database that is down does not stop the process that asks it. Each
call is one transaction.
"""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Generator, Mapping
from functools import cache, partial
from typing import Any, Final, TypeVar

import psycopg

from holdfast.cluster import tables
from holdfast.cluster.lease_database import conninfo_of
from holdfast.cluster.shared.tables import Row, TablesAway
from holdfast.store.address import read_address
from holdfast.store.sql.dialects import postgresql_remedy

PATIENCE: Final = 2.0
"""Seconds that a call waits for the database."""
SHORTEST_PAUSE: Final = 0.1
"""Seconds after a failure in which calls fail at once; at least twice the time that the failed call took."""
_SETTINGS: Final = b"""
SELECT set_config('statement_timeout', %(limit)s, false), set_config('lock_timeout', %(limit)s, false),
    set_config('synchronous_commit', CASE current_setting('synchronous_commit') WHEN 'off' THEN 'on'
        ELSE current_setting('synchronous_commit') END, false)
"""

T = TypeVar("T")


class SharedDatabase:
    """One connection of this process, made when it is first needed. Several threads may use it.

    Args:
        location: The URL of the database; its space names the cluster.

    Raises:
        ConfigurationError: The location is not a URL of PostgreSQL.
    """

    def __init__(self, location: str) -> None:
        self.space = read_address(location).space
        self._conninfo = partial(conninfo_of, location, PATIENCE, f"holdfast-shared {self.space}")
        self._conninfo()  # is the URL valid?
        self._lock = threading.Lock()
        self._connection: _Bounded | None = None
        self._away_until = 0.0
        self.is_kept = False
        """Whether :meth:`rest` leaves the connection open: calls come often."""

    def run(self, schema: str, *statements: str, **values: Any) -> list[Row]:
        """See :class:`~holdfast.cluster.shared.tables.SharedTables`. The statements are one transaction."""
        with self._lock:
            begun = time.monotonic()
            if begun < self._away_until:
                raise TablesAway("the database did not answer a moment ago")
            try:
                try:
                    return self._run(schema, statements, values)
                except psycopg.OperationalError:
                    if self._connection is None or time.monotonic() - begun > PATIENCE / 2:
                        raise
                    # The server ended the idle connection, because it was restarted or promoted.
                    self._close()
                    return self._run(schema, statements, values)
            except psycopg.Error as error:
                self._close()
                now = time.monotonic()
                self._away_until = now + max(SHORTEST_PAUSE, 2 * (now - begun))
                why = " ".join(str(error).split()) or type(error).__name__
                raise TablesAway(why, postgresql_remedy(error.sqlstate or "", why)) from None

    def _run(self, schema: str, statements: tuple[str, ...], values: Mapping[str, Any]) -> list[Row]:
        connection = self._connected()
        values = {"space": self.space, **values}
        try:
            return _transact(connection, statements, values)
        except psycopg.errors.UndefinedTable:
            with connection.transaction():
                connection.execute(tables.CREATION_LOCK.encode())
                connection.execute(schema.encode())
            return _transact(connection, statements, values)

    def _connected(self) -> _Bounded:
        if self._connection is None:
            self._connection = _Bounded.connect(self._conninfo(), autocommit=True)
            self._connection.execute(_SETTINGS, {"limit": str(round(PATIENCE * 1000))})
        return self._connection

    def rest(self) -> None:
        """Close the connection after a call, unless calls come often: a server has few connections."""
        with self._lock:
            if not self.is_kept and self._connection is not None:
                self._connection.close()
                self._connection = None

    def close(self) -> None:
        """Close the connection. The next call opens another one."""
        with self._lock:
            self._close()

    def _close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


class _Bounded(psycopg.Connection[Row]):
    """A connection whose calls end after ``PATIENCE``, also if the server is paused."""

    def wait(self, gen: Generator[Any, Any, T], *given: Any, **more: Any) -> T:
        return super().wait(_bounded(gen, time.monotonic() + PATIENCE), *given, **more)


def _bounded(asked: Generator[Any, Any, T], until: float) -> Generator[Any, Any, T]:
    try:
        wanted = next(asked)
        while True:
            ready = yield wanted
            if not ready and time.monotonic() > until:
                raise psycopg.OperationalError(f"no answer for {PATIENCE:.0f} s")
            wanted = asked.send(ready)
    except StopIteration as ended:
        return ended.value  # type: ignore[no-any-return]


def _transact(connection: _Bounded, statements: tuple[str, ...], values: Mapping[str, Any]) -> list[Row]:
    within = connection.transaction() if len(statements) > 1 else contextlib.nullcontext()
    rows: list[Row] = []
    with within:
        for statement in statements:
            cursor = connection.execute(_translated(statement), values, prepare=True)
            rows = cursor.fetchall() if cursor.description is not None else []
    return rows


_NAME: Final = re.compile(r"(?<!:):([a-z_][a-z_0-9]*)")


@cache
def _translated(statement: str) -> bytes:
    return _NAME.sub(r"%(\1)s", statement.replace("%", "%%")).encode()


@cache
def shared_database(location: str) -> SharedDatabase:
    """Return this process's connection to a database: one for all users."""
    return SharedDatabase(location)
