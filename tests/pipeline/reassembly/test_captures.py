"""The messages in files of every kind, and what stands where one should.

Covers pipeline/reassembly/http_captures.py.
"""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.pipeline.reassembly import captures, http_captures
from holdfast.pipeline.reassembly.captures import pieces
from holdfast.pipeline.reassembly.http_captures import Piece

VECTORS = Path(__file__).parents[2] / "data" / "vectors"
ENVELOPE = b"<Envelope>x</Envelope>"


def request(content: bytes = ENVELOPE, *fields: bytes) -> bytes:
    head = [b"POST /orders?x=1 HTTP/1.1", b"Host: here", *fields, b"Content-Length: %d" % len(content)]
    return b"\r\n".join(head) + b"\r\n\r\n" + content


def chunked(*parts: bytes, end: bytes = b"0\r\n\r\n") -> bytes:
    chunks = b"".join(b"%x;name=value\r\n%b\r\n" % (len(part), part) for part in parts)
    return b"HTTP/1.1 200 OK\r\ntransfer-encoding: Chunked\r\n\r\n" + chunks + end


def warc(block: bytes, kind: bytes = b"request") -> bytes:
    head = b"WARC/1.1\r\nWARC-Type: %b\r\nWARC-Date: 2026-01-02T03:04:05.5Z\r\nContent-Length: %d\r\n\r\n"
    return head % (kind, len(block)) + block + b"\r\n\r\n"


READ = {
    "an envelope": (ENVELOPE, [ENVELOPE]),
    "an envelope in UTF-16": ("<Envelope/>".encode("utf-16"), ["<Envelope/>".encode("utf-16")]),
    "an empty file": (b"", [b""]),
    "nothing but space": (b" \n", [b" \n"]),
    "a request": (request(), [ENVELOPE]),
    "requests one after another": (request() + request(b"<b/>") + b"\r\n" + request(), [ENVELOPE, b"<b/>", ENVELOPE]),
    "a response without a length": (b"HTTP/1.1 200 OK\r\n\r\n" + ENVELOPE, [ENVELOPE]),
    "an answer with nothing in it": (
        b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n" + request(),
        [b"", ENVELOPE],
    ),
    "a status without content": (b"HTTP/1.1 204 No\r\n\r\nHTTP/1.1 100 Go\r\n\r\n" + request(), [b"", b"", ENVELOPE]),
    "a request without content": (b"GET / HTTP/1.0\r\n\r\n" + request(), [b"", ENVELOPE]),
    "line ends without a carriage return": (b"GET / HTTP/1.1\nContent-Length: 4\n\n<a/>", [b"<a/>"]),
    "chunks": (chunked(b"<Enve", b"lope/>") + request(), [b"<Envelope/>", ENVELOPE]),
    "chunks with trailers": (chunked(b"<a/>", end=b"0\r\nA: b\r\n\r\n") + request(), [b"<a/>", ENVELOPE]),
    "gzip on the wire": (request(gzip.compress(ENVELOPE), b"Content-Encoding: gzip"), [ENVELOPE]),
    "gzip around": (gzip.compress(request()) + b"\0\0" + gzip.compress(request(b"<b/>")), [ENVELOPE, b"<b/>"]),
    "WARC": (warc(request()) + warc(b"HTTP/1.1 200 OK\r\n\r\n<b/>", b"response"), [ENVELOPE, b"<b/>"]),
    "WARC of a resource": (warc(ENVELOPE, b"resource") + warc(b"software: x", b"warcinfo"), [ENVELOPE, b""]),
    "WARC in gzip": (gzip.compress(warc(request())) + gzip.compress(warc(request(b"<b/>"))), [ENVELOPE, b"<b/>"]),
}


@pytest.mark.parametrize("kind", READ)
def test_what_can_be_read_is(kind: str) -> None:
    data, contents = READ[kind]
    found = [*pieces(data)]
    assert [piece.problem for piece in found] == [""] * len(contents)
    assert [piece.content for piece in found] == contents


CUT_OFF = b"POST / HTTP/1.1\r\nContent-Length: 500\r\n\r\n<a>"
LOST = {
    "rubbish before": (b"rubbish\n" + request(), "neither an envelope"),
    "a message that is cut off before another": (CUT_OFF + b"\n" + request(), "cut off: 87 of the 500 bytes"),
    "chunks that are cut off": (chunked(b"<a>", end=b"5\r\nab\n") + request(), "chunks"),
    "a chunk that is longer than the file": (chunked(b"<a>", end=b"ffffffff\r\nab\n") + request(), "chunks"),
    "a length that is none": (
        b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n<a>\n" + request(),
        "Content-Length is '-1'",
    ),
    "a head without an end": (b"POST / HTTP/1.1\r\nHost: x", "does not end"),
    "a WARC record that is cut off": (warc(b"x" * 900)[:-800] + b"\n" + request(), "WARC record"),
}


@pytest.mark.parametrize("kind", LOST)
def test_unreadable_content_is_reported_and_the_next_message_is_found(kind: str) -> None:
    data, problem = LOST[kind]
    found = [*pieces(data)]
    lost = [piece for piece in found if piece.problem]
    assert lost and data[lost[0].at :].startswith(lost[0].content)
    assert problem in lost[0].problem
    if data.endswith(ENVELOPE):
        assert found[-1].content == ENVELOPE and not found[-1].problem


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (request(b"--b", b'Content-Type: multipart/related; boundary="b"'), "MTOM"),
        (request(b"x", b"Content-Encoding: br"), "Content-Encoding br"),
        (request(gzip.compress(b"x" * 100, mtime=0)[:-9], b"Content-Encoding: gzip"), "cut off"),
        (request(b"\x1f\x8bx" + bytes(30), b"Content-Encoding: gzip"), "damaged"),
        (gzip.compress(ENVELOPE, mtime=0)[:-9], "cut off"),
    ],
)
def test_what_is_not_read_says_why(data: bytes, problem: str) -> None:
    (piece,) = pieces(data)
    assert problem in piece.problem


def test_a_small_file_does_not_unpack_to_one_that_fills_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(captures, "MAX_INFLATED", 1 << 20)
    (piece,) = pieces(gzip.compress(bytes(1 << 21)))
    assert "more than 1048576 bytes" in piece.problem


def test_a_piece_has_its_place_and_a_record_its_time() -> None:
    first = warc(request())
    found = [*pieces(first + warc(request()))]
    assert [piece.at for piece in found] == [0, len(first)]
    assert found[0].captured_at == 1767323045_500000


def test_every_recorded_exchange_is_read() -> None:
    files = sorted(VECTORS.rglob("*.http"))
    found = [piece for file in files for piece in pieces(file.read_bytes())]
    assert len(found) == len(files) > 500
    assert not [piece.problem for piece in found if piece.problem]


def test_requests_and_answers_of_one_connection_stand_behind_one_another() -> None:
    files = sorted((VECTORS / "wcf").rglob("*.http"))
    whole = b"".join(file.read_bytes() for file in files)
    assert [piece.content for piece in pieces(whole)] == [
        piece.content for file in files for piece in pieces(file.read_bytes())
    ]


shreds = st.sampled_from(
    [
        b"POST / HTTP/1.1\r\n",
        b"HTTP/1.1 200 OK\r\n",
        b"WARC/1.0\r\n",
        b"WARC-Type: request\r\n",
        b"Content-Length: 7\r\n",
        b"Content-Length: 99\r\n",
        b"Transfer-Encoding: chunked\r\n",
        b"Content-Encoding: gzip\r\n",
        b"\r\n",
        b"3\r\nabc\r\n",
        b"0\r\n\r\n",
        b"<a/>",
        b"\x1f\x8b\x08",
        b"\n",
        b"\0",
        zlib.compress(b"x"),
    ]
)


@given(st.lists(shreds | st.binary(max_size=9), max_size=30).map(b"".join))
def test_nothing_in_a_hostile_file_is_passed_over(data: bytes) -> None:
    found: list[Piece] = [*pieces(data)]
    assert [piece.at for piece in found] == sorted({piece.at for piece in found})
    if data[:2] != b"\x1f\x8b":
        if data.strip(b" \t\r\n\x0b\x0c\0"):
            assert found
        for piece, following in zip(found, [*found[1:], Piece(len(data), b"")], strict=True):
            assert piece.problem == "" or data[piece.at : following.at].startswith(piece.content)


@pytest.mark.parametrize(
    "shred",
    [
        b"POST / HTTP/1.1\r\n",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n",
        b"POST / HTTP/1.1\r\na:" + b" " * 999 + b"y\r\n\r\n",
        b"WARC/1.0\r\nContent-Length: 9999999999\r\n\r\n",
    ],
)
def test_a_hostile_file_costs_in_proportion_to_its_size(shred: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted in the bytes that the search for the next message goes through."""
    searched = 0

    class Counting:
        def __init__(self, pattern: object) -> None:
            self.pattern = pattern

        def search(self, data: bytes, start: int = 0, end: int = 1 << 62) -> object:
            nonlocal searched
            found = self.pattern.search(data, start, end)  # type: ignore[attr-defined]
            searched += (found.end() if found is not None else min(end, len(data))) - start
            return found

    for name in ("_START", "_END_OF_HEAD"):
        monkeypatch.setattr(http_captures, name, Counting(getattr(http_captures, name)))
    data = shred * (2_000_000 // len(shred)) + b"3\r\nabc\r\n" * 10_000
    assert [*pieces(data)]
    assert searched < 5 * len(data)
