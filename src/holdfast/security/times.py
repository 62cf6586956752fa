"""Times in a Security header: xsd:dateTime in UTC, and how fresh they must be."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final

_DATE_TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?(Z|[+-]\d\d:\d\d)?")


def write_time(at: float) -> str:
    """Return a time in seconds since 1970 as CXF and WCF write it: UTC with three digits of milliseconds."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")[:23] + "Z"


def read_time(text: str) -> float | None:
    """Return the seconds since 1970 of an xsd:dateTime, None if it is not one. Without a zone it is in UTC."""
    text = text.strip()
    if _DATE_TIME.fullmatch(text) is None:
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return (found if found.tzinfo is not None else found.replace(tzinfo=UTC)).timestamp()
