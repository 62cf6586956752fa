"""What a policy demands of a source, and how an unmet demand is reported. The WSDL around it: ``test_wsdl``.

Covers wire/policy/assertions.py.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import pytest
from policy_expressions import normal

from holdfast import SourceHTTP
from holdfast.endpoint.source.wsdl import abilities
from holdfast.exceptions import ConfigurationError
from holdfast.wire.policy.assertions import (
    AES_256_GCM,
    ANONYMOUS,
    BASIC_128,
    BASIC_128_SHA_256,
    BASIC_256,
    BASIC_256_SHA_256,
    CXF_SUITES,
    ENCRYPTED_FIRST,
    ENCRYPTED_SIGNATURES,
    ENCRYPTION,
    ENDORSEMENT,
    HTTPS,
    LISTENER,
    OWN_ENCRYPTION_CERTIFICATE,
    PASSWORD,
    PASSWORD_DIGEST,
    POLLS,
    PROTECTED_TOKENS,
    RECEIVER_CERTIFICATE,
    SECURE_CONVERSATION,
    SECURITY,
    SEQUENCE_TOKEN,
    SIGNATURES,
    SYMMETRIC_KEY,
    TIMESTAMP,
    TOKEN_IN_MESSAGE,
    TOKEN_NOT_IN_MESSAGE,
    Ability,
    encrypted_header,
)
from holdfast.wire.policy.choice import choose
from holdfast.wire.wsdl import Description

SERVED = Path(__file__).parents[2] / "data" / "wsdl" / "served"
"""Policies as CXF and Metro serve them."""
PREFIXES = (
    'xmlns:wsam="http://www.w3.org/2007/05/addressing/metadata" xmlns:x="urn:x" '
    'xmlns:mc="http://docs.oasis-open.org/ws-rx/wsmc/200702" xmlns:r="http://docs.oasis-open.org/ws-rx/wsrmp/200702" '
    'xmlns:cdp="http://schemas.microsoft.com/net/2006/06/duplex" '
    'xmlns:s2="http://ws.apache.org/sandesha2/policy" xmlns:tx="http://docs.oasis-open.org/ws-tx/wsat/2006/06" '
    'xmlns:mtom="http://schemas.xmlsoap.org/ws/2004/09/policy/optimizedmimeserialization" '
    'xmlns:ow="http://schemas.microsoft.com/ws/2005/05/routing/policy"'
)


SIGNER = {SIGNATURES, TOKEN_IN_MESSAGE, BASIC_256_SHA_256}
"""What a source with a certificate does."""


def refusal(inside: str, able: Collection[Ability] | None = None) -> str:
    """What is said of that policy; "" if it is met."""
    policy = normal(f"<subject {PREFIXES}>\n<wsp:Policy>\n{inside}</wsp:Policy></subject>")
    try:
        choose(policy, able, "the port P")
    except ConfigurationError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("assertion", "told"),
    [
        ("<tx:ATAssertion/>", "ATAssertion (distributed transactions)"),
        ("<x:Unheard/>", "Unheard (an assertion of urn:x)"),
        ('<Unheard xmlns=""/>', "Unheard (an assertion without a namespace)"),
        ("<wsam:Addressing><wsp:Policy><x:Unheard/></wsp:Policy></wsam:Addressing>", "Unheard (an assertion of urn:x)"),
        ("<r:RMAssertion><wsp:Policy/><x:Unheard/></r:RMAssertion>", "Unheard (an assertion of urn:x)"),
        ("<r:RMAssertion><wsp:Policy><wsp:ExactlyOne/></wsp:Policy></r:RMAssertion>", "RMAssertion (one of no"),
    ],
)
def test_no_demand_is_passed_over_in_silence(assertion: str, told: str) -> None:
    assert f"the port P requires {told}" in refusal(assertion)
    assert "line 3 of http://host/main, which Holdfast does not support" in refusal(assertion)
    optional = assertion.replace("/>", ' wsp:Optional="true"/>', 1) if assertion.count("<") == 1 else ""
    ignorable = assertion.replace("/>", ' wsp:Ignorable="true"/>', 1) if optional else ""
    assert refusal(optional) == refusal(ignorable) == ""


def test_a_service_may_demand_polls_of_a_source_that_can_poll() -> None:
    demanded = "<mc:MCSupported/>"
    assert "MCSupported (replies that the client fetches with MakeConnection)" in refusal(demanded, {ANONYMOUS})
    assert refusal(demanded, {ANONYMOUS, POLLS}) == refusal('<mc:MCSupported wsp:Optional="true"/>', {ANONYMOUS}) == ""


def test_a_service_may_demand_mtom() -> None:
    assert refusal("<mtom:OptimizedMimeSerialization/>") == ""


def test_settings_of_another_program_are_no_demands() -> None:
    own = "<s2:MakeConnection><s2:Enabled>true</s2:Enabled></s2:MakeConnection>"
    assert refusal(f"<s2:RMAssertion><wsp:Policy>{own}</wsp:Policy></s2:RMAssertion>") == ""


def test_where_replies_go_is_a_demand() -> None:
    def demanded(word: str) -> str:
        return f"<wsam:Addressing><wsp:Policy><wsam:{word}/></wsp:Policy></wsam:Addressing>"

    assert refusal(demanded("AnonymousResponses"), [ANONYMOUS]) == ""
    assert refusal(demanded("NonAnonymousResponses"), [LISTENER]) == ""
    assert "SourceHTTP(listen=(host, port))" in refusal(demanded("NonAnonymousResponses"), [ANONYMOUS])
    assert "Remove listen from SourceHTTP" in refusal(demanded("AnonymousResponses"), [LISTENER])


def test_a_service_with_callbacks_demands_that_the_source_listens() -> None:
    """As WCF's WSDualHttpBinding: its HTTP responses are empty."""
    able = abilities(SourceHTTP(listen=("127.0.0.1", 0)), ())
    for demanded, told in (
        ("<cdp:CompositeDuplex/>", "CompositeDuplex (messages that the service sends on its own initiative"),
        ("<ow:OneWay/>", "OneWay (replies to an address"),
    ):
        assert refusal(demanded, able) == ""
        refused = refusal(demanded, abilities(SourceHTTP(), ()))
        assert told in refused and "SourceHTTP(listen=(host, port))" in refused


def test_of_several_alternatives_the_nearest_is_reported() -> None:
    both = "<wsp:ExactlyOne><wsp:All><x:A/><x:B/></wsp:All><wsp:All>\n<tx:ATAssertion/></wsp:All></wsp:ExactlyOne>"
    told = refusal(both)
    assert "requires ATAssertion" in told
    assert "line 4" in told
    assert "None of its 2 alternatives can be met; this is the nearest." in told


@pytest.mark.parametrize(
    ("file", "able", "told"),
    [
        ("username-text", {PASSWORD}, ""),
        ("username-text", set(), "UsernameToken (a user name and password in each message), line 106 of username-text"),
        ("username-digest", {PASSWORD_DIGEST}, ""),
        ("username-digest", {PASSWORD}, "HashPassword (a user name and the digest of a password in each message)"),
        ("sign", SIGNER, ""),
        ("sign", {PASSWORD}, "AsymmetricBinding, SignedParts (messages signed by a certificate), line 106 of sign"),
        ("sign", SIGNER - {TOKEN_IN_MESSAGE}, "X509Token (the certificate in each message), line 106 of sign"),
        ("sign", SIGNER - {BASIC_256_SHA_256} | {BASIC_256}, "Basic256Sha256 (signatures over SHA-256 digests)"),
        ("sign-encrypt", SIGNER | {ENCRYPTION}, ""),
        ("sign-encrypt", SIGNER, "EncryptedParts (messages encrypted for a certificate), line"),
        ("secure-conversation", SIGNER, "AsymmetricBinding (tokens that are requested with a certificate), line 106"),
        ("metro-sign", SIGNER, ""),
        ("metro-sign", {PASSWORD}, "AsymmetricBinding, SignedParts (messages"),
        ("metro-sc", SIGNER, "AsymmetricBinding (tokens that are requested with a certificate), line 8"),
    ],
)
def test_policies_served_by_cxf_and_metro_are_met_or_refused_by_name(file: str, able: set[Ability], told: str) -> None:
    description = Description()
    description.add((SERVED / f"{file}.wsdl").read_bytes(), file)
    if not told:
        assert description.port(None, able).is_reliable
        return
    with pytest.raises(ConfigurationError) as caught:
        description.port(None, able)
    assert told in caught.value.message


TRANSPORT = (
    "<sp:TransportBinding><wsp:Policy><sp:TransportToken><wsp:Policy><sp:HttpsToken/></wsp:Policy></sp:TransportToken>"
    "<sp:IncludeTimestamp/></wsp:Policy></sp:TransportBinding>"
)
USER = (
    "<sp:SignedSupportingTokens><wsp:Policy><sp:UsernameToken><wsp:Policy>{}</wsp:Policy></sp:UsernameToken>"
    "</wsp:Policy></sp:SignedSupportingTokens><sp:Wss11/><sp:Trust10/>"
)


def conversation(bootstrap: str) -> str:
    """As WCF describes TransportWithMessageCredential with a reliable session."""
    token = (
        f"<sp:SecureConversationToken><wsp:Policy><sp:BootstrapPolicy><wsp:Policy>{bootstrap}</wsp:Policy>"
        "</sp:BootstrapPolicy></wsp:Policy></sp:SecureConversationToken>"
    )
    return (
        "<wsp:All xmlns:sp='http://docs.oasis-open.org/ws-sx/ws-securitypolicy/200702'>"
        f"{TRANSPORT}<sp:EndorsingSupportingTokens><wsp:Policy>{token}</wsp:Policy></sp:EndorsingSupportingTokens>"
        "<rmp:RMAssertion xmlns:rmp='http://docs.oasis-open.org/ws-rx/wsrmp/200702'><wsp:Policy><rmp:SequenceSTR/>"
        "</wsp:Policy></rmp:RMAssertion></wsp:All>"
    )


def test_a_service_may_demand_a_secure_conversation_with_a_user_name() -> None:
    able = {HTTPS, TIMESTAMP, SECURE_CONVERSATION, SEQUENCE_TOKEN}
    demanded = conversation(TRANSPORT + USER.format("<sp:WssUsernameToken10/>"))
    assert refusal(demanded, able) == ""
    assert "processors=[holdfast.SecureConversation(name, password)]" in refusal(demanded, {HTTPS, TIMESTAMP, PASSWORD})
    assert "the https URL" in refusal(demanded, able - {HTTPS})
    assert "HashPassword" in refusal(conversation(TRANSPORT + USER.format("<sp:HashPassword/>")), able)
    assert "X509Token" in refusal(conversation(TRANSPORT + USER.replace("Username", "X509")), able)
    signed = "<sp:AsymmetricBinding><wsp:Policy/></sp:AsymmetricBinding>"
    assert "AsymmetricBinding" in refusal(conversation(signed), able)


PROTECTED = [
    "<sp:SignedParts><sp:Body/><sp:Header Namespace='urn:a' Name='To'/></sp:SignedParts>",
    "<sp:SignedElements><sp:XPath>/*</sp:XPath></sp:SignedElements>",
    "<sp:EncryptedParts><sp:Body/></sp:EncryptedParts>",
    "<sp:EncryptedElements><sp:XPath>/*</sp:XPath></sp:EncryptedElements>",
    "<sp:ContentEncryptedElements><sp:XPath>/*</sp:XPath></sp:ContentEncryptedElements>",
]


@pytest.mark.parametrize("version", SECURITY)
@pytest.mark.parametrize("parts", PROTECTED)
def test_https_protects_the_parts_that_a_transport_binding_names(parts: str, version: str) -> None:
    """WS-SecurityPolicy 1.2, 4: the binding protects them. WCF writes them for TransportWithMessageCredential."""
    able = {HTTPS, TIMESTAMP, SECURE_CONVERSATION, SEQUENCE_TOKEN, PASSWORD, PROTECTED_TOKENS}
    user = USER.format("<sp:WssUsernameToken10/>")

    def demanded(inside: str) -> str:
        return f"<wsp:All xmlns:sp='{version}'>{inside}</wsp:All>"

    assert refusal(demanded(TRANSPORT + parts), {HTTPS, TIMESTAMP}) == ""
    assert "the https URL" in refusal(demanded(TRANSPORT + parts), {TIMESTAMP})
    assert (
        refusal(conversation(parts + TRANSPORT + user).replace(SECURITY[0], version), able | {PROTECTED_TOKENS}) == ""
    )
    name = parts[1:].partition(">")[0].removeprefix("sp:")
    assert name in refusal(demanded(parts), able)
    assert name in refusal(demanded(TRANSPORT + "<sp:AsymmetricBinding/>" + parts), able)
    assert name in refusal(conversation(parts + user).replace(SECURITY[0], version), able)


def binding(content: str, version: str = "http://docs.oasis-open.org/ws-sx/ws-securitypolicy/200702") -> str:
    inside = f"<sp:AsymmetricBinding xmlns:sp='{version}'><wsp:Policy>{content}</wsp:Policy></sp:AsymmetricBinding>"
    return inside


def initiator(include: str) -> str:
    token = f"<sp:X509Token sp:IncludeToken='urn:sp/IncludeToken/{include}'/>"
    return f"<sp:InitiatorToken><wsp:Policy>{token}</wsp:Policy></sp:InitiatorToken>"


@pytest.mark.parametrize("version", ["http://schemas.xmlsoap.org/ws/2005/07/securitypolicy", ""])
def test_a_certificate_is_in_the_message_or_known_to_the_service(version: str) -> None:
    names = {"version": version} if version else {}
    referring = {SIGNATURES, TOKEN_NOT_IN_MESSAGE, BASIC_256_SHA_256}
    for include in ("Always", "AlwaysToRecipient", "Once"):
        assert refusal(binding(initiator(include), **names), SIGNER) == ""
        assert "reference='token'" in refusal(binding(initiator(include), **names), referring)
    for include in ("Never", "AlwaysToInitiator"):
        assert refusal(binding(initiator(include), **names), referring) == ""
        assert "'issuer-serial', or 'thumbprint'" in refusal(binding(initiator(include), **names), SIGNER)


SYMMETRIC = "<sp:SymmetricBinding><wsp:Policy/></sp:SymmetricBinding>"


def endorsing(include: str = "AlwaysToRecipient", *, signed: bool = True, form: str = "WssX509V3Token11") -> str:
    kind = f"{'Signed' * signed}EndorsingSupportingTokens"
    token = f"<sp:X509Token sp:IncludeToken='urn:sp/IncludeToken/{include}'><wsp:Policy><sp:{form}/></wsp:Policy>"
    return f"<sp:{kind}><wsp:Policy>{token}</sp:X509Token></wsp:Policy></sp:{kind}>"


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("version", SECURITY)
def test_a_certificate_endorses_messages_only_with_a_symmetric_key(version: str, signed: bool) -> None:
    """WS-SecurityPolicy 1.2, 8.3. With another binding, it would sign the Timestamp, or an asymmetric signature."""

    def told(inside: str, *lacking: Ability) -> str:
        able = {SYMMETRIC_KEY, SIGNATURES, HTTPS, TIMESTAMP, ENDORSEMENT} - {*lacking}
        return refusal(f"<wsp:All xmlns:sp='{version}'>{inside}</wsp:All>", able)

    for include in ("AlwaysToRecipient", "Always", "Once"):
        assert told(SYMMETRIC + endorsing(include, signed=signed)) == ""
    assert "holdfast.EndorsedSymmetricBinding(" in told(SYMMETRIC + endorsing(signed=signed), ENDORSEMENT)
    assert "a reference to the endorsing cert" in told(SYMMETRIC + endorsing("Never", signed=signed))
    assert "which Holdfast does not support" in told(SYMMETRIC + endorsing(signed=signed, form="WssX509Pkcs7Token11"))
    asymmetric = "<sp:AsymmetricBinding><wsp:Policy/></sp:AsymmetricBinding>"
    for other in (TRANSPORT, asymmetric):
        assert "X509Token (a certificate that signs the Timestamp" in told(other + endorsing(signed=signed))
    inside = f"<wsp:Policy xmlns:sp='{version}'>{endorsing(signed=signed)}</wsp:Policy>"
    policy = normal(f"<subject>{inside}</subject>")
    with pytest.raises(ConfigurationError, match="does not support"):
        choose(policy, {ENDORSEMENT, HTTPS}, "the operation", is_transport=True)


@pytest.mark.parametrize(
    "content",
    [
        "<sp:AlgorithmSuite><wsp:Policy><sp:TripleDes/></wsp:Policy></sp:AlgorithmSuite>",
        "<sp:AlgorithmSuite><wsp:Policy><sp:Basic256Sha256/><sp:STRTransform10/></wsp:Policy></sp:AlgorithmSuite>",
        "<sp:Layout><wsp:Policy><sp:LaxTsLast/></wsp:Policy></sp:Layout>",
        "<sp:InitiatorToken><wsp:Policy><sp:IssuedToken/></wsp:Policy></sp:InitiatorToken>",
    ],
)
def test_what_a_signature_cannot_have_is_refused(content: str) -> None:
    told = refusal(binding(content), SIGNER)
    assert "which Holdfast does not support" in told
    assert "line 3 of http://host/main" in told


SP = f'xmlns:sp="{SECURITY[0]}"'
OF_CXF = f'<c:Basic256GCM xmlns:c="{CXF_SUITES}"/>'
HEADERS = f'<sp:EncryptedParts {SP}><sp:Body/><sp:Header Namespace="urn:shop" Name="Customer"/></sp:EncryptedParts>'


@pytest.mark.parametrize(
    ("content", "ability"),
    [
        (binding("<sp:EncryptSignature/>"), ENCRYPTED_SIGNATURES),
        (binding("<sp:EncryptBeforeSigning/>"), ENCRYPTED_FIRST),
        (binding("<sp:RecipientEncryptionToken/>"), RECEIVER_CERTIFICATE),
        (binding("<sp:InitiatorEncryptionToken/>"), OWN_ENCRYPTION_CERTIFICATE),
        (binding("<sp:AlgorithmSuite><wsp:Policy><sp:Basic128/></wsp:Policy></sp:AlgorithmSuite>"), BASIC_128),
        (
            binding("<sp:AlgorithmSuite><wsp:Policy><sp:Basic128Sha256/></wsp:Policy></sp:AlgorithmSuite>"),
            BASIC_128_SHA_256,
        ),
        (
            binding(f"<sp:AlgorithmSuite><wsp:Policy>{OF_CXF}</wsp:Policy></sp:AlgorithmSuite>"),
            AES_256_GCM,
        ),
        (f"<sp:EncryptedParts {SP}/>", ENCRYPTION),
        (f"<sp:EncryptedParts {SP}><sp:Body/></sp:EncryptedParts>", ENCRYPTION),
        (HEADERS, ENCRYPTION),
        (HEADERS, encrypted_header("{urn:shop}Customer")),
    ],
)
def test_each_demand_for_encryption_is_met_by_what_does_it(content: str, ability: Ability) -> None:
    able = SIGNER | {ENCRYPTION, encrypted_header("{urn:shop}Customer")}
    assert refusal(content, able | {ability}) == ""
    told = refusal(content, able - {ability})
    assert ability.words in told
    assert ability.remedy in told
    assert "line 3 of http://host/main" in told


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (f"<sp:EncryptedElements {SP}/>", "EncryptedElements (encrypted elements that an XPath selects)"),
        (f"<sp:ContentEncryptedElements {SP}/>", "ContentEncryptedElements (encrypted elements that"),
        (f"<sp:EncryptedParts {SP}><sp:Attachments/></sp:EncryptedParts>", "Attachments (WS-Security)"),
        (
            f'<sp:EncryptedParts {SP}><sp:Header Namespace="urn:shop"/></sp:EncryptedParts>',
            "Header (encrypted headers that it does not name)",
        ),
    ],
)
def test_encryption_that_is_not_supported_is_refused_by_name(content: str, told: str) -> None:
    assert told in refusal(content, SIGNER | {ENCRYPTION})
