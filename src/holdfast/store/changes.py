"""Batches turned into writes of the engine, and what the partitions look like once those are durable.

Trimming moves a partition's first offset at once; the bytes below it are deleted a few megabytes at a time, since each
range deletion makes every later read a little slower. Until then they are below ``first`` and nobody sees them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from rocksdict import WriteBatch

from holdfast.core.records import Batch
from holdfast.exceptions import StoreFailed
from holdfast.store import evidence, opening
from holdfast.store import records as layout
from holdfast.store.records import encode_record, encode_state, release_record

if TYPE_CHECKING:
    from holdfast.store.rocksdb import RocksDBStore

SWEEP_BYTES = 8 << 20
UNKNOWN_RECORD_BYTES = 64 << 10  # what a record counts before any was written: rather sweep too early than too late
FEW_RECORDS = 64


@dataclass(slots=True)
class Partition:
    """Where a partition begins and ends, and below which offset its bytes are deleted."""

    records: bytes
    first: int = 0
    end: int = 0
    swept: int = 0


class Changes:
    """Batches turned into RocksDB writes, and what the partitions look like once they are durable."""

    def __init__(self, store: RocksDBStore) -> None:
        self.partitions: dict[tuple[str, int], Partition | None] = {}
        self.bytes = 0
        self.records = 0
        self.serial = store._serial
        self.garbage = store._garbage
        self.erased: list[tuple[bytes, bytes]] = []
        self.erased_bytes = 0
        self._store = store

    def add(self, batch: Batch) -> WriteBatch:
        """One batch as one atomic write; to be written before the next is added.

        Raises:
            StoreFailed: It leaves a gap in a partition's offsets, or releases what is not held.
        """
        out = WriteBatch(raw_mode=True)
        self.serial += 1
        out.put(evidence.STAMP, evidence.encode_stamp(self.serial, self._store._serial))
        for name, state in batch.queues.items():
            out.put(layout.name_key(layout.QUEUE, name), encode_state(state))
        ahead: dict[tuple[str, int], set[int]] = {}
        if batch.appends:
            self._append(batch, out, ahead)
        held = self._hold(batch, out, ahead) if batch.holds or batch.releases or batch.drops else {}
        for where, offsets in ahead.items():
            self._close_gap(where, offsets)
        self._save(batch, held, out)
        if batch.trims:
            self._trim(batch, out)
        for where in batch.deletes:
            self._delete(where, out)
        return out

    def _save(self, batch: Batch, held: dict[tuple[str, int], bytes], out: WriteBatch) -> None:
        """Sequences, cursors, and what stays held."""
        for sequence, state in batch.sequences.items():
            key = layout.name_key(layout.SEQUENCE, sequence)
            if state is not None:
                out.put(key, encode_state(state))
                continue
            out.delete(key)
            prefix = layout.name_key(layout.HELD, sequence)
            for message in self._store._held.pop(sequence, ()):
                out.delete(prefix + layout.number(message))
                held.pop((sequence, message), None)
        for (sequence, message), data in held.items():
            out.put(layout.name_key(layout.HELD, sequence) + layout.number(message), data)
        for (queue, partition, name), saved in batch.cursors.items():
            key = layout.partition_key(layout.CURSOR, queue, partition) + name.encode()
            names = self._store._cursors.setdefault((queue, partition), set())
            if saved is None:
                names.discard(name)
                out.delete(key)
            else:
                names.add(name)
                out.put(key, encode_state(saved))

    def _append(self, batch: Batch, out: WriteBatch, ahead: dict[tuple[str, int], set[int]]) -> None:
        put = out.put
        last: tuple[str, int] | None = None
        size = 0
        for queue, partition, offset, record in batch.appends:
            where = (queue, partition)
            if where != last:
                one = self._partition(where, out)
                last = where
            data = encode_record(record)
            put(one.records + offset.to_bytes(8, "big"), data)
            size += len(data)
            if offset == one.end:
                one.end = offset + 1
            else:
                self._out_of_turn(where, one, offset, ahead)
        self.bytes += size
        self.records += len(batch.appends)

    def _hold(
        self, batch: Batch, out: WriteBatch, ahead: dict[tuple[str, int], set[int]]
    ) -> dict[tuple[str, int], bytes]:
        """Holds, releases and drops, in this order; gives back what of the batch stays held, still to be put."""
        held = {(sequence, message): encode_record(record) for sequence, message, record in batch.holds}
        for sequence, message in held:
            self._store._held.setdefault(sequence, set()).add(message)
        for (sequence, message, queue, partition, offset, now), data in zip(
            batch.releases, self._stored(batch.releases), strict=True
        ):
            numbers = self._store._held.get(sequence, ())
            data = held.pop((sequence, message), data)
            if message not in numbers:
                raise StoreFailed(f"Message {message} of {sequence} is to be released but is not held.")
            if data is None:
                raise opening.damaged(self._store.path, f"the held message {message} of {sequence} is missing.")
            self._unhold(sequence, message, out)
            where = (queue, partition)
            one = self._partition(where, out)
            data = release_record(data, now)
            out.put(one.records + layout.number(offset), data)
            self.bytes += len(data)
            self.records += 1
            if offset == one.end:
                one.end = offset + 1
            else:
                self._out_of_turn(where, one, offset, ahead)
        for sequence, message in batch.drops:
            if message in self._store._held.get(sequence, ()):
                held.pop((sequence, message), None)
                self._unhold(sequence, message, out)
        return held

    def _stored(self, releases: list[tuple[str, int, str, int, int, float]]) -> list[bytes | None]:
        """What the store has of the held records, in one call."""
        keys: list[str | int | float | bytes | bool] = [
            layout.name_key(layout.HELD, sequence) + layout.number(message) for sequence, message, *_ in releases
        ]
        return cast("list[bytes | None]", self._store._db.get(keys)) if keys else []

    def _unhold(self, sequence: str, message: int, out: WriteBatch) -> None:
        numbers = self._store._held[sequence]
        numbers.discard(message)
        if not numbers:
            del self._store._held[sequence]
        out.delete(layout.name_key(layout.HELD, sequence) + layout.number(message))

    def _out_of_turn(
        self, where: tuple[str, int], one: Partition, offset: int, ahead: dict[tuple[str, int], set[int]]
    ) -> None:
        """Appends and releases of one batch fill a partition together, so an offset may come before a lower one."""
        waiting = ahead.setdefault(where, set())
        if offset < one.end or offset in waiting:
            raise StoreFailed(f"Offset {offset} of {where} is taken; its end is {one.end}.")
        waiting.add(offset)

    def _close_gap(self, where: tuple[str, int], offsets: set[int]) -> None:
        one = self.partitions[where]
        assert one is not None
        while one.end in offsets:
            offsets.remove(one.end)
            one.end += 1
        if offsets:
            raise StoreFailed(f"Offsets {sorted(offsets)} of {where} do not follow its end, {one.end}.")

    def _trim(self, batch: Batch, out: WriteBatch) -> None:
        store = self._store
        mean = self._mean()
        trimmed = {}
        for where, offset in batch.trims.items():
            one = self._known(where)
            if one is not None and (first := min(offset, one.end)) > one.first:
                self.garbage += (first - one.first) * mean
                one.first = first
                trimmed[where] = one
        if self.garbage > (0 if store.trouble else SWEEP_BYTES):
            self.garbage = 0.0
            for where in [*store._unswept, *self.partitions]:
                one = self._known(where)
                if one is not None and one.swept < one.first:
                    self._erase(out, one, one.first)
                    one.swept = one.first
                    trimmed[where] = one
        for where, one in trimmed.items():
            out.put(layout.partition_key(layout.PARTITION, *where), layout.encode_entry(one.first, one.swept))

    def _delete(self, where: tuple[str, int], out: WriteBatch) -> None:
        one = self._known(where)
        if one is not None:
            self._erase(out, one, one.end)
            out.delete(layout.partition_key(layout.PARTITION, *where))
            self.partitions[where] = None
        prefix = layout.partition_key(layout.CURSOR, *where)
        for name in self._store._cursors.pop(where, ()):
            out.delete(prefix + name.encode())

    def _mean(self) -> float:
        """About how many bytes a record has."""
        written = self._store._written_records
        return self._store._written_bytes / written if written else UNKNOWN_RECORD_BYTES

    def _erase(self, out: WriteBatch, one: Partition, end: int) -> None:
        """Delete a partition's bytes below ``end``, and note that they are still on the disk."""
        erase(out, one, end)
        if end > one.swept:
            self.erased.append((one.records + layout.number(one.swept), one.records + layout.number(end)))
            self.erased_bytes += int((end - one.swept) * self._mean())
            out.put(layout.TRIMMED, layout.number(self._store.trimmed_bytes + self.erased_bytes))

    def _known(self, where: tuple[str, int]) -> Partition | None:
        """Our copy of a partition, None if there is none."""
        if where in self.partitions:
            return self.partitions[where]
        there = self._store._partitions.get(where)
        if there is None:
            return None
        copy = self.partitions[where] = Partition(there.records, there.first, there.end, there.swept)
        return copy

    def _partition(self, where: tuple[str, int], out: WriteBatch) -> Partition:
        """Our copy of a partition, made with its entry if there is none."""
        one = self._known(where)
        if one is None:
            one = self.partitions[where] = Partition(layout.partition_key(layout.RECORD, *where))
            out.put(layout.partition_key(layout.PARTITION, *where), layout.encode_entry(0, 0))
        return one


def erase(out: WriteBatch, one: Partition, end: int) -> None:
    """Delete a partition's bytes below ``end``. Few records go one by one: a range deletion costs every reader."""
    if end - one.swept > FEW_RECORDS:
        out.delete_range(one.records + layout.number(one.swept), one.records + layout.number(end))
        return
    for offset in range(one.swept, end):
        out.delete(one.records + layout.number(offset))
