"""A broker's messages are deleted when their own destination acknowledges them: over real sockets."""

from __future__ import annotations

import aiohttp
from waiting import until

import holdfast
from holdfast import SourcePolicy
from holdfast.broker.config import ForwarderConfig
from holdfast.core.messages import (
    Acknowledge,
    CreateSequence,
    CreateSequenceResponse,
    Envelope,
    SequenceAcknowledgement,
)
from holdfast.core.retransmission import RetransmissionPolicy
from holdfast.core.versions import Versions
from holdfast.http.exchange import Exchange
from holdfast.http.server.server import HTTPServer
from holdfast.wire import decode, encode

V11 = Versions("1.1")
QUICK = RetransmissionPolicy(initial=0.2, floor=0.05, cap=0.2)
NAME = "urn:seq:B"


def said(**what: object) -> bytes:
    return encode(Envelope(V11.soap, V11.addressing, V11.rm, **what))  # type: ignore[arg-type]


ACKNOWLEDGED = said(control=Acknowledge(), acknowledgements=(SequenceAcknowledgement(NAME, ((1, 2),)),))


class Silent:
    """A destination that grants a Sequence with a guessable Identifier, and acknowledges when it is told to."""

    def __init__(self) -> None:
        self.came = 0
        self.acknowledges = False

    def handle(self, exchange: Exchange) -> None:
        envelope = decode(exchange.request.body)
        if isinstance(envelope.control, CreateSequence):
            response = said(control=CreateSequenceResponse(NAME), relates_to=envelope.message_id)
            exchange.respond(200, response, b"application/soap+xml")
            return
        self.came += envelope.sequence is not None
        if self.acknowledges:
            exchange.respond(200, ACKNOWLEDGED, b"application/soap+xml")
        else:
            exchange.respond(202)


async def test_who_posts_a_forged_acknowledgement_to_a_broker_deletes_nothing(run_broker):
    silent, server = Silent(), HTTPServer()
    await server.start(silent.handle, "127.0.0.1", 0)
    try:
        to = f"http://127.0.0.1:{server.port}/"
        broker = await run_broker(forwarders=(ForwarderConfig("next", "inbox", to, rm="1.1", offer=False),))
        outboxes = broker.destination.running.engine.protocol.outbound.outboxes
        forwarders = [outbox for key, outbox in outboxes.items() if key.startswith("forwarder/")]

        def waiting() -> int:
            return sum(outbox.records.waiting for outbox in forwarders)

        async with holdfast.Source(broker.service.url, ":memory:", policy=SourcePolicy(retransmission=QUICK)) as source:
            for body in ("<a/>", "<b/>"):
                await source.send(body, action="urn:a")
            await until(lambda: waiting() == 2 and silent.came >= 2)
        async with aiohttp.ClientSession() as session:
            headers = {"Content-Type": "application/soap+xml; charset=utf-8"}
            async with session.post(broker.service.url, data=ACKNOWLEDGED, headers=headers) as answer:
                assert answer.status == 202
        assert broker.destination.incidents["statement.unauthorized"] == 1
        assert waiting() == 2
        silent.acknowledges = True
        await until(lambda: waiting() == 0)
    finally:
        await server.close(0.5)
