"""The truth about a simulated run, recorded from outside: durable state, envelopes on the wire, and reports.

Durable batches and sent envelopes are the only sources of this record; an endpoint's own state never is.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

from holdfast.core.messages import Envelope, LastMessage, SequenceAcknowledgement
from holdfast.core.queues.cursors import HANDLER
from holdfast.core.queues.dead_letters import LETTERS
from holdfast.core.queues.description import DEAD_LETTERS
from holdfast.core.ranges import AcknowledgementRanges
from holdfast.core.records import Batch, Record
from holdfast.core.sending.outboxes.records import outbox_queue, replies_queue
from holdfast.core.sinks.parts import STAGING
from holdfast.simulation.nodes.node import FORWARD, INBOX, OUTBOX, SECOND_OUTBOX
from holdfast.simulation.nodes.routed_queues import Kept, RoutedQueues, is_routed
from holdfast.store.staged import appended

Key = tuple[str, int]
"""A Sequence's Identifier and a message number in it."""

Where = tuple[str, int, int]
"""The place of a record given to a handler: queue, partition, offset."""

LAST_MESSAGE = b"LastMessage"
"""Stands for the body of WS-RM 1.0's empty last message."""


@dataclass(frozen=True, slots=True)
class Queued:
    """One record in an inbound queue partition, or a dead letter.

    The body distinguishes replies that arrived outside a Sequence.
    """

    sequence: str
    number: int
    body: bytes


def is_reply(body: bytes) -> bool:
    """Whether the body is a reply, which travels back to the source: requests are m0, m1 ..., replies r0, r1 ..."""
    return body.startswith(b"r")


def is_staged(queue: str) -> bool:
    """Whether the queue holds staged rows, which the invariants ignore until publication moves them."""
    return queue.startswith(f"{STAGING}/")


def is_row(body: bytes) -> bool:
    """Whether an outside writer wrote the body. Such bodies are w0-0-0 and so on; the writer checks them itself."""
    return body.startswith(b"w")


@dataclass(slots=True)
class DurableState:
    """What one endpoint's disk holds, and ever held."""

    records: dict[Key, Record] = field(default_factory=dict)
    """Every message that was ever durable here, held or queued."""
    queues: dict[int, list[Queued]] = field(default_factory=lambda: defaultdict(list))
    """Partition -> every record ever in it, in order."""
    by_body: dict[bytes, Key] = field(default_factory=dict)
    """Body -> the Sequence and number it arrived under."""
    held: set[Key] = field(default_factory=set)
    dropped: set[Key] = field(default_factory=set)
    sequences: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The newest saved state of each Sequence that is not forgotten."""
    accepted: dict[str, AcknowledgementRanges] = field(default_factory=dict)
    """The newest saved acceptance of each inbound Sequence, including forgotten ones."""
    behaviors: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The newest saved state of each inbound Sequence, including forgotten ones."""
    outbound: dict[str, list[Record]] = field(default_factory=lambda: defaultdict(list))
    """Outbound queue -> every record ever appended."""
    trimmed: dict[str, int] = field(default_factory=dict)
    """Outbound queue -> the first offset still stored."""
    starts: dict[str, int] = field(default_factory=dict)
    """Identifier of an outbound Sequence -> the offset of its number 1, as saved."""
    done: dict[int, AcknowledgementRanges] = field(default_factory=dict)
    """Partition -> offsets plus one of the records that the handler has durably finished."""
    readers: dict[tuple[int, str], int] = field(default_factory=dict)
    """Partition and name -> a reader's durable cursor."""
    letters: list[Queued] = field(default_factory=list)
    """Every dead letter ever stored, as its original message."""
    letters_over: AcknowledgementRanges = field(default_factory=AcknowledgementRanges)
    letters_asked: AcknowledgementRanges = field(default_factory=AcknowledgementRanges)
    """Offsets plus one of the dead letters that are settled, and of those with a requested retry."""
    outcomes: dict[Where, int] = field(default_factory=dict)
    """Results of the handlers in this run of the endpoint: the number of failures; -1: success."""
    replies: set[bytes] = field(default_factory=set)
    """Bodies of replies that are durable here, sent or received."""
    routed: RoutedQueues = field(default_factory=RoutedQueues)
    """Its further queues."""

    def apply(self, batch: Batch) -> None:
        placed = []
        for queue, partition, offset, record in appended(batch):
            if queue == INBOX:
                self._store(record)
                placed.append((partition, offset, record))
            elif queue == DEAD_LETTERS:
                self.letters.append(Queued(record.sequence, record.message_number, record.body))
            elif not is_staged(queue) and not is_routed(queue):
                del self.outbound[queue][offset:]  # the outbox was discarded, and began again
                self.outbound[queue].append(record)
                if record.body.startswith(b"r"):
                    self.replies.add(record.body)
        for _sequence, _number, record in batch.holds:
            self._store(record)
            self.held.add((record.sequence, record.message_number))
        for sequence, number, queue, partition, offset, _ in batch.releases:
            self.held.discard((sequence, number))
            if queue == INBOX:
                placed.append((partition, offset, self.records[sequence, number]))
        for partition, _, record in sorted(placed, key=itemgetter(0, 1)):
            self.queues[partition].append(Queued(record.sequence, record.message_number, record.body))
        for sequence, number in batch.drops:
            self.held.discard((sequence, number))
            self.dropped.add((sequence, number))
        for name, state in batch.sequences.items():
            assert state is None or name in self.sequences or name in batch.homes, f"the batch gives {name} no home"
            self._save(name, state)
        for (queue, partition, cursor), saved in batch.cursors.items():
            if queue == INBOX and cursor == HANDLER and saved is not None:
                self.done[partition] = AcknowledgementRanges.from_state(saved["done"])
            elif queue == INBOX and "/" not in cursor and saved is not None:
                self.readers[partition, cursor] = saved["offset"]
            elif queue == DEAD_LETTERS and cursor == LETTERS and saved is not None:
                self.letters_over = AcknowledgementRanges.from_state(saved["over"])
                self.letters_asked = AcknowledgementRanges.from_state(saved["asked"])
        for (queue, _), offset in batch.trims.items():
            if queue not in (INBOX, DEAD_LETTERS) and not is_staged(queue) and not is_routed(queue):
                self.trimmed[queue] = max(offset, self.trimmed.get(queue, 0))
        self.routed.apply(batch, self.records)

    def sent_under(self, key: str) -> Sequence[Record | Queued | Kept]:
        if key.startswith(FORWARD):
            queue, _, partition = key.removeprefix(FORWARD).rpartition("/")
            return self.routed.records[queue, int(partition)] if queue else self.queues[int(partition)]
        return self.outbound.get(outbox_queue(key)) or self.outbound.get(replies_queue(key)) or []

    def sending(self, identifier: str) -> list[dict[str, Any]]:
        """Return saved states of Sequences that send under that Identifier, except the second destination's."""
        states = [one for one in self.sequences.values() if one["role"] == "source" and one["identifier"] == identifier]
        return [one for one in states if one["outbox"] != SECOND_OUTBOX]

    def _store(self, record: Record) -> None:
        self.records[record.sequence, record.message_number] = record
        self.by_body[record.body] = (record.sequence, record.message_number)
        if record.body.startswith(b"r"):
            self.replies.add(record.body)

    def _save(self, name: str, state: dict[str, Any] | None) -> None:
        if state is None:
            self.sequences.pop(name, None)
        elif state["role"] == "destination":
            self.sequences[name] = self.behaviors[name] = state
            self.accepted[name] = AcknowledgementRanges.from_state(state["accepted"])
        else:
            self.sequences[name] = state
            if state["identifier"] is not None:
                self.starts[state["identifier"]] = state["start"]


@dataclass(slots=True)
class Words:
    """What one endpoint has sent on the wire and reported to its application."""

    bodies: dict[Key, bytes] = field(default_factory=dict)
    """The body of the first transmission of each number of each Sequence."""
    numbers: dict[bytes, list[Key]] = field(default_factory=lambda: defaultdict(list))
    """Body -> every number it was transmitted under."""
    said: dict[str, AcknowledgementRanges] = field(default_factory=dict)
    """Everything it acknowledged, per Sequence."""
    finals: dict[str, tuple[tuple[int, int], ...]] = field(default_factory=dict)
    """The ranges it sent with Final, per Sequence."""
    stopped: list[str] = field(default_factory=list)
    """Codes of the errors it reported to its application."""
    in_doubt: set[bytes] = field(default_factory=set)
    """Bodies of messages it reported as in doubt. Resuming may duplicate these."""

    def transmitted(self, envelope: Envelope) -> None:
        """Record a sent message of an application, or WS-RM 1.0's LastMessage."""
        sequence = envelope.sequence
        assert sequence is not None
        body = LAST_MESSAGE if isinstance(envelope.control, LastMessage) else envelope.body
        key = (sequence.identifier, sequence.message_number)
        if key not in self.bodies:
            self.bodies[key] = body
            self.numbers[body].append(key)

    def acknowledged(self, acknowledgement: SequenceAcknowledgement) -> None:
        said = self.said.setdefault(acknowledgement.identifier, AcknowledgementRanges())
        said.update(acknowledgement.ranges)
        if acknowledgement.final:
            self.finals.setdefault(acknowledgement.identifier, acknowledgement.ranges)


@dataclass(slots=True)
class Ledger:
    """The durable state of every endpoint, and every sent envelope.

    An invariant of one endpoint may read only that part of the other endpoint that :func:`seen_by_the_other` returns.
    """

    disks: list[DurableState] = field(default_factory=lambda: [DurableState(), DurableState()])
    words: list[Words] = field(default_factory=lambda: [Words(), Words()])
    """One entry each for the source, for a broker if there is one, and for the destination, in this order."""
    wants_reply: set[bytes] = field(default_factory=set)
    """Bodies of requests."""
    left_behind: dict[tuple[str, int, str], int] = field(default_factory=dict)
    """Queue, partition and reader -> number of missed records that the endpoint reported for this reader."""
    put_back: dict[tuple[str, int, str], set[int]] = field(default_factory=dict)
    """The same key -> offsets that the reader rewound its cursor to."""

    def came_as(self, index: int, key: Key) -> bytes:
        """Return the body of a neighbor's first transmission of that number; b"" without one."""
        for neighbour in (index - 1, index + 1):
            if 0 <= neighbour < len(self.words) and key in self.words[neighbour].bodies:
                return self.words[neighbour].bodies[key]
        return b""

    def doubt(self, first: int, last: int) -> None:
        """Record that the source reported these offsets of its outbox as in doubt."""
        records = self.disks[0].outbound[outbox_queue(OUTBOX)]
        self.words[0].in_doubt.update(record.body for record in records[first : last + 1])

    def is_discarded(self, body: bytes) -> bool:
        """Whether the destination discarded the message with its Sequence, and so sends no reply."""
        dropped, numbers = self.disks[-1].dropped, self.words[0].numbers
        return any(key in dropped for key in numbers.get(body, ()))

    def has_arrived(self, receiver: int, body: bytes) -> bool:
        """Whether the receiver has durably accepted the message under any number."""
        sender = receiver + 1 if is_reply(body) else receiver - 1
        accepted, numbers = self.disks[receiver].accepted, self.words[sender].numbers
        return any(number in accepted[name] for name, number in numbers.get(body, ()) if name in accepted)


def seen_by_the_other(disk: DurableState, words: Words) -> tuple[DurableState, Words]:
    """Return the part of one endpoint that invariants of the other may read.

    It holds the accepted and the discarded messages, the transmissions, and the messages in doubt. All other attributes
    are missing, so that reading one raises AttributeError.
    """
    seen_disk, seen_words = object.__new__(DurableState), object.__new__(Words)
    seen_disk.accepted = disk.accepted
    seen_disk.dropped = disk.dropped
    seen_words.bodies, seen_words.numbers = words.bodies, words.numbers
    seen_words.in_doubt = words.in_doubt
    return seen_disk, seen_words
