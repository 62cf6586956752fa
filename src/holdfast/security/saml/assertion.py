"""A SAML assertion as typed values, read strictly: version 1.1 and 2.0. Nothing of it is believed here."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from lxml import etree

from holdfast.security.certificates import Certificate, KeyReference, rsa_key
from holdfast.security.header import Invalid
from holdfast.security.names import ASSERTIONS, DS, SAML_1, SAML_2, Confirmation
from holdfast.security.signature import children, decoded
from holdfast.security.times import read_time

MAX_ELEMENTS: Final = 2048
"""Maximum number of elements of an assertion."""
MAX_TEXT: Final = 8192
"""Maximum characters of a name, an address or the value of an attribute."""
MAX_ATTRIBUTES: Final = 256
"""Maximum number of values of all attributes."""
MAX_CERTIFICATE: Final = 32 * 1024
"""Maximum characters of a certificate, or of a part of a key."""

_METHODS: Final[dict[str, Confirmation]] = {
    f"urn:oasis:names:tc:SAML:{version}:cm:{method}": method
    for version in ("1.0", "2.0")
    for method in ("bearer", "holder-of-key", "sender-vouches")
}


@dataclass(frozen=True, slots=True)
class SubjectConfirmation:
    """How a receiver knows that the sender may use an assertion (SAML Core 2.0, section 2.4.1.1).

    Attributes:
        method: Which of the three.
        holder: The certificate of the holder, or its public key; None without one.
        since, until: When it may be used, in seconds since 1970; None without a bound.
        recipient: The address that it is for, "" for any.
    """

    method: Confirmation
    holder: KeyReference | None = None
    since: float | None = None
    until: float | None = None
    recipient: str = ""

    @property
    def key(self) -> str:
        """The SHA-256 of the certificate of the holder, in hexadecimal digits; "" without one."""
        holder = self.holder
        return hashlib.sha256(holder.value).hexdigest() if holder is not None and holder.kind == "token" else ""


@dataclass(frozen=True, slots=True)
class Assertion:
    """What an issuer says about a subject.

    Attributes:
        version: "1.1" or "2.0".
        name: Its ID.
        issuer: The name of the issuer.
        subject: The name of the subject.
        format: The URI of the form of that name, "" if unspecified.
        issued_at: When it was issued, in seconds since 1970.
        since, until: When it is valid; None without a bound.
        audiences: Of each restriction, the audiences that it is for.
        is_for_one_use: Whether it may be used once only.
        confirmations: How the sender may prove to be entitled to it: one suffices.
        attributes: Name -> values, of the subject.
        signer: The distinguished name of the owner of the certificate that signed the message; "" without one.
    """

    element: etree._Element
    version: str
    name: str
    issuer: str
    subject: str
    format: str
    issued_at: float
    since: float | None
    until: float | None
    audiences: tuple[tuple[str, ...], ...]
    is_for_one_use: bool
    confirmations: tuple[SubjectConfirmation, ...]
    attributes: dict[str, tuple[str, ...]]
    signer: str = ""


def read_assertion(element: etree._Element) -> Assertion:
    """Return the content of an assertion.

    A comment may end a name early for one reader and not for another, so there must be none.

    Raises:
        Invalid: It is malformed, too large, encrypted, or has a condition or confirmation that is not understood.
    """
    version = ASSERTIONS[str(element.tag)]
    for number, one in enumerate(element.iter()):
        if not isinstance(one.tag, str):
            raise Invalid("the assertion has a comment or an instruction")
        if number >= MAX_ELEMENTS:
            raise Invalid(f"the assertion has more than {MAX_ELEMENTS:,} elements")
    return _read_2(element) if version == "2.0" else _read_1(element)


# --- 2.0 ----------------------------------------------------------------------------------------------------------


def _read_2(element: etree._Element) -> Assertion:
    if element.get("Version") != "2.0":
        raise Invalid("the assertion has another version than 2.0")
    subject = _only(element, SAML_2, "Subject")
    name = _only(subject, SAML_2, "NameID")
    conditions = _one_or_none(element, SAML_2, "Conditions")
    confirmations = [_confirmation_2(one) for one in subject.findall(f"{{{SAML_2}}}SubjectConfirmation")]
    return Assertion(
        element,
        "2.0",
        _required(element, "ID"),
        _text(_only(element, SAML_2, "Issuer")),
        _text(name),
        name.get("Format", "")[:MAX_TEXT],
        _time(_required(element, "IssueInstant")),
        *_conditions(conditions, SAML_2, "AudienceRestriction", "OneTimeUse", ("ProxyRestriction",)),
        tuple(one for one in confirmations if one is not None),
        _attributes(element, SAML_2, "Name"),
    )


def _confirmation_2(element: etree._Element) -> SubjectConfirmation | None:
    method = _METHODS.get(element.get("Method", ""))
    if method is None:
        return None
    data = _one_or_none(element, SAML_2, "SubjectConfirmationData")
    if data is None:
        return SubjectConfirmation(method)
    if data.get("InResponseTo") or data.get("Address"):
        raise Invalid("the assertion is an answer to a request of a browser, or for one network address")
    return SubjectConfirmation(
        method,
        _holder(data),
        _optional_time(data.get("NotBefore")),
        _optional_time(data.get("NotOnOrAfter")),
        data.get("Recipient", "")[:MAX_TEXT],
    )


# --- 1.1 ----------------------------------------------------------------------------------------------------------


def _read_1(element: etree._Element) -> Assertion:
    if (element.get("MajorVersion"), element.get("MinorVersion")) != ("1", "1"):
        raise Invalid("the assertion has another version than 1.1")
    subjects = element.findall(f"*/{{{SAML_1}}}Subject")
    if not 1 <= len(subjects) <= 16:
        raise Invalid(f"the assertion has {len(subjects)} subjects")
    names = [_only(subject, SAML_1, "NameIdentifier") for subject in subjects]
    found = {(_text(name), name.get("Format", ""), name.get("NameQualifier", "")) for name in names}
    if len(found) != 1:
        raise Invalid("the statements of the assertion have different subjects")
    ((name, form, _),) = found
    conditions = _one_or_none(element, SAML_1, "Conditions")
    confirmations = {one for subject in subjects for one in _confirmations_1(subject)}
    return Assertion(
        element,
        "1.1",
        _required(element, "AssertionID"),
        _required(element, "Issuer"),
        name,
        form[:MAX_TEXT],
        _time(_required(element, "IssueInstant")),
        *_conditions(conditions, SAML_1, "AudienceRestrictionCondition", "DoNotCacheCondition", ()),
        tuple(sorted(confirmations, key=repr)),
        _attributes(element, SAML_1, "AttributeName"),
    )


def _confirmations_1(subject: etree._Element) -> Iterator[SubjectConfirmation]:
    for one in subject.iterfind(f"{{{SAML_1}}}SubjectConfirmation"):
        methods = [_METHODS.get(_text(method)) for method in one.findall(f"{{{SAML_1}}}ConfirmationMethod")]
        for method in methods:
            if method is not None:
                yield SubjectConfirmation(method, _holder(one))


# --- both ---------------------------------------------------------------------------------------------------------


def _conditions(
    element: etree._Element | None, space: str, restriction: str, one_use: str, ignored: tuple[str, ...]
) -> tuple[float | None, float | None, tuple[tuple[str, ...], ...], bool]:
    """Return the bounds, the audiences of each restriction, and whether it may be used once (SAML Core 2.0, 2.5.1)."""
    if element is None:
        return None, None, (), False
    audiences: list[tuple[str, ...]] = []
    is_for_one_use = False
    for one in element:
        if one.tag == f"{{{space}}}{restriction}":
            audiences.append(tuple(_text(audience) for audience in one.findall(f"{{{space}}}Audience")))
        elif one.tag == f"{{{space}}}{one_use}":
            is_for_one_use = True
        elif one.tag not in [f"{{{space}}}{name}" for name in ignored]:
            raise Invalid(f"the assertion has the condition {str(one.tag)[:100]}")
    since, until = element.get("NotBefore"), element.get("NotOnOrAfter")
    return _optional_time(since), _optional_time(until), tuple(audiences), is_for_one_use


def _attributes(element: etree._Element, space: str, name_attribute: str) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    count = 0
    for attribute in element.iterfind(f"{{{space}}}AttributeStatement/{{{space}}}Attribute"):
        values = attribute.findall(f"{{{space}}}AttributeValue")
        count += len(values)
        if count > MAX_ATTRIBUTES:
            raise Invalid(f"the assertion has more than {MAX_ATTRIBUTES} values of attributes")
        name = _required(attribute, name_attribute)
        found[name] = (*found.get(name, ()), *(_text(value) for value in values if not len(value)))
    return found


def _holder(element: etree._Element) -> KeyReference | None:
    """Return the certificate, or the key, in an element's KeyInfo; None without one."""
    infos = element.findall(f"{{{DS}}}KeyInfo")
    if not infos:
        return None
    if len(infos) > 1:
        raise Invalid("the assertion has several keys for one confirmation")
    if any(one.tag == f"{{{DS}}}KeyValue" for one in infos[0]):
        (value,) = children(infos[0], "KeyValue")
        (rsa,) = children(value, "RSAKeyValue")
        return rsa_key(*map(_bytes, children(rsa, "Modulus", "Exponent")))
    (data,) = children(infos[0], "X509Data")
    (certificate,) = children(data, "X509Certificate")
    return Certificate.from_der(_bytes(certificate)).reference("token")


def _bytes(element: etree._Element) -> bytes:
    if len(element) or len(element.text or "") > MAX_CERTIFICATE:
        raise Invalid("the key of the holder is very long, or not text")
    return decoded(element)


def _only(parent: etree._Element, space: str, name: str) -> etree._Element:
    found = _one_or_none(parent, space, name)
    if found is None:
        raise Invalid(f"the assertion has no {name}")
    return found


def _one_or_none(parent: etree._Element, space: str, name: str) -> etree._Element | None:
    found = parent.findall(f"{{{space}}}{name}")
    if len(found) > 1:
        raise Invalid(f"the assertion has {len(found)} elements {name}")
    return found[0] if found else None


def _text(element: etree._Element) -> str:
    text = (element.text or "").strip()
    if len(element) or not text or len(text) > MAX_TEXT:
        raise Invalid(f"{etree.QName(element).localname} is empty, very long, or not text")
    return text


def _required(element: etree._Element, name: str) -> str:
    value = element.get(name, "").strip()
    if not value or len(value) > MAX_TEXT:
        raise Invalid(f"{etree.QName(element).localname} has no {name}, or a very long one")
    return value


def _optional_time(text: str | None) -> float | None:
    return None if text is None else _time(text)


def _time(text: str) -> float:
    found = read_time(text)
    if found is None:
        raise Invalid(f"a time of the assertion is {text[:40]!r}")
    return found
