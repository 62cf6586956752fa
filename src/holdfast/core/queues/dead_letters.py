"""DeadLetters: what no handler could handle, until it is handled after all or given up. Sans-IO.

A letter is known by its offset in the queue ``dead-letters``. Somebody may ask for it to be handed to its handler once
more; that is durable before it is done, so that a crash in between only puts it off. A letter is over in the same batch
as what makes it so: its handling, its being given up, or the letter that takes its place when it fails again. So it is
always there once. The records go when all before them are over too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from holdfast.core.queues.queue import ASIDE, DEAD_LETTERS, Queue
from holdfast.core.ranges import AcknowledgementRanges, ranges_of
from holdfast.core.records import Record, Snapshot

LETTERS = "own/letters"
"""The name under which it is saved which letters are over, and which are asked for."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a letter comes from that a forwarder could not deliver.

    Args:
        queue, partition, offset: Where it was, and where it goes once more if somebody asks for that.
        forwarder: The key of the outbox that sent it on.
        code: The code of the fault that the destination answered with, or "expired".
    """

    queue: str
    partition: int
    offset: int
    forwarder: str
    code: str


@dataclass(frozen=True, slots=True)
class Letter:
    """One dead letter, opened.

    Args:
        record: The message as it was delivered.
        reason: The traceback of its last failure; of one that was forwarded what the destination said.
        attempts: How often it was handed to a handler, or refused; 0 if that is not known.
        failed_at: When it failed last, seconds since 1970-01-01 UTC; None if that is not known.
    """

    record: Record
    reason: str
    attempts: int
    failed_at: float | None
    origin: Origin | None = None
    """Where it was forwarded from; None for one that a handler could not handle."""


class DeadLetters(Queue):
    """The dead letters of one destination."""

    def __init__(self) -> None:
        super().__init__(DEAD_LETTERS, kind=DEAD_LETTERS)
        # Inside, offsets are kept as numbers from 1 so that ranges can hold them.
        self._over = AcknowledgementRanges()
        self._asked = AcknowledgementRanges()

    def recover(self, snapshot: Snapshot, now: float) -> None:
        """Take over what the store held. What cannot be understood is set aside: then every letter is there again."""
        super().recover(snapshot, now)
        self._over, self._asked = AcknowledgementRanges(), AcknowledgementRanges()
        state = snapshot.cursors.get((self.name, 0, LETTERS), {})
        one = self.partitions[0]
        over, asked = (ranges_of(state.get(name, []), one.end) for name in ("over", "asked"))
        if over is None or asked is None:
            self.save_own(0, ASIDE + LETTERS, state)
            self._tell_aside("which dead letters are over", "all that are kept are there again", state)
            over, asked = AcknowledgementRanges(), AcknowledgementRanges()
        if one.first:
            over.add_range(1, one.first)
        self._over = over
        for lower, upper in asked:
            self._asked.update((first + 1, min(end, upper)) for first, end in self.ranges(lower - 1) if first < upper)

    # --- what is there --------------------------------------------------------------------------------------------

    @property
    def count(self) -> int:
        """How many letters are there."""
        return self.partitions[0].durable_end - self._over.count

    def is_there(self, letter: int) -> bool:
        """Whether there is such a letter, and it is not over."""
        return 0 <= letter < self.partitions[0].durable_end and letter + 1 not in self._over

    def is_asked(self, letter: int) -> bool:
        """Whether it is to be handed over once more."""
        return letter + 1 in self._asked

    @property
    def asked(self) -> int:
        """How many are to be handed over once more."""
        return self._asked.count

    def ranges(self, start: int = 0) -> Iterator[tuple[int, int]]:
        """The letters that are there from ``start`` on, as ranges ``(first, end)`` of offsets."""
        for lower, upper in self._over.gaps(self.partitions[0].durable_end):
            if upper > start:
                yield max(lower - 1, start), upper

    def next_asked(self) -> int | None:
        """The first letter to be handed over once more, None if there is none."""
        for lower, _ in self._asked:
            return lower - 1
        return None

    # --- what is decided ------------------------------------------------------------------------------------------

    def ask(self, letter: int | None = None) -> int:
        """Ask for a letter, or for every one, to be handed over once more; how many that are there."""
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
        """What was asked for cannot be done: the letter stays."""
        if self.is_asked(letter):
            self._asked.discard(letter + 1)
            self._save()

    def discard(self, letter: int | None = None) -> int:
        """A letter, or every one, is over: handled after all, or given up; how many that were there."""
        given_up = [(letter, letter + 1)] if letter is not None and self.is_there(letter) else []
        if letter is None:
            given_up = list(self.ranges())
        for first, end in given_up:
            self._end(first, end)
        if given_up:
            self._save()
        return sum(end - first for first, end in given_up)

    def failed_again(self, letter: int, record: Record) -> int | None:
        """The letter has failed once more: ``record`` takes its place; where. None if it was given up meanwhile."""
        return self.add(record) if self.discard(letter) else None

    def add(self, record: Record) -> int:
        """Another letter, with the open batch; its number."""
        offset = self.append(0, record)
        self._commit.then(lambda now: self.stored(0, offset, now))
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
        self.delete_below(0, self._over.first_gap - 1)
        self.save_own(0, LETTERS, {"over": self._over.to_state(), "asked": self._asked.to_state()})
