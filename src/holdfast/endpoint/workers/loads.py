"""How many connections each of several workers has: a few numbers in memory that all of them share.

Each writes its own, now and then; who gives one away adds one to the other's. They are hints, and may be wrong for a
moment. Knows no connection.
"""

from __future__ import annotations

import mmap
import struct
from typing import Final

AWAY: Final = 2**31 - 1
"""Of a worker that is not there."""

_NUMBER = struct.Struct("=i")


class Loads:
    """The numbers of all workers, none of whom is there yet. Made before they part.

    Args:
        count: How many workers there are.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._memory = mmap.mmap(-1, _NUMBER.size * count)
        for number in range(count):
            self.set(number, AWAY)

    def set(self, number: int, connections: int) -> None:
        """A worker has so many."""
        _NUMBER.pack_into(self._memory, _NUMBER.size * number, connections)

    def of(self, number: int) -> int:
        """How many a worker has."""
        found: int = _NUMBER.unpack_from(self._memory, _NUMBER.size * number)[0]
        return found

    def least(self) -> int:
        """The worker that has fewest."""
        return min(range(self._count), key=self.of)
