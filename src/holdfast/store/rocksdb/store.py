"""The embedded default: a store in a directory, on RocksDB. Knows records and batches, but no protocol rules.

One batch is one write to the log, then one sync of it, which releases the interpreter lock; a write with RocksDB's own
``sync`` option would hold it. Readers see a batch only once it is durable.

The end of a partition is not stored: it follows from the last record, which one seek finds. Each partition also has an
entry, written with its first record, so that the store finds the partitions of a queue without reading records.

An iteration of rocksdict ends silently at a damaged table. So records read from a partition must be dense, and every
other iteration ends with a check of the engine's status.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, cast

from rocksdict import AccessType, WriteBatch

from holdfast.core.records import Batch, Record, Snapshot
from holdfast.exceptions import (
    FREE_SPACE,
    HoldfastError,
    StoreDamaged,
    StoreError,
    StoreFailed,
    StoreFormatError,
    StoreMissing,
    clause,
    repair_of,
)
from holdfast.outages import Trouble
from holdfast.store import directory
from holdfast.store import records as layout
from holdfast.store.base import Reads
from holdfast.store.content import UNKNOWN_RECORD_BYTES, Content, Partition
from holdfast.store.contents import DIRECTORY, DirectoryContents, PieceContents
from holdfast.store.plan import BATCH_REMEDY, Where
from holdfast.store.records import decode_state
from holdfast.store.rocksdb import evidence, forking, opening
from holdfast.store.rocksdb.changes import SWEEP_BYTES, RocksDBChanges
from holdfast.store.rocksdb.free_space import FreeSpace, may_compact_at_once
from holdfast.store.rocksdb.keeper import COMPACT_BYTES, KEEP_BYTES, Keeper, gaps_between
from holdfast.store.rocksdb.reserve import Reserve

_Item = tuple[bytes, bytes]

_BATCH_BYTES = 256  # assumed size of a batch without its records
_STALL_SECONDS = 30.0
_STALL_STEP = 0.005
_VIEW_TRIES = 20
_VIEW_PAUSE = 0.02


def _records_of(where: Where) -> bytes:
    return layout.partition_key(layout.RECORD, *where)


class RocksDBStore(Reads):
    """A :class:`~holdfast.store.base.Store` in a directory.

    Args:
        path: The directory; created if it is missing, rejected if it has other content.
        read_only: Open it for reading as it is now, also while another process has it open; nothing in it is changed.
        keep_prefix: If durable batches in the log are damaged, continue with the batches before the damage instead of
            refusing. Later batches, acknowledged or not, are discarded: the last resort, for an operator to choose.
            (A log torn at its end, where nothing was acknowledged yet, is always cut there.)

    Raises:
        StoreLocked: Another process, or this one, has it open.
        StoreFormatError: The directory is something else or of another version; it is unchanged.
        StoreMissing: If read-only: there is no store.
        StoreDamaged: Some of the written batches are missing; the directory is unchanged.
        StoreFailed: It cannot be opened.

    Attributes:
        stalls: How many commits had to wait for RocksDB to catch up.
        trouble: Why callers should store no new messages, though the store could; None if there is no reason.
    """

    view_tries = _VIEW_TRIES

    reads_at_once = False

    def __init__(self, path: str | Path, *, read_only: bool = False, keep_prefix: bool = False) -> None:
        self.path = Path(path)
        self._home = self.path.absolute()  # the process may change its directory while files are opened
        self.stalls = 0
        self.trouble: Trouble | None = None
        self.content = Content(_records_of)
        self.contents = self._make_contents()
        self._failure: BaseException | None = None
        # After a failed write of unknown extent: the partitions with unknown earlier content, too.
        self._in_doubt: set[Where] | None = None
        self._closed = False
        self._lock: directory.DirectoryLock | None = None
        self._view: opening.View | None = None
        # Held from the write of a batch until readers may see it; a reader that misses a record looks again under it.
        self._committing = threading.Lock()
        self._reserve = Reserve(self._home)
        self._space: FreeSpace | None = None
        self._keeper: Keeper | None = None
        self._unkept = 0
        self._trimmed_noted = 0
        self._read_bytes = 1024  # approximate size of a record, as read last
        found = self._look()
        if read_only:
            self._open_view(found)
        else:
            self._lock = directory.DirectoryLock(self.path)
            try:
                self._open_engine(keep_prefix)
            except BaseException:
                self._lock.release()
                raise
            self.contents.is_named = self._is_named
            self.contents.sweep()

    def _make_contents(self) -> DirectoryContents | PieceContents:
        return DirectoryContents(self._home / DIRECTORY, self._needed)

    def _look(self) -> int | None:
        """Check, before any change, that the directory may be a store; return its format, None for a new one."""
        return directory.read_format(self.path)

    def load(self) -> Snapshot:
        self._require_certainty()
        content = self.content
        snapshot = Snapshot(bounds={where: (one.first, one.end) for where, one in content.partitions.items()})
        for key, value in self.scan(layout.QUEUE):
            snapshot.queues[layout.key_name(key)] = decode_state(value)
        for key, value in self.scan(layout.SEQUENCE):
            snapshot.sequences[layout.key_name(key)] = decode_state(value)
        for key, value in self.scan(layout.CURSOR):
            queue, partition, name = layout.split_partition_key(key)
            snapshot.cursors[queue, partition, name.decode()] = decode_state(value)
        snapshot.homes = dict(content.homes)
        snapshot.held = {sequence: sorted(numbers) for sequence, numbers in content.held.items()}
        return snapshot

    def commit(self, batch: Batch) -> None:
        if self._failure is not None:
            raise StoreFailed(
                f"The store at {self.path} failed earlier and accepts no further batches.",
                remedy=FREE_SPACE,
            ) from self._failure
        if self._lock is None or self._closed:
            raise StoreError(f"The store at {self.path} is not open for writing.", remedy="Open it for writing.")
        with self._committing:
            is_writing = False
            try:
                changes = RocksDBChanges(self, batch, self._new_write())
                # Before the write, which holds the interpreter lock while it waits.
                self._wait_for_engine()
                is_writing = True
                self._write(changes.write)
                # Only then may the batch be acknowledged: a directory that was replaced no longer leads to it.
                self._lock.require_in_place()
            except BaseException as error:
                self._failure = error
                if is_writing:
                    # A failed sync leaves open what is on the disk, also whether these partitions still have records.
                    self._in_doubt = set(changes.plan.deletes)
                if not isinstance(error, Exception) or isinstance(error, HoldfastError):
                    raise
                raise self._failed(error, is_writing=is_writing) from error
            self._publish(changes)

    def _new_write(self) -> Any:
        return WriteBatch(raw_mode=True)

    def _write(self, write: Any) -> None:
        self._db.write(write)
        # One sync for the whole batch, however many records it has.
        self._db.flush_wal(True)

    def _failed(self, error: Exception, *, is_writing: bool) -> StoreFailed:
        if not is_writing:
            return StoreFailed(
                f"A batch cannot be stored: {clause(error)}. Nothing of it was written.", remedy=BATCH_REMEDY
            )
        kind = StoreDamaged if opening.is_damage(error) else StoreFailed
        return kind(
            f"The store at {self.path} could not write: {clause(error)}. None of the batch was acknowledged.",
            remedy=opening.REMEDY.format(self.path) if kind is StoreDamaged else FREE_SPACE,
        )

    def _require_certainty(self) -> None:
        if self._in_doubt is not None:
            raise StoreFailed(
                f"The store at {self.path} failed during a write, so it is unknown what became durable.",
                remedy=FREE_SPACE,
            ) from self._failure

    def read_encoded(
        self, queue: str, partition: int, start: int, end: int, max_bytes: int = 1 << 20
    ) -> list[tuple[int, bytes]]:
        found = self._read_dense((queue, partition), start, end, max_bytes)
        if found is None:
            # A commit that deletes records publishes this only after it is durable. Damage remains afterwards.
            with self._committing:
                found = self._read_dense((queue, partition), start, end, max_bytes)
            if found is None:
                raise self._missing(queue, partition, start)
        return found

    def _read_dense(
        self, where: tuple[str, int], start: int, end: int, max_bytes: int
    ) -> list[tuple[int, bytes]] | None:
        """Return the records; None if one of them is missing."""
        one = self.content.partitions.get(where)
        if one is None:
            return []
        if self._in_doubt and where in self._in_doubt:
            return None
        start, end = max(start, one.first), min(end, one.end)
        if start >= end:
            return []
        prefix, count = one.records, end - start
        found: list[bytes] = []
        size = 0
        with self._reading():
            self._bring_blocks(prefix, start, min(count, max_bytes // self._read_bytes + 1))
            for key, value in cast("Iterable[_Item]", self._db.items(from_key=prefix + layout.number(start))):
                found.append(value)
                size += len(value)
                if size >= max_bytes or len(found) == count:
                    # The keys are distinct and ascending from the first to this one, so none is missing.
                    if key != prefix + layout.number(start + len(found) - 1):
                        return None
                    self._read_bytes = max(1, size // len(found))
                    return list(enumerate(found, start))
        return None

    def _bring_blocks(self, prefix: bytes, start: int, count: int) -> None:
        # An iteration reads with the interpreter lock held, so the whole process would wait for the disk. A request
        # for several keys releases the lock, and brings their blocks into the cache.
        step = max(1, opening.BLOCK_BYTES * 3 // 4 // self._read_bytes)  # so that no block is skipped
        keys: list[str | int | float | bytes | bool] = [
            prefix + layout.number(offset) for offset in range(start, start + count, step)
        ]
        if len(keys) > 1:
            with contextlib.suppress(Exception):  # the reader of the record reports damage
                self._db.get(keys)

    def _missing(self, queue: str, partition: int, start: int) -> StoreError:
        """Return the error for a missing record; the engine may report the cause."""
        if self._failure is not None:
            told = f"The store at {self.path} failed earlier and cannot be read."
            return StoreFailed(told, remedy=repair_of(self._failure))
        one = self.content.partitions[queue, partition]
        expected = max(start, one.first)
        cursor = self._db.iter()
        try:
            with self._reading():
                cursor.seek(one.records + layout.number(expected))
                while cursor.valid() and cursor.key() == one.records + layout.number(expected):
                    expected += 1
                    cursor.next()
                cursor.status()
        except StoreError as error:
            return error
        finally:
            del cursor  # a remaining cursor would keep the engine open as long as the error's traceback
        return opening.damaged(
            self.path, f"the record at offset {expected} of partition {partition} of {queue!r} is missing."
        )

    @property
    def serial(self) -> int:
        """The number of the store's last batch."""
        return self.content.serial

    def held(self, sequence: str, numbers: list[int]) -> list[Record]:
        """Return held messages of a Sequence.

        Raises:
            StoreDamaged: A message is missing.
            StoreFailed: The store failed during a write.
        """
        self._require_certainty()
        return [self._read_record(data) for data in self.read_held([(sequence, message) for message in numbers])]

    def read_held(self, held: list[tuple[str, int]]) -> list[bytes]:
        keys: list[str | int | float | bytes | bool] = [layout.held_key(*one) for one in held]
        with self._reading():
            found = cast("list[bytes | None]", self._db.get(keys)) if keys else []
        for (sequence, message), data in zip(held, found, strict=True):
            if data is None:
                raise opening.damaged(self.path, f"the held message {message} of {sequence} is missing.")
        return cast("list[bytes]", found)

    def close(self) -> None:
        """See :meth:`Store.close`. A second call does nothing."""
        if self._closed:
            return
        self._closed = True
        forking.open_stores.discard(self)
        self.contents.close()
        try:
            if self._view is not None:
                self._view.close()
            else:
                self._close_engine()
        except Exception as error:
            if self._lock is not None:
                del self._db  # deleting the last reference ends an engine that cannot be closed
            # After a failed and reported write, the engine cannot end cleanly, and need not.
            if self._failure is None:
                if opening.is_damage(error):
                    raise opening.explain(self.path, error, "closed") from error
                raise StoreFailed(
                    f"The store at {self.path} could not be closed: {clause(error)}.",
                    remedy=f"Acknowledged messages are stored. {FREE_SPACE}",
                ) from error
        finally:
            if self._lock is not None:
                self._lock.release()

    def _close_engine(self) -> None:
        if self._keeper is not None:
            self._keeper.close()
        # Compactions since the last batch; without the note the next start compacts again.
        if self._failure is None and self.trimmed_bytes != self._trimmed_noted:
            self._db.put(layout.TRIMMED, layout.number(self.trimmed_bytes))
        self._db.close()
        self._note_serial()

    def _open_engine(self, keep_prefix: bool) -> None:
        # Read again: between the first read and the lock another process may have created or upgraded it.
        found = directory.read_format(self.path)
        if found is None:
            directory.begin(self.path)
        else:
            directory.upgrade(self.path, found)
            if keep_prefix:
                evidence.forget_note(self.path)
            # Before the engine opens: it first writes out its logs, which needs space.
            self._reserve.give_up_if_needed()
            opening.require_whole(self.path)
        compacts = found is None or may_compact_at_once(self._home, self._reserve)
        options = opening.make_options(keep_prefix=keep_prefix, compacts=compacts)
        options.create_if_missing(found is None)
        engine = self._home / directory.ENGINE
        try:
            self._db = opening.open_engine(engine, self.path, options, AccessType.read_write())
        except StoreDamaged:
            # A torn end was never acknowledged, so it may go without the operator.
            if keep_prefix or not opening.only_the_end_is_torn(self.path):
                raise
            options = opening.make_options(keep_prefix=True, compacts=compacts)
            self._db = opening.open_engine(engine, self.path, options, AccessType.read_write())
        try:
            if found is None:
                directory.finish(self.path)
            self._find_content()
            # Again with what the engine made of its logs: it may have dropped a damaged end.
            opening.require_reached(self.path, self.serial)
            self._begin_keeping(compacts)
            forking.open_stores.add(self)
        except BaseException:
            opening.give_up(self._db)
            del self._db  # deleting the last reference ends an engine that cannot be closed
            raise

    def _begin_keeping(self, compacts: bool) -> None:
        self._space = FreeSpace(
            self._db, self.path, self._home, self._reserve, compacts=compacts, on_trouble=self._be_in_trouble
        )
        self._keeper = Keeper(self._db, self._reserve, self._space, self._note_serial, self._count)
        self._space.look()
        with self._reading():
            noted = cast("bytes | None", self._db.get(layout.TRIMMED))
        # An earlier version may have trimmed the store without such notes, so its disk may hold any amount.
        was_trimmed = any(one.swept for one in self.content.partitions.values())
        trimmed = layout.last_number(noted) if noted else COMPACT_BYTES + 1 if was_trimmed else 0
        self._trimmed_noted = trimmed
        if trimmed > SWEEP_BYTES:
            # After a start, less garbage justifies a compaction: the queue may have been consumed, and get no new
            # messages.
            trimmed = max(trimmed, COMPACT_BYTES + 1)
        if trimmed:
            self._keeper.add(gaps_between(self.content.partitions.values()), trimmed)
        if trimmed > SWEEP_BYTES or self._space.is_low:
            self._keeper.wake()

    def _is_named(self, content: bytes) -> bool:
        """Whether a record may name a content: after a failed write, the store does not know."""
        # A name that may be durable must keep its file.
        return self._failure is not None or self.content.references.is_named(content)

    def _needed(self) -> int:
        """Return the bytes of free space that the engine may need; asked before a part of a content is written.

        A content fills the disk without a commit, and another program may have filled it: so look, or the store would
        refuse contents without trouble.
        """
        space, keeper = self._space, self._keeper
        if space is None or keeper is None or self._closed:
            return 0
        space.look_if_near()
        if space.is_low:
            keeper.wake()  # it looks until the trouble is over
        return space.needed

    def look(self) -> None:
        """See :meth:`Store.look`."""
        if self._space is not None and self._keeper is not None and self._space.has_shrunk():
            self._keeper.wake()  # not here: the engine may be closed meanwhile

    def _be_in_trouble(self, trouble: Trouble | None) -> None:
        self.trouble = trouble

    def _count(self) -> int:
        return sum(one.end - one.first for one in list(self.content.partitions.values()))

    @property
    def trimmed_bytes(self) -> int:
        """Approximate number of deleted bytes that are still on the disk."""
        return self._keeper.trimmed if self._keeper is not None else 0

    def _note_serial(self) -> bool:
        """Note the last durable batch; return whether the store still owns the directory."""
        assert self._lock is not None
        try:
            self._lock.require_in_place()
            if self._failure is None:
                evidence.note(self._home, self.serial)
        except StoreFailed:
            return False
        except OSError:
            return True  # without space for a note, there is only less evidence
        return True

    def _make_view(self) -> opening.View:
        return opening.View(self.path)

    def _open_view(self, found: int | None) -> None:
        """Open the engine's files for reading only, also while another process writes them."""
        if found is None:
            raise StoreMissing(f"There is no store at {self.path}.", remedy="Check the path.")
        if found != directory.FORMAT:
            raise StoreFormatError(
                f"The store at {self.path} has format {found}, but this version needs {directory.FORMAT}.",
                remedy="Open it once for writing, which upgrades it.",
            )
        for left in reversed(range(self.view_tries)):
            try:
                self._view = self._make_view()
                self._db = self._view.engine
                self._find_content()
                return
            except (StoreError, OSError) as error:
                # The writing process may have replaced a file between the listing and the opening.
                if self._view is not None:
                    self._view.close()
                if not left:
                    raise opening.not_inspected(self.path, error) from error
                time.sleep(_VIEW_PAUSE)

    def _find_content(self) -> None:
        self.content = Content(_records_of)
        self._find_partitions()
        with self._reading():
            self.content.serial = evidence.stamped_serial(self._db.get(evidence.STAMP))
        for key, _ in self.scan(layout.CURSOR):
            queue, partition, name = layout.split_partition_key(key)
            self.content.cursors.setdefault((queue, partition), set()).add(name.decode())
        for key, _ in self.scan(layout.HOME, values=False):
            queue, partition, sequence = layout.split_partition_key(key)
            self.content.homes[sequence.decode()] = (queue, partition)
        for key, _ in self.scan(layout.HELD, values=False):
            self.content.held.setdefault(layout.key_name(key), set()).add(layout.last_number(key))
        for key, name in self.scan(layout.CONTENT):
            self.content.refer(layout.split_reference_key(key), name)

    def _find_partitions(self) -> None:
        entries = [
            (layout.split_partition_key(key)[:2], layout.decode_entry(value))
            for key, value in self.scan(layout.PARTITION)
        ]
        with self._reading():
            cursor = self._db.iter()
            try:
                for where, (first, swept) in entries:
                    records, end = layout.partition_key(layout.RECORD, *where), first
                    cursor.seek_for_prev(records + layout.PREFIX_END)
                    if cursor.valid() and (key := cast(bytes, cursor.key())).startswith(records):
                        end = max(first, layout.last_number(key) + 1)
                    cursor.status()
                    self.content.put(where, Partition(records, first, end, swept))
                    self.content.garbage += (first - swept) * UNKNOWN_RECORD_BYTES
            finally:
                del cursor  # as in _missing

    def scan(self, prefix: bytes, *, values: bool = True) -> Iterator[_Item]:
        """Yield every item with this key prefix; without ``values`` the values are empty."""
        # No upper bound for the iterator: rocksdict 0.3 frees it too early, and the iteration then ends at random.
        last = prefix
        with self._reading():
            if values:
                for last, value in cast("Iterable[_Item]", self._db.items(from_key=prefix)):
                    if not last.startswith(prefix):
                        return
                    yield last, value
            else:
                for last in cast("Iterable[bytes]", self._db.keys(from_key=prefix)):
                    if not last.startswith(prefix):
                        return
                    yield last, b""
            # This is the end of all keys, or damage: a cursor that continues from here can distinguish them.
            cursor = self._db.iter()
            try:
                cursor.seek(last)
                while cursor.valid() and (key := cast(bytes, cursor.key())).startswith(prefix):
                    if key > last:
                        yield key, cast(bytes, cursor.value()) if values else b""
                    cursor.next()
                cursor.status()
            finally:
                del cursor  # as in _missing

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        """Translate rocksdict's bare exceptions into store errors."""
        try:
            yield
        except (HoldfastError, GeneratorExit):
            raise
        except Exception as error:
            if self._closed:
                raise StoreError(f"The store at {self.path} is closed.", remedy="Open it again.") from error
            raise opening.explain(self.path, error, "read") from error

    def _wait_for_engine(self) -> None:
        # RocksDB itself would wait with the interpreter lock held, and stop the whole process.
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
        # One write fills at most one more memtable, and RocksDB begins to delay at one below its maximum.
        ask = self._db.property_int_value
        return bool(
            (ask("rocksdb.num-immutable-mem-table") or 0) >= opening.MEMTABLES - 2
            or ask("rocksdb.actual-delayed-write-rate")
            or ask("rocksdb.is-write-stopped")
        )

    def _publish(self, changes: RocksDBChanges) -> None:
        changes.take_over()
        self.contents.no_longer_named(changes.unnamed)
        self._unkept += changes.size + _BATCH_BYTES
        assert self._keeper is not None and self._space is not None
        if changes.erased:
            self._keeper.add(changes.erased, changes.erased_bytes)
            self._trimmed_noted = self._keeper.trimmed
        if self._unkept > KEEP_BYTES or changes.erased:
            self._unkept = 0
            # The keeper may be busy with a compaction for seconds, while memtables fill up.
            self._space.look_if_near()
            self._keeper.wake()
