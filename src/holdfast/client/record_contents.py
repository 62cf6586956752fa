"""Attachments that a record has in a server's store, read over the data plane, piece by piece."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any, BinaryIO, cast

from holdfast.core.records import Record, content_name, held


class RemoteContent:
    """A content in the store of a server; see :class:`~holdfast.core.records.Hold`. It keeps nothing there.

    Args:
        name: The content's name.
        read: Returns the next bytes from a position, b"" at the end.
    """

    def __init__(self, name: bytes, read: Callable[[int], bytes]) -> None:
        self.name = name
        self._read = read

    def open(self) -> BinaryIO:
        """Return the content as a file. Reading it raises what ``read`` raises."""
        return cast(BinaryIO, _RemoteFile(self._read))


class _RemoteFile(io.RawIOBase):
    """A content as a file, with one piece in memory."""

    def __init__(self, read: Callable[[int], bytes]) -> None:
        self._read = read
        self._at = 0
        self._first, self._piece = 0, b""

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        assert whence == io.SEEK_SET, "the size is in the record"
        self._at = offset
        return offset

    def readinto(self, buffer: Any) -> int:
        skipped = self._at - self._first
        if not 0 <= skipped < len(self._piece):
            self._first, self._piece, skipped = self._at, self._read(self._at), 0
        target = memoryview(buffer).cast("B")
        data = self._piece[skipped : skipped + len(target)]
        target[: len(data)] = data
        self._at += len(data)
        return len(data)


def with_remote_content(record: Record, read: Callable[[int], bytes]) -> Record:
    """Let the attachments of a record from the data plane be read, if they are in the server's store.

    Args:
        record: The record.
        read: Returns the next bytes of its content from a position, b"" at the end.
    """
    if name := content_name(record.attachments):
        record.attachments = held(record.attachments, RemoteContent(name, read))
    return record
