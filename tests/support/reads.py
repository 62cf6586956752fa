"""What an endpoint's core wants read, answered from its store: for tests that are their endpoint's shell."""

from __future__ import annotations

from holdfast.core.events import Effect, ReadWanted
from holdfast.core.protocol import RMProtocol
from holdfast.store import Store


def take_effects(protocol: RMProtocol, store: Store, now: float) -> list[Effect]:
    """Its effects, with what follows from the reads among them in place of those."""
    effects: list[Effect] = []
    while protocol.effects:
        for effect in protocol.take_effects():
            if isinstance(effect, ReadWanted):
                found = store.read(effect.queue, effect.partition, effect.start, effect.end)
                protocol.records_read(effect, found, now)
            else:
                effects.append(effect)
    return effects
