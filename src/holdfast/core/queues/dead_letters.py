"""DeadLetters: messages that no handler could process, kept until they are processed or discarded. Sans-IO.

The offset in the queue ``dead-letters`` identifies a dead letter. An operator can request another delivery to its
handler; the request is durable before the delivery, so that a crash in between only delays it. The batch that completes
a dead letter also contains the cause: its handling, its discarding, or the dead letter that replaces it when it fails
again. Each dead letter therefore always exists exactly once. The queue deletes a record once every record before it is
completed too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from holdfast.core.commit import changing
from holdfast.core.queues.cursors import ASIDE
from holdfast.core.queues.description import DEAD_LETTERS
from holdfast.core.queues.queue import Queue
from holdfast.core.ranges import AcknowledgementRanges, ranges_of
from holdfast.core.records import Record, Snapshot

LETTERS = "own/letters"
"""Name of the saved state: which dead letters are completed, and which have a requested delivery."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Source of a dead letter that a forwarder could not deliver.

    Args:
        queue, partition, offset: Original location of the message, and the target of a requested retry.
        forwarder: The key of the outbox that forwarded it.
        code: The code of the fault that the destination answered with, or "expired".
    """

    queue: str
    partition: int
    offset: int
    forwarder: str
    code: str


@dataclass(frozen=True, slots=True)
class Letter:
    """One dead letter, decoded.

    Args:
        record: The message as it was delivered.
        reason: The traceback of its last failure; for a forwarded message, the destination's answer.
        attempts: How often a handler received the message, or a destination refused it; 0 if unknown.
        failed_at: When it last failed, seconds since 1970-01-01 UTC; None if unknown.
    """

    record: Record
    reason: str
    attempts: int
    failed_at: float | None
    origin: Origin | None = None
    """Where the forwarder read the message; None for a message that a handler could not process."""


class DeadLetters(Queue):
    """The dead letters of one destination.

    Args:
        seal: Converts a dead letter to the record to store.
        unseal: Converts that record back to the dead letter.
    """

    def __init__(self, seal: Callable[[Letter], Record], unseal: Callable[[Record], Letter]) -> None:
        super().__init__(DEAD_LETTERS, kind=DEAD_LETTERS)
        self._seal = seal
        self.unseal = unseal
        # Internally, offsets are stored as numbers from 1, because ranges start at 1.
        self._over = AcknowledgementRanges()
        self._asked = AcknowledgementRanges()

    def recover(self, snapshot: Snapshot, now: float) -> None:
        """Restore the dead letters from the store.

        If the saved state is unreadable, preserve it under another name and restore every dead letter.
        """
        super().recover(snapshot, now)
        self._over, self._asked = AcknowledgementRanges(), AcknowledgementRanges()
        state = snapshot.cursors.get((self.name, 0, LETTERS), {})
        one = self.partitions[0]
        over, asked = (ranges_of(state.get(name, []), one.end) for name in ("over", "asked"))
        if over is None or asked is None:
            self.records.save_own(0, ASIDE + LETTERS, state)
            self.records.tell_aside(
                "which dead letters are completed", "all stored dead letters are active again", state
            )
            over, asked = AcknowledgementRanges(), AcknowledgementRanges()
        # What is deleted was completed: only completed letters at the beginning are deleted.
        if one.first:
            over.add_range(1, one.first)
        self._over = over
        for lower, upper in asked:
            self._asked.update((first + 1, min(end, upper)) for first, end in self.ranges(lower - 1) if first < upper)

    # --- queries --------------------------------------------------------------------------------------------------

    @property
    def count(self) -> int:
        return self.partitions[0].durable_end - self._over.count

    def is_there(self, letter: int) -> bool:
        """Whether the dead letter exists and is not completed."""
        return 0 <= letter < self.partitions[0].durable_end and letter + 1 not in self._over

    def is_asked(self, letter: int) -> bool:
        return letter + 1 in self._asked

    @property
    def asked(self) -> int:
        """Number of dead letters with a requested delivery."""
        return self._asked.count

    def ranges(self, start: int = 0) -> Iterator[tuple[int, int]]:
        """Yield the pending dead letters from ``start`` on as ranges ``(first, end)`` of offsets."""
        for lower, upper in self._over.gaps(self.partitions[0].durable_end):
            if upper > start:
                yield max(lower - 1, start), upper

    def next_asked(self) -> int | None:
        """Return the first dead letter with a requested delivery, None without one."""
        for lower, _ in self._asked:
            return lower - 1
        return None

    # --- decisions ------------------------------------------------------------------------------------------------

    def ask(self, letter: int | None = None) -> int:
        """Request another delivery of one dead letter, or of every one, and return how many are pending."""
        if letter is None:
            asked = [(first + 1, end) for first, end in self.ranges()]
        else:
            asked = [(letter + 1, letter + 1)] if self.is_there(letter) else []
        for lower, upper in asked:
            self._asked.add_range(lower, upper)
        if asked:
            self._save()
        return sum(upper - lower + 1 for lower, upper in asked)

    def forget_asked(self, letter: int) -> None:
        """Cancel a requested delivery that is not possible; the dead letter remains."""
        if self.is_asked(letter):
            self._asked.discard(letter + 1)
            self._save()

    @changing
    def discard(self, letter: int | None = None) -> int:
        """Complete one dead letter, or every one, as handled or discarded, and return how many were pending."""
        given_up = [(letter, letter + 1)] if letter is not None and self.is_there(letter) else []
        if letter is None:
            given_up = list(self.ranges())
        for first, end in given_up:
            self._end(first, end)
        if given_up:
            self._save()
        return sum(end - first for first, end in given_up)

    def failed_again(self, letter: int, again: Letter) -> int | None:
        """Replace a dead letter that failed again.

        Returns:
            The offset of the new dead letter; None if the old one was discarded meanwhile.
        """
        # One batch has the end of the old letter and the new one.
        return self.add(again) if self.discard(letter) else None

    def add(self, letter: Letter) -> int:
        """Append a dead letter in the open batch, and return its offset."""
        offset = self.records.append(0, self._seal(letter))
        self.records.commit.then(lambda now: self.stored(0, offset, now))
        return offset

    def _end(self, first: int, end: int) -> None:
        self._over.add_range(first + 1, end)
        self._asked = AcknowledgementRanges(
            (low, high)
            for lower, upper in self._asked
            for low, high in ((lower, min(upper, first)), (max(lower, end + 1), upper))
            if low <= high
        )

    def _save(self) -> None:
        # The queue deletes from its beginning, so a completed letter behind a pending one stays for now.
        self.records.delete_below(0, self._over.first_gap - 1)
        self.records.save_own(0, LETTERS, {"over": self._over.to_state(), "asked": self._asked.to_state()})
