"""Circuits: which addresses nothing is sent to for a while. One for each address, shared by all outboxes to it."""

from __future__ import annotations

from holdfast.core.outbox import Outbox
from holdfast.core.timers import Deadlines


class Circuits:
    """Every address that something is sent to.

    Args:
        deadlines: Where an outbox is woken that waits for its address.
    """

    def __init__(self, deadlines: Deadlines) -> None:
        self._deadlines = deadlines
        self._paused: dict[str, float] = {}
        """Address -> when it wants to be asked again."""

    def pause(self, to: str, seconds: float, now: float) -> None:
        """The destination there asks not to be asked again for so long (Retry-After)."""
        self._paused[to] = max(self._paused.get(to, now), now + seconds)

    def holds(self, outbox: Outbox, now: float) -> bool:
        """Whether nothing may go out of that outbox now; it is woken when it may."""
        until = self._paused.get(outbox.to or "")
        if until is None:
            return False
        if until <= now:
            del self._paused[outbox.to or ""]
            return False
        self._deadlines.want(outbox.key, until)
        return True
