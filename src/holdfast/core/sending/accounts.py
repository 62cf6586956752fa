"""Accounts: which destinations refuse the credentials of this side, and which have not yet accepted any.

All outboxes to an address have the same credentials there, and each refusal brings their account nearer to its lock. So
one outbox sends first, until the destination has answered it; and what one is refused, no other tries.
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast.core.deadlines import Deadlines
from holdfast.core.events import Effect, Transmit
from holdfast.core.faults import LOCKS_ACCOUNT
from holdfast.core.sending.outboxes.outbox import Outbox

FIRST_ALONE = 5.0
"""Seconds for which one outbox sends alone to an address that has not answered yet. Then another one does: the answer
to the first may be lost."""
MOST_ADDRESSES = 10_000
"""Maximum number of addresses that are remembered as tried. Peers choose those of replies."""


class Accounts:
    """The credentials of this side at each address."""

    def __init__(
        self,
        outboxes: dict[str, Outbox],
        deadlines: Deadlines,
        ready: dict[str, None],
        effects: list[Effect],
        has_credentials: Callable[[str], bool],
    ) -> None:
        self.has_credentials = has_credentials
        self._outboxes = outboxes
        self._deadlines = deadlines
        self._ready = ready
        self._effects = effects
        self._refused: dict[str, tuple[str, str, str]] = {}
        """Address -> code, reason, and key of the outbox that was refused."""
        self._accepted: set[str] = set()
        """Addresses to which any outbox may send."""
        self.trying: dict[str, tuple[str, float]] = {}
        """Address -> key of the outbox that sends alone, and until when."""
        self._held: dict[str, dict[str, None]] = {}
        """Address -> keys of outboxes that wait for its answer."""

    def holds(self, outbox: Outbox, now: float) -> bool:
        """Whether the outbox may send nothing now. One with messages is stopped if another was refused."""
        to = outbox.to or ""
        if to in self._accepted or not (to in self._refused or self.has_credentials(to)):
            return False
        if outbox.lifecycle.is_held_back:
            return False
        refused = self._refused.get(to)
        if refused is not None:
            self._stop(outbox, *refused, now)
            return True
        key, until = self.trying.get(to, (outbox.key, now))
        if key == outbox.key or now >= until:
            return False
        self._held.setdefault(to, {})[outbox.key] = None
        self._deadlines.want(outbox.key, until)
        return True

    def had_turn(self, outbox: Outbox, told: int, now: float) -> None:
        """Note what an outbox did in its turn. If it sent something, the others wait for the answer.

        Args:
            told: The number of effects before its turn.
        """
        to = outbox.to or ""
        if to in self._accepted or not self.has_credentials(to):
            return
        if any(type(one) is Transmit for one in self._effects[told:]):
            self.trying[to] = outbox.key, now + FIRST_ALONE

    def answered(self, to: str) -> None:
        """Note that an address has answered, and not refused the credentials."""
        if self.trying.pop(to, None) is not None:
            self._accept(to)
            self._wake(to)

    def refused(self, to: str | None, code: str, reason: str, key: str) -> None:
        """Note that an outbox is stopped. Those to the same address with the same credentials are stopped as well."""
        if code not in LOCKS_ACCOUNT or not to or to in self._refused:
            return
        self._refused[to] = code, reason, key
        self._accepted.discard(to)
        self.trying.pop(to, None)
        self._held.pop(to, None)
        self._ready.update(dict.fromkeys(one.key for one in self._outboxes.values() if one.to == to))

    def resumed(self, to: str | None) -> None:
        """Note that an operator has resumed an outbox: one outbox tries the credentials again."""
        if self._refused.pop(to or "", None) is not None:
            self._accepted.discard(to or "")

    def leave(self, to: str | None, key: str) -> None:
        """Forget an outbox; the others to its address do not wait for it."""
        trying = self.trying.get(to or "")
        if trying is not None and trying[0] == key:
            del self.trying[to or ""]
            self._wake(to or "")

    def _stop(self, outbox: Outbox, code: str, reason: str, key: str, now: float) -> None:
        if outbox.source is not None or not outbox.records.is_empty:
            outbox.stop(code, f"{reason} (refused for {key!r}, which has the same credentials)", now)

    def _accept(self, to: str) -> None:
        if len(self._accepted) >= MOST_ADDRESSES:
            self._accepted.clear()
        self._accepted.add(to)

    def _wake(self, to: str) -> None:
        self._ready.update(self._held.pop(to, {}))
