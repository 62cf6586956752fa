"""Fault replies: faults that requesters receive as the replies to their requests, kept and repeated like any reply."""

from __future__ import annotations

from contextlib import suppress

from holdfast.core.faults import MUST_UNDERSTAND, addressing_code
from holdfast.core.messages import Envelope, Fault
from holdfast.core.records import Record
from holdfast.core.versions import SOAP, Addressing
from holdfast.endpoint.envelopes.message import ApplicationFault, check_code, detail_content, fault_body
from holdfast.exceptions import EnvelopeError
from holdfast.wire import check_action
from holdfast.wire.faults import encode_fault_detail, encode_not_understood, encode_problem
from holdfast.wire.names import SOAP_NS, WSA_NS

_ACTION = "http://www.w3.org/2005/08/addressing/soap/fault"
"""Where the requester speaks WS-Addressing 2004/08, that version's action is written instead."""
_SET_ASIDE = ApplicationFault("The service failed to handle the request; it has been set aside.", sender=False)


def fault_reply(record: Record, fault: ApplicationFault, addressing: Addressing | None = None) -> Record | None:
    """Return the reply that carries a fault to a requester; None if no requester waits for one.

    Args:
        addressing: The requester's version of WS-Addressing. In 2005/08, each fault that the WSDL declares has another
            default action (Metadata, 4.4.4).

    Raises:
        EnvelopeError: Its header blocks are values, which only a handler of an operation gives.
    """
    if not record.wants_reply:
        return None
    action = fault.action or (fault.default_action if addressing is Addressing.V2005_08 else "") or _ACTION
    body = fault_body(fault, record.soap)
    if not isinstance(fault.headers, bytes):
        raise EnvelopeError(f"The headers of the fault must be bytes of XML, not {type(fault.headers).__name__}.")
    return Record(
        "", 0, action, body, record.received_at, soap=record.soap, headers=fault.headers, fault_to=record.fault_to
    )


def set_aside(record: Record) -> Record | None:
    """Return the fault reply for a discarded message; it reveals nothing about the internal error."""
    return fault_reply(record, _SET_ASIDE)


def replace_unwritable(envelope: Envelope, reason: str) -> bool:
    """Replace a reply that can never be written by a fault, in the same place of its Sequence: its requester then
    acknowledges it. Return whether the message is a reply."""
    # A forwarder, or a sink, also sends messages that relate to others: a fault would take the place of the message.
    is_content = envelope.control is None and envelope.fault is None
    if not (envelope.is_reply and is_content) or envelope.relates_to is None:
        return False
    fault = ApplicationFault(f"The reply cannot be sent: {reason}", sender=False)
    envelope.action, envelope.body = _ACTION, fault_body(fault, envelope.soap.value)
    envelope.headers, envelope.attachments = (), b""
    return True


def passed_on(record: Record, fault: Fault, addressing: Addressing) -> Record | None:
    """Return the reply that carries a fault to a requester: another service's, or our own about the request itself.

    Args:
        addressing: The requester's version of WS-Addressing; its namespace holds the codes.
    """
    namespace, name, action = fault.code_namespace, fault.code, fault.action
    if fault.is_addressing:
        namespace, name = WSA_NS[addressing], addressing_code(name, addressing)
        action = f"{namespace}/fault"
    elif fault.code == MUST_UNDERSTAND:
        namespace = SOAP_NS[SOAP(record.soap)]
    code = f"{{{namespace}}}{name}" if namespace else ""
    told = ApplicationFault(fault.reason, sender=fault.sender)
    is_1_2 = record.soap == SOAP.V1_2.value
    # A service may write what cannot be written here: each part is kept or left out separately.
    with suppress(EnvelopeError):
        check_code("code", code)
        told.code = code
    with suppress(EnvelopeError):
        check_action(action, of_peer=True)
        told.action = action
    headers = ""
    with suppress(EnvelopeError):
        declared = f' xmlns:wsa="{WSA_NS[addressing]}"'
        is_new = fault.is_addressing and addressing is Addressing.V2005_08
        detail = detail_content(fault.detail or (encode_problem(fault, declared).encode() if is_new else b""))
        if not is_1_2:  # SOAP 1.1 section 4.4: the detail of what a header is at fault for is in a header
            headers = encode_fault_detail(fault, addressing, declared)
        told.detail = b"" if headers else detail
    reply = fault_reply(record, told)
    if reply is not None and is_1_2:
        declared = f' xmlns:s="{SOAP_NS[SOAP.V1_2]}"'
        headers = "".join([encode_not_understood(name, declared) for name in fault.not_understood])
    if reply is not None:
        reply.headers = headers.encode()
    return reply
