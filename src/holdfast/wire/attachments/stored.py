"""Messages with attachments that are too large for memory: their parts are in a content of the store.

A message that arrives is written as it comes, piece by piece, and split meanwhile. Only its root part, the envelope,
comes into memory. What an application sends is written part after part.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from hashlib import blake2b
from tempfile import TemporaryFile
from typing import BinaryIO, cast

from holdfast.core.messages import Envelope
from holdfast.core.records import ContentWriter, Hold, with_content
from holdfast.exceptions import EnvelopeError, LimitExceeded, StoreDamaged
from holdfast.positioned_file import PositionedFile
from holdfast.wire.attachments.mime import Range, Splitter, media_type
from holdfast.wire.attachments.package import (
    IDENTITY,
    Package,
    Part,
    boundary_of,
    check_parts,
    decoded_content,
    encode_package,
    split_root,
)
from holdfast.wire.decoding.envelopes import decode
from holdfast.wire.http import soap_of_content_type
from holdfast.wire.limits import Limits

PIECE = 256 << 10
"""Bytes of a content in memory at a time."""


class ArrivingPackage:
    """A message with attachments that arrives in pieces. Use it in one thread at a time."""

    def __init__(self, given: str, writer: ContentWriter, limits: Limits) -> None:
        self._given = given
        self._writer = writer
        self._limits = limits
        self._digest = blake2b(digest_size=16)
        self._splitter: Splitter | None = None
        self._is_bare = False
        """Whether there is only an envelope, without parts."""
        self._is_finished = False
        self._refused: EnvelopeError | None = None

    def write(self, data: bytes) -> None:
        """Write a piece, unless the message is known to be wrong.

        Raises:
            OSError: It cannot be written; for example, the disk is nearly full.
            StoreError: The same, in a database.
        """
        if self._refused is not None or not data:
            return
        try:
            if self._splitter is None and not self._is_bare:
                # Apache CXF retransmits only the envelope, with the Content-Type of the whole message.
                self._is_bare = data.lstrip()[:1] == b"<"
            if not self._is_bare:
                self._split(data)
            elif self._writer.size + len(data) > self._limits.max_bytes:
                raise LimitExceeded(f"the envelope has more than {self._limits.max_bytes} bytes")
        except EnvelopeError as error:
            self._refused = error.with_traceback(None)
            return
        self._digest.update(data)
        self._writer.write(data)

    def _split(self, data: bytes) -> None:
        if self._splitter is None:
            _, parameters = media_type(self._given)
            if "boundary" not in parameters:
                raise EnvelopeError("the Content-Type multipart/related has no boundary")
            boundary = parameters["boundary"].encode("latin-1", "replace")
            self._splitter = Splitter(boundary, self._limits.max_parts, self._limits.max_part_headers)
        self._splitter.feed(data)

    def receive(self) -> tuple[Envelope, bytes]:
        """Make the whole message durable and decode it; see :func:`~holdfast.wire.receive_package`.

        Raises:
            MissingPart: The message refers to a part that is not there.
            EnvelopeError: As for :func:`~holdfast.wire.receive_package`.
            OSError: As for :meth:`write`. StoreError: likewise.
        """
        soap = soap_of_content_type(self._given)
        try:
            self._finish()
            return self._receive()
        except EnvelopeError as error:
            if soap is not None:
                error.soap = error.soap or soap.value
            raise

    def _finish(self) -> None:
        if self._refused is not None:
            raise self._refused
        if not self._is_finished:
            self._writer.finish()
            self._is_finished = True

    def content(self) -> StoredPackage:
        """Return the whole message as it came. Errors as for :meth:`receive`, which this does not need."""
        self._finish()
        return StoredPackage([Part(b"", start=0, end=self._writer.size)], self._writer.hold)

    def _receive(self) -> tuple[Envelope, bytes]:
        hold, size = self._writer.hold, self._writer.size
        if self._splitter is None:
            content = _read(hold, 0, size)
            envelope = decode(content, limits=self._limits)
            check_parts(envelope, [])
            return envelope, content
        _, parameters = media_type(self._given)
        envelope, root, others, is_mtom = split_root(parameters, self._splitter.close(), self._limits, self._root)
        if others:
            parts = [Part(one.headers, start=one.start, end=one.end) for one in others]
            package = encode_package(Package(is_mtom, boundary_of(self._digest.digest()), parts))
            envelope.attachments = with_content(hold, size, package)
        return envelope, root

    def _root(self, place: Range) -> bytes:
        if place.end - place.start > self._limits.max_bytes:
            raise LimitExceeded(f"the envelope has more than {self._limits.max_bytes} bytes")
        return _read(self._writer.hold, place.start, place.end)


def _read(hold: Hold, start: int, end: int) -> bytes:
    with open_part(Part(b"", start=start, end=end), hold) as file:
        return file.read()


def store_package(
    parts: Iterable[tuple[bytes, AbstractContextManager[BinaryIO]]], writer: ContentWriter, *, is_mtom: bool
) -> bytes:
    """Write parts to the store, and return the attachments that a record stores.

    Raises:
        OSError: A file cannot be read or written.
        StoreError: The database does not store it.
    """
    digest = blake2b(digest_size=16)
    found = []
    for headers, opened in parts:
        start = writer.size
        with opened as file:
            while piece := file.read(PIECE):
                digest.update(piece)
                writer.write(piece)
        digest.update(b"%d %d " % (len(headers), writer.size - start))
        digest.update(headers)
        found.append(Part(headers, start=start, end=writer.size))
    writer.finish()
    return with_content(writer.hold, writer.size, encode_package(Package(is_mtom, boundary_of(digest.digest()), found)))


class StoredPackage:
    """The body of a message with parts in the store, for one transmission or several.

    Args:
        pieces: What it consists of; parts of the content among them.

    Attributes:
        size: Its bytes.
    """

    def __init__(self, pieces: list[bytes | Part], hold: Hold) -> None:
        self._pieces = pieces
        self._hold = hold
        self.size = sum(one.size if isinstance(one, Part) else len(one) for one in pieces)

    def __iter__(self) -> Iterator[bytes]:
        """Read it piece by piece. This waits for the disk or the database."""
        waiting = bytearray()
        for one in self._pieces:
            if not isinstance(one, Part):
                waiting += one
                continue
            with open_part(one, self._hold) as file:
                while piece := file.read(PIECE):
                    yield bytes(waiting) + piece
                    waiting.clear()
        yield bytes(waiting)


class _Section(PositionedFile):
    """A part of a file, as a file."""

    def __init__(self, file: BinaryIO, start: int, end: int) -> None:
        self._length = end - start
        super().__init__(self._length)
        self._file = file
        self._start = start

    def _read(self, start: int, size: int) -> bytes:
        self._file.seek(self._start + start)
        wanted = max(0, min(size, self._length - start))
        data = self._file.read(wanted)
        if wanted and not data:
            raise StoreDamaged(
                "The attachments of a message in the store are cut off.",
                remedy="Restore them from a copy of the store.",
            )
        return data

    def close(self) -> None:
        self._file.close()
        super().close()


def open_part(part: Part, hold: Hold | None) -> BinaryIO:
    """Return the content of a part as a file, in its Content-Transfer-Encoding.

    Raises:
        OSError: It cannot be read.
        StoreError: The same, in a database.
    """
    if part.content or hold is None:
        return io.BytesIO(part.content)
    return cast(BinaryIO, io.BufferedReader(_Section(hold.open(), part.start, part.end), PIECE))


def open_decoded(part: Part, hold: Hold | None) -> BinaryIO:
    """Return the content of a part as a file, without its Content-Transfer-Encoding; errors as for :func:`open_part`.

    Raises:
        EnvelopeError: The encoding is unknown, or the content is not encoded in it.
    """
    fields = part.fields
    encoding = fields.get("content-transfer-encoding", "").strip().lower()
    file = open_part(part, hold)
    if encoding in IDENTITY:
        return file
    decoded = cast(BinaryIO, TemporaryFile())  # noqa: SIM115 - the caller closes it
    try:
        with file:
            rest = b""
            while piece := file.read(PIECE):
                rest, whole = at_a_border(encoding, rest + piece)
                if len(rest) > PIECE:  # they have 76 bytes at most (RFC 2045, 6.7)
                    raise EnvelopeError(f"a line of a quoted-printable MIME part has more than {PIECE} bytes")
                decoded.write(decoded_content(fields, whole))
            decoded.write(decoded_content(fields, rest))
        decoded.seek(0)
    except BaseException:
        decoded.close()
        raise
    return decoded


def at_a_border(encoding: str, data: bytes) -> tuple[bytes, bytes]:
    """Return the part of an encoded content that cannot be decoded before the next piece, and the part that can."""
    if encoding == "base64":
        data = b"".join(data.split())
        cut = len(data) - len(data) % 4
    else:
        cut = data.rfind(b"\n") + 1
    return data[cut:], data[:cut]
