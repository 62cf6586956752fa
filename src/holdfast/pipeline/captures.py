"""Captures: the SOAP messages in a file of any kind that tools record traffic in. Bytes only; knows no XML.

An envelope; HTTP requests and responses with their heads, one after another, as ``tcpflow`` writes them from packets;
WARC records of such; each as it is or in gzip. What is none of these is told with its place, and the search goes on at
the next start line.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from holdfast.wire.limits import DEFAULT

MAX_INFLATED = 256 << 20
"""Bytes of one file in gzip, unpacked: a small file must not fill the memory of a task."""

_HTTP = re.compile(rb"(?:[A-Z]{3,16} \S{1,8192} HTTP/1\.[01]|HTTP/1\.[01] (\d{3})[^\r\n]*)\r?\n")
_WARC = re.compile(rb"WARC/1\.[01]\r?\n")
_START = re.compile(rb"(?<=\n)(?:[A-Z]{3,16} \S{1,8192} HTTP/1\.[01]\r?\n|HTTP/1\.[01] \d{3}|WARC/1\.[01]\r?\n)")
_END_OF_HEAD = re.compile(rb"\r?\n\r?\n")
_FIELD = re.compile(rb"^([A-Za-z0-9!#$%&'*+.^_`|~-]+):(.*)$", re.M)
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,16})[^\r\n]{0,1024}\r?\n")
_MAX_HEAD = 256 << 10
_STEP = 4 << 10
"""Bytes given to gzip at a time: it copies what is left of them at the end of each of its members."""
_NO_SPACE = re.compile(rb"[^\s\0]")


@dataclass(slots=True)
class Piece:
    """One message of a capture, or what stands where one should.

    Args:
        at: Where it begins in the file, in bytes.
        content: What is to be decoded; what stands there if there is a problem.
        problem: Why it cannot be decoded; "" if it can, or if there is nothing to decode.
        captured_at: Microseconds since 1970, if the capture says so.
    """

    at: int
    content: bytes
    problem: str = ""
    captured_at: int | None = None


def pieces(data: bytes) -> Iterator[Piece]:
    """The messages of one file, in the order in which they stand there. Takes time in proportion to its size."""
    if data[:2] == b"\x1f\x8b":
        data, problem = _inflated(data, MAX_INFLATED)
        if problem:
            yield Piece(0, data[: DEFAULT.max_bytes], problem)
            return
    if _HTTP.match(data) is None and _WARC.match(data) is None and _is_one_document(data):
        yield Piece(0, data)
        return
    at = 0
    while begin := _NO_SPACE.search(data, at):
        piece, at = _next(data, begin.start())
        yield piece


def _is_one_document(data: bytes) -> bool:
    """Whether it begins as XML does, in any encoding that there is; an empty file is an empty message."""
    start = data[:64].lstrip(b"\xef\xbb\xbf\xff\xfe\0 \t\r\n")
    return start[:1] == b"<" or not start


def _next(data: bytes, at: int) -> tuple[Piece, int]:
    """The message that begins at ``at``, and where the next one may begin."""
    warc, http = _WARC.match(data, at), _HTTP.match(data, at)
    first = warc or http
    if first is None:
        return _lost(data, at, "neither an envelope nor an HTTP message begins here")
    end = _END_OF_HEAD.search(data, first.end() - 2, first.end() + _MAX_HEAD)
    if end is None:
        return _lost(data, at, "the head of this HTTP message does not end", min(first.end() + _MAX_HEAD, len(data)))
    fields = _fields(data[first.end() : end.start()])
    if warc is not None:
        return _record(data, at, end.end(), fields)
    assert http is not None
    return _message(data, at, end.end(), fields, http[1])


def _fields(head: bytes) -> dict[bytes, bytes]:
    return {name.lower(): value.strip() for name, value in _FIELD.findall(head)}


def _lost(data: bytes, at: int, why: str, searched_to: int = 0) -> tuple[Piece, int]:
    """What cannot be read, up to the next start line; where none was found up to ``searched_to``, after that: so that
    nothing is gone through twice."""
    following = _START.search(data, max(at + 1, searched_to))
    end = following.start() if following is not None else len(data)
    return Piece(at, data[at:end], why), end


def _message(data: bytes, at: int, start: int, fields: dict[bytes, bytes], status: bytes | None) -> tuple[Piece, int]:
    if b"chunked" in fields.get(b"transfer-encoding", b"").lower():
        unchunked, end = _unchunked(data, start)
        if unchunked is None:
            return _lost(data, at, "the chunks of this HTTP message are cut off or malformed", end)
        content = unchunked
    else:
        length = fields.get(b"content-length")
        if length is not None and (not length.isdigit() or len(length) > 18):
            return _lost(data, at, f"the Content-Length is {length[:40].decode('latin-1')!r}")
        if length is not None:
            end = start + int(length)
        else:  # RFC 9112, 6.3: a request without a length has no content, a response goes on to the end
            end = start if status is None or status[:1] == b"1" or status in (b"204", b"304") else len(data)
        if end > len(data):
            return _lost(data, at, f"cut off: {len(data) - start} of the {end - start} bytes of this HTTP message")
        content = data[start:end]
    return _content(at, content, fields), end


def _content(at: int, content: bytes, fields: dict[bytes, bytes]) -> Piece:
    media = fields.get(b"content-type", b"").lower()
    if media.startswith((b"multipart/", b"application/xop+xml")):
        told = media.partition(b";")[0].decode("latin-1")
        return Piece(at, content, f"{told} is not read: envelopes with attachments (MTOM) are not supported")
    coding = fields.get(b"content-encoding", b"identity").lower()
    if coding in (b"gzip", b"x-gzip") and content:
        return Piece(at, *_inflated(content, DEFAULT.max_bytes))
    if coding != b"identity" and content:
        return Piece(at, content, f"the Content-Encoding {coding.decode('latin-1')[:40]} is not read, only gzip")
    return Piece(at, content)


def _record(data: bytes, at: int, start: int, fields: dict[bytes, bytes]) -> tuple[Piece, int]:
    """A WARC record (ISO 28500): what it holds is an HTTP message, or the resource itself."""
    length = fields.get(b"content-length", b"")
    if not length.isdigit() or len(length) > 18 or start + int(length) > len(data):
        return _lost(data, at, "this WARC record is cut off, or its Content-Length is none")
    end = start + int(length)
    kind = fields.get(b"warc-type", b"").lower()
    block = data[start:end]
    if kind in (b"request", b"response"):
        piece = _next(block, 0)[0]
    elif kind == b"resource":
        piece = Piece(0, block)
    else:
        piece = Piece(0, b"")  # about the capture, not of it
    piece.at = at
    piece.captured_at = _date(fields.get(b"warc-date", b""))
    return piece, end


def _date(written: bytes) -> int | None:
    try:
        date = datetime.fromisoformat(written.decode("ascii"))
    except ValueError:
        return None
    delta = (date if date.tzinfo else date.replace(tzinfo=UTC)) - datetime(1970, 1, 1, tzinfo=UTC)
    return (delta.days * 86_400 + delta.seconds) * 1_000_000 + delta.microseconds


def _unchunked(data: bytes, at: int) -> tuple[bytes | None, int]:
    """The content, and where it ends. None: it cannot be read, and what follows begins in the last chunk or after."""
    parts: list[bytes] = []
    last = at
    while (size := _CHUNK.match(data, at)) is not None:
        start, length = size.end(), int(size[1], 16)
        if length == 0:
            end = _END_OF_HEAD.search(data, size.end() - 2, size.end() + _MAX_HEAD)  # trailers, if any
            return (b"".join(parts), end.end()) if end is not None else (None, at)
        last = at
        if start + length > len(data):
            break
        parts.append(data[start : start + length])
        at = start + length
        at += 2 if data[at : at + 2] == b"\r\n" else 1 if data[at : at + 1] == b"\n" else 0
    return None, last


def _inflated(data: bytes, limit: int) -> tuple[bytes, str]:
    """What gzip has packed, in one member or several, and the problem: then the bytes are those that were packed."""
    parts: list[bytes] = []
    left, at, rest = limit, 0, b""
    member = zlib.decompressobj(31)
    try:
        while rest or at < len(data):
            if not rest:
                rest, at = data[at : at + _STEP], at + _STEP
            if member.eof:
                rest = rest.lstrip(b"\0")
                member = zlib.decompressobj(31) if rest else member
                continue
            part = member.decompress(rest, left + 1)
            left -= len(part)
            if left < 0:
                return data, f"unpacked it has more than {limit} bytes"
            parts.append(part)
            rest = member.unused_data
    except zlib.error as error:
        return data, f"the gzip in it is damaged: {error}"
    if not member.eof:
        return data, "the gzip in it is cut off"
    return b"".join(parts), ""
