"""Answers: their content and target, a back-channel or an allowed address.

The callers decide what is answered, and when.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from holdfast.core.commit import GroupCommit
from holdfast.core.events import BackChannel, Effect, Incident, Respond, Transmit
from holdfast.core.faults import SEQUENCE_CLOSED, SEQUENCE_TERMINATED
from holdfast.core.messages import Control, EndpointReference, Envelope, Fault, SequenceAcknowledgement
from holdfast.core.receiving.allowed_addresses import Addresses
from holdfast.core.rm_destination.destination import RMDestination
from holdfast.core.sending.polling.mailboxes import Mailboxes
from holdfast.core.versions import Addressing, Versions, newest_rm


def envelope_in(versions: Versions | None) -> Envelope:
    """Return an envelope in the versions of a Sequence or of a valid request."""
    assert versions is not None
    return Envelope(versions.soap, versions.addressing, versions.rm)


def response_to(request: Envelope, versions: Versions | None, control: Control) -> Envelope:
    """Return the response to an RM protocol message."""
    response = envelope_in(versions)
    response.control = control
    # An empty MessageID relates nothing.
    response.relates_to = request.message_id or None
    return response


def fault_fields(envelope: Envelope, fault: Fault) -> dict[str, str]:
    """Return the fields of a log line about a rejected message's fault."""
    if fault.is_rm:
        # The code says it all: most reasons are the specification's texts.
        return {"code": fault.code}
    return {"code": fault.code, "action": envelope.action, "reason": fault.reason}


class AnswerSender:
    def __init__(self, addresses: Addresses, commit: GroupCommit, effects: list[Effect], mailboxes: Mailboxes) -> None:
        self.addresses = addresses
        self._mailboxes = mailboxes
        self._commit = commit
        self._effects = effects

    def done(self, back_channel: BackChannel | None) -> None:
        """Answer the back-channel with nothing."""
        if back_channel is not None:
            self._effects.append(Respond(back_channel, None))

    def send(self, target: EndpointReference, envelope: Envelope, attempt: int = 0) -> None:
        """Send to an allowed endpoint; ``attempt``: the number of a repeated attempt."""
        envelope.to = target.address
        envelope.reference_parameters = target.reference_parameters
        if target.is_polled:
            self._mailboxes.put(target.address, envelope)
        else:
            self._effects.append(Transmit(target.address, envelope, attempt=attempt))

    def answer(self, target: EndpointReference | None, back_channel: BackChannel | None, answer: Envelope) -> None:
        """Send to an address that is allowed, else answer on the back-channel.

        A peer that polls gets it on the back-channel of its message (WS-MakeConnection 3.1), without a poll.
        """
        if target is not None and self._has_address(target) and not (target.is_polled and back_channel is not None):
            self.done(back_channel)  # before the answer: some lose one that overtakes its 202
            self.send(target, answer)
        elif back_channel is not None:
            if target is not None and target.is_polled:
                answer.to, answer.reference_parameters = target.address, target.reference_parameters
            self._effects.append(Respond(back_channel, answer))

    def answer_durably(
        self, target: EndpointReference | None, back_channel: BackChannel | None, answer: Envelope
    ) -> None:
        """Do the same once the content of the open batch is durable."""
        self._commit.then(partial(self._answer, target, back_channel, answer))

    def _answer(
        self, target: EndpointReference | None, back_channel: BackChannel | None, answer: Envelope, now: float
    ) -> None:
        self.answer(target, back_channel, answer)

    def _has_address(self, target: EndpointReference) -> bool:
        return not target.is_anonymous and not target.is_none and self.addresses.may_send_to(target)

    # --- faults ---------------------------------------------------------------------------------------------------

    def fault(
        self,
        envelope: Envelope,
        fault: Fault,
        back_channel: BackChannel | None,
        destination: RMDestination | None = None,
        acknowledgements: tuple[SequenceAcknowledgement, ...] = (),
    ) -> None:
        """Answer with a fault; about a known Sequence it goes where its acknowledgements go.

        Otherwise it goes to FaultTo or ReplyTo (WS-Addressing 2005/08 core, 3.4).
        """
        level = "warning" if fault.is_rm else "info"
        sequence = envelope.sequence
        about = fault.identifier or (sequence.identifier if sequence is not None else "")
        number = sequence.message_number if sequence is not None and about == sequence.identifier else 0
        self._effects.append(Incident("fault.raised", about, number, level, fault_fields(envelope, fault)))
        # A peer without WS-Addressing (WCF's BasicHttpBinding) cannot read its headers, which must be understood.
        rm = envelope.rm or newest_rm(envelope.addressing or Addressing.V2005_08)
        answer = Envelope(envelope.soap, envelope.addressing, rm)
        # A version without this code, such as 2004/03 without CreateSequenceRefused, has the reason alone.
        answer.fault = fault if fault.code in rm.can.faults else replace(fault, is_rm=False)
        answer.not_understood = envelope.not_understood
        answer.relates_to = envelope.message_id
        answer.acknowledgements = acknowledgements
        # WS-RM 4.7: SequenceClosed carries the final acknowledgement, from which the source learns what arrived. A
        # version without it says SequenceTerminated instead.
        closed = SEQUENCE_CLOSED if rm.can.closes else SEQUENCE_TERMINATED
        if destination is not None and fault.code == closed:
            answer.acknowledgements = (destination.acknowledgement(),)
        # WS-RM 4.1: a fault about a known Sequence goes where its acknowledgements go.
        target = destination.acks_to if destination is not None else (envelope.fault_to or envelope.reply_to)
        self.answer(target, back_channel, answer)

    def fault_beside(self, envelope: Envelope, fault: Fault) -> bool:
        """Report a bad header in a separate message; False if only the answer can carry it."""
        target = envelope.fault_to or envelope.reply_to
        # A response has one message, and the answer to the message itself takes it.
        if target is None or not self._has_address(target):
            return False
        self.fault(envelope, fault, None)
        return True
