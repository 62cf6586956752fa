"""Faults as each peer writes them, and as we do."""

from __future__ import annotations

import itertools

import pytest

from holdfast import wire
from holdfast.core.faults import addressing_code, addressing_fault
from holdfast.core.messages import Envelope, Fault, SequenceAcknowledgement
from holdfast.core.versions import RM, SOAP, Addressing, Versions
from holdfast.exceptions import ConfigurationError
from holdfast.wire.faults import action_of_fault

S11 = "http://schemas.xmlsoap.org/soap/envelope/"
S12 = "http://www.w3.org/2003/05/soap-envelope"
WSA10 = "http://www.w3.org/2005/08/addressing"
RM10 = "http://schemas.xmlsoap.org/ws/2005/02/rm"
RM11 = "http://docs.oasis-open.org/ws-rx/wsrm/200702"
NETRM = "http://schemas.microsoft.com/ws/2006/05/rm"


def read_11(fault: str, header: str = "") -> Envelope:
    data = (
        f'<s:Envelope xmlns:s="{S11}" xmlns:a="{WSA10}" xmlns:r="{RM11}" xmlns:r0="{RM10}">'
        f"<s:Header>{header}</s:Header><s:Body><s:Fault>{fault}</s:Fault></s:Body></s:Envelope>"
    )
    return wire.decode(data.encode())


def read_12(codes: list[str], detail: str = "", reasons: str = "<s:Text xml:lang='en'>No.</s:Text>") -> Envelope:
    nested = "".join(f"<s:Subcode>{value}" for value in codes[1:]) + "</s:Subcode>" * (len(codes) - 1)
    data = (
        f'<s:Envelope xmlns:s="{S12}" xmlns:a="{WSA10}" xmlns:r="{RM11}" xmlns:r0="{RM10}" xmlns:n="{NETRM}"><s:Body>'
        f"<s:Fault><s:Code>{codes[0]}{nested}</s:Code><s:Reason>{reasons}</s:Reason>{detail}</s:Fault></s:Body>"
        "</s:Envelope>"
    )
    return wire.decode(data.encode())


def value(code: str) -> str:
    return f"<s:Value>{code}</s:Value>"


def fault_of(envelope: Envelope) -> Fault:
    assert envelope.fault is not None
    return envelope.fault


# --- SOAP 1.1 --------------------------------------------------------------------------------------------------------

CLIENT = "<faultcode>s:Client</faultcode><faultstring>No.</faultstring>"


def test_a_sequence_fault_header_names_the_fault_in_1_1() -> None:
    detail = "<r:Identifier>urn:s</r:Identifier><r:MaxMessageNumber>9</r:MaxMessageNumber>"
    code = "<r:FaultCode>r:MessageNumberRollover</r:FaultCode>"
    header = f"<r:SequenceFault>{code}<r:Detail>{detail}</r:Detail></r:SequenceFault>"
    envelope = read_11(CLIENT, header)
    assert envelope.fault == Fault(
        "MessageNumberRollover",
        "No.",
        is_rm=True,
        identifier="urn:s",
        max_message_number=9,
        has_sequence_fault_header=True,
    )
    assert envelope.rm is RM.V1_1
    assert envelope.headers == ()


@pytest.mark.parametrize(("prefix", "version"), [("r0", RM.V1_0), ("r", RM.V1_1)])
def test_its_detail_may_stand_directly_in_it_as_in_1_0_and_cxf(prefix: str, version: RM) -> None:
    header = (
        f"<{prefix}:SequenceFault><{prefix}:FaultCode>{prefix}:UnknownSequence</{prefix}:FaultCode>"
        f"<{prefix}:Identifier>urn:s</{prefix}:Identifier></{prefix}:SequenceFault>"
    )
    envelope = read_11(CLIENT, header)
    assert (fault_of(envelope).code, fault_of(envelope).identifier) == ("UnknownSequence", "urn:s")
    assert envelope.rm is version


def test_metro_puts_the_code_into_faultcode() -> None:
    fault = fault_of(read_11("<faultcode>r:SequenceTerminated</faultcode><faultstring>No.</faultstring>"))
    assert fault == Fault("SequenceTerminated", "No.", is_rm=True)


def test_sandesha_adds_the_header_to_a_refusal() -> None:
    header = (
        "<r:SequenceFault><r:FaultCode>r:CreateSequenceRefused</r:FaultCode>"
        "<r:Detail><r:Identifier>refused, sorry</r:Identifier></r:Detail></r:SequenceFault>"
    )
    fault = fault_of(read_11("<faultcode>r:CreateSequenceRefused</faultcode><faultstring>No.</faultstring>", header))
    assert (fault.code, fault.identifier, fault.has_sequence_fault_header) == (
        "CreateSequenceRefused",
        "refused, sorry",
        True,
    )


def test_a_server_fault_is_the_receivers() -> None:
    fault = fault_of(read_11("<faultcode>s:Server</faultcode><faultstring>Oh.</faultstring>"))
    assert fault == Fault("Receiver", "Oh.", sender=False)


def test_an_application_fault_keeps_its_detail_self_contained() -> None:
    detail = "<detail><r:odd/><plain k='1'>text</plain></detail>"
    fault = fault_of(read_11(f"<faultcode>OrderUnknown</faultcode><faultstring>No.</faultstring>{detail}"))
    assert (fault.code, fault.is_rm, fault.is_addressing) == ("OrderUnknown", False, False)
    assert fault.detail == f"<r:odd xmlns:r=\"{RM11}\"/><plain k='1'>text</plain>".encode()


def test_a_detail_of_text_only_is_kept_as_text() -> None:
    fault = fault_of(read_11(f"{CLIENT}<detail>a &lt; b</detail>"))
    assert fault.detail == b"a &lt; b"


def test_an_addressing_faults_detail_is_in_its_header() -> None:
    header = "<a:FaultDetail><a:ProblemIRI>urn:x</a:ProblemIRI></a:FaultDetail>"
    envelope = read_11("<faultcode>a:ActionNotSupported</faultcode><faultstring>No.</faultstring>", header)
    fault = fault_of(envelope)
    assert fault.is_addressing
    assert b"ProblemIRI" in fault.detail
    assert envelope.headers == ()


# --- SOAP 1.2 --------------------------------------------------------------------------------------------------------


def test_a_subcode_is_resolved_with_the_namespaces_where_it_stands() -> None:
    redeclared = f"<s:Value xmlns:a='{RM10}'>a:UnknownSequence</s:Value>"
    envelope = read_12([value("s:Sender"), redeclared])
    assert fault_of(envelope).is_rm
    assert fault_of(envelope).code == "UnknownSequence"
    assert envelope.rm is RM.V1_0


@pytest.mark.parametrize("prefix", ["r", "r0", "n"])
def test_wcfs_spelling_of_wsrm_required_is_understood(prefix: str) -> None:
    fault = fault_of(read_12([value("s:Sender"), value(f"{prefix}:WsrmRequired")]))
    assert (fault.code, fault.is_rm) == ("WSRMRequired", True)


def test_a_vendors_code_below_an_rm_code_does_not_hide_it() -> None:
    codes = [value("s:Receiver"), value("r:CreateSequenceRefused"), value("n:ConnectionLimitReached")]
    fault = fault_of(read_12(codes))
    assert (fault.code, fault.is_rm, fault.sender) == ("CreateSequenceRefused", True, False)


def test_the_most_specific_addressing_code_counts() -> None:
    codes = [value("s:Sender"), value("a:InvalidAddressingHeader"), value("a:InvalidCardinality")]
    fault = fault_of(read_12(codes))
    assert (fault.code, fault.is_addressing) == ("InvalidCardinality", True)


def test_the_offending_acknowledgement_is_read_from_the_detail() -> None:
    acknowledgement = (
        "<s:Detail><r:SequenceAcknowledgement><r:Identifier>urn:s</r:Identifier>"
        '<r:AcknowledgementRange Lower="1" Upper="9"/></r:SequenceAcknowledgement></s:Detail>'
    )
    fault = fault_of(read_12([value("s:Sender"), value("r:InvalidAcknowledgement")], acknowledgement))
    assert fault.acknowledgement == SequenceAcknowledgement("urn:s", ((1, 9),))
    assert fault.identifier == "urn:s"


def test_the_first_reason_is_the_reason() -> None:
    reasons = "<s:Text xml:lang=''>One.</s:Text><s:Text xml:lang='de'>Zwei.</s:Text>"
    assert fault_of(read_12([value("s:Sender")], reasons=reasons)).reason == "One."


# --- faults in no proper shape ----------------------------------------------------------------------------------------

_CODES_1_1 = {
    "": None,
    "<faultcode/>": None,
    "<faultcode>s:Client.Auth</faultcode>": "Client.Auth",
    "<faultcode>Own</faultcode>": "Own",
    "<f:faultcode>Own</f:faultcode>": "Own",
}
_CODES_1_2 = {
    "": None,
    "<f:Code/>": None,
    "<f:Code><f:Value/></f:Code>": None,
    "<f:Code><f:Value>Own</f:Value></f:Code>": "Own",
    "<Code><Value>Own</Value></Code>": "Own",
}
_REASONS_1_1 = {"": "", "<faultstring/>": "", "<faultstring>No.</faultstring>": "No."}
_REASONS_1_2 = {"": "", "<f:Reason/>": "", "<f:Reason>No.</f:Reason>": "No.", "<f:Reason><f:Text/></f:Reason>": ""}
_IMPROPER = [
    *itertools.product(_CODES_1_1.items(), _REASONS_1_1.items()),
    *itertools.product(_CODES_1_2.items(), _REASONS_1_2.items()),
    (("", None), ("No.", "No.")),
]


@pytest.mark.parametrize("fault_namespace", [S11, S12])
@pytest.mark.parametrize("namespace", [S11, S12])
def test_a_fault_of_any_shape_is_a_fault(namespace: str, fault_namespace: str) -> None:
    for (code, name), (reason, text) in _IMPROPER:
        content = f'<f:Fault xmlns:f="{fault_namespace}">{code}{reason}</f:Fault>'
        envelope = f'<s:Envelope xmlns:s="{namespace}"><s:Body>{content}</s:Body></s:Envelope>'
        fault = fault_of(wire.decode(envelope.encode()))
        # Without a code, nothing says that the message is to blame: a repeat may succeed.
        assert (fault.code, fault.reason, fault.sender) == (name or "Receiver", text, name is not None), content


def test_a_sequence_fault_without_a_code_does_not_hide_the_fault() -> None:
    assert fault_of(read_11(CLIENT, "<r:SequenceFault/>")) == Fault("Sender", "No.")


# --- ours ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("versions", "fault", "action"),
    [
        (Versions("1.1", "2005/08"), Fault("UnknownSequence", "", is_rm=True), RM11 + "/fault"),
        (Versions("1.1", "2005/08"), Fault("CreateSequenceRefused", "", is_rm=True), RM11 + "/fault"),
        (Versions("1.0", "2005/08"), Fault("UnknownSequence", "", is_rm=True), WSA10 + "/soap/fault"),
        (
            Versions("1.0", "2004/08"),
            Fault("UnknownSequence", "", is_rm=True),
            "http://schemas.xmlsoap.org/ws/2004/08/addressing/fault",
        ),
        (Versions("1.1", "2005/08"), Fault("ActionNotSupported", "", is_addressing=True), WSA10 + "/fault"),
        (Versions("1.1", "2005/08"), Fault("MustUnderstand", ""), WSA10 + "/soap/fault"),
    ],
)
def test_the_action_of_a_fault_is_that_of_its_version(versions: Versions, fault: Fault, action: str) -> None:
    assert action_of_fault(versions.rm, versions.addressing, fault) == action


def written(fault: Fault, soap: SOAP, rm: RM | None = RM.V1_1, names: tuple[str, ...] = ()) -> bytes:
    return wire.encode(Envelope(soap, Addressing.V2005_08, rm, fault=fault, not_understood=names))


def test_a_fault_about_a_header_has_no_detail_in_a_soap_1_1_body() -> None:
    data = written(Fault("UnknownSequence", "No.", is_rm=True, identifier="urn:s"), SOAP.V1_1)
    assert b"<wsrm:SequenceFault><wsrm:FaultCode>wsrm:UnknownSequence</wsrm:FaultCode><wsrm:Detail>" in data
    assert b"<faultcode>s:Client</faultcode><faultstring>No.</faultstring></s:Fault>" in data


@pytest.mark.parametrize("soap", SOAP)
@pytest.mark.parametrize(
    "fault",
    [
        addressing_fault("InvalidCardinality", "Twice.", header="To"),
        addressing_fault("ActionNotSupported", "No.", action="urn:a&b"),
        addressing_fault("MessageAddressingHeaderRequired", "None.", header="Action"),
    ],
    ids=lambda fault: fault.code,
)
def test_an_addressing_fault_names_its_problem_in_2005_08_only(soap: SOAP, fault: Fault) -> None:
    newer = wire.encode(Envelope(soap, Addressing.V2005_08, RM.V1_1, fault=fault))
    action = "<wsa:ProblemAction><wsa:Action>urn:a&amp;b</wsa:Action></wsa:ProblemAction>"
    header = f"<wsa:ProblemHeaderQName>wsa:{fault.problem_header}</wsa:ProblemHeaderQName>"
    assert (action if fault.problem_action else header).encode() in newer
    assert (b"<wsa:FaultDetail>" in newer) is (soap is SOAP.V1_1)
    assert fault_of(wire.decode(newer)).code == fault.code
    older = wire.encode(Envelope(soap, Addressing.V2004_08, RM.V1_0, fault=fault))
    assert b"Problem" not in older
    assert fault_of(wire.decode(older)).code == addressing_code(fault.code, Addressing.V2004_08)


def test_the_reasons_of_2005_08_stand_below_invalid_addressing_header() -> None:
    fault = addressing_fault("OnlyAnonymousAddressSupported", "No.")
    nested = b"wsa:InvalidAddressingHeader</s:Value><s:Subcode><s:Value>wsa:OnlyAnonymousAddressSupported</s:Value>"
    assert nested in wire.encode(Envelope(SOAP.V1_2, Addressing.V2005_08, RM.V1_1, fault=fault))
    older = wire.encode(Envelope(SOAP.V1_2, Addressing.V2004_08, RM.V1_0, fault=fault))
    assert b"<s:Subcode><s:Value>wsa:InvalidMessageInformationHeader</s:Value></s:Subcode>" in older


def test_1_0_has_no_detail_wrapper() -> None:
    data = written(Fault("UnknownSequence", "No.", is_rm=True, identifier="urn:s"), SOAP.V1_1, RM.V1_0)
    assert b"</wsrm:FaultCode><wsrm:Identifier>urn:s</wsrm:Identifier></wsrm:SequenceFault>" in data


def test_a_refusal_is_named_in_faultcode() -> None:
    data = written(Fault("CreateSequenceRefused", "Offer one.", is_rm=True), SOAP.V1_1)
    assert b"<faultcode>wsrm:CreateSequenceRefused</faultcode>" in data
    assert b"SequenceFault" not in data


def test_soap_1_2_names_the_headers_that_were_not_understood() -> None:
    data = written(Fault("MustUnderstand", "No."), SOAP.V1_2, None, ("{urn:h}Security",))
    assert b'<s:NotUnderstood qname="h:Security" xmlns:h="urn:h"/>' in data
    assert b"<s:Value>s:MustUnderstand</s:Value>" in data
    envelope = wire.decode(data)
    assert envelope.headers == ()
    assert envelope.not_understood == ()


def test_soap_1_2_offers_its_versions_to_another() -> None:
    data = written(Fault("VersionMismatch", "No."), SOAP.V1_2, None)
    assert data.count(b"SupportedEnvelope") == 2


def test_an_rm_fault_needs_to_know_its_version() -> None:
    with pytest.raises(ConfigurationError):
        written(Fault("UnknownSequence", "No.", is_rm=True), SOAP.V1_2, None)
