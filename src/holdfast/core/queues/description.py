"""Description of one queue, as the store has it: its kind, its partitions, its epoch, and what was deleted last."""

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
    """What tells a record from any other that could have been in its place: 16 hexadecimal digits."""
    what = (record.sequence, record.message_number, record.received_at.hex(), record.message_id, record.action)
    return blake2b(repr(what).encode() + record.body, digest_size=8).hexdigest()


def divided(description: State) -> tuple[int, int]:
    """Return how many shared partitions a queue has by its description, and how many for sessions."""
    count, sessions = description.get("partitions"), description.get("sessions", 0)
    if type(count) is not int or type(sessions) is not int or not 0 <= sessions < count:
        return (count, 0) if type(count) is int and count > 0 else (0, 0)
    return count - sessions, sessions


class QueueDescription:
    """The description of one queue.

    Args:
        records: The records of the queue.
        kind: What the description calls the queue.
    """

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
        """Whether the queue has more partitions for sessions than the store says."""
        self.served: State = {}
        """When the queue was served, as the enforcement of its retention saves it."""
        self._befores: dict[str, str] = {}
        """Of each partition the fingerprint of the last record below its first; none, or "": unknown."""

    @property
    def shared(self) -> int:
        """The number of partitions that Sequences share; those for sessions follow."""
        return len(self._records.partitions) - self.sessions

    def begin(self, epoch: str) -> None:
        """Give the queue an epoch: it is new, or its store was put back to an earlier state."""
        self.epoch = epoch
        self.save()

    def read_now(self) -> None:
        """Record that the queue has a reader."""
        if not self.was_read:
            self.was_read = True
            self.save()

    def save(self) -> None:
        """Save the description, as it is when the batch is taken."""
        self._records.save_description(self.to_state)

    def to_state(self) -> State:
        """Return the state to save."""
        state: State = {"kind": self.kind, "partitions": len(self._records.partitions)}
        if self.sessions:
            state["sessions"] = self.sessions
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
            self.stored_partitions = partitions  # more for sessions, behind all others
            self.is_grown = True
        self.was_read = state.get("read") is True
        known = [str(number) for number in range(partitions)]
        self._befores = {number: befores[number] for number in known if isinstance(befores.get(number), str)}

    # --- fingerprints ---------------------------------------------------------------------------------------------

    def deleted(self, partition: int, last: Record | None) -> None:
        """Keep the fingerprint of the last deleted record; None: it is unknown."""
        self._befores[str(partition)] = fingerprint_of(last) if last is not None else ""
        self.save()

    def fingerprint(self, partition: int, position: int) -> str | None:
        """Return the fingerprint of the last record below ``position``.

        With it, a reader that has read up to there can tell this queue from one that was put back to an earlier state
        and grew on. "" if it is unknown: at 0, and below the first record. None: it is :func:`fingerprint_of` that
        record, which must be read.
        """
        one = self._records.partitions[partition]
        if position == one.first:
            return self._befores.get(str(partition), "")
        return "" if not one.first < position <= one.durable_end else None
