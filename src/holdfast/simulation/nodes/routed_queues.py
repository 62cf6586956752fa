"""The further queues of a simulated destination or broker: their routes, and their content according to the disk.

A message's body decides its route, so every run of the endpoint routes a repeat in the same way. Each route also
contains the endpoint's first queue; other invariants check the records there. A broker has a forwarder for each further
queue, and each forwarder sends to a separate service.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import NamedTuple
from zlib import crc32

from holdfast.core.queues.retention import RECORD_BYTES
from holdfast.core.records import Batch, Record
from holdfast.store.staged import appended

PREFIX = "routed-"
"""Prefix of a further queue's name; its number follows."""
LEFT_BEHIND = "reader.left_behind"
"""The incident that reports how many records a reader has missed."""

Place = tuple[str, int]
"""A queue's name and a partition."""


def names_of(count: int) -> tuple[str, ...]:
    """Return the names of this many further queues."""
    return tuple(f"{PREFIX}{number}" for number in range(count))


def service_address(queue: str) -> str:
    """Return the address of the service that gets the messages of a broker's further queue."""
    return f"http://service-of-{queue}.test/"


def is_routed(queue: str) -> bool:
    return queue.startswith(PREFIX)


def route_of(body: bytes, names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the further queues of a message: none, some or all of ``names``."""
    chosen = crc32(body) % (1 << len(names))
    return tuple(name for number, name in enumerate(names) if chosen >> number & 1)


class Kept(NamedTuple):
    """A record of a further queue.

    Args:
        sequence, number: Its Sequence and its number there.
        size: Bytes, as the retention counts them.
        delivered_at: When it entered the queue, by the destination's clock.
    """

    sequence: str
    number: int
    body: bytes
    size: int
    delivered_at: float


@dataclass(slots=True)
class RoutedQueues:
    """The content of one disk's further queues, now and in the past."""

    records: dict[Place, list[Kept]] = field(default_factory=lambda: defaultdict(list))
    """Every record ever stored there, in order."""
    firsts: dict[Place, int] = field(default_factory=dict)
    """The first offset still stored."""
    cursors: dict[tuple[str, int, str], int] = field(default_factory=dict)
    """Queue, partition and reader -> the reader's cursor."""

    def apply(self, batch: Batch, records: dict[tuple[str, int], Record]) -> None:
        """Apply a durable batch.

        Args:
            records: Every message that was ever durable there, to look up released messages.
        """
        placed = [
            (queue, partition, offset, record, record.delivered_at)
            for queue, partition, offset, record in appended(batch)
            if is_routed(queue)
        ]
        placed += [
            (queue, partition, offset, records[sequence, number], now)
            for sequence, number, queue, partition, offset, now in batch.releases
            if is_routed(queue)
        ]
        for queue, partition, offset, record, at in sorted(placed, key=lambda one: one[:3]):
            there = self.records[queue, partition]
            assert offset == len(there), (queue, partition, offset)
            size = len(record.body) + len(record.headers) + RECORD_BYTES
            there.append(Kept(record.sequence, record.message_number, record.body, size, at))
        for (queue, partition, name), state in batch.cursors.items():
            if is_routed(queue) and "/" not in name:
                if state is None:
                    self.cursors.pop((queue, partition, name), None)
                else:
                    self.cursors[queue, partition, name] = state["offset"]
        for place, first in batch.trims.items():
            if is_routed(place[0]):
                self.firsts[place] = max(first, self.firsts.get(place, 0))

    def held(self, queue: str) -> int:
        places = [place for place in self.records if place[0] == queue]
        return sum(one.size for place in places for one in self.records[place][self.firsts.get(place, 0) :])
