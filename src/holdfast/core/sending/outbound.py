"""Outbound: every Sequence this endpoint sends, with its outbox."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from holdfast.core.commit import GroupCommit
from holdfast.core.deadlines import Deadlines
from holdfast.core.events import (
    Acknowledged,
    Effect,
    Ended,
    Incident,
    Stopped,
    Submitted,
    Transmit,
)
from holdfast.core.faults import (
    INVALID_ACKNOWLEDGEMENT,
    SEQUENCE_CLOSED,
    UNKNOWN_SEQUENCE,
    sequence_fault,
)
from holdfast.core.messages import (
    AckRequested,
    Envelope,
    Fault,
    IncompleteSequenceBehavior,
    SequenceAcknowledgement,
)
from holdfast.core.policy import Delivery, ForwardingPolicy, SourcePolicy
from holdfast.core.queues.queue import OUTBOUND, Queue, Queues
from holdfast.core.records import Record
from holdfast.core.rm_source.source import ANSWERED_ENOUGH, RMSource
from holdfast.core.rm_source.waiting_requests import Requests
from holdfast.core.sending.circuit import Circuits
from holdfast.core.sending.composer import Composer, Offered
from holdfast.core.sending.creation import OutboundCreation
from holdfast.core.sending.exchanges import Exchanges
from holdfast.core.sending.forwarding_hooks import Forwarders
from holdfast.core.sending.identifier_claims import IdentifierClaims, release_claim
from holdfast.core.sending.outbound_room import OutboundRoom
from holdfast.core.sending.outbox import Choice, Outbox, Submitting, outbox_queue, replies_queue
from holdfast.core.sending.read_ahead import ReadingAhead
from holdfast.core.sending.read_ahead_buffer import Buffers
from holdfast.core.sending.reasons import NO_REASON, WHEN_DUE, Why
from holdfast.core.sending.retraction import made_after, retraction
from holdfast.core.sending.transmission_mark import Marking
from holdfast.core.states import (
    EndState,
    OutboxAction,
    OutboxEvent,
    Request,
    SourceAction,
    SourceEvent,
    SourceState,
)


class Outbound:
    """The sending half of an endpoint.

    Args:
        policy: Limits and timers of its Sequences, except those of forwarders with their own policy.
        commit: The commit that collects its changes.
        effects: The list that collects its effects.
        queues: The queues of its messages.
        new_identifier: Makes a URI never used before.
        jitter: Returns a number in [0, 1), another at each call.
        local: The address the peer can send to; :data:`ANONYMOUS` for an endpoint without a listener.
        offered: The Sequences that this endpoint offered for replies.
    """

    forwarders: Forwarders
    """Knows the forwarders; must be set before any message is forwarded."""
    claims: IdentifierClaims | None = None
    """The Identifiers that other workers use; None in a server of one process."""

    def __init__(
        self,
        policy: SourcePolicy,
        commit: GroupCommit,
        effects: list[Effect],
        queues: Queues,
        new_identifier: Callable[[], str],
        jitter: Callable[[], float],
        local: str,
        offered: Offered,
    ):
        self.policy = policy
        self.policy_for: Callable[[str], SourcePolicy] | None = None
        """Returns the policy of Sequences to an address, if it differs by address."""
        self.commit = commit
        self.effects = effects
        self.outboxes: dict[str, Outbox] = {}
        self.sources: dict[str, Outbox] = {}
        """``local_id`` of every Sequence -> its outbox."""
        self.by_identifier: dict[str, list[str]] = {}
        """Identifier -> ``local_id`` of every Sequence that has it: one for each peer that granted it."""
        self.by_offer: dict[str, Outbox] = {}
        self.requests = Requests()
        """Requests that wait for a reply."""
        self._queues = queues
        self._new_identifier = new_identifier
        self._jitter = jitter
        self._composer = Composer(local, offered, new_identifier)
        self._offered = offered
        self._deadlines = Deadlines()
        self._ready: dict[str, None] = {}
        self.circuits = Circuits(self.outboxes, self._deadlines, self._ready, effects, jitter)
        self.room = OutboundRoom(self._ready)
        self.reading = ReadingAhead(effects, self.outboxes, self._ready, self.room)
        self._buffers = Buffers()
        self.marking = Marking(commit, self._ready)
        self.exchanges = Exchanges(self, self._happen)
        self.creation = OutboundCreation(self, self._happen, offered, new_identifier)

    def is_anonymous(self, source: RMSource) -> bool:
        """Whether the Sequence's peer answers in back-channels only."""
        return self._composer.is_anonymous(source)

    # --- outboxes -------------------------------------------------------------------------------------------------

    def open(self, key: str, to: str, choices: list[Choice]) -> Outbox:
        """Return the outbox ``key``, creating it if it does not exist.

        Args:
            key: The sequence key.
            to: The destination address.
            choices: Choices for CreateSequence, in order of preference. Outboxes to one address share one list, so a
                refusal seen by one moves the refused choice to the end for all.
        """
        known = self.outboxes.get(key)
        if known is not None:
            queue = known.queue
        else:
            queue = self._queues.outbox(outbox_queue(key))
            queue.describe_again()
        return self._open(key, to, choices, queue, 0, None)

    def forward(
        self,
        key: str,
        to: str,
        choices: list[Choice],
        queue: Queue,
        partition: int,
        start: int | None = None,
        policy: ForwardingPolicy | None = None,
        address: str = "",
    ) -> Outbox:
        """Return the outbox ``key`` that forwards a partition, creating it if needed.

        It sends every record of the partition, in order, from whichever Sequence. The queue keeps each record until the
        destination has it.

        Args:
            key: The sequence key.
            to: The destination address.
            choices: As for :meth:`open`.
            queue: The queue.
            partition: The partition of the queue.
            start: The offset where a new outbox begins; None: the first record in the queue.
            policy: The forwarding policy. It is not saved: pass it at each start, before anything is sent.
            address: The address for the destination's replies and acknowledgements of the next Sequence, "" for this
                endpoint's own. A Sequence keeps the address that it began with.
        """
        outbox = self._open(key, to, choices, queue, partition, start)
        outbox.address = address
        outbox.forwarding = policy or ForwardingPolicy()
        outbox.use(outbox.forwarding.sending or self.policy_of(to))
        self.circuits.know(to, outbox.forwarding.circuit)
        return outbox

    def _open(
        self, key: str, to: str, choices: list[Choice], queue: Queue, partition: int, start: int | None
    ) -> Outbox:
        outbox = self.outboxes.get(key)
        if outbox is None:
            outbox = self.make(key, queue, partition, to, start)
            outbox.choices = choices
            outbox.save()
        outbox.choices = choices
        self.ready(outbox)
        return outbox

    def policy_of(self, to: str | None) -> SourcePolicy:
        """Return the policy of Sequences to an address, unless their forwarder has one."""
        return self.policy if to is None or self.policy_for is None else self.policy_for(to)

    def make(self, key: str, queue: Queue, partition: int, to: str | None, start: int | None = None) -> Outbox:
        """Make an outbox, with its cursor if that does not exist."""
        queue.follow(OUTBOUND + key, partition, start, partial(self._grown, key))
        outbox = self.outboxes[key] = Outbox(key, queue, partition, to, self.policy_of(to), self._buffers)
        return outbox

    def _grown(self, key: str, offset: int, record: Record | None) -> None:
        """Handle a record that became durable in the queue of an outbox."""
        outbox = self.outboxes[key]
        if record is not None:
            outbox.keep(offset, record)
        outbox.update_available()
        self._ready[key] = None

    def open_replies(self, source: RMSource, now: float) -> Outbox:
        """Open the outbox of a Sequence of replies, which needs no CreateSequence.

        Its key is the key that the Sequence is saved under.
        """
        outbox = self.make(source.key, self._queues.outbox(replies_queue(source.key)), 0, source.to)
        source.state = SourceState.CREATED
        self.adopt(outbox, source)
        self.commit.save_new(source.local_id, source, outbox.queue.name, outbox.partition)
        self.marking.save(source)
        return outbox

    def submit(self, outbox: Outbox, record: Record) -> int:
        """Append a message and return its offset; :class:`Submitted` follows when it is durable."""
        offset = outbox.append(record)
        together = outbox.submitted_with(self.commit.opened, offset)
        if together.first == offset:
            self.commit.then(partial(self._submitted, outbox, together))
        return offset

    def _submitted(self, outbox: Outbox, together: Submitting, now: float) -> None:
        if outbox.submitting is together:
            outbox.submitting = None
        outbox.queue.stored(outbox.partition, together.last, now)
        self.effects.append(Submitted(outbox.key, together.first, together.last))

    def wake(self, outbox: Outbox, at: float) -> None:
        """Schedule a turn of the outbox at that time."""
        self._deadlines.want(outbox.key, at)

    def queue(self, name: str) -> Queue | None:
        """Return the queue with that name."""
        return self._queues.get(name)

    def ready(self, outbox: Outbox) -> None:
        """Schedule a turn of the outbox at the next :meth:`pump`."""
        self._ready[outbox.key] = None

    def adopt(self, outbox: Outbox, source: RMSource) -> None:
        """Make ``source`` carry the outbox from now on."""
        outbox.source = source
        source.requests = self.requests
        self.sources[source.local_id] = outbox
        if source.identifier is not None:
            self.name(source, source.identifier)
        self.creation.adopt(outbox, source)
        if source.offer is not None:
            self.by_offer[source.offer] = outbox
        outbox.update_available()

    def name(self, source: RMSource, identifier: str) -> None:
        """Register a Sequence under its Identifier."""
        self.by_identifier.setdefault(identifier, []).append(source.local_id)

    def named(self, identifier: str) -> list[Outbox]:
        """Return the outboxes with Sequences of that Identifier; two peers may choose the same."""
        return [self.sources[local_id] for local_id in self.by_identifier.get(identifier, ())]

    @property
    def is_forwarding(self) -> bool:
        """Whether any outbox forwards the records of a queue."""
        return any(outbox.forwarding is not None for outbox in self.outboxes.values())

    # --- what is due ----------------------------------------------------------------------------------------------

    def pump(self, now: float) -> None:
        """Transmit the messages that are due and allowed."""
        for key in self._deadlines.due(now):
            self._ready[key] = None
        while self._ready and not self.reading.is_recovering:
            keys = list(self._ready)
            self._ready.clear()
            for key in keys:
                outbox = self.outboxes.get(key)
                if outbox is None:
                    continue
                self.room.begin_turn()
                self._give_turn(outbox, now)
                if self.room.is_waited_for:
                    self.room.end_turn(key, is_reading=self.reading.is_reading(outbox))

    @property
    def is_idle(self) -> bool:
        """Whether the next :meth:`pump` transmits nothing new, and neither begins nor ends a Sequence."""
        outboxes = self.outboxes
        return all(key not in outboxes or outboxes[key].is_idle for key in self._ready)

    def _give_turn(self, outbox: Outbox, now: float) -> None:
        if outbox.forwarding is not None and not self.forwarders.giving_up.turn(outbox, now):
            return
        if self.circuits.holds(outbox, now):
            return
        if outbox.handle(OutboxEvent.TURN) is OutboxAction.SEND:
            told = len(self.effects)
            self._pump_one(outbox, now)
            if outbox.forwarding is not None:
                self.circuits.pumped(outbox, told)

    def deadline(self) -> float | None:
        """When :meth:`pump` has something to do next."""
        return None if self.reading.is_recovering else self._deadlines.next()

    def pause(self, to: str, seconds: float, now: float) -> float:
        """Send nothing to a destination for the time it requested (Retry-After).

        Returns:
            The seconds granted, at most the policy's ``max_retry_after``.
        """
        seconds = min(seconds, self.policy.retransmission.max_retry_after)
        self.circuits.pause(to, seconds, now)
        return seconds

    def _pump_one(self, outbox: Outbox, now: float) -> None:
        source = outbox.source
        if source is None:
            self._pump_empty(outbox, now)
            return
        if source.polled:
            return  # its messages leave in answers to requests
        event = source.time_event(now, is_for_replies=outbox.is_for_replies)
        if event is not None:
            self._happen(outbox, source, event, now, WHEN_DUE[event])
        self._proceed(outbox, source, now)
        if outbox.source is source and not outbox.stopped:
            self._happen(outbox, source, SourceEvent.TURN, now)
            self._deadlines.want(outbox.key, source.deadline())

    def _pump_empty(self, outbox: Outbox, now: float) -> None:
        """Begin a Sequence for an outbox without one, or report that the outbox has ended."""
        choice = outbox.next_choice
        if choice is not None and outbox.durable_end > outbox.first:
            if now < outbox.begins_at:
                self.wake(outbox, outbox.begins_at)
            else:
                self.creation.begin(outbox, choice, now)
        elif outbox.is_empty and outbox.handle(OutboxEvent.EMPTIED) is OutboxAction.TELL_ENDED:
            self.effects.append(Ended(outbox.key))
            if outbox.is_for_replies:
                self.close_outbox(outbox.key, now)

    def _proceed(self, outbox: Outbox, source: RMSource, now: float) -> None:
        """Take the next step towards the end of the Sequence, if it is due."""
        if outbox.source is not source:
            return  # it is over
        if source.end is EndState.OPEN and outbox.is_ending:
            source.want_end()
        if source.proceed():
            self.commit.save(source.local_id, source)
            self.commit.then(partial(self._end_saved, outbox, source))
        # The last message about the requests acknowledges every reply, so it waits for the last reply to be durable.
        if source.end is EndState.DURABLE and self._has_every_reply(source):
            source.tell_end(now)

    def _has_every_reply(self, source: RMSource) -> bool:
        return source.offer is None or self._offered.is_all_acknowledged(source.offer)

    def _end_saved(self, outbox: Outbox, source: RMSource, now: float) -> None:
        source.end_saved()
        self.ready(outbox)

    def _happen(
        self, outbox: Outbox, source: RMSource, event: SourceEvent, now: float, why: Why = NO_REASON
    ) -> SourceAction | None:
        """Apply an event to a Sequence; return the action done, None if the table has no cell."""
        action = source.handle(event)
        if action is not None:
            _DO[action](self, outbox, source, now, why)
        return action

    def _nothing(self, outbox: Outbox, source: RMSource, now: float, why: Why) -> None:
        pass

    def _save(self, outbox: Outbox, source: RMSource, now: float, why: Why) -> None:
        self.commit.save(source.local_id, source)

    # --- transmission ---------------------------------------------------------------------------------------------

    def _send_due_request(self, outbox: Outbox, source: RMSource, now: float, why: Why) -> None:
        request = source.request_to_send(self._jitter(), now)
        if request is not None:
            assert outbox.to is not None
            envelope = self._composer.request(outbox, source, request)
            self.effects.append(Transmit(outbox.to, envelope, source.local_id, 0, source.attempts, now))

    def _transmit(self, outbox: Outbox, source: RMSource, now: float, why: Why) -> None:
        self._send_due_request(outbox, source, now, why)
        numbers = source.numbers_to_send(now, outbox.here, partial(self.room.claim, outbox.key, outbox.to or ""))
        for number in numbers:
            self._send_message(outbox, source, number, now, is_last=number == numbers[-1])
        self.marking.see(source)
        self.reading.ask(outbox)

    def _send_message(self, outbox: Outbox, source: RMSource, number: int, now: float, *, is_last: bool) -> None:
        if self.exchanges.asks_instead(source, number):
            envelope, wants_reply = self._composer.request(outbox, source, Request.ACK_REQUESTED), None
        else:
            envelope, wants_reply = self._composer.transmission(outbox, source, number)
        # CXF's client can lose a reply that requests an acknowledgement (seen live), and a waiting requester
        # acknowledges it unasked.
        asks = wants_reply is None and not outbox.is_for_replies and source.asks_with(number, is_last=is_last)
        if asks:
            assert source.identifier is not None
            envelope.ack_requested = (AckRequested(source.identifier),)
        attempt = source.sent(number, wants_reply, self._jitter(), now, asks=asks)
        assert outbox.to is not None
        query, size = outbox.query(number), len(envelope.body)
        self.effects.append(Transmit(outbox.to, envelope, source.local_id, number, attempt, now, query, size))

    def message(self, outbox: Outbox, source: RMSource, number: int, again: Callable[[float], None]) -> Envelope | None:
        """Return message ``number``, always the same but for piggybacked headers.

        None if it must be read first: ``again(now)`` is called after that.
        """
        is_here = self.reading.has(outbox, source, number, again)
        return self._composer.message(outbox, source, number) if is_here else None

    # --- answers of the peer --------------------------------------------------------------------------------------

    def _begin_sending(self, outbox: Outbox, source: RMSource, now: float, why: Why) -> None:
        outbox.update_available()
        self.ready(outbox)

    def receive_acknowledgement(
        self, outbox: Outbox, ack: SequenceAcknowledgement, now: float, asked_at: float | None = None
    ) -> Fault | None:
        """Process a peer's acknowledgement of the outbox's Sequence; return the fault, if any.

        The peer must be allowed to report about the Sequence. ``asked_at``: when the request that it answers was sent,
        None if that is unknown or no evidence of its age, as for a posted acknowledgement.
        """
        source = outbox.source
        assert source is not None, outbox.key
        said = ack
        if source.is_restored:
            ack = source.known_part(ack)
        self.requests.named(source, ack.ranges)
        if outbox.withdrawal is not None:
            self.forwarders.giving_up.acknowledged(outbox, ack)
        if asked_at is None and source.is_valid(ack):
            asked_at = made_after(source, ack)
        was_in_doubt = source.in_doubt
        action, newly = source.receive_acknowledgement(ack, now)
        if newly:
            self._report(outbox, newly, now)
        if was_in_doubt and not source.in_doubt:
            self.commit.save(source.local_id, source)
        if action is SourceAction.RAISE_INVALID_ACKNOWLEDGEMENT:  # WS-RM 4.4
            source.last_fault = INVALID_ACKNOWLEDGEMENT
            return sequence_fault(INVALID_ACKNOWLEDGEMENT, ack.identifier, acknowledgement=ack)
        if not ack.nacks and action is not None:
            self._report_retracted(outbox, source, said, asked_at, now)
        if action is SourceAction.MARK_AND_REPORT:
            self._report_rest(outbox, source, now, Why(SEQUENCE_CLOSED, "the destination closed the Sequence"))
        self.ready(outbox)
        return None if action is not None else sequence_fault(UNKNOWN_SEQUENCE, ack.identifier)

    def _report_retracted(
        self, outbox: Outbox, source: RMSource, ack: SequenceAcknowledgement, asked_at: float | None, now: float
    ) -> None:
        incident = retraction(outbox, source, ack, asked_at, now)
        if incident is not None:
            self.commit.save(source.local_id, source)
            self.effects.append(incident)

    def _report(self, outbox: Outbox, ranges: list[tuple[int, int]], now: float) -> None:
        source = outbox.source
        assert source is not None
        for lower, upper in ranges:
            last = min(upper, (source.last_number or upper + 1) - 1)
            if last >= lower:
                first, end = outbox.offset_of(lower), outbox.offset_of(last)
                self.effects.append(Acknowledged(outbox.key, first, end, source.identifier or "", lower))
        self.passed(outbox, now)

    def passed(self, outbox: Outbox, now: float) -> None:
        """Advance past acknowledged messages, and save the position at intervals."""
        if outbox.acknowledged() and outbox.source is not None:
            self.marking.save(outbox.source)
            outbox.save_place(now)

    def request_of(
        self, relates_to: str | None, may_answer: Callable[[Outbox], bool], identifier: str = ""
    ) -> tuple[Outbox, int] | None:
        """Return the outbox and number of the waiting request that a message answers, or None.

        Args:
            relates_to: The MessageID that the message names, None for none.
            may_answer: Whether the sender may answer requests of that outbox. Not needed in the Sequence that was
                offered for their replies, as only their destination knows its Identifier.
            identifier: The Sequence of the message, "" for none.
        """
        if relates_to is None:
            return None
        offered = self.by_offer.get(identifier)
        if offered is not None:
            found = self.requests.find(relates_to, lambda source: source is offered.source)
        else:
            found = self.requests.find(relates_to, lambda source: may_answer(self.sources[source.local_id]))
        return None if found is None else (self.sources[found[0].local_id], found[1])

    def is_offered_by_forwarder(self, identifier: str) -> bool:
        """Whether an inbound Sequence was offered for replies to forwarded messages."""
        outbox = self.by_offer.get(identifier)
        return outbox is not None and outbox.forwarding is not None

    def receive_reply(self, outbox: Outbox, number: int) -> None:
        """Acknowledge a request (see :meth:`request_of`) with its reply in the open batch."""
        source = outbox.source
        assert source is not None, (outbox.key, number)
        source.replying.add(number)
        self.commit.save(source.local_id, source)
        self.commit.then(partial(self.replied, outbox, source, number))

    def replied(self, outbox: Outbox, source: RMSource, number: int, now: float) -> None:
        """Report request ``number``: its reply is durable here, or there will be no reply."""
        if outbox.source is source and source.replied(number, now):
            self._report(outbox, [(number, number)], now)
            self.ready(outbox)

    def receive_fault(
        self, outbox: Outbox, fault: Fault, number: int, now: float, relates_to: str | None = None
    ) -> None:
        """Handle a fault about an outbound Sequence: the named one, else the one being sent.

        Args:
            outbox: The outbox of the Sequence.
            fault: The peer's fault.
            number: The message that it answers; 0 for none, or for a message that only ``relates_to`` names.
            now: Seconds.
            relates_to: The MessageID that it names.
        """
        source = outbox.source
        assert source is not None, outbox.key
        number = number or outbox.number_of(relates_to)
        event = self.exchanges.event_of(outbox, fault, number)
        source.last_fault = fault.code
        source.last_heard = now
        if number and number == source.last_number and event in _REFUSALS and not fault.is_rm:
            self.exchanges.last_message_refused(outbox, source, now)
            return
        if outbox.forwarding is not None and number and event in _REFUSALS and not fault.is_rm:
            self.forwarders.giving_up.refused(outbox, number, fault, now)
            return
        why = Why(fault.code, fault.reason, number, fault.max_message_number)
        self._happen(outbox, source, event, now, why)
        self.ready(outbox)

    def _stop_numbering(self, outbox: Outbox, source: RMSource, now: float, why: Why) -> None:
        source.roll_over(why.limit, why.number, now)
        self.commit.save(source.local_id, source)
        if source.limit < 1:
            why = Why(why.code, f"{why.reason} (it takes no message at all)")
            self._happen(outbox, source, SourceEvent.TAKES_NO_NUMBER, now, why)

    def _report_acknowledgement(self, outbox: Outbox, source: RMSource, now: float, why: Why) -> None:
        self.effects.append(Incident("acknowledgement.rejected", source.identifier or "", level="warning"))

    def _retry(self, outbox: Outbox, source: RMSource, now: float, why: Why) -> None:
        source.not_delivered(why.number, now)

    def _stop_at(self, outbox: Outbox, source: RMSource, now: float, why: Why) -> None:
        """Stop the outbox, as retries would not help, and let the operator decide.

        A refused message would be refused each time, and its number cannot be skipped.
        """
        self.commit.save(source.local_id, source)
        refused = (source.identifier or "", why.number) if why.number else None
        self.stop(outbox, why.code, why.reason, now, refused=refused)

    def terminate_sent(self, source_id: str, was_empty: bool, now: float) -> None:
        """Handle the arrival of TerminateSequence at the destination.

        If it is one-way, the Sequence is over. Otherwise the Sequence is over too once repeats get empty answers, as
        from gSOAP after its response was lost.
        """
        outbox = self.sources.get(source_id)
        source = outbox.source if outbox is not None else None
        if source is None or source.identifier is None:
            return
        is_enough = was_empty and source.state is SourceState.TERMINATING and source.attempts >= ANSWERED_ENOUGH
        if is_enough or not source.versions.rm.can.answers_terminate:
            assert outbox is not None
            self.heard(outbox, SourceEvent.TERMINATE_SEQUENCE_RESPONSE, now)

    def heard(self, outbox: Outbox, event: SourceEvent, now: float) -> SourceAction | None:
        """Handle the destination's end of the Sequence, or its answer to ours; return the action."""
        source = outbox.source
        assert source is not None, outbox.key
        source.last_heard = now
        self.ready(outbox)
        return self._happen(outbox, source, event, now, Why(event.value, "the destination ended the Sequence"))

    # --- ends -----------------------------------------------------------------------------------------------------

    def want_end(self, outbox: Outbox, now: float) -> None:
        """End the outbox's Sequence once everything is acknowledged; :class:`Ended` follows."""
        if outbox.handle(OutboxEvent.WANT_END) is OutboxAction.END:
            if outbox.source is not None:
                outbox.source.want_end()
                self.commit.save(outbox.source.local_id, outbox.source)
            self.ready(outbox)

    def _report_rest(self, outbox: Outbox, source: RMSource, now: float, why: Why) -> None:
        """Handle a Sequence closed by the destination.

        Messages that it may have and did not acknowledge are lost; those that it cannot have go to the next Sequence.
        If the operator must decide already, the decision covers this too.
        """
        self.commit.save(source.local_id, source)
        if not outbox.needs_decision(source):
            source.move_rest()
        elif not outbox.stopped:
            self._lose(outbox, source, now, why)

    def _end_at_once(self, outbox: Outbox, source: RMSource, now: float, why: Why) -> None:
        """Handle a Sequence that the destination terminated or reports as over."""
        if outbox.needs_decision(source):
            self._lose(outbox, source, now, why)
        else:
            self._finish(outbox, source, now, why)

    def _finish(self, outbox: Outbox, source: RMSource, now: float, why: Why) -> None:
        """Finish the Sequence; messages that arrived, even above a limit, are not resent."""
        if source.behavior is IncompleteSequenceBehavior.NO_DISCARD:
            outbox.leave_out_arrived()
        self.drop(outbox, source, now)
        self._note_end(outbox, source, now)
        outbox.save()
        self.effects.append(Incident("sequence.terminated", source.identifier or ""))
        self.ready(outbox)

    def _lose(self, outbox: Outbox, source: RMSource, now: float, why: Why) -> None:
        """Handle the loss of a Sequence with unacknowledged messages."""
        doubtful, late = outbox.doubtful(source), outbox.late(source)
        in_doubt = str(doubtful)
        if len(late) and not len(doubtful) and not source.in_doubt:
            why = why._replace(reason=f"{why.reason} (what it has of this Sequence was to follow the numbers {late})")
        detail = {"code": why.code, "reason": why.reason, "in_doubt": in_doubt}
        self.effects.append(Incident("sequence.lost", source.identifier or "", level="error", detail=detail))
        first = outbox.first
        last = outbox.offset_of(outbox.highest_left(source))
        if not len(doubtful) and not source.in_doubt:
            first, last = 1, 0
        if outbox.settles_doubt(source):
            self.forwarders.giving_up.lost(outbox, source, why.code, why.reason)
        self.drop(outbox, source, now)
        self._note_end(outbox, source, now)
        if outbox.policy.assurance.delivery is Delivery.AT_LEAST_ONCE and outbox.choices:
            self.ready(outbox)  # duplicates are allowed: continue in a new Sequence
            return
        if outbox.doubt is not None:
            outbox.save()
            self.ready(outbox)
            return
        self.stop(outbox, why.code, why.reason, now, first, last, in_doubt=in_doubt)

    def _note_end(self, outbox: Outbox, source: RMSource, now: float) -> None:
        pause = outbox.pause_after(source, now)
        if pause:
            detail = {"key": outbox.key, "why": "its Sequences end with nothing acknowledged", "seconds": pause}
            identifier = source.identifier or ""
            self.effects.append(Incident("sequence.creation_delayed", identifier, level="warning", detail=detail))

    def stop(
        self,
        outbox: Outbox,
        code: str,
        reason: str,
        now: float,
        first: int = 1,
        last: int = 0,
        refused: tuple[str, int] | None = None,
        in_doubt: str = "",
    ) -> None:
        if outbox.stop(code, reason) is OutboxAction.TELL_STOPPED:
            outbox.save()
            self.ready(outbox)  # requesters wait
            self.commit.then(partial(self._tell, Stopped(outbox.key, code, reason, first, last, refused, in_doubt)))

    def _tell(self, effect: Effect, now: float) -> None:
        self.effects.append(effect)

    def redirect(self, outbox: Outbox, to: str) -> None:
        """Redirect an outbox that is empty and has no Sequence to another address."""
        self.circuits.leave(outbox)
        self.room.leave(outbox.key)
        outbox.to = to
        if outbox.forwarding is not None:
            self.circuits.know(to, outbox.forwarding.circuit)
        outbox.save()

    def resume(self, outbox: Outbox, choices: list[Choice], now: float) -> None:
        """Resume a stopped outbox.

        Messages not known to have arrived are sent again, in a new Sequence if the old one is gone.
        """
        outbox.choices = choices
        if outbox.resume() is OutboxAction.GO_ON:
            if outbox.source is not None:
                self._happen(outbox, outbox.source, SourceEvent.RESUMED, now)
            outbox.save()
            self.ready(outbox)

    def drop(self, outbox: Outbox, source: RMSource, now: float) -> None:
        """Drop the Sequence, whatever becomes of its undelivered messages."""
        outbox.source = None
        self.requests.forget(source)
        self.sources.pop(source.local_id, None)
        if source.identifier is not None:
            self._unname(source, source.identifier)
            release_claim(self.claims, source, self.commit)
        if source.offer is not None:
            self.by_offer.pop(source.offer, None)
            self._offered.forget_offered(source.offer, now)
        self.commit.forget(source.local_id)
        outbox.first = max(outbox.first, source.start + source.records_done)
        outbox.skip()
        outbox.save_place(now)

    def _unname(self, source: RMSource, identifier: str) -> None:
        found = self.by_identifier[identifier]
        found.remove(source.local_id)
        if not found:
            del self.by_identifier[identifier]

    def close_outbox(self, key: str, now: float) -> None:
        """Forget an outbox. An outbox of replies loses its records; another's queue keeps them."""
        outbox = self.outboxes.pop(key, None)
        if outbox is None:
            return
        if outbox.source is not None:
            self.drop(outbox, outbox.source, now)
        self._deadlines.forget(key)
        self.circuits.leave(outbox)
        self.room.leave(key)
        outbox.here.release()
        if outbox.is_for_replies:
            self._queues.delete(outbox.queue)
        else:
            outbox.queue.unfollow(outbox.cursor, outbox.partition, now)


_REFUSALS = (SourceEvent.MESSAGE_FAULT, SourceEvent.OTHER_FAULT)
"""Events of a fault about a forwarded message that do not concern its Sequence."""

_DO: dict[SourceAction, Callable[[Outbound, Outbox, RMSource, float, Why], None]] = {
    SourceAction.SEND_CREATE: Outbound._send_due_request,
    SourceAction.SEND_CLOSE: Outbound._send_due_request,
    SourceAction.SEND_TERMINATE: Outbound._send_due_request,
    SourceAction.TRANSMIT: Outbound._transmit,
    SourceAction.BEGIN: Outbound._begin_sending,
    SourceAction.SAVE: Outbound._save,
    SourceAction.REPORT_REFUSED: lambda outbound, *about: outbound.creation.refused(*about),
    SourceAction.STOP_NUMBERING: Outbound._stop_numbering,
    SourceAction.REPORT_ACKNOWLEDGEMENT: Outbound._report_acknowledgement,
    SourceAction.RETRY: Outbound._retry,
    SourceAction.STOP: Outbound._stop_at,
    SourceAction.GO_ON: lambda _outbound, _outbox, source, now, _why: source.be_patient(now),
    SourceAction.REPORT_REST: Outbound._report_rest,
    SourceAction.ANSWER_CLOSE: Outbound._report_rest,
    SourceAction.ANSWER_TERMINATE: Outbound._end_at_once,
    SourceAction.LOSE: Outbound._end_at_once,
    SourceAction.FINISH: Outbound._finish,
    SourceAction.MOVE_REST: lambda _outbound, _outbox, source, now, _why: source.move_rest(),
    SourceAction.TELL_END: lambda _outbound, _outbox, source, now, _why: source.outlive(now),
    SourceAction.NOTHING: Outbound._nothing,
}
"""Actions that :class:`RMSource` does not carry out on its own."""
