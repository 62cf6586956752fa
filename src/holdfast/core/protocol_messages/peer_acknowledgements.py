"""Acknowledgements, faults and answers from the peer about outbound messages."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Protocol

from holdfast.core.events import BackChannel, Declined, FaultReceived, Incident, Transmit
from holdfast.core.faults import LOCKS_ACCOUNT, SEQUENCE_TERMINATED, UNKNOWN_SEQUENCE, sequence_fault
from holdfast.core.messages import (
    Acknowledge,
    CloseSequenceResponse,
    Envelope,
    Fault,
    IncompleteSequenceBehavior,
    SequenceAcknowledgement,
    TerminateSequence,
)
from holdfast.core.origin import Origin
from holdfast.core.receiving.authority import Authority
from holdfast.core.receiving.inbound import Inbound
from holdfast.core.receiving.replies import Replies
from holdfast.core.sending.outbound import Outbound
from holdfast.core.sending.outboxes.outbox import Outbox
from holdfast.core.sending.outboxes.peer_answers import acknowledged_alone, receive_acknowledgement, receive_fault
from holdfast.core.sending.polling.pollers import Posted, is_poll, is_request

_NO_DISCARD = IncompleteSequenceBehavior.NO_DISCARD

ABANDONED = "abandoned by its source"
"""Why a Sequence ended: its source ended the Sequence that it had offered for replies."""


class Receive(Protocol):
    """Receives a message with any content."""

    def __call__(
        self, envelope: Envelope, back_channel: BackChannel | None, now: float, sent: Transmit | None = None
    ) -> None: ...


def is_reply(envelope: Envelope, back_channel: BackChannel | None) -> bool:
    """Whether a fault without a Sequence is the application's answer to a request.

    The destination acknowledges such a request with its answer, but not a message that the destination itself refuses.
    """
    assert envelope.fault is not None
    answers = back_channel is None and envelope.relates_to is not None
    return answers and not envelope.fault.is_rm and bool(envelope.acknowledgements)


def _refuses_account(envelope: Envelope | None) -> bool:
    return envelope is not None and envelope.fault is not None and envelope.fault.code in LOCKS_ACCOUNT


def _is_last_word(fault: Fault | None, identifier: str) -> bool:
    """Whether a fault reports the end of that Sequence, in a version that has no final acknowledgement."""
    return fault is not None and fault.code == SEQUENCE_TERMINATED and fault.identifier == identifier


def _plain_acknowledgement(sent: Transmit, envelope: Envelope | None) -> SequenceAcknowledgement | None:
    """Return an answer's acknowledgement if that is one range and the whole content."""
    if envelope is None or type(envelope.control) is not Acknowledge or not sent.number:
        return None
    if len(envelope.acknowledgements) != 1 or envelope.sequence or envelope.ack_requested or envelope.not_understood:
        return None
    acknowledgement = envelope.acknowledgements[0]
    is_plain = len(acknowledgement.ranges) == 1 and not acknowledgement.nacks and not acknowledgement.final
    return acknowledgement if is_plain else None


class PeerAcknowledgements:
    """Applies the peer's reports to the Sequences."""

    def __init__(
        self, inbound: Inbound, outbound: Outbound, authority: Authority, replies: Replies, receive: Receive
    ) -> None:
        self._inbound = inbound
        self._outbound = outbound
        self._authority = authority
        self._replies = replies
        self._receive = receive

    def answers(self, answers: list[tuple[Transmit, Envelope | None]], now: float) -> None:
        """Handle answers to sent messages: messages, or ``None`` for an empty 200 or 202.

        Of the answers that only acknowledge, one for each Sequence is processed, the one with the highest range: it
        includes the others.
        """
        furthest: dict[tuple[str, str], tuple[SequenceAcknowledgement, float]] = {}
        # Any answer shows that the destination is there, so the circuits hear of it first.
        accounts = self._outbound.context.accounts
        for sent, envelope in answers:
            self._outbound.circuits.answered(sent.to, now)
            if accounts.trying and not _refuses_account(envelope):
                accounts.answered(sent.to)
        # 1. Of each Sequence, the acknowledgement with the highest range.
        plain = [_plain_acknowledgement(sent, envelope) for sent, envelope in answers]
        for (sent, _), acknowledgement in zip(answers, plain, strict=True):
            if acknowledgement is not None:
                known = furthest.get((sent.to, acknowledgement.identifier))
                # A cumulative acknowledgement (WS-RM 3.9): the one with the highest number contains the others.
                if known is None or known[0].ranges[0][1] < acknowledgement.ranges[0][1]:
                    furthest[sent.to, acknowledgement.identifier] = acknowledgement, sent.left_at
        # 2. Those are processed. One that is refused is left to step 3.
        taken: dict[tuple[str, str], tuple[Outbox, tuple[int, int]]] = {}
        for (address, identifier), (acknowledgement, at) in furthest.items():
            outbox = self._authority.find(identifier, Origin(address))
            if outbox is not None and not receive_acknowledgement(outbox, acknowledgement, now, at):
                self._replies.acknowledged(identifier, now)
                taken[address, identifier] = outbox, acknowledgement.ranges[0]
        # 3. Every exchange ends. What step 2 included needs nothing more; every other answer is processed on its own.
        for (sent, envelope), acknowledgement in zip(answers, plain, strict=True):
            self._outbound.exchanges.ended(sent, now)
            found = taken.get((sent.to, acknowledgement.identifier)) if acknowledgement is not None else None
            if acknowledgement is not None and found is not None:
                (lower, upper), (outbox, (first, last)) = acknowledgement.ranges[0], found
                # Step 2 has processed its content.
                if first <= lower <= upper <= last:
                    acknowledged_alone(outbox, acknowledgement, sent.number, now)
                    self._outbound.exchanges.answered(sent, now, was_empty=False)
                    continue
            self._answer(sent, envelope, now)

    def _answer(self, sent: Transmit, envelope: Envelope | None, now: float) -> None:
        if isinstance(sent.envelope.control, TerminateSequence):
            # An answer is evidence that TerminateSequence arrived. It has no response in 1.0.
            self._outbound.terminate_sent(sent.source, envelope is None, now)
        if is_poll(sent):
            if envelope is not None:
                self._polled(sent, envelope, now)
            self._outbound.context.pollers.answered(sent, envelope, now)
        elif envelope is not None:
            self._receive(envelope, None, now, sent)
            if envelope.not_understood:
                self._outbound.exchanges.failed(sent, now)  # the destination processed nothing of it
                return
            if sent.number and isinstance(envelope.control, Acknowledge):
                for acknowledgement in envelope.acknowledgements:
                    outbox = self._authority.find(acknowledgement.identifier, Origin(sent.to))
                    if outbox is not None:
                        acknowledged_alone(outbox, acknowledgement, sent.number, now)
        if envelope is None or envelope.fault is None:
            self._outbound.exchanges.answered(sent, now, was_empty=envelope is None)

    def _polled(self, sent: Transmit, envelope: Envelope, now: float) -> None:
        """Receive the message in the answer to a poll (WS-MakeConnection 3.2).

        It may be a request: its answer is posted to its sender.
        """
        pollers = self._outbound.context.pollers
        why = pollers.misdirected(sent, envelope)
        if why:
            detail = {"what": why, "party": sent.to}
            self._inbound.effects.append(Incident("message.unauthorized", level="warning", detail=detail))
            return
        named = self._inbound.destinations.get(envelope.sequence.identifier) if envelope.sequence is not None else None
        if named is not None and (named.create_message_id is None or named.acks_to.is_anonymous):
            pollers.owe(sent, named.identifier)
        # Only a request gets an answer: anything else would be answered without end.
        channel = BackChannel(Posted(sent.to)) if is_request(envelope.control) else None
        self._receive(envelope, channel, now, sent)

    def fault(self, envelope: Envelope, fault: Fault, sent: Transmit | None, origin: Origin, now: float) -> None:
        """Handle a fault, either the answer to ``sent`` or a separate message."""
        self._inbound.effects.append(FaultReceived(fault))
        destination = self._inbound.destinations.get(fault.identifier or "")
        # It names a Sequence that this side receives, so its source speaks, not a destination.
        if destination is not None and fault.is_rm:
            self._inbound.fault_received(destination, fault.code, now)
            if sent is not None:
                self._outbound.exchanges.refused_for_acknowledgement(sent, destination.identifier, now)
        else:
            outbox = self._outbox_of(envelope, fault, sent, origin)
            number = sent.number if sent is not None else 0
            if outbox is None and (sent is None or is_poll(sent)) and not fault.is_rm:
                outbox, number = self._refused_request(envelope, origin)
            if outbox is not None and fault.is_rm and fault.code == SEQUENCE_TERMINATED and outbox.answers is not None:
                self._abandoned(outbox, outbox.answers, fault, now)
            elif outbox is not None and outbox.source is not None:
                outbox.last_answer = f"fault {fault.code}: {fault.reason}"
                receive_fault(outbox, fault, number, now, envelope.relates_to)

    def _refused_request(self, envelope: Envelope, origin: Origin) -> tuple[Outbox | None, int]:
        """Return the outbox and number of the request that a posted fault refuses.

        Without one, they are None and 0. A destination posts the fault for a request that it does not accept to the
        request's FaultTo or ReplyTo address (WS-Addressing 1.0 core, section 3.4). It accepted a request that it
        acknowledged.
        """
        found = self._outbound.request_of(envelope.relates_to, partial(self._authority.may_speak, origin=origin))
        if found is not None:
            outbox, number = found
            entry = outbox.source.flight.get(number) if outbox.source is not None else None
            # Acknowledged already, it was accepted: then the fault is not about the request.
            if entry is not None and entry.was_lost:
                return outbox, number
        return None, 0

    def service_fault(self, envelope: Envelope, sent: Transmit | None, origin: Origin, now: float) -> None:
        """Handle a service's fault for a message that asks for no reply.

        The destination acknowledges the message all the same, so it is not sent again (WCF does both in one answer, as
        a message of the offered Sequence). Call this before that acknowledgement is processed, which removes the
        message from the flight.
        """
        fault, sequence, relates_to = envelope.fault, envelope.sequence, envelope.relates_to
        assert fault is not None
        identifier = "" if sequence is None else sequence.identifier
        may_answer = partial(self._authority.may_speak, origin=origin)
        if self._outbound.request_of(relates_to, may_answer, identifier) is not None:
            return
        if sequence is not None:
            destination = self._inbound.destinations.get(identifier)
            outbox = self._outbound.sequences.by_offer.get(identifier)
            # A repeat was reported when it first came.
            if destination is None or sequence.message_number in destination.accepted:
                return
        else:
            outbox = self._answered(envelope, sent)
        source = outbox.source if outbox is not None else None
        if outbox is None or source is None:
            return
        number = source.flight.number_of(relates_to)
        if relates_to is None and sent is not None and sent.source == source.local_id and sent.number in source.flight:
            number = sent.number
        if number == 0 and sequence is None:
            return  # it was reported when it first arrived
        detail = {"key": outbox.key, "code": fault.code, "reason": fault.reason, "message_id": relates_to}
        self._inbound.effects.append(
            Incident("message.refused_by_service", source.identifier or "", number, "warning", detail)
        )
        offset = outbox.records.offset_of(number) if number else -1
        self._inbound.effects.append(Declined(outbox.key, offset, relates_to, fault))
        if outbox.forwarding is not None and number:
            outbox.hooks.forwarders.giving_up.declined(outbox, number, fault, now)

    def _answered(self, envelope: Envelope, sent: Transmit | None) -> Outbox | None:
        """Return the outbox of the message that a fault without a Sequence answers; None if unknown."""
        if sent is None:
            return None
        if not is_poll(sent):
            return self._outbound.sequences.by_local_id.get(sent.source)
        for outbox in self._outbound.context.pollers.outboxes(sent):
            if outbox.source is not None and outbox.source.flight.number_of(envelope.relates_to):
                return outbox
        return None

    def _abandoned(self, outbox: Outbox, answered: str, fault: Fault, now: float) -> None:
        """Handle a requester's termination of the Sequence that it offered for replies.

        The requester wants no replies and sends no further messages (WCF does this when its user calls Abort). The
        Sequence ``answered`` ends too.
        """
        self._outbound.registry.close(outbox.key, now)
        destination = self._inbound.destinations.get(answered)
        if destination is not None:
            why: dict[str, object] = {"why": ABANDONED, "code": fault.code, "reason": fault.reason}
            self._inbound.fault_received(destination, fault.code, now, why)

    def _outbox_of(self, envelope: Envelope, fault: Fault, sent: Transmit | None, origin: Origin) -> Outbox | None:
        """Return the outbox of the Sequence in a fault; None if unknown or another peer's."""
        identifier = fault.identifier
        # Several peers may have granted this Identifier: only the one that speaks is meant.
        if identifier is not None and self._outbound.sequences.named(identifier):
            outbox = self._authority.find(identifier, origin)
            if outbox is not None:
                return outbox
            self._authority.ignore(fault.code, identifier, origin)
            if sent is None:
                return None
        if sent is not None and not is_poll(sent):
            return self._outbound.sequences.by_local_id.get(sent.source)
        # A refusal posted as a separate message names its CreateSequence by RelatesTo: only the destination knows that
        # MessageID. But a peer that offered a Sequence chose the name of that one.
        outbox = self._outbound.sequences.by_local_id.get(envelope.relates_to or "")
        return None if outbox is None or outbox.is_for_replies else outbox

    def _asked_at(self, envelope: Envelope, sent: Transmit | None) -> float | None:
        """Return when the answered request was sent; None if that is unknown.

        A destination may answer a repeat with a stored reply, with an acknowledgement of the same age.
        """
        if sent is None or is_poll(sent):
            return None
        if isinstance(envelope.control, Acknowledge | CloseSequenceResponse):
            return sent.left_at
        outbox = self._outbound.sequences.by_local_id.get(sent.source)
        source = outbox.source if outbox is not None else None
        is_first = sent.attempt == 1 and source is not None and sent.number > source.numbers.sent_before
        if envelope.fault is not None:  # the application's may be a stored reply
            return sent.left_at if envelope.fault.is_rm else None
        return sent.left_at if is_first and envelope.control is None else None

    def acknowledgements(
        self, envelope: Envelope, origin: Origin, now: float, sent: Transmit | None = None
    ) -> Fault | None:
        """Process every SequenceAcknowledgement of a message; return the first fault.

        The message that carries them is processed as without them (WS-RM 3.2). If it is a message of a Sequence,
        ``ends`` is called afterwards.
        """
        problem = None
        for acknowledgement in envelope.acknowledgements:
            identifier = acknowledgement.identifier
            outbox = self._authority.find(identifier, origin)
            if outbox is not None:
                asked_at = self._asked_at(envelope, sent)
                if _is_last_word(envelope.fault, identifier):
                    asked_at = math.inf
                # Final ends the Sequence and with it that of the replies, so the reply in this message comes first.
                if acknowledgement.final and (envelope.sequence is not None or outbox.awaits_certainty()):
                    # ``ends``, or the last answer, processes it again.
                    acknowledgement = replace(acknowledgement, final=False)
                    keeps = outbox.source is not None and outbox.source.behavior is _NO_DISCARD
                    asked_at = math.inf if keeps else None
                fault = receive_acknowledgement(outbox, acknowledgement, now, asked_at)
                problem = problem or fault
                self._replies.acknowledged(identifier, now)
            elif self._outbound.sequences.named(identifier):
                self._authority.ignore("SequenceAcknowledgement", identifier, origin)
            elif identifier not in self._inbound.sequences.offered:
                problem = problem or sequence_fault(UNKNOWN_SEQUENCE, identifier)
            # otherwise it names a Sequence of replies that ended with the requests' one, and is ending again
        return problem

    def ends(self, envelope: Envelope, origin: Origin, sent: Transmit | None, now: float) -> None:
        """Process the final acknowledgements of a Sequence's message, once it is durable.

        The message may be a reply, and the Sequence of replies ends with that of the requests: a reply processed after
        the end would belong to an unknown Sequence.
        """
        for acknowledgement in envelope.acknowledgements:
            if acknowledgement.final:
                outbox = self._authority.find(acknowledgement.identifier, origin)
                if outbox is not None and not outbox.awaits_certainty():
                    receive_acknowledgement(outbox, acknowledgement, now, self._asked_at(envelope, sent))
