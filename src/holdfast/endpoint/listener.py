"""Listener: what a source hears at its own address: acknowledgements, replies and lifecycle messages."""

from __future__ import annotations

from functools import partial

from holdfast.core.messages import Envelope
from holdfast.endpoint.decoding import Decoder
from holdfast.endpoint.engine import Engine
from holdfast.endpoint.http_media import refuse_unless_soap
from holdfast.exceptions import EnvelopeError
from holdfast.http.exchange import Exchange


class Listener:
    """Takes the requests that come to a source.

    Args:
        engine: Is given what they say.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._decoder = Decoder()

    def handle(self, exchange: Exchange) -> None:
        """Take one HTTP request; the answer follows."""
        if not refuse_unless_soap(exchange):
            self._decoder.read(exchange.request.body, partial(self._take, exchange))

    def _take(self, exchange: Exchange, read: Envelope | EnvelopeError) -> None:
        if isinstance(read, EnvelopeError):
            exchange.respond(400, read.message.encode(), b"text/plain")
            return
        self._engine.protocol.receive(read, exchange, self._engine.clock())
        self._engine.touch()

    @property
    def is_busy(self) -> bool:
        """Whether a request is being read."""
        return self._decoder.is_busy

    async def close(self) -> None:
        """Wait until every request is taken."""
        await self._decoder.close()
