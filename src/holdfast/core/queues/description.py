"""Description of one queue in the store: its kind, partitions and epoch, and fingerprints of deleted records."""

from __future__ import annotations

from hashlib import blake2b

from holdfast.core.queues.cursors import ASIDE
from holdfast.core.queues.queue_records import QueueRecords
from holdfast.core.records import Record, State

DEAD_LETTERS = "dead-letters"
"""The queue of messages that handlers failed on."""
OUTBOX = "outbox"
"""Description of a queue that holds only outgoing messages."""


def fingerprint_of(record: Record) -> str:
    """Return 16 hexadecimal digits that distinguish a record from any other one at the same offset."""
    # repr separates the fields, and hex gives every bit of the time.
    what = (record.sequence, record.message_number, record.received_at.hex(), record.message_id, record.action)
    return blake2b(repr(what).encode() + record.body, digest_size=8).hexdigest()


def divided(description: State) -> tuple[int, int]:
    """Return the numbers of shared partitions and of partitions for sessions in a queue's description."""
    count, sessions = description.get("partitions"), description.get("sessions", 0)
    if type(count) is not int or type(sessions) is not int or not 0 <= sessions < count:
        return (count, 0) if type(count) is int and count > 0 else (0, 0)
    return count - sessions, sessions


class QueueDescription:
    def __init__(self, records: QueueRecords, kind: str) -> None:
        self._records = records
        self.kind = kind
        self.epoch = ""
        """Identity of a queue with readers, so that readers do not use offsets of another store."""
        self.was_read = False
        """Whether the queue ever had a reader's cursor."""
        self.sessions = 0
        """Number of partitions, the last ones, that belong to one session each: ``core.receiving.sessions``."""
        self.stored_partitions: int | None = None
        """Number of partitions according to the store; None for a new queue."""
        self.is_grown = False
        """Whether the queue has more partitions for sessions than the stored description."""
        self.served: State = {}
        """When the queue was served, as the enforcement of the retention records it."""
        self._befores: dict[str, str] = {}
        """Partition -> fingerprint of the last deleted record; absent or "": unknown."""

    @property
    def shared(self) -> int:
        """Number of partitions that Sequences share. The partitions for sessions follow them."""
        return len(self._records.partitions) - self.sessions

    def begin(self, epoch: str) -> None:
        """Give a new queue its epoch, or replace the epoch after the store was restored from an earlier copy."""
        self.epoch = epoch
        self.save()

    def read_now(self) -> None:
        """Record that the queue has a reader."""
        if not self.was_read:
            self.was_read = True
            self.save()

    def save(self) -> None:
        """Save the description as it is when the batch is committed."""
        self._records.save_description(self.to_state)

    def to_state(self) -> State:
        state: State = {"kind": self.kind, "partitions": len(self._records.partitions)}
        if self.sessions:
            state["sessions"] = self.sessions
        # An outbox has no readers, so neither an epoch nor fingerprints.
        if self.kind != OUTBOX:
            state |= {"epoch": self.epoch, "before": self._befores.copy()}
        return state | self.served | {"read": self.was_read}

    def recover(self, state: State | None) -> None:
        """Restore the description. An unreadable one is kept under another name."""
        if state is None:
            return
        partitions = len(self._records.partitions)
        epoch, count, befores = state.get("epoch", ""), state.get("partitions"), state.get("before", {})
        if not isinstance(epoch, str) or type(count) is not int or count < 1 or not isinstance(befores, dict):
            self._records.keep_description(ASIDE + self._records.name, state)
            self._records.tell_aside("its description", "it gets a new epoch: readers must start again", state)
            return
        self.epoch = epoch
        shared, sessions = divided(state)
        self.stored_partitions = count
        if count == partitions:
            self.sessions = sessions
        elif shared == self.shared and sessions < self.sessions:
            self.stored_partitions = partitions  # the added partitions for sessions follow all others
            self.is_grown = True
        self.was_read = state.get("read") is True
        known = [str(number) for number in range(partitions)]
        self._befores = {number: befores[number] for number in known if isinstance(befores.get(number), str)}

    # --- fingerprints ---------------------------------------------------------------------------------------------

    def deleted(self, partition: int, last: Record | None) -> None:
        """Keep the fingerprint of the last deleted record; None: the record is unknown."""
        self._befores[str(partition)] = fingerprint_of(last) if last is not None else ""
        self.save()

    def fingerprint(self, partition: int, position: int) -> str | None:
        """Return the fingerprint of the last record below ``position``.

        A reader that has read up to ``position`` compares fingerprints to detect that the queue was restored from an
        earlier copy and has grown differently since.

        Returns:
            The fingerprint; "" if it is unknown, as at 0 and outside the existing records; None if the caller must read
            the record and call :func:`fingerprint_of`.
        """
        one = self._records.partitions[partition]
        if position == one.first:
            return self._befores.get(str(partition), "")
        return "" if not one.first < position <= one.durable_end else None
