"""What a store is to do with batches, as simply as can be said: what holdfast.core.records.Batch promises."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any

from holdfast.core.records import Batch, Record, Snapshot, State
from holdfast.store.staged import appended

Where = tuple[str, int]


class RuleBroken(Exception):
    """A batch says what cannot be."""


@dataclass
class Content:
    queues: dict[str, State] = field(default_factory=dict)
    records: dict[Where, dict[int, Record]] = field(default_factory=dict)
    ends: dict[Where, int] = field(default_factory=dict)
    held: dict[tuple[str, int], Record] = field(default_factory=dict)
    sequences: dict[str, State] = field(default_factory=dict)
    cursors: dict[tuple[str, int, str], State] = field(default_factory=dict)
    homes: dict[str, Where] = field(default_factory=dict)


class Model:
    """A store that copies all it has for every batch."""

    def __init__(self) -> None:
        self.content = Content()

    def commit(self, batch: Batch) -> None:
        changed = deepcopy(self.content)
        _apply(deepcopy(batch), changed)
        self.content = changed

    def load(self) -> Snapshot:
        content = deepcopy(self.content)
        held: dict[str, list[int]] = {}
        for sequence, number in sorted(content.held):
            held.setdefault(sequence, []).append(number)
        bounds = {where: (min(content.records[where], default=end), end) for where, end in content.ends.items()}
        return Snapshot(content.queues, bounds, content.sequences, content.cursors, held, content.homes)

    def read(self, queue: str, partition: int, start: int, end: int) -> list[tuple[int, Record]]:
        records = self.content.records.get((queue, partition), {})
        return [(offset, record) for offset, record in sorted(records.items()) if start <= offset < end]


def _apply(batch: Batch, content: Content) -> None:
    content.queues.update(batch.queues)
    placed: dict[Where, list[int]] = {}

    def place(where: Where, offset: int, record: Record) -> None:
        if where[1] < 0:
            raise RuleBroken("a partition below 0")
        placed.setdefault(where, []).append(offset)
        content.records.setdefault(where, {})[offset] = record

    for queue, partition, offset, record in appended(batch):
        place((queue, partition), offset, record)
    for sequence, number, record in batch.holds:
        if number < 0:
            raise RuleBroken("a number below 0")
        content.held[sequence, number] = record
    released: dict[tuple[str, int], Record] = {}
    if len({release[:3] for release in batch.releases}) < len(batch.releases):
        raise RuleBroken("released twice into one queue")
    for sequence, number, queue, partition, offset, now in batch.releases:
        if (sequence, number) in content.held:
            released[sequence, number] = content.held.pop((sequence, number))
        if (sequence, number) not in released:
            raise RuleBroken("what is released is not held")
        place((queue, partition), offset, replace(released[sequence, number], released_at=now))
    for where, offsets in placed.items():
        end = content.ends.get(where, 0)
        if sorted(offsets) != list(range(end, end + len(offsets))):
            raise RuleBroken("offsets that do not follow the end")
        content.ends[where] = end + len(offsets)
    for key in batch.drops:
        content.held.pop(key, None)
    content.homes.update(batch.homes)
    for sequence, state in batch.sequences.items():
        _keep(content.sequences, sequence, state)
        if state is None:
            content.homes.pop(sequence, None)
            content.held = {key: record for key, record in content.held.items() if key[0] != sequence}
    for cursor, state in batch.cursors.items():
        _keep(content.cursors, cursor, state)
    for where, first in batch.trims.items():
        kept = content.records.get(where, {})
        content.records[where] = {offset: record for offset, record in kept.items() if offset >= first}
    for where in batch.deletes:
        content.records.pop(where, None)
        content.ends.pop(where, None)
        content.cursors = {key: state for key, state in content.cursors.items() if key[:2] != where}


def _keep(states: dict[Any, State], key: Any, state: State | None) -> None:
    if state is None:
        states.pop(key, None)
    else:
        states[key] = state
