"""The split of multipart bodies: every form that stacks write, in pieces of every size, and each malformed one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.exceptions import EnvelopeError, LimitExceeded
from holdfast.wire.attachments.mime import Splitter, media_type, read_headers

BODY = (
    b"\r\n--b\r\nContent-Type: text/xml\r\nContent-ID: <a>\r\n\r\n<a/>"
    b"\r\n--b  \r\n\r\nsecond\r\n--\r\n-b\r\n--b\r\nContent-ID: <c>\r\n\r\n\r\n--b--\r\nepilogue --b"
)
PARTS = [
    (b"Content-Type: text/xml\r\nContent-ID: <a>", b"<a/>"),
    (b"", b"second\r\n--\r\n-b"),
    (b"Content-ID: <c>", b""),
]


def split(data: bytes, size: int = 1 << 20, *, parts: int = 10, headers: int = 100) -> list[tuple[bytes, bytes]]:
    splitter = Splitter(b"b", parts, headers)
    for at in range(0, len(data), size):
        splitter.feed(data[at : at + size])
    return [(one.headers, data[one.start : one.end]) for one in splitter.close()]


@pytest.mark.parametrize("size", [*range(1, 12), 50, 1000])
def test_the_parts_are_the_same_whatever_the_pieces(size: int) -> None:
    assert split(BODY, size) == PARTS


@pytest.mark.parametrize(
    "data",
    [
        b"--b\r\n\r\nx\r\n--b--",
        b"a preamble\r\n--b\r\n\r\nx\r\n--b--\r\n",
        b"\r\n\r\n--b \t\r\n\r\nx\r\n--b--",
        b"--b\r\n\r\nx\r\n--b--\r\n--b\r\n\r\nnever read",
    ],
)
def test_a_preamble_an_epilogue_and_white_space_after_a_boundary_are_skipped(data: bytes) -> None:
    assert split(data) == [(b"", b"x")]


def test_the_line_break_of_an_empty_part_may_be_that_of_its_blank_line() -> None:
    assert split(b"--b\r\nA: b\r\n\r\n--b\r\nC: d\r\n\r\n\r\n--b--") == [(b"A: b", b""), (b"C: d", b"")]


@given(st.lists(st.binary(max_size=40).filter(lambda one: b"\r\n--b" not in b"\r\n" + one), min_size=1, max_size=5))
def test_any_contents_come_out_as_they_were(contents: list[bytes]) -> None:
    data = b"".join(b"\r\n--b\r\nA: b\r\n\r\n" + one for one in contents) + b"\r\n--b--"
    assert [content for _, content in split(data, 3)] == contents


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "before the first boundary"),
        (b"<a/>", "before the first boundary"),
        (b"--b\r\n\r\nx", "before the last boundary"),
        (b"--b\r\n\r\nx\r\n--b", "before the last boundary"),
        (b"--b\r\n\r\nx\r\n--b-", "before the last boundary"),
        (b"--b\r\nA: b\r\n", "before the last boundary"),
        (b"--b--", "has no part"),
        (b"--bc\r\n\r\nx\r\n--b--", "and then continues"),
        (b"--b\r\n\r\nx\r\n--b\n--b--", "and then continues"),
    ],
)
@pytest.mark.parametrize("size", [1, 1000])
def test_a_malformed_body_is_refused(data: bytes, said: str, size: int) -> None:
    with pytest.raises(EnvelopeError, match=said):
        split(data, size)


def test_parts_headers_and_boundaries_are_bounded() -> None:
    with pytest.raises(LimitExceeded, match="more than 10 MIME parts"):
        split(b"--b\r\n\r\nx\r\n" * 11 + b"--b--")
    for size in (1, 1000):
        with pytest.raises(LimitExceeded, match="100 bytes of headers"):
            split(b"--b\r\nA: " + b"b" * 1000 + b"\r\n\r\nx\r\n--b--", size)
    assert split(b"--b\r\nA: " + b"b" * 97 + b"\r\n\r\nx\r\n--b--")
    for boundary in (b"", b"b" * 257, b"a\r\nb", b"b ", "ä".encode()):
        with pytest.raises(EnvelopeError, match="boundary"):
            Splitter(boundary, 10, 100)


def test_a_long_body_in_small_pieces_is_held_a_piece_at_a_time() -> None:
    splitter = Splitter(b"b", 10, 100)
    splitter.feed(b"--b\r\n\r\n")
    for _ in range(1000):
        splitter.feed(b"\r\n--\r\n" * 100)
        assert len(splitter._buffer) < 20
    splitter.feed(b"\r\n--b--")
    (part,) = splitter.close()
    assert part.end - part.start == 600_000


def test_headers_may_be_folded_and_have_any_case() -> None:
    headers = read_headers(b"Content-Type: text/xml;\r\n\tcharset=utf-8\r\nCONTENT-ID :  <a@b> \r\nX-Empty:")
    assert headers == {"content-type": "text/xml; charset=utf-8", "content-id": "<a@b>", "x-empty": ""}
    assert read_headers(b"") == {}


@pytest.mark.parametrize("block", [b"no colon", b" a: b", b"a\0: b", b"a: b\nc: d", b"Content-ID: a\r\ncontent-id: b"])
def test_lines_that_are_no_headers_are_refused(block: bytes) -> None:
    with pytest.raises(EnvelopeError):
        read_headers(block)


def test_content_types_of_stacks_are_read_with_their_parameters() -> None:
    cxf = (
        'multipart/related; type="application/xop+xml"; boundary="uuid:e2"; start="<root@cxf>"; '
        'start-info="application/soap+xml; action=\\"urn:live:blob/mirror\\""'
    )
    assert media_type(cxf) == (
        "multipart/related",
        {
            "type": "application/xop+xml",
            "boundary": "uuid:e2",
            "start": "<root@cxf>",
            "start-info": 'application/soap+xml; action="urn:live:blob/mirror"',
        },
    )
    assert media_type("Multipart/Related;BOUNDARY=a;; start = b ;") == (
        "multipart/related",
        {"boundary": "a", "start": "b"},
    )


@pytest.mark.parametrize("value", ["", "text", "a/b; c", 'a/b; c="d', "a/b; c=d e", "a/b; c=d; C=e"])
def test_malformed_content_types_are_refused(value: str) -> None:
    with pytest.raises(EnvelopeError):
        media_type(value)
