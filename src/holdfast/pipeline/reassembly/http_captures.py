"""HTTP messages and WARC records in a capture, and the end of an envelope, in terms of bytes."""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass
from datetime import UTC, datetime

from holdfast.wire.limits import DEFAULT

_HTTP = re.compile(rb"(?:[A-Z]{3,16} \S{1,8192} HTTP/1\.[01]|HTTP/1\.[01] (\d{3})[^\r\n]*)\r?\n")
_WARC = re.compile(rb"WARC/1\.[01]\r?\n")
_START = re.compile(rb"(?<=\n)(?:[A-Z]{3,16} \S{1,8192} HTTP/1\.[01]\r?\n|HTTP/1\.[01] \d{3}|WARC/1\.[01]\r?\n)")
_END_OF_HEAD = re.compile(rb"\r?\n\r?\n")
_FIELD = re.compile(rb"^([A-Za-z0-9!#$%&'*+.^_`|~-]+):(.*)$", re.M)
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,16})[^\r\n]{0,1024}\r?\n")
_GZIP = 31
"""zlib's number for the format of gzip."""
_MAX_HEAD = 256 << 10
_STEP = 4 << 10
"""Bytes given to gzip at a time: gzip copies the remaining bytes at the end of each member."""
_DOCUMENT = re.compile(rb"(?:\xef\xbb\xbf)?\s*<[A-Za-z_?!]")
"""The beginning of an XML document, except in UTF-16."""
_EDGE = re.compile(
    rb"<(?:[A-Za-z_][\w.-]{0,99}:)?Envelope(?:\s[^<>]*)?>|</(?:[A-Za-z_][\w.-]{0,99}:)?Envelope\s*>|" + _START.pattern
)
"""The start or end of an envelope, or the start of another HTTP message."""
_DECODED_BY_RECORDER = (b"gzip", b"x-gzip", b"deflate", b"br", b"zstd", b"compress")


@dataclass(slots=True)
class Piece:
    """One message of a capture, or the bytes at its place.

    Args:
        at: Its start in the file, in bytes.
        content: The bytes to decode; if there is a problem, the bytes at that place.
        problem: Why it cannot be decoded; "" if it can, or if there is nothing to decode.
        captured_at: Microseconds since 1970, if the capture records it.
    """

    at: int
    content: bytes
    problem: str = ""
    captured_at: int | None = None


def next_piece(data: bytes, at: int) -> tuple[Piece, int]:
    """Return the message that begins at ``at``, and where the next one may begin."""
    warc, http = _WARC.match(data, at), _HTTP.match(data, at)
    first = warc or http
    if first is None:
        if _DOCUMENT.match(data, at) is not None:
            end_of_document = envelope_end(data, at)
            return Piece(at, data[at:end_of_document]), end_of_document
        return _lost(data, at, "neither an envelope nor an HTTP message starts here")
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
    """Return the unreadable bytes up to the next start line.

    If there is none up to ``searched_to``, the search continues after that, so that no byte is searched twice.
    """
    following = _START.search(data, max(at + 1, searched_to))
    end = following.start() if following is not None else len(data)
    return Piece(at, data[at:end], why), end


def envelope_end(data: bytes, at: int, stop: int | None = None) -> int:
    """Return the end of the envelope that starts at ``at``; for anything else, the start of the next HTTP message.

    The search covers only bytes that belong to it.
    """
    stop = len(data) if stop is None else stop
    depth = 0
    for edge in _EDGE.finditer(data, at, stop):
        tag = edge[0]
        if tag[:1] != b"<":
            return edge.start()
        if tag[:2] == b"</":
            depth -= 1
        elif tag[-2:] != b"/>":
            depth += 1
        if depth <= 0:
            return edge.end()
    return stop


def _message(data: bytes, at: int, start: int, fields: dict[bytes, bytes], status: bytes | None) -> tuple[Piece, int]:
    is_chunked = b"chunked" in fields.get(b"transfer-encoding", b"").lower()
    coding = fields.get(b"content-encoding", b"").lower()
    if (is_chunked or coding in _DECODED_BY_RECORDER) and _DOCUMENT.match(data, start) is not None:
        # A recorder may have decoded the body and kept the head; encoded content never begins like XML.
        end = envelope_end(data, start)
        return content_of(at, data[start:end], fields), end
    length = fields.get(b"content-length")
    if is_chunked and _CHUNK.match(data, start) is not None:
        unchunked, end = _unchunked(data, start)
        if unchunked is None:
            return _lost(data, at, "the chunks of this HTTP message are cut off or malformed", end)
        content = unchunked
    elif is_chunked and length is None:  # the recorder removed the chunks, but their content is gzip or MTOM
        following = _START.search(data, start)
        end = following.start() if following is not None else len(data)
        content = data[start:end]
    else:
        if length is not None and (not length.isdigit() or len(length) > 18):
            return _lost(data, at, f"the Content-Length is {length[:40].decode('latin-1')!r}")
        if length is not None:
            end = start + int(length)
        else:  # RFC 9112, 6.3: without a length, a request has no content, and a response extends to the end
            end = start if status is None or status[:1] == b"1" or status in (b"204", b"304") else len(data)
        if end > len(data):
            return _lost(data, at, f"cut off: {len(data) - start} of the {end - start} bytes of this HTTP message")
        content = data[start:end]
    return content_of(at, content, fields), end


def content_of(at: int, content: bytes, fields: dict[bytes, bytes]) -> Piece:
    """Return the message in the content of an HTTP message.

    Args:
        at: Its place.
        content: The content without chunks; encoded as ``fields`` declare, or already decoded by the recorder.
        fields: Fields of its head, with names in lower case.
    """
    media = fields.get(b"content-type", b"").lower()
    if media.startswith((b"multipart/", b"application/xop+xml")):
        told = media.partition(b";")[0].decode("latin-1")
        return Piece(at, content, f"{told} is not supported: envelopes with attachments (MTOM)")
    coding = fields.get(b"content-encoding", b"identity").lower()
    if coding == b"identity" or not content or _DOCUMENT.match(content) is not None:
        return Piece(at, content)
    if coding in (b"gzip", b"x-gzip", b"deflate"):
        return Piece(at, *inflated(content, DEFAULT.max_bytes, _window(coding, content)))
    told = coding.decode("latin-1")[:40]
    return Piece(at, content, f"the Content-Encoding {told} is not supported, only gzip and deflate")


def _window(coding: bytes, content: bytes) -> int:
    """Return zlib's number of the format. RFC 9110, 8.4.1.2: some peers send deflate without zlib's header."""
    if coding != b"deflate":
        return _GZIP
    return 15 if len(content) > 1 and content[0] & 15 == 8 and not int.from_bytes(content[:2]) % 31 else -15


def _record(data: bytes, at: int, start: int, fields: dict[bytes, bytes]) -> tuple[Piece, int]:
    """Parse a WARC record (ISO 28500), which contains an HTTP message, or the resource itself."""
    length = fields.get(b"content-length", b"")
    if not length.isdigit() or len(length) > 18 or start + int(length) > len(data):
        return _lost(data, at, "this WARC record is cut off, or has no valid Content-Length")
    end = start + int(length)
    kind = fields.get(b"warc-type", b"").lower()
    block = data[start:end]
    if kind in (b"request", b"response"):
        piece = next_piece(block, 0)[0]
    elif kind == b"resource":
        piece = Piece(0, block)
    else:
        piece = Piece(0, b"")  # metadata of the capture
    piece.at = at
    piece.captured_at = time_of(fields.get(b"warc-date", b""))
    return piece, end


def time_of(written: bytes) -> int | None:
    """Return microseconds since 1970; None if the text is not a time."""
    try:
        date = datetime.fromisoformat(written.decode("ascii"))
    except ValueError:
        return None
    delta = (date if date.tzinfo else date.replace(tzinfo=UTC)) - datetime(1970, 1, 1, tzinfo=UTC)
    return (delta.days * 86_400 + delta.seconds) * 1_000_000 + delta.microseconds


def _unchunked(data: bytes, at: int) -> tuple[bytes | None, int]:
    """Return the content and its end; None if unreadable: the next message starts in the last chunk or later."""
    parts: list[bytes] = []
    last = at
    while (size := _CHUNK.match(data, at)) is not None:
        start, length = size.end(), int(size[1], 16)
        if length == 0:
            end = _END_OF_HEAD.search(data, size.end() - 2, size.end() + _MAX_HEAD)  # optional trailers
            return (b"".join(parts), end.end()) if end is not None else (None, at)
        last = at
        if start + length > len(data):
            break
        parts.append(data[start : start + length])
        at = start + length
        at += 2 if data[at : at + 2] == b"\r\n" else 1 if data[at : at + 1] == b"\n" else 0
    return None, last


def inflated(data: bytes, limit: int, window: int = _GZIP) -> tuple[bytes, str]:
    """Unpack gzip with one or more members; return the bytes and the problem; with a problem, the packed bytes."""
    parts: list[bytes] = []
    left, at, rest = limit, 0, b""
    member = zlib.decompressobj(window)
    try:
        while rest or at < len(data):
            if not rest:
                rest, at = data[at : at + _STEP], at + _STEP
            if member.eof:
                rest = rest.lstrip(b"\0\r\n")
                member = zlib.decompressobj(window) if rest else member
                continue
            part = member.decompress(rest, left + 1)
            left -= len(part)
            if left < 0:
                return data, f"unpacked, it has more than {limit} bytes"
            parts.append(part)
            rest = member.unused_data
    except zlib.error as error:
        return data, f"the {_name(window)} in it is damaged: {error}"
    if not member.eof:
        return data, f"the {_name(window)} in it is cut off"
    return b"".join(parts), ""


def _name(window: int) -> str:
    return "gzip" if window == _GZIP else "deflate"
