"""A batch as one write of the engine.

Trimming moves a partition's first offset immediately. The store deletes the bytes below it a few megabytes at a time,
because each range deletion makes every later read a little slower. Until then those bytes are below ``first``, where no
reader sees them.
"""

from __future__ import annotations

from typing import Protocol

from holdfast.core.records import Batch, State
from holdfast.outages import Trouble
from holdfast.store import records as layout
from holdfast.store.changes import Changes
from holdfast.store.content import Content
from holdfast.store.plan import Where
from holdfast.store.records import encode_record, encode_state
from holdfast.store.rocksdb import evidence
from holdfast.store.staged import fill

SWEEP_BYTES = 8 << 20
FEW_RECORDS = 64

Held = tuple[str, int]
"""Sequence and number of a held record."""


class _Store(Protocol):
    """The parts of the store that this module uses."""

    content: Content[bytes]
    trouble: Trouble | None

    @property
    def trimmed_bytes(self) -> int: ...

    def read_held(self, held: list[Held]) -> list[bytes]: ...


class Writes(Protocol):
    """What a batch is written to: RocksDB's own write, or one that keeps its changes for a log, too."""

    def put(self, key: bytes, value: bytes) -> None: ...

    def delete(self, key: bytes) -> None: ...

    def delete_range(self, begin: bytes, end: bytes) -> None: ...


class RocksDBChanges(Changes[bytes]):
    """A batch as one atomic write of the engine, and the store's content afterwards.

    Args:
        store: The store; it does not change before :meth:`take_over`.

    Attributes:
        write: The whole write for the engine.
        erased: The deleted key ranges.
        erased_bytes: The approximate number of bytes in them.

    Raises:
        StoreFailed: The batch breaks a rule of :mod:`holdfast.store.plan`.
        StoreDamaged: A record that it releases is missing.
    """

    __slots__ = ("_prefixes", "_store", "_written", "erased", "erased_bytes", "write")

    def __init__(self, store: _Store, batch: Batch, write: Writes) -> None:
        super().__init__(store.content, batch)
        self.write = write
        self.erased: list[tuple[bytes, bytes]] = []
        self.erased_bytes = 0
        self._store = store
        self._written: dict[Where, list[int]] = {}
        self._prefixes: dict[Where, bytes] = {}
        serial = store.content.serial
        # First in every batch: damaged logs are searched for it (evidence._MARK).
        self.write.put(evidence.STAMP, evidence.encode_stamp(serial + 1, serial))
        self._write_steps()

    @property
    def size(self) -> int:
        """Bytes of the records that enter queues."""
        return sum([size for size, _ in self._written.values()])

    def take_over(self) -> None:
        super().take_over()
        content = self._content
        for where, (size, records) in self._written.items():
            content.written_bytes += size
            content.written_records += records
            if (one := content.partitions.get(where)) is not None:
                one.written_bytes += size
                one.written_records += records

    def _begin(self) -> None:
        for where in self.plan.begins:
            self.write.put(layout.retag(self._prefix(where), layout.PARTITION), layout.encode_entry(0, 0))

    def _append(self) -> None:
        put, appends = self.write.put, self.plan.batch.appends
        last_queue: str | None = None
        last_partition = 0
        for queue, partition, offset, record in appends:
            if partition != last_partition or queue is not last_queue:
                last_queue, last_partition = where = (queue, partition)
                prefix, written = self._prefix(where), self._written.setdefault(where, [0, 0])
            data = encode_record(record)
            put(prefix + offset.to_bytes(8, "big"), data)
            written[0] += len(data)
            written[1] += 1

    def _run(self) -> None:
        put = self.write.put
        for run in self.plan.batch.runs:
            where = (run.queue, run.partition)
            prefix, written = self._prefix(where), self._written.setdefault(where, [0, 0])
            for offset, data in enumerate(fill(run), run.offset):
                put(prefix + offset.to_bytes(8, "big"), data)
                written[0] += len(data)
            written[1] += len(run.places)

    def _move(self) -> None:
        for move, data in self._moved(self._store.read_held):
            self.write.put(self._prefix(move.where) + layout.number(move.offset), data)
            written = self._written.setdefault(move.where, [0, 0])
            written[0] += len(data)
            written[1] += 1

    def _hold(self) -> None:
        for sequence, numbers in self.plan.held.items():
            for number, record in numbers.items():
                key = layout.held_key(sequence, number)
                if record is None:
                    self.write.delete(key)
                else:
                    self.write.put(key, encode_record(record))

    def _save_queues(self) -> None:
        for name, state in self.plan.batch.queues.items():
            self.write.put(layout.name_key(layout.QUEUE, name), encode_state(state))

    def _save_sequences(self) -> None:
        for sequence, saved in self.plan.batch.sequences.items():
            _save(self.write, layout.name_key(layout.SEQUENCE, sequence), saved)

    def _save_cursors(self) -> None:
        for (queue, partition, name), saved in self.plan.cursors.items():
            key = layout.retag(self._prefix((queue, partition)), layout.CURSOR) + name.encode()
            _save(self.write, key, saved)

    def _settle(self) -> None:
        for sequence, home in self.plan.leaves:
            self.write.delete(layout.home_key(sequence, *home))
        for sequence, settled in self.plan.homes.items():
            if settled is not None:
                self.write.put(layout.home_key(sequence, *settled), b"")

    def _refer(self) -> None:
        for where, number in self.references.removed:
            self.write.delete(layout.reference_key(where, number))
        for (where, number), name in self.references.added.items():
            self.write.put(layout.reference_key(where, number), name)

    def _trim(self) -> None:
        trims = self.plan.trims
        mean_of = self._content.mean_of
        self._garbage += sum((first - before) * mean_of(where) for where, (before, first) in trims.items())
        changed = dict.fromkeys(trims)
        # With a full disk every trimmed byte counts. Otherwise few deletions are better: they slow every read.
        if self._garbage > (0 if self._store.trouble else SWEEP_BYTES):
            self._garbage = 0.0
            # All partitions at once: each deletion is small, and the sum decided.
            for where in [*self._content.unswept, *self.plan.bounds]:
                bounds = self.plan.bounds_of(where)
                if bounds is not None and self._swept_of(where) < bounds[0]:
                    self._erase(where, bounds[0])
                    self._swept[where] = bounds[0]
                    changed[where] = None
        for where in changed:
            bounds = self.plan.bounds_of(where)
            if bounds is not None:
                entry = layout.encode_entry(bounds[0], self._swept_of(where))
                self.write.put(layout.retag(self._prefix(where), layout.PARTITION), entry)

    def _delete(self) -> None:
        for where, end in self.plan.deletes.items():
            self._erase(where, end)
            self.write.delete(layout.retag(self._prefix(where), layout.PARTITION))

    def _erase(self, where: Where, end: int) -> None:
        """Delete a partition's bytes below ``end``, and record that they are still on the disk."""
        records, swept = self._prefix(where), self._swept_of(where)
        erase(self.write, records, swept, end)
        if end > swept:
            self.erased.append((records + layout.number(swept), records + layout.number(end)))
            self.erased_bytes += int((end - swept) * self._content.mean_of(where))
            # In the same batch: after a kill, the next start still knows what to compact.
            self.write.put(layout.TRIMMED, layout.number(self._store.trimmed_bytes + self.erased_bytes))

    def _prefix(self, where: Where) -> bytes:
        there = self._content.partitions.get(where)
        if there is not None:
            return there.records
        prefix = self._prefixes.get(where)
        if prefix is None:
            prefix = self._prefixes[where] = layout.partition_key(layout.RECORD, *where)
        return prefix


def _save(out: Writes, key: bytes, state: State | None) -> None:
    if state is None:
        out.delete(key)
    else:
        out.put(key, encode_state(state))


def erase(out: Writes, records: bytes, start: int, end: int) -> None:
    """Delete the records from ``start`` up to ``end``; few ones singly, as a range deletion slows every read."""
    if end - start > FEW_RECORDS:
        out.delete_range(records + layout.number(start), records + layout.number(end))
        return
    for offset in range(start, end):
        out.delete(records + layout.number(offset))
