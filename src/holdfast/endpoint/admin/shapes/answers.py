"""JSON answers of the admin listener."""

from __future__ import annotations

from typing import Any

from msgspec import field

from holdfast.endpoint.admin.routes import Shape
from holdfast.endpoint.admin.shapes.values import Guess


class Health(Shape):
    """The health of the broker.

    Args:
        status: The health as one word.
        trouble: Why the broker does not accept messages, and what to do; a restart would not help.
        journal: Why the broker cannot write the event journal; messages still flow meanwhile.
        cut_off: Which other nodes of the cluster cannot reach this one, if they are most of them.
        stopped: Names of forwarders that send nothing until the operator decides; the broker still accepts messages.
        handlers: That every handler has been busy for more than a minute; the server still accepts messages.
        partitions: State of each cluster partition that this node has: "serving" or "starting".
    """

    status: str
    trouble: str = ""
    journal: str = ""
    cut_off: str = ""
    stopped: list[str] | None = None
    handlers: str = ""
    partitions: dict[str, str] | None = None


class Reloaded(Shape):
    """A configuration that the broker has reloaded.

    Args:
        changed: The keys with new values that the broker uses now.
        not_used: The keys or tables with values that the broker does not use, each with the reason and the remedy. All
            other values are used.
    """

    changed: list[str]
    not_used: dict[str, str] | None = None


class Flight(Shape):
    """The unacknowledged messages of an outbound Sequence and its transmission window."""

    window: int
    in_flight: int
    next_number: int
    retransmission_timeout: float
    last_heard: float
    """Seconds ago."""


class SequenceShown(Shape):
    """One Sequence.

    ``waiting``: for a destination, the messages held until the lower numbers arrive; for a source, the messages that
    are not acknowledged. ``ending``: whether an outbound Sequence is to close, or has few numbers left, and ends once
    its transmitted messages are acknowledged; while it is suspended, it waits.
    """

    identifier: str
    role: str
    state: str
    versions: str
    last_fault: str
    waiting: int
    age: float | None
    expires_at: float | None
    suspended: str
    ranges: str
    gaps: str
    count: int
    highest: int
    partition: int | None = None
    acks_to: str | None = None
    offered: str | None = None
    behavior: str | None = None
    next_in_order: int | None = None
    awaiting: list[int] | None = None
    key: str | None = None
    to: str | None = None
    start: int | None = None
    ending: bool | None = None
    flight: Flight | None = None


class SequenceList(Shape):
    """One page of the Sequences, and the total number of matching Sequences."""

    sequences: list[SequenceShown]
    count: int
    next: str | None


class Bounds(Shape):
    """The offsets stored in a partition: first <= offset < end."""

    first: int
    end: int


class CursorShown(Shape):
    """One cursor.

    ``lag``: records that the cursor has not passed; ``age``: seconds since the oldest of them was stored; ``idle``:
    seconds since the cursor last moved.
    """

    name: str
    kind: str
    offsets: dict[str, int]
    lag: int
    age: float
    idle: float | None
    rate: float | None = None


class CursorOfQueue(CursorShown, kw_only=True):
    """One cursor and the name of its queue."""

    queue: str


class QueueShown(Shape):
    """One queue.

    ``max_messages``: its limit; ``full``: whether it refuses messages because of that limit; ``bytes``: its size, if
    its retention counts bytes; ``rate_in``: records a second, recently.
    """

    name: str
    kind: str
    epoch: str
    retention: str | None
    records: int
    partitions: dict[str, Bounds]
    cursors: list[CursorShown]
    max_messages: int | None = None
    full: bool | None = None
    bytes: int | None = None
    age: float | None = None
    rate_in: float | None = None


class QueueOverview(Shape):
    """One queue, as its readers see it."""

    epoch: str
    retention: str
    partitions: dict[str, Bounds]


class QueueList(Shape):
    """All queues, by name."""

    v: int
    queues: dict[str, QueueOverview]


class DescribedQueues(Shape):
    """Queues with their cursors."""

    v: int
    queues: list[QueueShown]


class CursorList(Shape):
    """One page of the cursors of all queues."""

    cursors: list[CursorOfQueue]
    count: int
    next: str | None


class Ends(Shape):
    """The first and end offsets of a queue's partitions."""

    v: int
    queue: str
    epoch: str
    partitions: dict[str, Bounds]


class Nodes(Shape):
    """Which node of a cluster has which worker, so that a client may ask the node with the data it needs.

    Args:
        url: The admin listener of this node.
        partitions: Number of partitions of a queue in each worker: partition p belongs to worker p // partitions.
        workers: The admin listener of the node that has each worker; null if no node has it, or its node does not
            answer. Empty for a server that is no node of a cluster.
        sink: The worker that has the sink, or will create it.
    """

    v: int
    url: str
    partitions: int
    workers: list[str | None]
    sink: int | None = None


class NextInQueue(Shape):
    """The offsets of a queue's partitions, and where the next batch ends in the queue.

    Args:
        offsets: Where the batch ends; empty if the request does not name the queue.
        fingerprints: Of the last records below these offsets; empty if the batch has no record of the queue.
    """

    epoch: str
    partitions: dict[str, Bounds]
    offsets: dict[str, int] = field(default_factory=dict)
    fingerprints: dict[str, str] = field(default_factory=dict)


class NextPositions(Shape):
    """The end of a reader's next batch in each queue."""

    v: int
    queues: dict[str, NextInQueue]
    guess: Guess


class Fingerprints(Shape):
    """Fingerprints that distinguish the last record below each position from other records."""

    epoch: str
    fingerprints: dict[str, str]


class OffsetsAt(Shape):
    """The first record from a time on, for each requested partition; its end if there is no such record."""

    epoch: str
    offsets: dict[str, int]


class Place(Shape):
    """The current position of a reader's cursor."""

    epoch: str
    offsets: dict[str, int]


class Offsets(Shape):
    """The current offsets of a cursor."""

    offsets: dict[str, int]


class Moved(Shape):
    """The new offsets of a cursor, and those from before the request. With ``dry_run``, it has not moved."""

    offsets: dict[str, int]
    before: dict[str, int]


class AttachmentShown(Shape):
    """One attachment of a message; ``bytes`` is its stored size."""

    content_id: str
    media_type: str
    bytes: int


class Message(Shape):
    """One record.

    ``body`` may be truncated; ``bytes`` is its full size. ``attachments`` is absent if there are none.
    """

    offset: int
    sequence: str
    message_number: int
    action: str
    message_id: str | None
    to: str | None
    reply_to: str | None
    relates_to: str | None
    soap: str
    received_at: float
    wants_reply: bool
    headers: str
    body: str
    bytes: int
    attachments: tuple[AttachmentShown, ...] = ()


class Messages(Shape):
    """Some records of a partition."""

    queue: str
    partition: int
    first: int
    end: int
    messages: list[Message]
    next: int | None


class LossShown(Shape):
    """Records to delete that a cursor has not passed."""

    partition: int
    cursor: str
    kind: str
    records: int


class Purged(Shape):
    """The result of a purge, or of a dry run.

    ``unread``: the deleted records that each cursor had not passed; ``left``: records that handlers or forwarders
    still process, which stay until they finish.
    """

    queue: str
    records: int
    left: int
    unread: list[LossShown]
    dry_run: bool


class CircuitShown(Shape):
    """The circuit breaker of an address that forwarders send to.

    If it is open: for how many seconds (``open_for``), why (``reason``), and in how many seconds the next attempt
    follows (``next_try``).
    """

    to: str
    state: str
    failures: int
    reason: str
    open_for: float | None
    next_try: float | None
    waiting: int


class RefusalShown(Shape):
    """A message that a forwarder's destination answered with a fault and may still accept.

    Args:
        offset: The message's offset in its queue.
        sequence: The Sequence that carries it at present, if any.
        number: Its message number in that Sequence.
        action: Its WS-Addressing Action.
        code, reason: The destination's last fault.
        since: When the destination first rejected it, in seconds since 1970.
        times: How often the destination rejected it.
        final_times, final_at: The forwarder gives the message up when the destination has rejected it so often, and not
            before this time, in seconds since 1970. None: the outbox is no forwarder's, and never does.
    """

    offset: int
    sequence: str | None
    number: int | None
    action: str
    code: str
    reason: str
    since: float
    times: int
    final_times: int | None
    final_at: float | None


class ForwarderShown(Shape):
    """One outbox: it sends the records of a partition to an address.

    ``retracted``: messages that the destination acknowledged and no longer does.
    """

    name: str
    key: str
    queue: str
    partition: int
    to: str | None
    state: str
    suspended: str | None
    stopped: str
    stopped_for: str
    refused: str | None
    last_answer: str | None
    refusals: list[RefusalShown]
    first: int
    end: int
    waiting: int
    sequence: str | None
    retracted: int = 0
    flight: Flight | None = None
    circuit: CircuitShown | None = None


class ForwarderList(Shape):
    """One page of the forwarders."""

    forwarders: list[ForwarderShown]
    count: int
    next: str | None


class ForwarderDeleted(Shape):
    """The number of outboxes deleted.

    ``waiting``: how many messages they had not sent, or not with certainty.
    """

    deleted: int
    waiting: int


class Waiting(Shape):
    """One message that waits to be sent or acknowledged."""

    message: str
    key: str
    offset: int
    message_id: str | None
    action: str
    to: str | None
    state: str
    stopped: str
    sequence: str | None
    number: int | None
    wants_reply: bool
    bytes: int
    stored_at: float
    in_doubt: int | None = None
    headers: str | None = None
    body: str | None = None
    attachments: tuple[AttachmentShown, ...] = ()


class WaitingList(Shape):
    """Some of the messages that wait to be sent. ``enqueued`` is the number of messages of other transactions that a
    source has not put into its outbox yet; null if the store is not a source's, or its database does not answer."""

    messages: list[Waiting]
    count: int
    enqueued: int | None


class GivenUp(Shape):
    """The result of discarding a message. ``count`` is the number that remains; None if a worker does not answer."""

    discarded: int
    in_doubt: int
    count: int | None


class Retried(Shape):
    """The number of messages retried, and the number that remains; None if a worker does not answer."""

    retried: int
    count: int | None


class Discarded(Shape):
    """The number of messages discarded, and the number that remains; None if a worker does not answer."""

    discarded: int
    count: int | None


class LetterShown(Shape):
    """One dead letter."""

    letter: int
    action: str
    sequence: str
    message_number: int
    message_id: str | None
    received_at: float
    failed_at: float | None
    attempts: int | None
    error: str
    bytes: int
    retry: bool
    queue: str | None = None
    partition: int | None = None
    offset: int | None = None
    forwarder: str | None = None
    code: str | None = None
    to: str | None = None
    reply_to: str | None = None
    relates_to: str | None = None
    soap: str | None = None
    wants_reply: bool | None = None
    reason: str | None = None
    headers: str | None = None
    body: str | None = None
    attachments: tuple[AttachmentShown, ...] = ()


class LetterList(Shape):
    """One page of the dead letters."""

    dead_letters: list[LetterShown]
    count: int
    next: int | None


class JournalFile(Shape):
    """One file of the event journal.

    ``begun`` and ``written``: when the file was created and last written; ``sealed``: the file is complete;
    ``worker``: the worker that writes it, if the broker has several.
    """

    file: str
    bytes: int
    begun: float | None
    written: float
    sealed: bool
    worker: int | None


class JournalList(Shape):
    """One page of the journal's files, with their total number and size in bytes."""

    files: list[JournalFile]
    count: int
    bytes: int
    next: str | None


class RowShown(Shape):
    """A row that the broker cannot send, counted from 0 in its part, and the invalid column."""

    row: int
    column: str
    error: str
    remedy: str


class PartTaken(Shape):
    """The rows of a part that are durable.

    ``rows`` is 0 and ``already`` true if the batch is already published; ``attempt`` then names that attempt, or is
    None if it is no longer known. ``refused``: the rows left out.
    """

    rows: int
    already: bool
    attempt: str | None = None
    refused: list[RowShown] = field(default_factory=list)


class PublishedShown(Shape):
    """Whether this request published the batch or an earlier one did.

    ``rows``: how many rows the batch has; ``attempt``: the attempt that published it, None if it is no longer known.
    """

    published: bool
    rows: int | None
    attempt: str | None


class SinkShown(Shape):
    """One sink.

    ``batch``: the last published batch of its query; ``published``: rows published in total; ``moving``: published
    rows that are not in their queues yet, and ``waits_for``: what they wait for; ``staged``: unpublished rows, in
    ``parts`` parts; ``bytes``: the size of the moving and the staged rows; ``sequence``: its identifier, which
    the Sequences of its rows begin with: ``SEQUENCE#0``, and so on, one for each partition; ``attempt``: the writer's
    name for that last batch; ``final_at``: when that batch was published, in seconds since 1970-01-01 UTC, if it is the
    last one.
    """

    name: str
    query: str
    batch: int | None
    published: int
    moving: int
    staged: int
    parts: int
    bytes: int
    waits_for: str
    sequence: str
    attempt: str | None
    final_at: float | None


class SinkList(Shape):
    """One page of the sinks."""

    sinks: list[SinkShown]
    count: int
    next: str | None


Anything = dict[str, Any]
