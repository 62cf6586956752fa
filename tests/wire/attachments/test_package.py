"""Messages in MTOM and with attachments: read, checked, stored and written again.

Covers wire/attachments/references.py.
"""

from __future__ import annotations

import re
from base64 import b64encode

import pytest

from holdfast.core.messages import Envelope
from holdfast.core.versions import SOAP, Addressing
from holdfast.exceptions import EnvelopeError
from holdfast.wire import DEFAULT, encode, pack, receive_package
from holdfast.wire.attachments.package import Part, content_id, decode_package, decoded_content
from holdfast.wire.attachments.references import XOP_NS

NAMESPACES = {
    SOAP.V1_1: "http://schemas.xmlsoap.org/soap/envelope/",
    SOAP.V1_2: "http://www.w3.org/2003/05/soap-envelope",
}
MTOM = 'multipart/related; type="application/xop+xml"; boundary=b; start="<root>"; start-info="text/xml"'
SWA = "multipart/related; type=text/xml; boundary=b"


def envelope(content: str = "") -> bytes:
    return f'<e:Envelope xmlns:e="{NAMESPACES[SOAP.V1_1]}"><e:Body><a>{content}</a></e:Body></e:Envelope>'.encode()


def include(href: str = "cid:x") -> str:
    return f'<d><i:Include xmlns:i="{XOP_NS}" href="{href}"/></d>'


def body(*parts: tuple[str, bytes]) -> bytes:
    return b"".join(b"\r\n--b\r\n%b\r\n\r\n%b" % (head.encode(), content) for head, content in parts) + b"\r\n--b--"


def root(content: str = "", kind: str = "application/xop+xml") -> tuple[str, bytes]:
    return f"Content-Type: {kind}\r\nContent-ID: <root>", envelope(content)


def part(name: str = "x", content: bytes = b"data") -> tuple[str, bytes]:
    return f"Content-Type: image/png\r\nContent-ID: <{name}>", content


def read(media: str, data: bytes) -> tuple[Envelope, list[Part]]:
    found, _ = receive_package(media, data, DEFAULT)
    return found, decode_package(found.attachments).parts if found.attachments else []


def test_a_message_in_mtom_has_its_parts_byte_for_byte() -> None:
    content = bytes(range(256)) * 10 + b"\r\n--\r\n"
    found, parts = read(MTOM, body(root(include()), part(content=content)))
    assert XOP_NS.encode() in found.body
    assert parts == [Part(b"Content-Type: image/png\r\nContent-ID: <x>", content)]
    assert decode_package(found.attachments).is_mtom


def test_the_start_names_the_root_wherever_it_is() -> None:
    found, parts = read(MTOM, body(part(), root(include())))
    assert (found.body[:3], len(parts)) == (b"<a>", 1)
    found, parts = read(SWA, body(root(kind="text/xml"), part()))
    assert (found.body, len(parts), decode_package(found.attachments).is_mtom) == (b"<a></a>", 1, False)


def test_content_ids_in_urls_are_percent_encoded() -> None:
    _, parts = read(MTOM, body(root(include("cid:1@urn%3Alive%3Ablob")), part("1@urn:live:blob")))
    assert content_id(parts[0].fields) == "1@urn:live:blob"


def test_a_part_that_only_a_swaref_names_belongs_to_a_message_in_mtom() -> None:
    _, parts = read(MTOM, body(root("<ref>cid:x%40y</ref>"), part("x@y")))
    assert len(parts) == 1


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (body(root(include())), "<x>, which is missing"),
        (envelope(include()), "<x>, which is missing"),
        (body(root(include() + include()), part()), "two xop:Include elements refer"),
        (body(root(), part()), "no xop:Include element refers to the MIME part <x>"),
        (body(root(include()), part(), ("A: b", b"")), "no xop:Include element refers to the MIME part <>"),
        (body(root(include()), part(), part()), "two MIME parts have the Content-ID <x>"),
        (body(root(include("http://elsewhere/")), part()), "not a cid: URL"),
        (body(root(include("cid:")), part()), "not a cid: URL"),
        (body(root(f'<d><i:Include xmlns:i="{XOP_NS}"/></d>'), part()), "has no href"),
        (body(root("<d>text" + include()[3:]), part()), "not the only content"),
        (body(root(include()[:-4] + "<more/></d>"), part()), "not the only content"),
        (
            body(root(f'<d><i:Include xmlns:i="{XOP_NS}" href="cid:x">{include("cid:y")}</i:Include></d>'), part()),
            "inside another one",
        ),
        (body(("Content-ID: <other>", envelope()), part()), "names the MIME part <root> as the start"),
        (body(root(kind="text/plain")), "text/plain, which is not SOAP"),
        (body(("Content-Transfer-Encoding: rot13\r\nContent-ID: <root>", envelope())), "rot13"),
        (body(("Content-Transfer-Encoding: base64\r\nContent-ID: <root>", b"abc")), "not valid base64"),
        (body(root("<unclosed>")), "mismatched tag"),
        (b"--b\r\n\r\n", "before the last boundary"),
    ],
)
def test_parts_and_references_that_do_not_match_are_refused_in_the_senders_version(data: bytes, said: str) -> None:
    with pytest.raises(EnvelopeError, match=re.escape(said)) as refused:
        read(MTOM, data)
    assert refused.value.soap == "1.1"


@pytest.mark.parametrize(
    "media", ["multipart/related", "multipart/related; boundary=", 'multipart/related; boundary="b']
)
def test_a_content_type_without_a_usable_boundary_is_refused(media: str) -> None:
    with pytest.raises(EnvelopeError):
        read(media, body(root()))


def test_a_bare_envelope_is_read_although_its_content_type_promises_parts() -> None:
    found, parts = read(MTOM, envelope())
    assert (found.body, parts) == (b"<a></a>", [])


def test_a_root_in_base64_is_read() -> None:
    head = "Content-Type: text/xml\r\nContent-Transfer-Encoding: base64"
    found, _ = read(SWA, body((head, b64encode(envelope())), part()))
    assert found.body == b"<a></a>"


def test_the_content_of_a_part_is_decoded_when_it_is_read_and_stored_as_it_came() -> None:
    for encoding, sent in (("base64", b"ZGF0YQ=="), ("quoted-printable", b"d=61ta"), ("8bit", b"data"), ("", b"data")):
        assert decoded_content({"content-transfer-encoding": encoding}, sent) == b"data"


@pytest.mark.parametrize("soap", SOAP)
@pytest.mark.parametrize(("media", "kind"), [(MTOM, "application/xop+xml"), (SWA, "text/xml")], ids=["mtom", "swa"])
def test_a_package_is_written_in_any_version_with_the_same_parts_and_bytes(soap: SOAP, media: str, kind: str) -> None:
    parts = [part(content=b"\r\n--\xff\0"), ("Content-ID: <empty>", b"")]
    found, stored = read(media, body(root(include() + "<r>cid:empty</r>", kind), *parts))
    out = Envelope(soap, Addressing.V2005_08, action='urn:"a"', body=found.body, attachments=found.attachments)
    told, written = pack(out, encode(out))
    assert pack(out, encode(out)) == (told, written)
    again, again_stored = read(told, written)
    assert (again.soap, again.body, again_stored, again.action) == (soap, found.body, stored, 'urn:"a"')
    assert again.attachments == found.attachments
