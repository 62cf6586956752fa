"""Where a validator remembers security sessions with their keys, in a file; and nonces too, in a database.

A file is for the processes of one host. The nodes of a cluster share the database of their store, or a further topic
in Kafka: a nonce that one of them has seen is known to all, and each of them finds the sessions that another one
granted.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from enum import IntEnum
from pathlib import Path
from typing import Any, Final, Protocol

from holdfast.cluster.shared.engines import shared_tables
from holdfast.cluster.shared.tables import Row, SharedTables, TablesAway
from holdfast.endpoint.logs import log
from holdfast.exceptions import ConfigurationError, MessageFlowError
from holdfast.http.retry_after import spread
from holdfast.outages import Outage, Trouble
from holdfast.store.address import is_kafka, is_sql, shown

_PATIENCE: Final = 5.0
"""Seconds to wait for other processes that use the file."""
_AGAIN: Final = 5
"""Seconds after which a message is sent again if the database does not answer."""
_UNCHECKED: Final = "The service cannot check messages now. Send it again."


class Database(Protocol):
    """Tables that are remembered. Several threads may use it."""

    def run(self, schema: str, *statements: str, **values: Any) -> list[Row]:
        """Run statements in one transaction, durable when this returns; return the rows of the last one.

        Args:
            schema: Creates the tables that the statements need, if they do not exist.
            statements: The statements. ``:name`` stands for a value; ``:space`` names the part of the database.
            values: Their values.

        Raises:
            MessageFlowError: The database does not answer, or the file cannot be written.
        """
        ...


def open_database(place: str | Path | None, setting: str = "nonces", away: str = _UNCHECKED) -> Database:
    """Open a place that several processes may share.

    Args:
        place: A file, created if absent; the URL of a PostgreSQL database, or of a cluster's topic in Kafka; or None:
            memory.
        setting: The argument that names it, for errors.
        away: What a caller is told if it does not answer.

    Raises:
        ConfigurationError: It cannot be opened.
    """
    try:
        if is_sql(place) or is_kafka(place):
            return _ClusterDatabase(shared_tables(str(place), "security"), setting, away)
    except ModuleNotFoundError as error:
        extra = "kafka" if is_kafka(place) else "sql"
        raise ConfigurationError(
            f"{setting}={shown(place)!r} needs the package {error.name}", remedy=f"pip install 'holdfast[{extra}]'"
        ) from None
    return FileDatabase(place, setting, away)


class Work(IntEnum):
    """What a request does at a place, in the order in which a place without room or permission stops doing it."""

    READS = 0
    DELETES = 1
    ADDS = 2


class DatabaseWatch:
    """Logs when a place stops answering, and when it answers again: each message asks it. Thread-safe.

    Args:
        setting: The argument that names the place.
        told: The reason that callers get meanwhile.
        remedy: What to do if the error names nothing else.
    """

    def __init__(self, setting: str, told: str, remedy: str) -> None:
        self._setting, self._told, self._remedy = setting, told, remedy
        self._outage = Outage(time.monotonic)
        self._refused = Work.READS
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def asking(self, work: Work) -> Iterator[None]:
        """Report the outcome of a request. A place that refused one is back when it carries out as much.

        Raises:
            MessageFlowError: The place does not answer.
        """
        try:
            yield
        except TablesAway as error:
            self._report_away(error.trouble, work)
        except (OSError, sqlite3.OperationalError) as error:
            self._report_away(Trouble(str(error)), work)
        else:
            self._report_back(work)
            return
        raise MessageFlowError(self._told, retry_after=spread(_AGAIN))

    def _report_away(self, trouble: Trouble, work: Work) -> None:
        with self._lock:
            self._refused = max(self._refused, work)
            is_new = self._outage.go_on(trouble)
        if is_new:
            remedy = trouble.remedy or self._remedy
            log.warning("security.database_away", setting=self._setting, why=trouble.what, remedy=remedy)

    def _report_back(self, work: Work) -> None:
        with self._lock:
            if work < self._refused:
                return
            self._refused, seconds = Work.READS, self._outage.end()
        if seconds is not None:
            log.info("security.database_back", setting=self._setting, seconds=seconds)


def watch_of_file(setting: str, told: str = _UNCHECKED) -> DatabaseWatch:
    """Return the watch over a file, or over a directory."""
    remedy = "Check the file and its disk. Messages are checked again when it can be written."
    return DatabaseWatch(setting, told, remedy)


class FileDatabase:
    """A file of SQLite.

    Raises:
        ConfigurationError: It cannot be opened.
    """

    def __init__(self, path: str | Path | None, setting: str, told: str = _UNCHECKED) -> None:
        self.connection = _open_file(path, setting)
        self._watch = watch_of_file(setting, told)
        self._made: set[str] = set()

    def run(self, schema: str, *statements: str, **values: Any) -> list[Row]:
        """See :class:`Database`."""
        with self._watch.asking(_work_of(statements)):
            return self._run(schema, statements, values)

    def _run(self, schema: str, statements: tuple[str, ...], values: dict[str, Any]) -> list[Row]:
        if schema not in self._made:
            self.connection.executescript(schema)
            self._made.add(schema)
        values["space"] = ""  # only a database is shared by several clusters
        if len(statements) == 1:
            return self.connection.execute(statements[0], values).fetchall()
        rows: list[Row] = []
        self.connection.execute("BEGIN IMMEDIATE")
        with self.connection:
            for statement in statements:
                rows = self.connection.execute(statement, values).fetchall()
        return rows


class _ClusterDatabase:
    """A database or topic that several hosts share."""

    def __init__(self, tables: SharedTables, setting: str = "nonces", told: str = _UNCHECKED) -> None:
        # Every message needs it.
        tables.is_kept = True
        self._tables = tables
        remedy = "Check the database, or Kafka. Messages are checked again when it answers."
        self._watch = DatabaseWatch(setting, told, remedy)

    def run(self, schema: str, *statements: str, **values: Any) -> list[Row]:
        with self._watch.asking(_work_of(statements)):
            return self._tables.run(schema, *statements, **values)


def _work_of(statements: tuple[str, ...]) -> Work:
    if all(one.lstrip().startswith("SELECT") for one in statements):
        return Work.READS
    return Work.ADDS if any("INSERT" in one for one in statements) else Work.DELETES


def _open_file(path: str | Path | None, setting: str) -> sqlite3.Connection:
    try:
        if path is not None:
            # SQLite gives its other files the permissions of this one. An existing file may have any.
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                if os.fstat(file).st_mode & 0o077 and os.fstat(file).st_uid == os.geteuid():
                    os.fchmod(file, 0o600)
            finally:
                os.close(file)
        # One thread at a time processes messages, but not always the thread that opened the file: see sync.Source.
        db = sqlite3.connect(path or ":memory:", isolation_level=None, check_same_thread=False, timeout=_PATIENCE)
        _write_ahead(db)
        # What a peer was granted must be found here, also after a power failure.
        db.execute("PRAGMA synchronous=FULL")
        return db
    except (sqlite3.Error, OSError, ValueError) as error:  # ValueError: no path has a zero byte
        raise ConfigurationError(
            f"{setting}={str(path)!r} cannot be opened: {error}",
            remedy="Give the path of a file in a directory that exists and that this process may write to.",
        ) from None


def _write_ahead(db: sqlite3.Connection) -> None:
    """Switch to write-ahead logging. If another process does so at this moment, SQLite fails at once: try again."""
    until = time.monotonic() + _PATIENCE
    while True:
        try:
            db.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError:
            if time.monotonic() > until:
                raise
            time.sleep(0.01)
