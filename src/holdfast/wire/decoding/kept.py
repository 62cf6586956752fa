"""Size limits for the parts of an envelope that may be stored longer than the envelope.

The limits apply to the decoded values, whichever path decoded them.
"""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.core.messages import (
    CloseSequence,
    CloseSequenceResponse,
    CreateSequence,
    CreateSequenceResponse,
    EndpointReference,
    Envelope,
    TerminateSequence,
    TerminateSequenceResponse,
)
from holdfast.exceptions import LimitExceeded
from holdfast.wire.limits import Limits

_ABOUT_ONE = (
    CreateSequenceResponse,
    CloseSequence,
    CloseSequenceResponse,
    TerminateSequence,
    TerminateSequenceResponse,
)


def check_kept(envelope: Envelope, limits: Limits) -> None:
    """Refuse an envelope with an identifier, address or reference parameter that is too long to be stored.

    Raises:
        LimitExceeded: naming the element, not its content.
    """
    soap = envelope.soap.value
    for name, value in _uris(envelope):
        if value is not None and len(value) > limits.max_uri:
            raise LimitExceeded(f"{name} is longer than {limits.max_uri} characters", soap=soap)
    for name, reference in _references(envelope):
        if reference is None:
            continue
        if len(reference.address) > limits.max_uri:
            raise LimitExceeded(f"the address of {name} is longer than {limits.max_uri} characters", soap=soap)
        if sum(map(len, reference.reference_parameters)) > limits.max_reference_parameters:
            raise LimitExceeded(
                f"the reference parameters of {name} have more than {limits.max_reference_parameters} bytes", soap=soap
            )


def _uris(envelope: Envelope) -> Iterator[tuple[str, str | None]]:
    yield "Action", envelope.action
    yield "To", envelope.to
    yield "MessageID", envelope.message_id
    yield "RelatesTo", envelope.relates_to
    if envelope.sequence is not None:
        yield "Sequence's Identifier", envelope.sequence.identifier
    for acknowledgement in envelope.acknowledgements:
        yield "SequenceAcknowledgement's Identifier", acknowledgement.identifier
    for requested in envelope.ack_requested:
        yield "AckRequested's Identifier", requested.identifier
    if envelope.terminates:
        yield "SequenceTerminate's Identifier", envelope.terminates
    control, fault = envelope.control, envelope.fault
    if isinstance(control, _ABOUT_ONE):
        yield f"{type(control).__name__}'s Identifier", control.identifier
    elif isinstance(control, CreateSequence) and control.offer is not None:
        yield "Offer's Identifier", control.offer.identifier
    for name in envelope.not_understood:
        yield "the name of a header block", name
    if fault is not None:
        yield "the fault's code", fault.code
        yield "the fault's Identifier", fault.identifier


def _references(envelope: Envelope) -> Iterator[tuple[str, EndpointReference | None]]:
    yield "ReplyTo", envelope.reply_to
    yield "FaultTo", envelope.fault_to
    yield "From", envelope.from_
    control = envelope.control
    if isinstance(control, CreateSequence):
        yield "AcksTo", control.acks_to
        if control.offer is not None:
            yield "the Offer's Endpoint", control.offer.endpoint
    elif isinstance(control, CreateSequenceResponse):
        yield "Accept's AcksTo", control.accept_acks_to
