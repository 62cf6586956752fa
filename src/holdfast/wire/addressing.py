"""WS-Addressing, all versions: endpoint references and message addressing properties, both ways.

This module handles only those elements, and knows neither reliable messaging nor SOAP bodies.
"""

from __future__ import annotations

from holdfast.core.faults import INVALID_CARDINALITY, INVALID_EPR, MISSING_ADDRESS_IN_EPR
from holdfast.core.messages import ANONYMOUS, ANONYMOUS_EPR, NONE, EndpointReference, Envelope
from holdfast.core.versions import Addressing
from holdfast.exceptions import AddressingError
from holdfast.wire.names import (
    ADDRESSING_LOCALS,
    ANONYMOUS_URI,
    NONE_URI,
    REPLY_RELATION,
    SPECIAL_ADDRESSES,
    WSA_NS,
    WSA_OF_NS,
)
from holdfast.wire.text import escape, strip
from holdfast.wire.tree import Node

HEADER_NAMES: dict[str, Addressing] = {
    f"{namespace}}}{local}": addressing for addressing, namespace in WSA_NS.items() for local in ADDRESSING_LOCALS
}
"""The header blocks that are message addressing properties, and the version of each."""

# An enum's members are slow to look up by its class, and as keys, because they hash in Python.
_V2005_08 = Addressing.V2005_08
_ANONYMOUS_2005_08 = ANONYMOUS_URI[Addressing.V2005_08]
_WITH_PARAMETERS = frozenset({Addressing.V2004_08, Addressing.V2005_08})

_NONE_EPR = EndpointReference(NONE)
_TEXT_FIELDS = {"Action": "action", "To": "to", "MessageID": "message_id", "RelatesTo": "relates_to"}
_EPR_FIELDS = {"ReplyTo": "reply_to", "FaultTo": "fault_to", "From": "from_"}


def endpoint_reference(address: str, addressing: Addressing) -> EndpointReference:
    special = SPECIAL_ADDRESSES[addressing].get(address)
    if special is None:
        return EndpointReference(address)
    return ANONYMOUS_EPR if special == ANONYMOUS else _NONE_EPR


def decode_epr(node: Node, *, soap: str = "") -> EndpointReference:
    """Decode an EndpointReferenceType of any version (2004/08 section 2, 2005/08 section 2).

    Its version is that of its Address: WCF and CXF put 2005/08 references into WS-RM 1.0.

    Raises:
        AddressingError: if it has no Address, or more than one.
    """
    addresses = [child for child in node.children if child.local == "Address" and child.namespace in WSA_OF_NS]
    # WS-Addressing core 2.1: exactly one Address. Other children are extensions, and are not kept.
    if len(addresses) != 1:
        code = INVALID_EPR if addresses else MISSING_ADDRESS_IN_EPR
        message = f"{node.local} must have exactly one wsa:Address, not {len(addresses)}"
        raise AddressingError(message, soap=soap, code=code, header=node.local)
    namespace = addresses[0].namespace
    # By the Address's namespace, not the message's: the special URIs differ between versions.
    reference = endpoint_reference(addresses[0].text, WSA_OF_NS[namespace])
    carriers = (f"{namespace}}}ReferenceProperties", f"{namespace}}}ReferenceParameters")
    parameters = tuple(
        parameter.raw() for child in node.children if child.name in carriers for parameter in child.children
    )
    return EndpointReference(reference.address, parameters) if parameters else reference


def version_of(headers: list[Node]) -> Addressing | None:
    """Return the version of a message: that of its Action, or of the first addressing header; the other is foreign."""
    found: Addressing | None = None
    for node in headers:
        addressing = HEADER_NAMES.get(node.name)
        if addressing is None:
            continue
        # Every message needs an Action, so that of another version is the foreign one.
        if node.local == "Action":
            return addressing
        found = found or addressing
    return found


def decode_header(node: Node, envelope: Envelope, addressing: Addressing, seen: set[str]) -> None:
    """Decode one message addressing property of ``addressing`` into the envelope (2005/08 core section 3).

    Args:
        seen: The properties read so far; this one is added.

    Raises:
        AddressingError: if the property is repeated or malformed.
    """
    local, soap = node.local, envelope.soap.value
    if local == "RelatesTo":
        relation = node.attributes.get("RelationshipType", REPLY_RELATION[addressing])
        if addressing is _V2005_08:
            reply = strip(relation) == REPLY_RELATION[addressing]
        else:
            namespace, relation = node.resolve(relation)
            reply = relation == REPLY_RELATION[addressing] and namespace in ("", WSA_NS[addressing])
        # Another relationship says nothing about requests (core 3.1). There may be several of them.
        if not reply:
            return
    # WS-Addressing core 3.2: at most once.
    if local in seen:
        message, version = f"wsa:{local} occurs twice", addressing.value
        raise AddressingError(message, soap=soap, code=INVALID_CARDINALITY, header=local, addressing=version)
    seen.add(local)
    if local in _TEXT_FIELDS:
        setattr(envelope, _TEXT_FIELDS[local], node.text)
        return
    try:
        setattr(envelope, _EPR_FIELDS[local], decode_epr(node, soap=soap))
    except AddressingError as error:
        error.addressing = addressing.value
        raise


def written_address(address: str, addressing: Addressing) -> str:
    if address == ANONYMOUS:
        return _ANONYMOUS_2005_08 if addressing is _V2005_08 else ANONYMOUS_URI[addressing]
    return NONE_URI if address == NONE else escape(address)


def encode_epr_content(reference: EndpointReference, addressing: Addressing) -> str:
    """Encode the content of an EndpointReferenceType; prefix ``wsa`` must be in scope."""
    content = f"<wsa:Address>{written_address(reference.address, addressing)}</wsa:Address>"
    if reference.reference_parameters:
        inner = b"".join(reference.reference_parameters).decode()
        # Before 2004/08 there are only ReferenceProperties, which become headers in the same way.
        carrier = "ReferenceParameters" if addressing in _WITH_PARAMETERS else "ReferenceProperties"
        content += f"<wsa:{carrier}>{inner}</wsa:{carrier}>"
    return content
