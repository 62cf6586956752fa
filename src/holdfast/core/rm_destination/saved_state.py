"""Attributes of an inbound Sequence. Writes its saved state, and reads it in this format and in older ones."""

from __future__ import annotations

from collections import deque
from typing import Self

from holdfast.core.messages import EndpointReference, IncompleteSequenceBehavior
from holdfast.core.policy import DestinationPolicy
from holdfast.core.queues.queue_limit import QueueLimit
from holdfast.core.ranges import AcknowledgementRanges
from holdfast.core.records import State
from holdfast.core.rm_destination.request_replies import RequestReplies
from holdfast.core.states.inbound import DESTINATION_TABLES, DestinationEvent, DestinationState, SettlingState
from holdfast.core.versions import Versions

_CREATED = DestinationState.CREATED  # an enum's members are slow to look up by its class

UNKNOWN_BYTES = 256 * 1024
"""Size assumed for a held message without a saved size: one of an older version, or one of very many."""


class InboundSequence:
    """The attributes of one inbound Sequence, most of which its store keeps.

    Args:
        policy: Its limits and timers.
    """

    __slots__ = (
        "accept_acks_to", "accepted", "acknowledged", "acks_to", "asks_by_reply_to", "behavior", "create_message_id",
        "created_at", "decisions", "disowned", "ended_at", "expires", "expires_at", "gap_reported", "held",
        "held_bytes", "identifier", "is_kept_alive", "is_short_of_bytes", "last_activity", "last_fault", "kept_out_by",
        "last_message_number", "leaving", "marker", "next_in_order", "offered", "partition", "party", "policy",
        "replies", "routed", "saved", "settling", "state", "suspended", "unqueued", "versions",
    )  # fmt: skip

    def __init__(
        self, identifier: str, versions: Versions, acks_to: EndpointReference, policy: DestinationPolicy, now: float
    ):
        self.identifier = identifier
        self.versions = versions
        self.acks_to = acks_to
        self.policy = policy
        self.behavior = policy.incomplete_sequence_behavior
        self.state = DestinationState.CREATED
        self.accepted = AcknowledgementRanges()
        self.acknowledged = AcknowledgementRanges()
        self.replies = RequestReplies()
        self.held: dict[int, int] = {}
        """Messages that are durable and not yet in a queue: number -> bytes."""
        self.held_bytes = 0
        self.leaving: deque[int] = deque()
        """After its end, the held messages that have yet to enter queues, ascending."""
        self.next_in_order = 1
        self.unqueued = 0
        """How many accepted messages entered no queue and were never held: for no queue, too late, or an empty
        LastMessage. With them, the store accounts for every accepted number."""
        self.marker: int | None = None
        """The number of an empty LastMessage (1.0): accepted, never delivered."""
        self.last_message_number: int | None = None
        self.offered: str | None = None
        self.create_message_id: str | None = None
        self.party = ""
        """The party that owns it, for the quota of one party; "" if that is unknown."""
        self.accept_acks_to: EndpointReference | None = None
        self.partition = 0
        self.expires: float | None = None
        self.expires_at: float | None = None
        self.created_at = now
        self.last_activity = now
        self.ended_at: float | None = None
        self.last_fault = ""
        self.is_kept_alive = False
        """Whether its source is never silent for long while it runs."""
        self.asks_by_reply_to = False
        """Whether one of its messages named a ReplyTo; a message without one is then one-way."""
        self.disowned = False
        """Whether its source reported it as ended or unknown: it is no longer acknowledged (DISOWN)."""
        self.suspended: str | None = None
        """The operator's reason for suspending it, which rejects new messages; None while it is not suspended."""
        self.kept_out_by: QueueLimit | None = None
        """The limit that the latest message exceeded; None: there was room."""
        self.is_short_of_bytes = False
        """Whether the latest message could not be held because of the bytes already held."""
        self.gap_reported: list[int] = []
        self.routed: dict[int, list[str]] = {}
        """Held messages routed to other queues than the default: number -> the names of their queues."""
        self.settling = SettlingState.OPEN
        """The progress of its end."""
        self.decisions = 0
        """Number of decisions about its end, each of which must become durable."""
        self.saved: State | None = None
        """The constant part of the saved state, once that was written."""

    def to_state(self) -> State:
        """Return the state to save in the same batch as the messages it accepted."""
        # For every message: copy the constant part, then add the parts that changed.
        state = (self.saved or self._constant_state()).copy()
        state["partition"] = self.partition
        state["accepted"] = self.accepted.to_state()
        state["next_in_order"] = self.next_in_order
        state["last_activity"] = self.last_activity
        if self.state is not _CREATED:
            state["state"] = self.state.value
        self.replies.save(state)
        if self.unqueued:
            state["unqueued"] = self.unqueued
        if self.marker is not None:
            state["marker"] = self.marker
        if self.last_message_number is not None:
            state["last_message_number"] = self.last_message_number
        if self.ended_at is not None:
            state["ended_at"] = self.ended_at
        if self.last_fault:
            state["last_fault"] = self.last_fault
        if self.disowned:
            state["disowned"] = True
        if self.asks_by_reply_to:
            state["asks"] = True
        if self.gap_reported:
            state["gaps"] = self.gap_reported
        if self.suspended is not None:
            state["suspended"] = self.suspended
        if self.held and len(self.held) <= self.policy.buffer:  # more only if everything is held
            state["held"] = [*self.held, *self.held.values()]
        if self.routed:
            state["routed"] = [[number, *names] for number, names in self.routed.items()]
        return state

    def _constant_state(self) -> State:
        """Return the constant part of the state, and initial values of rare changes."""
        versions, acks_to, accept_acks_to = self.versions, self.acks_to, self.accept_acks_to
        self.saved = {
            "role": "destination",
            "identifier": self.identifier,
            "versions": [versions.rm.value, versions.addressing.value, versions.soap.value],
            "acks_to": [acks_to.address, list(acks_to.reference_parameters)],
            "accept_acks_to": accept_acks_to.address if accept_acks_to else None,
            "create_message_id": self.create_message_id,
            "party": self.party,
            "created_at": self.created_at,
            "expires": self.expires,
            "expires_at": self.expires_at,
            "behavior": self.behavior.value,
            "offered": self.offered,
            "kept_alive": self.is_kept_alive,
            "state": _CREATED.value,
            "accepted": [],
            "awaiting": [],
            "next_in_order": 1,
            "unqueued": 0,
            "marker": None,
            "last_message_number": None,
            "replies": [],
            "last_activity": self.created_at,
            "ended_at": None,
            "last_fault": "",
            "gaps": [],
        }
        return self.saved

    @classmethod
    def from_state(cls, state: State, held: list[int], policy: DestinationPolicy, now: float) -> Self:
        """Restore a saved Sequence.

        A clock that was set back, or a long downtime, does not count as the peer's inactivity.
        """
        destination = cls(
            state["identifier"],
            Versions(*state["versions"]),
            EndpointReference(state["acks_to"][0], tuple(state["acks_to"][1])),
            policy,
            min(state["created_at"], now),
        )
        destination.restore(state, held, now)
        return destination

    def restore(self, state: State, held: list[int], now: float) -> None:
        """Restore the saved state of a new object.

        Args:
            state: What :meth:`to_state` returned, in this version or an older one.
            held: The numbers of the held messages in the store.
        """
        self.behavior = IncompleteSequenceBehavior(state["behavior"])
        self.state = DestinationState(state["state"])
        self.accepted = AcknowledgementRanges.from_state(state["accepted"])
        self.replies.restore(state)
        # Everything in the batch is durable, now that its state is read back: only replies can still be awaited.
        self.acknowledge_accepted()
        if self.state is not _CREATED:
            is_awaiting = bool(self.replies.awaiting)
            self.settling = SettlingState.AWAITING if is_awaiting else SettlingState.SETTLED
        self._restore_held(held, state.get("held", []))
        self.next_in_order = state["next_in_order"]
        self.unqueued = state.get("unqueued", 0)
        self.marker = state["marker"]
        self.last_message_number = state["last_message_number"]
        self.offered = state["offered"]
        self.create_message_id = state["create_message_id"]
        self.party = state.get("party", "")
        if state["accept_acks_to"] is not None:
            self.accept_acks_to = EndpointReference(state["accept_acks_to"])
        self.partition = state["partition"]
        for number in self.replies.numbers:
            self.acknowledged.add(number)
        self.expires = state["expires"]
        self.expires_at = state["expires_at"]
        if self.expires_at is not None and self.expires is not None:
            self.expires_at = min(self.expires_at, now + self.expires)
        self.last_activity = now
        self.ended_at = None if state["ended_at"] is None else min(state["ended_at"], now)
        self.last_fault = state["last_fault"]
        self.disowned = state.get("disowned", False)
        self.asks_by_reply_to = state.get("asks", False)
        self.is_kept_alive = state.get("kept_alive", False)
        self.gap_reported = list(state["gaps"])
        self.suspended = state.get("suspended")
        self.routed = {number: names for number, *names in state.get("routed", ())}

    def _restore_held(self, numbers: list[int], saved: list[int]) -> None:
        sizes = dict(zip(saved[: len(saved) // 2], saved[len(saved) // 2 :], strict=True))
        self.held = {number: sizes.get(number, UNKNOWN_BYTES) for number in numbers}
        self.held_bytes = sum(self.held.values())
        if self.state is not _CREATED:
            self.leaving.extend(sorted(self.held))

    def acknowledge_accepted(self) -> None:
        """Acknowledge every accepted message, except requests that await a reply."""
        for lower, upper in self.accepted:
            for number in sorted(number for number in self.replies.awaiting if lower <= number <= upper):
                if number > lower:
                    self.acknowledged.add_range(lower, number - 1)
                lower = number + 1
            if lower <= upper:
                self.acknowledged.add_range(lower, upper)


def closed_state(state: State) -> State:
    """Return the saved state of an inbound Sequence, closed; any other unchanged.

    This serves a store that has lost acknowledged messages. Later messages of such a Sequence would wait behind a gap
    that no sender fills. The sender instead receives SequenceClosed, or SequenceTerminated in WS-RM 1.0.
    """
    if state.get("role") != "destination" or state.get("state") != _CREATED.value:
        return state
    table = DESTINATION_TABLES[Versions(*state["versions"]).rm]
    _, after = table[DestinationState.CREATED, DestinationEvent.DECIDE_TO_CLOSE]
    ended_at = state["last_activity"] if after is DestinationState.TERMINATED else None
    return state | {"state": after.value, "ended_at": ended_at}
