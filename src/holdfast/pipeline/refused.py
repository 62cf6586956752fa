"""The table of rows that a write refused: Parquet, beside the messages, exactly as often.

A task writes its refused rows to a file that Spark does not see yet (``_staged``). The driver moves the files of a
batch to their place just before the batch is published, instead of those of an earlier attempt at it: so the table has
the rows of each batch once, whatever is killed. Paths are those of pyarrow, as tasks and driver may have no JVM to ask.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from holdfast.exceptions import ConfigurationError
from holdfast.pipeline.errors import WriteRefused
from holdfast.pipeline.rows import Refused

COLUMNS = [
    ("refused_reason", pa.string()),
    ("refused_column", pa.string()),
    ("refused_partition", pa.int32()),
    ("refused_row", pa.int64()),
]
"""What stands beside a row's own columns; the path has ``refused_query`` and ``refused_batch``."""


class RefusedFile:
    """The refused rows of one task, written as they come; there is no file if there are none.

    Args:
        directory: The table's.
        query, batch: What the task writes.
        name: What no other attempt at anything is called.
        partition: The task's.
    """

    def __init__(self, directory: str, query: str, batch: int, name: str, partition: int) -> None:
        self._directory = directory
        self._staged = _staged(query, batch)
        self._partition = partition
        self._writer: pq.ParquetWriter | None = None
        self.name = f"{name}.parquet"
        self.rows = 0

    def add(self, refused: Sequence[Refused]) -> None:
        """Write rows."""
        for one in refused:
            row = one.batch.slice(one.index, 1)
            said: list[Any] = [one.reason, one.column or None, self._partition, one.position]
            arrays = [pa.array([value], kind) for value, (_, kind) in zip(said, COLUMNS, strict=True)]
            ours = pa.schema(COLUMNS)
            table = pa.table([*arrays, *row.columns], schema=pa.schema([*ours, *row.schema]))
            if self._writer is None:
                with _written(self._directory):
                    system, at = _system(self._directory)
                    system.create_dir(f"{at}/{self._staged}", recursive=True)
                    self._writer = pq.ParquetWriter(f"{at}/{self._staged}/{self.name}", table.schema, filesystem=system)
            with _written(self._directory):
                self._writer.write_table(table)
        self.rows += len(refused)

    def close(self) -> str:
        """Its name once it is written, "" if there is none."""
        if self._writer is None:
            return ""
        with _written(self._directory):
            self._writer.close()
        return self.name


def place(directory: str, query: str, batch: int, names: Iterable[str]) -> None:
    """Let these files be the refused rows of a batch, and no others."""
    system, at = _system(directory)
    target = f"{at}/refused_query={query}/refused_batch={batch}"
    wanted = set(names)
    with _written(directory):
        there = {info.base_name for info in system.get_file_info(fs.FileSelector(target, allow_not_found=True))}
        for name in there - wanted:
            system.delete_file(f"{target}/{name}")
        if wanted:
            system.create_dir(target, recursive=True)
        for name in sorted(wanted - there):
            system.move(f"{at}/{_staged(query, batch)}/{name}", f"{target}/{name}")


def drop(directory: str, query: str, batch: int) -> None:
    """Delete what attempts at a batch staged and nobody placed."""
    system, at = _system(directory)
    if system.get_file_info(f"{at}/{_staged(query, batch)}").type is not fs.FileType.NotFound:
        system.delete_dir(f"{at}/{_staged(query, batch)}")


def _staged(query: str, batch: int) -> str:
    return f"_staged/{query}/{batch}"


@contextmanager
def _written(directory: str) -> Iterator[None]:
    """What a file system says, as what it means for the write."""
    try:
        yield
    except OSError as error:
        raise WriteRefused(
            f"rows that cannot be sent are to be kept in {directory}, which cannot be written: {error}",
            remedy="nothing of the batch was sent: make room, give driver and executors the right to write there, or "
            "name another directory with option refused; then start again",
        ) from error


def _system(directory: str) -> tuple[fs.FileSystem, str]:
    uri = directory.replace("s3a://", "s3://", 1) if directory.startswith("s3a://") else directory
    if uri.startswith("file:/") and not uri.startswith("file://"):
        uri = uri.removeprefix("file:")
    try:
        system, at = fs.FileSystem.from_uri(uri)
    except (pa.ArrowInvalid, OSError) as error:
        raise ConfigurationError(
            f"option refused={directory!r} is a place this machine cannot write to: {error}",
            remedy="give an absolute path, or a URI that pyarrow knows: file, s3, gs, abfs, hdfs",
        ) from error
    return system, at
