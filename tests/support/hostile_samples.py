"""A valid message of each kind that the decoder knows, with each of its fields: what hostile copies are made of."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from holdfast.core.faults import INVALID_CARDINALITY, UNSUPPORTED_SELECTION, addressing_fault, sequence_fault
from holdfast.core.messages import (
    MC_ANONYMOUS,
    MC_NS,
    Acknowledge,
    AckRequested,
    CloseSequence,
    CloseSequenceResponse,
    Control,
    CreateSequence,
    CreateSequenceResponse,
    EndpointReference,
    Envelope,
    Fault,
    IncompleteSequenceBehavior,
    LastMessage,
    MakeConnection,
    Offer,
    RequestAcknowledgement,
    Sequence,
    SequenceAcknowledgement,
    TerminateSequence,
    TerminateSequenceResponse,
)
from holdfast.core.versions import Addressing, Versions
from holdfast.exceptions import SEQUENCE_FAULTS
from holdfast.wire import actions, encode
from holdfast.wire.dialects.versions import DIALECTS
from holdfast.wire.make_connection import PENDING
from holdfast.wire.names import REPLY_RELATION, ROLE_ATTRIBUTE, SOAP_NS

HERE = EndpointReference("http://allowed.example/a", (b'<p xmlns="urn:p">1</p>',))
POLLS = EndpointReference(MC_ANONYMOUS + "1")
DISCARD = IncompleteSequenceBehavior.DISCARD_ENTIRE_SEQUENCE


def samples(versions: Versions, known: str, outbound: str) -> dict[str, bytes]:
    """Return a message of each kind by its name.

    Args:
        versions: What they are in.
        known: The Sequence in which a peer sends.
        outbound: The Sequence that it acknowledges.
    """
    dialect = DIALECTS[versions.rm]

    def made(**fields: Any) -> bytes:
        given = {"to": "http://shop.example/", "message_id": "urn:id", "reply_to": HERE} | fields
        return encode(Envelope(versions.soap, versions.addressing, versions.rm, **given))

    namespace, role = SOAP_NS[versions.soap], ROLE_ATTRIBUTE[versions.soap].rpartition("}")[2]
    next_hop = {"actor": "http://schemas.xmlsoap.org/soap/actor/next"}.get(role, namespace + "/role/next")
    foreign = f'<f:h xmlns:f="urn:f" xmlns:s="{namespace}" s:mustUnderstand="0" s:{role}="{next_hop}">1</f:h>'.encode()
    accepted = SequenceAcknowledgement(outbound, ((1, 1),), buffer_remaining=3)
    found = {
        "a message": made(
            **{"action": "urn:a", "body": b"<b/>", "fault_to": HERE, "from_": HERE, "relates_to": "urn:related"},
            sequence=Sequence(known, 2, last_message=versions.rm.can.marks_last),
            acknowledgements=(accepted,),
            ack_requested=(AckRequested(known),),
            headers=(PENDING.encode(), foreign),
        ),
        "a message that polls": made(action="urn:a", body=b"<b/>", sequence=Sequence(known, 3), reply_to=POLLS),
        "an acknowledgement": made(control=Acknowledge(), acknowledgements=(accepted,)),
        "a final acknowledgement": made(
            control=Acknowledge(), acknowledgements=(dataclasses.replace(accepted, final=True),)
        ),
        "nothing accepted": made(control=Acknowledge(), acknowledgements=(SequenceAcknowledgement(outbound),)),
        "a Nack": made(control=Acknowledge(), acknowledgements=(SequenceAcknowledgement(outbound, nacks=(2,)),)),
        "a poll": made(control=MakeConnection(POLLS.address)),
        "a poll for a Sequence": _selecting(made(control=MakeConnection(POLLS.address)), dialect.namespace, known),
        "a poll for another": made(control=MakeConnection(POLLS.address)).replace(b"wsmc:Address>", b"wsmc:Other>"),
        "an application's fault": made(fault=Fault("Sender", "no", detail=b"<d xmlns='urn:d'>1</d>"), action="urn:f"),
        "an addressing fault": made(fault=addressing_fault(INVALID_CARDINALITY, "no", header="To")),
        "an unsupported poll": made(
            fault=Fault("UnsupportedSelection", "no", code_namespace=MC_NS, not_understood=("{urn:f}x",))
        ),
    }
    assert UNSUPPORTED_SELECTION == "UnsupportedSelection"
    related = f'<wsa:RelatesTo RelationshipType="{REPLY_RELATION[versions.addressing]}">'.encode()
    found["a message"] = found["a message"].replace(b"<wsa:RelatesTo>", related)
    for name, one in _controls(versions, known, outbound).items():
        found[name] = made(**one)
    for code in SEQUENCE_FAULTS:
        detail = {"max_message_number": 7} if code == "MessageNumberRollover" else {}
        if code == "InvalidAcknowledgement":
            detail["acknowledgement"] = dataclasses.replace(accepted, final=True)
        found[code] = made(fault=sequence_fault(code, outbound, **detail), relates_to="urn:related")
    nacked = SequenceAcknowledgement(outbound, nacks=(9,))
    found["a wrong Nack"] = made(fault=sequence_fault("InvalidAcknowledgement", outbound, acknowledgement=nacked))
    if dialect.terminate_header:
        local = dialect.terminate_header
        ends = f'<r:{local} xmlns:r="{dialect.namespace}">{_named(versions, known)}</r:{local}></s:Header>'
        found["a message that ends its Sequence"] = found["a message"].replace(b"</s:Header>", ends.encode())
    if versions.addressing is Addressing.V2004_08:
        carried = b"ReferenceParameters"
        found["reference properties"] = found["a message"].replace(carried, b"ReferenceProperties")
    return found


def _named(versions: Versions, identifier: str) -> str:
    namespace = DIALECTS[versions.rm].identifier_name.rpartition("}")[0]
    return f'<i:Identifier xmlns:i="{namespace}">{identifier}</i:Identifier>'


def _selecting(data: bytes, namespace: str, identifier: str) -> bytes:
    start, end = data.index(b"<wsmc:Address>"), data.index(b"</wsmc:Address>") + len(b"</wsmc:Address>")
    return data[:start] + f'<r:Identifier xmlns:r="{namespace}">{identifier}</r:Identifier>'.encode() + data[end:]


def _controls(versions: Versions, known: str, outbound: str) -> dict[str, dict[str, Any]]:
    messages: list[tuple[Control, dict[str, Any]]] = [
        (CreateSequence(HERE, 3600.0, Offer("urn:offered-here", HERE, 3600.0, DISCARD)), {}),
        (CreateSequenceResponse("urn:granted", 3600.0, DISCARD, HERE), {"relates_to": "urn:related"}),
        (CloseSequence(known, 3), {}),
        (CloseSequenceResponse(outbound), {"relates_to": "urn:related"}),
        (TerminateSequence(known, 3), {}),
        (TerminateSequenceResponse(outbound), {"relates_to": "urn:related"}),
        (LastMessage(), {"sequence": Sequence(known, 3, last_message=True)}),
        (RequestAcknowledgement(), {"ack_requested": (AckRequested(known),)}),
    ]
    return {
        type(control).__name__: {"control": control} | more
        for control, more in messages
        if type(control) in actions[versions.rm]
    }


# --- the fields of the messages --------------------------------------------------------------------------------------

NOT_OF_PEERS = frozenset(
    {"soap", "addressing", "rm", "known_block", "headers_soap", "not_understood", "for_receiver"}
    | {"reference_parameters", "contradiction", "transport", "attachments", "is_reply", "routed"}
)
"""Fields of an Envelope that are not of one element: which versions it is in, and what the endpoint notes."""
NOT_OF_FAULTS = frozenset({"not_understood", "problem_header", "problem_action"})
"""Fields of the faults that only this side writes."""


def fields_of(kind: Any = Envelope, path: str = "") -> Iterator[str]:
    """Return the paths of all values that a decoded message can have, such as ``control.CreateSequence.expires``."""
    hints = get_type_hints(kind)
    for field in dataclasses.fields(kind):
        left_out = {Envelope: NOT_OF_PEERS, Fault: NOT_OF_FAULTS}.get(kind, frozenset())
        if field.name in left_out:
            continue
        parts = [one for one in _types_in(hints[field.name]) if dataclasses.is_dataclass(one)]
        for part in parts:
            name = f"{path}{field.name}." + (f"{part.__name__}." if len(parts) > 1 else "")
            yield from fields_of(part, name) if dataclasses.fields(part) else iter([name.rstrip(".")])
        if not parts:
            yield f"{path}{field.name}"


def _types_in(hint: Any) -> list[Any]:
    if get_origin(hint) in (Union, UnionType, tuple):
        return [one for part in get_args(hint) for one in _types_in(part)]
    return [hint]


def values_of(value: Any, path: str = "", kind: Any = Envelope) -> set[str]:
    """Return the paths of the values that one decoded message has, as :func:`fields_of` names them."""
    found = set[str]()
    hints = get_type_hints(kind)
    for field in dataclasses.fields(kind):
        held = getattr(value, field.name)
        parts = [one for one in _types_in(hints[field.name]) if dataclasses.is_dataclass(one)]
        for one in held if isinstance(held, tuple) else [held]:
            if dataclasses.is_dataclass(one) and not isinstance(one, type):
                name = f"{path}{field.name}." + (f"{type(one).__name__}." if len(parts) > 1 else "")
                found |= values_of(one, name, type(one)) | ({name.rstrip(".")} - {path + field.name})
        if not parts and held not in (None, "", b"", (), False, IncompleteSequenceBehavior.NO_DISCARD):
            found.add(f"{path}{field.name}")
    return found
