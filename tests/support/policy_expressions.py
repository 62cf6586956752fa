"""Policies for tests: read from an element, and shown in short."""

from __future__ import annotations

from lxml import etree

from holdfast.wire.policy.attachment import Attachments
from holdfast.wire.policy.expressions import Assertion, Policy

WSU = "http://docs.oasis-open.org/wss/2004/01/oasis-200401-wss-wssecurity-utility-1.0.xsd"
WSP_1_5 = "http://www.w3.org/ns/ws-policy"
WSP_1_2 = "http://schemas.xmlsoap.org/ws/2004/09/policy"


def document(text: str, wsp: str = WSP_1_5) -> etree._Element:
    """A document with those elements, in the namespace urn:a unless they say otherwise."""
    return etree.fromstring(f'<root xmlns="urn:a" xmlns:wsp="{wsp}" xmlns:wsu="{WSU}">{text}</root>')


def normal(text: str, wsp: str = WSP_1_5, **others: str) -> Policy:
    """The normal form of the policy of the element ``subject``; ``others`` are further documents."""
    root = document(text, wsp)
    documents = {root: "http://host/main", **{document(one): f"http://host/{name}" for name, one in others.items()}}
    subject = root.find("{urn:a}subject")
    assert subject is not None
    return Attachments(documents).of(subject)


def names(policy: Policy) -> list[str]:
    """Each alternative's assertions as words, nested policies in brackets."""

    def word(assertion: Assertion) -> str:
        nested = "" if assertion.nested is None else f"[{'|'.join(names(assertion.nested))}]"
        return f"{assertion.local_name}{nested}"

    return [" ".join(word(one) for one in alternative) for alternative in policy]
