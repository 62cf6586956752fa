"""User names, signed and encrypted messages against Metro, both ways round: bad networks, slow services, kills."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
from calling_process import calling_process
from interop_cells import cell
from java_contract import (
    CLEAN,
    LIVE,
    LOSS,
    PATIENCE,
    WORK,
    Operation,
    Shop,
    Work,
    broker_before,
    connected,
    exchange,
    forwarder_words,
    served,
    source_to,
)
from java_peer import JavaPeer
from java_signers import OURS
from java_stacks import metro as words
from metro_grid import every_operation, every_work, finish, served_for, two_versions
from metro_security import METRO, metro_side, our_side
from process_security import SECURED
from served_process import Served
from waiting import until
from wcf.destination import running_destination

import holdfast
from holdfast.broker.signature_config import EncryptionConfig, MessageCredentialsConfig, SignatureConfig
from holdfast.config.values import Secret
from holdfast.security.users import Users
from holdfast.testing.proxy import Faults, LossyProxy, Relayed

pytestmark = [*LIVE, pytest.mark.nightly, cell(peer="Metro")]

MANY = 30
every_security = pytest.mark.parametrize("secured", SECURED)


@every_security
@two_versions
@every_work
@cell(role="destination")
async def test_metro_sends_secured_messages_to_holdfast(
    metro: JavaPeer, tmp_path: Path, versions: holdfast.Versions, secured: str, work: Work
) -> None:
    processors = our_side(tmp_path, "destination", secured).processors()
    shop = Shop(tmp_path / "inbox", sleep=work.milliseconds / 1000, processors=processors)
    async with running_destination(shop.app) as url, LossyProxy(url, work.faults, seed=3) as proxy:
        caller = await connected(metro, proxy.url, work.operation, **metro_side(tmp_path, versions, "client", secured))
        await caller.call(1, work.count)
        await caller.settle()
        await until(lambda: [one["state"] for one in shop.sequences("destination")] == ["terminated"], PATIENCE)
    assert shop.numbers == list(range(1, work.count + 1))
    assert (proxy.counts.lost > 0) == (work.faults is LOSS)


@every_security
@two_versions
@every_operation
@pytest.mark.crash
@cell(role="destination", fault="Holdfast killed", network=Faults(lose_response=0.1))
async def test_a_secured_destination_is_killed_and_metro_does_not_notice(
    metro: JavaPeer, tmp_path: Path, versions: holdfast.Versions, secured: str, operation: Operation
) -> None:
    environment = our_side(tmp_path, "destination", secured).environment
    with Served(tmp_path, environment) as victim:
        async with LossyProxy(victim.url, Faults(lose_response=0.1), seed=2) as proxy:
            caller = await connected(metro, proxy.url, operation, **metro_side(tmp_path, versions, "client", secured))
            calling = asyncio.ensure_future(caller.call(1, MANY))
            for due in (8, 18):
                await until(lambda due=due: calling.done() or len(victim.delivered()) >= due, PATIENCE)  # type: ignore[misc]
                await asyncio.to_thread(victim.kill)
                await asyncio.to_thread(victim.start)
            await calling
            await caller.settle()
            await until(lambda: len(set(victim.delivered())) >= MANY, PATIENCE)
    # Of what it had handled last before it was killed, the handler may get some once more.
    assert list(dict.fromkeys(victim.delivered())) == list(range(1, MANY + 1))


@every_security
@two_versions
@every_work
@cell(role="source")
async def test_holdfast_sends_secured_messages_to_metro(
    metro: JavaPeer, tmp_path: Path, versions: holdfast.Versions, secured: str, work: Work
) -> None:
    setup = metro_side(tmp_path, versions, "server", secured)
    service = await served_for(metro, tmp_path / "log", setup, work)
    processors = our_side(tmp_path, "source", secured).processors()
    async with (
        LossyProxy(service.url, work.faults, seed=5) as proxy,
        source_to(proxy.url, tmp_path / "outbox", versions, processors=processors) as source,
    ):
        await finish(work, source, service, proxy)


@two_versions
@cell(role="source", security="certificates", pattern="one-way", fault="the answer to TerminateSequence lost")
async def test_a_source_ends_the_sequence_whose_end_metro_refuses_with_unsigned_faults(
    metro: JavaPeer, tmp_path: Path, versions: holdfast.Versions
) -> None:
    def relayed(one: Relayed) -> None:
        if one.response is not None and re.search(rb"/(LastMessage|CloseSequence)<", one.request):
            proxy.faults = Faults(lose_response=1.0)
        if b"/TerminateSequence<" in one.request:
            proxy.faults = CLEAN

    service = await served(metro, tmp_path / "log", **metro_side(tmp_path, versions, "server", "certificates"))
    processors = our_side(tmp_path, "source", "certificates").processors()
    async with (
        LossyProxy(service.url, on_relayed=relayed) as proxy,
        source_to(proxy.url, tmp_path / "outbox", versions, processors=processors) as source,
    ):
        await exchange(source, "notify", range(1, 3))
        await source.end(timeout=PATIENCE)
        assert source.incidents["sequence.end_refused"] == 1
    assert proxy.counts.responses_lost > 0
    assert service.delivered("notify") == [1, 2]


@two_versions
@cell(role="source", security="certificates", pattern="one-way", fault="the answer to CreateSequence lost")
async def test_a_source_gets_a_sequence_although_metro_refuses_repeats_unsigned(
    metro: JavaPeer, tmp_path: Path, versions: holdfast.Versions
) -> None:
    def relayed(one: Relayed) -> None:
        proxy.faults = CLEAN

    service = await served(metro, tmp_path / "log", **metro_side(tmp_path, versions, "server", "certificates"))
    processors = our_side(tmp_path, "source", "certificates").processors()
    async with (
        LossyProxy(service.url, Faults(lose_response=1.0), on_relayed=relayed) as proxy,
        source_to(proxy.url, tmp_path / "outbox", versions, processors=processors) as source,
    ):
        await exchange(source, "notify", range(1, 3))
        await source.end(timeout=PATIENCE)
    assert proxy.counts.responses_lost == 1
    assert service.delivered("notify") == [1, 2]


@every_security
@two_versions
@pytest.mark.parametrize("work", [WORK["notify-loss"], WORK["echo-slow-loss"]], ids=["notify-loss", "echo-slow-loss"])
@cell(role="both", broker="broker")
async def test_a_broker_between_two_metro_secures_each_leg(
    metro: JavaPeer, tmp_path: Path, versions: holdfast.Versions, secured: str, work: Work
) -> None:
    service = await served(
        metro, tmp_path / "log", **{**metro_side(tmp_path, versions, "server", secured), "sleep": work.milliseconds}
    )
    listener, forwarder = credentials(tmp_path, secured)
    async with (
        LossyProxy(service.url, work.faults, seed=5) as behind,
        broker_before(behind.url, tmp_path / "broker", **listener, **forwarder_words(versions), **forwarder) as broker,
        LossyProxy(broker.service.url, work.faults, seed=3) as before,
    ):
        caller = await connected(metro, before.url, work.operation, **metro_side(tmp_path, versions, "client", secured))
        await caller.call(1, work.count)
        await caller.settle()
        await until(lambda: len(service.delivered(work.operation)) >= work.count, PATIENCE)
        stranger = await connected(metro, broker.service.url, work.operation, **words(versions))
        with pytest.raises(RuntimeError):
            await stranger.call(work.count + 1, work.count + 1)
    assert service.delivered(work.operation) == list(range(1, work.count + 1))
    assert before.counts.lost > 0


def credentials(directory: Path, secured: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the broker demands of its senders, and what its forwarder proves to the service."""
    if secured.startswith("certificates"):
        own, theirs = OURS.files(directory), METRO.files(directory).certificate
        signature = SignatureConfig(
            str(own.certificate),
            str(own.key),
            (str(theirs),),
            suite="Basic256Sha256",
            encryption=EncryptionConfig() if "encryption" in secured else None,
        )
        return {"signature": signature}, {"security": MessageCredentialsConfig(signature=signature)}
    (directory / "users").write_text("alice:secret\n")
    demanded = {"users": Users(directory / "users"), "require_timestamp": False}
    proof = MessageCredentialsConfig("alice", Secret("secret", "a test"), digest="digest" in secured, timestamp=False)
    return demanded, {"security": proof}


@every_security
@two_versions
@every_operation
@pytest.mark.crash
@cell(role="source", fault="Holdfast killed")
async def test_a_source_is_killed_while_it_sends_secured_messages_to_metro(
    metro: JavaPeer, tmp_path: Path, versions: holdfast.Versions, secured: str, operation: Operation
) -> None:
    service = await served(metro, tmp_path / "log", **metro_side(tmp_path, versions, "server", secured))
    environment = our_side(tmp_path, "source", secured).environment
    for due in (8, 18, MANY):
        with calling_process(service.url, tmp_path, operation, versions, MANY, environment=environment) as process:
            # Killed before it has its Sequence, it would repeat CreateSequence, and Metro's fault would be unsigned.
            await until(lambda due=due: len(service.delivered(operation)) >= due, PATIENCE)  # type: ignore[misc]
            if due == MANY:
                assert await asyncio.to_thread(process.wait, PATIENCE) == 0
    await until(lambda: len(service.delivered(operation)) >= MANY, PATIENCE)
    assert service.delivered(operation) == list(range(1, MANY + 1))
