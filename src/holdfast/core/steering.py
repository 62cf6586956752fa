"""Steering: what an operator may do to the Sequences, queues and cursors of a running side. Sans-IO.

Every verb changes the open batch, so that it is done once that is durable, and says what it did. What would break a
promise is refused with the reason; what the operator must know before is told by :meth:`Steering.would_drop`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from holdfast.core.events import Incident
from holdfast.core.forwarding.forwarded_requests import tell_requesters
from holdfast.core.policy import Delivery
from holdfast.core.protocol import RMProtocol
from holdfast.core.queues.queue import HANDLER, OUTBOX, Queue
from holdfast.core.receiving.destination import RMDestination
from holdfast.core.records import Record
from holdfast.core.sending.outbox import Outbox
from holdfast.exceptions import ConfigurationError

GIVEN_UP = "an operator moved on"
"""Why an outbox is stopped that was moved past messages which may have arrived, while others of them may have, too."""


class NotSteered(ConfigurationError):
    """What an operator asked for is not done as things are."""


@dataclass(frozen=True, slots=True)
class Loss:
    """What one cursor has not passed of what is to be deleted.

    Args:
        cursor: Its name.
        kind: "handler", "reader" or "outbound".
        records: How many.
    """

    cursor: str
    kind: str
    records: int

    @property
    def is_owed(self) -> bool:
        """Whether somebody was promised these: they are to be handled, or sent."""
        return self.kind != "reader"


class Steering:
    """An operator's hands.

    Args:
        protocol: The running side.
    """

    def __init__(self, protocol: RMProtocol) -> None:
        self._protocol = protocol
        self._outbound = protocol.outbound
        self._commit = protocol.commit

    def _tell(self, told: Incident, **detail: object) -> None:
        told.level, told.detail = "warning", detail
        self._protocol.effects.append(told)

    # --- inbound Sequences ----------------------------------------------------------------------------------------

    def suspend_inbound(self, destination: RMDestination, reason: str) -> None:
        """Accept no new message of the Sequence until :meth:`resume_inbound`.

        One that comes is not acknowledged, as one is not for which there is no room: so its source keeps it and sends
        it again, as it would after a loss, and every stack does that. A fault would end the Sequence, and an HTTP
        error would hold back what else the request carries.

        Raises:
            NotSteered: it is over.
        """
        if destination.is_over:
            raise NotSteered(f"the Sequence {destination.identifier} is over", remedy="There is nothing to hold back.")
        destination.suspended = reason
        self._commit.save(destination.identifier, destination)
        self._tell(Incident("sequence.suspended", destination.identifier), reason=reason)

    def resume_inbound(self, destination: RMDestination) -> None:
        """Accept its messages again; what was left comes when its source sends it again.

        Raises:
            NotSteered: nobody holds it back.
        """
        if destination.suspended is None:
            raise NotSteered(f"the Sequence {destination.identifier} is not suspended", remedy="It goes on by itself.")
        destination.suspended = None
        self._commit.save(destination.identifier, destination)
        self._tell(Incident("sequence.resumed", destination.identifier))

    # --- outbound Sequences, their outboxes -----------------------------------------------------------------------

    def suspend(self, outbox: Outbox, reason: str) -> None:
        """Send nothing of the outbox until :meth:`resume`. What is acknowledged meanwhile is taken in.

        Raises:
            NotSteered: it is stopped for another reason, or answers requests, which is up to who asked.
        """
        self._check_ours(outbox)
        if outbox.stopped:
            raise NotSteered(
                f"{outbox.key!r} is stopped already: {outbox.stopped}",
                remedy="It sends nothing until somebody decides: holdfast outbox retry.",
            )
        outbox.suspend(reason)
        outbox.save()
        self._outbound.ready(outbox)  # requesters wait
        self._tell(Incident("sending.suspended"), key=outbox.key, reason=reason)

    def resume(self, outbox: Outbox, now: float) -> None:
        """Let a suspended outbox go on.

        Raises:
            NotSteered: it is not suspended; or stopped, which needs a decision.
        """
        self._check_ours(outbox)
        if outbox.stopped:
            raise NotSteered(
                f"{outbox.key!r} is stopped, not suspended: {outbox.stopped}",
                remedy="Some of it may have arrived. To send it again all the same: holdfast outbox retry.",
            )
        if outbox.suspended is None:
            raise NotSteered(f"{outbox.key!r} is not suspended", remedy="It goes on by itself.")
        self._outbound.resume(outbox, outbox.choices, now)
        if outbox.source is not None:
            self._commit.save(outbox.source.local_id, outbox.source)
        self._tell(Incident("sending.resumed"), key=outbox.key)

    def end_outbound(self, outbox: Outbox, now: float, *, terminate: bool = False) -> None:
        """End the present Sequence of an outbox; what follows goes out in another.

        Args:
            outbox: Its outbox.
            now: Seconds.
            terminate: At once, rather than when all that was transmitted is acknowledged. What was and is not may have
                arrived: with exactly-once the outbox is stopped, if there is any, until somebody decides. Its
                destination is not told, and forgets it when its time is up.

        Raises:
            NotSteered: no Sequence carries it, or the Sequence is another than that of an application's messages.
        """
        self._check_ours(outbox)
        source = outbox.source
        if source is None or source.identifier is None:
            raise NotSteered(f"no Sequence carries {outbox.key!r}", remedy="There is nothing to end.")
        if terminate:
            self._give_up_sequence(outbox, outbox.in_doubt(), now)
        else:
            left = max(source.highest_sent, min(source.sent_before, source.available))
            source.limit = min(source.limit, left)  # it ends as one does whose numbers are used up
            self._commit.save(source.local_id, source)
        self._tell(Incident("sequence.ended_by_operator", source.identifier), key=outbox.key, terminated=terminate)
        self._outbound.ready(outbox)

    def reset(self, outbox: Outbox, offset: int, now: float) -> int:
        """Go on from ``offset``, further ahead or back; where it stands.

        Numbers are those of a Sequence: what was sent in one cannot be sent in it once more, nor be skipped. So
        whenever what was transmitted is concerned, the present Sequence is given up, and another one begins there.
        Ahead, what is passed over is given up, and what else may have arrived stops the outbox with exactly-once until
        somebody decides. Back, all from there on is sent again, also what was given up, and the destination cannot tell
        it from new messages.

        Raises:
            NotSteered: it answers requests.
        """
        self._check_ours(outbox)
        records = outbox.queue.partitions[outbox.partition]
        offset = min(max(offset, records.first), records.durable_end)
        before = outbox.first
        if offset < before:
            if outbox.source is not None:
                self._outbound.drop(outbox, outbox.source, now)
            outbox.rewind(offset, now)
        elif offset > before:
            self._pass_over(outbox, offset, now)
        outbox.save()
        self._tell(
            Incident("outbox.moved"), key=outbox.key, partition=outbox.partition, **{"from": before, "to": offset}
        )
        self._outbound.ready(outbox)
        return offset

    def _pass_over(self, outbox: Outbox, offset: int, now: float) -> None:
        if outbox.may_have_left(outbox.first):
            self._give_up_sequence(outbox, outbox.in_doubt(offset), now)
        outbox.leave_out(outbox.first, offset - 1)
        if outbox.source is not None:
            self._commit.save(outbox.source.local_id, outbox.source)
        outbox.save_place(now)

    def _give_up_sequence(self, outbox: Outbox, in_doubt: int, now: float) -> None:
        """Whose messages then may have arrived is somebody's to decide, unless duplicates are allowed."""
        assert outbox.source is not None
        outbox.leave_out_arrived()
        self._outbound.drop(outbox, outbox.source, now)
        allows_duplicates = outbox.policy.assurance.delivery is Delivery.AT_LEAST_ONCE
        if in_doubt and not outbox.stopped and not allows_duplicates:
            self._outbound.stop(outbox, GIVEN_UP, f"{in_doubt} messages of its Sequence may have arrived", now)

    def delete(self, outbox: Outbox, now: float) -> int:
        """Forget a forwarder's outbox and its Sequence; how many records it has not sent, or not for certain. They stay
        in their queue as long as others keep them. Call :meth:`tell_requesters` with them before.

        Raises:
            NotSteered: see :meth:`check_deletable`.
        """
        self.check_deletable(outbox)
        waiting = outbox.waiting
        self._outbound.close_outbox(outbox.key, now)
        self._tell(Incident("forwarder.deleted"), key=outbox.key, waiting=waiting)
        return waiting

    def check_deletable(self, outbox: Outbox) -> None:
        """Check that an outbox may be deleted.

        Raises:
            NotSteered: it sends, so that it is held back first; or the queue is its own.
        """
        self._check_ours(outbox)
        if outbox.queue.kind == OUTBOX:
            raise NotSteered(
                f"{outbox.key!r} has a queue of its own, which an application fills",
                remedy="To give messages up: holdfast outbox discard.",
            )
        if outbox.suspended is None and not outbox.stopped:
            raise NotSteered(
                f"{outbox.key!r} is sending",
                remedy="Suspend it with holdfast forwarders suspend, and remove it from the configuration.",
            )

    @staticmethod
    def _check_ours(outbox: Outbox) -> None:
        if outbox.is_for_replies:
            raise NotSteered(
                f"{outbox.key} answers requests",
                remedy="Its source decides when it ends: close or terminate the Sequence of the requests.",
            )

    # --- cursors of handlers and readers --------------------------------------------------------------------------

    def replay(self, queue: Queue, partition: int, offset: int, now: float) -> int:
        """Hand everything from ``offset`` on over to the handlers once more; where their cursor stands.

        Raises:
            NotSteered: there are no handlers, they are promised a message at most once, or it is ahead of them.
        """
        handling = self._protocol.handling
        if handling is None or handling.queue is not queue:
            raise NotSteered(f"nothing handles the queue {queue.name!r}", remedy="Start it with its handlers.")
        if handling.is_at_most_once:
            raise NotSteered("at-most-once allows no second attempt", remedy="Give a reader another cursor instead.")
        floor = handling.cursors[partition].floor
        if offset > floor:
            raise NotSteered(
                f"the handlers are at {floor} of partition {partition}, and skip nothing",
                remedy="To delete those messages: holdfast queues purge --force.",
            )
        handling.rewind(partition, offset, now)
        stands = queue.cursors[HANDLER].offsets[partition]
        self._tell(Incident("handlers.rewound"), queue=queue.name, partition=partition, now=stands)
        return stands

    def reset_reader(self, queue: Queue, name: str, partition: int, offset: int, now: float) -> int:
        """Put a reader's cursor elsewhere; where it stands.

        Raises:
            NotSteered: there is no such cursor of a reader.
        """
        cursor = queue.cursors.get(name)
        if cursor is None or not cursor.is_readers:
            raise NotSteered(f"no reader of {queue.name!r} is called {name!r}", remedy="holdfast cursors lists them.")
        before = cursor.offsets[partition]
        stands = queue.put_cursor(name, partition, offset, now)
        self._tell(
            Incident("cursor.moved"),
            queue=queue.name,
            cursor=name,
            partition=partition,
            **{"from": before, "to": stands},
        )
        return stands

    # --- purging --------------------------------------------------------------------------------------------------

    def would_drop(self, queue: Queue, partition: int, below: int) -> list[Loss]:
        """Who would miss how many records, if all below that offset were deleted."""
        one = queue.partitions[partition]
        below = min(below, one.durable_end)
        losses = []
        for cursor in queue.cursors.values():
            if partition in cursor.offsets:
                missed = below - max(self._stands(queue, cursor.name, partition), one.first)
                if missed > 0:
                    losses.append(Loss(cursor.name, cursor.kind, missed))
        return losses

    def _stands(self, queue: Queue, name: str, partition: int) -> int:
        """Where a cursor is now: an outbox's is moved now and then only."""
        cursor = queue.cursors[name]
        outbox = self._outbound.outboxes.get(name.removeprefix("outbound/")) if cursor.is_outbound else None
        return outbox.first if outbox is not None else cursor.offsets[partition]

    def tell_requesters(
        self,
        outbox: Outbox,
        records: list[tuple[int, Record]],
        told: Callable[[Record], Record | None],
        now: float,
    ) -> None:
        """Reply to the requests among records that a forwarder is about to pass over; see
        :func:`~holdfast.core.forwarding.forwarded_requests.tell_requesters`."""
        tell_requesters(self._outbound, self._protocol.replies, outbox, records, told, now)

    def forwarders_behind(self, queue: Queue, partition: int, below: int) -> list[Outbox]:
        """Outboxes that have not passed that offset."""
        return [
            one
            for one in self._outbound.outboxes.values()
            if one.queue is queue and one.partition == partition and one.first < below
        ]

    def give_up(self, queue: Queue, partition: int, records: list[tuple[int, Record]], now: float) -> int:
        """Let the handlers give these records up: who waits for a reply is answered with a fault. How many."""
        handling = self._protocol.handling
        if handling is None or handling.queue is not queue:
            return 0
        return handling.give_up(partition, records, now)

    def purge(self, queue: Queue, partition: int, below: int) -> None:
        """Delete what is below that offset and neither handlers nor forwarders have to see; see :meth:`Queue.purge`."""
        self._tell(Incident("queue.purged"), queue=queue.name, partition=partition, below=below)
        queue.purge(partition, below)
