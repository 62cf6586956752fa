"""Small files of landed rows, put together. Readers see each row once at any time, and a landing goes on meanwhile.

Of Parquet, a run of directories is written into a new one, ``compacted=FIRST-LAST-TOKEN``; the note in it, the last
thing to be written, makes it count, and those it has the rows of no longer do (``landed.counting``). They are deleted
by a later run, when nobody who began to read before can still be reading. So a crash leaves what nobody looks at. The
newest batch is left alone: it alone may be written again by Spark. A Delta table does all this by itself.

One compaction at a time: two that overlap do no harm, but the work of one is lost.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.pipeline import files
from holdfast.pipeline.delta import DeltaTable
from holdfast.pipeline.landed import COMPACTED, Unit, complete, counting, listed, note, nothing, read_units, write_rows
from holdfast.pipeline.landing import WRITING, table_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TARGET = 128 << 20
"""Bytes that a compacted directory, or a file of a Delta table, has at most, unless told otherwise."""

KEEP = 3600.0
"""Seconds for which what is replaced is kept, unless told otherwise."""


@dataclass(frozen=True, slots=True)
class Compaction:
    """What has been done.

    Args:
        replaced: Directories, or files of a Delta table, that no longer count.
        made: Those that have their rows.
        deleted: Directories, replaced by an earlier run or left by a crash, that were deleted.
    """

    replaced: int
    made: int
    deleted: int


def compact(
    spark: SparkSession,
    out: str,
    *,
    target: int = TARGET,
    keep: float = KEEP,
    on_made: Callable[[str], None] | None = None,
) -> Compaction:
    """Put small files of what ``land`` has landed together. May be ended at any time and run again.

    Args:
        spark: A classic session.
        out: What ``land`` has landed, or is landing.
        target: Bytes of what is written at most; what is as large is left as it is.
        keep: Seconds for which what is replaced is kept for those who are reading it.
        on_made: Called with the name of each directory that is made.

    Raises:
        ConfigurationError: There is nothing yet.
    """
    session = spark.newSession()  # whose settings are nobody else's
    for name, value in WRITING.items():
        session.conf.set(name, value)
    table = table_of(session, out)
    if not table.begun():
        raise nothing(out)
    if isinstance(table, DeltaTable):
        return Compaction(*table.compact(target, keep), 0)
    replaced = made = 0
    for group in list(_groups(session, out, counting(complete(session, out)), target)):
        if name := _made(session, out, group):
            replaced += len(group)
            made += 1
            if on_made is not None:
                on_made(name)
    return Compaction(replaced, made, _swept(session, out, keep))


def _groups(spark: SparkSession, out: str, units: list[Unit], target: int) -> Iterator[list[Unit]]:
    """Runs of directories whose batches follow each other, of one layout, which are small together."""
    group: list[Unit] = []
    total = 0
    for unit in units[:-1]:
        size = files.size(spark, f"{out}/{unit.name}")
        fits = group and unit.first == group[-1].last + 1 and unit.layout == group[-1].layout
        if not fits or total + size > target:
            if len(group) > 1:
                yield group
            group, total = [], 0
        group.append(unit)
        total += size
    if len(group) > 1:
        yield group


def _made(spark: SparkSession, out: str, group: list[Unit]) -> str:
    """A directory with the rows of others; "" if another compaction was faster."""
    name = f"{COMPACTED}={group[0].first}-{group[-1].last}-{secrets.token_hex(4)}"
    layout = group[0].layout
    place = f"{out}/{name}"
    order = [*([layout.day] if layout.day else []), "batch", "partition", "offset"]
    rows = read_units(spark, out, group, layout).coalesce(1).sortWithinPartitions(*order)
    write_rows(rows, place, layout)
    if not set(group) <= set(counting(complete(spark, out))):
        files.delete(spark, place)
        return ""
    note(spark, place, layout)
    return name


def _swept(spark: SparkSession, out: str, keep: float) -> int:
    """How many directories that count no longer, or never will, were deleted."""
    before = time.time() - keep
    found = complete(spark, out)
    chosen = counting(found)
    known = {unit.name for unit in found}
    old = [name for name in listed(spark, out) if name.startswith(COMPACTED) and name not in known]
    old = [name for name in old if files.modified(spark, f"{out}/{name}") <= before]
    for unit in (unit for unit in found if unit not in chosen):
        by = next((one for one in chosen if one.compacted and one.first <= unit.first and unit.last <= one.last), None)
        if by is not None and files.modified(spark, f"{out}/{by.name}/{by.layout.note}") <= before:
            old.append(unit.name)
    for name in old:
        files.delete(spark, f"{out}/{name}")
    return len(old)
