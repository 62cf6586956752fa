"""Contents in a database: pieces of a fixed size, each in a row of its own and in a transaction of its own."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any, BinaryIO, cast
from uuid import uuid4

from sqlalchemy import Engine, delete, insert, select

from holdfast.core.records import ContentWriter
from holdfast.exceptions import StoreDamaged
from holdfast.store.contents import Contents, HeldContent, Writer
from holdfast.store.sql import schema as schema
from holdfast.store.sql.changes import PIECE_BYTES

_BUFFER = 256 << 10


class SQLContents(Contents):
    """The contents of a space.

    Args:
        engine: Its connections commit each statement.
        space: Returns the number of the space.
        trying: Makes a call again while the database is away.
        place: The store, for people.
    """

    def __init__(
        self, engine: Engine, space: Callable[[], int], trying: Callable[[Callable[[], object]], object], place: str
    ) -> None:
        super().__init__()
        self._engine = engine
        self._space = space
        self._trying = trying
        self.place = place

    def create(self) -> ContentWriter:
        """See :meth:`Contents.create`."""
        return _SQLWriter(HeldContent(self, uuid4().bytes), self)

    def open(self, name: bytes) -> BinaryIO:
        """See :meth:`Contents.open`."""
        return cast(BinaryIO, io.BufferedReader(_SQLFile(self, name), _BUFFER))

    def put(self, name: bytes, piece: int, data: bytes) -> None:
        """Write a piece."""
        table, space = schema.contents, self._space()

        def write() -> None:
            with self._engine.connect() as connection:
                # A repeated attempt may find the piece that an earlier one wrote.
                connection.execute(delete(table).where(*self._is(name), table.c.piece == piece))
                connection.execute(insert(table).values(space=space, name=name, piece=piece, data=data))

        self._trying(write)

    def get(self, name: bytes, piece: int) -> bytes:
        """Return a piece; b"" after the last one."""
        table = schema.contents

        def read() -> bytes | None:
            with self._engine.connect() as connection:
                data = connection.scalar(select(table.c.data).where(*self._is(name), table.c.piece == piece))
            return None if data is None else bytes(data)

        found = cast("bytes | None", self._trying(read))
        if found is None and piece == 0:
            raise StoreDamaged(
                f"The attachments {name.hex()} of a message in the store at {self.place} are missing.",
                remedy="Restore the database from a copy.",
            )
        return found or b""

    def delete(self, name: bytes) -> None:
        """See :meth:`Contents.delete`."""

        def delete_all() -> None:
            with self._engine.connect() as connection:
                connection.execute(delete(schema.contents).where(*self._is(name)))

        self._trying(delete_all)

    def sweep(self) -> None:
        """Delete the contents that no record names: a killed process left them."""
        table = schema.contents
        with self._engine.connect() as connection:
            names = connection.scalars(select(table.c.name).where(table.c.space == self._space()).distinct()).all()
        for name in map(bytes, names):
            if not self.is_named(name):
                self.delete(name)

    def _is(self, name: bytes) -> tuple[Any, ...]:
        return schema.contents.c.space == self._space(), schema.contents.c.name == name


class _SQLWriter(Writer):
    def __init__(self, hold: HeldContent, contents: SQLContents) -> None:
        super().__init__(hold)
        self._contents = contents
        self._pieces = 0
        self._rest = b""

    def write(self, data: bytes) -> None:
        self.size += len(data)
        data = self._rest + data
        start = 0
        for start in range(PIECE_BYTES, len(data) + 1, PIECE_BYTES):
            self._put(data[start - PIECE_BYTES : start])
        self._rest = data[start:]

    def _put(self, piece: bytes) -> None:
        self._contents.put(self.hold.name, self._pieces, piece)
        self._pieces += 1

    def finish(self) -> None:
        self._put(self._rest)
        self._rest = b""


class _SQLFile(io.RawIOBase):
    """A content, read piece by piece; it keeps one piece."""

    def __init__(self, contents: SQLContents, name: bytes) -> None:
        self._contents = contents
        self._name = name
        self._at = 0
        self._piece: tuple[int, bytes] = (-1, b"")

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        if whence == io.SEEK_END:
            raise io.UnsupportedOperation("the end is not known")
        self._at = max(0, offset if whence == io.SEEK_SET else self._at + offset)
        return self._at

    def readinto(self, buffer: Any) -> int:
        number, start = divmod(self._at, PIECE_BYTES)
        if self._piece[0] != number:
            self._piece = (number, self._contents.get(self._name, number))
        target = memoryview(buffer).cast("B")
        data = self._piece[1][start : start + len(target)]
        target[: len(data)] = data
        self._at += len(data)
        return len(data)
