"""The embedded default: a store in a directory, on RocksDB. Knows records and batches, no protocol rule.

One batch is one write to the log, then one sync of it, which releases the interpreter lock; a write with RocksDB's own
``sync`` option would hold it. Nothing is shown to readers before it is durable.

Trimming moves a partition's first offset at once; the bytes below it are deleted a few megabytes at a time, since each
range deletion makes every later read a little slower. Until then they are below ``first`` and nobody sees them.

The end of a partition is not kept: it is behind its last record, which one seek finds. What is kept is an entry per
partition, written with its first record, so that the partitions of a queue are found without looking at records.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from rocksdict import (
    AccessType,
    DBCompressionType,
    DBRecoveryMode,
    Options,
    Rdict,
    WriteBatch,
)

from holdfast.core.records import Batch, Record, Snapshot
from holdfast.exceptions import HoldfastError, StoreError, StoreFailed, StoreFormatError
from holdfast.store import directory, evidence
from holdfast.store import records as layout
from holdfast.store.records import decode_record, decode_state, encode_record, encode_state, release_record

_Item = tuple[bytes, bytes]

_MEMTABLE_BYTES = 32 << 20
_MEMTABLES = 6
_SWEEP_BYTES = 8 << 20
_UNKNOWN_RECORD_BYTES = 64 << 10  # what a record counts before any was written: rather sweep too early than too late
_FEW_RECORDS = 64
_STALL_SECONDS = 30.0
_STALL_STEP = 0.005
_VIEW_TRIES = 20
_VIEW_PAUSE = 0.02


class _Damaged(StoreFailed):
    """RocksDB found what it did not write."""


@dataclass(slots=True)
class _Partition:
    """Where a partition begins and ends, and below which offset its bytes are deleted."""

    records: bytes
    first: int = 0
    end: int = 0
    swept: int = 0


class RocksDBStore:
    """A :class:`~holdfast.store.base.Store` in a directory of its own.

    Args:
        path: The directory; made if it is missing, refused if something else is in it.
        read_only: Look at it as it is now, also while another process has it open; nothing in it is changed.
        keep_prefix: If the log is damaged in what was durable already, go on with what is before the damage instead of
            refusing. What comes after it, acknowledged or not, is given up: the last resort, for an operator to choose.
            (A log torn at its end, where nothing was acknowledged yet, is always cut there.)

    Raises:
        StoreLocked: Another process, or this one, has it open.
        StoreFormatError: The directory is something else or of another version; it is untouched.
        StoreFailed: It cannot be opened, or is damaged.

    Attributes:
        stalls: How many commits had to wait for RocksDB to catch up.
    """

    def __init__(self, path: str | Path, *, read_only: bool = False, keep_prefix: bool = False) -> None:
        self.path = Path(path)
        self.stalls = 0
        self._partitions: dict[tuple[str, int], _Partition] = {}
        self._unswept: dict[tuple[str, int], _Partition] = {}
        # What is there to delete with a sequence or a partition; looking it up would step over all deleted keys.
        self._held: dict[str, set[int]] = {}
        self._cursors: dict[tuple[str, int], set[str]] = {}
        self._serial = 0
        self._garbage = 0.0
        self._written_bytes = 0
        self._written_records = 0
        self._failure: BaseException | None = None
        self._closed = False
        self._lock: directory.DirectoryLock | None = None
        self._view: tempfile.TemporaryDirectory[str] | None = None
        found = directory.read_format(self.path)
        if read_only:
            self._open_view(found)
        else:
            self._lock = directory.DirectoryLock(self.path)
            try:
                self._open_engine(keep_prefix)
            except BaseException:
                self._lock.release()
                raise

    def load(self) -> Snapshot:
        """See :meth:`Store.load`."""
        snapshot = Snapshot(bounds={where: (one.first, one.end) for where, one in self._partitions.items()})
        for key, value in self._scan(layout.QUEUE):
            snapshot.queues[layout.key_name(key)] = decode_state(value)
        for key, value in self._scan(layout.SEQUENCE):
            snapshot.sequences[layout.key_name(key)] = decode_state(value)
        for key, value in self._scan(layout.CURSOR):
            queue, partition, name = layout.split_partition_key(key)
            snapshot.cursors[queue, partition, name.decode()] = decode_state(value)
        snapshot.held = {sequence: sorted(numbers) for sequence, numbers in self._held.items() if numbers}
        return snapshot

    def commit(self, batch: Batch) -> None:
        """See :meth:`Store.commit`."""
        self.commit_group((batch,))

    def commit_group(self, batches: Sequence[Batch]) -> None:
        """Several batches one after the other, each atomic by itself, all durable by one sync when this returns.

        Raises:
            StoreFailed: They may or may not have become durable; the store takes no further batch.
        """
        if self._failure is not None:
            raise StoreFailed(
                f"The store at {self.path} failed earlier and takes no further batch.",
                remedy="Free space or repair the disk, then start again.",
            ) from self._failure
        if self._lock is None or self._closed:
            raise StoreError(f"The store at {self.path} is not open for writing.", remedy="Open it for writing.")
        changes = _Changes(self)
        try:
            for batch in batches:
                self._wait_for_engine()
                self._db.write(changes.add(batch))
            self._db.flush_wal(True)
        except BaseException as error:
            self._failure = error
            if not isinstance(error, Exception) or isinstance(error, HoldfastError):
                raise
            raise StoreFailed(
                f"The store at {self.path} could not write: {error}. Nothing of this was acknowledged.",
                remedy="Free space or repair the disk, then start again.",
            ) from error
        self._publish(changes)

    def read(
        self, queue: str, partition: int, start: int, end: int, max_bytes: int = 1 << 20
    ) -> list[tuple[int, Record]]:
        """See :meth:`Store.read`."""
        encoded = self.read_encoded(queue, partition, start, end, max_bytes)
        return [(offset, decode_record(data)) for offset, data in encoded]

    def read_encoded(
        self, queue: str, partition: int, start: int, end: int, max_bytes: int = 1 << 20
    ) -> list[tuple[int, bytes]]:
        """See :meth:`Store.read_encoded`."""
        one = self._partitions.get((queue, partition))
        if one is None:
            return []
        start, end = max(start, one.first), min(end, one.end)
        if start >= end:
            return []
        found: list[tuple[int, bytes]] = []
        size = 0
        last = end - 1
        with self._reading():
            items = cast("Iterable[_Item]", self._db.items(from_key=one.records + layout.number(start)))
            for key, value in items:
                offset = layout.last_number(key)
                if offset >= end or not key.startswith(one.records):
                    break  # trimmed while we were reading
                found.append((offset, value))
                size += len(value)
                if offset == last or size >= max_bytes:
                    break
        return found

    def close(self) -> None:
        """See :meth:`Store.close`. Closing twice is no error."""
        if self._closed:
            return
        self._closed = True
        try:
            self._db.close()
        except Exception as error:
            # After a failed write, of which everybody was told, the engine cannot end cleanly, and need not.
            if self._failure is None:
                raise StoreFailed(
                    f"The store at {self.path} could not be closed: {error}.",
                    remedy="What was acknowledged is there. Free space or repair the disk, then start again.",
                ) from error
        finally:
            if self._view is not None:
                self._view.cleanup()
            if self._lock is not None:
                self._lock.release()

    def _open_engine(self, keep_prefix: bool) -> None:
        # Read again: between the first look and the lock somebody else may have made or upgraded it.
        found = directory.read_format(self.path)
        options = _options(keep_prefix=keep_prefix)
        options.create_if_missing(found is None)
        if found is None:
            directory.begin(self.path)
        else:
            directory.upgrade(self.path, found)
        engine = self.path / directory.ENGINE
        try:
            self._db = _open(engine, self.path, options, AccessType.read_write())
        except _Damaged:
            if keep_prefix or not self._only_the_end_is_torn():
                raise
            self._db = _open(engine, self.path, _options(keep_prefix=True), AccessType.read_write())
        try:
            if found is None:
                directory.finish(self.path)
            self._find_content()
        except BaseException:
            self._db.close()
            raise

    def _only_the_end_is_torn(self) -> bool:
        """Whether all that is known to have been durable is before the damage."""
        try:
            view = RocksDBStore(self.path, read_only=True)
        except StoreError:
            return False
        with contextlib.closing(view):
            return view._serial >= evidence.proven_durable(self.path / directory.ENGINE)

    def _open_view(self, found: int | None) -> None:
        """Open the engine's files through links in a directory of our own, for even a read-only open writes there."""
        if found is None:
            raise StoreFormatError(f"There is no store at {self.path}.", remedy="Check the path.")
        if found != directory.FORMAT:
            raise StoreFormatError(
                f"The store at {self.path} has format {found}, this version {directory.FORMAT}.",
                remedy="Open it once for writing, which upgrades it.",
            )
        for left in reversed(range(_VIEW_TRIES)):
            view = tempfile.TemporaryDirectory(prefix="holdfast-view-")
            try:
                for file in (self.path / directory.ENGINE).iterdir():
                    if file.name != "LOCK" and file.suffix != ".json":
                        (Path(view.name) / file.name).symlink_to(file.resolve())
                options = _options(keep_prefix=True)
                options.set_max_open_files(-1)  # all at once, before they are deleted
                options.create_if_missing(False)
                self._db = _open(Path(view.name), self.path, options, AccessType.read_only(False))
                self._view = view
                self._find_content()
                return
            except (StoreError, OSError) as error:
                # The process that writes may have replaced a file between our look and our open.
                view.cleanup()
                if not left:
                    why = error.message if isinstance(error, StoreError) else error
                    raise StoreFailed(
                        f"The store at {self.path} cannot be looked at: {why}",
                        remedy="Try again while less is written; if nobody has it open, open it for writing.",
                    ) from error
                time.sleep(_VIEW_PAUSE)

    def _find_content(self) -> None:
        self._find_partitions()
        with self._reading():
            self._serial = evidence.stamped_serial(self._db.get(evidence.STAMP))
        for key, _ in self._scan(layout.CURSOR):
            queue, partition, name = layout.split_partition_key(key)
            self._cursors.setdefault((queue, partition), set()).add(name.decode())
        with self._reading():
            for key in cast("Iterable[bytes]", self._db.keys(from_key=layout.HELD)):
                if key[:1] != layout.HELD:
                    break
                self._held.setdefault(layout.key_name(key), set()).add(layout.last_number(key))

    def _find_partitions(self) -> None:
        entries = [
            (layout.split_partition_key(key)[:2], layout.decode_entry(value))
            for key, value in self._scan(layout.PARTITION)
        ]
        with self._reading():
            cursor = self._db.iter()
            for where, (first, swept) in entries:
                one = _Partition(layout.partition_key(layout.RECORD, *where), first, first, swept)
                cursor.seek_for_prev(one.records + layout.PREFIX_END)
                if cursor.valid() and (key := cast(bytes, cursor.key())).startswith(one.records):
                    one.end = max(first, layout.last_number(key) + 1)
                cursor.status()
                self._partitions[where] = one
                if swept < first:
                    self._unswept[where] = one
                    self._garbage += (first - swept) * _UNKNOWN_RECORD_BYTES

    def _scan(self, tag: bytes) -> Iterator[_Item]:
        # No upper bound for the iterator: rocksdict 0.3 frees it too early, and the iteration ends anywhere.
        with self._reading():
            for key, value in cast("Iterable[_Item]", self._db.items(from_key=tag)):
                if key[:1] != tag:
                    break
                yield key, value

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        """rocksdict raises bare Exception for whatever RocksDB says."""
        try:
            yield
        except (HoldfastError, GeneratorExit):
            raise
        except Exception as error:
            if self._closed:
                raise StoreError(f"The store at {self.path} is closed.", remedy="Open it again.") from error
            raise StoreFailed(
                f"The store at {self.path} could not be read: {error}", remedy="Repair the disk, then start again."
            ) from error

    def _wait_for_engine(self) -> None:
        """While RocksDB is behind with its background work, wait here: it would wait with the interpreter lock held,
        and the whole process would stand still."""
        if not self._behind():
            return
        self.stalls += 1
        deadline = time.monotonic() + _STALL_SECONDS
        while self._behind() and not self._db.property_int_value("rocksdb.background-errors"):
            if time.monotonic() > deadline:
                raise StoreFailed(
                    f"The store at {self.path} has not kept up for {_STALL_SECONDS:.0f} seconds.",
                    remedy="Check the disk's health and load, then start again.",
                )
            time.sleep(_STALL_STEP)

    def _behind(self) -> bool:
        # One write fills at most one memtable more, and RocksDB begins to delay at one less than it may have.
        ask = self._db.property_int_value
        return bool(
            (ask("rocksdb.num-immutable-mem-table") or 0) >= _MEMTABLES - 2
            or ask("rocksdb.actual-delayed-write-rate")
            or ask("rocksdb.is-write-stopped")
        )

    def _publish(self, changes: _Changes) -> None:
        """Show readers what is durable now."""
        for where, one in changes.partitions.items():
            if one is None:
                self._partitions.pop(where, None)
                self._unswept.pop(where, None)
                continue
            self._partitions[where] = one
            if one.swept < one.first:
                self._unswept[where] = one
            else:
                self._unswept.pop(where, None)
        self._written_bytes += changes.bytes
        self._written_records += changes.records
        self._serial = changes.serial
        self._garbage = changes.garbage


class _Changes:
    """Batches turned into RocksDB writes, and what the partitions look like once they are durable."""

    def __init__(self, store: RocksDBStore) -> None:
        self.partitions: dict[tuple[str, int], _Partition | None] = {}
        self.bytes = 0
        self.records = 0
        self.serial = store._serial
        self.garbage = store._garbage
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
            if data is None or message not in numbers:
                raise StoreFailed(f"Message {message} of {sequence} is to be released but is not held.")
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
        self, where: tuple[str, int], one: _Partition, offset: int, ahead: dict[tuple[str, int], set[int]]
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
        written = store._written_records
        mean = store._written_bytes / written if written else _UNKNOWN_RECORD_BYTES
        trimmed = {}
        for where, offset in batch.trims.items():
            one = self._known(where)
            if one is not None and (first := min(offset, one.end)) > one.first:
                self.garbage += (first - one.first) * mean
                one.first = first
                trimmed[where] = one
        if self.garbage > _SWEEP_BYTES:
            self.garbage = 0.0
            for where in [*store._unswept, *self.partitions]:
                one = self._known(where)
                if one is not None and one.swept < one.first:
                    _erase(out, one, one.first)
                    one.swept = one.first
                    trimmed[where] = one
        for where, one in trimmed.items():
            out.put(layout.partition_key(layout.PARTITION, *where), layout.encode_entry(one.first, one.swept))

    def _delete(self, where: tuple[str, int], out: WriteBatch) -> None:
        one = self._known(where)
        if one is not None:
            _erase(out, one, one.end)
            out.delete(layout.partition_key(layout.PARTITION, *where))
            self.partitions[where] = None
        prefix = layout.partition_key(layout.CURSOR, *where)
        for name in self._store._cursors.pop(where, ()):
            out.delete(prefix + name.encode())

    def _known(self, where: tuple[str, int]) -> _Partition | None:
        """Our copy of a partition, None if there is none."""
        if where in self.partitions:
            return self.partitions[where]
        there = self._store._partitions.get(where)
        if there is None:
            return None
        copy = self.partitions[where] = _Partition(there.records, there.first, there.end, there.swept)
        return copy

    def _partition(self, where: tuple[str, int], out: WriteBatch) -> _Partition:
        """Our copy of a partition, made with its entry if there is none."""
        one = self._known(where)
        if one is None:
            one = self.partitions[where] = _Partition(layout.partition_key(layout.RECORD, *where))
            out.put(layout.partition_key(layout.PARTITION, *where), layout.encode_entry(0, 0))
        return one


def _erase(out: WriteBatch, one: _Partition, end: int) -> None:
    """Delete a partition's bytes below ``end``. Few records go one by one: a range deletion costs every reader."""
    if end - one.swept > _FEW_RECORDS:
        out.delete_range(one.records + layout.number(one.swept), one.records + layout.number(end))
        return
    for offset in range(one.swept, end):
        out.delete(one.records + layout.number(offset))


def _options(*, keep_prefix: bool) -> Options:
    options = Options(raw_mode=True)
    # An incomplete last write, which nobody acknowledged, is dropped; damage is an error, not a silent loss.
    options.set_wal_recovery_mode(
        DBRecoveryMode.point_in_time() if keep_prefix else DBRecoveryMode.tolerate_corrupted_tail_records()
    )
    options.set_write_buffer_size(_MEMTABLE_BYTES)
    options.set_max_write_buffer_number(_MEMTABLES)
    options.set_max_background_jobs(2)
    options.set_compression_type(DBCompressionType.lz4())
    options.set_bytes_per_sync(1 << 20)
    options.set_max_open_files(256)
    # Above these RocksDB delays writes, and _behind sees it (its defaults are 20 and 36 files, 64 and 256 GiB).
    options.set_level_zero_slowdown_writes_trigger(64)
    options.set_level_zero_stop_writes_trigger(128)
    options.set_soft_pending_compaction_bytes_limit(1 << 40)
    options.set_hard_pending_compaction_bytes_limit(1 << 41)
    # What RocksDB says about itself: four files of a megabyte, no statistics.
    options.set_max_log_file_size(1 << 20)
    options.set_keep_log_file_num(4)
    options.set_stats_dump_period_sec(0)
    options.set_stats_persist_period_sec(0)
    options.set_max_manifest_file_size(16 << 20)
    return options


def _open(path: Path, store: Path, options: Options, access: AccessType) -> Rdict:
    """Open the engine's files at ``path``; ``store`` is what errors call it."""
    try:
        return Rdict(str(path), options, access_type=access)
    except Exception as error:  # rocksdict raises bare Exception for whatever RocksDB says
        if "/LOCK" in str(error):
            raise directory.locked(store) from error
        if "Corruption" in str(error):
            raise _Damaged(
                f"The store at {store} is damaged: {error}",
                remedy="Restore it from a copy, or open it with keep_prefix=True to keep what is before the damage.",
            ) from error
        raise StoreFailed(
            f"The store at {store} cannot be opened: {error}",
            remedy="Free space, check permissions or repair the disk, then start again.",
        ) from error
