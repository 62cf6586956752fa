"""MTOM with Metro, both ways round, on a bad network, and with more than memory should hold."""

from __future__ import annotations

from pathlib import Path

import pytest
from attachment_shop import SIZE, AttachmentShop, SignedShop, exchange, signed_exchange
from interop_cells import cell
from java_contract import BAD, COUNT, LIVE, PATIENCE, Operation, connected, served, source_to
from java_peer import JavaPeer
from java_stacks import metro as words
from metro_grid import VERSIONS, every_network, every_operation, every_version
from metro_security import metro_side, our_side
from waiting import until
from wcf.destination import running_destination

import holdfast
from holdfast.testing.proxy import Faults, LossyProxy

pytestmark = [*LIVE, pytest.mark.nightly, cell(peer="Metro", setup="MTOM")]


@every_version
@every_operation
@every_network
@cell(role="destination")
async def test_metro_sends_attachments_to_holdfast(
    metro: JavaPeer, tmp_path: Path, versions: holdfast.Versions, operation: Operation, faults: Faults
) -> None:
    shop = AttachmentShop(tmp_path / "inbox")
    async with running_destination(shop.app) as url, LossyProxy(url, faults, seed=3) as proxy:
        caller = await connected(metro, proxy.url, operation, **words(versions, mtom=True, bytes=SIZE))
        await caller.call(1, COUNT)
        await caller.settle()
        await until(lambda: [one["state"] for one in shop.sequences("destination")] == ["terminated"], PATIENCE)
    assert shop.numbers == list(range(1, COUNT + 1))
    assert (proxy.counts.lost > 0) == (faults is BAD)


@every_version
@every_operation
@every_network
@cell(role="source")
async def test_holdfast_sends_attachments_to_metro(
    metro: JavaPeer, tmp_path: Path, versions: holdfast.Versions, operation: Operation, faults: Faults
) -> None:
    service = await served(metro, tmp_path / "log", **words(versions, mtom=True))
    async with LossyProxy(service.url, faults, seed=5) as proxy:
        async with source_to(proxy.url, tmp_path / "outbox", versions) as source:
            await exchange(source, operation)
            await until(lambda: len(service.delivered(operation)) >= COUNT, PATIENCE)
            await source.end(timeout=PATIENCE)
        assert (proxy.counts.lost > 0) == (faults is BAD)
    assert service.delivered(operation) == list(range(1, COUNT + 1))


@every_version
@cell(role=("source", "destination"), pattern="request/reply", service="slow")
async def test_slow_services_return_the_attachments_of_each_request(
    metro: JavaPeer, tmp_path: Path, versions: holdfast.Versions
) -> None:
    shop = AttachmentShop(tmp_path / "inbox", sleep=1.5)
    async with running_destination(shop.app) as url:
        caller = await connected(metro, url, "echo", **words(versions, mtom=True, bytes=SIZE))
        await caller.call(1, 4)
        await caller.settle()
    assert shop.numbers == [1, 2, 3, 4]
    service = await served(metro, tmp_path / "log", **words(versions, mtom=True, sleep=1500))
    async with source_to(service.url, tmp_path / "outbox", versions) as source:
        await exchange(source, "echo")
    assert service.delivered("echo") == list(range(1, COUNT + 1))


LARGE = 3 << 20


@cell(role=("source", "destination"), setup="MTOM, 3 MiB each", pattern="request/reply", versions=[VERSIONS[-1]])
async def test_attachments_in_the_store_go_to_metro_and_come_back(metro: JavaPeer, tmp_path: Path) -> None:
    shop = AttachmentShop(tmp_path / "inbox")
    shop.size = LARGE
    async with running_destination(shop.app) as url:
        caller = await connected(metro, url, "echo", **words(VERSIONS[-1], mtom=True, bytes=LARGE, interval=20_000))
        await caller.call(1, 3)
        await caller.settle()
    assert shop.numbers == [1, 2, 3]
    service = await served(metro, tmp_path / "log", **words(VERSIONS[-1], mtom=True))
    async with source_to(service.url, tmp_path / "outbox", VERSIONS[-1]) as source:
        await exchange(source, "echo", LARGE)


every_security = pytest.mark.parametrize("secured", ["certificates", "certificates and encryption"])


@every_security
@cell(role="destination", pattern="request/reply", versions=[VERSIONS[-1]])
async def test_metro_signs_messages_with_attachments(metro: JavaPeer, tmp_path: Path, secured: str) -> None:
    shop = SignedShop(tmp_path / "inbox", processors=our_side(tmp_path, "destination", secured).processors())
    async with running_destination(shop.app) as url:
        setup = metro_side(tmp_path, VERSIONS[-1], "client", secured) | {"mtom": True, "bytes": SIZE}
        caller = await connected(metro, url, "echo", **setup)
        await caller.call(1, 3)
        await caller.settle()
    assert shop.numbers == [1, 2, 3]


@every_security
@cell(role="source", pattern="request/reply", versions=[VERSIONS[-1]])
async def test_metro_signs_replies_with_attachments(metro: JavaPeer, tmp_path: Path, secured: str) -> None:
    setup = metro_side(tmp_path, VERSIONS[-1], "server", secured) | {"mtom": True}
    service = await served(metro, tmp_path / "log", **setup)
    processors = our_side(tmp_path, "source", secured).processors()
    async with source_to(service.url, tmp_path / "outbox", VERSIONS[-1], processors=processors) as source:
        await signed_exchange(source, 3)
    assert service.delivered("echo") == [1, 2, 3]
