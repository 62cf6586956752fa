"""A directory that is seen whole or not at all, and made by one of all who make it: how batches get into tables.

Each attempt writes into a directory of its own in ``_attempts``, where no reader of Parquet looks, and then gives it
its name, in one step that fails if there is one of that name. So there is no moment at which a reader sees half of a
batch, or two attempts of it, whoever is killed, and of two drivers that are alive at a time one is told that it was not
the first. An attempt begins with a mark, and is published only with it. Who deletes an attempt takes its name away
first, in one step too: so whoever still makes it, as it was only asleep, finds no mark, however much Spark made anew.
Where a file system cannot rename so (object stores), a directory is written in its place, and whoever reads it must see
by something that is written last whether it is whole; there one driver must be alone.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING

from holdfast.exceptions import ConfigurationError
from holdfast.pipeline import files

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ATTEMPTS = "_attempts"
_DISCARDED = "discarded-"
_MARK, _CONTENT = "_begun", "content"


class WithdrawnError(Exception):
    """Raised by what writes a directory: it is not to be published after all."""


def publish(
    spark: SparkSession,
    out: str,
    name: str,
    write: Callable[[str], None],
    before: Callable[[], None] = lambda: None,
) -> bool:
    """Let ``write`` make a directory; whether it is this one that is there now, under its name.

    Args:
        spark: A classic session.
        out: Where the directory is to lie.
        name: What it is to be called.
        write: Writes it, given its path; replaces what an attempt of the same path has left; what says that it is whole
            last.
        before: Called when all is written, just before it is seen where it is seen at once.

    Returns:
        False: another's was there first, and is what counts; or another one took this attempt for left over, and has
            deleted it.

    Raises:
        WithdrawnError: ``write`` did; what it has written is deleted.
    """
    if not files.renames_at_once(spark, out):
        try:
            write(f"{out}/{name}")
        except WithdrawnError:
            files.delete(spark, f"{out}/{name}")
            raise
        before()
        return True
    attempt = f"{out}/{ATTEMPTS}/{name}-{secrets.token_hex(6)}"
    try:
        files.write_text(spark, f"{attempt}/{_MARK}", "")
        write(f"{attempt}/{_CONTENT}")
        before()
        is_whole = _MARK in files.names(spark, attempt)
        is_first = is_whole and files.rename_unless_there(spark, f"{attempt}/{_CONTENT}", f"{out}/{name}")
    except Exception:  # no wonder, where another was first or has taken this attempt away; else it is told
        is_first = False
        if name not in files.names(spark, out) and _MARK in files.names(spark, attempt):
            with contextlib.suppress(Exception):  # what failed is to be told, not this
                files.delete(spark, attempt)
            raise
    files.delete(spark, attempt)
    _sweep(spark, out)
    return is_first


def _sweep(spark: SparkSession, out: str) -> None:
    """Delete the attempts at what is there."""
    left = files.names(spark, f"{out}/{ATTEMPTS}")
    there = set(files.names(spark, out)) if left else set()
    for attempt in left:
        if attempt.rpartition("-")[0] in there or attempt.startswith(_DISCARDED):
            discard(spark, out, attempt)


def discard(spark: SparkSession, out: str, attempt: str) -> None:
    """Delete an attempt that somebody may still be making."""
    place = f"{out}/{ATTEMPTS}/{attempt}"
    if not attempt.startswith(_DISCARDED):
        doomed = f"{out}/{ATTEMPTS}/{_DISCARDED}{secrets.token_hex(6)}"
        with contextlib.suppress(ConfigurationError):  # another one has taken it away
            files.rename_unless_there(spark, place, doomed)
        place = doomed
    files.delete(spark, place)
