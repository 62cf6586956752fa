"""Namespaces, special URIs and actions of every supported version.

Names have the form in which expat reports them with ``}`` as separator: ``"namespace}local"``, or ``"local"`` without
namespace.
"""

from __future__ import annotations

from holdfast.core.messages import ANONYMOUS, MC_NS, NONE, Control
from holdfast.core.versions import RM, SOAP, Addressing
from holdfast.wire.dialects.dialect import WITHOUT_BODY, Bodiless
from holdfast.wire.dialects.versions import DIALECTS

SOAP_NS: dict[SOAP, str] = {
    SOAP.V1_1: "http://schemas.xmlsoap.org/soap/envelope/",
    SOAP.V1_2: "http://www.w3.org/2003/05/soap-envelope",
}
WSA_NS: dict[Addressing, str] = {
    Addressing.V2003_03: "http://schemas.xmlsoap.org/ws/2003/03/addressing",
    Addressing.V2004_03: "http://schemas.xmlsoap.org/ws/2004/03/addressing",
    Addressing.V2004_08: "http://schemas.xmlsoap.org/ws/2004/08/addressing",
    Addressing.V2005_08: "http://www.w3.org/2005/08/addressing",
}
RM_NS: dict[RM, str] = {rm: dialect.namespace for rm, dialect in DIALECTS.items()}
NETRM_NS = "http://schemas.microsoft.com/ws/2006/05/rm"
"""The .NET flow control extension's namespace."""

SOAP_OF_NS: dict[str, SOAP] = {uri: soap for soap, uri in SOAP_NS.items()}
WSA_OF_NS: dict[str, Addressing] = {uri: addressing for addressing, uri in WSA_NS.items()}
RM_OF_NS: dict[str, RM] = {uri: rm for rm, uri in RM_NS.items()}
OWN_NAMESPACES = frozenset({*SOAP_NS.values(), *WSA_NS.values(), *RM_NS.values()})
"""Those of the header blocks that Holdfast writes."""

ANONYMOUS_URI: dict[Addressing, str] = {
    addressing: namespace + ("/anonymous" if addressing is Addressing.V2005_08 else "/role/anonymous")
    for addressing, namespace in WSA_NS.items()
}
NONE_URI = WSA_NS[Addressing.V2005_08] + "/none"
"""Older versions have no such address; for ``none``, a peer of one of them gets this one, as CXF writes it."""

SPECIAL_ADDRESSES: dict[Addressing, dict[str, str]] = {
    addressing: {anonymous: ANONYMOUS, NONE_URI: NONE} for addressing, anonymous in ANONYMOUS_URI.items()
}
"""Address as written -> its form in :class:`~holdfast.core.messages.EndpointReference`."""

REPLY_RELATION: dict[Addressing, str] = {
    Addressing.V2003_03: "Response",
    Addressing.V2004_03: "Reply",
    Addressing.V2004_08: "Reply",
    Addressing.V2005_08: WSA_NS[Addressing.V2005_08] + "/reply",
}
"""RelatesTo's RelationshipType of a reply: before 2005/08, the local part of a QName in the version's namespace."""

ROLES_OF_OURS: dict[SOAP, frozenset[str]] = {
    SOAP.V1_1: frozenset({"", "http://schemas.xmlsoap.org/soap/actor/next"}),
    SOAP.V1_2: frozenset(
        {
            "",
            "http://www.w3.org/2003/05/soap-envelope/role/next",
            "http://www.w3.org/2003/05/soap-envelope/role/ultimateReceiver",
        }
    ),
}
"""Values of role (1.2) and actor (1.1) that address a header block to this node."""

NEXT = frozenset({"http://schemas.xmlsoap.org/soap/actor/next", "http://www.w3.org/2003/05/soap-envelope/role/next"})
"""The subset that addresses it to every node that the message passes."""

ROLE_ATTRIBUTE: dict[SOAP, str] = {
    SOAP.V1_1: SOAP_NS[SOAP.V1_1] + "}actor",
    SOAP.V1_2: SOAP_NS[SOAP.V1_2] + "}role",
}

MC_ACTION = f"{MC_NS}/MakeConnection"
MC_FAULT_ACTION = f"{MC_NS}/fault"
"""The action of the faults of WS-MakeConnection 4."""
MC_NAME = f"{MC_NS}}}MakeConnection"
MC_PENDING_NAME = f"{MC_NS}}}MessagePending"

ADDRESSING_LOCALS = ("Action", "To", "MessageID", "RelatesTo", "ReplyTo", "FaultTo", "From")

actions: dict[RM, dict[type[Control], str]] = {rm: dialect.actions for rm, dialect in DIALECTS.items()}
"""RM version -> type of the control message -> its wsa:Action (WS-RM 1.0 and 1.1, section 3)."""

RM_FAULT_ACTIONS: dict[RM, str] = {
    rm: dialect.namespace + dialect.fault_action for rm, dialect in DIALECTS.items() if dialect.fault_action
}
"""The action of every RM fault, including CreateSequenceRefused, in the versions that define one."""

RM_OF_ACTION: dict[str, RM] = {action: rm for rm, dialect in DIALECTS.items() for action in dialect.read_actions}
RM_OF_ACTION |= {action: rm for rm, action in RM_FAULT_ACTIONS.items()}

EMPTY_CONTROLS: dict[str, type[Bodiless]] = {
    action: kind
    for dialect in DIALECTS.values()
    for kind in WITHOUT_BODY
    for action, read in dialect.read_actions.items()
    if read is kind
}
"""The control messages with an empty body, which only their action identifies."""

FAULT_ACTIONS = frozenset(
    {
        *RM_FAULT_ACTIONS.values(),
        MC_FAULT_ACTION,
        *(f"{namespace}{end}" for namespace in WSA_NS.values() for end in ("/fault", "/soap/fault")),
    }
)
"""The actions that mark the Body as a fault; messages with other actions may also contain one."""

RESERVED_ACTIONS = FAULT_ACTIONS | RM_OF_ACTION.keys() | {MC_ACTION}
"""The actions that determine the Body's type; application messages must not use them."""

RM_HEADER_NAMES: dict[str, RM] = {
    dialect.name(local): rm
    for rm, dialect in DIALECTS.items()
    for local in ("Sequence", dialect.acknowledgement, "AckRequested", dialect.terminate_header)
    if local
}
"""The header blocks of WS-RM, except SOAP 1.1's SequenceFault, and the version of each."""

SECURITY_BINDING_NAMES = frozenset(
    {dialect.name(local) for dialect in DIALECTS.values() for local in dialect.never_ignored}
)
"""Header blocks that bind a Sequence to a security context: never ignored, whether marked mandatory or not."""
INCLUDE = b"Include"
"""Part of each reference to an attachment (XOP, section 2.1)."""

_BODY_LOCALS = {local for dialect in DIALECTS.values() for local in dialect.bodies}
CONTENT_NAMES = frozenset({f"{namespace}}}{local}" for namespace in RM_NS.values() for local in _BODY_LOCALS}) | {
    MC_NAME,
    *(f"{namespace}}}Fault" for namespace in SOAP_NS.values()),
}
"""First children of a Body that are decoded; any other belongs to an application and stays bytes."""

CONTENT_LOCALS = frozenset(name.rpartition("}")[2].encode() for name in CONTENT_NAMES)


def is_for_receiver(name: str, role: str) -> bool:
    """Return whether a header block with a known role is only for the ultimate receiver.

    See SOAP 1.2 part 1, 2.2, and SOAP 1.1, 4.2.2. A block that binds security to a hop is for every reader.
    """
    # An intermediary passes on what is for the ultimate receiver alone (SOAP 1.2 part 1, 2.7).
    return role not in NEXT and name not in SECURITY_BINDING_NAMES
