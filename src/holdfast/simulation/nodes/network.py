"""The faults of a bad network, drawn from a seed for one exchange at a time.

This module carries no messages and knows no time except delays. The simulator asks it for the fate of every exchange. A
transport between real endpoints can use it in the same way.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from holdfast.settings import SecondsOrZero, Share, check_settings, check_share


@dataclass(frozen=True, slots=True)
class NetworkFaults:
    """How often each fault occurs. Probabilities from 0 to 1, independent of each other; times in seconds.

    Args:
        lose_request: The request never arrives; the caller learns of the failure, sooner or later.
        lose_response: The request is processed, but the response never arrives.
        duplicate: The request is processed twice, and both responses return, in either order.
        delay: The request or the response is delayed, so that later ones overtake it.
        latency: The longest time an undisturbed request or response takes.
        max_delay: The longest time a delayed one takes.
        silent: The caller notices a lost exchange only by its timeout, not by a broken connection.

    Raises:
        ConfigurationError: for a probability outside 0..1 or a negative time.
    """

    lose_request: Share = 0.0
    lose_response: Share = 0.0
    duplicate: Share = 0.0
    delay: Share = 0.0
    latency: SecondsOrZero = 0.02
    max_delay: SecondsOrZero = 5.0
    silent: Share = 0.0

    def __post_init__(self) -> None:
        check_settings(self)


PERFECT = NetworkFaults()


@dataclass(frozen=True, slots=True)
class Copy:
    """One processing of a request: seconds until it arrives and until its response is back; None: lost."""

    request_delay: float
    response_delay: float | None


@dataclass(frozen=True, slots=True)
class Fate:
    """The fate of one exchange.

    Args:
        copies: Each arrival of the request at the other side; empty if it is lost.
        silent: Whether a caller without a response must wait for its own timeout.
    """

    copies: tuple[Copy, ...] = field(default=())
    silent: bool = False


class Network:
    """Draws the fates of exchanges; the same seed gives the same fates.

    Args:
        faults: The faults to draw; replace it at any time, e.g. by :data:`PERFECT` to heal the network.
        random_: The source of randomness.
    """

    def __init__(self, faults: NetworkFaults, random_: random.Random) -> None:
        self.faults = faults
        self.is_partitioned = False
        """Whether the network is partitioned: no message gets through in either direction."""
        self._random = random_

    def fate(self) -> Fate:
        """Draw the fate of the next exchange."""
        faults, chance = self.faults, self._random.random
        silent = chance() < faults.silent
        if self.is_partitioned or chance() < faults.lose_request:
            return Fate((), silent)
        copies = [self._copy()]
        if chance() < faults.duplicate:
            copies.append(self._copy())
        return Fate(tuple(copies), silent)

    def _copy(self) -> Copy:
        lost = self._random.random() < self.faults.lose_response
        return Copy(self.delay(), None if lost else self.delay())

    def delay(self) -> float:
        """Draw the time in seconds that one request or response takes."""
        faults, chance = self.faults, self._random.random
        longest = faults.max_delay if chance() < faults.delay else faults.latency
        return chance() * longest


def lossy(probability: float, seed: int = 0) -> Network:
    """Return a network that loses this share of requests and of responses, with some duplicates and delays.

    Args:
        probability: From 0 to 1: of losing a request, and of losing a response. Duplicates and delays have half of it.
        seed: Makes the network repeatable.

    Raises:
        ConfigurationError: for a number that is not a probability.
    """
    check_share("the probability of lossy()", probability)
    half = probability / 2
    return Network(NetworkFaults(probability, probability, half, half), random.Random(seed))
