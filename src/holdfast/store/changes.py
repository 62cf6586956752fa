"""Batches turned into writes of the engine.

Trimming moves a partition's first offset at once; the bytes below it are deleted a few megabytes at a time, since each
range deletion makes every later read a little slower. Until then they are below ``first`` and nobody sees them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

from rocksdict import WriteBatch

from holdfast.core.records import Batch
from holdfast.store import evidence
from holdfast.store import records as layout
from holdfast.store.content import Content
from holdfast.store.plan import Bounds, Move, Plan, Step, Where
from holdfast.store.records import encode_record, encode_state, release_record

SWEEP_BYTES = 8 << 20
FEW_RECORDS = 64

Held = tuple[str, int]
"""Sequence and number of a held record."""


class _Store(Protocol):
    """What there is to know of the store."""

    content: Content
    trouble: str

    @property
    def trimmed_bytes(self) -> int: ...

    def read_held(self, held: list[Held]) -> list[bytes]: ...


class Changes:
    """A group of batches as writes of the engine, and what the store's content is once they are durable.

    Args:
        store: The store, of which nothing is changed before :meth:`take_over`.

    Attributes:
        bytes: Of the records that go into queues.
        deleted: Partitions that are deleted whole.
        erased: The ranges of keys that are deleted.
        erased_bytes: About how many bytes those have.
    """

    __slots__ = (
        "_content",
        "_garbage",
        "_prefixes",
        "_records",
        "_serial",
        "_store",
        "_swept",
        "bytes",
        "deleted",
        "erased",
        "erased_bytes",
        "plan",
    )

    def __init__(self, store: _Store) -> None:
        content = store.content
        self.plan = Plan(content)
        self.bytes = 0
        self.deleted: set[Where] = set()
        self.erased: list[tuple[bytes, bytes]] = []
        self.erased_bytes = 0
        self._content = content
        self._store = store
        self._serial = content.serial
        self._garbage = content.garbage
        self._records = 0
        self._prefixes: dict[Where, bytes] = {}
        self._swept: dict[Where, int] = {}

    def add(self, batch: Batch) -> WriteBatch:
        """The next batch as one atomic write.

        Raises:
            StoreFailed: It breaks a rule of :mod:`holdfast.store.plan`.
            StoreDamaged: A record that it releases is not there.
        """
        step = self.plan.add(batch)
        out = WriteBatch(raw_mode=True)
        self._serial += 1
        out.put(evidence.STAMP, evidence.encode_stamp(self._serial, self._content.serial))
        if batch.queues:
            for name, state in batch.queues.items():
                out.put(layout.name_key(layout.QUEUE, name), encode_state(state))
        if step.begins:
            for where in step.begins:
                out.put(layout.retag(self._prefix(where), layout.PARTITION), layout.encode_entry(0, 0))
        if batch.appends:
            self._append(batch, out)
        if step.moves:
            self._move(step.moves, out)
        if step.unheld or step.holds:
            self._hold(step, out)
        for sequence, saved in batch.sequences.items():
            key = layout.name_key(layout.SEQUENCE, sequence)
            if saved is None:
                out.delete(key)
            else:
                out.put(key, encode_state(saved))
        if step.leaves or step.settles:
            for sequence, home in step.leaves or ():
                out.delete(layout.home_key(sequence, *home))
            for sequence, home in step.settles or ():
                out.put(layout.home_key(sequence, *home), b"")
        for (queue, partition, name), saved in step.cursors.items():
            key = layout.retag(self._prefix((queue, partition)), layout.CURSOR) + name.encode()
            if saved is None:
                out.delete(key)
            else:
                out.put(key, encode_state(saved))
        if step.trims:
            self._trim(step.trims, out)
        if step.deletes:
            self._delete(step.deletes, out)
        return out

    def take_over(self) -> None:
        """All that was added is durable: the content says so from now on."""
        content = self._content
        content.take_over(self.plan, self._swept)
        content.serial = self._serial
        content.garbage = self._garbage
        content.written_bytes += self.bytes
        content.written_records += self._records

    def _append(self, batch: Batch, out: WriteBatch) -> None:
        put = out.put
        last_queue: str | None = None
        last_partition = size = 0
        for queue, partition, offset, record in batch.appends:
            if partition != last_partition or queue is not last_queue:
                last_queue, last_partition = where = (queue, partition)
                prefix = self._prefix(where)
            data = encode_record(record)
            put(prefix + offset.to_bytes(8, "big"), data)
            size += len(data)
        self.bytes += size
        self._records += len(batch.appends)

    def _move(self, moves: list[Move], out: WriteBatch) -> None:
        stored = [(move.sequence, move.number) for move in moves if move.record is None]
        data_of = dict(zip(stored, self._store.read_held(stored), strict=True)) if stored else {}
        for move in moves:
            if move.record is not None:
                data = encode_record(replace(move.record, released_at=move.now))
            else:
                data = release_record(data_of[move.sequence, move.number], move.now)
            out.put(self._prefix(move.where) + layout.number(move.offset), data)
            self.bytes += len(data)
        self._records += len(moves)

    def _hold(self, step: Step, out: WriteBatch) -> None:
        for one in step.unheld or ():
            out.delete(layout.held_key(*one))
        for sequence, number, record in step.holds or ():
            out.put(layout.held_key(sequence, number), encode_record(record))

    def _trim(self, trims: dict[Where, tuple[int, int]], out: WriteBatch) -> None:
        mean = self._content.mean_bytes
        self._garbage += sum(first - before for before, first in trims.values()) * mean
        changed = dict.fromkeys(trims)
        if self._garbage > (0 if self._store.trouble else SWEEP_BYTES):
            self._garbage = 0.0
            for where in [*self._content.unswept, *self.plan.bounds]:
                bounds = self.plan.bounds_of(where)
                if bounds is not None and self._swept_of(where) < bounds[0]:
                    self._erase(where, bounds[0], out)
                    self._swept[where] = bounds[0]
                    changed[where] = None
        for where in changed:
            bounds = self.plan.bounds_of(where)
            if bounds is not None:
                entry = layout.encode_entry(bounds[0], self._swept_of(where))
                out.put(layout.retag(self._prefix(where), layout.PARTITION), entry)

    def _delete(self, deletes: dict[Where, Bounds], out: WriteBatch) -> None:
        for where, (_, end) in deletes.items():
            self._erase(where, end, out)
            out.delete(layout.retag(self._prefix(where), layout.PARTITION))
            self._swept[where] = 0
            self.deleted.add(where)

    def _erase(self, where: Where, end: int, out: WriteBatch) -> None:
        """Delete a partition's bytes below ``end``, and note that they are still on the disk."""
        records, swept = self._prefix(where), self._swept_of(where)
        erase(out, records, swept, end)
        if end > swept:
            self.erased.append((records + layout.number(swept), records + layout.number(end)))
            self.erased_bytes += int((end - swept) * self._content.mean_bytes)
            out.put(layout.TRIMMED, layout.number(self._store.trimmed_bytes + self.erased_bytes))

    def _swept_of(self, where: Where) -> int:
        """Below which offset a partition's bytes are deleted by now."""
        if where in self._swept:
            return self._swept[where]
        there = self._content.partitions.get(where)
        return 0 if there is None else there.swept

    def _prefix(self, where: Where) -> bytes:
        """What the keys of a partition's records begin with."""
        there = self._content.partitions.get(where)
        if there is not None:
            return there.records
        prefix = self._prefixes.get(where)
        if prefix is None:
            prefix = self._prefixes[where] = layout.partition_key(layout.RECORD, *where)
        return prefix


def erase(out: WriteBatch, records: bytes, start: int, end: int) -> None:
    """Delete the records from ``start`` up to ``end``. Few go one by one: a range deletion costs every reader."""
    if end - start > FEW_RECORDS:
        out.delete_range(records + layout.number(start), records + layout.number(end))
        return
    for offset in range(start, end):
        out.delete(records + layout.number(offset))
