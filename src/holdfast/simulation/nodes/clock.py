"""Virtual time: one true time, and one wall clock for each endpoint, which may differ from it.

This module never reads a real clock. The core receives its endpoint's own time. A restart may find the wall clock
moved.
"""

from __future__ import annotations

EPOCH = 1_000_000.0
"""The first true time, far from zero, so that a clock set back still shows a positive time."""


class SimClock:
    """True time, which only moves forward, and the offset of each endpoint's wall clock from it.

    Within one run of an endpoint, its clock advances with true time. A real shell ensures this by anchoring the wall
    clock to the monotonic clock at start. :meth:`jump` belongs to the moment of a restart.

    Args:
        endpoints: How many endpoints there are.
    """

    def __init__(self, endpoints: int = 2) -> None:
        self.now = EPOCH
        self._offsets = [0.0] * endpoints

    def advance_to(self, time: float) -> None:
        """Move true time forward to ``time``; a time in the past is ignored."""
        if time > self.now:
            self.now = time

    def local(self, endpoint: int) -> float:
        """Return the time that the endpoint's clock shows."""
        return self.now + self._offsets[endpoint]

    def true_time(self, endpoint: int, local: float) -> float:
        """Return a true time at which the endpoint's clock shows at least ``local``, despite rounding."""
        return local - self._offsets[endpoint] + 1e-6

    def differs(self, endpoint: int) -> bool:
        """Whether the endpoint's clock deviates from true time."""
        return self._offsets[endpoint] != 0.0

    def jump(self, endpoint: int, seconds: float) -> None:
        """Set the endpoint's wall clock forward or back; only while it is down."""
        self._offsets[endpoint] += seconds
