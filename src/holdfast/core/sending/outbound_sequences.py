"""Outbound Sequences of an endpoint, found by each name that a peer, or this endpoint, gives them."""

from __future__ import annotations

from holdfast.core.rm_source.source import RMSource
from holdfast.core.sending.outboxes.outbox import Outbox


class OutboundSequences:
    """The outboxes with a Sequence, by the names of the Sequence."""

    def __init__(self) -> None:
        self.by_local_id: dict[str, Outbox] = {}
        self.by_offer: dict[str, Outbox] = {}
        """Identifier of the Sequence offered for replies -> outbox."""
        self._by_identifier: dict[str, list[str]] = {}
        """Identifier -> ``local_id`` of every Sequence that has it: one for each peer that granted it."""

    def add(self, outbox: Outbox, source: RMSource) -> None:
        """Register the Sequence that carries an outbox from now on."""
        self.by_local_id[source.local_id] = outbox
        if source.identifier is not None:
            self.name(source, source.identifier)
        if source.offer is not None:
            self.by_offer[source.offer] = outbox

    def name(self, source: RMSource, identifier: str) -> None:
        self._by_identifier.setdefault(identifier, []).append(source.local_id)

    def named(self, identifier: str) -> list[Outbox]:
        """Return the outboxes with Sequences of that Identifier; two peers may choose the same."""
        return [self.by_local_id[local_id] for local_id in self._by_identifier.get(identifier, ())]

    def has(self, identifier: str) -> bool:
        return identifier in self._by_identifier

    def remove(self, source: RMSource) -> None:
        self.by_local_id.pop(source.local_id, None)
        if source.identifier is not None:
            self._unname(source, source.identifier)
        if source.offer is not None:
            self.by_offer.pop(source.offer, None)

    def _unname(self, source: RMSource, identifier: str) -> None:
        found = self._by_identifier[identifier]
        found.remove(source.local_id)
        if not found:
            del self._by_identifier[identifier]
