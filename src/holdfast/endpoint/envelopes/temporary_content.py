"""Contents in temporary files: of large messages that a process passes on to another one.

A file has no name, so nothing of it is left when its process ends, whatever the reason.
"""

from __future__ import annotations

import io
import os
from tempfile import TemporaryFile
from typing import BinaryIO, cast
from uuid import uuid4

from holdfast.positioned_file import PositionedFile
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


class _Reader(PositionedFile):
    """A reader of a content, with its position."""

    def __init__(self, content: TemporaryContent) -> None:
        super().__init__(content.size)
        self._content = content

    def _read(self, start: int, size: int) -> bytes:
        return self._content.read(start, size)
