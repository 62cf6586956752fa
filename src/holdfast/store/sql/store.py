"""A store in a database: PostgreSQL, MariaDB or MySQL. Knows records and batches, but no protocol rules.

A database holds many **spaces**, one for each endpoint or broker, and one process at a time has a space open. The
space's row counts the openings (``epoch``) and the batches (``serial``). Each batch is written on the condition that
both have the values that this process knows, and adds one to the serial. So a process never overwrites the data of
another process that took the space over. If the answer to a commit is lost, the serial shows after a reconnection
whether that batch was written.

The bounds of partitions and the held numbers are in memory, as in the embedded store: no other process changes them.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar, cast

from sqlalchemy import Connection, Engine, create_engine, event, func, insert, select, update
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, IntegrityError, NoSuchModuleError, SQLAlchemyError

from holdfast.core.records import Batch, Record, Snapshot
from holdfast.exceptions import (
    ConfigurationError,
    HoldfastError,
    StoreAway,
    StoreDamaged,
    StoreError,
    StoreFailed,
    StoreFormatError,
    StoreLocked,
    StoreMissing,
    clause,
)
from holdfast.outages import Trouble
from holdfast.store.address import lacking_password, read_address
from holdfast.store.base import Reads
from holdfast.store.content import Content
from holdfast.store.plan import BATCH_REMEDY, Where
from holdfast.store.sql import fence as sql_fence
from holdfast.store.sql import schema as schema
from holdfast.store.sql.changes import EnqueuedRecord, SQLChanges
from holdfast.store.sql.content import find_content, snapshot_of
from holdfast.store.sql.contents import SQLContents
from holdfast.store.sql.dialects import SCHEMA_LOCK, Fenced, dialect_of, may_pass, said
from holdfast.store.sql.message_ids import keep
from holdfast.store.sql.records import StoredRecords
from holdfast.store.sql.schema import SPACE_SHIFT
from holdfast.store.sql.transaction import Transaction

_Result = TypeVar("_Result")

LOCK_SECONDS = 10.0
"""Seconds to wait for a space that another process has open. Within that time the server notices that a killed process
is gone."""
TRANSACTIONS = 5  # idle connections for transactions of applications
_FIRST_PAUSE = 0.05
_LONGEST_PAUSE = 2.0
_AGAIN = "Acknowledged messages are stored. Check the database, then start again."


class SQLStore(Reads):
    """A :class:`~holdfast.store.base.Store` in a database.

    Args:
        location: The database's URL. ``space=NAME`` selects the space. ``patience=SECONDS`` limits the retries while
            the database does not answer, until :meth:`retry_for` is called.
        read_only: Open the current content for reading, even if another process has it open; nothing is changed.

    Raises:
        ConfigurationError: The URL is invalid.
        StoreLocked: Another process, or this one, has the space open.
        StoreFormatError: The tables have a newer version or, if read-only, an older one; they are unchanged.
        StoreMissing: If read-only: there is no store.
        StoreFailed: The database refuses a necessary operation. StoreAway: it is unreachable or starting.

    Attributes:
        place: The database and space, for people.
        trouble: Why callers should store no new messages: the database does not answer, and the store retries;
            otherwise None.
        reconnections: How often the store reopened the connection that commits.
    """

    reads_at_once = False
    epoch = 0

    def __init__(self, location: str, *, read_only: bool = False) -> None:
        self.location = location
        """Its URL with the password: never show it."""
        self._address = read_address(location)
        self.place = self._address.shown
        self.trouble: Trouble | None = None
        self.reconnections = 0
        self.space = 0
        self._on_batch: Callable[[int, int], None] | None = None
        self._dialect = dialect_of(self._address.database)
        self._parts: dict[Where | str, int] = {}
        self._last_part = 0
        self.content: Content[int] = Content(self._parts.__getitem__)
        self._failure: BaseException | None = None
        self._is_in_doubt = False
        self._is_read_only = read_only
        self._closed = threading.Event()
        # Held from the write of a batch until readers may see it; a reader that misses a record looks again under it.
        self._committing = threading.RLock()
        self._writer: Connection | None = None
        self._raw: Any = None
        # Also for transactions of applications, which end with the space's row and must read its latest version.
        self.engine = self._make_engine(isolation_level="READ COMMITTED", pool_size=TRANSACTIONS, max_overflow=-1)
        # One connection, for which its users wait in turn: a server has few, and a cluster has many stores.
        one: dict[str, Any] = {"pool_size": 1, "max_overflow": 0, "pool_timeout": None, "isolation_level": "AUTOCOMMIT"}
        self._records = StoredRecords(single := self._make_engine(skip_autocommit_rollback=True, **one))
        self.contents = SQLContents(single, lambda: self.space, lambda: self.epoch, self._trying, self.place)
        try:
            with self._explaining("opened"):
                self._open_view() if read_only else self._open()
                self._close_idle()
                if not read_only:
                    self.contents.is_named = self._is_named
                    self.contents.sweep()
                    self._close_idle()
        except BaseException:
            self.close()
            raise

    def _make_engine(self, **options: Any) -> Engine:
        try:
            url = make_url(self._address.url)
            arguments = self._dialect.arguments(url, f"holdfast {self._address.space}")
            engine = create_engine(url, connect_args=arguments, hide_parameters=True, **options)
        except (ArgumentError, NoSuchModuleError, ValueError, TypeError) as error:
            raise ConfigurationError(
                f"{self.place!r} is not the URL of a database.",
                remedy="Example: postgresql://user@host/database?space=orders",
            ) from error
        event.listen(engine, "do_connect", self._log_in)
        event.listen(engine, "connect", lambda connection, _record: self._dialect.begin(connection))
        return engine

    def _log_in(self, _dialect: Any, _record: Any, _arguments: Any, options: dict[str, Any]) -> None:
        if (password := self._address.password()) is not None:
            options["password"] = password

    # --- opening --------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        with self.engine.connect() as connection:
            self._dialect.require_durable(connection, self.place)
            schema.require_known(schema.found_version(connection), self.place)
            self._prepare(connection)
        self.space = self._find_space()
        self._writer = self._connect_writer()
        if not self._dialect.lock(self._writer, self._address.space, LOCK_SECONDS):
            raise self._locked()
        self._take_space()
        with self._snapshot() as connection:
            self._find_content(connection)
            self.went_back = sql_fence.mark_of(connection, self.space)

    def _prepare(self, connection: Connection) -> None:
        """Create or upgrade the tables; one process at a time."""
        if not self._dialect.lock(connection, SCHEMA_LOCK, 6 * LOCK_SECONDS):
            raise StoreLocked(
                f"Another process is changing the tables of the store at {self.place}.", remedy="Retry later."
            )
        try:
            schema.prepare(connection, self.place)
            connection.commit()
        finally:
            connection.rollback()
            self._dialect.unlock(connection, SCHEMA_LOCK)
            connection.commit()

    def _connect_writer(self) -> Connection:
        connection = self.engine.connect()
        try:
            connection.execution_options(isolation_level=self._dialect.isolation)
            self._raw = connection.connection.dbapi_connection
            # Outside the pool: the advisory lock lasts as long as the connection.
            connection.detach()
            return connection
        except BaseException:
            connection.close()
            raise

    def _find_space(self) -> int:
        """Return the space's number; create a new space if necessary."""
        name, table = self._address.space.encode(), schema.spaces
        for _ in range(20):  # several processes may create theirs at once: all but one of them retry
            try:
                with self.engine.begin() as connection:
                    found: int | None = connection.scalar(select(table.c.id).where(table.c.name == name))
                    if found is not None:
                        return found
                    number = (connection.scalar(select(func.max(table.c.id))) or 0) + 1
                    row = {"name": name, "id": number, "epoch": 0, "serial": 0, "holder": "", "opened_at": 0.0}
                    connection.execute(insert(table).values(row))
                    return number
            except IntegrityError:
                continue
        raise StoreFailed(f"The space of the store at {self.place} could not be created.", remedy="Try again.")

    def _take_space(self) -> None:
        """Begin the next epoch; from then on, the previous owner of the space cannot write to it."""
        table = schema.spaces
        holder = f"process {os.getpid()} on {socket.gethostname()}"[:200]
        mine = table.c.id == self.space
        with self.engine.begin() as connection:
            connection.execute(
                update(table).where(mine).values(epoch=table.c.epoch + 1, holder=holder, opened_at=time.time())
            )
            self.epoch, self.content.serial = connection.execute(
                select(table.c.epoch, table.c.serial).where(mine)
            ).one()

    def _locked(self) -> StoreLocked:
        table = schema.spaces
        with self.engine.begin() as connection:
            holder, since = connection.execute(
                select(table.c.holder, table.c.opened_at).where(table.c.id == self.space)
            ).one()
        when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(since))
        return StoreLocked(
            f"The store at {self.place} is already open: by {holder or 'another process'}, since {when}.",
            remedy="Stop that process first. To run both, give each its own space: ?space=NAME",
        )

    def _open_view(self) -> None:
        with self._snapshot() as connection:
            found = schema.found_version(connection)
            schema.require_known(found, self.place)
            if found is None:
                raise self._missing_store()
            if found < schema.SCHEMA:
                raise StoreFormatError(
                    f"The tables of the store at {self.place} have version {found}, but need {schema.SCHEMA}.",
                    remedy="Open it once for writing, which upgrades them.",
                )
            table = schema.spaces
            space = connection.scalar(select(table.c.id).where(table.c.name == self._address.space.encode()))
            if space is None:
                raise self._missing_store()
            self.space = space
            self._find_content(connection)

    def _missing_store(self) -> StoreMissing:
        return StoreMissing(f"There is no store at {self.place}.", remedy="Check the database and the space.")

    @contextlib.contextmanager
    def _snapshot(self) -> Iterator[Connection]:
        """Yield a connection that sees one snapshot of the database."""
        with self.engine.connect() as connection:
            connection.execution_options(isolation_level="REPEATABLE READ")
            with connection.begin():
                yield connection

    def _close_idle(self) -> None:
        """Close all idle connections but the one that commits: many stores need no other one soon."""
        self.engine.dispose()
        self._records.close()

    # --- content --------------------------------------------------------------------------------------------------

    def _find_content(self, connection: Connection) -> None:
        self._parts, self.content = find_content(connection, self.space, self.content.serial)
        self._last_part = max(self._parts.values(), default=self.space << SPACE_SHIFT)

    def load(self) -> Snapshot:
        self._require_certainty()
        try:
            return self._trying(self._load)
        finally:
            self._close_idle()

    def _is_named(self, content: bytes) -> bool:
        """Whether a record may name a content: after a failed write, the store does not know."""
        return self._failure is not None or self.content.references.is_named(content)

    def _load(self) -> Snapshot:
        with self._snapshot() as connection:
            if self._is_read_only:
                self._find_content(connection)
            return snapshot_of(connection, self.space, self.content)

    # --- writing --------------------------------------------------------------------------------------------------

    def part_of(self, name: Where | str) -> int | None:
        return self._parts.get(name)

    def new_part(self, name: Where | str) -> int:
        """Assign a part to an object without one."""
        self._last_part += 1
        self._parts[name] = self._last_part
        return self._last_part

    def commit(self, batch: Batch) -> None:
        """See :meth:`Store.commit`. If the database does not answer, the store retries for the patience of the URL, or
        as :meth:`retry_for` says."""
        self._require_open()
        with self._committing, self._ending():
            changes = SQLChanges(self, batch)
            self._write(changes)
            self._take_over(changes)

    def _require_open(self) -> None:
        if self._failure is not None:
            raise StoreFailed(
                f"The store at {self.place} failed earlier and accepts no further batches.", remedy=_AGAIN
            ) from self._failure
        if self._closed.is_set() or self._is_read_only:
            raise StoreError(f"The store at {self.place} is not open for writing.", remedy="Open it for writing.")

    @contextlib.contextmanager
    def _ending(self) -> Iterator[None]:
        """Mark the store as failed if the block raises."""
        try:
            yield
        except BaseException as error:
            self._failure = error
            if not isinstance(error, Exception) or isinstance(error, HoldfastError):
                raise
            told = f"A batch cannot be stored: {clause(error)}. Nothing of it was written."
            raise StoreFailed(told, remedy=BATCH_REMEDY) from error

    def call_with_batches(self, function: Callable[[int, int], None]) -> None:
        """See :class:`holdfast.store.Counted`."""
        self._on_batch = function
        function(self.epoch, self.content.serial)

    def _take_over(self, changes: SQLChanges) -> None:
        changes.take_over()
        self.contents.no_longer_named(changes.unnamed)
        if self._on_batch is not None:
            self._on_batch(self.epoch, self.content.serial)
        for name in changes.gone:
            self._parts.pop(name, None)

    def _write(self, changes: SQLChanges) -> None:
        """Write the batch exactly once, even if the connection is lost."""
        fence = (self.space, self.epoch, self.content.serial)

        def write() -> None:
            if self._writer is None and self._reconnect() == fence[2] + 1:
                return  # the batch was written, and only the answer was lost
            assert self._writer is not None
            # From here on the database may have the batch, whatever comes back.
            self._is_in_doubt = True
            try:
                self._dialect.write(self._writer, fence, changes.writes)
            except Fenced:
                self._is_in_doubt = False
                self._drop_writer()
                raise self._refused() from None
            except DBAPIError as error:
                self._is_in_doubt = error.connection_invalidated
                self._drop_writer()
                raise
            self._is_in_doubt = False

        self._trying(write, "be written")
        self._is_in_doubt = False

    def _drop_writer(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            _end(writer, self._raw)

    def _reconnect(self) -> int:
        """Reconnect with the lock, wait until the lost connection's transaction has ended, and return the serial."""
        connection = self._connect_writer()
        self._dialect.is_unconfirmed = False
        try:
            is_locked = self._dialect.lock(connection, self._address.space, LOCK_SECONDS)
            table = schema.spaces
            # With the row's lock: the transaction of the lost connection may still be committing.
            mine = select(table.c.serial).where(table.c.id == self.space)
            serial: int | None = connection.scalar(mine.with_for_update())
            refused = sql_fence.refusal(connection, self.space, self.epoch, self.content.serial, self.place)
            connection.commit()
            if refused is not None:
                raise refused
            if not is_locked:
                raise _Unsettled(f"the lock of the space is still taken: {self._locked().message}")
            if self._dialect.is_unconfirmed:  # the row's lock is a commit too, and waits for the standby
                raise _Unsettled("the wait for the synchronous standby was cancelled")
        except BaseException:
            _end(connection, self._raw)
            raise
        self._writer = connection
        self.reconnections += 1
        assert serial is not None  # without a serial, the batch was refused
        return serial

    def _refused(self) -> StoreFailed:
        return self._refusal() or StoreFailed(f"The store at {self.place} refused a batch.", remedy=_AGAIN)

    def _refusal(self) -> StoreFailed | None:
        def look() -> StoreFailed | None:
            with self.engine.begin() as connection:
                return sql_fence.refusal(connection, self.space, self.epoch, self.content.serial, self.place)

        return self._trying(look)

    def forget_went_back(self) -> None:
        def forget() -> None:
            with self.engine.begin() as connection:
                sql_fence.forget(connection, self.space)

        self._trying(forget, "be written")
        self.went_back = ""

    # --- transactions of others ---------------------------------------------------------------------------------

    def begin(self) -> Transaction:
        """Return a transaction of the database for the application's work, which a batch may complete.

        Raises:
            StoreFailed: The database does not answer for longer than the patience.
        """
        find_all = self._dialect.find_all
        return self._trying(lambda: Transaction(self.engine, find_all, self.commit_within), "begin a transaction")

    def commit_within(self, connection: Connection, batch: Batch) -> None:
        """Write the batch as the last part of a connection's open transaction, and commit; called like :meth:`commit`.

        Raises:
            StoreFailed: The same as for :meth:`commit`. The connection is closed.
        """
        self._require_open()
        with self._committing, self._ending():
            changes = SQLChanges(self, batch)
            fence = (self.space, self.epoch, self.content.serial)
            self._is_in_doubt = True
            try:
                self._dialect.write(connection, fence, changes.writes, is_within=True)
                connection.commit()
                if self._dialect.is_unconfirmed:
                    raise SQLAlchemyError("the wait for the synchronous standby was cancelled")
            except Fenced:
                connection.invalidate()  # it locks the row of the space
                raise self._refused() from None
            except (SQLAlchemyError, self._raised) as error:
                # The transaction may still be open and lock the row of the space, so drop this connection first.
                connection.invalidate()
                self._drop_writer()
                if self._trying(self._reconnect, "be written") == fence[2]:
                    self._is_in_doubt = False
                    why = said(error if isinstance(error, SQLAlchemyError) else self._wrapped(error))
                    raise StoreFailed(
                        f"The store at {self.place} could not commit a handler's transaction: {clause(why)}. The "
                        "transaction is rolled back.",
                        remedy="Start again: the handler receives the message again.",
                    ) from error
            self._is_in_doubt = False
            self._take_over(changes)

    def enqueued(self, limit: int, max_bytes: int = 1 << 20) -> list[EnqueuedRecord]:
        """See :meth:`Transactional.enqueued`."""
        return self._trying(lambda: self._records.enqueued(self.space, limit, max_bytes))

    def count_enqueued(self) -> int:
        """See :meth:`Transactional.count_enqueued`."""
        with self._explaining("read"):
            return self._records.count_enqueued(self.space)

    def keep_message_ids(self) -> None:
        """See :meth:`Transactional.keep_message_ids`."""
        with self._explaining("prepared for MessageIDs of transactions"):
            keep(self.engine, self._dialect, self.space)

    # --- reading --------------------------------------------------------------------------------------------------

    def read_encoded(
        self, queue: str, partition: int, start: int, end: int, max_bytes: int = 1 << 20
    ) -> list[tuple[int, bytes]]:
        where = (queue, partition)
        found = self._trying(lambda: self._read_dense(where, start, end, max_bytes))
        if found is None and self._is_read_only:
            self.load()  # the process that has it open has deleted records since
            found = self._trying(lambda: self._read_dense(where, start, end, max_bytes))
        elif found is None:
            # A commit that deletes records publishes this only after it is durable. Damage remains afterwards.
            with self._committing:
                found = self._trying(lambda: self._read_dense(where, start, end, max_bytes))
        if found is None:
            self._require_certainty()
            raise self._missing(f"a record of partition {partition} of {queue!r} is missing from offset {start} on.")
        return found

    def _read_dense(self, where: Where, start: int, end: int, max_bytes: int) -> list[tuple[int, bytes]] | None:
        one = self.content.partitions.get(where)
        return [] if one is None else self._records.dense(one, start, end, max_bytes)

    def held(self, sequence: str, numbers: list[int]) -> list[Record]:
        """Return held messages of a Sequence; see :meth:`RocksDBStore.held`."""
        return [self._read_record(data) for data in self.read_held([(sequence, number) for number in numbers])]

    def read_held(self, held: list[tuple[str, int]]) -> list[bytes]:
        found = self._trying(lambda: self._records.held(self._parts, held))
        for (sequence, number), data in zip(held, found, strict=True):
            if data is None:
                raise self._missing(f"the held message {number} of {sequence} is missing.")
        return [data for data in found if data is not None]

    # --- trouble --------------------------------------------------------------------------------------------------

    def _trying(self, call: Callable[[], _Result], what: str = "be read") -> _Result:
        """Retry within the patience, or as :meth:`retry_for` says, while the database is away, full or busy."""
        since, pause = time.monotonic(), _FIRST_PAUSE
        while True:
            try:
                result = call()
            except (SQLAlchemyError, _Unsettled, self._raised) as found:
                error = found if isinstance(found, SQLAlchemyError | _Unsettled) else self._wrapped(found)
                is_passing = isinstance(error, _Unsettled) or may_pass(self._dialect, error)
                if not is_passing or not self._may_retry(since, self._address.patience) or self._closed.is_set():
                    raise self._failed(error, f"could not {what}") from found
                why, remedy = str(error), ""
                if isinstance(error, SQLAlchemyError):
                    why, remedy = said(error), self._dialect.remedy(error)
                why = f"The database of the store at {self.place} failed: {why}"
                self.trouble = Trouble(why, remedy or "Check the database.")
                # Not a sleep: a close ends it.
                self._closed.wait(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
            else:
                self.trouble = None
                return result

    @contextlib.contextmanager
    def _explaining(self, what: str) -> Iterator[None]:
        try:
            yield
        except (SQLAlchemyError, self._raised) as found:
            error = found if isinstance(found, SQLAlchemyError) else self._wrapped(found)
            failed = self._failed(error, f"could not be {what}")
            file = self._address.password_file
            trouble = lacking_password(file) if self._dialect.refuses_login(error) else None
            if trouble is not None:  # the password may come later
                failed = StoreFailed(f"The store at {self.place} waits: {trouble.what}.", remedy=trouble.remedy)
            if trouble is not None or self._dialect.is_passing(error):
                failed = StoreAway(failed.message, remedy=failed.remedy, patience=self._address.patience)
            raise failed from found

    @property
    def _raised(self) -> type[Exception]:
        """The driver's base exception, which SQLAlchemy sometimes passes on unchanged."""
        kind: type[Exception] = self.engine.dialect.loaded_dbapi.Error
        return kind

    def _wrapped(self, error: Exception) -> DBAPIError:
        is_lost = self.engine.dialect.is_disconnect(cast(Any, error), None, None)
        return DBAPIError("", None, error, hide_parameters=True, connection_invalidated=is_lost)

    def _failed(self, error: Exception, what: str) -> StoreFailed:
        if not isinstance(error, SQLAlchemyError):
            return StoreFailed(f"The store at {self.place} {what}: {error}", remedy=_AGAIN)
        remedy = self._dialect.remedy(error) or "Check that the database is running and reachable, then start again."
        return StoreFailed(f"The store at {self.place} {what}: {said(error)}", remedy=remedy)

    def _missing(self, what: str) -> StoreError:
        """Return the error for a missing record, which the next owner of the space may have deleted rightly."""
        told = f"The store at {self.place} is damaged: {what}"
        with self._committing:
            refused = None if self._is_read_only else self._refusal()
        return refused or StoreDamaged(told, remedy="Restore the database from a copy.")

    def _require_certainty(self) -> None:
        if self._is_in_doubt and self._failure is not None:
            raise StoreFailed(
                f"The store at {self.place} failed during a write, so it is unknown what became durable.", remedy=_AGAIN
            ) from self._failure

    def close(self) -> None:
        """See :meth:`Store.close`. A second call does nothing."""
        if not self._closed.is_set():
            self.contents.close()
        self._closed.set()
        self._drop_writer()
        self._records.close()
        self.engine.dispose()


class _Unsettled(Exception):
    """It is not known yet what became of the last batch: the lost connection of this process still holds the lock, or
    the synchronous standby may not have the batch."""


def _end(connection: Connection, raw: Any) -> None:
    """Close a connection that may be lost, and that no other thread uses; the server rolls back its transaction."""
    with contextlib.suppress(Exception):
        raw.close()
    with contextlib.suppress(SQLAlchemyError):
        connection.invalidate()
    connection.close()
