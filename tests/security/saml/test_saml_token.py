"""SAML assertions at both ends: who is believed, for how long, and what an attacker cannot do with one.

Covers security/saml/assertion.py and security/saml/issuer_signature.py.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from saml import AUDIENCE, DS, ISSUER, SAML_1, SAML_2, key_info, signed, unsigned
from signers import Issued, authority, issue

from holdfast import (
    ConfigurationError,
    Destination,
    EnvelopeError,
    Message,
    MessageContext,
    MessageFlowError,
    PeerCertificate,
    PeerFault,
    ProcessingError,
    SamlToken,
    SamlTokenValidator,
    SecureConversation,
    Source,
    UsernameToken,
)
from holdfast.core.messages import Envelope, Sequence
from holdfast.core.policy import SourcePolicy
from holdfast.core.retransmission import RetransmissionPolicy
from holdfast.core.versions import RM, SOAP, Addressing
from holdfast.http.exchange import Request
from holdfast.security.certificates import Certificate, read_certificates
from holdfast.security.header import security_block, write_timestamp
from holdfast.security.names import FAILED_AUTHENTICATION, INVALID_SECURITY, WSU
from holdfast.security.saml import saml_token
from holdfast.security.saml.assertion import MAX_ATTRIBUTES, MAX_ELEMENTS, Assertion
from holdfast.security.times import read_time
from holdfast.testing import pair
from holdfast.wire import decode, encode

HASTY = SourcePolicy(retransmission=RetransmissionPolicy(initial=0.05, floor=0.05, cap=0.2))
NOW = 1_800_000_000.0
IDP, OTHER = issue("CN=idp,O=Example"), issue("CN=other,O=Example")
ALICE, GATEWAY = issue("CN=alice,O=Example", authority()), issue("CN=gateway,O=Example", authority())
VERSIONS = ("2.0", "1.1")
every_version = pytest.mark.parametrize("version", VERSIONS)


class Clock:
    now = NOW

    def __call__(self) -> float:
        return self.now


def validator(directory: Path, **options: Any) -> SamlTokenValidator:
    given: dict[str, Any] = {"audience": AUDIENCE, "clock": Clock()}
    return SamlTokenValidator({ISSUER: IDP.files(directory).certificate}, **given | options)


def message(*assertions: bytes, stamp: bool = True, more: str = "", wrap: Callable[[str], str] | None = None) -> bytes:
    """A message with these assertions in its Security header."""
    made = Envelope(SOAP.V1_2, Addressing.V2005_08, RM.V1_1, action="urn:a", to="http://shop/", body=b"<n/>")
    made.message_id = "urn:m:1"
    content = (write_timestamp(NOW, 300) if stamp else "") + "".join(one.decode() for one in assertions)
    made.headers = (security_block(SOAP.V1_2, wrap(content) if wrap else content, must_understand=True),)
    return encode(made).replace(b"</s:Header>", more.encode() + b"</s:Header>")


def received(
    checks: SamlTokenValidator, data: bytes, certificate: Issued | Certificate | None = None
) -> MessageContext:
    """What a destination knows of a message once it is checked."""
    found = Certificate(certificate.found) if isinstance(certificate, Issued) else certificate
    shown = None if found is None else PeerCertificate(found.sha256)
    request = Request("POST", "/", {}, data, "127.0.0.1:1", secure=True, certificate=shown)
    context = MessageContext(decode(data), "inbound", "destination", {}, is_answer=False, data=data, request=request)
    checks.inbound(context)
    return context


def refusal(checks: SamlTokenValidator, data: bytes, certificate: Issued | None = None) -> str:
    with pytest.raises(ProcessingError) as raised:
        received(checks, data, certificate)
    texts = {
        INVALID_SECURITY: "An error was discovered processing the Security header.",
        FAILED_AUTHENTICATION: "The security token could not be authenticated or authorized.",
    }
    assert raised.value.message == texts[raised.value.code], "a fault tells nothing else"
    return raised.value.code.rpartition("}")[2]


def valid(version: str = "2.0", **changed: Any) -> bytes:
    return signed(unsigned(version, NOW, **changed), IDP, changed.get("name", "_a1"))


# --- what is accepted ------------------------------------------------------------------------------------------------


@every_version
def test_the_subject_becomes_the_user_and_the_issuer_the_session(tmp_path: Path, version: str) -> None:
    checks = validator(tmp_path)
    context = received(checks, message(valid(version)))
    assert context.user == "alice"
    assert context.session.startswith("urn:holdfast:saml:")
    assert not context.headers, "the store has no assertions"
    again = received(checks, message(valid(version, name="_a2")))
    assert (again.user, again.session) == (context.user, context.session), "a new assertion continues a Sequence"


HIDDEN = b'<x:EncryptedData xmlns:x="http://www.w3.org/2001/04/xmlenc#"/>'
WRAPPED = b'<a:EncryptedAssertion xmlns:a="%b">%b</a:EncryptedAssertion>' % (SAML_2.encode(), HIDDEN)


@pytest.mark.parametrize("content", [HIDDEN, WRAPPED], ids=["as WSS4J does", "as SAML 2.0 does"])
def test_an_encrypted_assertion_is_refused_by_name(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    assert refusal(validator(tmp_path), message(content)) == "InvalidSecurity"
    assert "EncryptedAssertion" in caplog.text and "not supported" in caplog.text


def test_a_source_does_not_send_an_encrypted_assertion(tmp_path: Path) -> None:
    (tmp_path / "assertion.xml").write_bytes(WRAPPED)
    with pytest.raises(ConfigurationError, match=r"EncryptedAssertion.*not supported"):
        saml_token.end_of_assertion(tmp_path / "assertion.xml")


@every_version
async def test_messages_arrive_with_their_subject(tmp_path: Path, version: str) -> None:
    got: list[Message] = []
    app = Destination(":memory:", processors=[validator(tmp_path)])
    app.on()(got.append)
    assertion = tmp_path / "assertion.xml"
    assertion.write_bytes(b'<?xml version="1.0" encoding="utf-8"?>\n' + valid(version))
    token = SamlToken(assertion, clock=Clock())
    async with pair(app, processors=[token], policy=HASTY) as source:
        await (await source.send("<n>1</n>", action="urn:note")).acknowledged(timeout=240)
        assertion.write_bytes(valid(version, name="_next"))
        await (await source.send("<n>2</n>", action="urn:note")).acknowledged(timeout=240)
    assert [one.user for one in got] == ["alice", "alice"]
    assert not any(one.headers for one in got)


def test_the_file_of_an_assertion_is_read_when_it_has_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[object] = []
    monkeypatch.setattr(saml_token, "_file", lambda path: reads.append(path) or Path(path).read_bytes())
    assertion = tmp_path / "assertion.xml"
    token = SamlToken(assertion, clock=Clock())
    for number, is_settled in enumerate((True, False, True), 1):
        assertion.write_bytes(valid("2.0", name=f"_{number}"))
        time = 1e9 if is_settled else 4e9
        os.utime(assertion, (time, time))
        reads.clear()
        assert f"_{number}".encode() in token._assertion().encode()
        assert token._assertion() == token._assertion()
        # A file that was written a moment ago may change again at the same time of the file system.
        assert len(reads) == (1 if is_settled else 3)


@every_version
def test_a_key_is_proven_by_the_certificate_in_tls(tmp_path: Path, version: str) -> None:
    data = message(valid(version, method="holder-of-key", key=key_info(ALICE)))
    assert received(validator(tmp_path), data, ALICE).user == "alice"
    for other in (None, GATEWAY):
        assert refusal(validator(tmp_path), data, other) == "FailedAuthentication"
    without = message(valid(version, method="holder-of-key"))
    assert refusal(validator(tmp_path), without, ALICE) == "FailedAuthentication"


@every_version
def test_a_gateway_may_vouch_for_others(tmp_path: Path, version: str) -> None:
    data = message(valid(version, method="sender-vouches"))
    vouched = validator(tmp_path, confirmations=["sender-vouches"], attesters=GATEWAY.files(tmp_path).certificate)
    assert received(vouched, data, GATEWAY).user == "alice"
    for other in (None, ALICE):
        assert refusal(vouched, data, other) == "FailedAuthentication"
    assert refusal(validator(tmp_path), data, GATEWAY) == "FailedAuthentication"
    assert refusal(vouched, message(valid(version)), GATEWAY) == "FailedAuthentication"


@every_version
def test_attributes_decide_who_may_send(tmp_path: Path, version: str) -> None:
    seen: list[Assertion] = []

    def permit(assertion: Assertion) -> bool:
        seen.append(assertion)
        return "seller" in assertion.attributes["role"]

    assert refusal(validator(tmp_path, authorize=permit), message(valid(version))) == "FailedAuthentication"
    assert seen[0].attributes == {"role": ("buyer",)}


CAPTURES = Path(__file__).parents[2] / "data" / "vectors" / "saml-wss4j"


@pytest.mark.parametrize("path", sorted(CAPTURES.glob("*.xml")), ids=lambda path: path.stem)
def test_the_recorded_assertions_of_wss4j_are_accepted(path: Path) -> None:
    method = path.stem.partition("-")[2]
    data = path.read_bytes()
    at = read_time(re.findall(r"IssueInstant=\"(.*?)\"", data.decode())[0])
    assert at is not None
    attesters = CAPTURES / "keys" / "alice.pem"
    options = {"confirmations": [method], "attesters": attesters if method == "sender-vouches" else None}
    checks = SamlTokenValidator({ISSUER: CAPTURES / "keys" / "idp.pem"}, audience=AUDIENCE, clock=lambda: at, **options)
    context = received(checks, data, read_certificates(attesters)[0])
    assert context.user == "alice"
    assert not context.headers
    changed = data.replace(b">buyer<", b">owner<")
    assert changed != data
    assert refusal(checks, changed) == "FailedAuthentication"


# --- what is refused -------------------------------------------------------------------------------------------------

CHANGES: dict[str, dict[str, Any]] = {
    "expired": {"until": NOW - 61},
    "no conditions": {"conditions": ""},
    "no end": {"conditions": "<a:Conditions/>"},
    "a very late end": {"until": NOW + 90_000},
    "another issuer": {"issuer": "https://evil.example"},
}


@every_version
@pytest.mark.parametrize("what", CHANGES)
def test_an_assertion_counts_only_here_and_now(tmp_path: Path, version: str, what: str) -> None:
    assert refusal(validator(tmp_path), message(valid(version, **CHANGES[what]))) == "FailedAuthentication"


@every_version
def test_an_assertion_from_the_future_is_refused(tmp_path: Path, version: str) -> None:
    checks = validator(tmp_path)
    late = signed(unsigned(version, NOW + 61), IDP)
    assert refusal(checks, message(late)) == "FailedAuthentication"
    assert received(checks, message(signed(unsigned(version, NOW + 59), IDP))).user == "alice"


@every_version
def test_every_audience_restriction_must_name_us(tmp_path: Path, version: str) -> None:
    other = validator(tmp_path, audience=["https://elsewhere.example", "https://third.example"])
    assert refusal(other, message(valid(version))) == "FailedAuthentication"
    name = "AudienceRestriction" if version == "2.0" else "AudienceRestrictionCondition"
    second = f"<a:{name}><a:Audience>urn:x</a:Audience></a:{name}>"
    data = message(valid(version, more=second))
    assert refusal(validator(tmp_path), data) == "FailedAuthentication"
    assert received(validator(tmp_path, audience=[AUDIENCE, "urn:x"]), data).user == "alice"
    bounds = re.search(r"NotBefore=\S+ NotOnOrAfter=[^>]+", unsigned(version, NOW))
    assert bounds is not None
    for_all = message(valid(version, conditions=f"<a:Conditions {bounds[0]}/>"))
    assert refusal(validator(tmp_path), for_all) == "FailedAuthentication"
    assert received(validator(tmp_path, audience=None), for_all).user == "alice"


def test_the_data_of_a_confirmation_has_its_own_bounds(tmp_path: Path) -> None:
    for data in (
        'NotOnOrAfter="2020-01-01T00:00:00Z"',
        'NotBefore="2030-01-01T00:00:00Z"',
        'Recipient="https://elsewhere.example"',
    ):
        assert refusal(validator(tmp_path), message(valid(data=data))) == "FailedAuthentication"
    assert received(validator(tmp_path), message(valid(data=f'Recipient="{AUDIENCE}"'))).user == "alice"
    for data in ('InResponseTo="_r"', 'Address="10.0.0.1"'):
        assert refusal(validator(tmp_path), message(valid(data=data))) == "InvalidSecurity"


@every_version
def test_an_assertion_for_one_use_counts_once_also_after_a_restart(tmp_path: Path, version: str) -> None:
    name = "OneTimeUse" if version == "2.0" else "DoNotCacheCondition"
    once, nonces = valid(version, more=f"<a:{name}/>"), tmp_path / "nonces"
    received(validator(tmp_path, nonces=nonces), message(once))
    for _ in range(2):
        with pytest.raises(MessageFlowError, match="used before"):
            received(validator(tmp_path, nonces=nonces), message(once))
    received(validator(tmp_path, nonces=nonces), message(valid(version, name="_b", more=f"<a:{name}/>")))


def test_the_timestamp_of_a_message_must_be_fresh(tmp_path: Path) -> None:
    checks = validator(tmp_path, clock=lambda: NOW + 361)
    assert refusal(checks, message(valid())) == "InvalidSecurity"
    assert received(checks, message(valid(), stamp=False)).user == "alice"


# --- attacks ---------------------------------------------------------------------------------------------------------


def evil(version: str) -> bytes:
    """An assertion for another subject, without a signature."""
    return unsigned(version, NOW, subject="admin", name="_e").replace("SIGNATURE", "").encode()


def without_signature(data: bytes) -> bytes:
    return re.sub(rb"<d:Signature .*</d:Signature>", b"", data, flags=re.DOTALL)


def inside(version: str, place: str) -> bytes:
    """A false assertion with the true one in it, at one of the places of the published attacks."""
    true = valid(version)
    if place == "same ID":
        return evil(version).replace(b'"_e"', b'"_a1"')
    outer = unsigned(version, NOW, subject="admin", name="_e")
    object_ = f'<d:Signature xmlns:d="{DS}"><d:Object>{true.decode()}</d:Object></d:Signature>'
    advice = f"<a:Advice>{true.decode()}</a:Advice>"
    found = re.search(rb"<d:Signature .*</d:Signature>", true, re.DOTALL)
    assert found is not None
    around = found[0].replace(b"</d:Signature>", b"<d:Object>" + without_signature(true) + b"</d:Object></d:Signature>")
    content = {"advice": advice, "object": object_, "own signature": around.decode()}[place]
    return outer.replace("SIGNATURE", content).encode()


@every_version
@pytest.mark.parametrize("place", ["advice", "object", "own signature", "same ID"])
def test_a_signed_assertion_inside_a_false_one_proves_nothing(tmp_path: Path, version: str, place: str) -> None:
    refusal(validator(tmp_path), message(inside(version, place)))


@every_version
def test_a_signed_assertion_elsewhere_in_the_message_proves_nothing(tmp_path: Path, version: str) -> None:
    checks, true = validator(tmp_path), valid(version).decode()
    assert refusal(checks, message(evil(version), more=f'<x xmlns="urn:x">{true}</x>')) == "InvalidSecurity"
    assert refusal(checks, message(evil(version), valid(version))) == "InvalidSecurity"
    assert refusal(checks, message(valid(version), evil(version))) == "InvalidSecurity"
    assert refusal(checks, message(more=f'<x xmlns="urn:x">{true}</x>')) == "InvalidSecurity"
    twin = f'<x xmlns="urn:x" xmlns:u="{WSU}" u:Id="_a1"/>'
    assert refusal(checks, message(valid(version), more=twin)) == "InvalidSecurity"
    nested = message(valid(version), wrap=lambda content: f'<x xmlns="urn:x">{content}</x>')
    assert refusal(checks, nested) == "InvalidSecurity"


@every_version
def test_each_part_of_an_assertion_is_signed(tmp_path: Path, version: str) -> None:
    checks, true = validator(tmp_path), valid(version)
    changes = {b">alice<": b">admin<", b"buyer": b"owner", b"bearer": b"holder-of-key", b"NotBefore": b"NotBefor"}
    for old, new in changes.items():
        assert old in true
        refusal(checks, message(true.replace(old, new)))
    assert refusal(checks, message(without_signature(true))) == "InvalidSecurity"
    assert refusal(checks, message(signed(unsigned(version, NOW), OTHER))) == "FailedAuthentication"


@every_version
@pytest.mark.parametrize("mark", ["<!-- -->", "<![CDATA[]]>"])
def test_a_comment_does_not_end_a_name(tmp_path: Path, version: str, mark: str) -> None:
    """The issuer signs alice.evil; the canonical form has no comments, so the signature stays valid with one."""
    true = valid(version, subject="alice.evil")
    data = message(true.replace(b"alice.evil", f"alice{mark}.evil".encode()))
    if mark == "<![CDATA[]]>":  # the same text for every reader
        assert received(validator(tmp_path), data).user == "alice.evil"
    else:
        refusal(validator(tmp_path), data)


@every_version
def test_entities_and_instructions_do_not_reach_a_name(tmp_path: Path, version: str) -> None:
    true = valid(version)
    with pytest.raises(EnvelopeError, match="processing instructions"):
        received(validator(tmp_path), message(true.replace(b">alice<", b">alice<?x?><")))
    undeclared = message(true.replace(b">alice<", b">&admin;<"))
    for data in (undeclared, b"<!DOCTYPE s:Envelope [<!ENTITY admin 'admin'>]>" + undeclared):
        with pytest.raises(EnvelopeError):
            received(validator(tmp_path), data)


SHAPES = {
    "no reference to it": {"uri": ""},
    "an XPointer": {"uri": "#xpointer(id('_a1'))"},
    "another algorithm": {"method": '<d:SignatureMethod Algorithm="http://www.w3.org/2000/09/xmldsig#hmac-sha1"/>'},
    "SHA-1": {"method": '<d:SignatureMethod Algorithm="http://www.w3.org/2000/09/xmldsig#rsa-sha1"/>'},
    "no enveloped transform": {"transforms": '<d:Transform Algorithm="http://www.w3.org/2001/10/xml-exc-c14n#"/>'},
    "an XSLT": {
        "transforms": '<d:Transform Algorithm="http://www.w3.org/TR/1999/REC-xslt-19991116"/>'
        '<d:Transform Algorithm="http://www.w3.org/2001/10/xml-exc-c14n#"/>'
    },
    "two references": {"more": '<d:Reference URI="#_a1"/>'},
}


@every_version
@pytest.mark.parametrize("what", SHAPES)
def test_signatures_of_another_shape_are_refused(tmp_path: Path, version: str, what: str) -> None:
    data = message(signed(unsigned(version, NOW), IDP, **SHAPES[what]))
    assert refusal(validator(tmp_path), data) == "InvalidSecurity"


@every_version
def test_an_assertion_has_its_bounds(tmp_path: Path, version: str) -> None:
    checks = validator(tmp_path)
    value = "<a:AttributeValue>x</a:AttributeValue>"
    name = 'Name="n"' if version == "2.0" else 'AttributeName="n"'
    many = f"<a:AttributeStatement><a:Attribute {name}>{{}}</a:Attribute></a:AttributeStatement>"
    more = {"2.0": "", "1.1": "<a:Subject><a:NameIdentifier>alice</a:NameIdentifier></a:Subject>"}[version]
    statement = many.replace("<a:Attribute ", f"{more}<a:Attribute ").format(value * MAX_ATTRIBUTES)
    assert refusal(checks, message(valid(version, statement=statement))) == "InvalidSecurity"
    deep = valid(version, statement="<a:Advice>" + "<x/>" * MAX_ELEMENTS + "</a:Advice>")
    assert refusal(checks, message(deep)) == "InvalidSecurity"
    assert refusal(checks, message(valid(version, subject="a" * 9000))) == "InvalidSecurity"


@pytest.mark.parametrize(
    "changed",
    [
        {"subject": ""},
        {"subject": "<x/>"},
        {"more": "<a:Condition/>"},
        {"more": "<x:Until xmlns:x='urn:x'/>"},
        {"key": "<d:KeyInfo xmlns:d='http://www.w3.org/2000/09/xmldsig#'><d:KeyValue/></d:KeyInfo>"},
        {"conditions": "<a:Conditions NotOnOrAfter='tomorrow'/>"},
        {"conditions": "<a:Conditions/><a:Conditions/>"},
    ],
    ids=str,
)
@every_version
def test_what_is_not_understood_is_refused(tmp_path: Path, version: str, changed: dict[str, str]) -> None:
    assert refusal(validator(tmp_path), message(valid(version, **changed))) == "InvalidSecurity"


def test_subjects_that_differ_are_refused(tmp_path: Path) -> None:
    other = "<a:Subject><a:NameIdentifier>admin</a:NameIdentifier></a:Subject>"
    statement = f"<a:AuthenticationStatement>{other}</a:AuthenticationStatement>"
    assert refusal(validator(tmp_path), message(valid("1.1", statement=statement))) == "InvalidSecurity"


def test_versions_that_contradict_their_namespace_are_refused(tmp_path: Path) -> None:
    changes = (("2.0", ' Version="2.0"', ' Version="2.1"'), ("1.1", 'MinorVersion="1"', 'MinorVersion="0"'))
    for version, old, new in changes:
        data = message(signed(unsigned(version, NOW).replace(old, new), IDP))
        assert refusal(validator(tmp_path), data) == "InvalidSecurity"
    for version, space in (("2.0", SAML_2), ("1.1", SAML_1)):
        other = valid(version).replace(space.encode(), b"urn:saml")
        assert refusal(validator(tmp_path), message(other)) == "InvalidSecurity"


# --- sources, settings, policies -------------------------------------------------------------------------------------


async def test_a_source_without_a_valid_assertion_waits(tmp_path: Path) -> None:
    clock = Clock()
    app = Destination(":memory:", processors=[validator(tmp_path, clock=clock)])
    given = [valid(until=NOW - 1)]
    token = SamlToken(lambda: given[-1], clock=clock)
    async with pair(app, processors=[token], policy=HASTY) as source:
        sent = await source.send("<n/>", action="urn:note")
        context = MessageContext(Envelope(SOAP.V1_2), "outbound", "source", {}, is_answer=False, to="http://shop/")
        for bad in (given[0], b"", b"<x/>", b"<not", valid().replace(b"_a1", b"")):
            given.append(bad)
            with pytest.raises(MessageFlowError):
                token.outbound(context)
        given.append(valid())
        await sent.acknowledged(timeout=240)
    with pytest.raises(MessageFlowError, match="no usable"):
        SamlToken(tmp_path / "absent.xml").outbound(context)


async def test_a_refused_assertion_stops_the_source(tmp_path: Path) -> None:
    app = Destination(":memory:", processors=[validator(tmp_path)])
    token = SamlToken(lambda: signed(unsigned("2.0", NOW), OTHER), clock=Clock())
    with pytest.raises(PeerFault, match="FailedAuthentication"):
        async with pair(app, processors=[token], policy=HASTY) as source:
            await (await source.send("<n/>", action="urn:note")).acknowledged(timeout=240)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"suite": "md5"}, "suite cannot be 'md5'"),
        ({"confirmations": ["sender"]}, "confirmations cannot be"),
        ({"confirmations": "bearer"}, "confirmations cannot be"),
        ({"confirmations": ["sender-vouches"]}, "may vouch"),
        ({"attesters": "gateway.pem"}, "may vouch"),
    ],
)
def test_settings_that_make_no_sense_are_refused(tmp_path: Path, options: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        validator(tmp_path, **options)
    with pytest.raises(ConfigurationError, match=r"issuers cannot be \{\}"):
        SamlTokenValidator({}, audience=None)


async def test_a_demand_for_an_assertion_is_published_and_met(tmp_path: Path) -> None:
    app = Destination(":memory:", processors=[validator(tmp_path)])
    for url in ("http://shop.example/", "https://shop.example/"):
        wsdl = tmp_path / "service.wsdl"
        wsdl.write_bytes(app._generated_wsdl(url))
        with pytest.raises(ConfigurationError, match=r"SamlToken.* \(a SAML assertion in each message\)"):
            await Source.from_wsdl(wsdl, ":memory:")
        source = await Source.from_wsdl(wsdl, ":memory:", processors=[SamlToken(valid)])
        await source.close()


@pytest.mark.parametrize("wrong", [ConnectionError("the issuer is away"), KeyError("token"), "text", None], ids=repr)
async def test_messages_wait_while_the_function_returns_no_assertion(
    tmp_path: Path, wrong: Any, caplog: pytest.LogCaptureFixture
) -> None:
    results = [wrong, valid()]

    def fetch() -> bytes:
        result = results.pop(0) if len(results) > 1 else results[0]
        if isinstance(result, Exception):
            raise result
        return result  # type: ignore[no-any-return]

    context = MessageContext(
        Envelope(SOAP.V1_2, Addressing.V2005_08, RM.V1_1, action="urn:a", to="http://shop/", body=b"<n/>"),
        *("outbound", "source", {}),
        is_answer=False,
    )
    token = SamlToken(fetch, clock=Clock())
    with pytest.raises(MessageFlowError, match="no usable SAML assertion"):
        token.outbound(context)
    assert "security.no_assertion" in caplog.text
    assert "Assertion " not in caplog.text, "an assertion is a secret"
    token.outbound(context)
    assert b"Assertion" in context.envelope.headers[0]


def test_an_unknown_issuer_is_named_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    checks = SamlTokenValidator({"urn:another": IDP.files(tmp_path).certificate}, audience=AUDIENCE, clock=Clock())
    assert refusal(checks, message(valid())) == "FailedAuthentication"
    assert f"its issuer is not in issuers=: '{ISSUER}'" in caplog.text


@pytest.mark.parametrize(
    ("make", "event"),
    [
        (lambda: UsernameToken("alice", "secret"), "security.plain_password"),
        (lambda: UsernameToken("alice", "secret", digest=True), ""),
        (lambda: SecureConversation("alice", "secret"), "security.plain_password"),
        (lambda: SamlToken(valid, clock=Clock()), "security.plain_assertion"),
    ],
)
def test_a_source_warns_once_when_its_secret_would_travel_without_tls(
    make: Any, event: str, caplog: pytest.LogCaptureFixture
) -> None:
    for to, is_warned in (("https://shop.example/", False), ("http://shop.example/", bool(event))):
        token = make()
        for _ in range(2):
            envelope = Envelope(SOAP.V1_2, Addressing.V2005_08, RM.V1_1)
            envelope.sequence = Sequence("urn:sequence", 1)
            token.outbound(MessageContext(envelope, "outbound", "source", {}, is_answer=False, to=to))
        logged = [one for one in caplog.messages if "security.plain" in one]
        assert len(logged) == is_warned
        assert not is_warned or (event in logged[0] and "shop.example" in logged[0] and "secret" not in logged[0])
