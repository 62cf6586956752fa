"""Rates of queues and cursors: sampled occasionally, reported as records per second over the last minute."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable

from holdfast.core.queues.queue import Queue

EVERY = 5.0
"""Seconds between two looks."""
SPAN = 60.0
"""Period of a rate in seconds."""

Look = tuple[float, dict[str, int], dict[tuple[str, str], int]]
"""Time of a sample, the end of each queue, and the position of each cursor, summed over all partitions."""


class Rates:
    """Rates of the queues of one endpoint."""

    def __init__(self, queues: Callable[[], Iterable[Queue]], clock: Callable[[], float]) -> None:
        self._queues = queues
        self._clock = clock
        self._looks: deque[Look] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(EVERY, self.start)
        self.look()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def look(self) -> None:
        now = self._clock()
        ends, places = {}, {}
        for queue in self._queues():
            ends[queue.name] = sum(queue.records.ends)
            for cursor in queue.cursors.values():
                places[queue.name, cursor.name] = sum(cursor.offsets.values())
        self._looks.append((now, ends, places))
        # The oldest kept look is just beyond the span, so that a rate covers all of it.
        while len(self._looks) > 2 and self._looks[1][0] <= now - SPAN:
            self._looks.popleft()

    def of_queue(self, queue: Queue) -> float | None:
        """Return the received records per second; None while unknown."""
        at, ends, _ = self._looks[0] if self._looks else (0.0, {}, {})
        return self._rate(at, ends.get(queue.name), sum(queue.records.ends))

    def of_cursor(self, queue: Queue, name: str) -> float | None:
        """Return the records per second that a cursor passed, negative if it moved back; None while unknown."""
        at, _, places = self._looks[0] if self._looks else (0.0, {}, {})
        cursor = queue.cursors.get(name)
        return self._rate(at, places.get((queue.name, name)), sum(cursor.offsets.values()) if cursor else None)

    def _rate(self, at: float, before: int | None, after: int | None) -> float | None:
        seconds = self._clock() - at
        if before is None or after is None or seconds < 1.0:
            return None
        return (after - before) / seconds
