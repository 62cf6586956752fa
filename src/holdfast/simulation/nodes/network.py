"""What a bad network does to one exchange, decided from a seed. Carries nothing itself and knows no time but delays.

The simulator asks it for the fate of every exchange; a transport between real endpoints can ask it just the same.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from holdfast.settings import check_settings, check_share


@dataclass(frozen=True, slots=True)
class NetworkFaults:
    """How often what goes wrong. Probabilities from 0 to 1, independent of each other; times in seconds.

    Args:
        lose_request: The request never arrives; the caller learns that it failed, sooner or later.
        lose_response: The request was processed, the response never arrives.
        duplicate: The request is processed twice, and both responses come back, in some order.
        delay: The request or the response is held up, so that later ones overtake it.
        latency: The longest time an undisturbed request or response takes.
        max_delay: The longest time a delayed one takes.
        silent: A lost exchange is found out by the caller's timeout only, not by a broken connection.

    Raises:
        ConfigurationError: for a probability outside 0..1 or a negative time.
    """

    lose_request: float = 0.0
    lose_response: float = 0.0
    duplicate: float = 0.0
    delay: float = 0.0
    latency: float = 0.02
    max_delay: float = 5.0
    silent: float = 0.0

    def __post_init__(self) -> None:
        rates = ("lose_request", "lose_response", "duplicate", "delay", "silent")
        check_settings(self, least=dict.fromkeys((*rates, "latency", "max_delay"), 0), most=dict.fromkeys(rates, 1))


PERFECT = NetworkFaults()


@dataclass(frozen=True, slots=True)
class Copy:
    """One processing of a request: seconds until it arrives and until its response is back; None: lost."""

    request_delay: float
    response_delay: float | None


@dataclass(frozen=True, slots=True)
class Fate:
    """What becomes of one exchange.

    Args:
        copies: Each arrival of the request at the other side; none: it was lost.
        silent: Whether a caller that gets no response has to wait for its own timeout to know.
    """

    copies: tuple[Copy, ...] = field(default=())
    silent: bool = False


class Network:
    """Draws the fates of exchanges, the same ones for the same seed.

    Args:
        faults: How bad it is; may be replaced at any time, e.g. by :data:`PERFECT` to let everything heal.
        random_: Where chance comes from.
    """

    def __init__(self, faults: NetworkFaults, random_: random.Random) -> None:
        self.faults = faults
        self.is_partitioned = False
        """Nothing gets through, either way."""
        self._random = random_

    def fate(self) -> Fate:
        """What becomes of the next exchange."""
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
        """Seconds one request or response takes."""
        faults, chance = self.faults, self._random.random
        longest = faults.max_delay if chance() < faults.delay else faults.latency
        return chance() * longest


def lossy(probability: float, seed: int = 0) -> Network:
    """A network that loses the given share of requests and the same share of responses, and sometimes does worse.

    Args:
        probability: From 0 to 1: of losing a request, and of losing a response; half of it of a duplicate or a delay.
        seed: Makes it do the same every time.

    Raises:
        ConfigurationError: it is no probability.
    """
    check_share("the probability of lossy()", probability)
    half = probability / 2
    return Network(NetworkFaults(probability, probability, half, half), random.Random(seed))
