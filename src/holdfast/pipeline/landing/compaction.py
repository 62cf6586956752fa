"""Merge small files of landed rows. Readers always see each row once, and a landing can continue in the meantime.

For Parquet, a compaction writes the directories of a block of batches to a new one, ``compacted=FIRST-LAST-TOKEN``.
Once that is published, the directories that it replaces no longer count (``directories.counting``). A later run deletes
them, when earlier readers should have finished. After a crash, readers ignore the remains. The compaction skips the
newest batch, because Spark may repeat it. A Delta table has its own compaction.

Blocks have 2, 4, 8, … batches and begin at a multiple of their size, so of any two blocks, one contains the other, or
they are disjoint. If several compactions run at the same time, each deletes only directories that a published larger
block contains (or the same block, with a name before theirs). No compaction deletes the largest block, so no row is
lost or visible twice.
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
"""Default maximum size of a compacted directory, or of a file of a Delta table, in bytes."""

KEEP = 3600.0
"""Default time to keep replaced directories or files, in seconds."""


@dataclass(frozen=True, slots=True)
class Compaction:
    """Result of a compaction.

    Args:
        replaced: Number of directories, or of files of a Delta table, that no longer count.
        made: Number of new directories or files with their rows.
        deleted: Number of deleted directories that an earlier run replaced or a crash left.
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
    """Merge small files of landed rows. You can stop the compaction at any time and run it again.

    Args:
        spark: A classic session.
        out: Directory that ``land`` wrote, or is writing.
        target: Maximum size of a merged directory or file, in bytes. Larger ones stay unchanged.
        keep: Seconds to keep replaced directories or files for current readers.
        on_made: Called with the name of each new directory.

    Raises:
        ConfigurationError: The table has no batch yet.
    """
    session = spark.newSession()  # keeps its settings apart from other sessions
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
    """Yield the groups to merge: the largest blocks of one layout that do not exceed the target size.

    Args:
        units: Directories that count, in order; the last is the newest batch.
        sizes: Name -> size in bytes, for all but the newest.
        target: Maximum size of a block, in bytes.
    """
    if units:
        whole = 1 << units[-1].first.bit_length()
        yield from _blocks(units[:-1], 0, whole, units[-1].first, sizes, target)


def _blocks(
    units: list[Unit], start: int, end: int, newest: int, sizes: Mapping[str, int], target: int
) -> Iterator[list[Unit]]:
    """Yield groups for the batches from ``start`` up to, but excluding, ``end``."""
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
    """Return the first and last batch of the smallest block that contains these directories."""
    size = 1 << (group[0].first ^ group[-1].last).bit_length()
    first = group[0].first // size * size
    return first, first + size - 1


def _made(spark: SparkSession, out: str, group: list[Unit]) -> str:
    """Merge a group into one directory; "" if another compaction was faster, or discarded this attempt."""
    first, last = block_of(group)
    name = f"{COMPACTED}={first}-{last}-{secrets.token_hex(4)}"
    layout = group[0].layout

    def write(place: str) -> None:
        rows = read_units(spark, out, group, layout).coalesce(1).sortWithinPartitions(*layout.order)
        write_rows(rows, place, layout)
        if not set(group) <= set(counting(complete(spark, out))):  # some may have been deleted before the read
            raise WithdrawnError
        note(spark, place, layout)

    try:
        return name if publish(spark, out, name, write) else ""
    except WithdrawnError:
        return ""


def _swept(spark: SparkSession, out: str, keep: float) -> int:
    """Delete directories that no longer count or never will; return their number."""
    before = time.time() - keep
    begun = [
        name for name in listed(spark, out) if name.startswith(COMPACTED)
    ]  # list first: later directories are complete
    found = complete(spark, out)
    chosen = counting(found)
    known = {unit.name for unit in found}
    left = [name for name in begun if name not in known]
    attempts = [name for name in files.names(spark, f"{out}/{ATTEMPTS}") if name.startswith(COMPACTED)]

    def is_left(name: str) -> bool:  # another run may still be writing it, whatever ``keep`` is
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
