"""Replies: what answers a request and when, the same before a crash and after it.

This module owns the back-channels that wait for a reply. The destination durably records which requests await a reply,
have one or no longer need one: everything that shapes an answer here is read back from the store.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from functools import partial

from holdfast.core.commit import GroupCommit
from holdfast.core.events import BackChannel, Effect, Incident, Respond
from holdfast.core.messages import ANONYMOUS, NONE, Envelope, Fault, LastMessage
from holdfast.core.receiving.acknowledgements import Acknowledgements, asks
from holdfast.core.receiving.answers import AnswerSender
from holdfast.core.receiving.inbound_sequences import InboundSequences, record_of
from holdfast.core.receiving.reply_outboxes import ReplyOutboxes
from holdfast.core.records import Record
from holdfast.core.rm_destination.destination import RMDestination
from holdfast.core.rm_source.source import RMSource
from holdfast.core.sending.outbox_registry import OutboxRegistry
from holdfast.core.sending.outboxes.outbox import Outbox
from holdfast.core.versions import Addressing

HELD_SHARE = 20
"""A request beyond a gap keeps its exchange for this part of ``reply_patience``: the message that closes the gap may
need the connection. Some clients have two in all (Sandesha2); .NET's accepts an empty 202 and asks again."""
APART = 0.1
"""Minimum seconds from an answer with a reply to the answer of another exchange of its request. To CXF's client, all
exchanges of a request are one object. Two threads that read answers at once overwrite each other's, whatever these
are."""
LEAST_SILENCE = 60.0
"""Minimum seconds of silence before a requester counts as gone: one that missed our answer waits for it for as long as
its HTTP client does."""
SILENT_INTERVALS = 3.0
"""Number of a requester's longest intervals between two transmissions of a request that it may stay silent. Peers
double the interval from one repeat to the next, and one repeat may be lost."""


class Replies:
    """Answers the messages of inbound Sequences once they are stored.

    Args:
        tell: Makes the reply that carries a fault, in that version of WS-Addressing; None if no reply is wanted.
    """

    def __init__(
        self,
        sequences: InboundSequences,
        registry: OutboxRegistry,
        acknowledging: Acknowledgements,
        answering: AnswerSender,
        commit: GroupCommit,
        effects: list[Effect],
        tell: Callable[[Record, Fault, Addressing], Record | None],
    ) -> None:
        self._sequences = sequences
        self._registry = registry
        self.outboxes = ReplyOutboxes(sequences, registry)
        self._acknowledging = acknowledging
        self._answering = answering
        self._commit = commit
        self._effects = effects
        self._tell = tell
        self._waiting: dict[str, dict[int, list[tuple[BackChannel, bool]]]] = {}
        """Identifier -> message number -> the back-channels that wait for its answer, and whether each asked for an
        acknowledgement."""
        self._asked: dict[str, dict[int, tuple[float, float]]] = {}
        """Identifier -> number of a request that waits for its reply -> when it last arrived or was answered 202, and
        the longest time from then until its repeat."""
        self._replied_at: dict[tuple[str, int], float] = {}
        """Identifier and number of a request -> when an answer last carried its reply. The oldest comes first, and
        only those of the last :data:`APART` count."""
        self._patience: list[tuple[float, int, float, str, int, BackChannel]] = []
        self._waited = 0
        self._given: dict[str, int] = {}
        """Identifier -> number of the request whose reply the latest poll for the Sequence got."""

    # --- requesters -----------------------------------------------------------------------------------------------

    def is_asked_for(self, record: Record) -> bool:
        """Whether the reply goes back in the answer to the request, or to a repeat of it."""
        destination = self._sequences.destinations.get(record.sequence)
        if (record.reply_to or ANONYMOUS) != ANONYMOUS:
            return False
        return destination is None or not self.outboxes.have_address(destination)

    def addressing_of(self, record: Record) -> Addressing:
        """Return the WS-Addressing version of a request's Sequence: that of its requester."""
        destination = self._sequences.destinations.get(record.sequence)
        return Addressing.V2005_08 if destination is None else destination.versions.addressing

    def is_given_up(self, record: Record, now: float) -> bool:
        """Whether the requester of such a request no longer waits.

        Its Sequence is over, or it repeated the request and has since been silent for longer than between its repeats.
        """
        destination = self._sequences.destinations.get(record.sequence)
        # A source that ended its Sequence does not wait for replies, except in an open exchange.
        if destination is None or destination.is_over:
            return True
        asked = self._asked.get(record.sequence, {}).get(record.message_number)
        # An open exchange proves that it waits.
        if asked is None or record.message_number in self._waiting.get(record.sequence, ()):
            return False
        last, longest = asked
        # Before the first repeat its interval is unknown, so silence proves nothing.
        return longest > 0.0 and now - last > max(LEAST_SILENCE, SILENT_INTERVALS * longest)

    def _heard_again(self, identifier: str, number: int, now: float) -> None:
        asked = self._asked.setdefault(identifier, {})
        last, longest = asked.get(number, (now, 0.0))
        asked[number] = now, max(longest, now - last)

    # --- the application's answer ---------------------------------------------------------------------------------

    def reply(self, record: Record, reply: Record | None, now: float) -> None:
        """Record the application's result for an inbound message.

        Args:
            reply: The reply, None for none. Only its action, body and headers count.
        """
        destination = self._sequences.destinations.get(record.sequence)
        number = record.message_number
        # The other answer came first, or a restart has forgotten the Sequence: one request has one reply.
        if destination is None or not destination.replies.is_unanswered(number):
            if reply is not None:
                self._effects.append(Incident("reply.dropped", record.sequence, number, "warning"))
            return
        if reply is not None and reply.fault_to is not None and reply.fault_to[0] == NONE:
            reply = None
        elif reply is None and self.are_depended_on(destination, record.reply_to or ANONYMOUS):
            self.tell_of_none(destination, number, record.action)
        if reply is None or not self._keep(destination, record, reply, now):
            self._release(destination, number)
        self._commit.save(destination.identifier, destination)

    def refuse(self, destination: RMDestination, envelope: Envelope, fault: Fault, now: float) -> None:
        """Answer an accepted message with a fault, as if a handler had raised it."""
        assert envelope.sequence is not None
        # Only if it awaits a reply: a fault goes to a requester, and a one-way sender has its acknowledgement.
        if envelope.sequence.message_number in destination.replies.awaiting:
            record = record_of(destination, envelope, True, now)
            self.reply(record, self._tell(record, fault, destination.versions.addressing), now)

    def keep(self, record: Record, reply: Record, now: float) -> bool:
        """Keep a reply to a message that was acknowledged without one, for a repeat of that message.

        Such a message names no ReplyTo, so nothing tells a request from a one-way message before the reply comes.

        Returns:
            Whether it is kept: a repeat may still come, there is no other reply, and there is room.
        """
        destination = self._sequences.destinations.get(record.sequence)
        # WS-Addressing 1.0 core 3.2: no ReplyTo is the anonymous one. In 2004/08 it asks for no reply.
        if destination is None or destination.versions.addressing is not Addressing.V2005_08:
            return False
        if self.outboxes.have_address(destination) or not destination.may_keep_reply(record.message_number):
            return False
        self._keep(destination, record, reply, now)
        self._commit.save(destination.identifier, destination)
        return True

    @staticmethod
    def are_depended_on(destination: RMDestination, reply_to: str) -> bool:
        """Whether the sender of a request cannot continue without its reply."""
        # A sender that offered a Sequence for replies, or listens for them, waits for one (wcf: its call ends in an
        # error). Others accept the acknowledgement as the answer.
        return destination.offered is not None or reply_to != ANONYMOUS

    def tell_of_none(self, destination: RMDestination, number: int, action: str) -> None:
        """Log a request that gets no reply although its sender cannot continue without one."""
        told = Incident("request.no_reply", destination.identifier, number, "warning", {"action": action})
        self._effects.append(told)

    def _keep(self, destination: RMDestination, record: Record, reply: Record, now: float) -> bool:
        """Store the reply; return whether it goes to an address and acknowledges its request.

        The end of the request's Sequence then waits until the requester acknowledges the reply.
        """
        number = record.message_number
        # WS-Addressing 2005/08 core, 3.4
        target = reply.fault_to or (record.reply_to or ANONYMOUS, record.reference_parameters)
        reply_to, reply.reference_parameters = target
        reply.fault_to = None
        outbox = self.outboxes.outbox_for(destination, record, reply_to, now)
        reply.relates_to = record.message_id
        reply.sequence = destination.identifier  # which is acknowledged in each transmission of the reply
        reply.message_number = number
        offset = outbox.submit(reply)
        source = outbox.source
        if source is None:
            return False
        if source.polled:
            # Numbers are counted from the Sequence's start, so the reply's number needs no separate write.
            destination.replies.numbers[number] = offset - source.numbers.start + 1
            if destination.offered is None:
                self._forget_oldest(destination, outbox, source, now)
            return False
        if outbox.answers is None or destination.acks_to.is_anonymous or number not in destination.replies.awaiting:
            return False
        destination.replies.numbers[number] = offset - source.numbers.start + 1
        self._commit.then(partial(self._carried, destination, number))
        return True

    def _carried(self, destination: RMDestination, number: int, now: float) -> None:
        # It stays in ``awaiting``: the end is reported only once the requester has acknowledged the reply.
        destination.acknowledged.add(number)
        # A stand-alone acknowledgement relates to no request, so CXF's client may not find its call by it, and its loss
        # goes unnoticed (Sandesha2). It is sent only if the reply goes elsewhere and carries none.
        outbox = self.outboxes.outbox_of(destination)
        if outbox is None or outbox.to != destination.acks_to.address:
            self._acknowledging.owe(destination, now)

    def _forget_oldest(self, destination: RMDestination, outbox: Outbox, source: RMSource, now: float) -> None:
        """Forget the oldest replies without a Sequence, which are never acknowledged."""
        while len(destination.replies.numbers) > self._sequences.policy.max_open_requests:
            oldest = destination.replies.numbers.pop(next(iter(destination.replies.numbers)))
            source.flight.remove(oldest)
            # As if it was acknowledged: the outbox passes its record, and the queue deletes it.
            source.acknowledged.add(oldest)
            outbox.passed(now)

    def _release(self, destination: RMDestination, number: int) -> None:
        """Stop awaiting the request's reply once the open batch is durable."""
        destination.replies.replying.add(number)
        self._commit.then(partial(self._replied, destination, number))

    def _replied(self, destination: RMDestination, number: int, now: float) -> None:
        """Acknowledge a request together with its durable reply, or the absence of one."""
        was_waived = number in destination.replies.waived
        destination.replied(number)
        self._asked.get(destination.identifier, {}).pop(number, None)
        self._answer_waiting(destination, number, now)
        # A waived request is acknowledged since its source ended the Sequence, and no source waits for that.
        if not was_waived and not destination.acks_to.is_anonymous:
            self._acknowledging.owe(destination, now)
        self._finish(destination, now)

    def acknowledged(self, identifier: str, now: float) -> None:
        """Handle the requester's acknowledgement of replies, which it no longer requests."""
        outbox = self._registry.outboxes.get(identifier)
        if outbox is None or outbox.answers is None:
            return
        source = outbox.source
        if source is None:
            return
        destination = self._sequences.destinations.get(outbox.answers)
        if destination is None or not destination.replies.numbers:
            return
        heard = destination.replies.heard
        news = [
            n for n, reply in destination.replies.numbers.items() if reply in source.acknowledged and n not in heard
        ]
        if news:
            heard.update((number, source.polled) for number in news)
            self._commit.save(destination.identifier, destination)
            # The request keeps its reply until that is durable: before, a crash would bring back another answer.
            self._commit.then(partial(self._heard, destination, news))

    def _heard(self, destination: RMDestination, numbers: list[int], now: float) -> None:
        destination.replies_heard(numbers)
        self._finish(destination, now)

    # --- polls ----------------------------------------------------------------------------------------------------

    def give(self, destination: RMDestination, back_channel: BackChannel, now: float) -> bool:
        """Answer a poll for a Sequence whose replies go in answers; return False if no reply waits.

        Each poll gets the reply that follows the one before, until the requester acknowledges them.
        """
        outbox = self.outboxes.outbox_of(destination)
        source = outbox.source if outbox is not None and destination.offered is not None else None
        if source is None or not source.polled:
            return False
        replies = destination.replies
        # Only durable replies leave. A waived request was acknowledged without one.
        may_leave = (n for n in replies.numbers if n in destination.acknowledged and n not in replies.waived)
        waiting = sorted(number for number in may_leave if replies.numbers[number] not in source.acknowledged)
        if not waiting:
            return False
        last = self._given.get(destination.identifier, 0)
        number = next((one for one in waiting if one > last), waiting[0])
        self._given[destination.identifier] = number
        told = len(self._effects)
        self.again(destination, number, back_channel, now, has_waited=True)
        # The reply may be read first; then its answer follows without this hint, which is optional (WS-MakeConnection
        # 3.3).
        for effect in self._effects[told:]:
            if isinstance(effect, Respond) and effect.envelope is not None:
                effect.envelope.message_pending = len(waiting) > 1
        return True

    # --- answers --------------------------------------------------------------------------------------------------

    def stored(
        self, destination: RMDestination, number: int, envelope: Envelope, back_channel: BackChannel | None, now: float
    ) -> None:
        """Handle a durable message (called by :class:`Inbound`)."""
        if isinstance(envelope.control, LastMessage) and destination.offered is not None:
            self._answer_last_message(destination, number, back_channel, now)
        elif number not in destination.acknowledged:
            self._await(destination, number, back_channel, asks(envelope, destination), now)
        else:
            self._acknowledging.acknowledge(destination, back_channel, now)
        if self._waiting and number in destination.acknowledged:
            self._answer_waiting(destination, number, now)
        outbox = self._registry.sequences.by_offer.get(destination.identifier)
        if outbox is not None:
            outbox.ready()  # its messages may have waited for this acknowledgement

    def again(
        self,
        destination: RMDestination,
        number: int,
        back_channel: BackChannel | None,
        now: float,
        *,
        asked: bool = False,
        has_waited: bool = False,
    ) -> None:
        """Answer a stored message with its reply, or else an acknowledgement (WS-RM 3.9).

        Every open exchange of a request is answered with the reply, as any of them may be the only one still read.

        Args:
            asked: Whether it asks for an acknowledgement, which its answer must then carry.
            has_waited: Whether it has waited since another exchange got the reply.
        """
        outbox = self.outboxes.outbox_of(destination)
        source = outbox.source if outbox is not None else None
        reply_number = destination.replies.numbers.get(number)
        if reply_number is not None and source is None and number in destination.replies.awaiting:
            # The Sequence of its reply ended, and the reply with it.
            del destination.replies.numbers[number]
            self._release(destination, number)
            self._commit.save(destination.identifier, destination)
        if number not in destination.acknowledged or number in destination.replies.waived:
            # A .NET session ends if an answer leaves out the very message that it answers.
            self._await(destination, number, back_channel, asked, now)
            return
        if number == destination.marker and destination.offered is not None and reply_number is None:
            self._answer_last_message(destination, number, back_channel, now)
        elif reply_number is not None and outbox is not None and source is not None and outbox.to is not None:
            if asked or outbox.to != destination.acks_to.address:
                self._acknowledging.acknowledge(destination, back_channel, now)
            elif outbox.is_polled and back_channel is not None:
                # A repeat is as good as a poll, and Sandesha2 polls more seldom than it repeats.
                self._registry.context.polls.add(back_channel, outbox.to, frozenset((outbox.key,)), now)
            else:
                # The retransmitted reply carries the acknowledgement. Alone and earlier, it could cost CXF's client the
                # reply. That client accepts it soon after the answer to its latest repeat, perhaps at no other time.
                self._answering.done(back_channel)
                source.asked_for(reply_number, now + APART)
                outbox.ready()
        elif reply_number is not None and outbox is not None and source is not None and back_channel is not None:
            if not has_waited and (until := self._too_soon(destination.identifier, number, now)):
                self._add_waiting(destination.identifier, number, back_channel, asked, until, until)
                return
            source.issue(now)
            read = partial(self.again, destination, number, back_channel, asked=asked, has_waited=has_waited)
            envelope = outbox.message(source, reply_number, read)
            if envelope is None:
                return  # the answer follows
            # The answer must cover the request that it answers, or .NET ends its session.
            envelope.acknowledgements = (destination.acknowledgement(),)
            self._replied_at.pop((destination.identifier, number), None)  # the newest is last
            self._replied_at[destination.identifier, number] = now
            self._effects.append(Respond(back_channel, envelope))
        elif number in destination.replies.answered and not asked:
            # The requester has the reply and acknowledged it. An acknowledgement without it would end .NET's session.
            self._answering.done(back_channel)
        else:
            self._acknowledging.acknowledge(destination, back_channel, now)

    def _too_soon(self, identifier: str, number: int, now: float) -> float | None:
        """Return when another exchange of a request may get the reply; None: at once."""
        replied_at = self._replied_at
        while replied_at and (oldest := next(iter(replied_at))) and now >= replied_at[oldest] + APART:
            del replied_at[oldest]
        last = replied_at.get((identifier, number))
        return None if last is None else last + APART

    def _await(
        self, destination: RMDestination, number: int, back_channel: BackChannel | None, asked: bool, now: float
    ) -> None:
        """Let a request wait for its reply. If the reply goes to an address or waits for a poll, answer 202 at once.

        The answer to a waiting request is its reply or 202, never an acknowledgement alone: Metro takes that for the
        reply, and .NET ends its session. A requester that asks is acknowledged with the reply, or in the answer to
        AckRequested alone: WS-RM 3.8 sets no time.
        """
        if back_channel is None:
            return
        if self.outboxes.have_address(destination) or destination.acks_to.is_polled:
            self._answering.done(back_channel)
            if asked and not destination.acks_to.is_anonymous:
                self._acknowledging.owe(destination, now)
            return
        identifier = destination.identifier
        self._heard_again(identifier, number, now)
        patience = self._sequences.policy.reply_patience
        looked_at = now + (patience / HELD_SHARE if number in destination.held else patience)
        self._add_waiting(identifier, number, back_channel, asked, looked_at, now + patience)

    def _add_waiting(
        self, identifier: str, number: int, back_channel: BackChannel, asked: bool, looked_at: float, until: float
    ) -> None:
        self._waiting.setdefault(identifier, {}).setdefault(number, []).append((back_channel, asked))
        self._wait_until(looked_at, until, identifier, number, back_channel)

    def _wait_until(
        self, looked_at: float, until: float, identifier: str, number: int, back_channel: BackChannel
    ) -> None:
        """Let a request wait until ``until``. If it is beyond a gap, examine it earlier, at ``looked_at``."""
        self._waited += 1
        heapq.heappush(self._patience, (looked_at, self._waited, until, identifier, number, back_channel))

    def _answer_waiting(self, destination: RMDestination, number: int, now: float) -> None:
        """Answer repeats that arrived while the message, or its reply, was being stored."""
        waiting = self._waiting.get(destination.identifier)
        if waiting is None:
            return
        answerable = waiting.pop(number, ())
        if not waiting:
            del self._waiting[destination.identifier]
        for back_channel, asked in answerable:
            self.again(destination, number, back_channel, now, asked=asked)

    def _answer_last_message(
        self, destination: RMDestination, number: int, back_channel: BackChannel | None, now: float
    ) -> None:
        """Answer a LastMessage of 1.0 with a LastMessage on the offered Sequence: WCF waits for it."""
        outbox = self._registry.replies_to(destination.offered)
        source = outbox.source if outbox is not None else None
        # LastMessage takes the number behind all replies, so it waits for those that have yet to be made.
        if outbox is None or source is None or destination.replies.awaiting:
            self._acknowledging.acknowledge(destination, back_channel, now)
        elif not source.polled:
            outbox.want_end(now)
            self._acknowledging.acknowledge(destination, back_channel, now)
        else:
            if source.numbers.last is None:
                # Behind the last reply. It has no record, so only this number says that it exists.
                source.numbers.last = outbox.records.end - source.numbers.start + 1
                source.issue(now)
            destination.replies.numbers[number] = source.numbers.last
            # Both Sequences in one batch: after a crash the answer has the same number.
            self._commit.save(destination.identifier, destination)
            self._commit.save(source.local_id, source)
            self._commit.then(partial(self.again, destination, number, back_channel))

    # --- time -----------------------------------------------------------------------------------------------------

    def deadline(self) -> float | None:
        """Return when :meth:`pump` must be called next; None: not before an event."""
        times = (self._patience[0][0] if self._patience else None, self.outboxes.deadline())
        return min((time for time in times if time is not None), default=None)

    def pump(self, now: float) -> None:
        """Answer 202 to requesters that have waited long enough; they repeat the request."""
        for outbox in self.outboxes.pump(now):
            self.discard(outbox, now)
        while self._patience and self._patience[0][0] <= now:
            _, _, until, identifier, number, back_channel = heapq.heappop(self._patience)
            waiting = self._waiting.get(identifier, {})
            entry = next((entry for entry in waiting.get(number, ()) if entry[0] is back_channel), None)
            if entry is None:
                continue
            destination = self._sequences.destinations.get(identifier)
            if now < until and destination is not None and number not in destination.held:
                self._wait_until(until, until, identifier, number, back_channel)  # the gap is closed
                continue
            waiting[number].remove(entry)
            if not waiting[number]:
                del waiting[number]
            if not waiting:
                del self._waiting[identifier]
            if (
                destination is not None
                and number in destination.acknowledged
                and number not in destination.replies.waived
            ):
                self.again(destination, number, back_channel, now, asked=entry[1], has_waited=True)
                continue
            # An acknowledgement alone would be taken for the reply (Metro), or for its absence (WCF).
            self._answering.done(back_channel)
            asked = self._asked.get(identifier, {})
            if number in asked:
                asked[number] = now, asked[number][1]  # from now on it may be silent

    # --- ends -----------------------------------------------------------------------------------------------------

    def settled(self, destination: RMDestination, now: float) -> None:
        """Answer requests that need not wait after a durable end (called by :class:`Inbound`)."""
        for number in list(self._waiting.get(destination.identifier, ())):
            if number in destination.acknowledged and number not in destination.replies.waived:
                self._answer_waiting(destination, number, now)

    def over(self, destination: RMDestination, *, by_source: bool) -> None:
        """Handle the end of an inbound Sequence (called by :class:`Inbound`).

        Its Sequence of replies ends too, unless the source did not end it and may still request replies.
        """
        self._acknowledging.settle(destination.identifier)
        self._finish(destination, destination.last_activity, by_source=by_source)
        self.outboxes.await_last(destination, destination.last_activity)

    def _finish(self, destination: RMDestination, now: float, *, by_source: bool = False) -> None:
        # A reply in a batch that is not durable is not there yet.
        is_answered = not destination.replies.unanswered and not destination.replies.replying
        if destination.is_over and is_answered and (by_source or not destination.replies.numbers):
            self.outboxes.end(destination, now)

    def discard(self, outbox: Outbox, now: float) -> None:
        """Forget an outbox of a requester that is gone, with the replies that it has not acknowledged."""
        self._registry.discard(outbox.key, now)
        destination = self._sequences.destinations.get(outbox.answers or "")
        if destination is None:
            return
        for number in list(destination.replies.numbers):
            del destination.replies.numbers[number]
            if number in destination.replies.awaiting:
                self._release(destination, number)
        self._commit.save(destination.identifier, destination)
        self._finish(destination, now)

    def forgotten(self, destination: RMDestination, now: float) -> None:
        """Remove the state of an inbound Sequence that :class:`Inbound` has forgotten."""
        self._registry.context.mailboxes.remove_sequence(destination.acks_to.address, destination.identifier)
        self._asked.pop(destination.identifier, None)
        self._given.pop(destination.identifier, None)
        for waiting in self._waiting.pop(destination.identifier, {}).values():
            for back_channel, _ in waiting:
                self._answering.done(back_channel)
        self.outboxes.end(destination, now)
