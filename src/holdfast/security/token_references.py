"""SecurityTokenReferences: how a message names a certificate or an assertion, written and read strictly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from lxml import etree

from holdfast.security.certificates import Certificate, KeyReference
from holdfast.security.header import Invalid
from holdfast.security.names import (
    ASSERTION_IDS,
    ASSERTION_NAMES,
    ASSERTION_TYPES,
    ASSERTIONS,
    BASE64,
    SUBJECT_KEY_IDENTIFIER,
    THUMBPRINT,
    WSSE,
    WSSE11,
    X509_V3,
    Kind,
)
from holdfast.security.signature import ID, children, decoded, encoded
from holdfast.wire.text import escape

MAX_TOKEN: Final = 32 * 1024
"""Maximum characters of a certificate, an identifier or an issuer's name."""


def read_key_reference(named: etree._Element, security: etree._Element) -> KeyReference:
    """Return the certificate that a SecurityTokenReference names (X.509 Certificate Token Profile 1.1, section 3.2).

    Raises:
        Invalid: It has none of the four forms, or names a token that is not in the header.
    """
    if len(named) != 1 or not isinstance(named[0].tag, str):
        raise Invalid("a SecurityTokenReference does not have one part")
    part = named[0]
    if part.tag == f"{{{WSSE}}}Reference":
        return KeyReference("token", _token(part.get("URI", ""), security))
    if part.tag == f"{{{WSSE}}}KeyIdentifier":
        kinds: dict[str, Kind] = {SUBJECT_KEY_IDENTIFIER: "subject-key-identifier", THUMBPRINT: "thumbprint"}
        kind = kinds.get(part.get("ValueType", ""))
        if kind is None or part.get("EncodingType", BASE64) != BASE64:
            raise Invalid(f"a KeyIdentifier of the type {part.get('ValueType', '')[:100]!r}")
        return KeyReference(kind, _short(part))
    (both,) = children(named, "X509Data")
    (pair,) = children(both, "X509IssuerSerial")
    issuer, serial = children(pair, "X509IssuerName", "X509SerialNumber")
    number = (serial.text or "").strip()
    if len(issuer.text or "") > MAX_TOKEN or not (number.isascii() and number.isdigit() and len(number) < 64):
        raise Invalid("the X509IssuerSerial is malformed, or very long")
    return KeyReference("issuer-serial", issuer=issuer.text or "", serial=int(number))


def _token(uri: str, security: etree._Element) -> bytes:
    found = [one for one in security.findall(f"{{{WSSE}}}BinarySecurityToken") if uri == f"#{one.get(ID, '')}"]
    if len(found) != 1 or uri == "#":
        raise Invalid(f"{len(found)} tokens have the name of the certificate")
    (token,) = found
    if token.get("ValueType") != X509_V3 or token.get("EncodingType", BASE64) != BASE64:
        raise Invalid(f"a token of the type {token.get('ValueType', '')[:100]!r}")
    return _short(token)


def _short(element: etree._Element) -> bytes:
    if len(element) or len(element.text or "") > MAX_TOKEN:
        raise Invalid(f"{etree.QName(element).localname} is very long, or not text")
    return decoded(element)


@dataclass(frozen=True, slots=True)
class CarriedAssertion:
    """The assertion in a Security header that the signature of the message must be over.

    Attributes:
        holder: The key that it confirms; None: none, so the signature cannot name its key by the assertion.
    """

    element: etree._Element
    holder: KeyReference | None

    def is_named_by(self, reference: etree._Element) -> bool:
        """Return whether a SecurityTokenReference names it (SAML Token Profile 1.1, section 3.4)."""
        name, version = name_of(self.element), ASSERTIONS[str(self.element.tag)]
        if len(reference) != 1 or not name:
            return False
        (part,) = reference
        if part.tag == f"{{{WSSE}}}KeyIdentifier":
            return part.get("ValueType") == ASSERTION_NAMES[version] and (part.text or "").strip() == name
        return part.tag == f"{{{WSSE}}}Reference" and part.get("URI") == f"#{name}"


def name_of(part: etree._Element) -> str:
    """Return the Id of a part of a message, "" without one. An assertion has an attribute of its own for it."""
    version = ASSERTIONS.get(str(part.tag))
    found = part.get(ID) or part.get("Id") if version is None else part.get(ASSERTION_IDS[version])
    return found or ""


def write_assertion_reference(assertion: etree._Element) -> str:
    """Return a SecurityTokenReference to an assertion in the same header (SAML Token Profile 1.1, section 3.4.1)."""
    version = ASSERTIONS[str(assertion.tag)]
    name = f'<wsse:KeyIdentifier ValueType="{ASSERTION_NAMES[version]}">{escape(name_of(assertion))}'
    return (
        f'<wsse:SecurityTokenReference xmlns:wsse11="{WSSE11}" wsse11:TokenType="{ASSERTION_TYPES[version]}">'
        f"{name}</wsse:KeyIdentifier></wsse:SecurityTokenReference>"
    )


def write_key_reference(certificate: Certificate, kind: Kind, mark: str = "") -> tuple[str, str]:
    """Return how a SecurityTokenReference names a certificate, and the token, if the message has it."""
    named = certificate.reference(kind)
    if named.kind == "token":
        token = (
            f'<wsse:BinarySecurityToken EncodingType="{BASE64}" ValueType="{X509_V3}" wsu:Id="{mark}-c">'
            f"{encoded(named.value)}</wsse:BinarySecurityToken>"
        )
        return f'<wsse:Reference URI="#{mark}-c" ValueType="{X509_V3}"/>', token
    if named.kind == "issuer-serial":
        issuer = f"<ds:X509IssuerName>{escape(named.issuer)}</ds:X509IssuerName>"
        serial = f"<ds:X509SerialNumber>{named.serial}</ds:X509SerialNumber>"
        return f"<ds:X509Data><ds:X509IssuerSerial>{issuer}{serial}</ds:X509IssuerSerial></ds:X509Data>", ""
    value_type = THUMBPRINT if named.kind == "thumbprint" else SUBJECT_KEY_IDENTIFIER
    value = encoded(named.value)
    return f'<wsse:KeyIdentifier EncodingType="{BASE64}" ValueType="{value_type}">{value}</wsse:KeyIdentifier>', ""
