"""Requests to the admin listener: queries and JSON bodies."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, field

from holdfast.endpoint.admin.routes import LARGEST_NUMBER, Shape
from holdfast.endpoint.admin.shapes.values import Guess, Limit, Offset, Seconds, Text


class Page(Shape):
    """One page of a list."""

    after: Annotated[str, Meta(max_length=20_000, description="The value of ``next`` from the answer before.")] = ""
    limit: Limit = 100


class SequencePage(Page):
    """One page of the Sequences."""

    role: Annotated[
        Literal["destination", "source"] | None, Meta(description="Only inbound or only outbound Sequences.")
    ] = None
    state: Annotated[str, Meta(max_length=100, description="Only Sequences in this state.")] = ""
    find: Annotated[
        str, Meta(max_length=2000, description="Only Sequences with this text in their Identifier or key.")
    ] = ""


class LetterPage(Shape):
    """One page of the dead letters."""

    start: Annotated[int, Meta(ge=0, le=LARGEST_NUMBER, description="Start at this dead letter.")] = field(
        name="from", default=0
    )
    limit: Limit = 100
    whole: Annotated[
        bool,
        Meta(
            description="Include reasons, header blocks and bodies. A page then has fewer "
            "entries, up to some megabytes."
        ),
    ] = False


class MessagePage(Shape):
    """One page of the messages that wait to be sent."""

    limit: Limit = 100


class Key(Shape):
    """The Sequence to act on, by its sequence key."""

    key: Annotated[str | None, Meta(description="The sequence key. Without it, every key.")] = None


class Peek(Shape):
    """Read records of a queue without moving a cursor."""

    start: Annotated[Offset | None, Meta(description="The first offset. Without it, the oldest.")] = field(
        name="from", default=None
    )
    limit: Limit = 10
    body_bytes: Annotated[int, Meta(ge=0, le=1 << 20, description="Maximum number of bytes of each body.")] = 10_000


class ReadersQuery(Shape):
    """Query parameters common to every request of a reader."""

    epoch: Annotated[str | None, Meta(description="The queue's epoch when the reader started.")] = None
    known: Annotated[
        str, Meta(description="What the reader has read: partition:position:fingerprint, separated by commas.")
    ] = ""


class FingerprintsQuery(ReadersQuery, kw_only=True):
    """The positions to return fingerprints for."""

    at: Annotated[str, Meta(description="partition:position, separated by commas.")]


class OffsetsQuery(Shape, kw_only=True):
    """The times to return offsets for."""

    epoch: Annotated[str | None, Meta(description="The queue's epoch when the reader started.")] = None
    at: Annotated[str, Meta(description="partition:microseconds since 1970, separated by commas.")]


class RecordsQuery(ReadersQuery, kw_only=True):
    """The range of records to return: from <= offset < to."""

    start: Offset = field(name="from")
    end: Offset = field(name="to")
    without: Annotated[
        str, Meta(description="Fields to send empty, separated by commas: body, headers, transport.")
    ] = ""


class ContentQuery(Shape, kw_only=True):
    """The piece of a record's attachments to return."""

    epoch: Annotated[str | None, Meta(description="The queue's epoch when the reader started.")] = None
    start: Annotated[Offset, Meta(description="The first byte.")] = field(name="from", default=0)


class NodesQuery(Shape):
    """The sink whose worker is wanted too."""

    sink: Annotated[str, Meta(max_length=200, description="A sink: also return its worker.")] = ""


class OctetsQuery(Shape):
    """The range of a file to return: from <= byte < to; without parameters, the whole file."""

    start: Offset = field(name="from", default=0)
    end: Offset | None = field(name="to", default=None)


class Move(Shape):
    """The new position of a reader's cursor."""

    epoch: str
    offsets: dict[int, Offset]
    fingerprints: dict[int, str] = field(default_factory=dict)


class Position(Shape):
    """A reader's current position in a queue, and where its batch must end."""

    epoch: str
    offsets: dict[int, Offset] = field(default_factory=dict)
    fingerprints: dict[int, str] = field(default_factory=dict)
    until: Annotated[dict[int, Offset] | None, Meta(description="Read only these partitions, up to these offsets.")] = (
        None
    )


class NextQuery(Shape):
    """A reader's current positions, and limits for its next batch."""

    queues: dict[str, Position]
    others: Annotated[bool, Meta(description="Also describe all other queues.")] = False
    most: Annotated[int, Meta(ge=1, description="Maximum number of records of the batch.")] | None = None
    least: Annotated[int, Meta(ge=1, description="Number of records to wait for.")] = 1
    wait: Annotated[float, Meta(ge=0, description="Seconds to wait, at most 60.")] = 0.0
    guess: Guess | None = None


class Reason(Shape):
    """The operator's reason for a suspension."""

    reason: Text = ""


class Reset(Shape):
    """The new position of a cursor: exactly one of ``to``, ``offset`` and ``time``."""

    to: Literal["earliest", "latest"] | None = None
    offset: Offset | None = None
    time: Annotated[
        Seconds | None, Meta(description="Seconds since 1970: the first record received at or after this time.")
    ] = None
    partition: Annotated[Offset | None, Meta(description="Only this partition. Without it, every partition.")] = None
    dry_run: Annotated[bool, Meta(description="Only return what the request would do.")] = False


class Purge(Shape):
    """The records to delete; without ``below``, every record of the queue."""

    below: Annotated[Offset | None, Meta(description="Only records below this offset, in one partition.")] = None
    partition: Annotated[Offset | None, Meta(description="Only this partition. Without it, every partition.")] = None
    force: Annotated[bool, Meta(description="Also delete records that handlers or forwarders still need.")] = False
    dry_run: Annotated[bool, Meta(description="Only return what the request would do.")] = False


class PartQuery(Shape, kw_only=True):
    """The part of a batch that the request body holds."""

    query: Annotated[str, Meta(min_length=1, max_length=400, description="The query that numbers the batches.")]
    batch: Annotated[Offset, Meta(description="The number of the batch.")]
    token: Annotated[str, Meta(description="The part: a name that was never used before.")]
    queue: Annotated[str, Meta(description="The queue for rows that name none.")] = ""
    refused: Annotated[
        Literal["tell"] | None,
        Meta(description="Store the other rows if some cannot be sent, and return which those are."),
    ] = None
    jump: Annotated[Literal["1"] | None, Meta(description="Allow gaps between batch numbers.")] = None


class Publish(Shape):
    """The batch to publish.

    ``tokens``: its parts in order; ``rows``: how many rows they hold in total; ``attempt``: the writer's name for
    this attempt; ``final``: whether this is the last batch.
    """

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
    """The query that writes to a sink.

    ``after``: the batch up to which the writer no longer needs to send any batch.
    """

    query: Annotated[str, Meta(min_length=1, max_length=400)]
    after: Annotated[int, Meta(ge=0, lt=10**15)] | None = None
