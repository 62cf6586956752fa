"""Times in a Security header: xsd:dateTime in UTC, and how fresh they must be."""

from __future__ import annotations

import re
import struct
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final

_SECOND: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", re.ASCII).fullmatch
_REST: Final = re.compile(r"(\.\d{1,9})?(Z|[+-]\d\d:\d\d)?", re.ASCII).fullmatch
_SECOND_LENGTH: Final = 19
_LONGEST: Final = 40
"""Characters that match at most."""


def write_time(at: float) -> str:
    """Return a time in seconds since 1970 as CXF and WCF write it: UTC with three digits of milliseconds."""
    seconds, microseconds = divmod(round(at * 1e6), 1_000_000)
    return f"{_written(seconds)}.{microseconds // 1000:03d}Z"


def read_time(text: str) -> float | None:
    """Return the seconds since 1970 of an xsd:dateTime, None if it is not one.

    Without a zone it is in UTC (SOAP Message Security 1.1, section 10).
    """
    text = text.strip()
    return _read(text) if len(text) <= _LONGEST else None


def ordered(at: float, digest: bytes) -> bytes:
    """Return a key that follows those of earlier times. A tree of such keys grows at its end, at less cost."""
    return struct.pack(">d", at) + digest


@lru_cache(maxsize=64)  # many messages have the same second
def _written(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()[:19]


@lru_cache(maxsize=1024)  # a busy server gets many messages in a millisecond
def _read(text: str) -> float | None:
    try:
        return _read_second(text[:_SECOND_LENGTH]) + _read_rest(text[_SECOND_LENGTH:])
    except ValueError:
        return None


@lru_cache(maxsize=1024)
def _read_second(text: str) -> float:
    if _SECOND(text) is None:
        raise ValueError(text)
    return datetime.fromisoformat(f"{text}Z").timestamp()


@lru_cache(maxsize=2048)  # every millisecond of a second
def _read_rest(text: str) -> float:
    """Return the seconds to add for a fraction and a zone."""
    found = _REST(text)
    if found is None:
        raise ValueError(text)
    fraction, zone = found.groups()
    offset = datetime.fromisoformat(f"1970-01-01T00:00:00{zone or 'Z'}").timestamp()
    return offset + (float(fraction) if fraction else 0.0)
