"""Forks of a process with RocksDB's background threads: the child must be able to open stores of its own, and to end.

All engines of a process share these threads, and RocksDB keeps them after the last engine is closed. A forked process
inherits RocksDB's list of them without the threads: a flush would wait forever, and the end of the process would join
threads that do not exist. So the threads end before a fork, and RocksDB starts new ones in both processes.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import time
from pathlib import Path
from typing import Any
from weakref import WeakSet

from rocksdict import Env

from holdfast.exceptions import ConfigurationError

_LONGEST_WAIT = 10.0
"""Seconds that a fork waits for a flush or a compaction in progress."""
_LOOK_EVERY = 0.0005
_TASKS = Path("/proc/self/task")

open_stores: WeakSet[Any] = WeakSet()
"""The open stores of this process; each has its engine in ``_db``."""


class _State:
    forked_with_threads_in: int | None = None
    """The parent process, if its threads did not end before the fork."""
    has_threads = False
    has_opened = False
    """Whether this process, or the one that it was forked from, ever began to open a store."""


def check_can_open(store: Path) -> None:
    """Raise ConfigurationError if this process cannot have an engine."""
    parent = _State.forked_with_threads_in
    _State.has_opened = True
    if parent is not None:
        raise ConfigurationError(
            f"The store at {store} cannot be opened: process {parent} forked this process while a store there was busy",
            remedy="Start the process with spawn or forkserver instead, or fork it before you open a store.",
        )


def _runs_threads() -> bool:
    """Whether RocksDB has threads in this process. A system without /proc does not say so once it may have some."""
    for task in _TASKS.iterdir() if _TASKS.exists() else ():
        with contextlib.suppress(OSError):  # it has ended meanwhile
            if (task / "comm").read_text().startswith("rocksdb:"):
                return True
    return _State.has_opened and not _TASKS.exists()


def _set_threads(count: int) -> None:
    env = Env()
    env.set_low_priority_background_threads(count)
    env.set_high_priority_background_threads(count)


def _end_threads() -> None:
    deadline = time.monotonic() + _LONGEST_WAIT
    runs = _runs_threads()
    if runs:
        _set_threads(0)
    while runs and _TASKS.exists() and time.monotonic() < deadline:
        time.sleep(_LOOK_EVERY)
        runs = _runs_threads()
    _State.has_threads = runs


def _start_threads() -> None:
    if open_stores:
        _set_threads(1)  # as ``set_max_background_jobs(2)`` does at the opening


def _disown_engines() -> None:
    """Keep the parent's engines from being destroyed in the child: that could delete files that the parent needs."""
    if _State.has_threads:
        _State.forked_with_threads_in = os.getppid()
    for store in open_stores:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(store._db))
    open_stores.clear()


os.register_at_fork(before=_end_threads, after_in_parent=_start_threads, after_in_child=_disown_engines)
