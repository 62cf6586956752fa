"""Free space on the disk of an open store: how much RocksDB may need, and whether that much is free.

RocksDB writes before it deletes. A flush writes a table before its log goes, and a compaction writes all of its output
before its inputs go. If the disk fills up meanwhile, the engine stops and a commit fails. So a store reports trouble
while there is still space for both, and the engine starts no compaction until the trouble is over.

rocksdict cannot stop a running compaction: ``cancel_all_background`` ends the engine. So the space of a compaction must
be free before it starts.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rocksdict import Rdict

from holdfast.outages import Trouble
from holdfast.store import directory
from holdfast.store.rocksdb import opening
from holdfast.store.rocksdb.reserve import Reserve

SHORT_BYTES = 32 << 20
"""Space for commits during trouble: acknowledgements, trims, and messages accepted just before. The trouble ends when
so much more is free."""

CACHE_BYTES = 16 << 20
"""The same for a cache: if it fills up nevertheless, it can be made again."""

_NEARLY_FULL = (
    "The disk of the store at {} is nearly full: less than {} MB are free, which the store may need to write its "
    "tables. It accepts new messages again when {} MB are free. Stored messages can be read, delivered and deleted."
)
_RESERVE_IN_USE = (
    "The disk of the store at {} was full, and the store uses its reserve. It accepts new messages again when {} MB "
    "are free, enough to fill the reserve. Stored messages can be read, delivered and deleted."
)
_REMEDY = "Free space there."

Table = dict[str, Any]
"""The engine's description of one of its tables."""


def next_log_bytes() -> int:
    """Return the bytes that RocksDB allocates for its next log: a memtable and a tenth."""
    return opening.MEMTABLE_BYTES * 11 // 10


def compaction_bytes(tables: list[Table], base_level: int) -> int:
    """Return the most bytes that a compaction may write before it deletes its inputs. RocksDB runs one at a time.

    Args:
        base_level: The level into which RocksDB compacts level 0.
    """
    levels: dict[int, int] = {}
    for table in tables:
        levels[table["level"]] = levels.get(table["level"], 0) + table["size"]
    # Every table of level 0 contains the stamp, so each overlaps all others. RocksDB compacts them together.
    most = levels.get(0, 0) + levels.get(base_level, 0)
    for level, size in levels.items():
        if level:
            most = max(most, min(size + levels.get(level + 1, 0), 2 * opening.COMPACTION_BYTES))
    return most


class FreeSpace:
    """Free space on the disk of one store that is open for writing. Thread-safe.

    Args:
        store: The store's directory, as errors name it.
        compacts: Whether the engine was opened with automatic compactions.
        on_trouble: Called when the store must accept nothing new, and with None when the trouble is over.

    Attributes:
        is_short: Whether there is too little space to accept anything new.
        needed: Bytes that the engine may need.
    """

    def __init__(
        self,
        engine: Rdict,
        store: Path,
        home: Path,
        reserve: Reserve,
        *,
        compacts: bool,
        on_trouble: Callable[[Trouble | None], None],
    ) -> None:
        self._engine = engine
        self._store = store
        self._files = home / directory.ENGINE
        self._reserve = reserve
        self._short = SHORT_BYTES if reserve.is_kept else CACHE_BYTES
        self._compacts = compacts
        self._on_trouble = on_trouble
        self._told: Trouble | None = None
        self._lock = threading.Lock()
        self._compaction = 0
        self._free = 0
        self.is_short = False
        self.needed = 0

    @property
    def wanted(self) -> int:
        """Bytes that must be free before the store accepts messages again; 0: it accepts them."""
        if self._reserve.is_in_use:
            return self._reserve.least_free(self.needed)
        return self.needed + self._short if self.is_short else 0

    @property
    def is_low(self) -> bool:
        """Whether the store must accept nothing new, because space is short or the reserve is in use."""
        return self.is_short or self._reserve.is_in_use

    def has_shrunk(self) -> bool:
        """Whether space is short now, although the last look found enough. That costs one system call."""
        try:
            return not self.is_low and self._reserve.free() < self.needed
        except OSError:
            return False

    def look_if_near(self) -> None:
        """Look, unless so much is free that it cannot be short soon. That costs one system call."""
        try:
            is_near = self._reserve.free() < 2 * self.needed
        except OSError:
            return
        if is_near:
            self.look()

    def look(self) -> list[Table]:
        """Compare the free space with the needed space, report a change, and return the engine's tables."""
        with self._lock:
            # In this order, a compaction that ends meanwhile makes the free space look smaller, never larger.
            try:
                free: int | None = self._reserve.free()
                allocated = self._allocated()
            except OSError:
                free, allocated = None, {}
            tables = self._engine.live_files()
            if free is not None:
                self._compare(free, allocated, tables)
            self._steer()
        return tables

    def fits(self, output: float) -> bool:
        """Whether a compaction with so many bytes of output fits, as of the last look.

        Args:
            output: The estimate for the output, which is never larger than the inputs.
        """
        return self._free > min(output, self._compaction) + self.needed - self._compaction - self._short

    def _compare(self, free: int, allocated: dict[str, int], tables: list[Table]) -> None:
        # The engine is still writing the other tables, and what it needs for them is counted below.
        for table in tables:
            allocated.pop(os.path.basename(table["name"]), None)
        self._free = free + sum(allocated.values())
        ask = self._engine.property_int_value
        self._compaction = compaction_bytes(tables, ask("rocksdb.base-level") or 0)
        unflushed = ask("rocksdb.cur-size-all-mem-tables") or 0
        log = next_log_bytes() if self._reserve.is_kept else 0  # a cache writes none
        self.needed = self._compaction + unflushed + log + self._short
        self.is_short = self._free < self.needed + (self._short if self.is_short else 0)

    def _allocated(self) -> dict[str, int]:
        """Return the bytes that each table takes on the disk, including unfinished tables."""
        found = {}
        with os.scandir(self._files) as files:
            for file in files:
                if file.name.endswith(".sst"):
                    try:
                        found[file.name] = file.stat().st_blocks * 512
                    except FileNotFoundError:
                        continue
        return found

    def _steer(self) -> None:
        if self._compacts is self.is_low:
            self._set_compactions(not self.is_low)
        trouble = None
        if self._reserve.is_in_use:
            trouble = Trouble(_RESERVE_IN_USE.format(self._store, self.wanted >> 20), _REMEDY)
        elif self.is_short:
            trouble = Trouble(_NEARLY_FULL.format(self._store, self.needed >> 20, self.wanted >> 20), _REMEDY)
        if trouble != self._told:
            self._told = trouble
            self._on_trouble(trouble)

    def _set_compactions(self, compacts: bool) -> None:
        # RocksDB writes a file for this. If there is no space even for that, the next look tries again.
        with contextlib.suppress(Exception):
            self._engine.set_options({"disable_auto_compactions": "false" if compacts else "true"})
            self._compacts = compacts


def may_compact_at_once(home: Path, reserve: Reserve) -> bool:
    """Whether any compaction fits, so that the engine may be opened with automatic compactions."""
    if reserve.is_in_use:
        return False
    try:
        with os.scandir(home / directory.ENGINE) as files:
            stored = sum(file.stat().st_size for file in files if file.name.endswith((".sst", ".log")))
        return reserve.free() >= 2 * stored + next_log_bytes() + SHORT_BYTES
    except OSError:
        return False
