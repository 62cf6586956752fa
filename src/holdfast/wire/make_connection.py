"""WS-MakeConnection's message, header block and fault detail, both ways (WS-MakeConnection 1.1, sections 3 and 4)."""

from __future__ import annotations

from holdfast.core.faults import UNSUPPORTED_SELECTION
from holdfast.core.messages import MC_NS, Fault, MakeConnection
from holdfast.wire.names import RM_NS
from holdfast.wire.text import escape, escape_attribute
from holdfast.wire.tree import Node

_ADDRESS = f"{MC_NS}}}Address"
_IDENTIFIERS = frozenset(f"{namespace}}}Identifier" for namespace in RM_NS.values())

PENDING = f'<wsmc:MessagePending xmlns:wsmc="{MC_NS}" pending="true"/>'
"""The header block of a message if another one waits for the same endpoint (3.3)."""


def decode_make_connection(node: Node) -> MakeConnection:
    """Decode MakeConnection (3.2).

    Raises:
        EnvelopeError: it has two addresses.
    """
    address = node.only(_ADDRESS)
    poll = MakeConnection(address.text if address is not None else "")
    for child in node.children:
        # Drafts only: Sandesha2 still writes it for an anonymous client.
        if child.name in _IDENTIFIERS:
            poll.identifier = child.text
        elif child.name != _ADDRESS:
            # WS-MakeConnection 4.1: the fault names one unknown selection, so the first suffices.
            poll.unsupported = poll.unsupported or f"{{{child.namespace}}}{child.local}"
    return poll


def is_pending(node: Node) -> bool:
    """Decode MessagePending (WS-MakeConnection 3.3)."""
    return node.attributes.get("pending", "").strip() in ("1", "true")


def encode_make_connection(poll: MakeConnection) -> str:
    """Encode MakeConnection. Only an address can be written: 1.0 and 1.1 define no other selection."""
    return (
        f'<wsmc:MakeConnection xmlns:wsmc="{MC_NS}"><wsmc:Address>{escape(poll.address)}</wsmc:Address>'
        "</wsmc:MakeConnection>"
    )


def encode_detail(fault: Fault) -> str:
    """Encode the detail of UnsupportedSelection (4.1); "" for any other fault."""
    if fault.code != UNSUPPORTED_SELECTION or fault.code_namespace != MC_NS or not fault.not_understood:
        return ""
    namespace, _, local = fault.not_understood[0].lstrip("{").rpartition("}")
    declared = f' xmlns:u="{escape_attribute(namespace)}"' if namespace else ""
    name = f"u:{local}" if namespace else local
    return f'<wsmc:UnsupportedElement xmlns:wsmc="{MC_NS}"{declared}>{escape(name)}</wsmc:UnsupportedElement>'
