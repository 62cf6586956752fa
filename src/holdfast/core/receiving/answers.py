"""Answering: where an answer goes, and what it is made of. Nowhere but on the back-channel, or to an allowed address.

It says nothing of its own: what is answered, and when, is its callers' to know.
"""

from __future__ import annotations

from functools import partial

from holdfast.core.commit import GroupCommit
from holdfast.core.events import BackChannel, Effect, Incident, Respond, Transmit
from holdfast.core.faults import SEQUENCE_CLOSED
from holdfast.core.messages import Control, EndpointReference, Envelope, Fault, SequenceAcknowledgement
from holdfast.core.receiving.allowed_addresses import Addresses
from holdfast.core.receiving.destination import RMDestination
from holdfast.core.versions import Addressing, Versions, newest_rm


def envelope_in(versions: Versions | None) -> Envelope:
    """An envelope in these versions, which are those of a Sequence or of a request that was understood."""
    assert versions is not None
    return Envelope(versions.soap, versions.addressing, versions.rm)


def response_to(request: Envelope, versions: Versions | None, control: Control) -> Envelope:
    """What answers an RM protocol message in kind."""
    response = envelope_in(versions)
    response.control = control
    response.relates_to = request.message_id or None
    return response


def fault_fields(envelope: Envelope, fault: Fault) -> dict[str, str]:
    """The fields of a log line about the fault that a message is refused with."""
    if fault.is_rm:
        return {"code": fault.code}
    return {"code": fault.code, "action": envelope.action, "reason": fault.reason}


class Answering:
    """Gives answers to whom they are for.

    Args:
        addresses: What may be sent to.
        commit: What is said only once something is durable waits for it.
        effects: Where answers go.
    """

    def __init__(self, addresses: Addresses, commit: GroupCommit, effects: list[Effect]) -> None:
        self.addresses = addresses
        self._commit = commit
        self._effects = effects

    def done(self, back_channel: BackChannel | None) -> None:
        """Nothing is to be said there."""
        if back_channel is not None:
            self._effects.append(Respond(back_channel, None))

    def send(self, target: EndpointReference, envelope: Envelope, attempt: int = 0) -> None:
        """Send to an endpoint that may be sent to; ``attempt``: which attempt this is, for what is sent again."""
        envelope.to = target.address
        envelope.reference_parameters = target.reference_parameters
        self._effects.append(Transmit(target.address, envelope, attempt=attempt))

    def answer(self, target: EndpointReference | None, back_channel: BackChannel | None, answer: Envelope) -> None:
        """Send to an address that is allowed, else answer on the back-channel."""
        if target is not None and self._has_address(target):
            self.done(back_channel)  # before the answer: some lose one that overtakes its 202
            self.send(target, answer)
        elif back_channel is not None:
            self._effects.append(Respond(back_channel, answer))

    def answer_durably(
        self, target: EndpointReference | None, back_channel: BackChannel | None, answer: Envelope
    ) -> None:
        """The same, once all that the open batch holds now is durable."""
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
        """Answer with a fault; about a known Sequence it goes where its acknowledgements go."""
        level = "warning" if fault.is_rm else "info"
        sequence = envelope.sequence
        about = fault.identifier or (sequence.identifier if sequence is not None else "")
        number = sequence.message_number if sequence is not None and about == sequence.identifier else 0
        self._effects.append(Incident("fault.raised", about, number, level, fault_fields(envelope, fault)))
        # Who speaks no WS-Addressing (WCF's BasicHttpBinding) cannot read its headers, which must be understood.
        rm = envelope.rm or newest_rm(envelope.addressing or Addressing.V2005_08)
        answer = Envelope(envelope.soap, envelope.addressing, rm)
        answer.fault = fault
        answer.not_understood = envelope.not_understood
        answer.relates_to = envelope.message_id
        answer.acknowledgements = acknowledgements
        if destination is not None and fault.code == SEQUENCE_CLOSED:
            answer.acknowledgements = (destination.acknowledgement(),)
        target = destination.acks_to if destination is not None else (envelope.fault_to or envelope.reply_to)
        self.answer(target, back_channel, answer)

    def fault_beside(self, envelope: Envelope, fault: Fault) -> bool:
        """Tell of a bad header in a message of its own, to where faults go; False if that is only the answer."""
        target = envelope.fault_to or envelope.reply_to
        if target is None or not self._has_address(target):
            return False
        self.fault(envelope, fault, None)
        return True
