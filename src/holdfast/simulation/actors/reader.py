"""A simulated reader outside the endpoint, such as a Spark query.

It reads a queue, lands the records, then moves its cursor. It may die at any moment. It saves the landed records
together with their end offsets; a death loses everything else. It starts at the position its cursor had when it was
created. From there on it must see every record exactly once, whatever the endpoint deletes meanwhile.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NoReturn

from holdfast.core.queues.queue import Queue
from holdfast.core.records import Record
from holdfast.simulation.nodes.ledger import Queued
from holdfast.simulation.nodes.node import INBOX, Node
from holdfast.simulation.nodes.routed_queues import Kept
from holdfast.simulation.promises.invariant import InvariantViolation

if TYPE_CHECKING:
    from holdfast.simulation.world import World

INVARIANT = "ReaderSeesAllOnce"
NAME = "reader"
MOST_AT_ONCE = 4
"""The most records it requests at a time."""

At = Callable[[float, Callable[[], Node | None]], None]
"""Schedules a call after a delay in seconds. The call returns the endpoint it changed, or None."""


class QueueReader(ABC):
    """A reader of one queue of an endpoint.

    Args:
        world: The world it belongs to.
        name: The name of its cursor.
        who: Its name in a violation.
        at: Schedules a call.
        chance: Chooses delays and deaths.
        latency: The longest time that a request takes, seconds.
    """

    invariant: str
    """The name of the invariant that it checks."""

    def __init__(
        self, world: World, node: Node, queue: str, name: str, who: str, at: At, chance: random.Random, latency: float
    ) -> None:
        self._world = world
        self._node = node
        self._queue_name = queue
        self._name = name
        self._who = who
        self._at = at
        self._chance = chance
        self._latency = latency
        self._life = 0
        self._is_storm = True
        self.is_gone = False
        """Whether the reader has stopped and its cursor may be deleted."""
        self.landed: list[int] | None = None
        """For each partition, the offset up to which records are landed. None: the cursor does not exist yet. On a
        disk."""
        self.records = 0
        """Number of landed records."""

    def begin(self) -> None:
        """Start, or restart after a death; requests in progress are lost."""
        self._life += 1
        self._later(self._go_on)

    def die(self) -> None:
        self._world.note(lambda: f"{self._who} dies")
        self._world.count("reader died")
        self.begin()

    @property
    def is_behind(self) -> bool:
        if self.is_gone or self.landed is None:
            return not self.is_gone
        return any(at < len(self._truth(partition)) for partition, at in enumerate(self.landed))

    @abstractmethod
    def _truth(self, partition: int) -> Sequence[Queued | Kept]:
        """Return every record ever in a partition, according to the disk."""

    @abstractmethod
    def _skip(self, partition: int, first: int) -> None:
        """Continue at the first stored record: earlier ones are deleted."""

    @property
    def _queue(self) -> Queue:
        return self._node.protocol.inbound.queues[self._queue_name]

    def _later(self, call: Callable[[], Node | None], least: float = 0.001) -> None:
        """Schedule a call that is dropped if the reader dies first."""
        self._at(least + self._chance.random() * self._latency, partial(self._if_alive, self._life, call))

    def _if_alive(self, life: int, call: Callable[[], Node | None]) -> Node | None:
        return call() if life == self._life and not self.is_gone else None

    def _dies(self) -> bool:
        if not self._is_storm or self._chance.random() >= 0.1:
            return False
        self.die()
        return True

    def _go_on(self) -> Node | None:
        node = self._node
        if not node.is_up:
            self._later(self._go_on)
            return None
        if self.landed is not None:
            return self._request(self.landed)
        stands = self._queue.advance(self._name, {}, node.now)
        node.protocol.commit.then(partial(self._begun, [*stands.values()]))
        self._later(self._go_on)
        return node

    def _begun(self, stands: list[int], now: float) -> None:
        if self.landed is None:
            self._world.note(lambda: f"{self._who} begins at {stands}")
            self.landed = stands

    def _request(self, landed: list[int]) -> Node | None:
        for partition, (at, one) in enumerate(zip(landed, self._queue.partitions, strict=True)):
            if at < one.first:
                self._skip(partition, one.first)
            elif at < one.durable_end:
                end = min(one.durable_end, at + self._chance.randint(1, MOST_AT_ONCE))
                self._later(partial(self._read, self._node.run, partition, at, end))
                return None
        return self._rest(landed)

    def _rest(self, landed: list[int]) -> Node | None:
        self._later(self._go_on)
        return None

    def _read(self, run: int, partition: int, start: int, end: int) -> Node | None:
        node = self._node
        self._later(self._go_on)
        assert self.landed is not None
        if not node.is_up or node.run != run or self._is_outdated(partition, start):
            return None
        found = node.store.read(self._queue_name, partition, start, end)
        if [offset for offset, _ in found] != list(range(start, end)):
            # The endpoint may delete a record only after the deletion is durable and reported.
            self._broken(f"it asked for {start} to {end} of partition {partition} and got {[at for at, _ in found]}")
        if self._dies():  # before anything is landed
            return None
        self._land(partition, found)
        if self._dies():  # before the cursor is moved
            return None
        return self._settle(dict(enumerate(self.landed)))

    def _is_outdated(self, partition: int, start: int) -> bool:
        return False

    def _land(self, partition: int, found: list[tuple[int, Record]]) -> None:
        truth = self._truth(partition)
        assert self.landed is not None
        for offset, record in found:
            if offset >= len(truth) or (truth[offset].sequence, truth[offset].body) != (record.sequence, record.body):
                self._broken(f"it reads {record.body.decode()} at offset {offset} of partition {partition}")
        self.landed[partition] += len(found)
        self.records += len(found)
        self._world.note(lambda: f"{self._who} has landed partition {partition} up to {self.landed}")
        self._world.count("records read")

    def _settle(self, offsets: dict[int, int]) -> Node | None:
        self._queue.advance(self._name, offsets, self._node.now)
        return self._node

    def _broken(self, what: str) -> NoReturn:
        raise InvariantViolation(self.invariant, f"{self._who}: {what}")


class Reader(QueueReader):
    """The reader of one endpoint's queue. It must see every record; arguments as for :class:`QueueReader`."""

    invariant = INVARIANT

    def __init__(self, world: World, node: Node, at: At, chance: random.Random, latency: float) -> None:
        super().__init__(world, node, INBOX, NAME, f"the reader of {node.name}", at, chance, latency)

    def _truth(self, partition: int) -> list[Queued]:
        return self._world.ledger.disks[self._node.index].queues[partition]

    def _skip(self, partition: int, first: int) -> None:
        self._broken(f"records that it has not read are deleted, below {first} of partition {partition}")
