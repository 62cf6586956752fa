"""The event journal of a server, file by file, seen from a reader that is patient with a server away.

Owns its requests and what their answers mean. Knows nothing of Spark, and not what is in a file.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

from holdfast.client.connection import Connection, answer_of, understood
from holdfast.client.data_plane import Patience
from holdfast.client.errors import PipelineError, RecordsTrimmed, ServerAway
from holdfast.positioned_file import PositionedFile


@dataclass(frozen=True, slots=True)
class JournalFile:
    """A file of the journal.

    Args:
        name: What it is called.
        size: Bytes: what is appended later counts for later reads.
    """

    name: str
    size: int


class FileMoved(PipelineError):
    """These octets are not there any more: the events have become Parquet.

    Args:
        made: What has them now.
    """

    def __init__(self, made: JournalFile) -> None:
        super().__init__(f"the file is now {made.name}")
        self.made = made


class FileShorter(PipelineError):
    """A file was cut off: the writing process died before it completed the missing part.

    Args:
        size: Its current bytes.
    """

    def __init__(self, size: int) -> None:
        super().__init__(f"the file has only {size} bytes")
        self.size = size


class JournalClient(Connection):
    """The event journal of one server, with that of all its workers."""

    def files(self, after: str = "") -> tuple[list[JournalFile], str | None]:
        """Return some files, the oldest of each worker first, and the start of the next page.

        Raises:
            PipelineError: The server has no journal, or is too old to provide it.
        """
        answer = self._json("GET", f"/journal?{urlencode({'limit': 1000, 'after': after})}")
        with understood(self._broker):
            files = [JournalFile(str(one["file"]), int(one["bytes"])) for one in answer["files"]]
            following = answer["next"]
            return files, None if following is None else str(following)

    def octets(self, name: str, start: int, end: int) -> bytes:
        """Bytes of a file, exactly those from ``start`` to before ``end``.

        Raises:
            FileMoved: The file has become Parquet.
            FileShorter: There are not so many.
            RecordsTrimmed: It is kept no longer.
        """
        response = self._open("GET", f"/journal/{quote(name, safe='')}?from={start}&to={end}")
        data = self._read(response.read)
        if response.status != 200:
            self._refused(name, response.status, answer_of(data))
        if len(data) != end - start:
            self.close()
            raise ServerAway(f"{self._broker} ended its response early: {name}, at byte {start + len(data)} of {end}")
        return data

    def _refused(self, name: str, status: int, answer: dict[str, Any]) -> None:
        with understood(self._broker):
            if status == 404 and "file" in answer:
                raise FileMoved(JournalFile(str(answer["file"]), int(answer["bytes"])))
            if status == 416:
                raise FileShorter(int(answer["bytes"]))
        if status == 404:
            raise RecordsTrimmed(
                f"{name} of the journal at {self._broker} is no longer kept",
                remedy="Read again to list the current files. To skip missing files, set option "
                "failOnDataLoss=false; a larger JournalPolicy(age=, size=) of the server keeps files longer",
            )
        self._checked(status, answer)


def all_files(client: JournalClient, patience: Patience) -> Iterator[JournalFile]:
    after: str | None = ""
    while after is not None:
        files, after = patience.call(lambda at=after: client.files(at))  # type: ignore[misc]
        yield from files


class RemoteFile(PositionedFile):
    """A file of the journal, read where it is asked for.

    Args:
        client: Whom to ask.
        file: Which.
        patience: How long the server is waited for.

    Reading raises what :meth:`JournalClient.octets` does, except that a file which was cut off ends there.
    """

    def __init__(self, client: JournalClient, file: JournalFile, patience: Patience) -> None:
        super().__init__(file.size)
        self._client = client
        self._name = file.name
        self._patience = patience

    def _read(self, start: int, size: int) -> bytes:
        while (stop := min(start + size, self._size or 0)) > start:
            try:
                return self._patience.call(lambda stop=stop: self._client.octets(self._name, start, stop))  # type: ignore[misc]
            except FileShorter as error:
                self._size = min(self._size or 0, error.size)
        return b""
