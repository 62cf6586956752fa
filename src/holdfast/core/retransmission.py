"""When an unacknowledged message is due again: round-trip estimates, exponential backoff, cap and jitter.

The estimator is the one of TCP (RFC 6298), which WCF uses too; a sample from a retransmitted message is never taken,
since it is unknown which copy it answers (Karn's rule). ``jitter`` is an argument: a number in [0, 1) per call.
"""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.exceptions import ConfigurationError
from holdfast.settings import Seconds, SecondsOrZero, Share, check_settings


@dataclass(frozen=True, slots=True)
class RetransmissionPolicy:
    """How long to wait for an acknowledgement before sending again.

    The source retransmits a message after the time that the measured round trips of its Sequence suggest (RFC 6298).
    That time stays the same for the first ``steady`` transmissions of a message, and then doubles up to ``cap``. A
    forwarder stops sending earlier if the destination answers nothing: see
    :class:`~holdfast.core.policy.CircuitPolicy`.

    Args:
        initial: Seconds, while no round trip has been measured. 1 s is what RFC 6298 assumes.
        floor: Seconds; never sooner than this, so that a destination may delay its acknowledgements (200 ms is usual).
        cap: Seconds; backoff stops growing here, so that a destination that is back is found soon: who calls through a
            broker or WCF waits a minute at most.
        jitter: Share of the delay that is drawn at random, so that many sources do not send in step.
        give_up_after: Seconds without any sign of life before a message is given up; None: never.
        max_retry_after: Seconds; a destination that answers 429 or 503 is left alone for as long as its Retry-After
            says, but no longer than this; 0: Retry-After is not looked at.
        steady: Number of transmissions before the time doubles; 1: it doubles with each retransmission. One random loss
            does not predict the next, and one Sequence sends too little to congest a network. Linux does the same for
            thin streams, with the same number (TCP_THIN_LINEAR_RETRIES), and for SYN (tcp_syn_linear_timeouts). Until
            the time doubles, halving the window after a loss is the congestion control.

    Raises:
        ConfigurationError: for a number that cannot be, or two that contradict each other.
    """

    initial: Seconds = 1.0
    floor: SecondsOrZero = 0.5
    cap: Seconds = 8.0
    jitter: Share = 0.1
    give_up_after: Seconds | None = None
    max_retry_after: SecondsOrZero = 3600.0
    steady: int = 6

    def __post_init__(self) -> None:
        check_settings(self)
        if self.floor > self.cap:
            raise ConfigurationError(
                f"RetransmissionPolicy(floor={self.floor:g}) is above cap={self.cap:g}",
                remedy="floor is the shortest time between two transmissions of a message, cap the longest.",
            )


class RoundTrip:
    """The smoothed round-trip time of one Sequence and the retransmission timeout that follows from it."""

    __slots__ = ("_mean", "_variation", "policy")

    def __init__(self, policy: RetransmissionPolicy) -> None:
        self.policy = policy
        self._mean: float | None = None
        self._variation = 0.0

    def sample(self, seconds: float) -> None:
        """Take in one measured round trip. Negative ones, which no honest clock gives, are ignored."""
        if seconds < 0:
            return
        if self._mean is None:
            self._mean = seconds
            # RFC 6298 2.2
            self._variation = seconds / 2
        else:
            # RFC 6298 2.3: the variation first, with the mean from before this sample.
            self._variation += (abs(seconds - self._mean) - self._variation) / 4
            self._mean += (seconds - self._mean) / 8

    @property
    def timeout(self) -> float:
        """Seconds to wait for the first transmission's acknowledgement."""
        if self._mean is None:
            return min(self.policy.cap, max(self.policy.floor, self.policy.initial))
        # RFC 6298 2.3 and 2.4, with this policy's floor.
        return min(self.policy.cap, max(self.policy.floor, self._mean + 4 * self._variation))

    def delay(self, attempts: int, jitter: float) -> float:
        """Seconds from the ``attempts``-th transmission (1 is the first) until the message is due again."""
        # RFC 6298 5.5. The exponent is bounded, because a float overflows long before a counter.
        base = min(self.policy.cap, self.timeout * 2.0 ** max(0, min(attempts - self.policy.steady, 30)))
        return base * (1.0 + self.policy.jitter * jitter)
