"""A batch as rows to write and to delete, the same for every database. Independent of SQL dialects.

Trimming moves a partition's first offset immediately. The store deletes the records below it some at a time, because a
database takes about as long to delete a row as to write it. Until then they are below ``first``, where no reader sees
them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Protocol

from sqlalchemy import Table

from holdfast.core.records import Batch, Record
from holdfast.store.changes import Changes
from holdfast.store.content import Content
from holdfast.store.plan import Where
from holdfast.store.records import encode_record, encode_state
from holdfast.store.sql import schema as schema
from holdfast.store.sql.schema import key_of, signed
from holdfast.store.staged import fill

SWEEP_BYTES = 1 << 18
"""Trimmed bytes that justify a deletion."""
MOST_SWEPT = 2000
"""Maximum number of trimmed records that one batch deletes, so that no commit takes long for it."""
PIECE_BYTES = 1 << 20
"""Maximum bytes of a record in one row: databases limit the length of a statement."""

Row = tuple[Any, ...]
Kind = Literal["insert", "put", "delete", "erase"]


@dataclass(slots=True)
class Write:
    """Rows of one table.

    Args:
        kind: "insert" adds rows. "put" adds or replaces rows. "delete" removes the rows with these first columns.
            "erase" removes those of a part below a position, for records or pieces.
        table: The table. Its primary key is its first columns.
        rows: Values of all columns, in order; for "delete" of the first ones; for "erase" ``(part, position)``.
    """

    kind: Kind
    table: Table
    rows: list[Row]


@dataclass(slots=True)
class EnqueuedRecord(Record):
    """A record that an application's transaction put into ``holdfast_outgoing``.

    The batch that appends it to an outbox removes it from that table.
    """

    enqueued: int = 0


class _Store(Protocol):
    """The parts of the store that this module uses."""

    content: Content[int]
    space: int

    def part_of(self, name: Where | str) -> int | None: ...

    def new_part(self, name: Where | str) -> int: ...

    def read_held(self, held: list[tuple[str, int]]) -> list[bytes]: ...


class SQLChanges(Changes[int]):
    """The writes of a batch, and the store's content once the batch is durable.

    Args:
        store: The store; its content does not change before :meth:`take_over`.

    Attributes:
        writes: The writes, in one transaction.
        gone: Partitions, and Sequences with held messages, that no longer have a part.

    Raises:
        StoreFailed: The batch breaks a rule of :mod:`holdfast.store.plan`.
        StoreDamaged: A record that it releases is missing.
    """

    def __init__(self, store: _Store, batch: Batch) -> None:
        super().__init__(store.content, batch)
        self.writes: list[Write] = []
        self.gone: list[Where | str] = []
        self._store = store
        self._bytes = 0
        self._records = 0
        self._rows: list[Row] = []
        self._pieces: list[Row] = []
        self._entries: dict[Where, Row] = {}
        self._write_steps()
        self._write("insert", schema.records, self._rows)
        self._write("put", schema.partitions, list(self._entries.values()))
        self._write("put", schema.pieces, self._pieces)

    def take_over(self) -> None:
        super().take_over()
        self._content.written_bytes += self._bytes
        self._content.written_records += self._records

    def _write(self, kind: Kind, table: Table, rows: list[Row]) -> None:
        if rows:
            self.writes.append(Write(kind, table, rows))

    @staticmethod
    def _entry(part: int, where: Where, first: int, swept: int) -> Row:
        return (part, part >> schema.SPACE_SHIFT, where[0].encode(), signed(where[1]), first, swept)

    def _begin(self) -> None:
        for where in self.plan.begins:
            # Deleted by the same batch, so it gets no row.
            if where not in self.plan.deletes:
                self._entries[where] = self._entry(self._store.new_part(where), where, 0, 0)

    def _append(self) -> None:
        part_of, deletes = self._store.part_of, self.plan.deletes
        last_queue: str | None = None
        last_partition = 0
        part: int | None = None
        taken: list[Row] = []
        for queue, partition, offset, record in self.plan.batch.appends:
            if partition != last_partition or queue is not last_queue:
                last_queue, last_partition = where = (queue, partition)
                # A batch's deletes come last, so records for such a partition are never written.
                part = None if where in deletes else part_of(where)
            data = encode_record(record)
            if part is not None:
                self._add(self._rows, part, offset, data)
            if isinstance(record, EnqueuedRecord):
                taken.append((record.enqueued,))
        # In the same transaction: a record enters its queue exactly once.
        self._write("delete", schema.outgoing, taken)

    def _run(self) -> None:
        for run in self.plan.batch.runs:
            where = (run.queue, run.partition)
            if where not in self.plan.deletes:
                part = self._part(where)
                for offset, data in enumerate(fill(run), run.offset):
                    self._add(self._rows, part, offset, data)

    def _add(self, rows: list[Row], part: int, position: int, data: bytes) -> None:
        """Add a record to the writes."""
        size = len(data)
        self._bytes += size
        self._records += 1
        if size > PIECE_BYTES:
            self._pieces += [
                (part, position, start // PIECE_BYTES, data[start : start + PIECE_BYTES])
                for start in range(PIECE_BYTES, size, PIECE_BYTES)
            ]
            data = data[:PIECE_BYTES]
        rows.append((part, position, size, data))

    def _move(self) -> None:
        for move, data in self._moved(self._store.read_held):
            if move.where not in self.plan.deletes:
                self._add(self._rows, self._part(move.where), move.offset, data)

    def _hold(self) -> None:
        """Write the held records and delete the released ones. A Sequence keeps its part as long as it exists."""
        put: list[Row] = []
        gone: list[Row] = []
        begun: list[Row] = []
        for sequence, numbers in self.plan.held.items():
            there = self._content.held_of(sequence)
            part = self._store.part_of(sequence)
            for number, record in numbers.items():
                if record is not None:
                    if part is None:
                        part = self._store.new_part(sequence)
                        begun.append((part, self._store.space, sequence.encode()))
                    self._add(put, part, signed(number), encode_record(record))
                # Held and released within this batch: it has no row.
                elif number in there:
                    gone.append((part, signed(number)))
        self._write("insert", schema.holds, begun)
        self._write("put", schema.records, put)
        self._write("delete", schema.records, gone)
        self._write("delete", schema.pieces, gone)

    def _save_queues(self) -> None:
        space, saved = self._store.space, self.plan.batch.queues.items()
        rows = [(space, key_of(name), name.encode(), encode_state(state)) for name, state in saved]
        self._write("put", schema.queues, rows)

    def _save_sequences(self) -> None:
        space, saved = self._store.space, self.plan.batch.sequences.items()
        rows = [(space, key_of(name), name.encode(), encode_state(state)) for name, state in saved if state is not None]
        self._write("put", schema.sequences, rows)
        forgotten = [name for name, state in saved if state is None]
        self._write("delete", schema.sequences, [(space, key_of(name)) for name in forgotten])
        parts = [(part,) for name in forgotten if (part := self._store.part_of(name)) is not None]
        self._write("delete", schema.holds, parts)
        self.gone += forgotten

    def _settle(self) -> None:
        space, homes = self._store.space, self.plan.homes.items()
        rows = [
            (space, key_of(name), name.encode(), key_of(home[0]), home[0].encode(), signed(home[1]))
            for name, home in homes
            if home is not None
        ]
        self._write("put", schema.homes, rows)
        self._write("delete", schema.homes, [(space, key_of(name)) for name, home in homes if home is None])

    def _save_cursors(self) -> None:
        space = self._store.space
        put: list[Row] = []
        gone: list[Row] = []
        for (queue, partition, name), state in self.plan.cursors.items():
            key = (space, key_of(queue), signed(partition), key_of(name))
            if state is None:
                gone.append(key)
            else:
                put.append((*key, queue.encode(), name.encode(), encode_state(state)))
        self._write("put", schema.cursors, put)
        self._write("delete", schema.cursors, gone)

    def _refer(self) -> None:
        added, removed = self.references.added, self.references.removed
        rows: list[Row] = []
        for (where, number), name in added.items():
            rows.append((self._part(where), signed(number), name))
        gone: list[Row] = [
            (self._part(where), signed(number)) for where, number in removed if (where, number) not in added
        ]
        self._write("put", schema.references, rows)
        self._write("delete", schema.references, gone)

    def _trim(self) -> None:
        """Move first offsets, and delete some of the records below them."""
        trims = self.plan.trims
        mean = self._content.mean_bytes
        self._garbage += sum(first - before for before, first in trims.values()) * mean
        erased: list[Row] = []
        if self._garbage > SWEEP_BYTES:
            left = MOST_SWEPT
            for where in dict.fromkeys([*self._content.unswept, *trims]):
                swept, until = self._swept_of(where), min(self._trimmed_of(where), self._swept_of(where) + left)
                if swept < until:
                    left -= until - swept
                    self._garbage -= (until - swept) * mean
                    self._swept[where] = until
                    erased.append((self._part(where), until))
            # Everything is deleted; the sum of means may be off.
            if left:
                self._garbage = 0.0
        for where in [*trims, *self._swept]:
            bounds = self.plan.bounds_of(where)
            if bounds is not None:
                self._entries[where] = self._entry(self._part(where), where, bounds[0], self._swept_of(where))
        self._write("erase", schema.records, erased)
        self._write("erase", schema.pieces, erased)

    def _trimmed_of(self, where: Where) -> int:
        """Return the offset below which all records from before this batch are trimmed.

        The batch's own records are deleted later, since the parts of one statement run in no defined order.
        """
        before, bounds = self._content.bounds_of(where), self.plan.bounds_of(where)
        return 0 if before is None or bounds is None else min(bounds[0], before[1])

    def _delete(self) -> None:
        parts: list[Row] = [(part,) for where in self.plan.deletes if (part := self._store.part_of(where)) is not None]
        self._write("delete", schema.partitions, parts)
        self._write("delete", schema.records, parts)
        self._write("delete", schema.pieces, parts)
        self.gone += self.plan.deletes

    def _part(self, where: Where | str) -> int:
        part = self._store.part_of(where)
        assert part is not None, where
        return part
