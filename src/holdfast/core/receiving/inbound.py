"""Inbound: every Sequence this endpoint receives, its messages and its end.

It sends no answers; :class:`Replies` knows the back-channels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from holdfast.core.events import BackChannel, Delivered, Incident, NotQueued
from holdfast.core.faults import ENDS_FOR_DESTINATION
from holdfast.core.messages import (
    Envelope,
    Fault,
    LastMessage,
    Routed,
)
from holdfast.core.origin import whole_party
from holdfast.core.policy import DestinationPolicy
from holdfast.core.queues.queue import Queue
from holdfast.core.queues.queue_limit import QueueLimit
from holdfast.core.ranges import AcknowledgementRanges
from holdfast.core.receiving.creation_repeats import is_repeatable
from holdfast.core.receiving.held_messages import Delivery, HeldMessages, size_of
from holdfast.core.receiving.inbound_sequences import InboundSequences, record_of
from holdfast.core.receiving.replies import Replies
from holdfast.core.receiving.sessions import SessionPartitions
from holdfast.core.records import Record, Snapshot
from holdfast.core.rm_destination.destination import TIME_IS_UP, RMDestination, Verdict
from holdfast.core.states.inbound import DestinationAction, DestinationEvent

_NEW = Verdict.NEW  # an enum's members are slow to look up by its class

LONGEST_HANDLING = 86_400.0
"""Seconds after its end that a Sequence is remembered, at most, for requests that still await their replies."""


def nothing(_now: float) -> None:
    """Do nothing after an end that is not reported."""


class Inbound:
    """The receiving half of an endpoint."""

    def __init__(
        self,
        sequences: InboundSequences,
        replies: Replies,
        sessions: SessionPartitions | None = None,
        trouble: Callable[[], str] = str,
    ):
        self.sequences = sequences
        self.destinations, self.shares = sequences.destinations, sequences.shares
        self.commit, self.effects = sequences.commit, sequences.effects
        self.queue, self.queues = sequences.queue, sequences.queues
        self.trouble = trouble
        self._replies = replies
        self._sessions = sessions
        self.limits: dict[str, QueueLimit] = {}
        """Name of a queue -> its limit, if it has one."""
        self._usual = (self.queue,)
        self.held = HeldMessages(sequences.policy, self.commit, self.queue, self.queues, self.delivered, trouble)
        self._deadlines = sequences.deadlines

    # --- messages -------------------------------------------------------------------------------------------------

    def receive(
        self,
        destination: RMDestination,
        envelope: Envelope,
        awaits_reply: bool,
        back_channel: BackChannel | None,
        now: float,
        *,
        is_kept: bool = True,
        is_answered: bool = False,
        may_reply: bool = True,
    ) -> Verdict | Fault:
        """Receive a message with a Sequence header. NEW: :meth:`Replies.stored` follows.

        :meth:`Replies.stored` is called once the message is durable. ``is_kept``: whether a queue stores it; if not,
        its number is accepted and the message is dropped. ``is_answered``: whether its reply follows in the open batch,
        so readers of the queue must not reply to it. ``may_reply``: whether there is room for the reply of a request.
        """
        sequence = envelope.sequence
        assert sequence is not None
        number = sequence.message_number
        is_marker = isinstance(envelope.control, LastMessage)
        # LastMessage of 1.0 is a number without a body, so no queue gets it.
        queues = self._queues_of(envelope) if is_kept and not is_marker else ()
        full = self._full(queues) if self.limits else None
        # The next message in order goes into its queue at once, so it needs no room beyond a gap.
        may_hold = number == destination.next_in_order or self.held.has_room(destination, size_of(envelope))
        verdict = destination.receive(
            number,
            sequence.last_message,
            now,
            awaits_reply=awaits_reply,
            full=full,
            may_hold=may_hold,
            may_reply=may_reply,
        )
        if verdict is not _NEW:
            # The fault ends the Sequence (WS-RM 1.0 4), so the end must be durable before the fault is sent.
            if isinstance(verdict, Fault) and destination.is_over and destination.ended_at is None:
                self.end(destination, None, nothing, now)
            return verdict
        # A message dropped for being too late receives no answer.
        awaits_reply = awaits_reply and not destination.is_too_late(number)
        if not queues:
            self.effects.append(NotQueued(destination.identifier, number, "marker" if is_marker else "for no queue"))
        if is_marker:
            destination.marker = number
            deliveries: list[Delivery] = []
        else:
            # Before the state is saved: after a crash, its acknowledgement must still wait for its reply.
            if awaits_reply:
                destination.replies.awaiting.add(number)
            is_asked = awaits_reply and not is_answered
            # Only the first message may change the partition: later ones must follow it, for their order.
            if queues and self._sessions is not None and destination.accepted.count == 1:
                self._look_whether_session(self._sessions, destination, envelope, is_asked)
            record = record_of(destination, envelope, is_asked, now)
            deliveries = self._place(destination, number, record, queues)
        if not deliveries and number not in destination.held:
            destination.unqueued += 1
        # One batch has the record, in a queue or held, and the ranges that name it. Only then is it acknowledged.
        self.commit.save(destination.identifier, destination)
        self.commit.then(partial(self._stored, destination, number, deliveries, envelope, back_channel, awaits_reply))
        # It may have closed the gap before held messages, or before the marker.
        if destination.held or destination.marker is not None:
            self.held.release(destination, now)
        return verdict

    def _look_whether_session(
        self, sessions: SessionPartitions, destination: RMDestination, envelope: Envelope, awaits_reply: bool
    ) -> None:
        """Assign the partition of a session, which the first message reveals.

        WCF's one-way messages have neither MessageID nor ReplyTo; if WCF offered a Sequence for replies, requests will
        follow.
        """
        is_wcf_one_way = envelope.message_id is None and envelope.reply_to is None
        if awaits_reply or (destination.offered is not None and is_wcf_one_way):
            destination.partition = sessions.begin(destination)
            # The home moves with the partition: a cluster's node finds a Sequence by it.
            self.commit.save_new(destination.identifier, destination, self.queue.name, destination.partition)

    def end_session(self, destination: RMDestination, now: float) -> None:
        """Report the end of a session, once its queues hold every message."""
        if self._sessions is None:
            return
        if destination.is_releasing:
            self.held.when_released(destination, partial(self.end_session, destination))
        else:
            self._sessions.end(destination)

    def use(self, policy: DestinationPolicy) -> None:
        """Apply a policy to Sequences granted from now on; open ones keep theirs."""
        self.held.policy = policy
        self.sequences.use(policy)

    def _full(self, queues: tuple[Queue, ...]) -> QueueLimit | None:
        for limit in [self.limits[one.name] for one in queues if one.name in self.limits]:
            has_room = limit.has_room()
            if (news := limit.news()) is not None:
                self.effects.append(news)
            if not has_room:
                return limit
        return None

    def _queues_of(self, envelope: Envelope) -> tuple[Queue, ...]:
        routed = envelope.routed
        return tuple(self.queues[name] for name in routed.queues) if isinstance(routed, Routed) else self._usual

    def _place(
        self, destination: RMDestination, number: int, record: Record, queues: tuple[Queue, ...]
    ) -> list[Delivery]:
        """Append a new message to its queues, or hold it until its turn."""
        if self.held.hold(destination, number, record, queues):
            return []
        if destination.is_too_late(number):
            self.effects.append(NotQueued(destination.identifier, number, "too late"))
            return []
        destination.released(number)
        partition = destination.partition
        return [
            (queue, partition, queue.records.append(partition, record), record, queue is queues[0]) for queue in queues
        ]

    def take_plain(self, record: Record) -> None:
        """Store a message without a Sequence header in the queue, durably."""
        # Without a Sequence it has no order to keep, so any partition serves.
        deliveries: list[Delivery] = [(self.queue, 0, self.queue.records.append(0, record), record, True)]
        self.commit.then(partial(self.delivered, deliveries))

    def delivered(self, deliveries: list[Delivery], now: float) -> None:
        """Report durable records to the queues' followers, readers and handlers."""
        for queue, partition, offset, record, is_first in deliveries:
            self.effects.append(Delivered(queue.name, partition, offset, record, 1 if is_first else 0))
            queue.stored(partition, offset, now, record)

    def delivered_many(self, queue: Queue, partition: int, offset: int, count: int, now: float) -> None:
        """Report ``count`` durable records from ``offset`` on, to be read from the store."""
        last = offset + count - 1
        self.effects.append(Delivered(queue.name, partition, offset, None, count))
        queue.stored(partition, last, now)

    def _stored(
        self,
        destination: RMDestination,
        number: int,
        deliveries: list[Delivery],
        envelope: Envelope,
        back_channel: BackChannel | None,
        awaits_reply: bool,
        now: float,
    ) -> None:
        # The end of the Sequence settles what becomes of its requests.
        if number not in destination.replies.awaiting and not (awaits_reply and destination.is_settling):
            destination.acknowledge(number)
        self.delivered(deliveries, now)
        self._replies.stored(destination, number, envelope, back_channel, now)

    # --- ends -----------------------------------------------------------------------------------------------------

    def end(
        self,
        destination: RMDestination,
        last_message_number: int | None,
        then: Callable[[float], None],
        now: float,
        *,
        by_source: bool = False,
        why: dict[str, object] | None = None,
    ) -> None:
        """End a Sequence: settle it durably, then call ``then``.

        ``by_source``: its source ended it, and wants every acknowledgement now. ``why``: the log event's details.
        """
        settled = destination.end(last_message_number)
        is_decided = settled is not None
        if by_source and destination.waive():
            is_decided = True
        if settled is not None:
            _, discard, gaps = settled
            self._settle(destination, discard, gaps, now)
        if destination.is_over:
            self._remember(destination, now, by_source=by_source, why=why)
        self.commit.save(destination.identifier, destination)
        # Numbered, because a later decision about the end may overtake this one: only the newest counts.
        if is_decided:
            self.commit.then(partial(self._settled, destination, destination.decide()))
        # A source that promises order sends its next Sequence on this answer, so the queues must hold every message of
        # this Sequence before the next one's.
        if by_source and self.held.is_moving(destination):
            self.held.when_released(destination, then)
        else:
            self.commit.then(then)

    def _settle(self, destination: RMDestination, discard: list[int], gaps: list[tuple[int, int]], now: float) -> None:
        """Discard held messages, or begin to release them, and report the missing ones."""
        self.held.discard(destination, discard)
        if gaps:
            destination.gap_reported = [number for gap in gaps for number in gap]
            self.effects.append(
                Incident(
                    "sequence.incomplete",
                    destination.identifier,
                    level="error",
                    detail={"missing": str(AcknowledgementRanges(gaps)), "discarded": len(discard)},
                )
            )
        self.held.release(destination, now)

    def _settled(self, destination: RMDestination, decision: int, now: float) -> None:
        destination.settle(decision)
        self._replies.settled(destination, now)

    def _remember(
        self, destination: RMDestination, now: float, *, by_source: bool, why: dict[str, object] | None = None
    ) -> None:
        # The end is reported once, however many causes it has.
        if destination.ended_at is None:
            destination.ended_at = now
            self.shares.closed(whole_party(destination.party))
            self.effects.append(Incident("sequence.terminated", destination.identifier, detail=why))
            self._replies.over(destination, by_source=by_source)
            self.end_session(destination, now)
            self._deadlines.want(destination.identifier, destination.deadline())
            self.commit.save(destination.identifier, destination)
            self._remember_over(destination, now)

    def _remember_over(self, destination: RMDestination, now: float) -> None:
        oldest = self.shares.remember(destination.identifier)
        if oldest is not None:
            self._end_memory(self.destinations[oldest], now)

    def pump(self, now: float) -> None:
        """End Sequences that timed out, forget old ones, and delete expired records."""
        # WS-RM 3.4
        for queue in self.queues.values():
            queue.pump(now)
        self.held.pump(now)
        for identifier in self._deadlines.due(now):
            destination = self.destinations.get(identifier)
            if destination is None:
                continue
            deadline = destination.deadline()
            # Activity moves the deadline without a look at the heap; the heap learns of it when the old one is due.
            if deadline is None or deadline > now:
                self._deadlines.want(identifier, deadline)
            elif destination.ended_at is None:
                if destination.handle(DestinationEvent.EXPIRED) is DestinationAction.END:
                    destination.last_fault = TIME_IS_UP
                    self.end(destination, None, nothing, now, why={"why": TIME_IS_UP})
            # Requesters may still fetch these replies, and a handler may still run, but not for ever.
            elif (
                destination.replies.awaiting or destination.replies.waived
            ) and now < destination.ended_at + LONGEST_HANDLING:
                self._deadlines.want(identifier, now + self.sequences.policy.remember_terminated)
            else:
                self._end_memory(destination, now)

    def fault_received(
        self, destination: RMDestination, code: str, now: float, why: dict[str, object] | None = None
    ) -> None:
        """Handle a source's fault: the Sequence is over, or an acknowledgement illegal.

        ``why``: the log event's details if the Sequence ends.
        """
        if not destination.is_over:  # the way it ended determines its answers
            destination.last_fault = code
        is_ending = code in ENDS_FOR_DESTINATION
        action = destination.handle(DestinationEvent.ENDING_FAULT if is_ending else DestinationEvent.OTHER_FAULT)
        if action is DestinationAction.END_FOR_SOURCE:
            self.end_for_source(destination, now, why)
        elif action is DestinationAction.DISOWN:
            destination.disowned = True
            self.commit.save(destination.identifier, destination)

    def end_for_source(self, destination: RMDestination, now: float, why: dict[str, object] | None = None) -> None:
        """End a Sequence that its source no longer knows (END_FOR_SOURCE in the table).

        ``why``: as of :meth:`end`.
        """
        destination.disowned = True
        self.end(destination, None, nothing, now, by_source=True, why=why)

    def _end_memory(self, destination: RMDestination, now: float) -> None:
        if destination.identifier not in self.destinations:
            return  # it was due to be forgotten for two reasons
        if destination.is_releasing:
            self.held.when_released(destination, partial(self._end_memory, destination))
            return
        self._forget(destination)
        self._replies.forgotten(destination, now)

    def _forget(self, destination: RMDestination) -> None:
        if destination.identifier not in self.destinations:
            return  # the same
        if self._sessions is not None:
            self._sessions.end(destination)
        self.sequences.forget(destination)
        self.held.forget(destination)
        self.commit.forget(destination.identifier)

    def forget_offered(self, identifier: str, now: float) -> None:
        """End an offered Sequence with the one that it was offered with.

        Messages held beyond a gap are acknowledged, so the IncompleteSequenceBehavior decides about them (WS-RM 3.4),
        as at every other end.
        """
        destination = self.destinations.get(identifier)
        if destination is not None:
            if destination.held and destination.handle(DestinationEvent.EXPIRED) is DestinationAction.END:
                self.end(destination, None, nothing, now)
            elif not destination.is_over:
                # Forgotten without an end, it must not count against its party's share any longer.
                self.shares.closed(whole_party(destination.party))
            # Its requests are forgotten too: those of a service that calls back.
            self._end_memory(destination, now)

    def redirect_offered(self, identifier: str, earlier: str, to: str) -> None:
        """Acknowledge an offered Sequence at another address, if its AcksTo is the earlier one."""
        destination = self.destinations.get(identifier)
        if destination is not None and destination.acks_to.address == earlier:
            destination.acks_to = replace(destination.acks_to, address=to)
            destination.saved = None  # it has the earlier address
            self.commit.save(identifier, destination)

    def deadline(self) -> float | None:
        """Return when :meth:`pump` must be called next; None: not before an event."""
        earliest = self._deadlines.next()
        if self.held.retry_at is not None and (earliest is None or self.held.retry_at < earliest):
            earliest = self.held.retry_at
        for queue in self.queues.values():
            due = queue.deadline()
            if due is not None and (earliest is None or due < earliest):
                earliest = due
        return earliest

    # --- recovery -------------------------------------------------------------------------------------------------

    def recover(self, snapshot: Snapshot, now: float) -> None:
        """Restore the state in the store."""
        for queue in self.queues.values():
            queue.recover(snapshot, now)
        states = [state for state in snapshot.sequences.values() if state["role"] == "destination"]
        held = snapshot.held
        policy = self.sequences.policy
        known = [RMDestination.from_state(state, held.get(state["identifier"], []), policy, now) for state in states]
        # Of two Sequences made by equal requests only the newer one can be repeated. Clocks do not show which that is:
        # a clock may have been set back.
        for destination in sorted(known, key=is_repeatable):
            self.sequences.know(destination)
            self.held.recover(destination)
            self.commit.settle(destination.identifier, self.queue.name, destination.partition, snapshot)
        # Terminated Sequences in the order in which they ended, which is the order of forgetting them.
        over = [destination for destination in self.destinations.values() if destination.is_over]
        for destination in sorted(over, key=lambda one: one.ended_at or 0.0):
            self._remember_over(destination, now)

    def recover_sessions(self, now: float) -> None:
        """Find the open sessions, after both halves have recovered. Those that are over end once nothing moves."""
        if self._sessions is not None:
            for destination in self._sessions.recover():
                self.end_session(destination, now)
