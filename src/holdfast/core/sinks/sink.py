"""Sinks: what is known of each writer outside, and which of its batches may come. Sans-IO, and no row is looked at.

A sink knows which batches of its query are published, as ranges: one that is published again is a no-op, one that
others overtook, or before which others are missing, is refused. It is bound to one query, a name for the writer's own
numbering of batches, from 0: batches of another one are refused until somebody binds the sink to that, as their numbers
mean something else. How rows are staged, and come into their queues, is :mod:`holdfast.core.sinks.staging`'s.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from holdfast.core.queues.queue import Queue
from holdfast.core.ranges import AcknowledgementRanges
from holdfast.core.records import State
from holdfast.core.sending.outbox import derived_message_id
from holdfast.exceptions import ConfigurationError

SINK = "own/sink"
"""The name under which a sink is saved, in a queue of its own, which has no records."""
PART = "own/part"
"""The name under which is saved what a part is, with the partition that holds it."""

MOST_FORMER = 100
"""Queries that a sink was bound to before, of which it knows how far they came."""
FORMER_OF_EACH = 10
"""Of those, for each sink that there may be, over all; beyond that a sink that is bound anew knows one."""
MOST_RANGES = 100
"""Ranges of batches that a sink knows to be published, where numbers are left out between them."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")


class Why(str, Enum):
    """Why a sink does not take what a writer says, in a word that a program understands."""

    BOUND = "bound"
    JUMP = "jump"
    OVERTAKEN = "overtaken"
    TOKEN = "token"
    UNKNOWN = "unknown"
    COUNT = "count"


class NotStaged(ConfigurationError):
    """What a writer asked for is not done, as it does not go with what the sink knows.

    Args:
        why: In a word.
        message: In a sentence.
        remedy: What to do.
    """

    def __init__(self, why: Why, message: str, remedy: str) -> None:
        super().__init__(message, remedy=remedy)
        self.why = why


class NoSuchSink(ConfigurationError):
    """There is no sink of that name."""


class NoRoomToStage(ConfigurationError):
    """As much is staged as may be."""


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch of some writer's.

    Args:
        sink: The name of the sink.
        query: Whose numbering of batches it is.
        number: Its number there, from 0.
        jumps: Whether numbers may be left out before it.
    """

    sink: str
    query: str
    number: int
    jumps: bool = False


@dataclass(frozen=True, slots=True)
class Published:
    """What became of a batch that was to be published.

    Args:
        is_new: Whether it is published now; False: it was before.
        rows: How many rows it had; None if that is not known any more.
        attempt: What its writer called the attempt that was published; None if that is not known any more.
    """

    is_new: bool
    rows: int | None
    attempt: str | None


@dataclass(slots=True, eq=False)
class Part:
    """Rows of one task, in a partition of their own."""

    token: str
    query: str
    batch: int
    queue: Queue
    at: float
    bytes: int = 0
    first_number: int | None = None
    """Once it is published: the number of its first row, of all that the sink published."""
    sequence: str = ""
    """Once it is published: what the records of its rows name as their Sequence. It is the sink's of then, so that who
    has them from before the store was put back can tell that they are the same."""
    message_ids: str = ""
    """What the MessageIDs that are made for its rows begin with; their number follows."""
    staged: int = 0
    """How many rows there ever were."""
    moved: int = 0
    """How many of them are in their queues."""
    begun: int = 0
    """How many of those are of the first block that is still there."""
    is_by_row: bool = False
    """Whether each of its rows is a record of its own, as versions wrote them that knew no blocks."""

    @property
    def rows(self) -> int:
        """How many are there."""
        return self.staged - self.moved

    def to_state(self) -> State:
        """What is saved of it, until all of it is in its queues."""
        said = {"token": self.token, "query": self.query, "batch": self.batch, "at": self.at, "bytes": self.bytes}
        said |= {"number": self.first_number, "sequence": self.sequence}
        return said if self.is_by_row else said | {"rows": [self.staged, self.moved, self.begun]}

    def publish(self, sequence: str, first_number: int) -> None:
        """Its rows are to come into their queues, with these names."""
        self.first_number, self.sequence = first_number, sequence
        self.message_ids = derived_message_id(sequence)[:-12]

    def save(self) -> None:
        """Save it with the open batch."""
        self.queue.save_own(0, PART, self.to_state())


@dataclass(slots=True, eq=False)
class Sink:
    """One sink.

    Args:
        name: What writers call it.
        identifier: A URI never used before: what the records that come of its rows name as their Sequence, from the
            next batch on.
        query: The query that it is bound to.
        queue: Where it is saved; holds no records.
        done: The batches of that query that are published, or need not come any more, as their numbers plus one.
        rows: How many rows the last one had.
        published: How many rows it published ever.
        former: Query that it was bound to before -> the last range of its batches.
        parts: What is staged, or on its way, by token.
        moving: Those that are published and not all in their queues yet, in their order.
        attempt: What the writer of the last one called its attempt; None: it is not known.
        final_at: Seconds since 1970-01-01 UTC, when the last one was published, if none comes after it.
        is_sure: Whether it published since the store was put back, if ever it was: so no batch is missing before the
            last one.
        is_forgotten: Whether it is known to nobody any more, and is there for what it published only.
        waits_for: Why its rows do not move; "" if nothing is in their way.
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
    attempt: str | None = None
    final_at: float | None = None
    is_sure: bool = True
    is_forgotten: bool = False
    waits_for: str = ""
    is_busy: bool = False
    """Whether a block is being read, or rows of it are on their way to the disk."""
    leaving: int = 0
    """How many rows of it, once they are on their way to the disk."""

    @property
    def last(self) -> int | None:
        """The highest batch of its query that is published; None: none yet."""
        return self.done.highest - 1 if self.done.highest else None

    def became_of(self, batch: Batch) -> Published:
        """What is known of a batch that was published before."""
        return Published(False, self.rows, self.attempt) if batch.number == self.last else Published(False, None, None)

    def finish(self, first: int, last: int, rows: int = 0, attempt: str | None = None) -> None:
        """Batches from ``first`` to ``last`` are published, or need not come any more; the last had so many rows."""
        self.done.add_range(first + 1, last + 1)
        self.rows, self.attempt = rows, attempt
        if len(self.done) > MOST_RANGES:
            self.done.discard_lowest()
        self.is_sure = True

    @property
    def staged(self) -> list[Part]:
        """What is not published."""
        return [one for one in self.parts.values() if one.first_number is None]

    @property
    def rows_moving(self) -> int:
        """How many rows are published, and not in their queues yet."""
        return self.leaving + sum(part.rows for part in self.moving)

    def describe(self) -> dict[str, Any]:
        """What an operator wants to know."""
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

    def to_state(self) -> State:
        """What is saved of it."""
        return {
            "name": self.name,
            "identifier": self.identifier,
            "query": self.query,
            "done": self.done.to_state(),
            "rows": self.rows,
            "published": self.published,
            "former": self.former,
            "attempt": self.attempt,
            "final": self.final_at,
            "sure": self.is_sure,
            "forgotten": self.is_forgotten,
        }


def check_follows(batch: Batch, last: int | None, is_sure: bool) -> None:
    """See that a batch that is not published may be the next one.

    Args:
        batch: What came.
        last: The last one that is published; None: there is none.
        is_sure: Whether the store cannot have lost what came behind that.

    Raises:
        NotStaged: it may not.
    """
    number = batch.number
    if last is not None and number < last:
        raise NotStaged(
            Why.OVERTAKEN,
            f"batch {last} of {batch.query!r} was published before batch {number}, which was not, as far as is "
            "remembered here: its rows would come behind those of later batches",
            "Nothing of it is sent. Write the batches of a sink one after the other, or give those that are "
            f"written side by side a sink each. To send this one now, write it to another sink than {batch.sink}.",
        )
    if number <= (-1 if last is None else last) + 1 or (batch.jumps and is_sure):
        return
    raise NotStaged(
        Why.JUMP,
        f"batch {number} of {batch.query!r} does not follow {last}, the last one that was published here: what "
        "lies between is missing, as when the store was put back to an older copy"
        if last is not None
        else f"batch {number} of {batch.query!r} is the first one that comes to the sink {batch.sink!r}, and those "
        "before it are missing, as when the sink was forgotten, or the store made anew or put back to an older copy",
        "See what is missing, and whether it must be sent again. Then let the query go on: holdfast sinks bind "
        f"{batch.sink} {batch.query} --after {number - 1}",
    )


def key_of(queue: Queue) -> str:
    """The name that a sink was made with, which its queue and those of its parts have in theirs."""
    return queue.name.split("/")[1]


def check_name(what: str, name: str) -> None:
    """See that a sink, a query, a part or an attempt may be called so: it can be pasted into a shell.

    Raises:
        ConfigurationError: it may not.
    """
    if _NAME.fullmatch(name) is None:
        raise ConfigurationError(
            f"{name[:120]!r} cannot be a {what}",
            remedy="Up to 200 letters, digits, dots, hyphens and underscores; a letter or a digit first.",
        )
