"""The directory of a store on disk: its owner, its format, and the process that has it open. Independent of the engine.

A store's directory contains ``HOLDFAST`` (JSON: format and engine, written once and changed by upgrades only), ``lock``
(the id of the process that has it open, under an advisory lock) and ``db``, the engine's directory. It also contains
``durable``, a note of the last durable batch, and ``ballast``, reserved space. ``security.db`` and
``security.db-nonces`` are not the store's: who checks user names keeps tokens and nonces there. The format is read
before any change, so a store of a newer version stays unchanged.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import sys
from collections.abc import Callable, Iterator
from errno import EDQUOT, ENOSPC
from pathlib import Path
from typing import Self

from holdfast.exceptions import StoreError, StoreFailed, StoreFormatError, StoreLocked, clause

FORMAT = 1
"""The format of the directory, its keys and its values that this version writes."""

UPGRADES: dict[int, Callable[[Path], None]] = {}
"""Format -> the function that rewrites a directory of that format into the next one. A killed upgrade is run again, so
it must be repeatable. Empty while there is only one format."""

MARKER = "HOLDFAST"
DRAFT = "HOLDFAST.new"
LOCK = "lock"
ENGINE = "db"
_ENGINE_NAME = "rocksdb"
NOTE = "durable"
BALLAST = "ballast"
SECURITY = "security.db"


def read_format(path: Path) -> int | None:
    """Return the format of the store at ``path``; None if nothing is there yet. Changes nothing.

    Raises:
        StoreFormatError: Something else is there, or a store of a format this version neither reads nor upgrades.
        StoreFailed: The directory cannot be read.
    """
    marker = path / MARKER
    try:
        text = marker.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        _require_nothing_else(path)
        return None
    except UnicodeDecodeError as error:
        raise _not_ours(path, f"its file {MARKER} was not written by Holdfast") from error
    except OSError as error:
        raise StoreFailed(f"{marker} cannot be read: {error}", remedy="Check the directory's permissions.") from error
    try:
        description = json.loads(text)
        found, engine = description["format"], description.get("engine")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise _not_ours(path, f"its file {MARKER} was not written by Holdfast") from error
    if not isinstance(found, int):
        raise _not_ours(path, f"its file {MARKER} was not written by Holdfast")
    if found > FORMAT:
        raise StoreFormatError(
            f"The store at {path} has format {found}, but this version reads up to {FORMAT}. The store was not "
            "changed.",
            remedy="Upgrade Holdfast, or give another directory.",
        )
    if engine != _ENGINE_NAME:
        raise StoreFormatError(
            f"The store at {path} has the engine {engine!r}, but this version reads {_ENGINE_NAME}. The store was not "
            "changed.",
            remedy="Upgrade Holdfast, or give another directory.",
        )
    if missing := [step for step in range(found, FORMAT) if step not in UPGRADES]:
        raise StoreFormatError(
            f"The store at {path} has format {found}, and this version cannot upgrade format {missing[0]}. The "
            "store was not changed.",
            remedy="Drain it with the version that wrote it, or give another directory.",
        )
    return found


def holds_store(path: Path) -> bool:
    """Whether a directory holds a store or the rest of one. True for a directory that cannot be read."""
    try:
        names = {entry.name for entry in path.iterdir()}
    except PermissionError:
        return True
    except OSError:  # it does not exist, is not a directory, or its name is too long
        return False
    return not names.isdisjoint((MARKER, DRAFT)) or (path / ENGINE / "CURRENT").exists()


def begin(path: Path) -> None:
    """Record that a store is being created here, so that a killed first start can be repeated. Needs the lock.

    Raises:
        StoreFailed: The directory cannot be written.
    """
    with _writing(path):
        _write_draft(path, FORMAT)


def finish(path: Path) -> None:
    """Complete the store, once its engine exists. From now on a missing engine is an error.

    Raises:
        StoreFailed: The directory cannot be written.
    """
    with _writing(path):
        _publish_draft(path)


def upgrade(path: Path, found: int) -> None:
    """Upgrade a store to the present format, step by step. Needs the lock.

    Args:
        found: The format that :func:`read_format` returned.

    Raises:
        StoreFailed: The directory cannot be written.
    """
    with _writing(path):
        for step in range(found, FORMAT):
            UPGRADES[step](path)
            _write_draft(path, step + 1)
            _publish_draft(path)


class DirectoryLock:
    """Exclusive write access to a store's directory, held until released or until the process ends in any way.

    Args:
        path: The directory, created if it is missing.

    Raises:
        StoreLocked: Another process, or this one, holds it.
        StoreFailed: The directory cannot be written.
    """

    def __init__(self, path: Path) -> None:
        try:
            make_private(path)
            self._file = os.open(path / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            done = "opened for writing" if holds_store(path) else "created"
            raise StoreFailed(
                f"The store at {path} cannot be {done}: {error}",
                remedy="Free space there." if is_full(error) else "Give a directory that you may write to.",
            ) from error
        if not _try_lock(self._file):
            holder = os.read(self._file, 32).decode("ascii", "replace").strip()
            os.close(self._file)
            raise locked(path, holder)
        os.ftruncate(self._file, 0)
        with contextlib.suppress(OSError):  # a full disk: the note is for errors of others, and the lock holds anyway
            os.write(self._file, f"{os.getpid()}\n".encode())
        self._path = path
        self._place = str(path.absolute() / LOCK)
        self._engine = str(path.absolute() / ENGINE / "CURRENT")
        mine = os.fstat(self._file)
        self._identity = (mine.st_dev, mine.st_ino)

    def require_in_place(self) -> None:
        """Raise if the directory is no longer in its place, because data written there would be lost.

        Raises:
            StoreFailed: The directory or its engine's files were deleted, moved or replaced since it was locked.
        """
        try:
            found = os.stat(self._place)
            is_ours = (found.st_dev, found.st_ino) == self._identity and os.access(self._engine, os.F_OK)
        except OSError:
            is_ours = False
        if not is_ours:
            raise StoreFailed(
                f"The directory of the store at {self._path} was deleted, moved or replaced while it was open. "
                "None of the data written since was acknowledged.",
                remedy="Restore the directory, then start again. Stop every process that has a store open before "
                "you touch its directory.",
            )

    def release(self) -> None:
        """Release the lock. The file stays: if it were removed, two processes could lock two files of one name."""
        os.close(self._file)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def is_full(error: BaseException) -> bool:
    """Whether an error of the system, of the engine or of a store says that a disk has no space left."""
    return getattr(error, "errno", None) in (ENOSPC, EDQUOT) or "No space left" in str(error)


def make_private(path: Path) -> None:
    """Create a directory that only its owner may read, unless it exists: it will contain message bodies.

    Raises:
        OSError: It cannot be created.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    path.mkdir(mode=0o700, exist_ok=True)


def is_public(path: Path) -> bool:
    """Whether every user of the machine may read a directory or a file."""
    try:
        return bool(path.stat().st_mode & 0o007)
    except OSError:
        return False


def public_remedy(file: str) -> str:
    """Return what to do about a secret in a file that every user of the machine can read."""
    return f"Every user can read the file: chmod o= {shlex.quote(file)}"


@contextlib.contextmanager
def kept_shut(path: Path) -> Iterator[bool]:
    """Yield whether no process has the store open; if so, none can open it while the block runs. Changes nothing."""
    try:
        file = os.open(path / LOCK, os.O_RDONLY)
    except OSError:
        yield True
        return
    try:
        yield _try_lock(file)
    finally:
        os.close(file)


def locked(path: Path, holder: str = "") -> StoreLocked:
    """Return the error for a store that another process has open; ``holder`` is a process id, "" if unknown."""
    if holder == str(os.getpid()):
        return StoreLocked(
            f"The store at {path} is already open in this process.",
            remedy="Close it first, or give the open store instead of its path.",
        )
    who = f"process {holder}" if holder else "another process"
    return StoreLocked(
        f"The store at {path} is open in {who}.",
        remedy=f"Stop {who} first: only one process can change a store. You can open it for reading meanwhile.",
    )


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    if sys.platform == "win32":  # directories cannot be opened there, and need no sync
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _try_lock(file: int) -> bool:
    # Windows has no flock; there the engine's own lock file excludes other processes.
    if sys.platform != "win32":
        import fcntl

        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreFailed(
            f"The store at {path} cannot be prepared: {error}", remedy="Free space, or check its permissions."
        ) from error


def _description(version: int) -> str:
    return json.dumps({"format": version, "engine": _ENGINE_NAME})


def _write_draft(path: Path, version: int) -> None:
    with (path / DRAFT).open("w", encoding="utf-8") as file:
        file.write(f"{_description(version)}\n")
        file.flush()
        os.fsync(file.fileno())


def _publish_draft(path: Path) -> None:
    (path / DRAFT).replace(path / MARKER)
    sync_directory(path)
    for parent in path.resolve().parents:
        with contextlib.suppress(PermissionError):  # a parent directory that we may not read already existed
            sync_directory(parent)


def _require_nothing_else(path: Path) -> None:
    """Raise unless ``path`` is absent, empty, or contains only what a killed first start leaves."""
    try:
        names = {entry.name for entry in path.iterdir()}
    except FileNotFoundError:
        return
    except NotADirectoryError as error:
        raise _not_ours(path, "it is not a directory") from error
    except OSError as error:
        raise StoreFailed(f"{path} cannot be read: {error}", remedy="Check the directory's permissions.") from error
    ours = {LOCK, DRAFT, ENGINE, NOTE, f"{NOTE}.new", BALLAST} if DRAFT in names else {LOCK}
    others = sorted(name for name in names - ours if not name.startswith(SECURITY))  # SQLite has files beside its own
    if others:
        raise _not_ours(path, f"it contains {others[0]!r} but no {MARKER}")


def _not_ours(path: Path, why: str) -> StoreError:
    if (path / ENGINE / "CURRENT").exists():
        return StoreFormatError(
            f"The file {path / MARKER} is damaged or missing. The store in that directory was not changed.",
            remedy=f"Check the disk. If this version of Holdfast opened the store before, write the file again: echo "
            f"'{_description(FORMAT)}' > {path / MARKER}. Then: holdfast store check {path}",
        )
    return StoreFormatError(
        f"{path} is not a store of Holdfast: {clause(why)}. The directory was not changed.",
        remedy="Give the directory of a store, or a new or empty one to make a store in.",
    )
