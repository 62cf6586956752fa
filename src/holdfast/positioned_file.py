"""PositionedFile: bytes that are read at any position, as a file. Knows nothing of where the bytes are."""

from __future__ import annotations

import io
from abc import abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer


class PositionedFile(io.RawIOBase):
    """A file to read, with a position.

    Args:
        size: Bytes of the file, to seek from its end; None if that is not known.
    """

    def __init__(self, size: int | None = None) -> None:
        super().__init__()
        self._size = size
        self._at = 0

    @abstractmethod
    def _read(self, start: int, size: int) -> bytes:
        """Return between 1 and ``size`` bytes from a position; b"" at the end."""

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Continue at another position.

        Raises:
            io.UnsupportedOperation: It is relative to the end, which is not known.
        """
        if whence == io.SEEK_END and self._size is None:
            raise io.UnsupportedOperation("the end is not known")
        self._at = max(0, offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size or 0}[whence])
        return self._at

    def readinto(self, buffer: WriteableBuffer) -> int:
        """Fill a buffer, as far as one read does."""
        target = memoryview(buffer).cast("B")
        data = self._read(self._at, len(target))
        target[: len(data)] = data
        self._at += len(data)
        return len(data)
