"""A cluster in virtual time whose database is restored from a copy, and what its nodes remember of their batches.

Owners commit batches all the time. Each node has a real memory in a file, which it asks at each new connection, as
``cluster/lease_database.py`` does.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from fake_leases import Database, Session
from lease_world import Process, World

from holdfast.cluster.memory import NodeMemory
from holdfast.cluster.rows import Answer, Leave, Look, OwnershipRow, Request

IDENTITY = "the cluster"


@dataclass(frozen=True, slots=True)
class Copy:
    """A copy of the database."""

    batches: dict[int, tuple[int, int]]
    ownership: list[OwnershipRow]
    joins: int


@dataclass
class Memories:
    """The memories of the running processes, by the name of the node."""

    directory: Path
    kind: type[NodeMemory] = NodeMemory
    of: dict[str, NodeMemory] = field(default_factory=dict)
    restored: set[str] = field(default_factory=set)
    """Nodes that were started with --restored, and have not told the database yet."""


class RestorableDatabase(Database):
    """The rows, the last batch of each partition, and what a node lost when the database went back."""

    def __init__(self, partitions: int, lease: float) -> None:
        super().__init__(partitions, lease)
        self.batches = dict.fromkeys(range(partitions), (0, 0))
        self.went_back = ""
        self.unconfirmed = 0
        """How many batches of each partition a new connection sees that the standby does not have."""
        self.memories: Memories
        self._checked: set[Session] = set()

    def run(self, session: Session, request: Request) -> Answer | None:
        if self.is_up and session.is_open:
            if session not in self._checked:
                self.check(session.name)
                self._checked.add(session)
            memory = self.memories.of[session.name]
            if isinstance(request, Look):
                self.require_newest()
                if request.renews:
                    memory.see(IDENTITY, self.batches, self.now)
            elif isinstance(request, Leave):
                memory.keep(self.batches)
        return super().run(session, request)

    def has_asked(self, session: Session) -> bool:
        """Whether a session is open and was used."""
        return self.is_up and session.is_open and session in self._checked

    def check(self, name: str) -> None:
        """What a node finds out at a new connection."""
        memory = self.memories.of[name]
        visible = {one: (epoch, batch + self.unconfirmed) for one, (epoch, batch) in self.batches.items()}
        if name in self.memories.restored:
            self.memories.restored.discard(name)
            self.went_back = ""
        elif lost := memory.lost(visible):
            self.record(f"{name}: {lost[0]}")
        self.require_newest()
        memory.meet(IDENTITY, visible, self.now)

    def record(self, lost: str) -> None:
        self.went_back = lost

    def require_newest(self) -> None:
        if self.went_back:
            raise ConnectionError  # the node ends: here, it never gets an answer


class RestoredWorld(World):
    """Three nodes that commit batches.

    Args:
        seed: Decides everything that happens.
        directory: Of the memories.
        memory: What the nodes remember with.
        database: What they share.
    """

    database: RestorableDatabase

    def __init__(
        self,
        seed: int,
        directory: Path,
        *,
        memory: type[NodeMemory] = NodeMemory,
        database: type[RestorableDatabase] = RestorableDatabase,
    ) -> None:
        super().__init__(seed, database=database)
        self.losses = 0.0
        self.memories = self.database.memories = Memories(directory, memory)
        self.own: dict[str, dict[int, tuple[int, int]]] = {name: {} for name in self.names}
        self.at(0.0, self.commit)
        self.keep_started()
        self.calm()

    def start(self, name: str, *, is_restored: bool = False) -> Process:
        self.own[name] = {}
        memory = self.memories.kind(str(self.memories.directory), name, lambda: self.own[name])
        if is_restored:
            memory.forget_batches()
            self.memories.restored.add(name)
        self.memories.of[name] = memory
        return super().start(name)

    def commit(self) -> None:
        """Each owner commits a batch now and then. Some are visible for a moment, but not durable everywhere."""
        for process in self.processes:
            for partition in process.workers:
                row = self.database.ownership[partition]
                is_owner = self.database.is_mine(process.name, row.incarnation) and row.owner == process.name
                if is_owner and process.may_act(partition, self.now) and self.wires.random() < 0.3:
                    self.append(process, partition, row.epoch)
        self.at(0.05, self.commit)

    def append(self, process: Process, partition: int, epoch: int) -> None:
        self.database.batches[partition] = batch = (epoch, self.database.batches[partition][1] + 1)
        self.own[process.name][partition] = batch

    def fail_over(self) -> None:
        """The server is replaced by its standby, which lacks a batch of each partition that was not acknowledged. The
        owners commit it again, and the next standby lacks it, too."""
        before = dict(self.database.batches)
        self.database.batches = {one: (epoch, batch + 1) for one, (epoch, batch) in before.items()}
        for process in self.processes:  # a renewal sees them
            if self.database.has_asked(process.session):
                self.memories.of[process.name].see(IDENTITY, self.database.batches, self.now)
        self.database.batches = before
        self.restart()
        self.database.unconfirmed = 1
        self.at(self.operator.uniform(0, 6), self.fail_over_again)

    def fail_over_again(self) -> None:
        self.database.unconfirmed = 0
        self.restart()

    def copy(self) -> Copy:
        return Copy(dict(self.database.batches), list(self.database.ownership), self.database.joins)

    def end_all(self) -> None:
        """Every node gets SIGTERM, and leaves."""
        for process in self.processes:
            if not process.is_dead:
                process.membership.end(self.now + process.offset)
                self.at(0.0, lambda: None, process)
        self.run_until(self.now + 60.0, lambda: all(one.is_dead for one in self.processes))
        assert all(one.is_dead for one in self.processes)

    def restore(self, copy: Copy, *restored: str) -> None:
        """Restore a copy, and start all nodes: these with --restored."""
        self.database.batches, self.database.joins = dict(copy.batches), copy.joins
        self.database.ownership, self.database.nodes = list(copy.ownership), {}
        self.database.went_back = ""
        self.epochs, self.incarnations = [0] * self.partitions, type(self.incarnations)()
        for name in self.operator.sample(self.names, len(self.names)):
            self.run_until(self.now + self.operator.uniform(0, 2))
            self.start(name, is_restored=name in restored)

    def acting(self) -> dict[str, int]:
        """Nodes that serve partitions, with how many."""
        return {name: count for name, count in self.served().items() if count}
