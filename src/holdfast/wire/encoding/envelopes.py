"""Typed envelopes to bytes, from templates: the envelope's frame and the order of its header blocks."""

from __future__ import annotations

import re
from functools import lru_cache

from holdfast.core.faults import MUST_UNDERSTAND, VERSION_MISMATCH
from holdfast.core.messages import (
    Acknowledge,
    Control,
    EndpointReference,
    Envelope,
    LastMessage,
    MakeConnection,
    TerminateSequence,
)
from holdfast.core.versions import RM, SOAP, Addressing
from holdfast.exceptions import ConfigurationError
from holdfast.wire import rm
from holdfast.wire.addressing import encode_epr_content, written_address
from holdfast.wire.dialects.dialect import Dialect
from holdfast.wire.dialects.versions import DIALECTS
from holdfast.wire.faults import (
    action_of_fault,
    encode_fault,
    encode_fault_header,
    encode_not_understood,
    translated_fault_action,
)
from holdfast.wire.make_connection import PENDING, encode_make_connection
from holdfast.wire.names import ANONYMOUS_URI, FAULT_ACTIONS, MC_ACTION, SOAP_NS, WSA_NS, actions
from holdfast.wire.text import escape

_FOOT = b"</s:Body></s:Envelope>"
_END = "</s:Header><s:Body></s:Body></s:Envelope>"
_TRUE = re.compile(r"""(mustUnderstand\s*=\s*)(["'])true["']""")
"""SOAP 1.1 allows only 0 and 1 (4.2.3)."""


_TO_ANONYMOUS: dict[Addressing, str] = {
    addressing: f'<wsa:To s:mustUnderstand="1">{ANONYMOUS_URI[addressing]}</wsa:To>'
    for addressing in Addressing
    if addressing is not Addressing.V2005_08
}
"""Versions before 2005/08 require a To (WS-Addressing 2004/08, 3.1); answers on the sender's connection have this
address."""


class _Frame:
    """The common parts of envelopes with one combination of versions.

    ``head`` is everything up to the first header block; ``addressing`` follows the only header of a stand-alone
    acknowledgement, "" if the versions have none.
    """

    __slots__ = ("addressing", "dialect", "head")

    def __init__(self, soap: SOAP, addressing: Addressing | None, dialect: Dialect | None) -> None:
        wsa = f' xmlns:wsa="{WSA_NS[addressing]}"' if addressing is not None else ""
        wsrm = dialect.declarations if dialect is not None else ""
        self.head = f'<s:Envelope xmlns:s="{SOAP_NS[soap]}"{wsa}{wsrm}><s:Header>'
        self.dialect = dialect
        self.addressing = ""
        if addressing is not None and dialect is not None:
            action = dialect.actions[Acknowledge]
            to = _TO_ANONYMOUS.get(addressing, "")
            self.addressing = f'<wsa:Action s:mustUnderstand="1">{action}</wsa:Action>{to}'


_FRAMES = {
    (soap, addressing, version): _Frame(soap, addressing, DIALECTS[version] if version is not None else None)
    for soap in SOAP
    for addressing in (*Addressing, None)
    for version in (*RM, None)
}


def action_of(envelope: Envelope) -> str:
    """Return the envelope's wsa:Action: its own, or that of its control message or fault; "" without one."""
    if envelope.action:
        if envelope.action in FAULT_ACTIONS and envelope.addressing is not None:
            return translated_fault_action(envelope.action, envelope.addressing)
        return envelope.action
    if type(envelope.control) is MakeConnection:
        return MC_ACTION
    if envelope.control is not None and envelope.rm is not None:
        return control_action(envelope.rm, envelope.control)
    if envelope.fault is not None and envelope.addressing is not None:
        return action_of_fault(envelope.rm, envelope.addressing, envelope.fault)
    return ""


def control_action(version: RM, control: Control) -> str:
    """Return the wsa:Action of an RM protocol message.

    Raises:
        ConfigurationError: if that version of WS-RM has no such message.
    """
    action = actions[version].get(type(control))
    if action is None:
        raise ConfigurationError(f"WS-RM {version.value} has no {type(control).__name__}")
    return action


def encode(envelope: Envelope) -> bytes:
    """Encode an envelope as UTF-8 bytes.

    Action, To and Sequence are marked mustUnderstand; prefixes are ``s``, ``wsa`` and ``wsrm``. WS-Addressing before
    2005/08 requires a To; the default is the anonymous address, the connection's other end. An empty ``action`` is
    filled in (see :func:`action_of`). ``headers``, ``body`` and reference parameters are written unchanged and must be
    self-contained XML.

    Args:
        envelope: The envelope. ``rm`` must be set if it has RM headers, an RM message or an RM fault; ``addressing`` if
            it has any addressing property or an RM message.

    Raises:
        ConfigurationError: if its versions cannot express a part of it.
    """
    version, addressing = envelope.rm, envelope.addressing
    frame = _FRAMES[envelope.soap, addressing, version]
    dialect = frame.dialect
    if dialect is not None and frame.addressing and _only_acknowledges(envelope):
        # The answer to nearly every message.
        parts = [frame.head, rm.encode_acknowledgement(envelope.acknowledgements[0], dialect), frame.addressing]
        if envelope.headers:
            _append_foreign(parts, envelope)
        parts.append(_END)
        return "".join(parts).encode()
    parts = [frame.head]
    if dialect is not None:
        if envelope.sequence is not None:
            parts.append(rm.encode_sequence(envelope.sequence, dialect))
        parts += [rm.encode_acknowledgement(header, dialect) for header in envelope.acknowledgements]
        parts += [rm.encode_ack_requested(header, dialect) for header in envelope.ack_requested]
    elif _needs_rm(envelope):
        raise ConfigurationError("an envelope with WS-RM headers or bodies needs its rm version set")
    if addressing is not None:
        _append_addressing(parts, envelope, addressing)
    if envelope.message_pending:
        parts.append(PENDING)
    if envelope.headers or envelope.reference_parameters:
        _append_foreign(parts, envelope)
    if envelope.fault is None and envelope.control is None:
        parts.append("</s:Header><s:Body>")
        return b"".join(("".join(parts).encode(), envelope.body, _FOOT))
    if envelope.fault is None and type(envelope.control) is Acknowledge and addressing is not None:
        content = ""
    else:
        content = _fault_or_control(parts, envelope)
    parts.append(f"</s:Header><s:Body>{content}</s:Body></s:Envelope>")
    return "".join(parts).encode()


@lru_cache(256)  # the same few actions repeat
def _action_header(action: str) -> str:
    return f'<wsa:Action s:mustUnderstand="1">{escape(action)}</wsa:Action>'


@lru_cache(256)
def _to_header(to: str, addressing: Addressing) -> str:
    return f'<wsa:To s:mustUnderstand="1">{written_address(to, addressing)}</wsa:To>'


def _needs_rm(envelope: Envelope) -> bool:
    """Whether it has a part that is in the namespace of a version of WS-RM."""
    control = envelope.control
    is_control = control is not None and type(control) is not MakeConnection
    return is_control or bool(envelope.sequence or envelope.acknowledgements or envelope.ack_requested)


def _only_acknowledges(envelope: Envelope) -> bool:
    return type(envelope.control) is Acknowledge and not (
        envelope.action
        or envelope.sequence
        or envelope.ack_requested
        or envelope.reference_parameters
        or envelope.fault
        or envelope.message_id is not None
        or envelope.relates_to is not None
        or envelope.reply_to is not None
        or envelope.to is not None
        or envelope.from_ is not None
        or envelope.fault_to is not None
        or envelope.message_pending
        or len(envelope.acknowledgements) != 1
    )


def _append_addressing(parts: list[str], envelope: Envelope, addressing: Addressing) -> None:
    # WS-Addressing 2004/08, 3.1: To is mandatory
    action = action_of(envelope)
    if action:
        parts.append(_action_header(action))
    if envelope.message_id is not None:
        parts.append(f"<wsa:MessageID>{escape(envelope.message_id)}</wsa:MessageID>")
    if envelope.relates_to is not None:
        parts.append(f"<wsa:RelatesTo>{escape(envelope.relates_to)}</wsa:RelatesTo>")
    if envelope.from_ is not None:
        parts.append(_epr_header("From", envelope.from_, addressing))
    if envelope.reply_to is not None:
        parts.append(_epr_header("ReplyTo", envelope.reply_to, addressing))
    if envelope.fault_to is not None:
        parts.append(_epr_header("FaultTo", envelope.fault_to, addressing))
    if envelope.to is not None:
        parts.append(_to_header(envelope.to, addressing))
    elif addressing in _TO_ANONYMOUS:
        parts.append(_TO_ANONYMOUS[addressing])


def _epr_header(local: str, reference: EndpointReference, addressing: Addressing) -> str:
    return f"<wsa:{local}>{encode_epr_content(reference, addressing)}</wsa:{local}>"


def _in_version(block: str, of: SOAP, soap: SOAP) -> str:
    """Return a header block with the attributes of another version of SOAP, so that mustUnderstand stays in effect."""
    block = block.replace(SOAP_NS[of], SOAP_NS[soap])
    return _TRUE.sub(r"\g<1>\g<2>1\g<2>", block) if soap is SOAP.V1_1 else block


def _append_foreign(parts: list[str], envelope: Envelope) -> None:
    blocks = [block.decode() for block in envelope.headers]
    if envelope.headers_soap and envelope.headers_soap != envelope.soap.value:
        blocks = [_in_version(block, SOAP(envelope.headers_soap), envelope.soap) for block in blocks]
    parts.extend(blocks)
    for parameter in envelope.reference_parameters:
        block = parameter.decode()
        if envelope.addressing is Addressing.V2005_08:
            # Section 2.3 of the SOAP binding: marked, so that the receiver recognizes them.
            at = next(i for i, char in enumerate(block) if char in " \t\r\n/>" and i > 0)
            block = f'{block[:at]} wsa:IsReferenceParameter="true"{block[at:]}'
        parts.append(block)


def _fault_or_control(parts: list[str], envelope: Envelope) -> str:
    """Return the Body's content; append its header blocks to ``parts``."""
    version, addressing, fault = envelope.rm, envelope.addressing, envelope.fault
    if fault is None:
        assert envelope.control is not None
        if isinstance(envelope.control, MakeConnection) and addressing is not None:
            return encode_make_connection(envelope.control)
        if version is None or addressing is None:
            raise ConfigurationError("an RM message needs its rm and addressing versions set")
        control_action(version, envelope.control)
        if isinstance(envelope.control, LastMessage) and envelope.sequence is None:
            raise ConfigurationError("a LastMessage message needs its Sequence header")
        # There the end of a Sequence is a header block, and the Body is empty.
        if isinstance(envelope.control, TerminateSequence) and DIALECTS[version].terminate_header:
            parts.append(rm.encode_terminate_header(envelope.control.identifier, DIALECTS[version]))
            return ""
        return rm.encode_control(envelope.control, DIALECTS[version], addressing)
    dialect = DIALECTS[version] if version is not None else None
    if fault.is_rm and dialect is None:
        raise ConfigurationError("an RM fault needs its rm version set")
    if envelope.soap is SOAP.V1_1:
        # SOAP 1.1 section 4.4: the detail about a header is in a header.
        parts.append(encode_fault_header(fault, dialect, addressing))
    elif fault.code == MUST_UNDERSTAND:
        # SOAP 1.2 part 1, section 5.4.8.
        parts.extend([encode_not_understood(name) for name in envelope.not_understood])
    elif fault.code == VERSION_MISMATCH:
        parts.append(_UPGRADE)
    return encode_fault(fault, envelope.soap, dialect, addressing)


_UPGRADE = (
    '<s:Upgrade><s:SupportedEnvelope qname="s:Envelope"/>'
    f'<s:SupportedEnvelope qname="s11:Envelope" xmlns:s11="{SOAP_NS[SOAP.V1_1]}"/></s:Upgrade>'
)
"""SOAP 1.2 part 1, section 5.4.7: the supported versions, the preferred one first."""
