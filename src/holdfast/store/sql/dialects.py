"""The differences between PostgreSQL, MariaDB and MySQL, in terms of rows and tables.

PostgreSQL gets all writes of a batch as one statement (``postgresql_batch``).
MariaDB and MySQL get one statement of many rows for each table.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from functools import cache
from typing import Any, Final, Protocol

from sqlalchemy import Connection, Table
from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError, OperationalError, SQLAlchemyError

from holdfast.exceptions import StoreFailed
from holdfast.store.sql.changes import PIECE_BYTES, Kind, Row, Write
from holdfast.store.sql.postgresql_batch import BatchSender
from holdfast.store.sql.schema import columns, keys, spaces

CONNECT_SECONDS = 10
LEAST_PACKET = 4 * PIECE_BYTES
SCHEMA_LOCK = "schema"
"""The lock of the process that changes the tables."""
_LOCK_STEP = 0.05

Fence = tuple[int, int, int]
"""Space, epoch, and the serial before the batch."""


class Fenced(Exception):
    """The space is not at the batch's epoch and serial; nothing was written."""


class Dialect(Protocol):
    isolation: str
    """Isolation level of the connection that commits."""
    is_unconfirmed: bool
    """Whether a commit returned that a synchronous standby may not have; set it to False before asking the database."""

    def arguments(self, url: URL, application: str) -> dict[str, Any]:
        """Return arguments for the driver in addition to those in the URL."""
        ...

    def begin(self, connection: Connection) -> None:
        """Prepare a new connection of the driver: a commit that returns is durable."""
        ...

    def require_durable(self, connection: Connection, place: str) -> None:
        """Check that the server makes commits durable.

        Raises:
            StoreFailed: Its settings prevent that.
        """
        ...

    def find_all(self, connection: Connection) -> None:
        """Let the database check every constraint that it defers to the commit of the open transaction."""
        ...

    def lock(self, connection: Connection, name: str, seconds: float) -> bool:
        """Try for ``seconds`` to get a lock that lasts as long as the connection; return whether it succeeded."""
        ...

    def unlock(self, connection: Connection, name: str) -> None: ...

    def limit_lock_waits(self, connection: Connection) -> None:
        """Let no statement of the connection wait longer than a second for a lock of another transaction."""
        ...

    def write(self, connection: Connection, fence: Fence, writes: Sequence[Write], *, is_within: bool = False) -> None:
        """Write everything in one transaction, durable when this returns.

        ``is_within``: in the open transaction, as its last statements.

        Raises:
            Fenced: The space is not as the fence says.
            SQLAlchemyError: The database returned an error, or nothing. Close the connection.
        """
        ...

    def is_passing(self, error: SQLAlchemyError) -> bool:
        """Whether a retry may succeed: the server is away, full, or busy."""
        ...

    def refuses_login(self, error: SQLAlchemyError) -> bool:
        """Whether the server refuses the user or the password."""
        ...

    def remedy(self, error: SQLAlchemyError) -> str:
        """Return a remedy for the error; "" if none is known."""
        ...


def said(error: SQLAlchemyError) -> str:
    """Return the message of the database or driver in one line, without the statement or its parameters."""
    if isinstance(error, DBAPIError) and error.orig is not None:
        args = error.orig.args
        text = str(args[1]) if len(args) > 1 and isinstance(args[0], int) else str(error.orig)
    else:
        text = str(error.args[0]) if error.args else type(error).__name__
    return " ".join(text.split()) or type(error).__name__


def may_pass(dialect: Dialect, error: SQLAlchemyError) -> bool:
    """Whether a retry of a store that has been open may succeed: also with a password that is being replaced."""
    return dialect.is_passing(error) or dialect.refuses_login(error)


NO_CONNECTION_LEFT = (
    "All connections of the server are in use. Raise its max_connections, or use fewer partitions or workers. The work "
    "continues when a connection is free."
)
_FULL = ("too many clients", "connection slots", "too many connections")
_NO_TLS_FILE = ("private key file", "certificate file", "certificate revocation list")
"""What libpq says of a file that it cannot use."""
_NO_LOGIN = "not permitted to log in"
_NO_TLS = (
    *_NO_TLS_FILE,
    "does not support SSL",
    "invalid sslmode value",
    "certificate verify failed",
    "does not match host name",
)
_ENDED = ("terminating connection", "authentication due to timeout")
"""The server was killed or stopped while it answered, or was too busy to answer in time."""
_CHANGING = ("starting up", "shutting down", "recovery mode", "not yet accepting", "not accepting")
_PASSING_WORDS = (*_CHANGING, *_ENDED, *_FULL)


def is_refusal(text: str) -> bool:
    """Whether the message of an attempt to connect to PostgreSQL says that a later attempt will be refused too."""
    if any(words in text for words in ("no password supplied", *_NO_TLS)):  # libpq's own messages
        return True
    return "FATAL:" in text and not any(words in text for words in _PASSING_WORDS)


LOGIN_REMEDY = (
    "Check the user and the password. Each attempt reads store_password_file and ~/.pgpass again. After a change of "
    "the URL, of store_password_env or of PGPASSWORD, restart."
)


def refuses_login(state: str, text: str) -> bool:
    """Whether PostgreSQL refuses the user or the password; the arguments are as in :func:`postgresql_remedy`."""
    return state.startswith("28") or any(
        words in text for words in ("authentication failed", "no pg_hba.conf entry", "no password supplied", _NO_LOGIN)
    )


READ_ONLY_REMEDY = (
    "Set default_transaction_read_only = off for the server, the database and the user. If the server is a standby, "
    "promote it, or name the primary in the URL."
)
_POOLER_REMEDY = "Connect to the server itself, or let the pooler keep a session for each client (session pooling)."
_TIMEOUT_REMEDY = (
    "{} of the server, the database or the user, or in the URL, is too short: set it to 0 for the user of Holdfast."
)
_REMEDIES: Final = (
    # SQLSTATE or its beginning, words of the message, remedy. During a connection, libpq gives no SQLSTATE.
    ("", _NO_LOGIN, "Let the user log in: ALTER ROLE name LOGIN."),
    (
        "",
        "private key file",
        "Correct sslkey in the URL of the database, or let only its user read it: chmod 600 FILE.",
    ),
    ("", "root certificate file", "Correct sslrootcert in the URL of the database."),
    ("", "certificate revocation list", "Correct sslcrl in the URL of the database."),
    ("", "certificate file", "Correct sslcert in the URL of the database."),
    ("", "too many connections for role", "Raise the limit of the user: ALTER ROLE name CONNECTION LIMIT -1."),
    ("", "too many connections for database", "Raise its limit: ALTER DATABASE name CONNECTION LIMIT -1."),
    ("", "permission denied for database", "Let the user connect: GRANT CONNECT ON DATABASE name TO that user."),
    ("", "not currently accepting connections", "Open the database: ALTER DATABASE name ALLOW_CONNECTIONS true."),
    ("25006", "", READ_ONLY_REMEDY),
    ("57014", "statement timeout", _TIMEOUT_REMEDY.format("statement_timeout")),
    ("25P03", "", _TIMEOUT_REMEDY.format("idle_in_transaction_session_timeout")),
    ("25P04", "", _TIMEOUT_REMEDY.format("transaction_timeout")),
    ("57P05", "", _TIMEOUT_REMEDY.format("idle_session_timeout")),
    ("26000", "", _POOLER_REMEDY),
    ("42P05", "", _POOLER_REMEDY),
    ("53100", "", "Free space on the server's disk."),
    ("53200", "", "Give the server more memory, or lower its work_mem and shared_buffers."),
    ("58030", "", "Check the disk of the server."),
    ("XX00", "", "The server reports an internal error, perhaps damaged data. Read its log, and check its disk."),
)
"""The first that fits counts."""


def postgresql_remedy(state: str, text: str) -> str:
    """Return a remedy for an error of PostgreSQL; "" if none is known.

    Args:
        state: Its SQLSTATE; "" if there is none, as during the connection.
        text: Its message.
    """
    for beginning, words, remedy in _REMEDIES:
        if state.startswith(beginning) and words in text:
            return remedy
    if refuses_login(state, text):
        return LOGIN_REMEDY
    if any(words in text for words in _NO_TLS):
        return "Correct sslmode and sslrootcert in the URL of the database, or set up TLS at the server; then restart."
    if state == "3D000" or ("database" in text and "does not exist" in text):
        return "Create the database: createdb --owner USER DATABASE."
    if state == "42501" and (" table " in text or " sequence " in text):
        return (
            "Let the user own the tables, or: GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO "
            "that user; GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO that user."
        )
    if state == "42501":
        return "Let the user own the database, or: GRANT CREATE, USAGE ON SCHEMA public TO that user."
    if state == "53300" or any(words in text for words in _FULL):
        return NO_CONNECTION_LEFT
    return ""


NO_TIMEOUTS: Final = (
    "SELECT set_config(name, '0', false) FROM pg_settings WHERE setting <> '0' AND source <> 'client' AND name IN "
    "('statement_timeout', 'transaction_timeout', 'lock_timeout', 'idle_session_timeout', "
    "'idle_in_transaction_session_timeout')"
)
"""Ends the timeouts that the server, the database or the user sets for the programs of people. A session of Holdfast
may be idle for days, and its statements have as many rows as messages arrived. Those in the URL stay."""

NO_ENCODING = "SQL_ASCII"
ENCODING_REMEDY = "Create the database with ENCODING 'UTF8': createdb --encoding UTF8 --template template0 DATABASE."

LOCK_KEY = "hashtextextended('holdfast ' || coalesce(current_schema(), '') || ' ' || %s, 0)"
"""PostgreSQL's expression for the key of a lock, of its name. The name of a space's lock is the space."""


class PostgreSQL:
    """The :class:`Dialect` of PostgreSQL, through psycopg."""

    isolation = "AUTOCOMMIT"  # one statement is one transaction
    # Connection, rollback, resources, shutdown, system, a read-only standby, a lock.
    _PASSING = ("08", "40", "53", "57P", "58", "25006", "55P03")
    _DIVISION_BY_ZERO = "22012"
    _SESSION: Final = {
        # A server frees the locks of a client on a lost machine when it detects the loss: within a minute.
        "tcp_keepalives_idle": "30",
        "tcp_keepalives_interval": "10",
        "tcp_keepalives_count": "3",
        # Keepalives do not run while an answer is unacknowledged.
        "tcp_user_timeout": "60000",
        # Without it, a statement that waits for a lock outlives its client.
        "client_connection_check_interval": "5000",
    }

    def __init__(self) -> None:
        self._batches = BatchSender()

    @property
    def is_unconfirmed(self) -> bool:
        return self._batches.is_unconfirmed

    @is_unconfirmed.setter
    def is_unconfirmed(self, value: bool) -> None:
        self._batches.is_unconfirmed = value

    def arguments(self, url: URL, application: str) -> dict[str, Any]:
        ours = {
            "connect_timeout": CONNECT_SECONDS,
            "application_name": application,
            "client_encoding": "utf8",  # otherwise a database without an encoding sends texts as bytes
            "keepalives_idle": 30,
            "keepalives_interval": 10,
            "keepalives_count": 3,
            "tcp_user_timeout": 60_000,
        }
        return {name: value for name, value in ours.items() if name not in url.query}

    def begin(self, connection: Any) -> None:
        self._batches.watch(connection)
        with connection.cursor() as cursor:
            cursor.execute(NO_TIMEOUTS)
            for name, value in self._SESSION.items():
                cursor.execute(
                    # Version 13 has no client_connection_check_interval, and a server not on Linux may refuse it.
                    "SELECT set_config(name, %s, false) FROM pg_settings WHERE name = %s "
                    "AND (name <> 'client_connection_check_interval' OR version() LIKE '%%linux%%')",
                    (value, name),
                )
            cursor.execute(
                "SELECT set_config('synchronous_commit', 'on', false) "
                # Only off would lose acknowledged batches; the other values are the operator's choice.
                "WHERE current_setting('synchronous_commit') = 'off'"
            )
        connection.commit()

    def require_durable(self, connection: Connection, place: str) -> None:
        own: Any = connection.connection.dbapi_connection
        if own.info.parameter_status("server_encoding") == NO_ENCODING:
            raise StoreFailed(f"The database of the store at {place} has no encoding.", remedy=ENCODING_REMEDY)
        if connection.exec_driver_sql("SELECT current_setting('fsync')").scalar() != "on":
            raise StoreFailed(
                f"The server of the store at {place} does not make commits durable: its fsync is off.",
                remedy="Set fsync = on in postgresql.conf, and restart it.",
            )

    def find_all(self, connection: Connection) -> None:
        connection.exec_driver_sql("SET CONSTRAINTS ALL IMMEDIATE")

    def lock(self, connection: Connection, name: str, seconds: float) -> bool:
        until = time.monotonic() + seconds
        while True:
            got = connection.exec_driver_sql(f"SELECT pg_try_advisory_lock({LOCK_KEY})", (name,)).scalar()
            # PostgreSQL has no call that waits for a limited time, as get_lock of MariaDB does.
            if got or time.monotonic() > until:
                return bool(got)
            time.sleep(_LOCK_STEP)

    def unlock(self, connection: Connection, name: str) -> None:
        connection.exec_driver_sql(f"SELECT pg_advisory_unlock({LOCK_KEY})", (name,))

    def limit_lock_waits(self, connection: Connection) -> None:
        connection.exec_driver_sql("SET lock_timeout = '1s'")

    def write(self, connection: Connection, fence: Fence, writes: Sequence[Write], *, is_within: bool = False) -> None:
        own: Any = connection.connection.dbapi_connection
        try:
            self._batches.send(own, fence, writes, prepares=not is_within)
        except DBAPIError as error:
            if _sqlstate(error) == self._DIVISION_BY_ZERO:
                raise Fenced from error
            raise

    def is_passing(self, error: SQLAlchemyError) -> bool:
        if not isinstance(error, DBAPIError):
            return False
        state = _sqlstate(error)
        if state:
            return state.startswith(self._PASSING)
        if is_refusal(said(error)):  # during connection, the driver gives no code
            return False
        return error.connection_invalidated or isinstance(error, OperationalError)

    def refuses_login(self, error: SQLAlchemyError) -> bool:
        return refuses_login(_sqlstate(error), said(error))

    def remedy(self, error: SQLAlchemyError) -> str:
        return postgresql_remedy(_sqlstate(error), said(error))


def _sqlstate(error: SQLAlchemyError) -> str:
    return getattr(getattr(error, "orig", None), "sqlstate", None) or ""


class MariaDB:
    """The :class:`Dialect` of MariaDB and MySQL, through PyMySQL."""

    isolation = "READ COMMITTED"
    is_unconfirmed = False
    # A full disk, too many connections, a shutdown, locks, a read-only server, a killed query or connection.
    _PASSING = frozenset({1021, 1040, 1053, 1114, 1203, 1205, 1213, 1290, 1317, 1792, 1836, 1927, 3101})

    def arguments(self, url: URL, application: str) -> dict[str, Any]:
        ours = {"connect_timeout": CONNECT_SECONDS, "program_name": application}
        return {name: value for name, value in ours.items() if name not in url.query}

    def begin(self, connection: Any) -> None:
        with connection.cursor() as cursor:
            # The connection that holds the lock may be idle for days.
            cursor.execute(
                "SET SESSION wait_timeout = 31536000, SESSION sql_mode = concat(@@sql_mode, ',STRICT_ALL_TABLES') "
                # A comment in MySQL: the limits that an administrator sets for the programs of people.
                "/*M!100300 , SESSION max_statement_time = 0, SESSION idle_transaction_timeout = 0 */"
            )

    def require_durable(self, connection: Connection, place: str) -> None:
        flush, packet = connection.exec_driver_sql(
            "SELECT @@innodb_flush_log_at_trx_commit, @@max_allowed_packet"
        ).one()
        if flush not in (1, 3):
            raise StoreFailed(
                f"The server of the store at {place} does not make commits durable: its "
                f"innodb_flush_log_at_trx_commit is {flush}.",
                remedy="Set it to 1 in the server's configuration, and: SET GLOBAL innodb_flush_log_at_trx_commit = 1",
            )
        if packet < LEAST_PACKET:
            raise StoreFailed(
                f"The server of the store at {place} accepts statements of at most {packet:,} bytes, which is too "
                "small.",
                remedy=f"Set max_allowed_packet to {LEAST_PACKET:,} or more in the server's configuration, "
                f"and: SET GLOBAL max_allowed_packet = {LEAST_PACKET}",
            )

    def find_all(self, connection: Connection) -> None:
        """See :class:`Dialect`. MariaDB defers no constraint, but the connection may be lost."""
        connection.exec_driver_sql("DO 0")

    def lock(self, connection: Connection, name: str, seconds: float) -> bool:
        return (
            connection.exec_driver_sql("SELECT get_lock(%s, %s)", (self._lock(connection, name), seconds)).scalar() == 1
        )

    def unlock(self, connection: Connection, name: str) -> None:
        connection.exec_driver_sql("SELECT release_lock(%s)", (self._lock(connection, name),))

    def limit_lock_waits(self, connection: Connection) -> None:
        connection.exec_driver_sql("SET SESSION innodb_lock_wait_timeout = 1, SESSION lock_wait_timeout = 1")

    @staticmethod
    def _lock(connection: Connection, name: str) -> str:
        """Return a short name that is unique across the server's databases, because locks belong to the server."""
        database = connection.exec_driver_sql("SELECT database()").scalar()
        return f"holdfast {hashlib.sha256(f'{database} {name}'.encode()).hexdigest()[:48]}"

    def write(self, connection: Connection, fence: Fence, writes: Sequence[Write], *, is_within: bool = False) -> None:
        self._write(connection, fence, writes)
        if not is_within:
            connection.commit()

    @staticmethod
    def _write(connection: Connection, fence: Fence, writes: Sequence[Write]) -> None:
        moved = connection.exec_driver_sql(
            f"UPDATE {spaces.name} SET serial = serial + 1 WHERE id = %s AND epoch = %s AND serial = %s", fence
        )
        # The row stays locked until the commit, so two owners cannot write at once.
        if moved.rowcount != 1:
            raise Fenced
        for write in writes:
            if write.kind in ("insert", "put"):
                connection.exec_driver_sql(_mariadb(write.kind, write.table), write.rows)
            else:
                _take_away(connection, write)

    def is_passing(self, error: SQLAlchemyError) -> bool:
        if not isinstance(error, DBAPIError):
            return False
        return error.connection_invalidated or _code(error) in self._PASSING or 2000 <= _code(error) < 3000

    def refuses_login(self, error: SQLAlchemyError) -> bool:
        return _code(error) in (1045, 1698)

    def remedy(self, error: SQLAlchemyError) -> str:
        match _code(error):
            case 1045 | 1698:
                return "Check the user and the password, in the URL or in store_password_file."
            case 1049:
                return "Create the database: CREATE DATABASE name."
            case 1044 | 1142:
                return "Give the user the database: GRANT ALL ON database.* TO that user."
            case 1040:
                return NO_CONNECTION_LEFT
            case 1203 | 1226:
                return "Raise max_user_connections of the server or the user, or use fewer partitions or workers."
            case 1130:
                return "Let the user connect from this host: CREATE USER user@host."
            case 3118 | 4151:
                return "Unlock the user: ALTER USER user ACCOUNT UNLOCK."
            case 1820 | 1862:
                return "The password has expired: give the user another one."
            case 1290 | 1792 | 1836:
                return "Set read_only = OFF. If the server is a replica, name the primary in the URL."
            case 1969:
                return "max_statement_time is too short: set it to 0 for the user of Holdfast."
            case 1021 | 1114:
                return "Free space on the server's disk."
        return ""


def _code(error: SQLAlchemyError) -> int:
    args = getattr(getattr(error, "orig", None), "args", ())
    return args[0] if args and isinstance(args[0], int) else 0


@cache
def _mariadb(kind: Kind, table: Table) -> str:
    """Return the statement for one row, which the driver extends to many."""
    names = columns(table)
    statement = f"INSERT INTO {table.name} ({', '.join(names)}) VALUES ({', '.join(['%s'] * len(names))})"
    if kind == "put":
        others = ", ".join(f"{name} = VALUES({name})" for name in names if name not in keys(table))
        statement += f" ON DUPLICATE KEY UPDATE {others}"
    return statement


_AT_ONCE = 1000


def _take_away(connection: Connection, write: Write) -> None:
    """Delete rows; one statement for those that differ only in their last column."""
    names = columns(write.table)[: len(write.rows[0])]
    if write.kind == "erase":
        statement = f"DELETE FROM {write.table.name} WHERE {names[0]} = %s AND {names[1]} < %s"
        for row in write.rows:
            connection.exec_driver_sql(statement, row)
        return
    groups: dict[Row, list[Any]] = {}
    for row in write.rows:
        groups.setdefault(row[:-1], []).append(row[-1])
    for shared, lasts in groups.items():
        for start in range(0, len(lasts), _AT_ONCE):
            some = lasts[start : start + _AT_ONCE]
            wheres = [f"{name} = %s" for name in names[:-1]] + [f"{names[-1]} IN ({', '.join(['%s'] * len(some))})"]
            connection.exec_driver_sql(f"DELETE FROM {write.table.name} WHERE {' AND '.join(wheres)}", (*shared, *some))


def dialect_of(database: str) -> Dialect:
    return PostgreSQL() if database == "postgresql" else MariaDB()
