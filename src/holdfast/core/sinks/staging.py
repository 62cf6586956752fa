"""Staging: atomic batches of rows that external writers put into queues. Sans-IO.

A writer has many tasks and one driver. Each task **stages** its rows as a part of a batch: durable, and not yet visible
to readers. The driver **publishes** the batch by naming the parts in their order. That decision is one small batch of
changes, however many rows there are; from then on the rows move into their queues, a block at a time
(:mod:`holdfast.core.staged_blocks`), each in one batch with its removal from staging. So after a crash at any moment
the move resumes at the last block, and a publication is never held in memory.

A *sink* records which batches of which writer are published, and which may be: :mod:`holdfast.core.sinks.sink`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import islice
from zlib import crc32

from holdfast.core.commit import GroupCommit
from holdfast.core.events import Effect, Incident
from holdfast.core.policy import StagingPolicy
from holdfast.core.queues.queue import Queue
from holdfast.core.queues.queues import Queues
from holdfast.core.ranges import AcknowledgementRanges
from holdfast.core.receiving.inbound import Inbound
from holdfast.core.records import Record, Snapshot, State
from holdfast.core.sinks.sink import (
    FORMER_OF_EACH,
    MOST_FORMER,
    PART,
    SINK,
    Batch,
    NoRoomToStage,
    NoSuchSink,
    NotStaged,
    Part,
    Published,
    Sink,
    Why,
    check_follows,
    check_name,
    key_of,
)
from holdfast.core.staged_blocks import ROW_BYTES, Block, Place, Rows, Run, unpack
from holdfast.exceptions import StoreError

STAGING = "staging"
"""The kind of the queues that store sinks and parts, and the prefix of the names of parts' queues."""
RESTORED = "own/restored"
"""The cursor that records that the store was once restored, in a separate queue without records."""

CHUNK = 1000
"""Rows that move at a time, if each is a record."""
LOOK_AGAIN = 1.0
"""Seconds until a retry for rows that wait for a full or missing queue, and for sinks that wait for them."""


Gathered = tuple[list[int], list[Place]]
"""Message numbers, and the places of the rows in their block."""
Arriving = tuple[Queue, int, int, int]
"""Queue, partition, offset of the first row, and number of rows appended by the open batch."""


class Staging:
    """All sinks of an endpoint.

    Args:
        policy: Limits.
        commit: The commit that collects its changes.
        effects: The list that collects its effects.
        queues: The queues of staged rows.
        inbound: The inbound half, which owns the queues that rows move into.
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
        """The known sinks, by name."""
        self.rows_published = 0
        """Rows published since this process began."""
        self.trouble: Callable[[], str] = str
        """Returns the reason why the store should accept no new records, such as moved rows; "" for none."""
        self._commit = commit
        self._effects = effects
        self._queues = queues
        self._inbound = inbound
        self._new_identifier = new_identifier
        self._forgotten: dict[str, Sink] = {}
        self._final: dict[str, float] = {}
        """Sinks that get no further batch -> when the last one was published; the oldest first."""
        self._bytes = 0
        self._parts = 0
        """Number of parts of all sinks."""
        self._next_part = 0
        self._is_restored = False
        self._sweep_at: float | None = None
        self._retry_at: float | None = None
        self._is_stopped = False

    @property
    def every(self) -> list[Sink]:
        """All sinks, including forgotten ones that still move published rows."""
        return [*self.sinks.values(), *self._forgotten.values()]

    @property
    def bytes_held(self) -> int:
        """Bytes of rows staged or moving."""
        return self._bytes

    # --- requests of a task ---------------------------------------------------------------------------------------

    def is_published(self, batch: Batch) -> bool:
        """Whether the batch is published already, so its rows need not be staged.

        Raises:
            NotStaged: the sink is bound to another query, or the batch is not the next one.
            ConfigurationError: the name of the sink or query is invalid.
        """
        sink = self.sinks.get(batch.sink)
        if sink is None or sink.query != batch.query:
            check_name("query", batch.query)
        if sink is None:
            check_name("sink", batch.sink)
            check_follows(batch, None, not self._is_restored)
            return False
        if sink.query != batch.query:
            raise NotStaged(
                Why.BOUND,
                f"the sink {sink.name!r} is bound to the query {sink.query!r}, not to {batch.query!r}: another "
                "query numbers its batches from 0 again, so they could be mistaken for published batches",
                "If the new query continues where the old one ended, bind the sink to it: holdfast sinks bind "
                f"{sink.name} {batch.query}. Otherwise, use another sink.",
            )
        if batch.number + 1 in sink.done:
            return True
        check_follows(batch, sink.last, sink.is_sure)
        return False

    def stage(self, batch: Batch, token: str, start: int, block: Block, now: float) -> bool:
        """Stage rows of a part, with the open batch. A part may take several consecutive calls.

        Args:
            batch: The batch of the rows.
            token: The part, with a name that no other part of the sink has.
            start: The number of earlier rows of the part.
            block: The next rows.
            now: Seconds.

        Returns:
            Whether they are staged; False: the batch is published already.

        Raises:
            NotStaged: see :meth:`is_published`; or the part exists, or its earlier rows were discarded.
            NoRoomToStage: a limit is reached.
            ConfigurationError: the name is invalid.
        """
        if self.is_published(batch):
            return False
        check_name("token", token)
        sink = self.sinks.get(batch.sink)
        part = sink.parts.get(token) if sink is not None else None
        # A new part needs an unused token, and a continued part must have exactly the rows before these. Otherwise a
        # repeated request would stage rows twice.
        if (part is not None and not start) or (start and (part is None or part.staged != start)):
            raise NotStaged(
                Why.TOKEN,
                f"the part {token!r} already exists"
                if not start
                else f"the part {token!r} was discarded while it was staged",
                "Stage it again under a token never used before, such as a UUID.",
            )
        self._check_room(block.size, 0 if part is not None else 1)
        sink = sink or self._new_sink(batch.sink, batch.query)
        self._append(part or self._new_part(sink, batch, token, now), block, now)
        return True

    def _check_room(self, size: int, parts: int) -> None:
        most_parts, most = self.policy.max_parts, self.policy.max_bytes
        if self._parts + parts > most_parts:
            raise NoRoomToStage(
                f"{self._parts:,} parts are staged, or published and not yet in their queues; the limit is "
                f"{most_parts:,}",
                remedy="List them with holdfast sinks: a queue may be full, or writers may have stopped. Write "
                "with fewer tasks, or raise the limit (sinks.max_parts, StagingPolicy(max_parts=…)).",
            )
        if self._bytes + size > most:
            raise NoRoomToStage(
                f"{self._bytes:,} bytes are staged, or published and not yet in their queues; the limit is {most:,}",
                remedy="List them with holdfast sinks: a queue may be full, or writers may have stopped. Or raise "
                "the limit (sinks.max_bytes, StagingPolicy(max_bytes=…)).",
            )

    def _new_sink(self, name: str, query: str) -> Sink:
        """Create a sink.

        Raises:
            NoRoomToStage: the maximum number of sinks exists.
        """
        if len(self.sinks) + len(self._forgotten) >= self.policy.max_sinks:
            raise NoRoomToStage(
                f"there are {self.policy.max_sinks:,} sinks, which is the limit",
                remedy="Forget unused sinks (holdfast sinks forget NAME), or raise the limit (sinks.max_sinks, "
                "StagingPolicy(max_sinks=…)).",
            )
        identifier = self._new_identifier()
        queue = self._queues.add(Queue(f"sink/{identifier}", kind=STAGING))
        sink = self.sinks[name] = Sink(name, identifier, query, queue)
        sink.is_sure = not self._is_restored
        self._save(sink)
        self._tell(sink, "sink.created")
        return sink

    def _new_part(self, sink: Sink, batch: Batch, token: str, now: float) -> Part:
        # The name uses the sink's creation name, which does not change as its identifier does. It does not use the
        # token: a token dropped just now and used again would be deleted by the batch that deletes the first.
        queue = self._queues.add(Queue(f"{STAGING}/{key_of(sink.queue)}/{self._next_part}", kind=STAGING))
        self._next_part += 1
        self._parts += 1
        part = sink.parts[token] = Part(token, batch.query, batch.number, queue, now)
        return part

    def _append(self, part: Part, block: Block, now: float) -> None:
        if block.rows:
            part.queue.records.append(0, Record("", block.rows, "", block.data, now))
        part.staged += block.rows
        part.bytes += block.size
        self._bytes += block.size
        part.at = now
        part.save()
        self._want_sweep(now + self.policy.max_age)

    # --- requests of the driver -----------------------------------------------------------------------------------

    def publish(
        self, batch: Batch, tokens: Sequence[str], rows: int, now: float, attempt: str = "", *, is_final: bool = False
    ) -> Published:
        """Publish the rows of these parts, in this order, with the open batch.

        The rows then move into their queues. Other staged parts of the sink are dropped.

        Args:
            batch: The batch of the rows.
            tokens: The names of the parts.
            rows: The total number of their rows.
            now: Seconds.
            attempt: The writer's name for this attempt at the batch. Every attempt to publish it receives the name of
                the successful one.
            is_final: Whether no batch follows, so the sink need not be remembered permanently.

        Raises:
            NotStaged: see :meth:`is_published`; or a part or row of the batch is missing.
            NoRoomToStage: it is the first batch of its sink, and the maximum number of sinks exists.
            ConfigurationError: the name of the sink is invalid.
        """
        if self.is_published(batch):
            return self.sinks[batch.sink].became_of(batch)
        if attempt:
            check_name("attempt", attempt)
        chosen = self._chosen(batch, tokens, rows)
        sink = self.sinks.get(batch.sink) or self._new_sink(batch.sink, batch.query)
        for part in chosen:
            part.publish(sink.identifier, sink.published + 1)
            part.save()
            sink.published += part.staged
        sink.finish(batch.number, batch.number, rows, attempt)
        sink.moving += chosen
        self._remember(sink, now if is_final else None)
        for part in sink.staged:
            self._drop(sink, part)
        self._save(sink)
        self.rows_published += rows
        self._commit.then(partial(self._go_on, sink))
        self._tell(sink, "sink.batch_published", level="debug", batch=batch.number, rows=rows)
        return Published(True, rows, attempt)

    def _remember(self, sink: Sink, at: float | None) -> None:
        """Remember a sink for a limited time after its final batch; None: permanently."""
        sink.final_at = at
        self._final.pop(sink.name, None)
        if at is not None:
            self._final[sink.name] = at
            self._want_sweep(at + self.policy.remember)

    def _chosen(self, batch: Batch, tokens: Sequence[str], rows: int) -> list[Part]:
        """Return the named parts that have rows, if all parts are present and complete."""
        remedy = "Stage the batch again with new tokens. No row of it is published."
        staged = self.sinks[batch.sink].staged if batch.sink in self.sinks else []
        known = {part.token: part for part in staged if part.batch == batch.number}
        # A token named twice must not publish its rows twice: the lengths then differ.
        parts = [known[one] for one in dict.fromkeys(tokens) if one in known]
        if len(parts) != len(tokens):
            there = {part.token for part in parts}
            missing = next((one for one in tokens if one not in there), "named twice")
            raise NotStaged(
                Why.UNKNOWN,
                f"of {len(tokens)} parts of batch {batch.number}, {len(tokens) - len(parts)} are missing here, "
                f"such as {missing[:200]!r}: discarded, or deleted after a timeout",
                remedy,
            )
        found = sum(part.staged for part in parts)
        if found != rows:
            raise NotStaged(Why.COUNT, f"the parts of batch {batch.number} contain {found} rows, not {rows}", remedy)
        return [part for part in parts if part.staged]

    def discard(self, name: str, tokens: Iterable[str]) -> int:
        """Discard the staged, unpublished parts with these tokens; return how many."""
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
        """Forget a sink without parts that never published: it has nothing to remember."""
        if not sink.parts and not sink.former and sink.last is None:
            self.forget(sink.name)

    # --- requests of an operator ----------------------------------------------------------------------------------

    def sink(self, name: str) -> Sink:
        """Return the sink of that name.

        Raises:
            NoSuchSink: no such sink exists.
        """
        sink = self.sinks.get(name)
        if sink is None:
            raise NoSuchSink(f"the sink {name[:200]!r} does not exist", remedy="List the sinks with holdfast sinks.")
        return sink

    def bind(self, name: str, query: str, after: int | None = None) -> Sink:
        """Bind a sink to another query, and drop the parts that the old one staged.

        Batches start at 0, or where they ended if the sink was bound to the query before.

        Args:
            name: The sink's name; it need not exist if ``after`` is given.
            query: The query.
            after: Batches up to this one count as published, whatever the sink knows about them.

        Raises:
            NoSuchSink: no such sink exists.
            NoRoomToStage: the maximum number of sinks exists, and one would be created.
            ConfigurationError: the name of the sink is invalid.
        """
        check_name("query", query)
        if after is not None and name not in self.sinks:
            check_name("sink", name)
            self._new_sink(name, query)
        sink = self.sink(name)
        if query != sink.query:
            self._bind_another(sink, query)
        if after is not None:
            sink.finish(0, after)
            self._tell(sink, "sink.batches_skipped", level="warning", query=query, after=after)
        self._remember(sink, None)
        self._save(sink)
        return sink

    def _bind_another(self, sink: Sink, query: str) -> None:
        if len(sink.done):
            sink.former[sink.query] = sink.done.to_state()[-2:]
        former = sink.former.pop(query, None)
        others = sum(len(one.former) for one in self.sinks.values()) - len(sink.former)
        most = MOST_FORMER if others < FORMER_OF_EACH * self.policy.max_sinks else 1
        sink.former = dict(list(sink.former.items())[-most:])
        sink.done, sink.rows, sink.attempt = AcknowledgementRanges.from_state(former or []), 0, None
        sink.is_sure = not self._is_restored
        for part in sink.staged:
            self._drop(sink, part)
        self._tell(sink, "sink.bound", level="warning", query=query, before=sink.query)
        sink.query = query

    def forget(self, name: str) -> None:
        """Forget a sink and its staged rows; published rows still reach their queues.

        Raises:
            NoSuchSink: no such sink exists.
        """
        sink = self.sink(name)
        del self.sinks[name]
        self._final.pop(name, None)
        for part in sink.staged:
            self._drop(sink, part)
        self._tell(sink, "sink.forgotten", batch=sink.last, moving=sink.rows_moving)
        if sink.moving:
            sink.is_forgotten = True
            self._forgotten[sink.identifier] = sink
            self._save(sink)
        else:
            self._queues.delete(sink.queue)

    # --- moving rows ----------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Move no further chunk; the next start resumes."""
        self._is_stopped = True

    def _go_on(self, sink: Sink, now: float) -> None:
        """Read the next chunk of published rows."""
        if sink.is_busy or not sink.moving or self._is_stopped:
            return
        if why := self.trouble():
            self._wait(sink, why, now)
            return
        sink.is_busy = True
        part = sink.moving[0]
        first, end = part.queue.partitions[0].first, part.queue.partitions[0].end
        part.queue.records.want(
            0, first, min(first + CHUNK, end) if part.is_by_row else first + 1, partial(self._read, sink)
        )

    def _read(self, sink: Sink, found: list[tuple[int, Record]], now: float) -> None:
        part = sink.moving[0]
        first = part.queue.partitions[0].first
        assert found and found[0][0] == first, (sink.name, part.token, first)  # the store keeps it for the sink
        take = self._take_rows if part.is_by_row else self._take_block
        arriving, waits_for = take(part, found, now)
        if not arriving:
            sink.is_busy = False
            self._wait(sink, waits_for, now)
            return
        sink.waits_for = ""
        sink.leaving = sum(count for *_, count in arriving)
        if part.moved == part.staged:
            self._moved_whole(sink, part)
        else:
            part.save()
        self._commit.then(partial(self._moved, sink, arriving))

    def _take_block(self, part: Part, found: list[tuple[int, Record]], now: float) -> tuple[list[Arriving], str]:
        """Move rows of the part's first block; return them and what stops the rest."""
        assert part.first_number is not None, part.token
        block = found[0][1].body
        try:
            rows = unpack(block)
        except StoreError as error:
            return [], f"{error.message}: part {part.token!r}, starting at its row {part.moved}"
        gathered, waits_for = self._gather(rows, part.begun, part.first_number + part.moved)
        arriving: list[Arriving] = []
        for (name, partition), (numbers, places) in gathered.items():
            queue = self._inbound.queues[name]
            run = Run(
                name, partition, 0, part.sequence, part.message_ids, rows.received_at, now, block, numbers, places
            )
            queue.records.append_run(run)
            arriving.append((queue, partition, run.offset, len(places)))
        taken = sum(len(places) for _, places in gathered.values())
        part.moved += taken
        part.begun += taken
        if part.begun == len(rows.places):
            part.begun = 0
            part.queue.records.delete_below(0, found[0][0] + 1)
            part.bytes -= rows.size
            self._bytes -= rows.size
        return arriving, waits_for

    def _gather(self, rows: Rows, start: int, number: int) -> tuple[dict[tuple[str, int], Gathered], str]:
        """Sort rows from ``start`` on by queue and partition, numbered from ``number``."""
        gathered: dict[tuple[str, int], Gathered] = {}
        count = self._inbound.queue.description.shared
        limited: dict[str, int] = {}
        """Queues with a limit -> how many more rows they accept."""
        for (name, key_hash), place in islice(zip(rows.entries, rows.places, strict=True), start, None):
            if limited.get(name) == 0:
                return gathered, _full(name)
            where = name, key_hash % count
            into = gathered.get(where)
            if into is None:
                queue = self._open_queue(name)
                if isinstance(queue, str):
                    return gathered, queue
                into = gathered[where] = ([], [])
                if name in self._inbound.limits and name not in limited:
                    limited[name] = self._inbound.limits[name].room()
            if name in limited:
                limited[name] -= 1
            into[0].append(number)
            into[1].append(place)
            number += 1
        return gathered, ""

    def _take_rows(self, part: Part, found: list[tuple[int, Record]], now: float) -> tuple[list[Arriving], str]:
        """Move rows of a part of single records, each with its key as Sequence and its queue's name."""
        arriving: list[Arriving] = []
        waits_for = ""
        for offset, record in found:
            queue = self._open_queue(record.transport.decode())
            if isinstance(queue, str):
                waits_for = queue
                break
            assert part.first_number is not None, part.token
            partition = crc32(record.sequence.encode()) % queue.description.shared
            size = len(record.body) + len(record.headers) + ROW_BYTES
            record.sequence, record.message_number = part.sequence, part.first_number + offset
            if record.message_id is None:
                record.message_id = f"{part.message_ids}{record.message_number:012x}"
            record.released_at, record.transport = now, b""
            arriving.append((queue, partition, queue.records.append(partition, record), 1))
            part.bytes -= size
            self._bytes -= size
        part.moved += len(arriving)
        part.queue.records.delete_below(0, part.moved)
        return arriving, waits_for

    def _wait(self, sink: Sink, why: str, now: float) -> None:
        if why != sink.waits_for:
            self._tell(sink, "sink.waiting", level="warning", why=why)
        sink.waits_for = why
        self._retry_at = now + LOOK_AGAIN

    def _open_queue(self, name: str) -> Queue | str:
        """Return the queue of that name, or why a row for it must wait."""
        queue, limit = self._inbound.queues.get(name), self._inbound.limits.get(name)
        if queue is None:
            return f"the queue {name!r} no longer exists: add it to the configuration again"
        if limit is None:
            return queue
        has_room = limit.has_room()
        if (news := limit.news()) is not None:
            self._effects.append(news)
        return queue if has_room else _full(name)

    def _moved_whole(self, sink: Sink, part: Part) -> None:
        self._bytes -= part.bytes
        self._parts -= 1
        del sink.moving[0], sink.parts[part.token]
        self._queues.delete(part.queue)
        if sink.is_forgotten and not sink.moving:
            del self._forgotten[sink.identifier]
            self._queues.delete(sink.queue)

    def _moved(self, sink: Sink, arriving: list[Arriving], now: float) -> None:
        for queue, partition, offset, count in arriving:
            self._inbound.delivered_many(queue, partition, offset, count, now)
        sink.is_busy, sink.leaving = False, 0
        self._go_on(sink, now)

    def use(self, policy: StagingPolicy, now: float) -> None:
        """Apply other limits from now on."""
        self.policy = policy
        self._want_sweep(now)

    # --- time -----------------------------------------------------------------------------------------------------

    def _want_sweep(self, at: float) -> None:
        self._sweep_at = at if self._sweep_at is None else min(at, self._sweep_at)

    def deadline(self) -> float | None:
        """Return when :meth:`pump` must be called next; None: not before an event."""
        return min((at for at in (self._sweep_at, self._retry_at) if at is not None), default=None)

    def pump(self, now: float) -> None:
        """Drop expired parts, forget sinks that ended long ago, and retry moves."""
        if self._retry_at is not None and self._retry_at <= now:
            self._retry_at = None
            for sink in self.every:
                self._go_on(sink, now)
        if self._sweep_at is None or self._sweep_at > now:
            return
        self._sweep_at = None
        self._forget_ended(now)
        for sink in [one for one in self.sinks.values() if one.parts]:
            old = [part for part in sink.staged if part.at + self.policy.max_age <= now]
            for part in old:
                self._tell(sink, "sink.rows_swept", level="warning", part=part.token, rows=part.rows)
                self._drop(sink, part)
            for part in sink.staged:
                self._want_sweep(part.at + self.policy.max_age)
            if old:
                self._end_unused(sink)

    def _forget_ended(self, now: float) -> None:
        """Forget sinks with an old final batch and no parts. Parts that wait must stay visible."""
        ended: list[str] = []
        for name, at in self._final.items():
            if at + self.policy.remember > now:
                self._want_sweep(at + self.policy.remember)
                break
            if self.sinks[name].parts:
                self._want_sweep(now + LOOK_AGAIN)
            else:
                ended.append(name)
        for name in ended:
            self.forget(name)

    def _drop(self, sink: Sink, part: Part) -> None:
        self._bytes -= part.bytes
        self._parts -= 1
        del sink.parts[part.token]
        self._queues.delete(part.queue)

    # --- saved state ----------------------------------------------------------------------------------------------

    @staticmethod
    def _save(sink: Sink) -> None:
        sink.queue.records.save_own(0, SINK, sink.to_state())

    def _tell(self, sink: Sink, what: str, level: str = "info", **detail: object) -> None:
        self._effects.append(Incident(what, sink.identifier, level=level, detail={"sink": sink.name, **detail}))

    def recover(self, snapshot: Snapshot, now: float) -> None:
        """Restore the state in the store, and resume the moves in progress."""
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
                if state["number"] is not None:
                    part.publish(state.get("sequence", key_of(queue)), state["number"])
                part.is_by_row = "rows" not in state
                one = queue.partitions[0]
                part.staged, part.moved, part.begun = state.get("rows", (one.end, one.first, 0))
                staged.setdefault(key_of(queue), []).append(part)
                self._next_part = max(self._next_part, int(name.rpartition("/")[2]) + 1)
                self._bytes += part.bytes
                self._parts += 1
                self._want_sweep(part.at + self.policy.max_age)
            elif what == RESTORED:
                self._queues.add(Queue(name, kind=STAGING))
                self._is_restored = True
        for sink in self.every:
            sink.parts = {part.token: part for part in staged.get(key_of(sink.queue), ())}
            published = [(part.first_number, part) for part in sink.parts.values() if part.first_number is not None]
            sink.moving = [part for _, part in sorted(published, key=lambda one: one[0])]
            self._go_on(sink, now)
        for at, sink in sorted(((one.final_at or 0.0, one) for one in self.sinks.values()), key=lambda one: one[0]):
            self._remember(sink, at or None)

    def restored(self) -> None:
        """Adapt to a store restored from an older copy; call after :meth:`recover`.

        Later publications get names that no publication of the lost time had, and a batch is refused if earlier ones
        may be missing.
        """
        if not self._is_restored:
            self._queues.add(Queue(RESTORED, kind=STAGING)).records.save_own(0, RESTORED, {})
        self._is_restored = True
        for sink in self.sinks.values():
            sink.identifier = self._new_identifier()
            sink.is_sure = False
            self._save(sink)

    def _recovered(self, name: str, state: State) -> Sink:
        queue = self._queues.add(Queue(name, kind=STAGING))
        return Sink(
            state["name"],
            state["identifier"],
            state["query"],
            queue,
            AcknowledgementRanges.from_state(state["done"] if "done" in state else _up_to(state["last"])),
            state["rows"],
            state["published"],
            {query: done if isinstance(done, list) else _up_to(done) for query, done in state["former"].items()},
            attempt=state.get("attempt"),
            final_at=state.get("final"),
            is_sure=state.get("sure", True),
            is_forgotten=state["forgotten"],
        )


def _up_to(last: int | None) -> list[int]:
    """Return the ranges of a state saved by a version without ranges."""
    return [] if last is None else [1, last + 1]


def _full(name: str) -> str:
    return f"the queue {name!r} is full"
