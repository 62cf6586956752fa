"""Number of connections of each worker, in memory that all workers share.

Each worker writes its own number occasionally. A worker that transfers a connection increments the number of the
recipient. The numbers are hints, and may be wrong for a moment. This module handles no connections.
"""

from __future__ import annotations

import mmap
import struct
from typing import Final

AWAY: Final = 2**31 - 1
"""Number of a worker that does not run."""

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
        """Set the number of connections of a worker."""
        _NUMBER.pack_into(self._memory, _NUMBER.size * number, connections)

    def of(self, number: int) -> int:
        """Return the number of connections of a worker."""
        found: int = _NUMBER.unpack_from(self._memory, _NUMBER.size * number)[0]
        return found

    def least(self) -> int:
        """Return the worker with the fewest connections."""
        return min(range(self._count), key=self.of)
