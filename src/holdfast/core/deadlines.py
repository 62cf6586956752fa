"""Deadlines: many timers in one heap, corrected only when they come due."""

from __future__ import annotations

import heapq


class Deadlines:
    """The next time each key wants attention.

    A key's time may move later without a word: it is then looked at once too early, which costs less than a heap
    operation for every message. Only an earlier time must be said.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, str]] = []
        self._times: dict[str, float] = {}

    def want(self, key: str, time: float | None) -> None:
        """Look at ``key`` at ``time`` at the latest; None wants nothing."""
        if time is None:
            return
        known = self._times.get(key)
        if known is None or time < known:
            self._times[key] = time
            heapq.heappush(self._heap, (time, key))

    def forget(self, key: str) -> None:
        """Drop the key's deadline."""
        self._times.pop(key, None)

    def next(self) -> float | None:
        """The earliest deadline, None if there is none."""
        while self._heap and self._times.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def due(self, now: float) -> list[str]:
        """The keys whose time has come; each must say again when it next wants attention."""
        keys: list[str] = []
        while (time := self.next()) is not None and time <= now:
            _, key = heapq.heappop(self._heap)
            del self._times[key]
            keys.append(key)
        return keys
