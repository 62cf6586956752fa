"""The records of the log as bytes: claims, and parts of writes.

A record begins with a mark and a format number. A record without the mark was not written by Holdfast, and has no
effect. A record with a newer format is refused, because ignoring it could lose a message.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntFlag
from typing import Any, Final, cast

import msgspec

from holdfast.exceptions import StoreDamaged, StoreFormatError

FORMAT: Final = 1
"""The format of records that this version writes."""
HEAD_BYTES: Final = 512
"""Bytes of a part that are not data: never more."""

Put = tuple[bytes, bytes]
"""A key and its new value."""
Change = tuple[bytes] | Put | tuple[bytes, bytes, bool]
"""``(key,)`` deletes a key, ``(key, value)`` writes one, and ``(first, end, True)`` deletes keys from ``first`` up to
``end``."""

_MARK: Final = b"hf\x00"
_CLAIM: Final = "claim"
RESIGNED: Final = b""
"""No process has this nonce. To earlier versions, a resignation is a claim of another process."""
_WRITE: Final = "write"
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode
_decode_write = msgspec.msgpack.Decoder(tuple[list[Put], list[tuple[bytes | bool, ...]]]).decode
_CLAIM_VALUES: Final = tuple[int, str, bytes, float]
_PART_VALUES: Final = tuple[int, int, int, int, int, bytes]
_CHANGES: Final = {(bytes,), (bytes, bytes), (bytes, bytes, bool)}


class Copies(IntFlag):
    """Where a write is in a copy of the whole content."""

    NONE = 0
    BEGINS = 1
    CONTINUES = 2
    ENDS = 4


@dataclass(frozen=True, slots=True)
class Claim:
    """The beginning of an ownership.

    Args:
        epoch: Its number; valid only directly after the previous valid claim's.
        name: The owner, for people.
        nonce: A random number of the process; ``RESIGNED``: no process owns the log from there on.
        at: Seconds since 1970-01-01 UTC, for people.
    """

    epoch: int
    name: str
    nonce: bytes
    at: float

    @property
    def is_resignation(self) -> bool:
        """Whether the owner before it gave the log up, after its process had ended."""
        return self.nonce == RESIGNED


@dataclass(frozen=True, slots=True)
class Part:
    """One of the records of a write.

    Args:
        serial: The number of the write: one more than that of the previous valid write.
        part, parts: Its place among the records of the write, and their number.
        data: Its share of the bytes that :func:`encode_write` returned.
    """

    epoch: int
    serial: int
    part: int
    parts: int
    copies: Copies
    data: bytes


def encode_claim(claim: Claim) -> bytes:
    return _framed((_CLAIM, claim.epoch, claim.name, claim.nonce, claim.at))


def encode_parts(epoch: int, serial: int, copies: Copies, data: bytes, most: int) -> list[bytes]:
    """Return the records of a write, each with at most ``most`` bytes."""
    step = most - HEAD_BYTES
    shares = [data[start : start + step] for start in range(0, len(data), step)]
    return [
        _framed((_WRITE, epoch, serial, part, len(shares), int(copies), share)) for part, share in enumerate(shares)
    ]


def decode(record: bytes | None, place: str) -> Claim | Part | None:
    """Return what a record says; None if Holdfast did not write it.

    Args:
        record: The value of Kafka's record.
        place: The log, for errors.

    Raises:
        StoreFormatError: A newer version wrote it.
        StoreDamaged: It is changed.
    """
    # Others may write to the topic: records without the mark are void.
    if record is None or not record.startswith(_MARK) or len(record) == len(_MARK):
        return None
    if (found := record[len(_MARK)]) != FORMAT:
        raise StoreFormatError(
            f"The log at {place} has records of format {found}, but this version reads only {FORMAT}.",
            remedy="Upgrade Holdfast. Nothing was changed.",
        )
    try:
        kind, *values = _decode(memoryview(record)[len(_MARK) + 1 :])
        if kind == _CLAIM:
            return Claim(*msgspec.convert(values, _CLAIM_VALUES))
        if kind == _WRITE:
            epoch, serial, part, parts, copies, data = msgspec.convert(values, _PART_VALUES)
            return Part(epoch, serial, part, parts, Copies(copies), data)
    except (msgspec.DecodeError, ValueError, TypeError, RecursionError) as error:
        raise _changed(place) from error
    raise _changed(place)


def encode_write(changes: Iterable[Change], copied: Iterable[Put] = ()) -> bytes:
    """Return the bytes of a write.

    Args:
        copied: Keys and values of a copy, as they were before the changes.
    """
    return _encode((list(copied), list(changes)))


def decode_write(data: bytes, place: str) -> tuple[list[Put], list[Change]]:
    """Return the copied keys and the changes of a write.

    Args:
        data: The bytes that :func:`encode_write` returned.
        place: The log, for errors.

    Raises:
        StoreDamaged: They are changed.
    """
    try:
        copied, changes = _decode_write(data)
    except (msgspec.DecodeError, RecursionError) as error:
        raise _changed(place) from error
    if not {tuple(map(type, change)) for change in changes} <= _CHANGES:
        raise _changed(place)
    return copied, cast("list[Change]", changes)


def size_of(items: Iterable[Put]) -> int:
    """Return the approximate number of bytes of keys and values in a record."""
    return sum([len(key) + len(value) + 8 for key, value in items])


def _framed(values: tuple[Any, ...]) -> bytes:
    return _MARK + bytes((FORMAT,)) + _encode(values)


def _changed(place: str) -> StoreDamaged:
    return StoreDamaged(
        f"The log at {place} is damaged: a record with Holdfast's mark cannot be read.",
        remedy="Find out what else writes to the topic. Restore the topic from a copy, or start with a new one.",
    )
