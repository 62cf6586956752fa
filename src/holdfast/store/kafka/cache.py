"""The cache of a log: its directory, which log it belongs to, and its engine. A cache may be deleted at any time."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import msgspec
from rocksdict import AccessType, Rdict, WriteBatch, WriteOptions

from holdfast.exceptions import StoreFailed, StoreFormatError
from holdfast.store import directory
from holdfast.store import records as layout
from holdfast.store.kafka.frames import Change, decode_write
from holdfast.store.kafka.replay import Checkpoint, Written
from holdfast.store.rocksdb import opening

MARKER: Final = "CACHE"
FORMAT: Final = 1
"""The format of a cache. A cache of another format is rebuilt."""
CHECKPOINT: Final = b"!holdfast-log"
"""The key of the checkpoint, which every write to the cache updates."""

APPLY_BYTES: Final = 1 << 20
"""Bytes of the log that the cache gets at a time while it is rebuilt."""

LOCAL: Final = frozenset({layout.TRIMMED, CHECKPOINT})
"""Keys of the cache that are not in the log."""

_OURS: Final = {MARKER, f"{MARKER}.new", directory.LOCK, directory.ENGINE, directory.BALLAST}


def require_own(place: Path, identity: Mapping[str, str]) -> None:
    """Check, before any change, that a directory is a cache of this log, or empty.

    Raises:
        StoreFormatError: It is something else.
        StoreFailed: It cannot be read.
    """
    try:
        names = {entry.name for entry in place.iterdir()}
    except FileNotFoundError:
        return
    except OSError as error:
        raise StoreFailed(f"The cache at {place} cannot be read: {error}", remedy="Check its permissions.") from error
    if MARKER not in names:
        if others := sorted(names - _OURS):
            raise StoreFormatError(
                f"{place} is not a cache of a log: it contains {others[0]!r}. The directory was not changed.",
                remedy="Give a new or empty directory: cache=DIRECTORY in the URL of the store.",
            )
        return
    found = _read(place)
    if found is not None and found != dict(identity):
        raise StoreFormatError(
            f"The cache at {place} belongs to another log: {_told(found)}. This one is {_told(identity)}. Nothing was "
            "changed.",
            remedy="Check the URL of the store: the topic may have been deleted and created again, and its messages "
            f"are lost then. If you mean this log, delete the cache: rm -r {place}",
        )


def mark(place: Path, identity: Mapping[str, str]) -> None:
    """Write which log the cache belongs to.

    Raises:
        StoreFailed: The directory cannot be written.
    """
    if _read(place) == dict(identity):
        return
    # Before it is marked: the content of another format must not count as a cache of this log.
    clear(place)
    draft = place / f"{MARKER}.new"
    try:
        draft.write_text(json.dumps({"format": FORMAT, **identity}) + "\n", encoding="utf-8")
        draft.replace(place / MARKER)
    except OSError as error:
        raise StoreFailed(f"The cache at {place} cannot be written: {error}", remedy="Free space there.") from error


def clear(place: Path) -> None:
    """Empty the cache; the next opening rebuilds it.

    Raises:
        StoreFailed: The directory cannot be written.
    """
    try:
        if (place / directory.ENGINE).exists():
            shutil.rmtree(place / directory.ENGINE)
    except OSError as error:
        raise StoreFailed(f"The cache at {place} cannot be emptied: {error}", remedy="Delete it.") from error


def clear_closed(place: Path, identity: Mapping[str, str]) -> int:
    """Empty the cache of a log, unless a process has it open. Call it again if it fails.

    Returns:
        The bytes of its files.

    Raises:
        StoreLocked: A process has it open.
        StoreFormatError: It is something else, which stays.
        StoreFailed: The directory cannot be read or written.
        OSError: The same.
    """
    require_own(place, identity)  # also one that was forgotten but not emptied
    if not (place / directory.ENGINE).exists():
        return 0
    with directory.DirectoryLock(place):
        size = sum(file.stat().st_size for file in (place / directory.ENGINE).rglob("*"))
        forget(place)  # first: the next opening empties what a killed process leaves
        clear(place)
        return size


def forget(place: Path) -> None:
    """Let the next opening rebuild the cache, which may be open now."""
    (place / MARKER).unlink(missing_ok=True)


def encode_checkpoint(checkpoint: Checkpoint) -> bytes:
    return msgspec.msgpack.encode(
        (checkpoint.next, checkpoint.epoch, checkpoint.serial, checkpoint.logged, checkpoint.copied)
    )


def decode_checkpoint(data: bytes | None) -> Checkpoint | None:
    """Return the checkpoint of a cache; None if it has none."""
    return None if data is None else Checkpoint(*msgspec.msgpack.decode(data))


def _read(place: Path) -> dict[str, str] | None:
    """Return the log that a cache belongs to; None if the cache has another format or none."""
    try:
        found = json.loads((place / MARKER).read_bytes())
    except (FileNotFoundError, ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or found.pop("format", None) != FORMAT:
        return None
    return found


def _told(identity: Mapping[str, str]) -> str:
    return (
        f"partition {identity.get('partition')} of topic {identity.get('topic')!r} with the id "
        f"{identity.get('topic_id')} in the cluster {identity.get('cluster')}"
    )


class LoggedWrite:
    """A write to the cache that keeps its changes for the log."""

    def __init__(self) -> None:
        self.batch = WriteBatch(raw_mode=True)
        self.changes: list[Change] = []
        self.size = 0

    def put(self, key: bytes, value: bytes) -> None:
        self.batch.put(key, value)
        if key not in LOCAL:
            self.changes.append((key, value))
            self.size += len(key) + len(value)

    def delete(self, key: bytes) -> None:
        self.batch.delete(key)
        self.changes.append((key,))

    def delete_range(self, begin: bytes, end: bytes) -> None:
        self.batch.delete_range(begin, end)
        self.changes.append((begin, end, True))


class Applied:
    """Writes of the log on their way into a cache.

    Args:
        place: The log, for errors.
        apply: Writes a batch to the cache, with the checkpoint after it.

    Attributes:
        is_whole: Whether the content was found to be complete.
    """

    def __init__(self, place: str, apply: Callable[[WriteBatch], None]) -> None:
        self._place, self._apply = place, apply
        self._batch = WriteBatch(raw_mode=True)
        self._size = 0
        self.is_whole = False

    def add(self, found: Written) -> None:
        copied, changes = decode_write(found.data, self._place)
        if found.has_copy:
            for key, value in copied:
                self._batch.put(key, value)
        for change in changes:
            match change:
                case (key, value):
                    self._batch.put(key, value)
                case (key,):
                    self._batch.delete(key)
                case (begin, end, _):
                    self._batch.delete_range(begin, end)
        self._size += len(found.data)
        if self._size > APPLY_BYTES:
            self.write()

    def write(self) -> None:
        self._apply(self._batch)
        self._batch, self._size = WriteBatch(raw_mode=True), 0


class TemporaryCache:
    """A cache that ends with its reader; ``store`` is the directory of the store, for errors."""

    def __init__(self, store: Path) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="holdfast-log-")
        self.engine = open_without_log(Path(self._directory.name) / directory.ENGINE, store, compacts=True)

    def close(self) -> None:
        opening.give_up(self.engine)
        self._directory.cleanup()


def open_without_log(path: Path, store: Path, *, compacts: bool) -> Rdict:
    """Open an engine that writes no log, for a store; create it if there is none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    options = opening.make_options(keep_prefix=True, compacts=compacts)
    options.create_if_missing(True)
    engine = opening.open_engine(path, store, options, AccessType.read_write())
    engine.set_write_options(without_log())
    return engine


def without_log() -> WriteOptions:
    """Return the options of a write to a cache: the log is in Kafka."""
    options = WriteOptions()
    options.disable_wal = True  # type: ignore[method-assign, assignment] # the stub calls it a method
    return options
