"""Holdfast against Apache Sandesha2 (Axis2), both ways round: bad networks, slow services, either of ours killed.

The peer is built by Maven when a JDK and Maven are there and bring its jars; otherwise all of this is skipped.
MakeConnection is turned off in Sandesha2, which uses it by default for anonymous clients in RM 1.1.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from interop_cells import cell
from java_contract import (
    CLEAN,
    COUNT,
    HURRIED,
    LIVE,
    LOSS,
    PATIENCE,
    Operation,
    Shop,
    body,
    connected,
    correct_reply,
    exchange,
    served,
    source_to,
    values,
)
from java_peer import NAMESPACE, JavaPeer
from java_stacks import sandesha as words
from served_process import Served
from waiting import until
from wcf.destination import running_destination

import holdfast
from holdfast.testing.proxy import Faults, LossyProxy, Relayed

pytestmark = [*LIVE, pytest.mark.nightly, cell(peer="Sandesha2")]

RM10 = holdfast.Versions("1.0", "2005/08", "1.1")
RM11 = holdfast.Versions("1.1", "2005/08", "1.1")
TWICE = Faults(double=1.0)
SLOW = 1500
"""Milliseconds that a slow service takes, longer than the retransmission timeout of both sides."""


def each(*versions: holdfast.Versions) -> pytest.MarkDecorator:
    words = [f"rm{v.rm.value}-wsa{v.addressing.value[:4]}-soap{v.soap.value}" for v in versions]
    return pytest.mark.parametrize("versions", versions, ids=words)


every_version = each(holdfast.Versions("1.0", "2004/08", "1.1"), RM10, RM11, holdfast.Versions("1.1", "2005/08", "1.2"))
both_rm = each(RM10, RM11)
every_operation = pytest.mark.parametrize("operation", ["notify", "echo"])
every_network = pytest.mark.parametrize("faults", [CLEAN, LOSS, TWICE], ids=["clean", "loss", "twice"])
every_way_back = pytest.mark.parametrize("addressed", [False, True], ids=["anonymous", "addressed"])


async def assert_it_ends(shop: Shop) -> None:
    """Wait until the only Sequence that brought all messages is terminated."""
    await until(lambda: shop.ends() == ["terminated"], PATIENCE)
    assert shop.numbers == list(range(1, COUNT + 1))


# --- Sandesha2's client, Holdfast's Destination -------------------------------------------------------------------


@every_version
@every_operation
@every_network
@every_way_back
@cell(role="destination")
async def test_sandesha_sends_to_holdfast(
    sandesha: JavaPeer,
    tmp_path: Path,
    versions: holdfast.Versions,
    operation: Operation,
    faults: Faults,
    addressed: bool,
) -> None:
    shop = Shop(tmp_path / "inbox")
    async with running_destination(shop.app) as url, LossyProxy(url, faults, seed=3) as proxy:
        caller = await connected(sandesha, proxy.url, operation, addressed=addressed, **words(versions))
        await caller.call(1, COUNT, is_the_end=True)
        await caller.settle()
        await assert_it_ends(shop)
    assert (proxy.counts.lost > 0) == (faults is LOSS)
    assert (proxy.counts.doubled > 0) == (faults is TWICE)


@every_version
@pytest.mark.parametrize("faults", [CLEAN, LOSS], ids=["clean", "loss"])
@cell(role="destination", setup="listener", service="slow", pattern="request/reply")
async def test_a_handler_slower_than_sandeshas_timeout_answers_every_request(
    sandesha: JavaPeer, tmp_path: Path, versions: holdfast.Versions, faults: Faults
) -> None:
    """Of an addressed client. An anonymous one of Sandesha2's loses replies to requests that it repeats meanwhile."""
    shop = Shop(tmp_path / "inbox", sleep=SLOW / 1000)
    async with running_destination(shop.app) as url, LossyProxy(url, faults, seed=3) as proxy:
        caller = await connected(sandesha, proxy.url, "echo", addressed=True, **words(versions))
        await caller.call(1, COUNT, is_the_end=True)
        await caller.settle()
        await assert_it_ends(shop)


@both_rm
@every_operation
@pytest.mark.crash
@cell(role="destination", setup="listener", fault="Holdfast killed", network=Faults(lose_response=0.1))
async def test_holdfast_is_killed_under_the_load_of_a_sandesha_client_with_a_listener(
    sandesha: JavaPeer, tmp_path: Path, versions: holdfast.Versions, operation: Operation
) -> None:
    many = 20
    with Served(tmp_path) as service:
        async with LossyProxy(service.url, Faults(lose_response=0.1), seed=2) as proxy:
            caller = await connected(sandesha, proxy.url, operation, addressed=True, **words(versions))
            calling = asyncio.ensure_future(caller.call(1, many, is_the_end=True))
            await until(lambda: len(service.delivered()) >= 8, PATIENCE)
            await asyncio.to_thread(service.kill)
            await asyncio.to_thread(service.start)
            await calling
            await caller.settle()
        delivered = service.delivered()
    # Of what it had handled last before it was killed, the handler may get some once more: the messages are the same.
    assert list(dict.fromkeys(delivered)) == list(range(1, many + 1))


@both_rm
@pytest.mark.crash
@cell(role="destination", pattern="request/reply", setup="calls at once", fault="Holdfast killed")
async def test_requests_beyond_a_gap_leave_sandesha_a_connection_for_what_closes_it(
    sandesha: JavaPeer, tmp_path: Path, versions: holdfast.Versions
) -> None:
    """It has two connections. After the kill, later requests arrive before those that were cut."""
    many = 20
    with Served(tmp_path) as service:
        async with LossyProxy(service.url, CLEAN, seed=2) as proxy:
            setup = words(versions, interval=3000)
            caller = await connected(sandesha, proxy.url, "echo", addressed=False, **setup)
            await caller.call(1, 1)
            calling = asyncio.gather(*(caller.call(number, number) for number in range(2, many + 1)))
            await until(lambda: len(service.delivered()) >= 5, PATIENCE)
            await asyncio.to_thread(service.kill)
            await asyncio.to_thread(service.start)
            await calling
        assert set(service.delivered()) == set(range(1, many + 1))


# --- Holdfast's Source, Sandesha2's service -----------------------------------------------------------------------


async def send_all(url: str, store: Path, versions: holdfast.Versions, operation: Operation) -> None:
    """Send or ask all, one after the other, and end the Sequence."""
    async with source_to(url, store, versions) as source:
        await exchange(source, operation, range(1, COUNT + 1))
        await source.end(timeout=PATIENCE)


@every_version
@every_operation
@every_network
@cell(role="source")
async def test_holdfast_sends_to_sandesha(
    sandesha: JavaPeer, tmp_path: Path, versions: holdfast.Versions, operation: Operation, faults: Faults
) -> None:
    service = await served(sandesha, tmp_path / "log", **words(versions))
    async with LossyProxy(service.url, faults, seed=5) as proxy:
        await send_all(proxy.url, tmp_path / "outbox", versions, operation)
    await until(lambda: len(service.delivered(operation)) >= COUNT, PATIENCE)
    assert service.delivered(operation) == list(range(1, COUNT + 1))
    assert (proxy.counts.lost > 0) == (faults is LOSS)


@both_rm
@pytest.mark.parametrize("faults", [CLEAN, LOSS], ids=["clean", "loss"])
@pytest.mark.parametrize("ordered", [False, True], ids=["any-order", "ordered"])
@cell(role="source", service="slow", pattern="request/reply")
async def test_a_slow_service_of_sandeshas_answers_every_request_and_the_sequence_ends(
    sandesha: JavaPeer, tmp_path: Path, versions: holdfast.Versions, faults: Faults, ordered: bool
) -> None:
    service = await served(sandesha, tmp_path / "log", **words(versions, sleep=SLOW, ordered=ordered))
    async with (
        LossyProxy(service.url, faults, seed=3) as proxy,
        holdfast.Source(proxy.url, ":memory:", versions=versions, policy=HURRIED) as source,
    ):
        asked = [source.request(body("echo", n), action=f"{NAMESPACE}/echo", timeout=PATIENCE) for n in range(6)]
        assert [values(reply) for reply in await asyncio.gather(*asked)] == [correct_reply(n) for n in range(6)]
        await source.end(timeout=PATIENCE)


@both_rm
@cell(role="source", pattern="request/reply", fault="CreateSequenceResponse lost")
async def test_requests_are_answered_where_the_first_create_sequence_response_is_lost(
    sandesha: JavaPeer, tmp_path: Path, versions: holdfast.Versions
) -> None:
    """Sandesha2 grants the repeated CreateSequence without Accept: it takes an Offer once."""
    seen: list[Relayed] = []

    def relayed(one: Relayed) -> None:
        seen.append(one)
        proxy.faults = CLEAN

    service = await served(sandesha, tmp_path / "log", **words(versions))
    async with LossyProxy(service.url, Faults(lose_response=1.0), on_relayed=relayed) as proxy:
        await send_all(proxy.url, tmp_path / "outbox", versions, "echo")
    assert proxy.counts.responses_lost == 1
    assert b"CreateSequence" in seen[0].request
    assert service.delivered("echo") == list(range(1, COUNT + 1))
