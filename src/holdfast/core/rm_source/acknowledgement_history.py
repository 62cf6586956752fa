"""AcknowledgementHistory: what a destination acknowledged of one Sequence, to notice when it takes something back.

A destination that lost the end of its log, was put back to an older copy, or failed over to a replica that lagged
behind acknowledges less than before (WS-RM 3.9 forbids it). What it acknowledged is deleted at the source, so somebody
must be told at once.

An acknowledgement may overtake another one, so less than before is no proof by itself. It is one if the destination
made it after the wider acknowledgement was heard: in the answer to a request that left later, or with a number that was
first transmitted later.
"""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.core.ranges import AcknowledgementRanges

MOST_RANGES = 16
"""An acknowledgement with more ranges may be cut: some destinations limit how many they write. It proves nothing."""

Ranges = tuple[tuple[int, int], ...]


class AcknowledgementHistory:
    """The numbers that one destination acknowledged in one Sequence.

    Args:
        heard: Those that an earlier run heard of.
        now: Seconds.
    """

    __slots__ = ("_before", "_heard", "_since", "_told")

    def __init__(self, heard: Iterable[tuple[int, int]] = (), now: float = 0.0) -> None:
        self._heard = AcknowledgementRanges(heard)
        self._before = self._heard.copy()
        self._since = now
        """All of ``_before`` was heard at that time or earlier."""
        self._told = AcknowledgementRanges()

    def hear(self, ranges: Ranges, asked_at: float | None, now: float) -> Ranges:
        """Take in a valid acknowledgement.

        Args:
            ranges: What it covers.
            asked_at: The destination made it at that time or later, in seconds; None if that is unknown, or if it may
                be cut short for another reason.
            now: Seconds.

        Returns:
            What was acknowledged before, is not now, and was not returned before.
        """
        lost: Ranges = ()
        if asked_at is not None and asked_at > self._since and len(ranges) <= MOST_RANGES:
            covered = AcknowledgementRanges(ranges)
            missing = AcknowledgementRanges(self._before.outside(covered))
            lost = tuple(missing.outside(self._told))
            self._told.update(lost)
            self._heard.update(ranges)
            self._before, self._since = self._heard.copy(), now
        else:
            self._heard.update(ranges)
        return lost

    def to_state(self) -> list[int]:
        """What to save."""
        return self._heard.to_state()
