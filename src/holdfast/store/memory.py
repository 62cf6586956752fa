"""A store in memory: for tests, simulations, and endpoints that may forget. Knows nothing of files.

It keeps encoded bytes, so what is loaded or read never shares an object with what was committed.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.core.records import Batch, Record, Snapshot
from holdfast.exceptions import StoreFailed
from holdfast.store.records import decode_record, decode_state, encode_record, encode_state, release_record

_Partition = tuple[str, int]


class MemoryStore:
    """A :class:`~holdfast.store.base.Store` that keeps everything until it is garbage collected.

    ``load`` may be called again, also after ``close``: that is how a test or a simulation restarts an endpoint.
    """

    reads_at_once = True

    def __init__(self) -> None:
        self.trouble = ""
        self._queues: dict[str, bytes] = {}
        self._first: dict[_Partition, int] = {}
        self._records: dict[_Partition, list[bytes]] = {}
        self._held: dict[str, dict[int, bytes]] = {}
        self._sequences: dict[str, bytes] = {}
        self._cursors: dict[tuple[str, int, str], bytes] = {}
        self._failure: BaseException | None = None

    def load(self) -> Snapshot:
        """See :meth:`Store.load`."""
        return Snapshot(
            queues={name: decode_state(data) for name, data in self._queues.items()},
            bounds={where: (first, first + len(self._records[where])) for where, first in self._first.items()},
            sequences={name: decode_state(data) for name, data in self._sequences.items()},
            cursors={key: decode_state(data) for key, data in self._cursors.items()},
            held={sequence: sorted(numbers) for sequence, numbers in self._held.items() if numbers},
        )

    def commit(self, batch: Batch) -> None:
        """See :meth:`Store.commit`.

        Raises:
            StoreFailed: The batch breaks a promise of its maker (a gap in the offsets, a release of what is not
                held); nothing of it was applied, and no further batch is taken.
        """
        if self._failure is not None:
            raise StoreFailed(
                "The store failed earlier and takes no further batch.", remedy="Start again."
            ) from self._failure
        try:
            held, added = self._check(batch)
            states = {name: encode_state(state) for name, state in batch.sequences.items() if state is not None}
            cursors = {key: encode_state(state) for key, state in batch.cursors.items() if state is not None}
            queues = {name: encode_state(state) for name, state in batch.queues.items()}
        except Exception as error:
            self._failure = error
            if isinstance(error, StoreFailed):
                raise
            raise StoreFailed(f"A batch cannot be stored: {error}", remedy="Start again.") from error
        self._queues.update(queues)
        self._apply_records(batch, held, added)
        for name, state in batch.sequences.items():
            if state is None:
                self._sequences.pop(name, None)
                self._held.pop(name, None)
            else:
                self._sequences[name] = states[name]
        for key, state in batch.cursors.items():
            if state is None:
                self._cursors.pop(key, None)
            else:
                self._cursors[key] = cursors[key]
        self._apply_removals(batch)

    def commit_group(self, batches: Sequence[Batch]) -> None:
        """Several batches one after the other."""
        for batch in batches:
            self.commit(batch)

    def read(
        self, queue: str, partition: int, start: int, end: int, max_bytes: int = 1 << 20
    ) -> list[tuple[int, Record]]:
        """See :meth:`Store.read`."""
        encoded = self.read_encoded(queue, partition, start, end, max_bytes)
        return [(offset, decode_record(data)) for offset, data in encoded]

    def read_encoded(
        self, queue: str, partition: int, start: int, end: int, max_bytes: int = 1 << 20
    ) -> list[tuple[int, bytes]]:
        """See :meth:`Store.read_encoded`."""
        found: list[tuple[int, bytes]] = []
        first = self._first.get((queue, partition))
        if first is None:
            return found
        start = max(start, first)
        size = 0
        for offset, data in enumerate(self._records[queue, partition][start - first : max(end - first, 0)], start):
            found.append((offset, data))
            size += len(data)
            if size >= max_bytes:
                break
        return found

    def close(self) -> None:
        """Nothing to give up; the content stays."""

    def _check(self, batch: Batch) -> tuple[dict[tuple[str, int], bytes], dict[_Partition, dict[int, bytes]]]:
        """What the batch holds and what it adds to each partition, encoded; raises before anything is changed."""
        held = {(sequence, message): encode_record(record) for sequence, message, record in batch.holds}
        added: dict[_Partition, dict[int, bytes]] = {}
        placed = 0
        for queue, partition, offset, record in batch.appends:
            added.setdefault((queue, partition), {})[offset] = encode_record(record)
            placed += 1
        released: set[tuple[str, int]] = set()
        for sequence, message, queue, partition, offset, now in batch.releases:
            data = held.get((sequence, message)) or self._held.get(sequence, {}).get(message)
            if data is None or (sequence, message) in released:
                raise StoreFailed(f"Message {message} of {sequence} is to be released but is not held.")
            released.add((sequence, message))
            added.setdefault((queue, partition), {})[offset] = release_record(data, now)
            placed += 1
        for where, records in added.items():
            end = self._first.get(where, 0) + len(self._records.get(where, ()))
            if sorted(records) != list(range(end, end + len(records))):
                raise StoreFailed(f"Offsets {sorted(records)} of {where} do not follow its end, {end}.")
        if placed != sum(map(len, added.values())):
            raise StoreFailed("Two records of one batch have the same offset.")
        return held, added

    def _apply_records(
        self, batch: Batch, held: dict[tuple[str, int], bytes], added: dict[_Partition, dict[int, bytes]]
    ) -> None:
        for where, records in added.items():
            self._first.setdefault(where, 0)
            self._records.setdefault(where, []).extend(records[offset] for offset in sorted(records))
        for (sequence, message), data in held.items():
            self._held.setdefault(sequence, {})[message] = data
        for sequence, message, *_ in batch.releases:
            del self._held[sequence][message]
        for sequence, message in batch.drops:
            self._held.get(sequence, {}).pop(message, None)

    def _apply_removals(self, batch: Batch) -> None:
        for where, offset in batch.trims.items():
            if where in self._first:
                count = min(max(offset - self._first[where], 0), len(self._records[where]))
                del self._records[where][:count]
                self._first[where] += count
        for where in batch.deletes:
            self._first.pop(where, None)
            self._records.pop(where, None)
            for key in [key for key in self._cursors if key[:2] == where]:
                del self._cursors[key]
