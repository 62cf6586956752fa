"""Withdrawals: messages that a destination refuses permanently leave their Sequence.

A number cannot be skipped, so the Sequence ends before such a message. What was transmitted with it may have arrived,
and must not arrive again in the next Sequence. So the forwarder sends nothing new, lets every exchange end, and asks
the destination what it has, before it makes the dead letter. ``core.states.outbox.WITHDRAWAL_TABLE`` has the steps.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from holdfast.core.events import Effect, Incident
from holdfast.core.messages import Fault, IncompleteSequenceBehavior, SequenceAcknowledgement
from holdfast.core.policy import Delivery, ForwardingPolicy
from holdfast.core.rm_source.source import RMSource
from holdfast.core.sending.outboxes.forwarder_state import Withdrawal
from holdfast.core.sending.outboxes.outbox import Outbox
from holdfast.core.sending.reasons import NO_ANSWER_WHAT_ARRIVED
from holdfast.core.states.outbound import DoubtEvent
from holdfast.core.states.outbox import WithdrawalAction, WithdrawalEvent, WithdrawalState

LEAST_PATIENCE = 60.0
"""Minimum seconds that a destination has to answer requests that it acknowledged, or that follow a message which it
refuses permanently; the policy's patience if that is longer."""

_V = WithdrawalEvent

Bury = Callable[[Outbox, int, Fault, int, float], None]
"""``bury(outbox, offset, fault, attempts, now)``: turn a message into a dead letter."""


def patience_for_replies(policy: ForwardingPolicy) -> float:
    """Return the seconds that a destination has to answer the requests that it has."""
    return max(LEAST_PATIENCE, policy.patience)


def is_earlier_undecided(outbox: Outbox, offset: int, decided: Collection[int] = ()) -> bool:
    """Return whether an earlier message is refused, but not permanently yet.

    Dead letters keep the order of their Sequence, so that it is not lost when an operator requeues them.
    """
    earlier = (one for one, _ in outbox.refused_now() if one < offset and one not in decided)
    return outbox.policy.assurance.in_order and next(earlier, None) is not None


class Withdrawals:
    """Takes refused messages out of their Sequences.

    Args:
        effects: The list that collects reports.
        bury: Makes dead letters.
    """

    def __init__(self, effects: list[Effect], bury: Bury) -> None:
        self._effects = effects
        self._bury = bury

    # --- what happens ---------------------------------------------------------------------------------------------

    def refused(self, outbox: Outbox, source: RMSource, number: int, now: float) -> None:
        """Withdraw a message that the destination refuses permanently."""
        withdrawal = outbox.withdrawal
        if withdrawal is None or withdrawal.source is not source:
            assert outbox.forwarding is not None, outbox.key
            withdrawal = Withdrawal(source, now + patience_for_replies(outbox.forwarding))
            outbox.withdrawal = withdrawal
        is_known = number in withdrawal.refused
        withdrawal.refused.add(number)
        action = withdrawal.handle(_V.REFUSED_AGAIN if is_known else _V.REFUSED)
        if action is WithdrawalAction.HOLD:
            # No new number: whatever is behind the refused one is sent again, so that stays as little as possible.
            source.numbers.limit = min(source.numbers.limit, source.numbers.highest_sent)
        if action in (WithdrawalAction.HOLD, WithdrawalAction.WITHHOLD):
            source.flight.park(number)

    def acknowledged(self, withdrawal: Withdrawal, ack: SequenceAcknowledgement) -> None:
        """Note the numbers that the destination reports as received."""
        if withdrawal.handle(_V.ACKNOWLEDGEMENT) is WithdrawalAction.NOTE:
            withdrawal.named.update(ack.ranges)

    def silent(self, outbox: Outbox, source: RMSource, now: float) -> None:
        """Handle a destination that never reports which messages arrived."""
        source.doubt.resolve(DoubtEvent.MOVED)
        # Duplicates are allowed, so nothing has to be known.
        if outbox.policy.assurance.delivery is Delivery.AT_LEAST_ONCE:
            outbox.ready()  # messages that may have arrived may be sent once more
        elif outbox.withdrawal is not None:
            self._happen(outbox, outbox.withdrawal, _V.SILENT, now)

    def turn(self, outbox: Outbox, withdrawal: Withdrawal, now: float) -> None:
        """Take the next step of a withdrawal, if it is due."""
        self._happen(outbox, withdrawal, self._event(outbox, withdrawal, now), now)

    def _happen(self, outbox: Outbox, withdrawal: Withdrawal, event: WithdrawalEvent, now: float) -> None:
        action = withdrawal.handle(event)
        if withdrawal.state is WithdrawalState.NONE:
            outbox.withdrawal = None
        if action is not None:
            _DO[action](self, outbox, withdrawal, now)

    def _event(self, outbox: Outbox, withdrawal: Withdrawal, now: float) -> WithdrawalEvent:
        source, flight = withdrawal.source, withdrawal.source.flight
        if outbox.source is not source or not source.is_open:
            return _V.SEQUENCE_OVER
        # Its reply is being stored, so it was not refused after all.
        if not source.waiting.replying.isdisjoint(withdrawal.refused):
            return _V.PENDING
        withdrawal.release_arrived(now)
        if source.doubt.is_open:
            return _V.PENDING
        unknown = withdrawal.unknown()
        # An answer may still acknowledge one of them.
        if any(not flight[number].answered for number in unknown):
            return _V.UNANSWERED
        if any(flight[number].exchanges for number in (*withdrawal.others(), *withdrawal.refused)):
            return _V.PENDING  # the destination may still be storing one of them, and acknowledges it only after that
        # Something may have arrived without an acknowledgement: ask (WS-RM 3.8).
        if withdrawal.state is WithdrawalState.DRAINING and (unknown or withdrawal.was_answered_without_a_fault()):
            return _V.UNCERTAIN
        if withdrawal.requests() and not self._may_repeat(outbox, withdrawal, now):
            return _V.UNREPLIED if now < withdrawal.until else _V.UNREPLIED_TOO_LONG
        # A dead letter is made of the message itself, which may have to be read first.
        return _V.CERTAIN if self._missing(outbox, withdrawal) is None else _V.UNREAD

    @staticmethod
    def _may_repeat(outbox: Outbox, withdrawal: Withdrawal, now: float) -> bool:
        """Whether requests without a reply may be sent again in the next Sequence."""
        return now >= withdrawal.until and outbox.policy.assurance.delivery is Delivery.AT_LEAST_ONCE

    @staticmethod
    def _missing(outbox: Outbox, withdrawal: Withdrawal) -> int | None:
        """Return the offset of the first withdrawn message that is not in memory."""
        offsets = (outbox.records.offset_of(number) for number in sorted(withdrawal.refused))
        return next((offset for offset in offsets if outbox.records.record(offset) is None), None)

    # --- what is done ---------------------------------------------------------------------------------------------

    def _nothing(self, outbox: Outbox, withdrawal: Withdrawal, now: float) -> None:
        pass

    def _hurry(self, outbox: Outbox, withdrawal: Withdrawal, now: float) -> None:
        flight = withdrawal.source.flight
        for number in withdrawal.unknown():
            entry = flight[number]
            before = flight.get(entry.waits_for)
            if entry.answered or before is None:
                continue
            if entry.waits_for in withdrawal.refused or before.answered:
                flight.release(number, now)  # the message it waits for may never be acknowledged

    def _ask(self, outbox: Outbox, withdrawal: Withdrawal, now: float) -> None:
        for number in withdrawal.others():
            withdrawal.source.flight.park(number)
        withdrawal.source.doubt.ask_what_else(now)

    def _leave_the_rest(self, outbox: Outbox, withdrawal: Withdrawal, now: float) -> None:
        """Leave messages that did not arrive to the next Sequence, and repeat requests until they are answered.

        A destination need not acknowledge a request that it has not answered yet.
        """
        source, flight = withdrawal.source, withdrawal.source.flight
        for number in withdrawal.others():
            flight.remove(number)
        for number in withdrawal.requests():
            if self._may_repeat(outbox, withdrawal, now):
                flight.remove(number)
            elif number not in flight:
                flight.begin_again(number, outbox.records.record(source.numbers.start + number - 1), now)

    def _await_replies(self, outbox: Outbox, withdrawal: Withdrawal, now: float) -> None:
        self._leave_the_rest(outbox, withdrawal, now)
        outbox.wake(withdrawal.until)

    def _read(self, outbox: Outbox, withdrawal: Withdrawal, now: float) -> None:
        self._leave_the_rest(outbox, withdrawal, now)
        missing = self._missing(outbox, withdrawal)
        assert missing is not None, outbox.key
        outbox.read(missing)

    def _dead_letter(self, outbox: Outbox, withdrawal: Withdrawal, now: float) -> None:
        self._leave_the_rest(outbox, withdrawal, now)
        source = withdrawal.source
        offsets: list[int] = []
        for offset in (outbox.records.offset_of(number) for number in sorted(withdrawal.refused)):
            if is_earlier_undecided(outbox, offset, offsets):
                continue  # the next Sequence has it once more, behind the one that is undecided
            offsets.append(offset)
            refusal = outbox.refusals[offset]
            self._bury(outbox, offset, refusal.fault, refusal.times, now)
            detail = {"forwarder": outbox.key, "offset": offset, "code": refusal.fault.code}
            detail |= {"reason": refusal.fault.reason, "attempts": refusal.times}
            number = offset - source.numbers.start + 1
            told = Incident("dead_letter.added", source.identifier or "", number, "error", detail)
            self._effects.append(told)
        # What arrived behind the gap counts, because the destination delivers it at the end (WS-RM 3.4).
        if source.behavior is IncompleteSequenceBehavior.NO_DISCARD:
            outbox.records.leave_out_arrived()
        for number in withdrawal.refused:
            source.flight.remove(number)
        # The Sequence ends before the gap, and the next one begins behind it.
        source.numbers.limit = min(source.numbers.limit, source.acknowledged.first_gap - 1)
        outbox.exclude(offsets, now)

    def _stop_unreplied(self, outbox: Outbox, withdrawal: Withdrawal, now: float) -> None:
        """Stop for requests without a reply behind a refused message.

        A destination that keeps order may hold them until that message arrives, so they look the same as requests that
        did not arrive.
        """
        self._leave_the_rest(outbox, withdrawal, now)
        count = len(withdrawal.requests())
        reason = f"{count} requests behind a message that is refused may have arrived, and are not answered"
        self._retransmit_everything(outbox, withdrawal, now)
        outbox.stop(NO_ANSWER_WHAT_ARRIVED, reason, now)

    def _stop(self, outbox: Outbox, withdrawal: Withdrawal, now: float) -> None:
        self._retransmit_everything(outbox, withdrawal, now)
        outbox.stop(NO_ANSWER_WHAT_ARRIVED, "the destination does not say what arrived", now)

    @staticmethod
    def _retransmit_everything(outbox: Outbox, withdrawal: Withdrawal, now: float) -> None:
        """Retransmit every message, with new patience, once an operator resumes the outbox."""
        outbox.refusals.clear()
        source = withdrawal.source
        for number, entry in source.flight.items():
            if entry.is_parked:
                source.flight.release(number, now)
        for number in range(source.acknowledged.first_gap, source.numbers.next):
            if number not in source.flight and number not in source.acknowledged:
                source.flight.begin_again(number, outbox.records.record(outbox.records.offset_of(number)), now)


_DO: dict[WithdrawalAction, Callable[[Withdrawals, Outbox, Withdrawal, float], None]] = {
    WithdrawalAction.NOTHING: Withdrawals._nothing,
    WithdrawalAction.HURRY: Withdrawals._hurry,
    WithdrawalAction.ASK: Withdrawals._ask,
    WithdrawalAction.AWAIT_REPLIES: Withdrawals._await_replies,
    WithdrawalAction.READ: Withdrawals._read,
    WithdrawalAction.DEAD_LETTER: Withdrawals._dead_letter,
    WithdrawalAction.STOP_UNREPLIED: Withdrawals._stop_unreplied,
    WithdrawalAction.STOP: Withdrawals._stop,
}
"""Results of a turn, or of a destination that stays silent."""
