"""A capture's envelopes as rows: messages of Sequences, statements about Sequences, and unplaced envelopes.

The classes are independent of Spark, for tasks of batches and of streams alike. Nothing is dropped: an envelope is a
message, or says something about a Sequence, or is unplaced, with its place and the reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.core.faults import refusal
from holdfast.core.messages import (
    CloseSequence,
    CloseSequenceResponse,
    CreateSequence,
    CreateSequenceResponse,
    Envelope,
    LastMessage,
    TerminateSequence,
    TerminateSequenceResponse,
)
from holdfast.core.versions import RM
from holdfast.exceptions import EnvelopeError
from holdfast.pipeline.reassembly.captures import pieces
from holdfast.pipeline.reassembly.http_captures import Piece
from holdfast.pipeline.reassembly.sequence import Heard, refusal_of
from holdfast.pipeline.spark.ddl import arrow_schema, record_batch
from holdfast.pipeline.spark.workers import spare_collections
from holdfast.wire.decoding.envelopes import decode
from holdfast.wire.limits import DEFAULT

if TYPE_CHECKING:
    import pyarrow as pa

PLACE = "source STRING, position BIGINT, captured_at TIMESTAMP"
"""The origin of a row: file or topic, byte or offset in it, and the time of capture."""

CAPTURE = f"{PLACE}, content BINARY"
"""The input: envelopes, or files that contain some."""

MESSAGES = (
    "sequence STRING, rm STRING, message_number BIGINT, message_id STRING, action STRING, `to` STRING,"
    " reply_to STRING, relates_to STRING, soap_version STRING, headers STRING, body STRING, " + PLACE
)
UNPLACED = f"why STRING, problem STRING, sequence STRING, rm STRING, message_number BIGINT, {PLACE}, raw BINARY"
DECODED = f"kind STRING, {MESSAGES}, marker BOOLEAN, digest BINARY, problem STRING, packed BINARY"
"""A message (``kind`` "message"); a task's knowledge about one Sequence ("heard"); or the reason why an envelope is
unplaced."""

UNREADABLE, REFUSED, PLAIN, EMPTY = "unreadable", "refused", "plain", "empty"
CONFLICT, LATE = "conflict", "late"
WHYS = {
    UNREADABLE: "It is not a readable SOAP message.",
    REFUSED: "An RM Destination would refuse it at any time.",
    CONFLICT: "An earlier message with its number has another body, and is kept.",
    LATE: "It arrived after its Sequence was settled by the timeout.",
    PLAIN: "It belongs to no Sequence, and mentions none.",
    EMPTY: "It has no content, like the answer to a one-way message.",
}
"""Reasons for unplaced envelopes. With the first four, a message may be lost."""

_MOST_HEARD = 10_000
"""Maximum number of Sequences that a task gathers knowledge about before it passes that on."""

Place = tuple[str, int, int | None]
Message = tuple[Any, ...]
"""The values of ``MESSAGES``, then ``marker`` and ``digest``. Headers and body as bytes, the time in microseconds."""

Unplaced = tuple[str, str, str | None, str | None, int | None, str, int, int | None, bytes]
"""The values of ``UNPLACED``."""

NUMBER, BODY, SOURCE, POSITION, CAPTURED_AT, MARKER, DIGEST = 2, 10, 11, 12, 13, 14, 15


def first_of(message: Message) -> tuple[Any, ...]:
    """Return the sort key that finds the first of several messages with one number: time, then place of capture."""
    captured_at = message[CAPTURED_AT]
    return (captured_at is not None, captured_at, message[SOURCE], message[POSITION], message[DIGEST])


class Reader:
    """Decodes the contents of a capture. The results are in ``messages``, ``unplaced`` and ``heard`` until taken."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.unplaced: list[Unplaced] = []
        self.heard: dict[tuple[str, str], Heard] = {}
        self.size = 0
        """Approximate bytes of the messages and unplaced envelopes."""

    def read(self, content: bytes | None, source: str, position: int, captured_at: int | None) -> None:
        """Decode one envelope, or a file of several."""
        for piece in pieces(content or b""):
            when = captured_at if piece.captured_at is None else piece.captured_at
            self._read(piece, (source, position + piece.at, when))

    def taken(self) -> None:
        """Clear the messages and unplaced envelopes, after they were passed on."""
        self.messages, self.unplaced, self.size = [], [], 0

    def _read(self, piece: Piece, place: Place) -> None:
        content = piece.content
        self.size += len(content)
        if piece.problem:
            self._misplace(UNREADABLE, piece.problem, place, content)
            return
        if not content or content.isspace():
            self._misplace(EMPTY, "", place, content)
            return
        try:
            envelope = decode(content)
        except EnvelopeError as error:
            self._misplace(UNREADABLE, f"{type(error).__name__}: {error.message}", place, content)
            return
        fault = refusal(envelope)
        if fault is not None:
            self._misplace(REFUSED, f"{fault.code}: {fault.reason}", place, content)
            return
        says_something = self._hear(envelope, place[2])
        if envelope.sequence is not None:
            self._message(envelope, place, content)
        elif not says_something:
            self._misplace(PLAIN, _about(envelope), place, content)

    def _misplace(self, why: str, problem: str, place: Place, content: bytes) -> None:
        self.unplaced.append((why, problem, None, None, None, *place, content[: DEFAULT.max_bytes]))

    def _of(self, identifier: str, rm: RM, captured_at: int | None) -> Heard:
        heard = self.heard.get((identifier, rm.value))
        if heard is None:
            heard = self.heard[identifier, rm.value] = Heard()
        heard.at(captured_at)
        return heard

    def _hear(self, envelope: Envelope, at: int | None) -> bool:
        """Record an envelope's statements about Sequences, except its own message; return whether it has any."""
        rm = envelope.rm
        if rm is None:
            return False
        for acknowledgement in envelope.acknowledgements:
            heard = self._of(acknowledgement.identifier, rm, at)
            heard.acknowledge(acknowledgement.ranges)
            heard.final |= acknowledgement.final
        for request in envelope.ack_requested:
            self._of(request.identifier, rm, at)
        if envelope.terminates:
            self._of(envelope.terminates, rm, at).terminated = True
        control, fault = envelope.control, envelope.fault
        if control is None:
            if fault is None or not fault.is_rm or fault.identifier is None:
                return bool(envelope.acknowledgements or envelope.ack_requested or envelope.terminates)
            self._of(fault.identifier, rm, at).faults.add(fault.code)
        elif isinstance(control, CreateSequenceResponse):
            self._of(control.identifier, rm, at).created = True
        elif isinstance(control, CreateSequence):
            if control.offer is not None:
                self._of(control.offer.identifier, rm, at).created = True
        elif isinstance(control, CloseSequence | TerminateSequence):
            heard = self._of(control.identifier, rm, at)
            heard.last(control.last_message_number)
            heard.closed |= isinstance(control, CloseSequence)
            heard.terminated |= isinstance(control, TerminateSequence)
        elif isinstance(control, CloseSequenceResponse | TerminateSequenceResponse):
            heard = self._of(control.identifier, rm, at)
            heard.closed |= isinstance(control, CloseSequenceResponse)
            heard.terminated |= isinstance(control, TerminateSequenceResponse)
        return True

    def _message(self, envelope: Envelope, place: Place, content: bytes) -> None:
        sequence, rm = envelope.sequence, envelope.rm
        assert sequence is not None and rm is not None, "a Sequence header always has a version"
        number = sequence.message_number
        fault = refusal_of(number)
        if fault is not None:
            told = f"{fault.code}: the number {str(number)[:40]}; {fault.reason}"
            self.unplaced.append((REFUSED, told, sequence.identifier, rm.value, None, *place, content))
            return
        heard = self._of(sequence.identifier, rm, place[2])
        heard.seen += 1
        if sequence.last_message:
            heard.last(number)
        marker = isinstance(envelope.control, LastMessage)
        body = envelope.body
        self.messages.append(
            (
                sequence.identifier,
                rm.value,
                number,
                envelope.message_id,
                envelope.action,
                envelope.to,
                envelope.reply_to.address if envelope.reply_to is not None else None,
                envelope.relates_to,
                envelope.soap.value,
                b"".join(envelope.headers),
                body,
                *place,
                marker,
                blake2b(body, digest_size=16, person=b"marker" if marker else b"").digest(),
            )
        )


def _about(envelope: Envelope) -> str:
    """Describe a message outside any Sequence in a few words."""
    if envelope.fault is not None:
        return f"a fault: {envelope.fault.code[:200]}: {envelope.fault.reason[:500]}"
    return f"no Sequence header; the Action is {envelope.action[:200]!r}"


def contents(batch: pa.RecordBatch) -> Iterator[tuple[bytes | None, str, int, int | None]]:
    """Yield the rows of a batch with the columns of ``CAPTURE``, ready for :meth:`Reader.read`."""
    import pyarrow as pa

    sources = (value or "" for value in batch.column("source").to_pylist())
    positions = (value or 0 for value in batch.column("position").to_pylist())
    times = batch.column("captured_at").cast(pa.int64()).to_pylist()
    for content, source, position, time in zip(batch.column("content"), sources, positions, times, strict=True):
        yield content.as_py(), source, position, time


# --- as record batches ------------------------------------------------------------------------------------------------

BATCH_ROWS, BATCH_BYTES = 4_096, 8 << 20

_encoder = msgspec.msgpack.Encoder()


def decode_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Convert the columns of ``CAPTURE`` into those of ``DECODED``, for ``mapInArrow``."""
    spare_collections()
    schema = arrow_schema(DECODED)
    reader = Reader()
    for batch in batches:
        for content in contents(batch):
            reader.read(*content)
            if len(reader.messages) + len(reader.unplaced) >= BATCH_ROWS or reader.size >= BATCH_BYTES:
                yield record_batch(_decoded(reader), schema)
            if len(reader.heard) >= _MOST_HEARD:
                yield record_batch(_told(reader), schema)
    yield record_batch(_decoded(reader), schema)
    yield record_batch(_told(reader), schema)


def _decoded(reader: Reader) -> list[tuple[Any, ...]]:
    rows = decoded_rows("message", reader.messages, reader.unplaced)
    reader.taken()
    return rows


def decoded_rows(kind: str, messages: Iterable[Message], unplaced: Iterable[Unplaced]) -> list[tuple[Any, ...]]:
    """Return rows with the columns of ``DECODED``: messages and unplaced envelopes, each with its kind."""
    nothing = (None,) * 8
    rows: list[tuple[Any, ...]] = [(kind, *message, None, None) for message in messages]
    for why, problem, sequence, rm, number, source, position, at, raw in unplaced:
        rows.append((why, sequence, rm, number, *nothing, source, position, at, None, None, problem, raw))
    return rows


def _told(reader: Reader) -> list[tuple[Any, ...]]:
    nothing = (None,) * 12
    rows = [
        ("heard", sequence, rm, *nothing, None, None, None, _encoder.encode(heard.to_state()))
        for (sequence, rm), heard in reader.heard.items()
    ]
    reader.heard = {}
    return rows
