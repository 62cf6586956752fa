"""Space kept in reserve next to a store, in a file that is deleted if a start would fail on a full disk.

RocksDB cannot even open a store on a full disk: it first writes out the content of its logs. Once the reserve is
deleted it can, and readers can drain the store, which frees space. Until there is enough space to fill the reserve
again, the store should accept no new messages.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from holdfast.store import directory

RESERVE_BYTES = 64 << 20
"""Usually enough for the logs' content on a full disk, which is one or two memtables, and for some commits. On a slow
disk the logs may hold more; then the error of a start names the amount."""


class Reserve:
    """The reserve of one store; only the process that holds the store's lock uses it.

    Attributes:
        is_in_use: Whether it was deleted and is not filled again yet.
        is_kept: Whether the store keeps one. A cache does not: its engine writes no logs.
    """

    def __init__(self, store: Path) -> None:
        self._file = store / directory.BALLAST
        self.is_kept = True
        self.is_in_use = False

    @property
    def is_there(self) -> bool:
        return self._file.exists()

    def give_up_if_needed(self) -> None:
        """Delete the reserve if less space is free than it holds."""
        with contextlib.suppress(OSError):  # such a file frees no space; opening reports the error
            if self.is_there and self.free() < RESERVE_BYTES:
                self._file.unlink()
                self.is_in_use = True

    def keep_none(self) -> None:
        """Delete the reserve, and fill it no longer: a cache has no logs to write out, and can be made again."""
        self.is_kept = False
        with contextlib.suppress(OSError):
            self._file.unlink(missing_ok=True)

    def least_free(self, needed: int) -> int:
        """Return the bytes that must be free before the reserve is filled. The engine's space must stay free."""
        return RESERVE_BYTES + max(RESERVE_BYTES, needed)

    def fill(self, needed: int) -> None:
        """Fill the reserve if there is enough space."""
        if self.is_there or not self.is_kept:
            return
        draft = self._file.with_suffix(".new")
        try:
            if self.free() < self.least_free(needed):
                return
            with draft.open("wb") as file:
                os.posix_fallocate(file.fileno(), 0, RESERVE_BYTES)
            draft.replace(self._file)
        except (OSError, AttributeError):  # no space after all, or a file system that cannot reserve any
            with contextlib.suppress(OSError):
                draft.unlink(missing_ok=True)
            return
        self.is_in_use = False

    def free(self) -> int:
        """Return the bytes that are free on the store's disk.

        Raises:
            OSError: The system does not report it.
        """
        space = os.statvfs(self._file.parent)
        return space.f_bavail * space.f_frsize
