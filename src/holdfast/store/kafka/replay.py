"""Replay: what the records of a log mean, one after the other, the same for every reader.

A claim is valid if its epoch is the one after the epoch of the previous valid claim. A part of a write is valid if its
epoch is that of the previous valid claim; a write is valid if it has all its parts, and these are. Everything else is
void.
"""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.exceptions import StoreDamaged, clause
from holdfast.store.kafka.frames import Claim, Copies, Part, decode


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Up to where a reader has applied a log, and what it knows there.

    Args:
        next: The offset of the next record.
        epoch: The epoch of the last valid claim.
        serial: The number of the last valid write.
        logged: Bytes of the records since the beginning of the last complete copy.
        copied: Bytes of that copy.
    """

    next: int = 0
    epoch: int = 0
    serial: int = 0
    logged: int = 0
    copied: int = 0


@dataclass(slots=True)
class _Copy:
    """A copy of the content that is not complete yet.

    Args:
        first: The offset of its first record.
        size: Bytes of its writes.
        since: Bytes of all records since then.
    """

    first: int
    size: int = 0
    since: int = 0


@dataclass(frozen=True, slots=True)
class Claimed:
    """A claim was read.

    Args:
        is_valid: Whether its process owned the log from there on.
    """

    claim: Claim
    is_valid: bool


@dataclass(frozen=True, slots=True)
class Written:
    """A valid write was read to its end.

    Args:
        first: The offset of its first record.
        data: Its bytes.
        has_copy: Whether the reader must apply the copied keys, too: it began with that copy.
    """

    first: int
    serial: int
    copies: Copies
    data: bytes
    has_copy: bool


Found = Claimed | Written | None
"""What a record completes; None for a void record, and for a part that is not the last one."""


class Replay:
    """A reader of a log. It knows no Kafka.

    Args:
        start: What is known where the reading begins. Without a cache, ``Checkpoint(next=first)``, where ``first`` is
            the offset of the first record.
        place: The log, for errors.

    Attributes:
        next: The offset of the next record.
        epoch: The epoch of the last valid claim.
        serial: The number of the last valid write.
        owner: The last valid claim that was read; None if none was.
        voids: How many void records were read.
        trim_to: Where the last complete copy of the content begins, which the log needs no records before; None if none
            was read.
    """

    def __init__(self, start: Checkpoint, place: str) -> None:
        self.next, self.epoch, self.serial = start.next, start.epoch, start.serial
        self.owner: Claim | None = None
        self.voids = 0
        self._place = place
        self._logged, self._copied = start.logged, start.copied
        self._resume = start.next
        """Where the parts of an incomplete write begin; otherwise the next record."""
        self._parts: list[Part] = []
        self._is_cut = start.next > 0 and not start.epoch
        """Whether the next record is the first one of a log that was trimmed."""
        self._is_rebuilding = self._is_cut
        """Whether the content comes from a copy that is not complete yet."""
        self._copy: _Copy | None = None
        self.trim_to: int | None = None

    @property
    def checkpoint(self) -> Checkpoint | None:
        """Return the checkpoint to keep with the content after the last complete write.

        Returns:
            None while the content comes from a copy that is not read to its end: begin again with an empty content.
        """
        if self._is_rebuilding:
            return None
        return Checkpoint(self._resume, self.epoch, self.serial, self._logged, self._copied)

    def read(self, offset: int, record: bytes | None) -> Found:
        """Read the next record.

        Raises:
            StoreDamaged: A record is missing or changed.
            StoreFormatError: A newer version wrote it.
        """
        if offset != self.next:
            raise self._damaged(f"record {self.next} is missing; the next one is {offset}")
        frame = decode(record, self._place)
        found = self._claim(frame) if isinstance(frame, Claim) else self._part(offset, frame)
        self._count(len(record or b""))
        self.next = offset + 1
        if not self._parts:
            self._resume = self.next
        return found

    def wrote(self, first: int, count: int, size: int, copies: Copies) -> None:
        """Record a write of this process, which is valid: its records from ``first`` on need not be read.

        Args:
            first: The offset of its first record.
            count, size: How many records it has, and their bytes.
        """
        self._follow_copy(first, copies, size)
        self._count(size)
        self.next = self._resume = first + count
        self.serial += 1

    def require_whole(self) -> None:
        """Check at the end of the log that the content is complete.

        Raises:
            StoreDamaged: It is not.
        """
        if self._is_rebuilding:
            raise self._damaged("the copy of the content at its beginning is incomplete")

    @property
    def is_free(self) -> bool:
        """Return whether no process owns the log: its owner has resigned, or no process has claimed it yet."""
        return self.owner.is_resignation if self.owner is not None else not self.epoch

    @property
    def is_copying(self) -> bool:
        """Return whether a copy has begun in this epoch, and is not complete."""
        return self._copy is not None

    @property
    def since_copy(self) -> int:
        """Return the bytes of the log since the last complete copy began."""
        return self._logged

    @property
    def copied(self) -> int:
        """Return the bytes of the last complete copy."""
        return self._copied

    def _claim(self, claim: Claim) -> Claimed:
        if self._is_cut:
            raise self._cut_elsewhere()
        # Of claims for the same epoch, the first one in the log wins.
        is_valid = claim.epoch == self.epoch + 1
        if is_valid:
            if self._is_rebuilding:
                raise self._damaged(f"claim {claim.epoch} is within the copy of the content at the log's beginning")
            self.epoch, self.owner = claim.epoch, claim
            self._parts = []
            self._copy = None
        else:
            self.voids += 1
        return Claimed(claim, is_valid)

    def _part(self, offset: int, part: Part | None) -> Written | None:
        if self._is_cut:
            self._begin_with(part)
        # Of another program, or of an owner that was replaced meanwhile: its append came too late.
        if part is None or part.epoch != self.epoch:
            self.voids += 1
            return None
        if part.serial != self.serial + 1:
            raise self._damaged(f"record {offset} begins write {part.serial} after write {self.serial}")
        if part.part < len(self._parts):
            raise self._damaged(f"record {offset} is part {part.part} of a write of which {len(self._parts)} precede")
        # Kafka may refuse a part, for example because it is too large, and accept a later one. No owner acknowledges
        # such a write, and each claims the log again before it writes anything else.
        if part.part > len(self._parts):
            self.voids += len(self._parts) + 1
            self._parts = []
            return None
        if not self._parts:
            self._resume = offset
        self._parts.append(part)
        if len(self._parts) < part.parts:
            return None
        data = b"".join([one.data for one in self._parts])
        self._parts = []
        self.serial = part.serial
        # A cache that is up to date has the copied keys already, perhaps newer.
        has_copy = self._is_rebuilding and part.copies is not Copies.NONE
        self._follow_copy(self._resume, part.copies, len(data))
        if part.copies & Copies.ENDS:
            self._is_rebuilding = False
        return Written(self._resume, part.serial, part.copies, data, has_copy)

    def _begin_with(self, part: Part | None) -> None:
        """Begin with the first record of a trimmed log: an owner trims it only where a complete copy begins."""
        if part is None or part.part or not part.copies & Copies.BEGINS:
            raise self._cut_elsewhere()
        self._is_cut = False
        self.epoch, self.serial = part.epoch, part.serial - 1

    def _count(self, size: int) -> None:
        self._logged += size
        if self._copy is not None:
            self._copy.since += size

    def _follow_copy(self, first: int, copies: Copies, size: int) -> None:
        if copies & Copies.BEGINS:
            self._copy = _Copy(first)
        copy = self._copy
        if copy is None:
            return  # a claim has ended the copy
        if copies:
            copy.size += size
        if copies & Copies.ENDS:
            self.trim_to, self._copied, self._logged = copy.first, copy.size, copy.since
            self._copy = None

    def _damaged(self, what: str) -> StoreDamaged:
        return StoreDamaged(
            f"The log at {self._place} is damaged: {clause(what)}.",
            remedy="Nothing was changed. Find out what else writes to the topic or deletes from it, and restore it "
            "from a copy.",
        )

    def _cut_elsewhere(self) -> StoreDamaged:
        return self._damaged(f"it begins at record {self.next}, where no copy of its content begins")
