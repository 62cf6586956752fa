"""Checks of an application's content before it is stored: the body element, header blocks, texts.

Accepted content can be written into an envelope of any version, and receivers with the default :class:`Limits` read it
unchanged. Content that cannot be sent would be stored, would never leave, and would block everything behind it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from pyexpat import ExpatError, ParserCreate, XMLParserType
from typing import Any
from urllib.parse import urlsplit

from holdfast.exceptions import EnvelopeError
from holdfast.wire.body import parse_element
from holdfast.wire.limits import DEFAULT
from holdfast.wire.names import CONTENT_NAMES, MC_ACTION, OWN_NAMESPACES, RM_OF_ACTION, SOAP_NS
from holdfast.wire.tree import has_many_attributes, is_deep, malformed, refuse_doctype, refuse_instruction

LONGEST_TEXT = DEFAULT.max_uri
"""Maximum characters of an action or a MessageID. They are URIs, which are far shorter, and also appear in HTTP
headers."""
AROUND = 2
"""Elements around the application's own: the Envelope, and its Body or Header."""
LARGEST_HEADERS = DEFAULT.max_header_bytes // 2
"""Maximum bytes of the application's header blocks; Holdfast's own get the rest."""
MOST_HEADERS = DEFAULT.max_headers - 16
"""Maximum number of the application's header blocks; Holdfast's own get the rest."""
MOST_DECLARATIONS = DEFAULT.max_declarations - 16
"""Maximum number of namespaces that the application declares in one place; the enclosing elements get the rest."""

_NO_TEXT = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
"""Characters that XML cannot contain, and control characters, which no URI has."""

_OF_IRI = r"(?:[^\x00-\x20\x7f-\xa0<>\"{}|\\^`%\u2028\u2029\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]|%[0-9A-Fa-f]{2})++"
_RELATIVE_IRI = re.compile(_OF_IRI).fullmatch
_IRI = re.compile(rf"[A-Za-z][A-Za-z0-9+.-]*+:{_OF_IRI}").fullmatch
"""An IRI with a scheme (RFC 3987, section 2.2), without the syntax of its scheme."""
_NO_IRI = re.compile(r"[\s<>\"{}|\\^`]|%(?![0-9A-Fa-f]{2})")

_NO_ELEMENT = "the body is not one well-formed XML element"
_ENVELOPES = frozenset(f"{namespace}}}Envelope" for namespace in SOAP_NS.values())
_FAULTS = frozenset(f"{namespace}}}Fault" for namespace in SOAP_NS.values())
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_MAX_ROOTS = 256
_MAX_ROOT = 1_024
_known_roots: dict[bytes, bytes] = {}
"""Start tags of accepted bodies -> the beginning of the end tag; b"" if it is more than a start tag. The bodies of one
program begin alike, byte for byte."""
_START_TAG = re.compile(rb"<([A-Za-z_][\w:.-]*)[\s>]", re.ASCII)
_TOGETHER = 1 << 16
"""Approximate bytes of bodies that are parsed as one. The parser holds the interpreter lock, and one bad body causes
all of them to be checked again."""


def body_content(data: bytes, around: int = AROUND) -> bytes:
    """Return the content of a Body as it can be written: one element, or nothing.

    Args:
        data: UTF-8, without XML declaration.
        around: Number of elements that will enclose it.

    Raises:
        EnvelopeError: it exceeds the default limits of a receiver; or it is not one well-formed element, declares a
            document type, has processing instructions (SOAP 1.2 part 1, section 5), is a message of
            WS-ReliableMessaging, or is a whole SOAP envelope.
    """
    data = data.removeprefix(_BYTE_ORDER_MARK)
    _check_shape("body", data, around)
    root = data[: data.find(b">", 0, _MAX_ROOT) + 1]
    if root in _known_roots and _adds_no_name(data, len(root)):
        _parse(_parser(), data, _NO_ELEMENT)
        return data
    if not data.strip():
        return b""
    _check_first(data)
    if root:
        if len(_known_roots) >= _MAX_ROOTS:
            _known_roots.clear()
        _known_roots[root] = _end_of(root)
    return data


def _check_shape(what: str, data: bytes, around: int) -> None:
    """Check that no receiver refuses it because of its depth or the attributes of one element."""
    most = DEFAULT.max_depth - around
    if is_deep(data, most) and _depth(data) > most:
        raise EnvelopeError(
            f"Elements of the {what} are nested deeper than {most}; receivers accept envelopes up to a depth of "
            f"{DEFAULT.max_depth}.",
            remedy="Send a flatter element, or the content as text.",
        )
    if has_many_attributes(data, DEFAULT.max_attributes):
        raise EnvelopeError(
            f"An element of the {what} has more than {DEFAULT.max_attributes:,} attributes.",
            remedy="Send them as elements.",
        )


def _depth(data: bytes) -> int:
    """Return the depth of nested elements; 0 if it is not well-formed, which is reported elsewhere."""
    depth = deepest = 0

    def on_start(_name: str, _attributes: object) -> None:
        nonlocal depth, deepest
        depth += 1
        deepest = max(deepest, depth)

    def on_end(_name: str) -> None:
        nonlocal depth
        depth -= 1

    parser = _parser()
    parser.StartElementHandler, parser.EndElementHandler = on_start, on_end
    try:
        parser.Parse(b"<all>", False)
        parser.Parse(data, False)
    except (ExpatError, EnvelopeError):
        return 0
    return deepest - 1


def _watch_namespaces(what: str, parser: XMLParserType) -> None:
    """Check that no receiver refuses the namespaces declared in the parsed content."""
    count = 0

    def on_declaration(_prefix: str | None, uri: str | None) -> None:
        nonlocal count
        count += 1
        if count > MOST_DECLARATIONS:
            raise EnvelopeError(f"The {what} declares more than {MOST_DECLARATIONS:,} namespaces in one place.")
        if uri is not None and len(uri) > DEFAULT.max_namespace:
            raise EnvelopeError(
                f"The name of a namespace in the {what} has {len(uri):,} characters; the limit is "
                f"{DEFAULT.max_namespace:,}."
            )

    def on_end(_prefix: str | None) -> None:
        nonlocal count
        count -= 1

    parser.StartNamespaceDeclHandler, parser.EndNamespaceDeclHandler = on_declaration, on_end


def _end_of(root: bytes) -> bytes:
    """Return the beginning of the end tag that matches a start tag; b"" if ``root`` is not a complete start tag."""
    found = _START_TAG.match(root)
    if found is None:
        return b""
    try:
        _parser().Parse(root + b"</" + found[1] + b">", True)
    except ExpatError:  # it ends within an attribute, at a ">", or is an empty element
        return b""
    return b"</" + found[1]


def known_contents(bodies: Sequence[Any]) -> list[bool]:
    """Return for each of many bodies whether :func:`body_content` is certain to return it unchanged; False is no
    statement. Bodies that begin alike are parsed together, for half the cost of parsing each one.

    Args:
        bodies: Any values; those that are not bytes are not certain.
    """
    deepest, widest = DEFAULT.max_depth - AROUND, DEFAULT.max_attributes
    sure = [False] * len(bodies)
    alike: dict[bytes, list[int]] = {}
    for number, data in enumerate(bodies):
        if type(data) is bytes:
            root = data[: data.find(b">", 0, _MAX_ROOT) + 1]
            if root in _known_roots and not is_deep(data, deepest) and not has_many_attributes(data, widest):
                alike.setdefault(root, []).append(number)
    for root, numbers in alike.items():
        step = max(1, _TOGETHER // len(bodies[numbers[0]]))
        for start in range(0, len(numbers), step):
            some = numbers[start : start + step]
            if _are_known(root, [bodies[number] for number in some]):
                for number in some:
                    sure[number] = True
    return sure


def _are_known(root: bytes, bodies: list[bytes]) -> bool:
    """Return whether bodies with this start tag are well-formed elements, each on its own, that add no name.

    They are if they are well-formed one after the other, and each has only one end tag of its root's name, at its end:
    nothing before it can close its root, so each leaves at least as many open elements as it found; and at the end the
    number is equal. Comments and the like could begin in one and end in the next, so there must be none.
    """
    end = _known_roots[root]
    last = end + b">"
    if not end or not all(data.endswith(last) for data in bodies):
        return False
    rests = [data[len(root) :] for data in bodies]
    together = b"".join(rests)
    if together.count(end) != len(bodies) or not _adds_no_name(together, 0):
        return False
    if together.find(b"!") >= 0 and together.find(b"<!") >= 0:
        return False
    try:
        # Each body begins with its start tag again, so this parses the bodies one after the other.
        _parser().Parse(b"<all>" + root + root.join(rests) + b"</all>", True)
    except (ExpatError, EnvelopeError):
        return False
    return True


def _adds_no_name(data: bytes, start: int) -> bool:
    """Return whether nothing after ``start`` declares a namespace, or is of a kind on which parsers differ.

    The part after a known start tag then only needs to be well-formed. (For text outside ASCII, this parser accepts
    less than the other.)
    """
    if data.find(b"&", start) >= 0 and b"&#" in data:
        return False
    # A search for one character is many times as fast as one for several, and without "=" there is no attribute.
    if data.find(b"=", start) < 0 or data.find(b"ml", start) < 0:
        return True
    return data.find(b"mlns", start) < 0 and data.find(b"ml:", start) < 0


def _check_first(data: bytes) -> None:
    """Check that a body with a new start tag is one element of the application."""
    roots: list[str] = []
    parser = _parser()

    def on_start(name: str, _attributes: object) -> None:
        roots.append(name)
        parser.StartElementHandler = None

    parser.StartElementHandler = on_start
    _watch_namespaces("body", parser)
    _parse(parser, data, _NO_ELEMENT)
    parse_element(data)  # the receiver parses it in the same way, and this parser accepts fewer namespaces
    if roots[0] in CONTENT_NAMES - _FAULTS:
        raise EnvelopeError(
            f"the body is a message of WS-ReliableMessaging: {{{roots[0]}",
            remedy="Give the application's message; Holdfast writes those of reliable messaging.",
        )
    if roots[0] in _ENVELOPES:
        raise EnvelopeError(
            "The body is a complete SOAP envelope.",
            remedy="Give the element inside its soap:Body. Holdfast writes the envelope and the addressing headers.",
        )


def check_header_blocks(data: bytes) -> None:
    """Check that header blocks of the application can be written as they are.

    Args:
        data: UTF-8, one element after the other.

    Raises:
        EnvelopeError: They exceed the default limits of a receiver; or they are not well-formed elements, have text
            between them, have no namespace (SOAP 1.2 part 1, section 5.2), or one whose headers Holdfast writes.
    """
    if len(data) > LARGEST_HEADERS:
        raise EnvelopeError(f"the headers have {len(data):,} bytes; one envelope has room for {LARGEST_HEADERS:,}")
    names: list[str] = []
    depth = 0
    parser = _parser()
    _watch_namespaces("headers", parser)

    def on_start(name: str, _attributes: object) -> None:
        nonlocal depth
        depth += 1
        if depth == 2:
            names.append(name)

    def on_end(_name: str) -> None:
        nonlocal depth
        depth -= 1

    def on_text(text: str) -> None:
        if depth == 1 and text.strip():
            raise EnvelopeError(f"there is text between the header blocks: {text.strip()[:80]!r}")

    parser.StartElementHandler, parser.EndElementHandler, parser.CharacterDataHandler = on_start, on_end, on_text
    together = b"<headers>" + data + b"</headers>"
    _check_shape("headers", together, AROUND - 1)
    _parse(parser, together, "the headers are not well-formed XML elements")
    parse_element(together)
    if len(names) > MOST_HEADERS:
        raise EnvelopeError(f"there are {len(names)} header blocks; one envelope has room for {MOST_HEADERS}")
    for name in names:
        namespace, _, local = name.rpartition("}")
        if not namespace:
            raise EnvelopeError(f"the header {local} has no namespace, which SOAP requires for header blocks")
        if namespace in OWN_NAMESPACES:
            raise EnvelopeError(
                f"the header {{{name} belongs to SOAP, WS-Addressing or WS-ReliableMessaging, which Holdfast writes",
                remedy="Omit it: the action and the MessageID are separate arguments.",
            )


@lru_cache(maxsize=256)
def check_action(action: str, *, of_peer: bool = False) -> None:
    """Check that this can be a message's wsa:Action.

    Args:
        of_peer: Whether it repeats the action of a peer, which need not be an IRI.

    Raises:
        EnvelopeError: it contains what no IRI may, or is an action of WS-ReliableMessaging.
    """
    if of_peer:
        check_text("action", action)
    else:
        # WS-Addressing wants an absolute IRI, but CXF and others send the ``soapAction`` of a WSDL as it is.
        check_iri("action", action, may_be_relative=True)
    if action in RM_OF_ACTION or action == MC_ACTION:
        raise EnvelopeError(
            f"the action {action} belongs to WS-ReliableMessaging",
            remedy="Give the application's action: it names the operation.",
        )


def check_iri(what: str, text: str, *, may_be_relative: bool = False) -> None:
    """Check that this is an IRI, absolute as WS-Addressing 1.0 requires of MessageID and addresses.

    A fragment is allowed, because actions of existing services have one.

    Raises:
        EnvelopeError: it is no such IRI, or too long.
    """
    is_host = not isinstance(text, str) or ("[" not in text and "]" not in text) or _has_host(text)
    if is_host and isinstance(text, str) and len(text) <= LONGEST_TEXT and _IRI(text) is not None:
        return
    check_text(what, text)
    found = _NO_IRI.search(text)
    if is_host and may_be_relative and _RELATIVE_IRI(text) is not None:
        return
    why = f"contains {found[0]!r}" if found is not None else "has no scheme" if is_host else "names an invalid host"
    example = "urn:orders/Submit" if what == "action" else "urn:uuid:6f1c0c0e-8d3b-4c59-9f6e-1f0f3c1c7a52"
    raise EnvelopeError(
        f"the {what} {text[:80]!r} is not an absolute IRI: it {why}", remedy=f"Give an IRI such as {example}."
    )


def _has_host(iri: str) -> bool:
    """Whether the brackets in an IRI are not a part of an IPv6 address, or of one in both directions."""
    try:
        urlsplit(iri)
    except ValueError:
        return False
    return True


def check_text(what: str, text: str) -> None:
    """Check that this can be the text of a WS-Addressing header, or of RelatesTo, which repeats the value of a peer.

    Args:
        what: Its name in the error.
        text: The value. Whether it is an IRI is not checked.

    Raises:
        EnvelopeError: it is not text, empty, too long, has white space at its ends, or characters XML cannot contain.
    """
    if not isinstance(text, str):
        raise EnvelopeError(f"the {what} must be text, not {type(text).__name__}")
    if not text.strip():
        needed = "Every message needs one: action='urn:orders/Submit'."
        raise EnvelopeError(
            f"the {what} is empty", remedy=needed if what == "action" else "Give a URI, or leave it out."
        )
    if len(text) > LONGEST_TEXT:
        raise EnvelopeError(f"the {what} has {len(text)} characters; the limit is {LONGEST_TEXT}")
    found = _NO_TEXT.search(text)
    if found is not None:
        raise EnvelopeError(f"the {what} {text[:80]!r} contains a character that is not allowed in a URI: {found[0]!r}")
    if text != text.strip():
        raise EnvelopeError(f"the {what} {text[:80]!r} begins or ends with white space, which peers remove")


def _parser() -> XMLParserType:
    parser = ParserCreate("UTF-8", "}", None)  # None: names are not kept
    parser.StartDoctypeDeclHandler = refuse_doctype
    parser.ProcessingInstructionHandler = refuse_instruction
    parser.buffer_text = True
    return parser


def _parse(parser: XMLParserType, data: bytes, what: str) -> None:
    try:
        parser.Parse(data, True)
    except ExpatError as error:
        raise malformed(what, error, data) from None
