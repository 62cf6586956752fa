"""The interface of every store. The contract suite in ``tests/store`` runs against each implementation."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

from holdfast.core.records import Batch, ContentWriter, Record, Snapshot
from holdfast.outages import Trouble
from holdfast.store.contents import Contents
from holdfast.store.records import decode_record


class Turn(Protocol):
    """When a process may take a store in a log from its owner."""

    def may_claim(self, epoch: int, *, is_free: bool) -> bool:
        """Whether the process may claim the log now, which it has read to the end.

        Args:
            epoch: The last claim.
            is_free: Whether no process owns the log by that claim.
        """
        ...

    def claimed(self, epoch: int) -> None:
        """The process has the log by this claim."""
        ...


class Store(Protocol):
    """Durable state and records of one endpoint. Only one process at a time may have it open.

    One thread calls ``commit``, one batch at a time, in order. Any thread may call ``read`` and ``read_encoded`` at any
    time, and sees every batch that was committed before the call.
    """

    reads_at_once: bool
    """Whether ``read`` never waits for a disk or a network, so that an event loop may call it."""
    trouble: Trouble | None
    """Why callers should store no new messages although the store still works, as on a disk that is nearly full; else
    None."""
    contents: Contents
    """What is too large for a record."""
    went_back: str
    """How an earlier process noticed that the store went back to an older copy; "" if it did not."""

    @property
    def epoch(self) -> int:
        """The number of this opening for writing, from 1, in a store that several hosts share; elsewhere 0."""
        ...

    @property
    def create_content(self) -> Callable[[], ContentWriter]: ...

    def load(self) -> Snapshot:
        """Load everything except the records, as of the last durable batch. Called once, after opening."""
        ...

    def commit(self, batch: Batch) -> None:
        """Apply the batch atomically; it is durable when this returns.

        Raises:
            StoreFailed: it may or may not have become durable; the store accepts no further batch.
        """
        ...

    def read(
        self, queue: str, partition: int, start: int, end: int, max_bytes: int = 1 << 20
    ) -> list[tuple[int, Record]]:
        """Return records with start <= offset < end, ascending, as ``(offset, record)``.

        Returns at least one record if any exists, and stops once ``max_bytes`` of encoded records are reached.
        """
        ...

    def read_encoded(
        self, queue: str, partition: int, start: int, end: int, max_bytes: int = 1 << 20
    ) -> list[tuple[int, bytes]]:
        """Return the same records, each as ``store.records.encode_record`` wrote it."""
        ...

    def look(self) -> None:
        """Look for trouble that comes without a write, as when another program fills the disk. ``trouble`` has it soon.

        Any thread may call it, also after the close.
        """
        ...

    def forget_went_back(self) -> None:
        """Clear the went-back mark: the operator confirmed the restore, and its consequences are durable."""
        ...

    def retry_for(self, seconds: float) -> None:
        """Let all calls retry for so many seconds from now on while the database is unavailable, and each at least for
        one. :data:`math.inf`: an endpoint that runs, because a restart would not help. Until this is called, each call
        retries for the patience of the URL. A store on a disk ignores it."""
        ...

    def close(self) -> None:
        """Close the store. A process that ends without closing it loses nothing."""
        ...


_SHORTEST_RETRIES = 1.0
"""Seconds for which a call of an endpoint that ends retries at least."""


class Reads:
    """Implements a store's ``read`` with its ``read_encoded``. By default such a store never went back."""

    went_back = ""
    contents: Contents
    _retries_end: float | None = None

    def retry_for(self, seconds: float) -> None:
        """See :class:`Store`."""
        self._retries_end = time.monotonic() + seconds

    def _may_retry(self, since: float, patience: float) -> bool:
        """Return whether a call that began at ``since`` (``time.monotonic``) may retry.

        Args:
            patience: Seconds, until :meth:`retry_for` is called.
        """
        if self._retries_end is None:
            return time.monotonic() <= since + patience
        # The last writes of an end begin when it has waited for handlers: a lost connection is no reason to give up.
        return time.monotonic() <= max(self._retries_end, since + _SHORTEST_RETRIES)

    @property
    def epoch(self) -> int:
        return 0

    @property
    def create_content(self) -> Callable[[], ContentWriter]:
        return self.contents.create

    def look(self) -> None:
        """See :meth:`Store.look`."""

    def forget_went_back(self) -> None:
        """See :meth:`Store.forget_went_back`."""

    def read_encoded(
        self, queue: str, partition: int, start: int, end: int, max_bytes: int = 1 << 20
    ) -> list[tuple[int, bytes]]:
        raise NotImplementedError

    def read(
        self, queue: str, partition: int, start: int, end: int, max_bytes: int = 1 << 20
    ) -> list[tuple[int, Record]]:
        encoded = self.read_encoded(queue, partition, start, end, max_bytes)
        return [(offset, self._read_record(data)) for offset, data in encoded]

    def _read_record(self, data: bytes) -> Record:
        record = decode_record(data)
        return self.contents.kept(record) if record.attachments else record


class Transaction(Protocol):
    """A transaction of a store's database for the application's work, with a batch as its last part."""

    connection: Any
    """The open connection, which the handler gets."""

    def check(self) -> None:
        """Check that only the commit is left to do; raise the error otherwise."""
        ...

    def commit(self, batch: Batch) -> None:
        """Commit the transaction together with the batch, with the same guarantee as ``Store.commit``; then it ends."""
        ...

    def end(self) -> None:
        """Roll the transaction back unless it is committed; then it ends."""
        ...


@runtime_checkable
class Counted(Protocol):
    """A store that reports the number of each batch."""

    def call_with_batches(self, function: Callable[[int, int], None]) -> None:
        """Call a function with the epoch and the number of the last durable batch, now and after each further one."""
        ...


@runtime_checkable
class Cached(Protocol):
    """A store whose disk has a copy of its data that another host can make too."""

    def call_with_wanted_bytes(self, function: Callable[[int], None]) -> None:
        """Call a function with the bytes that must be free on the disk before the store accepts messages again, now and
        after each change; 0: it accepts them."""
        ...


@runtime_checkable
class Transactional(Protocol):
    """A store in a database that lets the application share its transactions."""

    def begin(self) -> Transaction:
        """Return a transaction; from any thread.

        Raises:
            StoreFailed: The database does not answer.
        """
        ...

    def enqueued(self, limit: int, max_bytes: int = 1 << 20) -> Sequence[Record]:
        """Return records that other transactions have enqueued for an outbox, the oldest first.

        A batch that appends one of these record objects to a queue also removes it from the enqueued ones.

        Args:
            limit: Maximum number of records.
            max_bytes: Bytes after which no further record is read. A single record may exceed this.

        Raises:
            StoreFailed: The database does not answer.
        """
        ...

    def count_enqueued(self) -> int:
        """Return how many records other transactions have enqueued for an outbox. It does not retry.

        Raises:
            StoreFailed: The database does not answer.
        """
        ...

    def keep_message_ids(self) -> None:
        """Create what the MessageIDs of transactions need, if an earlier version did not, and forget all but the newest
        10,000. It waits for no transaction longer than a second, and does not retry.

        Raises:
            StoreFailed: The database does not answer, lacks a right, or a transaction is in the way.
        """
        ...
