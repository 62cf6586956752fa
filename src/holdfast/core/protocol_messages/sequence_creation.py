"""SequenceCreation: who gets a Sequence, for how long and with which Offer; and the Sequences that a peer grants.

Owns CreateSequence and CreateSequenceResponse (WS-RM 3.4). Which Sequences there are is known to the two halves.
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast.core.events import BackChannel, Incident
from holdfast.core.faults import creation_refused
from holdfast.core.messages import (
    ANONYMOUS_EPR,
    CreateSequence,
    CreateSequenceResponse,
    EndpointReference,
    Envelope,
    Fault,
    Offer,
)
from holdfast.core.origin import Origin, owner_of, whole_party
from holdfast.core.policy import for_forwarded_replies
from holdfast.core.protocol_messages.awaited_beginnings import AwaitedBeginnings
from holdfast.core.protocol_messages.wcf_keep_alive import is_kept_alive
from holdfast.core.receiving.answers import AnswerSender, response_to
from holdfast.core.receiving.inbound_sequences import InboundSequences
from holdfast.core.receiving.incoming import Incoming
from holdfast.core.receiving.replies import Replies
from holdfast.core.rm_destination.destination import RMDestination
from holdfast.core.sending.outbound import Outbound


class SequenceCreation:
    """Grants Sequences or refuses them, and takes in those that were offered and accepted."""

    def __init__(
        self,
        sequences: InboundSequences,
        outbound: Outbound,
        replies: Replies,
        answering: AnswerSender,
        new_identifier: Callable[[], str],
    ) -> None:
        self._sequences = sequences
        self._outbound = outbound
        self._replies = replies
        self._answering = answering
        self._new_identifier = new_identifier
        self._mailboxes = outbound.context.mailboxes
        self._awaited = AwaitedBeginnings()

    # --- what a source asks for -----------------------------------------------------------------------------------

    def create(self, incoming: Incoming) -> None:
        """Process CreateSequence: grant it durably, or refuse it. A repeat gets the earlier answer (WS-RM 3.4)."""
        envelope, create = incoming.envelope, incoming.envelope.control
        assert isinstance(create, CreateSequence), create
        # The response may have been lost: a second Sequence would leave the first one open until it expires.
        destination = self._sequences.creations.find(create, envelope.message_id, incoming.origin.party)
        if destination is None:
            fault = self._refusal(envelope, create, incoming.origin.party)
            if fault is not None:
                self._answering.fault(envelope, fault, incoming.back_channel)
                return
            # The refusals come before anything is made, so a refused peer costs nothing.
            destination = self._grant(envelope, create, incoming.origin, incoming.now)
        granted = CreateSequenceResponse(
            destination.identifier, destination.expires, destination.behavior, destination.accept_acks_to
        )
        response = response_to(envelope, destination.versions, granted)
        # The grant is durable before the peer hears of it: it sends its messages at once.
        self._answering.answer_durably(envelope.reply_to, incoming.back_channel, response)

    def _refusal(self, envelope: Envelope, create: CreateSequence, party: str) -> Fault | None:
        offer = create.offer
        endpoint = offer.endpoint if offer is not None else None
        if envelope.versions is None:
            reason = "These versions of WS-ReliableMessaging and WS-Addressing cannot be combined."
        # WS-RM 3.4: AcksTo must be able to receive.
        elif create.acks_to.is_none:
            reason = "AcksTo must be an address that can receive acknowledgements, not 'none'."
        elif endpoint is not None and endpoint.is_none:
            reason = "The Endpoint of an Offer must be an address that can receive messages, not 'none'."
        elif offer is not None and self._is_taken(offer.identifier):
            reason = f"The offered Identifier {offer.identifier} is in use."
        else:
            reason = self._answering.addresses.refusal(create.acks_to, envelope.reply_to, endpoint)
            reason = reason or self._mailboxes.refusal(party, create.acks_to, envelope.reply_to, endpoint)
        if reason:
            return creation_refused(reason)
        full = self._is_full(party)
        # Receiver, not Sender: the same request may succeed later (WS-RM 4.6).
        return creation_refused(f"{full} Try again later.", sender=False) if full else None

    def _is_taken(self, identifier: str) -> bool:
        # WS-RM 3.4: what is offered is no Identifier of another Sequence
        is_inbound = identifier in self._sequences.destinations or identifier in self._sequences.offered
        return is_inbound or self._outbound.sequences.has(identifier)

    def _is_full(self, party: str) -> str:
        """Return why a party cannot have another Sequence; "" if it can."""
        shares = self._sequences.shares
        count, of_party = shares.open_count, shares.open_of(whole_party(party))
        most, most_of_party = self._sequences.policy.max_sequences, self._sequences.policy.max_party_sequences
        if count >= most:
            return f"This destination has reached its limit of {most} open Sequences."
        if of_party >= most_of_party:
            return f"This peer has reached the limit for one peer: {most_of_party} open Sequences here."
        return ""

    def _grant(self, envelope: Envelope, create: CreateSequence, origin: Origin, now: float) -> RMDestination:
        versions = envelope.versions
        assert versions is not None
        destination = RMDestination(self._new_identifier(), versions, create.acks_to, self._sequences.policy, now)
        # Kept for repeats. An empty MessageID identifies nothing.
        destination.create_message_id = envelope.message_id or None
        destination.is_kept_alive = is_kept_alive(envelope, create, origin)
        destination.expires = self._life(create.expires)
        if destination.expires is not None:
            destination.expires_at = now + destination.expires
        if create.offer is not None:
            destination.offered = create.offer.identifier
        self._add(destination, origin)
        if create.offer is not None:
            self._accept(envelope, create, create.offer, destination, now)
        return destination

    def _add(self, destination: RMDestination, origin: Origin) -> None:
        destination.party = origin.party
        self._sequences.add(destination)
        self._know_mailbox(destination)
        self._sequences.effects.append(Incident("sequence.created", destination.identifier))

    def _life(self, asked: float | None) -> float | None:
        # The destination may shorten the life asked for, never lengthen it (WS-RM 3.4); None is the longest.
        if self._sequences.policy.max_expires is None:
            return asked
        return self._sequences.policy.max_expires if asked is None else min(asked, self._sequences.policy.max_expires)

    def _accept(
        self, envelope: Envelope, create: CreateSequence, offer: Offer, destination: RMDestination, now: float
    ) -> None:
        # Accept/AcksTo: the request's To, octet for octet, which WCF insists on.
        destination.accept_acks_to = EndpointReference(envelope.to or "") if envelope.to else ANONYMOUS_EPR
        # Offer/Endpoint is for protocol messages (1.1); 1.0 has none, so there ReplyTo says where the client listens.
        target = offer.endpoint or envelope.reply_to or create.acks_to
        to = None if target.is_anonymous or target.is_none else target.address
        self._replies.outboxes.accept_offer(destination, to, now)

    # --- what a source begins without asking -----------------------------------------------------------------------

    def begins(self, envelope: Envelope, back_channel: BackChannel | None, origin: Origin, now: float) -> bool:
        """Begin the Sequence of a message, if its version has no CreateSequence and this is message 1 (2003/03).

        Any peer may begin one, as with CreateSequence, and the same limits hold. A Sequence that ended keeps its end as
        long as it is remembered. Later messages do not begin one: it could be one that ended longer ago, and what is
        delivered must have no gap.

        Returns:
            Whether the message may be received; if not, it is answered.
        """
        if envelope.rm is None or envelope.rm.can.creates:
            return True
        sequence, versions = envelope.sequence, envelope.versions
        assert sequence is not None
        identifier, number = sequence.identifier, sequence.message_number
        # A message in an answer begins nothing: it belongs to a Sequence that this side has asked for.
        if versions is None or back_channel is None or identifier in self._sequences.destinations:
            return True
        if number != 1:
            if not self._awaited.may_still_begin(identifier, self._sequences.policy.remember_terminated, now):
                return True  # which is answered as any unknown Sequence
            self._sequences.effects.append(Incident("message.not_held", identifier, number, "debug"))
            self._answering.done(back_channel)
            return False
        # 2003/03: the source makes the Identifier, so another Sequence may have it.
        if self._is_taken(identifier):
            fault: Fault | None = creation_refused(f"The Identifier {identifier} is in use.")
        else:
            full = self._is_full(origin.party)
            fault = creation_refused(f"{full} Try again later.", sender=False) if full else None
        if fault is not None:
            self._answering.fault(envelope, fault, back_channel)
            return False
        self._awaited.begun(identifier)
        acks_to = next(filter(self._may_acknowledge_to, (envelope.from_, envelope.reply_to)), None) or ANONYMOUS_EPR
        destination = RMDestination(identifier, versions, acks_to, self._sequences.policy, now)
        self._add(destination, origin)
        return True

    def _may_acknowledge_to(self, reference: EndpointReference | None) -> bool:
        """Whether acknowledgements go to an address that a message names, and not into the answers to messages."""
        if reference is None or reference.is_answered or reference.is_none:
            return False
        return self._answering.addresses.may_send_to(reference)

    # --- what a destination grants --------------------------------------------------------------------------------

    def created(self, incoming: Incoming) -> None:
        """Process CreateSequenceResponse: open the Sequence, and the offered one if the peer accepted it."""
        response, now = incoming.envelope.control, incoming.now
        assert isinstance(response, CreateSequenceResponse), response
        source = self._outbound.creation.receive(response, incoming.envelope.relates_to, now)
        if source is not None and source.offer is not None:
            offered = RMDestination(source.offer, source.versions, ANONYMOUS_EPR, self._sequences.policy, now)
            self._settle_policy(offered)
            accept = response.accept_acks_to
            # WS-RM 3.4: Accept/AcksTo says where its acknowledgements go; without an address they ride on requests.
            if accept is not None and not accept.is_anonymous:
                offered.acks_to = accept
            self._sequences.add(offered)
        self._answering.done(incoming.back_channel)

    def _settle_policy(self, offered: RMDestination) -> None:
        if self._outbound.is_offered_by_forwarder(offered.identifier):
            # Replies to many requesters share this Sequence, so no reply waits for another's.
            offered.policy = for_forwarded_replies(self._sequences.policy)
            offered.behavior = offered.policy.incomplete_sequence_behavior

    def _know_mailbox(self, destination: RMDestination) -> None:
        owner = owner_of(destination.party)
        self._mailboxes.add_sequence(destination.acks_to.address, destination.identifier, owner)

    def recover(self) -> None:
        """Once both halves are recovered, match the peers that poll, and apply the policies of offered Sequences."""
        for destination in self._sequences.destinations.values():
            self._know_mailbox(destination)
        for identifier in self._outbound.sequences.by_offer:
            if (offered := self._sequences.destinations.get(identifier)) is not None:
                self._settle_policy(offered)
