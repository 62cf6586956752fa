"""Faults: their codes, their texts, and what each one says of its Sequence. Either side raises and heeds them.

The codes of WS-RM are spelt once, by the errors that a user sees (``holdfast.exceptions``). Which state a fault moves a
Sequence to stands in the state tables; how it is written is the business of ``wire``.
"""

from __future__ import annotations

from dataclasses import replace

from holdfast import exceptions
from holdfast.core.messages import MC_NS, Envelope, Fault
from holdfast.core.versions import Addressing
from holdfast.exceptions import clause

HOLDFAST_NS = "urn:holdfast"
"""The namespace of codes that no specification has."""

NO_REPLY = "NoReply"
REPLY_TOO_LARGE = "ReplyTooLarge"
"""Replaces a reply that is larger than its receiver accepts."""

# --- WS-RM 4 (1.0 for the last) ---------------------------------------------------------------------------------

SEQUENCE_TERMINATED = exceptions.SequenceTerminated.code
UNKNOWN_SEQUENCE = exceptions.UnknownSequence.code
INVALID_ACKNOWLEDGEMENT = exceptions.InvalidAcknowledgement.code
MESSAGE_NUMBER_ROLLOVER = exceptions.MessageNumberRollover.code
CREATE_SEQUENCE_REFUSED = exceptions.CreateSequenceRefused.code
SEQUENCE_CLOSED = exceptions.SequenceClosed.code
WSRM_REQUIRED = exceptions.WSRMRequired.code
LAST_MESSAGE_NUMBER_EXCEEDED = exceptions.LastMessageNumberExceeded.code

REASONS = {
    SEQUENCE_TERMINATED: "The Sequence has been terminated due to an unrecoverable error.",
    UNKNOWN_SEQUENCE: "The value of wsrm:Identifier is not a known Sequence identifier.",
    INVALID_ACKNOWLEDGEMENT: "The SequenceAcknowledgement violates the cumulative Acknowledgement invariant.",
    MESSAGE_NUMBER_ROLLOVER: "The maximum value for wsrm:MessageNumber has been exceeded.",
    CREATE_SEQUENCE_REFUSED: "The Create Sequence request has been refused by the RM Destination.",
    SEQUENCE_CLOSED: "The Sequence is closed and cannot accept new messages.",
    WSRM_REQUIRED: "The RM Destination requires the use of WSRM",
    LAST_MESSAGE_NUMBER_EXCEEDED: (
        "The value for wsrm:MessageNumber exceeds the value of the MessageNumber accompanying "
        "a LastMessage element in this Sequence."
    ),
}
"""The specification's reason texts."""

ENDS_FOR_SOURCE = frozenset({UNKNOWN_SEQUENCE, SEQUENCE_TERMINATED, LAST_MESSAGE_NUMBER_EXCEEDED})
"""Faults of a destination that end the Sequence, in every version."""

ENDS_FOR_DESTINATION = frozenset({UNKNOWN_SEQUENCE, SEQUENCE_TERMINATED})
"""Faults of a source that end the Sequence."""

TELLS_OF_END = frozenset({SEQUENCE_CLOSED, SEQUENCE_TERMINATED, UNKNOWN_SEQUENCE})
"""Faults that answer a new message of an ended or closed Sequence. Any other fault concerns only that message."""

HTTP_REFUSES_CREDENTIALS = frozenset({"HTTP 401", "HTTP 403"})
"""Codes of the statuses with which a service, or a proxy before it, refuses credentials (RFC 9110, 15.5.2 and
15.5.4)."""

REFUSES_ACCOUNT = HTTP_REFUSES_CREDENTIALS | {"FailedAuthentication"}
"""Codes of refusals that count against an account: repeated with the same password, they may lock it."""

LOCKS_ACCOUNT = REFUSES_ACCOUNT - {"HTTP 403"}
"""Those of them that concern all messages with the credentials: 403 may refuse one message alone."""

REFUSES_CREDENTIALS = HTTP_REFUSES_CREDENTIALS | frozenset(
    {
        "BadContextToken",
        "FailedAuthentication",
        "FailedCheck",
        "InvalidSecurity",
        "InvalidSecurityToken",
        "MessageExpired",
        "SecurityError",
        "SecurityTokenUnavailable",
        "UnsupportedAlgorithm",
        "UnsupportedSecurityToken",
    }
)
"""Codes of WS-Security (SOAP Message Security 1.1, section 12) and of WS-SecureConversation (1.3, section 10), and
SecurityError, which CXF sends for all of them; and those of HTTP."""


def may_pass(fault: Fault) -> bool:
    """Return whether a fault blames the service itself: the same request may succeed later (SOAP 1.2 part 1, 5.4.6).

    WS-RM's own faults have rules of their own.
    """
    return not (fault.sender or fault.is_rm or fault.code in REFUSES_CREDENTIALS)


def sequence_fault(code: str, identifier: str | None = None, **detail: object) -> Fault:
    """Return the WS-RM fault ``code`` about ``identifier`` with the specification's reason."""
    return Fault(code, REASONS[code], is_rm=True, identifier=identifier, **detail)  # type: ignore[arg-type]


def no_reply(reason: str) -> Fault:
    """Return Holdfast's own fault NoReply: a request was accepted, but no reply will follow."""
    return Fault(NO_REPLY, reason, sender=False, code_namespace=HOLDFAST_NS)


TOO_LARGE_FOR_BROKER = no_reply(
    "The service received the request, but its reply is larger than the broker accepts. The service must return large "
    "values as attachments (MTOM)."
)
"""Answers a forwarded request with a reply that is too large."""


def creation_refused(reason: str, *, sender: bool = True) -> Fault:
    """Return CreateSequenceRefused; ``sender``: whether the peer can fix the cause (WS-RM 4.6)."""
    return Fault(CREATE_SEQUENCE_REFUSED, reason, is_rm=True, sender=sender)


# --- WS-Addressing's and SOAP's --------------------------------------------------------------------------------------

ACTION_NOT_SUPPORTED = "ActionNotSupported"
ONLY_ANONYMOUS_ADDRESS_SUPPORTED = "OnlyAnonymousAddressSupported"
MESSAGE_ADDRESSING_HEADER_REQUIRED = "MessageAddressingHeaderRequired"
INVALID_ADDRESSING_HEADER = "InvalidAddressingHeader"
MESSAGE_INFORMATION_HEADER_REQUIRED = "MessageInformationHeaderRequired"
"""Name of MessageAddressingHeaderRequired in 2004/08."""
INVALID_MESSAGE_INFORMATION_HEADER = "InvalidMessageInformationHeader"
"""Name of InvalidAddressingHeader in 2004/08."""
MUST_UNDERSTAND = "MustUnderstand"
VERSION_MISMATCH = "VersionMismatch"


INVALID_CARDINALITY = "InvalidCardinality"
MISSING_ADDRESS_IN_EPR = "MissingAddressInEPR"
INVALID_EPR = "InvalidEPR"
ACTION_MISMATCH = "ActionMismatch"

INVALID_HEADER_REASONS = frozenset(
    {
        "InvalidAddress",
        INVALID_EPR,
        INVALID_CARDINALITY,
        MISSING_ADDRESS_IN_EPR,
        "DuplicateMessageID",
        ACTION_MISMATCH,
        ONLY_ANONYMOUS_ADDRESS_SUPPORTED,
        "OnlyNonAnonymousAddressSupported",
    }
)
"""2005/08 writes these under the subcode InvalidAddressingHeader; 2004/08 has only one name for all of them."""


def addressing_fault(code: str, reason: str, *, header: str = "", action: str = "") -> Fault:
    """Return a fault of WS-Addressing.

    Args:
        code: Its most specific code.
        header: The local name of the addressing property that it is about.
    """
    return Fault(code, reason, is_addressing=True, problem_header=header, problem_action=action)


# --- WS-MakeConnection 4 ------------------------------------------------------------------------------------------

MISSING_SELECTION = "MissingSelection"
UNSUPPORTED_SELECTION = "UnsupportedSelection"


def missing_selection() -> Fault:
    """Return the fault for a MakeConnection without any selection (WS-MakeConnection 4.2)."""
    reason = "The MakeConnection element did not contain any selection criteria."
    return Fault(MISSING_SELECTION, reason, sender=False, code_namespace=MC_NS)


def unsupported_selection(name: str) -> Fault:
    """Return the fault for a selection, "{namespace}local", that this side does not know (WS-MakeConnection 4.1)."""
    reason = "The extension element used in the message selection is not supported by the MakeConnection receiver"
    return Fault(UNSUPPORTED_SELECTION, reason, sender=False, code_namespace=MC_NS, not_understood=(name,))


# --- names of WS-Addressing's codes -------------------------------------------------------------------------------

_NAMES_OF_2004_08 = {
    MESSAGE_ADDRESSING_HEADER_REQUIRED: MESSAGE_INFORMATION_HEADER_REQUIRED,
    INVALID_ADDRESSING_HEADER: INVALID_MESSAGE_INFORMATION_HEADER,
}
_NAMES_OF_2005_08 = {old: new for new, old in _NAMES_OF_2004_08.items()}


def addressing_code(code: str, addressing: Addressing) -> str:
    """Return the name that a fault code of WS-Addressing has in that version."""
    if addressing is Addressing.V2005_08:
        return _NAMES_OF_2005_08.get(code, code)
    if code in INVALID_HEADER_REASONS:
        return INVALID_MESSAGE_INFORMATION_HEADER
    return _NAMES_OF_2004_08.get(code, code)


def refusal(envelope: Envelope) -> Fault | None:
    """Return the fault that answers a request regardless of its other content; None if it is valid.

    An Action is required (WS-Addressing 2005/08 core, 3.2): it says what the Body means. A fault may lack it, because
    some stacks write a fault as plain SOAP, and so may a message outside any Sequence. Responses are judged more
    leniently, since the peer that asked knows what they answer.
    """
    lacks_action = envelope.sequence is not None and not envelope.action and envelope.control is None
    if envelope.fault is not None or not (lacks_action or envelope.contradiction):
        return None
    if not envelope.action:
        code, reason = MESSAGE_ADDRESSING_HEADER_REQUIRED, "A message needs a wsa:Action; this one has none."
    else:
        code, reason = INVALID_ADDRESSING_HEADER, envelope.contradiction
    return addressing_fault(addressing_code(code, envelope.addressing or Addressing.V2005_08), reason, header="Action")


WS_SECURITY = "{http://docs.oasis-open.org/wss/2004/01/oasis-200401-wss-wssecurity-secext-1.0.xsd}Security"
_WS_TRUST = ("http://schemas.xmlsoap.org/ws/2005/02/trust/", "http://docs.oasis-open.org/ws-sx/ws-trust/")
_NO_MESSAGE_SECURITY = (
    "This endpoint does not support WS-Security, unless its operator sets it up (a broker: [security] in its file). "
    "Set the client's security mode to Transport (https) or None (WCF: "
    '<security mode="Transport" />).'
)
_HOW_TO_ENABLE = (
    "This endpoint accepts only messages of reliable sessions. Enable one at the sender. WCF: WSHttpBinding or "
    "WS2007HttpBinding with ReliableSession.Enabled = true; BasicHttpBinding has none. CXF: reliableMessaging."
)


def not_understood(names: tuple[str, ...]) -> Fault:
    """Return MustUnderstand for headers that this side does not know (SOAP 1.2 part 1, 5.4.8)."""
    reason = f"This endpoint does not understand the mandatory header {' '.join(names)}."
    if WS_SECURITY in names:
        reason = f"{reason} {_NO_MESSAGE_SECURITY}"
    return Fault(MUST_UNDERSTAND, reason, not_understood=names)


def not_reliable(action: str, addressing: Addressing | None) -> Fault:
    """Return the fault for a message without RM headers (WS-RM 4.8), which says what to change at its sender."""
    fault = sequence_fault(WSRM_REQUIRED)
    # WCF's security modes Message and TransportWithMessageCredential begin with a request for a token.
    reason = _NO_MESSAGE_SECURITY if action.startswith(_WS_TRUST) else f"{clause(fault.reason)}. {_HOW_TO_ENABLE}"
    if addressing not in (None, Addressing.V2005_08):
        return addressing_fault(ACTION_NOT_SUPPORTED, reason)
    return replace(fault, reason=reason)
