"""Sinks: the state of each external writer and its batches. Sans-IO.

A sink records which batches of its query are published, as ranges: publishing one again is a no-op, and a batch that
others overtook, or with earlier ones missing, is refused. A sink is bound to one query, a name for the writer's
numbering of batches, from 0. It refuses batches of another query until an operator binds the sink to that query, as
their numbers mean something else. This module does not examine rows: :mod:`holdfast.core.sinks.staging` stages them and
moves them into their queues.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from holdfast.core.events import Incident
from holdfast.core.queues.queue import Queue
from holdfast.core.ranges import AcknowledgementRanges
from holdfast.core.records import State
from holdfast.core.sending.outboxes.records import derived_message_id
from holdfast.exceptions import ConfigurationError

SINK = "own/sink"
"""The cursor that stores a sink, in a separate queue without records."""
PART = "own/part"
"""The cursor that stores the state of a part, in the partition that holds its rows."""

MOST_FORMER = 100
"""Maximum number of former queries for which a sink remembers the progress."""
FORMER_OF_EACH = 10
"""Average number of former queries per permitted sink, over all sinks; beyond that, a sink that is bound again
remembers one."""
MOST_RANGES = 100
"""Maximum ranges of published batches that a sink remembers, if numbers are left out between them."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")


class Why(str, Enum):
    """Why a sink refuses a writer's request, as a word for programs."""

    BOUND = "bound"
    JUMP = "jump"
    OVERTAKEN = "overtaken"
    TOKEN = "token"
    UNKNOWN = "unknown"
    COUNT = "count"


class NotStaged(ConfigurationError):
    """A writer's request is refused, as it contradicts the sink's state.

    Args:
        why: The reason as a word.
        message: The reason as a sentence.
    """

    def __init__(self, why: Why, message: str, remedy: str) -> None:
        super().__init__(message, remedy=remedy)
        self.why = why


class NoSuchSink(ConfigurationError):
    """No sink of that name exists."""


class NoRoomToStage(ConfigurationError):
    """A limit on staged rows, parts or sinks is reached."""


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch of a writer.

    Args:
        number: Its number in the query, from 0.
        jumps: Whether numbers may be left out before it.
    """

    sink: str
    query: str
    number: int
    jumps: bool = False


@dataclass(frozen=True, slots=True)
class Published:
    """Result of publishing a batch.

    Args:
        is_new: Whether this call published it; False: it was published before.
        rows: Its number of rows; None if that is no longer known.
        attempt: The writer's name for the attempt that was published; None if that is no longer known.
    """

    is_new: bool
    rows: int | None
    attempt: str | None


@dataclass(slots=True, eq=False)
class Part:
    """Rows of one task, in a separate partition."""

    token: str
    query: str
    batch: int
    queue: Queue
    at: float
    bytes: int = 0
    first_number: int | None = None
    """Once published: the number of its first row among all rows that the sink published. Parts move in this order."""
    sequence: str = ""
    """Once published: the sink's identifier of that time, which names the Sequences of its rows
    (:func:`sequence_of`). So a reader that has them from before a restore recognizes them."""
    staged: int = 0
    """Number of rows ever staged."""
    moved: int = 0
    """Number of these rows moved into their queues."""
    begun: int = 0
    """Number of moved rows that belong to the first remaining block."""

    @property
    def rows(self) -> int:
        return self.staged - self.moved

    def to_state(self) -> State:
        """Return the state to save until all rows are in their queues."""
        said = {"token": self.token, "query": self.query, "batch": self.batch, "at": self.at, "bytes": self.bytes}
        said |= {"number": self.first_number, "sequence": self.sequence}
        return said | {"rows": [self.staged, self.moved, self.begun]}

    def publish(self, sequence: str, first_number: int) -> None:
        """Publish its rows under this name, to move into their queues."""
        self.first_number, self.sequence = first_number, sequence

    def save(self) -> None:
        """Save it with the open batch."""
        self.queue.records.save_own(0, PART, self.to_state())


@dataclass(slots=True, eq=False)
class Sink:
    """One sink.

    Args:
        identifier: A URI never used before. It names the Sequences of its rows (:func:`sequence_of`), from the next
            batch on.
        queue: The queue that stores its state; has no records.
        done: The batches of that query that are published, or count as published, as their numbers plus one.
        published: The number of rows ever published.
        former: Query that it was bound to before -> the last range of its batches.
        parts: The staged and moving parts, by token.
        moving: The published parts with rows not yet in their queues, in order.
        numbers: Identifier -> the highest message number of its Sequence in each partition.
        attempt: The writer's name for the attempt at the last batch; None: unknown.
        final_at: Seconds since 1970-01-01 UTC, when the last one was published, if no batch follows it.
        is_sure: Whether it has published since the store was restored, if ever: no batch is then missing before the
            last one.
        is_forgotten: Whether the sink is forgotten, and only moves the rows it published.
        waits_for: Why its rows do not move; "" if nothing stops them.
    """

    name: str
    identifier: str
    query: str
    queue: Queue
    done: AcknowledgementRanges = field(default_factory=AcknowledgementRanges)
    rows: int = 0
    published: int = 0
    former: dict[str, list[int]] = field(default_factory=dict)
    parts: dict[str, Part] = field(default_factory=dict)
    moving: list[Part] = field(default_factory=list)
    numbers: dict[str, list[int]] = field(default_factory=dict)
    attempt: str | None = None
    final_at: float | None = None
    is_sure: bool = True
    is_forgotten: bool = False
    waits_for: str = ""
    is_busy: bool = False
    """Whether a block is being read, or rows of it are being stored."""
    leaving: int = 0
    """Number of its rows that are being stored."""

    @property
    def last(self) -> int | None:
        """The highest published batch of its query; None: none yet."""
        return self.done.highest - 1 if self.done.highest else None

    def became_of(self, batch: Batch) -> Published:
        """Return the result of a batch that was published before."""
        return Published(False, self.rows, self.attempt) if batch.number == self.last else Published(False, None, None)

    def finish(self, first: int, last: int, rows: int = 0, attempt: str | None = None) -> None:
        """Record batches as published, or as counting so; the last one had ``rows`` rows."""
        self.done.add_range(first + 1, last + 1)
        self.rows, self.attempt = rows, attempt
        # A batch below the lowest range is refused, as the sink cannot know it any more.
        if len(self.done) > MOST_RANGES:
            self.done.discard_lowest()
        self.is_sure = True

    def numbers_of(self, part: Part, partitions: int) -> list[int]:
        """Return the highest message numbers of the part's Sequences, to be increased with each row that moves."""
        numbers = self.numbers.setdefault(part.sequence, [])
        numbers += [0] * (partitions - len(numbers))
        return numbers

    def forget_numbers(self) -> None:
        """Forget the numbers of former identifiers that no remaining row needs."""
        used = {self.identifier, *(part.sequence for part in self.moving)}
        self.numbers = {name: numbers for name, numbers in self.numbers.items() if name in used}

    @property
    def staged(self) -> list[Part]:
        return [one for one in self.parts.values() if one.first_number is None]

    @property
    def rows_moving(self) -> int:
        """Number of rows that are published and not yet in their queues."""
        return self.leaving + sum(part.rows for part in self.moving)

    def describe(self) -> dict[str, Any]:
        """Return the sink's state for an operator."""
        staged = self.staged
        return {
            "name": self.name,
            "query": self.query,
            "batch": self.last,
            "published": self.published,
            "moving": self.rows_moving,
            "staged": sum(part.rows for part in staged),
            "parts": len(staged),
            "bytes": sum(part.bytes for part in self.parts.values()),
            "waits_for": self.waits_for,
            "sequence": self.identifier,
            "attempt": self.attempt,
            "final_at": self.final_at,
        }

    def incident(self, what: str, level: str = "info", **detail: object) -> Incident:
        """Return a report of something that happened to the sink."""
        return Incident(what, self.identifier, level=level, detail={"sink": self.name, **detail})

    def to_state(self) -> State:
        return {
            "name": self.name,
            "identifier": self.identifier,
            "query": self.query,
            "done": self.done.to_state(),
            "rows": self.rows,
            "published": self.published,
            "numbers": self.numbers,
            "former": self.former,
            "attempt": self.attempt,
            "final": self.final_at,
            "sure": self.is_sure,
            "forgotten": self.is_forgotten,
        }


def sequence_of(identifier: str, partition: int) -> str:
    """Return the Sequence of a sink's rows in a partition.

    Like the Sequence of a peer, it is in one partition, and its numbers ascend there without gaps over all queues.
    """
    return f"{identifier}#{partition}"


def message_ids_of(sequence: str) -> str:
    """Return the common prefix of the MessageIDs made for rows of a Sequence; their number follows."""
    # Without its last twelve digits, which are the row's number: one digest serves all rows.
    return derived_message_id(sequence)[:-12]


def check_follows(batch: Batch, last: int | None, is_sure: bool) -> None:
    """Check that an unpublished batch may be the next one.

    Args:
        last: The last published one; None: none is published.
        is_sure: Whether the store cannot have lost later batches.

    Raises:
        NotStaged: it may not.
    """
    number = batch.number
    if last is not None and number < last:
        raise NotStaged(
            Why.OVERTAKEN,
            f"batch {last} of {batch.query!r} was published before batch {number}, which the server has not "
            f"published as far as it remembers: the rows of batch {number} would follow those of later batches",
            "No row of the batch is sent. Write the batches of a sink one after the other, or give each parallel "
            f"writer its own sink. To send this batch now, write it to another sink than {batch.sink}.",
        )
    if number <= (-1 if last is None else last) + 1 or (batch.jumps and is_sure):
        return
    raise NotStaged(
        Why.JUMP,
        f"batch {number} of {batch.query!r} does not follow {last}, the last batch that this server published: the "
        "batches between them are missing, as after the store was restored from an older copy"
        if last is not None
        else f"batch {number} of {batch.query!r} is the first one of the sink {batch.sink!r}, and the batches "
        "before it are missing: the sink was forgotten, or the store is new or was restored from an older copy",
        "Check which batches are missing, and whether to send them again. Then let the query continue: holdfast "
        f"sinks bind {batch.sink} {batch.query} --after {number - 1}",
    )


def key_of(queue: Queue) -> str:
    """Return the sink's creation name, which its queue and its parts' queues contain."""
    return queue.name.split("/")[1]


def check_name(what: str, name: str) -> None:
    """Check that a name of a sink, query, part or attempt is safe in a shell.

    Raises:
        ConfigurationError: the name is invalid.
    """
    if _NAME.fullmatch(name) is None:
        raise ConfigurationError(
            f"{name[:120]!r} cannot be a {what}",
            remedy="Use up to 200 letters, digits, dots, hyphens and underscores, beginning with a letter or a digit.",
        )
