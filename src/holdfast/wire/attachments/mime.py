"""Split the body of a ``multipart/related`` message into its parts (RFC 2046 section 5.1), piece by piece.

Finds where the parts are and never copies their content, so a body may be larger than memory. Libraries for forms do
not fit: they demand a Content-Disposition, and refuse a preamble and folded header lines, which SOAP stacks write.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from holdfast.exceptions import EnvelopeError, LimitExceeded

MAX_BOUNDARY = 256
"""Characters of a boundary. RFC 2046 allows 70, but stacks exceed it."""
_PADDING = 256
"""Bytes of white space after a boundary on its line."""

_BOUNDARY = re.compile(rb"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?")
_MEDIA = re.compile(r"\s*([!#$%&'*+.^_`|~\w-]+/[!#$%&'*+.^_`|~\w-]+)\s*", re.ASCII)
_PARAMETER = re.compile(r""";\s*(?:([!#$%&'*+.^_`|~\w-]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s;"]*))\s*)?""", re.ASCII)
_HEADER = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+)[ \t]*:[ \t]*(.*?)[ \t]*", re.DOTALL)
_FOLD = re.compile(rb"\r\n[ \t]+")


@dataclass(frozen=True, slots=True)
class Range:
    """The place of a part in a multipart body.

    Args:
        headers: Its header block as it came, without the blank line.
        start, end: Offsets of its content.
    """

    headers: bytes
    start: int
    end: int


_PREAMBLE, _HEADERS, _CONTENT, _LINE, _EPILOGUE = range(5)


class Splitter:
    """The parts of one multipart body that arrives in pieces (RFC 2046 section 5.1).

    Args:
        boundary: The boundary, without the two hyphens before it.
        max_parts: Maximum number of parts.
        max_header_bytes: Maximum bytes of one part's header block.

    Raises:
        EnvelopeError: The boundary is not valid.
    """

    def __init__(self, boundary: bytes, max_parts: int, max_header_bytes: int) -> None:
        if len(boundary) > MAX_BOUNDARY or _BOUNDARY.fullmatch(boundary) is None:
            raise EnvelopeError(f"the multipart boundary {boundary[:MAX_BOUNDARY]!r} is not valid")
        self._delimiter = b"\r\n--" + boundary
        self._max_parts = max_parts
        self._max_header_bytes = max_header_bytes
        self._state = _PREAMBLE
        self._buffer = b"\r\n"  # the line break before the first boundary may be missing
        self._at = 0
        """Where the unread bytes of the buffer begin."""
        self._base = -2
        """Offset of the buffer's first byte in the body."""
        self._headers = b""
        self._start = 0
        self._parts: list[Range] = []

    def feed(self, piece: bytes) -> None:
        """Read the next piece of the body.

        Raises:
            LimitExceeded: There are too many parts, or the headers of a part are too long.
            EnvelopeError: A line continues after the boundary.
        """
        if self._state == _EPILOGUE:
            return
        self._buffer += piece
        while self._step():
            pass
        self._base += self._at
        self._buffer = self._buffer[self._at :]
        self._at = 0

    def _step(self) -> bool:
        """Read as far as one boundary, line or header block; return whether it was whole."""
        if self._state == _LINE:
            return self._read_line()
        if self._state == _HEADERS:
            return self._read_headers()
        if self._state == _EPILOGUE:
            self._at = len(self._buffer)
            return False
        found = self._buffer.find(self._delimiter, self._at)
        if found < 0:
            self._at = max(self._at, len(self._buffer) - len(self._delimiter) + 1)
            return False
        if self._state == _CONTENT:
            # The line break before the boundary of an empty part may be that of the blank line.
            self._parts.append(Range(self._headers, self._start, max(self._start, self._base + found)))
        self._at = found + len(self._delimiter)
        self._state = _LINE
        return True

    def _read_line(self) -> bool:
        buffer, at = self._buffer, self._at
        if buffer.startswith(b"--", at):
            self._state = _EPILOGUE
            return True
        end = buffer.find(b"\r\n", at, at + _PADDING + 2)
        padding = buffer[at : end if end >= 0 else at + _PADDING + 1]
        if end < 0 and padding in (b"-", b"\r"):
            return False
        if (padding if end >= 0 else padding.removesuffix(b"\r")).strip(b" \t") or len(padding) > _PADDING:
            raise EnvelopeError("a line of the message begins with the multipart boundary and then continues")
        if end < 0:
            return False
        if len(self._parts) == self._max_parts:
            raise LimitExceeded(f"the message has more than {self._max_parts} MIME parts")
        self._at = end  # the line break stays: with it, a blank line always looks the same
        self._state = _HEADERS
        return True

    def _read_headers(self) -> bool:
        most = self._at + self._max_header_bytes + 6
        end = self._buffer.find(b"\r\n\r\n", self._at, most)
        if end < 0:
            if len(self._buffer) >= most:
                raise LimitExceeded(f"a MIME part has more than {self._max_header_bytes} bytes of headers")
            return False
        self._headers = self._buffer[self._at + 2 : end]
        self._start = self._base + end + 4
        self._at = end + 2
        self._state = _CONTENT
        return True

    def take(self) -> list[Range]:
        """Return the new parts, the last of which may go on, and forget them."""
        parts, self._parts = self._parts, []
        if self._state == _CONTENT:
            parts.append(Range(self._headers, self._start, self._start))
        return parts

    def close(self) -> list[Range]:
        """Return the parts of the complete body.

        Raises:
            EnvelopeError: The body has no part, or ends before its last boundary.
        """
        if self._state != _EPILOGUE:
            missing = "the first" if self._state == _PREAMBLE else "the last"
            raise EnvelopeError(f"the multipart body ends before {missing} boundary --{self._delimiter[4:].decode()}")
        if not self._parts:
            raise EnvelopeError("the multipart body has no part")
        return self._parts


def read_headers(block: bytes) -> dict[str, str]:
    """Return the headers of a part, names in lower case.

    Raises:
        EnvelopeError: A line is not a header, or a header that describes the content is there twice.
    """
    headers: dict[str, str] = {}
    for line in _FOLD.sub(b" ", block).split(b"\r\n") if block else ():
        found = _HEADER.fullmatch(line)
        if found is None or b"\n" in line or b"\r" in line or b"\0" in line:
            raise EnvelopeError(f"{line[:100]!r} is not a header of a MIME part")
        name = found[1].decode().lower()
        if name in headers and name.startswith("content-"):
            raise EnvelopeError(f"a MIME part has two {name} headers")
        headers[name] = found[2].decode("utf-8", "replace")
    return headers


def media_type(value: str) -> tuple[str, dict[str, str]]:
    """Return the media type of a Content-Type in lower case, and its parameters, names in lower case.

    Raises:
        EnvelopeError: It is not a Content-Type, or a parameter is there twice.
    """
    found = _MEDIA.match(value)
    parameters: dict[str, str] = {}
    if found is None:
        raise EnvelopeError(f"the Content-Type {value[:100]!r} is not valid")
    at = found.end()
    while at < len(value):
        one = _PARAMETER.match(value, at)
        if one is None:
            raise EnvelopeError(f"the Content-Type {value[:200]!r} is not valid")
        at = one.end()
        if one[1] is None:
            continue
        name = one[1].lower()
        if name in parameters:
            raise EnvelopeError(f"the Content-Type has two parameters {name!r}")
        parameters[name] = re.sub(r"\\(.)", r"\1", one[2]) if one[2] is not None else one[3]
    return found[1].lower(), parameters
