"""Outbound: every Sequence this side sends, with its outbox. Creates them, fills them, ends them, reports on them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

from holdfast.core.commit import GroupCommit
from holdfast.core.events import (
    Acknowledged,
    Discarded,
    Effect,
    Ended,
    Incident,
    Stopped,
    Submitted,
    Transmit,
    Unanswered,
    Unheard,
)
from holdfast.core.faults import (
    ENDS_FOR_SOURCE,
    INVALID_ACKNOWLEDGEMENT,
    MESSAGE_NUMBER_ROLLOVER,
    SEQUENCE_CLOSED,
    UNKNOWN_SEQUENCE,
    sequence_fault,
)
from holdfast.core.messages import (
    ANONYMOUS,
    ANONYMOUS_EPR,
    AckRequested,
    CloseSequence,
    CreateSequence,
    CreateSequenceResponse,
    EndpointReference,
    Envelope,
    Fault,
    LastMessage,
    Offer,
    RequestAcknowledgement,
    Sequence,
    SequenceAcknowledgement,
    TerminateSequence,
)
from holdfast.core.outbox import Choice, Outbox, ReadRecords, Submitting, outbox_queue, replies_queue
from holdfast.core.policy import Delivery, SourcePolicy
from holdfast.core.ranges import AcknowledgementRanges
from holdfast.core.records import Record, Snapshot, State
from holdfast.core.source import ANSWERED_ENOUGH, ENDING_STATES, NOT_DURABLE_YET, Request, RMSource
from holdfast.core.states import SourceAction, SourceEvent, SourceState
from holdfast.core.timers import Deadlines
from holdfast.core.versions import Addressing, Versions

TOLD_ENOUGH = 5
"""So often is a requester told that the Sequence of its replies ends, all of them acknowledged. It may be gone, and
CXF's client never answers: it fails at a CloseSequence that comes to its decoupled endpoint."""

UNSENDABLE = "cannot be written"
"""Why an outbox is stopped whose next message no envelope can hold."""

DISCARDED = "a message was given up"
"""Why an outbox is stopped whose Sequence was given up with a message that may have been transmitted."""


class Offered(Protocol):
    """What Outbound asks of the receiving half about Sequences that it offered."""

    def acknowledgement(self, identifier: str) -> SequenceAcknowledgement | None:
        """What may be acknowledged of it now; None if it is unknown."""
        ...

    def is_all_acknowledged(self, identifier: str) -> bool:
        """Whether all that came in it is durable."""
        ...

    def forget_offered(self, identifier: str) -> None:
        """The Sequence it was offered with is over."""
        ...


class Outbound:
    """The sending half of one side.

    Args:
        policy: Limits and timers of its Sequences.
        commit: Where its changes go.
        effects: Where its effects go.
        read: Reads records back from the store.
        new_identifier: Makes a URI never used before.
        jitter: A number in [0, 1), another at each call.
        local: The address the peer can send to; :data:`ANONYMOUS` for one without a listener.
        offered: The Sequences that this side offered for replies.
    """

    def __init__(
        self,
        policy: SourcePolicy,
        commit: GroupCommit,
        effects: list[Effect],
        read: ReadRecords,
        new_identifier: Callable[[], str],
        jitter: Callable[[], float],
        local: str,
        offered: Offered,
    ):
        self.policy = policy
        self.commit = commit
        self.effects = effects
        self.outboxes: dict[str, Outbox] = {}
        self.sources: dict[str, Outbox] = {}
        """``local_id`` of every Sequence -> its outbox."""
        self.by_identifier: dict[str, str] = {}
        self.by_offer: dict[str, Outbox] = {}
        self._read = read
        self._new_identifier = new_identifier
        self._jitter = jitter
        self._local = EndpointReference(local) if local != ANONYMOUS else ANONYMOUS_EPR
        self._offered = offered
        self._deadlines = Deadlines()
        self._ready: dict[str, None] = {}
        self._paused: dict[str, float] = {}
        """Address -> when it wants to be asked again."""

    @property
    def is_anonymous(self) -> bool:
        """Whether what the peer has to say comes in its answers only."""
        return self._local is ANONYMOUS_EPR

    # --- outboxes -------------------------------------------------------------------------------------------------

    def open(self, key: str, to: str, choices: list[Choice]) -> Outbox:
        """The outbox ``key``, made if it is not there.

        Args:
            key: The sequence key.
            to: The address it sends to.
            choices: What to try with CreateSequence, first to last. Outboxes to one address share one list, so that
                what one learns of the peer serves all: what was refused is tried last.
        """
        outbox = self.outboxes.get(key)
        if outbox is None:
            outbox = self.outboxes[key] = Outbox(key, outbox_queue(key), to, self._read)
            outbox.choices = choices
            self.commit.batch.queues[outbox.queue] = outbox.description()
        outbox.choices = choices
        self.ready(outbox)
        return outbox

    def open_replies(self, source: RMSource, now: float) -> Outbox:
        """The outbox of a Sequence that answers: its key is what it is saved under, and it needs no CreateSequence."""
        outbox = self.outboxes[source.key] = Outbox(source.key, replies_queue(source.key), source.to, self._read)
        source.state = SourceState.CREATED
        self.adopt(outbox, source)
        self.commit.save_new(source.local_id, source, outbox.queue, 0)
        return outbox

    def submit(self, outbox: Outbox, record: Record) -> int:
        """Take over a message; :class:`Submitted` follows when it is durable. Its offset."""
        offset = outbox.append(record, self.commit)
        together = outbox.submitted_with(self.commit.batch, offset)
        if together.first == offset:
            self.commit.then(partial(self._submitted, outbox, together))
        return offset

    def _submitted(self, outbox: Outbox, together: Submitting, now: float) -> None:
        if outbox.submitting is together:
            outbox.submitting = None
        outbox.durable_end = together.last + 1
        outbox.update_available()
        self.effects.append(Submitted(outbox.key, together.first, together.last))
        self.ready(outbox)

    def ready(self, outbox: Outbox) -> None:
        """Look at the outbox at the next :meth:`pump`."""
        self._ready[outbox.key] = None

    def adopt(self, outbox: Outbox, source: RMSource) -> None:
        """Let ``source`` carry the outbox from now on."""
        outbox.source = source
        self.sources[source.local_id] = outbox
        if source.identifier is not None:
            self.by_identifier[source.identifier] = source.local_id
        if source.offer is not None:
            self.by_offer[source.offer] = outbox
        outbox.update_available()

    def find(self, identifier: str) -> RMSource | None:
        """The outbound Sequence with that Identifier."""
        outbox = self.sources.get(self.by_identifier.get(identifier, ""))
        return outbox.source if outbox is not None else None

    # --- what is due ----------------------------------------------------------------------------------------------

    def pump(self, now: float) -> None:
        """Transmit whatever may go and is due."""
        for key in self._deadlines.due(now):
            self._ready[key] = None
        while self._ready:
            keys = list(self._ready)
            self._ready.clear()
            for key in keys:
                outbox = self.outboxes.get(key)
                if outbox is not None and not outbox.stopped and not self._is_paused(outbox, now):
                    self._pump_one(outbox, now)
                    if outbox.source is not None:
                        self._deadlines.want(key, outbox.source.deadline())

    def deadline(self) -> float | None:
        """When :meth:`pump` has something to do next."""
        return self._deadlines.next()

    def pause(self, to: str, seconds: float, now: float) -> float:
        """The destination there asks not to be asked again for so long (Retry-After): nothing goes there meanwhile.

        Returns:
            The seconds it is given, at most the policy's ``max_retry_after``.
        """
        seconds = min(seconds, self.policy.retransmission.max_retry_after)
        self._paused[to] = max(self._paused.get(to, now), now + seconds)
        return seconds

    def _is_paused(self, outbox: Outbox, now: float) -> bool:
        until = self._paused.get(outbox.to or "")
        if until is None:
            return False
        if until <= now:
            del self._paused[outbox.to or ""]
            return False
        self._deadlines.want(outbox.key, until)
        return True

    def _pump_one(self, outbox: Outbox, now: float) -> None:
        source = outbox.source
        if source is None:
            choice = outbox.next_choice
            if choice is not None and outbox.durable_end > outbox.first:
                self._begin(outbox, choice, now)
            elif outbox.end_wanted and outbox.is_empty:
                self.effects.append(Ended(outbox.key))
                outbox.end_wanted = False
                if outbox.is_for_replies:
                    self.close_outbox(outbox.key)
            return
        if source.expires_at is not None and source.expires_at <= now and not source.outlive(now):
            self._end_with(outbox, source, SourceEvent.EXPIRED, "Expires", "its time was up", now)
            return
        if source.is_given_up(now):
            source.suspended = "given up"
            self._stop(outbox, "given up", "the destination gave no sign of life", now)
            return
        source.go_on_after_close()
        if source.is_full and source.is_complete and not source.end_wanted:
            source.want_end(now)
        source.proceed(now)
        if source.is_ending and not source.end_is_saved:
            source.end_is_saved = True
            self.commit.save(source.local_id, source)
            self.commit.then(partial(self._end_durable, outbox, source))
        if source.state in ENDING_STATES and not self._may_end(source):
            if source.due is not None:
                source.due = None
                self.commit.then(partial(self._say_last_word, outbox, source))
            return
        if outbox.is_for_replies and self._is_told_enough(source, now):
            self._end_with(outbox, source, SourceEvent.EXPIRED, "unanswered", "nobody answers to its end", now)
            return
        request = source.request_to_send(self._jitter(), now)
        if request is not None:
            self._send_request(outbox, source, request)
        numbers = source.numbers_to_send(now)
        for number in numbers:
            self._send_message(outbox, source, number, now, is_last=number == numbers[-1])

    @staticmethod
    def _is_told_enough(source: RMSource, now: float) -> bool:
        is_due = source.due is not None and source.due <= now
        return is_due and source.attempts >= TOLD_ENOUGH and source.state in ENDING_STATES

    def _may_end(self, source: RMSource) -> bool:
        # The last word on the requests acknowledges every reply, so it waits for the last one to be durable.
        return source.end_is_durable and (source.offer is None or self._offered.is_all_acknowledged(source.offer))

    def _end_durable(self, outbox: Outbox, source: RMSource, now: float) -> None:
        source.end_is_durable = True
        self.ready(outbox)

    def _say_last_word(self, outbox: Outbox, source: RMSource, now: float) -> None:
        source.due = now
        self.ready(outbox)

    def _begin(self, outbox: Outbox, choice: Choice, now: float) -> None:
        versions, with_offer = choice
        source = RMSource(self._new_identifier(), outbox.key, versions, self.policy, now)
        source.start = outbox.first
        source.offer = self._new_identifier() if with_offer else None
        source.message_ids[Request.CREATE.value] = source.local_id
        self.adopt(outbox, source)
        self.commit.save_new(source.local_id, source, outbox.queue, 0)
        self.commit.then(partial(self._create, outbox, source))

    def _create(self, outbox: Outbox, source: RMSource, now: float) -> None:
        if outbox.source is source and source.state is SourceState.NONE:
            source.create(now)
            self.ready(outbox)

    # --- envelopes ------------------------------------------------------------------------------------------------

    def _envelope(self, outbox: Outbox, source: RMSource) -> Envelope:
        versions = source.versions
        return Envelope(versions.soap, versions.addressing, versions.rm, to=outbox.to)

    def _send_request(self, outbox: Outbox, source: RMSource, request: Request) -> None:
        envelope = self._envelope(outbox, source)
        envelope.message_id = source.message_ids.get(request.value)
        if request is not Request.ACK_REQUESTED:
            if envelope.message_id is None:
                envelope.message_id = source.message_ids[request.value] = self._new_identifier()
            if self._local is not ANONYMOUS_EPR or source.versions.addressing is Addressing.V2004_08:
                envelope.reply_to = self._local
        if request is Request.CREATE:
            envelope.control = self._create_sequence(source)
        else:
            assert source.identifier is not None
            last = source.last_number or max(min(source.available, source.limit), source.acknowledged.highest)
            if request is Request.CLOSE:
                envelope.control = CloseSequence(source.identifier, last or None)
            elif request is Request.TERMINATE:
                names_it = source.versions.rm.can.names_last_number
                envelope.control = TerminateSequence(source.identifier, (last or None) if names_it else None)
            else:
                envelope.control = RequestAcknowledgement()
                envelope.ack_requested = (AckRequested(source.identifier),)
            self._piggyback(source, envelope)
            if request in (Request.CLOSE, Request.TERMINATE) and source.versions.rm.can.has_final:
                # Every reply is here, or the Sequence would not be ended: the offered one is final too.
                for acknowledgement in envelope.acknowledgements:
                    acknowledgement.final = True
        assert outbox.to is not None
        self.effects.append(Transmit(outbox.to, envelope, source.local_id, 0, source.attempts))

    def _create_sequence(self, source: RMSource) -> CreateSequence:
        offer = None
        if source.offer is not None:
            offer = Offer(source.offer, self._local if source.versions.rm.can.offers_endpoint else None)
        return CreateSequence(self._local, self.policy.expires, offer)

    def _piggyback(self, source: RMSource, envelope: Envelope) -> None:
        if source.offer is not None:
            acknowledgement = self._offered.acknowledgement(source.offer)
            if acknowledgement is not None and acknowledgement.ranges:
                envelope.acknowledgements = (acknowledgement,)

    def _send_message(self, outbox: Outbox, source: RMSource, number: int, now: float, *, is_last: bool) -> None:
        wants_reply = None
        envelope = self.message(outbox, source, number)
        if number != source.last_number:
            record = outbox.record(outbox.offset_of(number))
            if record.wants_reply:
                wants_reply = record.message_id
                envelope.reply_to = self._local
        self._piggyback(source, envelope)
        # CXF's client can lose a reply that asks (seen live), and who waits for a reply acknowledges it unasked.
        asks = wants_reply is None and not outbox.is_for_replies and source.asks_with(number, is_last=is_last)
        if asks:
            assert source.identifier is not None
            envelope.ack_requested = (AckRequested(source.identifier),)
        attempt = source.sent(number, wants_reply, self._jitter(), now, asks=asks)
        assert outbox.to is not None
        self.effects.append(Transmit(outbox.to, envelope, source.local_id, number, attempt))

    def message(self, outbox: Outbox, source: RMSource, number: int) -> Envelope:
        """Message ``number`` of the Sequence as it goes out, the same every time but for piggybacked headers."""
        envelope = self._envelope(outbox, source)
        is_last = number == source.last_number
        if source.identifier is not None:
            envelope.sequence = Sequence(source.identifier, number, is_last)
        if is_last:
            envelope.control = LastMessage()
            return envelope
        record = outbox.record(outbox.offset_of(number))
        envelope.action = record.action
        envelope.message_id = record.message_id
        envelope.relates_to = record.relates_to
        envelope.body = record.body
        if record.headers:
            envelope.headers = (record.headers,)
        return envelope

    # --- what comes back ------------------------------------------------------------------------------------------

    def answered(self, sent: Transmit, now: float, *, was_empty: bool) -> None:
        """What was sent got an answer that is no fault; what that says has been taken in."""
        outbox = self.sources.get(sent.source)
        source = outbox.source if outbox is not None else None
        if outbox is None or source is None:
            return
        wants_reply = sent.number in source.unreplied
        source.answered(sent.number, in_answers=self.is_anonymous)
        is_question = isinstance(sent.envelope.control, RequestAcknowledgement)
        if is_question and was_empty and source.is_silent_in_doubt:
            self._doubt_remains(outbox, source, now)
        times = source.silence(sent.number) if was_empty and not is_question else 0
        if times >= ANSWERED_ENOUGH:
            self.effects.append(Unheard(outbox.key, source.identifier or "", sent.number, times, wants_reply))
        self.ready(outbox)

    def _doubt_remains(self, outbox: Outbox, source: RMSource, now: float) -> None:
        """The peer refuses numbers above a limit, and does not say what it has, however often it is asked (CXF answers
        AckRequested with nothing)."""
        if source.is_limit_known:
            # It was told which number was refused, and every higher one is refused for the same reason.
            source.clear_doubt()
            self.commit.save(source.local_id, source)
        else:
            source.handle(SourceEvent.ENDING_FAULT)
            self._lose(outbox, source, MESSAGE_NUMBER_ROLLOVER, "the destination does not say what arrived", now)

    def failed(self, sent: Transmit, now: float) -> None:
        """What was sent got no answer."""
        outbox = self.sources.get(sent.source)
        if outbox is not None and outbox.source is not None:
            outbox.source.not_delivered(sent.number, now)
            self.ready(outbox)

    def unsendable(self, sent: Transmit, reason: str, now: float) -> None:
        """What was to be sent cannot be written, and never will be: nothing more is sent until somebody decides."""
        outbox = self.sources.get(sent.source)
        source = outbox.source if outbox is not None else None
        if outbox is None or source is None:
            self.effects.append(Incident("answer cannot be written", level="error", detail={"reason": reason}))
            return
        source.suspended = UNSENDABLE
        self.commit.save(source.local_id, source)
        refused = (source.identifier or "", sent.number) if sent.number else None
        self._stop(outbox, UNSENDABLE, reason, now, refused=refused)

    def receive_create_response(
        self, response: CreateSequenceResponse, relates_to: str | None, now: float
    ) -> RMSource | None:
        """CreateSequenceResponse: the Sequence it opened, to be used as soon as that is durable; None for none."""
        outbox = self.sources.get(relates_to or "")
        source = outbox.source if outbox is not None else None
        if outbox is None or source is None or not source.created(response.identifier, response.expires, now):
            return None
        accept = response.accept_acks_to
        if accept is None or accept.is_none:
            source.offer = None
        outbox.refused.clear()
        source.suspended = NOT_DURABLE_YET
        self.by_identifier[response.identifier] = source.local_id
        self.commit.save(source.local_id, source)
        self.commit.then(partial(self._opened, outbox, source))
        self.effects.append(Incident("sequence created", response.identifier, detail={"key": outbox.key}))
        return source

    def _opened(self, outbox: Outbox, source: RMSource, now: float) -> None:
        source.suspended = ""
        outbox.update_available()
        if outbox.end_wanted:
            source.want_end(now)
        self.ready(outbox)

    def receive_acknowledgement(self, ack: SequenceAcknowledgement, now: float) -> Fault | None:
        """A SequenceAcknowledgement header, wherever it came; the fault to answer it with if there is one."""
        outbox = self.sources.get(self.by_identifier.get(ack.identifier, ""))
        if outbox is None or outbox.source is None:
            return sequence_fault(UNKNOWN_SEQUENCE, ack.identifier)
        source = outbox.source
        if source.sent_before >= source.next_number:
            outbox.find_requests(ack.ranges)
        was_in_doubt = source.in_doubt
        newly, fault = source.receive_acknowledgement(ack, now)
        if newly:
            self._report(outbox, newly)
        if was_in_doubt and not source.in_doubt:
            self.commit.save(source.local_id, source)
        if source.state is SourceState.CLOSED and not source.is_complete and not outbox.stopped:
            self._lose(outbox, source, SEQUENCE_CLOSED, "the destination closed the Sequence", now)
        self._after_news(outbox, source, now)
        return fault

    def _report(self, outbox: Outbox, ranges: list[tuple[int, int]]) -> None:
        source = outbox.source
        assert source is not None
        for lower, upper in ranges:
            last = min(upper, (source.last_number or upper + 1) - 1)
            if last >= lower:
                first_offset, last_offset = outbox.offset_of(lower), outbox.offset_of(last)
                self.effects.append(Acknowledged(outbox.key, first_offset, last_offset))
        outbox.acknowledged(self.commit)

    def _after_news(self, outbox: Outbox, source: RMSource, now: float) -> None:
        source.proceed(now)
        self.ready(outbox)

    def request_of(self, relates_to: str | None, identifier: str = "") -> tuple[Outbox, int] | None:
        """Which request a message answers: its outbox and number; None if no request that waits for its reply.

        Args:
            relates_to: The MessageID that the message names, None for none.
            identifier: The Sequence that it came in, "" if in none.
        """
        if relates_to is None:
            return None
        offered = self.by_offer.get(identifier)
        for outbox in (offered,) if offered is not None else tuple(self.outboxes.values()):
            number = outbox.number_of_request(relates_to)
            if number:
                return outbox, number
        return None

    def receive_reply(self, outbox: Outbox, number: int) -> None:
        """The reply to a request (see :meth:`request_of`) is in the open batch: it is acknowledged with that."""
        source = outbox.source
        assert source is not None, (outbox.key, number)
        source.replying.add(number)
        self.commit.save(source.local_id, source)
        self.commit.then(partial(self._replied, outbox, source, number))

    def acknowledged_alone(self, ack: SequenceAcknowledgement, number: int, now: float) -> None:
        """The answer to message ``number`` is nothing but an acknowledgement. If it names a request, there is no reply
        and there will be none: they leave together (or, with CXF, the reply was lost for good)."""
        outbox = self.sources.get(self.by_identifier.get(ack.identifier, ""))
        source = outbox.source if outbox is not None else None
        if outbox is None or source is None or number not in source.unreplied:
            return
        message_id = source.unreplied[number]
        if any(lower <= number <= upper for lower, upper in ack.ranges) and number not in source.replying:
            self.effects.append(Unanswered(outbox.key, message_id))
            if source.replied(number, now):
                self._report(outbox, [(number, number)])
                self._after_news(outbox, source, now)

    def _replied(self, outbox: Outbox, source: RMSource, number: int, now: float) -> None:
        if outbox.source is source and source.replied(number, now):
            self._report(outbox, [(number, number)])
            self._after_news(outbox, source, now)

    def receive_fault(
        self, fault: Fault, source_id: str, number: int, now: float, relates_to: str | None = None
    ) -> None:
        """A fault about an outbound Sequence: named in its detail, else the one that was being sent.

        Args:
            fault: What the peer says.
            source_id: ``local_id`` of the Sequence that it answers, as far as is known.
            number: The message that it answers; 0 for none, or for one that only ``relates_to`` names.
            now: Seconds.
            relates_to: The MessageID that it names.
        """
        local_id = self.by_identifier.get(fault.identifier or "", source_id)
        outbox = self.sources.get(local_id)
        if outbox is None or outbox.source is None:
            return
        source = outbox.source
        source.last_fault = fault.code
        source.last_heard = now
        number = number or outbox.number_of(relates_to)
        if source.state is SourceState.CREATING:
            self._refused(outbox, source, fault, now)
        elif fault.is_rm and fault.code == MESSAGE_NUMBER_ROLLOVER and not source.versions.rm.can.rollover_ends:
            source.roll_over(fault.max_message_number, number, now)
            self.commit.save(source.local_id, source)
            if source.limit < 1:
                source.suspended = fault.code
                self._stop(outbox, fault.code, f"{fault.reason} (it takes no message at all)", now)
        elif fault.is_rm and fault.code == SEQUENCE_CLOSED:
            if source.handle(SourceEvent.CLOSED_FAULT) is SourceAction.MARK_AND_REPORT and not source.is_complete:
                self._lose(outbox, source, fault.code, fault.reason, now)
        elif fault.is_rm and fault.code in (*ENDS_FOR_SOURCE, MESSAGE_NUMBER_ROLLOVER):
            self._end_with(outbox, source, SourceEvent.ENDING_FAULT, fault.code, fault.reason, now)
        elif fault.is_rm and fault.code == INVALID_ACKNOWLEDGEMENT:
            self.effects.append(Incident("acknowledgement refused", fault.identifier or "", level="warning"))
        elif fault.sender and number:
            # The message itself is refused, and would be each time: the number cannot be skipped, so somebody decides.
            source.suspended = fault.code
            self.commit.save(source.local_id, source)
            refused = (source.identifier or "", number)
            self._stop(outbox, fault.code, fault.reason, now, refused=refused)
        else:
            source.not_delivered(number, now)
        self._after_news(outbox, source, now)

    def _refused(self, outbox: Outbox, source: RMSource, fault: Fault, now: float) -> None:
        # CXF refuses a repeated CreateSequence, the first of which it granted: its Offer is in use. Another one is not.
        is_new = source.offer is None or source.attempts <= 1
        source.handle(SourceEvent.CREATE_SEQUENCE_REFUSED)
        self._drop(outbox, source)
        if is_new:
            outbox.refuse((source.versions, source.offer is not None))
        self.effects.append(
            Incident("sequence refused", level="warning", detail={"key": outbox.key, "reason": fault.reason})
        )
        if outbox.next_choice is None:
            self._stop(outbox, fault.code, fault.reason, now)
        self.ready(outbox)

    def receive_close_response(self, identifier: str, now: float) -> None:
        """CloseSequenceResponse."""
        self._lifecycle(identifier, SourceEvent.CLOSE_SEQUENCE_RESPONSE, now)

    def receive_terminate_response(self, identifier: str, now: float) -> None:
        """TerminateSequenceResponse."""
        self._lifecycle(identifier, SourceEvent.TERMINATE_SEQUENCE_RESPONSE, now)

    def terminate_sent(self, source_id: str, was_empty: bool, now: float) -> None:
        """TerminateSequence reached the destination. Where it is one-way, that is all there is to it. Else it is
        over too once repeats of it are answered with nothing, as gSOAP does when its response was lost."""
        outbox = self.sources.get(source_id)
        source = outbox.source if outbox is not None else None
        if source is None or source.identifier is None or source.state is not SourceState.TERMINATING:
            return
        if not source.versions.rm.can.answers_terminate or (was_empty and source.attempts >= ANSWERED_ENOUGH):
            self._lifecycle(source.identifier, SourceEvent.TERMINATE_SEQUENCE_RESPONSE, now)

    def ended_by_peer(self, identifier: str, event: SourceEvent, now: float) -> bool:
        """CloseSequence or TerminateSequence from the destination; False if the Sequence is unknown."""
        outbox = self.sources.get(self.by_identifier.get(identifier, ""))
        if outbox is None or outbox.source is None:
            return False
        source = outbox.source
        complete = source.is_complete
        self._lifecycle(identifier, event, now)
        if not complete:
            self._lose(outbox, source, event.value, "the destination ended the Sequence", now)
        return True

    def _lifecycle(self, identifier: str, event: SourceEvent, now: float) -> None:
        outbox = self.sources.get(self.by_identifier.get(identifier, ""))
        if outbox is None or outbox.source is None:
            return
        source = outbox.source
        source.last_heard = now
        source.handle(event)
        if source.is_over:
            if source.is_complete:
                outbox.leave_out_arrived()
            self._drop(outbox, source)
            self.effects.append(Incident("sequence terminated", identifier))
        else:
            self.commit.save(source.local_id, source)
        self._after_news(outbox, source, now)

    # --- ends -----------------------------------------------------------------------------------------------------

    def want_end(self, outbox: Outbox, now: float) -> None:
        """End the outbox's Sequence once everything is acknowledged; :class:`Ended` follows."""
        outbox.end_wanted = True
        if outbox.source is not None:
            outbox.source.want_end(now)
            self.commit.save(outbox.source.local_id, outbox.source)
        self.ready(outbox)

    def _end_with(
        self, outbox: Outbox, source: RMSource, event: SourceEvent, code: str, reason: str, now: float
    ) -> None:
        action = source.handle(event)
        if action is SourceAction.LOSE and not source.is_complete:
            self._lose(outbox, source, code, reason, now)
        elif action in (SourceAction.LOSE, SourceAction.FINISH):
            self._drop(outbox, source)
            self.ready(outbox)

    def _lose(self, outbox: Outbox, source: RMSource, code: str, reason: str, now: float) -> None:
        """The Sequence is gone with messages unacknowledged."""
        self.effects.append(
            Incident("sequence lost", source.identifier or "", level="error", detail={"code": code, "reason": reason})
        )
        first = outbox.first
        last = outbox.offset_of(source.highest_sent)
        self._drop(outbox, source)
        if self.policy.assurance.delivery is Delivery.AT_LEAST_ONCE and outbox.choices:
            self.ready(outbox)  # duplicates are allowed: go on in a new Sequence
            return
        self._stop(outbox, code, reason, now, first, last)

    def _stop(
        self,
        outbox: Outbox,
        code: str,
        reason: str,
        now: float,
        first: int = 1,
        last: int = 0,
        refused: tuple[str, int] | None = None,
    ) -> None:
        outbox.stopped = code
        self.commit.batch.queues[outbox.queue] = outbox.description()
        self.commit.then(partial(self._tell, Stopped(outbox.key, code, reason, first, last, refused)))

    def _tell(self, effect: Effect, now: float) -> None:
        self.effects.append(effect)

    def redirect(self, outbox: Outbox, to: str) -> None:
        """An outbox in which nothing waits, and for which no Sequence is open, serves another address."""
        outbox.to = to
        self.commit.batch.queues[outbox.queue] = outbox.description()

    def resume(self, outbox: Outbox, choices: list[Choice], now: float) -> None:
        """Go on with a stopped outbox: what is not known to have arrived is sent again, in a new Sequence if the old
        one is gone."""
        outbox.stopped = ""
        outbox.choices = choices
        outbox.refused.clear()
        if outbox.source is not None:
            outbox.source.go_on(now)
        self.commit.batch.queues[outbox.queue] = outbox.description()
        self.ready(outbox)

    def discard(self, outbox: Outbox, offset: int, now: float) -> None:
        """Give up one message; it has not been acknowledged. :class:`Discarded` follows when that is durable.

        If it was never transmitted, the present Sequence ends before it, and the next one begins behind it. If it may
        have been, its number cannot be skipped: the present Sequence is given up. What is known to have arrived in it
        is not sent again. What was transmitted and is not acknowledged may have arrived, so that somebody decides
        whether it is sent in a new one: the outbox is stopped, unless it is already.
        """
        assert outbox.first <= offset < outbox.durable_end and not outbox.is_acknowledged(offset), (outbox.key, offset)
        source = outbox.source
        if source is not None and outbox.may_have_left(offset):
            in_doubt = outbox.in_doubt() - 1
            outbox.leave_out_arrived()
            self._drop(outbox, source)
            if in_doubt and not outbox.stopped:
                self._stop(outbox, DISCARDED, f"{in_doubt} others of its Sequence may have arrived", now)
        outbox.leave_out(offset, offset)
        if outbox.source is not None:
            self.commit.save(outbox.source.local_id, outbox.source)  # with what is trimmed, that it is acknowledged
        self.commit.batch.queues[outbox.queue] = outbox.description()
        self.commit.batch.trims[outbox.queue, 0] = outbox.first
        self.commit.then(partial(self._tell, Discarded(outbox.key, offset)))
        self.ready(outbox)

    def _drop(self, outbox: Outbox, source: RMSource) -> None:
        outbox.source = None
        self.sources.pop(source.local_id, None)
        if source.identifier is not None:
            self.by_identifier.pop(source.identifier, None)
        if source.offer is not None:
            self.by_offer.pop(source.offer, None)
            self._offered.forget_offered(source.offer)
        self.commit.forget(source.local_id)
        outbox.first = max(outbox.first, source.start + source.records_done)
        outbox.skip()
        self.commit.batch.trims[outbox.queue, 0] = outbox.first

    def close_outbox(self, key: str) -> None:
        """Forget a reply outbox with all that is in it: the Sequence it answered is over."""
        outbox = self.outboxes.pop(key, None)
        if outbox is None:
            return
        if outbox.source is not None:
            self._drop(outbox, outbox.source)
        self._deadlines.forget(key)
        self.commit.batch.trims.pop((outbox.queue, 0), None)
        self.commit.batch.deletes.append((outbox.queue, 0))

    # --- recovery -------------------------------------------------------------------------------------------------

    def recover(self, snapshot: Snapshot, now: float) -> None:
        """Take over what the store held."""
        for queue, description in snapshot.queues.items():
            if description.get("kind") == "outbox":
                first, end = snapshot.bounds.get((queue, 0), (0, 0))
                key = description["key"]
                outbox = self.outboxes[key] = Outbox(key, queue, description["to"], self._read, first, end)
                outbox.stopped = description["stopped"]
                outbox.left_out = AcknowledgementRanges.from_state(description.get("left_out", []))
                # Nobody but a peer's request opens an outbox of replies again, so it must know what to speak.
                outbox.choices = [
                    (Versions(rm, addressing, soap), offer)
                    for rm, addressing, soap, offer in description.get("choices", ())
                ]
        for state in snapshot.sequences.values():
            if state["role"] != "source":
                continue
            outbox = self._recovered_outbox(state, snapshot)
            available = outbox.run_end(state["start"]) - state["start"]
            source = RMSource.from_state(state, self.policy, available, now)
            if source.state is SourceState.NONE and not source.polled:
                source.create(now)
            self.adopt(outbox, source)
            self.commit.settle(source.local_id, outbox.queue, 0, snapshot)
            outbox.first = max(outbox.first, source.start + source.records_done)
            if source.polled:
                source.issue(now)
        for outbox in self.outboxes.values():
            outbox.skip()
            self.ready(outbox)

    def _recovered_outbox(self, state: State, snapshot: Snapshot) -> Outbox:
        key = state["outbox"]
        if key not in self.outboxes:
            queue = replies_queue(key)
            first, end = snapshot.bounds.get((queue, 0), (0, 0))
            self.outboxes[key] = Outbox(key, queue, state["to"], self._read, first, end)
        return self.outboxes[key]
