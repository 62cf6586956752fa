"""CXF's client, made from nothing but the WSDL that a destination generates: its policy turns reliable messaging on."""

from __future__ import annotations

from pathlib import Path

import pytest
from interop_cells import cell
from java_contract import BAD, CLEAN, COUNT, LIVE, PATIENCE, Operation, Shop, broker_before, connected
from java_peer import JavaPeer
from java_signers import ours, signed_words
from java_stacks import cxf as words
from waiting import until
from wcf.destination import running_destination

import holdfast
from holdfast.endpoint.destination.forwarded_services import ServiceWSDL
from holdfast.testing.proxy import LossyProxy

RM11 = holdfast.Versions("1.1", "2005/08", "1.2")
pytestmark = [
    *LIVE,
    pytest.mark.nightly,
    cell(peer="CXF", role="destination", setup="from the generated WSDL", versions=[RM11]),
]


@pytest.mark.parametrize(("operation", "query"), [("notify", ""), ("echo", ""), ("echo", "&policy=1.2")])
async def test_cxf_reads_the_generated_wsdl_and_sends_reliably(
    cxf: JavaPeer, tmp_path: Path, operation: Operation, query: str
) -> None:
    shop = Shop(tmp_path / "inbox")
    async with running_destination(shop.app) as url, LossyProxy(url, CLEAN, seed=3) as proxy:
        setup = words(RM11, wsdl=f"{proxy.url.rstrip('/')}/?wsdl{query}")
        caller = await connected(cxf, proxy.url, operation, decoupled=False, **setup)
        proxy.faults = BAD
        await caller.call_through(proxy)
        await until(lambda: shop.ends() == ["terminated"], PATIENCE)
        assert proxy.counts.lost > 0
        assert shop.numbers == list(range(1, COUNT + 1))
        (sequence,) = shop.sequences("destination")
        assert sequence["versions"] == "RM 1.1, WSA 2005/08, SOAP 1.2", "the first alternative of the policy"


@cell(setup="from the WSDL of the service behind a broker", broker="broker", pattern="request/reply")
@pytest.mark.parametrize("query", ["", "&policy=1.2"])
async def test_cxf_reads_the_wsdl_that_a_broker_serves_and_calls_the_service_through_it(
    cxf: JavaPeer, tmp_path: Path, query: str
) -> None:
    shop = Shop(tmp_path / "inbox")
    async with running_destination(shop.app) as url:
        wsdl = ServiceWSDL(f"{url.rstrip('/')}/?wsdl")
        async with broker_before(url, tmp_path / "broker", wsdl=wsdl) as broker:
            at = broker.service.url
            caller = await connected(cxf, at, "echo", decoupled=False, **words(RM11, wsdl=f"{at}?wsdl{query}"))
            await caller.call(1, 3, is_the_end=True)
    assert shop.numbers == [1, 2, 3]


@cell(security="certificates and encryption", pattern="request/reply")
@pytest.mark.parametrize(
    "encrypt",
    [
        None,
        holdfast.Encryption(),
        holdfast.Encryption(signature=True),
        holdfast.Encryption(before_signing=True),
        holdfast.Encryption(cipher="aes128-cbc"),
    ],
    ids=["signed", "encrypted", "signature encrypted", "encrypted first", "aes128"],
)
async def test_cxf_signs_and_encrypts_as_the_generated_wsdl_demands(
    cxf: JavaPeer, tmp_path: Path, encrypt: holdfast.Encryption | None
) -> None:
    shop = Shop(tmp_path / "inbox", processors=[ours(tmp_path, suite="Basic256Sha256", encrypt=encrypt)])
    async with running_destination(shop.app) as url:
        setup = {**signed_words(tmp_path, RM11), "security": "policy", "wsdl": f"{url.rstrip('/')}/?wsdl"}
        caller = await connected(cxf, url, "echo", decoupled=False, **{**setup, "interval": 60_000})
        await caller.call(1, 3, is_the_end=True)
    assert shop.numbers == [1, 2, 3]
