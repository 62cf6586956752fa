"""A simulated reader outside the endpoint, such as a Spark query.

It reads a queue, lands the records, then moves its cursor. It may die at any moment. It saves the landed records
together with their end offsets; a death loses everything else. It starts at the position its cursor had when it was
created. From there on it must see every record exactly once, whatever the endpoint deletes meanwhile.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NoReturn

from holdfast.core.records import Record
from holdfast.simulation.nodes.node import INBOX, Node
from holdfast.simulation.promises.invariant import InvariantViolation

if TYPE_CHECKING:
    from holdfast.simulation.world import World

INVARIANT = "ReaderSeesAllOnce"
NAME = "reader"
MOST_AT_ONCE = 4
"""The most records it requests at a time."""

At = Callable[[float, Callable[[], Node | None]], None]
"""Schedules a call after a delay in seconds. The call returns the endpoint it changed, or None."""


class Reader:
    """The reader of one endpoint's queue.

    Args:
        world: The world it belongs to.
        node: The endpoint.
        at: Schedules a call.
        chance: Chooses delays and deaths.
        latency: The longest time that a request takes, seconds.
    """

    def __init__(self, world: World, node: Node, at: At, chance: random.Random, latency: float) -> None:
        self._world = world
        self._node = node
        self._at = at
        self._chance = chance
        self._latency = latency
        self._life = 0
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
        """Die and restart."""
        self._world.note(lambda: "the reader dies")
        self._world.count("reader died")
        self.begin()

    @property
    def is_behind(self) -> bool:
        """Whether the queue has records that the reader has not landed."""
        return self.landed is None or any(at < end for at, end in zip(self.landed, self._ends, strict=True))

    @property
    def _ends(self) -> list[int]:
        queues = self._world.ledger.disks[self._node.index].queues
        return [len(queues[partition]) for partition in range(self._node.setup.partitions)]

    def _later(self, call: Callable[[], Node | None]) -> None:
        """Schedule a call that is dropped if the reader dies first."""
        self._at(0.001 + self._chance.random() * self._latency, partial(self._if_alive, self._life, call))

    def _if_alive(self, life: int, call: Callable[[], Node | None]) -> Node | None:
        return call() if life == self._life else None

    def _go_on(self) -> Node | None:
        """Request more records; create the cursor first."""
        node = self._node
        if not node.is_up:
            self._later(self._go_on)
            return None
        queue = node.protocol.inbound.queue
        if self.landed is None:
            stands = queue.advance(NAME, {}, node.now)
            node.protocol.commit.then(partial(self._begun, self._life, [*stands.values()]))
            self._later(self._go_on)
            return node
        for partition, (at, one) in enumerate(zip(self.landed, queue.partitions, strict=True)):
            if at < one.first:
                self._broken(f"records that it has not read are deleted: it is at {at} of partition {partition}")
            if at < one.durable_end:
                end = min(one.durable_end, at + self._chance.randint(1, MOST_AT_ONCE))
                self._later(partial(self._read, node.run, partition, at, end))
                return None
        self._later(self._go_on)
        return None

    def _begun(self, life: int, stands: list[int], now: float) -> None:
        if self.landed is None:
            self._world.note(lambda: f"the reader begins at {stands}")
            self.landed = stands

    def _read(self, run: int, partition: int, start: int, end: int) -> Node | None:
        node = self._node
        self._later(self._go_on)
        if not node.is_up or node.run != run:
            return None
        found = node.store.read(INBOX, partition, start, end)
        if [offset for offset, _ in found] != list(range(start, end)):
            self._broken(f"it asked for {start} to {end} of partition {partition} and got {[at for at, _ in found]}")
        if self._chance.random() < 0.1:
            self.die()  # before anything is landed
            return None
        self._land(partition, found)
        if self._chance.random() < 0.1:
            self.die()  # before the cursor is moved
            return None
        assert self.landed is not None
        node.protocol.inbound.queue.advance(NAME, dict(enumerate(self.landed)), node.now)
        return node

    def _land(self, partition: int, found: list[tuple[int, Record]]) -> None:
        truth = self._world.ledger.disks[self._node.index].queues[partition]
        assert self.landed is not None
        for offset, record in found:
            if offset >= len(truth) or (truth[offset].sequence, truth[offset].body) != (record.sequence, record.body):
                self._broken(f"it reads {record.body.decode()} at offset {offset} of partition {partition}")
        self.landed[partition] += len(found)
        self.records += len(found)
        self._world.note(lambda: f"the reader has landed partition {partition} up to {self.landed}")
        self._world.count("records read")

    def _broken(self, what: str) -> NoReturn:
        raise InvariantViolation(INVARIANT, f"the reader of {self._node.name}: {what}")
