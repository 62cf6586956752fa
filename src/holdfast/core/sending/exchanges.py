"""HTTP exchanges of outbound messages, and what their ends mean.

A request is not retransmitted while an exchange that carries it is open, because its reply may still come back on that
exchange. A destination that has the request answers a repeat with an acknowledgement alone (CXF does), which would mean
that there is no reply. The shell ends every exchange, after its own timeout at the latest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from holdfast.core.events import Incident, Transmit, Unanswered, Unheard
from holdfast.core.faults import MESSAGE_NUMBER_ROLLOVER
from holdfast.core.messages import Fault, RequestAcknowledgement, SequenceAcknowledgement
from holdfast.core.policy import Delivery
from holdfast.core.rm_source.source import ANSWERED_ENOUGH, RMSource
from holdfast.core.sending.outbox import Outbox
from holdfast.core.sending.reasons import UNSENDABLE, Why, event_of
from holdfast.core.states import DoubtAction, DoubtEvent, SourceAction, SourceEvent, SourceState

if TYPE_CHECKING:
    from holdfast.core.sending.outbound import Outbound

NOT_GRANTED = "CreateSequence was answered with neither a grant nor a fault"
"""The report of such an answer."""
_ENDING = (SourceEvent.ENDING_FAULT, SourceEvent.CLOSED_FAULT)


class Happen(Protocol):
    """Moves a Sequence by its table, and carries out the cell's action."""

    def __call__(
        self, outbox: Outbox, source: RMSource, event: SourceEvent, now: float, why: Why
    ) -> SourceAction | None: ...


class Exchanges:
    """The exchanges of an endpoint's outbound Sequences.

    Args:
        outbound: The Sequences.
        happen: Called with the event that an exchange's end means for its Sequence.
    """

    def __init__(self, outbound: Outbound, happen: Happen) -> None:
        self._outbound = outbound
        self._happen = happen

    def _find(self, sent: Transmit) -> tuple[Outbox, RMSource] | None:
        outbox = self._outbound.sources.get(sent.source)
        return None if outbox is None or outbox.source is None else (outbox, outbox.source)

    def ended(self, sent: Transmit, now: float) -> None:
        """Record the end of the exchange that carried ``sent``.

        Call this once for each exchange, before its result is processed. A request is not retransmitted at once: the
        answer may be its reply.
        """
        self._outbound.room.give_back(sent.to, sent.size)
        sent.size = 0
        found = self._find(sent)
        if found is None:
            return
        outbox, source = found
        is_request = sent.number in source.unreplied
        source.flight.ended(sent.number, now + source.policy.retransmission.floor if is_request else None)
        if is_request:
            self._outbound.ready(outbox)

    def refused(self, sent: Transmit, fault: Fault) -> None:
        """Record a fault in the answer to ``sent``.

        A fault that ends its Sequence shows that the destination did not accept this transmission. Call this before
        anything else in that answer is processed, such as a final acknowledgement.
        """
        found = self._find(sent)
        if found is None or fault.identifier not in (None, found[1].identifier):
            return
        entry = found[1].flight.get(sent.number)
        if event_of(fault, sent.number, found[1].versions.rm.can) in _ENDING:
            found[1].not_taken(sent.number)
        elif entry is not None:
            entry.faults += 1

    def awaits_certainty(self, outbox: Outbox) -> bool:
        """Whether pending answers may settle the doubt in a Sequence that is ending.

        Only exactly-once and at-most-once wait for them.
        """
        source = outbox.source
        if source is None or outbox.policy.assurance.delivery is Delivery.AT_LEAST_ONCE:
            return False
        return source.is_open and outbox.awaits_certainty(source)

    def event_of(self, outbox: Outbox, fault: Fault, number: int) -> SourceEvent:
        """Return the event of a fault; ``number``: the message concerned, 0 for none."""
        source = outbox.source
        assert source is not None, outbox.key
        event = event_of(fault, number, source.versions.rm.can)
        if event not in _ENDING:
            return event
        if self.awaits_certainty(outbox):
            return SourceEvent.ENDING_FAULT_EARLY
        is_news = source.last_fault != fault.code
        if is_news and not outbox.needs_decision(source) and outbox.first < outbox.durable_end:
            detail = {"key": outbox.key, "code": fault.code, "reason": fault.reason}
            incident = Incident("sequence.replaced", source.identifier or "", level="warning", detail=detail)
            self._outbound.effects.append(incident)
        return event

    def answered(self, sent: Transmit, now: float, *, was_empty: bool) -> None:
        """Record an answer without a fault, after its content was processed."""
        found = self._find(sent)
        if found is None:
            return
        outbox, source = found
        wants_reply = sent.number in source.unreplied
        self._leave_last_message(source, sent.number)
        is_ungranted = source.state is SourceState.CREATING and self._outbound.is_anonymous(source)
        outbox.last_answer = NOT_GRANTED if is_ungranted else ""
        source.answered(sent.number, now, in_answers=self._outbound.is_anonymous(source))
        is_question = isinstance(sent.envelope.control, RequestAcknowledgement)
        if is_question and was_empty and source.is_silent_in_doubt(in_answers=self._outbound.is_anonymous(source)):
            self._doubt_remains(outbox, source, now)
        times = source.silence(sent.number) if was_empty and not is_question else 0
        if times >= ANSWERED_ENOUGH:
            effect = Unheard(outbox.key, source.identifier or "", sent.number, times, wants_reply)
            self._outbound.effects.append(effect)
        self._outbound.ready(outbox)

    def _doubt_remains(self, outbox: Outbox, source: RMSource, now: float) -> None:
        """Handle a peer that does not report what it has, despite repeated requests.

        It refuses numbers above a limit (CXF answers AckRequested with nothing).
        """
        is_lost = source.resolve(DoubtEvent.SAYS_NOTHING) is DoubtAction.LOSE
        if is_lost and outbox.withdrawal is not None:
            self._outbound.forwarders.giving_up.silent(outbox, source, now)
        elif is_lost:
            why = Why(MESSAGE_NUMBER_ROLLOVER, "the destination does not say what arrived")
            self._happen(outbox, source, SourceEvent.DOUBT_STAYS, now, why)
        else:
            self._outbound.commit.save(source.local_id, source)

    @staticmethod
    def asks_instead(source: RMSource, number: int) -> bool:
        """Whether AckRequested alone must be sent instead of message ``number``.

        That is a LastMessage (WS-RM 1.0 3.2) that was repeated and answered with a fault. Metro faults each repeat of a
        LastMessage that it has.
        """
        entry = source.flight[number]
        return number == source.last_number and entry.faults > 0 and entry.attempts > 1

    def last_message_refused(self, outbox: Outbox, source: RMSource, now: float) -> None:
        """Handle a fault on LastMessage, or on AckRequested sent instead of it."""
        number = source.last_number or 0
        entry = source.flight.get(number)
        if entry is not None:
            self._leave_last_message(source, number)
            source.not_delivered(number, now)
        self._outbound.ready(outbox)

    @staticmethod
    def _leave_last_message(source: RMSource, number: int) -> None:
        """Stop repeating a LastMessage that was answered repeatedly.

        It carries nothing, everything before it is acknowledged, and TerminateSequence, which follows, has the same
        meaning. gSOAP never acknowledges it.
        """
        entry = source.flight.get(number)
        is_left = source.flight.lowest == number == source.last_number
        if entry is not None and is_left and entry.attempts >= ANSWERED_ENOUGH:
            source.flight.remove(number)
            source.acknowledged.add(number)

    def failed(self, sent: Transmit, now: float, unreachable: str = "", *, has_left: bool = True) -> None:
        """Record a message that got no answer. See :meth:`RMProtocol.failed`."""
        found = self._find(sent)
        if found is None:
            return
        outbox, source = found
        outbox.last_answer = unreachable or outbox.last_answer
        if unreachable and outbox.forwarding is not None:
            self._outbound.circuits.failed(sent.to, unreachable, now, has_left=has_left)
        if not has_left:
            source.not_taken(sent.number)
        source.not_delivered(sent.number, now)
        self._outbound.ready(outbox)

    def refused_for_acknowledgement(self, sent: Transmit, identifier: str, now: float) -> None:
        """Resend a message that the peer refused with a fault about an inbound Sequence.

        The peer did not accept the message. It goes again at once if it carried an acknowledgement of that Sequence,
        which it then no longer carries; otherwise soon.
        """
        found = self._find(sent)
        if found is None:
            return
        outbox, source = found
        carried_it = any(one.identifier == identifier for one in sent.envelope.acknowledgements)
        if carried_it:
            source.not_taken(sent.number)
        source.not_delivered(sent.number, now, at_once=carried_it)
        self._outbound.ready(outbox)

    def unsendable(self, sent: Transmit, reason: str, now: float) -> None:
        """Stop an outbox with a message that can never be written."""
        self.ended(sent, now)
        found = self._find(sent)
        if found is None:
            detail = {"reason": reason}
            self._outbound.effects.append(Incident("answer.unwritable", level="error", detail=detail))
            return
        outbox, source = found
        source.not_taken(sent.number)
        if outbox.forwarding is not None and sent.number:
            fault = Fault(UNSENDABLE, reason, sender=False)
            self._outbound.forwarders.giving_up.refused(outbox, sent.number, fault, now, is_final=True)
        else:
            self._happen(outbox, source, SourceEvent.UNSENDABLE, now, Why(UNSENDABLE, reason, sent.number))

    def acknowledged_alone(self, outbox: Outbox, ack: SequenceAcknowledgement, number: int, now: float) -> None:
        """The answer to message ``number`` is nothing but an acknowledgement of the outbox's Sequence. If it names a
        request, there is no reply and there will be none: they leave together (or, with CXF, the reply was lost for
        good). That is so only once no other exchange carries the request: the reply may come back on that one. Where
        replies go to an address, an answer says nothing of them."""
        source = outbox.source
        if source is None or number not in source.unreplied or not self._outbound.is_anonymous(source):
            return
        if number in source.replying or not any(lower <= number <= upper for lower, upper in ack.ranges):
            return
        entry = source.flight.get(number)
        if entry is not None and entry.exchanges:
            return
        if outbox.forwarding is not None:
            self._outbound.forwarders.unanswered(outbox, number, now)
            return
        self._outbound.effects.append(Unanswered(outbox.key, source.unreplied[number]))
        self._outbound.replied(outbox, source, number, now)
