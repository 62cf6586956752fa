"""LeaseDatabase: runs the requests of a membership in PostgreSQL, on a connection that does nothing else.

The connection is the node's session: its lock on the node's name ends with it. Both sides end it if the other is silent
for longer than a trusted node would act. Every error that a later attempt may not meet is :class:`NoAnswer`.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Final

import psycopg
from psycopg.conninfo import make_conninfo
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from sqlalchemy.engine import make_url

from holdfast.cluster import tables
from holdfast.cluster.lease_policy import MOST_NODES, LeasePolicy
from holdfast.cluster.memory import Batches, NodeMemory
from holdfast.cluster.rows import (
    Answer,
    Claim,
    ClusterRefused,
    Declare,
    Drain,
    Enter,
    Entered,
    Join,
    Leave,
    Look,
    NoAnswer,
    NodeRow,
    OwnershipRow,
    Picture,
    Release,
    Request,
    Tell,
    space_of,
    spaces_of,
)
from holdfast.cluster.server_warnings import read_warnings, shut, why_silent
from holdfast.cluster.trust import wall_offset
from holdfast.exceptions import ConfigurationError, clause
from holdfast.store.address import lacking_password, read_address
from holdfast.store.sql.dialects import (
    ENCODING_REMEDY,
    LOCK_KEY,
    NO_ENCODING,
    NO_TIMEOUTS,
    READ_ONLY_REMEDY,
    is_refusal,
    postgresql_remedy,
    refuses_login,
)
from holdfast.store.sql.postgresql_batch import is_unconfirmed

LEAST_VERSION: Final = 14
"""The first version with idle_session_timeout and client_connection_check_interval."""
CONNECT_SECONDS: Final = 2
LOCK_SECONDS: Final = 1.0
LOCK_ATTEMPTS: Final = 10
LOCK_PAUSE: Final = 0.03
"""Another node tries the lock for a moment when it declares this one dead."""
PROBE_SECONDS: Final = 2.0
_LONGEST_APPLICATION = 63
"""Bytes: PostgreSQL cuts off the rest (NAMEDATALEN), and sessions are found by that name."""
_OUTAGES = ("08", "25", "40", "53", "55", "57", "58", "F0", "XX")
"""Classes of errors that a retry may not meet: of connections, standbys, resources, locks, operators, the OS."""
_MISSING = (psycopg.errors.UndefinedTable, psycopg.errors.InvalidCatalogName)
"""Errors of a database that is being restored."""
TWO_CLUSTERS: Final = (
    "It was restored while a node was running. Stop all nodes, delete the rows of one identity from holdfast_cluster, "
    "or restore the copy again into an empty database."
)


class LeaseDatabase:
    """The session of one node in the database. One thread uses it at a time; :meth:`abort` is for any thread.

    Args:
        location: The URL of the database; its space names the cluster.
        node: The name of the node.
        url: Of the node's cluster listener.
        partitions: How many partitions the cluster has.
        policy: How long a lease lasts.
        secret: A digest of the secret that the nodes share.
        memory: What the node remembers; None: nothing but what this session sees.
        is_restored: Whether the operator restored the database from a copy.

    Raises:
        ConfigurationError: The location is not a URL of PostgreSQL.

    Attributes:
        warnings: What an operator should change at the server, as sentences.
    """

    def __init__(
        self,
        location: str,
        node: str,
        url: str,
        partitions: int,
        policy: LeasePolicy,
        secret: str = "",
        memory: NodeMemory | None = None,
        *,
        is_restored: bool = False,
    ) -> None:
        address = read_address(location)
        self.place, self._password_file = address.shown, address.password_file
        self._space = address.space
        self._values: dict[str, Any] = {
            "space": address.space,
            "node": node,
            "url": url,
            "lease": policy.lease,
            "secret": secret,
        }
        self._partitions = partitions
        self._conninfo = partial(conninfo_of, location, policy.silence, f"holdfast-node {address.space} {node}")
        self._conninfo()  # is the URL valid?
        self._settings = _settings(policy.silence)
        self._connection: psycopg.Connection[tuple[Any, ...]] | None = None
        self._is_locked = False
        self.warnings: tuple[str, ...] = ()
        self.has_created = False
        self._is_unconfirmed = self._is_silent = False
        self._memory = memory or NodeMemory(None, node)
        self._is_restored = is_restored
        if is_restored:
            self._memory.forget_batches()
        self._was_connected = self._has_stores = False
        self._session: tuple[int, str] | None = None
        self._earlier: tuple[int, str] | None = None
        """Process and start of this session and of the one that it replaces, in the server."""

    # --- the session ------------------------------------------------------------------------------------------------

    def run(self, request: Request) -> Answer:
        """Run a request; connect first if necessary.

        Raises:
            NoAnswer: The connection was lost or refused, or the database cannot run the request now.
            ClusterRefused: The database or the cluster refuses this node.
        """
        self._is_silent = False
        with self._explaining():
            connection = self._connected()
            answer = self._answer(connection, request)
            if self._is_unconfirmed:
                raise NoAnswer("the server stopped waiting for its standby")
            return answer

    def fileno(self) -> int | None:
        """Return the descriptor of the idle connection, which becomes readable when :meth:`notified` has something to
        report; None without a connection."""
        return None if self._connection is None else self._connection.fileno()

    def notified(self) -> bool:
        """Return whether another session changed the rows, without waiting.

        Raises:
            NoAnswer: The connection has ended.
        """
        with self._explaining():
            connection = self._connection
            return connection is not None and self._notified(connection, 0.0)

    def abort(self) -> None:
        """Let a running request fail. The server receives no request to cancel it, after which it would report a
        success that its standby does not have."""
        self._is_silent = True
        if (connection := self._connection) is not None:
            shut(connection)

    def close(self) -> None:
        """End the session; its lock ends with it."""
        connection, self._connection = self._connection, None
        self._is_locked = self._is_unconfirmed = False
        if connection is not None:
            connection.close()

    @contextlib.contextmanager
    def _explaining(self) -> Iterator[None]:
        try:
            yield
        except (NoAnswer, ClusterRefused):
            self.close()
            raise
        except psycopg.Error as error:
            was_connected = self._connection is not None
            self.close()
            said = " ".join(str(error).split()) or type(error).__name__
            if self._is_silent:  # else the driver would report that this process closed the connection
                found = clause(why_silent(self._conninfo()))
                raise NoAnswer(found[:1].lower() + found[1:] or "the database did not answer in time") from error
            if self._memory.cluster and isinstance(error, _MISSING):
                raise self._missing() from error
            trouble = lacking_password(self._password_file) if refuses_login(error.sqlstate or "", said) else None
            if trouble is not None:  # the password may come later
                raise NoAnswer(trouble.what, trouble.remedy) from error
            remedy = postgresql_remedy(error.sqlstate or "", said)
            if _is_final(error, said, was_connected or self._was_connected):
                raise ClusterRefused(
                    f"The database of the cluster at {self.place} refuses node {self._values['node']!r}: {said}",
                    remedy=remedy or "Correct the URL, or grant its user what is missing.",
                ) from error
            raise NoAnswer(said, remedy) from error

    def _connected(self) -> psycopg.Connection[tuple[Any, ...]]:
        if self._connection is not None:
            return self._connection
        connection = psycopg.connect(self._conninfo(), autocommit=True)
        self._connection = connection
        connection.add_notice_handler(self._noticed)
        if not self._was_connected:
            self._require_session(connection)
        connection.execute(NO_TIMEOUTS)
        for name, value in self._settings.items():
            connection.execute("SELECT set_config(%s, %s, false)", (name, value))
        self._check_server(connection)
        # Before the rows are read: a change in between would be missed.
        connection.execute(f"LISTEN {tables.CHANNEL}")
        self._check_cluster(connection)
        self._end_earlier_session(connection)
        return connection

    def _noticed(self, notice: psycopg.errors.Diagnostic) -> None:
        self._is_unconfirmed |= is_unconfirmed(notice)

    def _execute(
        self, connection: psycopg.Connection[tuple[Any, ...]], statement: str, **values: Any
    ) -> psycopg.Cursor[tuple[Any, ...]]:
        return connection.execute(statement.encode(), self._values | values)

    def _check_server(self, connection: psycopg.Connection[tuple[Any, ...]]) -> None:
        row = connection.execute(tables.SERVER.encode()).fetchone()
        assert row is not None
        version, is_standby, fsync, full_pages, pid, since = row
        if connection.info.parameter_status("server_encoding") == NO_ENCODING:
            raise ClusterRefused(
                f"The database of the cluster at {self.place} has no encoding.", remedy=ENCODING_REMEDY
            )
        if version < LEAST_VERSION * 10_000:
            raise ClusterRefused(
                f"The database of the cluster at {self.place} is PostgreSQL {version // 10_000}.",
                remedy=f"Use version {LEAST_VERSION} or newer.",
            )
        for name, value in (("fsync", fsync), ("full_page_writes", full_pages)):
            if value != "on":
                raise ClusterRefused(
                    f"The database of the cluster at {self.place} can lose commits in a crash: its {name} is off.",
                    remedy=f"Set {name} = on in postgresql.conf, and restart it.",
                )
        if is_standby:
            raise NoAnswer("the server is a standby, or read-only", READ_ONLY_REMEDY)
        self.warnings = read_warnings(connection, self._partitions)
        self._session, self._earlier = (pid, since), self._session

    def _end_earlier_session(self, connection: psycopg.Connection[tuple[Any, ...]]) -> None:
        """End the session that this one replaces, if the server has not noticed its end."""
        if self._earlier is not None:
            pid, since = self._earlier
            self._execute(connection, tables.END_SESSION, pid=pid, since=since)
            self._earlier = None

    def _check_cluster(self, connection: psycopg.Connection[tuple[Any, ...]]) -> None:
        """Create the cluster, or check that it is the one that this node expects."""
        are_there = connection.execute(tables.ARE_THERE.encode()).fetchone() == (True,)
        if not self._memory.cluster:
            self._create(connection, are_there=are_there)
            are_there = True
        rows = self._execute(connection, tables.CLUSTER).fetchall() if are_there else []
        if not rows:
            raise self._missing()
        if len(rows) > 1:
            raise ClusterRefused(f"The cluster at {self.place} has {len(rows)} identities.", remedy=TWO_CLUSTERS)
        self._require_same(*rows[0])
        if not self._was_connected:
            self._probe(connection)
        batches = self._batches(connection)
        if self._is_restored:
            self._write_went_back(connection, tables.ACCEPT_COPY)
        elif lost := self._memory.lost(batches):
            more = f"; and {len(lost) - 3} more" if len(lost) > 3 else ""
            said = f"{'; '.join(lost[:3])}{more}"
            self._write_went_back(connection, tables.RECORD_WENT_BACK, lost=f"node {self._values['node']}: {said}")
            raise self._older_copy(said)
        self._require_newest(connection)
        self._was_connected, self._is_restored = True, False
        self._memory.meet(rows[0][0], batches, time.monotonic())

    def _require_newest(self, connection: psycopg.Connection[tuple[Any, ...]]) -> None:
        """Check that no node has found that the database went back to an older copy."""
        (lost,) = self._one(connection, tables.WENT_BACK)
        if lost:
            raise self._older_copy(f"found by {lost}")

    def _older_copy(self, why: str) -> ClusterRefused:
        return ClusterRefused(
            f"The database of the cluster at {self.place} went back to an older copy: {clause(why)}.",
            remedy="Restore the newest copy if there is one. Otherwise start each node once with --restored.",
        )

    def _write_went_back(self, connection: psycopg.Connection[tuple[Any, ...]], statement: str, **values: str) -> None:
        (lacks_column,) = self._one(connection, tables.LACKS_WENT_BACK)
        try:
            # Another user may own a table without the column. Then each node finds the older copy for itself.
            with contextlib.suppress(psycopg.errors.InsufficientPrivilege), connection.transaction():
                if lacks_column:
                    connection.execute(tables.CREATION_LOCK.encode())
                    connection.execute(tables.ADD_WENT_BACK.encode())
                self._execute(connection, statement, **values)
        except psycopg.errors.LockNotAvailable as error:
            what = "the operator accepts this copy" if self._is_restored else "the database went back to an older copy"
            raise NoAnswer(
                f"another session locks holdfast_cluster, in which this node must record that {what}"
            ) from error
        self._execute(connection, tables.NOTIFY)

    def _batches(self, connection: psycopg.Connection[tuple[Any, ...]]) -> Batches:
        """Return the epoch and the last batch of each partition's store."""
        self._has_stores = self._has_stores or connection.execute(tables.HAS_STORES.encode()).fetchone() == (True,)
        if not self._has_stores:
            return {}
        numbers = {space_of(self._space, one).encode(): one for one in range(self._partitions)}
        rows = self._execute(connection, tables.BATCHES, names=list(numbers)).fetchall()
        return {numbers[bytes(name)]: (epoch, serial) for name, epoch, serial in rows}

    def _missing(self) -> NoAnswer:
        file = self._memory.file
        what = f"the cluster {self._memory.cluster} is not in the database, which is empty or being restored"
        return NoAnswer(what, f"To create a new one, stop the nodes and delete {file} of each." if file else "")

    def _create(self, connection: psycopg.Connection[tuple[Any, ...]], *, are_there: bool) -> None:
        """Create the cluster if it does not exist. Only a node that has never been in one does that."""
        with connection.transaction():
            # For the rows too: two clusters that are founded at the same time would not see each other's.
            connection.execute(tables.CREATION_LOCK.encode())
            if not are_there:
                connection.execute(tables.CREATE.encode())
            if self._execute(connection, tables.FOUND_CLUSTER, partitions=self._partitions).fetchone() is not None:
                for space, partitions in self._execute(connection, tables.OTHER_CLUSTERS).fetchall():
                    if common := spaces_of(space, partitions) & spaces_of(self._space, self._partitions):
                        raise ClusterRefused(
                            f"The cluster at {self.place} would share the space {min(common)} with that of {space}.",
                            remedy="Use another space of the database: ?space=NAME",
                        )
                self._execute(connection, tables.FOUND_OWNERSHIP, partitions=self._partitions)
                self.has_created = True

    def _require_same(self, cluster: str, partitions: int, version: int, is_same_server: bool) -> None:
        if version != tables.FORMAT:
            raise ClusterRefused(
                f"The tables of the cluster at {self.place} have version {version}, but this version of Holdfast "
                f"writes {tables.FORMAT}.",
                remedy="Use the version of Holdfast that the other nodes have."
                if version > tables.FORMAT
                else "Use an older version of Holdfast until the queues are empty, and start a new cluster in another "
                "space: ?space=NAME",
            )
        if partitions != self._partitions:
            raise ClusterRefused(
                f"The cluster at {self.place} has {partitions} partitions, but this node is configured for "
                f"{self._partitions}.",
                remedy=f"Set {partitions}: the number is fixed when a cluster is created.",
            )
        if not is_same_server:
            raise ClusterRefused(
                f"The cluster at {self.place} belongs to another server: this one may be a copy.",
                remedy="If you moved the database, and no node uses the old server: UPDATE holdfast_cluster SET "
                "system_identifier = NULL",
            )
        known = self._memory.cluster
        if known and cluster != known and not self._is_restored:
            raise ClusterRefused(
                f"The cluster at {self.place} is {cluster}, but this node belongs to {known}: the database was "
                "replaced, or restored while a node was running.",
                remedy="If it holds the right copy, start the node again, with --restored. Otherwise restore the copy, "
                "with all nodes stopped.",
            )

    def _require_session(self, connection: psycopg.Connection[tuple[Any, ...]]) -> None:
        """Check that this is a session of the server: a pooler of transactions gives the process that served one
        connection to the next one with a transaction."""
        mine = connection.execute("SELECT pg_backend_pid()").fetchone()
        with psycopg.connect(self._conninfo()) as other:
            is_pooled = other.execute("SELECT pg_backend_pid()").fetchone() == mine
            is_pooled = is_pooled or connection.execute("SELECT pg_backend_pid()").fetchone() != mine
        if is_pooled:
            raise self._pooled()

    def _pooled(self) -> ClusterRefused:
        return ClusterRefused(
            f"The database of the cluster at {self.place} is behind a pooler that keeps no sessions.",
            remedy="Give the address of the database itself, or pool sessions instead of transactions.",
        )

    def _probe(self, connection: psycopg.Connection[tuple[Any, ...]]) -> None:
        """Check that a notification to this session arrives: some poolers would give it to another one."""
        self._execute(connection, tables.NOTIFY)
        until = time.monotonic() + PROBE_SECONDS
        while time.monotonic() < until:
            for one in connection.notifies(timeout=until - time.monotonic(), stop_after=1):
                if one.pid == connection.info.backend_pid or one.payload == self._space:
                    return
        raise self._pooled()

    def _notified(self, connection: psycopg.Connection[tuple[Any, ...]], timeout: float) -> bool:
        mine = self._session[0] if self._session is not None else 0
        told = list(connection.notifies(timeout=timeout))  # all of them
        return any(one.payload == self._space and one.pid != mine for one in told)

    # --- the requests -----------------------------------------------------------------------------------------------

    def _answer(self, connection: psycopg.Connection[tuple[Any, ...]], request: Request) -> Answer:
        match request:
            case Enter():
                (has_row,) = self._one(connection, tables.HAS_ROW)
                return Entered(self._lock(connection), bool(has_row))
            case Join():
                return self._join(connection, request)
            case Look():
                return self._look(connection, request)
            case Declare():
                statement = tables.DECLARE_EXPIRED if request.unrenewed is None else tables.DECLARE_UNLOCKED
                values = {"node": request.name, "incarnation": request.incarnation, "unrenewed": request.unrenewed}
                is_dead = self._execute(connection, statement, **values).rowcount > 0
                if is_dead:
                    self._execute(connection, tables.NOTIFY)
                return is_dead
            case Claim():
                return self._claim(connection, request)
            case Release():
                claims = {"partitions": list(request.claims), "epochs": list(request.claims.values())}
                self._execute(connection, tables.RELEASE, incarnation=request.incarnation, **claims)
            case Drain():
                self._execute(connection, tables.DRAIN, incarnation=request.incarnation)
            case Tell():
                values = {"incarnation": request.incarnation, "report": request.report.to_json()}
                self._execute(connection, tables.TELL, **values)
                return None  # others see it at their next look
            case Leave():
                batches = self._batches(connection)
                is_gone = self._execute(connection, tables.LEAVE, incarnation=request.incarnation).rowcount > 0
                if is_gone and not self._is_unconfirmed:  # this commit is durable, and so is every earlier one
                    self._memory.keep(batches)
        self._execute(connection, tables.NOTIFY)
        return None

    def _one(self, connection: psycopg.Connection[tuple[Any, ...]], statement: str, **values: Any) -> tuple[Any, ...]:
        row = self._execute(connection, statement, **values).fetchone()
        if row is None:
            raise self._missing()
        return row

    def _lock(self, connection: psycopg.Connection[tuple[Any, ...]]) -> bool:
        """Return whether this session has the lock of the node's name; try to get it."""
        attempts = LOCK_ATTEMPTS
        while not self._is_locked and attempts:
            (self._is_locked,) = self._one(connection, tables.LOCK)
            attempts -= 1
            if not self._is_locked and attempts:
                time.sleep(LOCK_PAUSE)
        return self._is_locked

    def _join(self, connection: psycopg.Connection[tuple[Any, ...]], request: Join) -> int:
        if not self._lock(connection):
            raise NoAnswer("another session has the lock of this node's name")
        (others,) = self._one(connection, tables.COUNT_OTHERS)
        if others >= MOST_NODES:
            raise ClusterRefused(
                f"The cluster at {self.place} has {others} nodes, which is the maximum.", remedy="Use fewer nodes."
            )
        with connection.transaction():
            (incarnation,) = self._one(connection, tables.NEXT_INCARNATION)  # one join after the other
            (stranger,) = self._one(connection, tables.OTHER_SECRET)
            if stranger is not None:
                raise ClusterRefused(
                    f"The secret of this node differs from that of node {stranger} of the cluster at {self.place}, or "
                    "only one of the two uses TLS between nodes.",
                    remedy="Give all nodes the same secret file, and TLS to all or none. Stop all nodes to change it.",
                )
            self._execute(connection, tables.JOIN, incarnation=incarnation, is_draining=request.is_draining)
        self._execute(connection, tables.NOTIFY)
        return int(incarnation)

    def _look(self, connection: psycopg.Connection[tuple[Any, ...]], request: Look) -> Picture:
        before, is_locked = time.monotonic(), self._lock(connection)
        # A promoted standby has a new timeline: see Picture.may_declare.
        self._execute(connection, tables.NEW_TIMELINE)
        self._require_newest(connection)
        if request.renews and is_locked:
            self._execute(connection, tables.RENEW, incarnation=request.incarnation)
            self._memory.see(self._memory.cluster, self._batches(connection), time.monotonic())
        may_declare, nodes, ownership, clock = self._one(connection, tables.LOOK)
        rows = tuple(NodeRow(*map(_tuple, node)) for node in nodes)
        is_member = any((node.name, node.incarnation) == (self._values["node"], request.incarnation) for node in rows)
        if is_member and not is_locked:
            raise NoAnswer("another session has the lock of this node's name")
        owners = tuple(OwnershipRow(*row) for row in ownership)
        return Picture(is_member, may_declare, rows, owners, (before, clock, time.monotonic(), wall_offset()))

    def _claim(self, connection: psycopg.Connection[tuple[Any, ...]], request: Claim) -> Mapping[int, int]:
        values = {
            "partitions": list(request.partitions),
            "wishes": list(request.wishes),
            "most": request.most,
            "incarnation": request.incarnation,
        }
        try:
            with connection.transaction():
                self._execute(connection, tables.CLAIM_LOCK)
                rows = self._execute(connection, tables.CLAIM, **values).fetchall()
        except psycopg.errors.LockNotAvailable:  # a node was paused in its claim; the server ends that session soon
            return {}
        taken_over = [space_of(self._space, partition) for partition, _, before in rows if before]
        if taken_over:
            self._end_sessions(connection, taken_over)
        self._execute(connection, tables.NOTIFY)
        return {partition: epoch for partition, epoch, _ in rows}

    def _end_sessions(self, connection: psycopg.Connection[tuple[Any, ...]], spaces: list[str]) -> None:
        """End the sessions of the earlier owner, which may be paused with locks that a new worker needs."""
        keys = [connection.execute(f"SELECT {LOCK_KEY}".encode(), (space,)).fetchone() for space in spaces]
        applications = [f"holdfast {space}"[:_LONGEST_APPLICATION] for space in spaces]
        values = {"applications": applications, "keys": [key[0] for key in keys if key is not None]}
        connection.execute(tables.END_SESSIONS.encode(), values)


def conninfo_of(location: str, silence: float, application: str) -> str:
    """Return the connection string of a database for psycopg, with what the password's file contains now.

    Args:
        location: The URL of the database.
        silence: Seconds after which a connection without an answer ends.
        application: The name of the connection in the server.

    Raises:
        ConfigurationError: The location is not a URL of PostgreSQL.
    """
    address = read_address(location)
    if address.database != "postgresql":
        raise ConfigurationError(
            f"{address.shown!r} is not the URL of a PostgreSQL database",
            remedy="A cluster needs PostgreSQL: postgresql://user@host/database",
        )
    dialect: Any = PGDialect_psycopg
    _, given = dialect().create_connect_args(make_url(address.url))
    seconds = max(2, round(silence))
    ours: dict[str, Any] = {
        "connect_timeout": CONNECT_SECONDS,
        "client_encoding": "utf8",  # otherwise a database without an encoding sends texts as bytes
        "application_name": application[:_LONGEST_APPLICATION],
        "keepalives_idle": 1,
        "keepalives_interval": 1,
        # One probe a second, so as many as the silence has seconds.
        "keepalives_count": seconds,
        "tcp_user_timeout": round(silence * 1000),
    }
    if (password := address.password()) is not None:
        given["password"] = password
    return make_conninfo(**{**ours, **given})


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _settings(silence: float) -> dict[str, str]:
    """Return the settings of the session: the server ends it, and frees its lock, when the node is silent."""
    seconds = str(max(2, round(silence)))
    return {
        # Whatever the server's default is: a crash must not undo a lease or a claim.
        "synchronous_commit": "on",
        "tcp_keepalives_idle": "1",
        "tcp_keepalives_interval": "1",
        "tcp_keepalives_count": seconds,
        "tcp_user_timeout": str(round(silence * 1000)),
        # Without it, the server notices the end of its client only after the statement, which may wait for a lock.
        "client_connection_check_interval": "500",
        "idle_in_transaction_session_timeout": "2000",
        "idle_session_timeout": str(round(silence * 1000)),
        "lock_timeout": str(round(LOCK_SECONDS * 1000)),
    }


def is_outage(error: psycopg.Error) -> bool:
    """Whether an error says that the server cannot run a statement now, rather than that it never can."""
    return (error.sqlstate or "08").startswith(_OUTAGES)


def _is_final(error: psycopg.Error, said: str, was_connected: bool) -> bool:
    """Whether every later attempt would meet the same error."""
    if error.sqlstate:
        return not is_outage(error)
    return not was_connected and is_refusal(said)
