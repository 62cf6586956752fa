"""A large cluster in virtual time: the memberships of ``lease_world``, the Sequences in its partitions, and storms.

The memberships are the real ones. How long a worker takes to start and to end, and an exchange with the database, is
given. ``bench/cluster_capacity.py`` runs 50 nodes; a test runs fewer.
"""

from __future__ import annotations

import zlib
from collections import Counter
from dataclasses import dataclass

from lease_world import Process, World

from holdfast.cluster.rows import Request


@dataclass(frozen=True)
class Storm:
    """What one event did to the cluster.

    Attributes:
        name: The event.
        seconds: Until a worker served each partition, and shares were equal.
        longest: Longest time for which a partition was not served.
        moved: Partitions with another owner afterwards.
        most_starts: Workers that one node started at most.
        unserved: Share of the Sequences that some time had no worker.
    """

    name: str
    seconds: float
    longest: float
    moved: int
    most_starts: int
    unserved: float


class LargeCluster(World):
    """A world with many nodes.

    Args:
        seed: Decides the times.
        nodes, partitions: How many.
        sequences: How many Sequences there are.
        start: Seconds that a worker takes to serve.
    """

    def __init__(self, seed: int, nodes: int, partitions: int, sequences: int, *, start: float = 0.5) -> None:
        super().__init__(seed, nodes=nodes, partitions=partitions, lease=6.0)
        self.losses = 0.0
        self.start_seconds = start
        self.requests: Counter[str] = Counter()
        self.starts: Counter[str] = Counter()
        self.serving: dict[int, Process] = {}
        self.down_since = dict.fromkeys(range(partitions), 0.0)
        self.longest = [0.0] * partitions
        # As a node places a CreateSequence: by its MessageID.
        self.sequences = Counter(zlib.crc32(f"urn:uuid:{seed}-{one}".encode()) % partitions for one in range(sequences))
        self.checked_at = -1.0

    def check(self) -> None:
        """Check the promises once in a virtual second, since each check looks at every partition at every node."""
        if self.now >= self.checked_at + 1.0:
            self.checked_at = self.now
            super().check()

    def send(self, process: Process, request: Request) -> None:
        self.requests[type(request).__name__] += 1
        super().send(process, request)

    def tick(self, process: Process) -> None:
        before = set(process.workers)
        super().tick(process)
        for partition in process.workers.keys() - before:
            self.starts[process.name] += 1
            self.at(self.start_seconds, self._serves(process, partition), process)
        for partition, is_ending in process.workers.items():
            if is_ending and self.serving.get(partition) is process:
                self._down(partition)

    def _serves(self, process: Process, partition: int) -> object:
        def serve() -> None:
            if process.workers.get(partition) is False:
                self.serving[partition] = process
                self.longest[partition] = max(self.longest[partition], self.now - self.down_since[partition])

        return serve

    def _down(self, partition: int) -> None:
        del self.serving[partition]
        self.down_since[partition] = self.now

    def kill(self, process: Process) -> None:
        """Kill all processes of a node."""
        process.is_dead = True
        self.database.close(process.session)
        for partition, one in list(self.serving.items()):
            if one is process:
                self._down(partition)

    def running(self) -> list[Process]:
        return [one for one in self.processes if not one.is_dead]

    def is_settled(self) -> bool:
        """Whether every partition is served, and the numbers of any two nodes differ by one at most."""
        owned = Counter(one.name for one in self.serving.values())
        counts = [owned[one.name] for one in self.running()]
        return len(self.serving) == self.partitions and max(counts) - min(counts) <= 1

    def sequences_of_nodes(self) -> list[int]:
        """How many Sequences each node has, most first."""
        found: Counter[str] = Counter()
        for partition, process in self.serving.items():
            found[process.name] += self.sequences[partition]
        return sorted((found[one.name] for one in self.running()), reverse=True)

    def storm(self, name: str, kills: int = 0, joins: int = 0, lost: float = 600.0) -> Storm:
        """Kill nodes and start nodes at once, and wait until the cluster is settled again.

        Raises:
            TimeoutError: It is not for ``lost`` seconds.
        """
        before = {partition: one.name for partition, one in self.serving.items()}
        begun, self.starts = self.now, Counter()
        self.longest = [0.0] * self.partitions
        down: set[int] = {one for one in range(self.partitions) if one not in self.serving}
        for process in self.random.sample(self.running(), kills):
            self.kill(process)
        present = {one.name for one in self.running()}
        absent = [name for name in self.names if name not in present]
        for one in absent[:joins]:
            self.start(one)
        self.run_until(self.now + 0.001)
        self.run_until(begun + lost, self.is_settled)
        if not self.is_settled():
            raise TimeoutError(f"{name}: {len(self.serving)} of {self.partitions} partitions served")
        down |= {one for one in range(self.partitions) if self.longest[one]}
        moved = [one for one, process in self.serving.items() if before.get(one) != process.name]
        unserved = sum(self.sequences[one] for one in down) / max(1, self.sequences.total())
        starts = max(self.starts.values(), default=0)
        return Storm(name, self.now - begun, max(self.longest), len(moved), starts, unserved)
