"""Creations: which CreateSequence made which Sequence, so that a repeat of it gets the same one."""

from __future__ import annotations

from holdfast.core.messages import CreateSequence
from holdfast.core.receiving.destination import RMDestination

_Creation = tuple[str, str | None, str, str]
"""What makes a CreateSequence the same as another: MessageID, offered Identifier, AcksTo and, without Offer, the party.
(With an Offer a repeat may come from another address: nobody else makes the same.)"""


def _creation(message_id: str | None, offered: str | None, acks_to: str, party: str) -> _Creation | None:
    return (message_id, offered, acks_to, party if offered is None else "") if message_id else None


def _creation_of(destination: RMDestination) -> _Creation | None:
    return _creation(destination.create_message_id, destination.offered, destination.acks_to.address, destination.party)


def is_repeatable(destination: RMDestination) -> bool:
    """Whether the CreateSequence that made it, if it comes again, is a repeat and no new one.

    A MessageID should be unique, but clients are known that send none, or always the same. So what is asked for must be
    the same as well; and an offered Identifier too, or else the party, and nothing may have come in the Sequence:
    whoever uses it has its answer, and asks no more.
    """
    return not destination.is_over and (destination.offered is not None or not destination.accepted.count)


class Creations:
    """The Sequences that were made here, by what made them. Of two made alike the newer one counts."""

    def __init__(self) -> None:
        self._made: dict[_Creation, RMDestination] = {}

    def add(self, destination: RMDestination) -> None:
        """A Sequence is known from now on."""
        key = _creation_of(destination)
        if key is not None:
            self._made[key] = destination

    def forget(self, destination: RMDestination) -> None:
        """A Sequence is known no more."""
        key = _creation_of(destination)
        if key is not None and self._made.get(key) is destination:
            del self._made[key]

    def find(self, create: CreateSequence, message_id: str | None, party: str) -> RMDestination | None:
        """The Sequence that this very CreateSequence made before, if it did."""
        offered = create.offer.identifier if create.offer is not None else None
        for known in (party, ""):  # "": of somebody who was not known then
            key = _creation(message_id, offered, create.acks_to.address, known)
            destination = self._made.get(key) if key is not None else None
            if destination is not None:
                return destination if is_repeatable(destination) else None
        return None
