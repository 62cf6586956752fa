"""Contents in a database: pieces of a fixed size, each in a row of its own and in a transaction of its own.

Like a batch, a piece is written only if the space still has the epoch of this process. The row of the space is locked
until the piece is committed, so a process that takes the space over sees the piece, and deletes it unless a record
names it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, cast

from sqlalchemy import Engine, delete, insert, select

from holdfast.exceptions import StoreDamaged, StoreFailed
from holdfast.store.contents import PieceContents
from holdfast.store.sql import schema as schema
from holdfast.store.sql.changes import PIECE_BYTES


class SQLContents(PieceContents):
    """The contents of a space.

    Args:
        engine: Its connections commit each statement.
        space: Returns the number of the space.
        epoch: Returns the epoch in which this process has it.
        trying: Makes a call again while the database is away.
        place: The store, for people.
    """

    def __init__(
        self,
        engine: Engine,
        space: Callable[[], int],
        epoch: Callable[[], int],
        trying: Callable[[Callable[[], object]], object],
        place: str,
    ) -> None:
        super().__init__(PIECE_BYTES)
        self._engine = engine
        self._writing = engine.execution_options(isolation_level="READ COMMITTED")
        self._space = space
        self._epoch = epoch
        self._trying = trying
        self.place = place

    def put(self, name: bytes, piece: int, data: bytes) -> None:
        """See :meth:`PieceContents.put`.

        Raises:
            StoreFailed: Another process has the space open, or the database went back.
        """
        table, spaces, space = schema.contents, schema.spaces, self._space()
        mine = select(spaces.c.id).where(spaces.c.id == space, spaces.c.epoch == self._epoch())

        def write() -> bool:
            with self._writing.begin() as connection:
                # A repeated attempt may find the piece that an earlier one wrote.
                connection.execute(delete(table).where(*self._is(name), table.c.piece == piece))
                connection.execute(insert(table).values(space=space, name=name, piece=piece, data=data))
                # Last, because batches wait for this lock.
                is_ours = connection.scalar(mine.with_for_update(read=True)) is not None
                if not is_ours:
                    connection.rollback()
            return is_ours

        if not self._trying(write):
            raise StoreFailed(
                f"Another process has opened the store at {self.place}. The attachments of a message are not stored.",
                remedy="Only one process may have a space open. Stop one of the two, or give each its own: ?space=NAME",
            )

    def get(self, name: bytes, piece: int) -> bytes:
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

        def delete_all() -> None:
            with self._engine.connect() as connection:
                connection.execute(delete(schema.contents).where(*self._is(name)))

        self._trying(delete_all)

    def names(self) -> Iterable[bytes]:
        table = schema.contents
        with self._engine.connect() as connection:
            names = connection.scalars(select(table.c.name).where(table.c.space == self._space()).distinct()).all()
        return map(bytes, names)

    def _is(self, name: bytes) -> tuple[Any, ...]:
        return schema.contents.c.space == self._space(), schema.contents.c.name == name
