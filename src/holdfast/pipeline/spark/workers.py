"""Spark's Python workers: processes that are kept between tasks, and what PySpark does in them between two tasks."""

from __future__ import annotations

import gc
import sys

_DAEMON = "pyspark.daemon"
"""What the workers are forked from, and who collects."""

_seen = 0


def spare_collections() -> None:
    """Let PySpark's collection after each task pass over what is loaded. Does nothing outside of Spark's workers.

    A worker collects all garbage when a task is done, and takes the next one only after that. What it walks through are
    PySpark, Arrow and all else that was ever imported: 40 ms of processor time, where a small task takes 2. That is no
    garbage, so it is frozen: at the first task, and at one before which something more was imported. What tasks leave
    is collected as before.

    To be called first where Spark calls us, in a task or to plan one.
    """
    global _seen
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    if spec is not None and spec.name == _DAEMON and len(sys.modules) > _seen:
        gc.freeze()
        _seen = len(sys.modules)
