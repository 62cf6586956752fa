"""Invariants of what the application gets: each message once, in order, or as a dead letter."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from holdfast.core.events import Handle
from holdfast.core.policy import Delivery
from holdfast.core.queues.description import DEAD_LETTERS
from holdfast.core.ranges import AcknowledgementRanges
from holdfast.core.records import Batch
from holdfast.core.sending.outboxes.records import outbox_queue
from holdfast.simulation.nodes.ledger import DurableState, Queued, Where, is_reply, is_row, is_staged
from holdfast.simulation.nodes.node import INBOX, SECOND_OUTBOX, Node
from holdfast.simulation.nodes.routed_queues import is_routed
from holdfast.simulation.promises.invariant import (
    Invariant,
    is_requeued,
    repeats,
    skips,
)

if TYPE_CHECKING:
    from holdfast.simulation.world import World


class ForwardedInOrder(Invariant):
    """If order is promised, the destination gets a Sequence's messages in the order of their broker numbers."""

    def __init__(self) -> None:
        self._seen = 0
        self._last: dict[str, int] = {}

    def stored(self, world: World, node: Node, batch: Batch) -> None:
        broker = world.nodes[node.index - 1]
        if not broker.setup.forwards or node.setup.partitions != 1:
            return
        if not node.setup.destination_policy.assurance.in_order:
            return
        came = world.ledger.disks[broker.index].by_body
        arrived = world.ledger.disks[node.index].queues[0]
        for queued in arrived[self._seen :]:
            if (world.service is not None and queued.body in world.service.refused) or is_requeued(world, queued.body):
                continue  # the service accepted the messages behind it without waiting for it
            sequence, number = came[queued.body]
            if number <= self._last.get(sequence, 0):
                self.broken(
                    f"{node.name} queues {number} of {sequence} after {self._last[sequence]}, unlike the broker"
                )
            self._last[sequence] = number
        self._seen = len(arrived)


class SessionsApart(Invariant):
    """No Sequence at the destination mixes two sessions if one ended at the broker before the other began."""

    def __init__(self) -> None:
        self._over: set[str] = set()
        self._over_before: dict[str, set[str]] = {}
        """Session -> the sessions that had ended when its first message entered the queue."""
        self._carried: dict[str, set[str]] = defaultdict(set)
        """Sequence at the destination -> the sessions of the messages in it."""

    def stored(self, world: World, node: Node, batch: Batch) -> None:
        if node.setup.sessions:
            self._note(node, batch)
        elif node.index and world.nodes[node.index - 1].setup.sessions:
            came = world.ledger.disks[node.index - 1].by_body
            (broker,) = (one for one in world.watches[node.index - 1].stored if isinstance(one, SessionsApart))
            for queue, _, _, record in batch.appends:
                session = came[record.body][0] if queue == INBOX and record.body in came else ""
                if session in broker._over_before:
                    self._carried[record.sequence].add(session)
                    self._check(node, record.sequence, broker._over_before)

    def _note(self, node: Node, batch: Batch) -> None:
        first = node.setup.partitions
        came = [record.sequence for queue, at, _, record in batch.appends if queue == INBOX and at >= first]
        came += [sequence for sequence, _, queue, at, _, _ in batch.releases if queue == INBOX and at >= first]
        for session in came:
            self._over_before.setdefault(session, set(self._over))
            if session in self._over:  # held messages and requeued dead letters arrive after the session's end
                for over in self._over_before.values():
                    over.discard(session)
        self._over |= {name for name, state in batch.sequences.items() if state and state.get("ended_at") is not None}

    def _check(self, node: Node, sequence: str, over_before: dict[str, set[str]]) -> None:
        sessions = self._carried[sequence]
        for session in sessions:
            if mixed := sessions & over_before[session]:
                self.broken(f"{node.name} gets {session} in {sequence}, which brought {sorted(mixed)}, ended before")


class AtMostOnce(Invariant):
    """No message is twice in a queue, unless the source's application requested or allowed the repeat."""

    def __init__(self) -> None:
        self._keys: set[tuple[str, int]] = set()
        self._bodies: set[bytes] = set()
        self._seen: dict[int, int] = {}

    def stored(self, world: World, node: Node, batch: Batch) -> None:
        keys, bodies, seen = self._keys, self._bodies, self._seen
        for partition, records in world.ledger.disks[node.index].queues.items():
            for queued in records[seen.get(partition, 0) :]:
                if node.setup.forwards and is_requeued(world, queued.body):
                    continue  # an operator requeued the dead letter
                key = (queued.sequence, queued.number)
                if queued.sequence and key in keys:
                    self.broken(f"{node.name} delivers {queued.number} of {queued.sequence} twice")
                if queued.body in bodies and not self._may_repeat(world, queued.body):
                    self.broken(f"{node.name} delivers {queued.body.decode()} twice")
                keys.add(key)
                bodies.add(queued.body)
            seen[partition] = len(records)

    @staticmethod
    def _may_repeat(world: World, body: bytes) -> bool:
        in_doubt = world.ledger.words[0].in_doubt
        return repeats(world) or body in in_doubt or b"m" + body[1:] in in_doubt


def order_of(body: bytes) -> int:
    """Return the position in which it was submitted: bodies are m0, m1 ..., their replies r0, r1 ..."""
    return int(body[1:])


class InOrder(Invariant):
    """If order is promised, a Sequence's messages are queued by number, without a gap while the Sequence is open."""

    def __init__(self) -> None:
        self._seen: dict[int, int] = {}
        self._last: dict[str, int] = {}
        self._last_order = -1

    def stored(self, world: World, node: Node, batch: Batch) -> None:
        if not node.setup.destination_policy.assurance.in_order:
            return
        disk = world.ledger.disks[node.index]
        for partition, records in disk.queues.items():
            for queued in records[self._seen.get(partition, 0) :]:
                if node.setup.forwards and is_requeued(world, queued.body):
                    continue  # an operator requeues a dead letter behind newer records
                was_refused = world.service is not None and queued.body in world.service.refused
                was_refused |= is_requeued(world, queued.body)
                is_of_sink = node.setup.forwards and is_row(queued.body)  # its number belongs to no simulated Sequence
                if queued.sequence and not is_of_sink:
                    # A Sequence of replies ends, and is forgotten, in the batch that releases its held messages.
                    is_open = disk.sequences.get(queued.sequence, {}).get("state") == "created"
                    self._follow(node, queued.sequence, queued.number, is_open and not skips(node))
                if not is_row(queued.body) and not was_refused:
                    self._follow_outbox(world, node, queued.body)
            self._seen[partition] = len(records)

    def _follow(self, node: Node, sequence: str, number: int, without_hole: bool) -> None:
        last = self._last.get(sequence, 0)
        if number <= last or (without_hole and number != last + 1):
            self.broken(f"{node.name} queues {number} of {sequence} after {last}")
        self._last[sequence] = number

    def _follow_outbox(self, world: World, node: Node, body: bytes) -> None:
        if world.broker is not None:
            return  # the broker's queue defines the order
        # A broker keeps order within a Sequence only: the next Sequence may use another partition or session.
        passed = [one.setup for one in world.nodes[1 : node.index + 1]]
        is_one_line = all(one.partitions == 1 and not one.sessions for one in passed)
        if not node.index or not is_one_line or repeats(world) or world.ledger.words[0].in_doubt:
            return
        order = order_of(body)
        if order <= self._last_order:
            self.broken(f"{node.name} queues {body.decode()} after m{self._last_order}")
        self._last_order = order


class NothingUnacknowledgedDropped(Invariant):
    """A message leaves an outbox, or is reported as arrived, only when the peer has it and the sender has its reply."""

    def __init__(self) -> None:
        self._checked: dict[str, int] = {}
        self._passed: dict[int, int] = {}
        self._times: Counter[bytes] = Counter()

    def stored(self, world: World, node: Node, batch: Batch) -> None:
        disk = world.ledger.disks[node.index]
        for (queue, partition), offset in batch.trims.items():
            if queue == INBOX and node.setup.forwards:
                for queued in disk.queues[partition][self._passed.get(partition, 0) : offset]:
                    self._drop(world, node, queued.body)
                self._passed[partition] = offset
            if queue in (INBOX, DEAD_LETTERS) or is_staged(queue) or is_routed(queue):
                continue
            to = world.second if queue == outbox_queue(SECOND_OUTBOX) else world
            for record in disk.outbound[queue][self._checked.get(queue, 0) : disk.trimmed[queue]]:
                self._look(to or world, node, record.body, "drops")
            self._checked[queue] = disk.trimmed[queue]

    def reported(self, world: World, node: Node, body: bytes) -> None:
        if not (node.setup.forwards and is_requeued(world, body)):
            self._look(world, node, body, "reports as arrived")

    def _drop(self, world: World, node: Node, body: bytes) -> None:
        """Check a deletion from a broker's queue: the message is a dead letter or has arrived.

        A requeued message is in the queue several times, so this counts the deletions.
        """
        self._times[body] += 1
        letters = world.ledger.disks[node.index].letters
        if [letter.body for letter in letters].count(body) < self._times[body]:
            self._look(world, node, body, "drops")

    def _look(self, world: World, node: Node, body: bytes, verb: str) -> None:
        if not world.ledger.has_arrived(node.index - 1 if is_reply(body) else node.index + 1, body):
            self.broken(f"{node.name} {verb} {body.decode()}, which has not arrived")
        is_answered = b"r" + body[1:] in world.ledger.disks[node.index].replies
        if body in world.ledger.wants_reply and not is_answered and not world.ledger.is_discarded(body):
            self.broken(f"{node.name} {verb} {body.decode()} without having its reply")


class HandledOnce(Invariant):
    """The handler never gets a record again that is durably done.

    In order, it gets a record only after every earlier record of the Sequence is done. At most once, it gets a record
    only after the durable mark that it is done, and never twice.
    """

    def __init__(self) -> None:
        self._called: set[tuple[int, int]] = set()

    def handed_over(self, world: World, node: Node, handle: Handle) -> None:
        disk = world.ledger.disks[node.index]
        if handle.queue == DEAD_LETTERS:
            return
        partition, offset = handle.partition, handle.offset
        done = disk.done.get(partition)
        is_marked = done is not None and offset + 1 in done
        if node.setup.destination_policy.assurance.delivery is Delivery.AT_MOST_ONCE:
            if not is_marked or (partition, offset) in self._called:
                self.broken(f"{node.name} handles offset {offset} of partition {partition}, which may happen twice")
            self._called.add((partition, offset))
        elif is_marked:
            self.broken(f"{node.name} handles offset {offset} of partition {partition}, which is already done")
        records = disk.queues[partition]
        if offset >= len(records):
            self.broken(f"{node.name} handles offset {offset} of partition {partition}, which is not durable")
        if not node.setup.destination_policy.assurance.in_order:
            return
        cursor = node.handling.cursors[partition]
        for earlier in range(offset):
            if records[earlier].sequence == records[offset].sequence and not cursor.is_done(earlier):
                self.broken(f"{node.name} handles offset {offset} before offset {earlier} of the same Sequence")


class HandledOrDeadLetter(Invariant):
    """A finished record succeeded, or became a dead letter in the same batch after all its attempts; never both.

    At most once, there are no dead letters.
    """

    def __init__(self) -> None:
        self._done: dict[int, AcknowledgementRanges] = {}

    def stored(self, world: World, node: Node, batch: Batch) -> None:
        disk = world.ledger.disks[node.index]
        letters = letters_of(batch)
        for partition, done in disk.done.items():
            before = self._done.get(partition, AcknowledgementRanges())
            if done == before:
                continue
            self._done[partition] = done.copy()
            for number in [number for lower, upper in done for number in range(lower, upper + 1)]:
                if number not in before and number <= len(disk.queues[partition]):
                    self._look(node, disk, (INBOX, partition, number - 1), letters)

    def _look(self, node: Node, disk: DurableState, where: Where, letters: list[Queued]) -> None:
        queued = disk.queues[where[1]][where[2]]
        times = letters.count(queued)
        failures = disk.outcomes.get(where, 0)
        if node.setup.destination_policy.assurance.delivery is Delivery.AT_MOST_ONCE:
            if times:
                self.broken(f"{node.name} makes {queued.body.decode()} a dead letter, but handles it at most once")
        elif times != (0 if failures < 0 else 1):
            self.broken(f"{node.name} finishes {queued.body.decode()}: {failures} failures, {times} dead letters")
        elif failures >= 0 and failures != node.setup.handling.attempts:
            self.broken(f"{node.name} stops retrying {queued.body.decode()} after {failures} failures")


class DeadLettersOnce(Invariant):
    """A message is a dead letter once, until a handler succeeds with it; each retry follows a durable request."""

    def __init__(self) -> None:
        self._over = AcknowledgementRanges()

    def handed_over(self, world: World, node: Node, handle: Handle) -> None:
        disk, number = world.ledger.disks[node.index], handle.offset + 1
        is_asked = number in disk.letters_asked and number not in disk.letters_over
        if handle.queue == DEAD_LETTERS and not is_asked:
            self.broken(f"{node.name} retries the dead letter {handle.offset} without a request")

    def stored(self, world: World, node: Node, batch: Batch) -> None:
        disk, letters = world.ledger.disks[node.index], letters_of(batch)
        for number in [number for lower, upper in disk.letters_over for number in range(lower, upper + 1)]:
            if number in self._over:
                continue
            if node.setup.forwards:
                continue  # it has no handlers: an operator requeues its dead letters
            failures = disk.outcomes.get((DEAD_LETTERS, 0, number - 1), 0)
            times = letters.count(disk.letters[number - 1])
            if failures == 0 or times != (0 if failures < 0 else 1):
                self.broken(
                    f"{node.name} finishes the dead letter {number - 1}: {failures} failures, {times} new dead letters"
                )
        self._over = disk.letters_over.copy()
        live = [key for number, key in enumerate(disk.letters, 1) if number not in disk.letters_over]
        if len(set(live)) != len(live):
            self.broken(f"{node.name} has a dead letter twice: {live}")


def letters_of(batch: Batch) -> list[Queued]:
    return [
        Queued(one.sequence, one.message_number, one.body)
        for queue, _, _, one in batch.appends
        if queue == DEAD_LETTERS
    ]
