"""Everything we write is valid against the official schemas, but where the specifications contradict their own.

Known contradictions, which every implementation shares and which are tested as such:

- the WS-RM 1.0 schema imports WS-Addressing 2004/08, so AcksTo with a 2005/08 reference is invalid there;
- the WS-RM 2003/03 schema declares LastMessage as xs:ENTITY, so the empty element that all write is invalid there;
- the WS-RM 1.1 schema allows only foreign elements in SequenceFault/Detail, yet the specification puts its own there.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
from lxml import etree

from holdfast import wire
from holdfast.core.faults import missing_selection, unsupported_selection
from holdfast.core.messages import (
    ANONYMOUS_EPR,
    MC_ANONYMOUS,
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
    LastMessage,
    MakeConnection,
    Offer,
    RequestAcknowledgement,
    Sequence,
    SequenceAcknowledgement,
    TerminateSequence,
    TerminateSequenceResponse,
)
from holdfast.core.versions import ALL_VERSIONS, RM, SOAP, Addressing, Versions
from holdfast.exceptions import SEQUENCE_FAULTS

SCHEMAS = Path(__file__).parent.parent / "data" / "schemas"
_FILES = {
    "http://schemas.xmlsoap.org/soap/envelope/": "soap-1.1-envelope.xsd",
    "http://www.w3.org/2003/05/soap-envelope": "soap-1.2-envelope.xsd",
    "http://schemas.xmlsoap.org/ws/2003/03/addressing": "wsa-200303.xsd",
    "http://schemas.xmlsoap.org/ws/2004/03/addressing": "wsa-200403.xsd",
    "http://schemas.xmlsoap.org/ws/2004/08/addressing": "wsa-200408.xsd",
    "http://www.w3.org/2005/08/addressing": "wsa-200508.xsd",
    "http://schemas.xmlsoap.org/ws/2003/03/rm": "wsrm-200303.xsd",
    "http://schemas.xmlsoap.org/ws/2005/02/rm": "wsrm-200502.xsd",
    "http://docs.oasis-open.org/ws-rx/wsrm/200702": "wsrm-200702.xsd",
    "http://docs.oasis-open.org/ws-rx/wsmc/200702": "wsmc-200702.xsd",
}
_IMPORTED_FROM = {
    "http://www.w3.org/2001/xml.xsd": "xml.xsd",
    "utility.xsd": "wsu-200207.xsd",
    "http://schemas.xmlsoap.org/ws/2004/08/addressing": "wsa-200408.xsd",
    "http://www.w3.org/2006/03/addressing/ws-addr.xsd": "wsa-200508.xsd",
}
_ALL_OF_THEM = "all.xsd"
_AS_IN_2003 = {
    b"http://schemas.xmlsoap.org/ws/2004/03/rm": b"http://schemas.xmlsoap.org/ws/2003/03/rm",
    b":SequenceAcknowledgement>": b":SequenceAcknowledgment>",
    b":AcknowledgementRange": b":AcknowledgmentRange",
}
"""WS-RM 2004/03 has no schema of its own. Its headers have the content of 2003/03 in another spelling."""


class _Local(etree.Resolver):
    """Gives every import from the files here; DTDs, which only describe the schema language, as empty."""

    def resolve(self, url: str | None, public_id: str | None, context: object) -> object:
        name = _IMPORTED_FROM.get(url or "", Path(url or "").name)
        if name.endswith(".dtd"):
            return self.resolve_string("", context)
        if name == _ALL_OF_THEM:
            return None
        return self.resolve_string((SCHEMAS / name).read_bytes().lstrip(), context, base_url=name)


@cache
def schema() -> etree.XMLSchema:
    imports = "".join(
        f'<xs:import namespace="{namespace}" schemaLocation="{file}"/>' for namespace, file in _FILES.items()
    )
    parser = etree.XMLParser(no_network=True)
    parser.resolvers.add(_Local())
    whole = f'<xs:schema xmlns:xs="http://www.w3.org/2001/XMLSchema" targetNamespace="urn:all">{imports}</xs:schema>'
    return etree.XMLSchema(etree.fromstring(whole.encode(), parser, base_url=_ALL_OF_THEM))


def errors(envelope: Envelope) -> list[str]:
    data = wire.encode(envelope)
    if envelope.rm is RM.V2004_03:
        for written, of_2003 in _AS_IN_2003.items():
            data = data.replace(written, of_2003)
    element = wire.parse_element(data)
    schema().validate(element)
    return [error.message for error in schema().error_log]


def filled(versions: Versions) -> Envelope:
    return Envelope(
        versions.soap,
        versions.addressing,
        versions.rm,
        to="http://service.example/",
        message_id="urn:uuid:1",
        relates_to="urn:uuid:0",
        reply_to=ANONYMOUS_EPR,
        fault_to=EndpointReference("http://client.example/", (b'<k:k xmlns:k="urn:k">1</k:k>',)),
        from_=EndpointReference("http://client.example/"),
    )


def name(versions: Versions) -> str:
    return f"rm{versions.rm.value}-wsa{versions.addressing.value}-soap{versions.soap.value}"


combinations = pytest.mark.parametrize("versions", ALL_VERSIONS, ids=name)
OFFER = Offer("urn:offer", ANONYMOUS_EPR, 3600.0)
CONTROLS: list[Control] = [
    CreateSequence(ANONYMOUS_EPR),
    CreateSequence(EndpointReference("http://client.example/"), 90.5, OFFER),
    CreateSequenceResponse("urn:s"),
    CreateSequenceResponse("urn:s", 3600.0, accept_acks_to=EndpointReference("http://service.example/")),
    CloseSequence("urn:s"),
    CloseSequence("urn:s", 7),
    CloseSequenceResponse("urn:s"),
    TerminateSequence("urn:s"),
    TerminateSequence("urn:s", 7),
    TerminateSequenceResponse("urn:s"),
    LastMessage(),
    Acknowledge(),
    RequestAcknowledgement(),
]


def test_the_schemas_know_what_is_wrong() -> None:
    envelope = filled(ALL_VERSIONS[-1])
    envelope.sequence = Sequence("urn:s", 0)
    assert any("MessageNumber" in error for error in errors(envelope))


@combinations
def test_polls_and_their_answers_are_valid(versions: Versions) -> None:
    poll = Envelope(versions.soap, versions.addressing, to="http://service.example/", message_id="urn:uuid:1")
    poll.control = MakeConnection(MC_ANONYMOUS + "urn:uuid:1&2")
    assert not errors(poll)
    answer = filled(versions)
    answer.message_pending = True
    assert not errors(answer)
    for fault in (missing_selection(), unsupported_selection("{urn:x}y")):
        assert not errors(Envelope(versions.soap, versions.addressing, fault=fault))


@pytest.mark.parametrize(
    ("versions", "control"),
    [(v, control) for v in ALL_VERSIONS for control in CONTROLS if type(control) in wire.actions[v.rm]],
    ids=lambda value: name(value) if isinstance(value, Versions) else type(value).__name__,
)
def test_every_rm_message_is_valid(versions: Versions, control: Control) -> None:
    envelope = filled(versions)
    envelope.control = control
    envelope.sequence = Sequence("urn:s", 7, True) if isinstance(control, LastMessage) else None
    found = errors(envelope)
    has_reference = isinstance(control, CreateSequence) or (
        isinstance(control, CreateSequenceResponse) and control.accept_acks_to is not None
    )
    if versions.rm is RM.V1_0 and versions.addressing is Addressing.V2005_08 and has_reference:
        assert found
        assert all("Address" in error for error in found)
    else:
        assert found == []


@combinations
@pytest.mark.parametrize(
    "acknowledgement",
    [
        SequenceAcknowledgement("urn:s", ((1, 3), (7, 2**63 - 1))),
        SequenceAcknowledgement("urn:s"),
        SequenceAcknowledgement("urn:s", ((1, 3),), final=True, buffer_remaining=8),
        SequenceAcknowledgement("urn:s", final=True),
        SequenceAcknowledgement("urn:s", nacks=(4, 5)),
    ],
    ids=["ranges", "nothing", "final and buffer", "nothing, final", "nacks"],
)
def test_every_rm_header_is_valid(versions: Versions, acknowledgement: SequenceAcknowledgement) -> None:
    envelope = filled(versions)
    envelope.action = "urn:a"
    envelope.sequence = Sequence("urn:t", 4, versions.rm is RM.V1_0)
    envelope.ack_requested = (AckRequested("urn:t"), AckRequested("urn:u"))
    envelope.acknowledgements = (acknowledgement, SequenceAcknowledgement("urn:v", ((1, 1),)))
    envelope.body = b"<x xmlns='urn:x'/>"
    assert errors(envelope) == []


@combinations
@pytest.mark.parametrize("code", sorted(SEQUENCE_FAULTS))
def test_every_rm_fault_is_valid(versions: Versions, code: str) -> None:
    envelope = filled(versions)
    envelope.fault = Fault(code, "It cannot be.", is_rm=True, identifier="urn:s")
    if code == "MessageNumberRollover":
        envelope.fault.max_message_number = 2**63 - 1
    if code == "InvalidAcknowledgement":
        envelope.fault.acknowledgement = SequenceAcknowledgement("urn:s", ((1, 9),))
    found = errors(envelope)
    if versions.rm is RM.V1_1 and versions.soap is SOAP.V1_1 and code not in ("CreateSequenceRefused", "WSRMRequired"):
        # The detail that the schema forbids and the specification asks for; and LastMessageNumberExceeded is 1.0's.
        assert all("Detail" in error or "not expected" in error or "FaultCode" in error for error in found)
    elif versions.rm is RM.V2004_03 and versions.soap is SOAP.V1_1:
        # Sandesha 1 writes Identifier and FaultCode alone, where 2003/03 demands a detail.
        assert all("SequenceFault': Missing child" in error for error in found)
    else:
        assert found == []


@combinations
def test_every_other_fault_is_valid(versions: Versions) -> None:
    for fault in (
        Fault("ActionNotSupported", "No such action.", is_addressing=True),
        Fault("InvalidAddressingHeader", "Two of them.", is_addressing=True, detail=b"<d xmlns='urn:d'/>"),
        Fault("InvalidCardinality", "Two of them.", is_addressing=True),
        Fault("MustUnderstand", "A header is unknown."),
        Fault("VersionMismatch", "Not SOAP."),
        Fault("Sender", "The <message> & its author.", detail=b"<d xmlns='urn:d'/>"),
        Fault("Receiver", "We failed.", sender=False),
    ):
        envelope = filled(versions)
        envelope.fault = fault
        envelope.not_understood = ("{urn:h}Security", "{urn:g}Other")
        assert errors(envelope) == []
