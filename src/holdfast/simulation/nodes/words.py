"""Short descriptions of envelopes, for traces."""

from __future__ import annotations

from holdfast.core.messages import CreateSequence, CreateSequenceResponse, Envelope, SequenceAcknowledgement


def describe(envelope: Envelope | None) -> str:
    if envelope is None:
        return "with nothing (202)"
    words = []
    control = envelope.control
    if control is not None:
        words.append(type(control).__name__)
    if isinstance(control, CreateSequence) and control.offer is not None:
        words.append(f"offering {control.offer.identifier}")
    if isinstance(control, CreateSequenceResponse):
        words.append(f"granting {control.identifier}")
    elif hasattr(control, "identifier"):
        words.append(control.identifier)  # type: ignore[union-attr]
    if envelope.fault is not None:
        words.append(f"fault {envelope.fault.code} {envelope.fault.identifier or ''}".rstrip())
    if envelope.sequence is not None:
        words.append(f"message {envelope.sequence.message_number} of {envelope.sequence.identifier}")
    if envelope.body:
        words.append(repr(envelope.body.decode()))
    words.extend(f"asking for the acknowledgement of {asked.identifier}" for asked in envelope.ack_requested)
    words.extend(_acknowledgement(acknowledgement) for acknowledgement in envelope.acknowledgements)
    return " ".join(words)


def _acknowledgement(acknowledgement: SequenceAcknowledgement) -> str:
    ranges = " ".join(f"{lower}-{upper}" for lower, upper in acknowledgement.ranges) or "none"
    nacks = "".join(f" nack {number}" for number in acknowledgement.nacks)
    final = " final" if acknowledgement.final else ""
    buffer = "" if acknowledgement.buffer_remaining is None else f" buffer {acknowledgement.buffer_remaining}"
    return f"[acknowledging {ranges}{nacks}{final} of {acknowledgement.identifier}{buffer}]"
