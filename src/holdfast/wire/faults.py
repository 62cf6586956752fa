"""SOAP faults, both ways: WS-RM's, WS-Addressing's and plain ones, in SOAP 1.1 and 1.2.

This module handles the shapes of WS-RM 4 and of the peers that deviate from it: QNames with a prefix declared in the
element (WCF), the subcode in ``faultcode`` (Metro), SequenceFault without Detail (CXF), ``WsrmRequired`` (WCF).
"""

from __future__ import annotations

from holdfast.core.faults import (
    CREATE_SEQUENCE_REFUSED,
    INVALID_ADDRESSING_HEADER,
    INVALID_HEADER_REASONS,
    MUST_UNDERSTAND,
    VERSION_MISMATCH,
    WSRM_REQUIRED,
    addressing_code,
)
from holdfast.core.messages import MAX_MESSAGE_NUMBER, MC_NS, Fault
from holdfast.core.origin import without_secrets
from holdfast.core.versions import RM, SOAP, Addressing
from holdfast.exceptions import SEQUENCE_FAULTS
from holdfast.wire import text
from holdfast.wire.dialects.dialect import Dialect
from holdfast.wire.dialects.versions import DIALECTS
from holdfast.wire.make_connection import encode_detail
from holdfast.wire.names import MC_FAULT_ACTION, NETRM_NS, RM_FAULT_ACTIONS, RM_NS, RM_OF_NS, SOAP_NS, WSA_NS, WSA_OF_NS
from holdfast.wire.rm import decode_acknowledgement, encode_acknowledgement, write_identifier
from holdfast.wire.text import escape, escape_attribute
from holdfast.wire.tree import Node

SEQUENCE_FAULT_NAMES: dict[str, RM] = {f"{namespace}}}SequenceFault": rm for rm, namespace in RM_NS.items()}
"""The SOAP 1.1 header blocks that carry an RM fault."""

FAULT_DETAIL_NAME = WSA_NS[Addressing.V2005_08] + "}FaultDetail"
"""The SOAP 1.1 header block that carries an addressing fault's detail (2005/08 SOAP binding, section 6.2)."""

FAULT_HEADER_NAMES: frozenset[str] = frozenset(
    {*SEQUENCE_FAULT_NAMES, FAULT_DETAIL_NAME}
    | {f"{SOAP_NS[SOAP.V1_2]}}}{local}" for local in ("NotUnderstood", "Upgrade")}
)
"""Every header block that belongs to a fault and is understood with it."""

_MISSPELT = {"WsrmRequired": WSRM_REQUIRED}
_IN_FAULTCODE = frozenset({CREATE_SEQUENCE_REFUSED, WSRM_REQUIRED})
"""Faults that are not about an RM header: SOAP 1.1 names them in faultcode, without a SequenceFault header."""
_SOAP_1_2_OWN = frozenset({VERSION_MISMATCH, MUST_UNDERSTAND, "DataEncodingUnknown"})
_SOAP_1_1_OWN = frozenset({VERSION_MISMATCH, MUST_UNDERSTAND})
_SOAP_1_1_CODES = {"Client": "Sender", "Server": "Receiver"}

_Code = tuple[str, str]


# --- reading ---------------------------------------------------------------------------------------------------------


def decode_fault(node: Node, headers: list[Node], soap: SOAP, max_ranges: int) -> tuple[Fault, RM | None]:
    """Decode the Fault in a Body, with its SequenceFault or FaultDetail header.

    Returns:
        The fault, and the WS-RM version of its code; None if the code is not WS-RM's. A fault without a code is a
        Receiver fault: it is an answer all the same, and blames no message.

    Raises:
        EnvelopeError: WS-RM's own part of it is malformed.
    """
    codes, reason, detail = _parts(node)
    reason = without_secrets(reason)
    header = None
    if soap is SOAP.V1_1:
        coded = (block for block in headers if block.name in SEQUENCE_FAULT_NAMES and _first(block, "FaultCode"))
        header = next(coded, None)
    codes = codes or [(SOAP_NS[soap], "Receiver")]
    top = codes[0]
    details = detail.children if detail is not None else []
    # The header names the RM fault; faultcode is only Client or Server (WS-RM 4.1).
    if header is not None:
        code, content = _sequence_fault(header)
        codes, details = [*codes, code], content or details
    elif soap is SOAP.V1_1:
        details = next((block.children for block in headers if block.name == FAULT_DETAIL_NAME), details)
    rm, fault = _classify(codes, reason)
    # SOAP 1.1, 4.4.1: what follows a dot makes a code more specific.
    kind = top[1].partition(".")[0]
    # Any other code counts as Sender: the message is to blame, as far as is known.
    fault.sender = _SOAP_1_1_CODES.get(kind, kind) != "Receiver"
    fault.has_sequence_fault_header = header is not None
    _read_details(fault, details, DIALECTS[rm] if rm else None, max_ranges)
    if not details and detail is not None:  # text is not a detail entry, but some services write only text
        fault.detail = escape(detail.text).encode()
    # A peer may quote the address that it was given. The fault goes to logs, to operators, and to other requesters.
    if fault.detail:
        fault.detail = without_secrets(fault.detail.decode()).encode()
    return fault, rm


def _parts(node: Node) -> tuple[list[_Code], str, Node | None]:
    """Return the codes, the top one first, the reason and the detail.

    Some stacks write the children of SOAP 1.1 in an envelope of SOAP 1.2, or qualify them, so local names decide.
    """
    code, level = _first(node, "faultcode"), _first(node, "Code")
    codes = [code.resolve(code.text)] if code is not None and code.text else []
    while level is not None:
        value = _first(level, "Value")
        if value is not None and value.text:
            codes.append(value.resolve(value.text))
        level = _first(level, "Subcode")
    reason = _first(node, "Reason")
    text = _first(node, "faultstring") if reason is None else _first(reason, "Text")
    return codes, (text or reason or node).text, _first(node, "Detail") or _first(node, "detail")


def _first(node: Node, local: str) -> Node | None:
    return next((child for child in node.children if child.local == local), None)


def _sequence_fault(header: Node) -> tuple[_Code, list[Node]]:
    """Return FaultCode, and the detail: in Detail (1.1), or directly (1.0, and CXF in 1.1)."""
    code = _first(header, "FaultCode")
    assert code is not None
    wrapper = header.child(f"{header.namespace}}}Detail")
    content = wrapper.children if wrapper is not None else [child for child in header.children if child is not code]
    namespace, local = code.resolve(code.text)
    return (namespace if namespace in RM_OF_NS else header.namespace, local), content


def _classify(codes: list[_Code], reason: str) -> tuple[RM | None, Fault]:
    """Choose WS-RM's code wherever it is (WCF nests its own below it), otherwise the most specific code."""
    # The most specific first.
    for namespace, local in reversed(codes):
        local = _MISSPELT.get(local, local)
        rm = RM_OF_NS.get(namespace)
        if rm is not None or (namespace == NETRM_NS and local in SEQUENCE_FAULTS):
            return rm, Fault(local, reason, is_rm=True)
    namespace, local = codes[-1]
    local = _SOAP_1_1_CODES.get(local, local) if namespace in SOAP_NS.values() else local
    is_addressing = namespace in WSA_OF_NS
    own = "" if is_addressing or namespace in SOAP_NS.values() else namespace
    return None, Fault(local, reason, is_addressing=is_addressing, code_namespace=own)


def _read_details(fault: Fault, details: list[Node], dialect: Dialect | None, max_ranges: int) -> None:
    rest: list[Node] = []
    for child in details:
        if dialect is not None and child.name == dialect.identifier_name and fault.identifier in (None, child.text):
            fault.identifier = child.text
        elif dialect is None or child.namespace != dialect.namespace:
            rest.append(child)
        elif child.local == "MaxMessageNumber" and fault.max_message_number is None:
            # Above the type's maximum it is no limit.
            fault.max_message_number = min(text.number(child.text, "MaxMessageNumber"), MAX_MESSAGE_NUMBER)
        elif child.local == dialect.acknowledgement and fault.acknowledgement is None:
            fault.acknowledgement = decode_acknowledgement(child, dialect, max_ranges)
            # InvalidAcknowledgement names its Sequence only there (WS-RM 4.4).
            fault.identifier = fault.identifier or fault.acknowledgement.identifier
        else:
            rest.append(child)
    fault.detail = b"".join([child.raw() for child in rest])


# --- writing; the prefixes s, wsa and wsrm must be in scope ----------------------------------------------------------


def action_of_fault(rm: RM | None, addressing: Addressing, fault: Fault) -> str:
    """Return the wsa:Action of a fault (WS-RM 4; WS-Addressing 2005/08 SOAP binding section 6)."""
    # WS-RM 1.1 has one action for all its faults; 1.0 has none, and takes WS-Addressing's.
    if fault.is_rm and rm in RM_FAULT_ACTIONS:
        return RM_FAULT_ACTIONS[rm]
    if fault.code_namespace == MC_NS:
        return MC_FAULT_ACTION
    if addressing is not Addressing.V2005_08 or fault.is_addressing:
        return WSA_NS[addressing] + "/fault"
    return WSA_NS[addressing] + "/soap/fault"


def translated_fault_action(action: str, addressing: Addressing) -> str:
    """Return the action of a stored fault in another version of WS-Addressing, if it is one of WS-Addressing.

    WCF's client knows a typed fault by the default action of its own version, or by the contract's own.
    """
    return _TRANSLATED_ACTIONS[addressing].get(action, action)


_OLDER = [addressing for addressing in Addressing if addressing is not Addressing.V2005_08]
_TRANSLATED_ACTIONS = {
    to: {
        **{WSA_NS[of] + "/fault": WSA_NS[to] + "/fault" for of in _OLDER},
        **{WSA_NS[Addressing.V2005_08] + end: WSA_NS[to] + "/fault" for end in ("/fault", "/soap/fault")},
    }
    for to in _OLDER
} | {
    Addressing.V2005_08: {WSA_NS[of] + "/fault": WSA_NS[Addressing.V2005_08] + "/soap/fault" for of in _OLDER},
}
"""2004/08 (section 4) and older versions have one action for all faults. 2005/08 (SOAP binding section 6) has
``/fault`` for addressing faults and ``/soap/fault`` for all others. A stored fault of an older version is rewritten to
``/fault`` only if it is an addressing fault."""


def encode_fault_header(fault: Fault, dialect: Dialect | None, addressing: Addressing | None) -> str:
    """Encode the SOAP 1.1 header block for a detail that the body must not contain: "" without one (WS-RM 4.1)."""
    if _is_about_rm_header(fault, dialect):
        assert dialect is not None
        before, detail = "", _write_detail(fault, dialect)
        # 2003/03 and 2004/03: the Identifier comes before the code.
        if dialect.fault_identified and fault.identifier is not None:
            before = write_identifier(fault.identifier, dialect)
            rest = detail.removeprefix(before)
            detail = rest or (before if dialect.fault_detailed else "")
        if dialect.detail_wrapped and detail:
            detail = f"<wsrm:Detail>{detail}</wsrm:Detail>"
        code = f"<wsrm:FaultCode>wsrm:{fault.code}</wsrm:FaultCode>"
        return f"<wsrm:SequenceFault>{before}{code}{detail}</wsrm:SequenceFault>"
    return encode_fault_detail(fault, addressing)


def encode_fault_detail(fault: Fault, addressing: Addressing | None, declared: str = "") -> str:
    """Encode the SOAP 1.1 header block with the detail of an addressing fault: "" without one.

    Args:
        addressing: The version of the message; 2004/08 has no such block.
        declared: The declaration of the prefix wsa, if it is not in scope.
    """
    if not _is_about_addressing_header(fault, addressing):
        return ""
    detail = fault.detail.decode() or encode_problem(fault)
    return f"<wsa:FaultDetail{declared}>{detail}</wsa:FaultDetail>" if detail else ""


def encode_problem(fault: Fault, declared: str = "") -> str:
    """Encode what an addressing fault of 2005/08 is about (its SOAP binding, section 6.3); "" where it names nothing.

    Args:
        declared: The declaration of the prefix wsa, if it is not in scope.
    """
    if fault.problem_action:
        action = f"<wsa:Action>{escape(fault.problem_action)}</wsa:Action>"
        return f"<wsa:ProblemAction{declared}>{action}</wsa:ProblemAction>"
    if fault.problem_header:
        return f"<wsa:ProblemHeaderQName{declared}>wsa:{fault.problem_header}</wsa:ProblemHeaderQName>"
    return ""


def encode_not_understood(name: str, declared: str = "") -> str:
    """Encode the SOAP 1.2 header block that names a header that is not understood (SOAP 1.2 part 1, section 5.4.8).

    Args:
        name: As "{namespace}local".
        declared: The declaration of the prefix s, if it is not in scope.
    """
    namespace, _, local = name.lstrip("{").rpartition("}")
    if not namespace:  # SOAP requires a namespace for header blocks, but a peer may omit it
        return f'<s:NotUnderstood{declared} qname="{escape_attribute(local)}"/>'
    named = f'qname="h:{escape_attribute(local)}" xmlns:h="{escape_attribute(namespace)}"'
    return f"<s:NotUnderstood{declared} {named}/>"


def _is_about_rm_header(fault: Fault, dialect: Dialect | None) -> bool:
    return fault.is_rm and dialect is not None and fault.code not in _IN_FAULTCODE


def _is_about_addressing_header(fault: Fault, addressing: Addressing | None) -> bool:
    return fault.is_addressing and addressing is Addressing.V2005_08


def encode_fault(fault: Fault, soap: SOAP, dialect: Dialect | None, addressing: Addressing | None) -> str:
    """Encode a Fault as the Body's content.

    A code without a namespace that WS-RM, WS-Addressing and SOAP do not define is written as plain Sender or Receiver.
    """
    if soap is SOAP.V1_2:
        return _encode_1_2(fault, dialect, addressing)
    # The detail about a header belongs in a header (SOAP 1.1 section 4.4).
    in_header = _is_about_rm_header(fault, dialect) or _is_about_addressing_header(fault, addressing)
    detail = "" if in_header else _write_detail(fault, dialect)
    code, reason = "s:Client" if fault.sender else "s:Server", escape(without_secrets(fault.reason))
    # WS-RM 4.6, 4.8: these are not about an RM header, so SOAP 1.1 names them in faultcode.
    if fault.is_rm and fault.code in _IN_FAULTCODE:
        code = f"wsrm:{fault.code}"
    elif fault.is_addressing and addressing is not None:
        code = f"wsa:{addressing_code(fault.code, addressing)}"
    elif not fault.is_rm and fault.code in _SOAP_1_1_OWN:
        code = f"s:{fault.code}"
    opened = "<faultcode>"
    if fault.code_namespace:
        code, opened = f"c:{fault.code}", f'<faultcode xmlns:c="{escape_attribute(fault.code_namespace)}">'
    if detail:
        detail = f"<detail>{detail}</detail>"
    return f"<s:Fault>{opened}{code}</faultcode><faultstring>{reason}</faultstring>{detail}</s:Fault>"


def _encode_1_2(fault: Fault, dialect: Dialect | None, addressing: Addressing | None) -> str:
    code = "s:Sender" if fault.sender else "s:Receiver"
    subcode = ""
    if fault.is_rm and dialect is not None:
        subcode = f"<s:Subcode><s:Value>wsrm:{fault.code}</s:Value></s:Subcode>"
    elif fault.is_addressing and addressing is not None:
        code_name = addressing_code(fault.code, addressing)
        subcode = f"<s:Subcode><s:Value>wsa:{code_name}</s:Value></s:Subcode>"
        # WS-Addressing SOAP binding 6.4.1: the reason is a subcode within InvalidAddressingHeader.
        if code_name in INVALID_HEADER_REASONS:
            subcode = f"<s:Subcode><s:Value>wsa:{INVALID_ADDRESSING_HEADER}</s:Value>{subcode}</s:Subcode>"
    elif fault.code_namespace:
        declared = f'xmlns:c="{escape_attribute(fault.code_namespace)}"'
        subcode = f"<s:Subcode><s:Value {declared}>c:{fault.code}</s:Value></s:Subcode>"
    elif not fault.is_rm and fault.code in _SOAP_1_2_OWN:
        code = f"s:{fault.code}"
    detail = _write_detail(fault, dialect)
    if not detail and _is_about_addressing_header(fault, addressing):
        detail = encode_problem(fault)
    if detail:
        detail = f"<s:Detail>{detail}</s:Detail>"
    return (
        f"<s:Fault><s:Code><s:Value>{code}</s:Value>{subcode}</s:Code>"
        f'<s:Reason><s:Text xml:lang="en">{escape(without_secrets(fault.reason))}</s:Text></s:Reason>{detail}</s:Fault>'
    )


def _write_detail(fault: Fault, dialect: Dialect | None) -> str:
    detail = fault.detail.decode()
    if not fault.is_rm or dialect is None:
        return detail or encode_detail(fault)
    if fault.acknowledgement is not None:
        return encode_acknowledgement(fault.acknowledgement, dialect) + detail
    known = ""
    if fault.identifier is not None:
        known = write_identifier(fault.identifier, dialect)
    # WS-RM 4.5: the detail of 1.1 has it, that of 1.0 only the Identifier.
    if fault.max_message_number is not None and not dialect.rm.can.rollover_ends:
        known += f"<wsrm:MaxMessageNumber>{fault.max_message_number}</wsrm:MaxMessageNumber>"
    return known + detail
