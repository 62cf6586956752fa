"""Transmissions: effects of each transmission, answer and acknowledgement on the flight and pace of one Sequence."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.core.ranges import AcknowledgementRanges
from holdfast.core.rm_source.control_requests import ANSWERED_ENOUGH
from holdfast.core.rm_source.flight import Flight, InFlight
from holdfast.core.rm_source.pace import Pace
from holdfast.core.rm_source.waiting_requests import SequenceRequests
from holdfast.core.rm_source.window import Early


class Transmissions:
    """Updates of the flight and the pace of one outbound Sequence."""

    __slots__ = ("_flight", "_pace", "_waiting")

    def __init__(self, flight: Flight, waiting: SequenceRequests, pace: Pace) -> None:
        self._flight = flight
        self._waiting = waiting
        self._pace = pace

    def sent(self, number: int, jitter: float, now: float, *, asks: bool) -> int:
        """Record that ``number`` leaves now, and return the number of the attempt, from 1.

        Args:
            jitter: In [0, 1).
            asks: Whether it asks for an acknowledgement.
        """
        flight = self._flight
        entry = flight[number]
        if asks:
            flight.asking.add(number)
        else:
            flight.asking.discard(number)
        entry.attempts += 1
        entry.tries += 1
        entry.answered = False
        entry.waits_for = 0
        entry.is_dropped = False
        entry.behind = flight.lowest if flight.lowest < number else 0
        entry.sent_at = now
        # From the attempts since it last waited for a lower number: that wait was no sign of a slow peer.
        flight.left(number, now + self._pace.round_trip.delay(entry.tries, jitter))
        entry.exchanges += 1
        return entry.attempts

    def news(
        self, ranges: tuple[tuple[int, int], ...], acknowledged: AcknowledgementRanges, now: float
    ) -> list[tuple[int, int]]:
        """Return the parts of ``ranges`` that are newly acknowledged, without requests that wait for a reply."""
        waiting = self._waiting
        # Two ranges name a number above a gap, so the destination keeps early messages.
        if len(ranges) > 1:
            self._pace.window.takes_early()
        elif ranges and not waiting.unreplied:
            (lower, upper), gap = ranges[0], acknowledged.first_gap
            if lower <= gap and acknowledged.highest < gap:  # the usual case: no gap so far
                return [(gap, upper)] if gap <= upper else []
        fresh = AcknowledgementRanges(AcknowledgementRanges(ranges).outside(acknowledged))
        for lower, upper in list(fresh):
            for number in waiting.unreplied_within(lower, upper):
                fresh.discard(number)
                self._flight.has_arrived(number, now)
        return list(fresh)

    def acknowledged(self, newly: Iterable[tuple[int, int]], now: float) -> None:
        """Remove the newly acknowledged numbers from flight, and adapt the pace."""
        flight = self._flight
        resent_at: float | None = None
        for lower, upper in newly:
            if upper - lower < len(flight):  # usual: an acknowledgement adds few numbers
                numbers = list(range(lower, upper + 1))
            else:
                numbers = [number for number in flight if lower <= number <= upper]
            for number in numbers:
                entry = flight.remove(number)
                if entry is None:
                    continue
                # Karn's rule: only a message with one transmission measures a round trip.
                if entry.attempts == 1:
                    self._pace.arrived(entry, now)
                else:
                    resent_at = max(resent_at or 0.0, entry.sent_at)
                    self._pace.arrived_again(number, entry)
        if resent_at is not None:
            self._resend_what_followed(resent_at, now)

    def _resend_what_followed(self, resent_at: float, now: float) -> None:
        # A retransmission filled a gap. A destination that drops messages after a gap (WCF in order) has lost the
        # answered messages that left before it and are still unacknowledged. A destination that holds such messages
        # has just acknowledged them. Messages without an answer may still be on their way: to retransmit them too
        # would double every message in flight for each lost one.
        for entry in self._flight.values():
            if entry.answered and entry.sent_at < resent_at:
                self._flight.hurry(entry, now)

    def replied(self, number: int, now: float) -> None:
        """Remove a request with a durable reply from flight, and adapt the pace."""
        entry = self._flight.remove(number)
        if entry is not None:
            self._pace.replied(number, entry, now)

    def answered(self, number: int, now: float, *, in_answers: bool, is_reply: bool = False) -> None:
        """Process the end of an exchange without a fault, after the acknowledgements in its answer.

        Args:
            number: The number that it carried; 0 for no message.
            in_answers: Whether acknowledgements come only in answers (an anonymous AcksTo). An answered message
                without an acknowledgement, behind a gap, was then dropped because of the gap (WCF in order, gSOAP).
                It waits until the gap is filled, and is then retransmitted immediately. The gap may have been filled
                while the answer was in transit.
            is_reply: Whether the number is a reply to an address. Its requester acknowledges it elsewhere. After
                :data:`ANSWERED_ENOUGH` answers, an unacknowledged reply holds back no other one.
        """
        flight = self._flight
        entry = flight.get(number)
        if entry is None:
            return
        flight.asking.discard(number)
        if number in self._waiting.replying:
            return  # the answer contained its reply: it counts as acknowledged once the reply is stored
        entry.answered = True
        if is_reply:
            entry.answers += 1
            if entry.answers == ANSWERED_ENOUGH:
                flight.pass_over(number)
            return
        if not in_answers:
            return
        lowest = flight.lowest
        if entry.is_parked:
            return
        if lowest < number:
            flight.wait(number, lowest, entry.due)
            # It was dropped for its order, so its next transmission restarts the backoff.
            entry.tries = 0
        elif entry.behind and self._pace.window.early is not Early.TAKES and self._is_soon(number, entry, now):
            self._pace.dropped(entry, now)
            flight.hurry(entry, now)
            entry.tries = 0

    def _is_soon(self, number: int, entry: InFlight, now: float) -> bool:
        """Whether an answer came too soon to mean that a request's reply is not ready yet."""
        return number not in self._waiting.unreplied or now - entry.sent_at < self._pace.round_trip.policy.floor
