"""The signature of an assertion by its issuer (SAML Core 2.0, section 5.4; SAML Core 1.1, section 5.4).

Of XML Signature it accepts this one shape: one signature in the assertion, over the assertion itself, which is found by
its position. Keys in the message do not count.
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from typing import Final

from lxml import etree

from holdfast.security.certificates import Certificate
from holdfast.security.header import Invalid, Unproven
from holdfast.security.names import ASSERTION_IDS, DS, EXCLUSIVE_C14N, SuiteName
from holdfast.security.saml.assertion import Assertion
from holdfast.security.signature import DIGESTS, IDS, MAX_PREFIXES, algorithm, canonical, children, decoded, only
from holdfast.security.signed_message import ACCEPTED

_ENVELOPED: Final = DS + "enveloped-signature"


def check_issuer_signature(
    assertion: Assertion, envelope: etree._Element, issuers: Sequence[Certificate], suite: SuiteName
) -> None:
    """Check that one of some certificates signed an assertion (SAML Core 2.0, 5.4).

    The assertion is of no use afterwards.

    Raises:
        Invalid: It is not signed, or the signature has another shape or another algorithm.
        Unproven: None of the keys made the signature, or the assertion was changed.
    """
    element = assertion.element
    name = element.get(ASSERTION_IDS[assertion.version], "")
    ids: list[str] = IDS(envelope)
    if ids.count(name) != 1:
        raise Invalid("two elements have the ID of the assertion")
    signature = only(element, DS, "Signature")
    signed, value, *_ = children_of_signature(signature)
    form, method, reference = children(signed, "CanonicalizationMethod", "SignatureMethod", "Reference")
    if reference.get("URI") != f"#{name}":
        raise Invalid("the signature is not over the assertion")
    transforms, digest_method, digest_value = children(reference, "Transforms", "DigestMethod", "DigestValue")
    enveloped, exclusive = children(transforms, "Transform", "Transform")
    algorithm(enveloped, {_ENVELOPED: None})
    used = algorithm(method, {one: one for one in ACCEPTED[suite][0]})
    digest = DIGESTS[algorithm(digest_method, {one: one for one in ACCEPTED[suite][1]})]
    info, proof = canonical(signed, _prefixes(form)), decoded(value)
    if not any(certificate.has_signed(info, proof, used) for certificate in issuers):
        raise Unproven("the assertion was signed with another key than the issuer's, or its signature was changed")
    prefixes = _prefixes(exclusive)
    _remove(element, signature)
    if not hmac.compare_digest(digest(canonical(element, prefixes)).digest(), decoded(digest_value)):
        raise Unproven("the assertion was changed")


def children_of_signature(signature: etree._Element) -> list[etree._Element]:
    """Return the parts of a signature. A KeyInfo may be absent, and is not read."""
    names = ["SignedInfo", "SignatureValue", "KeyInfo"]
    return children(signature, *names[: max(2, min(len(signature), 3))])


def _prefixes(form: etree._Element) -> list[str]:
    """Return the prefixes that an exclusive canonical form includes."""
    if form.get("Algorithm") != EXCLUSIVE_C14N:
        raise Invalid(f"the signature of the assertion has the transform {form.get('Algorithm', '')[:100]!r}")
    if not len(form):
        return []
    (inclusive,) = children(form, "InclusiveNamespaces", namespace=EXCLUSIVE_C14N)
    prefixes = inclusive.get("PrefixList", "").split()
    if len(prefixes) > MAX_PREFIXES or len(inclusive):
        raise Invalid("the InclusiveNamespaces are malformed, or very many")
    return prefixes


def _remove(parent: etree._Element, child: etree._Element) -> None:
    """Remove an element, and not the text after it."""
    before, tail = child.getprevious(), child.tail or ""
    if before is not None:
        before.tail = (before.tail or "") + tail
    else:
        parent.text = (parent.text or "") + tail
    parent.remove(child)
