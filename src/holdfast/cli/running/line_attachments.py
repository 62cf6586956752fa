"""The attachments that a line of ``holdfast send --jsonl`` has, as ``holdfast queues export`` writes them."""

from __future__ import annotations

import os
from binascii import a2b_base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast.endpoint.envelopes.attachments import DEFAULT_MEDIA_TYPE, Attachment
from holdfast.exceptions import ConfigurationError, EnvelopeError

KEYS = ("content_id", "media_type", "base64", "file")


def line_attachments(given: Any, unfit: Callable[[str], ConfigurationError]) -> tuple[Attachment, ...]:
    """Return the attachments in the value of ``attachments``. Their files are read when the message is stored.

    Raises:
        ConfigurationError: It is not a list of attachments, or a file cannot be read.
    """
    if not isinstance(given, list):
        raise unfit(f"its attachments are not a list but {type(given).__name__}")
    return tuple(_attachment(one, unfit) for one in given)


def _attachment(one: Any, unfit: Callable[[str], ConfigurationError]) -> Attachment:
    if not isinstance(one, dict) or one.keys() - set(KEYS) or not all(isinstance(value, str) for value in one.values()):
        raise unfit(f"an attachment is not an object with the keys {', '.join(KEYS)}, each with a text")
    if ("base64" in one) == ("file" in one):
        raise unfit(
            "an attachment has both base64 and file" if "file" in one else "an attachment has no base64 or file"
        )
    content: bytes | Path
    try:
        content = readable_file(one["file"]) if "file" in one else a2b_base64(one["base64"], strict_mode=True)
    except OSError as error:
        raise unfit(f"the file {one['file']!r} of an attachment cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise unfit(f"the base64 of an attachment is not valid: {error}") from None
    try:
        return Attachment(content, one.get("media_type", DEFAULT_MEDIA_TYPE), one.get("content_id", ""))
    except EnvelopeError as error:
        raise unfit(error.message) from None


def readable_file(name: str) -> Path:
    """Return the path of a file that can be read.

    Raises:
        OSError: It cannot be read.
    """
    path = Path(name)
    os.close(os.open(path, os.O_RDONLY))
    if path.is_dir():
        raise IsADirectoryError(21, "it is a directory")
    return path
