"""Packets between two nodes of a cluster are lost: clients see no error, and each message arrives once and in order."""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import Callable, Iterator

import pytest
from broker_cluster import NAMES, Brokers
from cluster_clients import run
from packet_loss import PacketLoss
from waiting import until

from holdfast.cluster.inspection import read_status
from holdfast.testing.ports import free_ports

Got = tuple[str, dict[str, list[int]]]
Done = Callable[[], float]

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not os.path.exists("/proc/net/tcp"), reason="only /proc shows which node has a connection"),
]


@pytest.fixture
def network(idle: Brokers) -> Iterator[PacketLoss]:
    """The network between the nodes."""
    idle.node_ports = dict(zip(NAMES, free_ports(3), strict=True))

    def group_of(name: str) -> int:
        node = idle.nodes.get(name)
        return node.process.pid if node is not None else 0

    made = PacketLoss(idle.node_ports, group_of)
    idle.environments = {name: {"HOLDFAST_NODE_URL": url} for name, url in made.urls.items()}
    yield made
    made.close()


def states(brokers: Brokers) -> dict[str, str]:
    """What ``holdfast cluster status`` shows of the nodes."""
    return {one.name: one.state for one in read_status(brokers.store).nodes}


def troubles(brokers: Brokers, of: str) -> set[str]:
    """What it shows of the partitions of a node."""
    return {
        f"{one.state} {one.why}".partition(":")[0] for one in read_status(brokers.store).partitions if one.owner == of
    }


@pytest.mark.parametrize(
    "ways", [[("a", "b")], [("b", "a")], [("a", "b"), ("b", "a")]], ids=["requests", "answers", "both"]
)
async def test_clients_do_not_notice_packets_that_are_lost_between_two_nodes(
    idle: Brokers, network: PacketLoss, got: Got, ways: list[tuple[str, str]]
) -> None:
    await idle.start(*NAMES)
    await until(lambda: len(set(idle.owners().values())) == 3)

    async def trouble(done: Done) -> None:
        before = idle.owners()
        network.lose(*ways)
        # A connection carries requests one way and answers the other, so neither node can ask the other.
        await until(lambda: states(idle) == {"a": "unreachable", "b": "unreachable", "c": "live"})
        assert troubles(idle, "a") == {"unreachable from node b"}
        assert troubles(idle, "b") == {"unreachable from node a"}
        assert troubles(idle, "c") == {"serving "}
        assert network.held
        seen = done()
        await until(lambda: done() >= min(seen + 40, math.inf))
        assert idle.owners() == before  # the third node reaches both, so both keep their partitions
        network.lose()
        await until(lambda: set(states(idle).values()) == {"live"})

    await run(idle, got[1], trouble, 200)
    assert [await asyncio.to_thread(idle.nodes[name].end) for name in NAMES] == [0, 0, 0]
