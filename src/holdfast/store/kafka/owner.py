"""LogOwner: claims a log, and decides which writes are durable. It knows no Kafka, no clock and no thread.

Kafka keeps the order of a partition, but any process may append to it, and an append may become visible long after its
sender gave it up. So each record has the epoch of its owner, and a claim in the log ends the epoch before it
(:mod:`holdfast.store.kafka.replay`). An owner need not read the log as long as its own records have consecutive
offsets: then no claim is between them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.core.states.table import absent
from holdfast.store.kafka.frames import Claim, Copies, encode_claim, encode_parts
from holdfast.store.kafka.replay import Claimed, Found, Replay, Written
from holdfast.store.kafka.states import CLAIMS, OWNER_TABLE, READS, OwnerAction, OwnerEvent, OwnerState


@dataclass(frozen=True, slots=True)
class Write:
    """A write in progress.

    Args:
        data: Its bytes.
    """

    data: bytes
    copies: Copies = Copies.NONE


class LogOwner:
    """A process that owns a log, or wants to.

    Carry out what it wants, one after the other: read and pass each record to :meth:`read` while :attr:`reads`; append
    :meth:`claim` while :attr:`claims`, then call :meth:`claimed`; append :attr:`records` after ``APPEND``, then call
    :meth:`appended`.

    Args:
        name: The process, for people.
        nonce: A random number of this opening.
        replay: The reader; it continues where the cache ends.
        most: Maximum bytes of a record.

    Attributes:
        state: What the process does now.
        replay: The reader.
        rival: The claim that ended the ownership; None while it lasts.
    """

    def __init__(self, name: str, nonce: bytes, replay: Replay, most: int) -> None:
        self.state = OwnerState.READING
        self.replay = replay
        self.rival: Claim | None = None
        self._name, self._nonce, self._most = name, nonce, most
        self._write: Write | None = None
        self._first = 0
        """Where the write was found in the log."""
        self._is_found = False

    @property
    def reads(self) -> bool:
        return self.state in READS

    @property
    def claims(self) -> bool:
        """Return whether the process must append a claim now."""
        return self.state in CLAIMS

    @property
    def is_lost(self) -> bool:
        return self.state is OwnerState.LOST

    @property
    def epoch(self) -> int:
        return self.replay.epoch

    def read(self, offset: int, record: bytes | None) -> tuple[Found, OwnerAction]:
        """Read the next record of the log.

        Returns:
            What it completes, and what to do. Apply a valid write to the cache only while no write of this process is
            in doubt, that is, before the first ``SERVE``.

        Raises:
            StoreDamaged, StoreFormatError: See :meth:`Replay.read`.
        """
        before = self.replay.serial
        found = self.replay.read(offset, record)
        if isinstance(found, Claimed):
            return found, self._read_claim(found)
        if isinstance(found, Written) and self._write is not None and found.serial == before + 1:
            self._is_found = True
            return found, self._on(OwnerEvent.FOUND)
        return found, OwnerAction.NOTHING

    def _read_claim(self, found: Claimed) -> OwnerAction:
        if found.claim.nonce != self._nonce:
            if not found.is_valid:
                return OwnerAction.NOTHING
            action = self._on(OwnerEvent.FOREIGN_CLAIM)
            if self.is_lost:
                self.rival = found.claim
            return action
        if not found.is_valid:
            return self._on(OwnerEvent.VOID_CLAIM)
        is_unwritten = self._write is not None and not self._is_found
        return self._on(OwnerEvent.UNWRITTEN if is_unwritten else OwnerEvent.OWN_CLAIM)

    def ended(self) -> OwnerAction:
        """Record that the reader is at the end of the log, as it was after the last change of :attr:`state`."""
        return self._on(OwnerEvent.END)

    def claim(self, at: float) -> bytes:
        """Return the record of a claim.

        Args:
            at: Seconds since 1970-01-01 UTC.
        """
        return encode_claim(Claim(self.replay.epoch + 1, self._name, self._nonce, at))

    def claimed(self) -> None:
        """Record that the claim was appended, or that this is unknown: only the log shows whether it is valid."""
        self._on(OwnerEvent.APPENDED)

    def commit(self, write: Write) -> OwnerAction:
        """Begin a write: append its :attr:`records`."""
        action = self._on(OwnerEvent.COMMIT)
        self._write, self._is_found = write, False
        return action

    @property
    def records(self) -> list[bytes]:
        """Return the records of the write in progress, for the present epoch."""
        write = self._write
        assert write is not None
        return encode_parts(self.replay.epoch, self.replay.serial + 1, write.copies, write.data, self._most)

    def appended(self, offsets: Sequence[int] | None, size: int) -> OwnerAction:
        """Record the outcome of an append.

        Args:
            offsets: The offsets that Kafka confirmed, in the order of the records; None if one of them is unknown.
            size: The bytes of the records.
        """
        if offsets is None:
            return self._on(OwnerEvent.UNKNOWN)
        first = self.replay.next
        # A record between may be a claim, so the log must be read.
        if list(offsets) != list(range(first, first + len(offsets))):
            return self._on(OwnerEvent.GAP)
        write = self._write
        assert write is not None
        self.replay.wrote(first, len(offsets), size, write.copies)
        return self._on(OwnerEvent.CONTIGUOUS)

    def _on(self, event: OwnerEvent) -> OwnerAction:
        cell = OWNER_TABLE.get((self.state, event))
        if cell is None:
            absent("The owner of a log", self.state, event)
            return OwnerAction.NOTHING
        action, self.state = cell
        if action is OwnerAction.ACKNOWLEDGE:
            self._write = None
        return action
