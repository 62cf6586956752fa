"""Creations: which CreateSequence made which Sequence, so a repeat gets the same one."""

from __future__ import annotations

from holdfast.core.messages import CreateSequence
from holdfast.core.rm_destination.destination import RMDestination

_Creation = tuple[str, str | None, str, str]
"""Identity of a CreateSequence: MessageID, offered Identifier, AcksTo and, without Offer, the party. (With an Offer a
repeat may come from another address: no other peer makes the same.)"""


def _creation(message_id: str | None, offered: str | None, acks_to: str, party: str) -> _Creation | None:
    return (message_id, offered, acks_to, party if offered is None else "") if message_id else None


def _creation_of(destination: RMDestination) -> _Creation | None:
    return _creation(destination.create_message_id, destination.offered, destination.acks_to.address, destination.party)


def is_repeatable(destination: RMDestination) -> bool:
    """Whether its CreateSequence, if it arrives again, is a repeat.

    A MessageID should be unique, but some clients send none, or always the same. The request must therefore be the same
    as well, with the same offered Identifier or else the same party, and the Sequence must have received nothing: a
    peer that uses it has its answer, and does not repeat the request.
    """
    return not destination.is_over and (destination.offered is not None or not destination.accepted.count)


class Creations:
    """The Sequences made here, by their CreateSequence. Of two alike the newer counts."""

    def __init__(self) -> None:
        self._made: dict[_Creation, RMDestination] = {}

    def add(self, destination: RMDestination) -> None:
        key = _creation_of(destination)
        if key is not None:
            self._made[key] = destination

    def forget(self, destination: RMDestination) -> None:
        key = _creation_of(destination)
        # A newer Sequence of an equal request may have taken its place.
        if key is not None and self._made.get(key) is destination:
            del self._made[key]

    def find(self, create: CreateSequence, message_id: str | None, party: str) -> RMDestination | None:
        """Return the Sequence that this very CreateSequence made before, if any."""
        offered = create.offer.identifier if create.offer is not None else None
        for known in (party, ""):  # "": of a party that was unknown then
            key = _creation(message_id, offered, create.acks_to.address, known)
            destination = self._made.get(key) if key is not None else None
            if destination is not None:
                return destination if is_repeatable(destination) else None
        return None
