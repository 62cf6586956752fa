"""Window: how many messages of one outbound Sequence may be in flight, as losses and its destination's order allow.

A destination in order may drop a message that overtakes another one on its way (WCF does by default, gSOAP too): then a
window above one costs repeats and brings no speed. No specification announces it, so the window follows evidence:

* A message was answered, was sent after others, and is unacknowledged when those are acknowledged, each after a single
  transmission: the destination dropped it. The window halves, once for the messages that left together.
* An acknowledgement names a number above a gap, or a number with a single transmission and an empty answer: the
  destination accepts early messages. From then on no message counts as dropped.

Each dropped message must be paid for by ``PRICE`` messages that arrive before the window grows again, so that about one
message in ``PRICE`` is sent in vain. In time a dropped message costs nothing: it leaves again when a window of one
would have sent it first.
"""

from __future__ import annotations

from enum import Enum

PRICE = 40
"""Messages that must arrive, for each one that was dropped, before the window grows: 2.5 % are sent in vain."""

MOST_UNPAID = 16 * PRICE
"""Messages that must arrive at most, so that a network that was in disorder for a while is soon used in full again."""


class Early(Enum):
    """What a destination does with a message that comes before one with a lower number, as far as it has shown."""

    UNKNOWN = "unknown"
    DROPS = "drops"
    TAKES = "takes"


class Window:
    """The window of one outbound Sequence.

    Args:
        first: Messages before anything was acknowledged.
        most: Messages at most.
        now: Seconds.
    """

    __slots__ = ("_most", "_reduced_at", "_size", "_unpaid", "early")

    def __init__(self, first: int, most: int, now: float) -> None:
        self.early = Early.UNKNOWN
        self._size = float(first)
        self._most = float(most)
        self._reduced_at = now
        self._unpaid = 0

    @property
    def size(self) -> int:
        """Messages that may be in flight."""
        return int(self._size)

    def arrived(self, *, behind: bool) -> None:
        """Count one more acknowledged message.

        Args:
            behind: Whether it was sent while a lower number was in flight. No other message tests a window above one.
        """
        if self.early is not Early.DROPS:
            self._size = min(self._most, self._size + 1.0)  # slow start: doubled in each round trip
        elif self._unpaid:
            self._unpaid -= 1
        elif behind or self._size < 2.0:
            self._size = min(self._most, self._size + 1.0 / self._size)

    def dropped(self, sent_at: float, now: float) -> None:
        """Count one message that the destination dropped, though all before it arrived at their first transmission.

        Args:
            sent_at: When that message left, in seconds.
            now: Seconds.
        """
        if self.early is Early.TAKES:
            return
        self.early = Early.DROPS
        self._unpaid = min(MOST_UNPAID, self._unpaid + PRICE)
        if sent_at >= self._reduced_at:
            self._halve(now)

    def takes_early(self) -> None:
        """The destination took a message that came early: nothing that it does not acknowledge was dropped for that."""
        self.early = Early.TAKES
        self._unpaid = 0

    def lost(self, timeout: float, now: float) -> None:
        """Halve for a lost message, once in each retransmission timeout (seconds)."""
        if now - self._reduced_at >= timeout:
            self._halve(now)

    def _halve(self, now: float) -> None:
        self._size = max(1.0, self._size / 2)
        self._reduced_at = now

    def narrow(self) -> None:
        """Begin with one message again."""
        self._size = 1.0
