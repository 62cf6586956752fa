"""Mistakes of a cluster's nodes, which ``cluster_world`` must notice."""

from __future__ import annotations

from cluster_engines import Table
from cluster_world import Request, Store, Worker, World
from lease_world import Process

from holdfast.core.messages import CreateSequence
from holdfast.core.records import Batch, Snapshot
from holdfast.endpoint.workers.passage import Move, Passage


class ArmsTimersBeforeItsClaim(Worker):
    """It starts with what it finds, and claims then."""

    def begin(self) -> None:
        if self.client.is_shared:
            self.read_to_end()
        super().begin()

    def read_to_end(self) -> None:
        if not hasattr(self.node, "protocol"):
            self.start()
            self.go_on()

    def opened(self) -> None:
        self.is_open = True
        self.go_on()
        if self.node.store.pending:
            self.batch_taken(self.node)


class _OwnRepliesOnly(Store):
    def load(self) -> Snapshot:
        snapshot = super().load()
        for state in snapshot.sequences.values():
            if "replies" in state:
                state["replies"] = []
        return snapshot


class KeepsRepliesToItself(Worker):
    """Which reply answers which request is known to the owner that made the reply, and to no later one."""

    def start(self) -> None:
        self.node.store = _OwnRepliesOnly(self.client)
        self.node.start()


class _Elsewhere(Passage):
    def failed(self, error: str, now: float, *, is_lost: bool) -> Move:
        self.owner = None
        return super().failed(error, now, is_lost=is_lost)


class RepeatsACreateElsewhere(World):
    """A CreateSequence that its owner does not answer goes to any other worker."""

    def pass_on(self, process: Process, owner: int | None, request: Request) -> None:
        self.passage = _Elsewhere if isinstance(request.envelope.control, CreateSequence) else Passage
        super().pass_on(process, owner, request)


class CommitsWithoutAFence(Table):
    """It takes every batch, whoever sends it."""

    def commit(self, epoch: int, serial: int, batch: Batch) -> bool:
        return super().commit(self.epoch, self.serial, batch)


class SpeaksWithoutTrust(Worker):
    """It accepts and sends when another node may have its partition."""

    may_act = True  # type: ignore[assignment]
