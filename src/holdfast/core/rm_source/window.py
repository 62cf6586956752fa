"""Window: how many messages of one outbound Sequence may be in flight, as losses and its destination's order allow.

An in-order destination may drop a message that overtakes another one in transit, as WCF (by default) and gSOAP do. A
window above one then costs retransmissions and gains no speed. No protocol element announces this behavior, so the
window follows evidence:

* A message is answered but unacknowledged, while the messages sent before it are acknowledged after one transmission
  each: the destination dropped it. The window halves, once for the messages that left together.
* An acknowledgement names a number above a gap, or a number with a single transmission and an empty answer: the
  destination accepts early messages. From then on no message counts as dropped.

For each dropped message, ``PRICE`` messages must arrive before the window grows again, so about one message in
``PRICE`` is sent in vain. A dropped message costs no time: it is retransmitted when a window of one would have sent it
first.
"""

from __future__ import annotations

from enum import Enum

PRICE = 40
"""Messages that must arrive for each dropped one before the window grows: 2.5 % are sent in vain."""

MOST_UNPAID = 16 * PRICE
"""Upper bound of the messages that must arrive, so that the window recovers soon after a network reordered many."""


class Early(Enum):
    """Observed behavior of a destination for a message that arrives before one with a lower number."""

    UNKNOWN = "unknown"
    DROPS = "drops"
    TAKES = "takes"


class Window:
    """The window of one outbound Sequence.

    Args:
        first: Initial number of messages, before the first acknowledgement.
        most: Maximum number of messages.
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
            behind: Whether it was sent while a lower number was in flight. Only such messages test a window above one.
        """
        if self.early is not Early.DROPS:
            self._size = min(self._most, self._size + 1.0)  # slow start: doubled in each round trip
        elif self._unpaid:
            self._unpaid -= 1
        # Only a message sent behind another tests a window above one.
        elif behind or self._size < 2.0:
            self._size = min(self._most, self._size + 1.0 / self._size)

    def dropped(self, sent_at: float, now: float) -> None:
        """Count one message that the destination dropped, although all earlier ones arrived on their first attempt.

        Args:
            sent_at: When that message left, in seconds.
        """
        if self.early is Early.TAKES:
            return
        self.early = Early.DROPS
        self._unpaid = min(MOST_UNPAID, self._unpaid + PRICE)
        # Once for all messages that left together: they were dropped for one gap.
        if sent_at >= self._reduced_at:
            self._halve(now)

    def takes_early(self) -> None:
        """Record that the destination accepts early messages: no unacknowledged message was dropped for its order."""
        self.early = Early.TAKES
        self._unpaid = 0

    def lost(self, timeout: float, now: float) -> None:
        """Halve the window for a lost message, once per retransmission timeout (seconds)."""
        if now - self._reduced_at >= timeout:
            self._halve(now)

    def _halve(self, now: float) -> None:
        self._size = max(1.0, self._size / 2)
        self._reduced_at = now

    def narrow(self) -> None:
        """Reset the window to one message."""
        self._size = 1.0
