"""The one way in and the one way out of an endpoint: bytes to the envelopes that its protocol takes, and back.

Owns what a peer is answered whose bytes are no envelope, and the answer where there is none to be had. Nothing else in
an endpoint reads or writes envelopes, so what is to be done with each of them is done here. Knows no rule of the
protocol.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial

from holdfast.core.events import Transmit
from holdfast.core.messages import Envelope, Fault
from holdfast.core.versions import SOAP
from holdfast.endpoint.decoding import Decoder, Outcome
from holdfast.endpoint.failures import brief, reason_of
from holdfast.endpoint.logs import log
from holdfast.exceptions import EnvelopeError, MustUnderstand, VersionMismatch
from holdfast.http.exchange import Exchange
from holdfast.wire import DEFAULT, Limits, content_type, encode, soap_of_content_type

CONTENT_TYPES = {soap: content_type(soap).encode() for soap in SOAP}
LATER = ((b"Retry-After", b"5"),)
"""To an answer that says: nothing was done, ask again."""

_CODES: dict[type[EnvelopeError], str] = {VersionMismatch: "VersionMismatch", MustUnderstand: "MustUnderstand"}


class Envelopes:
    """Reads and writes every envelope of one endpoint, in the event loop's thread.

    Args:
        incidents: Counts what goes wrong, by name.
        limits: What one envelope may be like.
    """

    def __init__(self, incidents: Counter[str], limits: Limits = DEFAULT) -> None:
        self._incidents = incidents
        self._decoder = Decoder(limits)

    # --- in -------------------------------------------------------------------------------------------------------

    def receive(self, exchange: Exchange, take: Callable[[Exchange, Envelope], None]) -> None:
        """Read what an HTTP request brings and make the call with it, now or soon. If it is no envelope, it is answered
        here, with the fault that the specification has for that."""
        self._decoder.read(exchange.request.body, partial(self._received, exchange, take))

    def _received(self, exchange: Exchange, take: Callable[[Exchange, Envelope], None], read: Outcome) -> None:
        if isinstance(read, EnvelopeError):
            self._refuse(exchange, read)
        else:
            take(exchange, read)

    def _refuse(self, exchange: Exchange, error: EnvelopeError) -> None:
        self._incidents["envelope refused"] += 1
        log.info("envelope refused", peer=exchange.request.peer, reason=error.message)
        declared = soap_of_content_type(exchange.request.headers.get(b"content-type", b"").decode("latin-1"))
        soap = SOAP(error.soap) if error.soap else declared or SOAP.V1_1
        code = _CODES.get(type(error), "Sender")
        # SOAP 1.2 part 2, 7.5.2.2: 400 for Sender; SOAP 1.1, 6.2: 500 for every fault.
        status = 400 if code == "Sender" and soap is SOAP.V1_2 else 500
        self.respond(exchange, Envelope(soap, fault=Fault(code, error.message)), status)

    def read(self, data: bytes, take: Callable[[Outcome], None]) -> None:
        """Read what an HTTP response brings and make the call with it, or with what is wrong with it, now or soon."""
        self._decoder.read(data, take)

    # --- out ------------------------------------------------------------------------------------------------------

    def respond(self, exchange: Exchange, envelope: Envelope | None, status: int = 0) -> None:
        """Answer an HTTP request.

        Args:
            exchange: The request.
            envelope: What to say, None for nothing: 202. Where it cannot be written the answer is 503: what was
                accepted is stored, and whoever asks again may be told so then.
            status: The HTTP status, if it is another than SOAP's for that envelope.
        """
        if envelope is None:
            exchange.respond(202)
            return
        try:
            content = encode(envelope)
        except Exception as error:
            self._incidents["answer not written"] += 1
            log.error("answer not written", peer=exchange.request.peer, error=brief(error), exception=reason_of(error))
            exchange.respond(503, b"The answer could not be written; ask again.\n", b"text/plain", LATER)
            return
        exchange.respond(status or (200 if envelope.fault is None else 500), content, CONTENT_TYPES[envelope.soap])

    def write(self, sent: Transmit) -> bytes:
        """The content of an HTTP request, made anew for every attempt.

        Raises:
            Exception: it cannot be written, whatever the reason.
        """
        return encode(sent.envelope)

    # --- life -----------------------------------------------------------------------------------------------------

    @property
    def is_busy(self) -> bool:
        """Whether something is being read."""
        return self._decoder.is_busy

    async def close(self) -> None:
        """Wait until everything is read and taken."""
        await self._decoder.close()
