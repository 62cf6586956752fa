"""Attachments that a record has in a server's store, read over the data plane, piece by piece."""

from __future__ import annotations

from collections.abc import Callable
from typing import BinaryIO, cast

from holdfast.core.records import Record, content_name, held
from holdfast.positioned_file import PositionedFile


class RemoteContent:
    """A content in the store of a server; see :class:`~holdfast.core.records.Hold`. It keeps nothing there.

    Args:
        read: Returns the next bytes from a position, b"" at the end.
    """

    def __init__(self, name: bytes, read: Callable[[int], bytes]) -> None:
        self.name = name
        self._read = read

    def open(self) -> BinaryIO:
        """Return the content as a file. Reading it raises what ``read`` raises."""
        return cast(BinaryIO, _RemoteFile(self._read))


class _RemoteFile(PositionedFile):
    """A content as a file, with one piece in memory."""

    def __init__(self, read: Callable[[int], bytes]) -> None:
        super().__init__()
        self._read_from = read
        self._first, self._piece = 0, b""

    def _read(self, start: int, size: int) -> bytes:
        skipped = start - self._first
        if not 0 <= skipped < len(self._piece):
            self._first, self._piece, skipped = start, self._read_from(start), 0
        return self._piece[skipped : skipped + size]


def with_remote_content(record: Record, read: Callable[[int], bytes]) -> Record:
    """Let the attachments of a record from the data plane be read, if they are in the server's store.

    Args:
        read: Returns the next bytes of its content from a position, b"" at the end.
    """
    if name := content_name(record.attachments):
        record.attachments = held(record.attachments, RemoteContent(name, read))
    return record
