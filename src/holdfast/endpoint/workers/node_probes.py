"""NodeProbes: find out which nodes of the cluster cannot be reached from here.

The gateway of each node asks the others again and again. A node counts as unreachable after a few attempts in a row,
and as reachable after one. What that means for partitions is decided elsewhere (``cluster.membership``).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final

from holdfast.endpoint.failures import reason_of
from holdfast.endpoint.logs import log
from holdfast.endpoint.workers.placement import Placements
from holdfast.endpoint.workers.worker_client import WorkerClient

INTERVAL: Final = 1.0
"""Seconds between two rounds."""
ATTEMPTS: Final = 3
LONGEST_REASON: Final = 300
"""Characters of the reason that is reported."""


class NodeProbes:
    """The probes of one node.

    Args:
        tell: Called at each change, with all unreachable nodes: name -> why.
    """

    def __init__(
        self, workers: WorkerClient, placements: Placements, tell: Callable[[Mapping[str, str]], None]
    ) -> None:
        self._workers = workers
        self._placements = placements
        self._tell = tell
        self._failures: Counter[tuple[str, str]] = Counter()
        self._unreachable: dict[str, str] = {}
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            try:
                await self.look()
            except Exception as error:  # without probes, this node would keep what it thinks of the others for ever
                log.error("cluster.probes_failed", exception=reason_of(error))
            await asyncio.sleep(INTERVAL)

    async def look(self) -> None:
        """Ask every node once, and tell what has changed."""
        nodes = list(self._placements.now.nodes.items())
        answers = await asyncio.gather(*(self._workers.probe(url) for _, url in nodes))
        whys = dict(zip(nodes, answers, strict=True))
        # By name and URL: the failures at an old URL say nothing about a new one.
        self._failures = Counter({node: self._failures[node] + 1 for node, why in whys.items() if why})
        before = self._unreachable
        self._unreachable = {
            name: before.get(name, why[:LONGEST_REASON])
            for (name, url), why in whys.items()
            if self._failures[name, url] >= ATTEMPTS
        }
        for name, url in nodes:
            if name in self._unreachable and name not in before:
                log.warning("cluster.node_unreachable", node=name, url=url, error=self._unreachable[name])
            elif name in before and name not in self._unreachable:
                log.info("cluster.node_reachable", node=name, url=url)
        if self._unreachable != before:
            self._tell(self._unreachable)
