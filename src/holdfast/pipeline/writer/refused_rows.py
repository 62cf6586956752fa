"""The table of rows that a write refused: Parquet, written exactly as often as the messages.

A task writes its refused rows to a file that Spark does not see yet (``_staged``). The driver notes the files of its
attempt at the batch, passes the attempt's name to the server with the publication, and then moves the files of the
published attempt to their place, even if another driver made it. So the server alone decides which attempt's rows are
sent and which attempt's rows are in the table. All drivers, at the same time or one after the other, do the same. Paths
are those of pyarrow, because tasks and driver may have no JVM.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from holdfast.client.errors import WriteRefused
from holdfast.exceptions import ConfigurationError
from holdfast.pipeline.writer.rows import Refused

COLUMNS = [
    ("refused_reason", pa.string()),
    ("refused_column", pa.string()),
    ("refused_partition", pa.int32()),
    ("refused_row", pa.int64()),
]
"""Columns added to a row's own; the path has ``refused_query`` and ``refused_batch``."""

_NOTE = ".json"
_GROUP_ROWS = 1000
_GROUP_BYTES = 4 << 20


class RefusedFile:
    """The refused rows of one task, written as they occur; without refused rows there is no file.

    Args:
        directory: The table's.
        query, batch: The batch of the task.
        name: A name that no other attempt has.
        partition: The task's.
    """

    def __init__(self, directory: str, query: str, batch: int, name: str, partition: int) -> None:
        self._directory = directory
        self._staged = _staged(query, batch)
        self._partition = partition
        self._waiting: list[pa.Table] = []
        self._bytes = 0
        self._writer: pq.ParquetWriter | None = None
        self._stream: pa.NativeFile
        self.name = f"{name}.parquet"
        self.rows = 0

    def add(self, refused: Sequence[Refused]) -> None:
        for one in refused:
            row = one.batch.take(pa.array([one.index]))  # a slice would keep the others
            said: list[Any] = [one.reason, one.column or None, self._partition, one.position]
            arrays = [pa.array([value], kind) for value, (_, kind) in zip(said, COLUMNS, strict=True)]
            ours = pa.schema(COLUMNS)
            self._waiting.append(pa.table([*arrays, *row.columns], schema=pa.schema([*ours, *row.schema])))
            self._bytes += row.nbytes
            if len(self._waiting) == _GROUP_ROWS or self._bytes >= _GROUP_BYTES:
                self._write()
        self.rows += len(refused)

    def _write(self) -> None:
        """Write the waiting rows as a row group; one for each row would need as much memory as the file."""
        table, self._waiting, self._bytes = pa.concat_tables(self._waiting).combine_chunks(), [], 0
        with _written(self._directory):
            if self._writer is None:
                system, at = _system(self._directory)
                system.create_dir(f"{at}/{self._staged}", recursive=True)
                self._stream = system.open_output_stream(f"{at}/{self._staged}/{self.name}")
                self._writer = pq.ParquetWriter(self._stream, table.schema)
            self._writer.write_table(table)

    def close(self) -> str:
        """Return its name once it is written, "" without rows."""
        if self._waiting:
            self._write()
        if self._writer is None:
            return ""
        with _written(self._directory):
            self._writer.close()
            self._stream.close()
        return self.name


def note(directory: str, query: str, batch: int, names: Iterable[str]) -> str:
    """Note, before a batch is published, that these files contain the refused rows of an attempt at it.

    Returns:
        The attempt's name; "" for an attempt without refused rows.
    """
    found = sorted(names)
    if not found:
        return ""
    system, at = _system(directory)
    # Every driver notes its own: two may publish one batch at once, and the server names the one that counts.
    attempt = secrets.token_hex(8)
    with _written(directory):
        system.create_dir(f"{at}/{_staged(query, batch)}", recursive=True)
        with system.open_output_stream(f"{at}/{_staged(query, batch)}/{attempt}{_NOTE}") as stream:
            stream.write(json.dumps(found).encode())
    return attempt


def place(directory: str, query: str, batch: int, attempt: str | None) -> None:
    """Move the refused rows of the published attempt to their place, and delete those of other attempts.

    Args:
        directory: The table's.
        query, batch: The published batch.
        attempt: Its name; None: it is no longer known, and files that may contain its rows stay where they are.
    """
    system, at = _system(directory)
    if attempt is None:
        _is_noted(system, f"{at}/{_staged(query, batch)}")
        return
    staged, target = f"{at}/{_staged(query, batch)}", f"{at}/refused_query={query}/refused_batch={batch}"
    with _written(directory, f"the batch was sent. Its refused rows are in {staged}: start again to move them"):
        names = _noted(system, f"{staged}/{attempt}{_NOTE}") if attempt else set()
        if names is not None:  # otherwise another driver has placed them
            there = _names(system, target)
            for name in there - names:
                with suppress(FileNotFoundError):
                    system.delete_file(f"{target}/{name}")
            if names:
                system.create_dir(target, recursive=True)
            for name in sorted(names - there):
                _move(system, f"{staged}/{name}", f"{target}/{name}")
    _drop(system, staged)


def left(directory: str, query: str, before: int) -> list[int]:
    """Return batches of a query below ``before`` with a recorded attempt, but without a known placed one."""
    system, at = _system(directory)
    found: list[int] = []
    for name in _names(system, f"{at}/_staged/{query}"):
        if not name.isdigit() or int(name) >= before:
            continue
        if _is_noted(system, f"{at}/{_staged(query, int(name))}"):
            found.append(int(name))
    return found


def _is_noted(system: fs.FileSystem, staged: str) -> bool:
    """Return whether one of the noted attempts may have been published; delete the files of others."""
    if any(name.endswith(_NOTE) for name in _names(system, staged)):
        return True
    _drop(system, staged)
    return False


def _noted(system: fs.FileSystem, path: str) -> set[str] | None:
    """Return the files of an attempt; None: they are in their place."""
    try:
        with system.open_input_stream(path) as stream:
            return set(json.loads(stream.read()))
    except FileNotFoundError:
        return None


def _names(system: fs.FileSystem, path: str) -> set[str]:
    return {info.base_name for info in system.get_file_info(fs.FileSelector(path, allow_not_found=True))}


def _move(system: fs.FileSystem, source: str, target: str) -> None:
    """Move a file, unless another driver has just moved it."""
    try:
        system.move(source, target)
    except FileNotFoundError:
        if system.get_file_info(target).type is fs.FileType.NotFound:
            raise


def _drop(system: fs.FileSystem, path: str) -> None:
    """Delete staged files of unpublished attempts; another driver may do so at the same time."""
    with suppress(OSError):
        if system.get_file_info(path).type is not fs.FileType.NotFound:
            system.delete_dir(path)


def _staged(query: str, batch: int) -> str:
    return f"_staged/{query}/{batch}"


@contextmanager
def _written(directory: str, then: str = "") -> Iterator[None]:
    """Translate a file system's error; without ``then``, nothing of the batch was sent."""
    remedy = (
        "Nothing of the batch was sent: free space, give driver and executors write access, or name another "
        "directory with option refused; then start again"
    )
    try:
        yield
    except OSError as error:
        raise WriteRefused(
            f"rows that cannot be sent must be stored in {directory}, but it is not writable: {error}",
            remedy=f"{then} to their place" if then else remedy,
        ) from error


def _system(directory: str) -> tuple[fs.FileSystem, str]:
    uri = directory.replace("s3a://", "s3://", 1) if directory.startswith("s3a://") else directory
    if uri.startswith("file:/") and not uri.startswith("file://"):
        uri = uri.removeprefix("file:")
    try:
        system, at = fs.FileSystem.from_uri(uri)
    except (pa.ArrowInvalid, OSError) as error:
        raise ConfigurationError(
            f"option refused={directory!r} is not writable on this machine: {error}",
            remedy="Use an absolute path, or a URI that pyarrow supports: file, s3, gs, abfs, hdfs",
        ) from error
    return system, at
