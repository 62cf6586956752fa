"""ReplyOutboxes: the outboxes of replies, one for each inbound Sequence or for each address that replies go to.

This module owns which outbox takes the reply of a request. What travels in them, and when, is decided by ``replies``
and by the outboxes themselves.
"""

from __future__ import annotations

from holdfast.core.messages import ANONYMOUS, Envelope
from holdfast.core.origin import owner_of
from holdfast.core.receiving.authority import requester_of
from holdfast.core.receiving.inbound_sequences import InboundSequences
from holdfast.core.records import Record
from holdfast.core.rm_destination.destination import RMDestination
from holdfast.core.rm_source.source import RMSource
from holdfast.core.sending.outbox_registry import OutboxRegistry
from holdfast.core.sending.outboxes.outbox import Outbox


def _plain_key(destination: RMDestination) -> str:
    """Return the key of the outbox of replies without an offered Sequence."""
    return f"plain/{destination.identifier}"


class ReplyOutboxes:
    """The outboxes of replies."""

    def __init__(self, sequences: InboundSequences, registry: OutboxRegistry) -> None:
        self._sequences = sequences
        self._registry = registry

    def outbox_for(self, destination: RMDestination, record: Record, reply_to: str, now: float) -> Outbox:
        """Return the outbox of a reply to that address: the offered Sequence, ours, or the back-channel."""
        if destination.offered is None and reply_to != ANONYMOUS:
            # Without an Offer, one Sequence of this side carries the replies of all requesters with that address.
            outbox = self._registry.open(f"to/{reply_to}", reply_to, [(destination.versions, False)])
            if outbox.is_polled and not outbox.address:
                # The peer answers our CreateSequence at the address that it sends its requests to.
                self._registry.poll_for(outbox, record.to or "", owner_of(destination.party))
            return outbox
        return self.outbox_of(destination) or self._open(destination, None, now)

    def outbox_of(self, destination: RMDestination) -> Outbox | None:
        """Return the outbox of replies to the place the requests came from, if it exists."""
        return self._registry.outboxes.get(destination.offered or _plain_key(destination))

    def have_room(self, destination: RMDestination, envelope: Envelope) -> bool:
        """Whether the reply or the fault of a request may wait for a poll.

        The Sequence itself counts the replies in an offered Sequence only.
        """
        if destination.offered is not None:
            return True
        for reference in (envelope.reply_to, envelope.fault_to):
            outbox = self._registry.outboxes.get(f"to/{reference.address}") if reference is not None else None
            if (
                outbox is not None
                and outbox.is_polled
                and outbox.records.waiting >= self._sequences.policy.max_open_requests
            ):
                return False
        return True

    def accept_offer(self, destination: RMDestination, to: str | None, now: float) -> None:
        """Accept the requester's Offer; ``to`` of None sends replies in answers to requests."""
        self._open(destination, to, now).answers = destination.identifier

    def have_address(self, destination: RMDestination) -> bool:
        """Whether replies go to an address of the requester, and not in answers."""
        outbox = self._registry.outboxes.get(destination.offered or "")
        return outbox is not None and outbox.source is not None and not outbox.source.polled

    def _open(self, destination: RMDestination, to: str | None, now: float) -> Outbox:
        key = destination.offered or _plain_key(destination)
        policy = self._registry.policy_of(to, key)
        source = RMSource(key, key, destination.versions, policy, now, polled=to is None)
        # WS-RM 3.4: the Offer itself grants this Sequence, so no CreateSequence is needed.
        source.identifier = destination.offered
        source.to = to
        source.requester = requester_of(destination)
        return self._registry.open_replies(source, now)

    # --- ends -----------------------------------------------------------------------------------------------------

    def match(self) -> list[Outbox]:
        """Match each recovered outbox of replies to its Sequence; return those without a known one."""
        answering_none = []
        keys = {key: one for one in self._sequences.destinations.values() for key in (one.offered, _plain_key(one))}
        for outbox in [outbox for outbox in self._registry.outboxes.values() if outbox.is_for_replies]:
            destination = keys.get(outbox.key)
            if destination is None:
                answering_none.append(outbox)
                continue
            if outbox.source is not None:
                outbox.source.requester = requester_of(destination)  # a version that did not save it left it out
            if destination.offered == outbox.key:
                outbox.answers = destination.identifier
        return answering_none

    def recover(self, now: float) -> None:
        """Match recovered outboxes of replies to Sequences, and end the others."""
        for outbox in self.match():
            self._end(outbox, now)

    def end(self, destination: RMDestination, now: float) -> None:
        """End the Sequence of replies: notify a requester with an address, or forget it."""
        for key in (destination.offered, _plain_key(destination)):
            outbox = self._registry.outboxes.get(key or "")
            if outbox is not None:
                self._end(outbox, now)

    def _end(self, outbox: Outbox, now: float) -> None:
        # An anonymous requester cannot be notified, so its Sequence is forgotten.
        if outbox.to is None:
            self._registry.close(outbox.key, now)
        else:
            outbox.want_end(now)
