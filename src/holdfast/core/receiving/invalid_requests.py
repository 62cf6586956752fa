"""Refusals: requests that say too little, or what contradicts itself, to be taken for anything.

An answer is read more kindly: who asked knows what it is about.
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
    """The fault that a request is answered with whatever else it says; None if none.

    An Action is demanded (WS-Addressing 2005/08 core, 3.2), and it says what the Body is. A fault may lack it, for
    the stacks that write plain SOAP then, and so may what has nothing but headers to say.
    """
    lacks_action = envelope.sequence is not None and not envelope.action and envelope.control is None
    if envelope.fault is not None or not (lacks_action or envelope.contradiction):
        return None
    is_old = envelope.addressing is Addressing.V2004_08
    if not envelope.action:
        code = MESSAGE_INFORMATION_HEADER_REQUIRED if is_old else MESSAGE_ADDRESSING_HEADER_REQUIRED
        return addressing_fault(code, "A message needs a wsa:Action; this one has none.")
    code = INVALID_MESSAGE_INFORMATION_HEADER if is_old else INVALID_ADDRESSING_HEADER
    return addressing_fault(code, envelope.contradiction)
