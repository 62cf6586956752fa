"""The signature that proves a security context: an HMAC over the Timestamp, under transport security.

Of XML Signature it accepts this one shape, each part by its position in the Security header. It searches nothing by an
Id, so an element elsewhere in the message cannot take the place of the one that is read. The names of algorithms choose
from a list; a key has one use; all else is refused (XML Signature 1.0, sections 4 and 6).

Signed messages (``signed_message``) are checked with the same steps.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar, cast

from lxml import etree

from holdfast.core.messages import Envelope
from holdfast.core.versions import RM
from holdfast.exceptions import EnvelopeError, ProcessingError, clause
from holdfast.security.header import Invalid, read_base64
from holdfast.security.names import DS, EXCLUSIVE_C14N, SHA1, SHA256, USES_SEQUENCE_STR, WSSE, WSU
from holdfast.security.times import write_time
from holdfast.wire import parse_element
from holdfast.wire.limits import DEFAULT
from holdfast.wire.names import SOAP_NS
from holdfast.wire.text import escape

_T = TypeVar("_T")

DIGESTS: Final[Mapping[str, Callable[[bytes], Any]]] = {SHA1: hashlib.sha1, SHA256: hashlib.sha256}
"""Algorithm -> hash function of a digest."""
_SIGNATURES: Final[Mapping[str, str]] = {
    DS + "hmac-sha1": "sha1",
    "http://www.w3.org/2001/04/xmldsig-more#hmac-sha256": "sha256",
}
"""Algorithm -> hash function. WCF, CXF and Metro sign with SHA-1 in all their suites; as an HMAC it is not broken."""

ID: Final = f"{{{WSU}}}Id"
IDS: Final = etree.XPath(
    ".//@u:Id | .//@xml:id | .//@Id | .//@ID | .//@id | .//@AssertionID",
    namespaces={"u": WSU, "xml": "http://www.w3.org/XML/1998/namespace"},
    smart_strings=False,
)
TOKEN_ID: Final = "holdfast-token"
"""The wsu:Id of a token, which the signature in a message names."""
_TIMESTAMP_ID: Final = "holdfast-timestamp"
_SIGNED: Final = (
    f'<SignedInfo xmlns="{DS}"><CanonicalizationMethod Algorithm="{EXCLUSIVE_C14N}"></CanonicalizationMethod>'
    f'<SignatureMethod Algorithm="{DS}hmac-sha1"></SignatureMethod><Reference URI="#{_TIMESTAMP_ID}"><Transforms>'
    f'<Transform Algorithm="{EXCLUSIVE_C14N}"></Transform></Transforms><DigestMethod Algorithm="{SHA1}"></DigestMethod>'
    "<DigestValue>{}</DigestValue></Reference></SignedInfo>"
)
"""A SignedInfo in its canonical form, without the digest of the Timestamp."""
MOST_STEPS: Final = 200_000_000
"""Maximum steps of a canonical form: about a second of processor time."""
_NODES: Final = etree.XPath("count(descendant-or-self::*) + count(descendant-or-self::*/@*)")
_WIDE: Final = etree.XPath("descendant-or-self::*[@*[9]]")
_LONG_TAG: Final = re.compile(rb"<[^<]{%d}" % DEFAULT.max_namespace)
"""What is around the declaration of a namespace with a longer name than messages may have; or only a long text."""
_COMPARED: Final = 64
"""Characters of two namespaces' names that are compared in the time of a step."""
_INCLUSIVE: Final = f"{{{EXCLUSIVE_C14N}}}InclusiveNamespaces"
_MOST_ADDED: Final = 1_000
"""Elements and attributes that an envelope and its Security header add to a message."""
_MAKE_SIGNABLE: Final = (
    "Use namespaces that are absolute URIs of ASCII characters without spaces, such as urn:orders, and declare fewer "
    "of them and of attributes if they are many."
)
MAX_PREFIXES: Final = 64
"""Maximum number of prefixes for a canonical form."""
_BOUND_TO: Final = f"{{*}}Body/{{*}}CreateSequence/{{{WSSE}}}SecurityTokenReference"


def _ids_in(element: etree._Element) -> list[str]:
    found: list[str] = IDS(element)
    return found


def check_signature(security: etree._Element, timestamp: etree._Element, token: etree._Element, key: bytes) -> bool:
    """Return whether the Security header's signature over its Timestamp was made with a key.

    Raises:
        Invalid: There is no such signature, or it has another shape.
    """
    _check_ids(security)
    signed, value, key_info = children(only(security, DS, "Signature"), "SignedInfo", "SignatureValue", "KeyInfo")
    canonicalization, method, reference = children(signed, "CanonicalizationMethod", "SignatureMethod", "Reference")
    _check_algorithm(canonicalization, EXCLUSIVE_C14N)
    (to_token,) = children(key_info, "SecurityTokenReference", namespace=WSSE)
    (named,) = children(to_token, "Reference", namespace=WSSE)
    if named.get("URI") != f"#{token.get(ID)}" or not token.get(ID):
        raise Invalid("the signature names another token")
    digest_is_right = _check_reference(reference, timestamp)
    # The signature is computed even if the digest is wrong: a refusal takes as long.
    wanted = hmac.digest(key, canonical(signed), algorithm(method, _SIGNATURES))
    return hmac.compare_digest(wanted, decoded(value)) and digest_is_right


def sign_timestamp(created: float, expires: float, token: str, token_type: str, key: bytes) -> str:
    """Return a Timestamp, a SecurityContextToken, and a signature of the Timestamp with the token's key, as WCF's
    Basic256 writes it.

    What is digested and signed is written in its canonical form, so that nothing has to be parsed.
    """
    stamp = (
        f'<wsu:Timestamp xmlns:wsu="{WSU}" wsu:Id="{_TIMESTAMP_ID}"><wsu:Created>{write_time(created)}</wsu:Created>'
        f"<wsu:Expires>{write_time(expires)}</wsu:Expires></wsu:Timestamp>"
    )
    signed = _SIGNED.format(base64.b64encode(hashlib.sha1(stamp.encode()).digest()).decode())
    value = base64.b64encode(hmac.digest(key, signed.encode(), "sha1")).decode()
    reference = f'<wsse:Reference ValueType="{token_type}" URI="#{TOKEN_ID}"/>'
    return (
        f'{stamp}{token}<Signature xmlns="{DS}">{signed}<SignatureValue>{value}</SignatureValue><KeyInfo>'
        f"<wsse:SecurityTokenReference>{reference}</wsse:SecurityTokenReference></KeyInfo></Signature>"
    )


def _check_reference(reference: etree._Element, timestamp: etree._Element) -> bool:
    if reference.get("URI") != f"#{timestamp.get(ID)}" or not timestamp.get(ID):
        raise Invalid("the signature is not over the Timestamp")
    transforms, method, value = children(reference, "Transforms", "DigestMethod", "DigestValue")
    (transform,) = children(transforms, "Transform")
    _check_algorithm(transform, EXCLUSIVE_C14N)
    digest = algorithm(method, DIGESTS)(canonical(timestamp)).digest()
    return hmac.compare_digest(digest, decoded(value))


def check_named_token(
    envelope: etree._Element, has_signed: Callable[[etree._Element], bool], *, is_demanded: bool = False
) -> None:
    """Check that a CreateSequence binds its Sequence to the token that signed it, if to any (WS-RM 6.1).

    Args:
        envelope: An envelope with a CreateSequence.
        has_signed: Returns whether the token that a SecurityTokenReference names has signed the envelope.
        is_demanded: Whether it must name one.

    Raises:
        Invalid: It names another token, several, or none though it must; or its header says that it names one, and it
            does not.
    """
    named = envelope.findall(_BOUND_TO)
    if len(named) > 1:
        raise Invalid("CreateSequence names several tokens")
    if named and not has_signed(named[0]):
        raise Invalid("CreateSequence binds the Sequence to a token that did not sign it")
    if not named and envelope.find(f"{{*}}Header/{USES_SEQUENCE_STR}") is not None:
        raise Invalid("CreateSequence has the header UsesSequenceSTR, and names no token")
    if not named and is_demanded:
        raise Invalid("CreateSequence names no token, which bind_sequences() demands")


def demand_named_token(envelope: Envelope) -> None:
    """Add the header UsesSequenceSTR to a CreateSequence that will name a token (WS-RM 6.1). RM 1.0 has none."""
    if envelope.rm is RM.V1_1:
        namespace, local = USES_SEQUENCE_STR[1:].split("}")
        must = f'xmlns:e="{SOAP_NS[envelope.soap]}" e:mustUnderstand="1"'
        envelope.headers = (*envelope.headers, f'<r:{local} xmlns:r="{namespace}" {must}/>'.encode())


def name_in_creation(data: bytes, reference: str) -> bytes:
    """Return a written CreateSequence with a SecurityTokenReference as its last child."""
    # The last tag of that name: the Body is the last part of an envelope.
    end = data.rindex(b"</", 0, data.rindex(b"CreateSequence>"))
    return data[:end] + reference.encode() + data[end:]


def token_reference(content: str) -> str:
    spaces = f'xmlns:wsse="{WSSE}" xmlns:ds="{DS}"'
    return f"<wsse:SecurityTokenReference {spaces}>{content}</wsse:SecurityTokenReference>"


def canonical(element: etree._Element, prefixes: Sequence[str] = ()) -> bytes:
    """Return an element in exclusive canonical form, without its comments (Exclusive XML Canonicalization 1.0).

    Args:
        prefixes: Prefixes whose namespaces it has even where it does not use them.

    Raises:
        Invalid: It has none, because a namespace is not an absolute URI (Canonical XML 1.0, section 1.3).
    """
    try:
        return _canonical(element, prefixes)
    except (ValueError, etree.LxmlError):
        raise Invalid(f"the message has no canonical form{_unfit_namespace(element)}") from None


def _canonical(element: etree._Element, prefixes: Sequence[str]) -> bytes:
    return etree.tostring(element, method="c14n", exclusive=True, with_comments=False, inclusive_ns_prefixes=prefixes)


_MOST_TRIED: Final = 100
"""Namespaces that are tried for an error: each takes a parser."""


def _unfit_namespace(element: etree._Element) -> str:
    """Return which namespace keeps an element from having a canonical form, for an error; "" if none of the first
    does."""
    tried: set[str] = set()
    for _, declared in etree.iterwalk(element, events=("start-ns",)):
        name = declared[1] if declared is not None else ""
        if name in tried:
            continue
        if len(tried) == _MOST_TRIED:
            break
        tried.add(name)
        try:
            _canonical(parse_element(f'<e xmlns="{escape(name)}"/>'.encode()), ())
        except (ValueError, etree.LxmlError, EnvelopeError):
            return f": the namespace {name[:200]!r} is not an absolute URI"
    return ""


def check_cost(data: bytes, root: etree._Element, *, more: int = 0) -> None:
    """Check that the canonical form of a message, or of its parts, takes few steps, before any is computed.

    libxml2 compares each element and each attribute with the namespaces in scope, for each prefix that is listed, and
    each attribute with the others of its element, by the names of their namespaces. A message of 4 MB could otherwise
    keep the endpoint busy for minutes, and anyone can write one: no key is needed before its signature is checked.

    Args:
        data: The message in UTF-8.
        root: The same, parsed.
        more: Number of elements and attributes that will be added, in up to eight namespaces of up to 128 characters.

    Raises:
        Invalid: It takes too many steps.
    """

    spaces, least = (8, 2 * _COMPARED) if more else (0, 0)

    def steps() -> int:
        squared = squares * (1 + max(longest, least) // _COMPARED)
        return (nodes + more) * (in_scope + spaces) * (1 + prefixes) + squared

    # Bounds first, which cost little: they count end tags and characters of the text, too.
    nodes, squares = data.count(b"<") + data.count(b"="), data.count(b"=") ** 2
    in_scope, longest, prefixes = 1 + data.count(b"xmlns"), DEFAULT.max_namespace, MAX_PREFIXES
    is_long = _LONG_TAG.search(data) is not None
    if steps() > MOST_STEPS:
        nodes, wide = int(_NODES(root)), cast(list[etree._Element], _WIDE(root))
        squares = sum(len(one.attrib) ** 2 for one in wide)
        prefixes = max((len(one.get("PrefixList", "").split()) for one in root.iter(_INCLUSIVE)), default=0)
    if is_long or steps() > MOST_STEPS:
        in_scope, longest = _namespaces(root)
    if longest > DEFAULT.max_namespace:
        raise Invalid(f"the name of a namespace is longer than {DEFAULT.max_namespace} characters")
    if steps() > MOST_STEPS:
        raise Invalid(
            f"its canonical form takes some {steps():,} steps: {nodes:,} elements and attributes, up to "
            f"{in_scope:,} namespaces in scope, {prefixes} listed prefixes"
        )


def parsed_to_sign(data: bytes) -> etree._Element:
    """Return an envelope that will be signed. A broker signs what others wrote.

    Raises:
        ProcessingError: Its canonical form takes too many steps.
    """
    envelope = parse_element(data)
    try:
        check_cost(data, envelope)
    except Invalid as error:
        raise unsignable(error) from None
    return envelope


def unsignable(error: Invalid) -> ProcessingError:
    """Return the error for a message that has no canonical form, or one that takes too many steps."""
    return ProcessingError(f"The message cannot be signed: {clause(str(error))}.", remedy=_MAKE_SIGNABLE)


def check_signable(content: bytes) -> None:
    """Check that a message can be signed, whatever envelope it gets.

    Args:
        content: The header blocks and the body, one after the other.

    Raises:
        EnvelopeError: It has no canonical form, or one that takes too many steps.
    """
    data = b"<e>%b</e>" % content
    root = parse_element(data)
    try:
        check_cost(data, root, more=_MOST_ADDED)
        canonical(root)
    except Invalid as error:
        raise EnvelopeError(f"the message cannot be signed: {clause(str(error))}", remedy=_MAKE_SIGNABLE) from None


def _namespaces(root: etree._Element) -> tuple[int, int]:
    """Return the largest number of namespaces in scope of an element, and the length of the longest name of one."""
    now = most = 1
    longest = 0
    for _, declared in etree.iterwalk(root, events=("start-ns", "end-ns")):  # None at the end of one
        now += 1 if declared is not None else -1
        most = max(most, now)
        if declared is not None:
            longest = max(longest, len(declared[1]))
    return most, longest


def _check_ids(security: etree._Element) -> None:
    ids = _ids_in(security)
    if len(ids) != len(set(ids)):
        raise Invalid("two elements have the same Id")


def only(parent: etree._Element, namespace: str, local: str) -> etree._Element:
    """Return the child of that name, of which there must be one."""
    found = parent.findall(f"{{{namespace}}}{local}")
    if len(found) != 1:
        raise Invalid(f"{len(found)} elements {local}, not 1")
    return found[0]


def children(parent: etree._Element, *wanted: str, namespace: str = DS) -> list[etree._Element]:
    """Return an element's children, which must have these local names, in this order."""
    found = list(parent)
    if [child.tag for child in found] != [f"{{{namespace}}}{local}" for local in wanted]:
        raise Invalid(f"{etree.QName(parent).localname} does not have the parts {', '.join(wanted)}")
    return found


def _check_algorithm(element: etree._Element, wanted: str) -> None:
    algorithm(element, {wanted: wanted})


def algorithm(element: etree._Element, known: Mapping[str, _T]) -> _T:
    """Return what an element's algorithm stands for. It has no parameters: HMACOutputLength would shorten the proof."""
    name = element.get("Algorithm", "")
    if name not in known or len(element):
        raise Invalid(f"the signature has the algorithm {name[:100]!r}, or parameters of it")
    return known[name]


def decoded(element: etree._Element) -> bytes:
    return read_base64(element.text or "", etree.QName(element).localname)


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()
