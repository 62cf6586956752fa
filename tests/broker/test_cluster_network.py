"""Packets between two nodes of a cluster are lost: clients see no error, and each message arrives once and in order."""

from __future__ import annotations

import asyncio

import pytest
from broker_cluster import NAMES, PARTITIONS, Brokers, Got, needs_proc
from cluster_clients import Callers, Progress, run
from fault_times import note_times
from interop_cells import cell
from packet_loss import PacketLoss

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.timeout(900),
    needs_proc,
]


async def wait_for_states(brokers: Brokers, **states: str) -> None:
    """Wait until ``holdfast cluster status`` shows these states of the nodes."""
    await brokers.wait_for_status(lambda status: {one.name: one.state for one in status.nodes} == states)


async def troubles(brokers: Brokers, of: str) -> set[str]:
    """What it shows of the partitions of a node."""
    status = await brokers.wait_for_status(lambda _: True)
    return {f"{one.state} {one.why}".partition(":")[0] for one in status.partitions if one.owner == of}


@pytest.mark.parametrize(
    "ways", [[("a", "b")], [("b", "a")], [("a", "b"), ("b", "a")]], ids=["requests", "answers", "both"]
)
@cell(fault="packets between two of three brokers lost")
async def test_clients_do_not_notice_packets_that_are_lost_between_two_nodes(
    idle: Brokers, network: PacketLoss, got: Got, ways: list[tuple[str, str]], callers: Callers
) -> None:
    await idle.start(*NAMES)
    await idle.wait_for_owners(lambda owners: len(owners) == PARTITIONS and {*owners.values()} == {*NAMES})

    async def trouble(progress: Progress) -> None:
        before = await asyncio.to_thread(idle.owners)
        network.lose(*ways)
        # A connection carries requests one way and answers the other, so neither node can ask the other.
        await wait_for_states(idle, a="unreachable", b="unreachable", c="live")
        assert await troubles(idle, "a") == {"unreachable from node b"}
        assert await troubles(idle, "b") == {"unreachable from node a"}
        assert await troubles(idle, "c") == {"serving "}
        assert network.held
        await progress.each(5)
        # The third node reaches both, so both keep their partitions.
        assert await asyncio.to_thread(idle.owners) == before
        network.lose()
        await wait_for_states(idle, a="live", b="live", c="live")

    await run(idle, got[1], trouble, callers)
    assert [await asyncio.to_thread(idle.nodes[name].end) for name in NAMES] == [0, 0, 0]


@cell(fault="a broker cut off from both others")
async def test_clients_do_not_notice_that_a_node_is_cut_off_from_both_others(
    idle: Brokers, network: PacketLoss, got: Got, callers: Callers
) -> None:
    """It still reaches the engine, so it keeps its lease, but no other node could pass requests on to it."""
    await idle.start(*NAMES)
    await idle.wait_for_owners(lambda owners: len(owners) == PARTITIONS and {*owners.values()} == {*NAMES})

    async def trouble(progress: Progress) -> None:
        progress.longest()
        network.lose(*((one, other) for one in NAMES for other in NAMES if "a" in (one, other) and one != other))
        await idle.wait_for_owners(lambda owners: len(owners) == PARTITIONS and {*owners.values()} == {"b", "c"})
        # The balancer does not ask /readyz, so it still gives a third of the requests to the node, which holds them.
        await progress.each(1)
        note_times(idle.store.partition(":")[0], "a node cut off from all others", [progress.longest()])
        network.lose()
        await idle.wait_for_owners(lambda owners: {*owners.values()} == {*NAMES})
        await progress.each(3)

    await run(idle, got[1], trouble, callers)
    assert [await asyncio.to_thread(idle.nodes[name].end) for name in NAMES] == [0, 0, 0]
