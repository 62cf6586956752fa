"""A reply that the broker can never receive: its requester gets a fault, and nothing else stops."""

from __future__ import annotations

from typing import Any

import pytest

import holdfast
from holdfast import Destination, DestinationHTTP, Message, PeerFault
from holdfast.broker.config import ForwarderConfig
from holdfast.wire.limits import Limits

MOST = 16 * 1024 * 1024


async def test_a_reply_too_large_for_the_broker_is_a_fault_and_opens_no_circuit(run_broker, run_service, tmp_path):
    app = Destination(store=tmp_path / "inbox", http=DestinationHTTP(envelopes=Limits(max_bytes=4 * MOST)))

    @app.on("urn:large")
    async def large(message: Message) -> bytes:
        return b"<a>" + b"x" * MOST + b"</a>"

    @app.on("urn:small")
    async def small(message: Message) -> Any:
        return b"<small/>"

    behind = await run_service(app)
    broker = await run_broker(forwarders=(ForwarderConfig("next", "inbox", behind.url),))
    async with holdfast.Source(broker.service.url, tmp_path / "one") as one:
        async with holdfast.Source(broker.service.url, tmp_path / "other") as other:
            with pytest.raises(PeerFault, match="larger than the broker accepts"):
                await one.request("<a/>", action="urn:large", timeout=120)
            for source in (one, other):
                reply = await source.request("<a/>", action="urn:small", timeout=120)
                assert reply.body_bytes == b"<small/>"
    (circuit,) = broker.destination.running.engine.protocol.outbound.circuits.describe(0.0)
    assert (circuit["state"], circuit["failures"]) == ("closed", 0)
