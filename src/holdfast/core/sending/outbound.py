"""Outbound: the sending half of an endpoint. It knows every outbox, gives each its turns, and finds it for answers."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.core.policy import ForwardingPolicy
from holdfast.core.queues.queue import Queue
from holdfast.core.rm_source.control_requests import ANSWERED_ENOUGH
from holdfast.core.sending.context import OutboxHooks
from holdfast.core.sending.exchanges import Exchanges
from holdfast.core.sending.outbox_registry import OutboxRegistry
from holdfast.core.sending.outboxes.earlier_address import leave_earlier_address
from holdfast.core.sending.outboxes.lifecycle import Choice
from holdfast.core.sending.outboxes.outbox import Outbox
from holdfast.core.sending.outboxes.peer_answers import heard
from holdfast.core.sending.served_polls import ServedPolls
from holdfast.core.states.outbound import SourceEvent, SourceState
from holdfast.core.states.outbox import OutboxAction, OutboxEvent


class Outbound:
    """The sending half of an endpoint."""

    def __init__(self, registry: OutboxRegistry, hooks: OutboxHooks):
        self.registry = registry
        self._hooks = hooks
        self._giving_up = hooks.forwarding.giving_up if hooks.forwarding is not None else None
        self.context = registry.context
        self.commit, self.effects = registry.commit, registry.effects
        self.outboxes = registry.outboxes
        self.sequences = registry.sequences
        self.circuits = registry.circuits
        self.reading = registry.reading
        self.creation = self.context.creation
        self.exchanges = Exchanges(self.context)
        self._served_polls = ServedPolls(self.context, self.exchanges, self._give_turn, self.terminate_sent)

    # --- outboxes -------------------------------------------------------------------------------------------------

    def open(self, key: str, to: str, choices: list[Choice]) -> Outbox:
        """Return the outbox ``key``, creating it if it does not exist; see :meth:`OutboxRegistry.open`."""
        return self.registry.open(key, to, choices, self._hooks)

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
            choices: As for :meth:`open`.
            start: The offset where a new outbox begins; None: the first record in the queue.
            policy: The forwarding policy. It is not saved: pass it at each start, before anything is sent.
            address: The address for the destination's replies and acknowledgements of the next Sequence, "" for this
                endpoint's own, ``MC_ANONYMOUS`` to poll for them. A Sequence keeps the address that it began with.
        """
        outbox = self.registry.open_at(key, to, choices, queue, partition, self._hooks, start)
        outbox.address = address
        outbox.forwarding = policy or ForwardingPolicy()
        outbox.use(outbox.forwarding.sending or self.registry.policy_of(to, key))
        self.circuits.know(to, outbox.forwarding.circuit)
        return outbox

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
            # A turn may give turns to other outboxes, or to its own: they follow in the next round.
            ready.clear()
            for key in keys:
                outbox = self.outboxes.get(key)
                if outbox is None:
                    continue
                room.begin_turn()
                self._give_turn(outbox, now)
                if room.is_waited_for:
                    room.end_turn(key, is_reading=self.reading.is_reading(outbox))
        self._served_polls.serve(now)
        if not self.reading.is_recovering:
            self.context.pollers.pump(now)

    @property
    def is_idle(self) -> bool:
        """Whether the next :meth:`pump` transmits nothing new, and neither begins nor ends a Sequence."""
        outboxes, context = self.outboxes, self.context
        return context.polls.is_idle and all(key not in outboxes or outboxes[key].is_idle for key in context.ready)

    def _give_turn(self, outbox: Outbox, now: float) -> None:
        self._take_turn(outbox, now)
        self.context.pollers.see(outbox, now)

    def _take_turn(self, outbox: Outbox, now: float) -> None:
        # Before the circuit: a requester must learn that its request is too old even while the destination is away.
        if outbox.forwarding is not None and self._giving_up is not None and not self._giving_up.turn(outbox, now):
            return
        accounts = self.context.accounts
        if self.circuits.holds(outbox, now) or accounts.holds(outbox, now):
            return
        if outbox.lifecycle.handle(OutboxEvent.TURN) is OutboxAction.SEND:
            if outbox.source is not None and outbox.source.is_recovered:
                leave_earlier_address(outbox, outbox.source, now)
            told = len(self.effects)
            is_over = outbox.turn(now)
            accounts.had_turn(outbox, told, now)
            if outbox.forwarding is not None:
                self.circuits.pumped(outbox, told)
            if is_over:
                self.registry.discard(outbox.key, now)

    def deadline(self) -> float | None:
        """Return when :meth:`pump` must be called next; None: not before an event."""
        # A poll waits for a limited time only, also while the outboxes recover.
        times = [self.context.polls.deadline()]
        if not self.reading.is_recovering:
            times += [self.context.deadlines.next(), self.context.pollers.deadline()]
        return min((time for time in times if time is not None), default=None)

    def pause(self, to: str, seconds: float, now: float) -> float:
        """Send nothing to a destination for the time it requested (Retry-After).

        Returns:
            The seconds granted, at most the policy's ``max_retry_after``.
        """
        seconds = min(seconds, self.registry.policy.retransmission.max_retry_after)
        self.circuits.pause(to, seconds, now)
        return seconds

    def hurry(self, outbox: Outbox, now: float) -> None:
        """Send what waits in an outbox for its next attempt now, because an operator says that the cause is gone."""
        source = outbox.source
        outbox.lifecycle.begins_at = min(outbox.lifecycle.begins_at, now)
        if source is not None:
            source.control.hurry(now)
            for entry in list(source.flight.values()):
                if not entry.is_parked:
                    source.flight.hurry(entry, now)
        self.circuits.hurry(outbox.to, now)
        outbox.ready()

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
