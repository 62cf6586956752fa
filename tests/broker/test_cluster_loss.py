"""A cluster loses requests, answers and packets on every way while its nodes are killed: clients see no error."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from broker_cluster import NAMES, Brokers, Got, needs_proc
from cluster_clients import Callers, Progress, run
from fault_times import note_times
from interop_cells import cell
from packet_loss import PacketLoss

from holdfast.testing.proxy import Faults, LossyProxy

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.crash,
    pytest.mark.timeout(1800),
    needs_proc,
]

BAD = Faults(lose_request=0.05, lose_response=0.05, double=0.02, delay=0.1)


@pytest.fixture
async def behind(got: Got) -> AsyncIterator[LossyProxy]:
    """The network between the nodes and the service."""
    async with LossyProxy(got[0], BAD, seed=2) as proxy:
        yield proxy


@pytest.fixture
def service(behind: LossyProxy) -> str:
    return behind.url


@cell(fault="brokers killed in turn, with loss between them and before the service")
async def test_clients_do_not_notice_loss_on_every_way_while_nodes_are_killed(
    idle: Brokers, network: PacketLoss, behind: LossyProxy, got: Got, callers: Callers
) -> None:
    """Other stacks call through a lossy network in ``tests/interop``, each through one that it survives."""
    await idle.start(*NAMES)
    network.share = 0.02

    async def trouble(progress: Progress) -> None:
        waits = []
        for name in NAMES:
            await progress.each(5)
            progress.longest()
            await asyncio.to_thread(idle.nodes[name].kill)
            await progress.each(5)
            waits.append(progress.longest())
            await idle.start(name)
        note_times(idle.store.partition(":")[0], "killed, with loss on every way", waits)

    await run(idle, got[1], trouble, callers, faults=None if callers.repeats else BAD)
    assert network.repeated
    assert behind.counts.requests_lost
    assert behind.counts.responses_lost
    assert behind.counts.doubled
