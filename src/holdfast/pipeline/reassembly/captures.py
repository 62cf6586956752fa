"""Captures: the SOAP messages in files of any supported kind.

A file contains one or more envelopes; or HTTP requests and responses with their headers, one after another, as
``tcpflow`` writes them from packets; or WARC records of them; or it is the file of a recorder (``recorders``). Each may
be compressed with gzip. Other content is reported with its place, and the search continues at the next start line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from holdfast.pipeline.reassembly.http_captures import Piece, inflated, next_piece
from holdfast.pipeline.reassembly.recorders import recorder_of
from holdfast.wire.limits import DEFAULT

MAX_INFLATED = 256 << 20
"""Maximum of unpacked bytes of one gzip or zip file: a small file must not fill the memory of a task."""

_NO_SPACE = re.compile(rb"[^\s\0]")
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")


def pieces(data: bytes) -> Iterator[Piece]:
    """Yield the messages of one file in order, in time proportional to its size."""
    if data[:2] == b"\x1f\x8b":
        data, problem = inflated(data, MAX_INFLATED)
        if problem:
            yield Piece(0, data[: DEFAULT.max_bytes], problem)
            return
    if data[:2] in _UTF_16 or not data.strip(b"\xef\xbb\xbf\0 \t\r\n") or _is_utf_16(data):
        recorder = recorder_of(data[2:].replace(b"\0", b"")[:4096]) if data[:2] in _UTF_16 else None
        if recorder is None:
            yield Piece(0, data)
            return
        data = data.decode("utf-16", "replace").encode()
    recorder = recorder_of(data)
    if recorder is not None:
        yield from recorder(data, MAX_INFLATED)
        return
    at = 0
    while begin := _NO_SPACE.search(data, at):
        piece, at = next_piece(data, begin.start())
        yield piece


def _is_utf_16(data: bytes) -> bool:
    """Whether it begins like XML in UTF-16 without a byte order mark."""
    return data[:2] in (b"<\0", b"\0<")
