"""RMDestination: one inbound Sequence, its numbers and its acknowledgement.

It keeps four sets of numbers apart: *received* (seen at all), *accepted* (submitted for storage; filters duplicates),
*acknowledged* (durable, and with its reply if one is awaited; the only ones an acknowledgement may name) and *released*
(delivered to the application, in order if that is promised). It does not know stores, queues or the network.
"""

from __future__ import annotations

import math
from enum import Enum

from holdfast.core.faults import (
    LAST_MESSAGE_NUMBER_EXCEEDED,
    MESSAGE_NUMBER_ROLLOVER,
    SEQUENCE_CLOSED,
    SEQUENCE_TERMINATED,
    UNKNOWN_SEQUENCE,
    sequence_fault,
)
from holdfast.core.messages import (
    Fault,
    IncompleteSequenceBehavior,
    SequenceAcknowledgement,
)
from holdfast.core.policy import Delivery
from holdfast.core.queues.queue_limit import QueueLimit
from holdfast.core.rm_destination.saved_state import InboundSequence
from holdfast.core.states.inbound import (
    DESTINATION_TABLES,
    SETTLING_TABLE,
    DestinationAction,
    DestinationEvent,
    DestinationState,
    SettlingAction,
    SettlingEvent,
    SettlingState,
)
from holdfast.core.states.table import step

# An enum's members are slow to look up by its class, and every message needs these.
_CREATED = DestinationState.CREATED
_NEW_MESSAGE = DestinationEvent.NEW_MESSAGE
_ACCEPT = DestinationAction.ACCEPT
_OPEN, _AWAITING, _SETTLED = SettlingState.OPEN, SettlingState.AWAITING, SettlingState.SETTLED
_DISCARD_ENTIRE_SEQUENCE = IncompleteSequenceBehavior.DISCARD_ENTIRE_SEQUENCE


TIME_IS_UP = "time is up"
"""Replaces a last fault if Expires or the inactivity timeout ended the Sequence."""


class Verdict(Enum):
    """Result of judging a received message."""

    NEW = "new"
    DUPLICATE = "duplicate"
    NOT_YET = "not yet"
    """Too far beyond a gap, or one range too many: not accepted; the source must retransmit it."""


_NEW = Verdict.NEW


class RMDestination(InboundSequence):
    """One inbound Sequence.

    If :meth:`receive` returns NEW, store the message durably with :meth:`to_state`, then call :meth:`acknowledge` (at
    once, or when the awaited reply is durable too). :meth:`release` returns the numbers to deliver to the application.
    After a decision about the Sequence's end is durable, call :meth:`settle`.
    """

    __slots__ = ()

    def __str__(self) -> str:
        return f"the inbound Sequence {self.identifier}"

    # --- what happens to it ---------------------------------------------------------------------------------------

    def handle(self, event: DestinationEvent) -> DestinationAction | None:
        """Move by the state table.

        Returns:
            The action; None if the table has no cell for the source's event: the source names an unknown Sequence.

        Raises:
            NoSuchMove: the table has no such cell, and this endpoint caused the event.
        """
        action, self.state = step(DESTINATION_TABLES[self.versions.rm], self.state, event, self)
        return action

    def moves_at(self, event: DestinationEvent) -> bool:
        cell = DESTINATION_TABLES[self.versions.rm].get((self.state, event))
        return cell is not None and cell[1] is not self.state

    def handle_end(self, event: SettlingEvent) -> SettlingAction | None:
        """Move its end by the state table, like :meth:`handle`."""
        action, self.settling = step(SETTLING_TABLE, self.settling, event, f"the end of {self}")
        return action

    def asked(self) -> DestinationAction | None:
        """Handle AckRequested without revealing an end that may not be reported yet."""
        # An end that is not durable must not show: a crash could take it back.
        is_told = self.settling is _OPEN or self.settling is _SETTLED
        event = DestinationEvent.ACK_REQUESTED if is_told else DestinationEvent.ACK_REQUESTED_BEFORE_END_IS_TOLD
        return self.handle(event)

    @property
    def is_in_order(self) -> bool:
        """Whether numbers are released in order only."""
        return self.policy.assurance.in_order

    @property
    def holds_everything(self) -> bool:
        """Whether only a complete Sequence is released (DiscardEntireSequence, WS-RM 3.4)."""
        return self.behavior is _DISCARD_ENTIRE_SEQUENCE

    def receive(
        self,
        number: int,
        last_message: bool,
        now: float,
        *,
        awaits_reply: bool = False,
        full: QueueLimit | None = None,
        may_hold: bool = True,
        may_reply: bool = True,
    ) -> Verdict | Fault:
        """Judge a message by its number. NEW: accepted, awaiting :meth:`acknowledge`.

        ``awaits_reply``: whether it is a request that needs its reply before it is acknowledged; ``full``: the limit of
        a target queue without room; ``may_hold``: whether its bytes may be held; ``may_reply``: whether a request's
        reply may wait for a poll.
        """
        self.kept_out_by = full
        self.is_short_of_bytes = False
        # WS-RM appendix D: the table defines the answer
        # A message that is refused also shows that the source is alive.
        self.last_activity = now
        if number in self.accepted:
            # A repeated 1.0 LastMessage must find the Sequence unchanged, so a duplicate changes nothing.
            event = DestinationEvent.DUPLICATE_MESSAGE
        # WS-RM 4.5: the limit is the type's maximum, or a lower one of this destination.
        elif number > self.policy.max_message_number:
            event = DestinationEvent.MESSAGE_ABOVE_LIMIT
        elif self.last_message_number is not None and number > self.last_message_number:
            event = DestinationEvent.MESSAGE_AFTER_LAST
        elif self.suspended is not None and self.state is _CREATED:
            event = DestinationEvent.MESSAGE_WHILE_SUSPENDED
        elif self.state is _CREATED and not (
            full is None
            and self._has_room(number, may_hold)
            and (not awaits_reply or (may_reply and self._takes_request()))
        ):
            event = DestinationEvent.MESSAGE_WITHOUT_ROOM
            self.is_short_of_bytes = not may_hold
        else:
            event = _NEW_MESSAGE
        action = self.handle(event)
        if action is _ACCEPT:
            self.accepted.add(number)
            if last_message:
                self.last_message_number = number
            return _NEW
        if action is DestinationAction.ACKNOWLEDGE:
            return Verdict.DUPLICATE
        if action is DestinationAction.LEAVE:
            return Verdict.NOT_YET
        return self._fault(action)

    def _has_room(self, number: int, may_hold: bool) -> bool:
        accepted = self.accepted
        first_gap = accepted.first_gap
        if number == first_gap:
            # Always accepted: only this number can close the gap, so one range is reserved for it. But if the messages
            # before it are still moving into the queue, it would be held behind them, and can wait.
            return may_hold or number == self.next_in_order or self.holds_everything or not self._holds_beyond_gap
        is_too_much = number > first_gap + self.policy.buffer or not may_hold
        if is_too_much and (self._holds_beyond_gap or self.holds_everything):
            return False
        # A number next to a range makes no new one.
        return len(accepted) < self.policy.max_ranges - 1 or number - 1 in accepted or number + 1 in accepted

    def _fault(self, action: DestinationAction | None) -> Fault:
        if action is DestinationAction.RAISE_MESSAGE_NUMBER_ROLLOVER:  # WS-RM 4.5
            # 1.0 has no MaxMessageNumber in the detail (WS-RM 4.5).
            limit = None if self.versions.rm.can.rollover_ends else self.policy.max_message_number
            fault = sequence_fault(MESSAGE_NUMBER_ROLLOVER, self.identifier, max_message_number=limit)
        elif action is DestinationAction.RAISE_SEQUENCE_CLOSED:
            fault = sequence_fault(SEQUENCE_CLOSED, self.identifier)
        elif action is DestinationAction.RAISE_LAST_MESSAGE_NUMBER_EXCEEDED:
            fault = sequence_fault(LAST_MESSAGE_NUMBER_EXCEEDED, self.identifier)
        elif action is DestinationAction.RAISE_SEQUENCE_TERMINATED and self.last_fault != TIME_IS_UP:
            fault = sequence_fault(SEQUENCE_TERMINATED, self.identifier)
        else:
            # Also after a timeout: both sides forget such a Sequence silently (WS-RM 3.4).
            return sequence_fault(UNKNOWN_SEQUENCE, self.identifier)
        # A repeat gets the same answer.
        self.last_fault = fault.code
        return fault

    def acknowledge(self, number: int) -> None:
        """Acknowledge a message that is durable, with its reply if one was awaited."""
        assert number in self.accepted, (self.identifier, number)
        self.replies.awaiting.discard(number)
        self.acknowledged.add(number)
        # That was the last reply that the end waited for.
        if self.settling is _AWAITING and not self.replies.awaiting:
            self.handle_end(SettlingEvent.LAST_REPLY)

    def hold(self, number: int, size: int = 0) -> bool:
        """Hold the new ``number``, counting ``size`` bytes, if it must wait for others.

        Returns whether it is held.
        """
        if self.holds_everything or (number != self.next_in_order and self._holds_beyond_gap):
            self.held[number] = size
            self.held_bytes += size
            return True
        return False

    @property
    def _holds_beyond_gap(self) -> bool:
        # DiscardFollowingFirstGap could not discard messages that the application already has, in whatever order.
        may_be_discarded = self.behavior is IncompleteSequenceBehavior.DISCARD_FOLLOWING_FIRST_GAP
        return may_be_discarded or (self.is_in_order and not self._may_skip)

    @property
    def waits_behind_gaps(self) -> bool:
        """Whether a message waits until every one before it has arrived."""
        return self.holds_everything or self._holds_beyond_gap

    @property
    def _may_skip(self) -> bool:
        # AtMostOnce InOrder promises no delivery, only that it never goes back (WS-RM Policy; see docs). A requester
        # waits for its reply, so a Sequence with replies skips nothing.
        return self.policy.assurance.delivery is Delivery.AT_MOST_ONCE and self.offered is None

    def is_too_late(self, number: int) -> bool:
        """Whether release would break the order; at-most-once in-order then drops it."""
        return number < self.next_in_order and self.is_in_order and self._may_skip

    @property
    def is_releasing(self) -> bool:
        """Whether :meth:`release` has further numbers without new messages."""
        return bool(self.leaving) or (self.next_in_order in self.held and not self.holds_everything)

    def release(self, most: float = math.inf) -> list[int]:
        """Return the held numbers that may be released now, ascending, each once.

        Call this also after :meth:`hold` returned False. ``most``: stop once the released messages have this many
        bytes.
        """
        released: list[int] = []
        # Nearly every message: nothing is held, so nothing can follow it.
        if not self.held and self.marker is None:
            return released
        while most > 0 and (number := self._next_to_leave()) is not None:
            size = self.held.pop(number)
            self.held_bytes -= size
            most -= size
            released.append(number)
        return released

    def _next_to_leave(self) -> int | None:
        if self.leaving:
            return self.leaving.popleft()
        if self.holds_everything:
            return None
        # A marker has no body to release. It may stand before this number, or right behind it.
        self._pass_marker()
        number = self.next_in_order
        if number not in self.held:
            return None
        self.next_in_order += 1
        self._pass_marker()
        return number

    def _pass_marker(self) -> None:
        if self.next_in_order == self.marker:
            self.next_in_order += 1

    def released(self, number: int) -> None:
        """Record that ``number`` went straight to the application, without being held."""
        if number >= self.next_in_order:
            self.next_in_order = number + 1

    # --- replies --------------------------------------------------------------------------------------------------

    def _takes_request(self) -> bool:
        """Return whether the limit on open requests allows another one.

        Open requests are those that await a reply, not counting held ones, and replies that are not acknowledged.
        """
        # Replies outside an offered Sequence are kept up to the same limit.
        replies = len(self.replies.numbers) if self.offered is not None else 0
        return len(self.replies.awaiting) - len(self.held) + replies < self.policy.max_open_requests

    def may_keep_reply(self, number: int) -> bool:
        """Whether to keep a reply to a message acknowledged without one, for its sender."""
        if self.is_over or number not in self.acknowledged or number in self.replies:
            return False
        # A reply in an offered Sequence cannot be forgotten. Half of the room is reserved for requests that wait.
        return self.offered is None or len(self.replies.numbers) < self.policy.max_open_requests // 2

    def replied(self, number: int) -> None:
        """Acknowledge a request, as its reply, or the absence of one, is durable."""
        self.replies.replying.discard(number)
        self.replies.waived.discard(number)
        self.acknowledge(number)

    def replies_heard(self, numbers: list[int]) -> None:
        """Apply the acknowledgements of these requests' replies, which are now durable."""
        for number in numbers:
            if self.replies.hear(number):
                self.acknowledge(number)

    # --- its end --------------------------------------------------------------------------------------------------

    def end(self, last_message_number: int | None) -> tuple[list[int], list[int], list[tuple[int, int]]] | None:
        """Accept no new message: settle held ones by the IncompleteSequenceBehavior.

        Accepted messages that await a reply continue to await it, unless they are discarded.

        Args:
            last_message_number: LastMsgNumber if the source sent it; shows a missing tail.

        Returns:
            The numbers that :meth:`release` returns from now on, in ascending order, the numbers to discard, and the
                gaps (ranges never received); None if the end was settled before.
        """
        # WS-RM 3.5, 3.6: LastMsgNumber shows a missing tail; WS-RM 3.4: the behaviour at a gap
        if self.handle_end(SettlingEvent.END) is not SettlingAction.SETTLE:
            return None
        if last_message_number is not None:
            self.last_message_number = last_message_number
        # Without LastMsgNumber, a missing tail cannot be known.
        gaps = list(self.accepted.gaps(self.last_message_number or self.accepted.highest))
        held = sorted(self.held)
        discarded: list[int] = []
        if gaps and self.behavior is IncompleteSequenceBehavior.DISCARD_ENTIRE_SEQUENCE:
            held, discarded = [], held
        elif gaps and self.behavior is IncompleteSequenceBehavior.DISCARD_FOLLOWING_FIRST_GAP:
            first = gaps[0][0]
            # Behind the gap; what stands before it has no gap below, and is delivered.
            discarded = [number for number in held if number > first]
            held = [number for number in held if number < first]
        self.replies.awaiting.difference_update(discarded)
        # A discarded request gets no reply, so nothing must wait for one.
        for number in discarded:
            self.held_bytes -= self.held.pop(number)
        self.leaving.extend(held)
        return held, discarded, gaps

    def waive(self) -> bool:
        """Acknowledge every message, even without its reply, as the source ended it.

        Returns:
            Whether to save this, and call :meth:`settle` once it is durable.
        """
        if self.is_settling and not self.replies.awaiting:
            return False  # decided already: the same request arrived twice
        self.replies.waive()
        return self.handle_end(SettlingEvent.WAIVED) is SettlingAction.SAVE

    def decide(self) -> int:
        """Count a decision about its end; return its number, for :meth:`settle`."""
        self.decisions += 1
        return self.decisions

    def settle(self, decision: int) -> None:
        """Settle a decision that is durable, and with it every accepted message.

        If it is the newest decision, everything is acknowledged except requests that await a reply.
        """
        if decision == self.decisions and self.handle_end(SettlingEvent.DURABLE) is SettlingAction.ACKNOWLEDGE_ALL:
            self.acknowledge_accepted()
            if not self.replies.awaiting:
                self.handle_end(SettlingEvent.LAST_REPLY)

    @property
    def is_settling(self) -> bool:
        """Whether its end is decided but not durable, and so not yet reported."""
        return self.settling is SettlingState.SETTLING

    @property
    def is_over(self) -> bool:
        """Whether it is terminated, and only remembered."""
        return self.state is DestinationState.TERMINATED

    @property
    def is_final(self) -> bool:
        """Whether its acknowledgement never changes again (WS-RM 3.9, Final)."""
        return self.settling is _SETTLED and self.versions.rm.can.has_final

    @property
    def beyond_gap(self) -> int:
        """Number of messages held beyond a gap; DiscardEntireSequence also holds others."""
        return self.accepted.count - self.accepted.first_gap + 1 if self.holds_everything else len(self.held)

    def acknowledgement(self) -> SequenceAcknowledgement:
        # netrm:BufferRemaining: WCF pauses at 0, and refuses a negative number.
        remaining = max(0, self.policy.buffer - self.beyond_gap) if self.policy.advertise_buffer else None
        if self.kept_out_by is not None and remaining is not None and not self.kept_out_by.has_room():
            remaining = 0
        if self.is_short_of_bytes and remaining is not None:
            remaining = min(remaining, 1)  # the next in order needs no room, and may be what the source waits to send
        return SequenceAcknowledgement(self.identifier, self.acknowledged.as_pairs(), (), self.is_final, remaining)

    def deadline(self) -> float | None:
        """Return when the Sequence expires, times out or may be forgotten; None: never (WS-RM 3.4)."""
        if self.ended_at is not None:
            return self.ended_at + self.policy.remember_terminated
        timeout = self.policy.inactivity_timeout
        # This peer is never silent for long while it runs, so its silence proves sooner that it is gone.
        if self.is_kept_alive and self.policy.keep_alive_timeout is not None:
            timeout = (
                self.policy.keep_alive_timeout if timeout is None else min(timeout, self.policy.keep_alive_timeout)
            )
        idle = None if timeout is None else self.last_activity + timeout
        if self.expires_at is None:
            return idle
        return self.expires_at if idle is None else min(idle, self.expires_at)
