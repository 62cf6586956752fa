"""Holdfast against Metro (WSIT), both ways round, through a bad network, and with slow services.

The peer is built by Maven when a JDK and Maven are there and bring its jars; otherwise all of this is skipped.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from interop_cells import cell
from java_contract import (
    BAD,
    CLEAN,
    COUNT,
    HURRIED,
    LIVE,
    PATIENCE,
    Operation,
    Shop,
    body,
    connected,
    correct_reply,
    exchange,
    refusing,
    served,
    source_to,
    values,
)
from java_peer import NAMESPACE, JavaPeer
from java_stacks import metro as words
from metro_grid import VERSIONS, every_network, every_operation, every_version
from waiting import until
from wcf.destination import running_destination

import holdfast
from holdfast.testing.proxy import Faults, LossyProxy, Relayed

pytestmark = [*LIVE, pytest.mark.nightly, cell(peer="Metro")]


@every_version
@every_operation
@every_network
@cell(role="destination")
async def test_metro_sends_to_holdfast(
    metro: JavaPeer, tmp_path: Path, versions: holdfast.Versions, operation: Operation, faults: Faults
) -> None:
    shop = Shop(tmp_path / "inbox")
    async with running_destination(shop.app) as url, LossyProxy(url, faults, seed=3) as proxy:
        caller = await connected(metro, proxy.url, operation, **words(versions))
        await caller.call(1, COUNT)
        await caller.settle()
        await until(lambda: [one["state"] for one in shop.sequences("destination")] == ["terminated"], PATIENCE)
    assert shop.numbers == list(range(1, COUNT + 1))
    assert (proxy.counts.lost > 0) == (faults is BAD)


@every_version
@pytest.mark.parametrize("ordered", [True, False])
@cell(role="destination", pattern="request/reply", service="slow")
async def test_metro_gets_its_replies_from_a_handler_slower_than_the_reply_patience(
    metro: JavaPeer, tmp_path: Path, versions: holdfast.Versions, ordered: bool
) -> None:
    app = holdfast.Destination(tmp_path / "inbox", policy=holdfast.DestinationPolicy(reply_patience=0.6))

    @app.on(f"{NAMESPACE}/echo")
    async def echo(message: holdfast.Message) -> bytes:
        await asyncio.sleep(1.5)
        return message.body_bytes.replace(b"echo", b"echoResponse")

    async with running_destination(app) as url:
        caller = await connected(metro, url, "echo", **words(versions, ordered=ordered))
        await caller.call(1, 4)
        await caller.settle()


@every_version
@cell(role="destination", setup="a queue without replies", pattern="request/reply")
async def test_metro_hears_a_fault_from_a_queue_that_nobody_replies_for(
    metro: JavaPeer, tmp_path: Path, versions: holdfast.Versions
) -> None:
    """It takes an acknowledgement alone for the reply."""
    async with running_destination(holdfast.Destination(tmp_path / "inbox")) as url:
        caller = await connected(metro, url, "echo", **words(versions))
        with pytest.raises(RuntimeError, match="No service here replies to requests"):
            await caller.call(1, 1)


@every_version
@every_operation
@every_network
@cell(role="source")
async def test_holdfast_sends_to_metro(
    metro: JavaPeer, tmp_path: Path, versions: holdfast.Versions, operation: Operation, faults: Faults
) -> None:
    service = await served(metro, tmp_path / "log", **words(versions))
    async with (
        LossyProxy(service.url, faults, seed=5) as proxy,
        source_to(proxy.url, tmp_path / "outbox", versions) as source,
    ):
        await exchange(source, operation, range(1, COUNT + 1))
        await until(lambda: len(service.delivered(operation)) >= COUNT, PATIENCE)
        await source.end(timeout=PATIENCE)
    assert service.delivered(operation) == list(range(1, COUNT + 1))
    assert (proxy.counts.lost > 0) == (faults is BAD)


@every_version
@pytest.mark.parametrize("loss", [0.0, 0.2])
@cell(role="source", pattern="request/reply", service="slow")
async def test_a_slow_service_answers_every_request_and_the_sequence_ends(
    metro: JavaPeer, tmp_path: Path, versions: holdfast.Versions, loss: float
) -> None:
    """Each call takes longer than the retransmission timeout."""
    service = await served(metro, tmp_path / "log", **words(versions, ordered=False, sleep=1200))
    async with (
        LossyProxy(service.url, Faults(lose_request=loss, lose_response=loss), seed=3) as proxy,
        holdfast.Source(proxy.url, ":memory:", versions=versions, policy=HURRIED) as source,
    ):
        asked = [source.request(body("echo", n), action=f"{NAMESPACE}/echo", timeout=PATIENCE) for n in range(6)]
        assert [values(reply) for reply in await asyncio.gather(*asked)] == [correct_reply(n) for n in range(6)]
        assert (source.progress.resent == 0) == (loss == 0)
        await source.end(timeout=PATIENCE)


@cell(role="source", pattern="request/reply", fault="the answer to LastMessage lost", versions=VERSIONS[:1])
async def test_the_sequence_ends_where_the_answer_to_last_message_is_lost(metro: JavaPeer, tmp_path: Path) -> None:
    """Metro answers each repeat of LastMessage with a fault: WSRM1146."""
    seen: list[bytes] = []

    def relayed(one: Relayed) -> None:
        seen.append(one.request)
        if b"rm/LastMessage<" in one.request:
            proxy.faults = CLEAN

    rm10 = VERSIONS[0]
    # Long enough for a busy Metro to answer: the repeat is AckRequested only if the fault came before it.
    unhurried = holdfast.SourcePolicy(retransmission=holdfast.RetransmissionPolicy(initial=3, floor=3, cap=3))
    service = await served(metro, tmp_path / "log", **words(rm10, ordered=False))
    async with (
        LossyProxy(service.url, on_relayed=relayed) as proxy,
        holdfast.Source(proxy.url, ":memory:", versions=rm10, policy=unhurried) as source,
    ):
        reply = await source.request(body("echo", 1), action=f"{NAMESPACE}/echo", timeout=PATIENCE)
        assert values(reply) == correct_reply(1)
        proxy.faults = Faults(lose_response=1.0)
        await source.end(timeout=PATIENCE)
    assert proxy.counts.responses_lost == 1
    assert any(b"rm/AckRequested<" in request for request in seen)


@every_version
@cell(role="destination", setup="a declared fault", pattern="request/reply")
async def test_metro_takes_a_declared_fault_with_its_default_action(
    metro: JavaPeer, tmp_path: Path, versions: holdfast.Versions
) -> None:
    """WS-Addressing 1.0 Metadata, 4.4.4."""
    async with running_destination(refusing(tmp_path / "inbox")) as url:
        caller = await connected(metro, url, "echo", **words(versions))
        with pytest.raises(RuntimeError, match="It is sold out"):
            await caller.call(1, 1)
