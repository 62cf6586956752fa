"""IdentifierTable: the Identifiers that peers granted or offered to the workers, in memory that all workers share.

The supervisor creates the memory before it forks, so a claim survives a worker that is killed, until the next process
of that worker announces the Sequences that it recovered. Each worker writes only its own segment. A lock makes "no
other worker claims it" and "this worker claims it" one step; the system releases the lock of a killed process.
"""

from __future__ import annotations

import mmap
import os
import struct
import tempfile
import time
from collections.abc import Iterable
from typing import Final

from holdfast.core.receiving.inbound_sequences import InboundSequences
from holdfast.core.sending.identifier_claims import DIGEST_BYTES, ClaimResult, GrantedIdentifier
from holdfast.endpoint.logs import log

MOST_CLAIMS: Final = 262_144
"""Claims of one worker. Memory is used only for those that exist."""
LOCK_ATTEMPTS: Final = 50
LOCK_PAUSE: Final = 0.0002
"""Seconds between two attempts to lock the table. A worker holds the lock for microseconds, unless it is stopped."""

_SLOT = DIGEST_BYTES
"""Bytes of a claim: a digest of the address and the Identifier."""
_FREE = bytes(_SLOT)
_HEAD = struct.Struct("=II")
"""The first slot of a segment: the number of slots in use or freed, and whether the worker has announced its
Sequences."""
_SEGMENT = _SLOT * (1 + MOST_CLAIMS)


class IdentifierTable:
    """The claims of all workers. Create it before the workers are forked."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._memory = mmap.mmap(-1, _SEGMENT * count)
        # The file has no name and no content: processes lock it. It is not the file of the socket directory, because
        # the workers inherit that one's lock from the supervisor, and share it.
        self._lock, path = tempfile.mkstemp(prefix="holdfast-lock-")
        os.unlink(path)

    def of(self, number: int) -> WorkerIdentifiers:
        """Return the view of one worker on the table. Call it in that worker's process, or before its fork."""
        return WorkerIdentifiers(self._memory, self._lock, number, self._count)

    def claims(self, number: int, _epoch: int) -> WorkerIdentifiers:
        """The same, as the supervisor asks for the claims of any kind."""
        return self.of(number)


class WorkerIdentifiers:
    """One worker's claims, and a view of those of the others.

    Args:
        lock: The descriptor of the locked file.
    """

    def __init__(self, memory: mmap.mmap, lock: int, number: int, count: int) -> None:
        self._memory = memory
        self._lock = lock
        self._number = number
        self._others = [other for other in range(count) if other != number]
        self._slots: dict[str, int] = {}
        self._free: list[int] = []

    def announce(self, recovered: Iterable[GrantedIdentifier]) -> None:
        """Replace this worker's claims by those of its recovered Sequences.

        A claim that an earlier process of this worker made for one of them stays throughout. If there are more than
        :data:`MOST_CLAIMS`, the worker counts as one that has announced none, so that no other one is sure.
        """
        used, _ = self._head(self._number)
        earlier: dict[bytes, list[int]] = {}
        for slot in range(used):
            at = _place(self._number, slot)
            earlier.setdefault(self._memory[at : at + _SLOT], []).append(slot)
        self._free = earlier.pop(_FREE, [])
        self._slots.clear()
        wanted = {granted.local_id: granted.digest for granted in recovered}
        # First those that no Sequence has any more, to make room for those of Sequences with another address.
        for digest in earlier.keys() - set(wanted.values()):
            self._give_back(earlier.pop(digest))
        for local_id, digest in wanted.items():
            if slots := earlier.get(digest):
                self._slots[local_id] = slots.pop()
            else:
                self._put(local_id, digest)
        # Only now: until here, an Identifier of a recovered Sequence was claimed all the time.
        for slots in earlier.values():
            self._give_back(slots)
        self._set_head(self._head(self._number)[0], is_announced=len(self._slots) == len(wanted))
        if len(self._slots) < len(wanted):
            log.warning("identifiers.not_recorded", worker=self._number, count=len(wanted) - len(self._slots))

    def has(self, local_id: str) -> bool:
        """Return whether a Sequence of this worker has a claim."""
        return local_id in self._slots

    def find(self, digest: bytes) -> tuple[int | None, bool]:
        """Return the other worker that claims an Identifier, and whether it is sure that no further one does."""
        heads = {other: self._head(other) for other in self._others}
        holder = next((other for other, (used, _) in heads.items() if self._has(other, used, digest)), None)
        return holder, holder is not None or all(is_announced for _, is_announced in heads.values())

    def claim(self, granted: GrantedIdentifier, *, awaits_all: bool = True) -> ClaimResult:
        """Claim an Identifier, unless another worker does. A repeated claim of the same Sequence succeeds.

        Args:
            awaits_all: Whether the result is unknown until every worker has announced its Sequences.
        """
        if granted.local_id in self._slots:
            return ClaimResult.CLAIMED
        digest = granted.digest
        if not self._take_lock():
            return ClaimResult.UNKNOWN
        try:
            holder, is_sure = self.find(digest)
            if holder is not None:
                return ClaimResult.IN_USE
            if awaits_all and not is_sure:
                return ClaimResult.UNKNOWN
            return ClaimResult.CLAIMED if self._put(granted.local_id, digest) else ClaimResult.FULL
        finally:
            self._give_lock()

    def release(self, local_id: str) -> None:
        """Release the claim of a Sequence, if it has one."""
        slot = self._slots.pop(local_id, None)
        if slot is not None:
            self._give_back([slot])

    def _give_back(self, slots: list[int]) -> None:
        for slot in slots:
            self._write(slot, _FREE)
            self._free.append(slot)

    def _put(self, local_id: str, digest: bytes) -> bool:
        """Write a claim; return False if there is no room. A claim counts once the head includes its slot."""
        used, is_announced = self._head(self._number)
        if self._free:
            slot = self._free.pop()
        elif used < MOST_CLAIMS:
            slot = used
        else:
            return False
        # Before the head: another process reads only the slots that the head includes.
        self._write(slot, digest)
        if slot == used:
            self._set_head(used + 1, is_announced=is_announced)
        self._slots[local_id] = slot
        return True

    def _has(self, number: int, used: int, digest: bytes) -> bool:
        start, end = _place(number, 0), _place(number, used)
        at = self._memory.find(digest, start, end)
        while at >= 0 and (at - start) % _SLOT:  # two neighbouring slots may contain it by chance
            at = self._memory.find(digest, at + 1, end)
        return at >= 0

    def _write(self, slot: int, content: bytes) -> None:
        at = _place(self._number, slot)
        self._memory[at : at + _SLOT] = content

    def _head(self, number: int) -> tuple[int, bool]:
        used, is_announced = _HEAD.unpack_from(self._memory, _SEGMENT * number)
        return used, bool(is_announced)

    def _set_head(self, used: int, *, is_announced: bool) -> None:
        _HEAD.pack_into(self._memory, _SEGMENT * self._number, used, is_announced)

    def _take_lock(self) -> bool:
        import fcntl  # where there are workers, there is this

        for _ in range(LOCK_ATTEMPTS):
            try:
                fcntl.lockf(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                time.sleep(LOCK_PAUSE)
            else:
                return True
        return False

    def _give_lock(self) -> None:
        import fcntl

        fcntl.lockf(self._lock, fcntl.LOCK_UN)


class OfferedIdentifiers:
    """The Identifiers that clients offered for replies, as one worker of a host sees them.

    An offered Identifier belongs to one Sequence (WS-RM 3.4). The workers record those that they have accepted. So
    another worker can see whether a worker that does not run has accepted an Offer, and answer in its place if not.

    Args:
        claims: One worker's view of a table that has no other Identifiers.
        number: Which worker.
    """

    def __init__(self, claims: WorkerIdentifiers, number: int) -> None:
        self._claims = claims
        self._number = number

    def follow(self, sequences: InboundSequences) -> None:
        """Replace what an earlier process of this worker accepted by the Offers of the recovered Sequences. Then delete
        each record when its Sequence has been forgotten."""
        self._claims.announce(map(_entry, sequences.offered))
        sequences.release_offer = self._claims.release

    def answerer(self, offer: str, owner: int, *, is_away: bool) -> int:
        """Return the worker that answers a CreateSequence with this Offer: the one that has accepted it, if any.

        Args:
            owner: The worker that answers it otherwise.
            is_away: Whether this worker may answer it instead, because the owner does not run.
        """
        if self._claims.has(offer):
            return self._number
        holder, is_sure = self._claims.find(_entry(offer).digest)
        if holder is not None:
            return holder
        return self._number if is_away and is_sure else owner

    def claim(self, offer: str) -> bool:
        """Record an Offer before it is accepted; return False if another worker has it, or if that is unknown."""
        # A worker that has not started yet can have it only if the number of workers has changed, or from an absence.
        # The others do not wait for its start.
        return self._claims.claim(_entry(offer), awaits_all=False) is ClaimResult.CLAIMED


def _entry(offer: str) -> GrantedIdentifier:
    return GrantedIdentifier(offer, "", offer)


def _place(number: int, slot: int) -> int:
    return _SEGMENT * number + _SLOT * (1 + slot)
