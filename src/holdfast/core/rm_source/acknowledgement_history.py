"""AcknowledgementHistory: the numbers a destination acknowledged, to detect when it revokes some of them.

A destination that lost the end of its log, was restored from an older copy, or failed over to a lagging replica
acknowledges less than before (WS-RM 3.9 forbids it). The source has deleted the acknowledged messages, so the operator
must learn of it immediately.

An acknowledgement may overtake another one, so a smaller one alone proves nothing. It proves a loss if the destination
created it after the larger acknowledgement arrived: in the answer to a request that left later, or with a number that
was first transmitted later.
"""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.core.ranges import AcknowledgementRanges

MOST_RANGES = 16
"""An acknowledgement with more ranges proves nothing: some destinations limit the ranges they write."""

Ranges = tuple[tuple[int, int], ...]


class AcknowledgementHistory:
    """The numbers that one destination acknowledged in one Sequence.

    Args:
        heard: Numbers that were acknowledged in an earlier run.
    """

    __slots__ = ("_before", "_heard", "_since", "_told")

    def __init__(self, heard: Iterable[tuple[int, int]] = (), now: float = 0.0) -> None:
        self._heard = AcknowledgementRanges(heard)
        self._before = self._heard.copy()
        self._since = now
        """The source received every acknowledgement in ``_before`` at that time or earlier."""
        self._told = AcknowledgementRanges()

    def hear(self, ranges: Ranges, asked_at: float | None, now: float) -> Ranges:
        """Process a valid acknowledgement.

        Args:
            asked_at: The destination created it at that time or later, in seconds; None if that is unknown, or if it
                may be incomplete for another reason.

        Returns:
            Numbers acknowledged before but not now, without those returned before.
        """
        lost: Ranges = ()
        if asked_at is not None and asked_at > self._since and len(ranges) <= MOST_RANGES:
            # Against what was heard before ``_since`` alone: anything newer may have crossed with this answer.
            covered = AcknowledgementRanges(ranges)
            missing = AcknowledgementRanges(self._before.outside(covered))
            lost = tuple(missing.outside(self._told))
            # Each loss is reported once, although the destination keeps leaving it out.
            self._told.update(lost)
            self._heard.update(ranges)
            # From now on, an answer to any later request must contain all of this.
            self._before, self._since = self._heard.copy(), now
        else:
            self._heard.update(ranges)
        return lost

    def to_state(self) -> list[int]:
        return self._heard.to_state()
