"""Invariants of several queues: routing to every queue, and deletion by retention and readers.

They apply to the further queues of a destination or a broker, in worlds that have them.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from holdfast.core.queues.retention import RetentionPolicy
from holdfast.core.records import Batch
from holdfast.simulation.nodes.ledger import DurableState, is_row
from holdfast.simulation.nodes.node import INBOX, Node
from holdfast.simulation.nodes.routed_queues import Kept, Place, is_routed
from holdfast.simulation.promises.invariant import Invariant, is_requeued
from holdfast.store.staged import appended

if TYPE_CHECKING:
    from holdfast.simulation.world import World


class RoutedToEvery(Invariant):
    """A message enters every queue of its route in one batch, once, and no other queue; in order if promised."""

    def __init__(self) -> None:
        self._seen: dict[Place, int] = {}
        self._last: dict[tuple[str, str], int] = {}

    def stored(self, world: World, node: Node, batch: Batch) -> None:
        entered: dict[tuple[str, int], list[str]] = defaultdict(list)
        for queue, _, _, record in appended(batch):
            if queue == INBOX or is_routed(queue):
                entered[record.sequence, record.message_number].append(queue)
        for sequence, number, queue, *_ in batch.releases:
            entered[sequence, number].append(queue)
        disk = world.ledger.disks[node.index]
        for (sequence, number), queues in entered.items():
            if not sequence:
                continue  # a plain message has no route
            body = disk.records[sequence, number].body
            if node.setup.forwards and (is_row(body) or is_requeued(world, body)):
                continue  # a row or a requeued dead letter names its queue
            wanted = [INBOX, *node.route_of(body)]
            if sorted(queues) != sorted(wanted):
                self.broken(f"{node.name} puts {number} of {sequence} into {queues}, but its route is {wanted}")
        self._follow(world, node)

    def _follow(self, world: World, node: Node) -> None:
        """Check that the numbers of a Sequence ascend in each queue, if order is promised."""
        in_order = node.setup.destination_policy.assurance.in_order
        for place, records in world.ledger.disks[node.index].routed.records.items():
            for kept in records[self._seen.get(place, 0) :]:
                last = self._last.get((place[0], kept.sequence), 0)
                if in_order and kept.number <= last:
                    self.broken(f"{place[0]} gets {kept.number} of {kept.sequence} after {last}")
                self._last[place[0], kept.sequence] = kept.number
            self._seen[place] = len(records)


class RetentionKeepsItsWord(Invariant):
    """A record is deleted when the retention allows it and every named reader has passed it.

    A reader protects records only up to its own limits.
    """

    def __init__(self) -> None:
        self._firsts: dict[Place, int] = {}

    def stored(self, world: World, node: Node, batch: Batch) -> None:
        if node.setup.forwards:
            return  # its forwarders decide when records are deleted: see EveryForwarderSendsItsQueue
        policy, routed = node.setup.routed_retention, world.ledger.disks[node.index].routed
        for place in batch.trims:
            first, before = routed.firsts.get(place, 0), self._firsts.get(place, 0)
            self._firsts[place] = first
            if first <= before:
                continue
            gone, held = routed.records[place][before:first], routed.held(place[0])
            if not self._may_go(world, node, gone, held, policy.age, policy.size):
                self.broken(f"{place} is trimmed to {first}: {held} bytes are left, and the retention is {policy}")
            self._look_at_readers(world, node, place, held, policy)

    def _look_at_readers(self, world: World, node: Node, place: Place, held: int, policy: RetentionPolicy) -> None:
        routed = world.ledger.disks[node.index].routed
        first = self._firsts[place]
        for (queue, partition, name), position in routed.cursors.items():
            if (queue, partition) != place or position >= first:
                continue
            unread = routed.records[place][position:first]
            if not self._may_go(world, node, unread, held, policy.reader_age, policy.reader_size):
                self.broken(f"{place} is trimmed to {first}, the reader {name!r} is at {position}; retention: {policy}")

    @staticmethod
    def _may_go(world: World, node: Node, gone: list[Kept], held: int, age: float | None, size: int | None) -> bool:
        """Whether the deletion leaves enough bytes for the size limit, or the age limit allows every record to go."""
        if size is not None and held >= size:
            return True
        if age is None:
            return False
        # After a clock change, the endpoint cannot know the age of earlier records.
        return world.clock.differs(node.index) or all(one.delivered_at <= node.now - age for one in gone)


class CursorsAreTheReaders(Invariant):
    """A reader's durable cursor goes back only at its reader's request."""

    def __init__(self) -> None:
        self._stood: dict[tuple[str, int, str], int] = {}

    def stored(self, world: World, node: Node, batch: Batch) -> None:
        cursors = world.ledger.disks[node.index].routed.cursors
        for key in batch.cursors:
            if key not in cursors:
                self._stood.pop(key, None)
                continue
            stands, stood = cursors[key], self._stood.get(key, 0)
            if stands < stood and stands not in world.ledger.put_back.get(key, ()):
                self.broken(f"the cursor {key} goes back from {stood} to {stands} without a request")
            self._stood[key] = stands


class EveryForwarderSendsItsQueue(Invariant):
    """A forwarder sends its queue, and no other.

    Its service gets each message once, in order if promised, and the broker deletes only messages that the service has.
    """

    def __init__(self) -> None:
        self._places: dict[bytes, tuple[int, int]] = {}
        """Message -> the partition and the offset in the broker's queue."""
        self._known: dict[int, int] = {}
        self._next: dict[int, int] = {}
        self._came: set[bytes] = set()
        self._seen = 0
        self._deleted: dict[Place, int] = {}

    def stored(self, world: World, node: Node, batch: Batch) -> None:
        if world.broker is not None:
            self._compare(world, node, *world.broker)
        elif node.setup.forwards:
            self._look_at_trims(world, node, batch)

    def _compare(self, world: World, node: Node, queue: str, broker: DurableState) -> None:
        for (name, partition), records in broker.routed.records.items():
            if name == queue:
                for offset in range(self._known.get(partition, 0), len(records)):
                    self._places[records[offset].body] = (partition, offset)
                self._known[partition] = len(records)
        came = world.ledger.disks[node.index].queues[0]
        for queued in came[self._seen :]:
            place = self._places.get(queued.body)
            if place is None:
                self.broken(f"{node.name} gets {queued.body.decode()}, which is not in {queue}")
            if queued.body in self._came:
                self.broken(f"{node.name} gets {queued.body.decode()} of {queue} twice")
            self._came.add(queued.body)
            partition, offset = place
            expected = self._next.get(partition, 0)
            if node.setup.destination_policy.assurance.in_order and offset != expected:
                self.broken(f"{node.name} gets offset {offset} of {queue}, partition {partition}, before {expected}")
            self._next[partition] = offset + 1
        self._seen = len(came)

    def _look_at_trims(self, world: World, node: Node, batch: Batch) -> None:
        records = world.ledger.disks[node.index].routed.records
        for place, first in batch.trims.items():
            if not is_routed(place[0]):
                continue
            service = world.services[place[0]]
            for kept in records[place][self._deleted.get(place, 0) : first]:
                if not service.ledger.has_arrived(1, kept.body):
                    self.broken(f"{node.name} deletes {kept.body.decode()} of {place}, which has not arrived")
            self._deleted[place] = first


ROUTED_INVARIANTS: tuple[type[Invariant], ...] = (
    RoutedToEvery,
    RetentionKeepsItsWord,
    CursorsAreTheReaders,
    EveryForwarderSendsItsQueue,
)
"""Every invariant of further queues."""
