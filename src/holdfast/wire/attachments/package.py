"""Packages: an envelope with its attachments as a peer sends them, as a record stores them, and as we send them.

The parts other than the root are kept byte for byte, headers and content. The root part holds the envelope. Its headers
change at every hop, so it is written again for each transmission.
"""

from __future__ import annotations

from binascii import a2b_base64, a2b_qp
from collections.abc import Callable, Sequence
from hashlib import blake2b

import msgspec

from holdfast.core.messages import Envelope
from holdfast.core.records import own_bytes
from holdfast.exceptions import EnvelopeError
from holdfast.wire.attachments.mime import Range, Splitter, media_type, read_headers
from holdfast.wire.attachments.references import MissingPart, check_references
from holdfast.wire.decoding.envelopes import decode
from holdfast.wire.http import XOP, soap_of_content_type
from holdfast.wire.limits import Limits

IDENTITY = ("", "7bit", "8bit", "binary")
"""The encodings that leave a content as it is."""
_XML = "application/xml"


class Part(msgspec.Struct, array_like=True, frozen=True):
    """A MIME part other than the root.

    Args:
        headers: Its header block, without the blank line.
        content: Its content, in its Content-Transfer-Encoding; b"" if it is in the store.
        start, end: Its place in the content of the store.
    """

    headers: bytes
    content: bytes = b""
    start: int = 0
    end: int = 0

    @property
    def size(self) -> int:
        """Bytes of the content, in its Content-Transfer-Encoding."""
        return len(self.content) or self.end - self.start

    @property
    def fields(self) -> dict[str, str]:
        """Its headers, names in lower case."""
        return read_headers(self.headers)


class Package(msgspec.Struct, array_like=True, frozen=True):
    """The attachments of one message.

    Args:
        is_mtom: Whether it is MTOM, rather than SOAP with Attachments.
        boundary: The MIME boundary, the same in every transmission.
    """

    is_mtom: bool
    boundary: str
    parts: list[Part]


encode_package = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Package).decode


def decode_package(data: bytes) -> Package:
    """Return the attachments that :func:`encode_package` encoded for a record."""
    package: Package = _decode(own_bytes(data))
    return package


def new_package(parts: Sequence[Part], *, is_mtom: bool) -> Package:
    """Return a package of parts; equal parts give an equal package.

    No content contains its boundary, which is made of a digest of all contents.
    """
    digest = blake2b(digest_size=16)
    for part in parts:
        digest.update(b"%d %d " % (len(part.headers), len(part.content)))
        digest.update(part.headers)
        digest.update(part.content)
    return Package(is_mtom, boundary_of(digest.digest()), list(parts))


def boundary_of(digest: bytes) -> str:
    """Return the boundary that the contents with this digest never contain."""
    return f"holdfast-{digest.hex()}"


def content_id(headers: dict[str, str]) -> str:
    """Return the Content-ID in a part's headers without its angle brackets, "" without one."""
    return headers.get("content-id", "").strip().removeprefix("<").removesuffix(">")


def decoded_content(headers: dict[str, str], content: bytes) -> bytes:
    """Return the content of a part without its Content-Transfer-Encoding.

    Raises:
        EnvelopeError: The encoding is unknown, or the content is not encoded in it.
    """
    encoding = headers.get("content-transfer-encoding", "").strip().lower()
    if encoding in IDENTITY:
        return content
    try:
        if encoding == "base64":
            return a2b_base64(content)
        if encoding == "quoted-printable":
            return a2b_qp(content)
    except ValueError as error:
        raise EnvelopeError(f"a MIME part is not valid {encoding}: {error}") from None
    raise EnvelopeError(f"a MIME part has the unknown Content-Transfer-Encoding {encoding[:100]!r}")


def receive_package(given: str, data: bytes, limits: Limits) -> tuple[Envelope, bytes]:
    """Decode a message in MTOM or with attachments.

    Args:
        given: The Content-Type of the HTTP message.
        limits: Limits on the envelope, and on the parts.

    Returns:
        The envelope with its attachments, and the bytes of the root part.

    Raises:
        MissingPart: The message refers to a part that is not there.
        EnvelopeError: As for :func:`~holdfast.wire.decode`; or the body is not multipart, has no SOAP message, or its
            parts and references do not match.
    """
    soap = soap_of_content_type(given)
    try:
        return _receive(given, data, limits)
    except EnvelopeError as error:
        if soap is not None:
            error.soap = error.soap or soap.value
        raise


def _receive(given: str, data: bytes, limits: Limits) -> tuple[Envelope, bytes]:
    _, parameters = media_type(given)
    if data.lstrip()[:1] == b"<":
        # Apache CXF retransmits only the envelope, with the Content-Type of the whole message.
        envelope = decode(data, limits=limits)
        check_parts(envelope, [])
        return envelope, data
    if "boundary" not in parameters:
        raise EnvelopeError("the Content-Type multipart/related has no boundary")
    splitter = Splitter(parameters["boundary"].encode("latin-1", "replace"), limits.max_parts, limits.max_part_headers)
    splitter.feed(data)
    ranges = splitter.close()
    envelope, root, others, is_mtom = split_root(parameters, ranges, limits, lambda one: data[one.start : one.end])
    if others:
        envelope.attachments = encode_package(new_package([_part(one, data) for one in others], is_mtom=is_mtom))
    return envelope, root


def split_root(
    parameters: dict[str, str], ranges: list[Range], limits: Limits, read: Callable[[Range], bytes]
) -> tuple[Envelope, bytes, list[Range], bool]:
    """Decode the root part of a message, and check its references to the others.

    Returns:
        The envelope without attachments, its bytes, the other parts, and whether the message is MTOM.

    Raises:
        EnvelopeError: As for :func:`receive_package`.
    """
    headers = [read_headers(one.headers) for one in ranges]
    names = [content_id(one) for one in headers]
    for name in names:
        if name and names.count(name) > 1:
            raise EnvelopeError(f"two MIME parts have the Content-ID <{name[:200]}>")
    root = _root(parameters, names)
    is_mtom = _is_mtom(headers[root], parameters)
    place = ranges[root]
    content = decoded_content(headers[root], read(place))
    envelope = decode(content, limits=limits)
    others = [one for number, one in enumerate(ranges) if number != root]
    check_parts(envelope, [name for number, name in enumerate(names) if number != root], is_mtom=is_mtom)
    return envelope, content, others, is_mtom


def check_parts(envelope: Envelope, names: list[str], *, is_mtom: bool = True) -> None:
    """Check the references of an envelope to the parts with these Content-IDs; errors as for
    :func:`check_references`."""
    try:
        check_references(b"".join(envelope.headers) + envelope.body, names, is_mtom=is_mtom)
    except EnvelopeError as error:
        error.soap = envelope.soap.value
        if isinstance(error, MissingPart):
            error.envelope = envelope
        raise


def _part(place: Range, data: bytes) -> Part:
    return Part(place.headers, data[place.start : place.end])


def _root(parameters: dict[str, str], names: list[str]) -> int:
    """Return the number of the root part: the one that ``start`` names, else the first (RFC 2387 section 3.2)."""
    start = parameters.get("start", "").strip().removeprefix("<").removesuffix(">")
    if not start:
        return 0
    if start not in names:
        raise EnvelopeError(f"the Content-Type names the MIME part <{start[:200]}> as the start, which is missing")
    return names.index(start)


def _is_mtom(headers: dict[str, str], parameters: dict[str, str]) -> bool:
    kind, _ = media_type(headers.get("content-type") or parameters.get("type", ""))
    if kind != XOP and kind != _XML and soap_of_content_type(kind) is None:
        raise EnvelopeError(f"the root part of the message is {kind[:100]}, which is not SOAP")
    return kind == XOP
