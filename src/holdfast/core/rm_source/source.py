"""RMSource: one outbound Sequence. Numbers, transmits, retransmits, closes and terminates it.

It works on numbers alone: which message has a number is its caller's business. A number is transmitted only once the
Sequence's beginning is durable, so that after a crash the same message gets the same number.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from holdfast.core.messages import IncompleteSequenceBehavior, SequenceAcknowledgement
from holdfast.core.origin import Requester
from holdfast.core.policy import SourcePolicy
from holdfast.core.ranges import AcknowledgementRanges
from holdfast.core.records import Record, State
from holdfast.core.retransmission import RoundTrip
from holdfast.core.rm_source.acknowledgement_history import AcknowledgementHistory
from holdfast.core.rm_source.flight import Claim, Flight, InFlight, always, size_of
from holdfast.core.rm_source.saved_state import restore, state_of
from holdfast.core.rm_source.waiting_requests import Requests
from holdfast.core.rm_source.window import Early, Window
from holdfast.core.states import (
    DOUBT_TABLE,
    END_TABLE,
    REQUESTS,
    SOURCE_TABLES,
    DoubtAction,
    DoubtEvent,
    DoubtState,
    EndAction,
    EndEvent,
    EndState,
    Request,
    SourceAction,
    SourceEvent,
    SourceState,
    absent,
)
from holdfast.core.versions import Versions

ANSWERED_ENOUGH = 3
"""Attempts after which an empty answer to 1.0's LastMessage or to TerminateSequence is enough."""

ENDING_STATES = (SourceState.CLOSING, SourceState.TERMINATING)
"""States in which it notifies the peer of its end."""

TOLD_ENOUGH = 5
"""Number of notifications to a requester that the Sequence of its replies ends, with all of them acknowledged. The
requester may have stopped, and CXF's client never answers: it fails at a CloseSequence to its decoupled endpoint."""

# An enum's members are slow to look up by its class, and these are asked for with every message.
_CREATED, _ROLLOVER = SourceState.CREATED, SourceState.ROLLOVER
_MARK, _MARK_AND_REPORT = SourceAction.MARK, SourceAction.MARK_AND_REPORT
_NO_DOUBT = DoubtState.NONE
_OPEN, _DURABLE, _TELLING = EndState.OPEN, EndState.DURABLE, EndState.TELLING


class RMSource:
    """One outbound Sequence.

    Args:
        local_id: What it is saved under, from before it has an Identifier: the MessageID of its CreateSequence, or
            the Identifier itself for one that the peer accepted from our Offer or that it offered us.
        key: The key of its outbox.
        versions: What it speaks.
        policy: Its limits and timers.
        polled: It goes to an anonymous endpoint: its messages leave in answers only, when they are asked for.
        now: Seconds.
    """

    # fmt: off
    __slots__ = (
        "_window", "acknowledged", "address", "attempts", "available", "behavior", "buffer_remaining", "created_at",
        "doubt", "due", "durable_mark", "end", "expires", "expires_at", "flight", "history", "identifier", "is_cut",
        "is_restored", "key", "last_fault", "last_heard", "last_lost", "last_number", "limit", "local_id", "mark",
        "message_ids", "next_number", "offer", "outlives", "policy", "polled", "replying", "request_sent_at",
        "requester", "requests", "requests_before", "round_trip", "saved", "secret", "sent_before", "start", "state",
        "to", "unreplied", "versions",
    )
    # fmt: on

    def __init__(
        self, local_id: str, key: str, versions: Versions, policy: SourcePolicy, now: float, *, polled: bool = False
    ):
        self.local_id = local_id
        self.key = key
        self.versions = versions
        self.policy = policy
        self.polled = polled
        self.created_at = now
        self.identifier: str | None = None
        self.state = SourceState.NONE
        self.start = 0
        """Offset of the message with number 1."""
        self.available = 0
        """The highest number with a durable message."""
        self.is_cut = False  # if True, a message behind ``available`` was given up: the rest goes to the next Sequence
        self.is_restored = False  # whether its store was put back to an older copy since it began
        self.next_number = 1
        """The number to transmit next for the first time."""
        self.last_number: int | None = None
        """The number of 1.0's LastMessage, once decided; the number that closes the Sequence."""
        self.limit = policy.max_message_number
        """The highest number of this Sequence, by the policy or by the peer's MessageNumberRollover."""
        self.doubt = DoubtState.NONE
        """Whether the peer is being asked which numbers above its limit it has."""
        self.sent_before = 0
        """The highest number that may have been transmitted before a crash."""
        self.mark = 0
        """No number above it is transmitted before a higher one is saved: ``core.sending.transmission_mark``."""
        self.durable_mark = 0  # the mark that is saved
        self.acknowledged = AcknowledgementRanges()
        self.history = AcknowledgementHistory()
        self.flight = Flight()
        self.unreplied: dict[int, str] = {}
        """Transmitted requests without a reply: number -> MessageID. They are acknowledged only together with it."""
        self.requests_before: dict[int, str] = {}
        """Requests that may have been transmitted before, and are not in flight now: by an earlier run, or above the
        limit. Number -> MessageID."""
        self.requests = Requests()
        """Index in which a reply finds its request; shared by all Sequences of this side once it carries an outbox."""
        self.replying: set[int] = set()
        """Requests with a reply in a batch that is being stored; saved as acknowledged in that same batch, so that the
        source never repeats a request to a destination that may have forgotten its reply."""
        self.offer: str | None = None
        self.address = self.secret = ""
        """For a forwarder, the address given to the peer and its unguessable part; "" without one."""
        self.to: str | None = None
        """Destination of a Sequence that answers an Offer; None: the outbox's address, or anonymous."""
        self.requester: Requester | None = None  # whose requests it answers; None: nobody's, or unknown
        self.message_ids: dict[str, str] = {}
        """MessageIDs of the lifecycle requests, the same in every repeat."""
        self.due: float | None = None
        self.attempts = 0
        self.request_sent_at: float | None = None
        self.buffer_remaining: int | None = None
        self.round_trip = RoundTrip(policy.retransmission)
        self._window = Window(policy.initial_window, policy.window, now)
        self.last_lost = 0
        """The highest acknowledged number of which a transmission was lost."""
        self.last_heard = now
        self.expires: float | None = None  # seconds of life that were granted
        self.expires_at: float | None = None
        self.behavior = IncompleteSequenceBehavior.NO_DISCARD
        """What the destination does if the Sequence ends with a gap, according to its grant."""
        self.outlives = False
        """Whether it expired once in this run and remains only to report its end (:meth:`outlive`)."""
        self.end = EndState.OPEN
        """Progress of its end."""
        self.last_fault = ""
        self.saved: State | None = None

    # --- what happens to it ---------------------------------------------------------------------------------------

    def handle(self, event: SourceEvent) -> SourceAction | None:
        """Move by the table.

        Returns:
            What to do; None where the peer speaks of what the Sequence is not: nothing but a fault.

        Raises:
            NoSuchMove: there is no such cell, and it was we who did it.
        """
        cell = SOURCE_TABLES[self.versions.rm].get((self.state, event))
        if cell is None:
            absent(f"the outbound Sequence {self.identifier or self.local_id}", self.state, event)
            return None
        action, after = cell
        if after is not self.state:
            self.state = after
            # What the peer has is asked for until it says so, in whichever state.
            if self.doubt is _NO_DOUBT or after in REQUESTS:
                self.due = None
                self.attempts = 0
        return action

    def _end(self, event: EndEvent) -> EndAction | None:
        cell = END_TABLE.get((self.end, event))
        if cell is None:
            absent(f"the end of the outbound Sequence {self.identifier or self.local_id}", self.end, event)
            return None
        self.end = cell[1]
        return cell[0]

    def create(self, now: float) -> None:
        """Want the Sequence: CreateSequence is due now."""
        if self.handle(SourceEvent.WANT_SEQUENCE) is SourceAction.SEND_CREATE:
            self.due = now

    def created(self, identifier: str, expires: float | None, now: float) -> bool:
        """CreateSequenceResponse came; whether it granted the Sequence (False for a copy)."""
        if self.handle(SourceEvent.CREATE_SEQUENCE_RESPONSE) is not SourceAction.KEEP:
            return False
        self.identifier = identifier
        self.expires = expires
        self.expires_at = None if expires is None else now + expires
        self.last_heard = now
        if self.request_sent_at is not None:
            self.round_trip.sample(now - self.request_sent_at)
        return True

    @property
    def is_open(self) -> bool:
        """Whether its messages may be transmitted."""
        return self.state is _CREATED or self.state is _ROLLOVER

    @property
    def highest_sent(self) -> int:
        """The highest number transmitted so far."""
        return self.next_number - 1

    @property
    def numbers_left(self) -> int:
        """How many numbers may be transmitted before its mark must be moved."""
        return self.mark - self.highest_sent

    @property
    def is_complete(self) -> bool:
        """Return whether every message is acknowledged (and every request replied to)."""
        if self.doubt is not _NO_DOUBT:
            return False
        return self.acknowledged.covers(self.last_number or min(self.available, self.limit))

    @property
    def records_done(self) -> int:
        """How many records, from the first on, are acknowledged. 1.0's LastMessage has a number but no record: the
        offset that would be its own is that of whatever is submitted next."""
        done = self.acknowledged.first_gap - 1
        return done if self.last_number is None else min(done, self.last_number - 1)

    # --- acknowledgements -----------------------------------------------------------------------------------------

    def receive_acknowledgement(
        self, ack: SequenceAcknowledgement, now: float
    ) -> tuple[SourceAction | None, list[tuple[int, int]]]:
        """Take in an acknowledgement: merged with what is known, never in its place (WS-RM 3.9).

        Returns:
            What its cell says, and the ranges newly acknowledged (and not waiting for a reply): none if it is invalid.
        """
        if not self.is_valid(ack):
            return self.handle(SourceEvent.INVALID_ACKNOWLEDGEMENT), []
        self.last_heard = now
        if ack.buffer_remaining is not None:
            self.buffer_remaining = ack.buffer_remaining
        if ack.nacks:
            action = self.handle(SourceEvent.NACK)
            if action is SourceAction.RETRANSMIT_NACKED:
                for number in ack.nacks:
                    entry = self.flight.get(number)
                    if entry is not None:
                        self.flight.hurry(entry, now)
                        entry.waits_for = 0
            return action, []
        action = self.handle(SourceEvent.FINAL_ACKNOWLEDGEMENT if ack.final else SourceEvent.ACKNOWLEDGEMENT)
        if action is not _MARK and action is not _MARK_AND_REPORT:
            return action, []
        newly = self._mark(ack.ranges, now)
        if self.doubt is not _NO_DOUBT and (self.attempts or ack.final):
            self.resolve(DoubtEvent.SAID)
        return action, newly

    def is_valid(self, ack: SequenceAcknowledgement) -> bool:
        """Whether an acknowledgement covers only numbers that may have been sent."""
        # WS-RM 4.4: numbers never sent; 3.9: Nack stands alone
        if len(ack.ranges) > self.policy.max_ranges or (ack.nacks and (ack.ranges or ack.final)):
            return False
        highest = max(self.highest_sent, self.sent_before)
        for lower, upper in ack.ranges:
            if not 0 < lower <= upper <= highest:
                return False
        return all(0 < number <= highest for number in ack.nacks)

    def _mark(self, ranges: tuple[tuple[int, int], ...], now: float) -> list[tuple[int, int]]:
        if len(ranges) > 1:
            self._window.takes_early()
        newly = self._news(ranges, now)
        resent_at: float | None = None
        for lower, upper in newly:
            if upper - lower < len(self.flight):  # it seldom is news of more than a few
                numbers = list(range(lower, upper + 1))
            else:
                numbers = [number for number in self.flight if lower <= number <= upper]
            for number in numbers:
                entry = self.flight.remove(number)
                if entry is None:
                    continue
                if entry.attempts == 1:
                    if entry.answered:
                        self._window.takes_early()
                    self.round_trip.sample(now - entry.sent_at)
                    self._window.arrived(behind=entry.behind > 0)
                else:
                    resent_at = max(resent_at or 0.0, entry.sent_at)
                    self._arrived_again(number, entry)
        if resent_at is not None:
            self._resend_what_followed(resent_at, now)
        self.acknowledged.update(newly)
        return newly

    def _arrived_again(self, number: int, entry: InFlight) -> None:
        """Record that a message arrived that was sent several times: the destination had dropped it, or it was lost."""
        if entry.was_lost_once:
            self.last_lost = max(self.last_lost, number)
        else:
            self._window.arrived(behind=entry.behind > 0)

    def _news(self, ranges: tuple[tuple[int, int], ...], now: float) -> list[tuple[int, int]]:
        """What of that was not acknowledged before, and waits for no reply."""
        acknowledged = self.acknowledged
        if len(ranges) == 1 and not self.unreplied:
            (lower, upper), gap = ranges[0], acknowledged.first_gap
            if lower <= gap and acknowledged.highest < gap:  # nothing is missing so far, as nearly always
                return [(gap, upper)] if gap <= upper else []
        fresh = AcknowledgementRanges(AcknowledgementRanges(ranges).outside(acknowledged))
        for lower, upper in list(fresh):
            if upper - lower < len(self.unreplied):
                waiting = [number for number in range(lower, upper + 1) if number in self.unreplied]
            else:
                waiting = [number for number in self.unreplied if lower <= number <= upper]
            for number in waiting:
                fresh.discard(number)
                self.flight.has_arrived(number, now)
        return list(fresh)

    def _resend_what_followed(self, resent_at: float, now: float) -> None:
        # A destination that drops what comes after a gap (WCF in order) has lost all that was sent before the gap
        # was filled and is not acknowledged now; one that holds it has just said so. What is still on its way there
        # is neither: to send that again would double every message in flight for each one that is lost.
        for entry in self.flight.values():
            if entry.answered and entry.sent_at < resent_at:
                self.flight.hurry(entry, now)

    def replied(self, number: int, now: float) -> bool:
        """The reply to request ``number`` is durable here; whether that was news. Stands for its acknowledgement."""
        self.last_heard = now
        self.replying.discard(number)
        message_id = self.unreplied.pop(number, None) or self.requests_before.pop(number, None)
        if message_id is not None:
            self.requests.remove(message_id, self, number)
        elif number in self.acknowledged:
            return False
        entry = self.flight.remove(number)
        if entry is not None:
            if entry.attempts == 1:
                self.round_trip.sample(now - entry.sent_at)
            self._window.arrived(behind=entry.behind > 0)
            if entry.was_lost_once:
                self.last_lost = max(self.last_lost, number)
        self.acknowledged.add(number)
        return True

    # --- transmission ---------------------------------------------------------------------------------------------

    @property
    def window(self) -> int:
        """How many numbers may be in flight: slow start, what the policy allows, and what the peer can buffer."""
        size = self._window.size
        return size if self.buffer_remaining is None else min(size, self.buffer_remaining)

    @property
    def early(self) -> Early:
        """What its destination does with messages that come before others with a lower number."""
        return self._window.early

    def numbers_to_send(self, now: float, here: Mapping[int, Record], claim: Claim = always) -> list[int]:
        """Return the numbers to transmit now, ascending: due retransmissions first, then new ones as the window allows.

        Args:
            now: Seconds.
            here: The records in memory, by offset. A due number without its record stays due; a new one waits for its
                record.
            claim: Reserves room for each message. Without room, nothing more is sent.
        """
        before = self.start - 1
        due = self.flight.due(now, self.unreplied, self.replying)
        if due:
            records = {number: here.get(before + number) for number in self._slow_down(due, now)}
            due, has_room = self.flight.leaving(records, self.last_number, claim)
            if not has_room:
                return due
        window = self.window
        if not window and self.next_number < self.acknowledged.highest:
            window = 1  # it fills a gap, as after a restart: what the peer holds behind that makes room again
        if self._window.early is Early.DROPS and self.flight.has_waiting:
            window = 0  # it would drop whatever comes behind the gap
        while len(self.flight) < window and self._has_new():
            number = self.next_number
            if number > self.durable_mark:
                break
            if number not in self.acknowledged:
                record = here.get(before + number)
                is_here = record is not None or number == self.last_number
                if not is_here or not self.flight.has_room(record, self.policy.window_bytes):
                    break
                if not claim(size_of(record)):
                    break
                due.append(number)
                self.flight.begin(number, record, now)
            self._number()
        return due

    def _slow_down(self, due: list[int], now: float) -> list[int]:
        """Of what was lost or dropped, send again no more than the window allows, which is halved for either; the rest
        follows that. Returns what leaves now."""
        entries = [self.flight[number] for number in due]
        if not any(entry.was_lost for entry in entries):
            return due  # requests that have arrived, and are asked for again
        for entry in entries:
            if entry.waits_for and entry.answered:
                self._dropped(entry, now)
        timeout = self.round_trip.timeout
        if any(entry.was_lost and not entry.is_dropped for entry in entries):
            self._window.lost(timeout, now)
        allowed = max(1, self.window)
        for number in due[allowed:]:
            self.flight.wait(number, due[allowed - 1], now + timeout)
        return due[:allowed]

    def _dropped(self, entry: InFlight, now: float) -> None:
        """The destination answered that one, and does not have it, while what it was sent behind has arrived."""
        if entry.is_dropped or self._window.early is Early.TAKES:
            return
        entry.is_dropped = True
        entry.drops += 1
        if self.last_lost < entry.behind:  # else a loss had made the gap
            self._window.dropped(entry.sent_at, now)

    def _has_new(self) -> bool:
        highest = self.available
        if self.last_number is not None:
            may_be_told = self.end is _DURABLE or self.end is _TELLING or self.polled
            highest = self.last_number if may_be_told else self.last_number - 1
        return self.next_number <= min(highest, self.limit)

    @property
    def is_full(self) -> bool:
        """Whether every number it can have was used, so that what follows needs another Sequence."""
        return self.next_number > self.limit or (self.is_cut and self.next_number > self.available)

    def _number(self) -> None:
        is_last = self.next_number in (self.limit, self.last_number)
        if self.handle(SourceEvent.SEND_LAST_NUMBER if is_last else SourceEvent.SEND_MESSAGE) is SourceAction.NUMBER:
            self.next_number += 1

    def roll_over(self, max_message_number: int | None, refused: int, now: float) -> None:
        """After the peer's MessageNumberRollover: numbers above its limit go to the next Sequence (WS-RM 4.5).

        It may have taken some of them before it lowered its limit. So it is asked what it has (AckRequested) before
        anything moves.

        Args:
            max_message_number: The limit that it names, None for none.
            refused: The number that it refused, 0 if that is not known.
            now: Seconds.
        """
        self.sent_before = max(self.sent_before, self.highest_sent)
        limits = [limit for limit in (max_message_number, refused - 1 if refused else None) if limit is not None]
        if not limits and self.limit < self.sent_before:
            return  # late news of a number above the limit, which is known by now
        is_left_behind = self._lower_limit(min(limits) if limits else self.sent_before)
        if is_left_behind or not limits:
            event = DoubtEvent.LEFT_BEHIND if limits else DoubtEvent.LIMIT_UNKNOWN
            if self._doubts(event) is DoubtAction.ASK:
                self.attempts = 0
                self.due = now

    def _lower_limit(self, limit: int) -> bool:
        """Whether that left a number behind that was transmitted."""
        self.limit = min(self.limit, limit)
        self.next_number = min(self.next_number, self.limit + 1)
        above = [number for number in self.flight if number > self.limit]
        for number in above:
            self.flight.remove(number)
            if number in self.unreplied:
                self.requests_before[number] = self.unreplied.pop(number)
        return bool(above)

    def _doubts(self, event: DoubtEvent) -> DoubtAction | None:
        cell = DOUBT_TABLE.get((self.doubt, event))
        if cell is None:
            absent(f"the doubt of the outbound Sequence {self.identifier or self.local_id}", self.doubt, event)
            return None
        self.doubt = cell[1]
        return cell[0]

    def ask_what_else(self, now: float) -> None:
        """A message is given up that the peer refuses: it is asked which of the others it has."""
        if self._doubts(DoubtEvent.REFUSED_FOR_GOOD) is DoubtAction.ASK:
            self.attempts = 0
            self.due = now

    @property
    def in_doubt(self) -> bool:
        """Whether the peer is asked which of the numbers above its limit it has."""
        return self.doubt is not _NO_DOUBT

    def is_silent_in_doubt(self, *, in_answers: bool) -> bool:
        """Whether the peer, asked what it has, says nothing. An acknowledgement that comes on another connection (not
        ``in_answers``) follows the empty answer to the question, so more questions must be answered so."""
        return self.in_doubt and self.attempts >= (ANSWERED_ENOUGH if in_answers else 2 * ANSWERED_ENOUGH)

    def resolve(self, event: DoubtEvent) -> DoubtAction | None:
        """The peer has said what it has, or need not: what is above the limit, and not acknowledged, may move. LOSE:
        nobody will know."""
        action = self._doubts(event)
        if action is DoubtAction.MOVE or action is DoubtAction.TAKE_FOR_LIMIT:
            self.attempts = 0
            self.due = None
        if action is DoubtAction.TAKE_FOR_LIMIT:
            # A request that it has is not acknowledged before its reply.
            self._lower_limit(max(self.acknowledged.highest, *self.unreplied, 0))
        return action

    def asks_with(self, number: int, *, is_last: bool) -> bool:
        """Whether ``number``, which is to leave now, asks for an acknowledgement (WS-RM 3.8).

        A destination need not acknowledge anything that it is not asked for: Metro's answers a message that was sent
        again with nothing. So whatever is sent again asks; so does the last message that there is; and where more
        wait than the window lets go, one of each round trip, so that such a destination opens it.

        Args:
            number: No request that waits for its reply: an acknowledgement alone would say that there will be none.
            is_last: Whether it is the last of those that leave together.
        """
        if self.flight[number].attempts:
            return True
        if number != self.highest_sent or not is_last:
            return False
        return not self._has_new() or not self.flight.asking

    def sent(self, number: int, message_id: str | None, jitter: float, now: float, *, asks: bool = False) -> int:
        """``number`` is transmitted now; return the number of the attempt, from 1. ``message_id``: of a request, which
        its reply completes. ``jitter`` in [0, 1)."""
        entry = self.flight[number]
        if asks:
            self.flight.asking.add(number)
        else:
            self.flight.asking.discard(number)
        entry.attempts += 1
        entry.tries += 1
        entry.answered = False
        entry.waits_for = 0
        entry.is_dropped = False
        entry.behind = self.flight.lowest if self.flight.lowest < number else 0
        entry.sent_at = now
        self.flight.left(number, now + self.round_trip.delay(entry.tries, jitter))
        entry.exchanges += 1
        if message_id is not None and number not in self.unreplied:
            if self.requests_before.pop(number, None) is None:
                self.requests.add(message_id, self, number)
            self.unreplied[number] = message_id
        return entry.attempts

    def answered(self, number: int, now: float, *, in_answers: bool) -> None:
        """The exchange that carried ``number`` ended without a fault; whatever it acknowledged has been taken in.

        Args:
            number: What it carried; 0 for no message.
            now: Seconds.
            in_answers: Whether acknowledgements come in answers only (an anonymous AcksTo). Then a message that was
                answered, is not acknowledged and has a gap before it was dropped for that (WCF in order, gSOAP):
                it is of no use to send it again before the gap is filled, and of no use to wait once it is. The gap
                may have been filled while the answer was under way.
        """
        entry = self.flight.get(number)
        if entry is None:
            return
        self.flight.asking.discard(number)
        if number in self.replying:
            return  # the answer brought its reply: it arrived, and counts as acknowledged once that is stored
        entry.answered = True
        if not in_answers:
            return
        lowest = self.flight.lowest
        if entry.is_parked:
            return
        if lowest < number:
            self.flight.wait(number, lowest, entry.due)
            entry.tries = 0
        elif entry.behind and self._window.early is not Early.TAKES and self._is_soon(number, entry, now):
            self._dropped(entry, now)
            self.flight.hurry(entry, now)
            entry.tries = 0

    def _is_soon(self, number: int, entry: InFlight, now: float) -> bool:
        """Whether an answer came too soon to mean that a request's reply is not ready yet."""
        return number not in self.unreplied or now - entry.sent_at < self.policy.retransmission.floor

    def silence(self, number: int) -> int:
        """``number`` was answered with nothing, and is not acknowledged; how often that has happened by now. 0 for one
        that is, and for one behind a gap, of which a destination in order has nothing to say. 0 as ``number``: the
        request that ends the Sequence."""
        if number == 0:
            return self.attempts if self.state in ENDING_STATES else 0
        entry = self.flight.get(number)
        if entry is None or number != self.flight.lowest or entry.is_dropped:
            return 0
        entry.silences += 1
        return entry.silences

    def not_delivered(self, number: int, now: float, *, at_once: bool = False) -> None:
        """It surely did not arrive: try again after a short backoff, not after the whole timeout.

        Args:
            number: Of the message; 0 for the request that starts or ends the Sequence.
            now: Seconds.
            at_once: Whether what was in its way is gone: it goes again now.
        """
        entry = self.flight.get(number)
        if entry is not None:
            self.flight.asking.discard(number)
            self.flight.hurry(entry, now if at_once else now + self._soon(entry.tries))
        elif number == 0 and self.state in REQUESTS and self.due is not None:
            self.due = min(self.due, now if at_once else now + self._soon(self.attempts))

    def not_taken(self, number: int) -> None:
        """A transmission of ``number`` never left, or its answer says that the Sequence is over."""
        entry = self.flight.get(number)
        if entry is not None:
            entry.untaken += 1

    def _soon(self, tries: int) -> float:
        policy = self.policy.retransmission
        return min(policy.cap, policy.floor * 2.0 ** min(max(0, tries - 1), 30))

    def issue(self, now: float) -> None:
        """For a polled Sequence: the numbers up to ``available`` are out, to be sent as they are asked for."""
        while self.is_open and self._has_new():
            self.flight[self.next_number] = InFlight(now, now, 1, now)
            self._number()

    # --- lifecycle ------------------------------------------------------------------------------------------------

    def want_end(self) -> None:
        """Add no new messages: end the Sequence once all are acknowledged. Some versions announce that with a separate
        LastMessage."""
        self._end(EndEvent.WANT)

    def time_event(self, now: float, *, is_for_replies: bool) -> SourceEvent | None:
        """What the clock alone has made happen to it; None: nothing.

        Args:
            now: Seconds.
            is_for_replies: Whether it goes to a requester, who may be gone: it is told its end so often, and no more.
        """
        if self.expires_at is not None and self.expires_at <= now:
            # If it was told its end for as long as it had been granted to live, the peer has ended it by itself.
            is_done = self.acknowledged.highest and self.is_complete and self.expires is not None
            return SourceEvent.EXPIRED_WHEN_DONE if is_done and not self.outlives else SourceEvent.EXPIRED
        if self._is_given_up(now):
            return SourceEvent.SILENT
        if is_for_replies and self.state in ENDING_STATES and self.attempts >= TOLD_ENOUGH:
            return SourceEvent.UNANSWERED if self.due is not None and self.due <= now else None
        return None

    def outlive(self, now: float) -> None:
        """The Sequence expired with every message acknowledged: keep it, to report its end.

        The destination's clock may be behind this one, after a restart of either. If it holds everything to the end
        (DiscardEntireSequence), messages of the next Sequence would be delivered before this one. So nothing follows
        before its end is reported, or its granted life has passed once more: by then the destination has ended it.
        """
        assert self.expires is not None
        self.outlives = True
        self.expires_at = now + self.expires
        self.limit = min(self.limit, self.available)  # no LastMessage: where its time is up too, that is refused
        self.want_end()

    def restored(self) -> None:
        """The store was restored from an older copy. Any message here may have been transmitted with its number, and
        lost messages with the next ones. So new messages go to the next Sequence."""
        self.is_restored = True
        self.limit = min(self.limit, self.available)
        self.mark = self.durable_mark = max(self.mark, self.available)
        self.sent_before = self.last_number or self.available

    def known_part(self, ack: SequenceAcknowledgement) -> SequenceAcknowledgement:
        """What an acknowledgement says of messages that are still known, where the store was put back."""
        known = self.last_number or self.limit
        ranges = tuple((lower, min(upper, known)) for lower, upper in ack.ranges if lower <= known)
        return replace(ack, ranges=ranges, nacks=tuple(number for number in ack.nacks if number <= known))

    def move_rest(self) -> None:
        """The peer closed it: what it does not have, and what is submitted from now on, goes to the next Sequence."""
        self.sent_before = max(self.sent_before, self.highest_sent)
        self.resolve(DoubtEvent.MOVED)
        self._lower_limit(self.acknowledged.first_gap - 1)

    def proceed(self) -> bool:
        """Take the next step towards the end, if it is wanted, or all numbers are used, and everything is acknowledged.

        Returns:
            Whether that its end is decided is to be saved now, and :meth:`end_saved` called when it is.
        """
        # WS-RM 3.5, 3.6
        if (self.end is _OPEN and not self.is_full) or not self.is_complete:
            return False
        if self.end is _OPEN:
            self._end(EndEvent.USED_UP)
        is_number_left = self.available < self.limit
        action = self.handle(SourceEvent.ALL_ACKNOWLEDGED if is_number_left else SourceEvent.ALL_NUMBERS_ACKNOWLEDGED)
        if action is SourceAction.SEND_LAST_MESSAGE:
            # After every reply, as WCF does: an answer to LastMessage in kind ends the opposite direction too.
            self.last_number = self.available + 1
        elif action in (SourceAction.SEND_CLOSE, SourceAction.SEND_TERMINATE):
            # What is submitted from now on goes to the next Sequence: LastMsgNumber stays what it is in every repeat.
            self.limit = min(self.limit, self.available)
        else:
            return False
        return self._end(EndEvent.STEP) is EndAction.SAVE

    def end_saved(self) -> None:
        """That its end is decided is durable."""
        self._end(EndEvent.SAVED)

    def tell_end(self, now: float) -> None:
        """Every reply that came is durable, so that the last word can acknowledge it, and so is that the end is
        decided: it may be told from now on. A LastMessage goes before all that."""
        if self._end(EndEvent.REPLIES_DURABLE) is EndAction.TELL and self.state in ENDING_STATES:
            self.due = now

    def request_to_send(self, jitter: float, now: float) -> Request | None:
        """The lifecycle request or AckRequested that is due now, once per repeat."""
        request = REQUESTS.get(self.state)
        if request is None:
            request = Request.ACK_REQUESTED
            if self.doubt is _NO_DOUBT:
                self.due = self._poll_at()
        if self.due is None or self.due > now:
            return None
        if request is Request.ACK_REQUESTED:
            self.last_heard = max(self.last_heard, now - self.policy.keep_alive)
        self.attempts += 1
        # Only a first request's answer measures the round trip; silence is counted from the newest AckRequested.
        self.request_sent_at = now if self.attempts == 1 or request is Request.ACK_REQUESTED else None
        self.due = now + self.round_trip.delay(self.attempts, jitter)
        return request

    def _poll_at(self) -> float | None:
        if self.flight:
            return None  # those that are sent again ask
        if self.buffer_remaining == 0 and self._has_new():
            last = self.request_sent_at or self.last_heard
            return last + self.policy.poll_interval
        return max(self.last_heard, self.request_sent_at or 0.0) + self.policy.keep_alive

    def deadline(self) -> float | None:
        """Return when the next transmission or the expiry is due; None: neither is."""
        times = [time for time in (self.expires_at,) if time is not None]
        if self.state in REQUESTS:
            if self.due is not None:
                times.append(self.due)
        elif self.is_open:
            poll = self._poll_at() if self.doubt is _NO_DOUBT else self.due
            if poll is not None:
                times.append(poll)
            due = self.flight.deadline
            if due is not None:
                times.append(due)
        return min(times, default=None)

    def _is_given_up(self, now: float) -> bool:
        """Whether the peer has given no sign of life for as long as the policy waits."""
        patience = self.policy.retransmission.give_up_after
        if patience is None or not (self.flight or self.state is SourceState.CREATING):
            return False
        return now - max(self.last_heard, self.flight.waiting_since or self.last_heard) > patience

    def be_patient(self, now: float) -> None:
        """An operator decided to retry: restart the patience."""
        self.last_heard = now

    def narrow(self) -> None:
        """Begin with one message in flight, as the destination was away for long: the window opens from there."""
        self._window.narrow()

    # --- saved state ----------------------------------------------------------------------------------------------

    def to_state(self) -> State:
        """What to save. What is newest in ``acknowledged`` may be lost: that costs retransmissions only."""
        return state_of(self)

    @classmethod
    def from_state(cls, state: State, policy: SourcePolicy, available: int, now: float) -> RMSource:
        """As it was saved: whatever is not known to be acknowledged will be transmitted again, as asked for.

        Args:
            state: What :meth:`to_state` gave.
            policy: Its limits and timers now.
            available: The highest number that has a durable message.
            now: Seconds.
        """
        versions = Versions(*state["versions"])
        source = cls(state["local_id"], state["outbox"], versions, policy, now, polled=state["polled"])
        restore(source, state, available, now)
        return source
