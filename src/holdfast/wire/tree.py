"""A whole SOAP document as small nodes with byte offsets, through expat. Slower than ``fast``, and complete.

Owns the safe use of the parser: no DOCTYPE, no processing instructions, nothing resolved, everything bounded. Header
blocks, RM bodies and faults become nodes; an application's body stays bytes. Knows nothing of what the nodes mean.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pyexpat import ExpatError, ParserCreate, XMLParserType

from holdfast.core.versions import SOAP
from holdfast.exceptions import EnvelopeError, LimitExceeded, VersionMismatch
from holdfast.wire.limits import Limits
from holdfast.wire.names import CONTENT_NAMES, SOAP_OF_NS
from holdfast.wire.text import declarations, self_contained

Scope = dict[str, str]


class Node:
    """One element.

    Args:
        name: ``"namespace}local"``.
        attributes: By the same kind of name.
        scope: Prefix -> namespace where it stands, its own declarations included.
        outer: The same, without its own.
        start: Offset of its start tag.
    """

    __slots__ = ("attributes", "children", "name", "outer", "scope", "source", "start", "stop", "texts")

    def __init__(self, name: str, attributes: dict[str, str], scope: Scope, outer: Scope, source: bytes, start: int):
        self.name = name
        self.attributes = attributes
        self.scope = scope
        self.outer = outer
        self.source = source
        self.start = start
        self.stop = start  # where expat was when it reported the end
        self.children: list[Node] = []
        self.texts: list[str] = []

    @property
    def namespace(self) -> str:
        """Its namespace, "" if none."""
        return self.name.rpartition("}")[0]

    @property
    def local(self) -> str:
        """Its local name."""
        return self.name.rpartition("}")[2]

    @property
    def text(self) -> str:
        """Its own text, children's not included, white space at the ends taken off."""
        return "".join(self.texts).strip(" \t\r\n")

    @property
    def end(self) -> int:
        """The offset after its end tag."""
        end = tag_end(self.source, self.start)
        if self.source[end - 2] == 47:  # "/": an empty-element tag
            return end
        return tag_end(self.source, self.stop)

    def child(self, name: str) -> Node | None:
        """The first child of that name."""
        for node in self.children:
            if node.name == name:
                return node
        return None

    def raw(self) -> bytes:
        """The element as self-contained XML, otherwise as it came."""
        return self_contained(self.source[self.start : self.end], (0,), declarations(self.outer))

    def resolve(self, qname: str) -> tuple[str, str]:
        """Resolves a QName of its content with the namespaces in scope here: (namespace, local name)."""
        prefix, _, local = qname.strip(" \t\r\n").rpartition(":")
        return self.scope.get(prefix, ""), local


@dataclass(slots=True)
class Document:
    """A decoded document: its header blocks, and either the node of its RM or fault body or the body's bytes."""

    soap: SOAP
    headers: list[Node] = field(default_factory=list)
    content: Node | None = None
    body: bytes = b""


def parse(data: bytes, limits: Limits) -> Document:
    """Parses UTF-8 bytes.

    Raises:
        VersionMismatch: if the root is not an Envelope of SOAP 1.1 or 1.2.
        LimitExceeded: if a limit is exceeded.
        EnvelopeError: if it is not well-formed, or not shaped as a SOAP envelope.
    """
    return _Builder(data, limits).run()


def refuse_doctype(*_: object) -> None:
    """Expat's handler for a DOCTYPE: SOAP forbids it, and with it goes every entity that could be declared."""
    raise EnvelopeError("a SOAP message must not have a document type declaration")


def refuse_instruction(*_: object) -> None:
    """Expat's handler for a processing instruction, which SOAP forbids (SOAP 1.1 section 3, 1.2 part 1 section 5)."""
    raise EnvelopeError("a SOAP message must not have processing instructions")


class _Builder:
    """The parser's callbacks and what they know; used once."""

    def __init__(self, data: bytes, limits: Limits) -> None:
        self.data = data
        self.limits = limits
        parser = ParserCreate("UTF-8", "}")
        parser.buffer_text = True
        parser.StartDoctypeDeclHandler = refuse_doctype
        parser.ProcessingInstructionHandler = refuse_instruction
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
        self.declared: Scope = {}
        self.stack: list[Node] = []
        self.tops: list[int] = []
        self.content_start = -1

    def run(self) -> Document:
        try:
            self.feed()
        except ExpatError as error:
            raise EnvelopeError(f"not well-formed XML: {error}", soap=self.soap) from None
        except EnvelopeError as error:
            error.soap = error.soap or self.soap
            raise
        if self.document is None or self.body is None:
            raise EnvelopeError("the envelope has no Body", soap=self.soap)
        return self.document

    def feed(self) -> None:
        limit = self.limits.max_header_bytes
        if len(self.data) <= limit:
            self.parser.Parse(self.data, True)
            return
        # The header must be over within its limit before the rest is looked at.
        self.parser.Parse(self.data[:limit], False)
        if self.body is None:
            raise LimitExceeded(f"the header is larger than {limit} bytes")
        self.parser.Parse(self.data[limit:], True)

    @property
    def soap(self) -> str:
        return self.document.soap.value if self.document else ""

    def on_declaration(self, prefix: str | None, uri: str | None) -> None:
        self.declared[prefix or ""] = uri or ""

    def on_start(self, name: str, attributes: dict[str, str]) -> None:
        self.depth += 1
        self.elements += 1
        if self.depth > self.limits.max_depth:
            raise LimitExceeded(f"elements are nested deeper than {self.limits.max_depth}")
        if self.elements > self.limits.max_elements:
            raise LimitExceeded(f"more than {self.limits.max_elements} elements to read")
        outer = self.stack[-1].scope if self.stack else {}
        scope = outer
        if self.declared:
            scope = {**outer, **self.declared}
            self.declared = {}
        node = Node(name, attributes, scope, outer, self.data, self.parser.CurrentByteIndex)
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
        soap = SOAP_OF_NS.get(node.namespace)
        if node.local != "Envelope" or soap is None:
            raise VersionMismatch(f"the root element is {node.name!r}, not a SOAP 1.1 or 1.2 Envelope")
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
            self.parser.CharacterDataHandler = None
        else:
            raise EnvelopeError(f"{node.name!r} has no place in an Envelope here")

    def open_content(self, node: Node) -> None:
        """The Body's first child decides: RM messages and faults become nodes, anything else stays bytes."""
        assert self.document is not None
        if not self.tops and node.name in CONTENT_NAMES:
            self.document.content = node
            self.parser.CharacterDataHandler = self.on_text
        elif self.document.content is not None:
            raise EnvelopeError(f"{node.name!r} beside an RM message or a fault in the Body")
        else:
            self.parser.StartElementHandler = self.on_inner_start
            self.parser.EndElementHandler = self.on_inner_end
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
            self.declared = {}
            self.on_end(name)

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
        raw = self.data[start:end]
        if self.tops:
            raw = self_contained(raw, [top - start for top in self.tops], declarations(node.scope))
        elif not raw.strip():
            raw = b""
        self.document.body = raw


def tag_end(data: bytes, start: int) -> int:
    """The offset after the tag that starts at ``start``: the first ``>`` outside quotes."""
    at = start
    while True:
        close = data.index(b">", at)
        quote = min((q for q in (data.find(b'"', at, close), data.find(b"'", at, close)) if q >= 0), default=-1)
        if quote < 0:
            return close + 1
        at = data.index(data[quote : quote + 1], quote + 1) + 1
