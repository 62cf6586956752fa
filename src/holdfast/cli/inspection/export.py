"""Taking the records of a queue out of a running server: a file for each body, or a line of JSON for each record."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import shutil
import sys
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from holdfast.exceptions import ConfigurationError

if TYPE_CHECKING:
    from holdfast.client.admin import Access
    from holdfast.core.records import Record


class Files:
    """A file for each body: ``PARTITION-OFFSET.xml``, with zeros in front, so that names are in the queue's order; and
    for each attachment: ``PARTITION-OFFSET.1.png``.

    Args:
        path: The directory; made if it is missing.

    Raises:
        ConfigurationError: it cannot be made.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise _unwritable(path, error) from error

    def take(self, partition: int, offset: int, record: Record) -> None:
        self.attachments(partition, offset, record)
        self._write(f"{_name(partition, offset)}.xml", io.BytesIO(record.body))

    def attachments(self, partition: int, offset: int, record: Record) -> list[Path]:
        """Keep the attachments of one, and return their files."""
        from holdfast.endpoint.envelopes.attachments import decode_attachments, file_suffix

        found = []
        for number, one in enumerate(decode_attachments(record.attachments), 1):
            with one.open() as content:
                found.append(self._write(_name(partition, offset) + file_suffix(number, one), content))
        return found

    def _write(self, name: str, content: BinaryIO) -> Path:
        target = self._path / name
        partial = self._path / f"{name}.partial"
        try:
            with partial.open("wb") as file:
                shutil.copyfileobj(content, file)
            # A file with its final name is whole, also after the command was killed.
            partial.replace(target)
        except OSError as error:
            raise _unwritable(target, error) from error
        return target

    def close(self) -> None:
        """Make what was taken durable."""
        os.sync()


class JSONLines:
    """A line of JSON for each record, in a file or on standard output.

    Args:
        path: The file; ``-`` for standard output.
        files: Takes the attachments, which the lines then name; None: the lines have them in base64.

    Raises:
        ConfigurationError: It cannot be written.
    """

    def __init__(self, path: str, files: Files | None = None) -> None:
        self._path = path
        self._files = files
        try:
            self._file: BinaryIO = sys.stdout.buffer if path == "-" else io.BufferedWriter(io.FileIO(path, "w"))
        except OSError as error:
            raise _unwritable(path, error) from error

    def take(self, partition: int, offset: int, record: Record) -> None:
        from holdfast.endpoint.envelopes.attachments import decode_attachments, json_line

        line: dict[str, Any] = {
            "partition": partition,
            "offset": offset,
            "sequence": record.sequence,
            "message_number": record.message_number,
            "message_id": record.message_id,
            "action": record.action,
            "to": record.to,
            "received_at": record.received_at,
            "headers": record.headers.decode("utf-8", "replace"),
            "body": record.body.decode("utf-8", "replace"),
        }
        attachments = decode_attachments(record.attachments)
        if self._files is not None and attachments:
            files = self._files.attachments(partition, offset, record)
            line["attachments"] = [
                {"content_id": one.content_id, "media_type": one.media_type, "file": str(file)}
                for one, file in zip(attachments, files, strict=True)
            ]
            attachments = []
        try:
            for piece in json_line(line, attachments):
                self._file.write(piece)
        except BrokenPipeError:
            raise
        except OSError as error:
            raise _unwritable(self._path, error) from error

    def close(self) -> None:
        """Make what was taken durable."""
        try:
            self._file.flush()
            if self._path != "-":
                os.fsync(self._file.fileno())
        except BrokenPipeError:
            raise
        except OSError as error:
            if error.errno != errno.EINVAL:  # a pipe or a device: fsync does not apply
                raise _unwritable(self._path, error) from error
        finally:
            if self._path != "-":
                with contextlib.suppress(OSError):  # already raised by the flush
                    self._file.close()
        if self._files is not None:
            self._files.close()


def _name(partition: int, offset: int) -> str:
    return f"{partition}-{offset:012}"


def _unwritable(path: object, error: OSError) -> ConfigurationError:
    return ConfigurationError(
        f"cannot write to {path}: {error.strerror}",
        remedy="Free some space, or name another place with --to or --jsonl.",
    )


def export(
    admin: str,
    access: Access,
    away: float | None,
    queue: str,
    partitions: Iterable[int] | None,
    bounds: tuple[int | None, int | None],
    place: Files | JSONLines,
    taken: Callable[[int, int], None],
) -> int:
    """Export the current records.

    Args:
        admin: The URL of the admin listener.
        access: How to connect to it.
        away: Seconds to wait for a server that does not answer; None: the default.
        partitions: Its partitions; None for all.
        bounds: The first offset, and the one after the last; None: the whole range.
        place: The target.
        taken: Called now and then with the exported and the total number.

    Returns:
        The number of records.

    Raises:
        HoldfastError: The server does not answer, or does not have the records.
    """
    from holdfast.client.command_options import AWAY, have_answer
    from holdfast.client.data_plane import DataPlane, Patience, read_range
    from holdfast.client.offsets import Range
    from holdfast.client.record_contents import with_remote_content
    from holdfast.store.records import decode_record

    plane, contents = DataPlane(admin, access), DataPlane(admin, access)  # a stream of records takes one connection
    ends = have_answer(lambda: plane.ends(queue), away)
    patience = Patience(AWAY if away is None else away)
    wanted = sorted(ends.partitions if partitions is None else partitions)
    missing = [one for one in wanted if one not in ends.partitions]
    if missing:
        raise ConfigurationError(
            f"the queue {queue!r} has no partition {missing[0]}",
            remedy=f"The queue has {len(ends.partitions)} partitions, numbered from 0.",
        )
    ranges = []
    for one in wanted:
        first, end = ends.partitions[one]
        start = first if bounds[0] is None else max(first, bounds[0])
        stop = end if bounds[1] is None else min(end, bounds[1])
        ranges.append(Range(one, start, max(start, stop)))
    total, count = sum(one.rows for one in ranges), 0

    def content(partition: int, offset: int, start: int) -> bytes:
        patient = Patience(AWAY if away is None else away)
        return patient.call(lambda: contents.content(queue, ends.epoch, partition, offset, start))

    with contextlib.closing(plane), contextlib.closing(contents), contextlib.closing(place):
        for part in ranges:
            for records in read_range(plane, queue, ends.epoch, part, patience):
                for offset, data in records:
                    record = with_remote_content(decode_record(data), partial(content, part.partition, offset))
                    place.take(part.partition, offset, record)
                count += len(records)
                taken(count, total)
    return count
