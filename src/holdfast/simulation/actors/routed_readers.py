"""Simulated readers of a destination's further queues: a fast, a slow, a rewinding and a forgotten one.

Each reader has its own cursor in every further queue. It requests records, lands them, then settles them, which moves
its cursor. A settlement may be lost, may arrive twice, and may arrive after a later one. A reader may die at any
moment; landed records survive. If the retention stops protecting unread records, a reader may lose some. The endpoint
must then have reported how many.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NoReturn

from holdfast.core.queues.queue import Queue
from holdfast.core.records import Record
from holdfast.simulation.actors.reader import At
from holdfast.simulation.nodes.node import Node
from holdfast.simulation.promises.invariant import InvariantViolation

if TYPE_CHECKING:
    from holdfast.simulation.world import World

INVARIANT = "ReadersSeeAllOnce"
FAST, SLOW, BACK, FORGOTTEN = "fast", "slow", "back", "forgotten"
LATENCY = {FAST: 0.1, SLOW: 4.0, BACK: 1.0, FORGOTTEN: 1.0}
"""The longest time that a request of each reader takes, seconds."""
PAUSE = 1.0
"""Seconds before a reader that has read everything asks again."""
MOST_AT_ONCE = 4
"""The most records a reader requests at a time."""
SHORT_AGE = 60.0
"""Seconds. The endpoint deletes records with this retention or a shorter one while the world heals."""
LARGEST_RECORD = 300
"""Upper bound of a record's size in bytes, as the retention counts it. Bodies are short here."""
MOST_RETURNS = 2
"""How many times a reader rewinds."""


class RoutedReader:
    """One reader of one further queue.

    Args:
        world: The world it belongs to.
        node: The endpoint.
        queue: The queue's name.
        name: The reader's name, which selects its behavior.
        at: Schedules a call.
        chance: Chooses delays, losses and deaths.
    """

    def __init__(self, world: World, node: Node, queue: str, name: str, at: At, chance: random.Random) -> None:
        self._world = world
        self._node = node
        self._name = name
        self._at = at
        self._chance = chance
        self._queue_name = queue
        self._life = 0
        self._era = 0
        """Number of rewinds. Late settlements from an earlier era are dropped, because the reader has rewound since."""
        self._returns = 0
        self._is_returning = False
        self._missed: dict[int, int] = {}
        """Partition -> records deleted before the reader requested them."""
        self._is_storm = True
        self.is_gone = False
        """Whether the reader has stopped and its cursor may be deleted."""
        self.landed: list[int] | None = None
        """For each partition, the offset up to which records are landed. None: the cursor does not exist yet. On a
        disk."""

    def begin(self) -> None:
        """Start, or restart after a death."""
        self._life += 1
        self._later(self._go_on)

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

    @property
    def _queue(self) -> Queue:
        return self._node.protocol.inbound.queues[self._queue_name]

    @property
    def is_behind(self) -> bool:
        """Whether the queue has records that the reader has not landed."""
        if self.is_gone:
            return False
        return self.landed is None or any(at < end for at, end in zip(self.landed, self._ends, strict=True))

    @property
    def _ends(self) -> list[int]:
        records = self._world.ledger.disks[self._node.index].routed.records
        return [len(records[self._queue_name, number]) for number in range(self._node.setup.partitions)]

    # --- its life -------------------------------------------------------------------------------------------------

    def _later(self, call: Callable[[], Node | None], least: float = 0.001) -> None:
        """Schedule a call that is dropped if the reader dies first."""
        delay = least + self._chance.random() * LATENCY[self._name]
        self._at(delay, partial(self._if_alive, self._life, call))

    def _if_alive(self, life: int, call: Callable[[], Node | None]) -> Node | None:
        return call() if life == self._life and not self.is_gone else None

    def _dies(self) -> bool:
        if not self._is_storm or self._chance.random() >= 0.1:
            return False
        self._world.count("reader died")
        self.begin()
        return True

    def _go_on(self) -> Node | None:
        """Request more records; create the cursor first, or rewind."""
        node = self._node
        if not node.is_up:
            self._later(self._go_on)
            return None
        if self.landed is None:
            stands = self._queue.advance(self._name, {}, node.now)
            node.protocol.commit.then(partial(self._begun, [*stands.values()]))
            self._later(self._go_on)
            return node
        cursor = self._queue.cursors.get(self._name)
        if cursor is None:
            self._broken("its cursor, which was durable, is gone")
        if self._name == BACK and self._returns < MOST_RETURNS and self._chance.random() < 0.1:
            return self._go_back()
        for partition, (at, one) in enumerate(zip(self.landed, self._queue.partitions, strict=True)):
            if at < one.first:
                self._skip(partition, one.first)
            elif at < one.durable_end:
                end = min(one.durable_end, at + self._chance.randint(1, MOST_AT_ONCE))
                self._later(partial(self._read, node.run, partition, at, end))
                return None
        self._later(self._go_on, PAUSE)
        if any(cursor.offsets[number] < at for number, at in enumerate(self.landed)):
            return self._settle(dict(enumerate(self.landed)))  # the last settlement was lost
        return None

    def _begun(self, stands: list[int], now: float) -> None:
        if self.landed is None:
            self.landed = stands

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

    def _read(self, run: int, partition: int, start: int, end: int) -> Node | None:
        node = self._node
        self._later(self._go_on)
        assert self.landed is not None
        if not node.is_up or node.run != run or self.landed[partition] != start:
            return None
        if start < self._queue.partitions[partition].first:
            return None  # the retention deleted them meanwhile: the next request skips them
        found = node.store.read(self._queue_name, partition, start, end)
        if [offset for offset, _ in found] != list(range(start, end)):
            # The endpoint may delete a record only after the deletion is durable and reported; the next request then
            # skips it.
            self._broken(f"it asked for {start} to {end} of partition {partition} and got {[at for at, _ in found]}")
        if self._dies():
            return None
        self._land(partition, found)
        if self._dies():
            return None
        return self._settle(dict(enumerate(self.landed)))

    def _land(self, partition: int, found: list[tuple[int, Record]]) -> None:
        truth = self._world.ledger.disks[self._node.index].routed.records[self._queue_name, partition]
        assert self.landed is not None
        for offset, record in found:
            if offset >= len(truth) or (truth[offset].sequence, truth[offset].body) != (record.sequence, record.body):
                self._broken(f"it reads {record.body.decode()} at offset {offset} of partition {partition}")
        self.landed[partition] += len(found)
        self._world.count("records read")

    def _settle(self, offsets: dict[int, int]) -> Node | None:
        """Move the cursor: immediately, late, twice or, during the storm, never."""
        # Below 0.3, a late settlement follows. From 0.1 to 0.2 it is the only one; otherwise the cursor moves now, too.
        chance = self._chance.random() if self._is_storm else 1.0
        if chance < 0.3:
            delay = self._chance.random() * 2 * LATENCY[self._name]
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

    def _broken(self, what: str) -> NoReturn:
        raise InvariantViolation(INVARIANT, f"the reader {self._name!r} of {self._queue_name}: {what}")


class RoutedReaders:
    """Every reader of every further queue of one endpoint, and the final check of the queues.

    Args:
        world: The world they belong to.
        node: The endpoint.
        at: Schedules a call.
        chance: Decides for all of them.
    """

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
