"""Limit: how many records a queue may hold before it rejects new ones."""

from __future__ import annotations

from holdfast.core.events import Incident
from holdfast.core.queues.queue import Queue


class QueueLimit:
    """The limit of one queue. A full queue stays full until a sixteenth of the limit is free.

    Args:
        records: Number of records, retained ones included, at which the queue is full.
    """

    def __init__(self, queue: Queue, records: int) -> None:
        self._queue = queue
        self.records = records
        self._is_full = self._is_told = False

    def has_room(self) -> bool:
        held, most = sum(one.end - one.first for one in self._queue.partitions), self.records
        # Full until a sixteenth is free: at the edge, each message would otherwise change the answer to all peers.
        self._is_full = held > most - max(1, most // 16) if self._is_full else held >= most
        return not self._is_full

    def room(self) -> int:
        """Return how many more records the queue accepts."""
        return self.records - sum(one.end - one.first for one in self._queue.partitions) if self.has_room() else 0

    def news(self) -> Incident | None:
        """Return an unreported change: the queue is full, or has room again; None without a change."""
        if self._is_full is self._is_told:
            return None
        self._is_told = self._is_full
        detail = {"queue": self._queue.name, "records": sum(one.end - one.first for one in self._queue.partitions)}
        if self._is_full:
            return Incident("queue.full", level="warning", detail=detail)
        return Incident("queue.writable", detail=detail)
