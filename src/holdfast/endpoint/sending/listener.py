"""Listener: what a source hears at its own address: acknowledgements, replies and lifecycle messages."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.core.events import BackChannel
from holdfast.core.messages import Envelope, Fault
from holdfast.endpoint.engine.engine import Engine
from holdfast.endpoint.envelopes.envelopes import Envelopes
from holdfast.endpoint.envelopes.http_media import HAS_ENDED, refuse_unless_soap
from holdfast.endpoint.sending.parties import origin_of
from holdfast.endpoint.sending.pauses import Pauses
from holdfast.http.exchange import Exchange
from holdfast.http.retry_after import retry_after


class Listener:
    """Processes the requests that a source receives."""

    def __init__(
        self, engine: Engine, envelopes: Envelopes, pauses: Pauses, on_reply: Callable[[Envelope], None]
    ) -> None:
        self._on_reply = on_reply
        self._engine = engine
        self._envelopes = envelopes
        self._pauses = pauses
        self._early: list[Exchange] | None = []

    def begin(self) -> None:
        """The source has recovered: process the waiting requests, and all further ones."""
        early, self._early = self._early, None
        for exchange in early or ():
            self.handle(exchange)

    def handle(self, exchange: Exchange) -> None:
        """Take one HTTP request; the answer follows. Those that come before :meth:`begin` wait for that: no more than
        there are connections."""
        if self._early is not None:
            self._early.append(exchange)
        elif self._engine.failure is not None:
            exchange.respond(503, HAS_ENDED, b"text/plain", retry_after(5))
        elif not refuse_unless_soap(exchange):
            self._envelopes.receive(exchange, self._take)

    def _take(self, exchange: Exchange, envelope: Envelope, refusal: Fault | None) -> None:
        protocol, back_channel = self._engine.protocol, BackChannel(exchange)
        if refusal is None:
            self._pauses.heard(envelope, exchange.request.headers.get(b"user-agent", b""))
            origin = origin_of(exchange.request, envelope)
            self._on_reply(envelope)
            protocol.receive(envelope, back_channel, self._engine.clock(), origin=origin)
        else:
            protocol.refuse(envelope, refusal, back_channel)
        self._engine.touch()
