"""References of a body to its parts: ``xop:Include`` elements (XOP 1.0 section 2.1), read, checked and replaced."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Collection, Iterable
from pyexpat import ExpatError, ParserCreate
from urllib.parse import unquote

from lxml import etree

from holdfast.core.messages import Envelope
from holdfast.exceptions import EnvelopeError

XOP_NS = "http://www.w3.org/2004/08/xop/include"
INCLUDE = f"{XOP_NS}}}Include"
_NS = XOP_NS.encode()


def has_includes(content: bytes) -> bool:
    """Whether XML may contain ``xop:Include`` elements."""
    return _NS in content


class _Reader:
    """Collects the references, and checks that each is alone in its element."""

    def __init__(self) -> None:
        self.found: list[str] = []
        self._elements: list[list[bool]] = []
        """For each open element: whether it has an Include, and whether it has anything else."""

    def start(self, name: str, attributes: dict[str, str]) -> None:
        is_include = name == INCLUDE
        if self._elements:
            parent = self._elements[-1]
            parent[0] |= is_include
            parent[1] |= not is_include or parent[2]
            parent[2] |= is_include
        if is_include:
            if any(element[3] for element in self._elements):
                raise EnvelopeError("an xop:Include element is inside another one (XOP 1.0 section 2.1)")
            if "href" not in attributes:
                raise EnvelopeError("an xop:Include element has no href (XOP 1.0 section 2.1)")
            self.found.append(content_id_of(attributes["href"]))
        self._elements.append([False, False, False, is_include])

    def text(self, text: str) -> None:
        if self._elements and not self._elements[-1][1] and text.strip():
            self._elements[-1][1] = True

    def end(self, _name: str) -> None:
        has_include, has_more, _, is_include = self._elements.pop()
        if has_include and has_more and not is_include:
            raise EnvelopeError("an xop:Include element is not the only content of its element (XOP 1.0 section 3.2)")


def content_id_of(href: str) -> str:
    """Return the Content-ID that a ``cid:`` URL names (RFC 2392).

    Raises:
        EnvelopeError: It is another URL.
    """
    if href[:4].lower() != "cid:" or len(href) == len("cid:"):
        raise EnvelopeError(f"an xop:Include element refers to {href[:100]!r}, which is not a cid: URL")
    return unquote(href[4:])


def includes_in(content: bytes) -> list[str]:
    """Return the Content-IDs that ``xop:Include`` elements refer to, in their order.

    Args:
        content: Self-contained elements in UTF-8, one after the other, checked to be well-formed.

    Raises:
        EnvelopeError: An Include is nested, has no href or no ``cid:`` URL, or is not alone in its element.
    """
    if not has_includes(content):
        return []
    reader = _Reader()
    parser = ParserCreate("utf-8", "}")
    parser.StartElementHandler = reader.start
    parser.CharacterDataHandler = reader.text
    parser.EndElementHandler = reader.end
    try:
        parser.Parse(b"<x>%b</x>" % content, True)
    except ExpatError as error:  # pragma: no cover - the content was parsed before
        raise EnvelopeError(f"the body is not well-formed: {error}") from None
    return reader.found


class MissingPart(EnvelopeError):
    """A message refers to a part that did not come with it.

    Apache CXF retransmits a message with attachments without them.

    Attributes:
        envelope: The message without attachments, once it is decoded.
    """

    envelope: Envelope | None = None


def missing_part(name: str) -> MissingPart:
    return MissingPart(
        f"an xop:Include element refers to the MIME part <{name[:200]}>, which is missing",
        remedy=f"Send the message in MTOM with an attachment that has the Content-ID {name[:200]}, or write the value "
        "in the body in base64.",
    )


def check_references(content: bytes, content_ids: Collection[str], *, is_mtom: bool = True) -> None:
    """Check that a message refers to each of its parts, and to no other (XOP 1.0 section 3.2).

    A part may also be named by a ``cid:`` URL in another place, as WS-I's ``swaRef`` does.

    Args:
        content: The header blocks and the body.
        content_ids: The Content-IDs of its parts; "" for a part without one.
        is_mtom: Whether the message must refer to each part; SOAP with Attachments need not.

    Raises:
        MissingPart: It refers to a part that is not there.
        EnvelopeError: It refers to one part twice, or never to a part.
    """
    included = includes_in(content)
    if len(set(included)) != len(included):
        twice = next(name for name in included if included.count(name) > 1)
        raise EnvelopeError(f"two xop:Include elements refer to the MIME part <{twice[:200]}>")
    for name in included:
        if name not in content_ids:
            raise missing_part(name)
    others = [name for name in content_ids if name not in included] if is_mtom else []
    if others:
        text = unquote(content.decode("utf-8", "replace"))
        for name in others:
            if not name or f"cid:{name}" not in text:
                raise EnvelopeError(f"no xop:Include element refers to the MIME part <{name[:200]}>")


def extracted(body: etree._Element, contents: Iterable[bytes]) -> list[tuple[str, bytes]]:
    """Replace each text below an element that is one of the contents in base64 by an ``xop:Include``.

    Returns:
        The Content-ID and the content of each part, one for each ``xop:Include``.
    """
    by_text = {b64encode(one).decode(): one for one in contents}
    found: list[tuple[str, bytes]] = []
    for element in list(body.iter("{*}*")) if by_text else ():
        content = by_text.get(element.text or "")
        if content is not None and not len(element):
            name = f"value{len(found) + 1}@holdfast"
            element.text = None
            etree.SubElement(element, f"{{{XOP_NS}}}Include", {"href": f"cid:{name}"}, nsmap={"xop": XOP_NS})
            found.append((name, content))
    return found


def inlined(body: etree._Element, content_of: Callable[[str], bytes]) -> etree._Element:
    """Replace each ``xop:Include`` below an element by the content of its part in base64 (XOP 1.0 section 3.2)."""
    for include in list(body.iter("{" + XOP_NS + "}Include")):
        parent = include.getparent()
        if parent is not None:
            text = b64encode(content_of(content_id_of(include.get("href", "")))).decode()
            parent.remove(include)
            parent.text = text
    return body
