"""Journals of simulated endpoints: what the shipped collector tells of the shipped core, under loss and crashes."""

from __future__ import annotations

import io
import random
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from holdfast.core.commit import GroupCommit
from holdfast.core.events import Effect
from holdfast.core.protocol import RMProtocol
from holdfast.core.records import Batch, Snapshot
from holdfast.endpoint.journal_events import Collector
from holdfast.endpoint.journal_files import HEADER, frames_of, rows_of
from holdfast.testing.node import Node
from holdfast.testing.simulator import Simulator

Row = dict[str, Any]


class Teller:
    """Tells a collector; a copy tells nobody."""

    def __init__(self, collector: Collector | None = None) -> None:
        self.collector = collector

    def __deepcopy__(self, _memo: Any) -> Teller:
        return Teller()


class ToldCommit(GroupCommit):
    """Remembers the batches that are on their way."""

    pending: deque[Batch]

    def take(self) -> Batch:
        batch = super().take()
        self.pending.append(batch)
        return batch


class ToldProtocol(RMProtocol):
    """The core as the engine has it, which tells the collector what is durable and what leaves."""

    teller = Teller()

    def listen(self, collector: Collector) -> None:
        self.teller = Teller(collector)
        self.commit.__class__ = ToldCommit
        self.commit.pending = deque()  # type: ignore[attr-defined]

    def batch_durable(self, now: float) -> None:
        if isinstance(self.commit, ToldCommit):
            batch = self.commit.pending.popleft()
            if self.teller.collector is not None:
                self.teller.collector.durable(batch)
        super().batch_durable(now)

    def take_effects(self) -> list[Effect]:
        effects = super().take_effects()
        if self.teller.collector is not None:
            for effect in effects:
                self.teller.collector.told(effect)
        return effects

    def recover(self, snapshot: Snapshot, now: float) -> None:
        super().recover(snapshot, now)
        if self.teller.collector is not None:
            self.teller.collector.started("simulated")
            self.teller.collector.recover(snapshot)
            self.teller.collector.stand(self.inbound.queues.values())


@dataclass
class Telling:
    """The journals of one simulated world: node index -> its runs, each with its rows."""

    runs: dict[int, list[list[Row]]] = field(default_factory=dict)
    collectors: dict[int, Collector] = field(default_factory=dict)

    def build(self, *args: Any, **options: Any) -> RMProtocol:
        node = getattr(args[2], "__self__", None)
        protocol = ToldProtocol(*args, **options)
        # What the simulator makes besides, to compare it, reads elsewhere.
        if isinstance(node, Node) and getattr(args[1], "__self__", None) is node.store:
            self._end(node.index)
            collector = Collector(lambda: node.now, node.setup.destination_policy)
            self.collectors[node.index] = collector
            collector.run = len(self.runs.get(node.index, ())) + 1
            protocol.listen(collector)
        return protocol

    def _end(self, index: int) -> None:
        collector = self.collectors.pop(index, None)
        if collector is not None:
            runs = self.runs.setdefault(index, [])
            data, _ = frames_of(f"{index}-{len(runs)}", None, 0, collector.take())
            runs.append(rows_of(io.BytesIO(HEADER + data)))

    def end(self) -> None:
        for index in list(self.collectors):
            self._end(index)


def histories(seed: int, *, loses: bool = True) -> list[list[Row]]:
    """The journal of each endpoint of a simulated world; ``loses``: each run but the last loses some of its end."""
    telling = Telling()
    Simulator(seed, build=telling.build).run()
    telling.end()
    chance = random.Random(seed)
    found = []
    for runs in telling.runs.values():
        rows: list[Row] = []
        for run in runs:
            kept = len(run) - (chance.randrange(12) if loses and run is not runs[-1] else 0)
            rows += run[: max(kept, 1)]
        found.append(rows)
    return found


def apart(journals: list[list[Row]]) -> list[Row]:
    """Several journals as one, as if each were a worker's: nothing of the one is like anything of another."""
    rows = []
    for worker, journal in enumerate(journals):
        for row in journal:
            named = {name: f"{worker}/{row[name]}" for name in ("run", "sequence", "key") if row[name] is not None}
            rows.append(row | named | {"worker": worker})
    return rows
