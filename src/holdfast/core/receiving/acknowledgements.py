"""Timing of acknowledgements to an addressable AcksTo, and AckRequested.

An anonymous AcksTo is acknowledged in every answer. This module owns the count of messages not yet acknowledged, the
timer, and AckRequested in any message (WS-RM 3.8). It decides when to acknowledge; the destination decides what.
"""

from __future__ import annotations

from holdfast.core.deadlines import Deadlines
from holdfast.core.events import BackChannel, Effect, Respond, Transmit
from holdfast.core.faults import UNKNOWN_SEQUENCE, sequence_fault
from holdfast.core.messages import Acknowledge, Envelope, Fault, SequenceAcknowledgement
from holdfast.core.receiving.answers import AnswerSender, envelope_in
from holdfast.core.receiving.inbound_sequences import InboundSequences
from holdfast.core.receiving.incoming import Incoming
from holdfast.core.rm_destination.destination import RMDestination
from holdfast.core.states.inbound import DestinationAction

_ACKNOWLEDGE = Acknowledge()  # has no content besides headers

MOST_ATTEMPTS = 6
"""Maximum posts of a stand-alone acknowledgement if each attempt fails. A repeat of its message requests another."""

FIRST_PAUSE = 0.5
"""Seconds before the second attempt; each further delay is twice as long."""


def asks(envelope: Envelope, destination: RMDestination) -> bool:
    """Whether a message requests the acknowledgement of its Sequence, in its answer."""
    # WS-RM 3.8: AckRequested on the message itself
    return any(requested.identifier == destination.identifier for requested in envelope.ack_requested)


class Acknowledgements:
    """Sends stand-alone acknowledgements, and answers requests for one."""

    def __init__(self, sequences: InboundSequences, answering: AnswerSender, effects: list[Effect]) -> None:
        self._sequences = sequences
        self._answering = answering
        self._effects = effects
        self._owed: dict[str, int] = {}
        self._due = Deadlines()
        self._failed: dict[str, int] = {}
        """Identifier -> number of failed attempts to acknowledge it, while another is due."""

    # --- what outgoing messages carry ---------------------------------------------------------------------------------

    def acknowledgement(self, identifier: str) -> SequenceAcknowledgement | None:
        """Return a Sequence's acknowledgement; None if unknown, here or to its source."""
        # WCF examines the acknowledgement first: it refuses the whole message because of an acknowledgement of an
        # unknown Sequence, and never reports what became of the message's own Sequence.
        destination = self._sequences.destinations.get(identifier)
        return destination.acknowledgement() if destination is not None and not destination.disowned else None

    def carried_acknowledgement(self, identifier: str, address: str | None) -> SequenceAcknowledgement | None:
        """Return the acknowledgement that a message to that address carries; None: none."""
        # WS-RM 3.9: with any message to AcksTo. A source that ended its Sequence may have forgotten it, and CXF throws.
        destination = self._sequences.destinations.get(identifier)
        if destination is None or destination.is_over or destination.acks_to.address != address:
            return None
        # This message carries it, so a separate one is not due any more. If it is lost, its retransmission carries
        # another.
        self.settle(identifier)
        return destination.acknowledgement()

    def is_all_acknowledged(self, identifier: str) -> bool:
        """Whether everything accepted may be acknowledged; True for an unknown Sequence."""
        destination = self._sequences.destinations.get(identifier)
        return destination is None or destination.acknowledged.count == destination.accepted.count

    # --- AckRequested ---------------------------------------------------------------------------------------------

    def answer(self, incoming: Incoming) -> None:
        """Answer a message of headers only with everything it requests and may learn."""
        back_channel, asked = incoming.back_channel, incoming.asked
        acknowledgements = tuple(destination.acknowledgement() for destination in asked)
        if incoming.problem is not None:
            self._answering.fault(incoming.envelope, incoming.problem, back_channel, acknowledgements=acknowledgements)
        elif acknowledgements and back_channel is not None:
            answer = envelope_in(asked[-1].versions)
            answer.control = _ACKNOWLEDGE
            answer.acknowledgements = acknowledgements
            self._effects.append(Respond(back_channel, answer))
        else:
            self._answering.done(back_channel)

    def requested(self, envelope: Envelope, now: float) -> tuple[list[RMDestination], Fault | None]:
        """Handle every AckRequested of a message, except for the Sequence of the message.

        The message's own answer acknowledges that Sequence.

        Returns:
            The Sequences with an AcksTo that is anonymous or polls, which the answer acknowledges; the others are
                acknowledged at once. And the fault for the first Sequence that is unknown, or is over if that may be
                reported.
        """
        # WS-RM 3.8: every request is answered
        own = envelope.sequence.identifier if envelope.sequence is not None else None
        anonymous: list[RMDestination] = []
        problem = None
        for requested in envelope.ack_requested:
            if requested.identifier == own:
                continue
            destination = self._asked_for(requested.identifier, now)
            if destination is None:
                problem = problem or sequence_fault(UNKNOWN_SEQUENCE, requested.identifier)
            elif destination.acks_to.is_answered:
                anonymous.append(destination)
            else:
                self.owe(destination, now, at_once=True)
        return anonymous, problem

    def _asked_for(self, identifier: str, now: float) -> RMDestination | None:
        destination = self._sequences.destinations.get(identifier)
        # The table has no cell for a Sequence that is over and reported: it is unknown again (WS-RM appendix D).
        if destination is None or destination.asked() is not DestinationAction.ACKNOWLEDGE:
            return None
        # WCF's keep-alive is an AckRequested, so it counts as activity.
        destination.last_activity = now
        return destination

    # --- acknowledgements due -------------------------------------------------------------------------------------

    def acknowledge(
        self, destination: RMDestination, back_channel: BackChannel | None, now: float, *, at_once: bool = False
    ) -> None:
        """Acknowledge in the answer to an anonymous sender; soon to an addressable AcksTo.

        Acknowledgements to an addressable AcksTo are sent together.
        """
        # An anonymous AcksTo is reached in responses only. The source repeats the message, and the repeat is
        # acknowledged.
        if destination.acks_to.is_anonymous and back_channel is None:
            return
        if destination.acks_to.is_answered and back_channel is not None:
            acknowledgement = destination.acknowledgement()
            envelope = None
            # If an empty acknowledgement may be misunderstood, only a request for one gets it: WCF expects it then.
            if at_once or acknowledgement.ranges or destination.versions.rm.can.acknowledges_nothing:
                envelope = envelope_in(destination.versions)
                envelope.control = _ACKNOWLEDGE
                envelope.acknowledgements = (acknowledgement,)
                if destination.acks_to.is_polled:
                    envelope.to = destination.acks_to.address
            self._effects.append(Respond(back_channel, envelope))
            return
        if back_channel is not None:
            # The response is empty: the acknowledgement follows in a separate request to AcksTo.
            self._effects.append(Respond(back_channel, None))
        elif destination.accept_acks_to is None and destination.create_message_id is None and not at_once:
            return  # replies at a source that offered the Sequence: acknowledged on its next request
        self.owe(destination, now, at_once=at_once)

    def owe(self, destination: RMDestination, now: float, *, at_once: bool = False) -> None:
        """Count a message to acknowledge: soon, together with others; or at once."""
        # A source that ended its Sequence without all its replies no longer listens: a post would fail, again and
        # again.
        if destination.is_over and destination.replies.waived:
            return
        owed = self._owed[destination.identifier] = self._owed.get(destination.identifier, 0) + 1
        policy = self._sequences.policy
        if at_once:
            self._send(destination.identifier)
        elif owed >= policy.acknowledgement_count:
            self._due.want(destination.identifier, now)  # not before replies that became durable now and carry it
        else:
            self._due.want(destination.identifier, now + policy.acknowledgement_interval)

    def failed(self, sent: Transmit, now: float) -> None:
        """Repeat a stand-alone acknowledgement that got no answer, with exponential backoff."""
        if not isinstance(sent.envelope.control, Acknowledge) or sent.attempt >= MOST_ATTEMPTS:
            return
        for acknowledgement in sent.envelope.acknowledgements:
            identifier = acknowledgement.identifier
            destination = self._sequences.destinations.get(identifier)
            if destination is not None and not destination.is_over:
                self._failed[identifier] = max(sent.attempt, self._failed.get(identifier, 0))
                self._due.want(identifier, now + FIRST_PAUSE * 2.0 ** (sent.attempt - 1))

    def settle(self, identifier: str) -> None:
        """Cancel a due acknowledgement: the Sequence is over, or a message carries it."""
        self._owed.pop(identifier, None)
        self._failed.pop(identifier, None)
        self._due.forget(identifier)

    def pump(self, now: float) -> None:
        for identifier in self._due.due(now):
            self._send(identifier)

    def deadline(self) -> float | None:
        """Return when :meth:`pump` must be called next; None: not before an event."""
        return self._due.next()

    def _send(self, identifier: str) -> None:
        self._owed.pop(identifier, None)
        self._due.forget(identifier)
        attempt = self._failed.pop(identifier, 0) + 1
        destination = self._sequences.destinations.get(identifier)
        if destination is None or destination.acks_to.is_anonymous:
            return
        envelope = envelope_in(destination.versions)
        envelope.control = _ACKNOWLEDGE
        envelope.acknowledgements = (destination.acknowledgement(),)
        self._answering.send(destination.acks_to, envelope, attempt)
