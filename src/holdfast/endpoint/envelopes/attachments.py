"""Attachments as programs send and receive them with a message. Knows no record, queue or connection."""

from __future__ import annotations

import io
import re
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from mimetypes import guess_extension
from pathlib import Path
from typing import Any, BinaryIO, Final

from lxml import etree

from holdfast.exceptions import ConfigurationError, EnvelopeError
from holdfast.wire.attachments.package import (
    Part,
    content_id,
    decode_package,
    decoded_content,
    encode_package,
    new_package,
)
from holdfast.wire.attachments.references import check_references, extracted, has_includes, inlined
from holdfast.wire.body import parse_element

MOST_BYTES: Final = 256 << 20
"""Of all attachments of one outgoing message. Receivers have lower limits, such as ``max_body``."""
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
        ConfigurationError: ``content`` is neither bytes, nor a path, nor a binary file.
        EnvelopeError: The media type or the Content-ID contains invalid characters.
    """

    content: bytes | str | Path | BinaryIO = field(repr=False)
    media_type: str = DEFAULT_MEDIA_TYPE
    content_id: str = ""
    _part: Part | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.content, bytes | bytearray | memoryview | str | Path) and not hasattr(
            self.content, "read"
        ):
            raise ConfigurationError(
                f"the content of an attachment must be bytes, a path or a binary file, not {self.content!r:.80}",
                remedy="Encode text first: Attachment(text.encode(), media_type='text/plain; charset=utf-8').",
            )
        if self._part is not None:
            return
        if _MEDIA_TYPE.fullmatch(self.media_type) is None:
            raise EnvelopeError(f"the media type {self.media_type!r} of an attachment is not valid")
        if self.content_id and _CONTENT_ID.fullmatch(self.content_id) is None:
            raise EnvelopeError(
                f"the Content-ID {self.content_id!r} of an attachment is not valid",
                remedy="Use printable ASCII characters without spaces and angle brackets, such as photo@example.",
            )

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
        return len(self.read())

    def read(self) -> bytes:
        """Return all bytes.

        Raises:
            OSError: Its file cannot be read.
            EnvelopeError: It was received in base64 or quoted-printable, and is not valid.
        """
        if self._part is not None:
            return decoded_content(self._part.fields, self._part.content)
        if isinstance(self.content, bytes | bytearray | memoryview):
            return bytes(self.content)
        if isinstance(self.content, str | Path):
            return Path(self.content).read_bytes()
        if self.content.seekable():
            self.content.seek(0)
        return self.content.read()

    def open(self) -> BinaryIO:
        """Return the bytes as a binary file. Close it, or use it in a ``with`` block.

        Raises:
            OSError: Its file cannot be read.
        """
        if isinstance(self.content, str | Path):
            return Path(self.content).open("rb")
        return io.BytesIO(self.read())


@dataclass(frozen=True)
class WithAttachments:
    """A reply with attachments, for a handler to return.

    Args:
        body: One XML element, as a handler returns it otherwise; the value, for a handler of ``@app.operation``.
        attachments: Its attachments.
    """

    body: Any
    attachments: Sequence[Attachment]


def encode_attachments(attachments: Iterable[Attachment], body: bytes, headers: bytes = b"") -> bytes:
    """Return attachments as a record stores them; b"" for none.

    If the message refers to one of them with ``xop:Include``, it is sent in MTOM, else as SOAP with Attachments.

    Args:
        attachments: The attachments.
        body: The body.
        headers: The header blocks.

    Raises:
        EnvelopeError: Two have one Content-ID, or the ``xop:Include`` elements do not match them.
        OSError: A file cannot be read.
    """
    given = list(attachments)
    for one in given:
        if not isinstance(one, Attachment):
            raise ConfigurationError(
                f"{one!r:.80} is not an attachment", remedy="Write attachments=[holdfast.Attachment(content)]."
            )
    is_mtom = has_includes(body) or has_includes(headers)
    names = [one.content_id or f"part{number}@holdfast" for number, one in enumerate(given, 1)]
    if len(set(names)) != len(names):
        raise EnvelopeError("two attachments have the same Content-ID", remedy="Give each attachment its own.")
    if is_mtom:
        check_references(headers + body, names)
    if not given:
        return b""
    parts = [_part(one, name) for one, name in zip(given, names, strict=True)]
    if sum(len(part.content) for part in parts) > MOST_BYTES:
        raise EnvelopeError(
            f"the attachments of a message have more than {MOST_BYTES >> 20} MiB",
            remedy="Send them in several messages: a message is in memory while it is stored and sent.",
        )
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
    return etree.tostring(element), [Attachment(content, content_id=name) for name, content in parts]


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


def inlined_body(body: bytes, attachments: Sequence[Attachment]) -> bytes:
    """Return a body with the attachments of its ``xop:Include`` elements in base64; unchanged without any."""
    if not attachments or not has_includes(body):
        return body
    inline: bytes = etree.tostring(inline_attachments(parse_element(body), attachments))
    return inline


def _part(one: Attachment, name: str) -> Part:
    if one._part is not None:
        return one._part
    headers = f"Content-Type: {one.media_type}\r\nContent-Transfer-Encoding: binary\r\nContent-ID: <{name}>"
    return Part(headers.encode(), one.read())


def decode_attachments(data: bytes) -> list[Attachment]:
    """Return the attachments of a record."""
    if not data:
        return []
    found = []
    for part in decode_package(data).parts:
        fields = part.fields
        media_type = fields.get("content-type", DEFAULT_MEDIA_TYPE)
        found.append(Attachment(part.content, media_type, content_id(fields), part))
    return found


def describe_attachments(data: bytes) -> list[dict[str, Any]]:
    """Return Content-ID, media type and stored bytes of each attachment of a record."""
    found = []
    for part in decode_package(data).parts if data else ():
        fields = part.fields
        media_type = fields.get("content-type", DEFAULT_MEDIA_TYPE)
        found.append({"content_id": content_id(fields), "media_type": media_type, "bytes": len(part.content)})
    return found


def file_suffix(number: int, attachment: Attachment) -> str:
    """Return the end of the name of the file that keeps attachment ``number`` of a message, such as ``.1.png``."""
    media_type = attachment.media_type.partition(";")[0].strip().lower()
    return f".{number}{guess_extension(media_type) or '.bin'}"


def json_attachments(attachments: Iterable[Attachment]) -> list[dict[str, str]]:
    """Return attachments as a line of JSON keeps them: Content-ID, media type, and the bytes in base64."""
    return [
        {
            "content_id": one.content_id,
            "media_type": one.media_type,
            "base64": b64encode(one.read()).decode(),
        }
        for one in attachments
    ]


def inline_attachments(body: etree._Element, attachments: Iterable[Attachment]) -> etree._Element:
    """Replace each ``xop:Include`` in a body by the attachment that it names, in base64."""
    by_name = {one.content_id: one for one in attachments}
    return inlined(body, lambda name: by_name[name].read())
