"""Assertions in signed messages: who may say what, what the signature must be over, and which key it must be by.

Covers security/token_references.py.
"""

from __future__ import annotations

import base64
import hashlib
import re
import time
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from lxml import etree
from saml import AUDIENCE, ISSUER, key_info, key_value, signed, unsigned
from signers import Issued, authority, issue

from holdfast import (
    X509,
    ConfigurationError,
    Destination,
    Encryption,
    Message,
    MessageContext,
    MessageFlowError,
    PeerCertificate,
    ProcessingError,
    SamlToken,
    SamlTokenValidator,
    Source,
)
from holdfast.core.messages import Envelope
from holdfast.core.policy import SourcePolicy
from holdfast.core.retransmission import RetransmissionPolicy
from holdfast.core.versions import RM, SOAP, Addressing
from holdfast.http.exchange import Request
from holdfast.security.certificates import Certificate, Credential
from holdfast.security.encryption import Replacing, key_in_message, write_encrypted_key
from holdfast.security.header import security_block
from holdfast.security.names import (
    CIPHERS,
    DS,
    EXCLUSIVE_C14N,
    INVALID_SECURITY,
    INVALID_SECURITY_REASON,
    RSA_SHA256,
    SAML_2,
    SECURITY,
    STR_TRANSFORM,
    WSSE,
    WSU,
)
from holdfast.security.saml.assertion import Assertion
from holdfast.security.signature import canonical
from holdfast.security.signed_message import SUITES, Signing, elements_of, sign
from holdfast.security.token_references import write_assertion_reference
from holdfast.testing import lossy, pair
from holdfast.wire import decode, encode

HASTY = SourcePolicy(retransmission=RetransmissionPolicy(initial=0.05, floor=0.05, cap=0.2))
IDP = issue("CN=idp,O=Example")
ALICE, BOB = issue("CN=alice,O=Example", authority()), issue("CN=bob,O=Example", authority())
SHOP, STRANGER = issue("CN=shop,O=Example", authority()), issue("CN=stranger")
VERSIONS = ("2.0", "1.1")
every_version = pytest.mark.parametrize("version", VERSIONS)
ID = f"{{{WSU}}}Id"
_D, _W = f"{{{DS}}}", f"{{{WSSE}}}"

Change = Callable[[etree._Element], None]
"""Changes the Security header of a signed message."""


def assertion(version: str = "2.0", **changed: Any) -> bytes:
    """An assertion for the subject alice, of a bearer unless it says otherwise."""
    return signed(unsigned(version, time.time(), **changed), changed.get("by", IDP), changed.get("name", "_a1"))


def of_holder(holder: Issued, version: str = "2.0", *, by_value: bool = False, **changed: Any) -> bytes:
    key = key_value(holder) if by_value else key_info(holder)
    return assertion(version, method="holder-of-key", key=key, **changed)


def shop(directory: Path, trusted: Issued | None = None, encrypt: Encryption | None = None, **options: Any) -> X509:
    """What a destination has: it trusts the authority, and the issuer of assertions."""
    files = [(trusted or authority()).files(directory).certificate]
    given: dict[str, Any] = {"audience": AUDIENCE, **options}
    checks = SamlTokenValidator({ISSUER: IDP.files(directory).certificate}, **given)
    return X509(*SHOP.files(directory), trusted=files, encrypt=encrypt).with_saml(checks)


def vouched(directory: Path, *attesters: Issued) -> X509:
    """A destination for which these may vouch."""
    file = directory / "attesters.pem"
    file.write_bytes(b"".join(one.pem for one in attesters))
    return shop(directory, confirmations=["sender-vouches"], attesters=file)


def message(
    directory: Path, *assertions: bytes, by: Issued = ALICE, held: bool = False, change: Change | None = None
) -> bytes:
    """A message that a certificate has signed, with these assertions in its Security header.

    Args:
        directory: For files.
        assertions: In this order.
        by: Who signs.
        held: Whether the signature names its key by the first assertion.
        change: Changes the Security header, and the message is then signed again.
    """
    envelope = Envelope(SOAP.V1_2, Addressing.V2005_08, RM.V1_1, action="urn:a", to="http://shop/", body=b"<n/>")
    envelope.message_id = "urn:m:1"
    if assertions:
        content = b"".join(assertions).decode()
        envelope.headers = (security_block(SOAP.V1_2, content, must_understand=True),)
    named = write_assertion_reference(etree.fromstring(assertions[0])) if held else ""
    signing = Signing(Credential(*by.files(directory)), "token", SUITES["rsa-sha256"], 300.0, named)
    data = sign(encode(envelope), SOAP.V1_2, signing, time.time(), must_understand=True)
    return data if change is None else changed(data, change, by, directory)


def changed(data: bytes, change: Change, by: Issued | None = None, directory: Path | None = None) -> bytes:
    """A message with another Security header; signed again, if it says by whom."""
    envelope = etree.fromstring(data)
    security = envelope.find(f".//{SECURITY}")
    assert security is not None
    change(security)
    if by is not None:
        assert directory is not None
        info, value = security.find(f"{_D}Signature/{_D}SignedInfo"), security.find(f"{_D}Signature/{_D}SignatureValue")
        assert info is not None
        assert value is not None
        proof = Credential(*by.files(directory)).sign(canonical(info), RSA_SHA256)
        value.text = base64.b64encode(proof).decode()
    return etree.tostring(envelope)


def received(processor: X509, data: bytes, shown: Issued | None = None) -> MessageContext:
    """What a destination knows of a message once it is checked.

    Args:
        processor: Of the destination.
        data: The message.
        shown: The certificate that its sender showed in TLS.
    """
    certificate = None if shown is None else PeerCertificate(hashlib.sha256(_der(shown)).hexdigest())
    request = Request("POST", "/", {}, data, "127.0.0.1:1", secure=True, certificate=certificate)
    told: dict[str, Any] = {"is_answer": False, "request": request}
    context = MessageContext(decode(data), "inbound", "destination", {}, data=data, **told)
    data = processor.received(context, data)
    context = MessageContext(decode(data), "inbound", "destination", context.notes, data=data, **told)
    processor.inbound(context)
    return context


def _der(one: Issued) -> bytes:
    return base64.b64decode("".join(one.pem.decode().splitlines()[1:-1]))


def why_refused(processor: X509, data: bytes, caplog: pytest.LogCaptureFixture, shown: Issued | None = None) -> str:
    """The reason in the log. The fault has the code and the text of every refusal."""
    caplog.clear()
    with pytest.raises(ProcessingError) as raised:
        received(processor, data, shown)
    assert (raised.value.code, raised.value.message) == (INVALID_SECURITY, INVALID_SECURITY_REASON)
    return caplog.text


def the_reference(security: etree._Element, uri: str) -> etree._Element:
    """The reference in the signature of the message, not in that of the assertion."""
    found = security.find(f"{_D}Signature/{_D}SignedInfo/{_D}Reference[@URI='{uri}']")
    assert found is not None
    return found


# --- what other stacks write ------------------------------------------------------------------------------------------


def by_reference(security: etree._Element, *, direct: bool = False) -> None:
    """Let the signature be over the assertion by a SecurityTokenReference, as WSS4J writes it."""
    element = next(one for one in security if one.tag.endswith("Assertion"))
    name = element.get("ID") or element.get("AssertionID")
    (named,) = elements_of(write_assertion_reference(element))
    if direct:
        for one in list(named):
            named.remove(one)
        etree.SubElement(named, f"{_W}Reference", URI=f"#{name}")
    named.set(ID, "_str")
    security.insert(1, named)
    reference = the_reference(security, f"#{name}")
    reference.set("URI", "#_str")
    transform, value = reference.find(f".//{_D}Transform"), reference.find(f"{_D}DigestValue")
    assert transform is not None
    assert value is not None
    transform.set("Algorithm", STR_TRANSFORM)
    parameters = etree.SubElement(transform, f"{_W}TransformationParameters")
    etree.SubElement(parameters, f"{_D}CanonicalizationMethod", Algorithm=EXCLUSIVE_C14N)
    # SOAP Message Security 1.1, 8.3: the default namespace is stated, also if it is none.
    plain = etree.tostring(element, method="c14n", exclusive=True).decode()
    plain = plain if ' xmlns="' in plain.partition(">")[0] else plain.replace(" ", ' xmlns="" ', 1)
    value.text = base64.b64encode(hashlib.sha256(plain.encode()).digest()).decode()


# --- what is accepted -------------------------------------------------------------------------------------------------


@every_version
@pytest.mark.parametrize("change", [None, by_reference, lambda one: by_reference(one, direct=True)])
def test_the_subject_of_a_signed_assertion_is_the_user(tmp_path: Path, version: str, change: Change | None) -> None:
    seen: list[Assertion] = []
    processor = shop(tmp_path, authorize=lambda one: not seen.append(one))  # type: ignore[func-returns-value]
    context = received(processor, message(tmp_path, assertion(version), change=change))
    assert context.user == "alice"
    assert seen[0].signer == "CN=alice,O=Example"
    assert not context.headers, "the Security header is not stored"


def test_an_assertion_in_a_default_namespace_is_signed_by_a_reference(tmp_path: Path) -> None:
    given = assertion().replace(b"<a:", b"<").replace(b"</a:", b"</").replace(b"xmlns:a=", b"xmlns=")
    data = message(tmp_path, given, change=by_reference)
    assert b'xmlns="urn:oasis' in data
    # Its issuer signed it with the prefix, so only the signature of the message is right.
    with pytest.raises(ProcessingError):
        received(shop(tmp_path), data)


@every_version
@pytest.mark.parametrize("held", [True, False])
@pytest.mark.parametrize("by_value", [True, False])
def test_the_holder_of_the_key_signs(tmp_path: Path, version: str, held: bool, by_value: bool) -> None:
    data = message(tmp_path, of_holder(ALICE, version, by_value=by_value), held=held)
    assert (b"BinarySecurityToken" in data) != held
    # The certificate of a key that came without one is among the trusted ones.
    trusted = ALICE if held and by_value else authority()
    assert received(shop(tmp_path, trusted), data).user == "alice"


@every_version
def test_a_gateway_vouches_for_its_users(tmp_path: Path, version: str) -> None:
    data = message(tmp_path, assertion(version, method="sender-vouches"), by=BOB)
    assert received(vouched(tmp_path, BOB), data).user == "alice"


def test_a_sequence_belongs_to_subject_issuer_and_signer(tmp_path: Path) -> None:
    renewed = issue("CN=alice,O=Example", authority(), serial=7)
    processor, again = shop(tmp_path), assertion(name="_b")
    sent = ((assertion(), ALICE), (again, renewed), (again, BOB))
    first, other, bobs = (received(processor, message(tmp_path, one, by=by)) for one, by in sent)
    assert first.session == other.session
    assert first.user == bobs.user
    assert first.session != bobs.session


def test_an_assertion_for_one_use_counts_once(tmp_path: Path) -> None:
    processor, once = shop(tmp_path), assertion(more="<a:OneTimeUse/>")
    received(processor, message(tmp_path, once))
    with pytest.raises(MessageFlowError, match="used before"):
        received(processor, message(tmp_path, once))


def test_a_renewed_processor_remembers_messages_and_assertions(tmp_path: Path) -> None:
    before, after, once = shop(tmp_path), shop(tmp_path), assertion(more="<a:OneTimeUse/>")
    received(before, message(tmp_path, once))
    after.remember_with(before)
    with pytest.raises(MessageFlowError, match="used before"):
        received(after, message(tmp_path, once))


# --- attacks ----------------------------------------------------------------------------------------------------------


def evil(version: str, name: str = "_a1") -> bytes:
    """An assertion for another subject, without its issuer's signature."""
    return unsigned(version, time.time(), subject="admin", name=name).replace("SIGNATURE", "").encode()


def the_assertion(security: etree._Element) -> etree._Element:
    return next(one for one in security if one.tag.endswith("Assertion"))


def replaced(by: bytes) -> Change:
    """Put another assertion in the place of the signed one."""

    def change(security: etree._Element) -> None:
        security.replace(the_assertion(security), etree.fromstring(by))

    return change


def moved(place: str, version: str) -> Change:
    """Move the signed assertion away, and put a false one in its place."""

    def change(security: etree._Element) -> None:
        true, false = the_assertion(security), etree.fromstring(evil(version, "_a1" if place == "same name" else "_e"))
        security.replace(true, false)
        header = security.getparent()
        assert header is not None
        if place in ("header", "same name"):
            etree.SubElement(header, "{urn:x}Wrapper").append(true)
        elif place == "security":
            etree.SubElement(security, "{urn:x}Wrapper").append(true)
        elif place == "body":
            header.getnext().append(true)
        elif place == "inside":
            etree.SubElement(false, "{urn:x}Advice").append(true)
        elif place == "object":
            signature = security.find(f"{_D}Signature")
            assert signature is not None
            etree.SubElement(signature, f"{_D}Object").append(true)

    return change


@every_version
@pytest.mark.parametrize("change", [None, by_reference])
@pytest.mark.parametrize("place", ["gone", "header", "same name", "security", "body", "inside", "object"])
def test_a_signed_assertion_that_was_moved_proves_nothing(
    tmp_path: Path, version: str, place: str, change: Change | None, caplog: pytest.LogCaptureFixture
) -> None:
    data = message(tmp_path, assertion(version), change=change)
    why_refused(shop(tmp_path), changed(data, moved(place, version)), caplog)
    if place == "gone":
        why = why_refused(shop(tmp_path), changed(data, lambda one: one.remove(the_assertion(one))), caplog)
        assert "0 assertions" in why


@every_version
@pytest.mark.parametrize("change", [None, by_reference])
@pytest.mark.parametrize("is_before", [True, False])
def test_a_second_assertion_is_refused(
    tmp_path: Path, version: str, change: Change | None, is_before: bool, caplog: pytest.LogCaptureFixture
) -> None:
    data = message(tmp_path, assertion(version), change=change)
    for second in (evil(version, "_e"), assertion(version, name="_b", subject="admin")):

        def add(security: etree._Element, added: bytes = second) -> None:
            security.insert(1 if is_before else len(security), etree.fromstring(added))

        assert "2 assertions" in why_refused(shop(tmp_path), changed(data, add), caplog)


@every_version
@pytest.mark.parametrize("change", [None, by_reference])
def test_an_assertion_of_the_same_holder_cannot_take_the_place_of_another(
    tmp_path: Path, version: str, change: Change | None, caplog: pytest.LogCaptureFixture
) -> None:
    """The issuer gave both to alice. She has sent the first."""
    data = message(tmp_path, of_holder(ALICE, version), held=True, change=change)
    for name in ("_a1", "_b"):
        other = of_holder(ALICE, version, subject="admin", name=name)
        why_refused(shop(tmp_path), changed(data, replaced(other)), caplog)


def unreferred(security: etree._Element) -> None:
    """Take the assertion out of the signature."""
    reference = the_reference(security, "#_a1")
    parent = reference.getparent()
    assert parent is not None
    parent.remove(reference)


@every_version
@pytest.mark.parametrize("held", [True, False])
def test_the_signature_must_be_over_the_assertion(
    tmp_path: Path, version: str, held: bool, caplog: pytest.LogCaptureFixture
) -> None:
    data = message(tmp_path, of_holder(ALICE, version), held=held, change=unreferred)
    assert "Assertion is not signed" in why_refused(shop(tmp_path), data, caplog)


WHOSE: dict[str, tuple[Callable[[], bytes], dict[str, Any], str]] = {
    "another signs with the holder's assertion": (lambda: of_holder(ALICE), {"by": BOB}, "certificate of the holder"),
    "another signs, and names the holder's key": (
        lambda: of_holder(ALICE),
        {"by": BOB, "held": True},
        "made with another key",
    ),
    "the key by its value is another's": (
        lambda: of_holder(ALICE, by_value=True),
        {"by": BOB},
        "certificate of the holder",
    ),
    "the key is the issuer's own": (lambda: of_holder(IDP), {}, "certificate of the holder"),
    "the holder is not trusted": (
        lambda: of_holder(STRANGER),
        {"by": STRANGER, "held": True},
        "not of a trusted issuer",
    ),
    "the key by its value is of no trusted certificate": (
        lambda: of_holder(ALICE, by_value=True),
        {"held": True},
        "0 of the trusted certificates",
    ),
    "a bearer's assertion names no key": (assertion, {"held": True}, "confirms no key"),
    "its issuer did not sign it": (lambda: evil("2.0"), {}, "0 elements Signature"),
    "another signed it in the issuer's name": (lambda: assertion(by=BOB), {}, "another key than the issuer"),
    "its sender signed it as the issuer": (lambda: assertion(by=ALICE), {}, "another key than the issuer"),
    "its issuer is unknown": (lambda: assertion(issuer="urn:else"), {}, "not in issuers="),
    "it is for another service": (
        lambda: assertion(conditions="<a:Conditions NotOnOrAfter='2059-01-01T00:00:00Z'/>"),
        {},
        "a very late one",
    ),
    "it has expired": (lambda: assertion(until=time.time() - 100), {}, "expired"),
    "nobody may vouch": (lambda: assertion(method="sender-vouches"), {}, "sender-vouches is not accepted"),
}


@pytest.mark.parametrize("what", WHOSE)
def test_an_assertion_that_proves_nothing_of_its_sender_is_refused(
    tmp_path: Path, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    given, options, why = WHOSE[what]
    assert why in why_refused(shop(tmp_path), message(tmp_path, given(), **options), caplog, shown=ALICE)


def test_an_assertion_that_confirms_two_keys_is_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Else a signer could name one key, and be checked against the other."""
    method = "urn:oasis:names:tc:SAML:2.0:cm:holder-of-key"
    second = f'<a:SubjectConfirmation Method="{method}"><a:SubjectConfirmationData>{key_info(BOB)}'
    given = unsigned("2.0", time.time(), method="holder-of-key", key=key_info(ALICE))
    given = given.replace("</a:Subject>", f"{second}</a:SubjectConfirmationData></a:SubjectConfirmation></a:Subject>")
    for by, held in ((ALICE, True), (BOB, False)):
        data = message(tmp_path, signed(given, IDP), by=by, held=held)
        assert "several keys" in why_refused(shop(tmp_path), data, caplog)


def test_only_the_attesters_vouch(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """BOB is trusted, and shows in TLS the certificate of one who may vouch: the signer counts."""
    data = message(tmp_path, assertion(method="sender-vouches"), by=BOB)
    assert "a certificate of attesters" in why_refused(vouched(tmp_path, ALICE), data, caplog, shown=ALICE)


def _of_token(security: etree._Element) -> None:
    """Let the transform be of the certificate."""
    by_reference(security)
    token, named = security.find(f"{_W}BinarySecurityToken"), security.find(f"{_W}SecurityTokenReference")
    assert token is not None
    assert named is not None
    for one in list(named):
        named.remove(one)
    etree.SubElement(named, f"{_W}Reference", URI=f"#{token.get(ID)}")


def _of_body(security: etree._Element) -> None:
    """Let the transform be of what is no reference."""
    by_reference(security)
    named, reference = security.find(f"{_W}SecurityTokenReference"), the_reference(security, "#_str")
    assert named is not None
    security.remove(named)
    reference.set("URI", "#_a1")


def _twofold(security: etree._Element) -> None:
    by_reference(security)
    named = security.find(f"{_W}SecurityTokenReference")
    assert named is not None
    named.append(deepcopy(named[0]))


def _of_other_name(security: etree._Element) -> None:
    by_reference(security)
    named = security.find(f"{_W}SecurityTokenReference")
    assert named is not None
    named[0].text = "_b"


def _of_other_type(security: etree._Element) -> None:
    by_reference(security)
    named = security.find(f"{_W}SecurityTokenReference")
    assert named is not None
    named[0].set("ValueType", "urn:x")


def _without_parameters(security: etree._Element) -> None:
    by_reference(security)
    parameters = security.find(f".//{_W}TransformationParameters")
    assert parameters is not None
    parameters.getparent().remove(parameters)  # type: ignore[union-attr]


def _of_other_form(security: etree._Element) -> None:
    by_reference(security)
    method = security.find(f".//{_W}TransformationParameters/{_D}CanonicalizationMethod")
    assert method is not None
    method.set("Algorithm", "http://www.w3.org/TR/2001/REC-xml-c14n-20010315")


def _of_other_element(security: etree._Element) -> None:
    by_reference(security)
    named = security.find(f"{_W}SecurityTokenReference")
    assert named is not None
    named.tag = f"{_W}AnotherToken"


@pytest.mark.parametrize(
    "change",
    [
        _of_other_element,
        _of_token,
        _of_body,
        _twofold,
        _of_other_name,
        _of_other_type,
        _without_parameters,
        _of_other_form,
    ],
)
def test_a_reference_that_names_something_else_is_refused(
    tmp_path: Path, change: Change, caplog: pytest.LogCaptureFixture
) -> None:
    why_refused(shop(tmp_path), message(tmp_path, assertion(), change=change), caplog)


@every_version
def test_each_of_the_two_demands_is_one_of_its_own(
    tmp_path: Path, version: str, caplog: pytest.LogCaptureFixture
) -> None:
    alone = X509(*SHOP.files(tmp_path), trusted=authority().files(tmp_path).certificate)
    assert "no part of the message" in why_refused(alone, message(tmp_path, assertion(version)), caplog)
    assert "0 assertions" in why_refused(shop(tmp_path), message(tmp_path), caplog)
    without = changed(message(tmp_path, assertion(version)), lambda one: one.remove(one[-1]))
    assert "Signature" in why_refused(shop(tmp_path), without, caplog)


def test_two_elements_with_the_name_of_the_assertion_are_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for version, name in (("2.0", "ID"), ("1.1", "AssertionID"), ("2.0", ID), ("1.1", "Id")):
        data = message(tmp_path, assertion(version))

        def twin(security: etree._Element, name: str = name) -> None:
            etree.SubElement(security.getparent(), "{urn:x}Twin", {name: "_a1"})  # type: ignore[arg-type]

        why = why_refused(shop(tmp_path), changed(data, twin), caplog)
        assert "the same Id" in why or "Twin was changed" in why


@pytest.mark.parametrize("old", [b">alice", b">buyer", b"NotBefore", b"Certificate>M"])
def test_a_changed_assertion_is_refused(tmp_path: Path, old: bytes, caplog: pytest.LogCaptureFixture) -> None:
    data = message(tmp_path, of_holder(ALICE))
    before, _, after = data.rpartition(old)
    assert before
    why_refused(shop(tmp_path), before + old[:-1] + b"x" + after, caplog)


@pytest.mark.parametrize(
    "key",
    [
        "<d:KeyValue/>",
        "<d:KeyValue><d:DSAKeyValue/></d:KeyValue>",
        "<d:KeyValue><d:RSAKeyValue><d:Modulus>AQAB</d:Modulus><d:Exponent>AQAC</d:Exponent></d:RSAKeyValue></d:KeyValue>",
        "<d:KeyValue><d:RSAKeyValue><d:Modulus>!</d:Modulus><d:Exponent>AQAB</d:Exponent></d:RSAKeyValue></d:KeyValue>",
        "<d:KeyValue><d:RSAKeyValue><d:Modulus/><d:Exponent/></d:RSAKeyValue></d:KeyValue>",
        "<d:KeyName>alice</d:KeyName>",
    ],
)
@every_version
def test_a_key_of_another_form_is_refused(
    tmp_path: Path, version: str, key: str, caplog: pytest.LogCaptureFixture
) -> None:
    info = f'<d:KeyInfo xmlns:d="{DS}">{key}</d:KeyInfo>'
    data = message(tmp_path, assertion(version, method="holder-of-key", key=info))
    why_refused(shop(tmp_path), data, caplog)


# --- encrypted assertions ---------------------------------------------------------------------------------------------


def hidden(directory: Path, data: bytes, *, wrapped: bool = False, late: bool = False, tag: str = "Assertion") -> bytes:
    """A signed message whose Body and assertion are encrypted for the shop.

    Args:
        directory: For files.
        data: The message.
        wrapped: Whether the EncryptedData is in an EncryptedAssertion.
        late: Whether the key stands behind the signature, as if that was over what is encrypted.
        tag: Local name of the part that is encrypted instead of the assertion.
    """
    envelope, key, certificate = etree.fromstring(data), bytes(range(32)), Certificate(SHOP.found)
    security = envelope.find(f".//{SECURITY}")
    assert security is not None
    replacing = Replacing(CIPHERS["aes256-cbc"], key, key_in_message("_k"), "_k")
    replacing.body(envelope, SOAP.V1_2)
    part = next(one for one in security if etree.QName(one).localname == tag)
    replacing.element(part, "token")
    if wrapped:
        found = security.find("{*}EncryptedData")
        wrapper = etree.Element(f"{{{SAML_2}}}EncryptedAssertion")
        security.replace(found, wrapper)
        wrapper.append(found)
    (made,) = elements_of(write_encrypted_key(certificate, "thumbprint", certificate.wrap(key), "_k", replacing.list()))
    security.insert(len(security) if late else 1, made)
    return etree.tostring(envelope)


@every_version
@pytest.mark.parametrize("wrapped", [False, True], ids=["as WSS4J does", "as SAML 2.0 does"])
def test_an_encrypted_assertion_counts_once(tmp_path: Path, version: str, wrapped: bool) -> None:
    checks = shop(tmp_path, encrypt=Encryption())
    data = hidden(tmp_path, message(tmp_path, assertion(version)), wrapped=wrapped)
    assert b"alice</" not in data
    context = received(checks, data)
    assert context.user == "alice" and not context.headers
    with pytest.raises(MessageFlowError):
        received(checks, data)


def test_a_changed_encrypted_assertion_is_refused_alike_whatever_was_changed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Once its signature was received, nothing is decrypted any more: so nobody can try out changes."""
    checks, found = shop(tmp_path, encrypt=Encryption()), set[str]()
    for at in (0, 40, 200, -2):
        envelope = etree.fromstring(hidden(tmp_path, message(tmp_path, assertion())))
        value = envelope.findall(f".//{SECURITY}/{{*}}EncryptedData//{{*}}CipherValue")[0]
        plain = bytearray(base64.b64decode(value.text or ""))
        plain[at] ^= 1
        value.text = base64.b64encode(plain).decode()
        caplog.clear()
        with pytest.raises(ProcessingError) as raised:
            received(checks, etree.tostring(envelope))
        found.add(f"{raised.value.code} {raised.value.message}")
        with pytest.raises(MessageFlowError):
            received(checks, etree.tostring(envelope))
    assert found == {f"{INVALID_SECURITY} {INVALID_SECURITY_REASON}"}


WRONG: dict[str, tuple[Callable[[Path], bytes], str]] = {
    "encrypted before it was signed": (
        lambda one: hidden(one, message(one, assertion()), late=True),
        "before signing",
    ),
    "none, but a Timestamp": (lambda one: hidden(one, message(one, assertion()), tag="Timestamp"), "Timestamp"),
    "the certificate": (lambda one: hidden(one, message(one, assertion()), tag="BinarySecurityToken"), ""),
    "one encrypted, and one not": (
        lambda one: hidden(one, message(one, assertion(), assertion(name="_a2"))),
        "2 assertions",
    ),
    "it is not signed": (
        lambda one: hidden(one, changed(message(one, assertion()), lambda two: _unsign(two, "_a1"), ALICE, one)),
        "is not signed",
    ),
    "it names the key": (
        lambda one: hidden(one, message(one, of_holder(ALICE), held=True)),
        "a KeyIdentifier of the type",
    ),
}


def _unsign(security: etree._Element, name: str) -> None:
    reference = the_reference(security, f"#{name}")
    parent = reference.getparent()
    assert parent is not None
    parent.remove(reference)


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_encrypted_assertion_is_refused(tmp_path: Path, what: str, caplog: pytest.LogCaptureFixture) -> None:
    make, why = WRONG[what]
    with pytest.raises(ProcessingError) as raised:
        received(shop(tmp_path, encrypt=Encryption()), make(tmp_path))
    assert (raised.value.code, raised.value.message) == (INVALID_SECURITY, INVALID_SECURITY_REASON)
    assert why in caplog.text


def test_an_encrypted_assertion_is_refused_by_name_where_none_is_expected(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    alone = X509(*SHOP.files(tmp_path), trusted=authority().files(tmp_path).certificate, encrypt=Encryption())
    with pytest.raises(ProcessingError):
        received(alone, hidden(tmp_path, message(tmp_path, assertion())))
    assert "a token is encrypted, such as an assertion, which is not supported here: see with_saml()" in caplog.text


# --- both ends --------------------------------------------------------------------------------------------------------


@pytest.mark.every(5)
@every_version
@pytest.mark.parametrize("kind", ["bearer", "holder-of-key", "sender-vouches"])
@pytest.mark.parametrize("encrypt", [None, Encryption(), Encryption(signature=True), Encryption(before_signing=True)])
async def test_signed_assertions_arrive_once_through_a_bad_network(
    tmp_path: Path, version: str, kind: str, encrypt: Encryption | None
) -> None:
    given: dict[str, Any] = {"confirmations": [kind]}
    if kind == "sender-vouches":
        given["attesters"] = ALICE.files(tmp_path).certificate
    got: list[tuple[str, str | None]] = []
    app = Destination(":memory:", processors=[shop(tmp_path, encrypt=encrypt, **given)])

    @app.on()
    def take(message: Message) -> str:
        got.append((message.user, message.body.text))
        return "<ok/>"

    sent = of_holder(ALICE, version) if kind == "holder-of-key" else assertion(version, method=kind)
    certificate = SHOP.files(tmp_path).certificate
    reference: Any = "assertion" if kind == "holder-of-key" else "token"
    alice = X509(*ALICE.files(tmp_path), trusted=certificate, encrypt=encrypt, reference=reference)
    alice = alice.with_saml(SamlToken(lambda: sent))
    async with pair(app, network=lossy(0.2, seed=5), processors=[alice], policy=HASTY) as source:
        for number in range(4):
            assert (await source.request(f"<n>{number}</n>", action="urn:ask")).body.tag == "ok"
    assert got == [("alice", str(number)) for number in range(4)]


async def test_a_sequence_that_names_its_certificate_is_that_of_the_holder(tmp_path: Path) -> None:
    app = Destination(":memory:", processors=[shop(tmp_path).bind_sequences()])
    alice = X509(*ALICE.files(tmp_path), trusted=SHOP.files(tmp_path).certificate, reference="assertion")
    alice = alice.with_saml(SamlToken(lambda: of_holder(ALICE))).bind_sequences()
    async with pair(app, processors=[alice], policy=HASTY) as source:
        await (await source.send("<n/>", action="urn:note")).acknowledged(timeout=240)


async def test_messages_wait_until_there_is_an_assertion(tmp_path: Path) -> None:
    app = Destination(":memory:", processors=[shop(tmp_path)])
    given = [b""]
    alice = X509(*ALICE.files(tmp_path), trusted=SHOP.files(tmp_path).certificate).with_saml(
        SamlToken(lambda: given[-1])
    )
    context = MessageContext(Envelope(SOAP.V1_2), "outbound", "source", {}, is_answer=False, to="http://shop/")
    with pytest.raises(MessageFlowError, match="no usable SAML assertion"):
        alice.outbound(context)
    given.append(assertion())
    async with pair(app, processors=[alice], policy=HASTY) as source:
        await (await source.send("<n/>", action="urn:note")).acknowledged(timeout=240)


def test_a_processor_sends_assertions_or_checks_them_and_not_both(tmp_path: Path) -> None:
    files = SHOP.files(tmp_path).certificate
    sends, checks = SamlToken(assertion), SamlTokenValidator({ISSUER: files}, audience=AUDIENCE)
    for first, second in ((sends, checks), (checks, sends), (sends, sends)):
        alice = X509(*ALICE.files(tmp_path), trusted=files).with_saml(first)
        with pytest.raises(ConfigurationError, match="was called before"):
            alice.with_saml(second)


def test_an_assertion_that_confirms_another_key_is_not_sent(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for given in (of_holder(BOB), assertion(), of_holder(BOB, by_value=True)):
        alice = X509(*ALICE.files(tmp_path), trusted=SHOP.files(tmp_path).certificate, reference="assertion")
        alice.with_saml(SamlToken(lambda given=given: given))  # type: ignore[misc]
        context = MessageContext(Envelope(SOAP.V1_2), "outbound", "source", {}, is_answer=False, to="http://shop/")
        with pytest.raises(MessageFlowError, match="for another key"):
            alice.outbound(context)
        assert "does not confirm the key of CN=alice" in caplog.text


def test_a_key_is_named_by_an_assertion_only_where_one_that_confirms_it_is(tmp_path: Path) -> None:
    certificate = SHOP.files(tmp_path).certificate
    alice = X509(*ALICE.files(tmp_path), trusted=certificate, reference="assertion")
    checks = SamlTokenValidator({ISSUER: IDP.files(tmp_path).certificate}, audience=AUDIENCE)
    with pytest.raises(ConfigurationError, match="the validator accepts others"):
        alice.with_saml(checks)
    with pytest.raises(ConfigurationError, match="not for a destination"):
        Destination(":memory:", processors=[alice])
    with pytest.raises(ConfigurationError, match="there is none"):
        Source("http://shop/", ":memory:", processors=[alice])


def test_each_end_refuses_the_processor_of_the_other(tmp_path: Path) -> None:
    certificate = SHOP.files(tmp_path).certificate
    alice = X509(*ALICE.files(tmp_path), trusted=certificate).with_saml(SamlToken(lambda: b""))
    with pytest.raises(ConfigurationError, match="X509 is not for a destination") as raised:
        Destination(":memory:", processors=[alice])
    assert "X509(…).with_saml(SamlTokenValidator(…))" in raised.value.remedy
    with pytest.raises(ConfigurationError, match="X509 is not for a source"):
        Source("http://shop/", ":memory:", processors=[shop(tmp_path)])


async def test_the_demand_for_a_signed_assertion_is_published_and_met(tmp_path: Path) -> None:
    app = Destination(":memory:", processors=[shop(tmp_path)])
    wsdl = tmp_path / "service.wsdl"
    wsdl.write_bytes(app._generated_wsdl("http://shop.example/"))
    assert re.search(rb"AsymmetricBinding>.*<sp:SignedSupportingTokens .*<sp:SamlToken ", wsdl.read_bytes())
    certificate = SHOP.files(tmp_path).certificate
    signer = X509(*ALICE.files(tmp_path), trusted=certificate, suite="rsa-sha256")
    for processors in ([signer], [SamlToken(assertion)]):
        with pytest.raises(ConfigurationError) as raised:
            await Source.from_wsdl(wsdl, ":memory:", processors=processors)
        assert ".with_saml(holdfast.SamlToken('assertion.xml'))" in raised.value.remedy
    source = await Source.from_wsdl(wsdl, ":memory:", processors=[signer.with_saml(SamlToken(assertion))])
    await source.close()


@pytest.mark.parametrize("encrypt", [None, Encryption()], ids=["signed", "encrypted"])
@every_version
async def test_a_destination_demands_a_signature_with_the_key_of_an_assertion(
    tmp_path: Path, version: str, encrypt: Encryption | None
) -> None:
    """SecurityPolicy 1.2, 5.4.6 and 7.5: the assertion is the InitiatorToken, so no other token supports it."""
    validator = SamlTokenValidator(
        {ISSUER: IDP.files(tmp_path).certificate}, audience=AUDIENCE, confirmations=["holder-of-key"]
    )
    trusted = authority().files(tmp_path).certificate
    holds = X509(*SHOP.files(tmp_path), trusted=trusted, reference="assertion", encrypt=encrypt).with_saml(validator)
    app = Destination(":memory:", processors=[holds])
    got: list[str] = []
    app.on("urn:note")(lambda message: got.append(message.user))
    wsdl = tmp_path / "service.wsdl"
    wsdl.write_bytes(app._generated_wsdl("http://shop.example/"))
    assert re.search(b"<sp:InitiatorToken><wsp:Policy><sp:SamlToken .*<sp:ProtectTokens/>", wsdl.read_bytes())
    assert b"SupportingTokens" not in wsdl.read_bytes()
    certificate = SHOP.files(tmp_path).certificate

    def signing(reference: Any, *, sends: bool) -> X509:
        made = X509(*ALICE.files(tmp_path), trusted=certificate, reference=reference, encrypt=encrypt)
        return made.with_saml(SamlToken(lambda: of_holder(ALICE, version))) if sends else made

    for processor in (signing("token", sends=False), signing("token", sends=True), SamlToken(assertion)):
        with pytest.raises(ConfigurationError) as raised:
            await Source.from_wsdl(wsdl, ":memory:", processors=[processor])
        assert "holdfast.SamlToken('assertion.xml')" in raised.value.remedy
    holder = signing("assertion", sends=True)
    await (await Source.from_wsdl(wsdl, ":memory:", processors=[holder])).close()
    async with pair(app, processors=[holder], policy=HASTY) as source:
        await (await source.send("<n/>", action="urn:note")).acknowledged(timeout=240)
    assert got == ["alice"]
