"""Dead letters as records, and as operators see them: their reason, their attempts, their content.

The reason is stored with the message, in a header block of Holdfast after its own. Knows no queue and no handler.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from html import unescape
from typing import Any, Final

from holdfast.core.queues.dead_letters import Letter, Origin
from holdfast.core.queues.description import DEAD_LETTERS
from holdfast.core.records import Record
from holdfast.endpoint.envelopes.attachments import describe_attachments
from holdfast.endpoint.failures import as_xml

PAGE_BYTES = 4 << 20
"""Bytes of bodies and header blocks after which a page of whole letters ends."""

_BEGIN = b"<failure xmlns='urn:holdfast'"
_FAILURE = re.compile(
    rb"<failure xmlns='urn:holdfast'(?: attempts='(\d+)' at='([\d.e+-]+)')?"
    rb"(?: queue='([^']*)' partition='(\d+)' offset='(\d+)' forwarder='([^']*)' code='([^']*)')?>(.*)</failure>",
    re.DOTALL,
)

_TRACEBACK: Final = ("Traceback (most recent call last):", "Exception Group Traceback (most recent call last):")
ReadLetters = Callable[[str, int, int, int], list[tuple[int, Record]]]
"""A store's ``read``."""


def seal(letter: Letter) -> Record:
    facts = b" attempts='%d' at='%s'" % (letter.attempts, repr(float(letter.failed_at or 0.0)).encode())
    if letter.origin is not None:
        one = letter.origin
        names = (_quoted(one.queue), one.partition, one.offset, _quoted(one.forwarder), _quoted(one.code))
        facts += b" queue='%s' partition='%d' offset='%d' forwarder='%s' code='%s'" % names
    failure = b"%s%s>%s</failure>" % (_BEGIN, facts, as_xml(letter.reason))
    return replace(letter.record, headers=letter.record.headers + failure)


def _quoted(value: str) -> bytes:
    return as_xml(value).replace(b"'", b"&#39;")


def _unquoted(value: bytes) -> str:
    return unescape(value.decode("utf-8", "replace"))


def unseal(record: Record) -> Letter:
    """Return the dead letter in ``record``. Only the last header block of that kind is Holdfast's; a peer may have sent
    one."""
    # The last one: the letter may be of a message that was a dead letter elsewhere.
    start = record.headers.rfind(_BEGIN)
    found = _FAILURE.fullmatch(record.headers, start) if start >= 0 else None
    if found is None:
        return Letter(record, "", 0, None)
    attempts, at, queue, partition, offset, forwarder, code, reason = found.groups()
    original = replace(record, headers=record.headers[:start])
    origin = None
    if queue is not None:
        origin = Origin(_unquoted(queue), int(partition), int(offset), _unquoted(forwarder), _unquoted(code))
    return Letter(original, _unquoted(reason), int(attempts or 0), float(at) if at else None, origin)


def error_line(reason: str) -> str:
    """Return the line of a reason with the error: of a traceback the last error's first line, else the first line.

    The lines after it are the rest of its message: the remedy of an error of Holdfast, for example.
    """
    # The traceback of an ExceptionGroup has "  | " before each line.
    lines = [re.sub(r"^  [|+] ", "", line) for line in reason.splitlines() if line.strip()]
    begin = max((at for at, line in enumerate(lines) if line.startswith(_TRACEBACK)), default=-1) + 1
    # Within a traceback, only the error itself is not indented.
    return next((line for line in lines[begin:] if not begin or not line[0].isspace()), "").strip()


def describe_letter(number: int, record: Record, *, is_asked: bool, whole: bool = False) -> dict[str, Any]:
    """Return the report on a dead letter.

    Args:
        is_asked: Whether a retry of the dead letter is pending.
        whole: With the traceback, the body and the header blocks.
    """
    letter = unseal(record)
    message = letter.record
    shown: dict[str, Any] = {
        "letter": number,
        "action": message.action,
        "sequence": message.sequence,
        "message_number": message.message_number,
        "message_id": message.message_id,
        "received_at": message.received_at,
        "failed_at": letter.failed_at,
        "attempts": letter.attempts or None,
        "error": error_line(letter.reason),
        "bytes": len(message.body),
        "retry": is_asked,
    }
    if letter.origin is not None:
        one = letter.origin
        shown |= {"queue": one.queue, "partition": one.partition, "offset": one.offset}
        shown |= {"forwarder": one.forwarder, "code": one.code}
    if whole:
        shown |= {"to": message.to, "reply_to": message.reply_to, "relates_to": message.relates_to}
        shown |= {"soap": message.soap, "wants_reply": message.wants_reply, "reason": letter.reason}
        shown |= {
            "headers": message.headers.decode("utf-8", "replace"),
            "body": message.body.decode("utf-8", "replace"),
        }
    if message.attachments:
        shown["attachments"] = describe_attachments(message.attachments)
    return shown


def describe_letters(
    read: ReadLetters,
    ranges: Sequence[tuple[int, int]],
    limit: int,
    is_asked: Callable[[int], bool],
    *,
    whole: bool = False,
) -> tuple[list[dict[str, Any]], int | None]:
    """Letters in their order, at most ``limit``; no more than a megabyte of them is in memory at a time.

    Args:
        read: The store's.
        ranges: Which there are, ``(first, end)``.
        limit: At least 1.
        is_asked: Whether a retry of a given dead letter is pending.
        whole: Include the traceback, body and header blocks; the page then ends after ``PAGE_BYTES``.

    Returns:
        What :func:`describe_letter` says of each, and the number of the next one, None if that is all.
    """
    shown: list[dict[str, Any]] = []
    size = 0
    for first, end in ranges:
        position = first
        while position < end:
            found = read(DEAD_LETTERS, 0, position, end)
            if not found:
                break  # deleted meanwhile
            for number, record in found:
                if len(shown) == limit or size >= PAGE_BYTES:
                    return shown, number
                shown.append(describe_letter(number, record, is_asked=is_asked(number), whole=whole))
                size += len(record.body) + len(record.headers) if whole else 0
                position = number + 1
    return shown, None
