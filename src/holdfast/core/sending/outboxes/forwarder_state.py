"""State of an outbox that only forwarders need: refused messages, a lost Sequence, waiting requesters."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import islice

from holdfast.core.messages import Fault
from holdfast.core.ranges import AcknowledgementRanges
from holdfast.core.records import State
from holdfast.core.rm_source.source import RMSource
from holdfast.core.states.outbox import WITHDRAWAL_TABLE, WithdrawalAction, WithdrawalEvent, WithdrawalState
from holdfast.core.states.table import step


@dataclass(slots=True, eq=False)
class Refusal:
    """A message that the destination answers with a fault each time.

    Args:
        fault: What was said last.
        attempts: How often it had been transmitted by then.
        in_row: How often it was refused with no more than one transmission in between. A destination acknowledges a
            request with its reply, so that one that it took is known by nothing but the faults that do not come.
    """

    first_at: float
    fault: Fault
    times: int = 0
    attempts: int = 0
    in_row: int = 0

    def take(self, fault: Fault, attempts: int) -> None:
        """Record another refusal, after ``attempts`` transmissions in the present Sequence."""
        # More than one transmission between two faults: one of them had no fault, so the message may have arrived.
        self.in_row = self.in_row + 1 if attempts <= self.attempts + 1 else 1
        self.fault, self.attempts = fault, attempts
        self.times += 1


@dataclass(slots=True, eq=False)
class Withdrawal:
    """Messages that a forwarder takes out of their Sequence, as the destination refuses them permanently.

    Args:
        until: How long requests that were transmitted besides may take to be answered.
        named: The numbers that the destination acknowledged, including requests without a reply.
    """

    source: RMSource
    until: float
    refused: set[int] = field(default_factory=set)
    named: AcknowledgementRanges = field(default_factory=AcknowledgementRanges)
    state: WithdrawalState = WithdrawalState.NONE

    def handle(self, event: WithdrawalEvent) -> WithdrawalAction | None:
        action, self.state = step(
            WITHDRAWAL_TABLE, self.state, event, f"a withdrawal from the outbound Sequence {self.source.identifier}"
        )
        return action

    def release_arrived(self, now: float) -> None:
        """Withdraw no message that arrived after all; a request is transmitted again until it is answered."""
        flight = self.source.flight
        for number in [number for number in self.refused if number not in flight or number in self.named]:
            self.refused.discard(number)
            if number in flight:
                flight.release(number, now)

    def others(self) -> list[int]:
        """Return the other numbers in flight, without requests."""
        flight, unreplied = self.source.flight, self.source.waiting.unreplied
        return [number for number in flight if number not in self.refused and number not in unreplied]

    def unknown(self) -> list[int]:
        """Return those of the others that may have arrived: some transmission was not surely in vain."""
        source = self.source
        untaken = {number for number in source.flight.untaken if number > source.numbers.sent_before}
        # An earlier run may have transmitted these too, and nothing is known of its answers.
        return [number for number in self.others() if number not in untaken]

    def requests(self) -> list[int]:
        """Return the other requests that may have arrived, and are not answered."""
        flight, unreplied = self.source.flight, self.source.waiting.unreplied
        found = [number for number in flight if number in unreplied and number not in self.refused]
        return found + sorted(number for number in unreplied if number not in flight and number in self.named)

    def was_answered_without_a_fault(self) -> bool:
        """Whether a withdrawn message may have arrived, in this run or in an earlier one."""
        # An earlier run transmitted further than this one has: its answers are unknown.
        source = self.source
        return source.numbers.sent_before > source.numbers.highest_sent or any(
            source.flight[number].may_have_arrived for number in self.refused
        )


@dataclass(slots=True, eq=False)
class Doubt:
    """Numbers of a lost Sequence that its destination may have, until a decision settles each of them.

    Args:
        start: The offset of the Sequence's first message.
        numbers: The numbers that may have arrived, and the numbers that must not follow others that arrived, for order.
        behind: The numbers that the destination acknowledged behind a gap of these, if the assurance promises order.
        code, reason: How the Sequence was lost.
        held: The one-way messages among all these. The policy or the operator decides what happens to them.
    """

    start: int
    numbers: AcknowledgementRanges
    behind: AcknowledgementRanges
    code: str
    reason: str
    held: AcknowledgementRanges = field(default_factory=AcknowledgementRanges)

    def next(self) -> int | None:
        """Return the lowest unsettled number, None without one."""
        lowest = (lower for ranges in (self.numbers, self.behind) for lower, _ in islice(ranges, 1))
        return min(lowest, default=None)

    def settle(self, number: int, *, is_held: bool) -> None:
        """Settle a number. If ``is_held``, a later decision concerns its message."""
        self.numbers.discard(number)
        self.behind.discard(number)
        if is_held:
            self.held.add(number)

    def to_state(self) -> State:
        ranges = {name: getattr(self, name).to_state() for name in ("numbers", "behind", "held")}
        return {"start": self.start, "code": self.code, "reason": self.reason} | ranges

    @classmethod
    def from_state(cls, state: State) -> Doubt:
        numbers, behind, held = (AcknowledgementRanges.from_state(state[one]) for one in ("numbers", "behind", "held"))
        return cls(state["start"], numbers, behind, state["code"], state["reason"], held)


@dataclass(slots=True, eq=False)
class HeldBack:
    """Progress of the search for requests in an outbox that sends nothing.

    Args:
        next: The offset to examine next.
        skip_from, skip_to: Offsets that the search skips: a backlog may have any length, and requesters from that long
            ago no longer wait. Records from ``skip_to`` on are newer.
    """

    next: int
    skip_from: int
    skip_to: int

    def passed(self) -> None:
        """Advance past the examined record at ``next``."""
        self.next += 1
        if self.next == self.skip_from:
            self.next = max(self.next, self.skip_to)
