"""Messages of an application, validated before they are stored: unsendable ones are rejected immediately."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from holdfast.core.records import ContentWriter, Record
from holdfast.endpoint.envelopes.attachments import Attachment, are_small, encode_attachments
from holdfast.endpoint.envelopes.message import Body, body_bytes
from holdfast.exceptions import EnvelopeError
from holdfast.wire import check_action, check_header_blocks, check_iri


def outgoing_record(
    key: str, action: str, body: Body, message_id: str, headers: bytes, now: float, *, wants_reply: bool
) -> Record:
    """Return the record of a message that can be stored, encoded in an envelope of any version, and decoded again.

    Raises:
        EnvelopeError: The message is not valid; says which part, and why.
    """
    check_key(key)
    # Looked at here, for what is remembered must be hashable.
    check_action(action) if isinstance(action, str) else check_iri("action", action)
    check_iri("message_id", message_id)
    if not isinstance(headers, bytes):
        raise EnvelopeError(f"headers must be bytes of XML, not {type(headers).__name__}")
    if headers:
        check_header_blocks(headers)
    content = body_bytes(body)
    return Record(key, 0, action, content, now, message_id, headers=headers, wants_reply=wants_reply)


def attach(record: Record, attachments: Iterable[Attachment], create: Callable[[], ContentWriter] | None) -> None:
    """Add attachments to a message that was made.

    Args:
        create: Begins a content of the store, for large ones; None, in a transaction: all go into the record.

    Raises:
        EnvelopeError: The message does not match them.
        OSError: A file cannot be read, or the store has no room.
        StoreError: A database does not store them.
    """
    record.attachments = encode_attachments(attachments, record.body, record.headers, create)


async def attach_in_thread(
    record: Record, attachments: Iterable[Attachment], create: Callable[[], ContentWriter]
) -> None:
    """Add attachments to a message; files and large contents are read in a thread. Errors as for :func:`attach`."""
    given = list(attachments)
    if are_small(given):
        attach(record, given, create)
    else:
        await asyncio.to_thread(attach, record, given, create)


def check_key(key: str) -> None:
    """Check that a value is a valid sequence key.

    Raises:
        EnvelopeError: it is not text, or not valid Unicode.
    """
    if not isinstance(key, str):
        raise EnvelopeError(f"the sequence_key must be text, not {type(key).__name__}")
    try:
        key.encode()
    except UnicodeEncodeError as error:
        raise EnvelopeError(f"the sequence_key {key!r} is not Unicode text: {error}") from None
