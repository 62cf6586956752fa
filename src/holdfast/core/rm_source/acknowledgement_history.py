"""AcknowledgementHistory: the numbers a destination acknowledged, to detect when it revokes some of them.

A destination that lost the end of its log, was restored from an older copy, or failed over to a lagging replica
acknowledges less than before (WS-RM 3.9 forbids it). The source has deleted the acknowledged messages, so the operator
must learn of it immediately.

An acknowledgement may overtake another one, so a smaller one alone proves nothing. It proves a loss if the destination
created it after the larger acknowledgement arrived: in the answer to a request that left later, or with a number that
was first transmitted later. A final acknowledgement never changes again, so it proves a loss whenever it arrives.
"""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.core.messages import IncompleteSequenceBehavior
from holdfast.core.ranges import AcknowledgementRanges
from holdfast.core.records import State

MOST_RANGES = 16
"""An acknowledgement with more ranges proves nothing: some destinations limit the ranges they write."""

Ranges = tuple[tuple[int, int], ...]

MOST_RETRACTED = 100
"""Maximum number of ranges of retracted messages that an outbox keeps; it counts the numbers of any others."""


class AcknowledgementHistory:
    """The numbers that one destination acknowledged in one Sequence.

    Args:
        heard: Numbers that were acknowledged in an earlier run.
    """

    __slots__ = ("_before", "_grown_at", "_heard", "_since", "_told")

    def __init__(self, heard: Iterable[tuple[int, int]] = (), now: float = 0.0) -> None:
        self._heard = AcknowledgementRanges(heard)
        self._before = self._heard.copy()
        self._grown_at = now
        """When the source first received the newest number in ``_heard``."""
        self._since = now
        """The source received every acknowledgement in ``_before`` at that time or earlier."""
        self._told = AcknowledgementRanges()

    def hear(self, ranges: Ranges, asked_at: float | None, now: float) -> Ranges:
        """Process a valid acknowledgement.

        Args:
            asked_at: The destination created it at that time or later, in seconds; None if that is unknown, or if it
                may be incomplete for another reason; infinite if none is newer.

        Returns:
            Numbers acknowledged before but not now, without those returned before.
        """
        lost: Ranges = ()
        if asked_at is not None and asked_at > self._since and len(ranges) <= MOST_RANGES:
            # Against what was heard before the request alone: anything newer may have crossed with this answer.
            due = self._heard if asked_at > self._grown_at else self._before
            lost = self._missing(due, AcknowledgementRanges(ranges))
            self._hear(ranges, now)
            # From now on, an answer to any later request must contain all of this.
            self._before, self._since = self._heard.copy(), now
        else:
            self._hear(ranges, now)
        return lost

    def _hear(self, ranges: Ranges, now: float) -> None:
        before = self._heard.count
        self._heard.update(ranges)
        if self._heard.count > before:
            self._grown_at = now

    def hear_final(self, ranges: Ranges, behavior: IncompleteSequenceBehavior) -> Ranges:
        """Process the final acknowledgement of a destination with that behavior at a gap.

        Returns:
            As :meth:`hear`.
        """
        due = self._heard.copy()
        # WS-RM 3.4: a destination may discard what is behind a gap, or everything, when the Sequence ends with one.
        if behavior is IncompleteSequenceBehavior.DISCARD_FOLLOWING_FIRST_GAP:
            due = AcknowledgementRanges([(1, due.first_gap - 1)] if due.first_gap > 1 else [])
        self._heard.update(ranges)
        if behavior is IncompleteSequenceBehavior.DISCARD_ENTIRE_SEQUENCE or len(ranges) > MOST_RANGES:
            return ()
        return self._missing(due, AcknowledgementRanges(ranges))

    def _missing(self, due: AcknowledgementRanges, covered: AcknowledgementRanges) -> Ranges:
        """Return what is due and not covered, once, although the destination keeps leaving it out."""
        lost = tuple(AcknowledgementRanges(due.outside(covered)).outside(self._told))
        self._told.update(lost)
        return lost

    def to_state(self) -> list[int]:
        # Without what was found lost, which the next process would find again.
        return AcknowledgementRanges(self._heard.outside(self._told)).to_state()


class Retractions:
    """Every message of one outbox that its destination acknowledged and then did not, in all its Sequences.

    A Sequence and its history end, but the operator must learn of each loss: those of a source stay until they were
    reported, those of a forwarder as long as it does.
    """

    __slots__ = ("are_reported", "others", "ranges")

    def __init__(self) -> None:
        self.ranges: dict[str, AcknowledgementRanges] = {}
        """Identifier -> message numbers."""
        self.others = 0
        """Number of retracted messages that are not in ``ranges``, because there are too many ranges."""
        self.are_reported = False
        """Whether the next start forgets them."""

    @property
    def count(self) -> int:
        """Number of retracted messages."""
        return self.others + sum(one.count for one in self.ranges.values())

    def add(self, identifier: str, lost: Ranges) -> None:
        before = self.ranges.get(identifier, AcknowledgementRanges())
        ranges = before.copy()
        ranges.update(lost)
        self.are_reported = False
        if sum(map(len, (self.ranges | {identifier: ranges}).values())) <= MOST_RETRACTED:
            self.ranges[identifier] = ranges
        else:
            self.others += ranges.count - before.count

    def to_state(self) -> State | None:
        if self.are_reported or not self.count:
            return None
        return {"ranges": {name: ranges.to_state() for name, ranges in self.ranges.items()}, "others": self.others}

    def restore(self, state: State | None) -> None:
        if state is not None:
            self.ranges = {name: AcknowledgementRanges.from_state(one) for name, one in state["ranges"].items()}
            self.others = state["others"]
