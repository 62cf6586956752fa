"""The leniencies for reading bodies. Does not import Spark, so a command shows its options without it."""

from __future__ import annotations

LENIENCIES = {
    "empty": "An empty text becomes null if the type is not STRING.",
    "nanoseconds": "A time is truncated to microseconds: .NET writes seven digits, TIMESTAMP has six.",
    "zones": "The zone of a DATE or TIMESTAMP_NTZ is ignored: the day or time is used as written.",
}
"""What may be passed over instead of flagged, and what is done then."""

MAX_ELEMENTS = 1_000_000
"""Elements of a body that is read, unless told otherwise. Each costs some 250 bytes of memory while it is."""

ALSO = ("to", "reply_to", "relates_to", "soap_version", "headers")
"""Columns of the source, texts, that a landed row has if they are asked for; behind those of every row."""
