"""Writing envelopes: what peers are strict about.

Covers wire/encoding/envelopes.py.
"""

from __future__ import annotations

import pytest

from holdfast import wire
from holdfast.core.messages import (
    ANONYMOUS,
    ANONYMOUS_EPR,
    NONE,
    Acknowledge,
    CloseSequence,
    CreateSequence,
    EndpointReference,
    Envelope,
    Fault,
    LastMessage,
    Offer,
    Sequence,
    SequenceAcknowledgement,
    TerminateSequence,
)
from holdfast.core.versions import ALL_VERSIONS, RM, SOAP, Addressing, Versions
from holdfast.exceptions import ConfigurationError


def envelope(rm: RM = RM.V1_1, addressing: Addressing = Addressing.V2005_08, soap: SOAP = SOAP.V1_2) -> Envelope:
    return Envelope(soap, addressing, rm, action="urn:a", to="http://service.example/")


@pytest.mark.parametrize("versions", ALL_VERSIONS)
def test_action_to_and_sequence_are_mandatory_and_nothing_else_is(versions: Versions) -> None:
    sent = envelope(versions.rm, versions.addressing, versions.soap)
    sent.sequence = Sequence("urn:s", 1)
    sent.acknowledgements = (SequenceAcknowledgement("urn:t", ((1, 1),)),)
    sent.message_id = "urn:m"
    sent.reply_to = ANONYMOUS_EPR
    data = wire.encode(sent)
    assert data.count(b'mustUnderstand="1"') == 3
    for name in (b"wsa:Action", b"wsa:To", b"wsrm:Sequence"):
        assert b"<" + name + b' s:mustUnderstand="1">' in data


@pytest.mark.parametrize("versions", ALL_VERSIONS, ids=str)
@pytest.mark.parametrize("what", ["an acknowledgement by itself", "an answer", "a reply", "a fault"])
def test_only_an_answer_before_2005_08_names_the_anonymous_role(versions: Versions, what: str) -> None:
    answer = Envelope(versions.soap, versions.addressing, versions.rm)
    if what == "an acknowledgement by itself":
        answer.control, answer.acknowledgements = Acknowledge(), (SequenceAcknowledgement("urn:s", ((1, 1),)),)
    elif what == "an answer":
        answer.control, answer.relates_to = TerminateSequence("urn:s"), "urn:m"
    elif what == "a reply":
        answer.action, answer.body, answer.sequence = "urn:a", b"<x/>", Sequence("urn:s", 1)
    else:
        answer.fault = Fault("Sender", "no")
    data = wire.encode(answer)
    role = f"http://schemas.xmlsoap.org/ws/{versions.addressing.value}/addressing/role/anonymous".encode()
    written = b'<wsa:To s:mustUnderstand="1">' + role + b"</wsa:To>"
    is_old = versions.addressing is not Addressing.V2005_08
    assert (data.count(written), data.count(b"<wsa:To")) == ((1, 1) if is_old else (0, 0))
    assert wire.decode(data).to == (role.decode() if is_old else None)


def test_nothing_accepted_is_written_as_each_version_says_it() -> None:
    older, newer = envelope(RM.V1_0), envelope()
    older.acknowledgements = newer.acknowledgements = (SequenceAcknowledgement("urn:s"),)
    assert b'<wsrm:AcknowledgementRange Lower="0" Upper="0"/>' in wire.encode(older)
    assert b"<wsrm:None/>" in wire.encode(newer)


def test_buffer_remaining_comes_after_the_ranges_and_final() -> None:
    sent = envelope()
    sent.acknowledgements = (SequenceAcknowledgement("urn:s", ((1, 2), (4, 4)), final=True, buffer_remaining=8),)
    assert (
        b'<wsrm:AcknowledgementRange Lower="1" Upper="2"/><wsrm:AcknowledgementRange Lower="4" Upper="4"/><wsrm:Final/>'
        b'<netrm:BufferRemaining xmlns:netrm="http://schemas.microsoft.com/ws/2006/05/rm">8</netrm:BufferRemaining>'
        b"</wsrm:SequenceAcknowledgement>"
    ) in wire.encode(sent)


def test_1_0_is_written_without_what_only_1_1_has() -> None:
    sent = envelope(RM.V1_0)
    sent.acknowledgements = (SequenceAcknowledgement("urn:s", ((1, 2),), final=True),)
    sent.control = CreateSequence(ANONYMOUS_EPR, offer=Offer("urn:o", ANONYMOUS_EPR))
    sent.action = ""
    data = wire.encode(sent)
    for element in (b"Final", b"Endpoint", b"IncompleteSequenceBehavior"):
        assert element not in data


def test_an_offer_in_1_1_always_has_the_endpoint_the_schema_requires() -> None:
    sent = envelope()
    sent.control = CreateSequence(EndpointReference("http://client.example/"), offer=Offer("urn:o"))
    assert b"<wsrm:Endpoint><wsa:Address>http://client.example/</wsa:Address></wsrm:Endpoint>" in wire.encode(sent)


def test_the_special_addresses_are_written_in_the_version_spoken() -> None:
    for addressing, uri in (
        (Addressing.V2005_08, b"http://www.w3.org/2005/08/addressing/anonymous"),
        (Addressing.V2004_08, b"http://schemas.xmlsoap.org/ws/2004/08/addressing/role/anonymous"),
    ):
        sent = envelope(RM.V1_0, addressing)
        sent.to = ANONYMOUS
        sent.reply_to = ANONYMOUS_EPR
        sent.fault_to = EndpointReference(NONE)
        data = wire.encode(sent)
        assert data.count(uri) == 2
        assert b"http://www.w3.org/2005/08/addressing/none" in data


def test_reference_parameters_become_marked_headers_in_2005_and_plain_ones_in_2004() -> None:
    parameters = (b'<k:k xmlns:k="urn:k">1</k:k>', b"<l/>")
    newer, older = envelope(), envelope(RM.V1_0, Addressing.V2004_08)
    newer.reference_parameters = older.reference_parameters = parameters
    assert b'<k:k wsa:IsReferenceParameter="true" xmlns:k="urn:k">1</k:k>' in wire.encode(newer)
    assert b'<l wsa:IsReferenceParameter="true"/>' in wire.encode(newer)
    assert parameters[0] + parameters[1] in wire.encode(older)
    assert len(wire.decode(wire.encode(newer)).headers) == 2


def test_text_is_escaped_and_what_xml_cannot_hold_is_replaced() -> None:
    sent = envelope()
    sent.to = "http://a/?b=1&c=<2>\r\x00\ud800"
    assert wire.decode(wire.encode(sent)).to == "http://a/?b=1&c=<2>\r\ufffd\ufffd"


def test_a_plain_soap_message_has_no_other_namespace() -> None:
    data = wire.encode(Envelope(SOAP.V1_1, body=b"<x/>"))
    assert data == (
        b'<s:Envelope xmlns:s="http://schemas.xmlsoap.org/soap/envelope/"><s:Header></s:Header>'
        b"<s:Body><x/></s:Body></s:Envelope>"
    )


@pytest.mark.parametrize(
    "broken",
    [
        Envelope(SOAP.V1_2, Addressing.V2005_08, None, sequence=Sequence("urn:s", 1)),
        Envelope(SOAP.V1_2, Addressing.V2005_08, None, control=TerminateSequence("urn:s")),
        Envelope(SOAP.V1_2, None, RM.V1_1, action="urn:a", control=TerminateSequence("urn:s")),
        Envelope(SOAP.V1_2, None, RM.V1_1, action="urn:a", control=Acknowledge()),
        Envelope(SOAP.V1_2, Addressing.V2005_08, RM.V1_0, control=CloseSequence("urn:s")),
        Envelope(SOAP.V1_2, Addressing.V2005_08, RM.V1_1, control=LastMessage(), sequence=Sequence("urn:s", 1)),
        Envelope(SOAP.V1_2, Addressing.V2005_08, RM.V1_0, control=LastMessage()),
    ],
)
def test_what_its_versions_have_no_words_for_is_refused(broken: Envelope) -> None:
    with pytest.raises(ConfigurationError):
        wire.encode(broken)


def test_the_action_is_that_of_the_message_unless_said() -> None:
    terminate = Envelope(SOAP.V1_2, Addressing.V2005_08, RM.V1_0, control=TerminateSequence("urn:s"))
    assert wire.action_of(terminate) == "http://schemas.xmlsoap.org/ws/2005/02/rm/TerminateSequence"
    terminate.action = "urn:other"
    assert wire.action_of(terminate) == "urn:other"
    assert wire.action_of(Envelope(SOAP.V1_2)) == ""


@pytest.mark.parametrize("versions", ALL_VERSIONS)
@pytest.mark.parametrize(
    "header",
    [
        SequenceAcknowledgement("urn:s", ((1, 7),), buffer_remaining=8),
        SequenceAcknowledgement("urn:s?a=1&b=<2>", ((1, 2), (4, 4)), final=True),
        SequenceAcknowledgement("urn:s"),
        SequenceAcknowledgement("urn:s", (), (3, 5)),
    ],
    ids=["one range", "more", "nothing", "nacks"],
)
def test_an_acknowledgement_by_itself_is_written_like_any_other_message(
    versions: Versions, header: SequenceAcknowledgement
) -> None:
    alone = Envelope(versions.soap, versions.addressing, versions.rm, control=Acknowledge(), acknowledgements=(header,))
    named = Envelope(versions.soap, versions.addressing, versions.rm, control=Acknowledge(), acknowledgements=(header,))
    named.action = wire.action_of(alone)
    assert wire.encode(alone) == wire.encode(named)
    assert wire.decode(wire.encode(alone)).acknowledgements == (
        SequenceAcknowledgement(
            header.identifier,
            header.ranges,
            header.nacks if versions.rm in (RM.V1_0, RM.V1_1) else (),
            header.final and versions.rm is RM.V1_1,
            header.buffer_remaining,
        ),
    )


DEFAULT_FAULT_ACTIONS = {
    Addressing.V2003_03: "http://schemas.xmlsoap.org/ws/2003/03/addressing/fault",
    Addressing.V2004_03: "http://schemas.xmlsoap.org/ws/2004/03/addressing/fault",
    Addressing.V2004_08: "http://schemas.xmlsoap.org/ws/2004/08/addressing/fault",
    Addressing.V2005_08: "http://www.w3.org/2005/08/addressing/soap/fault",
}


WSA_FAULT = "http://www.w3.org/2005/08/addressing/fault"
"""WS-Addressing 2005/08 has an action of its own for its own faults; 2004/08 has one for all."""


@pytest.mark.parametrize("stored", [*DEFAULT_FAULT_ACTIONS.values(), WSA_FAULT, "urn:orders/ProblemFault"])
@pytest.mark.parametrize("addressing", Addressing)
def test_the_default_action_of_a_stored_fault_is_that_of_the_version_spoken(
    stored: str, addressing: Addressing
) -> None:
    """WCF's client knows a typed fault by that action, and ActionNotSupported by the one of WS-Addressing's faults."""
    body = b"<s:Fault xmlns:s='http://www.w3.org/2003/05/soap-envelope'/>"
    fault = Envelope(SOAP.V1_2, addressing, action=stored, body=body)
    due = DEFAULT_FAULT_ACTIONS[addressing] if stored in {*DEFAULT_FAULT_ACTIONS.values(), WSA_FAULT} else stored
    if stored == WSA_FAULT and addressing is Addressing.V2005_08:
        due = stored
    assert wire.action_of(fault) == due
    assert f">{due}</wsa:Action>".encode() in wire.encode(fault)
