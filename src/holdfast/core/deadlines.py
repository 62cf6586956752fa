"""Deadlines: many timers in one heap, corrected only when they come due."""

from __future__ import annotations

import heapq


class Deadlines:
    """The next deadline of each key.

    The caller need not report that a deadline moved later: the key then comes due once too early, which costs less than
    a heap operation for every message. The caller must report only an earlier deadline.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, str]] = []
        self._times: dict[str, float] = {}

    def want(self, key: str, time: float | None) -> None:
        """Set the deadline of ``key`` to ``time`` unless it is earlier; None has no effect."""
        if time is None:
            return
        known = self._times.get(key)
        if known is None or time < known:
            self._times[key] = time
            heapq.heappush(self._heap, (time, key))

    def forget(self, key: str) -> None:
        self._times.pop(key, None)

    def next(self) -> float | None:
        """Return the earliest deadline, None without one."""
        # Entries that were forgotten or replaced remain in the heap until they come to its top.
        while self._heap and self._times.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def due(self, now: float) -> list[str]:
        """Return and remove the keys that are due; the caller must call :meth:`want` again for each."""
        keys: list[str] = []
        while (time := self.next()) is not None and time <= now:
            _, key = heapq.heappop(self._heap)
            # Once: the key has a new deadline only if its owner asks for one.
            del self._times[key]
            keys.append(key)
        return keys
