"""Contents: what is too large for a record, stored next to the records that name it.

A content is written before the batch with its record, and durable before it. It stays while a stored record names it,
or while a process holds it: until the batch is committed, and while a reader has the record. What a process that was
killed left behind is deleted when the store is opened.
"""

from __future__ import annotations

import contextlib
import io
import os
import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from errno import ENOSPC
from pathlib import Path
from queue import SimpleQueue
from typing import Any, BinaryIO, cast
from uuid import uuid4

from holdfast.core.records import ContentWriter, Record, content_name, held
from holdfast.exceptions import StoreDamaged, StoreError
from holdfast.positioned_file import PositionedFile
from holdfast.store.directory import sync_directory

DIRECTORY = "attachments"
"""The directory of the contents in that of a store on disk."""
LEAST_FREE = 64 << 20
"""Bytes of the disk that contents leave free, besides what the store needs for its own files."""
_BUFFER = 256 << 10


def require_room(place: Path | int, size: int) -> None:
    """Check that the disk of a directory, or of an open file, has that many bytes for a content.

    Raises:
        OSError: It has not.
    """
    disk = os.statvfs(place)
    if disk.f_bavail * disk.f_frsize < LEAST_FREE + size:
        raise OSError(ENOSPC, os.strerror(ENOSPC))


class HeldContent:
    """Keeps a content as long as the object lives; see :class:`~holdfast.core.records.Hold`."""

    __slots__ = ("_contents", "name")

    def __init__(self, contents: Contents, name: bytes) -> None:
        self._contents = contents
        self.name = name
        contents.holds(name)

    def open(self) -> BinaryIO:
        return self._contents.open(self.name)

    def __del__(self) -> None:
        self._contents.let_go(self.name)


class Writer(ABC):
    """A :class:`~holdfast.core.records.ContentWriter` of a store.

    Attributes:
        size: Bytes written.
    """

    def __init__(self, hold: HeldContent) -> None:
        self.hold = hold
        self.size = 0

    @abstractmethod
    def write(self, data: bytes) -> None:
        """See :meth:`ContentWriter.write`."""

    @abstractmethod
    def finish(self) -> None:
        """See :meth:`ContentWriter.finish`."""


class Contents(ABC):
    def __init__(self) -> None:
        self.is_named: Callable[[bytes], bool] = lambda _name: True
        """Whether a stored record names a content; the store sets it once it is open for writing."""
        self._held: Counter[bytes] = Counter()
        self._left: dict[bytes, int] = {}
        """Contents without a record that were held when the store was closed -> their number of holders."""
        self._lock = threading.Lock()
        # A SimpleQueue: ``__del__`` may run within its own put, where a lock would wait for itself.
        self._let_go: SimpleQueue[bytes | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    @abstractmethod
    def create(self) -> ContentWriter:
        """Begin a content."""

    @abstractmethod
    def open(self, name: bytes) -> BinaryIO:
        """Return a content as a file that can seek. Errors as for :meth:`ContentWriter.write`."""

    @abstractmethod
    def delete(self, name: bytes) -> None:
        """Delete a content, if it exists. Errors as for :meth:`ContentWriter.write`."""

    def kept(self, record: Record) -> Record:
        """Let a record that was read keep its content as long as its attachments are in memory."""
        if name := content_name(record.attachments):
            record.attachments = held(record.attachments, HeldContent(self, name))
        return record

    def holds(self, name: bytes) -> None:
        with self._lock:
            self._held[name] += 1
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="holdfast-contents", daemon=True)
                self._thread.start()

    def let_go(self, name: bytes) -> None:
        """Count one holder less. The last one deletes the content in the thread, unless a record names it."""
        if name not in self._left:
            self._let_go.put(name)
            return
        self._left[name] -= 1
        if self._left[name] <= 0:
            with contextlib.suppress(OSError):  # it is deleted at the next start
                self.delete(name)

    def no_longer_named(self, names: Collection[bytes]) -> None:
        """Delete contents that no stored record names any more, once their last holder is gone."""
        for name in names:
            # Held for a moment: its end goes through the queue, behind that of every holder.
            HeldContent(self, name)

    def close(self) -> None:
        """Delete what is not needed any more, and end the thread."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._let_go.put(None)
            thread.join()
        self.is_named = lambda _name: True

    def _run(self) -> None:
        left: list[bytes] = []
        while (name := self._let_go.get()) is not None:
            with self._lock:
                self._held[name] -= 1
                is_held = self._held[name] > 0
                if not is_held:
                    del self._held[name]
            if not is_held and not self.is_named(name):
                left.append(name)
            # What cannot be deleted now is tried again with the next content, and at the next start.
            with contextlib.suppress(OSError, StoreError):
                # The newest first, so that one which cannot be deleted does not keep the later ones.
                while left:
                    self.delete(left[-1])
                    left.pop()


class DirectoryContents(Contents):
    """Contents as files of a directory.

    Args:
        path: The directory; it is created with the first content.
        needed: Returns the bytes of free space that the store needs for its own files.
    """

    def __init__(self, path: Path, needed: Callable[[], int] = lambda: 0) -> None:
        super().__init__()
        self._path = path
        self._needed = needed
        self._is_durable = False

    def create(self) -> ContentWriter:
        return _FileWriter(HeldContent(self, uuid4().bytes), self)

    def file_of(self, name: bytes) -> Path:
        return self._path / name.hex()

    def make_room(self, size: int) -> None:
        """Make the directory, and check that its disk has so many bytes for a content."""
        self._path.mkdir(mode=0o700, exist_ok=True)
        require_room(self._path, self._needed() + size)

    def sync(self) -> None:
        """Make the names of the files durable."""
        sync_directory(self._path)
        # The name of the directory, too: the process that made it may have been killed before this.
        if not self._is_durable:
            sync_directory(self._path.parent)
            self._is_durable = True

    def open(self, name: bytes) -> BinaryIO:
        try:
            return self.file_of(name).open("rb")
        except FileNotFoundError as error:
            raise StoreDamaged(
                f"The file {self.file_of(name)} with the attachments of a message is missing.",
                remedy="Restore it from a copy of the store, with its name.",
            ) from error

    def close(self) -> None:
        """See :meth:`Contents.close`. A program may keep a confirmed reply: the last holder deletes its file."""
        is_named = self.is_named
        super().close()
        self._left = {name: count for name, count in self._held.items() if not is_named(name)}

    def delete(self, name: bytes) -> None:
        self.file_of(name).unlink(missing_ok=True)

    def sweep(self) -> None:
        """Delete the files that no record names: a killed process left them."""
        with contextlib.suppress(OSError):
            for file in list(self._path.iterdir()):
                with contextlib.suppress(OSError, ValueError):
                    if not self.is_named(bytes.fromhex(file.name)):
                        file.unlink()


class _FileWriter(Writer):
    def __init__(self, hold: HeldContent, contents: DirectoryContents) -> None:
        super().__init__(hold)
        self._contents = contents
        self._file: io.FileIO | None = None

    def write(self, data: bytes) -> None:
        # Asked at each piece: the disk may fill up during a long content, and the log needs the rest of it.
        self._contents.make_room(len(data))
        if self._file is None:
            self._file = io.FileIO(self._contents.file_of(self.hold.name), "x")
        rest = memoryview(data)
        while rest:
            rest = rest[self._file.write(rest) :]  # a raw file may write less than it was given
        self.size += len(data)

    def finish(self) -> None:
        if self._file is None:
            self.write(b"")  # a stream of unknown length that had nothing
        assert self._file is not None
        # Bytes first, then the names, and only then may a durable record name them.
        os.fsync(self._file.fileno())
        self._file.close()
        self._contents.sync()


class PieceContents(Contents):
    """Contents in pieces of a fixed size. The last piece is smaller, and may be empty.

    Args:
        piece_bytes: Bytes of the other pieces.
    """

    def __init__(self, piece_bytes: int) -> None:
        super().__init__()
        self.piece_bytes = piece_bytes

    @abstractmethod
    def put(self, name: bytes, piece: int, data: bytes) -> None:
        """Make a piece durable. Errors as for :meth:`ContentWriter.write`."""

    @abstractmethod
    def get(self, name: bytes, piece: int) -> bytes:
        """Return a piece; b"" after the last one.

        Raises:
            StoreDamaged: There is no first piece.
        """

    @abstractmethod
    def names(self) -> Iterable[bytes]:
        """Return the names of all contents."""

    def create(self) -> ContentWriter:
        return _PieceWriter(HeldContent(self, uuid4().bytes), self)

    def open(self, name: bytes) -> BinaryIO:
        return cast(BinaryIO, io.BufferedReader(_PieceFile(self, name), _BUFFER))

    def sweep(self) -> None:
        """Delete the contents that no record names: a killed process left them."""
        for name in list(self.names()):
            if not self.is_named(name):
                self.delete(name)


class _PieceWriter(Writer):
    def __init__(self, hold: HeldContent, contents: PieceContents) -> None:
        super().__init__(hold)
        self._contents = contents
        self._pieces = 0
        self._rest = b""

    def write(self, data: bytes) -> None:
        self.size += len(data)
        data, step = self._rest + data, self._contents.piece_bytes
        start = 0
        for start in range(step, len(data) + 1, step):
            self._put(data[start - step : start])
        self._rest = data[start:]

    def _put(self, piece: bytes) -> None:
        self._contents.put(self.hold.name, self._pieces, piece)
        self._pieces += 1

    def finish(self) -> None:
        # Also when it is empty: a content without a first piece counts as lost.
        self._put(self._rest)
        self._rest = b""


class _PieceFile(PositionedFile):
    """A content, read piece by piece; it keeps one piece."""

    def __init__(self, contents: PieceContents, name: bytes) -> None:
        super().__init__()
        self._contents = contents
        self._name = name
        self._piece: tuple[int, bytes] = (-1, b"")

    def _read(self, start: int, size: int) -> bytes:
        number, offset = divmod(start, self._contents.piece_bytes)
        if self._piece[0] != number:
            self._piece = (number, self._contents.get(self._name, number))
        return self._piece[1][offset : offset + size]


class MemoryContents(Contents):
    def __init__(self) -> None:
        super().__init__()
        self._contents: dict[bytes, bytearray] = {}

    def __getstate__(self) -> tuple[Any, ...]:
        """The contents without their holders, for a copy of the store: the simulator makes many."""
        return self._contents, self.is_named

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.__init__()  # type: ignore[misc]
        self._contents, self.is_named = state

    def create(self) -> ContentWriter:
        hold = HeldContent(self, uuid4().bytes)
        self._contents[hold.name] = content = bytearray()
        return _MemoryWriter(hold, content)

    def open(self, name: bytes) -> BinaryIO:
        return io.BytesIO(self._contents[name])

    def delete(self, name: bytes) -> None:
        self._contents.pop(name, None)


class _MemoryWriter(Writer):
    def __init__(self, hold: HeldContent, content: bytearray) -> None:
        super().__init__(hold)
        self._content = content

    def write(self, data: bytes) -> None:
        self._content += data
        self.size += len(data)

    def finish(self) -> None:
        pass
