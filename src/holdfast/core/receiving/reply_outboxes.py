"""ReplyOutboxes: the outboxes of replies, one for each inbound Sequence or for each address that replies go to.

This module owns which outbox takes the reply of a request, and when the outboxes of requesters that are gone are
forgotten: many clients have another address in each run. What travels in them, and when, is decided by ``replies`` and
by the outboxes themselves.
"""

from __future__ import annotations

from holdfast.core.deadlines import Deadlines
from holdfast.core.events import Incident
from holdfast.core.messages import ANONYMOUS, NONE, Envelope
from holdfast.core.origin import owner_of
from holdfast.core.receiving.authority import requester_of
from holdfast.core.receiving.inbound_sequences import InboundSequences
from holdfast.core.records import Record
from holdfast.core.rm_destination.destination import RMDestination
from holdfast.core.rm_source.source import RMSource
from holdfast.core.sending.outbox_registry import OutboxRegistry
from holdfast.core.sending.outboxes.outbox import Outbox

IDLE = 600.0
"""Seconds without a new reply after which the Sequence of replies to an address ends, if the requester has acknowledged
them all. As long again, and it is forgotten although the requester has not confirmed its end."""
ADDRESS_SHARE = 4
"""There may be an address of requesters without an Offer for each of this number of open Sequences."""
USE_SAVED_EVERY = 60.0
"""Minimum seconds between two writes that save when an outbox was used."""


def _plain_key(destination: RMDestination) -> str:
    """Return the key of the outbox of replies without an offered Sequence."""
    return f"plain/{destination.identifier}"


class ReplyOutboxes:
    def __init__(self, sequences: InboundSequences, registry: OutboxRegistry) -> None:
        self._sequences = sequences
        self._registry = registry
        self._deadlines = Deadlines()
        """When to examine each outbox whose requester may be gone."""

    def outbox_for(self, destination: RMDestination, record: Record, reply_to: str, now: float) -> Outbox:
        """Return the outbox of a reply to that address: the offered Sequence, ours, or the back-channel."""
        if destination.offered is None and reply_to != ANONYMOUS:
            # Without an Offer, one Sequence of this side carries the replies of all requesters with that address.
            choices = [(destination.versions, False)]
            outbox = self._registry.open(f"to/{reply_to}", reply_to, choices, is_described=False)
            if outbox.is_polled and not outbox.address:
                # The peer answers our CreateSequence at the address that it sends its requests to.
                self._registry.poll_for(outbox, record.to or "", owner_of(destination.party))
            self._use(outbox, now)
            return outbox
        return self.outbox_of(destination) or self._open(destination, None, now)

    def outbox_of(self, destination: RMDestination) -> Outbox | None:
        """Return the outbox of replies to the place the requests came from, if it exists."""
        return self._registry.outboxes.get(destination.offered or _plain_key(destination))

    def have_room(self, destination: RMDestination, envelope: Envelope) -> bool:
        """Whether the reply or the fault of a request may wait for a poll, and its address may be remembered.

        The Sequence itself counts the replies in an offered Sequence only.
        """
        if destination.offered is not None:
            return True
        is_full = len(self._registry.for_addresses) >= max(1, self._sequences.policy.max_sequences // ADDRESS_SHARE)
        for reference in (envelope.reply_to, envelope.fault_to):
            outbox = self._registry.outboxes.get(f"to/{reference.address}") if reference is not None else None
            if outbox is None and is_full and reference is not None and reference.address not in (ANONYMOUS, NONE):
                return False
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
        outbox = self._registry.replies_to(destination.offered)
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

    def recover(self, now: float, *, is_server: bool) -> None:
        """Match recovered outboxes of replies to Sequences, and end the others.

        Args:
            is_server: Whether no application of this side names outboxes.
        """
        for outbox in self.match():
            self._end(outbox, now)
        for outbox in self._registry.outboxes.values():
            if is_server and outbox.key == f"to/{outbox.to}" and not outbox.is_for_address:
                self._use(outbox, now)  # of a version that did not save what it is for
            elif outbox.is_for_address:
                outbox.used_at = min(outbox.used_at, now)  # the clock may have been set back
                self._watch(outbox, now)
        for destination in self._sequences.destinations.values():
            if destination.is_over:
                self.await_last(destination, now)

    def end(self, destination: RMDestination, now: float) -> None:
        """End the Sequence of replies: notify a requester with an address, or forget it."""
        for key in (destination.offered, _plain_key(destination)):
            outbox = self._registry.replies_to(key)
            if outbox is not None:
                self._end(outbox, now)

    def _end(self, outbox: Outbox, now: float) -> None:
        # An anonymous requester cannot be notified, so its Sequence is forgotten.
        if outbox.to is None:
            self._registry.close(outbox.key, now)
        else:
            self._await_end(outbox, now)
            outbox.want_end(now)

    # --- requesters that are gone ---------------------------------------------------------------------------------

    def _use(self, outbox: Outbox, now: float) -> None:
        if not outbox.is_for_address or now >= outbox.used_at + USE_SAVED_EVERY:
            outbox.is_for_address, outbox.used_at = True, now
            outbox.save()
            self._watch(outbox, now)

    def await_last(self, destination: RMDestination, now: float) -> None:
        """Wait for the acknowledgement of the last replies to a Sequence that is over, as long as for any message."""
        outbox = self._registry.replies_to(destination.offered)
        if outbox is not None and outbox.to is not None:
            self._await_end(outbox, now)

    def _await_end(self, outbox: Outbox, now: float) -> None:
        if not outbox.lifecycle.is_ending:
            outbox.used_at = now
            self._watch(outbox, now)

    def _watch(self, outbox: Outbox, now: float) -> None:
        if outbox.is_for_address:
            self._registry.for_addresses.add(outbox.key)
        self._deadlines.want(outbox.key, max(now, outbox.used_at + self._patience))

    @property
    def _patience(self) -> float:
        """Seconds between two examinations of an outbox."""
        return min(IDLE, self._sequences.policy.inactivity_timeout or IDLE)

    def deadline(self) -> float | None:
        """Return when :meth:`pump` must be called next; None: not before an event."""
        return self._deadlines.next()

    def pump(self, now: float) -> list[Outbox]:
        """End the Sequences of replies to idle addresses, and return the outboxes of requesters that are gone."""
        gone = []
        for key in self._deadlines.due(now):
            outbox = self._registry.outboxes.get(key)
            if outbox is None:
                continue
            if outbox.lifecycle.suspended is None and self._examine(outbox, now):
                gone.append(outbox)
            else:
                self._deadlines.want(key, now + self._patience)
        return gone

    def _examine(self, outbox: Outbox, now: float) -> bool:
        """End an outbox if it is idle, and return whether its requester is gone."""
        if outbox.records.is_empty:
            if now < outbox.used_at + IDLE:
                return False
            if outbox.lifecycle.is_ending:
                return True  # it was notified as often as a requester is, or it does not poll for that
            # As long again for the notification.
            self._await_end(outbox, now)
            if outbox.is_for_address:
                outbox.want_end(now)
            return False
        patience, source = self._sequences.policy.inactivity_timeout, outbox.source
        # What waits for a peer that polls goes with its mailbox. Without a timeout, a peer may come back at any time.
        if outbox.is_polled or patience is None:
            return False
        heard = max(outbox.used_at, source.life.last_heard) if source is not None else outbox.used_at
        if now < heard + patience:
            return False
        detail: dict[str, object] = {"key": outbox.key, "why": "their requester does not answer"}
        self._registry.effects.append(Incident("replies.discarded", level="warning", detail=detail))
        return True
