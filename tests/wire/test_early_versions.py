"""WS-RM 2003/03 and 2004/03 as peers write them. Samples of 2003/03 are valid against its schema."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
from lxml import etree

from holdfast import wire
from holdfast.core.messages import (
    ANONYMOUS_EPR,
    Acknowledge,
    AckRequested,
    CreateSequence,
    CreateSequenceResponse,
    EndpointReference,
    Envelope,
    Sequence,
    SequenceAcknowledgement,
    TerminateSequence,
)
from holdfast.core.versions import RM, SOAP, Addressing, Versions
from holdfast.exceptions import ConfigurationError, EnvelopeError
from holdfast.wire.dialects.versions import DIALECTS

WSU = "http://schemas.xmlsoap.org/ws/2002/07/utility"
IDENTIFIER = "<u:Identifier>urn:s</u:Identifier>"


@cache
def schema() -> etree.XMLSchema:
    """The official schema of 2003/03."""
    place = Path(__file__).parent.parent / "data" / "schemas"
    text = (place / "wsrm-200303.xsd").read_text(encoding="utf-8")
    text = text.replace('"utility.xsd"', f'"{(place / "wsu-200207.xsd").as_uri()}"')
    return etree.XMLSchema(etree.fromstring(text.encode()))


def read(header: str, body: str = "", *, rm: str = "2003/03", action: str = "urn:a") -> Envelope:
    """Decode an envelope of SOAP 1.1 with WS-Addressing 2003/03, and validate it if its WS-RM has a schema."""
    data = (
        f'<e:Envelope xmlns:e="http://schemas.xmlsoap.org/soap/envelope/" xmlns:u="{WSU}"'
        f' xmlns:r="http://schemas.xmlsoap.org/ws/{rm}/rm"'
        ' xmlns:a="http://schemas.xmlsoap.org/ws/2003/03/addressing"><e:Header>'
        f"<a:Action>{action}</a:Action>{header}</e:Header><e:Body>{body}</e:Body></e:Envelope>"
    ).encode()
    if rm == "2003/03":
        for element in wire.parse_element(data).iter("{http://schemas.xmlsoap.org/ws/2003/03/rm}*"):
            if element.getparent().tag.endswith("}Header"):
                schema().validate(element)
                assert [error.message for error in schema().error_log if "LastMessage" not in error.message] == []
    envelope = wire.decode(data)
    assert envelope.contradiction == ""
    return envelope


def test_a_message_of_2003_03_is_read_with_its_identifier_of_another_namespace() -> None:
    envelope = read(f"<r:Sequence>{IDENTIFIER}<r:MessageNumber>3</r:MessageNumber></r:Sequence>", "<b/>")
    assert envelope.versions == Versions("2003/03", "2003/03", "1.1")
    assert envelope.sequence == Sequence("urn:s", 3)


def test_the_last_message_mark_is_read_though_the_schema_has_an_entity() -> None:
    marked = f"<r:Sequence>{IDENTIFIER}<r:MessageNumber>3</r:MessageNumber><r:LastMessage/></r:Sequence>"
    for rm in ("2003/03", "2004/03"):
        assert read(marked, "<b/>", rm=rm).sequence == Sequence("urn:s", 3, True)


def test_an_acknowledgement_of_2003_03_is_spelt_without_its_second_e() -> None:
    ranges = '<r:AcknowledgmentRange Upper="3" Lower="1"/><r:AcknowledgmentRange Upper="7" Lower="5"/>'
    envelope = read(
        f"<r:SequenceAcknowledgment>{IDENTIFIER}{ranges}</r:SequenceAcknowledgment>"
        "<r:AckRequested><u:Identifier>urn:t</u:Identifier></r:AckRequested>"
    )
    assert envelope.acknowledgements == (SequenceAcknowledgement("urn:s", ((1, 3), (5, 7))),)
    assert envelope.ack_requested == (AckRequested("urn:t"),)
    written = Envelope(SOAP.V1_1, Addressing.V2003_03, RM.V2003_03, control=Acknowledge())
    written.acknowledgements = (SequenceAcknowledgement("urn:s", ((1, 3),)),)
    data = wire.encode(written)
    assert wire.decode(data).acknowledgements == written.acknowledgements
    with pytest.raises(EnvelopeError, match="SequenceAcknowledgment has no AcknowledgmentRange"):
        wire.decode(data.replace(b"AcknowledgmentRange", b"AcknowledgementRange"))


@pytest.mark.parametrize("action", ["urn:a", "http://schemas.xmlsoap.org/ws/2003/03/rm/SequenceTerminate"])
def test_a_header_of_2003_03_ends_a_sequence(action: str) -> None:
    envelope = read(f"<r:SequenceTerminate>{IDENTIFIER}</r:SequenceTerminate>", action=action)
    assert envelope.control == TerminateSequence("urn:s")


def test_that_header_may_stand_beside_a_message() -> None:
    envelope = read(
        f"<r:Sequence>{IDENTIFIER}<r:MessageNumber>3</r:MessageNumber></r:Sequence>"
        f"<r:SequenceTerminate>{IDENTIFIER}</r:SequenceTerminate>",
        "<b/>",
    )
    assert (envelope.control, envelope.terminates, envelope.body) == (None, "urn:s", b"<b/>")
    with pytest.raises(EnvelopeError, match="two SequenceTerminate headers"):
        read(f"<r:SequenceTerminate>{IDENTIFIER}</r:SequenceTerminate>" * 2)


def test_a_fault_of_2003_03_names_its_sequence_before_its_code() -> None:
    envelope = read(
        f"<r:SequenceFault>{IDENTIFIER}<r:FaultCode>r:UnknownSequence</r:FaultCode>{IDENTIFIER}</r:SequenceFault>",
        "<e:Fault><faultcode>e:Client</faultcode><faultstring>no</faultstring></e:Fault>",
        action="http://schemas.xmlsoap.org/ws/2003/03/addressing/fault",
    )
    assert envelope.fault is not None and envelope.fault.is_rm
    assert (envelope.fault.code, envelope.fault.identifier, envelope.fault.detail) == ("UnknownSequence", "urn:s", b"")


@pytest.mark.parametrize("separator", "/#")
def test_2004_03_creates_a_sequence_with_an_empty_element(separator: str) -> None:
    """Sandesha 1 writes its actions with a slash, OpenLink Virtuoso with a number sign."""
    base = f"http://schemas.xmlsoap.org/ws/2004/03/rm{separator}"
    listener = "<a:ReplyTo><a:Address>http://client/</a:Address></a:ReplyTo>"
    for header, acks_to in ((listener, EndpointReference("http://client/")), ("", ANONYMOUS_EPR)):
        asked = read(header, "<r:CreateSequence/>", rm="2004/03", action=f"{base}CreateSequence")
        assert asked.control == CreateSequence(acks_to)
    response = f"<r:CreateSequenceResponse>{IDENTIFIER}</r:CreateSequenceResponse>"
    granted = read("", response, rm="2004/03", action=f"{base}CreateSequenceResponse")
    assert granted.control == CreateSequenceResponse("urn:s")
    ended = f"<r:TerminateSequence>{IDENTIFIER}</r:TerminateSequence>"
    assert read("", ended, rm="2004/03", action=f"{base}TerminateSequence").control == TerminateSequence("urn:s")
    ranges = f'{IDENTIFIER}<r:AcknowledgementRange Lower="1" Upper="2"/>'
    header = f"<r:SequenceAcknowledgement>{ranges}</r:SequenceAcknowledgement>"
    acknowledged = read(header, rm="2004/03", action=f"{base}SequenceAcknowledgement")
    assert acknowledged.control == Acknowledge()
    assert acknowledged.acknowledgements == (SequenceAcknowledgement("urn:s", ((1, 2),)),)


def test_they_have_no_offer_and_no_expires() -> None:
    envelope = Envelope(SOAP.V1_1, Addressing.V2003_03, RM.V2004_03)
    envelope.control = CreateSequence(EndpointReference("http://client/"), 60.0)
    assert b"<wsrm:CreateSequence></wsrm:CreateSequence>" in wire.encode(envelope)
    envelope.control = CreateSequenceResponse("urn:s", 60.0, accept_acks_to=ANONYMOUS_EPR)
    assert b"</wsu:Identifier></wsrm:CreateSequenceResponse>" in wire.encode(envelope)


@pytest.mark.parametrize("kind", [CreateSequence(ANONYMOUS_EPR), CreateSequenceResponse("urn:s")])
def test_2003_03_has_no_message_that_creates_a_sequence(kind: CreateSequence | CreateSequenceResponse) -> None:
    with pytest.raises(ConfigurationError, match="WS-RM 2003/03 has no CreateSequence"):
        wire.encode(Envelope(SOAP.V1_1, Addressing.V2003_03, RM.V2003_03, control=kind))
    with pytest.raises(EnvelopeError, match="is not a message of WS-RM 2003/03"):
        read("", f"<r:{type(kind).__name__}/>")


@pytest.mark.parametrize("rm", [RM.V2003_03, RM.V2004_03])
def test_references_have_properties_and_no_parameters(rm: RM) -> None:
    target = EndpointReference("http://client/", (b'<k:k xmlns:k="urn:k">1</k:k>',))
    envelope = Envelope(SOAP.V1_1, Addressing.V2003_03, rm, action="urn:a", reply_to=target)
    data = wire.encode(envelope)
    assert b"<wsa:ReferenceProperties>" in data
    assert wire.decode(data).reply_to == target
    assert DIALECTS[rm].identifier_namespace == WSU
