"""Outbox: messages on their way to one address under one sequence key, and the Sequence that carries them now.

Three classes are one object: :class:`OutboxRecords` knows which records are done, :class:`OutboxLifecycle` has the
states and the end of a Sequence, and :class:`Outbox` transmits, and hears what the peer answers.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from holdfast.core.events import Acknowledged, Ended, Incident, Submitted, Transmit, Unanswered
from holdfast.core.faults import (
    INVALID_ACKNOWLEDGEMENT,
    MESSAGE_NUMBER_ROLLOVER,
    SEQUENCE_CLOSED,
    UNKNOWN_SEQUENCE,
    sequence_fault,
)
from holdfast.core.messages import AckRequested, Envelope, Fault, IncompleteSequenceBehavior, SequenceAcknowledgement
from holdfast.core.origin import owner_of
from holdfast.core.policy import Delivery
from holdfast.core.records import Record
from holdfast.core.rm_source.control_requests import ANSWERED_ENOUGH
from holdfast.core.rm_source.source import RMSource
from holdfast.core.sending.outboxes.lifecycle import Choice, OutboxLifecycle
from holdfast.core.sending.outboxes.records import Submission
from holdfast.core.sending.outboxes.retraction import made_after, retraction
from holdfast.core.sending.reasons import NO_REASON, WHEN_DUE, Why, event_of
from holdfast.core.states.outbound import DoubtAction, DoubtEvent, EndState, Request, SourceAction, SourceEvent
from holdfast.core.states.outbox import OutboxAction, OutboxEvent


class Outbox(OutboxLifecycle):
    """The outbox of one sequence key: its turns, its transmissions, and the answers of its peer."""

    def submit(self, record: Record) -> int:
        """Append a message and return its offset; :class:`Submitted` follows when it is durable."""
        offset = self.append(record)
        together = self.submitted_with(self._commit.opened, offset)
        if together.first == offset:
            self._commit.then(partial(self._submitted, together))
        return offset

    def _submitted(self, together: Submission, now: float) -> None:
        if self.submitting is together:
            self.submitting = None
        self.queue.stored(self.partition, together.last, now)
        self._effects.append(Submitted(self.key, together.first, together.last))

    def resume(self, choices: list[Choice], now: float) -> None:
        """Resume a stopped outbox.

        Messages not known to have arrived are sent again, in a new Sequence if the old one is gone.
        """
        self.choices = choices
        if self.set_resumed() is OutboxAction.GO_ON:
            if self.source is not None:
                self.happen(self.source, SourceEvent.RESUMED, now)
            self.save()
            self.ready()

    def adopt(self, source: RMSource) -> None:
        """Make ``source`` carry the outbox from now on."""
        self.source = source
        source.requests = self._context.requests
        if self.is_polled and source.requester is not None:
            self._context.mailboxes.add_outbox(self.to, self.key, owner_of(source.requester.party))
        self._context.sequences.add(self, source)
        self._context.pollers.add(self, source)
        self._context.creation.adopt(self, source)
        self.update_available()

    # --- its turn --------------------------------------------------------------------------------------------------

    def turn(self, now: float) -> bool:
        """Perform the due actions, and return whether the outbox has ended and accepts no further messages."""
        source = self.source
        if source is None:
            return self._begin_or_end(now)
        if source.polled:
            return False  # its messages leave in answers to requests
        event = source.time_event(now, is_for_replies=self.is_for_replies)
        if event is not None:
            self.happen(source, event, now, WHEN_DUE[event])
        self._proceed(source, now)
        if self.source is source and not self.stopped:
            if self.is_polled:
                if self._context.mailboxes.serving == self.key:
                    self.happen(source, SourceEvent.TURN, now)
                self.wake(source.patience_deadline())  # what is due waits for a poll
                return False
            self.happen(source, SourceEvent.TURN, now)
            self.wake(source.deadline())
        return False

    def _begin_or_end(self, now: float) -> bool:
        """Begin a Sequence for an outbox without one, or report that the outbox has ended."""
        choice = self.next_choice
        if choice is not None and self.durable_end > self.first:
            if now < self.begins_at:
                self.wake(self.begins_at)
            else:
                self._context.creation.begin(self, choice, now)
        elif self.is_empty and self.handle(OutboxEvent.EMPTIED) is OutboxAction.TELL_ENDED:
            self._effects.append(Ended(self.key))
            return self.is_for_replies
        return False

    def _proceed(self, source: RMSource, now: float) -> None:
        """Take the next step towards the end of the Sequence, if it is due."""
        if self.source is not source:
            return  # it is over
        if source.end is EndState.OPEN and self.is_ending:
            source.want_end()
        if source.proceed():
            self._commit.save(source.local_id, source)
            self._commit.then(partial(self._end_saved, source))
        # The last message about the requests acknowledges every reply, so it waits for the last reply to be durable.
        if source.end is EndState.DURABLE and self._has_every_reply(source):
            source.tell_end(now)

    def _has_every_reply(self, source: RMSource) -> bool:
        return source.offer is None or self._context.offered.is_all_acknowledged(source.offer)

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

    def _save(self, source: RMSource, now: float, why: Why) -> None:
        self._commit.save(source.local_id, source)

    # --- transmission ---------------------------------------------------------------------------------------------

    def _send_due_request(self, source: RMSource, now: float, why: Why) -> None:
        request = source.request_to_send(self._context.jitter(), now)
        if request is not None:
            if self.is_polled:
                self._context.mailboxes.claim()
            assert self.to is not None
            envelope = self._context.composer.request(self, source, request)
            self._effects.append(Transmit(self.to, envelope, source.local_id, 0, source.control.attempts, now))

    def _transmit(self, source: RMSource, now: float, why: Why) -> None:
        self._send_due_request(source, now, why)
        context = self._context
        claim = context.mailboxes.claim if self.is_polled else partial(context.room.claim, self.key, self.to or "")
        numbers = source.numbers_to_send(now, self.here, claim)
        for number in numbers:
            self._send_message(source, number, now, is_last=number == numbers[-1])
        self._context.marking.see(source)
        self._context.reading.ask(self)

    def _send_message(self, source: RMSource, number: int, now: float, *, is_last: bool) -> None:
        if self.asks_instead(source, number):
            envelope, wants_reply = self._context.composer.request(self, source, Request.ACK_REQUESTED), None
        else:
            envelope, wants_reply = self._context.composer.transmission(self, source, number)
        # CXF's client can lose a reply that requests an acknowledgement (seen live), and a waiting requester
        # acknowledges it unasked.
        asks = wants_reply is None and not self.is_for_replies and source.asks_with(number, is_last=is_last)
        if asks:
            assert source.identifier is not None
            envelope.ack_requested = (AckRequested(source.identifier),)
        attempt = source.sent(number, wants_reply, self._context.jitter(), now, asks=asks)
        if wants_reply is not None and attempt == 1:
            self._context.pollers.expect(source, now)
        assert self.to is not None
        query, size = self.query(number), 0 if self.is_polled else len(envelope.body) + len(envelope.attachments)
        self._effects.append(Transmit(self.to, envelope, source.local_id, number, attempt, now, query, size))

    def message(self, source: RMSource, number: int, again: Callable[[float], None]) -> Envelope | None:
        """Return message ``number``, always the same but for piggybacked headers.

        None if it must be read first: ``again(now)`` is called after that.
        """
        is_here = self._context.reading.has(self, source, number, again)
        return self._context.composer.message(self, source, number) if is_here else None

    # --- answers of the peer --------------------------------------------------------------------------------------

    def _report_refused(self, source: RMSource, now: float, why: Why) -> None:
        self._context.creation.refused(self, source, now, why)

    def _begin_sending(self, source: RMSource, now: float, why: Why) -> None:
        self.update_available()
        self.ready()

    def receive_acknowledgement(
        self, ack: SequenceAcknowledgement, now: float, asked_at: float | None = None
    ) -> Fault | None:
        """Process a peer's acknowledgement of the outbox's Sequence; return the fault, if any.

        The peer must be allowed to report about the Sequence. ``asked_at``: when the request that it answers was sent,
        None if that is unknown or no evidence of its age, as for a posted acknowledgement.
        """
        source = self.source
        assert source is not None, self.key
        said = ack
        if source.numbers.is_restored:
            ack = source.numbers.known_part(ack)
        source.waiting.named(ack.ranges, source.numbers)
        if self.withdrawal is not None:
            self._context.forwarders.giving_up.acknowledged(self, ack)
        if asked_at is None and source.is_valid(ack):
            asked_at = made_after(source, ack)
        was_in_doubt = source.doubt.is_open
        action, newly = source.receive_acknowledgement(ack, now)
        if newly:
            self._report(newly, now)
        if was_in_doubt and not source.doubt.is_open:
            self._commit.save(source.local_id, source)
        if action is SourceAction.RAISE_INVALID_ACKNOWLEDGEMENT:  # WS-RM 4.4
            source.last_fault = INVALID_ACKNOWLEDGEMENT
            return sequence_fault(INVALID_ACKNOWLEDGEMENT, ack.identifier, acknowledgement=ack)
        if not ack.nacks and action is not None:
            self._report_retracted(source, said, asked_at, now)
        if action is SourceAction.MARK_AND_REPORT:
            self._report_rest(source, now, Why(SEQUENCE_CLOSED, "the destination closed the Sequence"))
        self.ready()
        return None if action is not None else sequence_fault(UNKNOWN_SEQUENCE, ack.identifier)

    def _report_retracted(
        self, source: RMSource, ack: SequenceAcknowledgement, asked_at: float | None, now: float
    ) -> None:
        incident = retraction(self, source, ack, asked_at, now)
        if incident is not None:
            self._commit.save(source.local_id, source)
            self._effects.append(incident)

    def _report(self, ranges: list[tuple[int, int]], now: float) -> None:
        source = self.source
        assert source is not None
        for lower, upper in ranges:
            last = min(upper, (source.numbers.last or upper + 1) - 1)
            if last >= lower:
                first, end = self.offset_of(lower), self.offset_of(last)
                self._effects.append(Acknowledged(self.key, first, end, source.identifier or "", lower))
        self.passed(now)

    def passed(self, now: float) -> None:
        """Advance past acknowledged messages, and save the position at intervals."""
        if self.pass_acknowledged() and self.source is not None:
            self._context.marking.save(self.source)
            self.save_place(now)

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
            self._report([(number, number)], now)
            self.ready()

    def receive_fault(self, fault: Fault, number: int, now: float, relates_to: str | None = None) -> None:
        """Handle a fault about an outbound Sequence: the named one, else the one being sent.

        Args:
            fault: The peer's fault.
            number: The message that it answers; 0 for none, or for a message that only ``relates_to`` names.
            now: Seconds.
            relates_to: The MessageID that it names.
        """
        source = self.source
        assert source is not None, self.key
        number = number or self.number_of(relates_to)
        event = self._event_of(source, fault, number)
        source.last_fault = fault.code
        source.life.heard(now)
        if number and number == source.numbers.last and event in _REFUSALS and not fault.is_rm:
            self._last_message_refused(source, now)
            return
        if self.forwarding is not None and number and event in _REFUSALS and not fault.is_rm:
            self._context.forwarders.giving_up.refused(self, number, fault, now)
            return
        why = Why(fault.code, fault.reason, number, fault.max_message_number)
        self.happen(source, event, now, why)
        self.ready()

    def _stop_numbering(self, source: RMSource, now: float, why: Why) -> None:
        source.doubt.roll_over(why.limit, why.number, now)
        self._commit.save(source.local_id, source)
        if source.numbers.limit < 1:
            why = Why(why.code, f"{why.reason} (it takes no message at all)")
            self.happen(source, SourceEvent.TAKES_NO_NUMBER, now, why)

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

    def heard(self, event: SourceEvent, now: float) -> SourceAction | None:
        """Handle the destination's end of the Sequence, or its answer to ours; return the action."""
        source = self.source
        assert source is not None, self.key
        source.life.heard(now)
        self.ready()
        return self.happen(source, event, now, Why(event.value, "the destination ended the Sequence"))

    # --- faults and silence ---------------------------------------------------------------------------------------

    def awaits_certainty(self) -> bool:
        """Whether pending answers may settle the doubt in a Sequence that is ending.

        Only exactly-once and at-most-once wait for them.
        """
        source = self.source
        if source is None or self.policy.assurance.delivery is Delivery.AT_LEAST_ONCE or not source.is_open:
            return False
        doubtful = self.doubtful(source)
        return len(doubtful) > 0 and all(
            number > source.numbers.sent_before and source.flight.may_be_untaken(number)
            for lower, upper in doubtful
            for number in range(lower, upper + 1)
        )

    def _event_of(self, source: RMSource, fault: Fault, number: int) -> SourceEvent:
        """Return the event of a fault; ``number``: the message concerned, 0 for none."""
        event = event_of(fault, number, source.versions.rm.can)
        if event not in _ENDING_FAULTS:
            return event
        if self.awaits_certainty():
            return SourceEvent.ENDING_FAULT_EARLY
        is_news = source.last_fault != fault.code
        if is_news and not self.needs_decision(source) and self.first < self.durable_end:
            detail = {"key": self.key, "code": fault.code, "reason": fault.reason}
            incident = Incident("sequence.replaced", source.identifier or "", level="warning", detail=detail)
            self._effects.append(incident)
        return event

    def doubt_remains(self, source: RMSource, now: float) -> None:
        """Handle a peer that does not report what it has, despite repeated requests.

        It refuses numbers above a limit (CXF answers AckRequested with nothing).
        """
        is_lost = source.doubt.resolve(DoubtEvent.SAYS_NOTHING) is DoubtAction.LOSE
        if is_lost and self.withdrawal is not None:
            self._context.forwarders.giving_up.silent(self, source, now)
        elif is_lost:
            why = Why(MESSAGE_NUMBER_ROLLOVER, "the destination does not say what arrived")
            self.happen(source, SourceEvent.DOUBT_STAYS, now, why)
        else:
            self._commit.save(source.local_id, source)

    @staticmethod
    def asks_instead(source: RMSource, number: int) -> bool:
        """Whether AckRequested alone must be sent instead of message ``number``.

        That is a LastMessage (WS-RM 1.0 3.2) that was repeated and answered with a fault. Metro faults each repeat of a
        LastMessage that it has.
        """
        entry = source.flight[number]
        return number == source.numbers.last and entry.faults > 0 and entry.attempts > 1

    def _last_message_refused(self, source: RMSource, now: float) -> None:
        """Handle a fault on LastMessage, or on AckRequested sent instead of it."""
        number = source.numbers.last or 0
        entry = source.flight.get(number)
        if entry is not None:
            self.leave_last_message(source, number)
            source.not_delivered(number, now)
        self.ready()

    @staticmethod
    def leave_last_message(source: RMSource, number: int) -> None:
        """Stop repeating a LastMessage that was answered repeatedly.

        It carries nothing, everything before it is acknowledged, and TerminateSequence, which follows, has the same
        meaning. gSOAP never acknowledges it.
        """
        entry = source.flight.get(number)
        is_left = source.flight.lowest == number == source.numbers.last
        if entry is not None and is_left and entry.attempts >= ANSWERED_ENOUGH:
            source.flight.remove(number)
            source.acknowledged.add(number)

    def acknowledged_alone(self, ack: SequenceAcknowledgement, number: int, now: float) -> None:
        """The answer to message ``number`` is nothing but an acknowledgement of the outbox's Sequence. If it names a
        request, there is no reply and there will be none: they leave together (or, with CXF, the reply was lost for
        good). That is so only once no other exchange carries the request: the reply may come back on that one. Where
        replies go to an address, an answer says nothing of them."""
        source = self.source
        if source is None or number not in source.waiting.unreplied or not self._context.composer.is_anonymous(source):
            return
        if number in source.waiting.replying or not any(lower <= number <= upper for lower, upper in ack.ranges):
            return
        entry = source.flight.get(number)
        if entry is not None and entry.exchanges:
            return
        if self.forwarding is not None:
            self._context.forwarders.unanswered(self, number, now)
            return
        self._effects.append(Unanswered(self.key, source.waiting.unreplied[number]))
        self.replied(source, number, now)

    # --- ends of its Sequence -------------------------------------------------------------------------------------

    def _report_rest(self, source: RMSource, now: float, why: Why) -> None:
        """Handle a Sequence closed by the destination.

        Messages that it may have and did not acknowledge are lost; those that it cannot have go to the next Sequence.
        If the operator must decide already, the decision covers this too.
        """
        self._commit.save(source.local_id, source)
        if not self.needs_decision(source):
            source.move_rest()
        elif not self.stopped:
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
            self.leave_out_arrived()
        self.drop(now)
        self._note_end(source, now)
        self.save()
        self._effects.append(Incident("sequence.terminated", source.identifier or ""))
        self.ready()

    def _lose(self, source: RMSource, now: float, why: Why) -> None:
        """Handle the loss of a Sequence with unacknowledged messages."""
        doubtful, late = self.doubtful(source), self.late(source)
        in_doubt = str(doubtful)
        if len(late) and not len(doubtful) and not source.doubt.is_open:
            why = why._replace(reason=f"{why.reason} (what it has of this Sequence was to follow the numbers {late})")
        detail = {"code": why.code, "reason": why.reason, "in_doubt": in_doubt}
        self._effects.append(Incident("sequence.lost", source.identifier or "", level="error", detail=detail))
        first = self.first
        last = self.offset_of(self.highest_left(source))
        if not len(doubtful) and not source.doubt.is_open:
            first, last = 1, 0
        if self.settles_doubt(source):
            self._context.forwarders.giving_up.lost(self, source, why.code, why.reason)
        self.drop(now)
        self._note_end(source, now)
        if self.policy.assurance.delivery is Delivery.AT_LEAST_ONCE and self.choices:
            self.ready()  # duplicates are allowed: continue in a new Sequence
            return
        if self.doubt is not None:
            self.save()
            self.ready()
            return
        self.stop(why.code, why.reason, now, first, last, in_doubt=in_doubt)

    def _note_end(self, source: RMSource, now: float) -> None:
        pause = self.pause_after(source, now)
        if pause:
            detail = {"key": self.key, "why": "its Sequences end with nothing acknowledged", "seconds": pause}
            identifier = source.identifier or ""
            self._effects.append(Incident("sequence.creation_delayed", identifier, level="warning", detail=detail))


_ENDING_FAULTS = (SourceEvent.ENDING_FAULT, SourceEvent.CLOSED_FAULT)
_REFUSALS = (SourceEvent.MESSAGE_FAULT, SourceEvent.OTHER_FAULT)
"""Events of a fault about a forwarded message that do not concern its Sequence."""

_DO: dict[SourceAction, Callable[[Outbox, RMSource, float, Why], None]] = {
    SourceAction.SEND_CREATE: Outbox._send_due_request,
    SourceAction.SEND_CLOSE: Outbox._send_due_request,
    SourceAction.SEND_TERMINATE: Outbox._send_due_request,
    SourceAction.TRANSMIT: Outbox._transmit,
    SourceAction.BEGIN: Outbox._begin_sending,
    SourceAction.SAVE: Outbox._save,
    SourceAction.REPORT_REFUSED: Outbox._report_refused,
    SourceAction.STOP_NUMBERING: Outbox._stop_numbering,
    SourceAction.REPORT_ACKNOWLEDGEMENT: Outbox._report_acknowledgement,
    SourceAction.RETRY: Outbox._retry,
    SourceAction.STOP: Outbox._stop_at,
    SourceAction.GO_ON: lambda _outbox, source, now, _why: source.life.heard(now),
    SourceAction.REPORT_REST: Outbox._report_rest,
    SourceAction.ANSWER_CLOSE: Outbox._report_rest,
    SourceAction.ANSWER_TERMINATE: Outbox._end_at_once,
    SourceAction.LOSE: Outbox._end_at_once,
    SourceAction.FINISH: Outbox._finish,
    SourceAction.MOVE_REST: lambda _outbox, source, now, _why: source.move_rest(),
    SourceAction.TELL_END: lambda _outbox, source, now, _why: source.outlive(now),
    SourceAction.NOTHING: Outbox._nothing,
}
"""Actions that :class:`RMSource` does not carry out on its own."""
