"""Lifecycle of an outbox: whether it sends, why not, who decides that, and what is saved of it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from holdfast.core.events import Effect, Stopped
from holdfast.core.messages import IncompleteSequenceBehavior
from holdfast.core.policy import Delivery, SourcePolicy
from holdfast.core.queues.queue import Queue
from holdfast.core.ranges import AcknowledgementRanges
from holdfast.core.records import State
from holdfast.core.rm_source.source import RMSource
from holdfast.core.sending.identifier_claims import release_claim
from holdfast.core.sending.outboxes.forwarder_state import Doubt, HeldBack, Refusal, Unwelcome, Withdrawal
from holdfast.core.sending.outboxes.records import OutboxRecords
from holdfast.core.sending.read_ahead_buffer import Here
from holdfast.core.states.outbound import EndState
from holdfast.core.states.outbox import OUTBOX_TABLE, OutboxAction, OutboxEvent, OutboxState
from holdfast.core.states.table import step
from holdfast.core.versions import Versions

if TYPE_CHECKING:
    from holdfast.core.sending.context import SendingContext

Choice = tuple[Versions, bool]
"""Variant of CreateSequence: its versions, and whether it has an Offer."""

_ENDING = (OutboxState.ENDING, OutboxState.SUSPENDED_ENDING, OutboxState.STOPPED_ENDING)


class OutboxLifecycle(OutboxRecords):
    """The states of an outbox, and the end of its relation to a Sequence.

    Args:
        key, queue, partition, to: As for :class:`OutboxRecords`.
        policy: How its Sequences are treated.
        context: What all outboxes share.
    """

    def __init__(
        self, key: str, queue: Queue, partition: int, to: str | None, policy: SourcePolicy, context: SendingContext
    ):
        super().__init__(key, queue, partition, to, Here(key, context.buffers))
        self._context = context
        self._commit, self._effects = context.commit, context.effects
        self.policy = policy
        self.address = ""
        """Address for answers of a forwarder's destination in the next Sequence: "" for this side's default address,
        :data:`MC_ANONYMOUS` to poll for them."""
        self.owner = ""
        """The authenticated party that alone may poll for its messages; "" without one, or if its Sequence tells."""
        self.choices: list[Choice] = []
        """Variants of CreateSequence to try, in order. All outboxes of one address share them."""
        self.refused: set[Choice] = set()
        """Variants refused since the destination last granted a Sequence, or since the operator resumed the outbox."""
        self.state = OutboxState.OPEN
        self.stopped = ""
        """Why the outbox sends nothing until an operator resumes it, as a code; empty: it sends."""
        self.stopped_for = ""
        """The same in words."""
        self.doubt: Doubt | None = None
        """The doubt to settle before a Sequence follows the lost one."""
        self.suspended: str | None = None
        """The operator's reason to suspend the outbox; None: it is not suspended."""
        self.refusals: dict[int, Refusal] = {}
        """Offsets of messages that the destination refuses."""
        self.withdrawal: Withdrawal | None = None
        """Set while some of them are taken out of their Sequence."""
        self.next_unanswered = 0.0
        """The earliest time at which a request may have waited too long for its reply."""
        self.ignored_offers = 0
        """Sequences in a row for which the destination did not accept the Offer, after a repeated CreateSequence."""
        self.cut_creations = 0
        """Times in a row that a connection ended without an answer to CreateSequence."""
        self.recovered_creation = ""
        """``local_id`` of the Sequence for which an earlier run may have sent CreateSequence."""
        self.unwelcome: Unwelcome | None = None
        """Set while the destination grants no Sequence and is asked again automatically."""
        self.last_answer = ""
        """The problem with the destination's last answer, or why there is none; empty: no problem, or no answer yet."""
        self.fruitless = 0
        """Sequences in a row that ended soon, with nothing acknowledged."""
        self.begins_at = 0.0
        """When the next Sequence may be asked for."""
        self.held_back: HeldBack | None = None
        """Set while nothing is sent and requesters may wait."""

    # --- its states -----------------------------------------------------------------------------------------------

    def use(self, policy: SourcePolicy) -> None:
        """Replace the policy of its Sequences, including the present one."""
        self.policy = policy
        if self.source is not None:
            self.source.policy = policy
            self.source.pace.round_trip.policy = policy.retransmission

    def handle(self, event: OutboxEvent) -> OutboxAction | None:
        """Move by the state table, and return the action of the cell."""
        action, self.state = step(OUTBOX_TABLE, self.state, event, f"the outbox {self.key!r}")
        return action

    def suspend(self, reason: str) -> OutboxAction | None:
        """Send nothing until the operator resumes the outbox. A stopped outbox stays stopped."""
        action = self.handle(OutboxEvent.SUSPEND)
        if action is OutboxAction.HOLD_BACK:
            self.suspended = reason
        return action

    def set_stopped(self, code: str, reason: str = "") -> OutboxAction | None:
        """Enter the state in which nothing is sent; :meth:`stop` also saves and reports it."""
        self.stopped, self.stopped_for = code, reason
        self.suspended = self.held_back = None
        return self.handle(OutboxEvent.STOP)

    def set_resumed(self) -> OutboxAction | None:
        """Leave that state, and forget what was refused; :meth:`Outbox.resume` also saves it."""
        self.stopped = self.stopped_for = ""
        self.suspended = self.held_back = None
        self.refused.clear()
        self.unwelcome = None
        self.fruitless, self.begins_at = 0, 0.0
        return self.handle(OutboxEvent.RESUME)

    @property
    def is_held_back(self) -> bool:
        """Whether the outbox sends nothing until an operator resumes it."""
        return bool(self.stopped) or self.suspended is not None

    @property
    def is_ending(self) -> bool:
        """Whether nothing more will be put in."""
        return self.state in _ENDING

    @property
    def is_idle(self) -> bool:
        """Whether its turn transmits nothing new, and neither begins nor ends a Sequence."""
        source = self.source
        if source is None or source.end is not EndState.OPEN or self.is_ending:
            return False
        return source.polled or self.unsent >= self.durable_end

    @property
    def next_choice(self) -> Choice | None:
        """Return the variant for the next CreateSequence; None if the destination refused all."""
        return next((choice for choice in self.choices if choice not in self.refused), None)

    def is_repeated_creation(self, source: RMSource) -> bool:
        """Whether the CreateSequence of the present Sequence was sent more than once, perhaps by an earlier run."""
        return source.control.request_sent_at is None or self.recovered_creation == source.local_id

    def refuse(self, choice: Choice) -> None:
        """Note that the peer refused a choice. From now on the others come first, for every outbox to its address. No
        choice is excluded permanently, because the peer may refuse another Sequence for another reason."""
        self.refused.add(choice)
        if choice in self.choices:
            self.choices.remove(choice)
            self.choices.append(choice)

    def pause_after(self, source: RMSource, now: float) -> float:
        """Return the seconds until the next Sequence may be asked for, after one that is over. A destination that ends
        each Sequence before it acknowledges anything would be asked again without a pause."""
        policy = self.policy.retransmission
        if len(source.acknowledged) or now - source.created_at > policy.cap:
            self.fruitless = 0
            return 0.0
        self.fruitless += 1
        pause = 0.0 if self.fruitless == 1 else min(policy.cap, policy.floor * 2.0 ** min(self.fruitless - 2, 30))
        self.begins_at = now + pause
        return pause

    def late(self, source: RMSource) -> AcknowledgementRanges:
        """The numbers behind which the application already has others, where order is promised: a destination that
        discards nothing delivers what it acknowledged behind a gap when the Sequence ends. A new Sequence would bring
        these after all. Numbers above the source's limit do not count: they go in the next Sequence."""
        assurance = self.policy.assurance
        is_kept = assurance.in_order and assurance.delivery is not Delivery.AT_LEAST_ONCE and self.withdrawal is None
        if not is_kept or source.behavior is not IncompleteSequenceBehavior.NO_DISCARD:
            return AcknowledgementRanges()
        arrived = source.acknowledged.copy()
        if source.numbers.last is not None:
            arrived.discard(source.numbers.last)  # it has no body, so its time does not matter
        return AcknowledgementRanges(arrived.gaps(min(arrived.highest, source.numbers.limit)))

    def needs_decision(self, source: RMSource) -> bool:
        """Whether the operator must decide before a new Sequence follows one that its destination ended."""
        return source.doubt.is_open or self.in_doubt() > 0 or len(self.late(source)) > 0

    def settles_doubt(self, source: RMSource) -> bool:
        """Whether a forwarder can tell of each message that is in doubt what becomes of it, and duplicates are not
        allowed."""
        return (
            self.forwarding is not None
            and self.policy.assurance.delivery is not Delivery.AT_LEAST_ONCE
            and not source.doubt.is_open
        )

    def refused_now(self) -> Iterator[tuple[int, Refusal]]:
        """Yield the records that the destination refuses but may still accept, by offset, in order."""
        for offset in sorted(self.refusals):
            if self.first <= offset and not self.is_acknowledged(offset):
                yield offset, self.refusals[offset]

    def save(self) -> None:
        """Save the rest of its state."""
        self.queue.cursors.say_about(self.cursor, self.partition, self.about())

    def about(self) -> State:
        """Return the state to save with its cursor."""
        choices = [[v.rm.value, v.addressing.value, v.soap.value, offer] for v, offer in self.choices]
        about: State = {"to": self.to, "choices": choices, "stopped": self.stopped}
        if self.stopped_for:
            about["stopped_for"] = self.stopped_for
        if self.doubt is not None:
            about["doubt"] = self.doubt.to_state()
        about["left_out"] = self.left_out.to_state()
        if self.cuts:
            about["cuts"] = list(self.cuts)
        if self.is_polled and (self.address or self.owner):
            about |= {"address": self.address, "owner": self.owner}
        return about if self.suspended is None else about | {"suspended": self.suspended}

    def recover(self, about: State) -> None:
        """Restore the state saved with its cursor."""
        if about.get("stopped"):
            self.set_stopped(about["stopped"], about.get("stopped_for", ""))
        elif isinstance(about.get("suspended"), str):
            self.suspend(about["suspended"])
        if about.get("doubt") is not None:
            self.doubt = Doubt.from_state(about["doubt"])
        self.left_out = AcknowledgementRanges.from_state(about.get("left_out", []))
        self.cuts = [cut for cut in about.get("cuts", ()) if type(cut) is int]
        if self.is_polled:
            self.address, self.owner = about.get("address", ""), about.get("owner", "")
            self._context.mailboxes.add_outbox(self.to, self.key, self.owner)
        # Only a peer's request opens an outbox of replies again, so the outbox must know its versions.
        self.choices = [
            (Versions(rm, addressing, soap), offer) for rm, addressing, soap, offer in about.get("choices", ())
        ]

    def rewind(self, offset: int, now: float) -> None:
        """Go back to an earlier record. New Sequences send everything from there on."""
        super().rewind(offset, now)
        self.doubt = self.held_back = None

    def pass_acknowledged(self) -> bool:
        """Pass acknowledged records; return whether they are so many that the position should be saved."""
        is_much = super().pass_acknowledged()
        if self.refusals:
            self.refusals = {offset: one for offset, one in self.refusals.items() if offset >= self.first}
        return is_much

    # --- its Sequence ---------------------------------------------------------------------------------------------

    def want_end(self, now: float) -> None:
        """End the outbox's Sequence once everything is acknowledged; :class:`Ended` follows."""
        if self.handle(OutboxEvent.WANT_END) is OutboxAction.END:
            if self.source is not None:
                self.source.want_end()
                self._commit.save(self.source.local_id, self.source)
            self.ready()

    def stop(
        self,
        code: str,
        reason: str,
        now: float,
        first: int = 1,
        last: int = 0,
        refused: tuple[str, int] | None = None,
        in_doubt: str = "",
    ) -> None:
        """Send nothing until an operator decides; :class:`Stopped` follows once that is durable.

        Args:
            code, reason: Why, as a code and in words.
            now: Seconds.
            first, last: Offsets of the messages that the operator decides about; none if ``last`` is lower.
            refused: The Sequence and the number of a message that the destination refuses.
            in_doubt: The numbers that may have arrived.
        """
        if self.set_stopped(code, reason) is OutboxAction.TELL_STOPPED:
            self.save()
            self.ready()  # requesters wait
            self._commit.then(partial(self._tell, Stopped(self.key, code, reason, first, last, refused, in_doubt)))

    def _tell(self, effect: Effect, now: float) -> None:
        self._effects.append(effect)

    def exclude(self, offsets: list[int], now: float) -> None:
        """Exclude these records from every further Sequence, with the open batch."""
        for offset in offsets:
            self.leave_out(offset, offset)
            self.refusals.pop(offset, None)
        if self.source is not None:
            self._commit.save(self.source.local_id, self.source)  # also its acknowledged ranges, trimmed
        self.save()
        self.save_place(now)
        self.ready()

    def read(self, offset: int) -> None:
        """Read the record at ``offset``; the outbox gets a turn after that."""
        self.wait_for(offset, lambda _now: self.ready())
        self._context.reading.ask(self)

    def drop(self, now: float) -> None:
        """Drop the Sequence, whatever becomes of its undelivered messages."""
        source, self.source = self.source, None
        assert source is not None, self.key
        self._context.requests.forget(source)
        self._context.sequences.remove(source)
        self._context.pollers.remove(source)
        release_claim(self._context.claims, source, self._commit)
        if source.offer is not None:
            self._context.offered.forget_offered(source.offer, now)
        self._commit.forget(source.local_id)
        self.first = max(self.first, source.numbers.start + source.records_done)
        self.skip()
        self.save_place(now)

    def wake(self, at: float | None) -> None:
        """Schedule a turn of the outbox at that time."""
        self._context.deadlines.want(self.key, at)

    def ready(self) -> None:
        """Schedule a turn of the outbox at the next :meth:`pump`."""
        self._context.ready[self.key] = None
