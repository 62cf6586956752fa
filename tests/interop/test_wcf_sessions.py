"""Microsoft's own WCF client through a broker: each of its sessions is a session at the service.

``WCF_CLIENT`` names the program; without it all of this is skipped.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from pathlib import Path

import pytest
from interop_cells import cell
from waiting import until
from wcf.destination import contract_app, running_destination
from wcf.live_client import LiveWCFClient, needs_the_client

import holdfast
from holdfast.broker.broker import Broker
from holdfast.broker.config import AdminConfig, BrokerConfig, ForwarderConfig, ListenConfig

pytestmark = [
    pytest.mark.interop,
    pytest.mark.wcf,
    pytest.mark.timeout(900),
    needs_the_client,
    cell(peer="WCF", role="destination", broker="broker", addressing="2005/08", soap="1.2"),
]


@pytest.mark.parametrize("rm", ["10", "11"])
@cell(pattern="mixed", setup="eight sessions at once", service="slow")
async def test_each_client_session_is_one_at_the_service_and_a_slow_call_delays_none(rm: str, tmp_path: Path) -> None:
    came: dict[str, list[tuple[str, int]]] = defaultdict(list)
    is_called, may_answer = asyncio.Event(), asyncio.Event()

    async def handled(message: holdfast.Message) -> None:
        key = str(message.body.findtext("{*}key"))
        came[message.sequence].append((key, int(message.body.findtext("{*}number") or 0)))
        if key == "slow":
            is_called.set()
            await may_answer.wait()

    app = contract_app(
        ":memory:", handled, assurance="exactly-once in-order", handling=holdfast.HandlingPolicy(concurrency=64)
    )
    async with running_destination(app) as url:
        config = BrokerConfig(
            store=str(tmp_path / "broker"),
            listen=ListenConfig(port=0),
            admin=AdminConfig(port=0),
            forwarders=(ForwarderConfig("service", "inbox", url),),
        )
        broker = Broker(config)
        await broker.service.start()
        try:
            slow = LiveWCFClient(broker.service.url, key="slow", rm=rm)
            waiting = asyncio.create_task(slow.run("open; notify 1; echo 2; close"))
            await asyncio.wait_for(is_called.wait(), 240)
            quick = LiveWCFClient(broker.service.url, key="quick", sessions="7", rm=rm)
            await quick.run("open; notify 1..3; echo 4..8; notify 9; echo 10; close")
            assert not waiting.done()
            may_answer.set()
            await waiting
            assert slow.failed == quick.failed == []
            keys = ["quick", *(f"quick-{number}" for number in range(1, 7))]
            expected = [[(key, number) for number in range(1, 11)] for key in keys]
            assert sorted(came.values()) == [*expected, [("slow", 1), ("slow", 2)]]
            sequences = app.running.engine.protocol.inbound.destinations.values()
            await until(lambda: all(one.is_over for one in sequences))
        finally:
            await broker.service.close(0.5)
