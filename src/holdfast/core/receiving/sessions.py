"""Sessions: a partition, and so an outbound Sequence, for each inbound Sequence that carries requests.

The last partitions of every queue are for sessions. Each has at most one open session, unless there are more sessions
than partitions. When a session ends, the outbound Sequences that follow its partition end too; messages of the next
session go in new ones. So the destination sees a separate session for each client, and no client waits for another.

Beyond that bound a new session shares the partition with the fewest sessions. The outbound Sequence ends with the last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from holdfast.core.queues.cursors import OUTBOUND
from holdfast.core.receiving.inbound_sequences import InboundSequences
from holdfast.core.rm_destination.destination import RMDestination
from holdfast.core.sending.outboxes.outbox import Outbox


class SessionPartitions:
    """Assigns partitions to sessions, for an endpoint with partitions for sessions.

    It saves nothing itself: each inbound Sequence saves its partition, and each outbox saves where its Sequences end.
    """

    def __init__(self, sequences: InboundSequences, outboxes: Mapping[str, Outbox]) -> None:
        self._sequences = sequences
        self._outboxes_by_key = outboxes
        self.on_begin: Callable[[int], None] = lambda _partition: None
        """Called with the partition of each new session, before its first message: forwarders may have to follow it."""
        self._first = sequences.queue.description.shared
        self._partition_of: dict[str, int] = {}
        """Identifier -> partition, of each open session."""
        self._sessions_in = [0] * sequences.queue.description.sessions

    def begin(self, destination: RMDestination) -> int:
        """Choose the partition of a new session: without another session, and without an outbound Sequence that is
        still open, as far as there is one."""
        fewest = min(self._sessions_in)
        there = [self._first + at for at, sessions in enumerate(self._sessions_in) if sessions == fewest]
        # A partition with an outbound Sequence would make this client wait for the end of another's.
        partition = next((one for one in there if not self._is_followed(one)), there[0])
        if not fewest:
            self._cut(partition)  # a dead letter of an ended session may have come after its end
        self._know(destination, partition)
        self.on_begin(partition)
        return partition

    def end(self, destination: RMDestination) -> None:
        """End the outbound Sequences of a session, with the open batch: everything of it is in its queues."""
        partition = self._partition_of.pop(destination.identifier, None)
        if partition is not None:
            self._sessions_in[partition - self._first] -= 1
            if not self._sessions_in[partition - self._first]:
                self._cut(partition)

    def recover(self) -> list[RMDestination]:
        """Find the open sessions, after both halves have recovered, and cut the outboxes of all other partitions.

        Returns those that end once their queues hold every message.
        """
        releasing = []
        for destination in self._sequences.destinations.values():
            # A session that is over lasts until its queues hold every message, so the cut is behind all of them.
            if destination.partition >= self._first and (not destination.is_over or destination.is_releasing):
                self._know(destination, destination.partition)
                if destination.is_over:
                    releasing.append(destination)
        for at, sessions in enumerate(self._sessions_in):
            # A process may have died between the end of a session and its cut.
            if not sessions:
                self._cut(self._first + at)
        return releasing

    def _know(self, destination: RMDestination, partition: int) -> None:
        self._partition_of[destination.identifier] = partition
        self._sessions_in[partition - self._first] += 1

    def _is_followed(self, partition: int) -> bool:
        return any(one.source is not None or not one.records.is_empty for one in self._outboxes(partition))

    def _cut(self, partition: int) -> None:
        for outbox in self._outboxes(partition):
            if outbox.records.cut():
                outbox.save()
                outbox.ready()

    def _outboxes(self, partition: int) -> Iterator[Outbox]:
        for queue in self._sequences.queues.values():
            # Handlers and readers follow too, but only outboxes have Sequences to cut.
            for name in queue.partitions[partition].followers:
                if name.startswith(OUTBOUND):
                    yield self._outboxes_by_key[name.removeprefix(OUTBOUND)]
