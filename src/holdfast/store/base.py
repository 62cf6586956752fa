"""What a store promises, whatever it is made of. The contract suite in ``tests/store`` runs against every one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from holdfast.core.records import Batch, Record, Snapshot
from holdfast.store.records import decode_record


class Store(Protocol):
    """Durable state and records of one endpoint. One process at a time has it open.

    ``commit`` is called from one thread, one batch at a time, in order; ``read`` and ``read_encoded`` from any
    thread at any time, and see every batch whose ``commit`` has returned.
    """

    reads_at_once: bool
    """Whether ``read`` never waits for a disk or a network, so that an event loop may call it."""
    trouble: str
    """Why callers should store no new messages, though the store could (the disk is nearly full); "" if none."""
    outlasts: bool
    """Whether calls wait for a database that is away for as long as it is: so while an endpoint runs, which a restart
    would not help. Otherwise they fail after the patience of its URL. A store on a disk does not look at it."""
    went_back: str
    """How an earlier process found out that the store had been put back to an older copy; "" for nothing."""

    def load(self) -> Snapshot:
        """Everything but the records, as the last durable batch left it. Called once, after opening."""
        ...

    def load_partition(self, queue: str, partition: int) -> Snapshot:
        """Load the content of one partition.

        Its queue's description, its bounds, its cursors, and the Sequences assigned to it (``Batch.homes``) with their
        held numbers; an empty snapshot for an unknown partition. The cost should not grow with the rest of the store.
        Called while no commit is in progress.
        """
        ...

    def commit(self, batch: Batch) -> None:
        """Apply the batch, atomically; durable when this returns.

        Raises:
            StoreFailed: it may or may not have become durable; the store takes no further batch.
        """
        ...

    def read(
        self, queue: str, partition: int, start: int, end: int, max_bytes: int = 1 << 20
    ) -> list[tuple[int, Record]]:
        """Return records with start <= offset < end, ascending, as ``(offset, record)``.

        At least one record if any exists; stops once ``max_bytes`` of encoded records are reached.
        """
        ...

    def read_encoded(
        self, queue: str, partition: int, start: int, end: int, max_bytes: int = 1 << 20
    ) -> list[tuple[int, bytes]]:
        """The same, each record as ``store.records.encode_record`` wrote it."""
        ...

    def forget_went_back(self) -> None:
        """Clear the went-back mark: the operator confirmed the restore, and its consequences are durable."""
        ...

    def close(self) -> None:
        """Give up the store. Nothing is lost by not calling it."""
        ...


class Reads:
    """A store's ``read`` by its ``read_encoded``. It cannot know that it went back, unless it says otherwise."""

    went_back = ""
    outlasts = False

    def forget_went_back(self) -> None:
        """See :meth:`Store.forget_went_back`."""

    def read_encoded(
        self, queue: str, partition: int, start: int, end: int, max_bytes: int = 1 << 20
    ) -> list[tuple[int, bytes]]:
        """See :meth:`Store.read_encoded`."""
        raise NotImplementedError

    def read(
        self, queue: str, partition: int, start: int, end: int, max_bytes: int = 1 << 20
    ) -> list[tuple[int, Record]]:
        """See :meth:`Store.read`."""
        encoded = self.read_encoded(queue, partition, start, end, max_bytes)
        return [(offset, decode_record(data)) for offset, data in encoded]


class Transaction(Protocol):
    """A transaction of a store's database for the application's work; a batch is its last part."""

    connection: Any
    """Where it is open: what a handler gets."""

    def check(self) -> None:
        """See that nothing but the commit is left to be done. Raises whatever is wrong."""
        ...

    def commit(self, batch: Batch) -> None:
        """Commit it with the batch, as ``Store.commit`` is called, and with the same promise; then it is over."""
        ...

    def end(self) -> None:
        """Undo it, if it is not committed. It is over."""
        ...


@runtime_checkable
class Transactional(Protocol):
    """A store in a database that lets the application share its transactions."""

    def begin(self) -> Transaction:
        """A transaction; from any thread.

        Raises:
            StoreFailed: The database does not answer.
        """
        ...

    def enqueued(self, limit: int, max_bytes: int = 1 << 20) -> Sequence[Record]:
        """Return records that other transactions have enqueued for an outbox, the oldest first. The batch that appends
        one of them to a queue, as the very same object, removes it from there.

        Args:
            limit: Records at most.
            max_bytes: Bytes after which no further record is read. One record may exceed this alone.

        Raises:
            StoreFailed: The database does not answer.
        """
        ...
