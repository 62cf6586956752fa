"""A whole SOAP document as small nodes with byte offsets, through expat. Slower than ``fast``, and complete.

This module uses the parser safely: no DOCTYPE, no processing instructions, no resolution, limits on everything. Header
blocks, RM bodies and faults become nodes; an application's body stays bytes. It does not know the meaning of the nodes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pyexpat import ExpatError, ParserCreate, XMLParserType, errors

from holdfast.core.versions import SOAP
from holdfast.exceptions import EnvelopeError, LimitExceeded, VersionMismatch
from holdfast.wire.limits import Limits
from holdfast.wire.names import CONTENT_NAMES, SOAP_OF_NS
from holdfast.wire.text import EMPTY_SCOPE, Scope, declare, needed_from

PIECE = 64 * 1024
"""Bytes given to the parser at a time: between two pieces other threads can run."""


MAX_TOLD = 200
"""Maximum characters of a name in an error."""


class Source:
    """The document that nodes are cut from, and the remaining bytes for declarations that make its slices
    self-contained."""

    __slots__ = ("data", "limit", "room")

    def __init__(self, data: bytes, limits: Limits) -> None:
        self.data = data
        self.limit = self.room = limits.max_inserted_bytes

    def cut(self, start: int, end: int, tops: list[int], scope: Scope) -> bytes:
        """Return a slice as self-contained XML, otherwise unchanged.

        Args:
            tops: Offsets of the start tags of its top-level elements, ascending.
            scope: The namespaces declared above it.

        Raises:
            LimitExceeded: if the slices need more bytes of declarations than allowed.
        """
        data = self.data
        parts: list[bytes] = []
        done = start
        for top, needed in needed_from(scope, data, tops, end):
            self.room -= sum(map(len, needed))
            if self.room < 0:
                raise LimitExceeded(f"adjacent elements need more than {self.limit} bytes of namespace declarations")
            done = declare(data, top, needed, done, parts)
        if not parts:
            return data[start:end]
        parts.append(data[done:end])
        return b"".join(parts)


class Node:
    """One element.

    Args:
        name: ``"namespace}local"``.
        attributes: By names of the same form.
        scope: The namespaces in scope, including its own declarations.
        outer: The same, without its own.
        source: The document.
        start: Offset of its start tag.
    """

    __slots__ = ("attributes", "children", "name", "outer", "scope", "source", "start", "stop", "texts")

    def __init__(self, name: str, attributes: dict[str, str], scope: Scope, outer: Scope, source: Source, start: int):
        self.name = name
        self.attributes = attributes
        self.scope = scope
        self.outer = outer
        self.source = source
        self.start = start
        self.stop = start  # expat's position when it reported the end
        self.children: list[Node] = []
        self.texts: list[str] = []

    @property
    def namespace(self) -> str:
        """Its namespace; "" without one."""
        return self.name.rpartition("}")[0]

    @property
    def local(self) -> str:
        return self.name.rpartition("}")[2]

    @property
    def told(self) -> str:
        """Return its name for an error, shortened for readers and logs."""
        name = f"{{{self.name}" if "}" in self.name else self.name
        return name if len(name) <= MAX_TOLD else f"{name[:MAX_TOLD]}..."

    @property
    def text(self) -> str:
        """Its own text, without that of its children and without white space at the ends."""
        return "".join(self.texts).strip(" \t\r\n")

    @property
    def end(self) -> int:
        """The offset after its end tag."""
        data = self.source.data
        end = tag_end(data, self.start)
        # expat reports the same position for the start and the end of an empty element.
        if data[end - 2] == 47:  # "/": an empty-element tag
            return end
        return tag_end(data, self.stop)

    def child(self, name: str) -> Node | None:
        for node in self.children:
            if node.name == name:
                return node
        return None

    def only(self, name: str) -> Node | None:
        """Return the only child with that name; None without one.

        Raises:
            EnvelopeError: There are two.
        """
        found = None
        for node in self.children:
            if node.name == name:
                if found is not None:
                    raise EnvelopeError(f"{self.local} has two {node.local}; one is allowed")
                found = node
        return found

    def raw(self) -> bytes:
        """Return the element as self-contained XML, otherwise unchanged."""
        return self.source.cut(self.start, self.end, [self.start], self.outer)

    def resolve(self, qname: str) -> tuple[str, str]:
        """Resolve a QName in its content with the namespaces in scope: (namespace, local name)."""
        prefix, _, local = qname.strip(" \t\r\n").rpartition(":")
        return self.scope.get(prefix), local


@dataclass(slots=True)
class Document:
    """A decoded document: its header blocks, and either the node of its RM or fault body or the body's bytes."""

    soap: SOAP
    headers: list[Node] = field(default_factory=list)
    content: Node | None = None
    body: bytes = b""


def parse(data: bytes, limits: Limits) -> Document:
    """Parse UTF-8 bytes.

    Raises:
        VersionMismatch: if the root is not an Envelope of SOAP 1.1 or 1.2.
        LimitExceeded: if a limit is exceeded.
        EnvelopeError: if it is not well-formed, or does not have the structure of a SOAP envelope.
    """
    return _Builder(data, limits).run()


def refuse_doctype(*_: object) -> None:
    """Raise for a DOCTYPE (expat's handler): SOAP forbids it, and without it no entity can be declared."""
    raise EnvelopeError("a SOAP message must not have a document type declaration")


def refuse_instruction(*_: object) -> None:
    """Raise for a processing instruction (expat's handler), which SOAP forbids (SOAP 1.1 section 3, 1.2 part 1 section
    5)."""
    raise EnvelopeError("a SOAP message must not have processing instructions")


_SYNTAX = errors.codes[errors.XML_ERROR_SYNTAX]
_BRACE = re.compile(
    rb"""\sxmlns(?::[^\s=<>]+)?\s*=\s*(?:"[^"<]*?(?:\}|&#0*125;|&#x0*7[dD];)|'[^'<]*?(?:\}|&#0*125;|&#x0*7[dD];))"""
)
"""The beginning of a declaration of a namespace up to a closing brace."""


def malformed(what: str, error: ExpatError, data: bytes, soap: str = "") -> EnvelopeError:
    """Return the error for bytes that expat does not parse.

    A namespace with the brace that separates it from a local name is a syntax error for expat.
    """
    if error.code == _SYNTAX and _BRACE.search(data) is not None:
        return EnvelopeError(
            "a namespace has a closing brace, which no URI may have (RFC 3986)",
            soap=soap,
            remedy="Write it as %7D, or use another namespace.",
        )
    return EnvelopeError(f"{what}: {error}", soap=soap)


def parser_for(data: bytes, limits: Limits) -> XMLParserType:
    """Return a parser that refuses content forbidden in SOAP messages, and namespaces with too long a name."""
    parser = ParserCreate("UTF-8", "}", None)  # None: names are not kept, of which there may be as many as bytes
    parser.StartDoctypeDeclHandler = refuse_doctype
    parser.ProcessingInstructionHandler = refuse_instruction
    # A shorter document cannot contain such a name: no callback for most messages.
    if len(data) > limits.max_namespace:
        parser.StartNamespaceDeclHandler = partial(_check_namespace, limits)
    return parser


def _check_namespace(limits: Limits, _prefix: str | None, uri: str | None) -> None:
    if uri is not None and len(uri) > limits.max_namespace:
        raise LimitExceeded(f"the name of a namespace is longer than {limits.max_namespace} characters")


def feed(parser: XMLParserType, data: bytes, start: int = 0) -> None:
    """Feed the parser the rest of a document from ``start`` on, in pieces.

    The parser scans a long tag or comment from its beginning whenever it gets more of it, so the pieces grow with it.
    """
    size = len(data)
    while size - start > PIECE:
        # The part that the parser has not processed yet: its index counts the bytes it was given.
        # As long as what is unprocessed, so each byte of a long tag is scanned twice at most.
        piece = max(PIECE, start - parser.CurrentByteIndex)
        parser.Parse(data[start : start + piece], False)
        start += piece
    parser.Parse(data[start:], True)


_COUNTED = 1_024
_COUNTED_CLOSELY = 64


def is_deep(data: bytes, max_depth: int) -> bool:
    """Whether an element may be nested deeper, counted in pieces: a callback for each would cost five times as much.

    A wrong False is impossible: every ``<`` that does not begin an end tag counts as an open element, which stays open
    until the end of its piece. (Comments and CDATA sections could contain text like end tags, so a document with one of
    them is not judged here.)
    """
    # Half of the "<" begin end tags, so a shallow document needs no closer look.
    if data.count(b"<") <= 2 * max_depth:
        return False
    if b"<!" in data or b"<?" in data:
        return True
    at, depth, size = 0, 0, len(data)
    length = _COUNTED
    while at < size:
        stop = min(at + length, size)
        if data[stop - 1] == 60 and stop < size:
            stop += 1
        closed = data.count(b"</", at, stop)
        opened = data.count(b"<", at, stop) - closed
        if depth + opened > max_depth:
            if length == _COUNTED_CLOSELY:
                return True
            length = _COUNTED_CLOSELY  # small elements are close together here, so use smaller pieces
            continue
        depth += opened - closed
        at = stop
        length = _COUNTED if at % _COUNTED < _COUNTED_CLOSELY else length
    return False


_SHORTEST_ATTRIBUTE = len(' a=""')


def has_many_attributes(data: bytes, most: int) -> bool:
    """Whether some start tag has more than ``most`` attributes, checked before a parser stores them all.

    Judged by the bytes alone. No tag contains a "<", so only a long stretch without one needs a closer look. (A comment
    or CDATA section with such a tag counts, too.)
    """
    shortest = _SHORTEST_ATTRIBUTE * most
    if len(data) <= shortest:
        return False
    tag = _many_attributes(most)
    start = data.find(b"<")
    while start >= 0:
        last = data.rfind(b"<", start + 1, start + shortest)
        if last < 0:
            if tag.match(data, start) is not None:
                return True
            last = data.find(b"<", start + 1)
        start = last
    return False


@lru_cache(maxsize=8)
def _many_attributes(most: int) -> re.Pattern[bytes]:
    one = rb"\s++[^\s=<>\"']++\s*+=\s*+(?:\"[^\"<]*+\"|'[^'<]*+')"
    return re.compile(rb"<[^\s<>/!?=\"']++(?:%b){%d}+" % (one, most + 1))


class _Builder:
    """The parser's callbacks and their state; used once."""

    def __init__(self, data: bytes, limits: Limits) -> None:
        self.data = data
        self.source = Source(data, limits)
        self.limits = limits
        parser = parser_for(data, limits)
        parser.buffer_text = True
        parser.StartNamespaceDeclHandler = self.on_declaration
        parser.StartElementHandler = self.on_start
        parser.EndElementHandler = self.on_end
        self.parser: XMLParserType = parser
        self.document: Document | None = None
        self.soap_ns = ""
        self.depth = 0
        self.elements = 0
        self.header: Node | None = None
        self.body: Node | None = None
        self.declared: dict[str, str] = {}
        self.stack: list[Node] = []
        self.tops: list[int] = []
        self.content_start = -1

    def run(self) -> Document:
        try:
            self.feed()
        except ExpatError as error:
            raise malformed("not well-formed XML", error, self.data, self.soap) from None
        except EnvelopeError as error:
            error.soap = error.soap or self.soap
            raise
        finally:
            self.let_go()
        if self.document is None or self.body is None:
            raise EnvelopeError("the envelope has no Body", soap=self.soap)
        return self.document

    def feed(self) -> None:
        limit = self.limits.max_header_bytes
        if len(self.data) <= limit:
            feed(self.parser, self.data)
            return
        # The header must end within its limit before the rest is parsed.
        self.parser.Parse(self.data[:limit], False)
        if self.body is None:
            raise LimitExceeded(f"the header is larger than {limit} bytes")
        feed(self.parser, self.data, limit)

    def let_go(self) -> None:
        """Break the reference cycle of parser and handlers, which would keep the document until the next garbage
        collection."""
        parser = self.parser
        parser.StartNamespaceDeclHandler = parser.StartElementHandler = parser.EndElementHandler = None
        parser.CharacterDataHandler = None

    @property
    def soap(self) -> str:
        return self.document.soap.value if self.document else ""

    def on_declaration(self, prefix: str | None, uri: str | None) -> None:
        _check_namespace(self.limits, prefix, uri)
        self.declared[prefix or ""] = uri or ""

    def on_start(self, name: str, attributes: dict[str, str]) -> None:
        self.depth += 1
        self.elements += 1
        if self.depth > self.limits.max_depth:
            raise LimitExceeded(f"elements are nested deeper than {self.limits.max_depth}")
        if self.elements > self.limits.max_elements:
            raise LimitExceeded(f"more than {self.limits.max_elements} elements to read")
        outer = self.stack[-1].scope if self.stack else EMPTY_SCOPE
        scope = outer
        if self.declared:
            scope = Scope(self.declared, outer)
            self.declared = {}
            # Counted with all scopes around it: each stored part may need every one of them.
            if scope.count > self.limits.max_declarations:
                raise LimitExceeded(f"more than {self.limits.max_declarations} namespaces are in scope of one element")
        node = Node(name, attributes, scope, outer, self.source, self.parser.CurrentByteIndex)
        if self.depth == 1:
            self.open_envelope(node)
        elif self.depth == 2:
            self.open_part(node)
        elif self.depth == 3 and self.stack[-1] is self.body:
            self.open_content(node)
        else:
            self.stack[-1].children.append(node)
            if self.depth == 3 and len(self.stack[-1].children) > self.limits.max_headers:
                raise LimitExceeded(f"more than {self.limits.max_headers} header blocks")
        self.stack.append(node)

    def open_envelope(self, node: Node) -> None:
        # SOAP 1.2 part 1, 5.4.7: VersionMismatch
        soap = SOAP_OF_NS.get(node.namespace)
        if node.local != "Envelope" or soap is None:
            raise VersionMismatch(f"the root element is {node.told!r}, not a SOAP 1.1 or 1.2 Envelope")
        self.document = Document(soap)
        self.soap_ns = node.namespace

    def open_part(self, node: Node) -> None:
        if node.name == self.soap_ns + "}Header" and self.header is None and self.body is None:
            self.header = node
            self.parser.CharacterDataHandler = self.on_text
        elif node.name == self.soap_ns + "}Body" and self.body is None:
            if node.start > self.limits.max_header_bytes:
                raise LimitExceeded(f"the header is larger than {self.limits.max_header_bytes} bytes")
            self.body = node
            self.content_start = tag_end(self.data, node.start)
            self.parser.CharacterDataHandler = self.on_body_text
        else:
            raise EnvelopeError(f"{node.told!r} is not allowed here in an Envelope")

    def open_content(self, node: Node) -> None:
        """Handle the Body's first child: RM messages and faults become nodes, anything else stays bytes."""
        assert self.document is not None
        if not self.tops and node.name in CONTENT_NAMES:
            self.document.content = node
            self.parser.CharacterDataHandler = self.on_text
        elif self.document.content is not None:
            raise EnvelopeError(f"the Body contains {node.told!r} in addition to an RM message or a fault")
        else:
            self.parser.CharacterDataHandler = None
            # An application's body stays bytes: its elements are only counted.
            self.parser.StartElementHandler = self.on_inner_start
            self.parser.EndElementHandler = self.on_inner_end
            self.parser.StartNamespaceDeclHandler = partial(_check_namespace, self.limits)
        self.tops.append(node.start)

    def on_inner_start(self, name: str, attributes: dict[str, str]) -> None:
        self.depth += 1
        if self.depth > self.limits.max_depth:
            raise LimitExceeded(f"elements are nested deeper than {self.limits.max_depth}")
        if self.depth == 3:
            self.tops.append(self.parser.CurrentByteIndex)

    def on_inner_end(self, name: str) -> None:
        self.depth -= 1
        if self.depth == 1:
            self.depth += 1
            del self.stack[2:]
            self.parser.StartElementHandler = self.on_start
            self.parser.EndElementHandler = self.on_end
            self.parser.StartNamespaceDeclHandler = self.on_declaration
            self.on_end(name)

    def on_body_text(self, text: str) -> None:
        # SOAP 1.2 part 1, section 5.3: elements and white space. Nothing could read text as an element.
        if text.strip(" \t\r\n"):
            raise EnvelopeError("the Body contains text instead of an element")

    def on_text(self, text: str) -> None:
        self.stack[-1].texts.append(text)

    def on_end(self, name: str) -> None:
        self.depth -= 1
        node = self.stack.pop()
        if self.depth > 1:
            node.stop = self.parser.CurrentByteIndex
        elif node is self.header:
            assert self.document is not None
            self.document.headers = node.children
        elif node is self.body:
            self.close_body(node)

    def close_body(self, node: Node) -> None:
        assert self.document is not None
        if self.document.content is not None:
            return
        start, end = self.content_start, self.parser.CurrentByteIndex
        if end <= start:
            return
        if self.tops:
            self.document.body = self.source.cut(start, end, self.tops, node.scope)


def tag_end(data: bytes, start: int) -> int:
    """Return the offset after the tag that starts at ``start``: the first ``>`` outside quotes."""
    at = start
    # A ">" within quotes does not end the tag.
    while True:
        close = data.index(b">", at)
        quote = min((q for q in (data.find(b'"', at, close), data.find(b"'", at, close)) if q >= 0), default=-1)
        if quote < 0:
            return close + 1
        at = data.index(data[quote : quote + 1], quote + 1) + 1
