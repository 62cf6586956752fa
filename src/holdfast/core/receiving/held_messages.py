"""Held messages: accepted beyond a gap, durable, acknowledged, and in no queue yet. Sans-IO.

When the gap closes, this class moves them into their queues in blocks. Each block goes in one batch, and the next
follows only once that batch is durable. So memory never has more than one block, and messages of other Sequences wait
for at most one. A Sequence's state says which number enters the queue next, so a restarted process continues there. A
message that arrives while others still move is held behind them.

The held bytes are bounded per Sequence, per party and in total; a message beyond a limit is not accepted yet.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial

from holdfast.core.commit import GroupCommit, Opened
from holdfast.core.messages import Envelope
from holdfast.core.origin import whole_party
from holdfast.core.policy import DestinationPolicy
from holdfast.core.queues.queue import Queue
from holdfast.core.records import Record
from holdfast.core.rm_destination.destination import RMDestination
from holdfast.core.staged_blocks import MOST_BYTES, ROW_BYTES

BLOCK_BYTES = MOST_BYTES
"""Maximum bytes of held messages that one batch moves, plus at most one message. Rows of sinks move in blocks of this
size."""

LOOK_AGAIN = 1.0
"""Seconds until this class retries a release for which the store had no room."""

Delivery = tuple[Queue, int, int, Record | None, bool]
"""Queue, partition and offset of a record in the open batch; without a record, it must be read from the store.
The last part: whether the queue is the first one of the message, so that the message counts once."""


def size_of(message: Envelope) -> int:
    """Return the bytes that a message counts for while it is held."""
    return len(message.body) + sum(map(len, message.headers)) + len(message.attachments) + ROW_BYTES


class HeldMessages:
    """The held messages of every inbound Sequence of one side.

    Args:
        policy: The limits on held bytes.
        queue: Holds the messages, and is where most of them go afterwards.
        queues: Every queue that a message may go to, by name.
        delivered: Called with the messages that have entered their queues, once they are durable there.
        trouble: Returns why the store should accept nothing new for now; "" if it may.
    """

    def __init__(
        self,
        policy: DestinationPolicy,
        commit: GroupCommit,
        queue: Queue,
        queues: Mapping[str, Queue],
        delivered: Callable[[list[Delivery], float], None],
        trouble: Callable[[], str],
    ) -> None:
        self.policy = policy
        self.bytes = 0
        """The held bytes of all Sequences."""
        self.retry_at: float | None = None
        """When :meth:`pump` is due; None if nothing waits for room."""
        self.block_bytes = BLOCK_BYTES
        """Maximum bytes of held messages that one batch releases."""
        self._commit = commit
        self._queue = queue
        self._queues = queues
        self._usual = (queue,)
        self._delivered = delivered
        self._trouble = trouble
        self._of_party: Counter[str] = Counter()
        self._counted: dict[str, int] = {}
        """Identifier of a Sequence -> its share of ``bytes``."""
        self._opened: Opened | None = None
        """The batch that has ``_room`` bytes left."""
        self._room = 0
        self._line: dict[str, RMDestination] = {}
        """Sequences with more messages to release, in the order of their turns."""
        self._when_released: dict[str, list[Callable[[float], None]]] = {}
        self._is_stopped = False

    # --- bytes ----------------------------------------------------------------------------------------------------

    def has_room(self, destination: RMDestination, size: int) -> bool:
        """Return whether ``size`` more bytes may be held for the Sequence."""
        policy, party = self.policy, whole_party(destination.party)
        return (
            destination.held_bytes + size <= destination.policy.buffer_bytes
            and self.bytes + size <= policy.max_buffer_bytes
            and (not party or self._of_party[party] + size <= policy.max_party_buffer_bytes)
        )

    def _count(self, destination: RMDestination, size: int) -> None:
        more = size - self._counted.pop(destination.identifier, 0)
        if size:
            self._counted[destination.identifier] = size
        self.bytes += more
        if party := whole_party(destination.party):
            self._of_party[party] += more
            if not self._of_party[party]:
                del self._of_party[party]

    def hold(self, destination: RMDestination, number: int, record: Record, queues: tuple[Queue, ...]) -> bool:
        """Hold a new message, with the open batch, if it must wait for others; return whether it must."""
        size = record.size + ROW_BYTES
        if not destination.hold(number, size):
            return False
        self._count(destination, destination.held_bytes)
        # The usual route is not saved, which keeps the Sequence's state small.
        if queues != self._usual:
            destination.routed[number] = [one.name for one in queues]
        self._queue.records.hold(destination.identifier, number, record)
        return True

    def discard(self, destination: RMDestination, numbers: list[int]) -> None:
        """Delete held messages that the destination has already dropped, with the open batch."""
        self._queue.records.drop_held(destination.identifier, numbers)
        for number in numbers:
            destination.routed.pop(number, None)
        self._count(destination, destination.held_bytes)

    def forget(self, destination: RMDestination) -> None:
        """Stop counting a Sequence that was forgotten, and drop its turn and its pending calls."""
        self._count(destination, 0)
        self._line.pop(destination.identifier, None)
        self._when_released.pop(destination.identifier, None)

    # --- into queues ----------------------------------------------------------------------------------------------

    def release(self, destination: RMDestination, now: float) -> None:
        """Move a Sequence's messages that no gap holds back into their queues.

        The open batch takes as many as it has room for; the rest follow block by block.
        """
        # Another batch: it has room for a whole block again.
        if self._opened is not self._commit.opened:
            self._opened, self._room = self._commit.opened, self.block_bytes
        before = destination.held_bytes
        numbers = destination.release(self._room)
        if numbers:
            self._room -= before - destination.held_bytes
            self._count(destination, destination.held_bytes)
            deliveries = self._move(destination, numbers, now)
            # The same batch: after a crash, a released message is never released again, and no other is skipped.
            self._commit.save(destination.identifier, destination)
            self._commit.then(partial(self._moved, destination, deliveries))
        if destination.is_releasing:
            self._line[destination.identifier] = destination

    def _move(self, destination: RMDestination, numbers: list[int], now: float) -> list[Delivery]:
        partition, identifier = destination.partition, destination.identifier
        deliveries: list[Delivery] = []
        for number in numbers:
            queues = self._queues_of(destination, number)
            # Routed to no queue: accepted and dropped, with its place in the order.
            if not queues:
                self._queue.records.drop_held(identifier, [number])
            deliveries += [
                (queue, partition, queue.records.release(partition, identifier, number, now), None, queue is queues[0])
                for queue in queues
            ]
        return deliveries

    def _queues_of(self, destination: RMDestination, number: int) -> tuple[Queue, ...]:
        names = destination.routed.pop(number, None)
        if names is None:
            return self._usual
        there = tuple(self._queues[name] for name in names if name in self._queues)
        # A queue that was removed meanwhile must not lose an acknowledged message.
        return there if there or not names else self._usual

    def _moved(self, destination: RMDestination, deliveries: list[Delivery], now: float) -> None:
        self._delivered(deliveries, now)
        if not destination.is_releasing:
            for call in self._when_released.pop(destination.identifier, ()):
                call(now)
        self.go_on(now)

    def go_on(self, now: float) -> None:
        """Move the next block; the Sequences take turns."""
        while self._line and not self._is_stopped:
            if self._opened is self._commit.opened and self._room <= 0:
                return  # this batch has its block; the move continues once it is durable
            # A move writes as much as it deletes, so it waits while the store has no room.
            if self._trouble():
                self.retry_at = now + LOOK_AGAIN
                return
            self.release(self._line.pop(next(iter(self._line))), now)

    def when_released(self, destination: RMDestination, call: Callable[[float], None]) -> None:
        """Make the call once nothing of the Sequence moves any more. A process that dies before then loses it."""
        self._when_released.setdefault(destination.identifier, []).append(call)

    def is_moving(self, destination: RMDestination) -> bool:
        """Return whether more blocks of the Sequence follow without delay."""
        return destination.is_releasing and not self._is_stopped and not self._trouble()

    def pump(self, now: float) -> None:
        """Retry the release that the store had no room for, if it is due."""
        if self.retry_at is not None and self.retry_at <= now:
            self.retry_at = None
            self.go_on(now)

    def stop(self) -> None:
        """Move no further block; the next start of the process continues."""
        self._is_stopped = True

    def recover(self, destination: RMDestination) -> None:
        """Take over what the store holds for a Sequence. Call :meth:`go_on` once all Sequences are recovered."""
        self._count(destination, destination.held_bytes)
        if destination.is_releasing:
            self._line[destination.identifier] = destination
