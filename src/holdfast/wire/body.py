"""Bodies as lxml elements, for whoever wants a tree. Owns the safe parser; the protocol itself never needs one."""

from __future__ import annotations

from lxml import etree

from holdfast.exceptions import EnvelopeError


def parse_element(body: bytes) -> etree._Element:
    """Parses one self-contained XML element, resolving nothing and loading nothing.

    Args:
        body: UTF-8 XML with one root, such as ``Envelope.body`` or a header block.

    Raises:
        EnvelopeError: if it is empty, not well-formed, has more than one root, or declares a document type.
    """
    # A parser of lxml's must not be shared between threads while it runs; making one is cheap beside parsing.
    parser = etree.XMLParser(
        resolve_entities=False, no_network=True, load_dtd=False, dtd_validation=False, huge_tree=False, encoding="utf-8"
    )
    try:
        element = etree.fromstring(body, parser)
    except etree.XMLSyntaxError as error:
        raise EnvelopeError(f"the body is not one well-formed XML element: {error.msg}") from None
    if element.getroottree().docinfo.doctype:
        raise EnvelopeError("the body has a document type declaration")
    return element
