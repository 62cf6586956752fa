"""The encoding of records, states and keys in a store. Independent of engine and protocol.

A record is a MessagePack array: a format number, then the fields of :class:`Record` in their order. A field added later
gets a higher format number; :func:`decode_record` still reads the older formats, from 2 on.

A key is a tag byte, a length-prefixed name, and numbers as eight big-endian bytes. So the order of the bytes is the
order of the numbers, and all keys of one partition or one Sequence are one contiguous range.
"""

from __future__ import annotations

import struct
from collections.abc import Collection
from dataclasses import fields

import msgspec

from holdfast.core.records import Record, State
from holdfast.exceptions import StoreFormatError

RECORD_FORMAT = 2
ATTACHMENTS_FORMAT = 3
"""The same with ``attachments`` at the end. A record without attachments has RECORD_FORMAT, so that readers need to
know only one form of the usual record."""
REFERENCES_FORMAT = 4
"""The same with ``reference_parameters`` and ``fault_to`` at the end, for a record with either of them."""

QUEUE = b"q"
PARTITION = b"p"
RECORD = b"r"
HELD = b"h"
SEQUENCE = b"s"
CURSOR = b"c"
HOME = b"l"
CONTENT = b"a"
PIECE = b"d"
TRIMMED = b"!holdfast-trimmed"
"""The key of the approximate number of bytes that were deleted but are still on the disk."""

PREFIX_END = b"\xff" * 9
"""Appended to the prefix of a partition or sequence, it sorts after every key of it (numbers have eight bytes, names
are UTF-8, which has no 0xff)."""

_FIELDS_OF_3 = 15
_FIELDS_OF_4 = 17

_NAMES = tuple(field.name for field in fields(Record))[:_FIELDS_OF_3]

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode
_length = struct.Struct(">I").pack
_two_numbers = struct.Struct(">QQ")


def encode_record(record: Record) -> bytes:
    if record.reference_parameters or record.fault_to is not None:
        return _encode((REFERENCES_FORMAT, *_values(record), record.reference_parameters, record.fault_to))
    if record.attachments:
        return _encode((ATTACHMENTS_FORMAT, *_values(record)))
    return _encode(
        (
            RECORD_FORMAT,
            record.sequence,
            record.message_number,
            record.action,
            record.body,
            record.received_at,
            record.message_id,
            record.to,
            record.reply_to,
            record.relates_to,
            record.soap,
            record.headers,
            record.wants_reply,
            record.released_at,
            record.transport,
        )
    )


def _values(record: Record) -> list[object]:
    values = [getattr(record, name) for name in _NAMES]
    values[-1] = bytes(record.attachments)  # msgspec encodes no subclass
    return values


def release_record(data: bytes, now: float) -> bytes:
    """Encode a held record for the queue that it enters at ``now``.

    Raises:
        StoreFormatError: The bytes are not a record, or have a newer format.
    """
    record = decode_record(data)
    record.released_at = now
    return encode_record(record)


def decode_record(data: bytes) -> Record:
    """Return the record that :func:`encode_record` wrote.

    Raises:
        StoreFormatError: The bytes are not a record, or have a newer format.
    """
    try:
        version, *values = _decode(data)
        if version == RECORD_FORMAT or (version, len(values)) == (ATTACHMENTS_FORMAT, _FIELDS_OF_3):
            return Record(*values)
        if (version, len(values)) == (REFERENCES_FORMAT, _FIELDS_OF_4):
            *older, parameters, fault_to = values
            record = Record(*older)
            record.reference_parameters = tuple(parameters)
            record.fault_to = fault_to and (fault_to[0], tuple(fault_to[1]))
            return record
    except (msgspec.DecodeError, TypeError, ValueError, RecursionError) as error:
        raise StoreFormatError(
            f"{len(data)} bytes in the store are not a record: {error}",
            remedy="The store is damaged or was not written by Holdfast: restore it from a copy.",
        ) from error
    raise StoreFormatError(
        f"A record has format {version}, but this version reads {RECORD_FORMAT} to {REFERENCES_FORMAT}.",
        remedy="Use the version of Holdfast that wrote it, or a newer one.",
    )


class _Parts(msgspec.Struct, array_like=True, gc=False):
    """A record of format 2, or of format 3 without its attachments; its large fields stay encoded."""

    format: int
    sequence: str
    message_number: int
    action: str
    body: msgspec.Raw
    received_at: float
    message_id: str | None
    to: str | None
    reply_to: str | None
    relates_to: str | None
    soap: str
    headers: msgspec.Raw
    wants_reply: bool
    released_at: float | None
    transport: msgspec.Raw


_decode_parts = msgspec.msgpack.Decoder(_Parts).decode
_BEGINNING_OF_3 = _encode((ATTACHMENTS_FORMAT, *range(_FIELDS_OF_3)))[:4]
RECORD_BEGINNING = bytes([0x90 + len(_Parts.__struct_fields__), RECORD_FORMAT])
"""The first bytes of every record written by this version."""
_EMPTY = msgspec.Raw(_encode(b""))

LARGE_FIELDS = frozenset({"body", "headers", "transport"})


def emptied(records: list[bytes], names: Collection[str]) -> list[bytes]:
    """Empty these of the LARGE_FIELDS in encoded records; with the body, also the attachments.

    A record of an older format, or an unreadable one, stays unchanged; so does one with attachments and its body.
    """
    body, headers, transport = "body" in names, "headers" in names, "transport" in names
    beginnings = (RECORD_BEGINNING, _BEGINNING_OF_3) if body else RECORD_BEGINNING
    found = []
    for data in records:
        try:
            parts = _decode_parts(data)
        except (msgspec.DecodeError, ValueError, RecursionError):  # the second: text that is not valid UTF-8
            parts = None
        if parts is None or not data.startswith(beginnings):
            found.append(data)
            continue
        parts.format = RECORD_FORMAT
        if body:
            parts.body = _EMPTY
        if headers:
            parts.headers = _EMPTY
        if transport:
            parts.transport = _EMPTY
        found.append(_encode(parts))
    return found


def encode_state(state: State) -> bytes:
    """Encode a saved state as MessagePack bytes."""
    return _encode(state)


def decode_state(data: bytes) -> State:
    """Return the state that :func:`encode_state` wrote; tuples come back as lists.

    Raises:
        StoreFormatError: The bytes are not a state.
    """
    try:
        state = _decode(data)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise StoreFormatError(
            f"{len(data)} bytes in the store are not a saved state: {error}",
            remedy="The store is damaged or was not written by Holdfast: restore it from a copy.",
        ) from error
    if not isinstance(state, dict):
        raise StoreFormatError(
            f"A saved state is a {type(state).__name__}, not a map.",
            remedy="The store is damaged or was not written by Holdfast: restore it from a copy.",
        )
    return state


def number(value: int) -> bytes:
    """Encode a number from 0 to 2**64 - 1 as the last part of a key."""
    return value.to_bytes(8, "big")


def last_number(key: bytes) -> int:
    return int.from_bytes(key[-8:], "big")


def name_key(tag: bytes, name: str) -> bytes:
    """Return the key of an object with only a name (a queue's description, a Sequence), or a prefix of longer keys."""
    encoded = name.encode()
    return tag + _length(len(encoded)) + encoded


def key_name(key: bytes) -> str:
    return key[5 : 5 + int.from_bytes(key[1:5], "big")].decode()


def home_key(sequence: str, queue: str, partition: int) -> bytes:
    """Return the key that assigns a Sequence to a partition; all keys of one partition share a prefix."""
    return partition_key(HOME, queue, partition) + sequence.encode()


def piece_key(name: bytes, piece: int) -> bytes:
    return PIECE + name + number(piece)


def piece_of(key: bytes) -> tuple[bytes, int]:
    return key[1:-8], last_number(key)


def pieces_range(name: bytes) -> tuple[bytes, bytes]:
    """Return the keys between which all pieces of a content are."""
    return PIECE + name, PIECE + name + PREFIX_END


def reference_key(where: tuple[str, int] | str, number: int) -> bytes:
    """Return the key of a record that names a content: of a partition, or held for a Sequence."""
    return CONTENT + _encode((where, number))


def split_reference_key(key: bytes) -> tuple[tuple[str, int] | str, int]:
    where, number = _decode(key[1:])
    return where if isinstance(where, str) else tuple(where), number


def held_key(sequence: str, message: int) -> bytes:
    """Return the key of a held record; those of one Sequence have the prefix ``name_key(HELD, sequence)``."""
    return name_key(HELD, sequence) + number(message)


def partition_key(tag: bytes, queue: str, partition: int) -> bytes:
    """Return the key of a partition's entry (tag PARTITION), or the prefix of its records (RECORD) and cursors
    (CURSOR)."""
    return name_key(tag, queue) + number(partition)


def retag(key: bytes, tag: bytes) -> bytes:
    return tag + key[1:]


def split_partition_key(key: bytes) -> tuple[str, int, bytes]:
    start = 5 + int.from_bytes(key[1:5], "big")
    return key[5:start].decode(), int.from_bytes(key[start : start + 8], "big"), key[start + 8 :]


def encode_entry(first: int, swept: int) -> bytes:
    """Return a partition's entry: its first stored offset, and the offset below which bytes are already deleted."""
    return _two_numbers.pack(first, swept)


def decode_entry(data: bytes) -> tuple[int, int]:
    """Return ``(first, swept)`` of a partition's entry.

    Raises:
        StoreFormatError: The bytes are not an entry.
    """
    try:
        first, swept = _two_numbers.unpack(data)
    except struct.error as error:
        raise StoreFormatError(
            f"{len(data)} bytes in the store are not a partition entry: {error}",
            remedy="The store is damaged or was not written by Holdfast: restore it from a copy.",
        ) from error
    return first, swept
