"""Limit: how many records a queue may hold before it takes nothing new."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.core.events import Effect, Incident


@dataclass(slots=True)
class QueueLimit:
    """The limit of one queue. Once full, it is so until a part of it is free, so that it does not change all the time.

    Args:
        records: With so many, kept ones included, it is full.
    """

    records: int
    is_full: bool = False

    def has_room(self, queue: str, held: int, effects: list[Effect]) -> bool:
        """Whether there is room for one more; told when that changes."""
        is_full = held > self.records - max(1, self.records // 16) if self.is_full else held >= self.records
        if is_full is not self.is_full:
            self.is_full = is_full
            detail = {"queue": queue, "records": held}
            room = Incident("queue has room", detail=detail)
            effects.append(Incident("queue full", level="warning", detail=detail) if is_full else room)
        return not is_full
