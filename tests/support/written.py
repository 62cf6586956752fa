"""A transport without a network, which keeps what is written."""

from __future__ import annotations

import asyncio


class Written(asyncio.Transport):
    """Keeps what a protocol writes.

    Attributes:
        writes: How often it has written.
        is_paused: Whether it wants to read no more for now.
        is_aborted: Whether it has ended the connection at once.
    """

    def __init__(self) -> None:
        super().__init__()
        self._data: list[bytes] = []
        self.writes = 0
        self.is_paused = self.is_aborted = self._is_closing = False

    def taken(self) -> list[bytes]:
        """Return what was written since the last call."""
        taken, self._data = self._data, []
        return taken

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._is_closing:  # as uvloop does
            raise RuntimeError("the handler is closed")
        self.writes += 1
        self._data.append(bytes(data))

    def pause_reading(self) -> None:
        assert not self.is_paused
        self.is_paused = True

    def resume_reading(self) -> None:
        assert self.is_paused
        self.is_paused = False

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        self._is_closing = True

    def abort(self) -> None:
        self.is_aborted = self._is_closing = True
