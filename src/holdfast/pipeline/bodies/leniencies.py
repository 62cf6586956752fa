"""What may be told of how bodies are read. Knows nothing of Spark: a command shows its options without it."""

from __future__ import annotations

LENIENCIES = {
    "empty": "An empty text is null, where the type is no STRING.",
    "nanoseconds": "A time is cut to microseconds: .NET writes seven digits, TIMESTAMP holds six.",
    "zones": "The zone of a DATE or TIMESTAMP_NTZ is left out: the day or time is the one that is written.",
}
"""What may be passed over instead of flagged, and what is done then."""

MAX_ELEMENTS = 1_000_000
"""Elements of a body that is read, unless told otherwise. Each costs some 250 bytes of memory while it is."""

ALSO = ("to", "reply_to", "relates_to", "soap_version", "headers")
"""Columns of the source, texts, that a landed row has if they are asked for; behind those of every row."""
