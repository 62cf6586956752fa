"""Data for the store: records, and batches of changes that become durable together or not at all.

Attachments that are too large for memory are in a **content** of the store. The attachments of a record are bytes of
the wire's own; if a content has the parts, these bytes begin with a head that names it. The core carries them like any
others.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from struct import Struct
from typing import Any, BinaryIO, Protocol

from holdfast.core.staged_blocks import Run
from holdfast.exceptions import StoreError

_MARK = b"\xc1"  # the wire's own bytes are MessagePack, which never begins with it
_HEAD = Struct(">c16sQ")


@dataclass(slots=True)
class Record:
    """One application message as a queue keeps it. The position (queue, partition, offset) is its key, not inside.

    Args:
        sequence: Identifier of the Sequence it came in; in an outbox, the sequence key it is to go out under.
        message_number: Its number there; 0 in an outbox, where the offset decides it.
        action: wsa:Action.
        body: Content of soap:Body, self-contained XML.
        received_at: Seconds since 1970-01-01 UTC.
        message_id, to, reply_to, relates_to: WS-Addressing values, None where absent (``reply_to``: the address).
        soap: "1.1" or "1.2".
        headers: The foreign header blocks, one after the other.
        wants_reply: Whether its sender waits for a reply.
        released_at: Seconds since 1970-01-01 UTC, when it left the hold behind a gap; None if it was never held.
        transport: What the transport said of it, in the endpoint's own bytes; b"" for nothing.
        attachments: Its attachments, in the wire's own bytes; b"" for none.
        reference_parameters: Those of its ReplyTo; in an outbox, those of the endpoint that receives it.
        fault_to: Address and reference parameters of its FaultTo, if that differs from its ReplyTo; in a reply that is
            a fault, those of the request.
    """

    sequence: str
    message_number: int
    action: str
    body: bytes
    received_at: float
    message_id: str | None = None
    to: str | None = None
    reply_to: str | None = None
    relates_to: str | None = None
    soap: str = "1.2"
    headers: bytes = b""
    wants_reply: bool = False
    released_at: float | None = None
    transport: bytes = b""
    attachments: bytes = b""
    reference_parameters: tuple[bytes, ...] = ()
    fault_to: tuple[str, tuple[bytes, ...]] | None = None

    @property
    def size(self) -> int:
        """The bytes of its content, without addresses and its sender's transport."""
        size = len(self.body) + len(self.headers) + len(self.attachments)
        if self.reference_parameters:
            size += sum(map(len, self.reference_parameters))
        return size if self.fault_to is None else size + sum(map(len, self.fault_to[1]))

    @property
    def delivered_at(self) -> float:
        """Seconds since 1970-01-01 UTC, when it entered its queue: later than ``received_at`` if it was held."""
        return self.received_at if self.released_at is None else self.released_at


State = dict[str, Any]
"""A saved state: a dict with string keys of None, bool, int, float, str, bytes, and lists and dicts of those."""


@dataclass(slots=True)
class Batch:
    """Changes that become durable together. A store applies them in the order of the fields.

    Queues are named; ``(queue, partition)`` is an append-only list of records with dense offsets from 0.

    Args:
        queues: Queue name -> its description (``epoch``, ``partitions``), written when a queue is created.
        appends: ``(queue, partition, offset, record)``.
        runs: Staged rows that become records of queues, where they are encoded.
        holds: ``(sequence, message_number, record)``: accepted, acknowledged, but not yet in its queue.
        releases: ``(sequence, message_number, queue, partition, offset, now)``: a held record moves into the queue,
            where ``now`` is its ``released_at``; a move into several queues has one entry for each.
        drops: ``(sequence, message_number)``: a held record is thrown away.
        sequences: Identifier -> state to save; None forgets the sequence.
        cursors: ``(queue, partition, name)`` -> state to save; None forgets the cursor.
        trims: ``(queue, partition)`` -> offset: records below it are deleted.
        deletes: ``(queue, partition)``: the whole partition with its records and cursors is deleted.
        homes: Identifier of a Sequence -> ``(queue, partition)`` that it lives with: who has the one has the other.
            Said with its first state, and kept until it is forgotten.
    """

    queues: dict[str, State] = field(default_factory=dict)
    appends: list[tuple[str, int, int, Record]] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    holds: list[tuple[str, int, Record]] = field(default_factory=list)
    releases: list[tuple[str, int, str, int, int, float]] = field(default_factory=list)
    drops: list[tuple[str, int]] = field(default_factory=list)
    sequences: dict[str, State | None] = field(default_factory=dict)
    cursors: dict[tuple[str, int, str], State | None] = field(default_factory=dict)
    trims: dict[tuple[str, int], int] = field(default_factory=dict)
    deletes: list[tuple[str, int]] = field(default_factory=list)
    homes: dict[str, tuple[str, int]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(
            self.appends
            or self.sequences
            or self.cursors
            or self.runs
            or self.holds
            or self.releases
            or self.drops
            or self.trims
            or self.queues
            or self.deletes
            or self.homes
        )


@dataclass(slots=True)
class Snapshot:
    """Contents of a store when it is opened, except the records themselves.

    Args:
        queues: Queue name -> description.
        bounds: ``(queue, partition)`` -> ``(first, end)``: offsets first <= o < end are there.
        sequences: Identifier -> state.
        cursors: ``(queue, partition, name)`` -> state.
        held: Sequence identifier -> its held message numbers, ascending.
        homes: Sequence identifier -> the partition that it lives with.
    """

    queues: dict[str, State] = field(default_factory=dict)
    bounds: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    sequences: dict[str, State] = field(default_factory=dict)
    cursors: dict[tuple[str, int, str], State] = field(default_factory=dict)
    held: dict[str, list[int]] = field(default_factory=dict)
    homes: dict[str, tuple[str, int]] = field(default_factory=dict)

    def by_queue(self) -> dict[str, Snapshot]:
        """Split the snapshot by queue, without Sequences: queue name -> snapshot of that queue."""
        parts: dict[str, Snapshot] = {}
        for name, description in self.queues.items():
            parts.setdefault(name, Snapshot()).queues[name] = description
        for where, bounds in self.bounds.items():
            parts.setdefault(where[0], Snapshot()).bounds[where] = bounds
        for key, state in self.cursors.items():
            parts.setdefault(key[0], Snapshot()).cursors[key] = state
        return parts


class Hold(Protocol):
    """Keeps a content in its store as long as the object lives, whether or not a stored record names it."""

    @property
    def name(self) -> bytes:
        """The content's name."""
        ...

    def open(self) -> BinaryIO:
        """Return the content as a file.

        Raises:
            OSError: It cannot be read.
            StoreError: The same, in a database.
        """
        ...


class ContentWriter(Protocol):
    """Writes one content, from any thread but one at a time. It is deleted unless a stored record comes to name it."""

    @property
    def hold(self) -> Hold:
        """Keeps the content."""
        ...

    @property
    def size(self) -> int:
        """The bytes written so far."""
        ...

    def write(self, data: bytes) -> None:
        """Add a piece.

        Raises:
            OSError: It cannot be written; for example, the disk is nearly full.
            StoreError: The same, in a database.
        """
        ...

    def finish(self) -> None:
        """Make the content durable. Errors as for :meth:`write`."""
        ...


class HeldAttachments(bytes):
    """Attachments whose content stays in the store as long as these bytes live."""

    hold: Hold


def with_content(hold: Hold, size: int, rest: bytes) -> HeldAttachments:
    """Return attachments that name a content."""
    return held(_HEAD.pack(_MARK, hold.name, size) + rest, hold)


def held(attachments: bytes, hold: Hold) -> HeldAttachments:
    """Return the same attachments with what keeps their content."""
    found = HeldAttachments(attachments)
    found.hold = hold
    return found


def content_name(attachments: bytes) -> bytes:
    """Return the name of the content that attachments have in the store; b"" for none."""
    # Without unpacking: asked for every record.
    return attachments[1:17] if attachments[:1] == _MARK else b""


def content_size(attachments: bytes) -> int:
    """Return the bytes that attachments have in the store besides the record; 0 for none."""
    if attachments[:1] != _MARK:
        return 0
    size: int = _HEAD.unpack_from(attachments)[2]
    return size


def hold_of(attachments: bytes) -> Hold:
    """Return what keeps the content of attachments.

    Raises:
        StoreError: Nothing does: another process has read the record.
    """
    if isinstance(attachments, HeldAttachments):
        return attachments.hold
    raise StoreError(
        "The attachments of this message are not in memory, but in the store that has it.",
        remedy="Read them in a handler, forward the message, or use holdfast queues export.",
    )


def own_bytes(attachments: bytes) -> bytes:
    return attachments[_HEAD.size :] if attachments[:1] == _MARK else attachments
