"""Reception: the requests of a running destination, from the HTTP exchange to the protocol.

Owns the route of each message and the stored facts about its transport. ``envelopes`` decodes, ``destination``
answers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Protocol

from holdfast.core.events import BackChannel
from holdfast.core.faults import ACTION_MISMATCH, addressing_fault
from holdfast.core.messages import CreateSequence, Envelope, Fault, Routed
from holdfast.core.origin import Origin
from holdfast.core.versions import SOAP, Addressing
from holdfast.endpoint.destination.unanswered_exchanges import Unanswered
from holdfast.endpoint.destination.wsdl import ServiceDescription
from holdfast.endpoint.engine.engine import Engine
from holdfast.endpoint.envelopes.chain import pass_on
from holdfast.endpoint.envelopes.envelopes import Elsewhere, Envelopes
from holdfast.endpoint.envelopes.http_media import HAS_ENDED, put_off_after_bug, refuse_unless_soap
from holdfast.endpoint.envelopes.transport_facts import Keeper
from holdfast.endpoint.sending.parties import origin_of
from holdfast.endpoint.sending.sender import Sender
from holdfast.http.exchange import Exchange
from holdfast.http.retry_after import retry_after
from holdfast.wire.http import names_other_action


class Router(Protocol):
    """Chooses the queue or forwarder of each application message."""

    def __call__(self, envelope: Envelope) -> Routed | Fault:
        """Return the route of a message, or the fault that rejects it. May be called in another thread."""
        ...

    def at_once(self, envelope: Envelope) -> Routed | Fault | None:
        """Return the same if the router needs a few milliseconds at most, else None."""
        ...


class Reception:
    """The requests of a running destination."""

    sort_out: Callable[[Envelope, Origin], None] | None = None
    """Removes from an envelope, among several processes, the headers about Sequences that other processes own."""
    claim_offer: Callable[[str], bool] | None = None
    """Whether this process, among several, may accept the Offer of an Identifier."""

    def __init__(
        self,
        engine: Engine,
        sender: Sender,
        envelopes: Envelopes,
        unanswered: Unanswered,
        keeper: Keeper,
        wsdl: ServiceDescription,
        router: Router | None,
    ) -> None:
        self._engine, self._sender = engine, sender
        self.envelopes = envelopes
        self.router = router
        self._unanswered = unanswered
        self._keeper = keeper
        self._wsdl = wsdl
        envelopes.has_message = self._has_message

    def handle(self, exchange: Exchange, is_elsewhere: Elsewhere | None = None) -> None:
        """Accept one HTTP request; see :meth:`holdfast.Destination.handle`."""
        if exchange.request.method != "POST" and self._wsdl.give(exchange):
            return
        if refuse_unless_soap(exchange):
            return
        if self._engine.failure is not None:
            refuse_after_failure(exchange)
            return
        self.envelopes.receive(exchange, self._take, is_elsewhere)

    def knows(self, identifier: str) -> bool:
        """Whether the destination has, or had, a Sequence with that Identifier."""
        protocol = self._engine.protocol
        is_inbound = identifier in protocol.inbound.destinations or identifier in protocol.sequences.offered
        return is_inbound or bool(protocol.outbound.sequences.named(identifier))

    def _has_message(self, envelope: Envelope) -> bool:
        sequence = envelope.sequence
        known = self._engine.protocol.inbound.destinations.get(sequence.identifier) if sequence is not None else None
        return sequence is not None and known is not None and sequence.message_number in known.acknowledged

    def _take(self, exchange: Exchange, envelope: Envelope, refusal: Fault | None) -> None:
        if self._engine.failure is not None:
            refuse_after_failure(exchange)
            return
        # Before it counts as received: not acknowledged, it comes again.
        if self._engine.store.trouble and _is_new(envelope):
            refuse(exchange, b"No new messages are accepted for now; stored messages are still processed.\n")
            return
        offer = _offer_in(envelope) if self.claim_offer is not None else None
        if self.claim_offer is not None and offer is not None and not self.claim_offer(offer):
            # The repeat reaches the process that has accepted it.
            refuse(exchange, b"Another process answers this CreateSequence; send it again.\n", 1)
            return
        self._unanswered.add(exchange)
        if refusal is None and envelope.sequence is not None and envelope.control is None:
            refusal = _mismatch(envelope, exchange.request.headers)
        if refusal is None:
            envelope.transport = self._keeper.facts_of(exchange.request)
        if self.router is None or refusal is not None or envelope.sequence is None or envelope.control is not None:
            self._take_routed(exchange, envelope, refusal)
        elif (routed := self.router.at_once(envelope)) is None:
            then, failed = partial(self._routed, exchange, envelope), partial(put_off_after_bug, exchange)
            self.envelopes.aside(partial(self.router, envelope), then, failed)
        else:
            self._routed(exchange, envelope, routed)
        sequences = self._engine.protocol.sequences
        if offer is not None and offer not in sequences.offered:
            sequences.offer_unused(offer)  # it was refused

    def _routed(self, exchange: Exchange, envelope: Envelope, routed: Routed | Fault) -> None:
        if self._engine.failure is not None:
            refuse_after_failure(exchange)
            return
        envelope.routed = routed
        if envelope.relates_to is not None or (isinstance(routed, Routed) and routed.is_sent_on):
            pass_on(envelope)  # SOAP 1.2 part 1, 2.7: an intermediary relays headers for the ultimate receiver
        self._take_routed(exchange, envelope, None)

    def _take_routed(self, exchange: Exchange, envelope: Envelope, refusal: Fault | None) -> None:
        protocol, back_channel = self._engine.protocol, BackChannel(exchange)
        if refusal is None:
            origin = origin_of(exchange.request, envelope)
            if self.sort_out is not None and (envelope.acknowledgements or envelope.ack_requested):
                self.sort_out(envelope, origin)
            self._sender.pauses.heard(envelope, exchange.request.headers.get(b"user-agent", b""))
            if self.envelopes.tracing is not None and envelope.sequence is not None and envelope.control is None:
                self.envelopes.tracing.accepting(exchange, envelope, protocol.commit)
            protocol.receive(envelope, back_channel, self._engine.clock(), origin=origin)
        else:
            protocol.refuse(envelope, refusal, back_channel)
        self._engine.touch()

    def hear(self, envelope: Envelope, origin: Origin) -> None:
        """Process acknowledgements and acknowledgement requests that another process received and answers."""
        if self._engine.failure is None:
            self._engine.protocol.receive(envelope, None, self._engine.clock(), origin=origin)
            self._engine.touch()


def _is_new(envelope: Envelope) -> bool:
    """Whether an envelope would add to the store. A full store still takes acknowledgements: they free it."""
    return envelope.fault is None and (envelope.control is None or isinstance(envelope.control, CreateSequence))


def _mismatch(envelope: Envelope, headers: Mapping[bytes, bytes]) -> Fault | None:
    """Return the fault for a message with another action in its HTTP headers, as .NET does.

    See WS-Addressing 2005/08 SOAP binding, 6.4.1.
    """
    if envelope.addressing is not Addressing.V2005_08 or not envelope.action:
        return None
    told, media = b"", b""
    if envelope.soap is SOAP.V1_1:
        told = headers.get(b"soapaction", b"")
        if told[1:-1] == envelope.action.encode():
            return None
    else:
        media = headers.get(b"content-type", b"")
    if not names_other_action(envelope.action, told.decode("latin-1"), media.decode("latin-1")):
        return None
    reason = f"The HTTP headers name another action than the wsa:Action {envelope.action!r}."
    return addressing_fault(ACTION_MISMATCH, reason, header="Action")


def _offer_in(envelope: Envelope) -> str | None:
    create = envelope.control
    return create.offer.identifier if isinstance(create, CreateSequence) and create.offer is not None else None


def refuse(exchange: Exchange, why: bytes, seconds: int = 5) -> None:
    exchange.respond(503, why, b"text/plain", retry_after(seconds))


def refuse_after_failure(exchange: Exchange) -> None:
    """Answer a request that this process cannot process any longer, because its endpoint has ended.

    The process that relays it finds the present owner, which knows what the failed one stored.
    """
    if exchange.is_relayed:
        exchange.respond(421)
    else:
        refuse(exchange, HAS_ENDED)
