"""Attachments as programs send and receive them with a message. Knows no record, queue or connection."""

from __future__ import annotations

import io
import json
import os
import re
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from mimetypes import guess_extension
from pathlib import Path
from typing import Any, BinaryIO, Final

from lxml import etree

from holdfast.core.messages import Envelope
from holdfast.core.records import ContentWriter, Hold, content_name, hold_of
from holdfast.endpoint.arguments import check_class
from holdfast.exceptions import ConfigurationError, EnvelopeError, LimitExceeded
from holdfast.settings import brief_value
from holdfast.wire import as_utf8
from holdfast.wire.attachments.package import Package, Part, content_id, decode_package, encode_package, new_package
from holdfast.wire.attachments.references import (
    check_references,
    extracted,
    has_includes,
    includes_in,
    inlined,
    missing_part,
)
from holdfast.wire.attachments.stored import PIECE, open_decoded, open_part, store_package
from holdfast.wire.body import parse_element
from holdfast.wire.limits import Limits

STORED_FROM: Final = 1 << 20
"""Bytes of a message's attachments from which they are in the store, and not in memory with the message."""
_SMALL = 64 << 10
_WHOLE_BASE64 = PIECE // 3 * 3
"""Bytes that end together with their base64."""
MOST_IN_MEMORY: Final = 256 << 20
"""Bytes of all attachments of a message that is sent in a transaction of the application's or from a store in Kafka:
its record has them."""
LEAST_VALUE: Final = 1024
"""Bytes of a value that travels as an attachment. WCF and CXF read smaller ones in base64, which costs less."""
DEFAULT_MEDIA_TYPE: Final = "application/octet-stream"
_CONTENT_ID = re.compile(r"[!-;=?-~]{1,250}", re.ASCII)
_MEDIA_TYPE = re.compile(r"[!#$%&'*+.^_`|~\w-]+/[!#$%&'*+.^_`|~\w-]+(?:\s*;[ -~]*)?", re.ASCII)


@dataclass(frozen=True, eq=False)
class Attachment:
    """One attachment of a message: bytes that travel with the envelope.

    A body names it in MTOM by an element with ``<xop:Include href="cid:CONTENT-ID"/>`` as its only content.

    Args:
        content: The bytes; or a file to read them from, as a path or open for reading in binary. They are read when the
            message is stored.
        media_type: The Content-Type, such as "image/png".
        content_id: Its name in the message, without angle brackets. Default: ``part1@holdfast`` for the first
            attachment of a message, ``part2@holdfast`` for the second.

    Raises:
        ConfigurationError: ``content`` is neither bytes, nor the path of a file that exists, nor a binary file.
        EnvelopeError: The media type or the Content-ID contains invalid characters.
    """

    content: bytes | str | Path | BinaryIO = field(repr=False)
    media_type: str = DEFAULT_MEDIA_TYPE
    content_id: str = ""
    _part: Part | None = field(default=None, repr=False)
    _hold: Hold | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self._part is not None:
            return
        _check_content(self.content)
        check_class("Attachment.media_type", self.media_type, str, optional=False)
        check_class("Attachment.content_id", self.content_id, str, optional=False)
        if _MEDIA_TYPE.fullmatch(self.media_type) is None:
            raise EnvelopeError(f"the media type {self.media_type!r} of an attachment is not valid")
        if self.content_id and _CONTENT_ID.fullmatch(self.content_id) is None:
            raise EnvelopeError(
                f"the Content-ID {self.content_id!r} of an attachment is not valid",
                remedy="Use printable ASCII characters without spaces and angle brackets, such as photo@example.",
            )

    @property
    def _is_small(self) -> bool:
        return isinstance(self.content, bytes) and self._hold is None and len(self.content) < _SMALL

    @property
    def headers(self) -> Mapping[str, str]:
        """The MIME headers of a received attachment, names in lower case; empty for one that you made."""
        return self._part.fields if self._part is not None else {}

    @property
    def size(self) -> int:
        """Number of bytes.

        Raises:
            OSError: Its file cannot be read.
        """
        if isinstance(self.content, str | Path):
            return Path(self.content).stat().st_size
        with self.open() as file:
            return sum(map(len, iter(lambda: file.read(PIECE), b"")))

    def read(self) -> bytes:
        """Return all bytes. Read a large attachment from :meth:`open` instead, piece by piece.

        Raises:
            OSError: Its file cannot be read.
            EnvelopeError: It was received in base64 or quoted-printable, and is not valid.
        """
        if self._part is None and isinstance(self.content, bytes | bytearray | memoryview):
            return bytes(self.content)
        with self.open() as file:
            return file.read()

    def open(self) -> BinaryIO:
        """Return the bytes as a binary file. Close it, or use it in a ``with`` block.

        A large received attachment is read from the store, as the file is read.

        Raises:
            OSError: Its file cannot be read.
            StoreError: It cannot be read from the store.
            EnvelopeError: As for :meth:`read`.
        """
        if self._part is not None:
            return open_decoded(self._part, self._hold)
        if isinstance(self.content, str | Path):
            return Path(self.content).open("rb")
        if isinstance(self.content, bytes | bytearray | memoryview):
            return io.BytesIO(self.content)
        return io.BytesIO(_rewound(self.content).read())


def _check_content(content: object) -> None:
    encode = "Encode text first: Attachment(text.encode(), media_type='text/plain; charset=utf-8')."
    if isinstance(content, bytes | bytearray | memoryview):
        return
    if isinstance(content, str | Path):
        if not os.path.exists(content) or os.path.isdir(content):
            raise ConfigurationError(
                f"the file {brief_value(str(content))} of an attachment does not exist",
                remedy=f"Check the path. {encode}",
            )
    elif not hasattr(content, "read"):
        raise ConfigurationError(
            f"the content of an attachment must be bytes, a path or a binary file, not {brief_value(content)}",
            remedy=encode,
        )
    elif isinstance(content, io.TextIOBase):
        raise ConfigurationError(
            "the file of an attachment is open for text",
            remedy="Open it for bytes: open(path, 'rb'). Or give its path.",
        )
    elif isinstance(content, io.IOBase) and (content.closed or not content.readable()):
        raise ConfigurationError(
            "the file of an attachment is closed, or is not open for reading",
            remedy="Give its path, or open(path, 'rb').",
        )


@dataclass(frozen=True)
class WithAttachments:
    """A reply with attachments, for a handler to return.

    Args:
        body: One XML element, as a handler returns it otherwise; the value, for a handler of ``@app.operation``.
        attachments: Its attachments.
        headers: As for :class:`WithHeaders`.

    Raises:
        ConfigurationError: ``attachments`` is not a collection of :class:`Attachment`.
    """

    body: Any
    attachments: Sequence[Attachment]
    headers: bytes | Mapping[str, Any] = b""

    def __post_init__(self) -> None:
        check_class("headers", self.headers, (bytes, Mapping), optional=False)
        for name in self.headers if isinstance(self.headers, Mapping) else ():
            check_class("the name of a header", name, str, optional=False)
        object.__setattr__(self, "attachments", to_attachments(self.attachments))


class WithHeaders(WithAttachments):
    """A reply with header blocks, for a handler to return.

    Args:
        body, attachments: As for :class:`WithAttachments`.
        headers: XML bytes: elements with namespaces, one after the other. A handler of ``@app.operation`` may also give
            a dict with the values of header blocks that the WSDL declares for the reply, by their local names.

    Raises:
        ConfigurationError: ``headers`` is neither bytes nor a dict, or as for :class:`WithAttachments`.
    """

    def __init__(self, body: Any, headers: bytes | Mapping[str, Any], attachments: Sequence[Attachment] = ()) -> None:
        super().__init__(body, attachments, headers)


def to_attachments(given: Iterable[Attachment]) -> tuple[Attachment, ...]:
    """Return the attachments of an argument ``attachments``.

    Raises:
        ConfigurationError: It is not a collection of attachments.
    """
    if not isinstance(given, Iterable) or isinstance(given, str | bytes | Mapping):
        raise ConfigurationError(
            f"attachments cannot be {brief_value(given)}", remedy="Write attachments=[holdfast.Attachment(content)]."
        )
    made = tuple(given)
    for one in made:
        if not isinstance(one, Attachment):
            raise ConfigurationError(
                f"{brief_value(one)} is not an attachment",
                remedy="Write attachments=[holdfast.Attachment(content)].",
            )
    return made


def encode_attachments(
    attachments: Iterable[Attachment],
    body: bytes,
    headers: bytes = b"",
    create: Callable[[], ContentWriter] | None = None,
) -> bytes:
    """Return attachments as a record stores them; b"" for none. Large ones are written to the store.

    If the message refers to one of them with ``xop:Include``, it is sent in MTOM, else as SOAP with Attachments.

    Args:
        headers: The header blocks.
        create: Begins a content of the store, for large ones; None, in a transaction: all go into the record.

    Raises:
        EnvelopeError: Two have one Content-ID, or the ``xop:Include`` elements do not match them.
        OSError: A file cannot be read, or the store has no room.
        StoreError: A database does not store them.
    """
    given = to_attachments(attachments)
    is_mtom = has_includes(body) or has_includes(headers)
    names = [one.content_id or f"part{number}@holdfast" for number, one in enumerate(given, 1)]
    if len(set(names)) != len(names):
        raise EnvelopeError("two attachments have the same Content-ID", remedy="Give each attachment its own.")
    if is_mtom:
        check_references(headers + body, names)
    if not given:
        return b""
    size = sum(map(_least_size, given))
    if create is None and size > MOST_IN_MEMORY:
        raise EnvelopeError(
            f"the attachments exceed the {MOST_IN_MEMORY >> 20} MiB that a transaction takes",
            remedy="Send several messages, or send it without a transaction.",
        )
    if create is not None and size > STORED_FROM:
        streams = ((_headers(one, name), _open_raw(one)) for one, name in zip(given, names, strict=True))
        return store_package(streams, create(), is_mtom=is_mtom)
    parts = [Part(_headers(one, name), _raw(one)) for one, name in zip(given, names, strict=True)]
    encoded: bytes = encode_package(new_package(parts, is_mtom=is_mtom))
    return encoded


def extract_values(body: bytes, values: Any) -> tuple[bytes, list[Attachment]]:
    """Return a body with its large binary values as attachments (MTOM).

    Args:
        body: The body, with the values in base64.
        values: The values that it was made of, or that it has: dicts and sequences of values.
    """
    contents = list(_binary_values(values))
    if not contents:
        return body, []
    element = parse_element(body)
    parts = extracted(element, contents)
    return etree.tostring(element, encoding="utf-8"), [Attachment(content, content_id=name) for name, content in parts]


def _binary_values(value: Any) -> Iterator[bytes]:
    if isinstance(value, bytes | bytearray):
        if len(value) >= LEAST_VALUE:
            yield bytes(value)
    elif isinstance(value, Mapping):
        for one in value.values():
            yield from _binary_values(one)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _binary_values(one)


def inlined_body(body: bytes, attachments: Sequence[Attachment], most: int | None = None) -> bytes:
    """Return a body with the attachments of its ``xop:Include`` elements in base64; unchanged without any.

    Args:
        most: Maximum bytes of the result; None: a program gets what it asked for.

    Raises:
        LimitExceeded: The result would have more bytes than the maximum. Nothing has been read.
    """
    if not attachments or not has_includes(body):
        return body
    included = set(includes_in(body))
    size = inlined_size(body, [one for one in attachments if one.content_id in included])
    if most is not None and size > most:
        raise LimitExceeded(
            f"the message has {size:,} bytes with its values in base64, but the limit is {most:,} (max_bytes)",
            remedy="Read large values in pieces, from the attachments of the message: with @app.on instead of "
            "@app.operation.",
        )
    inline: bytes = etree.tostring(inline_attachments(parse_element(body), attachments), encoding="utf-8")
    return inline


def inlined_headers(headers: bytes, attachments: Sequence[Attachment], most: int | None = None) -> bytes:
    """Return header blocks like :func:`inlined_body`: .NET sends large binary values of any header as attachments."""
    whole = inlined_body(b"<headers>%b</headers>" % headers, attachments, most)
    return whole[len(b"<headers>") : -len(b"</headers>")]


def _headers(one: Attachment, name: str) -> bytes:
    if one._part is not None:
        return one._part.headers
    headers = f"Content-Type: {one.media_type}\r\nContent-Transfer-Encoding: binary\r\nContent-ID: <{name}>"
    return headers.encode()


def _least_size(one: Attachment) -> int:
    """Return the size of an attachment without reading it; that of a file is assumed to be large if it is unknown."""
    if one._part is not None:
        return one._part.size
    if isinstance(one.content, bytes | bytearray | memoryview):
        return len(one.content)
    if isinstance(one.content, str | Path):
        return one.size
    return one.content.seek(0, io.SEEK_END) if one.content.seekable() else STORED_FROM + 1


def _open_raw(one: Attachment) -> AbstractContextManager[BinaryIO]:
    if one._part is not None:
        return open_part(one._part, one._hold)
    if isinstance(one.content, bytes | bytearray | memoryview | str | Path):
        return one.open()
    return nullcontext(_rewound(one.content))  # the caller's file stays open


def _rewound(file: BinaryIO) -> BinaryIO:
    if file.seekable():
        file.seek(0)
    return file


def _raw(one: Attachment) -> bytes:
    with _open_raw(one) as file:
        return file.read()


def decode_attachments(data: bytes) -> list[Attachment]:
    if not data:
        return []
    found = []
    hold = hold_of(data) if content_name(data) else None
    for part in decode_package(data).parts:
        fields = part.fields
        media_type = fields.get("content-type", DEFAULT_MEDIA_TYPE)
        found.append(Attachment(part.content, media_type, content_id(fields), part, hold))
    return found


def describe_attachments(data: bytes) -> list[dict[str, Any]]:
    """Return Content-ID, media type and stored bytes of each attachment of a record."""
    found = []
    for part in decode_package(data).parts if data else ():
        fields = part.fields
        media_type = fields.get("content-type", DEFAULT_MEDIA_TYPE)
        found.append({"content_id": content_id(fields), "media_type": media_type, "bytes": part.size})
    return found


def are_small(attachments: Iterable[object]) -> bool:
    """Whether attachments may be encoded in an event loop: they need no file, and no long time."""
    return all(isinstance(one, Attachment) and one._is_small for one in attachments)


def file_suffix(number: int, attachment: Attachment) -> str:
    """Return the end of the name of the file that keeps attachment ``number`` of a message, such as ``.1.png``."""
    media_type = attachment.media_type.partition(";")[0].strip().lower()
    return f".{number}{guess_extension(media_type) or '.bin'}"


def json_line(line: Mapping[str, Any], attachments: Iterable[Attachment]) -> Iterator[bytes]:
    """Yield a line of JSON in pieces, with attachments as its last key, if there are any.

    Each has its Content-ID, media type, and the bytes in base64; large ones are read piece by piece.

    Args:
        line: The other keys, one at least.

    Raises:
        OSError: An attachment cannot be read. StoreError: likewise.
    """
    yield json.dumps(line, ensure_ascii=False).encode()[:-1]
    is_first = True
    for one in attachments:
        known = {"content_id": one.content_id, "media_type": one.media_type}
        yield b', "attachments": [' if is_first else b", "
        yield json.dumps(known, ensure_ascii=False).encode()[:-1] + b', "base64": "'
        with one.open() as file:
            while piece := file.read(_WHOLE_BASE64):
                yield b64encode(piece)
        yield b'"}'
        is_first = False
    yield b"}\n" if is_first else b"]}\n"


def inline_attachments(body: etree._Element, attachments: Iterable[Attachment]) -> etree._Element:
    """Replace each ``xop:Include`` in a body by the attachment that it names, in base64."""
    by_name = {one.content_id: one for one in attachments}

    def content_of(name: str) -> bytes:
        if name not in by_name:
            raise missing_part(name)
        return by_name[name].read()

    return inlined(body, content_of)


def inline_package(root: bytes, attachments: bytes, limits: Limits) -> bytes | None:
    """Return an envelope with each ``xop:Include`` replaced by the attachment that it names, in base64.

    A signature is over the base64 (XOP 1.0 section 3.2). WSS4J also moves values of the Security header.

    Returns:
        The envelope in UTF-8; None if it does not contain each attachment.

    Raises:
        LimitExceeded: The result is too large.
    """
    found = decode_attachments(attachments)
    data = as_utf8(root)
    if not _names_each(data, found):
        return None
    check_secured_size(inlined_size(data, found), limits.max_bytes)
    return etree.tostring(inline_attachments(parse_element(data), found), encoding="utf-8", xml_declaration=False)


def _names_each(content: bytes, attachments: Sequence[Attachment]) -> bool:
    return len(set(includes_in(content))) == len(attachments)


def _base64_size(one: Attachment) -> int:
    """Return the size of an attachment in base64, or a little more, without reading it."""
    is_base64 = one.headers.get("content-transfer-encoding", "").strip().lower() == "base64"
    return _least_size(one) if is_base64 else 4 * (_least_size(one) // 3 + 1)


def inlined_size(content: bytes, attachments: Iterable[Attachment]) -> int:
    """Return the size of a content with attachments in base64, or a little more, without reading them."""
    return len(content) + sum(map(_base64_size, attachments))


def check_secured_size(size: int, most: int) -> None:
    """Check the size of a message with its attachments and its encrypted parts in base64.

    Raises:
        LimitExceeded: It is too large.
    """
    if size > most:
        raise LimitExceeded(
            f"the message, with attachments and encrypted parts in base64, has {size:,} bytes; the limit is {most:,}",
            remedy="Send several messages, or protect it by https and a user name instead of a signature.",
        )


def has_parts(attachments: bytes) -> bool:
    """Whether a message has attachments, and is not a package of its envelope alone."""
    return bool(decode_package(attachments).parts)


def check_inlined(content: bytes, attachments: bytes, most: int) -> list[Attachment]:
    """Check that a message can be signed, which puts its attachments into the body, and return them.

    Raises:
        EnvelopeError: An attachment has no ``xop:Include`` (SOAP with Attachments), or the result is too large.
    """
    found = decode_attachments(attachments)
    if not _names_each(content, found):
        raise EnvelopeError(
            "a signed message cannot have attachments that no xop:Include element names",
            remedy="Name each attachment by an xop:Include element in the body, or put its content there in base64.",
        )
    check_secured_size(inlined_size(content, found), most)
    return found


def inline_envelope(envelope: Envelope, most: int) -> None:
    """Put the attachments of a message into it in base64, before it is signed (XOP 1.0 section 3.2).

    A message in MTOM stays a package, whose only part is the envelope: its receiver may demand that media type.
    Errors as for :func:`check_inlined`.
    """
    headers = b"".join(envelope.headers)
    found = check_inlined(headers + envelope.body, envelope.attachments, most)
    if has_includes(headers):
        envelope.headers = (inlined_headers(headers, found, most),)
    envelope.body = inlined_body(envelope.body, found, most)
    package = decode_package(envelope.attachments)
    envelope.attachments = encode_package(Package(True, package.boundary, [])) if package.is_mtom else b""
