"""The targets of ``holdfast receive``: a file for each message, or a line of JSON. Durable before it returns.

If the process was killed before a message was marked as done, the message is delivered again. Both targets recognise
it: a file by its name, a line by the content of the file.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import tempfile
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO
from urllib.parse import quote

from holdfast.core.ranges import AcknowledgementRanges
from holdfast.endpoint.envelopes.attachments import file_suffix, json_line
from holdfast.exceptions import ConfigurationError, HoldfastError
from holdfast.store.directory import sync_directory

if TYPE_CHECKING:
    from holdfast.endpoint.envelopes.message import Message


class Directory:
    """A file for each body, named ``<sequence>-<number>.xml``; it appears whole or not at all, after its attachments,
    ``<sequence>-<number>.1.png`` and so on.

    Raises:
        ConfigurationError: it cannot be made or written to.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            _make_directory(path)
            # Kept open: renames in it become durable by a sync of it.
            self._directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            with tempfile.TemporaryFile(dir=path):
                pass
        except OSError as error:
            raise ConfigurationError(
                f"cannot write to {path}: {error.strerror}", remedy="Name a writable directory with --out."
            ) from error

    def take(self, message: Message) -> None:
        """Keep one message. From any thread."""
        sequence = quote(message.sequence.removeprefix("urn:uuid:"), safe="")
        name = f"{sequence}-{message.message_number}"
        for number, one in enumerate(message.attachments, 1):
            with one.open() as content:
                self._write(name + file_suffix(number, one), content)
        self._write(f"{name}.xml", io.BytesIO(message.body_bytes))

    def _write(self, name: str, content: BinaryIO) -> None:
        partial = self._path / f"{name}.partial"
        with partial.open("wb") as file:
            shutil.copyfileobj(content, file)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(self._path / name)
        os.fsync(self._directory)

    def close(self) -> None:
        """Give up the directory."""
        os.close(self._directory)


def _make_directory(path: Path) -> None:
    """Make a directory and its missing parents, with durable names."""
    missing = [one for one in (path, *path.parents) if not one.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for one in missing:
        sync_directory(one.parent)


class Lines:
    """A line of JSON for each message, appended to one file.

    Each has ``sequence, message_number, message_id, action, received_at`` (seconds since 1970) and ``body``; one of an
    authenticated user also has ``user``, and one with attachments ``attachments``, each with ``content_id``,
    ``media_type`` and ``base64``.

    Args:
        path: The file; what it holds stays, an unfinished last line is cut off.

    Raises:
        ConfigurationError: it cannot be written, or holds something else.
    """

    def __init__(self, path: Path) -> None:
        self._held: dict[str, AcknowledgementRanges] = {}
        self._writing = threading.Lock()
        self._syncing = threading.Lock()
        self._synced = 0
        try:
            _make_directory(path.parent)
            self._file = path.open("a+b", buffering=0)
            # Also of a file that exists: the process that made it may have been killed before this.
            sync_directory(path.parent)
            self._written = self._take_up(path)
        except OSError as error:
            raise ConfigurationError(
                f"cannot write to {path}: {error.strerror}", remedy="Name a writable file with --jsonl."
            ) from error

    def _take_up(self, path: Path) -> int:
        # Buffered, unlike the file for writing: that one reads each byte with a system call.
        with path.open("rb") as lines:
            end = self._read_lines(lines, path)
        self._file.truncate(end)
        return end

    def _read_lines(self, lines: BinaryIO, path: Path) -> int:
        end = 0
        for number, line in enumerate(lines, 1):
            if not line.endswith(b"\n"):
                break  # torn by a crash; its message comes again
            try:
                found = json.loads(line)
                self._numbers(str(found["sequence"])).add(int(found["message_number"]))
            except (ValueError, KeyError, TypeError, RecursionError) as error:
                self._file.close()
                raise ConfigurationError(
                    f"line {number} of {path} was not written by holdfast receive: {error!r}",
                    remedy="Name another file with --jsonl.",
                ) from error
            end += len(line)
        return end

    def _numbers(self, sequence: str) -> AcknowledgementRanges:
        return self._held.setdefault(sequence, AcknowledgementRanges())

    def _append(self, pieces: Iterable[bytes]) -> None:
        written = self._written
        try:
            for data in pieces:
                rest = memoryview(data)
                while rest:
                    rest = rest[self._file.write(rest) :]
                written += len(data)
        except (OSError, HoldfastError):
            self._file.truncate(self._written)  # no half a line: the message is handed over again
            raise
        self._written = written

    def take(self, message: Message) -> None:
        """Keep one message. From any thread; what several threads write shares a sync."""
        line: dict[str, Any] = {
            "sequence": message.sequence,
            "message_number": message.message_number,
            "message_id": message.message_id,
            "action": message.action,
            "received_at": message.received_at,
            "body": message.body_bytes.decode(),
        }
        if message.user:
            line["user"] = message.user
        with self._writing:
            if message.message_number not in self._numbers(message.sequence):
                self._append(json_line(line, message.attachments))
                self._numbers(message.sequence).add(message.message_number)
            end = self._written
        with self._syncing:
            if self._synced < end:
                reached = self._written
                os.fsync(self._file.fileno())
                self._synced = reached

    def close(self) -> None:
        self._file.close()
