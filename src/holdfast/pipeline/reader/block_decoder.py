"""Decode many records at once: find each field of each record and build columns, without a Python object for any.

A record of format 2 is a MessagePack array of known fields. numpy walks all records of a block in parallel, field by
field, and Arrow copies each requested column out of the block. For records that differ from the current output of
``store.records.encode_record`` (an older format, garbage, text that is not UTF-8), it returns nothing, and the decoder
of single records handles and reports them. So this module decides nothing. It skips fields that are not requested,
without checking that their text is UTF-8.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]

TEXT, OPTIONAL_TEXT, BYTES, NUMBER, TIME, OPTIONAL_TIME, FLAG = range(7)

FIELDS: Final = (
    ("sequence", TEXT),
    ("message_number", NUMBER),
    ("action", TEXT),
    ("body", BYTES),
    ("received_at", TIME),
    ("message_id", OPTIONAL_TEXT),
    ("to", OPTIONAL_TEXT),
    ("reply_to", OPTIONAL_TEXT),
    ("relates_to", OPTIONAL_TEXT),
    ("soap", TEXT),
    ("headers", BYTES),
    ("wants_reply", FLAG),
    ("released_at", OPTIONAL_TIME),
    ("transport", BYTES),
)
"""The fields of :class:`holdfast.core.records.Record` in their order, which is that of a record of format 2."""

BEGINNING: Final = (0x90 + 1 + len(FIELDS), 2)
"""The first two bytes of each record: an array of this length, and the format."""

NIL: Final = 0xC0
LEAST: Final = 16
"""Minimum bytes of a record: its beginning, and one byte for each field."""
LONGEST: Final = 9e12
"""Approximate maximum of seconds that 63 bits of microseconds can represent."""


def _tables() -> tuple[NDArray[np.bool_], Integers, Integers, Integers, Integers]:
    """Return the tables for a field's first byte: possible types, bytes of the number that follows, mask, addend,
    content.

    The content entry is 1 if this many bytes of content follow the number, otherwise 0.
    """
    allowed = np.zeros((FLAG + 1, 256), bool)
    width, added, content = (np.zeros(256, np.int64) for _ in range(3))
    for first, size in ((0xD9, 1), (0xDA, 2), (0xDB, 4), (0xC4, 1), (0xC5, 2), (0xC6, 4)):  # str and bin
        width[first], content[first] = size, 1
    for first, size in ((0xCC, 1), (0xCD, 2), (0xCE, 4), (0xCF, 8), (0xCB, 8)):  # uint and float 64
        width[first] = size
    added[:0x80] = np.arange(0x80)  # positive fixint
    added[0xA0:0xC0], content[0xA0:0xC0] = np.arange(0x20), 1  # fixstr
    for kind in (TEXT, OPTIONAL_TEXT):
        allowed[kind, [*range(0xA0, 0xC0), 0xD9, 0xDA, 0xDB]] = True
    allowed[BYTES, [0xC4, 0xC5, 0xC6]] = True
    allowed[NUMBER, [*range(0x80), 0xCC, 0xCD, 0xCE, 0xCF]] = True
    allowed[TIME, 0xCB] = allowed[OPTIONAL_TIME, 0xCB] = True
    allowed[[OPTIONAL_TEXT, OPTIONAL_TIME], NIL] = True
    allowed[FLAG, [0xC2, 0xC3]] = True
    mask = np.array([2 ** (8 * one) - 1 if one < 8 else -1 for one in width.tolist()], np.int64)
    return allowed, width, mask, added, content


ALLOWED, WIDTH, MASK, ADDED, CONTENT = _tables()


class _Block:
    """Consecutive records in ``content``, and the current position."""

    def __init__(self, content: bytes, at: int, lengths: Integers) -> None:
        self.stops = at + np.cumsum(lengths)
        self.place = self.stops - lengths
        self.octets = np.frombuffer(content, np.uint8)
        # A number of up to 8 bytes is read as the end of the 8 bytes up to its last one.
        self._words: Integers = np.ndarray((len(content) - 7,), ">i8", content, 0, (1,))
        self._content = pa.py_buffer(content)
        self._evens = pa.array(np.arange(0, 2 * len(lengths), 2))

    def read(self, begin: Integers) -> Integers:
        """Return the 8 bytes before ``begin``, of each record, as a number."""
        return self._words[begin - 8]

    def texts(self, begin: Integers, end: Integers, absent: NDArray[np.bool_]) -> pa.Array:
        """Return the text between these offsets, of each record.

        Raises:
            pa.ArrowInvalid: It is not UTF-8.
        """
        rows = len(begin)
        # An array alternates between the wanted texts and the bytes between them; take every other element.
        bounds = np.empty(2 * rows, np.int32)
        bounds[::2], bounds[1::2] = begin, end
        everything = pa.Array.from_buffers(pa.binary(), 2 * rows - 1, [None, pa.py_buffer(bounds), self._content])
        taken = everything.take(self._evens)
        if absent.any():
            present = pa.py_buffer(np.packbits(~absent, bitorder="little"))
            taken = pa.Array.from_buffers(pa.binary(), rows, [present, *taken.buffers()[1:]])
        return taken.cast(pa.string())


def columns_of(content: bytes, at: int, lengths: Integers, wanted: Collection[str]) -> dict[str, Any] | None:
    """Return columns of consecutive records.

    Args:
        content: The bytes; at least 4 bytes precede the records.
        at: Start of the first record.
        lengths: Length of each record in bytes.
        wanted: Names of fields, except ``wants_reply``.

    Returns:
        For texts and bytes an Arrow array of ``string``; for numbers a numpy array of int64; for times one of float64,
        in seconds, NaN for missing times. None if one of the records is not in the current format.
    """
    if lengths.min() < LEAST:
        return None
    block = _Block(content, at, lengths)
    found: dict[str, Any] = {}
    try:
        if any((block.octets[block.place + one] != due).any() for one, due in enumerate(BEGINNING)):
            return None
        block.place += len(BEGINNING)
        for name, kind in FIELDS:
            firsts = block.octets[block.place]
            first = firsts[0] if (firsts == firsts[0]).all() else firsts  # one value for all records costs a third
            if not np.all(ALLOWED[kind, first]):
                return None
            # One numpy operation moves all records past the field, instead of one Python step for each.
            begin = block.place + (1 + WIDTH[first])
            value = block.read(begin)
            number = (value & MASK[first]) + ADDED[first]
            block.place = begin + number * CONTENT[first]
            if name not in wanted:
                continue
            if kind in (TIME, OPTIONAL_TIME):
                times, absent = value.astype(np.int64).view(np.float64), firsts == NIL
                if not ((np.abs(times) < LONGEST) | absent).all():
                    return None  # beyond the range of a timestamp, or not a number
                found[name] = np.where(absent, np.nan, times)
            elif kind == NUMBER:
                if number.min() < 0:
                    return None  # beyond 63 bits
                found[name] = number
            else:
                if (block.place > block.stops).any():
                    return None  # Arrow checks no bounds, and would read beyond the block
                found[name] = block.texts(begin, block.place, firsts == NIL)
    except (IndexError, pa.ArrowInvalid):
        return None  # it exceeds the block, or is not UTF-8
    # A record that does not end exactly at its length has another format.
    return found if (block.place == block.stops).all() else None
