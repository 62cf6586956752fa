"""Bodies as lxml elements, for callers that need a tree. The protocol itself needs none."""

from __future__ import annotations

import re

from lxml import etree

from holdfast.exceptions import EnvelopeError

_DOCTYPE = re.compile(rb"(?:\xef\xbb\xbf)?(?:\s++|<\?.*?\?>|<!--.*?-->)*+<!DOCTYPE", re.DOTALL)
"""Where a document type declaration may be: before the root, after white space, comments and instructions."""


_OPINIONS = frozenset(
    {
        etree.ErrorTypes.WAR_NS_URI,
        etree.ErrorTypes.WAR_NS_URI_RELATIVE,
        etree.ErrorTypes.DTD_XMLID_VALUE,
        etree.ErrorTypes.WAR_SPACE_VALUE,
    }
)
"""Documents that lxml refuses although they are well-formed and were accepted: a namespace that is not a URI, or an
xml:id that is not a name."""


def parse_element(body: bytes) -> etree._Element:
    """Parse one self-contained XML element without resolving or loading anything.

    Args:
        body: UTF-8 XML with one root, such as ``Envelope.body`` or a header block.

    Raises:
        EnvelopeError: if it is empty, not well-formed, has more than one root, or declares a document type.
    """
    # SOAP forbids it, and a stored body may come from another program.
    if _DOCTYPE.match(body) is not None:
        raise EnvelopeError("the body has a document type declaration")
    parser = _parser()
    try:
        return etree.fromstring(body, parser)
    except etree.XMLSyntaxError as error:
        if any(entry.type not in _OPINIONS for entry in parser.error_log):
            raise EnvelopeError(f"the body is not one well-formed XML element: {error.msg}") from None
        # These documents are well-formed: they were accepted, and must reach their handler.
        return etree.fromstring(body, _parser(recover=True))


def _parser(*, recover: bool = False) -> etree.XMLParser:
    # Threads must not share a running lxml parser, and making one is cheap compared with parsing. Without a DOCTYPE, no
    # entity can expand. So lxml's own limits protect against nothing, and would refuse accepted messages, such as a
    # text above 10 MB.
    return etree.XMLParser(
        resolve_entities=False,
        no_network=True,
        load_dtd=False,
        dtd_validation=False,
        huge_tree=True,
        encoding="utf-8",
        recover=recover,
    )
