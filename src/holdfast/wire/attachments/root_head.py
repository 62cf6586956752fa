"""The first bytes of the envelope in a message with attachments that is too large to read."""

from __future__ import annotations

import sys

from holdfast.exceptions import EnvelopeError
from holdfast.wire.attachments.mime import Splitter, media_type, read_headers
from holdfast.wire.attachments.package import IDENTITY, content_id, decoded_content
from holdfast.wire.attachments.stored import at_a_border
from holdfast.wire.limits import Limits

PIECE = 64 << 10
"""Bytes of a content in memory that are searched at a time."""
_LONGEST = 3
"""Encoded bytes of one byte, at most: in quoted-printable."""


class RootHead:
    """Finds the root part while the message arrives, and keeps its first bytes alone.

    Args:
        given: The Content-Type of the HTTP message.
        limits: Limits on the envelope, and on the headers of a part.
    """

    def __init__(self, given: str, limits: Limits) -> None:
        self._given = given
        self._limits = limits
        self._splitter: Splitter | None = None
        self._delimiter = b""
        self._start = ""
        self._size = 0
        """Bytes before the next piece."""
        self._fields: dict[str, str] | None = None
        """The headers of the root part, once it is found."""
        self._head = bytearray()
        self._room = limits.max_header_bytes

    @property
    def is_complete(self) -> bool:
        """Whether what follows cannot change the result."""
        return not self._room

    def add(self, piece: bytes) -> None:
        """Read the next piece of the message."""
        if self._room and self._fields is None and piece:
            try:
                piece = self._from_root(piece)
            except EnvelopeError:  # it is not multipart, so no envelope is found
                self._room = 0
        taken = piece[: self._room]
        self._head += taken
        self._room -= len(taken)

    def add_all(self, data: bytes) -> None:
        """Read a whole message."""
        for at in range(0, len(data), PIECE):
            if self.is_complete:
                break
            self.add(data[at : at + PIECE])

    def _from_root(self, piece: bytes) -> bytes:
        """Return the rest of a piece from the beginning of the root part, b"" if that is not there yet."""
        if self._splitter is None:
            # Apache CXF retransmits only the envelope, with the Content-Type of the whole message.
            if piece.lstrip()[:1] == b"<":
                self._fields = {}
                return piece
            _, parameters = media_type(self._given)
            boundary = parameters.get("boundary", "").encode("latin-1", "replace")
            self._delimiter = b"\r\n--" + boundary
            self._start = parameters.get("start", "").strip().removeprefix("<").removesuffix(">")
            # Attachments before the envelope need no memory here, so their number has no limit.
            self._splitter = Splitter(boundary, sys.maxsize, self._limits.max_part_headers)
        before, self._size = self._size, self._size + len(piece)
        self._splitter.feed(piece)
        for part in self._splitter.take():
            fields = read_headers(part.headers)
            if self._start in ("", content_id(fields)):
                self._fields = fields
                if _encoding(fields) not in IDENTITY:
                    self._room *= _LONGEST
                return piece[part.start - before :]
        return b""

    def content(self) -> bytes:
        """Return the first bytes of the envelope, without a Content-Transfer-Encoding; b"" if it is not found."""
        head, end, _ = (
            bytes(self._head).partition(self._delimiter) if self._delimiter else (bytes(self._head), b"", b"")
        )
        fields = self._fields or {}
        if _encoding(fields) in IDENTITY:
            return head
        try:
            return decoded_content(fields, head if end else at_a_border(_encoding(fields), head)[1])
        except EnvelopeError:
            return b""


def _encoding(fields: dict[str, str]) -> str:
    return fields.get("content-transfer-encoding", "").strip().lower()
