"""Staging: rows that writers outside put into queues, a batch of them at a time: whole, once, or not at all. Sans-IO.

A writer is many tasks and one driver. Each task **stages** its rows as a part of a batch: durable, and seen by nobody.
The driver **publishes** the batch by naming the parts in their order. That decision is one small batch of changes,
however many rows there are; from then on they move into their queues, a bounded chunk at a time, each chunk in one
batch with its removal from where it was staged. So a crash at any moment goes on where the last chunk ended, and no
memory holds a publication.

A **sink** is what remembers which batch of whose was published last: a batch that is published again is a no-op. It is
bound to one query, a name for the writer's own numbering of batches; batches of another one are refused until somebody
binds the sink to that, as their numbers mean something else.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Any
from zlib import crc32

from holdfast.core.commit import GroupCommit
from holdfast.core.events import Effect, Incident
from holdfast.core.inbound import Delivery, Inbound
from holdfast.core.outbox import derived_message_id
from holdfast.core.policy import StagingPolicy
from holdfast.core.queues import Queue, Queues
from holdfast.core.records import Record, Snapshot, State
from holdfast.exceptions import ConfigurationError

STAGING = "staging"
"""What the description of a queue would say that holds a part, if it had one; and its name's first part."""
SINK = "own/sink"
"""The name under which a sink is saved, in a queue of its own, which has no records."""
PART = "own/part"
"""The name under which is saved what a part is, with the partition that holds it."""

CHUNK = 1000
"""Rows that move at a time, at most: some milliseconds. The store gives a mebibyte of them at most."""
LOOK_AGAIN = 1.0
"""Seconds until rows are tried once more that wait for a queue which is full, or is gone."""
MOST_FORMER = 100
"""Queries that a sink was bound to before, of which it knows how far they came."""
ROW_BYTES = 128
"""What a row counts besides its body and its headers."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")


class Why(str, Enum):
    """Why a sink does not take what a writer says, in a word that a program understands."""

    BOUND = "bound"
    JUMP = "jump"
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


class Row:
    """A row as it is staged.

    Args:
        queue: The name of the queue that it is for.
        record: What comes there. Its ``sequence`` is the row's key: rows of one sink with the same key stay in order.

    Attributes:
        size: The bytes that it counts.
    """

    __slots__ = ("record", "size")

    def __init__(self, queue: str, record: Record) -> None:
        record.transport = queue.encode()  # where it goes, as long as nobody reads it
        self.record = record
        self.size = _size(record)

    @property
    def queue(self) -> str:
        """The name of the queue that it is for."""
        return self.record.transport.decode()


def _size(record: Record) -> int:
    return len(record.body) + len(record.headers) + ROW_BYTES


@dataclass(frozen=True, slots=True)
class Published:
    """What became of a batch that was to be published.

    Args:
        is_new: Whether it is published now; False: it was before.
        rows: How many rows it had; None if that is not known any more.
    """

    is_new: bool
    rows: int | None


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

    @property
    def rows(self) -> int:
        """How many are there."""
        one = self.queue.partitions[0]
        return one.end - one.first

    @property
    def staged(self) -> int:
        """How many there ever were."""
        return self.queue.partitions[0].end

    def to_state(self) -> State:
        """What is saved of it, until all of it is in its queues."""
        said = {"token": self.token, "query": self.query, "batch": self.batch, "at": self.at, "bytes": self.bytes}
        return said | {"number": self.first_number}

    def save(self) -> None:
        """Save it with the open batch."""
        self.queue.save_own(0, PART, self.to_state())


@dataclass(slots=True, eq=False)
class Sink:
    """One sink.

    Args:
        name: What writers call it.
        identifier: A URI never used before: what the records that come of its rows name as their Sequence.
        query: The query that it is bound to.
        queue: Where it is saved; holds no records.
        last: The batch of that query that was published last; None: none yet, so that any may come.
        rows: How many rows that had.
        published: How many rows it published ever.
        former: Query that it was bound to before -> the batch that was published last.
        parts: What is staged, or on its way, by token.
        moving: Those that are published and not all in their queues yet, in their order.
        is_forgotten: Whether it is known to nobody any more, and is there for what it published only.
        waits_for: Why its rows do not move; "" if nothing is in their way.
    """

    name: str
    identifier: str
    query: str
    queue: Queue
    last: int | None = None
    rows: int = 0
    published: int = 0
    former: dict[str, int] = field(default_factory=dict)
    parts: dict[str, Part] = field(default_factory=dict)
    moving: list[Part] = field(default_factory=list)
    is_forgotten: bool = False
    waits_for: str = ""
    is_busy: bool = False
    """Whether a chunk is being read, or on its way to the disk."""
    message_ids: str = field(init=False)
    """What the MessageIDs that are made for its rows begin with; their number follows."""
    leaving: int = 0
    """Rows in that chunk, once they are on their way to the disk."""

    def __post_init__(self) -> None:
        self.message_ids = derived_message_id(self.identifier)[:-12]

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
        }

    def to_state(self) -> State:
        """What is saved of it."""
        return {
            "name": self.name,
            "identifier": self.identifier,
            "query": self.query,
            "last": self.last,
            "rows": self.rows,
            "published": self.published,
            "former": self.former,
            "forgotten": self.is_forgotten,
        }


class Staging:
    """Every sink of one side.

    Args:
        policy: Limits.
        commit: Where its changes go.
        effects: Where its effects go.
        queues: Where what is staged is.
        inbound: Whose queues rows go into.
        new_identifier: Makes a URI never used before.
    """

    def __init__(
        self,
        policy: StagingPolicy,
        commit: GroupCommit,
        effects: list[Effect],
        queues: Queues,
        inbound: Inbound,
        new_identifier: Callable[[], str],
    ) -> None:
        self.policy = policy
        self.sinks: dict[str, Sink] = {}
        """Those that are known, by name."""
        self.rows_published = 0
        """Since this process began."""
        self.trouble: Callable[[], str] = str
        """Says why nothing new should be stored for now, which moved rows would be; "" for nothing."""
        self._commit = commit
        self._effects = effects
        self._queues = queues
        self._inbound = inbound
        self._new_identifier = new_identifier
        self._forgotten: dict[str, Sink] = {}
        self._bytes = 0
        self._next_part = 0
        self._sweep_at: float | None = None
        self._retry_at: float | None = None
        self._is_stopped = False

    @property
    def every(self) -> list[Sink]:
        """All, with those that are there for what they published only."""
        return [*self.sinks.values(), *self._forgotten.values()]

    @property
    def bytes_held(self) -> int:
        """Of what is staged or on its way."""
        return self._bytes

    # --- what a task asks -----------------------------------------------------------------------------------------

    def is_published(self, batch: Batch) -> bool:
        """Whether that batch is published already, so that nothing of it is staged any more.

        Raises:
            NotStaged: the sink is bound to another query, or the batch is not the next one.
            ConfigurationError: no sink may be called so.
        """
        sink = self.sinks.get(batch.sink)
        if sink is None:
            check_name("sink", batch.sink)
            return False
        if sink.query != batch.query:
            raise NotStaged(
                Why.BOUND,
                f"the sink {sink.name!r} is bound to the query {sink.query!r}, not to {batch.query!r}: batches of "
                "another one begin again, and could be taken for those that were published",
                "If the new query goes on where the old one ended, bind the sink to it: holdfast sinks bind "
                f"{sink.name} {batch.query}. Else give it a sink of its own.",
            )
        if sink.last is not None and batch.number > sink.last + 1 and not batch.jumps:
            raise NotStaged(
                Why.JUMP,
                f"batch {batch.number} of {batch.query!r} does not follow {sink.last}, the last one that was published "
                "here: what lies between is missing, as when the store was put back to an older copy",
                "See what is missing. To go on all the same: holdfast sinks forget, then start the query again.",
            )
        return sink.last is not None and batch.number <= sink.last

    def stage(self, batch: Batch, token: str, start: int, rows: Sequence[Row], now: float) -> bool:
        """Keep rows of a part, with the open batch. A part may be told in several such calls, one after the other.

        Args:
            batch: What they are of.
            token: The part, whose name no other part of the sink has.
            start: How many rows of the part come before.
            rows: What follows.
            now: Seconds.

        Returns:
            Whether they are kept; False: the batch is published already.

        Raises:
            NotStaged: see :meth:`is_published`; or there is such a part, or what came before was discarded.
            NoRoomToStage: there is too much.
            ConfigurationError: it may not be called so.
        """
        if self.is_published(batch):
            return False
        check_name("token", token)
        sink = self.sinks.get(batch.sink)
        part = sink.parts.get(token) if sink is not None else None
        if (part is not None and not start) or (start and (part is None or part.staged != start)):
            raise NotStaged(
                Why.TOKEN,
                f"there is a part {token!r} already"
                if not start
                else f"the part {token!r} was discarded while it was staged",
                "Stage it again under a token never used before, such as a UUID.",
            )
        size = sum([row.size for row in rows])
        self._check_room(size)
        sink = sink or self._new_sink(batch)
        self._append(part or self._new_part(sink, batch, token, now), rows, size, now)
        return True

    def _check_room(self, size: int) -> None:
        most = self.policy.max_bytes
        if self._bytes + size > most:
            raise NoRoomToStage(
                f"{self._bytes:,} bytes are staged, or published and not in their queues yet; {most:,} may be",
                remedy="See holdfast sinks for what holds them: a queue that is full, or writers that are gone. "
                "Or raise the limit (sinks.max_bytes, StagingPolicy(max_bytes=…)).",
            )

    def _new_sink(self, batch: Batch) -> Sink:
        identifier = self._new_identifier()
        queue = self._queues.add(Queue(f"sink/{identifier}", kind=STAGING))
        sink = self.sinks[batch.sink] = Sink(batch.sink, identifier, batch.query, queue)
        self._save(sink)
        self._tell(sink, "sink created")
        return sink

    def _new_part(self, sink: Sink, batch: Batch, token: str, now: float) -> Part:
        # Not by its token: one that was dropped just now, and is used again, would go with the batch that deletes it.
        queue = self._queues.add(Queue(f"{STAGING}/{sink.identifier}/{self._next_part}", kind=STAGING))
        self._next_part += 1
        part = sink.parts[token] = Part(token, batch.query, batch.number, queue, now)
        return part

    def _append(self, part: Part, rows: Iterable[Row], size: int, now: float) -> None:
        for row in rows:
            part.queue.append(0, row.record)
        part.bytes += size
        self._bytes += size
        part.at = now
        part.save()
        self._want_sweep(now + self.policy.max_age)

    # --- what the driver asks -------------------------------------------------------------------------------------

    def publish(self, batch: Batch, tokens: Sequence[str], rows: int, now: float) -> Published:
        """Let the rows of these parts go into their queues, in this order; with the open batch. Nothing else of the
        sink's is staged after that.

        Args:
            batch: What they are of.
            tokens: Names them.
            rows: How many rows they have, all together.
            now: Seconds.

        Raises:
            NotStaged: see :meth:`is_published`; or something of it is not here.
            ConfigurationError: no sink may be called so.
        """
        if self.is_published(batch):
            sink = self.sinks[batch.sink]
            return Published(False, sink.rows if batch.number == sink.last else None)
        chosen = self._chosen(batch, tokens, rows)
        sink = self.sinks.get(batch.sink) or self._new_sink(batch)
        for part in chosen:
            part.first_number = sink.published + 1
            part.save()
            sink.published += part.staged
        sink.last, sink.rows = batch.number, rows
        sink.moving += chosen
        for part in sink.staged:
            self._drop(sink, part)
        self._save(sink)
        self.rows_published += rows
        self._commit.then(partial(self._go_on, sink))
        self._tell(sink, "batch published", level="debug", batch=batch.number, rows=rows)
        return Published(True, rows)

    def _chosen(self, batch: Batch, tokens: Sequence[str], rows: int) -> list[Part]:
        """The parts that are named and have rows, if all of them are here, whole."""
        remedy = "Stage the batch again, under other tokens. Nothing of it is published."
        staged = self.sinks[batch.sink].staged if batch.sink in self.sinks else []
        known = {part.token: part for part in staged if part.batch == batch.number}
        parts = [known[one] for one in dict.fromkeys(tokens) if one in known]
        if len(parts) != len(tokens):
            missing = [one for one in tokens if one not in {part.token for part in parts}] or ["named twice"]
            raise NotStaged(
                Why.UNKNOWN,
                f"of {len(tokens)} parts of batch {batch.number} {len(tokens) - len(parts)} are not here, such as "
                f"{missing[0][:200]!r}: discarded, or swept",
                remedy,
            )
        there = sum(part.staged for part in parts)
        if there != rows:
            raise NotStaged(Why.COUNT, f"the parts of batch {batch.number} have {there} rows here, not {rows}", remedy)
        return [part for part in parts if part.staged]

    def discard(self, name: str, tokens: Iterable[str]) -> int:
        """Give up what is staged under these tokens; how many parts. What is published stays so."""
        sink = self.sinks.get(name)
        if sink is None:
            return 0
        asked = set(tokens)
        found = [part for part in sink.staged if part.token in asked]
        for part in found:
            self._drop(sink, part)
        self._end_unused(sink)
        return len(found)

    def _end_unused(self, sink: Sink) -> None:
        """Forget a sink that has nothing, and never published: it knows nothing that must be remembered."""
        if not sink.parts and not sink.former and sink.last is None:
            self.forget(sink.name)

    # --- what an operator asks ------------------------------------------------------------------------------------

    def sink(self, name: str) -> Sink:
        """The sink of that name.

        Raises:
            NoSuchSink: there is none.
        """
        sink = self.sinks.get(name)
        if sink is None:
            raise NoSuchSink(f"there is no sink {name[:200]!r} here", remedy="GET /sinks lists them: holdfast sinks.")
        return sink

    def bind(self, name: str, query: str) -> Sink:
        """Let batches of another query come. Any may be its first, but for one that the sink was bound to before: that
        goes on where it ended. What the old one staged and did not publish is given up.

        Raises:
            NoSuchSink: there is no such sink.
        """
        sink = self.sink(name)
        if query != sink.query:
            if sink.last is not None:
                sink.former[sink.query] = sink.last
            sink.last, sink.rows = sink.former.pop(query, None), 0
            sink.former = dict(list(sink.former.items())[-MOST_FORMER:])
            for part in sink.staged:
                self._drop(sink, part)
            self._tell(sink, "sink bound", level="warning", query=query, before=sink.query)
            sink.query = query
            self._save(sink)
        return sink

    def forget(self, name: str) -> None:
        """Forget a sink, and what is staged. What it published is in its queues, or still comes there.

        Raises:
            NoSuchSink: there is no such sink.
        """
        sink = self.sink(name)
        del self.sinks[name]
        for part in sink.staged:
            self._drop(sink, part)
        self._tell(sink, "sink forgotten", batch=sink.last, moving=sink.rows_moving)
        if sink.moving:
            sink.is_forgotten = True
            self._forgotten[sink.identifier] = sink
            self._save(sink)
        else:
            self._queues.delete(sink.queue)

    # --- rows on their way ----------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Move no further chunk: the next start goes on."""
        self._is_stopped = True

    def _go_on(self, sink: Sink, now: float) -> None:
        """Ask for the next chunk of what is published."""
        if sink.is_busy or not sink.moving or self._is_stopped:
            return
        if why := self.trouble():
            self._wait(sink, why, now)
            return
        sink.is_busy = True
        queue = sink.moving[0].queue
        one = queue.partitions[0]
        queue.want(0, one.first, min(one.first + CHUNK, one.end), partial(self._read, sink))

    def _read(self, sink: Sink, found: list[tuple[int, Record]], now: float) -> None:
        part = sink.moving[0]
        one = part.queue.partitions[0]
        assert found and found[0][0] == one.first, (sink.name, part.token, one.first)  # it is kept for us
        deliveries: list[Delivery] = []
        unlimited: dict[bytes, Queue] = {}
        size, waits_for = 0, ""
        for offset, record in found:
            queue = unlimited.get(record.transport) or self._open_queue(record.transport.decode())
            if isinstance(queue, str):
                waits_for = queue
                break
            if queue.name not in self._inbound.limits:
                unlimited[record.transport] = queue
            size += _size(record)
            deliveries.append(self._deliver(sink, part, offset, record, queue, now))
        if not deliveries:
            sink.is_busy = False
            self._wait(sink, waits_for, now)
            return
        sink.waits_for = ""
        part.bytes -= size
        self._bytes -= size
        sink.leaving = len(deliveries)
        part.queue.delete_below(0, one.first + len(deliveries))
        if one.first == one.end:
            self._moved_whole(sink, part)
        self._commit.then(partial(self._moved, sink, deliveries))

    def _wait(self, sink: Sink, why: str, now: float) -> None:
        if why != sink.waits_for:
            self._tell(sink, "sink waits", level="warning", why=why)
        sink.waits_for = why
        self._retry_at = now + LOOK_AGAIN

    def _open_queue(self, name: str) -> Queue | str:
        """The queue of that name, or why a row for it must wait."""
        queue, limit = self._inbound.queues.get(name), self._inbound.limits.get(name)
        if queue is None:
            return f"the queue {name!r} is gone: name it in the configuration again"
        if limit is None:
            return queue
        has_room = limit.has_room()
        if (news := limit.news()) is not None:
            self._effects.append(news)
        return queue if has_room else f"the queue {name!r} is full"

    @staticmethod
    def _deliver(sink: Sink, part: Part, offset: int, record: Record, queue: Queue, now: float) -> Delivery:
        """A row into its queue."""
        assert part.first_number is not None, part.token
        partition = crc32(record.sequence.encode()) % len(queue.partitions)
        record.sequence, record.message_number = sink.identifier, part.first_number + offset
        if record.message_id is None:
            record.message_id = f"{sink.message_ids}{record.message_number:012x}"
        record.released_at, record.transport = now, b""
        return queue, partition, queue.append(partition, record), record

    def _moved_whole(self, sink: Sink, part: Part) -> None:
        self._bytes -= part.bytes
        del sink.moving[0], sink.parts[part.token]
        self._queues.delete(part.queue)
        if sink.is_forgotten and not sink.moving:
            del self._forgotten[sink.identifier]
            self._queues.delete(sink.queue)

    def _moved(self, sink: Sink, deliveries: list[Delivery], now: float) -> None:
        self._inbound.delivered(deliveries, now)
        sink.is_busy, sink.leaving = False, 0
        self._go_on(sink, now)

    def use(self, policy: StagingPolicy, now: float) -> None:
        """Keep to other limits from now on."""
        self.policy = policy
        self._want_sweep(now)

    # --- time -----------------------------------------------------------------------------------------------------

    def _want_sweep(self, at: float) -> None:
        self._sweep_at = at if self._sweep_at is None else min(at, self._sweep_at)

    def deadline(self) -> float | None:
        """When :meth:`pump` has something to do next."""
        return min((at for at in (self._sweep_at, self._retry_at) if at is not None), default=None)

    def pump(self, now: float) -> None:
        """Give up what is staged and too old, and try what has waited."""
        if self._retry_at is not None and self._retry_at <= now:
            self._retry_at = None
            for sink in self.every:
                self._go_on(sink, now)
        if self._sweep_at is None or self._sweep_at > now:
            return
        self._sweep_at = None
        for sink in list(self.sinks.values()):
            old = [part for part in sink.staged if part.at + self.policy.max_age <= now]
            for part in old:
                self._tell(sink, "staged rows swept", level="warning", part=part.token, rows=part.rows)
                self._drop(sink, part)
            for part in sink.staged:
                self._want_sweep(part.at + self.policy.max_age)
            if old:
                self._end_unused(sink)

    def _drop(self, sink: Sink, part: Part) -> None:
        self._bytes -= part.bytes
        del sink.parts[part.token]
        self._queues.delete(part.queue)

    # --- saved state ----------------------------------------------------------------------------------------------

    @staticmethod
    def _save(sink: Sink) -> None:
        sink.queue.save_own(0, SINK, sink.to_state())

    def _tell(self, sink: Sink, what: str, level: str = "info", **detail: object) -> None:
        self._effects.append(Incident(what, sink.identifier, level=level, detail={"sink": sink.name, **detail}))

    def recover(self, snapshot: Snapshot, now: float) -> None:
        """Take over what the store held, and let go on what was on its way."""
        by_queue = snapshot.by_queue()
        staged: dict[str, list[Part]] = {}
        for (name, _, what), state in snapshot.cursors.items():
            if what == SINK:
                sink = self._recovered(name, state)
                (self._forgotten if sink.is_forgotten else self.sinks)[
                    sink.identifier if sink.is_forgotten else sink.name
                ] = sink
            elif what == PART:
                queue = self._queues.add(Queue(name, kind=STAGING))
                queue.recover(by_queue[name], now)
                part = Part(state["token"], state["query"], state["batch"], queue, state["at"], state["bytes"])
                part.first_number = state["number"]
                _, identifier, number = name.split("/")
                staged.setdefault(identifier, []).append(part)
                self._next_part = max(self._next_part, int(number) + 1)
                self._bytes += part.bytes
                self._want_sweep(part.at + self.policy.max_age)
        for sink in self.every:
            sink.parts = {part.token: part for part in staged.get(sink.identifier, ())}
            published = [(part.first_number, part) for part in sink.parts.values() if part.first_number is not None]
            sink.moving = [part for _, part in sorted(published, key=lambda one: one[0])]
            self._go_on(sink, now)

    def _recovered(self, name: str, state: State) -> Sink:
        queue = self._queues.add(Queue(name, kind=STAGING))
        return Sink(
            state["name"],
            state["identifier"],
            state["query"],
            queue,
            state["last"],
            state["rows"],
            state["published"],
            dict(state["former"]),
            is_forgotten=state["forgotten"],
        )


def check_name(what: str, name: str) -> None:
    """See that a sink, or a part, may be called so.

    Raises:
        ConfigurationError: it may not.
    """
    if _NAME.fullmatch(name) is None:
        raise ConfigurationError(
            f"{name[:120]!r} cannot be a {what}",
            remedy="Up to 200 letters, digits, dots, hyphens and underscores; a letter or a digit first.",
        )
