"""The leniencies for parsing bodies. Does not import Spark, so that commands can show their options without it."""

from __future__ import annotations

LENIENCIES = {
    "empty": "An empty text becomes null if the type is not STRING.",
    "nanoseconds": "A time is truncated to microseconds: .NET writes seven digits, TIMESTAMP has six.",
    "zones": "The zone of a DATE or TIMESTAMP_NTZ is ignored: the day or time is used as written.",
}
"""Deviations that can be ignored instead of flagged, and the effect."""

MAX_ELEMENTS = 1_000_000
"""Default for the maximum number of elements of a parsed body. Each needs about 250 bytes of memory during parsing."""

ALSO = ("to", "reply_to", "relates_to", "soap_version", "headers")
"""Text columns of the source that a landed row has on request, after the columns of every row."""
