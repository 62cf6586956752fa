"""MTOM with Apache CXF: both ways round, through a bad network, and through a broker that changes the versions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from attachment_shop import SIZE, AttachmentShop, SignedShop, exchange, signed_exchange
from interop_cells import cell
from java_contract import (
    BAD,
    COUNT,
    LIVE,
    PATIENCE,
    Operation,
    Shop,
    broker_before,
    connected,
    forwarder_words,
    served,
    source_to,
)
from java_peer import JavaPeer
from java_signers import RM_1_1, encrypted_words, ours, signed_words
from java_stacks import cxf as words
from waiting import until
from wcf.destination import running_destination

import holdfast
from holdfast.testing.proxy import Faults, LossyProxy

pytestmark = [*LIVE, cell(peer="CXF", setup="MTOM")]

RM10 = holdfast.Versions("1.0", "2004/08", "1.1")
RM11 = holdfast.Versions("1.1", "2005/08", "1.2")
every_version = pytest.mark.parametrize(
    "versions", [pytest.param(RM10, marks=pytest.mark.nightly), RM11], ids=["rm10-soap11", "rm11-soap12"]
)
every_operation = pytest.mark.parametrize("operation", [pytest.param("notify", marks=pytest.mark.nightly), "echo"])

ANSWERS_LOST = Faults(lose_response=0.3, double=0.1)
"""CXF retransmits a message without its attachments, so one whose first transmission is lost never arrives."""


@every_version
@every_operation
@cell(role="destination", network=ANSWERS_LOST)
async def test_cxf_sends_attachments_to_holdfast_and_repeats_those_whose_answer_is_lost(
    cxf: JavaPeer, tmp_path: Path, versions: holdfast.Versions, operation: Operation
) -> None:
    shop = AttachmentShop(tmp_path / "inbox")
    async with running_destination(shop.app) as url, LossyProxy(url, ANSWERS_LOST, seed=3) as proxy:
        setup = words(versions, mtom=True, bytes=SIZE)
        caller = await connected(cxf, proxy.url, operation, decoupled=False, **setup)
        await caller.call_through(proxy)
        await until(lambda: shop.ends() == ["terminated"], PATIENCE)
        assert proxy.counts.lost > 0
        assert shop.numbers == list(range(1, COUNT + 1))


@every_operation
@cell(role="destination", setup="MTOM without attachments", network=BAD, versions=[RM11])
async def test_a_client_of_cxf_with_mtom_and_no_attachments_may_lose_any_message(
    cxf: JavaPeer, tmp_path: Path, operation: Operation
) -> None:
    shop = Shop(tmp_path / "inbox")
    async with running_destination(shop.app) as url, LossyProxy(url, BAD, seed=3) as proxy:
        caller = await connected(cxf, proxy.url, operation, decoupled=False, **words(RM11, mtom=True))
        await caller.call_through(proxy)
        await until(lambda: shop.ends() == ["terminated"], PATIENCE)
        assert proxy.counts.lost > 0
        assert shop.numbers == list(range(1, COUNT + 1))


@every_version
# CXF's service does not repeat a reply that was lost in an HTTP response.
@pytest.mark.parametrize(
    ("operation", "faults"),
    [
        pytest.param("notify", BAD, id="notify"),
        pytest.param("echo", Faults(lose_request=0.2), id="echo", marks=pytest.mark.nightly),
    ],
)
@cell(role="source")
async def test_holdfast_sends_attachments_to_cxf_through_a_bad_network(
    cxf: JavaPeer, tmp_path: Path, versions: holdfast.Versions, operation: Operation, faults: Faults
) -> None:
    service = await served(cxf, tmp_path / "log", **words(versions, retry=True, mtom=True))
    async with LossyProxy(service.url, faults, seed=3) as proxy:
        async with source_to(proxy.url, tmp_path / "outbox", versions) as source:
            await exchange(source, operation)
        assert proxy.counts.lost > 0
    await until(lambda: len(service.delivered(operation)) == COUNT, PATIENCE)
    assert service.delivered(operation) == list(range(1, COUNT + 1))


@every_operation
@cell(role="both", broker="broker", versions=[RM11])
async def test_a_broker_forwards_attachments_of_cxf_to_cxf_in_other_versions(
    cxf: JavaPeer, tmp_path: Path, operation: Operation
) -> None:
    service = await served(cxf, tmp_path / "log", **words(RM10, retry=True, mtom=True))
    async with broker_before(service.url, tmp_path / "store", **forwarder_words(RM10)) as broker:
        setup = words(RM11, mtom=True, bytes=SIZE)
        caller = await connected(cxf, broker.service.url, operation, decoupled=False, **setup)
        await caller.call(1, COUNT, is_the_end=True)
        await caller.settle()
        await until(lambda: len(service.delivered(operation)) == COUNT, PATIENCE)
    assert service.delivered(operation) == list(range(1, COUNT + 1))


BEHIND = Faults(lose_request=0.2)
"""CXF's service does not repeat a reply that was lost in an HTTP response."""


@every_operation
@cell(
    role="both",
    broker="broker",
    setup="MTOM; behind the broker, 20 % of requests lost",
    network=ANSWERS_LOST,
    versions=[RM11],
)
async def test_a_broker_forwards_attachments_with_losses_on_both_legs(
    cxf: JavaPeer, tmp_path: Path, operation: Operation
) -> None:
    service = await served(cxf, tmp_path / "log", **words(RM10, retry=True, mtom=True))
    async with (
        LossyProxy(service.url, BEHIND, seed=5) as behind,
        broker_before(behind.url, tmp_path / "store", **forwarder_words(RM10)) as broker,
        LossyProxy(broker.service.url, ANSWERS_LOST, seed=3) as before,
    ):
        setup = words(RM11, mtom=True, bytes=SIZE)
        caller = await connected(cxf, before.url, operation, decoupled=False, **setup)
        await caller.call_through(before)
        await caller.settle()
        await until(lambda: len(service.delivered(operation)) == COUNT, PATIENCE)
        assert before.counts.lost > 0 and behind.counts.lost > 0
    assert service.delivered(operation) == list(range(1, COUNT + 1))


# --- with certificates ------------------------------------------------------------------------------------------------


def secured_words(directory: Path, secured: str) -> dict[str, Any]:
    """The settings of a CXF bus that moves values into attachments, also those of the Security header, and signs."""
    made = encrypted_words if "encryption" in secured else signed_words
    return {**made(directory, RM_1_1), "mtom": True, "interval": 60_000}


def processor(directory: Path, secured: str) -> holdfast.Processor:
    return ours(directory, encrypt=holdfast.Encryption() if "encryption" in secured else None)


every_security = pytest.mark.parametrize("secured", ["certificates", "certificates and encryption"])
nightly_encryption = pytest.param("certificates and encryption", marks=pytest.mark.nightly)


@pytest.mark.nightly
@every_security
@cell(role="destination", pattern="request/reply", versions=[RM_1_1])
async def test_cxf_signs_messages_with_attachments(cxf: JavaPeer, tmp_path: Path, secured: str) -> None:
    shop = SignedShop(tmp_path / "inbox", processors=[processor(tmp_path, secured)])
    async with running_destination(shop.app) as url:
        setup = {**secured_words(tmp_path, secured), "bytes": SIZE}
        caller = await connected(cxf, url, "echo", decoupled=False, **setup)
        await caller.call(1, COUNT, is_the_end=True)
    assert shop.numbers == list(range(1, COUNT + 1))


@pytest.mark.parametrize("secured", ["certificates", nightly_encryption])
@cell(role="source", pattern="request/reply", versions=[RM_1_1])
async def test_cxf_signs_replies_with_attachments(cxf: JavaPeer, tmp_path: Path, secured: str) -> None:
    service = await served(cxf, tmp_path / "log", **secured_words(tmp_path, secured))
    processors = [processor(tmp_path, secured)]
    async with source_to(service.url, tmp_path / "outbox", RM_1_1, processors=processors) as source:
        await signed_exchange(source, 3)
    assert service.delivered("echo") == [1, 2, 3]
