"""Composer: what an outbound Sequence sends, as it is sent: its requests, and its messages the same every time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from holdfast.core.messages import (
    ANONYMOUS,
    ANONYMOUS_EPR,
    MC_ANONYMOUS,
    AckRequested,
    CloseSequence,
    CreateSequence,
    EndpointReference,
    Envelope,
    LastMessage,
    Offer,
    RequestAcknowledgement,
    Sequence,
    SequenceAcknowledgement,
    TerminateSequence,
    is_polled,
)
from holdfast.core.origin import with_secret
from holdfast.core.records import Record
from holdfast.core.rm_source.source import RMSource
from holdfast.core.sending.outboxes.outbox import Outbox
from holdfast.core.states.outbound import Request
from holdfast.core.versions import Addressing


class Offered(Protocol):
    """Queries of the sending half to the receiving half about the Sequences that it offered."""

    def acknowledgement(self, identifier: str) -> SequenceAcknowledgement | None:
        """Return its present acknowledgement; None if the Sequence is unknown here or to its source."""
        ...

    def carried_acknowledgement(self, identifier: str, address: str | None) -> SequenceAcknowledgement | None:
        """Return what a message that leaves for that address acknowledges of it; None: nothing."""
        ...

    def is_all_acknowledged(self, identifier: str) -> bool:
        """Whether every message received in it is durable."""
        ...


class Composer:
    """Makes the envelopes of outbound Sequences.

    Args:
        local: The address the peer can send to; :data:`ANONYMOUS` for one without a listener, :data:`MC_ANONYMOUS` for
            one that polls: each Sequence has its address.
        offered: The Sequences that this side offered for replies, which are acknowledged along with all else.
        new_identifier: Makes a URI never used before.
    """

    def __init__(self, local: str, offered: Offered, new_identifier: Callable[[], str]) -> None:
        # The constant itself, because is_anonymous compares identities.
        self._local = ANONYMOUS_EPR if local in (ANONYMOUS, MC_ANONYMOUS) else EndpointReference(local)
        self._offered = offered
        self._new_identifier = new_identifier

    def is_anonymous(self, source: RMSource) -> bool:
        """Whether what the Sequence's peer has to say comes in its answers only."""
        return not source.address and self._local is ANONYMOUS_EPR

    def _address_for(self, source: RMSource) -> EndpointReference:
        """Return the address for messages from the peer of a Sequence. No other peer knows it."""
        if is_polled(source.address):
            return EndpointReference(source.address)
        if self.is_anonymous(source) or not source.secret:
            return self._local
        # Not a reference parameter: CXF does not echo those, but every stack posts to the address that it was given.
        return EndpointReference(with_secret(source.address or self._local.address, source.secret))

    def request(self, outbox: Outbox, source: RMSource, request: Request) -> Envelope:
        """Return a request that starts or ends the Sequence, or requests an acknowledgement."""
        envelope = self._envelope(outbox, source)
        envelope.message_id = source.control.message_ids.get(request.value)
        # AckRequested needs no MessageID: its answer names the Sequence.
        if request is not Request.ACK_REQUESTED:
            if envelope.message_id is None:
                # Saved with the Sequence: every repeat has the same one, by which a destination recognizes it.
                envelope.message_id = source.control.message_ids[request.value] = self._new_identifier()
            # In 2005/08, no ReplyTo is the anonymous one (WS-Addressing core, 3.2). 2004/08 demands it for an answer.
            if not self.is_anonymous(source) or source.versions.addressing is not Addressing.V2005_08:
                envelope.reply_to = self._address_for(source)
        if request is Request.CREATE:
            envelope.control = self._create_sequence(source)
            return envelope
        assert source.identifier is not None
        can = source.versions.rm.can
        # Numbers above a lowered limit may have arrived too, and the last number must cover them (WS-RM 3.5).
        last = source.numbers.last or max(source.numbers.end, source.acknowledged.highest)
        # LastMsgNumber cannot be 0: without a message it is left out (WS-RM 3.5).
        if request is Request.CLOSE:
            envelope.control = CloseSequence(source.identifier, last or None)
        elif request is Request.TERMINATE:
            envelope.control = TerminateSequence(source.identifier, (last or None) if can.names_last_number else None)
        else:
            envelope.control = RequestAcknowledgement()
            envelope.ack_requested = (AckRequested(source.identifier),)
        self._piggyback(source, envelope)
        if request in (Request.CLOSE, Request.TERMINATE) and can.has_final:
            # Every reply is here, or the Sequence would not be ended: the offered one is final too.
            for acknowledgement in envelope.acknowledgements:
                acknowledgement.final = True
        return envelope

    def transmission(self, outbox: Outbox, source: RMSource, number: int) -> tuple[Envelope, str | None]:
        """Return message ``number`` with the acknowledgements that it carries, and the MessageID of a request."""
        wants_reply = None
        envelope, record = self._message(outbox, source, number)
        if record is not None and record.wants_reply:
            wants_reply = envelope.message_id
            envelope.reply_to = self._address_for(source)
        if not source.versions.rm.can.creates and not self.is_anonymous(source):
            envelope.from_ = self._address_for(source)  # where it can be acknowledged: there was no AcksTo
        if source.offer is not None:
            self._piggyback(source, envelope)
        elif outbox.answers is not None:
            self._acknowledge(outbox.answers, envelope)
        elif record is not None and record.relates_to is not None:
            self._acknowledge(record.sequence, envelope)
        return envelope, wants_reply

    def _acknowledge(self, identifier: str, envelope: Envelope) -> None:
        """Acknowledge, in a reply, the requests of the Sequence that it answers."""
        acknowledgement = self._offered.carried_acknowledgement(identifier, envelope.to)
        # Without a number there is nothing to say, and 1.0 could only say 0-0.
        if acknowledgement is not None and acknowledgement.ranges:
            envelope.acknowledgements = (acknowledgement,)

    def message(self, outbox: Outbox, source: RMSource, number: int) -> Envelope:
        """Return message ``number`` of the Sequence, without acknowledgements: it is always the same."""
        return self._message(outbox, source, number)[0]

    def _message(self, outbox: Outbox, source: RMSource, number: int) -> tuple[Envelope, Record | None]:
        envelope = self._envelope(outbox, source)
        is_last = number == source.numbers.last
        if source.identifier is not None:
            envelope.sequence = Sequence(source.identifier, number, is_last)
        if is_last:
            envelope.control = LastMessage()
            return envelope, None
        record = outbox.records.here[source.numbers.start + number - 1]
        envelope.message_id = outbox.message_id(record)
        entry = source.flight.get(number)
        # A fault may name the message by its MessageID alone.
        if entry is not None:
            entry.message_id = envelope.message_id
        envelope.action = record.action
        envelope.relates_to = record.relates_to
        envelope.is_reply = outbox.is_for_replies or outbox.is_for_address
        envelope.body = record.body
        envelope.attachments = record.attachments
        envelope.reference_parameters = record.reference_parameters
        if record.headers:
            envelope.headers = (record.headers,)
            envelope.headers_soap = record.soap
        return envelope, record

    @staticmethod
    def _envelope(outbox: Outbox, source: RMSource) -> Envelope:
        versions = source.versions
        return Envelope(versions.soap, versions.addressing, versions.rm, to=outbox.to)

    def _create_sequence(self, source: RMSource) -> CreateSequence:
        offer = None
        if source.offer is not None:
            # WS-RM 3.4: an Offer of 1.1 must have an Endpoint; 1.0 knows none.
            endpoint = self._address_for(source) if source.versions.rm.can.offers_endpoint else None
            offer = Offer(source.offer, endpoint)
        return CreateSequence(self._address_for(source), source.policy.expires, offer)

    def _piggyback(self, source: RMSource, envelope: Envelope) -> None:
        if source.offer is not None:
            acknowledgement = self._offered.acknowledgement(source.offer)
            if acknowledgement is not None and acknowledgement.ranges:
                envelope.acknowledgements = (acknowledgement,)
