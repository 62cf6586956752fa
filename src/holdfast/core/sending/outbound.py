"""Outbound: the sending half of an endpoint. It knows every outbox, gives each its turns, and finds it for answers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from holdfast.core.messages import MC_ANONYMOUS
from holdfast.core.policy import ForwardingPolicy, SourcePolicy
from holdfast.core.queues.cursors import OUTBOUND
from holdfast.core.queues.queue import Queue
from holdfast.core.queues.queues import Queues
from holdfast.core.records import Record
from holdfast.core.rm_source.control_requests import ANSWERED_ENOUGH
from holdfast.core.rm_source.source import RMSource
from holdfast.core.sending.context import SendingContext
from holdfast.core.sending.exchanges import Exchanges
from holdfast.core.sending.outboxes.lifecycle import Choice
from holdfast.core.sending.outboxes.outbox import Outbox
from holdfast.core.sending.outboxes.peer_answers import heard
from holdfast.core.sending.outboxes.records import outbox_queue, replies_queue
from holdfast.core.sending.served_polls import ServedPolls
from holdfast.core.states.outbound import SourceEvent, SourceState
from holdfast.core.states.outbox import OutboxAction, OutboxEvent


class Outbound:
    """The sending half of an endpoint.

    Args:
        policy: Limits and timers of its Sequences, except those of forwarders with their own policy.
        context: What its outboxes share.
        queues: The queues of its messages.
        policy_for: Returns the policy of Sequences by their address and the key of their outbox, if it differs.
    """

    def __init__(
        self,
        policy: SourcePolicy,
        context: SendingContext,
        queues: Queues,
        policy_for: Callable[[str, str], SourcePolicy] | None = None,
    ):
        self.policy = policy
        self._policy_for = policy_for
        self._queues = queues
        self.context = context
        self.commit, self.effects = context.commit, context.effects
        self.outboxes = self.context.outboxes
        self.sequences = self.context.sequences
        self.circuits = self.context.circuits
        self.reading = self.context.reading
        self.creation = self.context.creation
        self.exchanges = Exchanges(self.context)
        self.polls = ServedPolls(self.context, self.exchanges, self._give_turn, self.terminate_sent)

    def is_anonymous(self, source: RMSource) -> bool:
        """Whether the Sequence's peer answers in back-channels only."""
        return self.context.composer.is_anonymous(source)

    # --- outboxes -------------------------------------------------------------------------------------------------

    def open(self, key: str, to: str, choices: list[Choice]) -> Outbox:
        """Return the outbox ``key``, creating it if it does not exist.

        Args:
            key: The sequence key.
            to: The destination address.
            choices: Choices for CreateSequence, in order of preference. Outboxes to one address share one list, so a
                refusal seen by one moves the refused choice to the end for all.
        """
        known = self.outboxes.get(key)
        if known is not None:
            queue = known.records.queue
        else:
            queue = self._queues.outbox(outbox_queue(key))
            queue.description.save()
        return self._open(key, to, choices, queue, 0, None)

    def forward(
        self,
        key: str,
        to: str,
        choices: list[Choice],
        queue: Queue,
        partition: int,
        start: int | None = None,
        policy: ForwardingPolicy | None = None,
        address: str = "",
    ) -> Outbox:
        """Return the outbox ``key`` that forwards a partition, creating it if needed.

        It sends every record of the partition, in order, from whichever Sequence. The queue keeps each record until the
        destination has it.

        Args:
            key: The sequence key.
            to: The destination address.
            choices: As for :meth:`open`.
            queue: The queue.
            partition: The partition of the queue.
            start: The offset where a new outbox begins; None: the first record in the queue.
            policy: The forwarding policy. It is not saved: pass it at each start, before anything is sent.
            address: The address for the destination's replies and acknowledgements of the next Sequence, "" for this
                endpoint's own, ``MC_ANONYMOUS`` to poll for them. A Sequence keeps the address that it began with.
        """
        outbox = self._open(key, to, choices, queue, partition, start)
        outbox.address = address
        outbox.forwarding = policy or ForwardingPolicy()
        outbox.use(outbox.forwarding.sending or self.policy_of(to, key))
        self.circuits.know(to, outbox.forwarding.circuit)
        return outbox

    def _open(
        self, key: str, to: str, choices: list[Choice], queue: Queue, partition: int, start: int | None
    ) -> Outbox:
        outbox = self.outboxes.get(key)
        if outbox is None:
            outbox = self.make(key, queue, partition, to, start)
            outbox.lifecycle.choices = choices
            outbox.save()
        outbox.lifecycle.choices = choices
        outbox.ready()
        return outbox

    def use(self, policy: SourcePolicy, policy_for: Callable[[str, str], SourcePolicy] | None) -> None:
        """Use these policies from now on. A forwarder's outbox keeps the forwarder's policy."""
        self.policy, self._policy_for = policy, policy_for
        for outbox in self.outboxes.values():
            if outbox.forwarding is None:
                outbox.use(self.policy_of(outbox.to, outbox.key))

    def policy_of(self, to: str | None, key: str) -> SourcePolicy:
        """Return the policy of the Sequences of an outbox, unless their forwarder has one."""
        return self.policy if to is None or self._policy_for is None else self._policy_for(to, key)

    def make(self, key: str, queue: Queue, partition: int, to: str | None, start: int | None = None) -> Outbox:
        """Make an outbox, with its cursor if that does not exist."""
        queue.follow(OUTBOUND + key, partition, start, partial(self._grown, key))
        self.context.mailboxes.add_outbox(to, key)
        outbox = self.outboxes[key] = Outbox(key, queue, partition, to, self.policy_of(to, key), self.context)
        return outbox

    def _grown(self, key: str, offset: int, record: Record | None) -> None:
        """Handle a record that became durable in the queue of an outbox."""
        outbox = self.outboxes[key]
        if record is not None:
            outbox.records.keep(offset, record)
        outbox.records.update_available()
        outbox.ready()

    def open_replies(self, source: RMSource, now: float) -> Outbox:
        """Open the outbox of a Sequence of replies, which needs no CreateSequence.

        Its key is the key that the Sequence is saved under.
        """
        outbox = self.make(source.key, self._queues.outbox(replies_queue(source.key)), 0, source.to)
        source.state = SourceState.CREATED
        outbox.adopt(source)
        self.commit.save_new(source.local_id, source, outbox.records.queue.name, outbox.records.partition)
        self.context.marking.save(source)
        return outbox

    def redirect(self, outbox: Outbox, to: str) -> None:
        """Redirect an outbox that is empty and has no Sequence to another address."""
        self.circuits.leave(outbox)
        self.context.room.leave(outbox.key)
        outbox.to = to
        if outbox.forwarding is not None:
            self.circuits.know(to, outbox.forwarding.circuit)
        outbox.save()

    def close_outbox(self, key: str, now: float) -> None:
        """Forget an outbox. An outbox of replies loses its records; another's queue keeps them."""
        outbox = self.outboxes.pop(key, None)
        if outbox is None:
            return
        if outbox.source is not None:
            outbox.drop(now)
        self.context.deadlines.forget(key)
        self.context.mailboxes.remove_outbox(outbox.to, key)
        self.circuits.leave(outbox)
        self.context.room.leave(key)
        outbox.records.here.release()
        if outbox.is_for_replies:
            self._queues.delete(outbox.records.queue)
        else:
            outbox.records.queue.unfollow(outbox.records.cursor, outbox.records.partition, now)

    def poll_for(self, outbox: Outbox, address: str, owner: str) -> None:
        """Set the address at which a peer that polls answers, and the user who alone may poll; saved."""
        is_url = address.startswith(("http://", "https://")) and not address.startswith(MC_ANONYMOUS)
        outbox.address = address if is_url else ""
        outbox.owner = owner
        self.context.mailboxes.add_outbox(outbox.to, outbox.key, owner)
        outbox.save()

    def discard(self, key: str, now: float) -> None:
        """Forget an outbox and every record in its private queue."""
        outbox = self.outboxes[key]
        self.close_outbox(key, now)
        if not outbox.is_for_replies:
            self._queues.delete(outbox.records.queue)

    def queue(self, name: str) -> Queue | None:
        """Return the queue with that name."""
        return self._queues.get(name)

    @property
    def is_forwarding(self) -> bool:
        """Whether any outbox forwards the records of a queue."""
        return any(outbox.forwarding is not None for outbox in self.outboxes.values())

    # --- what is due ----------------------------------------------------------------------------------------------

    def pump(self, now: float) -> None:
        """Transmit the messages that are due and allowed."""
        ready, room = self.context.ready, self.context.room
        for key in self.context.deadlines.due(now):
            ready[key] = None
        while ready and not self.reading.is_recovering:
            keys = list(ready)
            ready.clear()
            for key in keys:
                outbox = self.outboxes.get(key)
                if outbox is None:
                    continue
                room.begin_turn()
                self._give_turn(outbox, now)
                if room.is_waited_for:
                    room.end_turn(key, is_reading=self.reading.is_reading(outbox))
        self.polls.serve(now)
        if not self.reading.is_recovering:
            self.context.pollers.pump(now)

    @property
    def is_idle(self) -> bool:
        """Whether the next :meth:`pump` transmits nothing new, and neither begins nor ends a Sequence."""
        outboxes = self.outboxes
        return self.polls.is_idle and all(key not in outboxes or outboxes[key].is_idle for key in self.context.ready)

    def _give_turn(self, outbox: Outbox, now: float) -> None:
        self._take_turn(outbox, now)
        self.context.pollers.see(outbox, now)

    def _take_turn(self, outbox: Outbox, now: float) -> None:
        if outbox.forwarding is not None and not self.context.forwarders.giving_up.turn(outbox, now):
            return
        if self.circuits.holds(outbox, now):
            return
        if outbox.lifecycle.handle(OutboxEvent.TURN) is OutboxAction.SEND:
            told = len(self.effects)
            is_over = outbox.turn(now)
            if outbox.forwarding is not None:
                self.circuits.pumped(outbox, told)
            if is_over:
                self.close_outbox(outbox.key, now)

    def deadline(self) -> float | None:
        """Return when :meth:`pump` must be called next; None: not before an event."""
        times = [self.polls.deadline()]
        if not self.reading.is_recovering:
            times += [self.context.deadlines.next(), self.context.pollers.deadline()]
        return min((time for time in times if time is not None), default=None)

    def pause(self, to: str, seconds: float, now: float) -> float:
        """Send nothing to a destination for the time it requested (Retry-After).

        Returns:
            The seconds granted, at most the policy's ``max_retry_after``.
        """
        seconds = min(seconds, self.policy.retransmission.max_retry_after)
        self.circuits.pause(to, seconds, now)
        return seconds

    # --- answers of peers -----------------------------------------------------------------------------------------

    def request_of(
        self, relates_to: str | None, may_answer: Callable[[Outbox], bool], identifier: str = ""
    ) -> tuple[Outbox, int] | None:
        """Return the outbox and number of the waiting request that a message answers, or None.

        Args:
            relates_to: The MessageID that the message names, None for none.
            may_answer: Whether the sender may answer requests of that outbox. Not needed in the Sequence that was
                offered for their replies, as only their destination knows its Identifier.
            identifier: The Sequence of the message, "" for none.
        """
        if relates_to is None:
            return None
        carried, offered = self.sequences.by_local_id, self.sequences.by_offer.get(identifier)
        if offered is not None:
            found = self.context.requests.find(relates_to, lambda source: source is offered.source)
        else:
            found = self.context.requests.find(relates_to, lambda source: may_answer(carried[source.local_id]))
        return None if found is None else (carried[found[0].local_id], found[1])

    def is_offered_by_forwarder(self, identifier: str) -> bool:
        """Whether an inbound Sequence was offered for replies to forwarded messages."""
        outbox = self.sequences.by_offer.get(identifier)
        return outbox is not None and outbox.forwarding is not None

    def terminate_sent(self, source_id: str, was_empty: bool, now: float) -> None:
        """Handle the arrival of TerminateSequence at the destination.

        If it is one-way, the Sequence is over. Otherwise the Sequence is over too once repeats get empty answers, as
        from gSOAP after its response was lost.
        """
        outbox = self.sequences.by_local_id.get(source_id)
        source = outbox.source if outbox is not None else None
        if source is None or source.identifier is None:
            return
        is_enough = was_empty and source.state is SourceState.TERMINATING and source.control.attempts >= ANSWERED_ENOUGH
        if is_enough or not source.versions.rm.can.answers_terminate:
            assert outbox is not None
            heard(outbox, SourceEvent.TERMINATE_SEQUENCE_RESPONSE, now)
