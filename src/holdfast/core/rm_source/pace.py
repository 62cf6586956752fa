"""Pace: how fast one outbound Sequence transmits, by its round trips, its losses and its peer's buffer."""

from __future__ import annotations

from holdfast.core.policy import SourcePolicy
from holdfast.core.retransmission import RoundTrip
from holdfast.core.rm_source.flight import Flight, InFlight
from holdfast.core.rm_source.window import Early, Window


class Pace:
    """The pace of one outbound Sequence.

    Args:
        policy: Its limits and timers.
    """

    __slots__ = ("_last_lost", "buffer_remaining", "round_trip", "window")

    def __init__(self, policy: SourcePolicy, now: float) -> None:
        self.round_trip = RoundTrip(policy.retransmission)
        self.window = Window(policy.initial_window, policy.window, now)
        self.buffer_remaining: int | None = None
        """Messages that the peer can buffer, by its latest BufferRemaining; None if it sent none."""
        self._last_lost = 0
        """The highest acknowledged number that lost a transmission."""

    @property
    def size(self) -> int:
        """How many numbers may be in flight, by the window and by the peer's buffer."""
        size = self.window.size
        # netrm:BufferRemaining: 0 stops new messages, and an AckRequested now and then asks for room.
        return size if self.buffer_remaining is None else min(size, self.buffer_remaining)

    def arrived(self, entry: InFlight, now: float) -> None:
        """Process the acknowledgement of a message that was transmitted once."""
        # It had an empty answer, and was acknowledged later without a repeat: the destination had kept it all along.
        if entry.answered:
            self.window.takes_early()
        self.round_trip.sample(now - entry.sent_at)
        self.window.arrived(behind=entry.behind > 0)

    def arrived_again(self, number: int, entry: InFlight) -> None:
        """Process the acknowledgement of a message that was lost, or that the destination had dropped."""
        if entry.was_lost_once:
            self._last_lost = max(self._last_lost, number)
        else:
            self.window.arrived(behind=entry.behind > 0)

    def replied(self, number: int, entry: InFlight, now: float) -> None:
        """Process the reply to a request, which stands for its acknowledgement."""
        # With repeats, it is unknown which transmission the reply answers (Karn's rule).
        if entry.attempts == 1:
            self.round_trip.sample(now - entry.sent_at)
        self.window.arrived(behind=entry.behind > 0)
        if entry.was_lost_once:
            self._last_lost = max(self._last_lost, number)

    def dropped(self, entry: InFlight, now: float) -> None:
        """Record that the destination answered the message but does not have it, although lower numbers arrived."""
        if entry.is_dropped or self.window.early is Early.TAKES:
            return
        entry.is_dropped = True
        entry.drops += 1
        if self._last_lost < entry.behind:  # otherwise a lost message caused the gap
            self.window.dropped(entry.sent_at, now)

    def limited(self, flight: Flight, due: list[int], now: float) -> list[int]:
        """Return the due numbers that leave now; the others wait for them.

        Lost and dropped messages halve the window. The halved window limits the retransmissions that leave now, except
        of replies that are passed over.
        """
        counted = [number for number in due if number not in flight.passed_over] if flight.passed_over else due
        entries = [flight[number] for number in counted]
        if not any(entry.was_lost for entry in entries):
            return due  # requests that have arrived, retransmitted for their replies
        for entry in entries:
            if entry.waits_for and entry.answered:
                self.dropped(entry, now)
        timeout = self.round_trip.timeout
        if any(entry.was_lost and not entry.is_dropped for entry in entries):
            self.window.lost(timeout, now)
        # At least one always leaves, or nothing would be acknowledged again.
        allowed = max(1, self.size)
        held = counted[allowed:]
        for number in held:
            flight.wait(number, counted[allowed - 1], now + timeout)
        return [number for number in due if number not in held] if held else due

    def soon(self, tries: int) -> float:
        """Return the seconds until a retransmission of a message that certainly did not arrive."""
        policy = self.round_trip.policy
        return min(policy.cap, policy.floor * 2.0 ** min(max(0, tries - 1), 30))
