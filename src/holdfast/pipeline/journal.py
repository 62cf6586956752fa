"""Event journals as a DataFrame: of their directories, Parquet and what is not Parquet yet; or of servers, over HTTP.

What a row is, docs/reference/journal.md says.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.endpoint.journal_columns import COLUMNS
from holdfast.endpoint.journal_files import PARQUET, arrow_schema, record_batches, segments
from holdfast.exceptions import ConfigurationError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

DDL = ", ".join(f"`{column.name}` {column.type.upper()}" for column in COLUMNS)
"""The columns of a journal, as Spark declares them."""


def journal_directories(place: str | Path) -> list[Path]:
    """The directories of the journals that are there.

    Args:
        place: The directory of a store, or of a journal; with several workers, that of worker 0.

    Raises:
        ConfigurationError: There is none.
    """
    given = Path(place)
    own = given / "journal"
    found = [own, *given.glob("worker-*/journal")] if own.is_dir() else [given, *given.glob("worker-*")]
    there = [one for one in found if segments(one)]
    if not there:
        raise ConfigurationError(
            f"there is no event journal in {given}",
            remedy="name the directory of a store, or the one that its journal was told to be in; a server that was "
            "started just now has written nothing yet",
        )
    return sorted(there)


def is_address(place: str | Path) -> bool:
    """Whether a place is a server's address, and no directory."""
    return isinstance(place, str) and place.startswith(("http://", "https://"))


def read_journal(spark: SparkSession, *places: str | Path, **options: str) -> DataFrame:
    """The events of some journals, of all runs and workers.

    Args:
        spark: The session.
        places: Directories, as :func:`journal_directories` takes them: the executors must find them where the driver
            does. Or URLs of servers' admin listeners, as the executors see them.
        options: Further ones of the ``wsrm`` source for those servers, such as ``tokenFile`` and ``caFile``.

    Returns:
        The columns of docs/reference/journal.md; in no order. What several places have in common is there once, such
        as of a copy, or of a directory and the server that writes it.

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
    return journal if len(places) < 2 else journal.dropDuplicates(["run", "ordinal"])


def _read_directories(spark: SparkSession, directories: Iterable[Path]) -> DataFrame:
    there = [one for directory in directories for one in segments(directory)]
    parquet = [str(one.path) for one in there if one.is_parquet]
    others = [(str(one.path),) for one in there if not one.is_parquet]
    read = spark.read.schema(DDL).parquet(*parquet) if parquet else spark.createDataFrame([], DDL)
    if not others:
        return read
    named = spark.createDataFrame(others, "path STRING").repartition(min(len(others), 200))
    return read.unionByName(named.mapInArrow(_read_segments, DDL))


def _read_segments(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """In a task."""
    for batch in batches:
        for path in batch.column(0).to_pylist():
            yield from _read_segment(Path(path))


def _read_segment(path: Path) -> Iterator[pa.RecordBatch]:
    try:
        with path.open("rb") as file:
            yield from record_batches(file)
        return
    except FileNotFoundError:
        # Meanwhile it was completed, or became Parquet, or is kept no longer.
        name = path.name.removeprefix("_live-").removeprefix("_").removesuffix(path.suffix)
        complete, made = path.with_name(f"_{name}{path.suffix}"), path.with_name(f"{name}{PARQUET}")
    if made.exists():
        import pyarrow.parquet as pq

        yield from pq.ParquetFile(made).iter_batches(columns=arrow_schema().names)
    elif complete != path and complete.exists():
        yield from _read_segment(complete)
