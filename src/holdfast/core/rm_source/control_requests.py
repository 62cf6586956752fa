"""ControlRequests: when one outbound Sequence sends its lifecycle request or its AckRequested."""

from __future__ import annotations

ANSWERED_ENOUGH = 3
"""Attempts after which an empty answer to a question, to 1.0's LastMessage or to TerminateSequence is enough; answers
after which a reply that its requester does not acknowledge holds back no other one."""


class ControlRequests:
    """The request that the state of one outbound Sequence calls for, repeated until its answer arrives."""

    __slots__ = ("attempts", "due", "held_until", "message_ids", "open_creations", "refusals", "request_sent_at")

    def __init__(self) -> None:
        self.due: float | None = None
        """When the request leaves, in seconds; None: no request is scheduled."""
        self.attempts = 0
        """Number of transmissions of the request."""
        self.refusals = 0
        """Number of answers that refuse the request, or that this side cannot accept: unsigned ones, for example."""
        self.request_sent_at: float | None = None
        """When the newest AckRequested left, or the first lifecycle request, to measure the round trip; else None."""
        self.open_creations = 0
        """Open HTTP exchanges that carry a CreateSequence with an Offer. It is repeated later while one is open."""
        self.held_until = 0.0
        """When a CreateSequence with an Offer is repeated although its exchange is open, in seconds."""
        self.message_ids: dict[str, str] = {}
        """MessageIDs of the requests, the same in every repeat."""

    def begin(self, now: float) -> None:
        """Send a new request now."""
        self.attempts = self.refusals = 0
        self.due = now

    def stop(self) -> None:
        """Send no request."""
        self.attempts = self.refusals = 0
        self.due = None
        self.open_creations = 0

    @property
    def deadline(self) -> float | None:
        """When the request leaves, in seconds; None: no request is scheduled."""
        return max(self.due, self.held_until) if self.open_creations and self.due is not None else self.due

    def is_due(self, now: float) -> bool:
        due = self.deadline
        return due is not None and due <= now

    def hold_creation(self, until: float) -> None:
        """Do not repeat the CreateSequence that leaves now before ``until``, unless its exchange ends earlier."""
        self.open_creations += 1
        self.held_until = until

    def creation_ended(self, least: float) -> None:
        """Record the end of an exchange that carried CreateSequence, which is not repeated before ``least``."""
        # Never negative: stop() forgets exchanges that are open, and their ends follow.
        self.open_creations = max(0, self.open_creations - 1)
        if self.due is not None:
            self.due = max(self.due, least)

    def hurry(self, due: float) -> None:
        """Send a scheduled request at ``due`` at the latest."""
        if self.due is not None:
            self.due = min(self.due, due)

    def left(self, now: float, *, is_timed: bool) -> int:
        """Record that the request leaves now, and return the number of the attempt, from 1.

        Args:
            is_timed: Whether to record the time of a repeat too. An answer does not show which attempt it answers.
        """
        self.attempts += 1
        # An answer to a repeat may belong to an earlier attempt, so it measures no round trip.
        self.request_sent_at = now if self.attempts == 1 or is_timed else None
        return self.attempts
