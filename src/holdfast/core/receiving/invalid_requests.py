"""Refusals of requests that lack a necessary header or contradict themselves.

Responses are judged more leniently, since the peer that asked knows what they answer.
"""

from __future__ import annotations

from holdfast.core.faults import (
    INVALID_ADDRESSING_HEADER,
    INVALID_MESSAGE_INFORMATION_HEADER,
    MESSAGE_ADDRESSING_HEADER_REQUIRED,
    MESSAGE_INFORMATION_HEADER_REQUIRED,
    addressing_fault,
)
from holdfast.core.messages import Envelope, Fault
from holdfast.core.versions import Addressing


def refusal(envelope: Envelope) -> Fault | None:
    """Return the fault that answers the request regardless of its other content; None if it is valid.

    An Action is required (WS-Addressing 2005/08 core, 3.2): it says what the Body means. A fault may lack it, because
    some stacks write a fault as plain SOAP, and so may a message outside any Sequence.
    """
    lacks_action = envelope.sequence is not None and not envelope.action and envelope.control is None
    if envelope.fault is not None or not (lacks_action or envelope.contradiction):
        return None
    is_old = envelope.addressing not in (None, Addressing.V2005_08)
    if not envelope.action:
        code = MESSAGE_INFORMATION_HEADER_REQUIRED if is_old else MESSAGE_ADDRESSING_HEADER_REQUIRED
        return addressing_fault(code, "A message needs a wsa:Action; this one has none.", header="Action")
    code = INVALID_MESSAGE_INFORMATION_HEADER if is_old else INVALID_ADDRESSING_HEADER
    return addressing_fault(code, envelope.contradiction, header="Action")
