"""A directory that is seen whole or not at all, and made by one of all who make it: how batches get into tables.

Each attempt writes into a directory of its own in ``_attempts``, where no reader of Parquet looks, and then gives it
its name, in one step that fails if there is one of that name. So there is no moment at which a reader sees half of a
batch, or two attempts of it, whoever is killed, and of two drivers that are alive at a time one is told that it was not
the first. An attempt begins with a mark, and is published only with it. Who deletes an attempt takes its name away
first, in one step too: so whoever still makes it, as it was only asleep, finds no mark, however much Spark made anew.
Where a file system cannot rename so (object stores), a directory is written in its place, and whoever reads it must see
by something that is written last whether it is whole; there one driver must be alone.

A directory may take the place of others. Then it takes all other attempts away first, then those directories, each by
one rename, and then gets its name: of two that do so at a time, one finds its own attempt gone. So no reader sees both
the new and the old. Two renames are not one: between them there is neither.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from holdfast.exceptions import ConfigurationError
from holdfast.pipeline.spark import files

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
    replaced: Callable[[], Iterable[str]] | None = None,
) -> bool:
    """Let ``write`` make a directory; whether it is this one that is there now, under its name.

    Args:
        spark: A classic session.
        out: Where the directory is to lie.
        name: What it is to be called.
        write: Writes it, given its path; replaces what an attempt of the same path has left; what says that it is whole
            last.
        replaced: Gives the names of directories there that it takes the place of; called when all is written. None: it
            takes no place, and leaves what others make meanwhile alone.

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
        if replaced is not None:
            take_away(spark, out, replaced())
        return True
    own = f"{name}-{secrets.token_hex(6)}"
    attempt = f"{out}/{ATTEMPTS}/{own}"
    try:
        files.write_text(spark, f"{attempt}/{_MARK}", "")
        write(f"{attempt}/{_CONTENT}")
        is_whole = _MARK in files.names(spark, attempt)
        if is_whole and replaced is not None:
            for other in files.names(spark, f"{out}/{ATTEMPTS}"):
                if other != own:
                    discard(spark, out, other)
            take_away(spark, out, replaced())
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


def take_away(spark: SparkSession, out: str, names: Iterable[str]) -> None:
    """Take directories out of readers' sight, each in one step where that can be; the next sweep deletes them then."""
    at_once = files.renames_at_once(spark, out)
    for name in names:
        if not at_once:
            files.delete(spark, f"{out}/{name}")
            continue
        try:
            files.rename_unless_there(spark, f"{out}/{name}", f"{out}/{ATTEMPTS}/{_DISCARDED}{secrets.token_hex(6)}")
        except ConfigurationError:
            if name in files.names(spark, out):  # else another one has taken it away
                raise


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
