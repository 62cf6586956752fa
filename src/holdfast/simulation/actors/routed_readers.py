"""Simulated readers of a destination's further queues: a fast, a slow, a rewinding and a forgotten one.

Each reader has its own cursor in every further queue. It requests records, lands them, then settles them, which moves
its cursor. A settlement may be lost, may arrive twice, and may arrive after a later one. A reader may die at any
moment; landed records survive. If the retention stops protecting unread records, a reader may lose some. The endpoint
must then have reported how many.
"""

from __future__ import annotations

import random
from functools import partial
from typing import TYPE_CHECKING

from holdfast.simulation.actors.reader import At, QueueReader
from holdfast.simulation.nodes.node import Node
from holdfast.simulation.nodes.routed_queues import Kept

if TYPE_CHECKING:
    from holdfast.simulation.world import World

INVARIANT = "ReadersSeeAllOnce"
FAST, SLOW, BACK, FORGOTTEN = "fast", "slow", "back", "forgotten"
LATENCY = {FAST: 0.1, SLOW: 4.0, BACK: 1.0, FORGOTTEN: 1.0}
"""The longest time that a request of each reader takes, seconds."""
PAUSE = 1.0
"""Seconds before a reader that has read everything asks again."""
SHORT_AGE = 60.0
"""Seconds. The endpoint deletes records with this retention or a shorter one while the world heals."""
LARGEST_RECORD = 300
"""Upper bound of a record's size in bytes, as the retention counts it. Bodies are short here."""
MOST_RETURNS = 2
"""How many times a reader rewinds."""


class RoutedReader(QueueReader):
    """One reader of one further queue.

    Args:
        world: The world it belongs to.
        name: The reader's name, which selects its behavior.
        at: Schedules a call.
        chance: Chooses delays, losses and deaths.
    """

    invariant = INVARIANT

    def __init__(self, world: World, node: Node, queue: str, name: str, at: At, chance: random.Random) -> None:
        super().__init__(world, node, queue, name, f"the reader {name!r} of {queue}", at, chance, LATENCY[name])
        self._era = 0
        """Number of rewinds. Late settlements from an earlier era are dropped, because the reader has rewound since."""
        self._returns = 0
        self._is_returning = False
        self._missed: dict[int, int] = {}
        """Partition -> records deleted before the reader requested them."""

    def heal(self) -> None:
        """Stop losses and deaths. The forgotten reader stops, and an operator deletes its cursor."""
        self._is_storm = False
        if self._name == FORGOTTEN:
            self.is_gone = True

    def drop(self) -> Node | None:
        """Delete the forgotten reader's cursor, as an operator does."""
        if not self.is_gone or self._name not in self._queue.cursors:
            return None
        self._world.count("cursors deleted")
        self._queue.drop_cursor(self._name, self._node.now)
        return self._node

    def _truth(self, partition: int) -> list[Kept]:
        return self._world.ledger.disks[self._node.index].routed.records[self._queue_name, partition]

    def _request(self, landed: list[int]) -> Node | None:
        if self._name not in self._queue.cursors:
            self._broken("its cursor, which was durable, is gone")
        if self._name == BACK and self._returns < MOST_RETURNS and self._chance.random() < 0.1:
            return self._go_back()
        return super()._request(landed)

    def _rest(self, landed: list[int]) -> Node | None:
        self._later(self._go_on, PAUSE)
        offsets = self._queue.cursors[self._name].offsets
        if any(offsets[number] < at for number, at in enumerate(landed)):
            return self._settle(dict(enumerate(landed)))  # the last settlement was lost
        return None

    def _go_back(self) -> Node:
        """Rewind: stop the reader and move its cursor to an earlier record."""
        assert self.landed is not None
        self._returns += 1
        self._era += 1
        self._is_returning = True
        self._world.count("readers went back")
        for partition, at in enumerate(self.landed):
            stands = self._queue.put_cursor(self._name, partition, self._chance.randint(0, at), self._node.now)
            key = (self._queue_name, partition, self._name)
            self._world.ledger.put_back.setdefault(key, set()).add(stands)
            self._node.protocol.commit.then(partial(self._is_back, partition, stands))
        self._later(partial(self._go_on_there, self._node.run))
        return self._node

    def _is_back(self, partition: int, stands: int, now: float) -> None:
        assert self.landed is not None
        self._is_returning = False
        self.landed[partition] = min(stands, self.landed[partition])

    def _go_on_there(self, run: int) -> Node | None:
        """Wait until the new cursor is durable or the endpoint has crashed; settle nothing before."""
        if self._is_returning and self._node.is_up and self._node.run == run:
            self._later(partial(self._go_on_there, run))
            return None
        return self._go_on()

    # --- records --------------------------------------------------------------------------------------------------

    def _skip(self, partition: int, first: int) -> None:
        """Continue at the first stored record; the endpoint must have reported the deleted ones."""
        assert self.landed is not None
        key = (self._queue_name, partition, self._name)
        missed = self._missed[partition] = self._missed.get(partition, 0) + first - self.landed[partition]
        if self._world.ledger.left_behind.get(key, 0) < missed:
            self._broken(f"{missed} records of partition {partition} are deleted, and the endpoint did not report them")
        self._world.count("records missed, and reported")
        self.landed[partition] = first

    def _is_outdated(self, partition: int, start: int) -> bool:
        """Whether the reader has rewound, or the retention deleted the records: the next request skips them."""
        assert self.landed is not None
        return self.landed[partition] != start or start < self._queue.partitions[partition].first

    def _settle(self, offsets: dict[int, int]) -> Node | None:
        """Move the cursor: immediately, late, twice or, during the storm, never."""
        # Below 0.3, a late settlement follows. From 0.1 to 0.2 it is the only one; otherwise the cursor moves now, too.
        chance = self._chance.random() if self._is_storm else 1.0
        if chance < 0.3:
            delay = self._chance.random() * 2 * self._latency
            self._at(delay, partial(self._settled_late, self._era, offsets))
        if 0.1 < chance < 0.2:
            return None
        self._queue.advance(self._name, offsets, self._node.now)
        return self._node

    def _settled_late(self, era: int, offsets: dict[int, int]) -> Node | None:
        if not self._node.is_up or self.is_gone or era != self._era:
            return None
        self._world.count("settlements that came late")
        self._queue.advance(self._name, offsets, self._node.now)
        return self._node


class RoutedReaders:
    """Every reader of every further queue of one endpoint, and the final check of the queues."""

    def __init__(self, world: World, node: Node, at: At, chance: random.Random) -> None:
        self._world = world
        self._node = node
        names = (FAST, SLOW, BACK, FORGOTTEN)
        self._readers = [
            RoutedReader(world, node, queue, name, at, chance) for queue in node.setup.routed for name in names
        ]

    def begin(self) -> None:
        for reader in self._readers:
            reader.begin()

    def heal(self) -> None:
        """End the storm for all of them."""
        for reader in self._readers:
            reader.heal()

    def missing(self) -> str | None:
        """Describe unfinished work; None if every record is read and every expired record is deleted."""
        if not self._node.is_up:
            return "the destination is down"
        for reader in self._readers:
            if reader.drop() is not None:
                self._world.settle(self._node)
        behind = next((reader for reader in self._readers if reader.is_behind), None)
        if behind is not None:
            return f"the reader {behind._name!r} of {behind._queue_name} has not read everything"
        return next((kept for queue in self._node.setup.routed if (kept := self._kept(queue)) is not None), None)

    def _kept(self, queue: str) -> str | None:
        """Describe records that the retention should have deleted.

        Retention by size deletes at a mark, and marks are at most one record apart. It counts the newest record of a
        partition only when the next one arrives. So each partition may exceed the limit by one record, plus one for the
        mark.
        """
        routed, policy = self._world.ledger.disks[self._node.index].routed, self._node.setup.routed_retention
        held = routed.held(queue)
        slack = LARGEST_RECORD * (1 + self._node.setup.partitions)
        if policy.size is not None and held > policy.size + slack:
            return f"{queue} holds {held} bytes, and its retention is {policy}"
        is_over = policy.age is not None and policy.age <= SHORT_AGE
        if is_over and held and not self._world.clock.differs(self._node.index):
            return f"{queue} holds {held} bytes, and its retention is {policy}"
        return None
