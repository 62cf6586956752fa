"""Refusals: requests that say too little, or what contradicts itself, to be taken for anything.

An answer is read more kindly: who asked knows what it is about.
"""

from __future__ import annotations

from holdfast.core.messages import Envelope, Fault
from holdfast.core.versions import Addressing


def refusal(envelope: Envelope) -> Fault | None:
    """The fault that a request is answered with whatever else it says; None if none.

    WS-Addressing demands an Action (2005/08 core, section 3.2), and it says what the Body is. A fault may lack it, for
    the stacks that write plain SOAP then, and so may what has nothing but headers to say.
    """
    lacks_action = envelope.sequence is not None and not envelope.action and envelope.control is None
    if envelope.fault is not None or not (lacks_action or envelope.contradiction):
        return None
    is_old = envelope.addressing is Addressing.V2004_08
    if not envelope.action:
        code = "MessageInformationHeaderRequired" if is_old else "MessageAddressingHeaderRequired"
        return Fault(code, "A message needs a wsa:Action; this one has none.", is_addressing=True)
    code = "InvalidMessageInformationHeader" if is_old else "InvalidAddressingHeader"
    return Fault(code, envelope.contradiction, is_addressing=True)
