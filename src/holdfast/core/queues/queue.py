"""Queue: messages that wait for handlers, readers or outbound Sequences. Sans-IO.

Every inbound queue, outbox and queue of dead letters is a Queue. It composes its parts: its records
(:class:`~holdfast.core.queues.queue_records.QueueRecords`), its cursors
(:class:`~holdfast.core.queues.cursors.Cursors`), its description
(:class:`~holdfast.core.queues.description.QueueDescription`), the deletion of its records
(:class:`~holdfast.core.queues.deletion.Deletion`) and the enforcement of its retention
(:class:`~holdfast.core.queues.retention_enforcement.RetentionEnforcement`). This module owns the decisions that concern
several parts: the effects of a record that becomes durable, and of a cursor that moves.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from holdfast.core.commit import GroupCommit, changing
from holdfast.core.events import Effect
from holdfast.core.queues.cursors import OUTBOUND, Cursor, Cursors, check_reader
from holdfast.core.queues.deletion import TRIM_EVERY, Deletion
from holdfast.core.queues.description import QueueDescription
from holdfast.core.queues.partitions import Grown, Partition
from holdfast.core.queues.queue_records import QueueRecords, ReadRecords
from holdfast.core.queues.retention import RetentionPolicy
from holdfast.core.queues.retention_enforcement import RetentionEnforcement
from holdfast.core.records import Record, Snapshot, State


class Queue:
    """One queue.

    Args:
        retention: How long it keeps records; None: without a limit.
        drops_passed: Whether it deletes records as soon as its handlers and Sequences have passed them. With a
            retention, that holds only until the queue gets its first reader.
        dead_letters: The queue of messages that its handlers could not process.
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
        self._keeping: RetentionEnforcement | None = None
        self._deciding: RetentionEnforcement | None = None
        """The enforcement of the retention while it decides when records are deleted; None: the cursors decide."""

    @property
    def commit(self) -> GroupCommit:
        """The commit that receives its changes, once it has joined."""
        return self.records.commit

    def join(self, commit: GroupCommit, effects: list[Effect], read: ReadRecords) -> None:
        """Set the commit and the list that receive its changes and effects, and the function that reads the store."""
        self.records.join(commit, effects, read)
        if self.dead_letters is not None:
            self.dead_letters.join(commit, effects, read)

    def divide(self, shared: int, sessions: int) -> None:
        """Set the numbers of shared partitions and of those for sessions, which follow. Call before :meth:`recover`."""
        self.description.sessions = sessions
        self.partitions[:] = [Partition() for _ in range(shared + sessions)]

    def stored(self, partition: int, offset: int, now: float, record: Record | None = None) -> None:
        """Record that the record at ``offset`` and all before it are durable."""
        one = self.partitions[partition]
        # Before the followers hear of it: they read up to this bound.
        one.durable_end = offset + 1
        # Followers before the retention, which may delete what nothing protects.
        for grown in one.followers.values():
            grown(offset, record, now)
        if self._deciding is not None:
            self._deciding.stored(one, now)

    # --- cursors --------------------------------------------------------------------------------------------------

    def move_cursor(self, name: str, partition: int, offset: int, now: float, state: State | None = None) -> int:
        """Move a cursor forward, never back. Create a missing cursor, unless it is an outbound Sequence's.

        The move becomes durable with the open batch. The results of the records below the cursor must be durable by
        then.

        Args:
            offset: The owner has finished every record below it. An offset beyond the end means the end.
            state: The state to save, for an owner that saves more than an offset.

        Returns:
            The new position.

        Raises:
            ConfigurationError: the name is not valid for a reader, or the queue has too many readers.
        """
        cursor = self.cursors.get(name) or self._new_cursor(name, now)
        one = self.partitions[partition]
        stands = cursor.offsets[partition]
        if offset > stands:
            # Never back: a reader that repeats an old batch must not hold records again.
            stands = cursor.offsets[partition] = min(offset, one.durable_end)
        cursor.moved_at = now
        # The operator has released these records: they go as soon as they are passed.
        if one.first < one.purged:
            self.deletion.trim(partition)
        elif self._deciding is not None:
            self._deciding.moved(one, now)
        elif self.deletion.drops_now and (
            # In an outbox each move trims: its trim is also its saved position, and costs no second write.
            stands - one.first >= TRIM_EVERY or cursor.is_outbound or one.has_passed_content
        ):
            self.deletion.trim(partition)
        if state is not None:
            self.records.save_cursor(partition, name, state)
        elif one.first < stands or not cursor.is_outbound:
            self.cursors.save(cursor, partition)
        # Otherwise the trim implies the position, which saves one write per message in a queue of outgoing messages.
        return stands

    def put_cursor(self, name: str, partition: int, offset: int, now: float, state: State | None = None) -> int:
        """Set a cursor to any offset, also backwards. The caller must inform the owner of the cursor.

        The change becomes durable with the open batch.

        Args:
            name: An existing cursor.
            offset: The new position. The offset of a deleted record means the first record, one beyond the end the end.
            state: The state to save, for an owner that saves more than an offset.

        Returns:
            The new position.
        """
        cursor, one = self.cursors[name], self.partitions[partition]
        # Within what exists: a deleted record cannot be offered again.
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

    @changing
    def advance(self, name: str, offsets: dict[int, int], now: float) -> dict[int, int]:
        """Move a reader's cursor in the given partitions, and return its position in every partition.

        A missing cursor is created.

        Raises:
            ConfigurationError: the name is not valid for a reader, or the queue has too many readers.
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
        """Let outbound Sequences follow the queue. A missing cursor is created; :meth:`Cursors.say_about` saves it.

        A queue that deletes passed records immediately needs no saved cursor: its first record is the position.

        Args:
            start: Its first offset; None: the offset of the first record.
            grown: Called for each record of the partition that becomes durable.
        """
        assert name.startswith(OUTBOUND), name
        if name not in self.cursors:
            self.cursors.add_outbound(name, partition, start)
            self._who_reads()
        self.partitions[partition].followers[name] = grown

    def inform(self, name: str, grown: Callable[[int, int, Record | None, float], None] | None) -> None:
        """Call ``grown(partition, offset, record, now)`` for each record that becomes durable; None: call nothing.

        It is for the owner of a cursor, ``name``, that exists in every partition.
        """
        for number, one in enumerate(self.partitions):
            one.followers.pop(name, None)
            if grown is not None:
                one.followers[name] = partial(grown, number)

    def unfollow(self, name: str, partition: int, now: float) -> None:
        """Delete the cursor of outbound Sequences: the queue no longer keeps records for them."""
        self.partitions[partition].followers.pop(name, None)
        self.cursors.remove(name)
        self._look_again(now)

    @changing
    def drop_cursor(self, name: str, now: float) -> bool:
        """Delete a reader's cursor, and return whether it existed. Records that the retention keeps remain."""
        cursor = self.cursors.get(name)
        if cursor is None or not cursor.is_readers:
            return False
        self.cursors.remove(name)
        self._look_again(now)
        return True

    # --- retention ------------------------------------------------------------------------------------------------

    def deadline(self) -> float | None:
        """Return when :meth:`pump` must be called next; None: not before an event."""
        return self._deciding.deadline() if self._deciding is not None else None

    def pump(self, now: float) -> None:
        """Delete records beyond the retention's age or size. The work of a call is bounded; the next call continues."""
        if self._deciding is not None:
            self._deciding.pump(now)

    def _who_reads(self) -> None:
        self.deletion.decide()
        # Where cursors decide, the retention need not look: no searches, no reads.
        self._deciding = None if self.deletion.drops_now else self._keeping

    def _look_again(self, now: float) -> None:
        self._who_reads()
        if self._deciding is not None:
            self._deciding.look_again(now)

    def use(self, retention: RetentionPolicy, *, drops_passed: bool, now: float) -> None:
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
            return  # the opener of the store rejects the changed number: change nothing
        for (queue, partition, name), state in snapshot.cursors.items():
            if queue == self.name and ("/" not in name or name.startswith(OUTBOUND)):  # others hold other state
                self._recover_cursor(name, partition, state)
        if self.deletion.retention is not None:
            self._keeping = RetentionEnforcement(self.records, self.cursors, self.description, self.deletion)
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
