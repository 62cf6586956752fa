"""The disk of one node of a cluster on Kafka is full: the node reports why, nothing is lost, and it recovers.

On PostgreSQL, a node stores no messages on its own disk.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from broker_cluster import NAMES, PARTITIONS, Brokers, Got
from cluster_clients import Progress, run
from fault_times import note_times

from holdfast.cluster.operating.engines import engine_of
from holdfast.exceptions import StoreAway

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.crash,
    pytest.mark.timeout(900),
    pytest.mark.parametrize("engine", ["kafka"], indirect=True),
    pytest.mark.skipif(not hasattr(os, "fork"), reason="workers are forked"),
]

DISK_MEGABYTES = 1500
"""Enough for the reserves of all partitions."""


def reasons(store: str) -> list[str]:
    """Why partitions are not served, as ``holdfast cluster status`` shows it."""
    with suppress(StoreAway):  # a command gives up after seconds, whatever the machine has to do
        return [one.why for one in engine_of(store).read_status(store).partitions]
    return []


async def test_clients_do_not_notice_that_the_disk_of_a_node_is_full(
    idle: Brokers, got: Got, mount_disk: Callable[[int], Path]
) -> None:
    disk = mount_disk(DISK_MEGABYTES)
    cache = idle.store.partition("cache=")[2].partition("&")[0]
    idle.stores["a"] = idle.store.replace(cache, str(disk / "NODE"))
    await idle.start(*NAMES)
    await idle.wait_for_owners(lambda owners: len(owners) == PARTITIONS and {*owners.values()} == {*NAMES})

    async def trouble(progress: Progress) -> None:
        await progress.each(3)
        fill = disk / "fill"
        with fill.open("wb") as file:
            free = os.statvfs(disk)
            os.posix_fallocate(file.fileno(), 0, free.f_bavail * free.f_frsize)
        # The log in Kafka has every message, so the node serves what it has. But it can take nothing over.
        await asyncio.to_thread(idle.nodes["b"].kill)
        while not any("No space left" in why for why in await asyncio.to_thread(reasons, idle.store)):
            await asyncio.sleep(0.05)
        progress.longest()
        fill.unlink()
        await progress.each(5)
        note_times("kafka", "the disk of a node full, from when it has space", [progress.longest()])

    await run(idle, got[1], trouble)
    assert [await asyncio.to_thread(idle.nodes[name].end) for name in "ac"] == [0, 0]
