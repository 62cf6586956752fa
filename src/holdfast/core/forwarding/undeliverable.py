"""Undeliverable messages: refused permanently, expired, or discarded.

A number cannot be skipped within a Sequence, so the Sequence ends before such a message and the next begins behind it.
If other messages were transmitted with it, the forwarder sends no new messages until it knows which of them arrived: it
does not resend those, but resends the others. A message that a forwarder cannot deliver becomes a dead letter, and its
requester receives a fault, in the batch that moves the cursor past it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from holdfast.core.events import Discarded, Incident, ReadWanted
from holdfast.core.faults import HOLDFAST_NS
from holdfast.core.forwarding.expiry import Expiry, GivenUp
from holdfast.core.forwarding.withdrawals import Withdrawals, is_earlier_undecided, patience_for_replies
from holdfast.core.messages import Fault, IncompleteSequenceBehavior, SequenceAcknowledgement
from holdfast.core.policy import OnExpired, OnRefused
from holdfast.core.queues.dead_letters import DeadLetters, Letter, Origin
from holdfast.core.queues.queue import Queue
from holdfast.core.ranges import AcknowledgementRanges
from holdfast.core.receiving.replies import Replies
from holdfast.core.records import Record
from holdfast.core.rm_source.source import RMSource
from holdfast.core.sending.outbox_registry import OutboxRegistry
from holdfast.core.sending.outboxes.forwarder_state import Doubt, Refusal
from holdfast.core.sending.outboxes.outbox import Outbox
from holdfast.core.sending.reasons import DISCARDED
from holdfast.core.versions import Addressing

_IN_DOUBT = Fault(
    "InDoubt",
    "The session of the service ended before it replied: it may have executed the request.",
    sender=False,
    code_namespace=HOLDFAST_NS,
)


def discard(registry: OutboxRegistry, outbox: Outbox, offset: int, now: float) -> None:
    """Discard one unacknowledged message at the operator's request.

    :class:`Discarded` follows once that is durable. If the message was never transmitted, the present Sequence ends
    before it, and the next one begins behind it. If it may have been transmitted, its number cannot be skipped, so the
    present Sequence is abandoned. Messages known to have arrived in it are not sent again. Messages transmitted but not
    acknowledged may have arrived, so the outbox stops, unless it already has, and the operator decides whether a new
    Sequence carries them.
    """
    assert outbox.records.first <= offset < outbox.records.durable_end and not outbox.records.is_acknowledged(offset), (
        outbox.key,
        offset,
    )
    source = outbox.source
    if source is not None and outbox.records.may_have_left(offset):
        # Without the message itself, which is about to be discarded.
        in_doubt = outbox.records.in_doubt() - 1
        outbox.records.leave_out_arrived()
        outbox.drop(now)
        if in_doubt and not outbox.lifecycle.stopped:
            outbox.stop(DISCARDED, f"{in_doubt} others of its Sequence may have arrived", now)
    outbox.exclude([offset], now)
    registry.commit.then(lambda _now: registry.effects.append(Discarded(outbox.key, offset)))


class UndeliverableMessages:
    """Dead-lettering of undeliverable messages, as the forwarders' policy prescribes.

    Args:
        tell: Makes the reply that carries a fault, in that version of WS-Addressing; None if no reply is wanted.
        replies: Receives replies to requests.
    """

    def __init__(
        self,
        letters: DeadLetters,
        tell: Callable[[Record, Fault, Addressing], Record | None],
        registry: OutboxRegistry,
        replies: Replies,
    ) -> None:
        self.letters = letters
        self._tell = tell
        self._registry = registry
        self._replies = replies
        self._is_requeueing = False
        self._commit = registry.commit
        self._effects = registry.effects
        self._expiry = Expiry(registry, replies)
        self._withdrawals = Withdrawals(registry.effects, self._bury)

    def turn(self, outbox: Outbox, now: float) -> bool:
        """Handle undeliverable messages that are due; return whether the outbox may send."""
        # Before anything else: a new Sequence must not begin before what the lost one may have delivered is settled.
        if outbox.doubt is not None and not self._settle(outbox, outbox.doubt, now):
            return False
        if outbox.withdrawal is not None:
            self._withdrawals.turn(outbox, outbox.withdrawal, now)
        if now >= outbox.next_unanswered and outbox.source is not None:
            self._see_unanswered(outbox, outbox.source, now)
        if outbox.records.has_requests and outbox.source is not None:
            self._give_up_untaken(outbox, outbox.source, now)
        given_up = self._expiry.see(outbox, now)
        for one in given_up:
            self._expire(outbox, one, now)
        if given_up:
            return False  # the outbox gets another turn at once
        # A new Sequence must not begin with a message that may have expired.
        return outbox.source is not None or not outbox.records.wants_front

    def _see_unanswered(self, outbox: Outbox, source: RMSource, now: float) -> None:
        """Stop waiting for replies to acknowledged requests after the policy's patience.

        If replies go to an address, only this timeout shows that no reply will come.
        """
        policy = outbox.forwarding
        if policy is None or self._registry.is_anonymous(source):
            return
        patience = patience_for_replies(policy)
        entries = [(number, source.flight[number]) for number in source.waiting.unreplied if number in source.flight]
        late = [number for number, entry in entries if entry.arrived_at + patience <= now]
        for number in late:
            outbox.hooks.forwarders.unanswered(outbox, number, now)
        left = (entry.arrived_at for _, entry in entries if entry.arrived_at + patience > now)
        outbox.next_unanswered = min([now, *left]) + patience
        if source.waiting.unreplied:
            outbox.wake(outbox.next_unanswered)

    # --- what the destination refuses -----------------------------------------------------------------------------

    def refused(self, outbox: Outbox, number: int, fault: Fault, now: float, *, is_final: bool = False) -> None:
        """Handle a refused message, or one that cannot be written (``is_final``).

        A requester receives the fault at once and may ask again. The forwarder retries a one-way message for as long as
        the policy prescribes.
        """
        source, policy = outbox.source, outbox.forwarding
        assert source is not None and policy is not None, outbox.key
        if number not in source.flight or not source.is_open or outbox.lifecycle.stopped:
            return  # acknowledged or dead-lettered meanwhile; or the operator must decide
        offset, entry = outbox.records.offset_of(number), source.flight[number]
        refusal = outbox.refusals.setdefault(offset, Refusal(now, fault))
        refusal.take(fault, entry.attempts)
        # Reported once, and not with each retry.
        if refusal.times == 1:
            self._tell_refused(outbox, source, number, fault)
        withdrawal = outbox.withdrawal
        is_request = number in source.waiting.unreplied
        # A request is acknowledged with its reply alone, so only an unbroken run of faults says that it was refused.
        times = refusal.in_row if is_request else refusal.times
        at_once = is_final or (is_request and self._refuses_each(source, number, refusal))
        if withdrawal is not None and number in withdrawal.named and not is_final:
            source.not_delivered(number, now)  # it has arrived, and is transmitted again until it is answered
        elif withdrawal is not None and number not in withdrawal.refused and not (at_once or entry.may_have_arrived):
            source.flight.remove(number)  # it certainly did not arrive, and is retried in the next Sequence
        elif not (at_once or (times >= policy.refusals and now - refusal.first_at >= policy.patience)):
            source.not_delivered(number, now)
        elif at_once or withdrawal is not None or not is_earlier_undecided(outbox, offset):
            self._refuse_for_good(outbox, source, number, refusal, now)
        else:
            source.not_delivered(number, now)  # the dead letters of a Sequence keep its order
        outbox.ready()

    def _refuses_each(self, source: RMSource, number: int, refusal: Refusal) -> bool:
        """Return whether the destination refused every transmission of a message.

        A transmission that it did not refuse may still arrive.
        """
        entry = source.flight[number]
        if number <= source.numbers.sent_before:
            return False  # an earlier process may have transmitted it, too
        # A posted fault does not say which transmission it answers.
        return not entry.may_have_arrived if self._registry.is_anonymous(source) else refusal.times >= entry.attempts

    def _tell_refused(self, outbox: Outbox, source: RMSource, number: int, fault: Fault) -> None:
        record = outbox.records.record(outbox.records.offset_of(number))
        detail = {"forwarder": outbox.key, "action": record.action if record is not None else ""}
        detail |= {"code": fault.code, "reason": fault.reason}
        told = Incident("message.refused_by_destination", source.identifier or "", number, "warning", detail)
        self._effects.append(told)

    def declined(self, outbox: Outbox, number: int, fault: Fault, now: float) -> None:
        """Dead-letter a message that was acknowledged although the service refused it.

        The Sequence cannot carry it again, so it becomes a dead letter whatever the policy prescribes. If the policy is
        to wait, the outbox stops until the operator decides.
        """
        source = outbox.source
        assert source is not None, outbox.key
        offset = outbox.records.offset_of(number)
        record = outbox.records.record(offset)
        if record is None or record.wants_reply or number not in source.flight or number == source.numbers.last:
            return
        times = source.flight[number].attempts
        # Acknowledged, so its number is taken: as a letter it is at least not lost.
        self._bury(outbox, offset, fault, times, now)
        detail = {"forwarder": outbox.key, "offset": offset, "code": fault.code, "reason": fault.reason}
        self._effects.append(
            Incident("dead_letter.added", source.identifier or "", number, "error", detail | {"attempts": times})
        )
        if _waits(outbox) and not outbox.lifecycle.stopped:
            outbox.stop(fault.code, fault.reason, now, refused=(source.identifier or "", number))

    def _refuse_for_good(self, outbox: Outbox, source: RMSource, number: int, refusal: Refusal, now: float) -> None:
        fault = refusal.fault
        reason = fault.reason
        # Such a destination would throw away even what it acknowledged (WS-RM 3.4), which no program should decide.
        if source.behavior is IncompleteSequenceBehavior.DISCARD_ENTIRE_SEQUENCE and len(source.acknowledged):
            reason = f"{reason} (the destination would discard the whole Sequence if it ended without this message)"
        elif number in source.waiting.unreplied or not _waits(outbox):
            self._withdrawals.refused(outbox, source, number, now)
            return
        outbox.refusals.clear()  # an operator who resumes it starts a new period of patience
        self._commit.save(source.local_id, source)
        outbox.stop(fault.code, reason, now, refused=(source.identifier or "", number))

    def acknowledged(self, outbox: Outbox, ack: SequenceAcknowledgement) -> None:
        """Note the numbers that the destination reports as received."""
        assert outbox.withdrawal is not None, outbox.key
        self._withdrawals.acknowledged(outbox.withdrawal, ack)

    def silent(self, outbox: Outbox, source: RMSource, now: float) -> None:
        """Handle a destination that never reports which messages arrived."""
        self._withdrawals.silent(outbox, source, now)

    def _bury(self, outbox: Outbox, offset: int, fault: Fault, times: int, now: float) -> None:
        """Turn a message into a dead letter and send its requester the fault."""
        record = outbox.records.here[offset]
        origin = Origin(outbox.records.queue.name, outbox.records.partition, offset, outbox.key, fault.code)
        # The letter and the fault for the requester are in the batch that moves the cursor past the message.
        self.letters.add(Letter(record, fault.reason, times, now, origin))
        self._answer(record, fault, now)

    def _answer(self, record: Record, fault: Fault, now: float) -> None:
        if record.wants_reply:
            self._replies.reply(record, self._tell(record, fault, self._replies.addressing_of(record)), now)

    # --- what is in doubt -----------------------------------------------------------------------------------------

    def lost(self, outbox: Outbox, source: RMSource, code: str, reason: str) -> None:
        """Begin settling, message by message, what may have arrived in a lost Sequence.

        Another Sequence follows only after that. Call this before the Sequence is dropped.
        """
        # Before the Sequence is dropped, which would forget what was transmitted in it.
        late, numbers, behind = outbox.late(source), outbox.records.doubtful(source), AcknowledgementRanges()
        if len(late):
            numbers.update(late)
            # What arrived behind a gap has been delivered by then, so what is in the gap must not follow it.
            behind.update(source.acknowledged.outside(AcknowledgementRanges([(1, source.acknowledged.first_gap)])))
            if source.numbers.last is not None:
                behind.discard(source.numbers.last)
        elif source.behavior is IncompleteSequenceBehavior.NO_DISCARD:
            outbox.records.leave_out_arrived()
        outbox.doubt = Doubt(source.numbers.start, numbers, behind, code, reason)

    def _settle(self, outbox: Outbox, doubt: Doubt, now: float) -> bool:
        """Settle the messages in doubt; return whether all are, and the outbox may send.

        A request that may have arrived is answered with a fault that reports the doubt. A one-way message has no
        requester, so the operator decides.
        """
        passed = []
        while (number := doubt.next()) is not None:
            # Left out or acknowledged already: nothing is in doubt about it.
            offset = doubt.start + number - 1
            is_over = outbox.records.is_acknowledged(offset)
            record = outbox.records.record(offset)
            if record is None and not is_over:
                # The next turn continues here, after the read.
                outbox.read(offset)
                break
            is_request = record is not None and record.wants_reply
            if is_request and not is_over:
                passed.append(offset)
                if number not in doubt.behind:  # otherwise its reply came
                    self._bury(outbox, offset, _IN_DOUBT, 1, now)
                    detail = {"forwarder": outbox.key, "offset": offset, "code": doubt.code, "reason": doubt.reason}
                    told = Incident("request.in_doubt", number=number, level="error", detail=detail)
                    self._effects.append(told)
            doubt.settle(number, is_held=not (is_over or is_request))
        is_settled = doubt.next() is None
        if is_settled:
            outbox.doubt = None
        if passed or is_settled:  # else nothing changes before a record is read, and another turn would not help
            outbox.exclude(passed, now)
        if is_settled and len(doubt.held):
            first, last = (doubt.start + number - 1 for number in (next(iter(doubt.held))[0], doubt.held.highest))
            outbox.stop(doubt.code, doubt.reason, now, first, last, in_doubt=str(doubt.held))
        return is_settled

    # --- what is too old ------------------------------------------------------------------------------------------

    def _give_up_untaken(self, outbox: Outbox, source: RMSource, now: float) -> None:
        """Dead-letter numbered requests that were never transmitted, like refused ones."""
        for number, fault in list(self._expiry.untaken(outbox, source, now)):
            outbox.refusals[outbox.records.offset_of(number)] = Refusal(now, fault, 1)
            self._withdrawals.refused(outbox, source, number, now)
            outbox.ready()

    def _expire(self, outbox: Outbox, given_up: GivenUp, now: float) -> None:
        policy, offsets, fault = outbox.forwarding, given_up.offsets, given_up.fault
        assert policy is not None
        # A requester gets its fault whatever happens to the message.
        for offset in offsets:
            if policy.on_expired is OnExpired.DEAD_LETTER:
                self._bury(outbox, offset, fault, 0, now)
            else:
                self._answer(outbox.records.here[offset], fault, now)
        detail = {"forwarder": outbox.key, "count": len(offsets), "first": offsets[0], "then": policy.on_expired.value}
        given_up.told.detail = detail | {"reason": fault.reason}
        self._effects.append(given_up.told)
        outbox.exclude(offsets, now)

    # --- dead letters to requeue ----------------------------------------------------------------------------------

    def requeue(self, letter: int | None = None) -> int:
        """Append one dead letter, or all, to the queue again; return their count.

        The forwarder that dead-lettered it sends it once more, and readers of the queue receive it once more. Its reply
        reaches no requester: a request was answered when it became a dead letter.
        """
        count = self.letters.ask(letter)
        self._commit.then(self.requeue_next)
        return count

    def requeue_next(self, now: float) -> None:
        """Requeue the next requested dead letter, if it came from a forwarder."""
        letter = self.letters.next_asked()
        if letter is not None and not self._is_requeueing:
            self._is_requeueing = True
            take = partial(self._requeue, letter)
            self._effects.append(ReadWanted(self.letters.name, 0, letter, letter + 1, take))

    def _requeue(self, letter: int, found: list[tuple[int, Record]], now: float) -> None:
        self._is_requeueing = False
        if self.letters.is_there(letter):
            opened = self.letters.unseal(found[0][1])
            origin = opened.origin
            queue = self._registry.queue(origin.queue) if origin is not None else None
            if origin is None or queue is None or origin.partition >= len(queue.partitions):
                # It may have come from a queue that has been removed from the configuration since.
                self.letters.forget_asked(letter)
                detail = {"letter": letter, "why": "there is no queue here that it came from"}
                self._effects.append(Incident("dead_letter.not_requeued", level="warning", detail=detail))
            else:
                record = opened.record
                # Its requester has its fault, so none waits for a reply. Its age begins again, or it would expire.
                record.wants_reply, record.received_at, record.released_at = False, now, None
                offset = queue.records.append(origin.partition, record)
                others = self._leave_to(origin, queue, offset)
                self._commit.then(partial(self._requeued, queue.name, origin.partition, offset, record, others))
                # The copy in the queue and the end of the letter are in one batch: the message is in exactly one place.
                self.letters.discard(letter)
        self.requeue_next(now)

    def _leave_to(self, origin: Origin, queue: Queue, offset: int) -> list[Outbox]:
        """Leave the record to the forwarder that dead-lettered it, in the open batch.

        The other forwarders already sent it. Returns their outboxes.
        """
        outboxes = self._registry.outboxes
        if origin.forwarder not in outboxes:
            return []  # a present reader of the queue may take over from the missing forwarder
        others = [
            one
            for one in outboxes.values()
            if one.records.queue is queue and one.records.partition == origin.partition and one.key != origin.forwarder
        ]
        for one in others:
            one.records.left_out.add_range(offset + 1, offset + 1)
            one.records.update_available()
            one.save()
        return others

    def _requeued(
        self, name: str, partition: int, offset: int, record: Record, others: list[Outbox], now: float
    ) -> None:
        queue = self._registry.queue(name)
        assert queue is not None, name
        queue.stored(partition, offset, now, record)
        for one in others:
            one.records.skip()


def _waits(outbox: Outbox) -> bool:
    """Whether the operator decides about a message that is refused permanently."""
    assert outbox.forwarding is not None
    decided = outbox.forwarding.on_refused
    return decided is OnRefused.WAIT or (decided is None and outbox.policy.assurance.in_order)
