"""Publish a directory completely or not at all, and once, whichever of its writers are killed.

Each attempt writes to a separate directory in ``_attempts``, where no reader of Parquet looks. One rename then gives
it its name, and fails if the name exists. So no reader sees half of a batch, or two attempts of it. Of two drivers that
are alive at the same time, one learns that it was not the first.

An attempt begins with a mark, and is published only with it. A writer that deletes another's attempt first renames it,
in one step. If the other writer only slept, it finds no mark, even if Spark has recreated the directory.

Some file systems cannot rename in one step (object stores). There, the directory is written at its final place, and
readers must recognize a complete one by the file that is written last. Only one driver may then be alive.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING

from holdfast.exceptions import ConfigurationError
from holdfast.pipeline.spark import files

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ATTEMPTS = "_attempts"
_DISCARDED = "discarded-"
_MARK, _CONTENT = "_begun", "content"


def publish(spark: SparkSession, out: str, name: str, write: Callable[[str], bool]) -> bool:
    """Let ``write`` make a directory; return whether this one now has the name.

    Args:
        spark: A classic session.
        out: Parent of the directory.
        name: Name of the directory.
        write: Called with a path, writes the directory there, and replaces what an earlier attempt left at that path.
            It writes last the file that marks the directory as complete. It returns False to publish nothing.

    Returns:
        False: another writer's directory had the name first, and counts; or another writer took this attempt for a
        remainder, and has deleted it.
    """
    if not files.renames_at_once(spark, out):
        if not write(f"{out}/{name}"):
            files.delete(spark, f"{out}/{name}")
        return True
    attempt = f"{out}/{ATTEMPTS}/{name}-{secrets.token_hex(6)}"
    try:
        files.write_text(spark, f"{attempt}/{_MARK}", "")
        if not write(f"{attempt}/{_CONTENT}"):
            files.delete(spark, attempt)
            return True
        is_whole = _MARK in files.names(spark, attempt)
        is_first = is_whole and files.rename_unless_there(spark, f"{attempt}/{_CONTENT}", f"{out}/{name}")
    except Exception:  # expected if another writer was first or deleted this attempt; otherwise it is raised
        is_first = False
        # Neither is the case: the error has another cause, and the attempt is still this writer's.
        if name not in files.names(spark, out) and _MARK in files.names(spark, attempt):
            with contextlib.suppress(Exception):  # the first error counts
                files.delete(spark, attempt)
            raise
    files.delete(spark, attempt)
    _sweep(spark, out)
    return is_first


def _sweep(spark: SparkSession, out: str) -> None:
    """Delete the attempts at directories that exist; their writers may still be alive."""
    left = files.names(spark, f"{out}/{ATTEMPTS}")
    there = set(files.names(spark, out)) if left else set()
    for attempt in left:
        place = f"{out}/{ATTEMPTS}/{attempt}"
        if attempt.rpartition("-")[0] in there:
            doomed = f"{out}/{ATTEMPTS}/{_DISCARDED}{secrets.token_hex(6)}"
            with contextlib.suppress(ConfigurationError):  # another writer has taken it away
                files.rename_unless_there(spark, place, doomed)
            files.delete(spark, doomed)
        elif attempt.startswith(_DISCARDED):
            files.delete(spark, place)
