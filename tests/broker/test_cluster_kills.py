"""Nodes of a cluster are killed at named points, again and again: each message arrives once and in order."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path

import kill_points
import pytest
from broker_cluster import NAMES, Brokers, Got, store_on
from cluster_clients import Callers, Progress, run
from fault_times import note_times
from interop_cells import CLUSTERS, cell
from peer_callers import PEER_MARKS

from holdfast.cluster.operating.engines import verifier_of

pytestmark = [
    pytest.mark.crash,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(not hasattr(os, "fork"), reason="workers are forked"),
]

PARTITIONS = 3
"""One for each node: the fewer processes a node has, the sooner it has started again."""
AT_TAKEOVER = ("claimed", "replay")
"""Points that only a process reaches that takes a partition over."""


class Kills:
    """Kills nodes at points, and starts them again.

    Args:
        brokers: The nodes.
        directory: Where they run.
        progress: What the clients do.

    Attributes:
        count: How many nodes were killed.
        waits: Point -> the longest wait of a client after each kill, in seconds.
    """

    def __init__(self, brokers: Brokers, directory: Path, progress: Progress) -> None:
        self._brokers, self._directory, self._progress = brokers, directory, progress
        self._draw = random.Random(1)
        self.count = 0
        self.waits: dict[str, list[float]] = {}

    async def at(self, point: str) -> None:
        """Kill a node at a point, let each client continue, and start the node again."""
        self._progress.longest()
        if point == "idle":
            await self._progress.rest()
            await asyncio.to_thread(self._brokers.nodes[self._draw.choice(NAMES)].kill)
            self._progress.go_on()
        else:
            await self._reach(point)
        await self._progress.each(2)
        self.waits.setdefault(point, []).append(self._progress.longest())
        dead = self._dead()
        self.count += len(dead)
        await self._brokers.start(*dead)

    async def _reach(self, point: str) -> None:
        file = self._directory / kill_points.FILE
        if point in AT_TAKEOVER:  # of a node without a partition, nobody would take one over
            await self._brokers.wait_for_owners(lambda owners: set(owners.values()) == set(NAMES))
        new = file.with_suffix(".new")
        new.write_text(point)
        new.rename(file)
        if point in AT_TAKEOVER:
            await asyncio.to_thread(self._brokers.nodes[self._draw.choice(NAMES)].kill)
        # A node that has just got its share may reach the point first, and be the one that is killed.
        await self._progress.until(lambda: not file.exists() and self._dead())

    def _dead(self) -> list[str]:
        return [name for name in NAMES if self._brokers.nodes[name].process.poll() is not None]


@pytest.fixture
def names() -> int:
    return 1


KILLED = cell(fault="brokers killed at each point of a commit and a takeover")


async def kill_nodes(
    brokers: Brokers, got: Got, callers: Callers, directory: Path, points: Sequence[str], kills: int
) -> None:
    """Kill so many nodes, at each point in turn."""
    brokers.program = (kill_points.__file__,)
    await brokers.start(*NAMES)
    engine = brokers.store.partition(":")[0]

    async def trouble(progress: Progress) -> None:
        killed = Kills(brokers, directory, progress)
        for point in cycle(points):
            if killed.count >= kills:
                break
            await killed.at(point)
        for point, waits in killed.waits.items():
            note_times(engine, f"killed: {point}", waits)

    await run(brokers, got[1], trouble, callers)
    assert [await asyncio.to_thread(brokers.nodes[name].end) for name in NAMES] == [0, 0, 0]
    found = await asyncio.to_thread(verifier_of(brokers.store), brokers.store, None, reads_all=True)
    assert found.problems == ()


# Seven: each point once, of which two need a second kill. Each costs three seconds of processor time.
@KILLED
@cell(setup=CLUSTERS["postgresql"])
@pytest.mark.parametrize(
    ("callers", "kills"),
    [
        pytest.param("holdfast", 7, marks=cell(role="none")),
        pytest.param("holdfast", 120, marks=[pytest.mark.nightly, cell(role="none")]),
        pytest.param("peers", 7, marks=PEER_MARKS),
    ],
    indirect=["callers"],
)
async def test_on_postgresql_clients_do_not_notice_kills_at_any_point(
    request: pytest.FixtureRequest, got: Got, callers: Callers, tmp_path: Path, kills: int
) -> None:
    made = Brokers(tmp_path, store_on("postgresql", request), got[0], partitions=PARTITIONS)
    try:
        await kill_nodes(made, got, callers, tmp_path, ("idle", *kill_points.POINTS), kills)
    finally:
        made.clean()


@pytest.mark.nightly
@KILLED
@cell(setup=CLUSTERS["kafka"])
@pytest.mark.parametrize(
    ("callers", "kills"),
    [
        pytest.param("holdfast", int(os.environ.get("KILLS", 80)), marks=cell(role="none")),
        pytest.param("peers", 8, marks=PEER_MARKS),
    ],
    indirect=["callers"],
)
async def test_on_kafka_clients_do_not_notice_kills_at_any_point(
    request: pytest.FixtureRequest, got: Got, callers: Callers, tmp_path: Path, kills: int
) -> None:
    store = store_on("kafka", request, kafkas=3, partitions=PARTITIONS)
    made = Brokers(tmp_path, store, got[0], partitions=PARTITIONS)
    try:
        await kill_nodes(made, got, callers, tmp_path, ("idle", *kill_points.ON_KAFKA), kills)
    finally:
        made.clean()
