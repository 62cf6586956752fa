"""Microsoft's WCF client, with its default timeouts, while a service behind a broker is slow, away or restarted.

``test_wcf_live_grid.py`` has the kills and the slow service without a broker. ``WCF_CLIENT`` names the program; without
it all of this is skipped.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from interop_cells import cell
from waiting import until
from wcf.grids import each_version
from wcf.live_client import LiveWCFClient, needs_the_client, versions_of
from wcf.outage import Outage
from wcf.scripted_server import ScriptedWCFServer
from wcf.wire import Profile

from holdfast import Assurance, SourcePolicy
from holdfast.broker.broker import Broker
from holdfast.broker.config import AdminConfig, BrokerConfig, ForwarderConfig, ListenConfig
from holdfast.core.policy import ForwardingPolicy
from holdfast.testing.ports import free_ports

pytestmark = [
    pytest.mark.interop,
    pytest.mark.wcf,
    pytest.mark.nightly,
    pytest.mark.timeout(900),
    needs_the_client,
    cell(peer="WCF", role="destination", broker="broker"),
]


@each_version
@cell(pattern="request/reply", setup="six clients", fault="the service away for 40 s")
async def test_a_service_behind_a_broker_that_is_away_for_40_s_is_unseen(
    profile: Profile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outage = Outage(tmp_path, monkeypatch)
    async with outage.running(outage.service, outage.broker):
        clients = [LiveWCFClient(outage.broker.url, key=f"k{n}", **versions_of(profile)) for n in range(6)]
        calls = [asyncio.create_task(one.run("open; echo 1..8; sleep 3; echo 9..12; close")) for one in clients]
        await until(lambda: len(outage.handled()) >= 6 * 8)
        await outage.service.kill()
        await asyncio.sleep(40)
        await outage.service.start()
        await asyncio.gather(*calls)
    assert [one.failed for one in clients] == [[]] * 6


@each_version
@cell(pattern="request/reply", fault="the service away for longer than the client waits")
async def test_a_call_of_an_absent_service_ends_before_its_client_and_never_runs(
    profile: Profile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outage = Outage(tmp_path, monkeypatch)
    async with outage.running(outage.service, outage.broker):
        client = LiveWCFClient(outage.broker.url, **versions_of(profile))
        calling = asyncio.create_task(client.run("open; echo 1; sleep 5; echo 2; sleep 15; echo 3; close"))
        await until(lambda: outage.handled() == [1])
        await asyncio.sleep(2)  # its reply has left, or else that request is in doubt, and does not expire
        await outage.service.kill()
        await asyncio.sleep(62)
        await outage.service.start()
        said = await calling
    assert len(client.failed) == 1, said
    (failed,) = client.failed
    assert (failed["failed"], failed["exception"], failed["state"]) == ("echo 2", "FaultException", "Opened"), said
    assert "expired" in failed["said"] and failed["took"] < 60, failed
    assert outage.handled() == [1, 3]


@contextlib.asynccontextmanager
async def broker_before(url: str, profile: Profile, assurance: str, store: Path) -> AsyncIterator[Broker]:
    """A broker that forwards to a service of WCF, which keeps its sessions in memory."""
    policy = ForwardingPolicy(sending=SourcePolicy(assurance=Assurance.parse(assurance)))
    told = {"rm": profile.rm, "addressing": profile.addressing, "soap": profile.soap, "offer": True}
    forwarder = ForwarderConfig("service", "inbox", url, policy=policy, **told)
    listen, admin = ListenConfig(port=0), AdminConfig(port=0)
    broker = Broker(BrokerConfig(store=str(store), listen=listen, admin=admin, forwarders=(forwarder,)))
    await broker.service.start()
    try:
        yield broker
    finally:
        await broker.service.close(0.5)


@each_version
@pytest.mark.parametrize("assurance", ["exactly-once in-order", "at-least-once in-order"])
@cell(pattern="request/reply", setup="a scripted WCF service", fault="the service restarted")
async def test_a_restart_of_a_wcf_service_costs_its_clients_behind_a_broker_no_session(
    profile: Profile, assurance: str, tmp_path: Path
) -> None:
    (port,) = free_ports(1)
    first, second = (ScriptedWCFServer(profile, port=port, reply_delay=0.2) for _ in range(2))
    async with contextlib.AsyncExitStack() as running:
        async with first:
            broker = await running.enter_async_context(
                broker_before(first.url, profile, assurance, tmp_path / "broker")
            )
            client = LiveWCFClient(broker.service.url, **versions_of(profile))
            calling = asyncio.create_task(client.run("open; echo 1..20; close"))
            await until(lambda: len(first.delivered) >= 5)
        async with second:
            said = await calling
    numbers = [one.body.findtext("{*}number") for one in first.delivered + second.delivered]
    if assurance.startswith("at-least-once"):
        assert client.failed == [], said
        assert set(numbers) == {str(number) for number in range(1, 21)} and len(numbers) <= 21
    else:
        assert len(numbers) == len(set(numbers)), "a call was executed twice"
        (failed,) = client.failed
        assert (failed["exception"], failed["state"]) == ("FaultException", "Opened"), failed
        assert "InDoubt" in (failed["code"], failed["subcode"]) and "may have executed" in failed["said"], failed
    assert [line for line in said if line.get("ok") == "close"], "its session went on"


@each_version
@pytest.mark.parametrize("seconds", [1.0, 8.0, 25.0])
@cell(pattern="mixed", service="slow")
async def test_a_slow_operation_behind_a_broker_is_called_once_and_answered(
    profile: Profile, seconds: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WCF_SERVICE_SECONDS", str(seconds))
    outage = Outage(tmp_path, monkeypatch)
    async with outage.running(outage.service, outage.broker):
        client = LiveWCFClient(outage.broker.url, **versions_of(profile))
        await client.run("open; notify 1; echo 2; echo 3; notify 4; close")
        assert client.failed == []
        await until(lambda: len(outage.handled()) >= 4)
    lines = (tmp_path / "handled").read_text().splitlines()
    assert [int(line.split()[-1]) for line in lines] == [1, 2, 3, 4]
