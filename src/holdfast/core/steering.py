"""Steering: operations on the Sequences, queues and cursors of a running side. Sans-IO.

Every operation changes the open batch, takes effect once that batch is durable, and reports the change. An operation
that would break a guarantee raises an error with the reason. :meth:`Steering.would_drop` reports which records a
deletion would lose.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from holdfast.core.commit import changing
from holdfast.core.events import Incident
from holdfast.core.forwarding.forwarded_requests import tell_requesters
from holdfast.core.policy import Delivery
from holdfast.core.protocol import RMProtocol
from holdfast.core.queues.cursors import HANDLER
from holdfast.core.queues.description import OUTBOX
from holdfast.core.queues.queue import Queue
from holdfast.core.records import Record
from holdfast.core.rm_destination.destination import RMDestination
from holdfast.core.sending.outboxes.outbox import Outbox
from holdfast.exceptions import ConfigurationError

PAUSED = "paused by the configuration"
"""Reason of a forwarder that the configuration pauses."""
UNCONFIGURED = "not in the configuration"
"""Reason of a forwarder that is in the store but not in the configuration."""
GIVEN_UP = "an operator moved on"
"""Reason to stop an outbox after the operator gave its Sequence up while some of its messages may have arrived."""


class NotSteered(ConfigurationError):
    """The current state does not allow the operation that the operator requested."""


@dataclass(frozen=True, slots=True)
class Loss:
    """Records of a planned deletion that one cursor has not passed.

    Args:
        kind: "handler", "reader" or "outbound".
    """

    cursor: str
    kind: str
    records: int

    @property
    def is_owed(self) -> bool:
        """Whether a handler or an outbound Sequence must still process these records."""
        return self.kind != "reader"


class Steering:
    """Operations that an operator applies to a running side."""

    def __init__(self, protocol: RMProtocol) -> None:
        self._protocol = protocol
        self._outbound = protocol.outbound
        self.commit = protocol.commit

    def _tell(self, told: Incident, **detail: object) -> None:
        told.detail = detail
        self._protocol.effects.append(told)

    # --- inbound Sequences ----------------------------------------------------------------------------------------

    @changing
    def suspend_inbound(self, destination: RMDestination, reason: str) -> None:
        """Accept no new message of the Sequence until :meth:`resume_inbound`. Without a reason, an earlier one stays.

        The destination does not acknowledge new messages, just as when it has no room. The source therefore keeps them
        and retransmits them as after a loss, which every stack does. A fault would end the Sequence, and an HTTP error
        would block everything else that the request carries.

        Raises:
            NotSteered: the Sequence has ended.
        """
        if destination.is_over:
            raise NotSteered(
                f"the Sequence {destination.identifier} has ended", remedy="An ended Sequence cannot be suspended."
            )
        destination.suspended = reason or destination.suspended or ""
        self.commit.save(destination.identifier, destination)
        self._tell(Incident("sequence.suspended", destination.identifier), reason=destination.suspended)

    @changing
    def resume_inbound(self, destination: RMDestination) -> None:
        """Accept messages of the Sequence again. Its source retransmits the messages that were not accepted.

        Raises:
            NotSteered: the Sequence is not suspended.
        """
        if destination.suspended is None:
            raise NotSteered(
                f"the Sequence {destination.identifier} is not suspended", remedy="There is nothing to resume."
            )
        destination.suspended = None
        self.commit.save(destination.identifier, destination)
        self._tell(Incident("sequence.resumed", destination.identifier))

    # --- outbound Sequences, their outboxes -----------------------------------------------------------------------

    @changing
    def suspend(self, outbox: Outbox, reason: str) -> None:
        """Send nothing of the outbox until :meth:`resume`. The outbox still processes acknowledgements.

        Without a reason, an operator's earlier one stays. The configuration's does not: it would resume the outbox.

        Raises:
            NotSteered: the outbox is stopped for another reason, or answers requests, which only the requester ends.
        """
        self._check_ours(outbox)
        if outbox.lifecycle.stopped:
            raise NotSteered(
                f"{outbox.key!r} is already stopped: {outbox.lifecycle.stopped}",
                remedy="It sends nothing until you decide: holdfast outbox retry.",
            )
        if not reason and outbox.lifecycle.suspended not in (PAUSED, UNCONFIGURED):
            reason = outbox.lifecycle.suspended or ""
        outbox.lifecycle.suspend(reason)
        outbox.save()
        outbox.ready()  # requesters wait
        self._tell(Incident("sending.suspended"), key=outbox.key, reason=reason)

    @changing
    def resume(self, outbox: Outbox, now: float) -> None:
        """Resume a suspended outbox.

        Raises:
            NotSteered: the outbox is not suspended, is stopped and needs a decision, or answers requests.
        """
        self._check_ours(outbox)
        if outbox.lifecycle.stopped:
            raise NotSteered(
                f"{outbox.key!r} is stopped, not suspended: {outbox.lifecycle.stopped}",
                remedy="Some of its messages may have arrived. To send them again anyway: holdfast outbox retry.",
            )
        if outbox.lifecycle.suspended is None:
            raise NotSteered(f"{outbox.key!r} is not suspended", remedy="There is nothing to resume.")
        outbox.resume(outbox.lifecycle.choices, now)
        if outbox.source is not None:
            self.commit.save(outbox.source.local_id, outbox.source)
        self._tell(Incident("sending.resumed"), key=outbox.key)

    @changing
    def end_outbound(self, outbox: Outbox, now: float, *, terminate: bool = False) -> None:
        """End the current Sequence of an outbox. Another Sequence carries the messages that follow.

        Args:
            terminate: Whether the Sequence ends immediately rather than once every transmitted message is acknowledged.
                Transmitted messages without an acknowledgement may have arrived. If there are any, and duplicates are
                not allowed, the outbox stops until the operator decides. The destination receives no notice and
                discards the Sequence when it expires.

        Raises:
            NotSteered: no Sequence carries the outbox, or the outbox answers requests.
        """
        self._check_ours(outbox)
        source = outbox.source
        if source is None or source.identifier is None:
            raise NotSteered(f"{outbox.key!r} has no open Sequence", remedy="There is no Sequence to end.")
        if terminate:
            self._give_up_sequence(outbox, outbox.records.in_doubt(), now)
        else:
            # An earlier run may have transmitted up to the mark: those numbers must be acknowledged first.
            left = max(source.numbers.highest_sent, min(source.numbers.sent_before, source.numbers.available))
            source.numbers.limit = min(source.numbers.limit, left)  # it ends like a Sequence without free numbers
            self.commit.save(source.local_id, source)
        self._tell(Incident("sequence.ended_by_operator", source.identifier), key=outbox.key, terminated=terminate)
        outbox.ready()

    @changing
    def reset(self, outbox: Outbox, offset: int, now: float) -> int:
        """Move an outbox forward or back to ``offset``, and return its new offset.

        A Sequence can neither send a number as a new message again nor skip it. If the move concerns transmitted
        messages, the outbox therefore abandons the current Sequence and starts another one at the offset. A move
        forward discards the messages that it skips. If other messages may have arrived, and duplicates are not allowed,
        the outbox stops until the operator decides. A move back sends every message from the offset on again, including
        discarded messages, and the destination cannot distinguish them from new messages.

        Raises:
            NotSteered: the outbox answers requests.
        """
        self._check_ours(outbox)
        records = outbox.records.queue.partitions[outbox.records.partition]
        offset = min(max(offset, records.first), records.durable_end)
        before = outbox.records.first
        if offset < before:
            if outbox.source is not None:
                outbox.drop(now)
            outbox.rewind(offset, now)
        elif offset > before:
            self._pass_over(outbox, offset, now)
        outbox.save()
        self._tell(
            Incident("outbox.moved"),
            key=outbox.key,
            partition=outbox.records.partition,
            **{"from": before, "to": offset},
        )
        outbox.ready()
        return offset

    def _pass_over(self, outbox: Outbox, offset: int, now: float) -> None:
        # Its number was used, and a Sequence cannot skip one.
        if outbox.records.may_have_left(outbox.records.first):
            self._give_up_sequence(outbox, outbox.records.in_doubt(offset), now)
        outbox.records.leave_out(outbox.records.first, offset - 1)
        if outbox.source is not None:
            self.commit.save(outbox.source.local_id, outbox.source)
        outbox.records.save_place(now)

    def _give_up_sequence(self, outbox: Outbox, in_doubt: int, now: float) -> None:
        """Abandon the Sequence. If messages may have arrived and duplicates are not allowed, the operator decides."""
        assert outbox.source is not None
        # What arrived behind a gap must not go again in the next Sequence.
        outbox.records.leave_out_arrived()
        outbox.drop(now)
        allows_duplicates = outbox.policy.assurance.delivery is Delivery.AT_LEAST_ONCE
        if in_doubt and not outbox.lifecycle.stopped and not allows_duplicates:
            outbox.stop(GIVEN_UP, f"{in_doubt} messages of its Sequence may have arrived", now)

    @changing
    def delete(self, outbox: Outbox, now: float) -> int:
        """Delete a forwarder's outbox and its Sequence.

        Call :meth:`tell_requesters` with its remaining records first. The records stay in their queue as long as its
        retention or another cursor needs them.

        Returns:
            The number of records that the outbox has not sent, or not for certain.

        Raises:
            NotSteered: see :meth:`check_deletable`.
        """
        self.check_deletable(outbox)
        waiting = outbox.records.waiting
        self._outbound.registry.close(outbox.key, now)
        self._tell(Incident("forwarder.deleted"), key=outbox.key, waiting=waiting)
        return waiting

    def check_deletable(self, outbox: Outbox) -> None:
        """Check that the operator may delete an outbox.

        Raises:
            NotSteered: the outbox is sending, so the operator must suspend it first; or the configuration has its
                forwarder; or it has its own queue; or it answers requests.
        """
        self._check_ours(outbox)
        if outbox.records.queue.description.kind == OUTBOX:
            raise NotSteered(
                f"{outbox.key!r} has its own queue, which an application fills",
                remedy="To discard messages: holdfast outbox discard.",
            )
        if outbox.is_configured:
            raise NotSteered(
                f"{outbox.key!r} belongs to a forwarder in the configuration, which would begin again with the first "
                "message of its queue",
                remedy="Remove it from the configuration and reload that. To discard its messages only: "
                "holdfast forwarders reset.",
            )
        if outbox.lifecycle.suspended is None and not outbox.lifecycle.stopped:
            raise NotSteered(f"{outbox.key!r} is sending", remedy="Suspend it with holdfast forwarders suspend.")

    @staticmethod
    def _check_ours(outbox: Outbox) -> None:
        if outbox.is_for_replies:
            raise NotSteered(
                f"{outbox.key} answers requests",
                remedy="Its source decides when it ends: close or terminate the Sequence of the requests.",
            )

    # --- cursors of handlers and readers --------------------------------------------------------------------------

    @changing
    def replay(self, queue: Queue, partition: int, offset: int, now: float) -> int:
        """Deliver every record from ``offset`` on to the handlers again, and return their cursor's offset.

        Raises:
            NotSteered: the queue has no handlers, they handle a message at most once, or ``offset`` is ahead of their
                cursor.
        """
        handling = self._protocol.handling
        if handling is None or handling.queue is not queue:
            raise NotSteered(
                f"the queue {queue.name!r} has no handlers", remedy="Start the destination with its handlers."
            )
        if handling.is_at_most_once:
            raise NotSteered(
                "at-most-once allows no second attempt", remedy="Read the queue with another cursor instead."
            )
        floor = handling.cursors[partition].floor
        if offset > floor:
            raise NotSteered(
                f"the handlers are at {floor} of partition {partition}, and cannot skip records",
                remedy="To delete those records: holdfast queues purge --force.",
            )
        handling.rewind(partition, offset, now)
        stands = queue.cursors[HANDLER].offsets[partition]
        self._tell(Incident("handlers.rewound"), queue=queue.name, partition=partition, now=stands)
        return stands

    @changing
    def reset_reader(self, queue: Queue, name: str, partition: int, offset: int, now: float) -> int:
        """Move a reader's cursor forward or back, and return its new offset.

        Raises:
            NotSteered: the queue has no reader with that name.
        """
        cursor = queue.cursors.get(name)
        if cursor is None or not cursor.is_readers:
            raise NotSteered(
                f"the queue {queue.name!r} has no reader {name!r}", remedy="List the cursors with holdfast cursors."
            )
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
        """Return, for each cursor, how many records a deletion below that offset would lose."""
        one = queue.partitions[partition]
        below = min(below, one.durable_end)
        losses = []
        for cursor in queue.cursors.values():
            if partition in cursor.offsets:
                missed = below - max(self.position(queue, cursor.name, partition), one.first)
                if missed > 0:
                    losses.append(Loss(cursor.name, cursor.kind, missed))
        return losses

    def position(self, queue: Queue, name: str, partition: int) -> int:
        """Return a cursor's current offset. An outbox moves its cursor only occasionally, so ask the outbox."""
        cursor = queue.cursors[name]
        outbox = self._outbound.outboxes.get(name.removeprefix("outbound/")) if cursor.is_outbound else None
        return outbox.records.first if outbox is not None else cursor.offsets[partition]

    @changing
    def tell_requesters(
        self,
        outbox: Outbox,
        records: list[tuple[int, Record]],
        told: Callable[[Record], Record | None],
        now: float,
    ) -> None:
        """Reply to the requests among records that a forwarder is about to skip.

        See :func:`~holdfast.core.forwarding.forwarded_requests.tell_requesters`.
        """
        tell_requesters(self._outbound.registry, self._protocol.replies, outbox, records, told, now)

    def forwarders_behind(self, queue: Queue, partition: int, below: int) -> list[Outbox]:
        """Return the outboxes that have not passed that offset."""
        return [
            one
            for one in self._outbound.outboxes.values()
            if one.records.queue is queue and one.records.partition == partition and one.records.first < below
        ]

    @changing
    def give_up(self, queue: Queue, partition: int, records: list[tuple[int, Record]], now: float) -> int:
        """Discard these records in the handlers, and return their number.

        A sender that waits for a reply receives a fault.
        """
        handling = self._protocol.handling
        if handling is None or handling.queue is not queue:
            return 0
        return handling.give_up(partition, records, now)

    @changing
    def purge(self, queue: Queue, below: Mapping[int, int]) -> None:
        """Delete the records of each partition below its offset that no handler or forwarder needs; see
        :meth:`Queue.purge`."""
        full = {one: end for one, end in sorted(below.items()) if end > queue.records.firsts[one]}
        if full:
            count = sum(end - queue.records.firsts[one] for one, end in full.items())
            self._tell(Incident("queue.purged"), queue=queue.name, records=count, below=full)
        for one, end in below.items():
            queue.deletion.purge(one, end)
