"""Journals of simulated endpoints: what the shipped collector tells of the shipped core, under loss and crashes."""

from __future__ import annotations

import io
import random
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from holdfast.core.commit import GroupCommit
from holdfast.core.events import Effect
from holdfast.core.protocol import RMProtocol
from holdfast.core.protocol_settings import Environment
from holdfast.core.queues.queue import Queue
from holdfast.core.records import Batch, Snapshot
from holdfast.endpoint.journal.events import Collector
from holdfast.endpoint.journal.files import HEADER, frames_of, rows_of
from holdfast.simulation.nodes.node import Node
from holdfast.simulation.simulator import Simulator

Row = dict[str, Any]
FILES = 0.2
"""How probable it is that a file ends with a batch."""
IN_ORDER = 0.5
"""How probable it is that a run ends in order, rather than by a kill."""


class Teller:
    """Tells a collector; a copy tells nobody.

    Args:
        collector: Whom; None: nobody.
        chance: Decides when a new file begins, which says how all stands.

    Attributes:
        files: The ordinals at which files begin.
    """

    def __init__(self, collector: Collector | None = None, chance: random.Random | None = None) -> None:
        self.collector = collector
        self.files = [0]
        self.queues: Iterable[Queue] = ()
        self._chance = chance

    def may_begin_file(self, queues: Iterable[Queue]) -> None:
        if self.collector is not None and self._chance is not None and self._chance.random() < FILES:
            self.files.append(self.collector.count)
            self.collector.stand(queues)

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

    def listen(self, teller: Teller) -> None:
        self.teller = teller
        self.commit.__class__ = ToldCommit
        self.commit.pending = deque()  # type: ignore[attr-defined]

    def batch_durable(self, now: float) -> None:
        if isinstance(self.commit, ToldCommit):
            batch = self.commit.pending.popleft()
            if self.teller.collector is not None:
                self.teller.collector.durable(batch)
        super().batch_durable(now)
        self.teller.may_begin_file(self.inbound.queues.values())

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
            self.teller.queues = self.inbound.queues.values()
            self.teller.collector.stand(self.teller.queues)


@dataclass
class Telling:
    """The journals of one simulation: node -> its runs, each with the rows of its files.

    Nodes of two worlds may have one index: the second destination is a world of its own.
    """

    chance: random.Random
    runs: dict[Node, list[list[list[Row]]]] = field(default_factory=dict)
    tellers: dict[Node, Teller] = field(default_factory=dict)

    def build(self, queue: Queue, environment: Environment, **options: Any) -> RMProtocol:
        node = getattr(environment.new_identifier, "__self__", None)
        protocol = ToldProtocol(queue, environment, **options)
        # What the simulator makes besides, to compare it, reads elsewhere.
        if isinstance(node, Node) and getattr(environment.read, "__self__", None) is node.store:
            self._end(node)
            collector = Collector(lambda: node.now, node.setup.destination_policy)
            collector.run = len(self.runs.get(node, ())) + 1
            teller = self.tellers[node] = Teller(collector, self.chance)
            protocol.listen(teller)
        return protocol

    def _end(self, node: Node) -> None:
        teller = self.tellers.pop(node, None)
        if teller is not None and teller.collector is not None:
            runs = self.runs.setdefault(node, [])
            if self.chance.random() < IN_ORDER:
                teller.collector.ended(teller.queues)
            data, _ = frames_of(f"{node.index}-{len(runs)}", None, 0, teller.collector.take())
            rows = rows_of(io.BytesIO(HEADER + data))
            runs.append([rows[first:end] for first, end in pairwise([*teller.files, len(rows)])])

    def end(self) -> None:
        for node in list(self.tellers):
            self._end(node)


def files_of(seed: int) -> list[list[list[list[Row]]]]:
    """The journal of each endpoint of a simulated world: its runs, each with the rows of each of its files."""
    telling = Telling(random.Random(f"files of {seed}"))
    Simulator(seed, build=telling.build).run()
    telling.end()
    return list(telling.runs.values())


def histories(seed: int, *, loses: bool = True) -> list[list[Row]]:
    """The journal of each endpoint of a simulated world; ``loses``: each run but the last loses some of its end."""
    chance = random.Random(seed)
    found = []
    for runs in files_of(seed):
        rows: list[Row] = []
        for files in runs:
            run = [row for file in files for row in file]
            kept = len(run) - (chance.randrange(12) if loses and files is not runs[-1] else 0)
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


def worn(runs: list[list[list[Row]]], chance: random.Random) -> list[Row]:
    """What is left of a journal: the oldest files are deleted, one is damaged, and the ends of runs are lost."""
    files = [(run, index) for run in range(len(runs)) for index in range(len(runs[run]))]
    kept = files[chance.randrange(len(files)) if chance.random() < 0.5 else 0 :]
    if len(kept) > 1 and chance.random() < 0.5:
        kept.remove(chance.choice(kept))
    rows = []
    for run, index in kept:
        file = runs[run][index]
        is_last = index == len(runs[run]) - 1
        rows += file[: max(1, len(file) - chance.randrange(12))] if is_last else file
    return rows


def with_a_sink(rows: list[Row], chance: random.Random) -> list[Row]:
    """The same with rows that a sink put into a queue, beside all else: they have a Sequence that nobody created."""
    last: dict[str, Row] = {}
    for row in rows:
        if row["ordinal"] >= last.get(row["run"], row)["ordinal"]:
            last[row["run"]] = row
    added = []
    for run, row in last.items():
        number, count = chance.randrange(1, 50), chance.randrange(10)
        for more in range(count):
            usual = dict.fromkeys(row) | {"run": run, "worker": row["worker"], "at": row["at"] + more, "count": 1}
            own = {
                "ordinal": row["ordinal"] + 1 + 2 * more,
                "sequence": f"{row['worker']}/sink",
                "number": number + more,
            }
            added.append(usual | own | {"event": "staged", "queue": "staging/1", "partition": 0, "offset": more})
            own["ordinal"] += 1
            where = {"queue": "rows", "partition": 0, "offset": more, "since": row["at"], "peer": "sink/rows"}
            added.append(usual | own | where | {"event": "delivered"})
    return rows + added


PLANTED = 10_000
"""A message number that no simulated Sequence reaches."""


def borders(runs: list[list[list[Row]]]) -> list[tuple[str, int, int, str]]:
    """Where a violation can hide: the kind of border ("rotation", "restart" after a kill, or "stopped", a restart in
    order), the run and the file before it, and a Sequence that something was acknowledged of in that run and that
    stands behind the border, too."""
    found = []
    places = [(number, index) for number, run in enumerate(runs) for index in range(len(run))]
    for (number, index), (following, behind) in pairwise(places):
        said = {row["sequence"] for file in runs[number] for row in file if row["event"] == "acknowledged"}
        known = {row["sequence"] for file in runs[number][: index + 1] for row in file if is_known_by(row)}
        stands = {row["sequence"] for row in runs[following][behind] if row["event"] == "stands" and not row["key"]}
        is_in_order = runs[number][index][-1]["event"] == "stopped"
        kind = "rotation" if following == number else "stopped" if is_in_order else "restart"
        found += [(kind, number, index, sequence) for sequence in sorted(said & known & stands)]
    return found


def is_known_by(row: Row) -> bool:
    return row["event"] in ("created", "stands") and not row["key"] and row["sequence"] is not None


def with_one_never_delivered(
    runs: list[list[list[Row]]], border: tuple[str, int, int, str], *, said_behind: bool
) -> list[list[list[Row]]]:
    """The same, of a destination that accepts a message and stores nothing of it. It acknowledges it, and each list of
    what stands has it from then on.

    Args:
        runs: The journal.
        border: Of :func:`borders`: it is accepted in the file before it.
        said_behind: Whether it is acknowledged in the file behind the border, rather than before it.
    """
    kind, number, index, sequence = border
    planted = [[[*file] for file in run] for run in runs]
    behind = (number, index + 1) if kind == "rotation" else (number + 1, 0)
    for at, run in enumerate(planted):
        for one, file in enumerate(run):
            told, ending = _before_its_end(file)
            if (at, one) > (number, index):
                _let_stand(sequence, told)
            if (at, one) == (behind if said_behind else (number, index)):
                usual = dict.fromkeys(told[-1]) | {name: told[-1][name] for name in ("run", "worker", "at")}
                more = {"event": "acknowledged", "sequence": sequence, "number": PLANTED, "count": 1}
                told.append(usual | more)
            if (at, one) >= (number, index):
                _let_stand(sequence, ending)
            file[:] = told + ending
        ordinal = run[0][0]["ordinal"]
        for file in run:
            for place, row in enumerate(file):
                file[place] = row | {"ordinal": ordinal}
                ordinal += 1
    return planted


def _before_its_end(file: list[Row]) -> tuple[list[Row], list[Row]]:
    """The rows of a file up to the list of what stands with which its run ends in order, and that list."""
    end = len(file)
    if file[-1]["event"] == "stopped":
        end -= 1
        while file[end - 1]["event"] in ("stands", "queue stands", "handled stands"):
            end -= 1
            if file[end]["event"] == "queue stands" and file[end - 1]["event"] != "queue stands":
                break  # such a list begins with the queues
    return file[:end], file[end:]


def _let_stand(sequence: str, listed: list[Row]) -> None:
    stands = [row for row in listed if row["event"] == "stands" and row["sequence"] == sequence]
    accepted = [row for row in stands if row["detail"] != "held"]
    if accepted:
        listed.insert(listed.index(accepted[-1]) + 1, accepted[-1] | {"number": PLANTED, "count": 1})
