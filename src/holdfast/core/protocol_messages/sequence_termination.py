"""Termination of Sequences by source or destination (WS-RM 1.2, 3.5 and 3.6).

A source that closes or terminates a Sequence is answered once the end is durable. A destination that does so notifies
the source at AcksTo, and repeats that a few times if the source does not answer. A source with an anonymous AcksTo
learns of the end from the answer to its next message, which is SequenceClosed with the final acknowledgement, or
SequenceTerminated. No source learns of it while an accepted request awaits its reply: the source would abandon the
request.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from holdfast.core.commit import GroupCommit
from holdfast.core.deadlines import Deadlines
from holdfast.core.events import BackChannel
from holdfast.core.faults import SEQUENCE_TERMINATED, UNKNOWN_SEQUENCE, sequence_fault
from holdfast.core.messages import (
    CloseSequence,
    CloseSequenceResponse,
    EndpointReference,
    Envelope,
    TerminateSequence,
    TerminateSequenceResponse,
)
from holdfast.core.receiving.answers import AnswerSender, envelope_in, response_to
from holdfast.core.receiving.authority import Authority
from holdfast.core.receiving.inbound import Inbound, nothing
from holdfast.core.receiving.incoming import Incoming
from holdfast.core.rm_destination.destination import RMDestination
from holdfast.core.sending.outbound import Outbound
from holdfast.core.sending.outboxes.peer_answers import heard
from holdfast.core.states.inbound import DestinationAction, DestinationEvent, SettlingAction, SettlingEvent
from holdfast.core.states.outbound import SourceAction, SourceEvent
from holdfast.core.versions import Addressing

ATTEMPTS = 5
"""Maximum number of notifications to a source; a silent one learns of the end when it asks."""

FIRST_REPEAT = 2.0
"""Seconds until the notification is repeated; doubled each time."""

_NOTIFICATIONS: dict[DestinationAction, Callable[[str], CloseSequence | TerminateSequence]] = {
    DestinationAction.SEND_CLOSE: CloseSequence,
    DestinationAction.SEND_TERMINATE: TerminateSequence,
}


@dataclass(slots=True)
class _EndNotice:
    how: DestinationAction
    """SEND_CLOSE, SEND_TERMINATE, or SEND_FAULT, which is sent once."""
    message_id: str
    attempts: int = 0


class SequenceTermination:
    """Ends Sequences at their source's request, and notifies sources of other ends."""

    def __init__(
        self,
        inbound: Inbound,
        outbound: Outbound,
        authority: Authority,
        answering: AnswerSender,
        commit: GroupCommit,
        new_identifier: Callable[[], str],
    ) -> None:
        self._inbound = inbound
        self._outbound = outbound
        self._authority = authority
        self._answering = answering
        self._commit = commit
        self._new_identifier = new_identifier
        self._telling: dict[str, _EndNotice] = {}
        self._deadlines = Deadlines()

    # --- requests and answers of the peer -------------------------------------------------------------------------

    def close(self, incoming: Incoming) -> None:
        """Handle CloseSequence: accept no new message, answer the final state (WS-RM 3.5)."""
        envelope, close = incoming.envelope, incoming.envelope.control
        assert isinstance(close, CloseSequence), close
        response = CloseSequenceResponse(close.identifier)
        destination = self._inbound.destinations.get(close.identifier)
        # Not an inbound Sequence, so perhaps an outbound one: its destination may close it (WS-RM 3.5).
        if destination is None:
            known = self._is_ended(close.identifier, SourceEvent.CLOSE_SEQUENCE, incoming)
            self._answer_destination(incoming, close.identifier, response if known else None)
        elif destination.handle(DestinationEvent.CLOSE_SEQUENCE) is not DestinationAction.ANSWER_CLOSE:
            self._answer_destination(incoming, close.identifier, None)
        else:
            answer = response_to(envelope, destination.versions, response)
            self._end(destination, close.last_message_number, incoming, answer)

    def terminate(self, incoming: Incoming) -> None:
        """Handle TerminateSequence: end the Sequence."""
        envelope, terminate = incoming.envelope, incoming.envelope.control
        assert isinstance(terminate, TerminateSequence), terminate
        destination = self._inbound.destinations.get(terminate.identifier)
        if destination is None:
            # Likewise: its destination may terminate it (WS-RM 3.6).
            self._terminate_outbound(incoming, terminate.identifier)
            return
        answer = None
        action = destination.handle(DestinationEvent.TERMINATE_SEQUENCE)
        if action is DestinationAction.ANSWER_TERMINATE:
            answer = response_to(envelope, destination.versions, TerminateSequenceResponse(terminate.identifier))
        elif action is DestinationAction.TERMINATE_OFFERED and destination.offered and _takes_answer(incoming):
            # Two-way: answered by TerminateSequence of the offered Sequence (wcf: it waits for that).
            answer = envelope_in(destination.versions)
            answer.control = TerminateSequence(destination.offered)
        self._end(destination, terminate.last_message_number, incoming, answer)

    def terminate_beside(self, identifier: str, now: float) -> None:
        """Handle a SequenceTerminate header of a message (2003/03), after the message."""
        destination = self._inbound.destinations.get(identifier)
        if destination is not None and destination.handle(DestinationEvent.TERMINATE_SEQUENCE) is not None:
            self._inbound.end(destination, None, nothing, now, by_source=True)

    def _terminate_outbound(self, incoming: Incoming, identifier: str) -> None:
        rm = incoming.envelope.rm
        known = self._is_ended(identifier, SourceEvent.TERMINATE_SEQUENCE, incoming)
        # 1.0 has no TerminateSequence by a destination, and no response to one.
        if rm is not None and not rm.can.answers_terminate:
            self._answering.done(incoming.back_channel)
        else:
            self._answer_destination(incoming, identifier, TerminateSequenceResponse(identifier) if known else None)

    def closed(self, incoming: Incoming) -> None:
        """Handle CloseSequenceResponse, from a source or a destination."""
        response = incoming.envelope.control
        assert isinstance(response, CloseSequenceResponse), response
        event = DestinationEvent.CLOSE_SEQUENCE_RESPONSE
        if self._heard(response.identifier, event) is DestinationAction.STOP_TELLING:
            self._stop_telling(response.identifier)
        self._outbound_heard(response.identifier, SourceEvent.CLOSE_SEQUENCE_RESPONSE, incoming)
        self._answering.done(incoming.back_channel)

    def terminated(self, incoming: Incoming) -> None:
        """Handle TerminateSequenceResponse, from a source or a destination."""
        response = incoming.envelope.control
        assert isinstance(response, TerminateSequenceResponse), response
        event = DestinationEvent.TERMINATE_SEQUENCE_RESPONSE
        if self._heard(response.identifier, event) is DestinationAction.END_FOR_SOURCE:
            self._stop_telling(response.identifier)
            destination = self._inbound.destinations[response.identifier]
            self._inbound.end_for_source(destination, incoming.now)
        self._outbound_heard(response.identifier, SourceEvent.TERMINATE_SEQUENCE_RESPONSE, incoming)
        self._answering.done(incoming.back_channel)

    def _is_ended(self, identifier: str, event: SourceEvent, incoming: Incoming) -> bool:
        """Handle CloseSequence or TerminateSequence for an outbound Sequence.

        Returns whether to answer it: False if the Sequence is unknown, or belongs to another peer.
        """
        action = self._outbound_heard(identifier, event, incoming)
        return action is SourceAction.ANSWER_CLOSE or action is SourceAction.ANSWER_TERMINATE

    def _outbound_heard(self, identifier: str, event: SourceEvent, incoming: Incoming) -> SourceAction | None:
        outbox = self._authority.find(identifier, incoming.origin)
        if outbox is not None:
            return heard(outbox, event, incoming.now)
        if self._outbound.sequences.named(identifier):
            self._authority.ignore(event.value, identifier, incoming.origin)
        return None

    def _heard(self, identifier: str, event: DestinationEvent) -> DestinationAction | None:
        destination = self._inbound.destinations.get(identifier)
        return destination.handle(event) if destination is not None else None

    def _answer_destination(
        self, incoming: Incoming, identifier: str, response: CloseSequenceResponse | TerminateSequenceResponse | None
    ) -> None:
        """Answer an outbound Sequence's destination, or a peer that names an invalid one."""
        envelope = incoming.envelope
        if response is None:
            # WS-RM 4.3: an unknown Sequence, or one of another peer, which learns nothing more.
            self._answering.fault(envelope, sequence_fault(UNKNOWN_SEQUENCE, identifier), incoming.back_channel)
        else:
            answer = response_to(envelope, envelope.versions, response)
            self._answering.answer_durably(envelope.reply_to, incoming.back_channel, answer)

    def _end(
        self, destination: RMDestination, last_message_number: int | None, incoming: Incoming, answer: Envelope | None
    ) -> None:
        """End the Sequence, durably, then answer; None: send no answer."""
        then = partial(self._answer, destination, incoming.envelope.reply_to, incoming.back_channel, answer)
        self._inbound.end(destination, last_message_number, then, incoming.now, by_source=True)

    def _answer(
        self,
        destination: RMDestination,
        reply_to: EndpointReference | None,
        back_channel: BackChannel | None,
        answer: Envelope | None,
        now: float,
    ) -> None:
        if answer is None:
            self._answering.done(back_channel)
        else:
            # Made now, with the end durable: Final promises that the ranges never change again (WS-RM 3.9).
            answer.acknowledgements = (destination.acknowledgement(),)
            self._answering.answer(reply_to, back_channel, answer)

    # --- requests of this endpoint --------------------------------------------------------------------------------

    def begin(self, destination: RMDestination, *, terminate: bool, now: float) -> None:
        """Close the Sequence (no new messages) or terminate it; 1.0 has only the fault."""
        # WS-RM 3.5, 3.6: a destination may do so on its own initiative
        event = DestinationEvent.DECIDE_TO_TERMINATE if terminate else DestinationEvent.DECIDE_TO_CLOSE
        action = destination.handle(event)
        # Told only once the end is durable: a crash would otherwise take back what the source was told.
        if action is not None and action is not DestinationAction.NOTHING:
            self._telling[destination.identifier] = _EndNotice(action, self._new_identifier())
            self._inbound.end(destination, None, partial(self._tell, destination), now)

    def _stop_telling(self, identifier: str) -> None:
        self._telling.pop(identifier, None)
        self._deadlines.forget(identifier)

    def pump(self, now: float) -> None:
        """Repeat unanswered notifications."""
        for identifier in self._deadlines.due(now):
            destination = self._inbound.destinations.get(identifier)
            if destination is not None:
                self._tell(destination, now)
            else:
                self._stop_telling(identifier)

    def deadline(self) -> float | None:
        """Return when :meth:`pump` must be called next; None: not before an event."""
        return self._deadlines.next()

    def _tell(self, destination: RMDestination, now: float) -> None:
        telling = self._telling.get(destination.identifier)
        if telling is None:
            return
        # Its source has ended it meanwhile. The fault is said all the same: it ended the Sequence itself.
        is_told = telling.how is not DestinationAction.SEND_FAULT and destination.is_over
        if destination.acks_to.is_anonymous or is_told or telling.attempts >= ATTEMPTS:
            self._stop_telling(destination.identifier)
            return
        # WS-RM 3.5, 3.6; a source that learned of it earlier would abandon a request that is being handled
        action = destination.handle_end(SettlingEvent.TELL)
        if action is SettlingAction.TELL_LATER:
            self._deadlines.want(destination.identifier, now + FIRST_REPEAT)
        elif action is SettlingAction.TELL:
            self._notify(destination, telling, now)

    def _notify(self, destination: RMDestination, telling: _EndNotice, now: float) -> None:
        if telling.how is DestinationAction.SEND_FAULT:
            self._stop_telling(destination.identifier)
            self._tell_fault(destination)
            return
        # The same MessageID in each repeat: they are one request.
        telling.attempts += 1
        envelope = envelope_in(destination.versions)
        envelope.message_id = telling.message_id
        envelope.control = _NOTIFICATIONS[telling.how](destination.identifier)
        envelope.acknowledgements = (destination.acknowledgement(),)
        self._answering.send(destination.acks_to, envelope)
        self._deadlines.want(destination.identifier, now + FIRST_REPEAT * 2.0 ** (telling.attempts - 1))

    def _tell_fault(self, destination: RMDestination) -> None:
        envelope = envelope_in(destination.versions)
        envelope.fault = sequence_fault(SEQUENCE_TERMINATED, destination.identifier)
        self._answering.send(destination.acks_to, envelope)


def _takes_answer(incoming: Incoming) -> bool:
    """Whether a message can be answered in its HTTP response. CXF refuses an answer that it has not asked for.

    Without a ReplyTo, the answer is for the anonymous address in 2005/08, and not wanted in 2004/08.
    """
    envelope = incoming.envelope
    if incoming.back_channel is None:
        return False
    if envelope.reply_to is None:
        return envelope.addressing is not Addressing.V2004_08
    return not envelope.reply_to.is_none
