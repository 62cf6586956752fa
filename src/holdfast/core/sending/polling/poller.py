"""Poller: when one destination is polled for the messages of one address (WS-MakeConnection 3.2)."""

from __future__ import annotations

from holdfast.core.policy import PollingPolicy
from holdfast.core.rm_source.source import RMSource
from holdfast.core.states.outbound import SourceState
from holdfast.core.states.poller import POLLER_TABLE, PollerAction, PollerEvent, PollerState
from holdfast.core.states.table import step

GROWTH = 1.5
"""Factor between two pauses. With it, a reply waits no longer than half of the time that the service took."""
_ASKING = (SourceState.CREATING, SourceState.CLOSING, SourceState.TERMINATING)
"""States in which the answer to a request of the Sequence may have to be polled."""


class Poller:
    """The polls for one address at one destination.

    Args:
        address: The address, which contains an identifier of this side.
    """

    __slots__ = (
        "address", "asked", "awaiting", "due", "has_more", "listening", "pause", "policy", "polled_at", "sources",
        "state", "to",
    )  # fmt: skip

    def __init__(self, to: str, address: str) -> None:
        self.to = to
        self.address = address
        self.state = PollerState.IDLE
        self.policy = PollingPolicy()
        self.due = 0.0
        """When the pause is over, or a poll has no answer for too long."""
        self.pause = self.policy.first
        """Seconds of the next pause, without its random share."""
        self.polled_at: float | None = None
        """When the latest poll left; None: none has, in this run."""
        self.has_more = False
        """Whether the latest answer says that another message waits."""
        self.sources: dict[str, RMSource] = {}
        """``local_id`` -> Sequence with the address, the latest one last."""
        self.awaiting: set[str] = set()
        """``local_id`` of each Sequence that awaits a message."""
        self.listening: set[str] = set()
        """``local_id`` of each one with an open Sequence of replies."""
        self.asked: set[str] = set()
        """``local_id`` of each one with a request whose exchange has ended."""

    def handle(self, event: PollerEvent) -> PollerAction | None:
        action, self.state = step(POLLER_TABLE, self.state, event, f"the poller of {self.to}")
        return action

    # --- what may come --------------------------------------------------------------------------------------------

    def add(self, source: RMSource) -> None:
        """Register a Sequence that has the address."""
        self.sources[source.local_id] = source

    def remove(self, source: RMSource) -> None:
        self.sources.pop(source.local_id, None)
        for names in (self.awaiting, self.listening, self.asked):
            names.discard(source.local_id)

    def see(self, source: RMSource, now: float, *, is_held_back: bool) -> bool:
        """Note what a Sequence expects now, and return whether it expects more than before.

        Args:
            is_held_back: Whether its outbox sends nothing until an operator resumes it.
        """
        name = source.local_id
        self.policy = source.policy.polling
        if self.polled_at is None and source.identifier is None:
            self.polled_at = now  # nothing of an earlier run waits for it
        if source.state not in _ASKING:
            self.asked.discard(name)
        is_awaiting = not is_held_back and self._awaits(source)
        is_listening = not is_held_back and source.offer is not None and source.identifier is not None
        is_more = (is_awaiting and name not in self.awaiting) or (is_listening and name not in self.listening)
        for names, is_in in ((self.awaiting, is_awaiting), (self.listening, is_listening)):
            if is_in:
                names.add(name)
            else:
                names.discard(name)
        return is_more

    def _awaits(self, source: RMSource) -> bool:
        """Whether a message for the Sequence may wait at its destination.

        The answer to a message usually comes in its own exchange. So only a request is worth a poll while its first
        exchange is open: its service may take long.
        """
        waiting = source.waiting
        if waiting.unreplied or waiting.before or source.local_id in self.asked:
            return True
        return any(entry.attempts > entry.exchanges for entry in source.flight.values())

    # --- when -----------------------------------------------------------------------------------------------------

    def due_event(self, now: float) -> PollerEvent:
        """Return what it means that the pause is over, or that a poll has no answer for that long."""
        is_awaiting = self.awaiting or (self.has_more and self.sources)
        if not is_awaiting and not self.listening:
            return PollerEvent.NOTHING_EXPECTED
        if self.state is PollerState.POLLING:
            return PollerEvent.SILENT
        if is_awaiting:
            return PollerEvent.DUE
        is_late = self.polled_at is None or now >= self.polled_at + self.policy.cap
        return PollerEvent.DUE if is_late else PollerEvent.DUE_EARLY

    def happen(self, event: PollerEvent, jitter: float, now: float) -> PollerAction | None:
        """Apply an event: set when the next poll is due, and return the action.

        Args:
            jitter: In [0, 1).
        """
        policy = self.policy
        was_due = self.due if self.state is PollerState.WAITING else None
        action = self.handle(event)
        share = 1.0 + policy.jitter * jitter
        if action is PollerAction.POLL:
            self.polled_at, self.has_more = now, False
            self.due = now + policy.cap
        elif action is PollerAction.POLL_SOON:
            self.pause = policy.first
            soon = now + self.pause * share
            # A poll that was due earlier stays due.
            self.due = soon if was_due is None else min(was_due, soon)
        elif action is PollerAction.SHORTEN:
            self.pause = policy.first
        elif action is PollerAction.POLL_AT_ONCE:
            self.pause, self.due, self.has_more = policy.first, now, True
        elif action is PollerAction.BACK_OFF:
            self.due = now + min(policy.cap, self.pause) * share
            self.pause = min(policy.cap, self.pause * GROWTH)
        elif action is PollerAction.POSTPONE:
            self.due = (now if self.polled_at is None else self.polled_at) + policy.cap * share
        return action
