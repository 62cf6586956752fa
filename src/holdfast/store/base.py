"""What a store promises, whatever it is made of. The contract suite in ``tests/store`` runs against every one."""

from __future__ import annotations

from typing import Protocol

from holdfast.core.records import Batch, Record, Snapshot


class Store(Protocol):
    """Durable state and records of one endpoint. One process at a time has it open.

    ``commit`` is called from one thread, one batch at a time, in order; ``read`` and ``read_encoded`` from any
    thread at any time, and see every batch whose ``commit`` has returned.
    """

    reads_at_once: bool
    """Whether ``read`` never waits for a disk or a network, so that an event loop may call it."""
    trouble: str
    """Why nothing new should be stored, though it could be (the disk is nearly full); "" for nothing."""

    def load(self) -> Snapshot:
        """Everything but the records, as the last durable batch left it. Called once, after opening."""
        ...

    def load_partition(self, queue: str, partition: int) -> Snapshot:
        """The same of one partition alone: its queue's description, its bounds, its cursors, and the Sequences that
        live with it (``Batch.homes``) with the numbers held for them; nothing where nothing is known of it. What it
        costs should not grow with the rest of the store. Called while no commit is under way."""
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
        """Records with start <= offset < end, ascending, as ``(offset, record)``: at least one if any is there,
        and no more once ``max_bytes`` of encoded records are reached."""
        ...

    def read_encoded(
        self, queue: str, partition: int, start: int, end: int, max_bytes: int = 1 << 20
    ) -> list[tuple[int, bytes]]:
        """The same, each record as ``store.records.encode_record`` wrote it."""
        ...

    def close(self) -> None:
        """Give up the store. Nothing is lost by not calling it."""
        ...
