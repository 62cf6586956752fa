"""Sweep: when an owner copies its content into the log again, and how much with each write.

A log is trimmed up to the beginning of its last complete copy. A copy goes through the keys in their order, a few with
each write, while the content changes: each key is copied as it is at that write, and later changes of it follow in the
log. So a reader that applies the log from the beginning of a copy has the whole content at its end.

The cost stays in proportion: a copy begins when the log since the last one has a few times the size of that copy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from holdfast.store.kafka.frames import Copies, Put
from holdfast.store.kafka.replay import Replay

FEWEST_BYTES: Final = 64 << 20
"""Bytes of a log that need no copy."""
TIMES: Final = 3
"""A copy begins when the log since the last copy is larger than this many times that copy."""
STEP_BYTES: Final = 128 << 10
"""Bytes that a write copies, at least."""

Scan = Callable[[bytes, int], tuple[list[Put], bytes | None]]
"""Given the first key and a number of bytes, returns keys with their values, and the next key."""


class Sweep:
    """The copy of an owner.

    Args:
        replay: What is known of the log.
        fewest: Bytes of a log that need no copy; None for :data:`FEWEST_BYTES`.
        step: Bytes that a write copies, at least; None for :data:`STEP_BYTES`.
    """

    def __init__(self, replay: Replay, fewest: int | None = None, step: int | None = None) -> None:
        self._replay = replay
        self._fewest = FEWEST_BYTES if fewest is None else fewest
        self._step = STEP_BYTES if step is None else step
        self._left = b""

    def part(self, size: int, scan: Scan) -> tuple[Copies, list[Put]]:
        """Return the part of a copy for the next write. Call it once for each write that is then made.

        Args:
            size: Bytes of the write without it.
            scan: Reads the content as it is before the write.
        """
        replay = self._replay
        copies = Copies.CONTINUES
        if not replay.is_copying:
            if replay.since_copy <= max(self._fewest, TIMES * replay.copied):
                return Copies.NONE, []
            copies, self._left = Copies.BEGINS, b""
        # More than the write adds, so that a copy overtakes any growth.
        items, left = scan(self._left, max(self._step, 2 * size))
        if left is None:
            copies |= Copies.ENDS
        else:
            self._left = left
        return copies, items
