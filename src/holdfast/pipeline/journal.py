"""Event journals as a DataFrame, from directories (Parquet files and unfinished segments) or from servers over HTTP.

docs/reference/journal.md describes the rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.endpoint.journal.columns import COLUMNS, DAMAGED, NAMES
from holdfast.endpoint.journal.files import LIVE, PARQUET, STAMP, Segment, segments
from holdfast.endpoint.journal.parquet import arrow_schema, damage_of, record_batches
from holdfast.exceptions import ConfigurationError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

DDL = ", ".join(f"`{column.name}` {column.type.upper()}" for column in COLUMNS)
"""The columns of a journal, as Spark declares them."""


def journal_directories(place: str | Path) -> list[Path]:
    """Return the existing journal directories.

    Args:
        place: The directory of a store, or of a journal; with several workers, that of worker 0.

    Raises:
        ConfigurationError: No directory contains a journal.
    """
    given = Path(place)
    own = given / "journal"
    found = [own, *given.glob("worker-*/journal")] if own.is_dir() else [given, *given.glob("worker-*")]
    there = [one for one in found if segments(one)]
    if not there:
        raise ConfigurationError(
            f"{given} contains no event journal",
            remedy="Name the directory of a store, or the configured directory of its journal; a server that has "
            "just started has written nothing yet",
        )
    return sorted(there)


def is_address(place: str | Path) -> bool:
    """Whether a place is a server's address instead of a directory."""
    return isinstance(place, str) and place.startswith(("http://", "https://"))


def read_journal(spark: SparkSession, *places: str | Path, **options: str) -> DataFrame:
    """Return the events of the journals, of all runs and workers.

    Args:
        places: Directories, as for :func:`journal_directories`; the executors need the same paths as the driver. Or
            URLs of servers' admin listeners, as the executors see them.
        options: Further options of the ``wsrm`` source for those servers, such as ``tokenFile`` and ``caFile``.

    Returns:
        The columns of docs/reference/journal.md, in no order. Rows that several places share appear once, such as those
        of a copy, or of a directory and the server that writes it. For each damaged file there is one event ``damaged``
        that names it. A damaged Parquet file is omitted, and a segment from its damage on.

    Raises:
        ConfigurationError: There is no journal in one of the directories.
    """
    addresses = sorted({str(place) for place in places if is_address(place)})
    local = [place for place in places if not is_address(place)]
    directories = sorted({one.resolve() for place in local for one in journal_directories(place)})
    read = spark.read.format("wsrm").options(**options, read="journal")
    found = [read.option("broker", address).load() for address in addresses]
    found += [_read_directories(spark, directories)] if directories else []
    journal = reduce(lambda one, other: one.unionByName(other), found)
    return journal if len(places) < 2 else journal.dropDuplicates(["run", "ordinal", "detail"])


def _read_directories(spark: SparkSession, directories: Iterable[Path]) -> DataFrame:
    there = [one for directory in directories for one in segments(directory)]
    damaged = {one.path: why for one in there if (why := _damage(one))}
    parquet = [str(one.path) for one in there if one.is_parquet and one.path not in damaged]
    others = [(str(one.path),) for one in there if not one.is_parquet]
    read = spark.read.schema(DDL).parquet(*parquet) if parquet else spark.createDataFrame([], DDL)
    if damaged:
        rows = [damaged_event(str(path), why) for path, why in damaged.items()]
        read = read.unionByName(spark.createDataFrame([tuple(row[name] for name in NAMES) for row in rows], DDL))
    if not others:
        return read
    named = spark.createDataFrame(others, "path STRING").repartition(min(len(others), 200))
    return read.unionByName(named.mapInArrow(_read_segments, DDL))


def _damage(segment: Segment) -> str:
    try:
        return damage_of(segment)
    except FileNotFoundError:
        return ""  # it is now Parquet, or was deleted
    except OSError as error:
        return f"it cannot be read: {error.strerror or error}"


def damaged_event(file: str, why: str) -> dict[str, Any]:
    """Return the event that names a damaged file."""
    stamp, _, rest = file.rpartition("/")[2].removeprefix(LIVE).removeprefix("_").rpartition(":")[2].partition("-")
    try:
        at = datetime.strptime(stamp, STAMP).replace(tzinfo=UTC)
    except ValueError:  # no server gave it this name
        at = datetime.fromtimestamp(0, UTC)
    run = rest.partition("-")[0] or None
    return dict.fromkeys(NAMES) | {"at": at, "run": run, "event": DAMAGED, "detail": f"{file}: {why}"}


def _read_segments(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for path in batch.column(0).to_pylist():
            yield from _read_segment(Path(path))


def _read_segment(path: Path) -> Iterator[pa.RecordBatch]:
    try:
        with path.open("rb") as file:
            yield from record_batches(file)
        return
    except FileNotFoundError:
        # It was completed, converted into Parquet or deleted meanwhile.
        name = path.name.removeprefix("_live-").removeprefix("_").removesuffix(path.suffix)
        complete, made = path.with_name(f"_{name}{path.suffix}"), path.with_name(f"{name}{PARQUET}")
    if made.exists():
        import pyarrow.parquet as pq

        yield from pq.ParquetFile(made).iter_batches(columns=arrow_schema().names)
    elif complete != path and complete.exists():
        yield from _read_segment(complete)
