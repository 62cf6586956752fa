"""The text of a handler's failure: bounded in size, and valid in XML, whatever the handler raised."""

from __future__ import annotations

import concurrent.futures
import os
import traceback
from collections.abc import Callable
from html import escape
from pathlib import Path
from types import TracebackType

from holdfast import exceptions
from holdfast.wire.text import NOT_IN_XML

_OURS = tuple(f"{Path(file).parent}{os.sep}" for file in (exceptions.__file__, concurrent.futures.__file__))

MAX_REASON = 64 * 1024
"""Maximum characters of a traceback that a dead letter keeps: its beginning and its end."""
MAX_BRIEF = 500
"""Characters of an error in a line of the log."""


def reason_of(error: BaseException) -> str:
    """Return the traceback from the handler on. The calls before it explain nothing."""
    text = _told(lambda: "".join(traceback.format_exception(type(error), error, _behind_ours(error))), error)
    if len(text) > MAX_REASON:
        text = f"{text[: MAX_REASON // 2]}…{text[-MAX_REASON // 2 :]}"
    return NOT_IN_XML.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def _behind_ours(error: BaseException) -> TracebackType | None:
    """Return the part of a traceback after Holdfast's own calls; the whole traceback if there is none."""
    found = error.__traceback__
    while found is not None and found.tb_frame.f_code.co_filename.startswith(_OURS):
        found = found.tb_next
    return found or error.__traceback__


def brief(error: BaseException) -> str:
    text = _told(lambda: repr(error), error)
    return text if len(text) <= MAX_BRIEF else f"{text[:MAX_BRIEF]}…"


def _told(tell: Callable[[], str], error: BaseException) -> str:
    try:
        return tell()
    except Exception as another:  # an error that cannot say what it is must not stop the rest
        return f"{type(error).__name__}, which cannot be shown: {type(another).__name__}"


def as_xml(text: str) -> bytes:
    """Escape text of :func:`reason_of` for the content of an element or the value of an attribute."""
    return escape(text).encode()
