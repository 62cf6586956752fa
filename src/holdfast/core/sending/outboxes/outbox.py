"""Outbox: messages on their way to one address under one sequence key, and the Sequence that carries them now.

An outbox has its records (:class:`OutboxRecords`) and its lifecycle (:class:`OutboxLifecycle`). It transmits in its
turns, and ends Sequences. What a peer answers is in :mod:`.peer_answers`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from holdfast.core.events import Acknowledged, Ended, Incident, Stopped, Submitted, Transmit
from holdfast.core.messages import AckRequested, Envelope, IncompleteSequenceBehavior, is_polled
from holdfast.core.origin import owner_of
from holdfast.core.policy import Delivery, ForwardingPolicy, SourcePolicy
from holdfast.core.queues.cursors import OUTBOUND
from holdfast.core.queues.description import OUTBOX
from holdfast.core.queues.queue import Queue
from holdfast.core.ranges import AcknowledgementRanges
from holdfast.core.records import Record, State
from holdfast.core.rm_source.source import RMSource
from holdfast.core.sending.identifier_claims import release_claim
from holdfast.core.sending.outboxes.forwarder_state import Doubt, Refusal, Withdrawal
from holdfast.core.sending.outboxes.lifecycle import Choice, OutboxLifecycle
from holdfast.core.sending.outboxes.records import OutboxRecords, Submission, derived_message_id, replies_queue
from holdfast.core.sending.read_ahead_buffer import Here
from holdfast.core.sending.reasons import NO_REASON, WHEN_DUE, Why
from holdfast.core.states.outbound import EndState, Request, SourceAction, SourceEvent
from holdfast.core.states.outbox import OutboxAction, OutboxEvent

if TYPE_CHECKING:
    from holdfast.core.sending.context import OutboxHooks, SendingContext


class Outbox:
    """The outbox of one sequence key: its turns, its transmissions, and the ends of its Sequences.

    Args:
        key: The sequence key; for replies the offered Identifier.
        queue: The queue with its records, in which its cursor already exists.
        to: The address of its destination; None for an anonymous one.
        policy: How its Sequences are treated.
        hooks: What its opener does for it.
    """

    def __init__(
        self,
        key: str,
        queue: Queue,
        partition: int,
        to: str | None,
        policy: SourcePolicy,
        context: SendingContext,
        hooks: OutboxHooks,
    ):
        self.key = key
        self.to = to
        self.policy = policy
        self.context = context
        self.hooks = hooks
        self._commit, self._effects = context.commit, context.effects
        self.records = OutboxRecords(queue, partition, OUTBOUND + key, Here(key, context.buffers))
        self.lifecycle = OutboxLifecycle(key)
        self.forwarding = None if queue.description.kind == OUTBOX else ForwardingPolicy()
        """Policy of a forwarder, by which it discards messages automatically; None: only the owner discards them."""
        self.is_configured = False  # as a forwarder: the next start would begin its outbox again
        self.is_for_replies = queue.name == replies_queue(key)
        """Whether it carries the replies to a Sequence: no caller of this side waits for its end."""
        self.answers: str | None = None
        """The inbound Sequence whose requests it answers, for an outbox of replies."""
        self.is_for_address = False  # with replies to requesters without an Offer: it is forgotten once it ends
        self.used_at = 0.0  # about when it got its latest reply, or when the end of an outbox of replies was decided
        self.address = ""
        """Address for answers of a forwarder's destination in the next Sequence: "" for this side's default address,
        :data:`MC_ANONYMOUS` to poll for them."""
        self.owner = ""
        """The authenticated party that alone may poll for its messages; "" without one, or if its Sequence tells."""
        self.doubt: Doubt | None = None
        """The doubt to settle before a Sequence follows the lost one."""
        self.refusals: dict[int, Refusal] = {}
        """Offsets of messages that the destination refuses."""
        self.withdrawal: Withdrawal | None = None
        """Set while some of them are taken out of their Sequence."""
        self.next_unanswered = 0.0
        """The earliest time at which a request may have waited too long for its reply."""
        self.last_answer = ""
        """The problem with the destination's last answer, or why there is none; empty: no problem, or no answer yet."""

    @property
    def source(self) -> RMSource | None:
        """The Sequence that carries its messages now."""
        return self.records.source

    @property
    def is_polled(self) -> bool:
        """Whether the peer polls for the messages with MakeConnection."""
        return self.to is not None and is_polled(self.to)

    def use(self, policy: SourcePolicy) -> None:
        """Replace the policy of its Sequences, including the present one."""
        self.policy = policy
        if self.source is not None:
            self.source.policy = policy
            self.source.pace.round_trip.policy = policy.retransmission

    @property
    def is_idle(self) -> bool:
        """Whether its turn transmits nothing new, and neither begins nor ends a Sequence."""
        if (source := self.source) is None or source.end is not EndState.OPEN or self.lifecycle.is_ending:
            return False
        return source.polled or self.records.unsent >= self.records.durable_end

    def submit(self, record: Record) -> int:
        """Append a message and return its offset; :class:`Submitted` follows when it is durable."""
        offset = self.records.append(record)
        # One effect reports all messages of a batch.
        together = self.records.submitted_with(self._commit.opened, offset)
        if together.first == offset:
            self._commit.then(partial(self._submitted, together))
        return offset

    def _submitted(self, together: Submission, now: float) -> None:
        if self.records.submitting is together:
            self.records.submitting = None
        self.records.queue.stored(self.records.partition, together.last, now)
        self._effects.append(Submitted(self.key, together.first, together.last))

    def resume(self, choices: list[Choice], now: float) -> None:
        """Resume a stopped outbox.

        Messages not known to have arrived are sent again, in a new Sequence if the old one is gone.
        """
        self.context.accounts.resumed(self.to)
        self.lifecycle.choices = choices
        if self.lifecycle.resume() is OutboxAction.GO_ON:
            if self.source is not None:
                self.happen(self.source, SourceEvent.RESUMED, now)
            self.save()
            self.ready()

    def adopt(self, source: RMSource) -> None:
        """Make ``source`` carry the outbox from now on."""
        self.records.source = source
        source.requests = self.context.requests
        if self.is_polled and source.requester is not None:
            self.context.mailboxes.add_outbox(self.to, self.key, owner_of(source.requester.party))
        self.context.sequences.add(self, source)
        self.context.pollers.add(self, source)
        self.context.creation.adopt(self, source)
        self.records.update_available()

    # --- its state ------------------------------------------------------------------------------------------------

    def want_end(self, now: float) -> None:
        """End the outbox's Sequence once everything is acknowledged; :class:`Ended` follows."""
        if self.lifecycle.handle(OutboxEvent.WANT_END) is OutboxAction.END:
            if self.source is not None:
                self.source.want_end()
                self._commit.save(self.source.local_id, self.source)
            self.ready()

    def stop(
        self,
        code: str,
        reason: str,
        now: float,
        first: int = 1,
        last: int = 0,
        refused: tuple[str, int] | None = None,
        in_doubt: str = "",
    ) -> None:
        """Send nothing until an operator decides; :class:`Stopped` follows once that is durable.

        Args:
            code, reason, now: Why, as a code and in words, and the time in seconds.
            first, last: Offsets of the messages that the operator decides about; none if ``last`` is lower.
            refused: The Sequence and the number of a message that the destination refuses.
            in_doubt: The numbers that may have arrived.
        """
        if self.lifecycle.stop(code, reason, refused, in_doubt if first <= last else None) is OutboxAction.TELL_STOPPED:
            self.save()
            self.ready()  # requesters wait
            self.context.accounts.refused(self.to, code, reason, self.key)
            effect = Stopped(self.key, code, reason, first, last, refused, in_doubt)
            self._commit.then(lambda _: self._effects.append(effect))

    def exclude(self, offsets: list[int], now: float) -> None:
        """Exclude these records from every further Sequence, with the open batch."""
        for offset in offsets:
            self.records.leave_out(offset, offset)
            self.refusals.pop(offset, None)
        if self.source is not None:
            self._commit.save(self.source.local_id, self.source)  # also its acknowledged ranges, trimmed
        self.save()
        self.records.save_place(now)
        self.ready()

    def rewind(self, offset: int, now: float) -> None:
        """Go back to an earlier record. New Sequences send everything from there on."""
        self.records.rewind(offset, now)
        self.doubt = self.lifecycle.held_back = None

    def read(self, offset: int) -> None:
        """Read the record at ``offset``; the outbox gets a turn after that."""
        self.records.wait_for(offset, lambda _now: self.ready())
        self.context.reading.ask(self)

    def drop(self, now: float) -> None:
        """Drop the Sequence, whatever becomes of its undelivered messages."""
        source, self.records.source = self.source, None
        assert source is not None, self.key
        self.context.requests.forget(source)
        self.context.sequences.remove(source)
        self.context.pollers.remove(source)
        release_claim(self.context.claims, source, self._commit)
        if source.offer is not None:
            self.hooks.forget_offered(source.offer, now)
        self._commit.forget(source.local_id)
        self.records.first = max(self.records.first, source.numbers.start + source.records_done)
        self.records.skip()
        self.records.save_place(now)

    def save(self) -> None:
        """Save the rest of its state."""
        self.records.queue.cursors.say_about(self.records.cursor, self.records.partition, self.about())

    def about(self) -> State:
        """Return the state to save with its cursor."""
        about: State = {"to": self.to} | self.lifecycle.to_state() | self.records.to_state()
        if self.doubt is not None:
            about["doubt"] = self.doubt.to_state()
        if self.is_polled and (self.address or self.owner):
            about |= {"address": self.address, "owner": self.owner}
        return about | {"used": self.used_at} if self.is_for_address else about

    def recover(self, about: State) -> None:
        """Restore the state saved with its cursor."""
        self.lifecycle.restore(about)
        self.context.accounts.refused(self.to, self.lifecycle.stopped, self.lifecycle.stopped_for, self.key)
        self.records.restore(about)
        if about.get("doubt") is not None:
            self.doubt = Doubt.from_state(about["doubt"])
        self.is_for_address, self.used_at = "used" in about, about.get("used", 0.0)
        if self.is_polled:
            self.address, self.owner = about.get("address", ""), about.get("owner", "")
            self.context.mailboxes.add_outbox(self.to, self.key, self.owner)

    def wake(self, at: float | None) -> None:
        """Schedule a turn of the outbox at that time."""
        self.context.deadlines.want(self.key, at)

    def ready(self) -> None:
        """Schedule a turn of the outbox at the next :meth:`pump`."""
        self.context.ready[self.key] = None

    # --- its turn --------------------------------------------------------------------------------------------------

    def turn(self, now: float) -> bool:
        """Perform the due actions, and return whether the outbox has ended and accepts no further messages."""
        source = self.source
        if source is None:
            return self._begin_or_end(now)
        if source.polled:
            return False  # its messages leave in answers to requests
        event = source.time_event(now, is_for_replies=self.is_for_replies or self.is_for_address)
        if event is not None:
            self.happen(source, event, now, WHEN_DUE[event])
        self._proceed(source, now)
        if self.source is source and not self.lifecycle.stopped:
            if self.is_polled:
                if self.context.mailboxes.serving == self.key:
                    self.happen(source, SourceEvent.TURN, now)
                self.wake(source.patience_deadline())  # what is due waits for a poll
                return False
            self.happen(source, SourceEvent.TURN, now)
            self.wake(source.deadline())
        return False

    def _begin_or_end(self, now: float) -> bool:
        choice = self.lifecycle.next_choice
        if choice is not None and self.records.durable_end > self.records.first:
            if now < self.lifecycle.begins_at:
                self.wake(self.lifecycle.begins_at)
            else:
                self.context.creation.begin(self, choice, now)
        elif self.records.is_empty and self.lifecycle.handle(OutboxEvent.EMPTIED) is OutboxAction.TELL_ENDED:
            self._effects.append(Ended(self.key))
            return self.is_for_replies or self.is_for_address
        return False

    def _proceed(self, source: RMSource, now: float) -> None:
        if self.source is not source:
            return  # it is over
        if source.end is EndState.OPEN and self.lifecycle.is_ending:
            source.want_end()
        if source.proceed():
            self._commit.save(source.local_id, source)
            self._commit.then(partial(self._end_saved, source))
        # The last message about the requests acknowledges every reply, so it waits for the last reply to be durable.
        if source.end is EndState.DURABLE and self._has_every_reply(source):
            source.tell_end(now)

    def _has_every_reply(self, source: RMSource) -> bool:
        return source.offer is None or self.context.offered.is_all_acknowledged(source.offer)

    def _end_saved(self, source: RMSource, now: float) -> None:
        source.end_saved()
        self.ready()

    def happen(self, source: RMSource, event: SourceEvent, now: float, why: Why = NO_REASON) -> SourceAction | None:
        """Apply an event to a Sequence; return the action done, None if the table has no cell."""
        action = source.handle(event)
        if action is not None:
            _DO[action](self, source, now, why)
        return action

    def _nothing(self, source: RMSource, now: float, why: Why) -> None:
        pass

    # --- transmission ---------------------------------------------------------------------------------------------

    def _send_due_request(self, source: RMSource, now: float, why: Why) -> None:
        request = source.request_to_send(self.context.jitter(), now)
        if request is not None:
            if self.is_polled:
                self.context.mailboxes.claim()
            assert self.to is not None
            envelope = self.context.composer.request(self, source, request)
            self._effects.append(Transmit(self.to, envelope, source.local_id, 0, source.control.attempts, now))

    def _transmit(self, source: RMSource, now: float, why: Why) -> None:
        self._send_due_request(source, now, why)
        context = self.context
        claim = context.mailboxes.claim if self.is_polled else partial(context.room.claim, self.key, self.to or "")
        numbers = source.numbers_to_send(now, self.records.here, claim)
        for number in numbers:
            self._send_message(source, number, now, is_last=number == numbers[-1])
        self.context.marking.see(source)
        self.context.reading.ask(self)

    def _send_message(self, source: RMSource, number: int, now: float, *, is_last: bool) -> None:
        if source.asks_instead(number):
            envelope, wants_reply = self.context.composer.request(self, source, Request.ACK_REQUESTED), None
        else:
            envelope, wants_reply = self.context.composer.transmission(self, source, number)
        # CXF's client can lose a reply that requests an acknowledgement (seen live), and a waiting requester
        # acknowledges it unasked.
        asks = wants_reply is None and not self.is_for_replies and source.asks_with(number, is_last=is_last)
        if asks:
            assert source.identifier is not None
            envelope.ack_requested = (AckRequested(source.identifier),)
        attempt = source.sent(number, wants_reply, self.context.jitter(), now, asks=asks)
        if wants_reply is not None and attempt == 1:
            self.context.pollers.expect(source, now)
        assert self.to is not None
        query, size = self.query(number), 0 if self.is_polled else len(envelope.body) + len(envelope.attachments)
        self._effects.append(Transmit(self.to, envelope, source.local_id, number, attempt, now, query, size))

    def message(self, source: RMSource, number: int, again: Callable[[float], None]) -> Envelope | None:
        """Return message ``number``, always the same but for piggybacked headers.

        None if it must be read first: ``again(now)`` is called after that.
        """
        is_here = self.context.reading.has(self, source, number, again)
        return self.context.composer.message(self, source, number) if is_here else None

    def message_id(self, record: Record) -> str | None:
        """Return the MessageID that a record is transmitted with: its own, except for a forwarded request.

        A reply must identify its request, but the sender's MessageID may be missing or equal to another sender's. A
        forwarded request therefore has a MessageID derived from the outbox, the inbound Sequence and its number. It
        does not reveal that Sequence's Identifier.
        """
        if self.forwarding is None or not record.wants_reply:
            return record.message_id
        return derived_message_id(self.key, record.sequence, record.message_number)

    def query(self, number: int) -> Record | None:
        """Return forwarded message ``number`` if it awaits no reply and names no ReplyTo.

        No ReplyTo is the anonymous one (WS-Addressing 1.0 core, section 3.2), so a reply may come in the answer to it.
        """
        if self.forwarding is None or self.source is None or number == self.source.numbers.last:
            return None
        record = self.records.here.get(self.records.offset_of(number))
        is_open = record is not None and not (record.wants_reply or record.reply_to or record.relates_to)
        return record if is_open else None

    def found_before(self, found: list[tuple[int, Record]]) -> None:
        """Register the requests among records of :meth:`sent_before`, so that replies find them."""
        source = self.source
        assert source is not None
        for offset, record in found:
            self.records.keep(offset, record)
            message_id = self.message_id(record)
            if record.wants_reply and message_id is not None:
                source.requests.found_before(message_id, source, offset - source.numbers.start + 1)

    # --- answers of the peer --------------------------------------------------------------------------------------

    def _report_refused(self, source: RMSource, now: float, why: Why) -> None:
        self.context.creation.refused(self, source, now, why)

    def _begin_sending(self, source: RMSource, now: float, why: Why) -> None:
        self.records.update_available()
        self.ready()

    def report(self, ranges: list[tuple[int, int]], now: float) -> None:
        """Report newly acknowledged numbers, and pass their records."""
        source = self.source
        assert source is not None
        for lower, upper in ranges:
            last = source.numbers.with_record(upper)
            if last >= lower:
                first, end = self.records.offset_of(lower), self.records.offset_of(last)
                self._effects.append(Acknowledged(self.key, first, end, source.identifier or "", lower))
        self.passed(now)

    def passed(self, now: float) -> None:
        """Advance past acknowledged messages, and save the position at intervals."""
        is_much = self.records.pass_acknowledged()
        if self.refusals:
            self.refusals = {offset: one for offset, one in self.refusals.items() if offset >= self.records.first}
        if is_much and self.source is not None:
            self.context.marking.save(self.source)
            self.records.save_place(now)

    def save_progress(self, now: float) -> None:
        """Save the position and the acknowledged ranges, if :meth:`passed` has left that for later."""
        if self.source is not None and self.records.is_ahead_of_saved(self.source):
            self._commit.save(self.source.local_id, self.source)
            self.records.save_place(now)

    def receive_reply(self, number: int) -> None:
        """Acknowledge a request (see :meth:`request_of`) with its reply in the open batch."""
        source = self.source
        assert source is not None, (self.key, number)
        source.waiting.replying.add(number)
        self._commit.save(source.local_id, source)
        self._commit.then(partial(self.replied, source, number))

    def replied(self, source: RMSource, number: int, now: float) -> None:
        """Report request ``number``: its reply is durable here, or there will be no reply."""
        if self.source is source and source.replied(number, now):
            self.report([(number, number)], now)
            self.ready()

    def _stop_numbering(self, source: RMSource, now: float, why: Why) -> None:
        source.doubt.roll_over(why.limit, why.number, now)
        self._commit.save(source.local_id, source)
        if source.numbers.limit < 1:
            why = Why(why.code, f"{why.reason} (it takes no message at all)")
            self.happen(source, SourceEvent.TAKES_NO_NUMBER, now, why)

    def _leave_new(self, source: RMSource, now: float, why: Why) -> None:
        self.context.marking.leave_new(source, is_restored=True)

    def _report_acknowledgement(self, source: RMSource, now: float, why: Why) -> None:
        self._effects.append(Incident("acknowledgement.rejected", source.identifier or "", level="warning"))

    def _retry(self, source: RMSource, now: float, why: Why) -> None:
        source.not_delivered(why.number, now)

    def _stop_at(self, source: RMSource, now: float, why: Why) -> None:
        """Stop the outbox, as retries would not help, and let the operator decide.

        A refused message would be refused each time, and its number cannot be skipped.
        """
        self._commit.save(source.local_id, source)
        refused = (source.identifier or "", why.number) if why.number else None
        self.stop(why.code, why.reason, now, refused=refused)

    # --- faults and silence ---------------------------------------------------------------------------------------

    def awaits_certainty(self) -> bool:
        """Whether pending answers may settle the doubt in a Sequence that is ending.

        Only exactly-once and at-most-once wait for them.
        """
        source = self.source
        if source is None or self.policy.assurance.delivery is Delivery.AT_LEAST_ONCE or not source.is_open:
            return False
        doubtful = self.records.doubtful(source)
        return len(doubtful) > 0 and all(
            number > source.numbers.sent_before and source.flight.may_be_untaken(number)
            for lower, upper in doubtful
            for number in range(lower, upper + 1)
        )

    # --- ends of its Sequence -------------------------------------------------------------------------------------

    def late(self, source: RMSource) -> AcknowledgementRanges:
        """The numbers behind which the application already has others, where order is promised: a destination that
        discards nothing delivers what it acknowledged behind a gap when the Sequence ends. A new Sequence would bring
        these after all. Numbers above the source's limit do not count: they go in the next Sequence."""
        assurance = self.policy.assurance
        is_kept = assurance.in_order and assurance.delivery is not Delivery.AT_LEAST_ONCE and self.withdrawal is None
        if not is_kept or source.behavior is not IncompleteSequenceBehavior.NO_DISCARD:
            return AcknowledgementRanges()
        arrived = source.acknowledged.copy()
        if source.numbers.last is not None:
            arrived.discard(source.numbers.last)  # it has no body, so its time does not matter
        return AcknowledgementRanges(arrived.gaps(min(arrived.highest, source.numbers.limit)))

    def needs_decision(self, source: RMSource) -> bool:
        """Whether the operator must decide before a new Sequence follows one that its destination ended."""
        return source.doubt.is_open or self.records.in_doubt() > 0 or len(self.late(source)) > 0

    def refused_now(self) -> Iterator[tuple[int, Refusal]]:
        """Yield the records that the destination refuses but may still accept, by offset, in order."""
        for offset in sorted(self.refusals):
            if self.records.first <= offset and not self.records.is_acknowledged(offset):
                yield offset, self.refusals[offset]

    def report_rest(self, source: RMSource, now: float, why: Why) -> None:
        """Handle a Sequence closed by the destination.

        Messages that it may have and did not acknowledge are lost; those that it cannot have go to the next Sequence.
        If the operator must decide already, the decision covers this too.
        """
        self._commit.save(source.local_id, source)
        if not self.needs_decision(source):
            source.move_rest()
        elif not self.lifecycle.stopped:
            self._lose(source, now, why)

    def _end_at_once(self, source: RMSource, now: float, why: Why) -> None:
        """Handle a Sequence that the destination terminated or reports as over."""
        if self.needs_decision(source):
            self._lose(source, now, why)
        else:
            self._finish(source, now, why)

    def _finish(self, source: RMSource, now: float, why: Why) -> None:
        """Finish the Sequence; messages that arrived, even above a limit, are not resent."""
        if source.behavior is IncompleteSequenceBehavior.NO_DISCARD:
            self.records.leave_out_arrived()
        self.drop(now)
        self._note_end(source, now)
        self.save()
        self._effects.append(Incident("sequence.terminated", source.identifier or ""))
        self.ready()

    def _lose(self, source: RMSource, now: float, why: Why) -> None:
        doubtful, late = self.records.doubtful(source), self.late(source)
        in_doubt = str(doubtful)
        if len(late) and not len(doubtful) and not source.doubt.is_open:
            why = why._replace(reason=f"{why.reason} (what it has of this Sequence was to follow the numbers {late})")
        detail = {"code": why.code, "reason": why.reason, "in_doubt": in_doubt}
        self._effects.append(Incident("sequence.lost", source.identifier or "", level="error", detail=detail))
        first = self.records.first
        last = self.records.offset_of(self.records.highest_left(source))
        if not len(doubtful) and not source.doubt.is_open:
            first, last = 1, 0
        may_repeat = self.policy.assurance.delivery is Delivery.AT_LEAST_ONCE
        if self.forwarding is not None and not may_repeat and not source.doubt.is_open:
            self.hooks.forwarders.giving_up.lost(self, source, why.code, why.reason)
        self.drop(now)
        self._note_end(source, now)
        if may_repeat and self.lifecycle.choices:
            self.ready()  # duplicates are allowed: continue in a new Sequence
            return
        if self.doubt is not None:
            self.save()
            self.ready()
            return
        self.stop(why.code, why.reason, now, first, last, in_doubt=in_doubt)

    def _note_end(self, source: RMSource, now: float) -> None:
        pause = self.lifecycle.pause_after(source, self.policy.retransmission, now)
        if pause:
            detail = {"key": self.key, "why": "its Sequences end with nothing acknowledged", "seconds": pause}
            identifier = source.identifier or ""
            self._effects.append(Incident("sequence.creation_delayed", identifier, level="warning", detail=detail))


_DO: dict[SourceAction, Callable[[Outbox, RMSource, float, Why], None]] = {
    SourceAction.SEND_CREATE: Outbox._send_due_request,
    SourceAction.SEND_CLOSE: Outbox._send_due_request,
    SourceAction.SEND_TERMINATE: Outbox._send_due_request,
    SourceAction.TRANSMIT: Outbox._transmit,
    SourceAction.BEGIN: Outbox._begin_sending,
    SourceAction.REPORT_REFUSED: Outbox._report_refused,
    SourceAction.LEAVE_NEW: Outbox._leave_new,
    SourceAction.STOP_NUMBERING: Outbox._stop_numbering,
    SourceAction.REPORT_ACKNOWLEDGEMENT: Outbox._report_acknowledgement,
    SourceAction.RETRY: Outbox._retry,
    SourceAction.STOP: Outbox._stop_at,
    SourceAction.GO_ON: lambda _outbox, source, now, _why: source.life.heard(now),
    SourceAction.REPORT_REST: Outbox.report_rest,
    SourceAction.ANSWER_CLOSE: Outbox.report_rest,
    SourceAction.ANSWER_TERMINATE: Outbox._end_at_once,
    SourceAction.LOSE: Outbox._end_at_once,
    SourceAction.FINISH: Outbox._finish,
    SourceAction.MOVE_REST: lambda _outbox, source, now, _why: source.move_rest(),
    SourceAction.TELL_END: lambda _outbox, source, now, _why: source.outlive(now),
    SourceAction.NOTHING: Outbox._nothing,
}
"""Actions that :class:`RMSource` does not carry out on its own."""
