"""Authority: which peer may speak about which Sequence.

An acknowledgement deletes messages; a fault or a closure ends a Sequence. So each counts only from a peer that may send
it. The page "Who may say what" (``docs/internals/authority.md``) lists the rules in a table.
"""

from __future__ import annotations

from hmac import compare_digest
from typing import TYPE_CHECKING

from holdfast.core.events import Effect, Incident
from holdfast.core.faults import UNKNOWN_SEQUENCE, sequence_fault
from holdfast.core.messages import Envelope, Fault, is_polled
from holdfast.core.origin import PROVEN, Origin, Requester, inbound_names
from holdfast.core.receiving.inbound_sequences import InboundSequences
from holdfast.core.rm_destination.destination import RMDestination

if TYPE_CHECKING:
    from holdfast.core.rm_source.source import RMSource
    from holdfast.core.sending.outbox_registry import OutboxRegistry
    from holdfast.core.sending.outboxes.outbox import Outbox


def requester_of(destination: RMDestination) -> Requester:
    """Return who may speak about the Sequence that answers the requests of an inbound one."""
    return Requester(destination.party, destination.acks_to.address, destination.identifier)


class Authority:
    """Decides which peer may speak about which Sequence."""

    def __init__(self, sequences: InboundSequences, registry: OutboxRegistry, effects: list[Effect]) -> None:
        self._sequences = sequences
        self._registry = registry
        self._effects = effects

    def find(self, identifier: str, origin: Origin) -> Outbox | None:
        """Return the outbox with that Identifier if the origin may speak about it, else None.

        Two peers may grant the same Identifier; each of them speaks about its own Sequence only.
        """
        return next((one for one in self._registry.sequences.named(identifier) if self.may_speak(one, origin)), None)

    def may_speak(self, outbox: Outbox, origin: Origin) -> bool:
        """Return whether acknowledgements, faults, closures and replies from the origin count for the outbox's
        Sequence."""
        source = outbox.source
        if source is None:
            return False
        if outbox.is_for_replies:
            return self._may_speak_of_replies(outbox, source, origin)
        if origin.address:
            # By address, not by exchange: a peer may acknowledge one Sequence in the answer to a message of another.
            return origin.address == outbox.to
        if is_polled(source.address):
            return False  # what its destination says comes in answers to polls and to other requests of this side
        if source.secret:
            # In constant time, so the time of the answer reveals no part of the secret.
            return compare_digest(source.secret.encode(), origin.secret.encode())
        # Either the saved state comes from a version that had no secrets yet, or this process had no listener when it
        # created the Sequence. If it listens now, the peer was given an address without a secret, so none is required.
        return not self._registry.is_anonymous(source)

    def _may_speak_of_replies(self, outbox: Outbox, source: RMSource, origin: Origin) -> bool:
        """Return whether the origin is the requester: the peer that may send in the Sequence that this one answers.

        The requester's own Sequence may be forgotten while replies still wait for an address that is unreachable.
        """
        requester = source.requester
        # The replies may go to another address than their acknowledgements come from.
        if origin.address:
            return origin.address == outbox.to or (requester is not None and origin.address == requester.acks_to)
        if requester is None:
            return False  # a version that did not save who asked, and the Sequence of the requests is forgotten
        if requester.party.startswith(PROVEN):
            return requester.party == origin.party
        if not requester.party and requester.sequence in self._sequences.destinations:
            return True  # the requester is unknown
        # A peer that names the Sequence of the requests knows its Identifier, which cannot be guessed.
        return requester.sequence in origin.names or (requester.party != "" and requester.party == origin.party)

    def refusal(self, envelope: Envelope, origin: Origin) -> Fault | None:
        """Return the fault for a message that names an inbound Sequence of another proven party, else None."""
        for identifier in inbound_names(envelope):
            destination = self._sequences.destinations.get(identifier)
            if destination is None:
                continue
            # A Sequence that this side offered and polls for has messages in that destination's answers only.
            only_from = self._registry.context.pollers.only_from(identifier)
            is_elsewhere = only_from is not None and origin.address != only_from
            if is_elsewhere or not self._may_use(destination, origin):
                detail = {"what": "it names a Sequence that another party created", "party": origin.party}
                self._effects.append(Incident("message.unauthorized", identifier, 0, "warning", detail))
                # As for an Identifier that does not exist, so the peer learns nothing (WS-RM 4.3).
                return sequence_fault(UNKNOWN_SEQUENCE, identifier)
        return None

    @staticmethod
    def _may_use(destination: RMDestination, origin: Origin) -> bool:
        if not destination.party.startswith(PROVEN):
            return True  # its Identifier is unguessable: a peer that knows it may use it
        if origin.address:
            return origin.address == destination.acks_to.address
        return origin.party == destination.party

    def ignore(self, what: str, identifier: str, origin: Origin) -> None:
        """Report a statement about a Sequence from a peer that may not speak about it."""
        party = origin.party or "a peer"
        where = f"in a response of {origin.address}" if origin.address else f"in a request of {party}"
        detail = {"what": what, "where": where, "why": "only the Sequence's own destination may send this"}
        self._effects.append(Incident("statement.unauthorized", identifier, 0, "warning", detail))
