"""A reply that the broker can never receive: its requester gets a fault, and nothing else stops."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from signers import authority, issue
from waiting import until

import holdfast
from holdfast import X509, Destination, DestinationHTTP, Message, PeerFault
from holdfast.broker.config import ForwarderConfig, ListenConfig, MessageCredentialsConfig, SecurityConfig
from holdfast.broker.signature_config import SignatureConfig
from holdfast.core.messages import Envelope
from holdfast.core.versions import RM, SOAP, Addressing
from holdfast.http.client.client import HTTPClient
from holdfast.testing.ports import free_ports
from holdfast.wire import encode
from holdfast.wire.limits import Limits

MOST = 16 * 1024 * 1024
CALLER, BROKER, SHOP = (issue(f"CN={name},O=Example", authority()) for name in ("caller", "broker", "shop"))


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


def signature(directory: Path, more: tuple[str, ...] = ()) -> SignatureConfig:
    files, trusted = BROKER.files(directory), authority().files(directory).certificate
    return SignatureConfig(str(files.certificate), str(files.key), (str(trusted),), more)


@pytest.mark.parametrize(
    ("is_posted", "is_signed"),
    [(True, False), (True, True), (False, True)],
    ids=["posted", "posted and signed", "signed in an answer"],
)
async def test_a_reply_too_large_for_the_broker_ends_its_request_whichever_way_it_comes(
    run_broker: Any, run_service: Any, tmp_path: Path, is_posted: bool, is_signed: bool
) -> None:
    http = DestinationHTTP(envelopes=Limits(max_bytes=4 * MOST), allow_addresses=["http://127.0.0.1"])
    checks = [X509(*SHOP.files(tmp_path), trusted=authority().files(tmp_path).certificate)] if is_signed else []
    app = Destination(store=tmp_path / "inbox", http=http, processors=checks)

    @app.on("urn:large")
    async def large(message: Message) -> bytes:
        return b"<a>" + b"x" * MOST + b"</a>"

    @app.on("urn:small")
    async def small(message: Message) -> bytes:
        return b"<small/>"

    behind = await run_service(app)
    (port,) = free_ports(1)
    broker = await run_broker(
        listen=ListenConfig(port=port),
        security=SecurityConfig(signature=signature(tmp_path)) if is_signed else SecurityConfig(),
        forwarders=(
            ForwarderConfig(
                "next",
                "inbox",
                behind.url,
                address=f"http://127.0.0.1:{port}/" if is_posted else None,
                security=MessageCredentialsConfig(signature=signature(tmp_path, ("CN=shop,O=Example",)))
                if is_signed
                else None,
            ),
        ),
    )
    signer = [X509(*CALLER.files(tmp_path), trusted=BROKER.files(tmp_path).certificate)] if is_signed else []
    async with holdfast.Source(broker.service.url, tmp_path / "one", processors=signer) as source:
        with pytest.raises(PeerFault, match="larger than the broker accepts"):
            await source.request("<a/>", action="urn:large", timeout=120)
        for _ in range(2):
            assert (await source.request("<a/>", action="urn:small", timeout=120)).body_bytes == b"<small/>"
    if not is_signed:
        outboxes = app.running.engine.protocol.outbound.outboxes.values()
        await until(lambda: all(outbox.records.is_empty for outbox in outboxes))


async def test_a_request_too_large_for_the_broker_is_refused(run_broker: Any) -> None:
    broker = await run_broker()
    told = Envelope(SOAP.V1_2, Addressing.V2005_08, RM.V1_1, "urn:told", body=b"<a>" + b"x" * MOST + b"</a>")
    async with HTTPClient() as client:
        response = await client.fetch(
            "POST", broker.service.url, encode(told), {"Content-Type": "application/soap+xml"}
        )
    assert response.status == 413
    assert b"larger than this endpoint accepts" in response.body
