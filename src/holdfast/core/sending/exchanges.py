"""HTTP exchanges of outbound messages, and what their ends mean.

A request is not retransmitted while an exchange that carries it is open, because its reply may still come back on that
exchange. A destination that has the request answers a repeat with an acknowledgement alone (CXF does), which would mean
that there is no reply. The shell ends every exchange, after its own timeout at the latest.

A CreateSequence with an Offer is repeated only after ``RetransmissionPolicy.cap`` while its exchange is open: a service
that starts slowly would process several copies at once, and CXF with a store, which refuses a repeated Offer, then
loses the Sequence that it grants (seen live). Without an Offer it is repeated like a message.
"""

from __future__ import annotations

from holdfast.core.events import Incident, Transmit, Unheard
from holdfast.core.messages import CreateSequence, Fault, RequestAcknowledgement
from holdfast.core.rm_source.control_requests import ANSWERED_ENOUGH
from holdfast.core.rm_source.source import RMSource
from holdfast.core.sending.context import SendingContext
from holdfast.core.sending.outboxes.outbox import Outbox
from holdfast.core.sending.outboxes.outdated_copy import remain_without_word
from holdfast.core.sending.outboxes.peer_answers import doubt_remains, refused
from holdfast.core.sending.reasons import UNSENDABLE, Why, event_of
from holdfast.core.states.outbound import SourceEvent, SourceState

NOT_GRANTED = "CreateSequence was answered with neither a grant nor a fault"
"""The report of such an answer."""
_ENDING = (SourceEvent.ENDING_FAULT, SourceEvent.CLOSED_FAULT)


class Exchanges:
    """The exchanges of an endpoint's outbound Sequences."""

    def __init__(self, context: SendingContext) -> None:
        self._context = context

    def _find(self, sent: Transmit) -> tuple[Outbox, RMSource] | None:
        outbox = self._context.sequences.by_local_id.get(sent.source)
        return None if outbox is None or outbox.source is None else (outbox, outbox.source)

    def ended(self, sent: Transmit, now: float) -> None:
        """Record the end of the exchange that carried ``sent``.

        Call this once for each exchange, before its result is processed. A request is not retransmitted at once: the
        answer may be its reply.
        """
        self._context.room.give_back(sent.to, sent.size)
        # Given back once, whatever is reported of this exchange later.
        sent.size = 0
        found = self._find(sent)
        if found is None:
            return
        outbox, source = found
        # The answer that ended the exchange may hold the reply: it is processed before a repeat leaves.
        least = now + source.policy.retransmission.floor
        if not sent.number:
            self._context.pollers.asked(source)
            if isinstance(sent.envelope.control, CreateSequence):
                source.control.creation_ended(least)
                outbox.ready()
        is_request = sent.number in source.waiting.unreplied
        source.flight.ended(sent.number, least if is_request else None)
        if is_request:
            outbox.ready()

    def refused(self, sent: Transmit, fault: Fault) -> None:
        """Record a fault in the answer to ``sent``.

        A fault that ends its Sequence shows that the destination did not accept this transmission. Call this before
        anything else in that answer is processed, such as a final acknowledgement.
        """
        found = self._find(sent)
        if found is None or fault.identifier not in (None, found[1].identifier):
            return
        entry = found[1].flight.get(sent.number)
        # The destination has ended the Sequence, so it did not accept this transmission: the number is not in doubt.
        if event_of(fault, sent.number, found[1].versions.rm.can) in _ENDING:
            found[1].flight.not_taken(sent.number)
        elif entry is not None:
            entry.faults += 1

    def answered(self, sent: Transmit, now: float, *, was_empty: bool) -> None:
        """Record an answer without a fault, after its content was processed."""
        found = self._find(sent)
        if found is None:
            return
        outbox, source = found
        wants_reply = sent.number in source.waiting.unreplied
        source.leave_last_message(sent.number)
        is_anonymous = self._context.composer.is_anonymous(source)
        # Elsewhere the grant may come in a request of the destination's own.
        is_ungranted = source.state is SourceState.CREATING and is_anonymous
        outbox.last_answer = NOT_GRANTED if is_ungranted else ""
        source.transmissions.answered(sent.number, now, in_answers=is_anonymous, is_reply=outbox.is_for_replies)
        is_question = isinstance(sent.envelope.control, RequestAcknowledgement)
        # It has not acknowledged the message even now, so the message itself leaves again.
        if is_question:
            source.flight.answered_too_large(sent.number, "")
        if is_question and was_empty and source.doubt.is_silent(in_answers=is_anonymous):
            doubt_remains(outbox, source, now)
        elif is_question and was_empty:
            remain_without_word(outbox, source)
        times = source.silence(sent.number) if was_empty and not is_question else 0
        if times >= ANSWERED_ENOUGH:
            entry = source.flight.get(sent.number)
            seconds = now - entry.first_sent_at if entry is not None else 0.0
            effect = Unheard(outbox.key, source.identifier or "", sent.number, times, wants_reply, seconds)
            self._context.effects.append(effect)
        self._leave_reply(outbox, source, sent.number, now)
        outbox.ready()

    def failed(
        self,
        sent: Transmit,
        now: float,
        unreachable: str = "",
        *,
        has_left: bool = True,
        not_accepted: str = "",
        is_too_large: bool = False,
    ) -> None:
        """Record a message that got no answer. See :meth:`RMProtocol.failed`."""
        found = self._find(sent)
        if found is None:
            return
        outbox, source = found
        outbox.last_answer = unreachable or not_accepted or outbox.last_answer
        # A circuit is for destinations that are away, and any answer shows that this one is not.
        if unreachable and outbox.forwarding is not None:
            self._context.circuits.failed(sent.to, unreachable, now, has_left=has_left)
        # Never on the wire, so not in doubt.
        if not has_left:
            source.flight.not_taken(sent.number)
        # It is here, and may have processed the message: each repeat would bring the same answer.
        if is_too_large:
            self._context.circuits.answered(sent.to, now)
            source.flight.answered_too_large(sent.number, not_accepted)
        source.not_delivered(sent.number, now)
        if has_left and not unreachable:
            refused(outbox, source, sent.number, now, not_accepted)
        self._leave_reply(outbox, source, sent.number, now)
        outbox.ready()

    def _leave_reply(self, outbox: Outbox, source: RMSource, number: int, now: float) -> None:
        """Retransmit no further a reply that was not acknowledged for the InactivityTimeout (WS-RM Policy 1.0 2.1).

        The specification limits no retransmission, but a requester that exists may never acknowledge a reply, such as
        that of a call that has failed (CXF). The reply stays stored, for a repeated request and for a Nack.
        """
        if not (outbox.is_for_replies or outbox.is_for_address) or outbox.is_polled:
            return
        entry = source.leave_reply(number, self._context.reply_patience(), now)
        if entry is not None:
            seconds = round(now - entry.first_sent_at)
            detail: dict[str, object] = {"to": outbox.to, "attempts": entry.attempts, "seconds": seconds}
            name, identifier = "reply.not_acknowledged", source.identifier or ""
            self._context.effects.append(Incident(name, identifier, number, level="warning", detail=detail))

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
            source.flight.not_taken(sent.number)
        source.not_delivered(sent.number, now, at_once=carried_it)
        outbox.ready()

    def unsendable(self, sent: Transmit, reason: str, now: float) -> None:
        """Stop an outbox with a message that can never be written."""
        self.ended(sent, now)
        found = self._find(sent)
        if found is None:
            detail = {"reason": reason}
            self._context.effects.append(Incident("answer.unwritable", level="error", detail=detail))
            return
        outbox, source = found
        source.flight.not_taken(sent.number)
        if outbox.forwarding is not None and sent.number:
            fault = Fault(UNSENDABLE, reason, sender=False)
            outbox.hooks.forwarders.giving_up.refused(outbox, sent.number, fault, now, is_final=True)
        else:
            outbox.happen(source, SourceEvent.UNSENDABLE, now, Why(UNSENDABLE, reason, sent.number))
