"""Small files of landed rows, put together. Readers see each row once at any time, and a landing goes on meanwhile.

Of Parquet, the directories of a block of batches are written into a new one, ``compacted=FIRST-LAST-TOKEN``; once that
is there, those it has the rows of no longer count (``landed.counting``). They are deleted by a later run, when nobody
who began to read before can still be reading. So a crash leaves what nobody looks at. The newest batch is left alone:
Spark may come back to it. A Delta table does all this by itself.

Blocks are of 2, 4, 8, … batches, and begin at a multiple of their size, so of any two one holds the other, or they have
nothing in common. Of several compactions that run at a time each deletes only what lies in a larger block that is there
(or in the same, by a name before its own), and the largest is deleted by nobody: no row is lost, nor seen twice.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.pipeline.landing.delta import DeltaTable
from holdfast.pipeline.landing.directories import (
    COMPACTED,
    Unit,
    complete,
    counting,
    listed,
    note,
    nothing,
    read_units,
    write_rows,
)
from holdfast.pipeline.landing.publication import ATTEMPTS, WithdrawnError, discard, publish
from holdfast.pipeline.landing.tables import table_of
from holdfast.pipeline.spark import files

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
    table = table_of(session, out)
    if not table.begun():
        raise nothing(out)
    if isinstance(table, DeltaTable):
        return Compaction(*table.compact(target, keep), 0)
    replaced = made = 0
    units = counting(complete(session, out))
    sizes = {unit.name: files.size(session, f"{out}/{unit.name}") for unit in units[:-1]}
    for group in list(groups(units, sizes, target)):
        if name := _made(session, out, group):
            replaced += len(group)
            made += 1
            if on_made is not None:
                on_made(name)
    return Compaction(replaced, made, _swept(session, out, keep))


def groups(units: list[Unit], sizes: Mapping[str, int], target: int) -> Iterator[list[Unit]]:
    """What is to be put together: the largest blocks whose directories are of one layout and small together.

    Args:
        units: The directories that count, in their order; the last is the newest batch.
        sizes: Name -> bytes, of all but the newest.
        target: Bytes of a block at most.
    """
    if units:
        whole = 1 << units[-1].first.bit_length()
        yield from _blocks(units[:-1], 0, whole, units[-1].first, sizes, target)


def _blocks(
    units: list[Unit], start: int, end: int, newest: int, sizes: Mapping[str, int], target: int
) -> Iterator[list[Unit]]:
    """Of the batches from ``start`` to before ``end``, and the directories that lie within."""
    if len(units) < 2:
        return
    small = sum(sizes[unit.name] for unit in units) <= target
    if end <= newest and small and all(unit.layout == units[0].layout for unit in units):
        yield units
        return
    middle = (start + end) // 2
    yield from _blocks([unit for unit in units if unit.last < middle], start, middle, newest, sizes, target)
    yield from _blocks([unit for unit in units if unit.first >= middle], middle, end, newest, sizes, target)


def block_of(group: list[Unit]) -> tuple[int, int]:
    """The smallest block that directories lie in: its first and its last batch."""
    size = 1 << (group[0].first ^ group[-1].last).bit_length()
    first = group[0].first // size * size
    return first, first + size - 1


def _made(spark: SparkSession, out: str, group: list[Unit]) -> str:
    """A directory with the rows of others; "" if another compaction was faster, or took this one for dead."""
    first, last = block_of(group)
    name = f"{COMPACTED}={first}-{last}-{secrets.token_hex(4)}"
    layout = group[0].layout

    def write(place: str) -> None:
        rows = read_units(spark, out, group, layout).coalesce(1).sortWithinPartitions(*layout.order)
        write_rows(rows, place, layout)
        if not set(group) <= set(counting(complete(spark, out))):  # then some may have been gone when they were read
            raise WithdrawnError
        note(spark, place, layout)

    try:
        return name if publish(spark, out, name, write) else ""
    except WithdrawnError:
        return ""


def _swept(spark: SparkSession, out: str, keep: float) -> int:
    """How many directories that count no longer, or never will, were deleted."""
    before = time.time() - keep
    begun = [name for name in listed(spark, out) if name.startswith(COMPACTED)]  # first: what comes later is whole
    found = complete(spark, out)
    chosen = counting(found)
    known = {unit.name for unit in found}
    left = [name for name in begun if name not in known]
    attempts = [name for name in files.names(spark, f"{out}/{ATTEMPTS}") if name.startswith(COMPACTED)]

    def is_left(name: str) -> bool:  # one that is being written may be another run's, whatever this is told to keep
        return files.modified(spark, f"{out}/{name}") <= time.time() - max(keep, KEEP)

    attempts = [name for name in attempts if is_left(f"{ATTEMPTS}/{name}")]
    old = [name for name in left if is_left(name)]
    for unit in (unit for unit in found if unit not in chosen):
        by = next((one for one in chosen if one.compacted and one.first <= unit.first and unit.last <= one.last), None)
        if by is not None and files.modified(spark, f"{out}/{by.name}/{by.layout.note}") <= before:
            old.append(unit.name)
    for name in attempts:
        discard(spark, out, name)
    for name in old:
        files.delete(spark, f"{out}/{name}")
    return len(attempts) + len(old)
