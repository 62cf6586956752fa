"""Messages with attachments as we send them. The root part has the envelope, which differs in each transmission."""

from __future__ import annotations

from holdfast.core.messages import Envelope
from holdfast.core.records import content_name, hold_of
from holdfast.core.versions import SOAP
from holdfast.wire.attachments.package import Part, decode_package
from holdfast.wire.attachments.stored import StoredPackage
from holdfast.wire.encoding.envelopes import action_of
from holdfast.wire.http import XOP, content_type


def pack(envelope: Envelope, root: bytes) -> tuple[str, bytes | StoredPackage]:
    """Return the Content-Type and the body of a message with attachments; those in the store are not in memory."""
    package = decode_package(envelope.attachments)
    kind = "text/xml" if envelope.soap is SOAP.V1_1 else "application/soap+xml"
    name = f"<root.{package.boundary}@holdfast>"
    if package.is_mtom:
        # WCF's client drops a message if start-info differs from the type of the root part, for example by an action.
        told = f'multipart/related; type="{XOP}"; start-info="{kind}"'
        inner = f'{XOP}; charset=utf-8; type="{kind}"'
    else:
        told = f'multipart/related; type="{kind}"'
        inner = content_type(envelope.soap, action_of(envelope))
    delimiter = f"--{package.boundary}".encode()
    head = f"Content-Type: {inner}\r\nContent-Transfer-Encoding: binary\r\nContent-ID: {name}"
    media = f'{told}; boundary="{package.boundary}"; start="{name}"'
    pieces: list[bytes | Part] = [delimiter, b"\r\n", head.encode(), b"\r\n\r\n", root]
    for part in package.parts:
        pieces += [b"\r\n", delimiter, b"\r\n", part.headers, b"\r\n\r\n" if part.headers else b"\r\n", part]
    pieces += [b"\r\n", delimiter, b"--\r\n"]
    if content_name(envelope.attachments):
        return media, StoredPackage(pieces, hold_of(envelope.attachments))
    return media, b"".join([one.content if isinstance(one, Part) else one for one in pieces])
