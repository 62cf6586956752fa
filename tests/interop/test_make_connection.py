"""MakeConnection live: clients and services that poll, clean, on bad networks, and with Holdfast killed."""

from __future__ import annotations

import asyncio
from pathlib import Path

import processes
import pytest
from calling_process import calling_process, written
from interop_cells import cell
from java_contract import (
    CLEAN,
    LIVE,
    LOSS,
    PATIENCE,
    Shop,
    connected,
    exchange,
    forwarder_words,
    poll_replies,
    served,
    source_to,
)
from java_peer import JavaPeer
from java_stacks import sandesha as words
from served_process import Served
from waiting import until
from wcf.destination import running_destination

import holdfast
from holdfast.testing.proxy import Faults, LossyProxy

pytestmark = [*LIVE, pytest.mark.nightly, cell(peer="Sandesha2", setup="MakeConnection", pattern="request/reply")]

SOAP11 = holdfast.Versions("1.1", "2005/08", "1.1")
SOAP12 = holdfast.Versions("1.1", "2005/08", "1.2")
LOST = Faults(lose_response=0.1)
SOME = 5
"""Calls. Sandesha2 polls every three seconds."""
MANY = 12
"""Calls while Holdfast is killed."""
each_soap = pytest.mark.parametrize("versions", [SOAP11, SOAP12], ids=["soap1.1", "soap1.2"])
each_network = pytest.mark.parametrize("faults", [CLEAN, LOSS], ids=["clean", "loss"])


def replies_acknowledged(shop: Shop) -> str:
    """The numbers of the replies that the client acknowledged.

    Sandesha2's client does not end its Sequence: where it polls, it waits for a CreateSequence of the service's,
    although the service accepted its Offer.
    """
    return next(one["ranges"] for one in shop.sequences("source"))


@each_soap
@each_network
@pytest.mark.parametrize("sleep", [0.0, 1.5], ids=["quick", "slow"])
@cell(role="destination")
async def test_a_sandesha_client_polls_a_destination_for_its_replies(
    sandesha: JavaPeer, tmp_path: Path, versions: holdfast.Versions, faults: Faults, sleep: float
) -> None:
    shop = Shop(tmp_path / "inbox", sleep=sleep)
    async with running_destination(shop.app) as url, LossyProxy(url, faults, seed=3) as proxy:
        caller = await connected(sandesha, proxy.url, "echo", addressed=False, **words(versions, polls=True))
        await caller.call(1, SOME)
        await until(lambda: replies_acknowledged(shop) == f"1-{SOME}", PATIENCE)
    assert shop.numbers == list(range(1, SOME + 1))


@pytest.mark.crash
@cell(role="destination", fault="Holdfast killed", network=LOST)
@each_soap
async def test_holdfast_is_killed_while_a_sandesha_client_polls_for_replies(
    sandesha: JavaPeer, tmp_path: Path, versions: holdfast.Versions
) -> None:
    with Served(tmp_path) as service:
        async with LossyProxy(service.url, LOST, seed=2) as proxy:
            caller = await connected(sandesha, proxy.url, "echo", addressed=False, **words(versions, polls=True))
            calling = asyncio.ensure_future(caller.call(1, MANY))
            await until(lambda: len(service.delivered()) >= 4, PATIENCE)
            await asyncio.to_thread(service.kill)
            await asyncio.to_thread(service.start)
            await calling
        delivered = service.delivered()
    assert list(dict.fromkeys(delivered)) == list(range(1, MANY + 1))


@pytest.mark.crash
@each_soap
@cell(role="destination", broker="broker", fault="Holdfast killed", network=LOST)
async def test_a_broker_is_killed_while_a_sandesha_client_polls_it_for_replies(
    sandesha: JavaPeer, tmp_path: Path, versions: holdfast.Versions
) -> None:
    shop = Shop(tmp_path / "inbox", sleep=0.5)
    async with running_destination(shop.app) as url:
        broker = processes.broker(tmp_path, url, timeout="60s")
        try:
            await broker.start()
            async with LossyProxy(broker.url, LOST, seed=2) as proxy:
                caller = await connected(sandesha, proxy.url, "echo", addressed=False, **words(versions, polls=True))
                calling = asyncio.ensure_future(caller.call(1, MANY))
                for due in (3, 8):
                    await until(lambda due=due: calling.done() or len(shop.numbers) >= due, PATIENCE)  # type: ignore[misc]
                    await broker.kill()
                    await broker.start()
                await calling
        finally:
            await broker.kill()
    assert shop.numbers == list(range(1, MANY + 1))


# --- Holdfast's Source, Sandesha2's service ---------------------------------------------------------------------------


@each_soap
@each_network
@cell(role="source", service="slow")
async def test_a_source_polls_a_slow_sandesha_service_for_its_replies(
    sandesha: JavaPeer, tmp_path: Path, versions: holdfast.Versions, faults: Faults
) -> None:
    service = await served(sandesha, tmp_path / "log", **words(versions, polls=True, sleep=1500))
    async with LossyProxy(service.url, faults, seed=3) as proxy:
        await poll_replies(proxy.url, tmp_path / "outbox", versions, SOME)
    assert service.delivered("echo") == list(range(1, SOME + 1))


@pytest.mark.crash
@each_soap
@cell(role="source", service="slow", fault="Holdfast killed", network=LOST)
async def test_a_source_is_killed_while_it_polls_a_sandesha_service_for_replies(
    sandesha: JavaPeer, tmp_path: Path, versions: holdfast.Versions
) -> None:
    service = await served(sandesha, tmp_path / "log", **words(versions, polls=True, sleep=1500))
    async with LossyProxy(service.url, LOST, seed=2) as proxy:
        for due in (3, 8, MANY):
            with calling_process(proxy.url, tmp_path, "echo", versions, MANY, poll=True) as process:
                # Killed when the service has the next request, and its reply has yet to be fetched.
                await until(lambda due=due: len(service.delivered("echo")) >= due, PATIENCE)  # type: ignore[misc]
                if due == MANY:
                    assert await asyncio.to_thread(process.wait, PATIENCE) == 0
    assert service.delivered("echo") == written(tmp_path / "called") == list(range(1, MANY + 1))


@pytest.mark.crash
@each_soap
@cell(role="source", broker="broker", service="slow", fault="Holdfast killed", network=LOST)
async def test_a_broker_is_killed_while_it_polls_a_sandesha_service_for_replies(
    sandesha: JavaPeer, tmp_path: Path, versions: holdfast.Versions
) -> None:
    service = await served(sandesha, tmp_path / "log", **words(versions, polls=True, sleep=1500))
    async with LossyProxy(service.url, LOST, seed=2) as proxy:
        told = [f'{name} = "{value}"' for name, value in forwarder_words(versions).items()]
        broker = processes.broker(tmp_path, proxy.url, timeout="60s", more="\n".join([*told, "poll = true"]))
        try:
            await broker.start()
            async with source_to(broker.url, tmp_path / "outbox", versions) as source:
                calling = asyncio.ensure_future(exchange(source, "echo", range(1, MANY + 1)))
                for due in (3, 8):
                    await until(lambda due=due: len(service.delivered("echo")) >= due, PATIENCE)  # type: ignore[misc]
                    await broker.kill()
                    await broker.start()
                await calling
        finally:
            await broker.kill()
    assert service.delivered("echo") == list(range(1, MANY + 1))
