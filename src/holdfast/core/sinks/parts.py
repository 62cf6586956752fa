"""The parts that tasks stage: rows in queues of their own, within the limits on parts and bytes."""

from __future__ import annotations

from holdfast.core.policy import StagingPolicy
from holdfast.core.queues.queue import Queue
from holdfast.core.queues.queues import Queues
from holdfast.core.records import Record, Snapshot, State
from holdfast.core.sinks.sink import Batch, NoRoomToStage, Part, Sink, key_of
from holdfast.core.staged_blocks import Block

STAGING = "staging"
"""The kind of the queues that store sinks and parts, and the prefix of the names of parts' queues."""


class Parts:
    def __init__(self, queues: Queues) -> None:
        self.bytes = 0
        """Bytes of rows staged or moving."""
        self.count = 0
        self._queues = queues
        self._next = 0

    def check_room(self, policy: StagingPolicy, size: int, parts: int) -> None:
        """Check the limits before more is staged.

        Raises:
            NoRoomToStage: a limit is reached.
        """
        most_parts, most = policy.max_parts, policy.max_bytes
        if self.count + parts > most_parts:
            raise NoRoomToStage(
                f"{self.count:,} parts are staged, or published and not yet in their queues; the limit is "
                f"{most_parts:,}",
                remedy="List them with holdfast sinks: a queue may be full, or writers may have stopped. Write "
                "with fewer tasks, or raise the limit (sinks.max_parts, StagingPolicy(max_parts=…)).",
            )
        if self.bytes + size > most:
            raise NoRoomToStage(
                f"{self.bytes:,} bytes are staged, or published and not yet in their queues; the limit is {most:,}",
                remedy="List them with holdfast sinks: a queue may be full, or writers may have stopped. Or raise "
                "the limit (sinks.max_bytes, StagingPolicy(max_bytes=…)).",
            )

    def new(self, sink: Sink, batch: Batch, token: str, now: float) -> Part:
        # The name uses the sink's creation name, which does not change as its identifier does. It does not use the
        # token: a token dropped just now and used again would be deleted by the batch that deletes the first.
        queue = self._queues.add(Queue(f"{STAGING}/{key_of(sink.queue)}/{self._next}", kind=STAGING))
        self._next += 1
        self.count += 1
        part = sink.parts[token] = Part(token, batch.query, batch.number, queue, now)
        return part

    def append(self, part: Part, block: Block, now: float) -> None:
        """Stage rows, with the open batch."""
        # An empty block has no record, but its part must exist to be published.
        if block.rows:
            part.queue.records.append(0, Record("", block.rows, "", block.data, now))
        part.staged += block.rows
        part.bytes += block.size
        self.bytes += block.size
        part.at = now
        part.save()

    def left(self, part: Part, size: int) -> None:
        """Record that rows of so many bytes left the part."""
        part.bytes -= size
        self.bytes -= size

    def drop(self, sink: Sink, part: Part) -> None:
        """Delete a part, with the rows that remain in it."""
        self.bytes -= part.bytes
        self.count -= 1
        del sink.parts[part.token]
        self._queues.delete(part.queue)

    def recover(self, name: str, state: State, snapshot: Snapshot, now: float) -> Part:
        queue = self._queues.add(Queue(name, kind=STAGING))
        queue.recover(snapshot, now)
        part = Part(state["token"], state["query"], state["batch"], queue, state["at"], state["bytes"])
        if state["number"] is not None:
            part.publish(state.get("sequence", key_of(queue)), state["number"])
        part.staged, part.moved, part.begun = state["rows"]
        self._next = max(self._next, int(name.rpartition("/")[2]) + 1)
        self.bytes += part.bytes
        self.count += 1
        return part
