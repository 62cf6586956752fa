"""Rows that an external writer sends to be staged, parsed and validated before any of them is stored.

A valid row can be written into an envelope of any version, and names an existing queue. An invalid row would be
published with the rest and could never be sent. This module knows no sink and no HTTP.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec

from holdfast.core.messages import ANONYMOUS, NONE
from holdfast.core.staged_blocks import Block, EncodedRow, blocks_of
from holdfast.endpoint.envelopes.message import body_bytes
from holdfast.exceptions import EnvelopeError, HoldfastError
from holdfast.settings import suggestion
from holdfast.store.staged import RowEncoder
from holdfast.wire import Limits, check_action, check_header_blocks, check_iri, check_text, known_contents

MEDIA_TYPE = "application/vnd.holdfast.rows"
COLUMNS = ("key", "queue", "to", "action", "headers", "body", "message_id", "relates_to", "reply_to")
"""Columns of a row, in this order."""
LARGEST_KEY = 1024
"""Characters."""
MOST_ROWS = 300_000
"""In a part: so many of the smallest have 4 MB. Each takes hundreds of bytes while it is looked at."""


class WireRow(msgspec.Struct, array_like=True, forbid_unknown_fields=True, gc=False):
    """A received row. Headers and body are bytes or text; None stands for an absent value."""

    key: str | None
    queue: str | None
    to: str | None
    action: str | None
    headers: Any
    body: Any
    message_id: str | None
    relates_to: str | None
    reply_to: str | None


class RowRefused(HoldfastError):
    """A row that cannot be sent."""

    def __init__(self, column: str, message: str, remedy: str = "") -> None:
        super().__init__(message, remedy=remedy)
        self.column = column


_read_row = msgspec.msgpack.Decoder(WireRow).decode
_LENGTH = struct.Struct(">I")
_END = struct.Struct(">IQ")
_NO_MORE = 0xFFFFFFFF


class CutOff(HoldfastError):
    """The received part is incomplete."""


def rows_of(data: bytes) -> list[memoryview]:
    """Split a part into its encoded rows. A length precedes each row; a mark and the number of rows end the part.

    Raises:
        CutOff: The end of the part is missing, or the part has too many rows.
    """
    rows: list[memoryview] = []
    view, at = memoryview(data), 0
    while at + _LENGTH.size <= len(data):
        (length,) = _LENGTH.unpack_from(data, at)
        if length == _NO_MORE:
            if len(data) - at == _END.size and _END.unpack_from(data, at)[1] == len(rows):
                return rows
            break
        if len(rows) == MOST_ROWS:
            raise CutOff(f"the part has more than {MOST_ROWS:,} rows", remedy="Send the rows in several parts.")
        rows.append(view[at + _LENGTH.size : at + _LENGTH.size + length])
        at += _LENGTH.size + length
    raise CutOff(
        f"the part is incomplete or invalid: {len(rows)} rows were found in {len(data):,} bytes",
        remedy="Write each row after its length (4 bytes, big-endian), then FF FF FF FF and the number of rows (8 "
        "bytes).",
    )


@dataclass(frozen=True, slots=True)
class PartRead:
    """The result of reading a part.

    Args:
        blocks: Its rows, as they are staged; at least one block, which may have none.
        refused: Rows that cannot be sent, with their place in the part, from 0.
    """

    blocks: list[Block]
    rows: int
    refused: list[tuple[int, RowRefused]]


class RowReader:
    """Parser and validator of rows.

    Args:
        queues: The names of the existing queues.
        addresses: Address that rows may be sent to -> the queue for records to that address.
        limits: The limits of one envelope.
        default: The queue for rows that name no queue; "" if every row must name one.
    """

    def __init__(self, queues: Iterable[str], addresses: Mapping[str, str], limits: Limits, default: str = "") -> None:
        self._queues = frozenset(queues)
        self._addresses = addresses
        self._limits = limits
        self._default = default
        self._found: dict[tuple[str | None, str | None], str] = {}
        """Target that rows name -> the queue, as a cache."""
        self._actions: set[str] = set()
        """Actions that were validated."""

    def read(self, data: bytes, now: float) -> PartRead:
        """Return the encoded rows of a part, and the errors of the invalid rows.

        Args:
            data: As :func:`rows_of` reads it.
            now: Seconds since 1970-01-01 UTC, when they arrived.

        Raises:
            CutOff: The part is incomplete.
        """
        rows: list[WireRow | RowRefused] = [_read(raw) for raw in rows_of(data)]
        sure = known_contents([None if isinstance(row, RowRefused) else row.body for row in rows])
        encoder = RowEncoder(now)
        encoded: list[EncodedRow] = []
        refused: list[tuple[int, RowRefused]] = []
        for number, row in enumerate(rows):
            try:
                if isinstance(row, RowRefused):
                    raise row
                encoded.append(self._checked(row, sure[number], encoder))
            except RowRefused as error:
                refused.append((number, error.with_traceback(None)))  # a traceback would keep every local in memory
        return PartRead(list(blocks_of(encoded, now)), len(encoded), refused)

    def _checked(self, row: WireRow, is_sure: bool, encoder: RowEncoder) -> EncodedRow:
        """Validate a row, and return its staged form; ``is_sure``: its body is already validated."""
        queue = self._found.get((row.queue, row.to)) or self._queue(row)
        if row.key is not None and len(row.key) > LARGEST_KEY:
            raise RowRefused("key", f"the key has {len(row.key):,} characters; the limit is {LARGEST_KEY:,}")
        if row.action is None:
            raise RowRefused("action", "the row has no action", "Every message needs one, such as 'urn:orders/Submit'.")
        if row.body is None:
            raise RowRefused("body", "the row has no body", _ONE_ELEMENT)
        if row.action not in self._actions:
            _check("action", check_action, row.action)
            self._actions.add(row.action)
        texts = row.message_id, row.to, row.reply_to, row.relates_to
        if texts != _NO_TEXTS:
            for column, check in _CHECKS.items():
                if (text := getattr(row, column)) is not None:
                    _check(column, partial(check, column), text)
        headers = row.headers.encode() if isinstance(row.headers, str) else b"" if row.headers is None else row.headers
        if not isinstance(headers, bytes):
            raise RowRefused("headers", f"headers must be bytes of XML, not {type(headers).__name__}")
        if headers:
            _check("headers", check_header_blocks, headers)
        body = row.body if is_sure else _check("body", body_bytes, row.body)
        # An empty Body is legal SOAP, but in a table it is a value that went missing.
        if not body.strip():
            raise RowRefused("body", "the body is empty", _ONE_ELEMENT)
        # Validated now: published with the rest, such a row could never be sent.
        most = self._limits.max_bytes - self._limits.max_header_bytes
        if len(body) > most:
            raise RowRefused("body", f"the body has {len(body):,} bytes; one envelope has room for {most:,}")
        most = self._limits.max_header_bytes // 2  # the endpoint's own headers need the rest
        if len(headers) > most:
            raise RowRefused("headers", f"the headers have {len(headers):,} bytes; one envelope has room for {most:,}")
        return encoder.encode(queue, row.key or "", row.action, body, headers, *texts)

    def _queue(self, row: WireRow) -> str:
        if row.to is not None:
            _check("to", partial(check_iri, "to"), row.to)
        name = row.queue
        if name is None and row.to is not None:
            name = self._addresses.get(row.to)
            if name is None:
                there = ", ".join(self._addresses) or "no address"
                raise RowRefused(
                    "to",
                    f"no forwarder sends to {row.to[:500]}, and the server posts only to configured addresses; "
                    f"rows may be sent to: {there[:2000]}",
                    "Configure a forwarder with its own queue for that address, or name a queue instead.",
                )
        name = name or self._default
        if name not in self._queues:
            there = f"The queues are {', '.join(sorted(self._queues))[:2000]}."
            raise RowRefused(
                "queue",
                f"the queue {name[:200]!r} does not exist" if name else "the row names neither a queue nor an address",
                f"{suggestion(name, self._queues)} {there}".lstrip(),
            )
        self._found[row.queue, row.to] = name
        return name


def _check_reply_to(column: str, text: str) -> None:
    if text not in (ANONYMOUS, NONE):  # as a queue's records have them
        check_iri(column, text)


_CHECKS = {"message_id": check_iri, "relates_to": check_text, "reply_to": _check_reply_to}
"""``relates_to`` repeats the MessageID of a peer, whatever it is."""
_ONE_ELEMENT = "A body is one XML element."
_NO_TEXTS = (None, None, None, None)
_ROW = f"A row is an array of {', '.join(COLUMNS)}: text or nil; body and headers are bytes."


def _read(raw: memoryview) -> WireRow | RowRefused:
    try:
        return _read_row(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return RowRefused(_column_of(str(error)), f"the row cannot be read: {error}", _ROW)


def _check(column: str, check: Callable[[Any], Any], value: Any) -> Any:
    try:
        return check(value)
    except EnvelopeError as error:
        raise RowRefused(column, error.message, error.remedy) from None


def _column_of(error: str) -> str:
    """Return the name of the column in an error of msgspec, which contains only its position."""
    _, _, place = error.rpartition("`$[")
    number = place.partition("]")[0]
    return COLUMNS[int(number)] if number.isdecimal() and int(number) < len(COLUMNS) else ""
