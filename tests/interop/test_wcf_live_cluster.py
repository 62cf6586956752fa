"""Microsoft's WCF client before a cluster of three brokers, one of which is killed or paused.

``WCF_CLIENT`` names the program; without it all of this is skipped.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from balancer import Balancer
from broker_cluster import NAMES, Brokers
from databases import Server
from interop_cells import cell
from waiting import until
from wcf.grids import each_version
from wcf.live_client import LiveWCFClient, needs_the_client, versions_of
from wcf.outage import Outage
from wcf.wire import Profile

pytestmark = [
    pytest.mark.interop,
    pytest.mark.wcf,
    pytest.mark.crash,
    pytest.mark.nightly,
    pytest.mark.timeout(600),
    needs_the_client,
    cell(peer="WCF", role="destination", broker="broker"),
    pytest.mark.skipif(not hasattr(os, "fork"), reason="workers are forked"),
]


@each_version
@cell(pattern="mixed", setup="a cluster, six clients", fault="one of three brokers killed or paused")
@pytest.mark.parametrize("trouble", ["killed", "paused"])
async def test_wcf_clients_of_a_cluster_do_not_notice_a_broker_that_is_killed_or_paused(
    profile: Profile, trouble: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, servers: Callable[[str], Server]
) -> None:
    outage = Outage(tmp_path, monkeypatch)
    brokers = Brokers(tmp_path, servers("postgresql").new_url(), outage.service.url)
    async with outage.running(outage.service):
        try:
            await brokers.start(*NAMES)
            async with Balancer(list(brokers.urls.values()), repeats=True) as balancer:
                clients = [LiveWCFClient(balancer.url, key=f"k{n}", **versions_of(profile)) for n in range(6)]
                calls = [asyncio.create_task(one.run("open; echo 1..20; notify 21..30; close")) for one in clients]
                await until(lambda: len(outage.handled()) >= 6 * 4)
                node, lost = brokers.nodes["a"], brokers.served("a")
                node.signal(signal.SIGKILL if trouble == "killed" else signal.SIGSTOP)
                await until(lambda: lost <= brokers.served("b") | brokers.served("c"))
                if trouble == "paused":
                    node.signal(signal.SIGCONT)
                await asyncio.gather(*calls)
                await until(lambda: len(outage.handled()) >= 6 * 30)
        finally:
            brokers.clean()
    assert [one.failed for one in clients] == [[]] * 6
    assert outage.ledger.numbers == {f"k{n}": list(range(1, 31)) for n in range(6)}
