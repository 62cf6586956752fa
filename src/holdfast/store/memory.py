"""A store in memory: for tests, simulations, and endpoints without durable state. Uses no files.

It keeps encoded bytes, so that loaded or read objects are never shared with committed ones.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import TypeVar

from holdfast.core.records import Batch, Snapshot, State
from holdfast.exceptions import StoreFailed, clause
from holdfast.outages import Trouble
from holdfast.store.base import Reads
from holdfast.store.contents import MemoryContents
from holdfast.store.plan import BATCH_REMEDY, Bounds, Plan, Where
from holdfast.store.records import decode_state, encode_record, encode_state, release_record
from holdfast.store.references import ReferenceChanges, References
from holdfast.store.staged import fill

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")
_Part = TypeVar("_Part")


@dataclass(slots=True)
class _Encoded:
    """A batch's values as bytes; None for deleted ones."""

    queues: dict[str, bytes]
    records: list[tuple[Where, int, bytes]]
    held: list[tuple[str, int, bytes | None]]
    sequences: dict[str, bytes | None]
    cursors: list[tuple[Where, str, bytes | None]]


class MemoryStore(Reads):
    """A :class:`~holdfast.store.base.Store` that keeps everything until it is garbage collected.

    ``load`` may be called again, even after ``close``: a test or a simulation restarts an endpoint that way.
    """

    reads_at_once = True

    def __init__(self) -> None:
        self.trouble: Trouble | None = None
        self.contents = MemoryContents()
        self._references = References()
        self.contents.is_named = self._references.is_named
        self._queues: dict[str, bytes] = {}
        self._bounds: dict[Where, Bounds] = {}
        self._records: dict[Where, dict[int, bytes]] = {}
        self._held: dict[str, dict[int, bytes]] = {}
        self._sequences: dict[str, bytes] = {}
        self._cursors: dict[Where, dict[str, bytes]] = {}
        self._homes: dict[str, Where] = {}
        self._failure: BaseException | None = None

    def load(self) -> Snapshot:
        return Snapshot(
            queues={name: decode_state(data) for name, data in self._queues.items()},
            bounds=dict(self._bounds),
            sequences={name: decode_state(data) for name, data in self._sequences.items()},
            cursors={
                (*where, name): decode_state(data)
                for where, cursors in self._cursors.items()
                for name, data in cursors.items()
            },
            held={sequence: sorted(numbers) for sequence, numbers in self._held.items()},
            homes=dict(self._homes),
        )

    def commit(self, batch: Batch) -> None:
        if self._failure is not None:
            raise StoreFailed(
                "The store failed earlier and accepts no further batches.", remedy="Start again."
            ) from self._failure
        try:
            plan = Plan(self, batch)
            references = ReferenceChanges(self._references, plan)
            # Encoded before anything changes: an error must leave the whole batch out.
            encoded = self._encode(plan)
        except BaseException as error:
            self._failure = error
            # KeyboardInterrupt and its like are no errors of the store.
            if isinstance(error, StoreFailed) or not isinstance(error, Exception):
                raise
            raise StoreFailed(
                f"A batch cannot be stored: {clause(error)}. Nothing of it was written.", remedy=BATCH_REMEDY
            ) from error
        self._apply(plan, encoded)
        if references:
            self.contents.no_longer_named(references.take_over(self._references))

    def read_encoded(
        self, queue: str, partition: int, start: int, end: int, max_bytes: int = 1 << 20
    ) -> list[tuple[int, bytes]]:
        where = (queue, partition)
        while True:
            first, end_there = self._bounds.get(where, (0, 0))
            records = self._records.get(where, {})
            found: list[tuple[int, bytes]] = []
            size = 0
            for offset in range(max(start, first), min(end, end_there)):
                data = records.get(offset)
                if data is None:
                    break  # deleted since the bounds were read: read them again
                found.append((offset, data))
                size += len(data)
                if size >= max_bytes:
                    return found
            else:
                return found

    def close(self) -> None:
        """Do nothing; the content stays."""

    def bounds_of(self, where: Where) -> Bounds | None:
        return self._bounds.get(where)

    def held_of(self, sequence: str) -> Collection[int]:
        return self._held.get(sequence, ())

    def cursors_of(self, where: Where) -> Collection[str]:
        return self._cursors.get(where, ())

    def home_of(self, sequence: str) -> Where | None:
        return self._homes.get(sequence)

    def _encode(self, plan: Plan) -> _Encoded:
        batch = plan.batch
        records = [
            ((queue, partition), offset, encode_record(record)) for queue, partition, offset, record in batch.appends
        ]
        for run in batch.runs:
            where = (run.queue, run.partition)
            records += [(where, offset, data) for offset, data in enumerate(fill(run), run.offset)]
        for move in plan.moves:
            if move.record is not None:
                data = encode_record(replace(move.record, released_at=move.now))
            else:
                data = release_record(self._held[move.sequence][move.number], move.now)
            records.append((move.where, move.offset, data))
        return _Encoded(
            {name: encode_state(state) for name, state in batch.queues.items()},
            records,
            [
                (sequence, number, None if record is None else encode_record(record))
                for sequence, numbers in plan.held.items()
                for number, record in numbers.items()
            ],
            {name: _encode_or_none(state) for name, state in batch.sequences.items()},
            [
                ((queue, partition), name, _encode_or_none(state))
                for (queue, partition, name), state in plan.cursors.items()
            ],
        )

    def _apply(self, plan: Plan, encoded: _Encoded) -> None:
        """Apply a plan; no step can fail.

        The store adds records before the bounds include them, and removes records after the bounds exclude them,
        because other threads may read meanwhile.
        """
        self._queues.update(encoded.queues)
        for where, offset, data in encoded.records:
            self._records.setdefault(where, {})[offset] = data
        for sequence, number, held in encoded.held:
            _put_into(self._held, sequence, number, held)
        for identifier, state in encoded.sequences.items():
            _put(self._sequences, identifier, state)
        for where, name, state in encoded.cursors:
            _put_into(self._cursors, where, name, state)
        for identifier, home in plan.homes.items():
            _put(self._homes, identifier, home)
        # After the records: a reader in another thread believes the bounds.
        for where, bounds in plan.bounds.items():
            _put(self._bounds, where, bounds)
        for where, (before, first) in plan.trims.items():
            for offset in range(before, first):
                del self._records[where][offset]
        for where in plan.deletes:
            self._records.pop(where, None)


def _encode_or_none(state: State | None) -> bytes | None:
    return None if state is None else encode_state(state)


def _put(values: dict[_Key, _Value], key: _Key, value: _Value | None) -> None:
    if value is None:
        values.pop(key, None)
    else:
        values[key] = value


def _put_into(parts: dict[_Part, dict[_Key, _Value]], part: _Part, key: _Key, value: _Value | None) -> None:
    values = parts.setdefault(part, {})
    _put(values, key, value)
    if not values:
        del parts[part]
