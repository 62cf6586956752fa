"""WaitingPolls: received polls that are not answered yet. ``served_polls`` answers them."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.core.events import BackChannel, Effect, Respond

MOST_WAITING = 1_024
"""Polls that wait for the store, in all; a further one is answered with nothing."""
MOST_WAITING_EACH = 2
"""Polls for one address that wait for the store."""
PATIENCE = 10.0
"""Seconds for which a poll waits for the store; then the peer polls again."""


@dataclass(slots=True, eq=False)
class Poll:
    """A poll that is not answered yet.

    Args:
        keys: Keys of the outboxes that it names; None: all.
        until: When it is answered with nothing.
    """

    back_channel: BackChannel
    address: str
    keys: frozenset[str] | None
    until: float


class WaitingPolls:
    """Polls that wait for an answer, bounded in number."""

    def __init__(self, effects: list[Effect]) -> None:
        self._effects = effects
        self.waiting: list[Poll] = []

    def add(self, back_channel: BackChannel, address: str, keys: frozenset[str] | None, now: float) -> None:
        """Answer a poll at the next :meth:`ServedPolls.serve`."""
        alike = sum(1 for poll in self.waiting if poll.address == address)
        if alike >= MOST_WAITING_EACH or len(self.waiting) >= MOST_WAITING:
            self._effects.append(Respond(back_channel, None))
        else:
            self.waiting.append(Poll(back_channel, address, keys, now + PATIENCE))

    @property
    def is_idle(self) -> bool:
        return not self.waiting

    def deadline(self) -> float | None:
        """Return when :meth:`ServedPolls.serve` must be called next; None: not before an event."""
        return min((poll.until for poll in self.waiting), default=None)
