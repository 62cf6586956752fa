"""Parquet of an event journal: how segments become it, and which files of a journal are damaged.

``python -m holdfast.endpoint.journal.parquet DIRECTORY`` makes Parquet of what a journal has ready. The writer of the
journal starts that process now and then: pyarrow takes more memory than a whole endpoint, and what it does would hold
up the loop.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any
from zlib import crc32

from holdfast.endpoint.journal.columns import COLUMNS
from holdfast.endpoint.journal.files import (
    DRAFT,
    HEADER,
    PARQUET,
    Segment,
    ignore_damage,
    read_segment,
    segments,
)

ROWS_A_GROUP = 100_000
"""Rows that are put into Parquet together."""

_MARK = b"holdfast-crc32:"
"""In the metadata of a Parquet file: its checksum follows, computed with zeros in that place."""
_ZEROS = b"0" * 8
_TAIL = 1 << 16
"""The mark is in the last bytes, in so many."""
_PIECE = 1 << 20


def arrow_schema() -> Any:
    """Return the schema of pyarrow, in the types that Spark reads."""
    import pyarrow as pa

    types = {"timestamp": pa.timestamp("us", tz="UTC"), "string": pa.string(), "int": pa.int32(), "bigint": pa.int64()}
    return pa.schema([(column.name, types[column.type]) for column in COLUMNS])


def record_batches(file: IO[bytes], on_damage: Callable[[str], None] = ignore_damage) -> Iterator[Any]:
    """The events of a segment as record batches of pyarrow; ``on_damage`` as of :func:`whole_frames`."""
    import pyarrow as pa

    schema = arrow_schema()
    for parts in read_segment(file, on_damage):
        for part in parts:
            count = len(part.columns["ordinal"])
            columns: dict[str, Any] = {
                name: _arrow_array(values, schema.field(name).type) for name, values in part.columns.items()
            }
            columns["run"] = pa.repeat(pa.scalar(part.run, pa.string()), count)
            columns["worker"] = pa.repeat(pa.scalar(part.worker, pa.int32()), count)
            arrays = [columns[one.name] if one.name in columns else pa.nulls(count, one.type) for one in schema]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _arrow_array(values: Sequence[Any], kind: Any) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    if not pa.types.is_timestamp(kind):
        return pa.array(values, kind)
    return pc.round(pc.multiply(pa.array(values, pa.float64()), 1e6)).cast(pa.int64()).cast(kind)


def to_parquet(segment: Segment) -> Path:
    """Convert a segment that is no longer written to Parquet, then delete it.

    If the process is killed at any moment, one of the two files remains.

    Raises:
        OSError: It cannot be read or written.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    directory = segment.path.parent
    draft, made = directory / f"_{segment.name}{DRAFT}", directory / f"{segment.name}{PARQUET}"
    schema = arrow_schema()
    writer = pq.ParquetWriter(draft, schema, compression="zstd", write_page_checksum=True)
    with segment.path.open("rb") as file, writer:
        waiting: list[Any] = []
        for batch in record_batches(file):
            waiting.append(batch)
            if sum(one.num_rows for one in waiting) >= ROWS_A_GROUP:
                writer.write_table(pa.Table.from_batches(waiting, schema))
                waiting = []
        writer.write_table(pa.Table.from_batches(waiting, schema))
        writer.add_key_value_metadata({"holdfast": (_MARK + _ZEROS).decode()})
    _sign(draft)
    # Durable before the original goes.
    draft.replace(made)
    segment.path.unlink()
    return made


def _sign(draft: Path) -> None:
    """Write a file's checksum into it, and make it durable."""
    with draft.open("r+b") as file:
        checksum, place = _checksum(file)
        assert place is not None
        file.seek(place)
        file.write(b"%08x" % checksum)
        file.flush()
        os.fsync(file.fileno())


def _checksum(file: IO[bytes]) -> tuple[int, int | None]:
    """Return the checksum of a Parquet file and its position; None without one."""
    size = file.seek(0, os.SEEK_END)
    start = max(0, size - _TAIL)
    file.seek(start)
    found = file.read(_TAIL).rfind(_MARK)
    if found < 0:
        return 0, None
    place = start + found + len(_MARK)
    checksum = crc32(_ZEROS, _checksum_of(file, 0, place, 0))
    return _checksum_of(file, place + len(_ZEROS), size, checksum), place


def _checksum_of(file: IO[bytes], begin: int, end: int, checksum: int) -> int:
    file.seek(begin)
    while begin < end and (piece := file.read(min(_PIECE, end - begin))):
        checksum = crc32(piece, checksum)
        begin += len(piece)
    return checksum


def damage_of(segment: Segment) -> str:
    """Why a file of a journal cannot be believed; "" if it is whole. One that is being written may end anywhere.

    Raises:
        FileNotFoundError: It is not there any more.
        OSError: It cannot be read.
    """
    if segment.is_parquet:
        return _parquet_damage(segment.path)
    found: list[str] = []
    with segment.path.open("rb") as file:
        end = 0
        for _ in read_segment(file, found.append):
            end = file.tell()
        if found or segment.is_live:
            return "".join(found)
        is_whole = not segment.size or file.seek(0, os.SEEK_END) == max(end, len(HEADER))
    return "" if is_whole else f"it ends after byte {end:,}"


def _parquet_damage(path: Path) -> str:
    with path.open("rb") as file:
        checksum, place = _checksum(file)
        if place is None:
            return "it has no checksum, so its end is damaged, or another program wrote it"
        file.seek(place)
        return "" if file.read(len(_ZEROS)) == b"%08x" % checksum else "its checksum is wrong"


def to_parquet_all(directory: Path) -> int:
    """Make Parquet of every segment that is done; how many. One that is being written is left alone, and so is one that
    is damaged: an audit names it. Two processes do it one after the other.

    Raises:
        OSError: One cannot be read or written.
    """
    import fcntl  # readers of a journal may run on systems without it

    with (directory / "_making").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return _to_parquet_all(directory)


def _to_parquet_all(directory: Path) -> int:
    for left in directory.glob(f"_*{DRAFT}"):
        with contextlib.suppress(FileNotFoundError):
            left.unlink()
    done = [one for one in segments(directory) if not one.is_parquet and not one.is_live and not damage_of(one)]
    for one in done:
        to_parquet(one)
    return len(done)


def main() -> None:
    """Do it, and let everybody else go first."""
    os.nice(10)
    to_parquet_all(Path(sys.argv[1]))


if __name__ == "__main__":
    main()
