"""Listener: what a source hears at its own address: acknowledgements, replies and lifecycle messages."""

from __future__ import annotations

from holdfast.core.events import BackChannel
from holdfast.core.messages import Envelope
from holdfast.endpoint.engine import Engine
from holdfast.endpoint.envelopes import Envelopes
from holdfast.endpoint.http_media import refuse_unless_soap
from holdfast.http.exchange import Exchange


class Listener:
    """Takes the requests that come to a source.

    Args:
        engine: Is given what they say.
        envelopes: Reads them.
    """

    def __init__(self, engine: Engine, envelopes: Envelopes) -> None:
        self._engine = engine
        self._envelopes = envelopes

    def handle(self, exchange: Exchange) -> None:
        """Take one HTTP request; the answer follows."""
        if not refuse_unless_soap(exchange):
            self._envelopes.receive(exchange, self._take)

    def _take(self, exchange: Exchange, envelope: Envelope) -> None:
        self._engine.protocol.receive(envelope, BackChannel(exchange), self._engine.clock())
        self._engine.touch()
