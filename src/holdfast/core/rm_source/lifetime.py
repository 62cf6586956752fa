"""Lifetime: how long the peer keeps one outbound Sequence, and when it last gave a sign of life."""

from __future__ import annotations


class Lifetime:
    """The granted life and the signs of life of one outbound Sequence. Times in seconds."""

    __slots__ = ("expires", "expires_at", "last_heard", "outlives")

    def __init__(self, now: float) -> None:
        self.last_heard = now
        """When the peer last gave a sign of life, or an operator decided to retry."""
        self.expires: float | None = None
        """The life that the peer granted; None: endless."""
        self.expires_at: float | None = None
        """When the granted life ends; None: never."""
        self.outlives = False
        """Whether the Sequence expired once in this run and remains only to report its end."""

    def heard(self, now: float) -> None:
        """Record a sign of life, or an operator's decision to retry."""
        self.last_heard = now

    def grant(self, expires: float | None, now: float) -> None:
        """Record the life that the peer granted."""
        self.expires = expires
        # From the grant, not from the request: the source counts its life when it processes the response (WS-RM 3.4).
        self.expires_at = None if expires is None else now + expires
        self.heard(now)

    def restore(self, expires: float | None, expires_at: float | None, now: float) -> None:
        """Restore the saved life. A clock that was set back does not extend it."""
        self.expires, self.expires_at = expires, expires_at
        if expires_at is not None and expires is not None:
            self.expires_at = min(expires_at, now + expires)

    def is_over(self, now: float) -> bool:
        """Whether the granted life has passed."""
        return self.expires_at is not None and self.expires_at <= now

    def outlive(self, now: float) -> None:
        """Begin the granted life once more, to report the end of the Sequence."""
        assert self.expires is not None
        self.outlives = True
        self.expires_at = now + self.expires

    def is_silent(self, waiting_since: float | None, patience: float, now: float) -> bool:
        """Whether the peer has given no sign of life for longer than ``patience`` seconds.

        Args:
            waiting_since: Since when the oldest message in flight waits; None without one.
            patience: Seconds.
        """
        return now - max(self.last_heard, waiting_since or self.last_heard) > patience
