"""What is read out of a WSDL and its policies, written as the known tools write them."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from holdfast.core.policy import Assurance, Delivery
from holdfast.core.versions import Versions
from holdfast.exceptions import ConfigurationError
from holdfast.wire.names import WSA_NS
from holdfast.wire.policy.assertions import (
    CLIENT_CERTIFICATE,
    HTTP_BASIC,
    PASSWORD,
    PASSWORD_DIGEST,
    TIMESTAMP,
    Ability,
)
from holdfast.wire.policy.settings import StatedSettings
from holdfast.wire.wsdl import Description, HeaderBlock, Port, defined_name

SOAP_1_1 = "http://schemas.xmlsoap.org/wsdl/soap/"
SOAP_1_2 = "http://schemas.xmlsoap.org/wsdl/soap12/"
WSU = "http://docs.oasis-open.org/wss/2004/01/oasis-200401-wss-wssecurity-utility-1.0.xsd"
WSP_1_2 = "http://schemas.xmlsoap.org/ws/2004/09/policy"
WSP_1_5 = "http://www.w3.org/ns/ws-policy"
RM_1_0 = "http://schemas.xmlsoap.org/ws/2005/02/rm/policy"
RM_1_1 = "http://docs.oasis-open.org/ws-rx/wsrmp/200702"
ADDRESSING_2005 = '<wsaw:UsingAddressing xmlns:wsaw="http://www.w3.org/2006/05/addressing/wsdl"/>'
ADDRESSING_2004 = '<w:UsingAddressing xmlns:w="http://schemas.xmlsoap.org/ws/2004/08/addressing/policy"/>'
SIGNED = '<sp:SignedElements xmlns:sp="http://schemas.xmlsoap.org/ws/2005/07/securitypolicy"/>'
WCF_1_0 = (
    f'<r:RMAssertion xmlns:r="{RM_1_0}"><r:InactivityTimeout Milliseconds="600000"/>'
    '<r:AcknowledgementInterval Milliseconds="200"/></r:RMAssertion>'
)
WCF_1_1 = (
    f'<r:RMAssertion xmlns:r="{RM_1_1}"><wsp:Policy><r:DeliveryAssurance><wsp:Policy><r:ExactlyOnce/><r:InOrder/>'
    "</wsp:Policy></r:DeliveryAssurance></wsp:Policy>"
    '<n:InactivityTimeout Milliseconds="120000" xmlns:n="http://schemas.microsoft.com/ws-rx/wsrmp/200702"/>'
    "</r:RMAssertion>"
)


def wsdl(
    *,
    policy: str = "",
    soap: str = SOAP_1_2,
    on_binding: str = '<wsp:PolicyReference URI="#p"/>',
    on_port: str = "",
    output: str = "",
    ports: str = "",
    wsp: str = WSP_1_2,
) -> bytes:
    return f"""<?xml version="1.0" encoding="utf-8"?>
<wsdl:definitions targetNamespace="urn:t" xmlns:t="urn:t" xmlns:wsdl="http://schemas.xmlsoap.org/wsdl/"
    xmlns:soap="{soap}" xmlns:wsp="{wsp}" xmlns:wsu="{WSU}">
  {f'<wsp:Policy wsu:Id="p">{policy}</wsp:Policy>' if policy else ""}
  <wsdl:portType name="Orders">
    <wsdl:operation name="Submit"><wsdl:input message="t:In"/>{output}</wsdl:operation>
  </wsdl:portType>
  <wsdl:binding name="B" type="t:Orders">
    <!-- a remark -->
    {on_binding if policy else ""}
    <soap:binding transport="http://schemas.xmlsoap.org/soap/http"/>
  </wsdl:binding>
  <wsdl:service name="S">
    <wsdl:port name="P" binding="t:B">{on_port}<soap:address location=" http://host/orders "/></wsdl:port>
    {ports}
  </wsdl:service>
</wsdl:definitions>""".encode()


def read(
    *documents: bytes, name: str | None = None, able: Collection[Ability] | None = None, to: str | None = None
) -> Port:
    description = Description()
    for document in documents:
        description.add(document, "here")
    return description.port(name, able, to)


def refused(
    *documents: bytes, name: str | None = None, able: Collection[Ability] | None = None, to: str | None = None
) -> str:
    with pytest.raises(ConfigurationError) as caught:
        read(*documents, name=name, able=able, to=to)
    return str(caught.value)


def test_a_net_service_of_rm_1_0_says_its_versions_and_its_inactivity_timeout() -> None:
    alternatives = f"<wsp:ExactlyOne><wsp:All>{WCF_1_0}{ADDRESSING_2005}</wsp:All></wsp:ExactlyOne>"
    port = read(wsdl(policy=alternatives, output="<wsdl:output message='t:Out'/>"))
    stated = StatedSettings(inactivity_timeout=600.0, acknowledgement_interval=0.2)
    assert port == Port("P", "http://host/orders", frozenset({Versions("1.0", "2005/08", "1.2")}), True, True, stated)


@pytest.mark.parametrize("wsp", [WSP_1_2, WSP_1_5])
def test_rm_1_1_states_its_delivery_assurance_in_either_policy_namespace(wsp: str) -> None:
    port = read(wsdl(policy=WCF_1_1, wsp=wsp, soap=SOAP_1_1))
    assert port.versions == {Versions("1.1", "2005/08", "1.1")}
    assert port.settings.assurance == Assurance(Delivery.EXACTLY_ONCE, in_order=True)
    assert port.settings.inactivity_timeout == 120.0
    assert not port.has_replies


def test_what_the_policy_leaves_open_stays_open() -> None:
    port = read(wsdl())
    assert not port.is_reliable
    assert port.versions == {
        Versions("1.0", "2004/08", "1.2"),
        Versions("1.0", "2005/08", "1.2"),
        Versions("1.1", "2005/08", "1.2"),
    }
    assert read(wsdl(policy=WCF_1_0 + ADDRESSING_2004)).versions == {Versions("1.0", "2004/08", "1.2")}
    assert read(wsdl(policy=ADDRESSING_2004)).versions == {Versions("1.0", "2004/08", "1.2")}


def test_addressing_may_stand_in_the_binding_itself_and_policies_at_the_port() -> None:
    assert read(
        wsdl(policy=WCF_1_0, on_binding=ADDRESSING_2004, on_port='<wsp:PolicyReference URI="#p"/>')
    ).versions == {Versions("1.0", "2004/08", "1.2")}
    inline = read(wsdl(on_port=f"<wsp:Policy>{WCF_1_1}</wsp:Policy>"))
    assert inline.is_reliable
    attribute = wsdl(policy=WCF_1_1, on_binding="").replace(
        b'<wsdl:port name="P"', b'<wsdl:port wsp:PolicyURIs="#p" name="P"'
    )
    assert read(attribute).is_reliable
    named = wsdl(policy=WCF_1_1, on_binding='<wsp:PolicyReference URI="urn:named"/>')
    assert read(named.replace(b'wsu:Id="p"', b'Name="urn:named"')).is_reliable


def test_alternatives_that_cannot_be_met_are_passed_over() -> None:
    policy = f"<wsp:ExactlyOne><wsp:All>{WCF_1_1}{SIGNED}</wsp:All><wsp:All>{WCF_1_0}</wsp:All></wsp:ExactlyOne>"
    assert {one.rm.value for one in read(wsdl(policy=policy)).versions} == {"1.0"}


def test_an_optional_assertion_is_taken_where_it_helps_and_left_where_it_does_not() -> None:
    optional = WCF_1_1.replace("<r:RMAssertion", '<r:RMAssertion wsp:Optional="true"', 1)
    assert {one.rm.value for one in read(wsdl(policy=optional)).versions} == {"1.1"}
    assert read(wsdl(policy=optional)).is_optional
    assert not read(wsdl(policy=WCF_1_1)).is_optional
    assert read(wsdl(policy=SIGNED.replace("/>", ' wsp:Optional="1"/>') + WCF_1_1)).is_reliable


@pytest.mark.parametrize(
    ("assertion", "reason"),
    [
        (SIGNED, "signatures over elements that an XPath selects"),
        (
            '<m:BinaryEncoding xmlns:m="http://schemas.microsoft.com/ws/06/2004/mspolicy/netbinary1"/>',
            "binary encoding",
        ),
        (WCF_1_1.replace("<wsp:Policy>", "<wsp:Policy><r:SequenceTransportSecurity/>", 1), "one TLS session"),
    ],
)
def test_an_unsupported_requirement_is_reported(assertion: str, reason: str) -> None:
    text = refused(wsdl(policy=assertion))
    assert "the port P requires" in text
    assert reason in text


SP = 'xmlns:sp="http://schemas.xmlsoap.org/ws/2005/07/securitypolicy"'
SP_1_2 = 'xmlns:sp="http://docs.oasis-open.org/ws-sx/ws-securitypolicy/200702"'
NET_HTTP = 'xmlns:http="http://schemas.microsoft.com/ws/06/2004/policy/http"'


def transport(more: str = "", token: str = '<sp:HttpsToken RequireClientCertificate="true"/>', sp: str = SP) -> str:
    """The transport binding as .NET writes it, with more in it."""
    return (
        f"<sp:TransportBinding {sp}><wsp:Policy><sp:TransportToken><wsp:Policy>{token}</wsp:Policy></sp:TransportToken>"
        "<sp:AlgorithmSuite><wsp:Policy><sp:Basic256/></wsp:Policy></sp:AlgorithmSuite>"
        f"<sp:Layout><wsp:Policy><sp:Strict/></wsp:Policy></sp:Layout>{more}</wsp:Policy></sp:TransportBinding>"
    )


def supporting(token: str, kind: str = "SignedSupportingTokens") -> str:
    return f"<sp:{kind} {SP}><wsp:Policy>{token}</wsp:Policy></sp:{kind}>"


HTTP_TOKEN = '<sp:HttpsToken RequireClientCertificate="false"/>'
BASIC_TOKEN = "<sp:HttpsToken><wsp:Policy><sp:HttpBasicAuthentication/></wsp:Policy></sp:HttpsToken>"
CERTIFICATE_TOKEN = "<sp:HttpsToken><wsp:Policy><sp:RequireClientCertificate/></wsp:Policy></sp:HttpsToken>"
DIGEST_TOKEN = "<sp:UsernameToken><wsp:Policy><sp:HashPassword/></wsp:Policy></sp:UsernameToken>"
MET: list[tuple[str, set[Ability]]] = [
    (transport(token=HTTP_TOKEN), set()),
    (transport(), {CLIENT_CERTIFICATE}),
    (transport(token=CERTIFICATE_TOKEN, sp=SP_1_2), {CLIENT_CERTIFICATE}),
    (transport(token=BASIC_TOKEN, sp=SP_1_2), {HTTP_BASIC}),
    (
        transport(token=HTTP_TOKEN)
        + f"<sp:Wss11 {SP}><wsp:Policy><sp:MustSupportRefKeyIdentifier/></wsp:Policy></sp:Wss11>",
        set(),
    ),
    (f"<http:BasicAuthentication {NET_HTTP}/>", {HTTP_BASIC}),
    (supporting("<sp:X509Token/>").replace("Tokens ", 'Tokens wsp:Optional="true" ', 1), set()),
    (transport(token="<wsp:ExactlyOne><sp:SpnegoContextToken/><sp:HttpsToken/></wsp:ExactlyOne>"), set()),
    (transport("<sp:IncludeTimestamp/>", HTTP_TOKEN), {TIMESTAMP}),
    (transport(token=HTTP_TOKEN) + supporting("<sp:UsernameToken/>"), {PASSWORD}),
    (supporting("<sp:UsernameToken/>", "SupportingTokens"), {PASSWORD}),
    (supporting(DIGEST_TOKEN, "SupportingTokens"), {PASSWORD_DIGEST}),
]
"""Assertions, and what the source must do to meet them besides https."""
UNMET = [
    (
        f"{transport(token=HTTP_TOKEN)}<sp:EndorsingSupportingTokens {SP_1_2}><wsp:Policy><sp:X509Token/></wsp:Policy>"
        "</sp:EndorsingSupportingTokens>",
        "X509Token",
    ),
    (transport() + supporting("<sp:IssuedToken/>"), "IssuedToken (tokens other than a user name"),
    (
        supporting("<sp:UsernameToken><wsp:Policy><sp:NoPassword/></wsp:Policy></sp:UsernameToken>"),
        "NoPassword (a user name without a password)",
    ),
    (f"<sp:EncryptedElements {SP}/>", "EncryptedElements"),
    (f"<sp:MadeUpAssertion {SP_1_2}/>", "MadeUpAssertion (WS-Security)"),
    ('<m:SslContextToken xmlns:m="http://schemas.microsoft.com/ws/2005/07/securitypolicy"/>', "SslContextToken"),
    (f"<http:NegotiateAuthentication {NET_HTTP}/>", "NegotiateAuthentication (Windows authentication)"),
    (transport(token="<sp:HttpsToken><sp:HttpDigestAuthentication/></sp:HttpsToken>"), "HttpDigestAuthentication"),
    (transport(token="<wsp:ExactlyOne><sp:SpnegoContextToken/><sp:X509Token/></wsp:ExactlyOne>"), "SpnegoContextToken"),
]


@pytest.mark.parametrize(("assertion", "needed"), MET)
def test_a_demand_for_security_is_met_only_by_a_source_that_meets_it(assertion: str, needed: set[Ability]) -> None:
    described = wsdl(policy=f"{WCF_1_0}{assertion}")
    assert read(described, able=needed, to="https://host/").is_reliable
    assert {need.ability for need in read(described).needs} >= needed
    for one in needed:
        text = refused(described, able=needed - {one}, to="https://host/")
        assert one.words in text
        assert "line 4 of here" in text
        assert one.remedy in text


def test_transport_security_is_met_by_an_https_address_only() -> None:
    described = wsdl(policy=f"{WCF_1_0}{transport(token=HTTP_TOKEN)}")
    assert read(described, able=(), to="https://host/").is_reliable
    assert "requires TransportBinding (https), line 4 of here" in refused(described, able=())


def test_https_protects_the_parts_that_a_message_names() -> None:
    parts = f"<wsp:Policy><sp:SignedParts {SP}><sp:Body/></sp:SignedParts></wsp:Policy>"
    output = f'<wsdl:output message="t:Out">{parts}</wsdl:output>'
    described = wsdl(policy=f"{WCF_1_0}{transport(token=HTTP_TOKEN)}", output=output)
    assert read(described, able=(), to="https://host/").is_reliable
    assert "requires SignedParts" in refused(wsdl(policy=WCF_1_0, output=output), able=())


@pytest.mark.parametrize(("assertion", "name"), UNMET, ids=[name.partition(" ")[0] for _, name in UNMET])
def test_each_security_assertion_that_is_not_met_is_refused_by_name(assertion: str, name: str) -> None:
    text = refused(wsdl(policy=f"{WCF_1_0}{assertion}"))
    assert f"the port P requires {name}" in text
    assert "line 4 of here" in text
    assert "transport security alone" in text


@pytest.mark.parametrize("place", ["operation", "input"])
def test_what_an_operation_or_its_messages_demand_is_refused_too(place: str) -> None:
    demanded = f"<wsp:Policy><sp:EncryptedElements {SP}/></wsp:Policy>"
    within = demanded if place == "operation" else f"<wsdl:input>{demanded}</wsdl:input>"
    operation = f'<wsdl:operation name="Submit">{within}</wsdl:operation></wsdl:binding>'
    described = wsdl(policy=WCF_1_0).replace(b"</wsdl:binding>", operation.encode())
    assert "the port P requires EncryptedElements" in refused(described)


@pytest.mark.parametrize(
    ("part", "within"),
    [
        ('<wsdl:service name="S">', ""),
        ('<wsdl:port name="P" binding="t:B">', ""),
        ('<wsdl:portType name="Orders">', ""),
        ('<wsdl:operation name="Submit">', ""),
        ('<wsdl:input message="t:In"/>', "input"),
        ('<wsdl:message name="In"/>', "message"),
    ],
)
def test_a_policy_counts_wherever_it_is_attached(part: str, within: str) -> None:
    """As elements, or in the attribute, which a schema of WSDL permits everywhere."""
    described = wsdl(policy=WCF_1_0).decode()
    described = described.replace("  <wsdl:portType", '  <wsdl:message name="In"/>\n  <wsdl:portType')
    demand = '<wsp:Policy wsu:Id="demand"><x:Unheard xmlns:x="urn:x"/></wsp:Policy>'
    described = described.replace("  <wsdl:portType", f"  {demand}\n  <wsdl:portType")
    assert part in described
    in_attribute = described.replace(part, part.replace(" ", ' wsp:PolicyURIs="#demand" ', 1))
    assert "requires Unheard (an assertion of urn:x), line 6 of here" in refused(in_attribute.encode())
    if not within:
        as_element = described.replace(part, f'{part}<wsp:PolicyReference URI="#demand"/>')
        assert "requires Unheard (an assertion of urn:x), line 6 of here" in refused(as_element.encode())


def test_reliable_messaging_may_be_demanded_of_a_message() -> None:
    policy = f"<wsp:Policy>{WCF_1_0}</wsp:Policy>"
    described = wsdl().replace(b'<wsdl:input message="t:In"/>', f"<wsdl:input>{policy}</wsdl:input>".encode())
    port = read(described)
    assert port.is_reliable
    assert port.settings.inactivity_timeout == 600.0


def test_a_required_extension_that_is_not_known_is_refused() -> None:
    extension = '<x:Extension xmlns:x="urn:x" wsdl:required="true"/>'
    assert "requires Extension, line 14 of here, a WSDL extension" in refused(wsdl(on_port=extension))
    addressing = ADDRESSING_2005.replace("/>", ' wsdl:required="true"/>')
    assert read(wsdl(policy="<wsp:All/>", on_binding=addressing)).versions == {
        Versions("1.0", "2005/08", "1.2"),
        Versions("1.1", "2005/08", "1.2"),
    }


@pytest.mark.parametrize("namespace", WSA_NS.values())
@pytest.mark.parametrize("name", ["ReferenceParameters", "ReferenceProperties"])
def test_a_port_with_reference_parameters_is_refused(namespace: str, name: str) -> None:
    reference = f'<a:EndpointReference xmlns:a="{namespace}"><a:Address>http://x/</a:Address>%s</a:EndpointReference>'
    parameters = f'<a:{name}><k xmlns="urn:k">1</k></a:{name}>'
    assert "demands reference parameters, line 14 of here" in refused(wsdl(on_port=reference % parameters))
    assert read(wsdl(policy="<wsp:All/>", on_port=reference % "")).address


def test_versions_of_different_alternatives_are_not_mixed() -> None:
    policy = (
        f"<wsp:ExactlyOne><wsp:All>{WCF_1_0}{ADDRESSING_2004}</wsp:All><wsp:All>{WCF_1_1}{ADDRESSING_2005}</wsp:All>"
        "</wsp:ExactlyOne>"
    )
    assert read(wsdl(policy=policy)).versions == {Versions("1.0", "2004/08", "1.2"), Versions("1.1", "2005/08", "1.2")}


OTHER = (
    '<wsdl:port name="Q" binding="t:B"><soap:address location="https://host/other"/></wsdl:port>'
    '<wsdl:port name="T" binding="t:B"><soap:address location="net.tcp://host/tcp"/></wsdl:port>'
)


def test_of_several_ports_the_reliable_one_is_meant_and_otherwise_one_must_be_named() -> None:
    two = wsdl(policy=WCF_1_0, on_binding="", on_port='<wsp:PolicyReference URI="#p"/>', ports=OTHER)
    assert read(two).name == "P"
    assert read(two, name="Q").address == "https://host/other"
    both = wsdl(policy=WCF_1_0, ports=OTHER)
    assert "several ports: P, Q" in refused(both)
    assert "It has: P, Q." in refused(both, name="T")


def test_an_unreliable_port_is_no_substitute_for_a_reliable_one_that_is_refused() -> None:
    two = wsdl(policy=WCF_1_0 + SIGNED, on_binding="", on_port='<wsp:PolicyReference URI="#p"/>', ports=OTHER)
    assert "the port P requires SignedElements" in refused(two)
    assert not read(two, name="Q").is_reliable, "who names a port gets it"
    plain = wsdl(policy=SIGNED, on_binding="", on_port='<wsp:PolicyReference URI="#p"/>', ports=OTHER)
    assert read(plain).name == "Q", "the refused port is not reliable either"


def test_a_definition_may_stand_in_another_document_of_another_namespace() -> None:
    whole = wsdl(policy=WCF_1_0).decode()
    head, service = whole.split("  <wsdl:service")
    service = service.replace("t:B", "b:B")
    main = (
        '<wsdl:definitions targetNamespace="urn:main" xmlns:wsdl="http://schemas.xmlsoap.org/wsdl/" xmlns:b="urn:t" '
        f'xmlns:soap="{SOAP_1_2}"><wsdl:import namespace="urn:t" location="orders.wsdl?part=1"/>'
        f'<wsdl:import namespace="urn:types"/><wsdl:service{service}'
    ).encode()
    description = Description()
    assert description.add(main, "main") == ["orders.wsdl?part=1"]
    with pytest.raises(ConfigurationError, match="refers to the binding 'b:B', which it does not contain"):
        description.port()
    assert description.add(f"{head}</wsdl:definitions>".encode(), "part") == []
    assert description.port().is_reliable


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        (b"<html><body>a service</body></html>", "its root is html"),
        (b'<description xmlns="http://www.w3.org/ns/wsdl"/>', "it is WSDL 2.0"),
        (b"<html>", "well-formed"),
        (b'<!DOCTYPE d [<!ENTITY e SYSTEM "file:///etc/passwd">]><d>&e;</d>', "has a document type"),
        (b"", "not one well-formed"),
        (b'<definitions xmlns="{urn}wsdl"/>', "a namespace with a brace"),
        (b'<definitions xmlns="http://schemas.xmlsoap.org/wsdl/"><a xmlns:x="{urn}x"/></definitions>', "with a brace"),
        (b'<definitions xmlns="http://schemas.xmlsoap.org/wsdl/" targetNamespace="a&#125;"/>', "with a brace"),
    ],
)
def test_what_is_no_wsdl_is_refused_with_a_word_on_the_usual_cause(document: bytes, reason: str) -> None:
    for place in ("/a/here", "https://a/here"):
        with pytest.raises(ConfigurationError, match=f"{place} is not a WSDL 1.1: .*{reason}") as caught:
            Description().add(document, place)
        assert ("?wsdl" in caught.value.remedy) == place.startswith("https:")


def test_many_namespaces_of_many_elements_are_looked_at_once_each() -> None:
    """Looked at for each element, they would take minutes, and hours for a WSDL of a peer."""
    number = 5_000
    declared = " ".join(f'xmlns:p{one}="urn:{one}"' for one in range(number))
    elements = '<a b="&#65;"/>' * number
    for namespace in ("urn:t", "{urn}t"):
        document = f"""<definitions xmlns="http://schemas.xmlsoap.org/wsdl/" {declared} xmlns:t="{namespace}">
            {elements}</definitions>""".encode()
        if "{" in namespace:
            with pytest.raises(ConfigurationError, match="with a brace"):
                Description().add(document, "t.wsdl")
        else:
            Description().add(document, "t.wsdl")


def test_a_wsdl_that_contradicts_itself_is_refused() -> None:
    told = refused(wsdl(policy=WCF_1_1 + ADDRESSING_2004))
    assert "WS-ReliableMessaging 1.1 with WS-Addressing 2004/08 over SOAP 1.2, which cannot be combined" in told
    assert "Holdfast supports 1.1 with 2005/08" in told
    told = refused(wsdl(policy=early("2004/03", "AtMostOnce") + ADDRESSING_2005))
    assert "WS-ReliableMessaging 2004/03 with WS-Addressing 2005/08" in told
    assert "refers to itself" in refused(wsdl(policy='<wsp:PolicyReference URI="#p"/>'))
    assert "refers to the policy '#q'" in refused(wsdl(policy=WCF_1_0, on_binding='<wsp:PolicyReference URI="#q"/>'))
    assert "no port for SOAP over HTTP" in refused(wsdl().replace(b"http://host/orders", b"mailto:orders"))
    assert "has no SOAP binding" in refused(wsdl().replace(b"<soap:binding", b"<wsdl:binding"))
    assert "the policy of the port P has no alternative" in refused(wsdl(policy="<wsp:ExactlyOne/>"))


def test_a_policy_of_very_many_alternatives_is_refused_not_expanded() -> None:
    optional = "".join(f'<a{n} xmlns="urn:a" wsp:Optional="true"/>' for n in range(64))
    assert "more than 256 alternatives" in refused(wsdl(policy=optional))


def test_operations_are_known_by_their_actions_and_one_way_ones_have_no_reply() -> None:
    description = Description()
    description.add(
        b"""<d:definitions targetNamespace="urn:t" xmlns:t="urn:t" xmlns:d="http://schemas.xmlsoap.org/wsdl/"
            xmlns:soap="http://schemas.xmlsoap.org/wsdl/soap/"
            xmlns:w="http://www.w3.org/2006/05/addressing/wsdl" xmlns:m="http://www.w3.org/2007/05/addressing/metadata">
          <d:portType name="P">
            <d:operation name="A"><d:input w:Action="urn:a"/><d:output w:Action="urn:a:r"/></d:operation>
            <d:operation name="B"><d:input m:Action="urn:b"/></d:operation>
            <d:operation name="C"><d:input/><d:output/></d:operation>
            <d:operation name="D"><d:input/></d:operation>
            <d:operation name="E"><d:output/></d:operation>
          </d:portType>
          <d:binding name="B" type="t:P">
            <d:operation name="C"><soap:operation soapAction="urn:c"/></d:operation>
            <d:operation name="D"><soap:operation soapAction=""/></d:operation>
          </d:binding>
        </d:definitions>""",
        "here",
    )
    assert description.operations() == {"urn:a": "urn:a:r", "urn:b": "", "urn:c": "urn:t:P:CResponse", "urn:t:P:D": ""}


STATED = 'm:Action="urn:own"'


@pytest.mark.parametrize(
    ("namespace", "start"),
    [
        ("urn:t", "urn:t:P:"),
        ("URN:t:", "URN:t:P:"),
        ("http://t.example/a", "http://t.example/a/P/"),
        ("http://t.example/", "http://t.example/P/"),
    ],
)
@pytest.mark.parametrize("soap_action", ["", "urn:soap"])
@pytest.mark.parametrize(("asked", "request_action"), [("", "{}DoRequest"), ('name="In"', "{}In"), (STATED, "urn:own")])
@pytest.mark.parametrize(("answered", "reply"), [("", "{}DoResponse"), ('name="Out"', "{}Out"), (STATED, "urn:own")])
def test_an_action_that_the_wsdl_does_not_state_is_the_default(
    namespace: str, start: str, soap_action: str, asked: str, request_action: str, answered: str, reply: str
) -> None:
    # WS-Addressing 1.0 Metadata, 4.4.4: soapAction is the action of an input, and says nothing of an output.
    description = Description()
    description.add(
        f"""<d:definitions targetNamespace="{namespace}" xmlns:t="{namespace}" xmlns:d="http://schemas.xmlsoap.org/wsdl/"
            xmlns:soap="http://schemas.xmlsoap.org/wsdl/soap/" xmlns:m="http://www.w3.org/2007/05/addressing/metadata">
          <d:portType name="P">
            <d:operation name="Do"><d:input {asked}/><d:output {answered}/></d:operation>
          </d:portType>
          <d:binding name="B" type="t:P">
            <d:operation name="Do"><soap:operation soapAction="{soap_action}"/></d:operation>
          </d:binding>
        </d:definitions>""".encode(),
        "here",
    )
    expected = soap_action if soap_action and asked != STATED else request_action.format(start)
    assert description.operations() == {expected: reply.format(start)}
    found = description.actions(f"{{{namespace}}}P")["Do"]
    assert (found.request, found.reply) == (expected, reply.format(start))


@pytest.mark.parametrize(
    ("namespace", "default"),
    [
        ("urn:t", "urn:t:P:Do:Fault:Bad"),
        ("URN:t:", "URN:t:P:Do:Fault:Bad"),
        ("http://t.example/a", "http://t.example/a/P/Do/Fault/Bad"),
        ("http://t.example/", "http://t.example/P/Do/Fault/Bad"),
    ],
)
@pytest.mark.parametrize("stated", ["", STATED, "w:Action='urn:own'", 'm:Action=" "'])
def test_the_action_of_a_declared_fault_is_the_stated_one_or_the_default(
    namespace: str, default: str, stated: str
) -> None:
    # WS-Addressing 1.0 Metadata, 4.4.4, and its example for faults
    description = Description()
    description.add(
        f"""<d:definitions targetNamespace="{namespace}" xmlns:t="{namespace}" xmlns:d="http://schemas.xmlsoap.org/wsdl/"
            xmlns:w="http://www.w3.org/2006/05/addressing/wsdl" xmlns:m="http://www.w3.org/2007/05/addressing/metadata">
          <d:portType name="P">
            <d:operation name="Do"><d:input/><d:output/><d:fault name="Bad" {stated}/></d:operation>
          </d:portType>
        </d:definitions>""".encode(),
        "here",
    )
    actions = description.actions(f"{{{namespace}}}P")["Do"]
    own = {"Bad": "urn:own"} if "own" in stated else {}
    assert (actions.faults, actions.default_faults) == (own, {"Bad": default})
    assert actions.of_fault("Bad") == own.get("Bad", default)


@pytest.mark.parametrize("around", ["{}", " {}", "{}\t", "\n {}\r\n"])
@pytest.mark.parametrize("where", ["input", "output", "soap", "input of 2006", "output of 2006"])
def test_white_space_around_an_action_is_no_part_of_it(where: str, around: str) -> None:
    attributes = dict.fromkeys(("input", "output", "soap"), "")
    word, _, draft = where.partition(" ")
    name = "soapAction" if word == "soap" else "w:Action" if draft else "m:Action"
    attributes[word] = f'{name}="{around.format("urn:own")}"'.replace("\r", "&#13;").replace("\n", "&#10;")
    description = Description()
    description.add(
        f"""<d:definitions targetNamespace="urn:t" xmlns:t="urn:t" xmlns:d="http://schemas.xmlsoap.org/wsdl/"
            xmlns:soap="http://schemas.xmlsoap.org/wsdl/soap/" xmlns:w="http://www.w3.org/2006/05/addressing/wsdl"
            xmlns:m="http://www.w3.org/2007/05/addressing/metadata">
          <d:portType name="P">
            <d:operation name="Do"><d:input {attributes["input"]}/><d:output {attributes["output"]}/></d:operation>
          </d:portType>
          <d:binding name="B" type="t:P">
            <d:operation name="Do"><soap:operation {attributes["soap"]}/></d:operation>
          </d:binding>
        </d:definitions>""".encode(),
        "here",
    )
    found = description.actions("{urn:t}P")["Do"]
    assert (found.reply if word == "output" else found.request) == "urn:own"
    assert description.operations() == {found.request: found.reply}


EARLY = "http://schemas.xmlsoap.org/ws/{}/rm"


def early(rm: str, *assurances: str) -> str:
    """The assertions of an early version, which stand beside each other."""
    stated = "".join(f'<r:DeliveryAssurance Value="r:{assurance}"/>' for assurance in assurances)
    together = (
        '<r:InactivityTimeout Milliseconds="86400000"/><r:BaseRetransmissionInterval Milliseconds="3000"/>'
        f'<r:ExponentialBackoff/><r:AcknowledgementInterval Milliseconds="1000"/>{stated}'
    )
    return together.replace("/>", f' xmlns:r="{EARLY.format(rm)}"/>')


@pytest.mark.parametrize("rm", ["2003/03", "2004/03"])
def test_the_assertions_of_early_versions_name_the_version_and_set_the_source(rm: str) -> None:
    port = read(wsdl(policy=early(rm, "ExactlyOnce", "InOrder"), soap=SOAP_1_1))
    assert port.is_reliable
    assert {(one.rm.value, one.soap.value) for one in port.versions} == {(rm, "1.1")}
    assert {one.addressing.value for one in port.versions} == set(Versions(rm).rm.can.addressing)
    assert port.settings == StatedSettings(
        Assurance(Delivery.EXACTLY_ONCE, in_order=True), 86400.0, 3.0, has_backoff=True, acknowledgement_interval=1.0
    )
    assert read(wsdl(policy=early(rm, "AtMostOnce"))).settings.assurance == Assurance(
        Delivery.AT_MOST_ONCE, in_order=False
    )
    assert read(wsdl(policy=early(rm, "InOrder"))).settings.assurance == Assurance(Delivery.EXACTLY_ONCE, in_order=True)
    assert read(wsdl(policy=early(rm))).settings.assurance is None


@pytest.mark.parametrize("assurances", [("AtMostOnce", "ExactlyOnce"), ("Sometimes",)])
def test_an_early_assurance_that_is_none_or_two_is_named(assurances: tuple[str, ...]) -> None:
    assert "DeliveryAssurance, line" in refused(wsdl(policy=early("2003/03", *assurances)))


def test_a_policy_for_sequences_by_their_identifier_is_refused() -> None:
    chosen = f'<r:SequenceRef Identifier="urn:s" xmlns:r="{EARLY.format("2003/03")}"/>'
    assert "SequenceRef (Sequences that are chosen by their Identifier)" in refused(
        wsdl(policy=early("2003/03") + chosen)
    )


def test_definitions_are_named_in_proportion_to_the_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    named: list[int] = []
    monkeypatch.setattr("holdfast.wire.wsdl.defined_name", lambda one: named.append(1) or defined_name(one))
    counts = []
    for number in (10, 40):
        parts = {
            "message": "".join(f'<message name="m{one}"/>' for one in range(number)),
            "used": "".join(
                f'<operation name="o{one}"><input message="t:m{one}"/></operation>' for one in range(number)
            ),
        }
        named.clear()
        found = Description()
        found.add(
            f"""<definitions xmlns="http://schemas.xmlsoap.org/wsdl/" xmlns:s="http://schemas.xmlsoap.org/wsdl/soap/"
            xmlns:t="urn:t" targetNamespace="urn:t">{parts["message"]}<portType name="T">{parts["used"]}</portType>
            <binding name="B" type="t:T"><s:binding transport="http://schemas.xmlsoap.org/soap/http"/></binding>
            <service name="S"><port name="P" binding="t:B"><s:address location="http://a.example/"/></port></service>
            </definitions>""".encode(),
            "t.wsdl",
        )
        found.port()
        counts.append(len(named))
    assert counts[1] < 5 * counts[0], "a WSDL of a thousand operations took 16 seconds of a processor"


def test_header_blocks_are_found_among_many_parts() -> None:
    """A search of all parts for each block would take hours for a WSDL of a peer."""
    number = 20_000
    parts = "".join(f'<part name="p{one}" element="t:e{one}"/>' for one in range(number))
    blocks = "".join(f'<s:header message="t:m" part="p{one}" use="literal"/>' for one in range(number))
    found = Description()
    found.add(
        f"""<definitions xmlns="http://schemas.xmlsoap.org/wsdl/" xmlns:s="http://schemas.xmlsoap.org/wsdl/soap/"
        xmlns:t="urn:t" targetNamespace="urn:t"><message name="m">{parts}</message><binding name="B" type="t:T">
        <operation name="o"><input>{blocks}</input></operation></binding></definitions>""".encode(),
        "t.wsdl",
    )
    blocks = found.headers("{urn:t}B")["o"]
    assert blocks.request == [HeaderBlock(f"{{urn:t}}e{one}", f"p{one}") for one in range(number)]
    assert blocks.reply == blocks.faults == []
