"""Documents of users in any encoding, and namespaces that no URI is.

Covers wire/body.py.
"""

from __future__ import annotations

import pytest

from holdfast import ApplicationFault, EnvelopeError
from holdfast.endpoint.envelopes.message import body_bytes
from holdfast.wire import body_content, check_header_blocks, decode, parse_element
from holdfast.wire.body import in_utf8

TEXT = "é – ß"
MARKED = ["utf-8-sig", "utf-16", "utf-32", "utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"]
"""Encodings that the first bytes of a document show, whatever it declares."""


def document(declared: str, text: str = "é") -> str:
    return (f'<?xml version="1.0" encoding="{declared}"?>\n' if declared else "") + f"<a>{text}</a>"


@pytest.mark.parametrize("declared", ["", "UTF-8", "ISO-8859-1", "windows-1252", "utf-16", "Shift_JIS"])
@pytest.mark.parametrize("encoding", MARKED)
def test_the_first_bytes_show_the_encoding_whatever_is_declared(encoding: str, declared: str) -> None:
    assert parse_element(in_utf8(document(declared, TEXT).encode(encoding))).text == TEXT


@pytest.mark.parametrize("declared", ["", "UTF-8"])
@pytest.mark.parametrize("encoding", [*MARKED, "utf-8"])
def test_a_document_within_a_document_keeps_its_declaration(encoding: str, declared: str) -> None:
    inner = document("UTF-8", TEXT)
    whole = document(declared, f" <![CDATA[ {inner} ]]> ")
    assert parse_element(in_utf8(whole.encode(encoding))).text == f"  {inner}  "


@pytest.mark.parametrize(
    "encoding", ["ISO-8859-1", "latin1", "windows-1252", "cp437", "UTF-8", "utf-7", "Big5", "ascii"]
)
def test_without_such_bytes_the_declaration_counts(encoding: str) -> None:
    """XML 1.0, F.1: also if the bytes are UTF-8 as well."""
    for text in ("plain", "Ã©") if encoding not in ("Big5", "ascii", "cp437") else ("plain",):
        assert parse_element(in_utf8(document(encoding, text).encode(encoding))).text == text
    if encoding == "ISO-8859-1":
        assert parse_element(in_utf8(document(encoding).encode("utf-8"))).text == "Ã©"


@pytest.mark.parametrize("declared", ["utf-16", "UTF-16LE", "UCS-4", "utf-32"])
def test_a_declaration_that_its_own_bytes_disprove_does_not_count(declared: str) -> None:
    """.NET declares UTF-16 in texts, which programs then write in UTF-8."""
    assert parse_element(in_utf8(document(declared, TEXT).encode())).text == TEXT


@pytest.mark.parametrize("declared", ["ascii", "nosuch", "base64", "punycode", "idna", "unicode_escape", "undefined"])
def test_bytes_that_are_not_in_the_declared_encoding_are_refused(declared: str) -> None:
    with pytest.raises(EnvelopeError, match=f"not in the encoding {declared}"):
        in_utf8(document(declared).encode())


def test_a_body_is_read_by_its_declaration_and_a_text_has_no_encoding() -> None:
    latin = document("ISO-8859-1")
    assert body_bytes(latin.encode("latin-1")) == "<a>é</a>".encode()
    assert body_bytes(document("ISO-8859-1").encode()) == "<a>Ã©</a>".encode()
    assert body_bytes(bytearray(document("", TEXT).encode("utf-16"))) == document("", TEXT).encode()
    assert body_bytes(latin) == "<a>é</a>".encode()
    assert ApplicationFault("no", detail=latin.encode("latin-1")).detail == "<a>é</a>".encode()


ENVELOPE = '<s:Envelope xmlns:s="http://www.w3.org/2003/05/soap-envelope"><s:Header>{}</s:Header><s:Body>{}</s:Body>'


@pytest.mark.parametrize(
    "declared",
    ['xmlns="urn:x}"', "xmlns:p='urn:{x}y'", 'xmlns = "urn:&#125;"', "b='c' xmlns:p='&#x07d;'", 'xmlns="}"'],
)
def test_a_namespace_with_a_brace_is_named_as_the_reason(declared: str) -> None:
    element = f"<a {declared}/>"
    envelope = ENVELOPE + "</s:Envelope>"
    for read in (
        lambda: body_content(element.encode()),
        lambda: body_bytes(element),
        lambda: check_header_blocks(f'<b xmlns="urn:b">{element}</b>'.encode()),
        lambda: decode(envelope.format("", element).encode()),
        lambda: decode(envelope.format(f'<b xmlns="urn:b">{element}</b>', "").encode()),
    ):
        with pytest.raises(EnvelopeError, match="a namespace has a closing brace") as caught:
            read()
        assert "%7D" in caught.value.remedy


@pytest.mark.parametrize("text", ["text", "text}", "<a b='}'", "<a xmlns='urn:x' b='}'><c></a>", "}<a xmlns='urn:x'/>"])
def test_what_is_malformed_otherwise_is_said_to_be(text: str) -> None:
    with pytest.raises(EnvelopeError, match="well-formed"):
        body_content(text.encode())
    assert body_content(b"<a xmlns='urn:%7Bx%7D' b='}'>}</a>")
