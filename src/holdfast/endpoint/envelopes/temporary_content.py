"""Contents in temporary files: of large messages that a process passes on to another one.

A file has no name, so nothing of it is left when its process ends, whatever the reason.
"""

from __future__ import annotations

import io
import os
from tempfile import TemporaryFile
from typing import Any, BinaryIO, cast
from uuid import uuid4

from holdfast.store.contents import require_room

_BUFFER = 256 << 10


class TemporaryContent:
    """A content in a temporary file, which ends with this object. Both the writer and the hold of the content.

    Attributes:
        name: Names no content of a store.
        size: Bytes written.
    """

    def __init__(self) -> None:
        self.name = uuid4().bytes
        self.size = 0
        self._file: io.FileIO | None = None

    @property
    def hold(self) -> TemporaryContent:
        """See :attr:`ContentWriter.hold`."""
        return self

    def write(self, data: bytes) -> None:
        """See :meth:`ContentWriter.write`."""
        if self._file is None:
            self._file = TemporaryFile(buffering=0)  # noqa: SIM115 - it ends with this object
        require_room(self._file.fileno(), len(data))
        rest = memoryview(data)
        while rest:
            rest = rest[self._file.write(rest) :]
        self.size += len(data)

    def finish(self) -> None:
        """See :meth:`ContentWriter.finish`. Nothing is made durable: another process stores the message."""

    def open(self) -> BinaryIO:
        """See :meth:`Hold.open`."""
        return cast(BinaryIO, io.BufferedReader(_Reader(self), _BUFFER))

    def read(self, start: int, size: int) -> bytes:
        """Return some bytes; b"" at the end."""
        return b"" if self._file is None else os.pread(self._file.fileno(), size, start)


class _Reader(io.RawIOBase):
    """A reader of a content, with its position."""

    def __init__(self, content: TemporaryContent) -> None:
        self._content = content
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        origin = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._content.size}[whence]
        self._at = max(0, origin + offset)
        return self._at

    def readinto(self, buffer: Any) -> int:
        target = memoryview(buffer).cast("B")
        data = self._content.read(self._at, len(target))
        target[: len(data)] = data
        self._at += len(data)
        return len(data)
