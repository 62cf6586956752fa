"""What the admin listener takes and answers, as classes: its JSON, field by field.

Requests are checked by them, and the description in OpenAPI is drawn from them.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, field

from holdfast.endpoint.admin.routes import LARGEST_NUMBER, Shape

Offset = Annotated[int, Meta(ge=0, le=LARGEST_NUMBER)]
Seconds = Annotated[float, Meta(ge=0, le=1e11)]
Text = Annotated[str, Meta(max_length=2000)]
Limit = Annotated[int, Meta(ge=1, le=LARGEST_NUMBER, description="So many at most; no more than 1000 in any case.")]

MOST_LISTED = 1000
"""Of a list in one answer; it goes on from its ``next``."""


# --- what is asked --------------------------------------------------------------------------------------------------


class Page(Shape):
    """A part of a list."""

    after: Annotated[str, Meta(max_length=20_000, description="What the answer before said as ``next``.")] = ""
    limit: Limit = 100


class SequencePage(Page):
    """A part of the Sequences."""

    role: Annotated[Literal["destination", "source"] | None, Meta(description="Only inbound, or outbound, ones.")] = (
        None
    )
    state: Annotated[str, Meta(max_length=100, description="Only those in that state.")] = ""
    find: Annotated[str, Meta(max_length=2000, description="Only those whose Identifier or key holds that text.")] = ""


class LetterPage(Shape):
    """A part of the dead letters."""

    start: Annotated[int, Meta(ge=0, le=LARGEST_NUMBER, description="Begin at this letter.")] = field(
        name="from", default=0
    )
    limit: Limit = 100
    whole: Annotated[bool, Meta(description="With reasons, header blocks and bodies: then fewer, some megabytes.")] = (
        False
    )


class MessagePage(Shape):
    """A part of what waits to be sent."""

    limit: Limit = 100


class Key(Shape):
    """Which of several."""

    key: Annotated[str | None, Meta(description="The sequence key; all without it.")] = None


class Peek(Shape):
    """A look at records."""

    start: Annotated[Offset | None, Meta(description="The first; without: the oldest.")] = field(
        name="from", default=None
    )
    limit: Limit = 10
    body_bytes: Annotated[int, Meta(ge=0, le=1 << 20, description="So much of each body.")] = 10_000


class ReadersQuery(Shape):
    """What every question of a reader may bring."""

    epoch: Annotated[str | None, Meta(description="The queue's, as it was when the reader began.")] = None
    known: Annotated[str, Meta(description="What it has read, as partition:position:fingerprint, with commas.")] = ""


class FingerprintsQuery(ReadersQuery, kw_only=True):
    """Which positions."""

    at: Annotated[str, Meta(description="partition:position, with commas.")]


class OffsetsQuery(Shape, kw_only=True):
    """Which times."""

    epoch: Annotated[str | None, Meta(description="The queue's, as it was when the reader began.")] = None
    at: Annotated[str, Meta(description="partition:microseconds since 1970, with commas.")]


class RecordsQuery(ReadersQuery, kw_only=True):
    """Which records: from <= offset < to."""

    start: Offset = field(name="from")
    end: Offset = field(name="to")
    without: Annotated[str, Meta(description="Fields that are sent empty: body, headers, transport, with commas.")] = ""


class OctetsQuery(Shape):
    """Which part of a file: from <= byte < to; without, all of it."""

    start: Offset = field(name="from", default=0)
    end: Offset | None = field(name="to", default=None)


class Move(Shape):
    """Where a reader's cursor goes."""

    epoch: str
    offsets: dict[int, Offset]
    fingerprints: dict[int, str] = field(default_factory=dict)


class Position(Shape):
    """Where a reader stands in a queue, and how far it reads."""

    epoch: str
    offsets: dict[int, Offset] = field(default_factory=dict)
    fingerprints: dict[int, str] = field(default_factory=dict)
    until: Annotated[dict[int, Offset] | None, Meta(description="Read these partitions only, up to these offsets.")] = (
        None
    )


class Guess(Shape):
    """Where to look first for the end of a batch: what the answer before said."""

    ended: Annotated[Offset, Meta(description="Microseconds since 1970.")]
    width: Annotated[Offset, Meta(description="Microseconds.")] = 0


class NextQuery(Shape):
    """Where a reader stands, and what its next batch may hold."""

    queues: dict[str, Position]
    others: Annotated[bool, Meta(description="Describe all other queues too.")] = False
    most: Annotated[int, Meta(ge=1, description="Records of the batch at most.")] | None = None
    least: Annotated[int, Meta(ge=1, description="Wait for so many records.")] = 1
    wait: Annotated[float, Meta(ge=0, description="Seconds, at most 60.")] = 0.0
    guess: Guess | None = None


class Reason(Shape):
    """Why somebody holds something back."""

    reason: Text = ""


class Reset(Shape):
    """Where a cursor is to go: one of ``to``, ``offset``, ``time``."""

    to: Literal["earliest", "latest"] | None = None
    offset: Offset | None = None
    time: Annotated[
        Seconds | None, Meta(description="Seconds since 1970: the first record that came then or later.")
    ] = None
    partition: Annotated[Offset | None, Meta(description="Only there; all without it.")] = None


class Purge(Shape):
    """What to delete: without ``below`` all that is there."""

    below: Annotated[Offset | None, Meta(description="Below that offset, in one partition.")] = None
    partition: Annotated[Offset | None, Meta(description="Only there; all without it.")] = None
    force: Annotated[bool, Meta(description="Also what handlers or forwarders have still to do.")] = False
    dry_run: Annotated[bool, Meta(description="Only say what it would do.")] = False


class PartQuery(Shape, kw_only=True):
    """Which part of which batch."""

    query: Annotated[str, Meta(min_length=1, max_length=400, description="Whose numbering of batches it is.")]
    batch: Annotated[Offset, Meta(description="The batch, of that query.")]
    token: Annotated[str, Meta(description="The part: a name never used before.")]
    queue: Annotated[str, Meta(description="For rows that name none.")] = ""
    refused: Annotated[
        Literal["tell"] | None, Meta(description="Keep the others, if rows cannot be sent, and say which those are.")
    ] = None
    jump: Annotated[Literal["1"] | None, Meta(description="Numbers of batches may be left out.")] = None


class Publish(Shape):
    """Which parts a batch has, in their order, and how many rows all of them; what the writer calls this attempt, and
    whether no batch comes after it."""

    query: Annotated[str, Meta(min_length=1, max_length=400)]
    tokens: list[str] = field(default_factory=list)
    rows: Offset = 0
    jump: bool = False
    attempt: Annotated[str, Meta(max_length=200)] = ""
    final: bool = False


class Tokens(Shape):
    """Parts of a batch."""

    tokens: list[str]


class Bind(Shape):
    """A query; and, if any of its batches need not come any more, up to which."""

    query: Annotated[str, Meta(min_length=1, max_length=400)]
    after: Annotated[int, Meta(ge=0, lt=10**15)] | None = None


# --- what is answered -------------------------------------------------------------------------------------------------


class Health(Shape):
    """How it is.

    Args:
        status: In a word.
        trouble: Why messages are not accepted, and what to do; a restart would not help.
        journal: Why the event journal is not written; messages go on meanwhile.
        stopped: Names of forwarders that send nothing until somebody decides; messages are accepted meanwhile.
    """

    status: str
    trouble: str = ""
    journal: str = ""
    stopped: list[str] | None = None


class Reloaded(Shape):
    """A configuration that was taken over.

    Args:
        changed: The keys that say something else than before.
    """

    changed: list[str]


class Flight(Shape):
    """What an outbound Sequence has under way."""

    window: int
    in_flight: int
    next_number: int
    retransmission_timeout: float
    last_heard: float
    """Seconds ago."""


class SequenceShown(Shape):
    """One Sequence. ``waiting``: a destination's messages held until the lower numbers are there; a source's that are
    not acknowledged."""

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
    flight: Flight | None = None


class SequenceList(Shape):
    """Some of the Sequences, and how many there are of that kind."""

    sequences: list[SequenceShown]
    count: int
    next: str | None


class Bounds(Shape):
    """Offsets first <= o < end are there."""

    first: int
    end: int


class CursorShown(Shape):
    """One cursor. ``lag``: records not passed; ``age``: seconds the oldest of them has been there; ``idle``: seconds
    since it moved."""

    name: str
    kind: str
    offsets: dict[str, int]
    lag: int
    age: float
    idle: float | None
    rate: float | None = None


class CursorOfQueue(CursorShown, kw_only=True):
    """One cursor of some queue."""

    queue: str


class QueueShown(Shape):
    """One queue. ``bytes``: where the retention counts them; ``rate_in``: records a second, lately."""

    name: str
    kind: str
    epoch: str
    retention: str | None
    records: int
    partitions: dict[str, Bounds]
    cursors: list[CursorShown]
    bytes: int | None = None
    age: float | None = None
    rate_in: float | None = None


class QueueOverview(Shape):
    """One queue, for its readers."""

    epoch: str
    retention: str
    partitions: dict[str, Bounds]


class QueueList(Shape):
    """Every queue by name."""

    v: int
    queues: dict[str, QueueOverview]


class DescribedQueues(Shape):
    """Queues with their cursors."""

    v: int
    queues: list[QueueShown]


class CursorList(Shape):
    """Some of the cursors of all queues."""

    cursors: list[CursorOfQueue]
    count: int
    next: str | None


class Ends(Shape):
    """How far a queue reaches."""

    v: int
    queue: str
    epoch: str
    partitions: dict[str, Bounds]


class NextInQueue(Shape):
    """How far a queue reaches, and where the next batch ends in it.

    Args:
        offsets: Where the batch ends; empty if the request does not name the queue.
        fingerprints: Of the last records below; empty if nothing of the queue is in the batch.
    """

    epoch: str
    partitions: dict[str, Bounds]
    offsets: dict[str, int] = field(default_factory=dict)
    fingerprints: dict[str, str] = field(default_factory=dict)


class NextPositions(Shape):
    """Where a reader's next batch ends."""

    v: int
    queues: dict[str, NextInQueue]
    guess: Guess


class Fingerprints(Shape):
    """What tells the last record below a position from others."""

    epoch: str
    fingerprints: dict[str, str]


class OffsetsAt(Shape):
    """The first record from a time on, of each partition that was asked for; its end if there is none."""

    epoch: str
    offsets: dict[str, int]


class Place(Shape):
    """Where a reader's cursor stands."""

    epoch: str
    offsets: dict[str, int]


class Offsets(Shape):
    """Where a cursor stands now."""

    offsets: dict[str, int]


class Message(Shape):
    """One record. ``body`` may be cut off; ``bytes`` is what it has."""

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


class Messages(Shape):
    """A look at some records of a partition."""

    queue: str
    partition: int
    first: int
    end: int
    messages: list[Message]
    next: int | None


class LossShown(Shape):
    """What a cursor has not passed of what is to be deleted."""

    partition: int
    cursor: str
    kind: str
    records: int


class Purged(Shape):
    """What a purge deletes, or would: ``unread`` by whom. ``left``: what somebody has still at work and stays until
    then."""

    queue: str
    records: int
    left: int
    unread: list[LossShown]
    dry_run: bool


class CircuitShown(Shape):
    """Whether an address that forwarders send to is sent to; if not, for how many seconds it has not been, why, and in
    how many it is tried next."""

    to: str
    state: str
    failures: int
    reason: str
    open_for: float | None
    next_try: float | None
    waiting: int


class RefusalShown(Shape):
    """A message that the destination of a forwarder answered with a fault, and may yet take.

    Args:
        offset: Where it is in its queue.
        sequence: The Sequence that carries it, if one does now.
        number: Its number there.
        action: Its WS-Addressing Action.
        code, reason: What the destination said last.
        since: When it was refused first, in seconds since 1970.
        times: How often it was refused.
    """

    offset: int
    sequence: str | None
    number: int | None
    action: str
    code: str
    reason: str
    since: float
    times: int


class ForwarderShown(Shape):
    """One outbox: what sends records of a partition to an address."""

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
    lag: int
    sequence: str | None
    flight: Flight | None = None
    circuit: CircuitShown | None = None


class ForwarderList(Shape):
    """Some of the forwarders."""

    forwarders: list[ForwarderShown]
    count: int
    next: str | None


class ForwarderDeleted(Shape):
    """How many outboxes are forgotten, and how many messages they had not sent, or not for certain."""

    deleted: int
    waiting: int


class Waiting(Shape):
    """One message that waits to be sent, or for its acknowledgement."""

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
    headers: str | None = None
    body: str | None = None


class WaitingList(Shape):
    """Some of what waits to be sent."""

    messages: list[Waiting]
    count: int


class GivenUp(Shape):
    """What became of a message that was given up."""

    discarded: int
    in_doubt: int
    count: int


class Retried(Shape):
    """What goes on, and how many there are."""

    retried: int
    count: int


class Discarded(Shape):
    """How many were given up, and how many there are."""

    discarded: int
    count: int


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


class LetterList(Shape):
    """Some of the dead letters."""

    dead_letters: list[LetterShown]
    count: int
    next: int | None


class JournalFile(Shape):
    """A file of the event journal. ``begun`` and ``written``: when it was begun, and written last; ``sealed``: nothing
    more comes into it; ``worker``: whose it is, of several."""

    file: str
    bytes: int
    begun: float | None
    written: float
    sealed: bool
    worker: int | None


class JournalList(Shape):
    """Some of the files; how many there are, and their bytes."""

    files: list[JournalFile]
    count: int
    bytes: int
    next: str | None


class RowShown(Shape):
    """A row that cannot be sent, counted from 0 in its part, and which of its columns is to blame."""

    row: int
    column: str
    error: str
    remedy: str


class PartTaken(Shape):
    """What is durable: so many rows; or none, as the batch is published already, and which attempt it was, None where
    that is not known any more. ``refused``: what is left out."""

    rows: int
    already: bool
    attempt: str | None = None
    refused: list[RowShown] = field(default_factory=list)


class PublishedShown(Shape):
    """Whether a batch was published now, or before; how many rows it has, and which attempt it was, None where that is
    not known any more."""

    published: bool
    rows: int | None
    attempt: str | None


class SinkShown(Shape):
    """One sink. ``batch``: the last one of its query that was published; ``published``: rows, ever; ``moving``: those
    of them that are not in their queues yet, and what they wait for; ``staged``: rows that are not published, in so
    many parts; ``bytes`` of both; ``sequence``: what the records that come of its rows name as their Sequence;
    ``attempt``: what its writer called that last batch; ``final_at``: when that was published, if none comes after it,
    in seconds since 1970-01-01 UTC."""

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
    """Some of the sinks."""

    sinks: list[SinkShown]
    count: int
    next: str | None


Anything = dict[str, Any]
