"""The files of recorders: WCF's message log (.svclog), HAR, Fiddler's SAZ, mitmproxy's flows.

Packet captures and access logs are refused by name, with a way to convert them. The forty lines here read mitmproxy's
format, which has not changed since 2012; mitmproxy's library would bring thirty packages and changes with each release.
Every reader has limits on the bytes of the file, on unpacked bytes, and on depth.
"""

from __future__ import annotations

import re
import zipfile
import zlib
from base64 import b64decode
from collections.abc import Callable, Iterator
from io import BytesIO
from typing import Any

import msgspec

from holdfast.pipeline.reassembly.http_captures import Piece, content_of, envelope_end, next_piece, time_of
from holdfast.wire.limits import DEFAULT

Recorder = Callable[[bytes, int], Iterator[Piece]]
"""Reads a file, unpacking its messages up to this many bytes."""

_HEAD = 4_096
"""Bytes at the start of a file that identify its kind."""


def recorder_of(data: bytes) -> Recorder | None:
    """Return the reader of a file; None for other kinds."""
    head = data[:_HEAD].removeprefix(b"\xef\xbb\xbf").lstrip()
    if head[:1] == b"<" and _SVCLOG.search(head) is not None:
        return svclog
    if head[:1] == b"{" and b'"log"' in head:
        return har
    if head[:4] == b"PK\3\4":
        return saz
    if _FLOWS.match(data) is not None:
        return mitmproxy_flows
    if data[:4] in _PACKETS:
        return _packets
    if _ACCESS_LOG.match(head) is not None:
        return _access_log
    return None


def _is_refused(data: bytes, problem: str) -> Iterator[Piece]:
    yield Piece(0, data[: DEFAULT.max_bytes], problem)


# --- what is refused by name ------------------------------------------------------------------------------------------

_PACKETS = (b"\xd4\xc3\xb2\xa1", b"\xa1\xb2\xc3\xd4", b"\x4d\x3c\xb2\xa1", b"\xa1\xb2\x3c\x4d", b"\x0a\x0d\x0d\x0a")
_ACCESS_LOG = re.compile(rb'\S{1,256} \S{1,256} \S{1,256} \[\d{1,2}/[A-Za-z]{3}/\d{4}:[^\]]{1,64}\] "')


def _packets(data: bytes, _limit: int) -> Iterator[Piece]:
    return _is_refused(
        data,
        "a packet capture (pcap) is not supported. Convert it with `tcpflow -r FILE -o DIRECTORY`, or, if the "
        "traffic is encrypted and you have its keys, with `tshark -r FILE --export-objects http,DIRECTORY`. Then "
        "reassemble DIRECTORY",
    )


def _access_log(data: bytes, _limit: int) -> Iterator[Piece]:
    return _is_refused(
        data,
        "an access log contains no messages. Record the traffic with a proxy that keeps bodies (mitmproxy, "
        "Fiddler), or turn on message logging in the service",
    )


# --- WCF --------------------------------------------------------------------------------------------------------------

_SVCLOG = re.compile(rb"<(?:E2ETraceEvent|MessageLogTraceRecord)[\s>]")
_RECORD = re.compile(rb"<MessageLogTraceRecord\s([^<>]{0,4096})>")
_ATTRIBUTE = re.compile(rb"(Time|Source)=[\"']([^\"']{0,100})[\"']")
_ENVELOPE = re.compile(rb"<(?:[A-Za-z_][\w.-]{0,99}:)?Envelope[\s>]")
_AT_TRANSPORT = re.compile(rb"<MessageLogTraceRecord\s[^<>]{0,4096}Source=[\"']Transport")
_END_OF_RECORD = b"</MessageLogTraceRecord>"
_STREAMED = re.compile(rb"Body[^<>]{0,200}>\s*\.\.\. stream \.\.\.")


def svclog(data: bytes, _limit: int) -> Iterator[Piece]:
    """Yield the messages of a WCF message log: those of the transport level, as on the wire, or else of the service
    level."""
    is_at_transport = _AT_TRANSPORT.search(data) is not None
    at = 0
    while record := _RECORD.search(data, at):
        end = data.find(_END_OF_RECORD, record.end())
        if end < 0:
            yield Piece(
                record.start(), data[record.start() :][: DEFAULT.max_bytes], "this record of the log is cut off"
            )
            return
        at = end + len(_END_OF_RECORD)
        said = dict(_ATTRIBUTE.findall(record[1]))
        if is_at_transport and said.get(b"Source", b"").startswith(b"ServiceLevel"):
            continue
        envelope = _ENVELOPE.search(data, record.end(), end)
        place, when = record.start(), time_of(said.get(b"Time", b""))
        if envelope is None:
            is_empty = b"<HttpRequest" in data[record.end() : end] or b"<HttpResponse" in data[record.end() : end]
            problem = "" if is_empty else "WCF logged an entry here that is not an envelope"
            yield Piece(place, b"" if is_empty else data[record.end() : end], problem, when)
            continue
        content = data[envelope.start() : envelope_end(data, envelope.start(), end)]
        problem = (
            "WCF did not log the Body of this message, because it was streamed" if _STREAMED.search(content) else ""
        )
        yield Piece(place, content, problem, when)


# --- HAR --------------------------------------------------------------------------------------------------------------


class _Body(msgspec.Struct):
    text: str | None = None
    encoding: str | None = None
    mimeType: str | None = None  # HAR's name


class _Request(msgspec.Struct):
    postData: _Body | None = None


class _Response(msgspec.Struct):
    content: _Body | None = None


class _Entry(msgspec.Struct):
    request: _Request
    response: _Response
    startedDateTime: str = ""
    time: float | None = None


class _Log(msgspec.Struct):
    entries: list[_Entry]


class _Har(msgspec.Struct):
    log: _Log


_decode_har = msgspec.json.Decoder(_Har).decode
_DECLARATION = re.compile(r"\A\ufeff?\s*<\?xml\s[^<>]{0,200}\?>")


def har(data: bytes, _limit: int) -> Iterator[Piece]:
    """Yield the messages of an HTTP archive (HAR 1.2). A message's place is its number: two for each entry."""
    try:
        entries = _decode_har(data.removeprefix(b"\xef\xbb\xbf")).log.entries
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        yield Piece(0, data[: DEFAULT.max_bytes], f"this is not an HTTP archive (HAR): {error}")
        return
    for number, entry in enumerate(entries):
        begun = time_of(entry.startedDateTime.encode())
        ended = None if begun is None else begun + round(1e3 * min(max(entry.time or 0.0, 0.0), 1e9))
        yield _har_body(2 * number, entry.request.postData, begun)
        yield _har_body(2 * number + 1, entry.response.content, ended)


def _har_body(at: int, body: _Body | None, when: int | None) -> Piece:
    if body is None or not body.text:
        return Piece(at, b"", captured_at=when)
    if body.encoding == "base64":
        try:
            content = b64decode(body.text, validate=True)
        except ValueError:
            return Piece(
                at, body.text.encode(errors="replace"), "its content is not base64, although the HAR says so", when
            )
    else:  # text, whatever its original encoding
        content = _DECLARATION.sub("", body.text).encode(errors="replace")
    piece = content_of(at, content, {b"content-type": (body.mimeType or "").encode(errors="replace")})
    piece.captured_at = when
    return piece


# --- SAZ --------------------------------------------------------------------------------------------------------------

_SESSION = re.compile(r"(?:\A|.*/)raw/(\d{1,12})_([cs])\.txt\Z", re.I)
_TIMER = {
    "c": re.compile(rb'ClientDoneRequest="([^"]{1,64})"'),
    "s": re.compile(rb'ServerDoneResponse="([^"]{1,64})"'),
}
_MOST_METADATA = 1 << 20


def saz(data: bytes, limit: int) -> Iterator[Piece]:
    """Yield the messages of a Fiddler archive. A message's place is its number: two for each session."""
    try:
        with zipfile.ZipFile(BytesIO(data)) as archive:
            yield from _sessions(archive, limit)
    except _UNZIPPING as error:
        yield Piece(0, data[: DEFAULT.max_bytes], f"this archive is damaged: {error}")


_UNZIPPING = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError, OSError)


def _sessions(archive: zipfile.ZipFile, limit: int) -> Iterator[Piece]:
    found = {}
    for info in archive.infolist():
        if (name := _SESSION.match(info.filename)) is not None:
            found[int(name[1]), name[2].lower()] = info
    if not found:
        yield Piece(
            0, b"", "this zip has no raw/1_c.txt, so it is not from Fiddler. Unpack it, and reassemble its contents"
        )
    left = limit
    for (number, side), info in sorted(found.items(), key=lambda one: one[0]):
        at = 2 * number + (side == "s")
        if info.flag_bits & 1:
            yield Piece(at, b"", "this archive is encrypted. Save it from Fiddler without a password")
            return
        try:
            with archive.open(info) as file:
                raw = file.read(left + 1)
        except _UNZIPPING as error:
            yield Piece(at, b"", f"{info.filename} is damaged: {error}")
            continue
        left -= len(raw)
        if left < 0:
            yield Piece(at, b"", f"unpacked, this archive has more than {limit} bytes")
            return
        piece = next_piece(raw, 0)[0] if raw.strip() else Piece(at, b"")
        piece.at, piece.captured_at = at, _session_time(archive, info.filename, side)
        yield piece


def _session_time(archive: zipfile.ZipFile, name: str, side: str) -> int | None:
    try:
        with archive.open(f"{name[:-5]}m.xml") as file:
            timer = _TIMER[side].search(file.read(_MOST_METADATA))
    except (KeyError, *_UNZIPPING):
        return None
    return time_of(timer[1]) if timer is not None else None


# --- mitmproxy --------------------------------------------------------------------------------------------------------

_FLOWS = re.compile(rb"\d{1,12}:\d{1,12}:[a-z_]{1,40}[;,]")
"""The start of a dictionary as a tnetstring, up to its first key."""
_LENGTH = re.compile(rb"(\d{1,12}):")
_DEEPEST = 16


def mitmproxy_flows(data: bytes, _limit: int) -> Iterator[Piece]:
    """Yield the messages of a file of flows. A message's place is its number: two for each flow."""
    at = number = 0
    while at < len(data):
        try:
            flow, end = _tnetstring(data, at, len(data), _DEEPEST)
        except ValueError as error:
            yield Piece(2 * number, data[at:][: DEFAULT.max_bytes], f"this flow of mitmproxy is damaged: {error}")
            return
        at = end
        if isinstance(flow, dict) and flow.get("type") in ("http", b"http"):
            yield _flow_message(2 * number, flow.get("request"))
            if flow.get("response") is not None:
                yield _flow_message(2 * number + 1, flow["response"])
        number += 1


def _flow_message(at: int, said: Any) -> Piece:
    said = said if isinstance(said, dict) else {}
    content, begun = said.get("content"), said.get("timestamp_start")
    when = round(begun * 1e6) if isinstance(begun, float) and 0 <= begun < 1e11 else None
    if not isinstance(content, bytes):
        return Piece(at, b"", "mitmproxy did not record the body, because it was streamed", when)
    headers = said.get("headers")
    fields = {}
    for pair in headers if isinstance(headers, list) else ():
        if isinstance(pair, list) and len(pair) == 2 and all(isinstance(one, bytes) for one in pair):
            fields[pair[0].lower()] = pair[1]
    piece = content_of(at, content, fields)
    piece.captured_at = when
    return piece


def _tnetstring(data: bytes, at: int, end: int, deepest: int) -> tuple[Any, int]:
    """Return the value that starts at ``at``, and its end.

    Raises:
        ValueError: It is cut off, invalid, or nested too deep.
    """
    length = _LENGTH.match(data, at, end)
    if length is None:
        raise ValueError(f"no length at byte {at}")
    start = length.end()
    stop = start + int(length[1])
    if stop >= end:
        raise ValueError(f"cut off at byte {at}")
    kind = data[stop : stop + 1]
    if kind in b"]}":
        if not deepest:
            raise ValueError(f"nested too deep at byte {at}")
        values = []
        while start < stop:
            value, start = _tnetstring(data, start, stop, deepest - 1)
            values.append(value)
        return (values if kind == b"]" else _dictionary(values)), stop + 1
    return _scalar(kind, data[start:stop]), stop + 1


def _dictionary(values: list[Any]) -> dict[Any, Any]:
    keys = [key.decode("latin-1") if isinstance(key, bytes) else key for key in values[::2]]
    if len(values) % 2 or not all(isinstance(key, str) for key in keys):
        raise ValueError("a dictionary without its keys")
    return dict(zip(keys, values[1::2], strict=True))


def _scalar(kind: bytes, raw: bytes) -> Any:
    match kind:
        case b",":
            return raw
        case b";":
            return raw.decode("utf-8", "replace")
        case b"#":
            return int(raw) if len(raw) < 40 else 0
        case b"^":
            return float(raw[:64])
        case b"!":
            return raw == b"true"
        case b"~":
            return None
    raise ValueError(f"no such type: {kind!r}")
