"""QueueRecords: the partitions of one queue, and the changes of its records and cursors in the open batch.

No other code writes these parts of a batch: it calls the methods of this class.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from holdfast.core.commit import GroupCommit
from holdfast.core.events import Effect, Incident, ReadWanted, TakeRecords
from holdfast.core.queues.partitions import Partition
from holdfast.core.records import Batch, Record, State
from holdfast.core.staged_blocks import Run

ReadRecords = Callable[[str, int, int, int], list[tuple[int, Record]]]
"""``read(queue, partition, start, end)``: records of the store in that range, ascending; the store may return fewer."""


class QueueRecords:
    def __init__(self, name: str, count: int) -> None:
        self.name = name
        self.partitions = [Partition() for _ in range(count)]

    def join(self, commit: GroupCommit, effects: list[Effect], read: ReadRecords) -> None:
        """Set the commit and the list that receive its changes and effects, and the function that reads the store."""
        self.commit = commit
        self.effects = effects
        self._read = read

    @property
    def firsts(self) -> list[int]:
        return [one.first for one in self.partitions]

    @property
    def ends(self) -> list[int]:
        """Return, for each partition, the offset of the next record to become durable."""
        return [one.durable_end for one in self.partitions]

    @property
    def bytes_held(self) -> int | None:
        """Approximate bytes of its records; None if the retention does not count them."""
        sizes = [one.sizes.held for one in self.partitions if one.sizes is not None]
        return sum(sizes) if len(sizes) == len(self.partitions) else None

    # --- changes --------------------------------------------------------------------------------------------------

    def append(self, partition: int, record: Record) -> int:
        """Append a record with the open batch, and return its offset."""
        one = self.partitions[partition]
        offset = one.end
        one.end = offset + 1
        # Durable with the batch: ``durable_end`` follows, and readers go by that one.
        self.commit.batch.appends.append((self.name, partition, offset, record))
        return offset

    def append_run(self, run: Run) -> None:
        """Append staged rows with the open batch, and set the offset of the first one in ``run``."""
        one = self.partitions[run.partition]
        run.offset = one.end
        one.end += len(run.places)
        self.commit.batch.runs.append(run)

    def hold(self, sequence: str, number: int, record: Record) -> None:
        """Store, with the open batch, a record that has no offset in the queue yet."""
        self.commit.batch.holds.append((sequence, number, record))

    def release(self, partition: int, sequence: str, number: int, now: float) -> int:
        """Append a held record to the queue with the open batch, and return its offset."""
        one = self.partitions[partition]
        offset = one.end
        one.end = offset + 1
        # The store moves the bytes: the record need not be in memory.
        self.commit.batch.releases.append((sequence, number, self.name, partition, offset, now))
        return offset

    def drop_held(self, sequence: str, numbers: Iterable[int]) -> None:
        self.commit.batch.drops.extend((sequence, number) for number in numbers)

    def delete_below(self, partition: int, offset: int) -> None:
        """Delete the records below ``offset``, regardless of cursors. They may be in the open batch."""
        one = self.partitions[partition]
        if offset > one.first:
            one.first = offset
            self.commit.batch.trims[self.name, partition] = offset

    def delete(self, batch: Batch) -> None:
        """Delete every partition, with records and cursors, with that batch."""
        for partition in range(len(self.partitions)):
            # A trim of what is deleted would bring its bounds back.
            batch.trims.pop((self.name, partition), None)
            batch.deletes.append((self.name, partition))

    def save_cursor(self, partition: int, name: str, state: State | None) -> None:
        """Save the state of a cursor; None deletes it."""
        self.commit.batch.cursors[self.name, partition, name] = state

    def save_own(self, partition: int, name: str, state: State) -> None:
        """Save, with the open batch, other state of a partition under an internal name."""
        # Without the slash it could be the name of a reader.
        assert "/" in name, name
        self.commit.batch.cursors[self.name, partition, name] = state

    def save_description(self, describe: Callable[[], State]) -> None:
        # As it is then: several changes in one batch cost one write.
        self.commit.at_last(self.name, partial(self._describe, describe))

    def _describe(self, describe: Callable[[], State], batch: Batch) -> None:
        batch.queues[self.name] = describe()

    def keep_description(self, name: str, state: State) -> None:
        self.commit.batch.queues[name] = state

    # --- reads and effects ----------------------------------------------------------------------------------------

    def want(self, partition: int, start: int, end: int, take: TakeRecords) -> None:
        """Request stored records of a range: see :class:`~holdfast.core.events.ReadWanted`."""
        self.effects.append(ReadWanted(self.name, partition, start, end, take))

    def look(self, partition: int, offset: int) -> Record | None:
        """Read one record; None if it does not exist or is deleted."""
        found = self._read(self.name, partition, offset, offset + 1)
        return found[0][1] if found else None

    def tell(self, incident: Incident) -> None:
        self.effects.append(incident)

    def tell_aside(self, what: str, so: str, state: State) -> None:
        """Report a saved state that is unreadable and was set aside."""
        detail = {"queue": self.name, "what": what, "so": so, "state": repr(state)[:200]}
        self.tell(Incident("state.unreadable", level="error", detail=detail))
