"""A cluster is upgraded node by node under load, from an older commit, and versions that do not fit are refused."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from broker_cluster import NAMES, Brokers, Got
from cluster_clients import Callers, Progress, run
from interop_cells import cell

ROOT = Path(__file__).parents[2]
OLDER = "54ea4260"
"""The last commit whose nodes on Kafka start a worker only at its turn to claim a partition."""

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.crash,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not hasattr(os, "fork"), reason="workers are forked"),
]


@pytest.fixture
def older(tmp_path: Path) -> dict[str, str]:
    """The environment of a node that runs the older commit."""
    packed = subprocess.run(["git", "archive", OLDER, "src"], cwd=ROOT, capture_output=True)
    if packed.returncode:
        pytest.skip(f"the clone has no commit {OLDER}: git fetch --unshallow")
    tree = tmp_path / "older"
    tree.mkdir()
    subprocess.run(["tar", "-x"], cwd=tree, input=packed.stdout, check=True)
    environment = {"PYTHONPATH": str(tree / "src")}
    where = [sys.executable, "-c", "import holdfast; print(holdfast.__file__)"]
    found = subprocess.run(where, env=os.environ | environment, capture_output=True, text=True, check=True).stdout
    assert found.startswith(str(tree))
    return environment


@cell(fault="brokers upgraded from an older version one by one, and back")
async def test_clients_do_not_notice_an_upgrade_node_by_node(
    idle: Brokers, got: Got, older: dict[str, str], callers: Callers
) -> None:
    idle.environments = dict.fromkeys(NAMES, older)
    await idle.start(*NAMES)

    async def trouble(progress: Progress) -> None:
        # Forward, and back again: each pair of versions has each role.
        for environment in ({}, older):
            for name in NAMES:
                assert await asyncio.to_thread(idle.nodes[name].end) == 0
                idle.environments[name] = environment
                await idle.start(name)
                await progress.each(3)
                await idle.wait_for_owners(lambda owners, name=name: name in owners.values())

    await run(idle, got[1], trouble, callers)
    assert [await asyncio.to_thread(idle.nodes[name].end) for name in NAMES] == [0, 0, 0]


@pytest.mark.parametrize("engine", ["postgresql"], indirect=True)
async def test_an_older_node_is_refused_by_a_newer_cluster_and_changes_nothing(
    idle: Brokers, servers: Callable[[str], Any], older: dict[str, str]
) -> None:
    server = servers("postgresql")
    await idle.start("a")
    await idle.wait_for_owners(lambda owners: set(owners.values()) == {"a"})
    space = idle.store.rpartition("=")[2]
    rows = f"SELECT partition, owner, epoch FROM holdfast_ownership WHERE space = '{space}' ORDER BY 1"
    before = server.sql(rows)
    server.sql(f"UPDATE holdfast_cluster SET format = 2 WHERE space = '{space}'")  # as a newer version will
    idle.environments["b"] = older
    with pytest.raises(AssertionError, match="have version 2, but this version of Holdfast writes 1"):
        await idle.start("b")
    assert await asyncio.to_thread(idle.nodes["b"].process.wait) == 1
    assert server.sql(rows) == before
