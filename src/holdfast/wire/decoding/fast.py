"""The fast path of decoding: reads the usual envelope, and leaves any other, and every error, to ``decode``.

First, expat checks the whole document, with only the two callbacks that refuse a document. The module then cuts the
well-formed document at its ``<``, and looks up each start tag of the header, as bytes, in a tree of the tags seen
before. Peers repeat their tags byte for byte, so the namespaces and attributes of a tag are worked out once. Any
unusual content (a comment, a numeric character reference, an extension child, a repeated header) returns None.

For every document that it decodes, the result equals that of ``decode.decode_any``.
"""

from __future__ import annotations

import re
from pyexpat import ExpatError

from holdfast.core.messages import AckRequested, EndpointReference, Envelope, Sequence, SequenceAcknowledgement
from holdfast.core.versions import RM, SOAP, Addressing
from holdfast.exceptions import EnvelopeError
from holdfast.wire.addressing import HEADER_NAMES, endpoint_reference
from holdfast.wire.dialects.versions import DIALECTS
from holdfast.wire.faults import FAULT_HEADER_NAMES
from holdfast.wire.limits import USUAL_DECLARATIONS, Limits
from holdfast.wire.names import (
    CONTENT_LOCALS,
    EMPTY_CONTROLS,
    MC_PENDING_NAME,
    NETRM_NS,
    REPLY_RELATION,
    RM_HEADER_NAMES,
    RM_OF_ACTION,
    ROLE_ATTRIBUTE,
    ROLES_OF_OURS,
    SECURITY_BINDING_NAMES,
    SOAP_NS,
    SOAP_OF_NS,
    is_for_receiver,
)
from holdfast.wire.text import Declarations, declarations, self_contained
from holdfast.wire.tree import feed, is_deep, parser_for

(
    ODD,
    ENVELOPE,
    HEADER,
    BODY,
    TEXT,
    REFERENCE,
    SEQUENCE,
    ACKNOWLEDGEMENT,
    REQUEST,
    FOREIGN,
    ADDRESS,
    IDENTIFIER,
    NUMBER,
    LAST,
    NONE,
    FINAL,
    BUFFER,
) = range(17)

_SLOTS = {"Action": 0, "To": 1, "MessageID": 2, "RelatesTo": 3, "ReplyTo": 4, "FaultTo": 5, "From": 6}
_V2005_08 = Addressing.V2005_08
_MAX_SEEN = 4_096
_MAX_TAG = 2_048


class Shape:
    """The meaning of one start tag, in the context of the tags around it."""

    __slots__ = (
        "addressing", "body_close", "body_open", "declarations", "foot", "is_for_receiver", "kids", "kind",
        "not_understood", "references", "rm", "scope", "slot", "soap", "written",
    )  # fmt: skip

    def __init__(self, kind: int, scope: dict[str, str], soap: SOAP) -> None:
        self.kind = kind
        self.scope = scope
        self.soap = soap
        self.kids: dict[bytes, Shape] = {}
        self.slot = 0
        self.rm: RM | None = None
        self.addressing: Addressing | None = None
        self.not_understood = ""
        self.is_for_receiver = False
        self.references: dict[bytes, EndpointReference] = {}
        self.body_open = self.body_close = self.foot = b""
        self.declarations: Declarations = declarations(scope) if kind in (HEADER, BODY) else ()
        self.written = sum([len(declaration.written) for declaration in self.declarations])


ROOT = Shape(ODD, {}, SOAP.V1_2)
_ODD_SHAPE = Shape(ODD, {}, SOAP.V1_2)
_seen = 0


# --- learning a tag --------------------------------------------------------------------------------------------------

# White space and references in a value would require normalization: left to the complete path.
_TAG = re.compile(
    rb"([^\s<>/\"'=]+)((?:\s+[^\s=<>/\"']+\s*=\s*(?:\"[^\"<>&\t\r\n]*\"|'[^'<>&\t\r\n]*'))*)\s*(/?)",
)
_ATTRIBUTE = re.compile(rb"([^\s=]+)\s*=\s*(?:\"([^\"]*)\"|'([^']*)')")


def _learn(parent: Shape, tag: bytes) -> Shape:
    """Work out a tag not seen under ``parent`` before, and remember it, within limits."""
    match = _TAG.fullmatch(tag)
    # A long tag would fill the cache, and comes only once.
    if match is None or len(tag) > _MAX_TAG:
        return _ODD_SHAPE
    qname, written, empty = match[1].decode(), match[2].decode(), bool(match[3])
    declared: dict[str, str] = {}
    attributes: dict[str, str] = {}
    for key, double, single in _ATTRIBUTE.findall(written.encode()):
        name, value = key.decode(), (double or single).decode()
        if name == "xmlns":
            declared[""] = value
        elif name.startswith("xmlns:"):
            declared[name[6:]] = value
        else:
            attributes[name] = value
    scope = {**parent.scope, **declared} if declared else parent.scope
    # The cost of a foreign block grows with them: the complete path takes one pass for any number.
    if len(scope) > USUAL_DECLARATIONS:
        return _ODD_SHAPE
    # The default namespace does not apply to attributes.
    resolved = {_expand(name, {**scope, "": ""}): value for name, value in attributes.items()}
    shape = _classify(parent, _expand(qname, scope), resolved, scope, empty)
    if shape.kind == ENVELOPE:
        prefix = qname.rpartition(":")[0]
        body = f"{prefix}:Body" if prefix else "Body"
        shape.body_open, shape.body_close = f"<{body}".encode(), f"</{body}".encode()
        shape.foot = f"</{body}></{qname}>".encode()
    _count()
    parent.kids[tag] = shape
    return shape


def _count() -> None:
    """Count a remembered tag; forget all tags if there are too many."""
    global _seen
    if _seen >= _MAX_SEEN:
        ROOT.kids = {}  # the decoding in progress keeps its own part of the old tree
        _seen = 0
    _seen += 1


def _expand(qname: str, scope: dict[str, str]) -> str:
    prefix, _, local = qname.rpartition(":")
    namespace = scope.get(prefix, "")
    return f"{namespace}}}{local}" if namespace else local


def _classify(parent: Shape, name: str, attributes: dict[str, str], scope: dict[str, str], empty: bool) -> Shape:
    namespace, _, local = name.rpartition("}")
    if parent is ROOT:
        soap = SOAP_OF_NS.get(namespace)
        return Shape(ENVELOPE, scope, soap) if soap and local == "Envelope" else _ODD_SHAPE
    soap = parent.soap
    if parent.kind == ENVELOPE:
        kind = {"Header": HEADER, "Body": BODY}.get(local, ODD) if namespace == SOAP_NS[soap] else ODD
        return _ODD_SHAPE if empty and kind == HEADER else Shape(kind, scope, soap)
    if parent.kind == HEADER:
        return _classify_block(name, attributes, scope, soap, empty)
    kind = ODD
    # Only an Address in the version of its header: everything else in a reference is left to ``decode``.
    if parent.kind == REFERENCE:
        if local == "Address" and HEADER_NAMES.get(f"{namespace}}}To") is parent.addressing and not empty:
            kind = ADDRESS
    elif namespace == NETRM_NS:
        kind = BUFFER if local == "BufferRemaining" and parent.kind == ACKNOWLEDGEMENT and not empty else ODD
    elif parent.rm is not None and name == DIALECTS[parent.rm].identifier_name:
        kind = ODD if empty else IDENTIFIER
    elif RM_HEADER_NAMES.get(f"{namespace}}}Sequence") is parent.rm:
        kind = _classify_part(parent, local, empty)
    return Shape(kind, scope, soap)


def _classify_part(parent: Shape, local: str, empty: bool) -> int:
    """Classify a child of an RM header block, in the block's own namespace."""
    if parent.kind == SEQUENCE:
        if local == "MessageNumber" and not empty:
            return NUMBER
        if local == "LastMessage" and empty and parent.rm is not None and parent.rm.can.marks_last:
            return LAST
    elif parent.kind == ACKNOWLEDGEMENT and empty and parent.rm is not None and parent.rm.can.has_final:
        return {"None": NONE, "Final": FINAL}.get(local, ODD)
    return ODD


def _classify_block(name: str, attributes: dict[str, str], scope: dict[str, str], soap: SOAP, empty: bool) -> Shape:
    namespace, _, local = name.rpartition("}")
    role = attributes.get(ROLE_ATTRIBUTE[soap], "").strip()
    ours = role in ROLES_OF_OURS[soap]
    addressing, version = HEADER_NAMES.get(name), RM_HEADER_NAMES.get(name)
    if addressing is not None or version is not None:
        relation = attributes.get("RelationshipType", "")
        # Any other relationship does not make it a reply.
        is_reply = not relation or (addressing is _V2005_08 and relation == REPLY_RELATION[_V2005_08])
        if empty or not ours or not is_reply:
            return _ODD_SHAPE
        if version is not None:
            kinds = {"Sequence": SEQUENCE, "AckRequested": REQUEST, DIALECTS[version].acknowledgement: ACKNOWLEDGEMENT}
            kind = kinds.get(local, ODD)
        else:
            kind = TEXT if _SLOTS[local] < 4 else REFERENCE
        shape = Shape(kind, scope, soap)
        shape.rm, shape.addressing, shape.slot = version, addressing, _SLOTS.get(local, 0)
        return shape
    if name in FAULT_HEADER_NAMES or name == MC_PENDING_NAME:
        return _ODD_SHAPE
    shape = Shape(FOREIGN, scope, soap)
    mandatory = attributes.get(SOAP_NS[soap] + "}mustUnderstand", "").strip() in ("1", "true")
    if ours and (mandatory or name in SECURITY_BINDING_NAMES):
        shape.not_understood = f"{{{namespace}}}{local}"
        shape.is_for_receiver = is_for_receiver(name, role)
    return shape


# --- reading ---------------------------------------------------------------------------------------------------------


_FIXED_BLOCKS = 8
"""Maximum number of header blocks that occur once: seven of addressing, and the Sequence."""


class _Odd(IndexError):
    """The envelope has another shape. An IndexError, so that a list of tokens that ends early counts too."""


def decode_usual(data: bytes, limits: Limits) -> Envelope | None:
    """Decode an envelope of the usual shape; ``data`` is UTF-8 without XML declaration.

    Returns:
        The envelope; None for any other shape, and for every envelope with an error.
    """
    if is_deep(data, limits.max_depth):
        return None
    try:
        # Well-formed from here on, so cutting at "<" cannot be deceived.
        feed(parser_for(data, limits), data)
        return _read(data, limits)
    except (ExpatError, EnvelopeError, IndexError):
        return None


_REFERS = re.compile(rb"(?:[^\s/>:]*:)?(?:To|Address|Action|MessageID|RelatesTo)(?:\s[^&]*)?>")
"""A token with text that may contain character references, as addresses with a query do. (The local name suffices: a
foreign element is kept unchanged.)"""

_REFERENCE_OF = re.compile(rb"&(?:amp|lt|gt|quot|apos);")
_REFERENCES = {b"&amp;": b"&", b"&lt;": b"<", b"&gt;": b">", b"&quot;": b'"', b"&apos;": b"'"}


def _resolve(value: bytes) -> bytes:
    # A character reference may stand for white space or mark-up.
    if b"&#" in value:
        raise _Odd
    return _REFERENCE_OF.sub(lambda match: _REFERENCES[match[0]], value)


def _read(data: bytes, limits: Limits) -> Envelope | None:
    end = data.find(b">")
    tag = data[1:end]
    envelope = ROOT.kids.get(tag) or _learn(ROOT, tag)
    at = data.find(envelope.body_open, end)
    if envelope.kind != ENVELOPE or at < 0 or at > limits.max_header_bytes:
        return None
    head = data[end + 1 : at]
    # A carriage return would need normalization, and "<!" begins a comment or a CDATA section. A search for the single
    # "!" is faster, and usually finds nothing.
    if head.find(b"\r") >= 0 or (head.find(b"!") >= 0 and b"<!" in head):
        return None
    body = read_body(data, at, envelope, limits)
    if body is None:
        return None
    tokens = head.split(b"<")
    # Only a header with that many tags, such as one with a signature, may have too much of anything.
    is_large = len(tokens) > limits.max_headers
    if is_large and (
        len(tokens) + _FIXED_BLOCKS > limits.max_elements or head.count(b"xmlns") > limits.max_declarations
    ):
        return None
    escaped = head.find(b"&") >= 0
    if escaped and any(_REFERS.match(token) is None for token in tokens if b"&" in token):
        return None
    tag = tokens[1].partition(b">")[0]
    header = envelope.kids.get(tag) or _learn(envelope, tag)
    if header.kind != HEADER:
        return None
    return _blocks(tokens, header, body, escaped, limits)


def _blocks(tokens: list[bytes], header: Shape, body: bytes, escaped: bool, limits: Limits) -> Envelope:
    """Read the header's blocks. A token is a tag without its ``<``, and the text after it; 47 is ``/``."""
    values: list[str | None] = [None, None, None, None]
    references: list[EndpointReference | None] = [None, None, None]
    addressing: Addressing | None = None
    rm: RM | None = None
    envelope = Envelope(header.soap)
    kids = header.kids
    last = len(tokens) - 1
    # Token 0 precedes the Header's start tag, which is token 1; the last token is its end tag.
    i = 2
    while i < last:
        tag, _, value = tokens[i].partition(b">")
        shape = kids.get(tag) or _learn(header, tag)
        kind = shape.kind
        if kind == TEXT:
            slot = shape.slot
            if tokens[i + 1][0] != 47 or values[slot] is not None:
                raise _Odd
            if escaped:
                value = _resolve(value)
            values[slot] = value.strip().decode()
            i += 2
        elif kind == REFERENCE:
            tag, _, value = tokens[i + 1].partition(b">")
            child = shape.kids.get(tag) or _learn(shape, tag)
            slot = shape.slot - 4
            if child.kind != ADDRESS or tokens[i + 2][0] != 47 or tokens[i + 3][0] != 47 or references[slot]:
                raise _Odd
            references[slot] = shape.references.get(value) or _reference(value, shape)
            i += 4
        elif kind == SEQUENCE:
            if envelope.sequence is not None:
                raise _Odd
            envelope.sequence, i = _sequence(tokens, i, shape)
        else:
            i = _other_block(tokens, i, header, shape, envelope, limits)
        # Two versions in one message: the complete path decides which is foreign.
        if shape.addressing is not addressing and shape.addressing is not None:
            if addressing is not None:
                raise _Odd
            addressing = shape.addressing
        elif shape.rm is not rm and shape.rm is not None:
            if rm is not None:
                raise _Odd
            rm = shape.rm
    if i != last or tokens[last][0] != 47:
        raise _Odd
    envelope.addressing = addressing
    action, envelope.to, envelope.message_id, envelope.relates_to = values
    envelope.reply_to, envelope.fault_to, envelope.from_ = references
    envelope.action = action = action or ""
    envelope.rm = rm or RM_OF_ACTION.get(action)
    envelope.body = body
    # LastMessage, acknowledgements and questions have no body element.
    if not body and (empty := EMPTY_CONTROLS.get(action)) is not None:
        envelope.control = empty()
    return envelope


def _other_block(tokens: list[bytes], i: int, header: Shape, shape: Shape, envelope: Envelope, limits: Limits) -> int:
    """Read a block that most messages lack; return the index after it."""
    others = len(envelope.headers) + len(envelope.acknowledgements) + len(envelope.ack_requested)
    if others + _FIXED_BLOCKS >= limits.max_headers:  # perhaps too many: the complete path counts them
        raise _Odd
    if shape.kind == ACKNOWLEDGEMENT:
        acknowledgement, i = _acknowledgement(tokens, i, shape, limits.max_ranges)
        if any(other.identifier == acknowledgement.identifier for other in envelope.acknowledgements):
            raise _Odd
        envelope.acknowledgements += (acknowledgement,)
        return i
    if shape.kind == REQUEST:
        if tokens[i + 3][0] != 47:
            raise _Odd
        envelope.ack_requested += (AckRequested(_identifier(tokens, i, shape)),)
        return i + 4
    if shape.kind == FOREIGN:
        stop = end_of_block(tokens, i)
        end_tag = tokens[stop - 1].partition(b">")[0]
        block = b"<" + b"<".join([*tokens[i : stop - 1], end_tag + b">"])
        add_foreign(envelope, self_contained(block, 0, fitting(header, limits)), shape)
        return stop
    raise _Odd


def add_foreign(envelope: Envelope, block: bytes, shape: Shape) -> None:
    """Add a self-contained header block that is neither addressing's nor reliable messaging's."""
    envelope.headers += (block,)
    if shape.not_understood:
        envelope.not_understood += (shape.not_understood,)
        if shape.is_for_receiver:
            envelope.for_receiver += (shape.not_understood,)


def _reference(value: bytes, shape: Shape) -> EndpointReference:
    """Return the reference to an address as written, from a cache: the same few addresses repeat."""
    assert shape.addressing is not None
    reference = endpoint_reference(_resolve(value).strip().decode(), shape.addressing)
    if len(value) <= _MAX_TAG:
        _count()
        shape.references[value] = reference
    return reference


def _identifier(tokens: list[bytes], i: int, shape: Shape) -> str:
    """Return the Identifier right after the block's start tag at ``i``."""
    tag, _, value = tokens[i + 1].partition(b">")
    child = shape.kids.get(tag) or _learn(shape, tag)
    identifier = value.strip()
    if child.kind != IDENTIFIER or tokens[i + 2][0] != 47 or not identifier:
        raise _Odd
    return identifier.decode()


def _sequence(tokens: list[bytes], i: int, shape: Shape) -> tuple[Sequence, int]:
    identifier = _identifier(tokens, i, shape)
    tag, _, value = tokens[i + 3].partition(b">")
    child = shape.kids.get(tag) or _learn(shape, tag)
    digits = value.strip()
    # The complete path reports longer numbers; here they would only cost time.
    if child.kind != NUMBER or tokens[i + 4][0] != 47 or not digits.isdigit() or len(digits) > 64:
        raise _Odd
    number = int(digits)
    if number < 1:
        raise _Odd
    if tokens[i + 5][0] == 47:
        return Sequence(identifier, number), i + 6
    tag = tokens[i + 5].partition(b">")[0]
    child = shape.kids.get(tag) or _learn(shape, tag)
    if child.kind != LAST or tokens[i + 6][0] != 47:
        raise _Odd
    return Sequence(identifier, number, True), i + 7


RANGE = re.compile(
    rb"([^\s<>/\"'=:]+:|)Acknowledge?mentRange\s+(?:Lower=[\"'](\d{1,64})[\"']\s+Upper=[\"'](\d{1,64})[\"']"
    rb"|Upper=[\"'](\d{1,64})[\"']\s+Lower=[\"'](\d{1,64})[\"'])\s*/"
)


_RANGE_NAMES = {rm: dialect.acknowledgement_range.encode() for rm, dialect in DIALECTS.items()}


def _acknowledgement(tokens: list[bytes], i: int, shape: Shape, max_ranges: int) -> tuple[SequenceAcknowledgement, int]:
    identifier = _identifier(tokens, i, shape)
    ranges: list[tuple[int, int]] = []
    assert shape.rm is not None
    range_name = _RANGE_NAMES[shape.rm]
    none = final = False
    buffer_remaining: int | None = None
    i += 3
    while tokens[i][0] != 47:
        tag, _, value = tokens[i].partition(b">")
        match = RANGE.fullmatch(tag)
        if match is not None:
            # Its numbers make every such tag unique, so look up only its prefix, as the tag of an empty None.
            prefix, lower, upper, other_upper, other_lower = match.groups()
            stand_in = prefix + b"None/"
            child = shape.kids.get(stand_in) or _learn(shape, stand_in)
            is_range = _namespace_of(child, prefix) is shape.rm and tag.startswith(range_name, len(prefix))
            if not is_range or len(ranges) >= max_ranges:
                raise _Odd
            ranges.append((int(lower or other_lower), int(upper or other_upper)))
            i += 1
            continue
        child = shape.kids.get(tag) or _learn(shape, tag)
        if child.kind == NONE and not none:
            none = True
        elif child.kind == FINAL and not final:
            final = True
        elif child.kind == BUFFER and buffer_remaining is None and tokens[i + 1][0] == 47:
            digits = value.strip()
            if not digits.isdigit() or len(digits) > 10 or int(digits) > 2**31 - 1:
                raise _Odd
            buffer_remaining = int(digits)
            i += 1
        else:
            raise _Odd
        i += 1
    if not ranges and not none:
        raise _Odd
    # WS-RM 1.0 has no None: 0-0 stands for it.
    if ranges == [DIALECTS[shape.rm].range_of_nothing]:
        ranges = []
    return SequenceAcknowledgement(identifier, tuple(ranges), (), final, buffer_remaining), i + 1


def _namespace_of(child: Shape, prefix: bytes) -> RM | None:
    """Return the WS-RM version of an unprefixed or prefixed name in the scope of ``child``."""
    return RM_HEADER_NAMES.get(child.scope.get(prefix[:-1].decode(), "") + "}Sequence")


def end_of_block(tokens: list[bytes], i: int) -> int:
    """Return the index after the end tag of the block that starts at ``i``."""
    depth = 0
    while True:
        token = tokens[i]
        i += 1
        if token[0] == 47:
            depth -= 1
        else:
            tag = token.partition(b">")[0]
            if b"'" in tag or tag.count(b'"') & 1:  # an attribute's value may contain a ">"
                raise _Odd
            if tag[-1] != 47:
                depth += 1
        if depth == 0:
            return i


# --- the body --------------------------------------------------------------------------------------------------------

_NAME = re.compile(rb"<([^\s/>]*)")
_NOT_PLAIN = re.compile(rb"<(?:!|(?:[^\s/>:]*:)?(?:" + b"|".join(sorted(CONTENT_LOCALS)) + rb")[\s/>])")
"""A comment, or an element that would be decoded if it has the right namespace."""


def read_body(data: bytes, at: int, envelope: Shape, limits: Limits) -> bytes | None:
    """Return the content of the Body with its start tag at ``at``, if it is an application's or empty."""
    end = data.find(b">", at)
    tag = data[at + 1 : end]
    shape = envelope.kids.get(tag) or _learn(envelope, tag)
    if shape.kind != BODY:
        return None
    foot = envelope.foot
    if not data.endswith(foot):
        data = data.rstrip()
        if not data.endswith(foot):
            # An empty Body, or white space between the last two tags.
            return b"" if tag[-1] == 47 and data[end + 1 :] == foot[foot.index(b">") + 1 :] else None
    if tag[-1] == 47:
        return None
    body = data[end + 1 : len(data) - len(foot)]
    prefixed = body.find(b":") >= 0  # one look at a long body instead of one for each prefix
    if (prefixed or b":" not in envelope.body_close) and body.find(envelope.body_close) >= 0:
        return None  # the Body may already end there
    first = body.find(b"<")
    if first < 0:
        return None if body.strip() else b""
    if _NOT_PLAIN.match(body, first) is not None or (first and body[:first].strip()):
        return None
    for declaration in shape.declarations:
        sign = declaration.sign
        if (prefixed or not sign) and body.find(sign) >= 0 and declaration.needed_by(body):
            return self_contained(body, first, fitting(shape, limits)) if _is_single(body, first) else None
    return body


def fitting(shape: Shape, limits: Limits) -> Declarations:
    """Return the declarations around a Header or Body, if they certainly fit wherever they may be needed."""
    if shape.written * (limits.max_headers + 1) > limits.max_inserted_bytes:
        raise _Odd
    return shape.declarations


def _is_single(body: bytes, first: int) -> bool:
    """Whether the element at ``first`` certainly is the only one at the top level."""
    tag = body[first : body.find(b">", first)]
    name = _NAME.match(tag)
    if name is None:
        return False
    close = b"</" + name[1]
    return (
        tag[-1] != 47
        and b"'" not in tag
        and not tag.count(b'"') & 1
        and b"<!" not in body
        and body.count(close) == 1
        and body.rstrip().endswith(close + b">")
    )
