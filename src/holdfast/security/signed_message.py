"""Signed messages: the signature of a whole envelope, written and checked (SOAP Message Security 1.1, section 8).

Of XML Signature it accepts one shape: references to parts of this envelope, each in exclusive canonical form. Each part
is found by its position, and what the endpoint acts on must be signed, so that a signed part cannot be moved away and
another take its place. It knows no key: ``certificates`` does.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from lxml import etree

from holdfast.core.messages import MC_NS
from holdfast.core.versions import SOAP
from holdfast.exceptions import EnvelopeError
from holdfast.security.certificates import Certificate, Credential, KeyReference
from holdfast.security.header import Invalid, Security, Unproven, read_security_of, write_timestamp
from holdfast.security.names import (
    ASSERTIONS,
    DS,
    EXCLUSIVE_C14N,
    EXCLUSIVE_C14N_WITH_COMMENTS,
    RSA_SHA1,
    RSA_SHA256,
    SECURITY,
    SHA1,
    SHA256,
    STR_TRANSFORM,
    WSSE,
    WSU,
    XENC,
    Kind,
    SuiteName,
)
from holdfast.security.signature import (
    DIGESTS,
    ID,
    IDS,
    MAX_PREFIXES,
    algorithm,
    canonical,
    check_cost,
    children,
    decoded,
    encoded,
    only,
    parsed_to_sign,
    unsignable,
)
from holdfast.security.token_references import CarriedAssertion, name_of, read_key_reference, write_key_reference
from holdfast.wire import as_utf8, parse_element
from holdfast.wire.names import NETRM_NS, RM_NS, SOAP_NS, WSA_NS
from holdfast.wire.text import escape, escape_attribute

MAX_REFERENCES: Final = 64
"""Maximum number of parts that a signature may name. Metro names each of its headers twice."""
UNSIGNED_ATTACHMENTS: Final = "it has attachments (SOAP with Attachments), which are not supported in signed messages"
MAX_OF_ONE: Final = 3
"""How often it may name one part. Metro names an addressing header three times if the policy has several versions."""

OURS: Final = frozenset({*WSA_NS.values(), *RM_NS.values(), *SOAP_NS.values(), MC_NS, NETRM_NS})
"""Namespaces of the header blocks that the endpoint itself acts on: each of them must be signed."""

for _prefix, _namespace in (("wsu", WSU), ("wsse", WSSE), ("ds", DS)):
    etree.register_namespace(_prefix, _namespace)

_KEY_NAME: Final = f"{{{DS}}}KeyInfo/{{{WSSE}}}SecurityTokenReference"
_FORMS: Final = frozenset({EXCLUSIVE_C14N, EXCLUSIVE_C14N_WITH_COMMENTS})
"""Canonical forms. What a reference names by its Id has no comments in either (XML Signature 1.1, section 4.4.3.3)."""


@dataclass(frozen=True, slots=True)
class Suite:
    """Algorithms of a signature."""

    signature: str
    digest: str


SUITES: Final[Mapping[str, Suite]] = {
    "rsa-sha256": Suite(RSA_SHA256, SHA256),
    "Basic256Sha256": Suite(RSA_SHA1, SHA256),
    "Basic256": Suite(RSA_SHA1, SHA1),
}
"""The suites of SecurityPolicy 1.2, 6.1, as CXF and Metro read them, and the one without SHA-1."""

ACCEPTED: Final[Mapping[str, tuple[frozenset[str], frozenset[str]]]] = {
    "rsa-sha256": (frozenset({RSA_SHA256}), frozenset({SHA256})),
    "Basic256Sha256": (frozenset({RSA_SHA256, RSA_SHA1}), frozenset({SHA256})),
    "Basic256": (frozenset({RSA_SHA256, RSA_SHA1}), frozenset({SHA256, SHA1})),
}
"""Suite -> the algorithms that an endpoint with it accepts, of signatures and of digests."""


# --- reading ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SecuredMessage:
    """The parts of a received message that its security concerns, by their positions.

    Attributes:
        security: The Security header, with a Timestamp.
    """

    envelope: etree._Element
    header: etree._Element
    body: etree._Element
    security: Security

    @property
    def timestamp(self) -> etree._Element:
        assert self.security.timestamp is not None and self.security.timestamp.element is not None
        return self.security.timestamp.element


@dataclass(frozen=True, slots=True)
class SignedMessage(SecuredMessage):
    """A message with a signature.

    Attributes:
        signature: The signature in the Security header.
        assertion: The assertion that it must be over, too; None: none.
    """

    signature: etree._Element
    assertion: CarriedAssertion | None = field(default=None, kw_only=True)

    @property
    def value(self) -> bytes:
        return decoded(only(self.signature, DS, "SignatureValue"))

    @property
    def remembered_as(self) -> tuple[float, bytes]:
        """When the signature was made, and its digest."""
        timestamp = self.security.timestamp
        assert timestamp is not None and timestamp.created is not None
        return timestamp.created, hashlib.sha256(self.value).digest()


@dataclass(frozen=True, slots=True)
class CertifiedMessage(SignedMessage):
    """A message that a certificate's key has signed.

    Attributes:
        key: How it names the certificate.
    """

    key: KeyReference


def read_secured(data: bytes, soap: SOAP) -> SecuredMessage:
    """Find the Security header of a message, before anything of it is checked.

    Raises:
        Invalid: It has no Timestamp, or another shape.
    """
    try:
        data = as_utf8(data)
        envelope = parse_element(data)
    except EnvelopeError as error:
        raise Invalid(error.message) from None
    check_cost(data, envelope)
    names = [f"{{{SOAP_NS[soap]}}}{local}" for local in ("Envelope", "Header", "Body")]
    if [envelope.tag, *(child.tag for child in envelope)] != names:
        raise Invalid("the Envelope is not a Header and a Body")
    header, body = envelope
    if not all(isinstance(block.tag, str) for block in header):
        raise Invalid("the Header has a comment or an instruction")
    security = read_security_of(header, soap)
    if security is None:
        raise Invalid("no Security header")
    if security.timestamp is None or security.timestamp.created is None:
        raise Invalid("no Timestamp, or one without Created")
    return SecuredMessage(envelope, header, body, security)


def find_signature(
    message: SecuredMessage, signature: etree._Element | None = None
) -> tuple[SignedMessage, etree._Element]:
    """Find the signature of a message, before it is checked, and the reference to the key that made it.

    Raises:
        Invalid: It has none, or another shape.
    """
    if signature is None:
        signature = only(message.security.element, DS, "Signature")
    _, _, key_info = children(signature, "SignedInfo", "SignatureValue", "KeyInfo")
    (named,) = children(key_info, "SecurityTokenReference", namespace=WSSE)
    return SignedMessage(message.envelope, message.header, message.body, message.security, signature), named


def read_signature(message: SecuredMessage, assertion: CarriedAssertion | None = None) -> CertifiedMessage:
    """Find the signature of a message, before it is checked, and the certificate that it names.

    Raises:
        Invalid: It has none, or another shape.
    """
    signed, named = find_signature(message)
    security = message.security
    if assertion is not None and assertion.is_named_by(named):
        if assertion.holder is None:
            raise Invalid("the signature names its key by an assertion, which confirms no key")
        key = assertion.holder
    else:
        key = read_key_reference(named, security.element)
        if key.kind == "token":
            only(security.element, WSSE, "BinarySecurityToken")  # more would leave it open which one counts
    parts = message.envelope, message.header, message.body, security, signed.signature
    return CertifiedMessage(*parts, key, assertion=assertion)


def check_signed(message: SignedMessage, certificate: Certificate, suite: SuiteName) -> Suite:
    """Check the signature of a message, as :func:`check_value` and :func:`check_parts` do, and return its algorithms.

    First the signature, then the parts: a peer without a key can make us compute no more than that.
    """
    used = check_value(message, certificate, suite)
    return Suite(used, check_parts(message, suite))


def check_value(message: SignedMessage, certificate: Certificate, suite: SuiteName) -> str:
    """Check that a certificate's key made the signature, whatever it is over.

    The algorithms are those of the suite alone (SecurityPolicy 1.2, section 6.1), whatever the message names.

    Returns:
        The signature's algorithm.

    Raises:
        Invalid: The signature has another shape or another algorithm.
        Unproven: The key did not make it.
    """
    form, method, *_ = signed_info(message)
    used = algorithm(method, {one: one for one in ACCEPTED[suite][0]})
    if not certificate.has_signed(canonical_as(message.signature[0], form), message.value, used):
        raise Unproven("the signature was made with another key, or changed")
    return used


def check_part(message: SignedMessage, part: etree._Element, suite: SuiteName) -> None:
    """Check that the signature is over one part as it is now.

    Raises:
        Invalid: It is not.
        Unproven: The part was changed.
    """
    name = name_of(part)
    found = [one for one in signed_info(message)[2:] if name and one.get("URI") == f"#{name}"]
    if not found:
        raise Invalid(f"{etree.QName(part).localname} is not signed")
    _check_reference(found[0], part, ACCEPTED[suite][1])


def check_parts(message: SignedMessage, suite: SuiteName) -> str:
    """Check that the signature is over each part that counts.

    A part is signed by its position (SOAP Message Security 1.1, section 8). The Body, the Timestamp, the assertion that
    the message may have, and each header block of SOAP, addressing or reliable messaging must be signed. Other header
    blocks need not be: :func:`unsigned_headers` names them.

    Returns:
        The algorithm of the digests.

    Raises:
        Invalid: A part is not signed.
        Unproven: A part was changed.
    """
    _, _, *references = signed_info(message)
    digests = ACCEPTED[suite][1]
    parts = _parts(message)
    count = Counter(reference.get("URI", "") for reference in references)
    found = set[etree._Element]()
    digest = SHA256
    for reference in references:
        uri = reference.get("URI", "")
        part = parts.get(uri)
        if part is None:
            raise Invalid(f"the signature is over {uri[:100]!r}, which is no part of the message")
        if count[uri] > MAX_OF_ONE:
            raise Invalid(f"the signature is over {uri[:100]!r} {count[uri]} times")
        part = _dereferenced(reference, part, message.assertion)
        digest = _check_reference(reference, part, digests, may_have_comments=part is message.body)
        found.add(part)
    _check_ids(message.envelope, count)
    tokens = () if message.assertion is None else (message.assertion.element,)
    for part in (message.body, message.timestamp, *tokens, *_blocks_of_ours(message.header)):
        if part not in found:
            raise Invalid(f"{etree.QName(part).localname} is not signed")
    return digest


def signed_info(message: SignedMessage) -> list[etree._Element]:
    """Return what a SignedInfo consists of: canonical form, algorithm, and references."""
    signed = message.signature[0]
    if not 3 <= len(signed) <= 2 + MAX_REFERENCES:
        raise Invalid(f"the signature is over {len(signed) - 2} parts")
    return children(signed, "CanonicalizationMethod", "SignatureMethod", *["Reference"] * (len(signed) - 2))


def unsigned_headers(message: SignedMessage) -> set[str]:
    """Return the names of header blocks that the signature of a checked message is not over, or not over all."""
    uris = {reference.get("URI", "") for reference in message.signature[0].findall(f"{{{DS}}}Reference")}
    return {str(block.tag) for block in message.header if f"#{block.get(ID)}" not in uris} - {SECURITY}


def _parts(message: SignedMessage) -> dict[str, etree._Element]:
    """Return what a signature may be over: the Body, the header blocks, and the parts of the Security header."""
    security = message.security.element
    blocks = [block for block in message.header if block is not security]
    parts = [part for part in security if isinstance(part.tag, str) and part is not message.signature]
    others = security.findall(f"{{{XENC}}}EncryptedKey")
    if message.assertion is not None:
        # What names the key may name the assertion: WSS4J then signs that by this reference.
        others += [message.assertion.element, *message.signature.iterfind(_KEY_NAME)]
    named = {f"#{name_of(one)}": one for one in others if name_of(one)}
    return named | {f"#{one.get(ID)}": one for one in (*blocks, *parts, message.body) if one.get(ID)}


def _blocks_of_ours(header: etree._Element) -> list[etree._Element]:
    return [block for block in header if etree.QName(block).namespace in OURS]


def _check_ids(envelope: etree._Element, referenced: Mapping[str, int]) -> None:
    """Check that each Id that the signature names is that of one element, in whatever attribute."""
    found: list[str] = IDS(envelope)
    for one, times in Counter(found).items():
        if times > 1 and f"#{one}" in referenced:
            raise Invalid("two elements have the same Id")


def _dereferenced(
    reference: etree._Element, part: etree._Element, assertion: CarriedAssertion | None
) -> etree._Element:
    """Return what a reference is over: the part, or the assertion that it names (SOAP Message Security 1.1, 8.3)."""
    transform = reference.find(f"{{{DS}}}Transforms/{{{DS}}}Transform")
    if transform is None or transform.get("Algorithm") != STR_TRANSFORM:
        return part
    if assertion is None or part.tag != f"{{{WSSE}}}SecurityTokenReference" or not assertion.is_named_by(part):
        raise Invalid("the STR-Transform is of another token than an assertion that is checked")
    return assertion.element


def _check_reference(
    reference: etree._Element, part: etree._Element, digests: frozenset[str], *, may_have_comments: bool = False
) -> str:
    transforms, method, value = children(reference, "Transforms", "DigestMethod", "DigestValue")
    (transform,) = children(transforms, "Transform")
    used = algorithm(method, {one: one for one in digests})
    found = DIGESTS[used](canonical_as(part, transform, may_have_comments=may_have_comments)).digest()
    if not hmac.compare_digest(found, decoded(value)):
        raise Unproven(f"{etree.QName(part).localname} was changed")
    return used


def canonical_as(element: etree._Element, form: etree._Element, *, may_have_comments: bool = False) -> bytes:
    """Return an element, without its comments, in the canonical form that a message names.

    A comment is not signed, but it ends a text early for some readers. Only a part from which
    :func:`holdfast.security.header.drop_comments` removes them may have any.
    """
    name = form.get("Algorithm", "")
    if name == STR_TRANSFORM and element.tag in ASSERTIONS:
        return _canonical_token(element, form)
    if name not in _FORMS:
        raise Invalid(f"the signature has the transform {name[:100]!r}")
    prefixes: list[str] = []
    if len(form):
        (inclusive,) = children(form, "InclusiveNamespaces", namespace=EXCLUSIVE_C14N)
        prefixes = inclusive.get("PrefixList", "").split()
        if len(prefixes) > MAX_PREFIXES or len(inclusive):
            raise Invalid("the InclusiveNamespaces are malformed, or very many")
    if not may_have_comments and next(element.iter(etree.Comment), None) is not None:
        raise Invalid(f"{etree.QName(element).localname} has a comment, which is not signed")
    return canonical(element, prefixes)


def _canonical_token(element: etree._Element, form: etree._Element) -> bytes:
    """Return what a reference names, in canonical form: it always states its default namespace (SOAP Message Security
    1.1, section 8.3)."""
    (parameters,) = children(form, "TransformationParameters", namespace=WSSE)
    (method,) = children(parameters, "CanonicalizationMethod")
    algorithm(method, {EXCLUSIVE_C14N: None})
    name, _, rest = canonical(element).partition(b" ")
    default = (
        b"" if rest.startswith(b'xmlns="') else f'xmlns="{escape_attribute(element.nsmap.get(None) or "")}" '.encode()
    )
    return name + b" " + default + rest


# --- writing ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Signing:
    """How an endpoint signs.

    Args:
        credential: Certificate and key.
        reference: How a message names the certificate.
        life: Seconds for which a message is valid.
        named: A SecurityTokenReference to an assertion that confirms the key: messages name it by that instead.
    """

    credential: Credential
    reference: Kind
    suite: Suite
    life: float
    named: str = ""


def sign(data: bytes, soap: SOAP, signing: Signing, now: float, *, must_understand: bool) -> bytes:
    """Return a message with a Security header: a Timestamp, and a signature over it, the Body and all header blocks."""
    envelope = parsed_to_sign(data)
    sign_envelope(envelope, header_of(envelope, soap), soap, signing, now, must_understand=must_understand)
    return etree.tostring(envelope, encoding="utf-8", xml_declaration=False)


def header_of(envelope: etree._Element, soap: SOAP) -> etree._Element:
    """Return the Header of an envelope, added if it has none."""
    name = f"{{{SOAP_NS[soap]}}}Header"
    header = envelope.find(name)
    if header is None:
        header = etree.Element(name)
        envelope.insert(0, header)
    return header


def sign_envelope(
    envelope: etree._Element,
    header: etree._Element,
    soap: SOAP,
    signing: Signing,
    now: float,
    *,
    must_understand: bool,
    also: etree._Element | None = None,
) -> etree._Element:
    """Add a Security header, and return it. One that has an assertion already gets the other parts.

    Args:
        soap: Its version of SOAP.
        now: Seconds since 1970.
        must_understand: Whether the receiver must understand the header.
        also: Another part of the Security header, with an Id: it is signed, and follows the signature.
    """
    mark = f"_{secrets.token_hex(8)}"  # also makes each signature another one
    parts = parts_to_sign(envelope, header, soap, mark)
    named, token = signing.named, ""
    if not named:
        reference, token = write_key_reference(signing.credential.certificate, signing.reference, mark)
        named = f"<wsse:SecurityTokenReference>{reference}</wsse:SecurityTokenReference>"
    begun = [one for one in header.iterfind(SECURITY) if any(part.tag in ASSERTIONS for part in one)]
    security = begun[0] if begun else add_header(header, soap, must_understand=must_understand)
    security[0:0] = elements_of(write_timestamp(now, signing.life, f"{mark}-t") + token)
    if also is not None:
        security.append(also)
    suite = signing.suite
    add_signature(
        security, (*parts, *security), suite, named, lambda data: signing.credential.sign(data, suite.signature)
    )
    if also is not None:
        # Behind the signature now: the receiver checks that before it decrypts.
        security.append(also)
    return security


def parts_to_sign(envelope: etree._Element, header: etree._Element, soap: SOAP, mark: str) -> list[etree._Element]:
    """Return the Body and all header blocks but the Security header, each with an Id."""
    parts = [block for block in header if block.tag != SECURITY]
    parts += envelope.findall(f"{{{SOAP_NS[soap]}}}Body")
    for number, part in enumerate(parts, 1):
        if part.get(ID) is None:
            part.set(ID, f"{mark}-{number}")
    return parts


def add_header(header: etree._Element, soap: SOAP, *, must_understand: bool) -> etree._Element:
    security = etree.SubElement(header, SECURITY, nsmap={"wsse": WSSE, "wsu": WSU})
    if must_understand:
        security.set(f"{{{SOAP_NS[soap]}}}mustUnderstand", "1")
    return security


def add_signature(
    security: etree._Element,
    parts: Iterable[etree._Element],
    suite: Suite,
    named: str,
    sign: Callable[[bytes], bytes],
) -> bytes:
    """Add a signature to a Security header, and return its value.

    Args:
        security: The header.
        parts: What is signed. Each has an Id.
        named: The SecurityTokenReference to the key.
        sign: Returns the signature of some bytes.

    Raises:
        ProcessingError: A part has no canonical form.
    """
    try:
        references = "".join(_write_reference(part, suite) for part in parts)
    except Invalid as error:
        raise unsignable(error) from None
    form = f'<ds:CanonicalizationMethod Algorithm="{EXCLUSIVE_C14N}"/>'
    security.extend(
        elements_of(
            f'<ds:Signature xmlns:ds="{DS}"><ds:SignedInfo>{form}'
            f'<ds:SignatureMethod Algorithm="{suite.signature}"/>{references}</ds:SignedInfo>'
            f"<ds:SignatureValue/><ds:KeyInfo>{named}</ds:KeyInfo></ds:Signature>"
        )
    )
    signed, element, _ = security[-1]
    value = sign(canonical(signed))
    element.text = encoded(value)
    return value


def elements_of(content: str) -> list[etree._Element]:
    """Return elements of the Security header."""
    return list(parse_element(f'<wsse:S xmlns:wsse="{WSSE}" xmlns:wsu="{WSU}">{content}</wsse:S>'.encode()))


def _write_reference(part: etree._Element, suite: Suite) -> str:
    digest = DIGESTS[suite.digest](canonical(part)).digest()
    return (
        f'<ds:Reference URI="#{escape(name_of(part))}">'
        f'<ds:Transforms><ds:Transform Algorithm="{EXCLUSIVE_C14N}"/></ds:Transforms>'
        f'<ds:DigestMethod Algorithm="{suite.digest}"/>'
        f"<ds:DigestValue>{encoded(digest)}</ds:DigestValue></ds:Reference>"
    )
