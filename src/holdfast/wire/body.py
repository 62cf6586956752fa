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


_DECLARATION = re.compile(r"""\s*<\?xml\s[^>]*?encoding\s*=\s*["']([A-Za-z][\w.-]*)["'][^>]*\?>""")
_MARKS = {b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16", b"<\0": "utf-16-le", b"\0<": "utf-16-be"}
"""First bytes of a document in UTF-16 -> its encoding."""


def in_utf8(document: bytes) -> bytes:
    """Return an XML document in UTF-8.

    Args:
        document: The document. Its XML declaration counts only if it is not UTF-8: declarations are often wrong.

    Raises:
        EnvelopeError: It is neither UTF-8 nor in the encoding that its XML declaration names.
    """
    encoding = _MARKS.get(document[:2], "")
    declared = None if encoding else _DECLARATION.match(document[:200].decode("latin-1"))
    if declared is not None and declared[1].lower() != "utf-8":
        encoding = declared[1]
    if not encoding:
        return document
    for one in ("utf-8", encoding) if declared is not None else (encoding,):
        try:
            text = document.decode(one).removeprefix("\ufeff")
            return _DECLARATION.sub("", text, count=1).encode()
        except (UnicodeError, LookupError):
            continue
    raise EnvelopeError(f"the body is not in the encoding {encoding}")


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
