"""Virtual time: one true time, and a wall clock per endpoint that need not agree with it.

Nothing here reads a real clock. The core is given an endpoint's own time; a restart may find the wall clock moved.
"""

from __future__ import annotations

EPOCH = 1_000_000.0
"""Where true time begins: far from zero, so that a clock set back is still a time."""


class SimClock:
    """True time, which only moves forward, and the offset of each endpoint's wall clock from it.

    Within one run of an endpoint its clock advances with true time, as a shell makes sure by anchoring the wall clock
    to the monotonic one when it starts; :meth:`jump` is for the moment of a restart.

    Args:
        endpoints: How many endpoints there are.
    """

    def __init__(self, endpoints: int = 2) -> None:
        self.now = EPOCH
        self._offsets = [0.0] * endpoints

    def advance_to(self, time: float) -> None:
        """Move true time forward to ``time``; a time gone by is ignored."""
        if time > self.now:
            self.now = time

    def local(self, endpoint: int) -> float:
        """What the endpoint's clock shows."""
        return self.now + self._offsets[endpoint]

    def true_time(self, endpoint: int, local: float) -> float:
        """A true time at which the endpoint's clock shows ``local`` or a microsecond more, never less by rounding."""
        return local - self._offsets[endpoint] + 1e-6

    def differs(self, endpoint: int) -> bool:
        """Whether the endpoint's clock does not show true time."""
        return self._offsets[endpoint] != 0.0

    def jump(self, endpoint: int, seconds: float) -> None:
        """The endpoint's wall clock is set forward or back; only while it is down."""
        self._offsets[endpoint] += seconds
