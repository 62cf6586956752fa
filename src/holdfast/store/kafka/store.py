"""KafkaStore: the log is a partition of a topic, and an embedded store is a cache of the log.

A batch is one write of the log: the changes of keys that RocksDB would write. Kafka confirms it, then the cache gets
it, without a write-ahead log: after a crash the cache continues from its checkpoint. The rules of ownership are in
:mod:`holdfast.store.kafka.owner`.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, TypeVar, cast

from rocksdict import WriteBatch

from holdfast.core.records import Batch, Record, Snapshot
from holdfast.exceptions import StoreDamaged, StoreError, StoreFailed, StoreLocked, StoreMissing, StoreTakenOver
from holdfast.outages import Trouble
from holdfast.store import directory
from holdfast.store import records as layout
from holdfast.store.base import Turn
from holdfast.store.contents import PieceContents, require_room
from holdfast.store.kafka import cache
from holdfast.store.kafka.address import read_kafka_address
from holdfast.store.kafka.contents import PIECE_BYTES, LogContents
from holdfast.store.kafka.frames import Put, encode_write
from holdfast.store.kafka.login import KafkaAway
from holdfast.store.kafka.owner import LogOwner, Write
from holdfast.store.kafka.replay import Checkpoint, Replay, Written
from holdfast.store.kafka.states import OwnerAction
from holdfast.store.kafka.sweep import Sweep
from holdfast.store.kafka.topic import KafkaLog, NotPermitted
from holdfast.store.rocksdb import opening
from holdfast.store.rocksdb.free_space import may_compact_at_once
from holdfast.store.rocksdb.store import RocksDBStore

_Result = TypeVar("_Result")

WENT_BACK: Final = b"!holdfast-went-back"
"""The key of the note that the log ended before what a process had stored in it."""
_SILENCE: Final = 2.0
"""Seconds without an answer of Kafka after which the store reports trouble."""
_PAUSE: Final = 0.2
_PERMISSION_PAUSE: Final = 1.0
"""Seconds between two attempts while the user lacks a permission: each needs a new connection."""
_STEP: Final = 0.01
_FOLLOW_SECONDS: Final = 0.02
"""Seconds between two looks at the log of an owner that is to be replaced."""
_MOST_REFUSALS: Final = 3
"""How often Kafka may refuse one write, for a reason that does not pass, before the store fails."""
_REMEDY: Final = "Acknowledged messages are stored. Check Kafka and the disk, then start again."


class KafkaStore(RocksDBStore):
    """A :class:`~holdfast.store.base.Store` in a partition of a Kafka topic.

    The process that opens it takes it from the previous owner. Later records of that one are void.

    Args:
        location: The URL; see :func:`~holdfast.store.kafka.address.read_kafka_address`.
        read_only: Read the whole log as it is now into a temporary directory; nothing else is changed.
        turn: When this process may take the log; until then, it only reads it. None: at once.

    Raises:
        ConfigurationError: The URL is invalid, or the topic is not safe.
        StoreLocked: Another process of this host has the cache open, or others take the log again and again.
        StoreFormatError: The cache belongs to another log, or a newer version wrote the log; both are unchanged.
        StoreMissing: If read-only: there is no topic, or nothing in it.
        StoreDamaged: The log is incomplete.
        StoreFailed: Kafka refuses a necessary operation. StoreAway: it does not answer.

    Attributes:
        reconnections: How often the store discarded a producer because the outcome of a write was unknown.
    """

    def __init__(self, location: str, *, read_only: bool = False, turn: Turn | None = None) -> None:
        self._turn = turn
        self._address = address = read_kafka_address(location)
        self.shown = address.shown
        self.reconnections = self._refusals = 0
        self._closing = threading.Event()
        self._troubles: dict[str, Trouble | None] = {"disk": None, "log": None}
        self._tell_wanted: Callable[[int], None] = lambda _wanted: None
        self._log = KafkaLog(address)
        self._owner: LogOwner | None = None
        self._sweep: Sweep | None = None
        self._trimmed_to = 0
        try:
            with self._present():
                if not read_only:
                    self._log.warm()
                self._log.open(creates=not read_only)
            super().__init__(address.place, read_only=read_only)
        except BaseException as error:
            self._log.close()
            if not directory.is_full(error):
                raise
            raise StoreFailed(
                f"The disk of the cache at {address.place} is full, so the store at {self.shown} cannot be opened.",
                remedy=f"Free space at {address.place}. No message is lost: all of them are in Kafka.",
            ) from error

    def _make_contents(self) -> PieceContents:
        return LogContents(self, lambda: self.shown)

    @property
    def owner(self) -> LogOwner:
        assert self._owner is not None
        return self._owner

    @property
    def epoch(self) -> int:
        """Return the epoch of this process's claim."""
        return self.owner.epoch

    @contextlib.contextmanager
    def _present(self) -> Iterator[None]:
        # Reported at once: an endpoint that starts waits for Kafka itself.
        try:
            yield
        except KafkaAway as error:
            raise self._log.away(error) from error

    # --- opening --------------------------------------------------------------------------------------------------

    def _look(self) -> int | None:
        cache.require_own(self.path, self._log.identity)
        return None

    def _open_engine(self, keep_prefix: bool) -> None:
        cache.require_own(self.path, self._log.identity)  # again, under the lock
        cache.mark(self.path, self._log.identity)
        self._reserve.keep_none()
        try:
            with self._present():
                first, end = self._log.bounds()
                went_back = self._take(self._open_cache(first, end), first, end)
                if went_back:
                    self._write_log(Write(encode_write([(WENT_BACK, went_back.encode())])))
                    self._db.put(WENT_BACK, went_back.encode())
            self._find_content()
            with self._reading():
                self.went_back = cast(bytes, self._db.get(WENT_BACK) or b"").decode()
            self._begin_keeping(self._compacts)
        except BaseException:
            if hasattr(self, "_db"):
                opening.give_up(self._db)
                del self._db
            raise

    def _open_cache(self, first: int, end: int) -> Checkpoint:
        """Open the engine; return where the log continues the cache, which is empty if it cannot be used."""
        try:
            self._open_files()
            with self._reading():
                found = cache.decode_checkpoint(cast("bytes | None", self._db.get(cache.CHECKPOINT)))
        except StoreLocked:
            raise
        except StoreError:  # a damaged cache
            found = None
        # The log no longer continues the cache, or ended before it.
        if found is None or found.next < first or found.next > end:
            self._empty()
        if found is None or found.next < first:
            return Checkpoint(next=first)
        return found

    def _open_files(self) -> None:
        self._compacts = not (self.path / directory.ENGINE).exists() or may_compact_at_once(self._home, self._reserve)
        self._db = cache.open_without_log(self._home / directory.ENGINE, self.path, compacts=self._compacts)

    def _empty(self) -> None:
        if hasattr(self, "_db"):
            opening.give_up(self._db)
            del self._db
        cache.clear(self.path)
        self._open_files()

    def _take(self, start: Checkpoint, first: int, end: int) -> str:
        """Bring the cache up to date, and claim the log.

        Returns:
            How the log went back; "" if it did not.
        """
        went_back = ""
        if start.next > end:
            went_back = _went_back(f"it ends at record {end}, although record {start.next - 1} had been durable")
            start = Checkpoint(next=first)
        try:
            self._claim(start)
        except StoreDamaged as error:
            if not start.epoch:
                raise
            # The cache has what the log no longer has, and the log has something else there.
            went_back = _went_back(f"it does not continue what this host had stored: {error.message}")
            self._empty()
            self._claim(Checkpoint(next=first))
        return went_back

    def _claim(self, start: Checkpoint) -> None:
        replay = Replay(start, self.shown)
        name = f"process {os.getpid()} on {socket.gethostname()}"[:200]
        self._owner = owner = LogOwner(name, secrets.token_bytes(16), replay, self._log.most)
        self._sweep = Sweep(replay)
        applied = cache.Applied(self.shown, self.apply)
        tries = 0
        action = OwnerAction.NOTHING
        while action is not OwnerAction.SERVE:
            if owner.claims and not applied.is_whole:
                replay.require_whole()
                applied.is_whole = True
            tries += owner.claims
            if tries > 10:
                raise StoreLocked(
                    f"Other processes take the store at {self.shown} again and again.",
                    remedy="Only one process may have it open. Stop the others, or give each its own partition.",
                )
            action = self._continue(applied)
        if self._turn is not None:
            self._turn.claimed(owner.epoch)
        applied.write()
        self._log.stop_reading()
        # A server accepts nothing new in trouble, so perhaps no write would end that of a slow opening.
        self._tell("log", None)

    def _continue(self, applied: cache.Applied | None = None) -> OwnerAction:
        """Append a claim, or read to the end of the log or to the first record that matters."""
        owner = self.owner
        if owner.claims:
            # Unknown whether it was appended: either way only the log can tell.
            if self._append([owner.claim(time.time())]) is None:
                self._log.renew()
            owner.claimed()
            return OwnerAction.NOTHING
        for offset, record in self._log.read(owner.replay.next):
            found, action = owner.read(offset, record)
            if applied is not None and isinstance(found, Written):
                applied.add(found)
            if action is not OwnerAction.NOTHING:
                return action
        if applied is not None and self._must_follow(applied):
            return OwnerAction.NOTHING
        return owner.ended()

    def _must_follow(self, applied: cache.Applied) -> bool:
        """Whether to read on instead of claiming the log; returns after a pause, or when its turn has come."""
        turn, replay = self._turn, self.owner.replay
        if turn is None or turn.may_claim(replay.epoch, is_free=replay.is_free):
            return False
        applied.write()
        until = time.monotonic() + _FOLLOW_SECONDS
        while time.monotonic() < until:
            time.sleep(_STEP)
            if turn.may_claim(replay.epoch, is_free=replay.is_free):
                return False
        return True

    def _open_view(self, found: int | None) -> None:
        view = cache.TemporaryCache(self.path)
        self._view = cast(Any, view)
        self._db = view.engine
        try:
            with self._present():
                first, end = self._log.bounds()
                if not end:
                    raise StoreMissing(
                        f"There is no store at {self.shown}.", remedy="Check the topic and the partition."
                    )
                replay, applied = Replay(Checkpoint(next=first), self.shown), cache.Applied(self.shown, self.apply)
                self._owner = LogOwner("", b"", replay, self._log.most)
                for offset, record in self._log.read(first):
                    if isinstance(one := replay.read(offset, record), Written):
                        applied.add(one)
                replay.require_whole()
            applied.write()
            self._find_content()
        except BaseException:
            view.close()
            raise

    # --- writing --------------------------------------------------------------------------------------------------

    def _new_write(self) -> cache.LoggedWrite:
        return cache.LoggedWrite()

    def _write(self, write: cache.LoggedWrite) -> None:
        assert self._sweep is not None
        copies, copied = self._sweep.part(write.size, self._scan_from)
        self._write_log(Write(encode_write(write.changes, copied), copies))
        replay = self.owner.replay
        # The log first, then the cache with its checkpoint: after a kill between them, the next start reads more.
        self._put_checkpoint(write.batch)
        self._db.write(write.batch, cache.without_log())
        if replay.trim_to is not None and replay.trim_to > self._trimmed_to:
            self._trimmed_to = replay.trim_to
            self._log.trim(replay.trim_to)

    def apply(self, batch: WriteBatch) -> None:
        """Write to the cache what was read from the log."""
        self._put_checkpoint(batch)
        self._wait_for_room()
        self._wait_for_engine()
        self._db.write(batch, cache.without_log())

    def _put_checkpoint(self, batch: WriteBatch) -> None:
        checkpoint = self.owner.replay.checkpoint
        if checkpoint is not None:
            batch.put(cache.CHECKPOINT, cache.encode_checkpoint(checkpoint))

    def _write_log(self, write: Write) -> None:
        """Append a write, and return once it is durable, whatever happens meanwhile.

        Raises:
            StoreFailed: Another process owns the log, or Kafka refuses the write, or does not answer for too long.
        """
        owner = self.owner
        self._refusals = 0  # of the write, whatever becomes of claims in between
        action = owner.commit(write)
        while action is not OwnerAction.ACKNOWLEDGE:
            if action is OwnerAction.STOP:
                raise self._taken_over()
            if action is OwnerAction.APPEND:
                offsets = self._append(records := owner.records)
                action = owner.appended(offsets, sum(map(len, records)))
            # The old producer may still append the write, so it goes before the log is searched.
            elif action is OwnerAction.RENEW:
                self.reconnections += 1
                self._log.renew()
                self._closing.wait(_PAUSE)
                action = OwnerAction.NOTHING
            else:
                action = self._patiently(self._continue)
        if self._turn is not None:  # a write whose outcome was unknown may have needed another claim
            self._turn.claimed(owner.epoch)
        self._log.stop_reading()
        self._tell("log", None)

    def _append(self, records: Sequence[bytes]) -> list[int] | None:
        """Append records as :meth:`KafkaLog.append` does.

        Raises:
            StoreFailed: Kafka refuses writes again and again, for a reason that does not pass, or the store closes.
        """
        offsets = self._log.append(records, self._goes_on())
        if offsets is None and self._closing.is_set():
            raise StoreFailed(
                f"Kafka did not confirm a batch of the store at {self.shown}: {self._log.said}", remedy=_REMEDY
            )
        if offsets is None and not self._log.is_passing:
            self._refusals += 1
            if self._refusals > _MOST_REFUSALS:
                self._outlast(self._log.refused_write())
            self._closing.wait(_PAUSE)
        return offsets

    def _outlast(self, refused: Exception) -> None:
        """Wait for a permission that the user of a running store has lost; raise any other refusal of Kafka."""
        # The patience of the URL is for a Kafka that is away, not for a refusal.
        may_retry = self._may_retry(since=0.0, patience=0.0) and not self._closing.is_set()
        if not (may_retry and isinstance(refused, NotPermitted)):
            raise refused
        self._tell("log", Trouble(refused.message, refused.remedy))
        self._closing.wait(_PERMISSION_PAUSE)

    def _patiently(self, call: Callable[[], _Result]) -> _Result:
        """Retry within the patience, or as :meth:`retry_for` says, while Kafka does not answer."""
        goes_on = self._goes_on()
        while True:
            try:
                return call()
            except NotPermitted as error:
                self._outlast(error)
            except KafkaAway as error:
                if not goes_on():
                    raise self._log.away(error) from error
                self._wait_for_kafka(f"Kafka does not serve the store at {self.shown}", error)
                self._closing.wait(_PAUSE)

    def _goes_on(self) -> Callable[[], bool]:
        """Return a function that says whether to wait longer for Kafka, from now on."""
        since = time.monotonic()

        def goes_on() -> bool:
            waited = time.monotonic() - since
            if waited > _SILENCE:
                why = self._log.no_answer(f"no answer for {waited:.0f} s")
                self._wait_for_kafka(f"Kafka does not confirm new messages at {self.shown}", why)
            return not self._closing.is_set() and self._may_retry(since, self._address.patience)

        return goes_on

    def _wait_for_kafka(self, what: str, why: KafkaAway) -> None:
        self._tell("log", Trouble(f"{what}: {why}", why.remedy or "Check Kafka."))

    def _taken_over(self) -> StoreTakenOver:
        who = "another process" if self.owner.rival is None else self.owner.rival.name
        return StoreTakenOver(
            f"The store at {self.shown} was taken over by {who}. Nothing of this batch is acknowledged.",
            remedy="Only one process may have a log open. Stop one of the two, or give each its own partition.",
        )

    def forget_went_back(self) -> None:
        with self._committing, self._noting_failure():
            self._write_log(Write(encode_write([(WENT_BACK,)])))
            self._db.delete(WENT_BACK)
        self.went_back = ""

    def write_pieces(self, put: Put | None, erase: tuple[bytes, bytes] | None) -> None:
        """Write a piece of a content, or delete the pieces between two keys.

        Raises:
            OSError: The disk of the cache has too little room.
            StoreFailed: As for :meth:`commit`.
        """
        write = cache.LoggedWrite()
        if put is not None:
            require_room(self._home, self._needed() + len(put[1]))
            write.put(*put)
            self._wait_for_room()
        if erase is not None:
            size = self._bytes_between(*erase)
            write.delete_range(*erase)
        with self._committing:
            if self._failure is not None or self._closing.is_set() or self._lock is None:
                raise StoreFailed(f"The store at {self.shown} accepts no attachments any more.", remedy=_REMEDY)
            with self._noting_failure():
                self._wait_for_engine()
                self._write(write)
        if erase is not None and self._keeper is not None:
            self._keeper.add([erase], size)

    def _bytes_between(self, begin: bytes, end: bytes) -> int:
        with self._reading():
            cursor = self._db.iter()
            try:
                cursor.seek_for_prev(end)
                is_there = cursor.valid() and cast(bytes, cursor.key()).startswith(begin)
                # Pieces have consecutive numbers, so the last one tells how many there are.
                count = layout.last_number(cast(bytes, cursor.key())) + 1 if is_there else 0
                cursor.status()
            finally:
                del cursor  # a remaining cursor would keep the engine open
        return count * PIECE_BYTES

    def _wait_for_room(self) -> None:
        """Wait until the cache has written its tables, so that they do not fill the memory. Batches do not wait."""
        ask = self._db.property_int_value
        while ask("rocksdb.num-immutable-mem-table") and not ask("rocksdb.background-errors"):
            if self._closing.wait(_STEP):
                return

    def read_piece(self, key: bytes) -> bytes | None:
        with self._explaining_damage(), self._reading():
            return cast("bytes | None", self._db.get(key))

    @contextlib.contextmanager
    def _noting_failure(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            self._failure = error
            raise

    # --- reading --------------------------------------------------------------------------------------------------

    def commit(self, batch: Batch) -> None:
        with self._explaining_damage():
            super().commit(batch)

    def load(self) -> Snapshot:
        with self._explaining_damage():
            return super().load()

    def read_encoded(
        self, queue: str, partition: int, start: int, end: int, max_bytes: int = 1 << 20
    ) -> list[tuple[int, bytes]]:
        with self._explaining_damage():
            return super().read_encoded(queue, partition, start, end, max_bytes)

    def held(self, sequence: str, numbers: list[int]) -> list[Record]:
        with self._explaining_damage():
            return super().held(sequence, numbers)

    @contextlib.contextmanager
    def _explaining_damage(self) -> Iterator[None]:
        """Let the next opening rebuild a damaged cache."""
        try:
            yield
        except StoreDamaged as error:
            if self._lock is not None:
                cache.forget(self.path)
            raise StoreDamaged(
                f"The cache of the store at {self.shown} is damaged: {error.message}",
                remedy="Start again: the cache is rebuilt from the log, and no message is lost. Check the disk.",
            ) from error

    def _scan_from(self, first: bytes, size: int) -> tuple[list[Put], bytes | None]:
        """See :data:`sweep.Scan`."""
        found: list[Put] = []
        last = first
        with self._reading():
            for last, value in cast("Iterator[Put]", self._db.items(from_key=first)):
                if size <= 0:
                    return found, last
                if last not in cache.LOCAL:
                    found.append((last, value))
                    size -= len(last) + len(value)
            # This is the end of all keys, or damage: a cursor that continues from here can distinguish them.
            cursor = self._db.iter()
            try:
                cursor.seek(last)
                if cursor.valid():
                    cursor.next()
                cursor.status()
                if cursor.valid():
                    return found, cast(bytes, cursor.key())
            finally:
                del cursor  # a remaining cursor would keep the engine open
        return found, None

    # --- the rest -------------------------------------------------------------------------------------------------

    def call_with_wanted_bytes(self, function: Callable[[int], None]) -> None:
        """See :class:`~holdfast.store.base.Cached`."""
        self._tell_wanted = function
        self._be_in_trouble(self._troubles["disk"])

    def _be_in_trouble(self, trouble: Trouble | None) -> None:
        self._tell("disk", trouble)
        self._tell_wanted(self._space.wanted if self._space is not None else 0)

    def _tell(self, of: str, trouble: Trouble | None) -> None:
        self._troubles[of] = trouble
        self.trouble = self._troubles["log"] or self._troubles["disk"]

    def look(self) -> None:
        """See :meth:`Store.look`. Also follows the password while nothing is written, so that no login is refused."""
        super().look()
        self._log.follow_password()

    def _note_serial(self) -> bool:
        # Notes are for a store without a log: nothing is lost with a cache.
        return not self._closing.is_set()

    def close(self) -> None:
        """See :meth:`Store.close`. A second call does nothing."""
        # First: a write that waits for Kafka then gives up.
        self._closing.set()
        try:
            if not self._closed and self._failure is None and self._lock is not None:
                with contextlib.suppress(Exception):  # the next opening then reads more of the log
                    self._db.flush()
            super().close()
        finally:
            self._log.close()


def has_records(location: str) -> bool:
    """Whether a log exists and has a record; creates nothing.

    Raises:
        StoreError: Kafka does not answer.
    """
    log = KafkaLog(read_kafka_address(location))
    try:
        log.open(creates=False)
        return log.bounds()[1] > 0
    except StoreMissing:
        return False
    except KafkaAway as error:
        raise log.away(error) from error
    finally:
        log.close()


def _went_back(how: str) -> str:
    return f"on {time.strftime('%Y-%m-%d %H:%M:%S UTC', time.gmtime())} {how}"
