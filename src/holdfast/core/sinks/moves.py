"""Published rows on their way from their parts into their queues, a block at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from itertools import islice

from holdfast.core.commit import GroupCommit
from holdfast.core.events import Effect
from holdfast.core.queues.queue import Queue
from holdfast.core.receiving.inbound import Inbound
from holdfast.core.records import Record
from holdfast.core.sinks.parts import Parts
from holdfast.core.sinks.sink import SINK, Part, Sink, message_ids_of, sequence_of
from holdfast.core.staged_blocks import Place, Rows, Run, unpack
from holdfast.exceptions import StoreError

LOOK_AGAIN = 1.0
"""Seconds until a retry for rows that wait for a full or missing queue, and for sinks that wait for them."""


Gathered = tuple[list[int], list[Place]]
"""Message numbers, and the places of the rows in their block."""
Arriving = tuple[Queue, int, int, int]
"""Queue, partition, offset of the first row, and number of rows appended by the open batch."""


class Moves:
    """Moves the rows of every sink.

    Args:
        inbound: The inbound half, which owns the queues that rows move into.
        on_emptied: Called with a sink that was forgotten, once its last published row is in its queue.
    """

    def __init__(
        self,
        commit: GroupCommit,
        effects: list[Effect],
        inbound: Inbound,
        parts: Parts,
        on_emptied: Callable[[Sink], None],
    ) -> None:
        self.retry_at: float | None = None
        """When :meth:`pump` is due; None if no row waits."""
        self._commit = commit
        self._effects = effects
        self._inbound = inbound
        self._parts = parts
        self._on_emptied = on_emptied
        self._is_stopped = False

    def stop(self) -> None:
        """Move no further block; the next start resumes."""
        self._is_stopped = True

    def go_on(self, sink: Sink, now: float) -> None:
        """Read the next block of published rows."""
        # One block of a sink at a time, so the rows of a key keep their order.
        if sink.is_busy or not sink.moving or self._is_stopped:
            return
        # A move writes as much as it deletes: it waits while the store has no room.
        if why := self._inbound.trouble():
            self._wait(sink, why, now)
            return
        sink.is_busy = True
        part = sink.moving[0]
        first = part.queue.partitions[0].first
        part.queue.records.want(0, first, first + 1, partial(self._read, sink))

    def _read(self, sink: Sink, found: list[tuple[int, Record]], now: float) -> None:
        part = sink.moving[0]
        first = part.queue.partitions[0].first
        assert found and found[0][0] == first, (sink.name, part.token, first)  # the store keeps it for the sink
        arriving, waits_for = self._take_block(sink, part, found, now)
        if not arriving:
            sink.is_busy = False
            self._wait(sink, waits_for, now)
            return
        sink.waits_for = ""
        sink.leaving = sum(count for *_, count in arriving)
        # The count of moved rows and their numbers are in the batch that moves them: a crash repeats none and skips
        # none.
        if part.moved == part.staged:
            self._moved_whole(sink, part)
        else:
            part.save()
        if sink.moving or not sink.is_forgotten:
            sink.queue.records.save_own(0, SINK, sink.to_state())
        # Readers learn of rows only when they are durable.
        self._commit.then(partial(self._moved, sink, arriving))

    def _take_block(
        self, sink: Sink, part: Part, found: list[tuple[int, Record]], now: float
    ) -> tuple[list[Arriving], str]:
        """Move rows of the part's first block; return them and what stops the rest."""
        block = found[0][1].body
        try:
            rows = unpack(block)
        except StoreError as error:
            return [], f"{error.message}: part {part.token!r}, starting at its row {part.moved}"
        gathered, waits_for = self._gather(rows, part.begun, self._numbers(sink, part))
        arriving: list[Arriving] = []
        # The store copies the rows' bytes out of the block: none is decoded here.
        for (name, partition), (numbers, places) in gathered.items():
            queue = self._inbound.queues[name]
            sequence = sequence_of(part.sequence, partition)
            made = message_ids_of(sequence)
            run = Run(name, partition, 0, sink.name, sequence, made, rows.received_at, now, block, numbers, places)
            queue.records.append_run(run)
            arriving.append((queue, partition, run.offset, len(places)))
        taken = sum(len(places) for _, places in gathered.values())
        part.moved += taken
        part.begun += taken
        if part.begun == len(rows.places):
            part.begun = 0
            # The block is deleted in the batch that moves its last row.
            part.queue.records.delete_below(0, found[0][0] + 1)
            self._parts.left(part, rows.size)
        return arriving, waits_for

    def _numbers(self, sink: Sink, part: Part) -> list[int]:
        return sink.numbers_of(part, self._inbound.queue.description.shared)

    def _gather(self, rows: Rows, start: int, highest: list[int]) -> tuple[dict[tuple[str, int], Gathered], str]:
        """Sort rows from ``start`` on by queue and partition, numbered after the highest number of each partition."""
        gathered: dict[tuple[str, int], Gathered] = {}
        count = len(highest)
        limited: dict[str, int] = {}
        """Queues with a limit -> how many more rows they accept."""
        for (name, key_hash), place in islice(zip(rows.entries, rows.places, strict=True), start, None):
            # In order: behind a row that must wait, none moves.
            if limited.get(name) == 0:
                return gathered, _full(name)
            partition = key_hash % count
            where = name, partition
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
            highest[partition] += 1
            into[0].append(highest[partition])
            into[1].append(place)
        return gathered, ""

    def _wait(self, sink: Sink, why: str, now: float) -> None:
        if why != sink.waits_for:
            self._effects.append(sink.incident("sink.waiting", level="warning", why=why))
        sink.waits_for = why
        self.retry_at = now + LOOK_AGAIN

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
        del sink.moving[0]
        sink.forget_numbers()
        self._parts.drop(sink, part)
        if sink.is_forgotten and not sink.moving:
            self._on_emptied(sink)

    def _moved(self, sink: Sink, arriving: list[Arriving], now: float) -> None:
        for queue, partition, offset, count in arriving:
            self._inbound.delivered_many(queue, partition, offset, count, now)
        sink.is_busy, sink.leaving = False, 0
        self.go_on(sink, now)

    def pump(self, sinks: Iterable[Sink], now: float) -> None:
        """Retry the moves that had to wait, if that is due."""
        if self.retry_at is not None and self.retry_at <= now:
            self.retry_at = None
            for sink in sinks:
                self.go_on(sink, now)


def _full(name: str) -> str:
    return f"the queue {name!r} is full"
