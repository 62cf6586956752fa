"""A transaction of the database for a handler's work, which a batch completes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import SQLAlchemyError

from holdfast.core.records import Batch
from holdfast.exceptions import ConfigurationError


class Transaction:
    """A transaction for a handler's work.

    Args:
        engine: The store's database.
        find_all: Lets the database report every error that it would find at the commit.
        commit_within: Writes a batch as the last part of the transaction, and commits.

    Attributes:
    """

    def __init__(
        self,
        engine: Engine,
        find_all: Callable[[Connection], None],
        commit_within: Callable[[Connection, Batch], None],
    ) -> None:
        self._find_all = find_all
        self._commit_within = commit_within
        self.connection = engine.connect()
        try:
            self.connection.exec_driver_sql("SELECT 1")  # the pool's connection may be lost
            self._mine = self.connection.get_transaction()
        except BaseException:
            self.connection.close()
            raise

    def check(self) -> None:
        """Check that only the commit is left to do.

        Raises:
            SQLAlchemyError: The work breaks a deferred constraint of the database, or the connection is lost.
            ConfigurationError: The handler ended the transaction.
        """
        if self._mine is None or not self._mine.is_active or self.connection.get_transaction() is not self._mine:
            raise ConfigurationError(
                "the handler committed or rolled back its transaction",
                remedy="Let Holdfast do that: it commits when the handler returns, and rolls back when it raises.",
            )
        self._find_all(self.connection)

    def commit(self, batch: Batch) -> None:
        """Commit the transaction with the batch; see :meth:`SQLStore.commit_within`."""
        try:
            self._commit_within(self.connection, batch)
        finally:
            self.end()

    def end(self) -> None:
        """Roll the transaction back unless it is committed, and return the connection to the pool."""
        with contextlib.suppress(SQLAlchemyError):
            self.connection.close()
