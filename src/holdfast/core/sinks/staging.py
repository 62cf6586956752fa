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

from holdfast.core.commit import GroupCommit, changing
from holdfast.core.events import Effect
from holdfast.core.policy import StagingPolicy
from holdfast.core.queues.queue import Queue
from holdfast.core.queues.queues import Queues
from holdfast.core.ranges import AcknowledgementRanges
from holdfast.core.receiving.inbound import Inbound
from holdfast.core.records import Snapshot, State
from holdfast.core.sinks.moves import LOOK_AGAIN, Moves
from holdfast.core.sinks.parts import STAGING, Parts
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
from holdfast.core.staged_blocks import Block

RESTORED = "own/restored"
"""The cursor that records that the store was once restored, in a separate queue without records."""


class Sinks:
    """All sinks of an endpoint."""

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
        self.commit = commit
        self._effects = effects
        self._queues = queues
        self._inbound = inbound
        self._new_identifier = new_identifier
        self._forgotten: dict[str, Sink] = {}
        self._final: dict[str, float] = {}
        """Sinks that get no further batch -> when the last one was published; the oldest first."""
        self._is_restored = False
        self._sweep_at: float | None = None
        self._parts = Parts(queues)
        self.moves = Moves(commit, effects, inbound, self._parts, self._emptied)

    @property
    def every(self) -> list[Sink]:
        """All sinks, including forgotten ones that still move published rows."""
        return [*self.sinks.values(), *self._forgotten.values()]

    @property
    def bytes_held(self) -> int:
        """Bytes of rows staged or moving."""
        return self._parts.bytes

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
            # Only a new name is checked: a known sink's was checked when it was created.
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

    @changing
    def stage(self, batch: Batch, token: str, start: int, block: Block, now: float) -> bool:
        """Stage rows of a part, with the open batch. A part may take several consecutive calls.

        Args:
            token: The part, with a name that no other part of the sink has.
            start: The number of earlier rows of the part.

        Returns:
            Whether they are staged; False: the batch is published already.

        Raises:
            NotStaged: see :meth:`is_published`; or the part exists, or its earlier rows were discarded.
            NoRoomToStage: a limit is reached.
            ConfigurationError: the name is invalid.
        """
        # A repeated batch is answered before its rows are staged again.
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
        self._parts.check_room(self.policy, block.size, 0 if part is not None else 1)
        sink = sink or self._new_sink(batch.sink, batch.query)
        self._parts.append(part or self._parts.new(sink, batch, token, now), block, now)
        self._want_sweep(now + self.policy.max_age)
        return True

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

    # --- requests of the driver -----------------------------------------------------------------------------------

    @changing
    def publish(
        self, batch: Batch, tokens: Sequence[str], rows: int, now: float, attempt: str = "", *, is_final: bool = False
    ) -> Published:
        """Publish the rows of these parts, in this order, with the open batch.

        The rows then move into their queues. Other staged parts of the sink are dropped.

        Args:
            attempt: The writer's name for this attempt at the batch. Every attempt to publish it receives the name of
                the successful one.
            is_final: Whether no batch follows, so the sink need not be remembered permanently.

        Raises:
            NotStaged: see :meth:`is_published`; or a part or row of the batch is missing.
            NoRoomToStage: it is the first batch of its sink, and the maximum number of sinks exists.
            ConfigurationError: the name of the sink is invalid.
        """
        # Also after a crash between the decision and its answer: the driver asks again and gets the first result.
        if self.is_published(batch):
            return self.sinks[batch.sink].became_of(batch)
        if attempt:
            check_name("attempt", attempt)
        chosen = self._chosen(batch, tokens, rows)
        # A batch without rows is a batch too: its sink must remember it.
        sink = self.sinks.get(batch.sink) or self._new_sink(batch.sink, batch.query)
        for part in chosen:
            part.publish(sink.identifier, sink.published + 1)
            part.save()
            sink.published += part.staged
        # The sink, its parts' numbers and the end of all other parts are one batch: that is the decision.
        sink.finish(batch.number, batch.number, rows, attempt)
        sink.moving += chosen
        self._remember(sink, now if is_final else None)
        for part in sink.staged:
            self._parts.drop(sink, part)
        self._save(sink)
        self.rows_published += rows
        # Rows move only once it is durable, or readers could see what a crash takes back.
        self.commit.then(partial(self.moves.go_on, sink))
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

    @changing
    def discard(self, name: str, tokens: Iterable[str]) -> int:
        """Discard the staged, unpublished parts with these tokens; return how many."""
        sink = self.sinks.get(name)
        if sink is None:
            return 0
        asked = set(tokens)
        found = [part for part in sink.staged if part.token in asked]
        for part in found:
            self._parts.drop(sink, part)
        self._end_unused(sink)
        return len(found)

    def _end_unused(self, sink: Sink) -> None:
        """Forget a sink without parts that never published: it has nothing to remember."""
        # A task may have staged and given up before anything was published.
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

    @changing
    def bind(self, name: str, query: str, after: int | None = None) -> Sink:
        """Bind a sink to another query, and drop the parts that the old one staged.

        Batches start at 0, or where they ended if the sink was bound to the query before.

        Args:
            name: The sink's name; it need not exist if ``after`` is given.
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
            # The last range only: enough to know where the query was, if it returns.
            sink.former[sink.query] = sink.done.to_state()[-2:]
        former = sink.former.pop(query, None)
        others = sum(len(one.former) for one in self.sinks.values()) - len(sink.former)
        most = MOST_FORMER if others < FORMER_OF_EACH * self.policy.max_sinks else 1
        sink.former = dict(list(sink.former.items())[-most:])
        sink.done, sink.rows, sink.attempt = AcknowledgementRanges.from_state(former or []), 0, None
        sink.is_sure = not self._is_restored
        for part in sink.staged:
            self._parts.drop(sink, part)
        self._tell(sink, "sink.bound", level="warning", query=query, before=sink.query)
        sink.query = query

    @changing
    def forget(self, name: str) -> None:
        """Forget a sink and its staged rows; published rows still reach their queues.

        Raises:
            NoSuchSink: no such sink exists.
        """
        sink = self.sink(name)
        del self.sinks[name]
        self._final.pop(name, None)
        for part in sink.staged:
            self._parts.drop(sink, part)
        self._tell(sink, "sink.forgotten", batch=sink.last, moving=sink.rows_moving)
        # Published rows are promised, so they still move, and the sink lasts until the last of them.
        if sink.moving:
            sink.is_forgotten = True
            self._forgotten[sink.identifier] = sink
            self._save(sink)
        else:
            self._queues.delete(sink.queue)

    def _emptied(self, sink: Sink) -> None:
        del self._forgotten[sink.identifier]
        self._queues.delete(sink.queue)

    def use(self, policy: StagingPolicy, now: float) -> None:
        """Apply other limits from now on."""
        self.policy = policy
        self._want_sweep(now)

    # --- time -----------------------------------------------------------------------------------------------------

    def _want_sweep(self, at: float) -> None:
        self._sweep_at = at if self._sweep_at is None else min(at, self._sweep_at)

    def deadline(self) -> float | None:
        """Return when :meth:`pump` must be called next; None: not before an event."""
        return min((at for at in (self._sweep_at, self.moves.retry_at) if at is not None), default=None)

    def pump(self, now: float) -> None:
        """Drop expired parts, forget sinks that ended long ago, and retry moves."""
        self.moves.pump(self.every, now)
        if self._sweep_at is None or self._sweep_at > now:
            return
        self._sweep_at = None
        self._forget_ended(now)
        for sink in [one for one in self.sinks.values() if one.parts]:
            old = [part for part in sink.staged if part.at + self.policy.max_age <= now]
            for part in old:
                self._tell(sink, "sink.rows_swept", level="warning", part=part.token, rows=part.rows)
                self._parts.drop(sink, part)
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
            # Rows that wait must stay visible to an operator.
            if self.sinks[name].parts:
                self._want_sweep(now + LOOK_AGAIN)
            else:
                ended.append(name)
        for name in ended:
            self.forget(name)

    # --- saved state ----------------------------------------------------------------------------------------------

    @staticmethod
    def _save(sink: Sink) -> None:
        sink.queue.records.save_own(0, SINK, sink.to_state())

    def _tell(self, sink: Sink, what: str, level: str = "info", **detail: object) -> None:
        self._effects.append(sink.incident(what, level, **detail))

    def recover(self, snapshot: Snapshot, now: float) -> None:
        """Restore the state in the store, and resume the moves in progress."""
        by_queue = snapshot.by_queue()
        staged: dict[str, list[Part]] = {}
        for (name, _, what), state in snapshot.cursors.items():
            if what == SINK:
                sink = self._recovered(name, state)
                if sink.is_forgotten:
                    self._forgotten[sink.identifier] = sink
                else:
                    self.sinks[sink.name] = sink
            elif what == PART:
                part = self._parts.recover(name, state, by_queue[name], now)
                staged.setdefault(key_of(part.queue), []).append(part)
                self._want_sweep(part.at + self.policy.max_age)
            elif what == RESTORED:
                self._queues.add(Queue(name, kind=STAGING))
                self._is_restored = True
        for sink in self.every:
            sink.parts = {part.token: part for part in staged.get(key_of(sink.queue), ())}
            published = [(part.first_number, part) for part in sink.parts.values() if part.first_number is not None]
            sink.moving = [part for _, part in sorted(published, key=lambda one: one[0])]
            # Interrupted moves resume with their first remaining block.
            self.moves.go_on(sink, now)
        for sink in sorted(self.sinks.values(), key=lambda one: one.final_at or 0.0):
            self._remember(sink, sink.final_at or None)

    def restored(self) -> None:
        """Adapt to a store restored from an older copy; call after :meth:`recover`.

        Later publications get names that no publication of the lost time had, and a batch is refused if earlier ones
        may be missing.
        """
        if not self._is_restored:
            self._queues.add(Queue(RESTORED, kind=STAGING)).records.save_own(0, RESTORED, {})
        self._is_restored = True
        for sink in self.sinks.values():
            # The numbers of the lost time are unknown, so their names must not come back.
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
            AcknowledgementRanges.from_state(state["done"]),
            state["rows"],
            state["published"],
            dict(state["former"]),
            numbers=state.get("numbers", {}),
            attempt=state.get("attempt"),
            final_at=state.get("final"),
            is_sure=state.get("sure", True),
            is_forgotten=state["forgotten"],
        )
