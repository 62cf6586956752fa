"""Reassembly of one Sequence from its captured messages: duplicated, out of order, incomplete.

The order of a capture says nothing about the order on the wire. So the Sequence is judged as by an RM Destination that
receives every message first, and the end of the Sequence last. :class:`RMDestination` itself decides, with no limit on
held messages. So the result does not depend on the order in which, or the number of parts in which, the capture is
read.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from holdfast.core.faults import MESSAGE_NUMBER_ROLLOVER, sequence_fault
from holdfast.core.messages import ANONYMOUS_EPR, MAX_MESSAGE_NUMBER, Fault
from holdfast.core.policy import DestinationPolicy
from holdfast.core.ranges import AcknowledgementRanges
from holdfast.core.rm_destination.destination import TIME_IS_UP, RMDestination, Verdict
from holdfast.core.states.inbound import DestinationEvent, SettlingState
from holdfast.core.versions import ALL_VERSIONS, RM

POLICY = DestinationPolicy(inactivity_timeout=None, buffer=MAX_MESSAGE_NUMBER, max_ranges=MAX_MESSAGE_NUMBER)
"""Exactly once, in order, NoDiscard. The capture already contains everything, so nothing will be retransmitted."""

_VERSIONS = {rm: next(versions for versions in ALL_VERSIONS if versions.rm is rm) for rm in RM}

_PENDING = 4_096
"""Maximum of acknowledged ranges that wait to be joined: one by one, hostile ranges would be slow to join."""

Pairs = tuple[tuple[int, int], ...]


def refusal_of(number: int) -> Fault | None:
    """Return the fault for a number that no Sequence can have; None: :class:`Reassembly` judges it.

    At a destination of WS-RM 1.0 it ends the Sequence (section 4 there). Here it does not, because in a capture it may
    precede earlier messages.
    """
    return sequence_fault(MESSAGE_NUMBER_ROLLOVER) if number > POLICY.max_message_number else None


def joined(pairs: Iterable[tuple[int, int]]) -> AcknowledgementRanges:
    """Return ranges in any order, overlapping or not, as a set, in n log n time; adding them one by one may take n²."""
    return AcknowledgementRanges(sorted(pairs))


@dataclass(slots=True)
class Heard:
    """A capture's statements about a Sequence, in addition to its messages. :meth:`update` merges two parts of a
    capture.

    Args:
        seen: Number of times that its messages were seen, including repeats.
        first_at, last_at: When the first and the last envelope about it was captured, in any unit; None: unknown.
        created: Its Identifier was granted or offered.
        closed, terminated: CloseSequence, TerminateSequence.
        final: An acknowledgement that never changes again.
        lowest_last, highest_last: The last number according to LastMessage or LastMsgNumber; 0: unknown. They differ if
            a source contradicts itself: the highest counts, so that a gap is shown rather than hidden.
        faults: Codes of the WS-RM faults about it.
    """

    seen: int = 0
    first_at: int | None = None
    last_at: int | None = None
    created: bool = False
    closed: bool = False
    terminated: bool = False
    final: bool = False
    lowest_last: int = 0
    highest_last: int = 0
    faults: set[str] = field(default_factory=set)
    _acknowledged: AcknowledgementRanges = field(default_factory=AcknowledgementRanges)
    _pending: list[tuple[int, int]] = field(default_factory=list)

    def at(self, time: int | None) -> None:
        """Record the time at which an envelope about it was captured."""
        if time is not None:
            self.first_at = time if self.first_at is None else min(self.first_at, time)
            self.last_at = time if self.last_at is None else max(self.last_at, time)

    def last(self, number: int | None) -> None:
        """Record its last number, if it is given and possible."""
        if number is not None and 0 < number <= MAX_MESSAGE_NUMBER:
            self.lowest_last = min(self.lowest_last or number, number)
            self.highest_last = max(self.highest_last, number)

    def acknowledge(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Record ranges that its destination acknowledged; skip invalid ones."""
        self._pending += [(lower, upper) for lower, upper in ranges if 0 < lower <= upper <= MAX_MESSAGE_NUMBER]
        if len(self._pending) > _PENDING + 2 * len(self._acknowledged):
            self._join()

    def _join(self) -> None:
        self._acknowledged = joined([*self._acknowledged, *self._pending])
        self._pending.clear()

    @property
    def acknowledged(self) -> AcknowledgementRanges:
        """Return all numbers that its destination acknowledged."""
        if self._pending:
            self._join()
        return self._acknowledged

    def update(self, other: Heard) -> None:
        """Merge the statements of another part of the capture."""
        self.seen += other.seen
        self.at(other.first_at)
        self.at(other.last_at)
        self.created |= other.created
        self.closed |= other.closed
        self.terminated |= other.terminated
        self.final |= other.final
        self.last(other.lowest_last)
        self.last(other.highest_last)
        self.faults |= other.faults
        self.acknowledge(other.acknowledged)

    def to_state(self) -> list[Any]:
        """Return the state to store; :meth:`from_state` restores it."""
        flags = self.created | self.closed << 1 | self.terminated << 2 | self.final << 3
        last = [self.lowest_last, self.highest_last]
        return [self.seen, self.first_at, self.last_at, flags, *last, sorted(self.faults), self.acknowledged.to_state()]

    @classmethod
    def from_state(cls, state: list[Any]) -> Heard:
        """Restore the result of :meth:`to_state`."""
        seen, first_at, last_at, flags, lowest, highest, faults, acknowledged = state
        created, closed, terminated, final = (bool(flags >> bit & 1) for bit in range(4))
        said = AcknowledgementRanges.from_state(acknowledged)
        return cls(seen, first_at, last_at, created, closed, terminated, final, lowest, highest, set(faults), said)


@dataclass(frozen=True, slots=True)
class Completeness:
    """How complete a Sequence is.

    Args:
        state: "incomplete": numbers are missing; "complete": every number up to the last has arrived; "tail unknown":
            no known number is missing, but the last number is unknown.
        ended: "terminated", "closed", or "".
        last_message_number: The last number according to its source; None: unknown.
        lowest_last: A second, lower one, if the source named two; else None.
        in_order_to: All numbers up to this one have arrived.
        ranges: The numbers that have arrived, as an acknowledgement would name them.
        missing: The numbers that an RM Destination would Nack: below the last, or else below the highest one.
        beyond_last: Numbers that have arrived and are higher than the last.
        acknowledged: The numbers that its destination acknowledged in the capture.
        not_captured: Acknowledged numbers that are not in the capture: lost on the way into the capture, not on the
            wire.
        seen: Number of times that a message was seen.
        numbers: Number of different numbers.
        late: Messages that arrived after the Sequence was settled.
    """

    state: str
    ended: str
    last_message_number: int | None
    lowest_last: int | None
    in_order_to: int
    ranges: Pairs
    missing: Pairs
    beyond_last: Pairs
    acknowledged: Pairs
    not_captured: Pairs
    seen: int
    numbers: int
    late: int


class Reassembly:
    """One Sequence of a capture.

    Use it like this: :meth:`receive` for each message, or :meth:`had` for ranges of them; :meth:`release` returns the
    numbers that are now in order; :meth:`settle` when no more are expected. Everything else that is known about it goes
    to :attr:`heard`.

    Args:
        identifier: Its Identifier.
        rm: Its version: the same Identifier in another version is another Sequence, as for an RM Destination.
    """

    __slots__ = ("_destination", "heard", "late", "next_in_order")

    def __init__(self, identifier: str, rm: RM) -> None:
        self._destination = RMDestination(identifier, _VERSIONS[rm], ANONYMOUS_EPR, POLICY, 0.0)
        self.heard = Heard()
        self.next_in_order = 1
        self.late = 0

    def receive(self, number: int) -> Verdict | Fault:
        """Judge a message: new, a duplicate or, after settling, the fault with which a destination would answer it.

        :func:`refusal_of` must have accepted its number; :attr:`heard` records whether it is the last one.
        """
        verdict = self._destination.receive(number, False, 0.0)
        if isinstance(verdict, Fault):
            self.late += 1
        return verdict

    def had(self, lower: int, upper: int) -> None:
        """Record many numbers at once that are already checked."""
        self._destination.accepted.add_range(lower, upper)

    def release(self) -> tuple[int, int] | None:
        """Return the range of numbers that are newly in order; None without any."""
        lower, following = self.next_in_order, self._destination.accepted.first_gap
        if following <= lower:
            return None
        self.next_in_order = following
        return lower, following - 1

    def settle(self) -> Pairs:
        """Expect no more messages, and settle its end according to the capture, or to the timeout.

        Returns:
            The ranges beyond the gaps, which are released now, ascending (NoDiscard, WS-RM 3.4).
        """
        if self.is_settled:
            return ()
        destination, heard = self._destination, self.heard
        if heard.closed:
            destination.handle(DestinationEvent.CLOSE_SEQUENCE)
        if heard.terminated:
            destination.handle(DestinationEvent.TERMINATE_SEQUENCE)
        else:
            destination.handle(DestinationEvent.EXPIRED)
            destination.last_fault = TIME_IS_UP
        destination.end(heard.highest_last or None)
        return tuple((lower, upper) for lower, upper in destination.accepted if lower >= self.next_in_order)

    @property
    def is_settled(self) -> bool:
        """Whether it no longer accepts new messages."""
        return self._destination.settling is not SettlingState.OPEN

    @property
    def ranges(self) -> AcknowledgementRanges:
        """The numbers that have arrived."""
        return self._destination.accepted

    def standing(self) -> Completeness:
        """Return how complete it is if no more messages arrive."""
        heard, accepted = self.heard, self._destination.accepted
        last = heard.highest_last
        missing = tuple(accepted.gaps(last or accepted.highest))
        not_captured = tuple(heard.acknowledged.outside(accepted))
        beyond = tuple(accepted.outside(AcknowledgementRanges([(1, last)]))) if last else ()
        whole = "complete" if last else "tail unknown"
        return Completeness(
            state="incomplete" if missing or not_captured else whole,
            ended="terminated" if heard.terminated else "closed" if heard.closed or heard.final else "",
            last_message_number=last or None,
            lowest_last=heard.lowest_last if heard.lowest_last != last else None,
            in_order_to=accepted.first_gap - 1,
            ranges=accepted.as_pairs(),
            missing=missing,
            beyond_last=beyond,
            acknowledged=heard.acknowledged.as_pairs(),
            not_captured=not_captured,
            seen=heard.seen,
            numbers=accepted.count,
            late=self.late,
        )

    def to_state(self) -> list[Any]:
        """Return the state to store; :meth:`from_state` restores it."""
        return [
            self._destination.accepted.to_state(),
            self.next_in_order,
            self.is_settled,
            self.late,
            self.heard.to_state(),
        ]

    @classmethod
    def from_state(cls, identifier: str, rm: RM, state: list[Any]) -> Reassembly:
        """Restore the result of :meth:`to_state`."""
        reassembly = cls(identifier, rm)
        accepted, next_in_order, is_settled, late, heard = state
        reassembly._destination.accepted = AcknowledgementRanges.from_state(accepted)
        reassembly.heard = Heard.from_state(heard)
        reassembly.next_in_order = next_in_order
        reassembly.late = late
        if is_settled:
            reassembly.settle()
        return reassembly
