"""ControlRequests: when one outbound Sequence sends its lifecycle request or its AckRequested."""

from __future__ import annotations

ANSWERED_ENOUGH = 3
"""Attempts after which an empty answer to a question, to 1.0's LastMessage or to TerminateSequence is enough."""


class ControlRequests:
    """The request that the state of one outbound Sequence calls for, repeated until its answer arrives."""

    __slots__ = ("attempts", "due", "message_ids", "request_sent_at")

    def __init__(self) -> None:
        self.due: float | None = None
        """When the request leaves, in seconds; None: no request is scheduled."""
        self.attempts = 0
        """Number of transmissions of the request."""
        self.request_sent_at: float | None = None
        """When the newest AckRequested left, or the first lifecycle request, to measure the round trip; else None."""
        self.message_ids: dict[str, str] = {}
        """MessageIDs of the requests, the same in every repeat."""

    def begin(self, now: float) -> None:
        """Send a new request now."""
        self.attempts = 0
        self.due = now

    def stop(self) -> None:
        """Send no request."""
        self.attempts = 0
        self.due = None

    def is_due(self, now: float) -> bool:
        """Whether the request leaves now."""
        return self.due is not None and self.due <= now

    def hurry(self, due: float) -> None:
        """Send a scheduled request at ``due`` at the latest."""
        if self.due is not None:
            self.due = min(self.due, due)

    def left(self, now: float, *, is_timed: bool) -> int:
        """Record that the request leaves now, and return the number of the attempt, from 1.

        Args:
            now: Seconds.
            is_timed: Whether to record the time of a repeat too. An answer does not show which attempt it answers.
        """
        self.attempts += 1
        self.request_sent_at = now if self.attempts == 1 or is_timed else None
        return self.attempts
