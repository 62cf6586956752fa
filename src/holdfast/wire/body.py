"""Bodies as lxml elements, for callers that need a tree. The protocol itself needs none."""

from __future__ import annotations

import codecs
import re

from lxml import etree

from holdfast.exceptions import EnvelopeError
from holdfast.wire.text import MARKS, UNMARKED

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


_DECLARATION = re.compile(r"""\s*<\?xml\s[^>]*?encoding\s*=\s*["']([A-Za-z][\w.-]*)["'][^>]*\?>\s*""", re.ASCII)
_LONGEST_DECLARATION = 200
"""Characters. Only what begins the document is its declaration: a CDATA section may have that of another one."""
_STARTS = {
    b"\xff\xfe\0\0": "utf-32-le",
    b"\0\0\xfe\xff": "utf-32-be",
    b"<\0\0\0": "utf-32-le",
    b"\0\0\0<": "utf-32-be",
    **MARKS,
    **UNMARKED,
}
"""First bytes of a document that show its encoding -> the encoding (XML 1.0, F.1)."""
_NO_CHARSETS = {"punycode", "idna", "unicode-escape", "raw-unicode-escape"}
"""Codecs of Python for texts that are no encodings of documents."""


def in_utf8(document: bytes) -> bytes:
    """Return an XML document in UTF-8.

    Args:
        document: The document, in the encoding that its first bytes show, or else its XML declaration (XML 1.0, F.1).

    Raises:
        EnvelopeError: It is not in that encoding.
    """
    encoding = next((name for start, name in _STARTS.items() if document.startswith(start)), "")
    declared = None if encoding else _DECLARATION.match(document[:_LONGEST_DECLARATION].decode("latin-1"))
    if declared is not None and _is_wider_than_ascii(declared[1]):
        encoding = declared[1]
    if not encoding:
        return document
    try:
        if codecs.lookup(encoding).name in _NO_CHARSETS:
            raise LookupError
        text = document.decode(encoding).removeprefix("\ufeff")
    except (UnicodeError, LookupError):
        raise EnvelopeError(f"the body is not in the encoding {encoding}") from None
    found = _DECLARATION.match(text[:_LONGEST_DECLARATION])
    return (text if found is None else text[found.end() :]).encode()


def _is_wider_than_ascii(declared: str) -> bool:
    """Whether a declaration that was read as ASCII names another encoding than UTF-8. It cannot be true of UTF-16 or
    UTF-32: .NET writes texts that it has encoded in UTF-8 with such a declaration."""
    return not declared.lower().startswith(("utf-8", "utf8", "utf-16", "utf-32", "utf16", "utf32", "ucs-", "iso-10646"))


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
