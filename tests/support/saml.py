"""An issuer of SAML assertions for tests. It signs them with the canonical form of lxml, and no code of Holdfast."""

from __future__ import annotations

import base64
import hashlib
from datetime import UTC, datetime
from typing import Any

from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding
from lxml import etree
from signers import Issued

SAML_2, SAML_1 = "urn:oasis:names:tc:SAML:2.0:assertion", "urn:oasis:names:tc:SAML:1.0:assertion"
DS = "http://www.w3.org/2000/09/xmldsig#"
EXCLUSIVE = "http://www.w3.org/2001/10/xml-exc-c14n#"
SHA256 = "http://www.w3.org/2001/04/xmlenc#sha256"
RSA_SHA256 = "http://www.w3.org/2001/04/xmldsig-more#rsa-sha256"
ISSUER, AUDIENCE = "https://idp.example", "https://shop.example/orders"


def when(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")[:23] + "Z"


def key_info(holder: Issued) -> str:
    der = base64.b64encode(holder.found.public_bytes(serialization.Encoding.DER)).decode()
    content = f"<ds:X509Data><ds:X509Certificate>{der}</ds:X509Certificate></ds:X509Data>"
    return f'<ds:KeyInfo xmlns:ds="{DS}">{content}</ds:KeyInfo>'


def key_value(holder: Issued) -> str:
    numbers = holder.key.public_key().public_numbers()
    parts = (("Modulus", numbers.n.to_bytes(256, "big")), ("Exponent", numbers.e.to_bytes(3, "big")))
    content = "".join(f"<ds:{name}>{base64.b64encode(data).decode()}</ds:{name}>" for name, data in parts)
    value = f"<ds:KeyValue><ds:RSAKeyValue>{content}</ds:RSAKeyValue></ds:KeyValue>"
    return f'<ds:KeyInfo xmlns:ds="{DS}">{value}</ds:KeyInfo>'


def unsigned(version: str, now: float, **changed: Any) -> str:
    """An assertion for alice, before it is signed.

    Args:
        version: "2.0" or "1.1".
        now: When it is issued.
        changed: What is different: name, issuer, subject, method, conditions, until, data, key, statement.
    """
    given: dict[str, Any] = {
        "name": "_a1", "issuer": ISSUER, "subject": "alice", "method": "bearer", "until": now + 600, "data": "",
        "key": "", "more": "", "statement": "",
    } | changed  # fmt: skip
    bounds = f'NotBefore="{when(now - 60)}" NotOnOrAfter="{when(given["until"])}"'
    if version == "2.0":
        audience = f"<a:AudienceRestriction><a:Audience>{AUDIENCE}</a:Audience></a:AudienceRestriction>"
        conditions = given.get("conditions", f"<a:Conditions {bounds}>{audience}{given['more']}</a:Conditions>")
        content = f"<a:SubjectConfirmationData {given['data']}>{given['key']}</a:SubjectConfirmationData>"
        confirmation = (
            f'<a:SubjectConfirmation Method="urn:oasis:names:tc:SAML:2.0:cm:{given["method"]}">{content}'
            "</a:SubjectConfirmation>"
        )
        return (
            f'<a:Assertion xmlns:a="{SAML_2}" ID="{given["name"]}" IssueInstant="{when(now)}" Version="2.0">'
            f"<a:Issuer>{given['issuer']}</a:Issuer>SIGNATURE\n<a:Subject><a:NameID>{given['subject']}</a:NameID>"
            f'{confirmation}</a:Subject>{conditions}<a:AttributeStatement><a:Attribute Name="role">'
            '<a:AttributeValue xmlns:xs="http://www.w3.org/2001/XMLSchema" xmlns:i="http://www.w3.org/2001/'
            f'XMLSchema-instance" i:type="xs:string">buyer</a:AttributeValue></a:Attribute></a:AttributeStatement>'
            f"{given['statement']}</a:Assertion>"
        )
    audience = f"<a:AudienceRestrictionCondition><a:Audience>{AUDIENCE}</a:Audience></a:AudienceRestrictionCondition>"
    conditions = given.get("conditions", f"<a:Conditions {bounds}>{audience}{given['more']}</a:Conditions>")
    subject = (
        f"<a:Subject><a:NameIdentifier>{given['subject']}</a:NameIdentifier><a:SubjectConfirmation>"
        f"<a:ConfirmationMethod>urn:oasis:names:tc:SAML:1.0:cm:{given['method']}</a:ConfirmationMethod>{given['key']}"
        "</a:SubjectConfirmation></a:Subject>"
    )
    return (
        f'<a:Assertion xmlns:a="{SAML_1}" AssertionID="{given["name"]}" Issuer="{given["issuer"]}" '
        f'IssueInstant="{when(now)}" MajorVersion="1" MinorVersion="1">{conditions}<a:AttributeStatement>{subject}'
        '<a:Attribute AttributeName="role" AttributeNamespace="urn:r"><a:AttributeValue>buyer</a:AttributeValue>'
        f"</a:Attribute></a:AttributeStatement>{given['statement']}SIGNATURE</a:Assertion>"
    )


def signed(template: str, by: Issued, name: str = "_a1", **changed: str) -> bytes:
    """The assertion with its signature at the mark SIGNATURE."""
    prefixes = f'<x:InclusiveNamespaces xmlns:x="{EXCLUSIVE}" PrefixList="xs"/>'
    plain = etree.fromstring(template.replace("SIGNATURE", ""))
    data = etree.tostring(plain, method="c14n", exclusive=True, with_comments=False, inclusive_ns_prefixes=["xs"])
    digest = base64.b64encode(hashlib.sha256(data).digest()).decode()
    given = {
        "uri": f"#{name}",
        "method": f'<d:SignatureMethod Algorithm="{RSA_SHA256}"/>',
        "transforms": (
            f'<d:Transform Algorithm="{DS}enveloped-signature"/><d:Transform Algorithm="{EXCLUSIVE}">{prefixes}'
            "</d:Transform>"
        ),
        "more": "",
    } | changed
    info = (
        f'<d:SignedInfo xmlns:d="{DS}"><d:CanonicalizationMethod Algorithm="{EXCLUSIVE}"/>{given["method"]}'
        f'<d:Reference URI="{given["uri"]}"><d:Transforms>{given["transforms"]}</d:Transforms>'
        f'<d:DigestMethod Algorithm="{SHA256}"/><d:DigestValue>{digest}</d:DigestValue></d:Reference>{given["more"]}'
        "</d:SignedInfo>"
    )
    content = etree.tostring(etree.fromstring(info), method="c14n", exclusive=True, with_comments=False)
    value = base64.b64encode(by.key.sign(content, padding.PKCS1v15(), hashes.SHA256())).decode()
    signature = (
        f'<d:Signature xmlns:d="{DS}">{info}<d:SignatureValue>{value}</d:SignatureValue>{key_info(by)}</d:Signature>'
    )
    return template.replace("SIGNATURE", signature).encode()
