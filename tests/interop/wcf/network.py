"""Bad networks before the live WCF client, in which no message of a session is lost too often in a row.

The client waits for three times the round trip of its CreateSequence before it repeats a message, for twice as long
before it repeats it again, and so on, whatever its retry limit. On a busy machine that round trip takes seconds, and a
message that is lost five times in a row would wait for minutes: longer than the client lets a call or its transfer
window wait. That is seen in every network that loses a fifth of requests and of answers, in one message of a hundred.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from holdfast.testing.proxy import Fate, Faults, LossyProxy, Relayed

LOSS = Faults(lose_request=0.2, lose_response=0.2)
MOST_LOST = 3
"""Transmissions of a message that are lost in a row; the next one is answered."""

_NUMBER = re.compile(rb"MessageNumber>(\d+)<")


class Losses:
    """The faults of a network, without those that would lose a message more than :data:`MOST_LOST` times in a row."""

    def __init__(self, proxy: LossyProxy) -> None:
        self._proxy = proxy
        self._faults = proxy.faults
        self._lost: dict[bytes, int] = {}

    def use(self, faults: Faults) -> None:
        """Use these faults from now on."""
        self._faults = self._proxy.faults = faults
        self._lost.clear()

    def relayed(self, exchange: Relayed) -> None:
        """Note what became of an exchange."""
        found = _NUMBER.search(exchange.request)
        number = found[1] if found is not None else b""
        if exchange.fate is Fate.ANSWERED:
            self._lost.pop(number, None)
        else:
            self._lost[number] = self._lost.get(number, 0) + 1
        is_enough = any(count >= MOST_LOST for count in self._lost.values())
        self._proxy.faults = Faults() if is_enough else self._faults


def changing_network(url: str, faults: Sequence[Faults], seed: int) -> LossyProxy:
    """A proxy that changes its faults whenever the service grants another session."""
    granted: set[bytes] = set()

    def relayed(exchange: Relayed) -> None:
        losses.relayed(exchange)
        response = exchange.response or b""
        if b"CreateSequenceResponse" in response:
            granted.update(re.findall(rb"Identifier>([^<]+)<", response)[:1])
            losses.use(faults[len(granted) - 1])

    proxy = LossyProxy(url, seed=seed, on_relayed=relayed)
    losses = Losses(proxy)
    return proxy
