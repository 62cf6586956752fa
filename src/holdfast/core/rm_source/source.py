"""RMSource: one outbound Sequence. Numbers, transmits, retransmits, closes and terminates it.

It works on numbers alone; the outbox assigns messages to them. A number is transmitted only once the start of the
Sequence is durable, so after a crash each message has the same number.
"""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.core.messages import MAX_MESSAGE_NUMBER, IncompleteSequenceBehavior, SequenceAcknowledgement
from holdfast.core.policy import SourcePolicy
from holdfast.core.records import Record
from holdfast.core.rm_source.control_requests import ANSWERED_ENOUGH
from holdfast.core.rm_source.flight import Claim, InFlight, always, size_of
from holdfast.core.rm_source.request_index import Requests
from holdfast.core.rm_source.saved_state import OutboundSequence
from holdfast.core.rm_source.window import Early
from holdfast.core.states.outbound import (
    END_TABLE,
    REQUESTS,
    SOURCE_TABLES,
    DoubtEvent,
    EndAction,
    EndEvent,
    EndState,
    Request,
    SourceAction,
    SourceEvent,
    SourceState,
)
from holdfast.core.states.table import step
from holdfast.core.versions import Versions

ENDING_STATES = (SourceState.CLOSING, SourceState.TERMINATING)
"""States in which the Sequence notifies the peer of its end."""

TOLD_ENOUGH = 5
"""Number of notifications to a requester that the Sequence of its replies ends, with all of them acknowledged. The
requester may have stopped, and CXF's client never answers: it fails at a CloseSequence to its decoupled endpoint."""

REFUSED_ENOUGH = 10
"""Number of refused notifications of the end after which the source ends the Sequence itself, with all its messages
acknowledged. A destination that has ended the Sequence may not be able to say so: a Metro service with certificates
answers each repeat of TerminateSequence with a fault that it does not sign. Such a fault has no authority over the
Sequence. A destination that does not answer at all is notified again when it is back, without a limit. Also the number
of answers to one CreateSequence that this side does not accept, after which the source gives that Sequence up."""

# Every message needs these enum members; a module global is faster to look up than an attribute of the enum.
_CREATED, _ROLLOVER = SourceState.CREATED, SourceState.ROLLOVER
_MARK, _MARK_AND_REPORT = SourceAction.MARK, SourceAction.MARK_AND_REPORT
_OPEN, _DURABLE, _TELLING = EndState.OPEN, EndState.DURABLE, EndState.TELLING


class RMSource(OutboundSequence):
    """One outbound Sequence."""

    __slots__ = ("requests",)

    def __init__(
        self, local_id: str, key: str, versions: Versions, policy: SourcePolicy, now: float, *, polled: bool = False
    ):
        super().__init__(local_id, key, versions, policy, now, polled=polled)
        self.requests: Requests[RMSource] = Requests()
        """Index in which a reply finds its request; shared by all Sequences of this side once it carries an outbox."""

    def __str__(self) -> str:
        return f"the outbound Sequence {self.identifier or self.local_id}"

    # --- states ---------------------------------------------------------------------------------------------------

    def handle(self, event: SourceEvent) -> SourceAction | None:
        """Apply the state table to an event.

        Returns:
            The action of the cell; None if the table has no cell for an event that the peer caused: only
            a fault is due.

        Raises:
            NoSuchMove: the table has no cell for an event that this side caused.
        """
        action, after = step(SOURCE_TABLES[self.versions.rm], self.state, event, self)
        if after is not self.state:
            self.state = after
            # The question which numbers the peer has is repeated in every state, until the peer answers it.
            if not self.doubt.is_open or after in REQUESTS:
                self.control.stop()
        return action

    def _end(self, event: EndEvent) -> EndAction | None:
        action, self.end = step(END_TABLE, self.end, event, f"the end of {self}")
        return action

    def create(self, now: float) -> None:
        """Schedule CreateSequence for now; in a version without it, begin to send."""
        if self.handle(SourceEvent.WANT_SEQUENCE) is SourceAction.SEND_CREATE:
            self.control.due = now

    def created(self, identifier: str, expires: float | None, now: float) -> bool:
        """Process CreateSequenceResponse, and return whether it granted the Sequence; False for a duplicate."""
        if self.handle(SourceEvent.CREATE_SEQUENCE_RESPONSE) is not SourceAction.KEEP:
            return False
        self.identifier = identifier
        self.life.grant(expires, now)
        if self.control.request_sent_at is not None:
            self.pace.round_trip.sample(now - self.control.request_sent_at)
        return True

    @property
    def is_open(self) -> bool:
        """Whether its messages may be transmitted."""
        return self.state is _CREATED or self.state is _ROLLOVER

    @property
    def is_complete(self) -> bool:
        """Whether every message is acknowledged, and every request has its reply."""
        if self.doubt.is_open:
            return False
        numbers = self.numbers
        return self.acknowledged.covers(numbers.last or min(numbers.available, numbers.limit))

    @property
    def records_done(self) -> int:
        """Number of acknowledged records, from the first on without a gap."""
        return self.numbers.with_record(self.acknowledged.first_gap - 1)

    # --- acknowledgements -----------------------------------------------------------------------------------------

    def receive_acknowledgement(
        self, ack: SequenceAcknowledgement, now: float
    ) -> tuple[SourceAction | None, list[tuple[int, int]]]:
        """Process an acknowledgement. It adds to the acknowledged ranges and never replaces them (WS-RM 3.9).

        Returns:
            The action of the state table, and the newly acknowledged ranges, without requests that wait for a reply. An
            invalid acknowledgement yields no ranges.
        """
        # WS-RM 4.4: one number that was never sent makes the whole acknowledgement invalid, so none of it counts.
        if not self.is_valid(ack):
            return self.handle(SourceEvent.INVALID_ACKNOWLEDGEMENT), []
        self.life.heard(now)
        # netrm:BufferRemaining counts also in a Nack, and an acknowledgement without one changes nothing.
        if ack.buffer_remaining is not None:
            self.pace.buffer_remaining = ack.buffer_remaining
        if ack.nacks:
            action = self.handle(SourceEvent.NACK)
            if action is SourceAction.RETRANSMIT_NACKED:
                for number in ack.nacks:
                    entry = self.flight.get(number)
                    if entry is not None:
                        self.flight.demand(number, now)
                        # The destination has just asked for it, whatever it was waiting for.
                        entry.waits_for = 0
            return action, []
        self.is_final = self.is_final or (ack.final and self.state is SourceState.CLOSING)
        action = self.handle(SourceEvent.FINAL_ACKNOWLEDGEMENT if ack.final else SourceEvent.ACKNOWLEDGEMENT)
        if action is not _MARK and action is not _MARK_AND_REPORT:
            return action, []
        newly = self.transmissions.news(ack.ranges, self.acknowledged, now)
        self.transmissions.acknowledged(newly, now)
        self.acknowledged.update(newly)
        # Only an answer to the question, or the last word: an older acknowledgement may still be on its way.
        if self.doubt.is_open and (self.control.attempts or ack.final):
            self.doubt.resolve(DoubtEvent.SAID)
        return action, newly

    def is_outdated_by(self, ack: SequenceAcknowledgement) -> bool:
        """Whether a well-formed acknowledgement shows that the store is an older copy, or the destination broken."""
        if not (self.numbers.is_outdated_by(ack) and self._is_well_formed(ack)):
            return False
        is_possible = all(0 < lower <= upper <= MAX_MESSAGE_NUMBER for lower, upper in ack.ranges)
        return is_possible and all(number <= MAX_MESSAGE_NUMBER for number in ack.nacks)

    def is_valid(self, ack: SequenceAcknowledgement) -> bool:
        """Whether an acknowledgement covers only numbers that may have been sent."""
        return self._is_well_formed(ack) and self.numbers.may_be_acknowledged(ack)

    def _is_well_formed(self, ack: SequenceAcknowledgement) -> bool:
        # WS-RM 3.9: a Nack excludes ranges and Final
        return len(ack.ranges) <= self.policy.max_ranges and not (ack.nacks and (ack.ranges or ack.final))

    def replied(self, number: int, now: float) -> bool:
        """Record that the reply to request ``number`` is durable, which acknowledges it; False for a repeat."""
        self.life.heard(now)
        message_id = self.waiting.replied(number)
        # A repeat of the reply finds no request any more.
        if message_id is not None:
            self.requests.remove(message_id, self, number)
        elif number in self.acknowledged:
            return False
        self.transmissions.replied(number, now)
        self.acknowledged.add(number)
        return True

    # --- transmission ---------------------------------------------------------------------------------------------

    def numbers_to_send(self, now: float, here: Mapping[int, Record], claim: Claim = always) -> list[int]:
        """Return the numbers to transmit now, ascending: due retransmissions first, then new ones as the window allows.

        Args:
            here: The records in memory, by offset. A due number without its record stays due; a new one waits for its
                record.
            claim: Reserves room for each message. Without room, nothing more is sent.
        """
        numbers, pace = self.numbers, self.pace
        before = numbers.start - 1
        due = self.flight.due(now, self.waiting.unreplied, self.waiting.replying)
        if due:
            records = {number: here.get(before + number) for number in pace.limited(self.flight, due, now)}
            due, has_room = self.flight.leaving(records, numbers.last, claim)
            # Without room for a retransmission, a new message must not take the room first.
            if not has_room:
                return due
        window = pace.size
        if not window and numbers.next < self.acknowledged.highest:
            window = 1  # fill a gap, as after a restart: the peer can then deliver the messages that fill its buffer
        if pace.window.early is Early.DROPS and self.flight.has_waiting:
            window = 0  # the destination would drop every message behind the gap
        # No number leaves above the durable mark: after a crash, those up to it are the ones in doubt.
        highest = min(self._highest_new(), numbers.durable_mark)
        while self.flight.counted < window and (number := numbers.next) <= highest:
            # After a restart, numbers above the first gap may be acknowledged already: they need no transmission.
            if number not in self.acknowledged:
                record = here.get(before + number)
                is_here = record is not None or number == numbers.last
                if not is_here or not self.flight.has_room(record, self.policy.window_bytes):
                    # The window is in bytes too: one large body fills it.
                    break
                if not claim(size_of(record)):
                    break
                due.append(number)
                self.flight.begin(number, record, now)
            self._number()
        return due

    def _highest_new(self) -> int:
        return self.numbers.highest_new(may_tell_last=self.end is _DURABLE or self.end is _TELLING or self.polled)

    def _has_new(self) -> bool:
        return self.numbers.next <= self._highest_new()

    @property
    def asks_first(self) -> bool:
        """Whether a new message waits until the destination says which numbers it has, as an earlier run was read.

        A copy of the store from before that run's end does not know every number that was used.
        """
        numbers = self.numbers
        if not numbers.is_word_awaited or self.flight or not self.is_open or numbers.known is None:
            return False
        return numbers.known < numbers.next and self._has_new()

    def _number(self) -> None:
        numbers = self.numbers
        is_last = numbers.next in (numbers.limit, numbers.last)
        if self.handle(SourceEvent.SEND_LAST_NUMBER if is_last else SourceEvent.SEND_MESSAGE) is SourceAction.NUMBER:
            numbers.next += 1

    def asks_with(self, number: int, *, is_last: bool) -> bool:
        """Whether ``number``, which leaves now, requests an acknowledgement (WS-RM 3.8).

        A destination need not acknowledge without a request: Metro answers a retransmitted message with an empty
        response. Therefore every retransmission requests one, and so does the last available message. If more messages
        wait than the window allows, one message of each round trip requests one, so that the window opens.

        Args:
            number: Not a request that waits for its reply: an acknowledgement without the reply would mean no reply.
            is_last: Whether it is the last of the numbers that leave together.
        """
        if self.flight[number].attempts:
            return True
        # Only the newest message, and only one in each round trip: all others are acknowledged with it.
        if number != self.numbers.highest_sent or not is_last:
            return False
        return not self._has_new() or not self.flight.asking

    def asks_instead(self, number: int) -> bool:
        """Whether AckRequested alone must be sent instead of message ``number``.

        That is a LastMessage (WS-RM 1.0 3.2) that was repeated and answered with a fault. Metro faults each repeat of a
        LastMessage that it has. It is also a message with an answer that was too large: a repeat would bring that
        answer again, but an acknowledgement is small.
        """
        entry = self.flight[number]
        if entry.too_large:
            return True
        return number == self.numbers.last and entry.faults > 0 and entry.attempts > 1

    def leave_last_message(self, number: int) -> None:
        """Stop repeating a LastMessage that was answered repeatedly.

        It carries nothing, everything before it is acknowledged, and TerminateSequence, which follows, has the same
        meaning. gSOAP never acknowledges it.
        """
        entry = self.flight.get(number)
        # Nothing else is in flight, so every message before it is acknowledged.
        is_left = self.flight.lowest == number == self.numbers.last
        if entry is not None and is_left and entry.attempts >= ANSWERED_ENOUGH:
            self.flight.remove(number)
            self.acknowledged.add(number)

    def sent(self, number: int, message_id: str | None, jitter: float, now: float, *, asks: bool = False) -> int:
        """Record that ``number`` is transmitted now, and return the number of the attempt, from 1.

        Args:
            message_id: The MessageID of a request, which its reply completes; None for other messages.
            jitter: In [0, 1).
            asks: Whether it requests an acknowledgement.
        """
        if message_id is not None and self.waiting.transmitted(number, message_id):
            self.requests.add(message_id, self, number)
        return self.transmissions.sent(number, jitter, now, asks=asks)

    def silence(self, number: int) -> int:
        """Count an empty answer to ``number``, and return how many it has had while unacknowledged.

        Returns 0 for an acknowledged number, and for one behind a gap, which an in-order destination need not
        acknowledge.

        Args:
            number: The number; 0 for the request that ends the Sequence: then the attempts count.
        """
        if number == 0:
            return self.control.attempts if self.state in ENDING_STATES else 0
        entry = self.flight.get(number)
        if entry is None or number != self.flight.lowest or entry.is_dropped:
            return 0
        # Only the lowest counts: an in-order destination need not acknowledge what is behind a gap.
        entry.silences += 1
        return entry.silences

    def not_delivered(self, number: int, now: float, *, at_once: bool = False) -> None:
        """Retransmit a number that certainly did not arrive, after a short backoff instead of the full timeout.

        Args:
            number: The number; 0 for the request that starts or ends the Sequence.
            at_once: Whether the obstacle is gone: retransmit now.
        """
        entry = self.flight.get(number)
        if entry is not None:
            self.flight.asking.discard(number)
            self.flight.hurry(entry, now if at_once else now + self.pace.soon(entry.tries))
        elif number == 0 and self.state in REQUESTS:
            self.control.hurry(now if at_once else now + self.pace.soon(self.control.attempts))

    def asked_for(self, number: int, at: float) -> None:
        """Retransmit a reply at ``at`` at the latest, unless it is under way: its requester has repeated the request.

        No two transmissions are closer than the minimum retransmission timeout.
        """
        entry = self.flight.get(number)
        if entry is not None and not entry.exchanges:
            self.flight.demand(number, max(at, entry.sent_at + self.policy.retransmission.floor))

    def leave_reply(self, number: int, patience: float | None, now: float) -> InFlight | None:
        """Stop to retransmit a reply that its requester has not acknowledged for ``patience`` seconds.

        Returns:
            What is known of it; None if it is retransmitted further.
        """
        entry = self.flight.get(number)
        if entry is None or entry.is_parked or patience is None or now < entry.first_sent_at + patience:
            return None
        self.flight.leave(number)
        return entry

    def end_refused(self) -> bool:
        """Count a refused notification of the end, and return whether there were enough of them.

        A destination that discards incomplete Sequences delivers nothing before it knows of the end, so for it there
        are never enough.
        """
        if self.state not in ENDING_STATES:
            return False
        self.control.refusals += 1
        # It has delivered nothing yet, and will only once it knows of the end.
        is_delivered = self.behavior is not IncompleteSequenceBehavior.DISCARD_ENTIRE_SEQUENCE
        return self.control.refusals >= REFUSED_ENOUGH and is_delivered and self.is_complete

    def creation_not_accepted(self) -> bool:
        """Count an answer to CreateSequence that is not accepted, and return whether there were enough of them."""
        if self.state is not SourceState.CREATING:
            return False
        self.control.refusals += 1
        return self.control.refusals >= REFUSED_ENOUGH

    def issue(self, now: float) -> None:
        """Put the available numbers of a polled Sequence in flight; they leave as the peer requests them."""
        highest = self._highest_new()
        while self.is_open and (number := self.numbers.next) <= highest:
            self.flight[number] = InFlight(now, now, 1, now)
            self._number()

    # --- lifecycle ------------------------------------------------------------------------------------------------

    def want_end(self) -> None:
        """End the Sequence once all its messages are acknowledged. WS-RM 1.0 sends a LastMessage before the end."""
        self._end(EndEvent.WANT)

    def time_event(self, now: float, *, is_for_replies: bool) -> SourceEvent | None:
        """Return the event that the passage of time has caused; None without one.

        Args:
            is_for_replies: Whether the peer is a requester, which may have stopped: ``TOLD_ENOUGH`` limits the
                notifications of the end.
        """
        if self.life.is_over(now):
            # After a second granted life of notifications, the peer has expired the Sequence on its own.
            is_done = self.acknowledged.highest and self.is_complete and self.life.expires is not None
            return SourceEvent.EXPIRED_WHEN_DONE if is_done and not self.life.outlives else SourceEvent.EXPIRED
        if self._is_given_up(now):
            return SourceEvent.SILENT
        # A requester may be gone permanently; a destination is notified again when it is back.
        if is_for_replies and self.state in ENDING_STATES and self.control.attempts >= TOLD_ENOUGH:
            return SourceEvent.UNANSWERED if self.control.is_due(now) else None
        return None

    def outlive(self, now: float) -> None:
        """Keep a Sequence that expired with every message acknowledged, to notify the peer of its end.

        After a restart of either side, the destination's clock may be behind this one. If the destination holds all
        messages until the end (DiscardEntireSequence), it would deliver messages of the next Sequence before this one.
        So the next Sequence begins only once the peer knows of the end, or the granted life has passed a second time.
        By then, the destination has expired the Sequence.
        """
        self.life.outlive(now)
        self.numbers.end_with_available()  # no LastMessage: a destination that has expired the Sequence rejects it
        self.want_end()

    def proceed(self) -> bool:
        """Take the next step towards the end, if the end is wanted or all numbers are used, and all is acknowledged.

        Returns:
            Whether the caller must save the decision to end, and call :meth:`end_saved` once it is durable.
        """
        # WS-RM 3.5, 3.6
        if (self.end is _OPEN and not self.numbers.is_full) or not self.is_complete:
            return False
        if self.end is _OPEN:
            self._end(EndEvent.USED_UP)
        numbers = self.numbers
        # LastMessage needs a further number (WS-RM 1.0 3.2); without one the Sequence ends without it.
        is_number_left = numbers.available < numbers.limit
        action = self.handle(SourceEvent.ALL_ACKNOWLEDGED if is_number_left else SourceEvent.ALL_NUMBERS_ACKNOWLEDGED)
        if action is SourceAction.SEND_LAST_MESSAGE:
            # After every reply, as WCF does: a peer that answers with a LastMessage ends the opposite direction too.
            numbers.last = numbers.available + 1
        elif action in (SourceAction.SEND_CLOSE, SourceAction.SEND_TERMINATE):
            # New messages go to the next Sequence, so that LastMsgNumber is the same in every repeat.
            numbers.end_with_available()
        else:
            return False
        return self._end(EndEvent.STEP) is EndAction.SAVE

    def end_saved(self) -> None:
        """Record that the decision to end the Sequence is durable."""
        self._end(EndEvent.SAVED)

    def tell_end(self, now: float) -> None:
        """Allow the notification of the peer, once the received replies and the decision to end are durable.

        The notification can then acknowledge every reply. A LastMessage leaves before it.
        """
        if self._end(EndEvent.REPLIES_DURABLE) is EndAction.TELL and self.state in ENDING_STATES:
            self.control.due = now

    def request_to_send(self, jitter: float, now: float) -> Request | None:
        """Return the lifecycle request or AckRequested that is due now, and schedule its repeat; None without one."""
        request, control = REQUESTS.get(self.state), self.control
        if request is None:
            request = Request.ACK_REQUESTED
            if not self.doubt.is_open:
                control.due = self._poll_at()
        if not control.is_due(now):
            return None
        if self.asks_first:
            self.asked_first_at = now if self.asked_first_at is None else self.asked_first_at
        elif request is Request.ACK_REQUESTED:
            # Only silence after the question counts, and not the idle time before it.
            self.life.last_heard = max(self.life.last_heard, now - self.policy.keep_alive)
        # Only a first request's answer measures the round trip; silence is counted from the newest AckRequested.
        attempt = control.left(now, is_timed=request is Request.ACK_REQUESTED)
        control.due = now + self.pace.round_trip.delay(attempt, jitter)
        # Without an Offer no peer refuses a copy, so nothing is lost if a slow one processes two at once.
        if request is Request.CREATE and self.offer is not None:
            control.hold_creation(now + self.policy.retransmission.cap)
        return request

    def _poll_at(self) -> float | None:
        if self.flight:
            return None  # retransmissions request acknowledgements
        asked_at, heard_at = self.control.request_sent_at, self.life.last_heard
        if self.asks_first:
            return heard_at if asked_at is None else asked_at + self.pace.round_trip.delay(self.control.attempts, 0.0)
        # netrm:BufferRemaining was 0: nothing but a question brings news of room.
        if self.pace.buffer_remaining == 0 and self._has_new():
            return (asked_at or heard_at) + self.policy.poll_interval
        # A destination may end a Sequence that is silent for its InactivityTimeout: this keeps it alive.
        return max(heard_at, asked_at or 0.0) + self.policy.keep_alive

    def deadline(self) -> float | None:
        """Return when the next transmission or the expiry is due; None: neither is scheduled."""
        expires_at = self.life.expires_at
        times = [] if expires_at is None else [expires_at]
        if self.state in REQUESTS:
            if self.control.deadline is not None:
                times.append(self.control.deadline)
        elif self.is_open:
            poll = self._poll_at() if not self.doubt.is_open else self.control.due
            if poll is not None:
                times.append(poll)
            due = self.flight.deadline
            if due is not None:
                times.append(due)
        return min(times, default=None)

    def has_due(self, now: float) -> bool:
        """Whether a message or a request could leave now."""
        if self.state in REQUESTS or self.doubt.is_open:
            return self.control.is_due(now)
        if self.asks_first:
            return (self._poll_at() or 0.0) <= now
        due = self.flight.deadline
        is_due = (due is not None and due <= now) or self.flight.missing > 0
        return self.is_open and (is_due or (self._has_new() and self.flight.counted < self.pace.size))

    def patience_deadline(self) -> float | None:
        """Return when the passage of time alone changes the Sequence: it expires, or the source gives up."""
        expires_at, patience = self.life.expires_at, self.policy.retransmission.give_up_after
        if patience is None or not (self.flight or self.state is SourceState.CREATING or self._has_asked_first):
            return expires_at
        # More than the patience must have passed (``is_silent``), so a little later.
        silent_at = max(self.life.last_heard, self._waiting_since or 0.0) + 1.01 * patience
        return silent_at if expires_at is None else min(expires_at, silent_at)

    def _is_given_up(self, now: float) -> bool:
        """Whether the peer has given no sign of life for longer than the policy permits."""
        patience = self.policy.retransmission.give_up_after
        if patience is None or not (self.flight or self.state is SourceState.CREATING or self._has_asked_first):
            return False
        return self.life.is_silent(self._waiting_since, patience, now)

    @property
    def _has_asked_first(self) -> bool:
        return self.asked_first_at is not None and self.asks_first

    @property
    def _waiting_since(self) -> float | None:
        return self.flight.waiting_since or self.asked_first_at
