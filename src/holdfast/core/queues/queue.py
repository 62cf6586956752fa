"""Queue: where messages wait for whoever reads them. Sans-IO.

The one home of every queue, inbound, outbound or of dead letters. It composes its parts: its records
(:class:`~holdfast.core.queues.queue_records.QueueRecords`), its cursors
(:class:`~holdfast.core.queues.cursors.Cursors`), its description
(:class:`~holdfast.core.queues.description.QueueDescription`), what may be deleted of it
(:class:`~holdfast.core.queues.deletion.Deletion`) and the enforcement of its retention. What concerns several of them
is decided here: what follows when a record becomes durable, or when a cursor moves.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.core.commit import GroupCommit
from holdfast.core.events import Effect
from holdfast.core.queues.cursors import OUTBOUND, Cursor, Cursors, check_reader
from holdfast.core.queues.deletion import TRIM_EVERY, Deletion
from holdfast.core.queues.description import QueueDescription
from holdfast.core.queues.partitions import Grown, Partition
from holdfast.core.queues.queue_records import QueueRecords, ReadRecords
from holdfast.core.queues.retention import RetentionPolicy
from holdfast.core.queues.retention_enforcement import Keeping
from holdfast.core.records import Record, Snapshot, State


class Queue:
    """One queue.

    Args:
        name: Its name in the store.
        count: Of its partitions.
        retention: How long it keeps records; None: for ever.
        drops_passed: Whether what the handlers and Sequences have passed may be deleted at once, as long as no reader
            ever was there.
        kind: What its description calls it.
        dead_letters: The queue of what its handlers could not handle.
    """

    def __init__(
        self,
        name: str,
        count: int = 1,
        retention: RetentionPolicy | None = None,
        *,
        drops_passed: bool = False,
        kind: str = "inbox",
        dead_letters: Queue | None = None,
    ) -> None:
        self.name = name
        self.records = QueueRecords(name, count)
        self.partitions = self.records.partitions
        """The partitions of its records."""
        self.cursors = Cursors(self.records)
        self.description = QueueDescription(self.records, kind)
        self.deletion = Deletion(self.records, self.cursors, self.description, retention, drops_passed=drops_passed)
        self.dead_letters = dead_letters
        self._keeping: Keeping | None = None
        self._lets_go = False
        """Whether the retention decides when records are deleted, rather than the cursors."""

    def join(self, commit: GroupCommit, effects: list[Effect], read: ReadRecords) -> None:
        """Say where its changes and effects go, and what reads the store."""
        self.records.join(commit, effects, read)
        if self.dead_letters is not None:
            self.dead_letters.join(commit, effects, read)

    def divide(self, shared: int, sessions: int) -> None:
        """Have so many shared partitions and, behind them, so many for sessions. Before it recovers."""
        self.description.sessions = sessions
        self.partitions[:] = [Partition() for _ in range(shared + sessions)]

    def stored(self, partition: int, offset: int, now: float, record: Record | None = None) -> None:
        """The record there is durable, and all before it."""
        one = self.partitions[partition]
        one.durable_end = offset + 1
        for grown in one.followers.values():
            grown(offset, record)
        if self._lets_go:
            assert self._keeping is not None
            self._keeping.stored(one, now)

    # --- cursors --------------------------------------------------------------------------------------------------

    def move_cursor(self, name: str, partition: int, offset: int, now: float, state: State | None = None) -> int:
        """Move a cursor forward, never back; one that is not there is made, unless it is a Sequence's. Durable with
        the open batch, and so must be whatever its owner knows to be done with below it.

        Args:
            name: The cursor.
            partition: Where.
            offset: All below is done with. One beyond the end stands for the end.
            now: Seconds.
            state: What to save, for one that knows more than an offset.

        Returns:
            Where it stands.

        Raises:
            ConfigurationError: a reader may not be called so, or there are too many.
        """
        cursor = self.cursors.get(name) or self._new_cursor(name, now)
        one = self.partitions[partition]
        stands = cursor.offsets[partition]
        if offset > stands:
            stands = cursor.offsets[partition] = min(offset, one.durable_end)
        cursor.moved_at = now
        if one.first < one.purged:
            self.deletion.trim(partition)
        elif self._lets_go:
            assert self._keeping is not None
            self._keeping.moved(one, now)
        elif self.deletion.drops_now and (stands - one.first >= TRIM_EVERY or cursor.is_outbound):
            self.deletion.trim(partition)
        if state is not None:
            self.records.save_cursor(partition, name, state)
        elif one.first < stands or not cursor.is_outbound:
            self.cursors.save(cursor, partition)
        # else the trim says where it stands, which spares a write for each message of a queue that is only sent.
        return stands

    def put_cursor(self, name: str, partition: int, offset: int, now: float, state: State | None = None) -> int:
        """Put a cursor elsewhere, also back; durable with the open batch. Its owner must know of it.

        Args:
            name: The cursor, which is there.
            partition: Where.
            offset: All below is done with. What is deleted stands for the first record, what is not there for the end.
            now: Seconds.
            state: What to save, for one that knows more than an offset.

        Returns:
            Where it stands.
        """
        cursor, one = self.cursors[name], self.partitions[partition]
        stands = cursor.offsets[partition] = min(max(offset, one.first), one.durable_end)
        cursor.moved_at = now
        if state is None:
            self.cursors.save(cursor, partition)
        else:
            self.records.save_cursor(partition, name, state)
        self._look_again(now)
        if self.deletion.drops_now:
            self.deletion.trim(partition)
        return stands

    def advance(self, name: str, offsets: dict[int, int], now: float) -> dict[int, int]:
        """Move a reader's cursor, made if it is not there, in the partitions that are named; where it stands in all.

        Raises:
            ConfigurationError: a reader may not be called so, or there are too many.
        """
        check_reader(name)
        for partition in range(len(self.partitions)):
            self.move_cursor(name, partition, offsets.get(partition, 0), now)
        return dict(self.cursors[name].offsets)

    def _new_cursor(self, name: str, now: float) -> Cursor:
        retention = self.deletion.retention
        cursor = self.cursors.add(name, now, retention.max_readers if retention is not None else None)
        if cursor.is_readers:
            self.description.read_now()
            self._look_again(now)
        return cursor

    def follow(self, name: str, partition: int, start: int | None, grown: Grown) -> None:
        """Let outbound Sequences follow the queue. A missing cursor is created, and saved by
        :meth:`Cursors.say_about`; a queue that keeps only what its outbound Sequences have not passed needs none.

        Args:
            name: The cursor.
            partition: Its partition.
            start: Its first offset; None: that of the first record.
            grown: Called for each record that becomes durable there.
        """
        assert name.startswith(OUTBOUND), name
        if name not in self.cursors:
            self.cursors.add_outbound(name, partition, start)
            self._who_reads()
        self.partitions[partition].followers[name] = grown

    def unfollow(self, name: str, partition: int, now: float) -> None:
        """Delete the cursor of outbound Sequences: the queue no longer keeps records for them."""
        self.partitions[partition].followers.pop(name, None)
        self.cursors.remove(name)
        self._look_again(now)

    def drop_cursor(self, name: str, now: float) -> bool:
        """Forget a reader's cursor; whether it was there. Nothing is deleted but what the retention let go of."""
        cursor = self.cursors.get(name)
        if cursor is None or not cursor.is_readers:
            return False
        self.cursors.remove(name)
        self._look_again(now)
        return True

    # --- retention ------------------------------------------------------------------------------------------------

    def deadline(self) -> float | None:
        """When :meth:`pump` has something to do next."""
        return self._keeping.deadline() if self._lets_go and self._keeping is not None else None

    def pump(self, now: float) -> None:
        """Delete what has become too old or too much; bounded work, the rest at the next call."""
        if self._lets_go and self._keeping is not None:
            self._keeping.pump(now)

    def _who_reads(self) -> None:
        self.deletion.decide()
        self._lets_go = self._keeping is not None and not self.deletion.drops_now

    def _look_again(self, now: float) -> None:
        self._who_reads()
        if self._lets_go and self._keeping is not None:
            self._keeping.look_again(now)

    def use(self, retention: RetentionPolicy, *, drops_passed: bool, now: float) -> None:
        """Keep records by another retention from now on, in a queue that had one."""
        assert self._keeping is not None, self.name
        self.deletion.retention, self.deletion.drops_passed = retention, drops_passed
        self._keeping.use(retention)
        self._look_again(now)

    # --- recovery -------------------------------------------------------------------------------------------------

    def recover(self, snapshot: Snapshot, now: float) -> None:
        """Restore the queue from the store. An unreadable saved state is kept under another name, and reported."""
        for partition, one in enumerate(self.partitions):
            one.first, one.end = snapshot.bounds.get((self.name, partition), (0, 0))
            one.durable_end = one.end
            one.expired = one.lapsed = one.first
        description = self.description
        description.recover(snapshot.queues.get(self.name))
        stored = [key for key in snapshot.bounds if key[0] == self.name]
        if description.stored_partitions is None and stored:
            description.stored_partitions = max(len(self.partitions), 1 + max(number for _, number in stored))
        if description.stored_partitions not in (None, len(self.partitions)):
            return  # whoever opened it will refuse, and nothing is touched
        for (queue, partition, name), state in snapshot.cursors.items():
            if queue == self.name and ("/" not in name or name.startswith(OUTBOUND)):  # others with a slash are none
                self._recover_cursor(name, partition, state)
        if self.deletion.retention is not None:
            self._keeping = Keeping(self.records, self.cursors, self.description, self.deletion)
            self._keeping.recover(snapshot, now)
        self._look_again(now)
        if description.is_grown:
            description.save()
        if self.dead_letters is not None:
            self.dead_letters.recover(snapshot, now)

    def _recover_cursor(self, name: str, partition: int, state: State) -> None:
        if not self.cursors.recover(name, partition, state):
            self.records.tell_aside(
                f"the position of the cursor {name!r} in partition {partition}",
                "it restarts at the oldest record",
                state,
            )
        cursor = self.cursors.get(name)
        if cursor is not None and cursor.is_readers:
            self.description.was_read = True

    # --- for people -----------------------------------------------------------------------------------------------

    def describe(self, now: float, ages: Mapping[str, float]) -> dict[str, Any]:
        """What an operator wants to know.

        Args:
            now: Seconds.
            ages: For each cursor the seconds that the oldest record of :meth:`Cursors.unpassed` has been in the queue.
        """
        partitions = {str(n): {"first": one.first, "end": one.durable_end} for n, one in enumerate(self.partitions)}
        cursors = [self.cursors.shown(cursor, now, ages.get(cursor.name, 0.0)) for cursor in self.cursors.values()]
        return {
            "name": self.name,
            "kind": self.description.kind,
            "epoch": self.description.epoch,
            "retention": self.deletion.keeps,
            "records": sum(one.durable_end - one.first for one in self.partitions),
            "partitions": partitions,
            "cursors": sorted(cursors, key=lambda one: (one["kind"], one["name"])),
        }
