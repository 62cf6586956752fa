"""Background work of an open store, in a separate thread: free space, write notes, keep a reserve.

The thread starts with its first work; small stores never have one. Compacting a trimmed range returns its space to the
disk. The thread compacts once a share of the tables' records was trimmed, and in pieces, so that the cost stays in
proportion to the freed space, and closing waits for one piece at most.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable

from rocksdict import CompactOptions, Rdict

from holdfast.store.content import Partition
from holdfast.store.processors import run_anywhere
from holdfast.store.records import PREFIX_END, RECORD, number
from holdfast.store.rocksdb.free_space import FreeSpace, Table
from holdfast.store.rocksdb.reserve import Reserve

KEEP_BYTES = 4 << 20
"""Bytes written between two checks of the store."""
COMPACT_BYTES = 32 << 20
"""Minimum of trimmed and swept bytes for a compaction while the store is open."""
COMPACT_SHARE = 8
"""Compaction starts once the tables hold at most this many times the trimmed bytes."""
MOST_RANGES = 64
"""Maximum number of ranges that are compacted singly after a start; further ranges are joined."""
LOOK_AGAIN_SECONDS = 10.0
"""Seconds between checks of free space while it is short or the reserve is in use, and before a failed compaction is
retried."""

Range = tuple[bytes, bytes]


class Keeper:
    """Maintains one store that is open for writing.

    Args:
        space: The free space on the store's disk.
        note: Writes the note of the last durable batch; returns False if the store no longer owns its directory.
        count: Returns the number of records.
    """

    def __init__(
        self,
        engine: Rdict,
        reserve: Reserve,
        space: FreeSpace,
        note: Callable[[], bool],
        count: Callable[[], int],
    ) -> None:
        self._engine = engine
        self._reserve = reserve
        self._space = space
        self._note = note
        self._count = count
        self._wanted = threading.Event()
        self._thread: threading.Thread | None = None
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._ranges: list[Range] = []
        self.trimmed = 0
        """Approximate number of deleted bytes that are still on the disk."""

    def add(self, ranges: Iterable[Range], trimmed: int) -> None:
        """Record a deletion of about this many bytes in these key ranges."""
        with self._lock:
            self._ranges += ranges
            self.trimmed += trimmed

    def wake(self) -> None:
        self._wanted.set()
        if self._thread is None and not self._closing.is_set():
            self._thread = threading.Thread(target=self._run, name="holdfast-keeper", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Finish the piece in progress, then end the thread."""
        self._closing.set()
        self._wanted.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        run_anywhere()  # a commit may have started it
        while not self._closing.is_set():
            tables = self._space.look()
            is_in_place = self._note()
            is_done = self._give_back(tables)
            if is_in_place and not self._closing.is_set():
                was_in_use = self._reserve.is_in_use
                self._reserve.fill(self._space.needed)
                if was_in_use and not self._reserve.is_in_use:
                    self._space.look()
            looks_again = self._space.is_low or not is_done
            self._wanted.wait(LOOK_AGAIN_SECONDS if looks_again else None)
            # Cleared after the wait and before the look: a wake during the work is not lost.
            self._wanted.clear()

    def _give_back(self, tables: list[Table]) -> bool:
        """Compact the trimmed ranges if that is worthwhile; return False if it is impossible now."""
        with self._lock:
            ranges, trimmed = list(self._ranges), self.trimmed  # the list may grow during the compaction
        # If space is low, every byte counts; otherwise small amounts do not justify a compaction.
        least = 0 if self._space.is_low else COMPACT_BYTES
        if trimmed <= least:
            return True
        # A compaction also rewrites the remaining records, so wait until enough of them are trimmed.
        if least and trimmed < sum(table["size"] for table in tables) // COMPACT_SHARE:
            return True
        if not self._fits(tables):
            return False
        for begin, end in _joined(ranges):
            for piece in _pieces(tables, begin, end):
                if self._closing.is_set():
                    return True
                _compact(self._engine, *piece)
        # The engine does not report whether it compacted, so check that the upper tables are gone.
        left = {table["name"] for table in self._engine.live_files()}
        if any(table["name"] in left for table in tables if not table["level"] and _touches(table, ranges)):
            return False
        with self._lock:
            del self._ranges[: len(ranges)]
            self.trimmed -= trimmed
        return True

    def _fits(self, tables: list[Table]) -> bool:
        """Whether there is space for the records that remain.

        The engine writes them before it deletes its inputs, and stops if the disk is full.
        """
        # Doubled, as records differ in size, and the new tables exist next to the old ones.
        share = self._count() / max(sum(table["num_entries"] for table in tables), 1)
        return self._space.fits(2 * share * sum(table["size"] for table in tables))


def gaps_between(partitions: Iterable[Partition[bytes]]) -> list[Range]:
    """Return the ranges that may hold deleted records: before, between and after the stored records."""
    bounds = sorted((one.records + number(one.first), one.records + number(one.end)) for one in partitions)
    step = -(-len(bounds) // MOST_RANGES) or 1
    begins = [RECORD, *(end for _, end in bounds[step - 1 :: step])]
    ends = [*(first for first, _ in bounds[step - 1 :: step]), RECORD + PREFIX_END]
    return [(begin, end) for begin, end in zip(begins, ends, strict=True) if begin < end]


def _joined(ranges: list[Range]) -> list[Range]:
    joined: list[Range] = []
    for begin, end in sorted(ranges):
        if joined and begin <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((begin, end))
    return joined


def _touches(table: Table, ranges: list[Range]) -> bool:
    return any(bool(table["start_key"] < end and begin <= table["end_key"]) for begin, end in ranges)


def _pieces(tables: list[Table], begin: bytes, end: bytes) -> list[Range]:
    """Split the range at the ends of tables, so that no piece covers many of them."""
    ends = {table["end_key"] for table in tables if table["level"]}
    cuts = [begin, *sorted(cut for cut in ends if begin < cut < end), end]
    return list(itertools.pairwise(cuts))


def _compact(engine: Rdict, begin: bytes, end: bytes) -> None:
    options = CompactOptions()
    options.set_exclusive_manual_compaction(False)  # otherwise the engine's own compactions would wait
    engine.compact_range(begin, end, options)
