"""The disk of one node of a cluster on Kafka is full: other nodes serve its partitions until it has room again.

On PostgreSQL, a node stores no messages on its own disk.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from broker_cluster import NAMES, PARTITIONS, Brokers, Got
from cluster_clients import Callers, Progress, run
from fault_times import note_times
from interop_cells import cell

from holdfast.cluster.operating.status import ClusterStatus

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.crash,
    pytest.mark.timeout(900),
    pytest.mark.parametrize("engine", ["kafka"], indirect=True),
    pytest.mark.skipif(not hasattr(os, "fork"), reason="workers are forked"),
]

DISK_MEGABYTES = 300


def warned(status: ClusterStatus, disk: Path) -> bool:
    """Whether the status names the disk of node a, which has no room, and its remedy."""
    return any(
        f"MB are free for its cache at {disk}/a. Free space there." in one
        for one in status.warnings
        if one.startswith("Node a leaves its partitions to others")
    )


ONLY_WORKERS_KNOW = (
    "cache_disk.CACHE_BYTES, cache_disk._ROOM_BYTES, free_space.CACHE_BYTES = 1 << 20, 2 << 20, 60 << 20"
)
"""Workers that need more space than their agent looks for, as after a large backlog."""
PROGRAM = """
from holdfast.cluster.group import cache_disk
from holdfast.store.rocksdb import free_space
cache_disk.LONGEST_PAUSE = 5.0
{}
from holdfast.cli.main import main
main()
"""
"""A broker that waits only seconds until it deletes caches for their space."""


@pytest.mark.parametrize("left", [0, 40], ids=["nothing", "too-little-for-workers"])
@cell(fault="the disk of a broker's cache full")
async def test_clients_do_not_notice_that_the_disk_of_a_node_is_full(
    idle: Brokers, got: Got, mount_disk: Callable[[int], Path], left: int, callers: Callers
) -> None:
    disk = mount_disk(DISK_MEGABYTES)
    cache = idle.store.partition("cache=")[2].partition("&")[0]
    idle.stores["a"] = idle.store.replace(cache, str(disk / "NODE"))
    idle.program = ("-c", PROGRAM.format(ONLY_WORKERS_KNOW if left else ""))
    await idle.start(*NAMES)
    await idle.wait_for_owners(lambda owners: len(owners) == PARTITIONS and {*owners.values()} == {*NAMES})

    async def trouble(progress: Progress) -> None:
        await progress.each(3)
        assert list(disk.glob("a/partition-*/db"))
        fill = disk / "fill"
        with fill.open("wb") as file:
            free = os.statvfs(disk)
            os.posix_fallocate(file.fileno(), 0, free.f_bavail * free.f_frsize - (left << 20))
        await idle.wait_for_status(lambda status: warned(status, disk))
        # Another node ends: this one takes nothing over, although a third node then has all partitions.
        await asyncio.to_thread(idle.nodes["b"].kill)
        await idle.wait_for_status(
            lambda status: {(one.owner, one.state) for one in status.partitions} == {("c", "serving")}
        )
        await progress.each(3)
        note_times("kafka", f"the disk of a node full, {left} MB left", [progress.longest()])
        while list(disk.glob("a/partition-*/db")):
            await asyncio.sleep(0.1)
        fill.unlink()
        await idle.wait_for_owners(lambda owners: len(owners) == PARTITIONS and {*owners.values()} == {"a", "c"})
        await progress.each(5)

    await run(idle, got[1], trouble, callers)
    assert [await asyncio.to_thread(idle.nodes[name].end) for name in "ac"] == [0, 0]
    assert "Traceback" not in idle.nodes["a"].errors.read_text()
