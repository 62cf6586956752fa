"""Spark's Python workers, which Spark reuses for several tasks, and PySpark's work between two tasks."""

from __future__ import annotations

import gc
import sys

_DAEMON = "pyspark.daemon"
"""The process that forks the workers; its module also runs the garbage collection."""

_seen = 0


def spare_collections() -> None:
    """Let PySpark's garbage collection after each task skip loaded modules. Does nothing outside of Spark's workers.

    A worker collects all garbage at the end of a task, and accepts the next task only after that. The collection walks
    through PySpark, Arrow and everything else that was ever imported: 40 ms of processor time, when a small task takes
    2. Modules are not garbage, so this freezes them: at the first task, and at a task after further imports. Garbage of
    tasks is collected as before.

    Call this first wherever Spark calls Holdfast, in a task or to plan one.
    """
    global _seen
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    if spec is not None and spec.name == _DAEMON and len(sys.modules) > _seen:
        gc.freeze()
        _seen = len(sys.modules)
